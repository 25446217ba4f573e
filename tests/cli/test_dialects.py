"""Commands over TAP and UPR, the dialects before DCP."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from dcp.embedded import Cluster
from tests.cli.commands import run


@pytest.mark.parametrize("dialect", ["tap", "upr1", "upr2"])
def test_a_bucket_is_printed_and_copied(tmp_path: Path, dialect: str) -> None:
    out = tmp_path / "out.parquet"
    with Cluster(vbuckets=4, dialect=dialect) as cluster:
        cluster.load(30)
        url = f"{cluster.url}&dialect={dialect}"
        printed = run("tail", url, "--from", "beginning", "--to", "now", "--json").output
        assert {json.loads(line)["key"].encode() for line in printed.splitlines()} == set(cluster.truth())
        assert run("copy", url, out).exit_code == 0
        assert set(parquet.read_table(out).column("key").to_pylist()) == set(cluster.truth())
        again = run("copy", url, out)
        assert again.exit_code == (1 if dialect == "tap" else 0)
        assert ("TAP has no seqnos" in again.output) == (dialect == "tap")
