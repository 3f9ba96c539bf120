"""Text and usage are exact, streamed or not: stop strings, split characters, counts. Oracle 1 over HTTP."""

from collections.abc import Iterator
from typing import Any

import pytest
from harness import MODEL, Running, Script, serving

from legato.core.config import SchedulerConfig
from support.byte_level import TOKENIZER, VOCAB, byte_tokens
from support.scripted import ScriptedExecutor

CHAT_HEAD = "<|im_start|>user\n"
CHAT_TAIL = "<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def script() -> Script:
    return Script()


@pytest.fixture(scope="module")
def server(script: Script) -> Iterator[Running]:
    cold = SchedulerConfig(enable_prefix_caching=False)  # a second request has the usage of the first
    with serving(ScriptedExecutor(vocab_size=VOCAB, emit=script), scheduler=cold) as it:
        yield it


def both_ways(
    server: Running, script: Script, answer: list[int], **body: Any
) -> tuple[str, str, dict[str, int], list[str]]:
    """Text, finish reason, usage and deltas of a scripted answer.

    They are the same streamed as whole, as chat as by completion (oracle 1).
    """
    name = f"both ways {answer} {body}"
    script.set(name, answer)
    script.set(CHAT_HEAD + name + CHAT_TAIL, answer)
    results = []
    prompts: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": name},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": name}]},
    }
    for path, prompt in prompts.items():
        whole = server.post(path, **prompt, **body).json()
        stream = server.stream(path, **prompt, stream_options={"include_usage": True}, **body)
        [(_, choice)] = stream.choices().items()
        [expected] = whole["choices"]
        text = expected["text"] if "text" in expected else expected["message"]["content"]
        assert stream.done
        assert choice["text"] == text
        assert (choice["finish_reason"], choice["stop_reason"]) == (expected["finish_reason"], expected["stop_reason"])
        assert stream.usage == whole["usage"]
        results.append((text, expected["finish_reason"], whole["usage"], [d for d in choice["deltas"] if d]))
    completion, chat = results
    assert (chat[0], chat[1], chat[3]) == (completion[0], completion[1], completion[3])
    assert chat[2]["completion_tokens"] == completion[2]["completion_tokens"]
    return completion


HELLO, ST, OP = (TOKENIZER.encode(piece)[0] for piece in ("hello", "ST", "OP"))


@pytest.mark.parametrize(
    "answer", [byte_tokens("one STOP! two"), [*byte_tokens("one "), ST, OP, *byte_tokens("! two")]]
)
def test_a01_no_part_of_a_stop_string_is_sent(server: Running, script: Script, answer: list[int]) -> None:
    text, finish, usage, deltas = both_ways(server, script, answer, max_tokens=50, stop="STOP!")
    assert (text, finish) == ("one ", "stop")
    assert not any("S" in delta for delta in deltas)
    used = len("one ") + (3 if ST in answer else 5)
    assert usage["completion_tokens"] == used, "tokens after the stop string are not billed"


def test_a01_a_stop_string_may_begin_and_end_inside_tokens(server: Running, script: Script) -> None:
    answer = [*byte_tokens("x"), HELLO, ST, *byte_tokens("y")]
    text, finish, usage, _ = both_ways(server, script, answer, max_tokens=50, stop=["loS"])
    assert (text, finish, usage["completion_tokens"]) == ("xhel", "stop", 3)


def test_include_stop_str_in_output(server: Running, script: Script) -> None:
    answer = byte_tokens("one STOP two")
    text, finish, _, _ = both_ways(server, script, answer, stop="TO", include_stop_str_in_output=True)
    assert (text, finish) == ("one STO", "stop")


@pytest.mark.parametrize(
    ("answer", "max_tokens", "finish"), [("xxAB", 4, "length"), ("xxAB", 50, "stop"), ("ABABCD", 50, "stop")]
)
def test_a02_text_held_back_for_a_stop_string_is_not_lost(
    server: Running, script: Script, answer: str, max_tokens: int, finish: str
) -> None:
    text, reason, _, _ = both_ways(server, script, byte_tokens(answer), max_tokens=max_tokens, stop=["ABCD"])
    assert (text, reason) == (answer.removesuffix("ABCD"), finish)


def test_min_tokens_come_before_stop_strings(server: Running, script: Script) -> None:
    assert both_ways(server, script, byte_tokens("a.b.c."), stop=".", min_tokens=3)[0] == "a.b"


SPLIT = "\U0001fae0\u9f9c\U0001f468\u200d\U0001f469\u200d\U0001f467"


def test_a04_split_characters_are_never_replaced(server: Running, script: Script) -> None:
    text, _, _, deltas = both_ways(server, script, byte_tokens(SPLIT), max_tokens=60)
    assert text == SPLIT
    assert not any("\ufffd" in delta for delta in deltas)
    script.set("a04", byte_tokens(SPLIT))
    stream = server.stream("/v1/completions", prompt="a04", max_tokens=60, n=2, temperature=1.0)
    assert [choice["text"] for choice in stream.choices().values()] == [SPLIT, SPLIT]


def test_a05_invalid_bytes_do_not_break_the_answer(server: Running, script: Script) -> None:
    answer = [*byte_tokens(SPLIT), *byte_tokens(b"\x85"), *byte_tokens(" on")]
    text, _, _, _ = both_ways(server, script, answer, max_tokens=60)
    assert text == SPLIT + "\ufffd on"
    text, finish, _, _ = both_ways(server, script, answer, max_tokens=2)
    assert (text, finish) == ("\ufffd", "length")


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": True}])
def test_a07_usage_in_streams(server: Running, script: Script, options: Any) -> None:
    script.set(f"{CHAT_HEAD}a07{CHAT_TAIL}", byte_tokens("ok"))
    messages = [{"role": "user", "content": "a07"}]
    stream = server.stream("/v1/chat/completions", messages=messages, stream_options=options)
    asked = bool(options and options["include_usage"])
    with_usage = [chunk for chunk in stream.chunks if chunk.get("usage")]
    assert len(with_usage) == asked
    assert stream.done
    if asked:
        assert stream.chunks[-1] is with_usage[0]
        assert with_usage[0]["choices"] == []
        assert with_usage[0]["usage"]["completion_tokens"] == 3
        assert stream.chunks[-2]["choices"][0]["finish_reason"] == "stop"
    else:
        assert all("usage" not in chunk for chunk in stream.chunks)


def test_chat_stream_through_the_official_client(server: Running, script: Script) -> None:
    script.set(f"<|im_start|>system\nBe brief.<|im_end|>\n{CHAT_HEAD}hi{CHAT_TAIL}", byte_tokens("hello"))
    messages: Any = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    whole = server.api.chat.completions.create(model=MODEL, messages=messages)
    assert whole.choices[0].message.content == "hello"
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 6
    chunks = list(server.api.chat.completions.create(model=MODEL, messages=messages, stream=True))
    assert [c.choices[0].delta.role for c in chunks if c.choices[0].delta.role] == ["assistant"]
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "hello"
    assert len({chunk.id for chunk in chunks}) == 1


def test_many_prompts_and_choices_are_numbered_prompt_by_prompt(server: Running, script: Script) -> None:
    for name in ("first", "second"):
        script.set(name, byte_tokens(f"after {name}"))
    body = {"prompt": ["first", "second"], "n": 2, "max_tokens": 40, "temperature": 1}
    whole = server.post("/v1/completions", **body).json()
    texts = [choice["text"] for choice in whole["choices"]]
    assert texts == ["after first"] * 2 + ["after second"] * 2
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
    assert whole["usage"]["prompt_tokens"] == len("firstsecond")
    assert whole["usage"]["completion_tokens"] == 2 * len("after first" + "after second") + 4
    stream = server.stream("/v1/completions", **body)
    assert [choice["text"] for _, choice in sorted(stream.choices().items())] == texts


def test_token_ids_as_prompts(server: Running, script: Script) -> None:
    script.set([70, 71], byte_tokens("ids"))
    assert server.complete([70, 71])["choices"][0]["text"] == "ids"
    assert [c["text"] for c in server.complete([[70, 71], [70, 71]])["choices"]] == ["ids", "ids"]


def test_d08_ignore_eos_goes_on_but_stop_token_ids_still_stop(server: Running, script: Script) -> None:
    answer = [*byte_tokens("a"), 2, *byte_tokens("b"), 2, *byte_tokens("c")]
    script.set("d08", answer)
    assert both_ways(server, script, answer)[:2] == ("a", "stop")
    assert both_ways(server, script, answer, ignore_eos=True, max_tokens=5)[:2] == ("abc", "length")
    whole = server.complete("d08", ignore_eos=True, max_tokens=5, stop_token_ids=byte_tokens("b"))
    assert whole["choices"][0]["text"] == "a"
    assert whole["choices"][0]["stop_reason"] == byte_tokens("b")[0]
    shown = both_ways(server, script, answer, ignore_eos=True, max_tokens=5, skip_special_tokens=False)
    assert shown[0] == "a<|im_end|>b<|im_end|>c"


def test_the_seed_is_returned_and_repeats_the_answer() -> None:
    with serving(ScriptedExecutor(vocab_size=VOCAB)) as server:  # a hash of prompt and seed
        first = server.complete("again", max_tokens=12, ignore_eos=True)["choices"][0]
        again = server.complete("again", max_tokens=12, ignore_eos=True, seed=first["seed"])["choices"][0]
        other = server.complete("again", max_tokens=12, ignore_eos=True)["choices"][0]
        assert again == first
        assert (other["seed"], other["text"]) != (first["seed"], first["text"])
