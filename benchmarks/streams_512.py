"""512 streams at once on the default model: whether a byte is lost, and how late the event loop is meanwhile.

python benchmarks/streams_512.py [--rounds 3] [--streams 512] [--tokens 64]

Every stream's text is compared with the whole answer to the same request, which is asked for afterwards. Lateness is
the server's own histogram (legato:event_loop_lag_seconds) over the time of the streams. Client and server share the
cores.
"""

import asyncio
import json
import statistics
from typing import Any
from urllib.request import urlopen

from common import Result, arguments, free_port, legato, say, serving

LAG = "legato:event_loop_lag_seconds"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--streams", type=int, default=512, help="default: 512")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer (default: 64)")
    args = parser.parse_args()
    late: list[float] = []
    right: list[float] = []
    notes: list[str] = []
    for index in range(args.rounds):
        port = free_port()
        command = legato("serve", "--port", port, "--log-level", "warning")
        with serving(command, f"http://127.0.0.1:{port}/ready"):
            before = _buckets(port)
            streamed = asyncio.run(_ask_all(port, args.streams, args.tokens, stream=True))
            passed = _difference(_buckets(port), before)
            whole = asyncio.run(_ask_all(port, args.streams, args.tokens, stream=False))
        right.append(sum(a == b != "" for a, b in zip(streamed, whole, strict=True)) / args.streams)
        late.append(_quantile(passed, 0.99))
        over = 1 - passed[0.05] / passed[float("inf")]
        notes.append(f"round {index + 1}: {passed[float('inf')]:.0f} timers, {100 * over:.2f} % more than 50 ms late")
        say(f"{notes[-1]}, p99 {1000 * late[-1]:.1f} ms; {100 * right[-1]:.2f} % of the streams are whole")
    result = Result("streams_512", args)
    result.add("streams-whole", min(right), {"Legato": right}, "share of streams that equal the whole answer")
    result.add("streams-lag", statistics.median(late), {"Legato": late}, "s, 99th percentile", notes)
    result.save()


async def _ask_all(port: int, streams: int, tokens: int, *, stream: bool) -> list[str]:
    return await asyncio.gather(*(_ask(port, number, tokens, stream) for number in range(streams)))


async def _ask(port: int, number: int, tokens: int, stream: bool) -> str:
    """The text of one answer; empty where its end did not come."""
    body = {
        "prompt": f"Story number {number}: once upon a time",
        "max_tokens": tokens,
        "ignore_eos": True,
        "seed": number,
        "stream": stream,
    }
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    status = await reader.readline()
    if b" 200 " not in status:
        raise SystemExit(f"stream {number}: {status.decode()}{(await reader.read()).decode()}")
    while (await reader.readline()).strip():
        pass
    text = await (_read_events(reader) if stream else _read_body(reader))
    writer.close()
    return text


async def _read_body(reader: asyncio.StreamReader) -> str:
    answer: dict[str, Any] = json.loads(await reader.read())
    text: str = answer["choices"][0]["text"]
    return text


async def _read_events(reader: asyncio.StreamReader) -> str:
    """Server-sent events of a chunked answer, joined; empty unless [DONE] and the last chunk came."""
    data = bytearray()
    while size := int(await reader.readline(), 16):
        data += await reader.readexactly(size)
        await reader.readexactly(2)
    *events, end, rest = data.decode().split("\n\n")
    if end != "data: [DONE]" or rest:
        return ""
    return "".join(json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events)


def _buckets(port: int) -> dict[float, float]:
    """Cumulated counts of the lag histogram by bound."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    found = {}
    for line in lines:
        if line.startswith(f"{LAG}_bucket"):
            name, _, value = line.rpartition(" ")
            found[float(name.split('le="')[1].split('"')[0])] = float(value)
    return found


def _difference(after: dict[float, float], before: dict[float, float]) -> dict[float, float]:
    return {bound: count - before[bound] for bound, count in after.items()}


def _quantile(buckets: dict[float, float], share: float) -> float:
    """As Prometheus computes it: linear within a bucket."""
    wanted = share * buckets[float("inf")]
    low, below = 0.0, 0.0
    for bound, count in sorted(buckets.items()):
        if count >= wanted:
            return low if bound == float("inf") else low + (bound - low) * (wanted - below) / (count - below)
        low, below = bound, count
    return low


if __name__ == "__main__":
    main()
