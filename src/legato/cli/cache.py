"""`legato cache`: what the cache holds, and making room in it."""

import argparse
import time
from pathlib import Path

from legato.cli.flags import Commands, add_command
from legato.core.errors import ConfigError

__all__ = ["add_to"]


def add_to(commands: Commands) -> None:
    parser = commands.add_parser("cache", help="list and prune downloaded models and built engines")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = add_command(actions, "ls", "list the cache", _list)
    pruning = add_command(actions, "prune", "remove what no process uses", _prune)
    which = pruning.add_mutually_exclusive_group(required=True)
    which.add_argument("--older-than", type=float, metavar="DAYS", help="entries that were not used for so many days")
    which.add_argument("--all", action="store_true", help="every entry")
    pruning.add_argument("--dry-run", action="store_true", help="only say what would go")
    for each in (listing, pruning):
        each.add_argument(
            "--cache-dir", metavar="TEXT", help="folder of the cache; default: $LEGATO_CACHE or ~/.cache/legato"
        )


def _folder(args: argparse.Namespace) -> Path:
    from legato.weights.cache_dir import default_cache_dir

    return Path(args.cache_dir).expanduser() if args.cache_dir else default_cache_dir()


def _list(args: argparse.Namespace) -> int:
    from legato.weights.cache_dir import list_cache

    folder = _folder(args)
    entries = list_cache(folder)
    print(f"{folder}: {len(entries)} entries, {sum(e.bytes for e in entries) / 1e6:.1f} MB")
    for entry in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.last_used))
        print(f"  {entry.kind:8} {entry.bytes / 1e6:10.1f} MB  {used}  {entry.name}")
    return 0


def _prune(args: argparse.Namespace) -> int:
    from legato.weights.cache_dir import prune

    if args.older_than is not None and not args.older_than >= 0:
        raise ConfigError(f"older-than must be at least 0 days, not {args.older_than:g}")
    removed = prune(_folder(args), older_than_days=args.older_than, all=args.all, dry_run=args.dry_run)
    for entry in removed:
        print(f"  {entry.kind:8} {entry.bytes / 1e6:10.1f} MB  {entry.name}")
    verb = "would free" if args.dry_run else "freed"
    print(f"{verb} {sum(e.bytes for e in removed) / 1e6:.1f} MB in {len(removed)} entries")
    return 0
