"""Command-line flags made from configuration classes, and vLLM's flags that are not among them."""

import argparse
import json
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, get_args, get_origin

from legato.core.config import Flag, build, flags
from legato.core.errors import ConfigError

__all__ = ["Commands", "add_command", "add_flags", "normalize", "read", "whole"]

Commands = Any  # what argparse's add_subparsers returns; it has no public name

_Config = TypeVar("_Config")

_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def add_command(commands: Commands, name: str, help: str, run: Callable[[argparse.Namespace], int]) -> Any:
    """A subcommand whose `run` is called with the parsed arguments."""
    parser = commands.add_parser(
        name, help=help, description=help[0].upper() + help[1:] + ".", allow_abbrev=False, formatter_class=_Help
    )
    parser.set_defaults(run=run)
    return parser


class _Help(argparse.HelpFormatter):
    """Names a flag's value once, not again for each spelling."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"


def add_flags(parser: argparse.ArgumentParser, config: type, *, without: tuple[str, ...] = ()) -> None:
    """A flag for every field of a configuration, but those in `without`, in groups by the class they belong to."""
    parser.usage = f"{parser.prog} [MODEL] [flags]"
    groups: dict[str, Any] = {}
    for spec in flags(config):
        if spec.name in without:
            continue
        if spec.positional:
            parser.add_argument(spec.name, nargs="?", default="", metavar=spec.name.upper(), help=spec.help)
            continue
        if spec.group not in groups:
            groups[spec.group] = parser.add_argument_group(spec.group.rstrip("."))
        _add_flag(groups[spec.group], spec)


def read(config: type[_Config], args: argparse.Namespace) -> _Config:
    """The configuration that the parsed arguments ask for. ConfigError for a bad value."""
    given = {spec.name: getattr(args, spec.name) for spec in flags(config) if hasattr(args, spec.name)}
    return build(config, {name: _texts(v) if isinstance(v, list) else v for name, v in given.items()})


def _texts(values: list[str]) -> tuple[str, ...]:
    """Several texts; one that is a JSON list of texts, as vLLM's manifests have them, stands for its entries."""
    result: list[str] = []
    for value in values:
        try:
            entries = json.loads(value) if value.startswith("[") else None
        except ValueError:
            entries = None
        if isinstance(entries, list) and all(isinstance(entry, str) for entry in entries):
            result += entries
        else:
            result.append(value)
    return tuple(result)


def whole(text: str) -> int:
    """A whole number, perhaps with a suffix: k m g are powers of 1000, K M G of 1024."""
    scale = _SUFFIXES.get(text[-1:], 1)
    number = float(text[:-1] if scale > 1 else text) * scale
    if number != int(number):
        raise ValueError(text)
    return int(number)


whole.__name__ = "whole number"  # argparse names it in messages


def _add_flag(group: Any, spec: Flag) -> None:
    names = [f"--{spec.name.replace('_', '-')}", *(f"--{a}" if len(a) > 1 else f"-{a}" for a in spec.aliases)]
    options: dict[str, Any] = {"dest": spec.name, "default": argparse.SUPPRESS, "help": _help(spec)}
    kind = _plain(spec.type)
    if kind is bool:
        options["action"] = argparse.BooleanOptionalAction
    elif get_origin(kind) is tuple:
        options.update(nargs="+", action="extend", metavar="TEXT")
    else:
        options["type"] = whole if kind is int else kind
        options["metavar"] = _METAVARS[kind]
        if spec.choices:
            options.update(
                type=lambda text: spec.values.get(text, text),
                choices=spec.choices,
                metavar="{" + ",".join(spec.choices) + "}",
            )
    group.add_argument(*names, **options)


_METAVARS = {int: "N", float: "X", str: "TEXT"}


def _plain(annotation: Any) -> Any:
    """`int | None` is int on the command line."""
    if isinstance(annotation, types.UnionType):
        return next(arg for arg in get_args(annotation) if arg is not type(None))
    return annotation


def _help(spec: Flag) -> str:
    text = spec.help.replace("%", "%%")
    said = "default" in text or spec.default in (None, (), False)
    return text if said else f"{text} (default: {spec.default})"


def normalize(arguments: Sequence[str]) -> list[str]:
    """Flags with dashes for underscores, and without those of vLLM that ask for what is the case anyway.

    `--model NAME` becomes the positional argument, before all flags: one that takes several values would take it too.
    ConfigError for a flag of vLLM whose feature does not exist here.
    """
    result: list[str] = []
    rest = list(arguments)
    models: list[str] = []
    while rest and rest[0] != "--":
        argument = rest.pop(0)
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            name = name.replace("_", "-")
        if name in _VALUES or name in _UNSET or name == "--model":
            if not equals:
                if not rest or rest[0].startswith("-"):
                    raise ConfigError(f"{name}: a value must follow")
                value = rest.pop(0)
            if name == "--model":
                models.append(value)
            elif name in _UNSET:
                result += [] if value == _UNSET[name] else [f"{name}={value}"]
            elif value not in _VALUES[name]:
                raise ConfigError(f"{name} {value}: not supported; only {' or '.join(_VALUES[name])} is")
        elif name in _MISSING:
            raise ConfigError(f"{name}: not supported, Legato does not have this feature of vLLM")
        elif name not in _GRANTED:
            result.append(name + equals + value)
    first_flag = next((i for i, argument in enumerate(result) if argument.startswith("-")), len(result))
    return [*result[:first_flag], *models, *result[first_flag:], *rest]


# Flags with a value that vLLM has for leaving them out.
_UNSET: Mapping[str, str] = {"--max-model-len": "auto"}

# Flags of vLLM and the values that ask for nothing.
_VALUES: Mapping[str, tuple[str, ...]] = {
    "--api-server-count": ("1",),
    "--chat-template-content-format": ("auto",),
    "--config-format": ("auto",),
    "--cpu-offload-gb": ("0",),
    "--data-parallel-size": ("1",),
    "--decode-context-parallel-size": ("1",),
    "--device": ("auto", "cpu"),
    "--distributed-executor-backend": ("mp", "uni"),
    "-dp": ("1",),
    "--fingerprint-mode": ("full",),
    "--kv-offloading-backend": ("native",),
    "--load-format": ("auto",),
    "--logprobs-mode": ("raw_logprobs",),
    "--max-logprobs": ("20",),
    "--model-impl": ("auto",),
    "--nnodes": ("1",),
    "--node-rank": ("0",),
    "--performance-mode": ("balanced",),
    "--pipeline-parallel-size": ("1",),
    "-pp": ("1",),
    "--prefill-context-parallel-size": ("1",),
    "--prefill-schedule-interval": ("1",),
    "--prefix-cache-retention-interval": ("0",),
    "--prefix-caching-hash-algo": ("sha256",),
    "--runner": ("auto", "generate"),
    "--swap-space": ("0",),
    "--tensor-parallel-size": ("1",),
    "--tokenizer-mode": ("auto",),
    "-tp": ("1",),
}

# Switches of vLLM whose state is the only one here.
_GRANTED = frozenset(
    {
        "--disable-custom-all-reduce",
        "--disable-frontend-multiprocessing",
        "--disable-log-requests",
        "--disable-log-stats",
        "--enable-auto-tool-choice",
        "--enable-chunked-prefill",
        "--enable-prompt-tokens-details",
        "--enable-request-id-headers",
        "--enable-server-load-tracking",
        "--enforce-eager",
        "--no-trust-remote-code",
        "--trust-remote-code",
    }
)

_MISSING = frozenset(
    {
        "--all2all-backend",
        "--allowed-local-media-path",
        "--allowed-media-domains",
        "--async-scheduling",
        "--attention-backend",
        "--collect-detailed-traces",
        "--compilation-config",
        "--config",
        "--cudagraph-capture-sizes",
        "--cudagraph-metrics",
        "--custom-histogram-buckets",
        "--data-parallel-backend",
        "--data-parallel-rank",
        "--dbo-decode-token-threshold",
        "--dbo-prefill-token-threshold",
        "--default-chat-template-kwargs",
        "--ec-transfer-config",
        "--elastic-ep-max-dp-size",
        "--enable-dbo",
        "--enable-elastic-ep",
        "--enable-eplb",
        "--enable-expert-parallel",
        "--enable-fault-tolerance",
        "--enable-force-include-usage",
        "--enable-log-outputs",
        "--enable-lora",
        "--enable-mfu-metrics",
        "--enable-per-request-metrics",
        "--enable-sleep-mode",
        "--enable-ssl-refresh",
        "--eplb-config",
        "--grpc",
        "--grpc-port",
        "--headless",
        "--hf-overrides",
        "--hf-token",
        "--kv-cache-metrics",
        "--kv-cache-metrics-sample",
        "--kv-events-config",
        "--kv-transfer-config",
        "--language-model-only",
        "--limit-mm-per-prompt",
        "--lora-dtype",
        "--lora-modules",
        "--master-addr",
        "--master-port",
        "--max-cpu-loras",
        "--max-log-len",
        "--max-lora-rank",
        "--max-loras",
        "--max-num-active-seqs",
        "--max-num-scheduled-tokens",
        "--middleware",
        "--mm-encoder-tp-mode",
        "--mm-processor-cache-gb",
        "--mm-processor-kwargs",
        "--no-enable-chunked-prefill",
        "--offload-backend",
        "--offload-group-size",
        "--offload-prefetch-step",
        "--optimization-level",
        "--per-request-spec-decode-metrics",
        "--prefix-match-unit",
        "--profiler-config",
        "--reasoning-parser-plugin",
        "--scheduler-cls",
        "--scheduler-reserve-full-isl",
        "--show-hidden-metrics-for-version",
        "--spec-method",
        "--spec-model",
        "--spec-tokens",
        "--speculative-config",
        "--structured-outputs-config",
        "--tool-parser-plugin",
        "--tool-strict-level",
        "--uds",
        "--watermark",
        "--weight-transfer-config",
    }
)
