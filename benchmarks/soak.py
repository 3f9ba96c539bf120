"""A soak: thousands of mixed requests to a server of its own, which then holds no more than before.

python benchmarks/soak.py [--requests 5000] [--concurrency 16] [--json FILE]

Chats and completions, whole and streamed, several choices, beams, log probabilities, structured output, tools, clients
that go away (before the first byte, in the middle of a stream), and requests that are wrong. Every answer is checked.
The server's memory, threads, file descriptors and KV blocks after a tenth of the requests are the baseline; the exit
status is 1 where more is left at the end, or an answer was not what it had to be. Threads are listed by name before and
after: pools make theirs when they are first needed, and have no more than POOLS says.
"""

import argparse
import asyncio
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from common import free_port, legato, say, serving

GROWTH_MIB = 24.0  # of resident memory; a leak of 5 KiB per request shows
POOLS = {"legato-prepare": 2, "legato-grammar": 2, "legato-aside": 4}  # threads that each may have at any time
SETTLE_S = 20.0  # until what clients left behind has ended
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SUBJECTS = ("the sea", "bread", "prime numbers", "a cat", "snow", "the moon", "tea", "chess")
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "save_person", "description": "Save one", "parameters": PERSON}}]

Kind = Callable[[httpx.AsyncClient, random.Random], Awaitable[None]]


def talk(source: random.Random) -> list[dict[str, str]]:
    text = f"Say one thing about {source.choice(SUBJECTS)}. " * source.randint(1, 12)
    return [{"role": "user", "content": text}]


def some(source: random.Random) -> dict[str, Any]:
    return {"max_tokens": source.randint(1, 24), "temperature": source.choice((0, 1)), "seed": source.randrange(1000)}


async def post(client: httpx.AsyncClient, path: str, status: int = 200, **body: Any) -> Any:
    answer = await client.post(path, json=body)
    assert answer.status_code == status, answer.text[:300]
    return answer.json()


async def whole(client: httpx.AsyncClient, source: random.Random) -> None:
    answer = await post(client, CHAT, messages=talk(source), **some(source), n=1)
    assert answer["choices"][0]["finish_reason"] in ("stop", "length")


async def several(client: httpx.AsyncClient, source: random.Random) -> None:
    body = {**some(source), "temperature": 1, "n": 3, "logprobs": 2}
    answer = await post(client, COMPLETIONS, prompt=source.choice(SUBJECTS), **body)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]


async def searched(client: httpx.AsyncClient, source: random.Random) -> None:
    """A beam search; every third one is left while it runs."""
    body = {"prompt": source.choice(SUBJECTS), "use_beam_search": True, "n": 3, "max_tokens": source.randint(1, 6)}
    if source.randrange(3):
        answer = await post(client, COMPLETIONS, **body)
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
        return
    with suppress(httpx.TimeoutException):
        await client.post(COMPLETIONS, json={**body, "max_tokens": 60}, timeout=source.uniform(0.01, 0.2))


async def scored(client: httpx.AsyncClient, source: random.Random) -> None:
    answer = await post(
        client, COMPLETIONS, prompt="The sea is", echo=True, logprobs=1, max_tokens=source.randint(1, 4)
    )
    assert answer["choices"][0]["text"].startswith("The sea is")


async def streamed(client: httpx.AsyncClient, source: random.Random) -> None:
    body = {"messages": talk(source), **some(source), "stream": True, "stream_options": {"include_usage": True}}
    text = (await client.post(CHAT, json=body)).text
    assert text.endswith("data: [DONE]\n\n"), text[-300:]
    assert '"usage":{' in text


async def structured(client: httpx.AsyncClient, source: random.Random) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    answer = await post(client, CHAT, messages=talk(source), response_format=form, seed=source.randrange(1000))
    check_person(answer["choices"][0]["message"]["content"])


async def called(client: httpx.AsyncClient, source: random.Random) -> None:
    body = {"messages": talk(source), "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    [choice] = (await post(client, CHAT, **body, seed=source.randrange(1000)))["choices"]
    assert choice["finish_reason"] == "tool_calls"
    check_person(choice["message"]["tool_calls"][0]["function"]["arguments"])


def check_person(text: str) -> None:
    person = json.loads(text)
    assert set(person) == {"name", "age"}
    assert len(person["name"]) <= 8
    assert 0 <= person["age"] <= 99


async def left(client: httpx.AsyncClient, source: random.Random) -> None:
    """Goes away in the middle of a stream."""
    body = {"messages": talk(source), "max_tokens": 400, "ignore_eos": True, "stream": True}
    async with client.stream("POST", CHAT, json=body) as answer:
        events = answer.aiter_lines()
        for _ in range(source.randint(1, 4)):
            await anext(events)


async def gone(client: httpx.AsyncClient, source: random.Random) -> None:
    """Goes away before there is an answer: in the queue, in prefill or while decoding."""
    body = {"messages": talk(source), "max_tokens": 400, "ignore_eos": True, "n": 2, "temperature": 1}
    try:
        await client.post(CHAT, json=body, timeout=source.uniform(0.002, 0.2))
    except httpx.TimeoutException:
        return
    raise AssertionError("400 tokens came in less than 0.2 s")


async def wrong(client: httpx.AsyncClient, source: random.Random) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "strange"}}}
    bodies: tuple[dict[str, Any], ...] = (
        {"messages": talk(source), "temprature": 1},
        {"messages": talk(source), "temperature": -1},
        {"messages": [{"role": "king", "content": "x"}]},
        {"messages": talk(source), "response_format": schema},
        {"messages": talk(source), "tools": []},
        {"messages": talk(source), "max_tokens": 10**6},
    )
    answer = await post(client, CHAT, status=400, **source.choice(bodies))
    assert answer["error"]["message"]


KINDS: tuple[Kind, ...] = (whole, streamed, several, searched, scored, structured, called, left, gone, wrong)


async def storm(url: str, first: int, last: int, concurrency: int) -> tuple[Counter[str], list[str]]:
    """Requests number first to last, so many at a time; how many of each kind, and what went wrong."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    numbers = iter(range(first, last))

    async def worker(client: httpx.AsyncClient) -> None:
        for number in numbers:
            source = random.Random(number)
            kind = source.choice(KINDS)
            counts[kind.__name__] += 1
            try:
                await kind(client, source)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is told at the end
                failures.append(f"request {number}, {kind.__name__}: {type(error).__name__} {error}")

    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as client:
        await asyncio.gather(*(worker(client) for _ in range(concurrency)))
    return counts, failures


def threads(pid: int) -> dict[str, int]:
    """How many the process has of each name, those of one pool together.

    The main thread and numpy's have that of the program.
    """
    names = [(task / "comm").read_text().strip() for task in Path(f"/proc/{pid}/task").iterdir()]
    return dict(sorted(Counter(re.sub(r"_\d*$", "", name) for name in names).items()))


def resources(url: str, pid: int) -> dict[str, Any]:
    """What the server holds, once nothing runs or waits any more."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        metrics = httpx.get(f"{url}/metrics").text
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        held = {name: float(re.findall(rf"^vllm:{name}{{.*?}} (\S+)$", metrics, re.M)[0]) for name in names}
        if not any(held.values()) or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    time.sleep(0.5)  # connections that clients closed are closed here, too
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return {
        **held,
        "resident_mib": int(fields["VmRSS"].split()[0]) / 1024,
        "threads": threads(pid),
        "file_descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
    }


def leftovers(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What is more than it was."""
    allowed = {**before, "resident_mib": before["resident_mib"] + GROWTH_MIB}
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        allowed[name] = 0
    del allowed["threads"]
    more = [f"{name}: {after[name]:g}, was {before[name]:g}" for name in allowed if after[name] > allowed[name]]
    for name, count in after["threads"].items():
        was = before["threads"].get(name, 0)
        if count > max(was, POOLS.get(name, 0)):
            more.append(f"threads called {name}: {count}, was {was}")
    return more


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--json", type=Path, help="file for the figures")
    args = parser.parse_args()
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    # A pool that is all touched at start and soon all used: what grows later is not the cache.
    command = legato("serve", "--port", port, "--num-blocks", 1024, "--prefault-kv", "--log-level", "warning")
    with serving(command, f"{url}/ready") as server:
        start_s = time.monotonic()
        warm = max(40, args.requests // 10)  # every kind is among them
        counts, failures = asyncio.run(storm(url, 0, warm, args.concurrency))
        before = resources(url, server.pid)
        more, failed = asyncio.run(storm(url, warm, args.requests, args.concurrency))
        after = resources(url, server.pid)
        seconds = time.monotonic() - start_s
    failures += failed + leftovers(before, after)
    figures = {"requests": counts + more, "seconds": seconds, "before": before, "after": after, "failures": failures}
    text = json.dumps(figures, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")
    for failure in failures:
        say(failure)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
