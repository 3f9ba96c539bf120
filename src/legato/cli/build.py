"""`legato build`: make the engine file of a model."""

import argparse
from pathlib import Path

from legato.cli.flags import Commands, add_command, add_flags, read
from legato.core.config import ModelConfig

__all__ = ["add_to"]


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "build", "pack a model into an engine file", _run)
    add_flags(parser, ModelConfig, without=("served_model_name",))
    parser.add_argument("-o", "--output", metavar="DIR", help="folder for the file; default: the cache")


def _run(args: argparse.Namespace) -> int:
    from legato.engine.start import build_file

    path = build_file(read(ModelConfig, args), Path(args.output) if args.output else None)
    print(path)
    return 0
