"""Configuration as frozen dataclasses. The command line is generated from the fields: name, type, default, help.

`flag(...)` gives a field its help line, choices and the names other engines use for it.
"""

from dataclasses import dataclass, field
from typing import Any

__all__ = ["CacheConfig", "EngineConfig", "ModelConfig", "SchedulerConfig", "ServerConfig", "flag"]


def flag(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    aliases: tuple[str, ...] = (),
    positional: bool = False,
) -> Any:
    """A dataclass field that is also a command-line flag. `aliases` are accepted spellings, without dashes."""
    return field(
        default=default,
        metadata={"help": help, "choices": choices, "aliases": aliases, "positional": positional},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model, in which numbers."""

    model: str = flag("", "folder, .gguf file, or Hugging Face id; empty: the default model", positional=True)
    served_model_name: tuple[str, ...] = flag((), "names clients use; the first one is reported")
    format: str = flag(
        "auto",
        "weights: auto keeps the checkpoint's own numbers",
        choices=("auto", "fp32", "bf16", "int8", "int4"),
        aliases=("quantization", "q", "dtype"),
    )
    max_model_len: int | None = flag(None, "longest sequence in tokens; default: the model's own limit")
    tokenizer: str | None = flag(None, "folder or tokenizer.json to use instead of the model's")
    chat_template: str | None = flag(None, "file with a Jinja chat template to use instead of the model's")
    revision: str | None = flag(None, "branch, tag or commit of a Hugging Face id")
    cache_dir: str | None = flag(
        None, "where models and engine files are kept; default: $LEGATO_CACHE or ~/.cache/legato"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The KV cache."""

    block_size: int = flag(16, "KV slots per block, a multiple of 16")
    kv_cache_dtype: str = flag("auto", "auto is bf16 (fp32 for fp32 weights)", choices=("auto", "bf16", "fp32"))
    kv_cache_memory: int | None = flag(
        None, "bytes for the KV pool; overrides the utilization", aliases=("kv-cache-memory-bytes",)
    )
    num_blocks: int | None = flag(None, "blocks in the KV pool; overrides both", aliases=("num-gpu-blocks-override",))
    memory_utilization: float = flag(
        0.88,
        "share of the available memory to plan with",
        aliases=("gpu-memory-utilization", "device-memory-utilization"),
    )
    prefault_kv: bool = flag(False, "touch the whole KV pool at start")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """What goes into a step."""

    policy: str = flag("fcfs", "order of admission", choices=("fcfs", "static"), aliases=("scheduling-policy",))
    max_num_seqs: int = flag(64, "sequences that run at once")
    max_num_batched_tokens: int = flag(512, "rows per step")
    long_prefill_token_threshold: int = flag(256, "rows of one prompt per step")
    max_num_queued_reqs: int = flag(4096, "waiting requests beyond which new ones are refused with 429")
    static_padding: bool = flag(False, "policy static: compute padded rows, as a naive server does")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All that an engine needs."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    executor: str = flag("native", "native kernels, or the numpy reference", choices=("native", "reference"))
    threads: int | None = flag(None, "compute threads; default: physical cores within affinity and CPU quota")
    seed: int | None = flag(None, "seed for requests that have none; default: random")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The HTTP server."""

    host: str = flag("127.0.0.1", "address to listen on")
    port: int = flag(8000, "port to listen on")
    drain_timeout: float = flag(30.0, "seconds running requests get after SIGTERM", aliases=("shutdown-timeout",))
    max_body_bytes: int = flag(8 << 20, "largest request body")
    log_level: str = flag("info", "log level", choices=("debug", "info", "warning", "error"))
