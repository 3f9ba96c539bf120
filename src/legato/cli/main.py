"""`legato COMMAND ...`: parse, run, and turn errors into one line and an exit status."""

import argparse
import os
import sys
from collections.abc import Sequence

from legato import __version__
from legato.cli import bench, build, cache, inspect, pull, run, serve, simulate
from legato.cli.flags import normalize
from legato.core.errors import ConfigError, LegatoError

__all__ = ["main"]

_COMMANDS = (serve, run, build, inspect, pull, cache, bench, simulate)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. 0: done; 1: it failed; 2: wrong usage or configuration; 130: interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        parser = _parser()
        if not arguments:
            parser.print_help(sys.stderr)
            return 2
        args, unknown = parser.parse_known_args(normalize(arguments))
        if unknown:
            name = next((argument for argument in unknown if argument.startswith("-")), unknown[0])
            raise ConfigError(f"unknown argument {name}; `legato {arguments[0]} --help` lists what there is")
        status: int = args.run(args)
        sys.stdout.flush()
    except ConfigError as error:
        return _fail(error, 2)
    except LegatoError as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as in `legato inspect | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="legato",
        description="Serve large language models: one command, any checkpoint, native kernels.",
        epilog="`legato COMMAND --help` lists a command's flags. Without MODEL, the small default model is used.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"legato {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_to(commands)
    return parser


def _fail(error: Exception, status: int) -> int:
    print(f"legato: error: {error}", file=sys.stderr)
    return status
