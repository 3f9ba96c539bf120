"""`legato serve`: load a model and serve it over HTTP."""

import argparse
import json
from typing import TYPE_CHECKING

from legato.cli.flags import Commands, add_command, add_flags, read
from legato.core.config import ServeConfig, ServerConfig

if TYPE_CHECKING:
    from legato.engine.assemble import Engine

__all__ = ["add_to"]


def add_to(commands: Commands) -> None:
    add_flags(add_command(commands, "serve", "serve a model over OpenAI's API", _run), ServeConfig)


def _run(args: argparse.Namespace) -> int:
    config = read(ServeConfig, args)
    from legato.server.logs import set_up_logging

    set_up_logging(config.server.log_level, config.server.log_format)
    from legato.engine.start import start
    from legato.server.keys import ApiKeys
    from legato.server.lifecycle import bind, serve
    from legato.server.spans import check_endpoint

    keys = ApiKeys.load(config.server)
    if config.server.otlp_traces_endpoint is not None:
        check_endpoint(config.server.otlp_traces_endpoint)  # before the model loads
    sock = bind(config.server)
    engine = start(config.engine)
    port = sock.getsockname()[1]
    return serve(engine, config.server, keys, sock, lambda: print(_banner(engine, config.server, port), flush=True))


def _banner(engine: "Engine", config: ServerConfig, port: int) -> str:
    """What was loaded, where it is served, and one line to try it with."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    url = f"http://{host}:{port}"
    local = url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    body: dict[str, object]
    if engine.inputs.has_chat_template:
        path, body = "chat/completions", {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
    else:
        path, body = "completions", {"prompt": "The capital of France is"}
    # Greedy and short: a small model that samples may talk nonsense until its context is full.
    body |= {"temperature": 0, "max_tokens": 64}
    key = " -H 'authorization: Bearer KEY'" if config.api_key or config.api_key_file else ""
    context = f"{engine.inputs.max_model_len:,} tokens"
    if engine.inputs.max_model_len < engine.info.max_position:
        context += f" (the KV pool holds no more; the model could {engine.info.max_position:,})"
    rows = {
        "model": ", ".join(engine.model_names),
        "context": context,
        "executor": engine.info.name,
        **engine.info.details,
    }
    return "\n".join(
        [
            *([engine.memory] if engine.memory else []),
            *(f"{name.replace('_', ' '):15} {value}" for name, value in rows.items()),
            f"serving at      {url}  (Ctrl-C ends it)",
            "try it:",
            f"  curl {local}/v1/{path} -H 'content-type: application/json'{key} -d '{json.dumps(body)}'",
        ]
    )
