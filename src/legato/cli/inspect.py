"""`legato inspect`: what a model was turned into, and how this machine would run it."""

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from legato.cli.flags import Commands, add_command, add_flags, read
from legato.core.config import EngineConfig

if TYPE_CHECKING:
    from legato.build.engine_file import EngineFile

__all__ = ["add_to"]


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "inspect", "show a model's plan, layouts, memory and instruction set", _run)
    parser.add_argument("--verify", action="store_true", help="check the hash of every tensor in the engine file")
    add_flags(parser, EngineConfig)


def _run(args: argparse.Namespace) -> int:
    from legato.build.dump import dump
    from legato.build.engine_file import EngineFile
    from legato.engine.start import engine_file

    config = read(EngineConfig, args)
    path = engine_file(config.model)
    file = EngineFile.open(path)
    print("\n".join(_file_lines(path, file)))
    print(dump(file.plan))
    return 0


def _file_lines(path: Path, file: "EngineFile") -> list[str]:
    layouts = Counter((record.layout, record.n) for record in file.tensors)
    return [f"engine file  {path}", f"size         {path.stat().st_size / 1e6:.1f} MB", str(layouts)]
