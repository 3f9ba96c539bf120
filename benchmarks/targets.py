"""The table of targets: what is measured, beside what, and what counts as a hit. Results refer to rows by their key."""

from dataclasses import dataclass

__all__ = ["GROUPS", "TARGETS", "Target", "shown"]


@dataclass(frozen=True)
class Target:
    """One row. limit: None where a figure is only reported. unit: "x" a ratio, "%" a share of 1, "s", "MiB", "MB/s",
    "nats". script: the one whose result holds the figure."""

    what: str
    format: str
    against: str
    limit: float | None
    unit: str
    script: str
    at_least: bool = True

    def holds(self, value: float) -> bool | None:
        if self.limit is None:
            return None
        return value >= self.limit if self.at_least else value <= self.limit

    @property
    def text(self) -> str:
        if self.limit is None:
            return "reported"
        return ("at least " if self.at_least else "at most ") + shown(self.limit, self.unit)


def shown(value: float, unit: str) -> str:
    if unit == "x":
        return f"{value:.2f}x"
    if unit == "%":
        return f"{100 * value:.3g} %"
    return f"{value:.4g} {unit}"


_PEERS = {
    "int8": "best of OpenVINO int8, llama.cpp Q8_0, vLLM bf16",
    "bf16": "best of OpenVINO bf16, vLLM bf16, llama.cpp BF16",
    "auto": "best of llama.cpp Q4_1, OpenVINO int4",
}
_NAMES = {"int8": "int8", "bf16": "bf16", "auto": "its own Q4_1"}
_RATIOS = {
    "uniform": {"int8": 1.8, "bf16": 1.35, "auto": 1.5},
    "mixed": {"int8": 2.0, "bf16": 1.5, "auto": 1.7},
    "single": {"int8": 2.0, "bf16": 2.0, "auto": 1.8},
}
_KL = {"bf16": 0.002, "int8": 0.012, "auto": 0.006}
_LARGE = {
    ("llama", "llama.cpp Q8_0 / Q4_0"): (1.5, "x"),
    ("openvino", "OpenVINO int8"): (1.2, "x"),
    ("ceiling", "measured bandwidth (decode), peak (prefill)"): (0.6, "%"),
}


def _throughput() -> dict[str, Target]:
    rows = {}
    for workload, limits in _RATIOS.items():
        rate = "output" if workload == "single" else "total"
        for format, limit in limits.items():
            rows[f"{workload}-{format}"] = Target(
                f"`{workload}`, {rate} tok/s", _NAMES[format], _PEERS[format], limit, "x", "beside_peers.py"
            )
    for format in _NAMES:
        rows[f"single-{format}-share"] = Target(
            "`single`, or instead: bytes of the weights per token", _NAMES[format], "read bandwidth", 0.8, "%",
            "beside_peers.py",
        )  # fmt: skip
    return rows


def _http() -> dict[str, Target]:
    peer = "the best peer server, the same requests at 70 % of its saturation"
    rows = {
        "http-64": Target("`mixed` over HTTP, 64 streams", "int8", "own offline figure", 0.93, "x", "http_streams.py")
    }
    for name, what in (("ttft-p50", "TTFT p50"), ("ttft-p99", "TTFT p99"), ("itl-p99", "ITL p99")):
        rows[name] = Target(f"{what}, times better", "int8", peer, 1.0, "x", "http_latency.py")
    for name, what in (("ttft-p50", "TTFT p50"), ("ttft-p99", "TTFT p99"), ("itl-p99", "ITL p99")):
        other = "that server at 70 % of Legato's saturation"
        rows[f"{name}-own"] = Target(f"{what}, times better", "int8", other, None, "x", "http_latency.py")
    for name in ("ttft", "tpot", "itl"):
        what = f"{name.upper()} as `vllm bench serve` sees it"
        rows[f"cross-{name}"] = Target(what, "int8", "as `legato bench serve` does", None, "x", "cross_check.py")
    what = "512 streams at once that equal the whole answer"
    rows["streams-whole"] = Target(what, "its own Q4_1", "", 1.0, "%", "streams_512.py")
    what = "lateness of the event loop beside 512 streams, p99"
    rows["streams-lag"] = Target(what, "its own Q4_1", "", 0.05, "s", "streams_512.py", at_least=False)
    for key, strings in (("structured", "of any length"), ("structured-short", "of at most 24 and 12 characters")):
        what = f"32 sequences with a JSON schema, strings {strings}"
        rows[key] = Target(what, "int8", "without", 0.95, "x", "structured.py")
        rows[key + "-sampled"] = Target(f"{what}, temperature 0.7", "int8", "without", 0.95, "x", "structured.py")
    what = "longest gap of 32 streams beside a prompt of 6,000 tokens"
    rows["step-time"] = Target(what, "int8", "`--max-step-ms 100`", 1.2, "x", "step_time.py", at_least=False)
    return rows


def _observability() -> dict[str, Target]:
    return {
        "observed-http": Target(
            "`mixed` over HTTP with metrics, logs and traces", "int8", "the same without", 0.98, "x", "observability.py"
        ),
        "observed-engine": Target(
            "`mixed` inside the engine, counting", "int8", "the same without", 0.98, "x", "observability.py"
        ),
    }


def _kernels() -> dict[str, Target]:
    rows = {}
    for format, limit in (("int8", 0.75), ("bf16", 0.85)):
        rows[f"linear-{format}"] = Target(
            "linear layers, the worst of M = 64, 128, 512", format, "measured peak", limit, "%", "kernels.py"
        )
    for format, name in (("int8", "int8"), ("bf16", "bf16"), ("q4_1", "Q4_1")):
        rows[f"m1-{format}"] = Target("linear layers, M = 1", name, "read bandwidth", 0.85, "%", "kernels.py")
    for kind, against, limit in (("decode", "read bandwidth", 0.75), ("prefill", "measured bf16 peak", 0.5)):
        what = "32 x context 1024" if kind == "decode" else "of 1024"
        for dtype in ("bf16", "int8"):
            rows[f"attention-{kind}-{dtype}"] = Target(
                f"attention: {kind}, {what}", f"{dtype} KV", against, limit, "%", "kernels.py"
            )
    rows["idle"] = Target(
        "compute threads idle at 64 sequences", "int8", "time of a step", 0.03, "%", "idle.py", at_least=False
    )
    return rows


def _start() -> dict[str, Target]:
    return {
        "start": Target("process start to /ready", "int8", "", 1.0, "s", "start.py", at_least=False),
        "rss": Target("peak RSS - file - KV touched", "int8", "", 150, "MiB", "start.py", at_least=False),
        "build": Target("building the default model, one thread", "int8", "", 200, "MB/s", "build.py"),
    }


def _policies() -> dict[str, Target]:
    padded, skips = "static, computes padded rows", "static, skips ended rows"
    return {
        "static-padded": Target("`agent`, continuous batching", "int8", padded, 4.0, "x", "continuous.py"),
        "static-skips": Target("`agent`, continuous batching", "int8", skips, None, "x", "continuous.py"),
        "kv-waste": Target("`agent`, unused KV slots in blocks", "", "", 0.04, "%", "continuous.py", at_least=False),
    }


def _large() -> dict[str, Target]:
    rows = {}
    for shape, name in (("llama1b", "Llama-3.2-1B shape"), ("wide", "head_dim 128")):
        for format in ("int8", "int4"):
            for phase in ("decode", "prefill"):
                for (peer, against), (limit, unit) in _LARGE.items():
                    if peer != "openvino" or format == "int8":
                        key = f"{shape}-{format}-{phase}-{peer}"
                        rows[key] = Target(f"{name}, {phase}", format, against, limit, unit, "large.py")
    return rows


def _memory() -> dict[str, Target]:
    rows = {
        f"restore-{length}": Target(
            f"time to first token, {length:,} tokens from the disk", "int8", "computing them", 1.0, "x", "kv_disk.py"
        )
        for length in (512, 1024, 4096)
    }
    what, against = "peak anonymous memory, a burst of 64 x 4,000 tokens", "the table at start, Python and tokenizer"
    rows["memory-bound"] = Target(what, "int8", against, 1.05, "%", "memory_bound.py", at_least=False)
    return rows


GROUPS: dict[str, dict[str, Target]] = {
    "Throughput": _throughput(),
    "Serving": _http() | _observability(),
    "Batching": _policies(),
    "Kernels": _kernels(),
    "Start and build": _start(),
    "Accuracy": {
        f"kl-{format}": Target(
            "KL to fp32", _NAMES[format], "fp32 of the exact weights", limit, "nats", "accuracy.py", at_least=False
        )
        for format, limit in _KL.items()
    },
    "Other instruction sets": {
        "avx2": Target("`uniform`, AVX2 level", "int8", "AVX-512 level", 0.4, "x", "isa_levels.py"),
        "avx2_vnni": Target("`uniform`, AVX2 level with AVX-VNNI", "int8", "AVX-512 level", 0.4, "x", "isa_levels.py"),
        "portable": Target("8 x (256 in, 32 out), portable level", "int8", "AVX-512 level", None, "x", "isa_levels.py"),
    },
    "Memory": _memory(),
    "Larger models, random weights": _large(),
}
TARGETS: dict[str, Target] = {key: target for rows in GROUPS.values() for key, target in rows.items()}
