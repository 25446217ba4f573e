"""The guide and the help texts: their commands are valid."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from dcp.cli.commands import dcp
from tests.cli.commands import run
from tests.cli.sessions import in_a_shell, repeat, session

GUIDE = Path(__file__).parents[2] / "docs" / "command-line.md"


def commands(group: click.Group, *path: str) -> dict[tuple[str, ...], click.Command]:
    """Return all commands by their names, subcommands included."""
    found: dict[tuple[str, ...], click.Command] = {}
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found[(*path, name)] = command
        if isinstance(command, click.Group):
            found |= commands(command, *path, name)
    return found


COMMANDS = commands(dcp)
TYPED = re.findall(r"^(?:\$ | *)(dcp [^|\n`]*)", GUIDE.read_text("utf-8"), re.MULTILINE)


def parse(line: str) -> None:
    """Parse a command line without running it. Raises click.UsageError if it is wrong."""
    words = shlex.split(line)[1:]
    path = max((path for path in COMMANDS if tuple(words[: len(path)]) == path), key=len)
    COMMANDS[path].make_context(path[-1], words[len(path) :]).close()


@pytest.mark.parametrize("line", TYPED)
def test_a_command_of_the_guide_is_valid(line: str) -> None:
    assert "secret" in line or "sesame" in line or not re.search(r"//[^/@]*:[^/@]*@", line)
    parse(line.replace("before.json", str(GUIDE)))


@pytest.mark.parametrize("path", list(COMMANDS), ids=" ".join)
def test_every_help_has_valid_examples(path: tuple[str, ...]) -> None:
    output = run(*path, "--help").output
    examples = re.findall(r"^ +(dcp [^|\n]*)", output.partition("Example:")[2], re.MULTILINE)
    assert examples
    for line in examples:
        parse(re.sub(r"\S+\.pcapng", str(GUIDE), line))


@in_a_shell
def test_the_session_of_the_guide_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    headings = re.findall(r"^## (.*)", GUIDE.read_text("utf-8"), re.MULTILINE)
    first, last = headings.index("A cluster for the examples"), headings.index("Find out why a connection fails")
    repeat(session(GUIDE, *headings[first : last + 1]), tmp_path, monkeypatch)


def test_the_guide_has_every_command() -> None:
    text = GUIDE.read_text("utf-8")
    assert [name for name in dcp.list_commands(click.Context(dcp)) if f"`dcp {name}" not in text] == []
