"""`legato pull`: bring a model into the cache."""

import argparse
from pathlib import Path

from legato.cli.flags import Commands, add_command

__all__ = ["add_to"]


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "pull", "download a model into the cache", _run)
    parser.add_argument(
        "model", nargs="?", default="", metavar="MODEL", help="Hugging Face id; empty: the default model"
    )
    parser.add_argument("--revision", metavar="TEXT", help="branch, tag or commit of a Hugging Face id")
    parser.add_argument(
        "--cache-dir", metavar="TEXT", help="folder of the cache; default: $LEGATO_CACHE or ~/.cache/legato"
    )


def _run(args: argparse.Namespace) -> int:
    from legato.engine.progress import byte_progress
    from legato.weights.cache_dir import default_cache_dir
    from legato.weights.open import open_checkpoint

    cache_dir = Path(args.cache_dir).expanduser() if args.cache_dir else default_cache_dir()
    with (
        byte_progress() as progress,
        open_checkpoint(args.model, revision=args.revision, cache_dir=cache_dir, progress=progress) as checkpoint,
    ):
        print(checkpoint.source.config_file)
    return 0
