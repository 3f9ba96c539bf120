"""The default model on the native executor, over HTTP: what a user sees first, and P1 to P3 through the whole stack."""

import asyncio
import concurrent.futures
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from harness import Running, assert_error, running, wait_until

from legato.core.config import EngineConfig, ServerConfig
from legato.engine.start import start

# In fp32 its answer leads by 0.97 at each token; that about France by 0.08, which another order of sums turns round.
JAPAN: Any = [{"role": "user", "content": "What is the capital of Japan?"}]
SUBJECTS = ("the sea", "bread", "prime numbers", "a cat", "snow", "the moon", "tea", "chess")
TASKS = ("Say one fact about", "Write a rhyme about", "Translate to French:", "List three words for")


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(start(EngineConfig()), ServerConfig(port=0)) as it:
        yield it


def test_the_capital_of_japan(server: Running) -> None:
    model = server.api.models.list().data[0].id
    answer = server.api.chat.completions.create(model=model, messages=JAPAN, temperature=0)
    assert answer.choices[0].message.content == "The capital of Japan is Tokyo."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8


def test_scores_and_biases(server: Running) -> None:
    def ask(**more: Any) -> Any:
        reply = server.api.chat.completions.create(
            model=server.engine.model_names[0], messages=JAPAN, temperature=0, logprobs=True, top_logprobs=5, **more
        )
        return reply.choices[0]

    plain = ask()
    entries = plain.logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == plain.message.content
    for entry in entries:
        assert (entry.token, entry.logprob) == (entry.top_logprobs[0].token, entry.top_logprobs[0].logprob)
        assert 0 >= entry.top_logprobs[0].logprob >= entry.top_logprobs[-1].logprob
    [tokyo] = server.post("/tokenize", prompt=" Tokyo").json()["tokens"]
    other = ask(logit_bias={str(tokyo): -100}, max_tokens=16)
    index = next(i for i, entry in enumerate(other.logprobs.content) if entry.token != entries[i].token)
    assert entries[index].token == " Tokyo" == other.logprobs.content[index].top_logprobs[0].token, "scores are raw"
    only = ask(extra_body={"allowed_token_ids": [tokyo]}, max_tokens=3)
    assert (only.message.content, only.finish_reason) == (" Tokyo Tokyo Tokyo", "length")


WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
        },
    },
}
TIME: Any = {"type": "function", "function": {"name": "get_time", "description": "Current time"}}


@pytest.mark.parametrize("stream", [False, True])
def test_a23_even_this_model_calls_tools(server: Running, stream: bool) -> None:
    body: Any = {
        "model": server.engine.model_names[0],
        "messages": [{"role": "user", "content": "What is the weather in Paris in celsius?"}],
        "tools": [WEATHER, TIME],
        "temperature": 0,
        "parallel_tool_calls": False,
    }
    named = {"type": "function", "function": {"name": "get_time"}}
    for choice, call in (
        ("required", ("get_weather", '{"city": "Paris", "unit": "celsius"}')),
        (named, ("get_time", "{}")),
    ):
        if stream:
            with server.api.chat.completions.stream(**body, tool_choice=choice) as events:
                reply = events.get_final_completion()
        else:
            reply = server.api.chat.completions.create(**body, tool_choice=choice)
        [made] = reply.choices[0].message.tool_calls
        assert (made.function.name, made.function.arguments) == call
        assert reply.choices[0].finish_reason == "tool_calls"


def bodies() -> list[dict[str, Any]]:
    """64 chats of many kinds, so that a setting which leaks to a neighbour shows (D06)."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 1, "seed": 1},
        {"temperature": 0.8, "top_p": 0.9, "seed": 2},
        {"temperature": 1.2, "seed": 3, "extra": {"top_k": 20, "repetition_penalty": 1.3}},
        {"temperature": 1, "seed": 4, "frequency_penalty": 0.5, "extra": {"min_p": 0.1}},
        {"temperature": 0, "presence_penalty": 1.5, "stop": ["."]},
        {"temperature": 1, "seed": 5, "extra": {"min_tokens": 6}},
        {"temperature": 0.7, "seed": 6, "n": 2},
    ]
    chats = []
    for i in range(64):
        content = f"{TASKS[i % 4]} {SUBJECTS[(i // 4) % 8]}. " * (1 + i % 4)
        kind = dict(kinds[(i + i // 8) % 8])
        extra = {"ignore_eos": i % 3 == 0, **kind.pop("extra", {})}
        messages = [{"role": "user", "content": content}]
        chats.append({"messages": messages, "max_tokens": 6 + i % 9, **kind, "extra_body": extra})
    return chats


async def stream_one(client: openai.AsyncOpenAI, model: str, body: dict[str, Any]) -> dict[int, tuple[str, str | None]]:
    """Text and finish reason per choice."""
    texts: dict[int, str] = {}
    ends: dict[int, str | None] = {}
    async for chunk in await client.chat.completions.create(model=model, stream=True, **body):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            ends[choice.index] = choice.finish_reason
    return {index: (texts[index], ends[index]) for index in texts}


def test_64_concurrent_streams_equal_their_solo_runs(server: Running) -> None:
    """P1: oracle 2, bit for bit, through HTTP."""
    model = server.api.models.list().data[0].id

    async def everything() -> tuple[list[Any], list[Any]]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            crowd = await asyncio.gather(*(stream_one(client, model, body) for body in bodies()))
            solo = [await stream_one(client, model, body) for body in bodies()]
            return crowd, solo

    crowd, solo = asyncio.run(everything())
    assert all(end in ("stop", "length") for answer in crowd for _, end in answer.values())
    for together, alone, body in zip(crowd, solo, bodies(), strict=True):
        assert together == alone, body
    server.wait_drained()


def test_seeds_and_choices(server: Running) -> None:
    """D03: choices differ; the same seed gives the same choices again."""
    body = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 1, "n": 4, "seed": 7}
    first, again = (server.post("/v1/completions", **body).json()["choices"] for _ in range(2))
    assert first == again
    assert len({choice["text"] for choice in first}) == 4
    unseeded = server.post("/v1/completions", **{**body, "seed": None, "n": 1}).json()["choices"][0]
    repeated = server.post("/v1/completions", **{**body, "seed": unseeded["seed"], "n": 1}).json()["choices"][0]
    assert repeated == unseeded


def test_token_ids_give_what_their_text_gives(server: Running) -> None:
    text = "The quick brown fox"
    ids = server.engine.tokenizer.encode(text)
    body = {"max_tokens": 8, "temperature": 0}
    from_text = server.complete(text, **body)
    from_ids = server.complete([ids, ids], **body)
    assert [choice["text"] for choice in from_ids["choices"]] == [from_text["choices"][0]["text"]] * 2
    assert from_ids["usage"]["prompt_tokens"] == 2 * len(ids)


def test_poison_beside_a_running_request(server: Running) -> None:
    """Oracle 6, with the prompts that hurt: a megabyte, beyond the context, outside the vocabulary."""
    body: dict[str, Any] = {"prompt": "Rivers of the world:", "max_tokens": 60, "seed": 1, "ignore_eos": True}
    expected = server.complete(**body)["choices"]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        beside = pool.submit(server.complete, **body)
        wait_until(lambda: server.server.client.stats().running == 1)
        megabyte = server.post("/v1/completions", prompt="word " * 200_000)
        assert_error(megabyte, 400, code="context_length_exceeded")
        assert_error(server.post("/v1/completions", prompt=[1] * 8192), 400, code="context_length_exceeded")
        assert_error(server.post("/v1/completions", prompt=[49152]), 400)
        assert_error(server.post("/v1/completions", prompt="a", max_tokens=0), 400)
        broken = server.http.post("/v1/completions", content=b"{", headers={"content-type": "application/json"})
        assert_error(broken, 400)
        assert beside.result(60)["choices"] == expected
    assert server.complete(**body)["choices"] == expected


def test_metrics_move(server: Running) -> None:

    def generated() -> float:
        line = next(
            line for line in server.http.get("/metrics").text.splitlines() if "generation_tokens_total{" in line
        )
        return float(line.rsplit(" ", 1)[1])

    before = generated()
    server.complete("One two three", max_tokens=5, temperature=0, ignore_eos=True)
    wait_until(lambda: generated() == before + 5)
    text = server.http.get("/metrics").text
    for series in (
        'executor_seconds_total{engine="0",model_name="SmolLM2-135M-Instruct",phase="forward"}',
        'memory_planned_bytes{pool="kv"}',
        'memory_planned_bytes{pool="weights"}',
    ):
        assert re.search(rf"^legato:{re.escape(series)} (?!0\.0$)", text, re.MULTILINE), series
    server.wait_drained()
