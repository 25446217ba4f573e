"""Helpers of the command line tests: run commands, and fill a bucket."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from click.testing import CliRunner, Result

from dcp.cli.commands import dcp
from dcp.embedded import Cluster

# Seconds after which a test fails instead of hanging.
TIMEOUT = 30


def run(*arguments: str | int | Path) -> Result:
    """Run a command in this process. Fail if it raises anything but SystemExit, or prints a traceback."""
    result = CliRunner().invoke(dcp, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return result


@contextmanager
def start(
    *arguments: str | int | Path, main: str = "from dcp.cli import main; main()"
) -> Iterator[subprocess.Popen[str]]:
    """Start a command in a process of its own, and wait for its end; a test that fails ends it."""
    with subprocess.Popen(
        [sys.executable, "-c", main, *map(str, arguments)],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def fill_two_collections(cluster: Cluster) -> None:
    """Write 30 documents into the default collection and 2 into inventory.hotel."""
    cluster.load(30)
    cluster.create_scope("inventory")
    cluster.create_collection("inventory", "hotel")
    cluster.upsert("ritz", b'{"stars":5.10}', collection="inventory.hotel")
    cluster.upsert("bed", b'{"stars":1}', collection="inventory.hotel")


def table(output: str, first: str) -> list[list[str]]:
    """Return the cells of the printed table with this first title: titles, then rows. Empty cells are left out."""
    lines = output.splitlines()
    begin = next((n for n, line in enumerate(lines) if line.split()[:1] == [first]), len(lines))
    cells = [re.split(r"\s{2,}", line.strip()) for line in lines[begin:]]
    return cells[: 1 + next((n for n, row in enumerate(cells[1:]) if len(row) != len(cells[0])), len(cells))]
