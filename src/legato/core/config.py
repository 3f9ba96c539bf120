"""Configuration as frozen dataclasses. The command line and `LLM(...)` are generated from the fields.

`flag(...)` gives a field its help line, choices, and the names and values other engines use for it. `flags(Config)`
lists the fields of a configuration, nested ones included, and `build(Config, values)` makes one from flat values.
"""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from types import MappingProxyType
from typing import Any, TypeVar, get_type_hints

from legato.core.errors import ConfigError

__all__ = [
    "CacheConfig",
    "EngineConfig",
    "Flag",
    "GrammarConfig",
    "ModelConfig",
    "SchedulerConfig",
    "ServeConfig",
    "ServerConfig",
    "WebConfig",
    "build",
    "flag",
    "flags",
]

_Config = TypeVar("_Config")
_NO_VALUES: Mapping[str, str] = MappingProxyType({})


def flag(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    aliases: tuple[str, ...] = (),
    values: Mapping[str, str] = _NO_VALUES,
    positional: bool = False,
) -> Any:
    """A dataclass field that is also a command-line flag.

    `aliases` are accepted spellings of the name, without dashes; `values` maps accepted spellings of the value.
    """
    return field(
        default=default,
        metadata={"help": help, "choices": choices, "aliases": aliases, "values": values, "positional": positional},
    )


@dataclass(frozen=True, slots=True)
class Flag:
    """One field of a configuration, as the command line sees it. `type` is the annotation."""

    name: str
    type: Any
    default: Any
    help: str
    choices: tuple[str, ...]
    aliases: tuple[str, ...]
    values: Mapping[str, str]
    positional: bool
    group: str  # first line of the owning class's docstring


def flags(config: type) -> Iterator[Flag]:
    """The flags of a configuration class and of the configurations nested in it."""
    hints = get_type_hints(config)
    group = (config.__doc__ or "").splitlines()[0]
    nested = []
    for f in fields(config):
        if is_dataclass(hints[f.name]):
            nested.append(hints[f.name])
        else:
            yield Flag(name=f.name, type=hints[f.name], default=f.default, group=group, **f.metadata)
    for inner in nested:
        yield from flags(inner)


def build(config: type[_Config], values: Mapping[str, Any]) -> _Config:
    """Make a configuration from flat values by field name or alias; ConfigError for an unknown name or bad value."""
    names = {spelling.replace("-", "_"): f for f in flags(config) for spelling in (f.name, *f.aliases)}
    known: dict[str, Any] = {}
    for name, value in values.items():
        spec = names.get(name)
        if spec is None:
            raise ConfigError(f"unknown setting {name!r}")
        if isinstance(value, str):
            value = spec.values.get(value, value)
        if spec.choices and value not in spec.choices:
            raise ConfigError(f"{name}: {value!r} is not one of {', '.join(spec.choices)}")
        known[spec.name] = value
    return _construct(config, known)


def _construct(config: type[_Config], known: Mapping[str, Any]) -> _Config:
    hints = get_type_hints(config)
    arguments = {}
    for f in fields(config):  # type: ignore[arg-type]
        if is_dataclass(hints[f.name]):
            arguments[f.name] = _construct(hints[f.name], known)
        elif f.name in known:
            arguments[f.name] = known[f.name]
        elif f.default is MISSING:
            raise ConfigError(f"{f.name} must be given")
    return config(**arguments)


def _at_least(config: object, least: float, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and not value >= least:
            raise ConfigError(f"{name} must be at least {least}, not {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Model: which one, and in which numbers."""

    model: str = flag(
        "", "folder, .gguf or .legato file, or Hugging Face id; empty: the default model", positional=True
    )
    served_model_name: tuple[str, ...] = flag((), "names clients use; the first one is reported")
    format: str = flag(
        "auto",
        "weights: auto keeps the checkpoint's own numbers",
        choices=("auto", "fp32", "bf16", "int8", "int4"),
        aliases=("quantization", "q", "dtype"),
        values={"bfloat16": "bf16", "float32": "fp32", "float": "fp32"},
    )
    max_model_len: int | None = flag(None, "longest sequence in tokens; default: the model's own limit")
    tokenizer: str | None = flag(None, "folder or tokenizer.json to use instead of the model's")
    chat_template: str | None = flag(None, "file with a Jinja chat template to use instead of the model's")
    revision: str | None = flag(None, "branch, tag or commit of a Hugging Face id")
    cache_dir: str | None = flag(
        None,
        "where models and engine files are kept; default: $LEGATO_CACHE or ~/.cache/legato",
        aliases=("download-dir",),
    )

    def __post_init__(self) -> None:
        _at_least(self, 1, "max_model_len")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """KV cache: its layout and its share of the memory."""

    block_size: int = flag(16, "KV slots per block, a multiple of 16")
    kv_cache_dtype: str = flag(
        "auto",
        "auto is bf16 (fp32 for fp32 weights); int8 and fp8 (e4m3) have a scale per token and head",
        choices=("auto", "bf16", "fp32", "int8", "fp8"),
        values={
            "bfloat16": "bf16",
            "float32": "fp32",
            "int8_per_token_head": "int8",
            "fp8_e4m3": "fp8",
            "fp8_per_token_head": "fp8",
        },
    )
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
    kv_offloading_size: float = flag(0.0, "GiB of a file that evicted KV blocks go to and come back from; 0: none")
    kv_offloading_dir: str | None = flag(None, "folder of that file; default: kv in the cache folder")

    def __post_init__(self) -> None:
        _at_least(self, 1, "kv_cache_memory", "num_blocks")
        _at_least(self, 0, "kv_offloading_size")
        if self.kv_offloading_dir is not None and not self.kv_offloading_size:
            raise ConfigError("kv_offloading_dir needs kv_offloading_size")
        if self.block_size < 16 or self.block_size % 16:
            raise ConfigError(f"block_size must be a multiple of 16, not {self.block_size}")
        if not 0 < self.memory_utilization <= 1:
            raise ConfigError(f"memory_utilization must be above 0 and at most 1, not {self.memory_utilization}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Scheduler: what goes into a step."""

    policy: str = flag(
        "fcfs",
        "who is served first: docs/scheduling.md",
        choices=("fcfs", "priority", "fair", "deadline", "static"),
        aliases=("scheduling-policy",),
    )
    priority_ageing_s: float | None = flag(
        None, "policy priority: seconds of waiting that count as one priority (default: 60)"
    )
    tenant_weights: tuple[str, ...] = flag((), "policy fair: NAME=WEIGHT; a tenant's share of the service (default: 1)")
    max_num_seqs: int = flag(64, "sequences that run at once")
    max_num_batched_tokens: int = flag(512, "rows per step")
    long_prefill_token_threshold: int = flag(256, "rows of one prompt per step; 0: no limit")
    max_step_ms: float = flag(
        100.0,
        "milliseconds of the longest step in which answers grow: prompts are cut by predicted time; "
        "0, and policy static: any",
    )
    max_num_queued_reqs: int = flag(4096, "waiting requests beyond which new ones are refused with 429")
    max_num_queued_tokens: int = flag(
        4 << 20, "prompt tokens of waiting requests beyond which new ones are refused with 429"
    )
    enable_prefix_caching: bool = flag(
        True, "reuse what was computed for prompts with the same beginning (policy static never does; default: on)"
    )
    pin_budget: float = flag(0.25, "share of the KV blocks that cache_control hints may pin; 0: they pin nothing")
    static_padding: bool = flag(False, "policy static: compute what a padded batch computes for nobody")

    def __post_init__(self) -> None:
        _at_least(self, 1, "max_num_seqs", "max_num_batched_tokens", "max_num_queued_reqs", "max_num_queued_tokens")
        if self.priority_ageing_s is not None and not self.priority_ageing_s > 0:
            raise ConfigError(f"priority_ageing_s must be above 0, not {self.priority_ageing_s}")
        _at_least(self, 0, "long_prefill_token_threshold", "max_step_ms")
        if not 0 <= self.pin_budget <= 1:
            raise ConfigError(f"pin_budget must be from 0 to 1, not {self.pin_budget}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarConfig:
    """Structured output: what the grammar of a request may cost. More than that is refused with 400."""

    max_grammar_bytes: int = flag(256 << 10, "bytes of the largest JSON schema, expression, list or grammar")
    max_grammar_depth: int = flag(64, "levels of the deepest JSON schema: objects and lists inside each other")
    max_grammar_memory: int = flag(256 << 20, "bytes of address space that compiling a grammar may take")
    max_grammar_items: int = flag(
        8000, "parser items that one token may take; enough for about 300 optional properties of an object"
    )
    grammar_timeout: float = flag(2.0, "seconds of CPU time that compiling a grammar may take")
    grammar_closing_tokens: int = flag(
        64,
        "tokens before max_tokens from which on an answer in JSON is brought to its end (at most a quarter), "
        "and 10 for each open bracket if that is more (at most three quarters); 0: none",
    )
    grammar_cache_size: int = flag(64, "compiled grammars that are kept for the next request")

    def __post_init__(self) -> None:
        _at_least(self, 1, "max_grammar_bytes", "max_grammar_depth", "max_grammar_items", "grammar_cache_size")
        _at_least(self, 64 << 20, "max_grammar_memory")
        _at_least(self, 0.01, "grammar_timeout")
        _at_least(self, 0, "grammar_closing_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Engine: what computes, and how."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    grammars: GrammarConfig = field(default_factory=GrammarConfig)
    executor: str = flag("native", "native kernels, or the numpy reference", choices=("native", "reference"))
    threads: int | None = flag(None, "compute threads; default: physical cores within affinity and CPU quota")
    generation_config: str = flag(
        "auto",
        "sampling defaults: auto takes the model's own, vllm none of them, or a folder with a generation_config.json",
    )
    override_generation_config: str | None = flag(
        None, 'sampling defaults that win over it, as JSON: {"temperature": 0.6, "max_new_tokens": 512}'
    )
    seed: int | None = flag(None, "seed for requests that have none; default: random")

    def __post_init__(self) -> None:
        _at_least(self, 1, "threads")
        reuses = self.scheduler.enable_prefix_caching and self.scheduler.policy != "static"
        if self.cache.kv_offloading_size and not reuses:
            raise ConfigError("kv_offloading_size: without a prefix cache no evicted block would ever be read again")
        if self.seed is not None and not 0 <= self.seed < 1 << 63:
            raise ConfigError(f"seed must be from 0 to 2^63 - 1, not {self.seed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WebConfig:
    """Web: browsers, TLS, proxies and logs."""

    allowed_origins: tuple[str, ...] = flag((), "origins whose pages may call (CORS); * is any; none: CORS is off")
    allowed_methods: tuple[str, ...] = flag(("*",), "methods that such pages may use (default: *)")
    allowed_headers: tuple[str, ...] = flag(("*",), "headers that such pages may send (default: *)")
    allow_credentials: bool = flag(False, "such pages may send cookies and client certificates")
    ssl_certfile: str | None = flag(None, "PEM file with the certificate chain; serves HTTPS only")
    ssl_keyfile: str | None = flag(None, "PEM file with its private key; default: it is in the certificate's file")
    ssl_ca_certs: str | None = flag(None, "PEM file with the authorities that client certificates come from")
    ssl_cert_reqs: int = flag(0, "client certificates: 0 not asked for, 1 checked if sent, 2 required")
    root_path: str = flag("", "path prefix that a proxy in front adds; requests with and without it are served")
    disable_uvicorn_access_log: bool = flag(False, "no log line per request", aliases=("disable-access-log",))
    disable_access_log_for_endpoints: tuple[str, ...] = flag(
        ("/health", "/ready", "/metrics"), "paths without such a line (default: /health, /ready, /metrics)"
    )

    def __post_init__(self) -> None:
        if self.allow_credentials and (not self.allowed_origins or "*" in self.allowed_origins):
            raise ConfigError("allow_credentials needs allowed_origins by name: with * any page could act as its user")
        if self.ssl_cert_reqs not in (0, 1, 2):
            raise ConfigError(f"ssl_cert_reqs must be 0, 1 or 2, not {self.ssl_cert_reqs}")
        if self.ssl_cert_reqs and self.ssl_ca_certs is None:
            raise ConfigError("ssl_cert_reqs needs ssl_ca_certs")
        for name in ("ssl_keyfile", "ssl_ca_certs"):
            if getattr(self, name) is not None and self.ssl_certfile is None:
                raise ConfigError(f"{name} needs ssl_certfile")
        if self.root_path and not self.root_path.startswith("/"):
            raise ConfigError(f"root_path must start with /, not {self.root_path!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Server: where it listens, and how it ends."""

    host: str = flag("127.0.0.1", "address to listen on")
    port: int = flag(8000, "port to listen on; 0: any free one")
    admin_port: int | None = flag(None, "port for /metrics and /load, which then are not on the other one; 0: any free")
    admin_host: str = flag("127.0.0.1", "address of the admin port")
    drain_timeout: float = flag(30.0, "seconds running requests get after SIGTERM", aliases=("shutdown-timeout",))
    stall_timeout: float = flag(60.0, "seconds one step may last before /health says 503")
    on_engine_failure: str = flag(
        "exit", "end the process with status 1, or make the engine again in it", choices=("exit", "restart")
    )
    max_engine_restarts: int = flag(3, "with restart: engines made again within 10 minutes before the process ends")
    max_body_bytes: int = flag(8 << 20, "bytes of the largest request body")
    permissive_fields: bool = flag(False, "let unknown fields pass, with a warning and a response header, not a 400")
    trust_request_chat_template: bool = flag(False, "take chat_template from requests")
    stream_interval: int = flag(1, "least tokens per chunk of a stream; a request may ask for more")
    sse_keep_alive_interval: float = flag(0.0, "seconds without an event after which a stream gets a comment; 0: none")
    api_key: tuple[str, ...] = flag((), "keys of which clients must send one; none: everybody is let in")
    tenant_header: str | None = flag(
        None, "policy fair: header that names the tenant, set by a gateway; default: the label of the API key"
    )
    api_key_file: str | None = flag(None, "file with the SHA-256 of a key, in hex, on each line, and its limits")
    requests_per_second: float | None = flag(None, "POSTs per second that a key may send, unless its line says else")
    tokens_per_minute: int | None = flag(None, "prompt and answer tokens that a key may use, unless its line says else")
    concurrent_requests: int | None = flag(None, "POSTs that a key may have open, unless its line says else")
    record_traffic: str | None = flag(
        None, "file to add a line to for each answer, with lengths and timings, for `legato simulate`; never text"
    )
    tool_call_parser: str = flag(
        "auto",
        "how the model writes tool calls; auto: as its chat template shows",
        choices=("auto", "hermes", "llama3_json", "mistral", "pythonic"),
        values={"qwen3_json": "hermes"},
    )
    reasoning_parser: str = flag(
        "auto",
        "how the model writes its reasoning; auto: qwen3 where the chat template has </think>, else none",
        choices=("auto", "none", "qwen3", "deepseek_r1"),
    )
    log_level: str = flag(
        "info", "log level", choices=("debug", "info", "warning", "error"), aliases=("uvicorn-log-level",)
    )
    log_format: str = flag("text", "log lines: text, or one JSON object each", choices=("text", "json"))
    log_requests: bool = flag(
        False, "a log line for each request that has ended: tokens and times", aliases=("enable-log-requests",)
    )
    otlp_traces_endpoint: str | None = flag(
        None, "URL of an OpenTelemetry collector that takes spans over HTTP, such as http://localhost:4318"
    )
    web: WebConfig = field(default_factory=WebConfig)

    def __post_init__(self) -> None:
        _at_least(self, 0, "drain_timeout", "stall_timeout", "sse_keep_alive_interval")
        _at_least(self, 1, "stream_interval", "max_body_bytes", "max_engine_restarts")
        for name in ("port", "admin_port"):
            port = getattr(self, name)
            if port is not None and not 0 <= port < 65536:
                raise ConfigError(f"{name} must be from 0 to 65535, not {port}")
        if self.admin_port and self.admin_port == self.port:
            raise ConfigError("admin_port must be another port than port")
        if self.admin_port is None and self.admin_host != "127.0.0.1":
            raise ConfigError("admin_host needs admin_port")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """All that `legato serve` takes."""

    engine: EngineConfig = field(default_factory=EngineConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
