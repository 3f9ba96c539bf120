"""Commands, flags and links in the documentation lead to something, and every flag says what it is for."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from legato.cli.flags import normalize
from legato.cli.main import _parser

ROOT = Path(__file__).parents[3]
PAGES = sorted([ROOT / "README.md", ROOT / "deploy" / "README.md", *(ROOT / "docs").rglob("*.md")])
COMMAND = re.compile(r"(?:^|`|\$ |&& |-m )legato ((?:[^`|&#\n]|\\\n)+)", re.M)


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for inner in subcommands(parser).values():
        yield from parsers(inner)


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    [*found] = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(*found)


def unknown_parts(words: list[str]) -> list[str]:
    """Of a command without the name of the program: subcommands and flags that there are not."""
    parser, words = _parser(), normalize(words)
    while words and (inner := subcommands(parser)):
        name = words.pop(0)
        if name.startswith("--"):
            break
        if name not in inner:
            return [name]
        parser = inner[name]
    flags = (word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word))
    return [flag for flag in flags if flag not in parser._option_string_actions]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_links(page: Path) -> None:
    text = page.read_text()
    commands = [found.replace("\\\n", " ").split() for found in COMMAND.findall(text)]
    assert [(command, parts) for command in commands if (parts := unknown_parts(command))] == []
    links = re.findall(r"\]\(([^)#:\s]+)[)#]", text)
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_what_there_is_not_is_found() -> None:
    assert unknown_parts(["serve", "MODEL", "--port", "80", "--prt", "80"]) == ["--prt"]
    assert unknown_parts(["bench", "serv"]) == ["serv"]


def test_every_flag_has_a_help() -> None:
    """More than its default; what a number counts too."""
    for parser in parsers(_parser()):
        for action in parser._actions:
            said = re.sub(r"\(?default: [^)]*\)?", "", action.help or "").strip()
            assert said or isinstance(action, argparse._SubParsersAction), f"{parser.prog} {action.option_strings}"
