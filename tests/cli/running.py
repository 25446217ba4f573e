"""Commands as users run them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from dcp.cli.group import dcp
from dcp.embedded import Cluster

PATIENCE = 30


def run(*arguments: str | int | Path) -> Result:
    """A command in this process. Whatever happens, nothing but an exit leaves it, and no traceback is printed."""
    result = CliRunner().invoke(dcp, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return result


def start(*arguments: str | int | Path, main: str = "from dcp.cli import main; main()") -> subprocess.Popen[str]:
    """A command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", main, *map(str, arguments)],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def hotel(cluster: Cluster) -> None:
    """A bucket with two collections: 30 documents of the default one, and 2 of another."""
    cluster.load(30)
    cluster.create_scope("inventory")
    cluster.create_collection("inventory", "hotel")
    cluster.upsert("ritz", b'{"stars":5.10}', collection="inventory.hotel")
    cluster.upsert("bed", b'{"stars":1}', collection="inventory.hotel")
