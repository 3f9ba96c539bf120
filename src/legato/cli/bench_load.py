"""What to send to a server, and when: the flags that `bench serve` and `bench compare servers` share."""

import argparse
import json
import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from legato.cli.bench_shared import bounds
from legato.cli.flags import whole
from legato.core.errors import ConfigError, LegatoError

if TYPE_CHECKING:
    from legato.bench.client import Record
    from legato.bench.datasets import Sample
    from legato.bench.figures import Figures
    from legato.bench.load import Plan, Run

__all__ = ["add_flags", "arrival", "make_plan", "measured", "say_failures"]

_BACKENDS = {
    "openai": "/v1/completions",
    "vllm": "/v1/completions",
    "openai-chat": "/v1/chat/completions",
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """All but where a server is, and where results go."""
    _add_server(parser.add_argument_group("Server"))
    _add_requests(parser.add_argument_group("Requests"))
    _add_arrivals(parser.add_argument_group("Arrivals"))
    group = parser.add_argument_group("Bounds")
    group.add_argument("--goodput", nargs="+", default=[], metavar="NAME:MS", help="bounds, of ttft, tpot and e2el")


def _add_server(group: Any) -> None:
    group.add_argument("--backend", choices=sorted(_BACKENDS), default="openai", help="openai-chat: the chat endpoint")
    group.add_argument("--endpoint", metavar="PATH", help="path of the API; default: the backend's")
    group.add_argument("--header", nargs="*", default=[], metavar="NAME=VALUE", help="HTTP headers to send")
    group.add_argument(
        "--request-timeout",
        type=float,
        default=6 * 3600.0,
        metavar="S",
        help="seconds, then it has failed (default: 21600)",
    )


def _add_requests(group: Any) -> None:
    names = "random (default), single, uniform, mixed, agent, custom, sharegpt, timed_trace, burstgpt"
    group.add_argument("--dataset-name", default="random", metavar="NAME", help=names)
    group.add_argument("--dataset-path", type=Path, metavar="FILE", help="of custom, sharegpt and the traces")
    group.add_argument("--num-prompts", type=whole, metavar="N", help="requests; default: 1000 or all of the dataset")
    group.add_argument(
        "--num-warmups", type=whole, default=0, metavar="N", help="requests sent before, in no figure (default: 0)"
    )
    group.add_argument(
        "--seed", type=whole, metavar="N", help="of prompts and times; default: a fresh one, which no cache knows"
    )
    group.add_argument(
        "--random-input-len", "--input-len", type=whole, default=1024, metavar="N", help="prompt tokens (default: 1024)"
    )
    group.add_argument(
        "--random-output-len", "--output-len", type=whole, default=128, metavar="N", help="answer tokens (default: 128)"
    )
    group.add_argument("--random-range-ratio", type=float, default=0.0, metavar="X", help="lengths within 1 ± X")
    group.add_argument("--random-prefix-len", type=whole, default=0, metavar="N", help="tokens that all prompts share")
    group.add_argument(
        "--vocab-size", type=whole, default=49_000, metavar="N", help="ids are drawn from 100 to below N"
    )
    group.add_argument("--max-model-len", type=whole, metavar="N", help="leave out what is more tokens, ids and answer")
    group.add_argument("--ignore-eos", action="store_true", help="ask for answers of the full length")
    group.add_argument("--temperature", type=float, metavar="X", help="of sampling (default: 0)")
    group.add_argument("--extra-body", metavar="JSON", help="an object of fields to add to each body")


def _add_arrivals(group: Any) -> None:
    group.add_argument(
        "--request-rate",
        type=float,
        metavar="X",
        help="requests per second; inf: all at once. default: inf, or as in the trace",
    )
    group.add_argument("--burstiness", type=float, default=1.0, metavar="X", help="1: Poisson; less: bursts; inf: even")
    group.add_argument("--max-concurrency", type=whole, metavar="N", help="requests at the server at once")
    group.add_argument("--trace-speedup", type=float, default=1.0, metavar="X", help="divides the times of a trace")


def make_plan(args: argparse.Namespace, base_url: str, model: str, seed: int) -> "Plan":
    """model: the name to ask for; empty: what the server reports."""
    from legato.bench.client import Endpoint
    from legato.bench.load import Plan

    for name in ("num_prompts", "max_concurrency", "random_input_len", "random_output_len"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise ConfigError(f"{name} must be at least 1")
    endpoint = Endpoint.parse(
        base_url, args.endpoint or _BACKENDS[args.backend], _headers(args.header), chat=args.backend == "openai-chat"
    )
    samples, warmups, times = _requests(args, seed)
    extra = {"temperature": 0.0 if args.temperature is None else args.temperature}
    return Plan(
        endpoint=endpoint,
        model=model or _served_model(base_url, endpoint.headers),
        samples=samples,
        times=times,
        warmups=warmups,
        max_concurrency=args.max_concurrency,
        timeout_s=args.request_timeout,
        extra={**extra, **({"ignore_eos": True} if args.ignore_eos else {}), **_extra(args.extra_body)},
    )


def _requests(args: argparse.Namespace, seed: int) -> "tuple[list[Sample], list[Sample], list[float]]":
    from legato.bench.arrivals import arrivals
    from legato.bench.datasets import DATASETS, Draw, load
    from legato.bench.workloads import FIRST_ID

    if args.dataset_name not in DATASETS:
        raise ConfigError(f"dataset: {args.dataset_name!r} is not one of {', '.join(DATASETS)}")
    if args.vocab_size <= FIRST_ID:
        raise ConfigError(f"vocab-size must be above {FIRST_ID}")
    draw = Draw(
        seed=seed,
        num_prompts=args.num_prompts,
        input_len=args.random_input_len,
        output_len=args.random_output_len,
        range_ratio=args.random_range_ratio,
        prefix_len=args.random_prefix_len,
        last_id=args.vocab_size,
    )
    samples = load(args.dataset_name, args.dataset_path, draw)
    if args.max_model_len:
        kept = [s for s in samples if isinstance(s.prompt, str) or len(s.prompt) + s.max_tokens <= args.max_model_len]
        print(f"{len(samples) - len(kept)} of {len(samples)} requests are too long: left out", file=sys.stderr)
        samples = kept
    if not samples:
        raise ConfigError("every request of the dataset is longer than max-model-len")
    warm = replace(draw, seed=seed + 1, num_prompts=max(1, args.num_warmups))
    warmups = load("random", None, warm)[: args.num_warmups]
    if args.request_rate is None and samples[0].at_s is not None:
        if not args.trace_speedup > 0:
            raise ConfigError("trace-speedup must be above 0")
        return samples, warmups, [(sample.at_s or 0.0) / args.trace_speedup for sample in samples]
    rate = math.inf if args.request_rate is None else args.request_rate
    return samples, warmups, arrivals(len(samples), rate, args.burstiness, seed)


def _served_model(base: str, headers: Any) -> str:
    """The first name that the server reports."""
    import httpx

    try:
        response = httpx.get(f"{base.rstrip('/')}/v1/models", headers=headers, timeout=30)
        response.raise_for_status()
        return str(response.json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise LegatoError(f"{base}/v1/models does not name a model: {error}") from None


def _headers(given: list[str]) -> dict[str, str]:
    headers = {}
    if key := os.environ.get("OPENAI_API_KEY"):
        headers["authorization"] = f"Bearer {key}"
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"header: {text!r} is not NAME=VALUE")
        headers[name] = value
    if any(c in text for pair in headers.items() for text in pair for c in "\r\n"):
        raise ConfigError("header: a line break in a header")
    return headers


def _extra(text: str | None) -> dict[str, Any]:
    try:
        extra = json.loads(text or "{}")
    except ValueError as error:
        raise ConfigError(f"extra-body: {error}") from None
    if not isinstance(extra, dict):
        raise ConfigError("extra-body must be a JSON object")
    return extra


def measured(args: argparse.Namespace, plan: "Plan", outcome: "Run") -> "Figures":
    """The figures of a plan that has run."""
    from legato.bench.figures import evaluate

    closed = args.max_concurrency if args.max_concurrency and plan.times[-1] == 0 else 0
    cohort = closed if closed < len(plan.samples) else 0
    return evaluate(outcome, goodput=bounds("goodput", args.goodput), first_cohort=cohort, fixed_length=args.ignore_eos)


def arrival(args: argparse.Namespace, plan: "Plan") -> str:
    """What is sent and when, for people."""
    cap = f", at most {args.max_concurrency} at once" if args.max_concurrency else ""
    count = f"{len(plan.samples)} requests of {args.dataset_name}"
    if plan.times[-1] == 0:
        return f"{count}, {'closed loop' if cap else 'all at once'}{cap}"
    if args.request_rate is None:
        return f"{count}, at the times of the trace{cap}"
    kind = "Poisson" if args.burstiness == 1 else f"gamma (burstiness {args.burstiness:g})"
    return f"{count}, {kind} arrivals at {args.request_rate:g}/s{cap}"


def say_failures(figures: "Figures", records: "list[Record]") -> None:
    """One example of each kind."""
    for kind in sorted(figures.failed):
        example = next(record.detail for record in records if record.error == kind)
        print(f"failed: {figures.failed[kind]} x {kind}{f', e.g. {example}' if example else ''}", file=sys.stderr)
