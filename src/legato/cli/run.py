"""`legato run`: chat in the terminal, or complete prompts, without a server."""

import argparse
import contextlib
import json
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from legato.cli.flags import Commands, add_command, add_flags, read, whole
from legato.core.config import EngineConfig
from legato.core.errors import ConfigError, LegatoError, RequestError
from legato.core.types import SamplingParams

if TYPE_CHECKING:
    from legato.engine.llm import LLM, RequestOutput

__all__ = ["add_to"]

_HELP = """Chat in the terminal, or complete prompts, without a server. Without --prompt and --file it is a chat: one
message per line, an empty line or Ctrl-D ends it, Ctrl-C stops an answer. Text on a pipe is one message."""


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "run", "chat in the terminal, or complete prompts", _run)
    parser.description = _HELP
    what = parser.add_mutually_exclusive_group()
    what.add_argument("-p", "--prompt", metavar="TEXT", help="complete this text, and end")
    what.add_argument("-f", "--file", metavar="FILE", help=_FILE_HELP)
    parser.add_argument("--chat", action="store_true", help="answer --prompt or --file as chat messages")
    parser.add_argument("--system", metavar="TEXT", help="system message of a chat")
    parser.add_argument("-o", "--output", metavar="FILE", help="where answers to --file go, as JSON lines (default: -)")
    sampling = parser.add_argument_group("Sampling (default: the model's own)")
    for name, kind, help in _SAMPLING:
        sampling.add_argument(f"--{name.replace('_', '-')}", dest=f"sampling_{name}", type=kind, metavar="N", help=help)
    sampling.add_argument("--stop", dest="sampling_stop", nargs="+", metavar="TEXT", help="end an answer before these")
    sampling.add_argument(
        "--ignore-eos", dest="sampling_ignore_eos", action="store_true", default=None, help="go on after the end"
    )
    add_flags(parser, EngineConfig, without=("served_model_name", "max_num_queued_tokens"))


_FILE_HELP = (
    'complete every line of a text file; with suffix .jsonl, lines are texts or {"prompt": ...} or {"messages": ...}'
)
_SAMPLING = (
    ("max_tokens", whole, "tokens per answer; default: what is left of the context"),
    ("temperature", float, "0: always the likeliest token"),
    ("top_p", float, "sample from the likeliest tokens that hold this much probability"),
    ("top_k", whole, "sample from so many likeliest tokens; 0: all"),
    ("min_p", float, "sample from tokens at least this likely, relative to the likeliest"),
    ("repetition_penalty", float, "above 1: what was said becomes less likely"),
    ("presence_penalty", float, "subtracted from the logits of tokens that were generated"),
    ("frequency_penalty", float, "the same, for each time"),
)


def _run(args: argparse.Namespace) -> int:
    config = read(EngineConfig, args)
    _check(args)
    prompts = _read_prompts(Path(args.file), args.chat, args.system) if args.file else None
    from legato.engine.llm import LLM
    from legato.engine.start import start

    with LLM.over(start(config)) as llm:
        params = _params(args, llm.get_default_sampling_params())
        if prompts is not None:
            return _answer_file(llm, prompts, params, args.output)
        if args.prompt is not None:
            _stream(llm, _talk(args.system, args.prompt) if args.chat else args.prompt, params)
        elif not sys.stdin.isatty():
            _stream(llm, _talk(args.system, sys.stdin.read().strip()), params)
        else:
            print(f"{llm.model_name}. An empty line or Ctrl-D ends the chat, Ctrl-C stops an answer.", file=sys.stderr)
            _chat(llm, args.system, params)
    return 0


def _check(args: argparse.Namespace) -> None:
    """Before anything is loaded. ConfigError for a flag that would do nothing, or an output that cannot be written."""
    if args.output is not None:
        if args.file is None:
            raise ConfigError("output: only answers to --file are written to a file")
        if args.output != "-" and not Path(args.output).parent.is_dir():
            raise ConfigError(f"output: {args.output}: its folder does not exist")
    if args.system is not None and not args.chat and (args.prompt is not None or args.file is not None):
        raise ConfigError("system: --prompt and --file have a system message only with --chat")


def _params(args: argparse.Namespace, defaults: SamplingParams) -> SamplingParams:
    given = {f.name: getattr(args, f"sampling_{f.name}", None) for f in fields(SamplingParams)}
    return replace(defaults, **{name: value for name, value in given.items() if value is not None})


def _talk(system: str | None, message: str) -> list[dict[str, str]]:
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": message}]


def _chat(llm: "LLM", system: str | None, params: SamplingParams) -> None:
    """Read messages and answer them until an empty line or the end of input."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  line editing and history for input()
    talk: list[dict[str, str]] = [] if system is None else [{"role": "system", "content": system}]
    while True:
        try:
            message = input("> ")
        except EOFError:
            print()
            return
        if not message.strip():
            return
        talk.append({"role": "user", "content": message})
        try:
            answer = _stream(llm, talk, params)
        except RequestError as error:
            print(f"legato: {error}", file=sys.stderr)
            talk.pop()
            continue
        talk.append({"role": "assistant", "content": answer})


def _stream(llm: "LLM", prompt: Any, params: SamplingParams) -> str:
    """Print an answer as it comes, and return it. Ctrl-C stops it."""
    said = ""
    outputs = llm.stream(prompt, params)
    try:
        for output in outputs:
            said += output.text
            print(output.text, end="", flush=True)
            if output.error is not None:
                raise LegatoError(output.error)
    except KeyboardInterrupt:
        outputs.close()
    print()
    return said


def _read_prompts(path: Path, chat: bool, system: str | None) -> list[Any]:
    """Prompts of a file: texts, {"prompt_token_ids": ...}, or lists of messages. ConfigError names the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    prompts = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        prompt = _parse_line(line, f"{path}:{number}") if path.suffix == ".jsonl" else line
        prompts.append(_talk(system, prompt) if chat and isinstance(prompt, str) else prompt)
    if not prompts:
        raise ConfigError(f"{path}: holds no prompts")
    return prompts


def _parse_line(line: str, where: str) -> Any:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: {error}") from None
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        for key, kind in (("messages", list), ("prompt", str), ("prompt_token_ids", list)):
            if isinstance(value.get(key), kind):
                return value if key == "prompt_token_ids" else value[key]
    raise ConfigError(f'{where}: must be a text, or an object with "prompt", "prompt_token_ids" or "messages"')


def _answer_file(llm: "LLM", prompts: list[Any], params: SamplingParams, output: str | None) -> int:
    """Answer all prompts as one batch and write one JSON line each, in their order; 1 when one failed."""
    from legato.bench.report import write

    ids = [{"prompt_token_ids": llm.encode(prompt)} for prompt in prompts]
    results = llm.generate(ids, params)
    write(output or "-", "".join(_result_line(*each) for each in zip(prompts, results, strict=True)))
    return int(any(answer.error for result in results for answer in result.outputs))


def _result_line(prompt: Any, result: "RequestOutput") -> str:
    [answer] = result.outputs
    usage = {"prompt_tokens": len(result.prompt_token_ids), "completion_tokens": len(answer.token_ids)}
    asked = (
        {"prompt": prompt} if isinstance(prompt, str) else {"messages": prompt} if isinstance(prompt, list) else prompt
    )
    said = {"text": answer.text, "finish_reason": answer.finish_reason, "error": answer.error, "usage": usage}
    return json.dumps({**asked, **said}, ensure_ascii=False) + "\n"
