"""The command line. Each command's module imports what it needs when it runs, so that `--help` is instant."""

from legato.cli.main import main

__all__ = ["main"]
