"""What clients see of the prefix cache: usage, salts, metrics; and offline."""

from collections.abc import Iterator
from typing import Any

import pytest
from harness import MODEL, Running, Script, assert_error, serving

from legato.core.config import EngineConfig
from legato.core.errors import RequestError
from legato.core.types import SamplingParams
from legato.engine.assemble import assemble
from legato.engine.llm import LLM
from support.byte_level import ASSETS, VOCAB, byte_tokens
from support.scripted import ScriptedExecutor

PROMPT = "a prompt of more than forty-eight characters, all bytes"
IDS = byte_tokens(PROMPT)  # 55 tokens: 3 blocks of 16
BODY: dict[str, Any] = {"prompt": IDS, "max_tokens": 8, "temperature": 0}


def scripted() -> ScriptedExecutor:
    script = Script()
    script.set(IDS, byte_tokens("fine"))
    return ScriptedExecutor(vocab_size=VOCAB, emit=script)


@pytest.fixture
def server() -> Iterator[Running]:
    with serving(scripted()) as it:
        yield it


def cached(answer: dict[str, Any]) -> int:
    tokens: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens


def test_usage_tells_cached_tokens(server: Running) -> None:
    answers = [server.complete(**BODY) for _ in range(2)]
    assert [cached(answer) for answer in answers] == [0, 48]
    assert all(answer["choices"][0]["text"] == "fine" for answer in answers)
    stream = server.stream("/v1/completions", **BODY, stream_options={"include_usage": True})
    assert cached(stream.chunks[-1]) == 48
    several = server.complete(**{**BODY, "prompt": [IDS, [*IDS[:20], 5], [7] * 20]})
    assert cached(several) == 48 + 16
    server.wait_drained()


def test_a_new_prompt_has_no_cached_tokens_however_many_choices(server: Running) -> None:
    answer = server.complete(**{**BODY, "n": 5, "temperature": 1})
    assert (cached(answer), answer["usage"]["prompt_tokens"]) == (0, 55)


def test_chats_share_their_beginning(server: Running) -> None:
    def talk(last: str) -> dict[str, Any]:
        messages = [{"role": "system", "content": PROMPT}, {"role": "user", "content": last}]
        response = server.post("/v1/chat/completions", messages=messages, max_tokens=2)
        answer: dict[str, Any] = response.json()
        return answer

    assert cached(talk("one")) == 0
    assert cached(talk("two")) >= 48


def test_c09_salts_separate(server: Running) -> None:
    for salt in ({}, {"cache_salt": "x"}, {"cache_salt": "y"}):
        assert [cached(server.complete(**BODY, **salt)) for _ in range(2)] == [0, 48]
    assert cached(server.complete(**BODY, cache_salt=None)) == 48


@pytest.mark.parametrize("salt", ["", "x" * 129, "a@b", "a/b", "a\\b", "a\0b", 5, ["x"], True])
def test_c09_bad_salts_are_refused(server: Running, salt: Any) -> None:
    assert_error(server.post("/v1/completions", **BODY, cache_salt=salt), 400, param="cache_salt")
    messages = [{"role": "user", "content": "hi"}]
    assert_error(server.post("/v1/chat/completions", messages=messages, cache_salt=salt), 400, param="cache_salt")


def test_metrics_count_tokens(server: Running) -> None:
    def counts() -> list[float | None]:
        labels = {"model_name": MODEL, "engine": "0"}
        registry = server.engine.metrics.registry
        return [registry.get_sample_value(f"vllm:prefix_cache_{n}_total", labels) for n in ("queries", "hits")]

    assert counts() == [0, 0]
    for _ in range(3):
        server.complete(**BODY)
    assert counts() == [3 * 55, 2 * 48]


def test_offline_prompts_have_salts_and_may_opt_out() -> None:
    with LLM.over(assemble(scripted(), ASSETS, EngineConfig(), MODEL)) as llm:
        params = SamplingParams(max_tokens=8, temperature=0)
        alone = SamplingParams(max_tokens=8, temperature=0, skip_reading_prefix_cache=True)

        def ask(salt: str | None = None, how: SamplingParams = params) -> int:
            prompt = {"prompt_token_ids": IDS} | ({} if salt is None else {"cache_salt": salt})
            (result,) = llm.generate([prompt], how, use_tqdm=False)
            assert result.outputs[0].text == "fine"
            return result.num_cached_tokens

        assert [ask(), ask(), ask(how=alone), ask("x"), ask("x")] == [0, 48, 0, 0, 48]
        with pytest.raises(RequestError, match="cache_salt"):
            ask("a/b")
        with pytest.raises(RequestError, match="skip_reading_prefix_cache"):
            ask(how=SamplingParams(skip_reading_prefix_cache=1))  # type: ignore[arg-type]
