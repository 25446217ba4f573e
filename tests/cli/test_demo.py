"""The demo, as a newcomer runs it."""

from __future__ import annotations

import re

from click.testing import CliRunner

from dcp.cli.group import dcp as command


def test_the_copy_survives_the_failover() -> None:
    ran = CliRunner().invoke(command, ["demo", "--documents", "400"])
    assert ran.exit_code == 0, ran.output
    assert re.search(r"last 20 writes are lost: [1-9][0-9]* vbuckets rolled back", ran.output)
    assert ran.output.endswith("the copy is the cluster's 1,100 documents, byte for byte\n")


def test_too_few_documents_are_refused() -> None:
    ran = CliRunner().invoke(command, ["demo", "--documents", "5"])
    assert ran.exit_code == 2
    assert "5 is not in the range x>=100" in ran.output
