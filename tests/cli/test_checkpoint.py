"""`dcp checkpoint`: show, diff, convert and verify."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import dcp
from dcp.cli.checkpoint import KINDS
from dcp.embedded import Cluster
from dcp.foreign_checkpoints import FORMATS
from tests.cli.commands import run, table

LOG = dcp.FailoverLog.of([(0xBEE, 5), (0xABC, 0)])
POSITIONS = (
    dcp.StreamPosition(1, 0xBEE, 9, 9, 9, failover_log=LOG),
    dcp.StreamPosition(2, 0xABC, 2**63, 2**63 - 1, 2**63 + 7),
)
SAVED = dcp.Checkpoint(POSITIONS, 4, "travel", "u1")


def save(path: Path, checkpoint: dcp.Checkpoint) -> Path:
    """Write a checkpoint to a file. Return its path."""
    path.write_text(checkpoint.to_json())
    return path


def test_show_prints_every_number(tmp_path: Path) -> None:
    saved = save(tmp_path / "saved", SAVED)
    output = run("checkpoint", "show", saved).output
    assert output.startswith(f"2 vbuckets of bucket travel (u1), {9 + 2**63:,} seqnos in all")
    assert f"{2**63}  {2**63 - 1} to {2**63 + 7}  abc" in output
    assert table(output, "vbucket") == [
        ["vbucket", "seqno", "snapshot", "vbuuid", "manifest", "histories"],
        ["1", "9", "complete", "bee", "0", "2"],
        ["2", str(2**63), f"{2**63 - 1} to {2**63 + 7}", "abc", "0", "0"],
    ]
    nameless = save(tmp_path / "nameless", replace(SAVED, bucket="", bucket_uuid="", positions=POSITIONS[:1]))
    assert run("checkpoint", "show", nameless).output.startswith("1 vbucket, 9 seqnos in all\n")
    unknown = save(tmp_path / "unknown", replace(SAVED, bucket_uuid=""))
    assert run("checkpoint", "show", unknown).output.startswith("2 vbuckets of bucket travel (uuid unknown), ")
    shown = json.loads(run("checkpoint", "show", saved, "--json").output)
    assert dcp.Checkpoint.from_json(json.dumps(shown)) == SAVED


def test_diff_prints_differences_and_reports_them_by_its_exit_code(tmp_path: Path) -> None:
    before = save(tmp_path / "before", SAVED)
    moved = replace(
        POSITIONS[0], vbuuid=0xDEAD, seqno=7, snapshot_start=7, snapshot_end=7, failover_log=dcp.FailoverLog(())
    )
    after = save(tmp_path / "after", replace(SAVED, positions=(moved, POSITIONS[1])))
    same = run("checkpoint", "diff", before, before)
    assert (same.exit_code, same.output) == (0, "0 vbuckets differ, by +0 seqnos\n")
    result = run("checkpoint", "diff", before, after)
    assert result.exit_code == 3
    assert "1 vbucket differ, by -2 seqnos" in result.output
    titles = ["vbucket", "before", "after", "seqnos", "history"]
    assert table(result.output, "vbucket") == [titles, ["1", "9", "7", "-2", "other"]]
    # One that goes on, and one that is new.
    grown = replace(POSITIONS[0], seqno=11, snapshot_start=11, snapshot_end=11)
    here = save(tmp_path / "here", replace(SAVED, positions=(grown, POSITIONS[1], dcp.StreamPosition(3, 1, 4, 4, 4))))
    assert table(run("checkpoint", "diff", before, here).output, "vbucket")[1:] == [
        ["1", "9", "11", "+2", "same"],
        ["3", "0", "4", "+4", "same"],
    ]
    (row,) = json.loads(run("checkpoint", "diff", before, after, "--json").output)
    assert row == {"vbucket": 1, "before": "9", "after": "7", "items": "-2", "same_history": False}


@pytest.mark.parametrize("kind", FORMATS)
def test_a_converted_checkpoint_can_be_converted_back(tmp_path: Path, kind: str) -> None:
    small = replace(SAVED, positions=(replace(POSITIONS[0], vbucket=0),))
    ours, theirs, back = save(tmp_path / "ours", small), tmp_path / "theirs", tmp_path / "back"
    assert run("checkpoint", "convert", ours, theirs, "--to", kind).exit_code == 0
    assert theirs.read_text() == small.to_foreign(kind)
    assert run("checkpoint", "convert", theirs, back, "--format", kind).exit_code == 0
    assert dcp.Checkpoint.from_json(back.read_text()) == dcp.Checkpoint.from_foreign(kind, theirs.read_text())


def test_verify_fails_for_a_vbucket_that_no_node_has(tmp_path: Path) -> None:
    with Cluster(nodes=2, vbuckets=4) as cluster, dcp.connect(cluster.url) as client:
        saved = save(tmp_path / "saved", client.positions("now"))
        # Without replicas, nobody takes over.
        cluster.failover(1)
        result = run("checkpoint", "verify", saved, cluster.url)
    assert result.exit_code == 3
    assert "2 of 4 vbuckets can resume" in result.output


def test_verify_predicts_the_rollbacks_of_the_cluster(tmp_path: Path) -> None:
    with Cluster(nodes=2, vbuckets=4, password="s3cret") as cluster, dcp.connect(cluster.url) as client:
        cluster.load(100)
        stream = client.stream(end="now")
        for _ in stream:
            pass
        good = stream.checkpoint
        verified = run("checkpoint", "verify", save(tmp_path / "good", good), cluster.url)
        assert (verified.exit_code, verified.output) == (0, "4 of 4 vbuckets can resume\n")
        positions = list(good)
        above = positions[2].seqno + 5
        positions[1] = replace(positions[1], vbuuid=0xBAD)
        positions[2] = replace(positions[2], seqno=above, snapshot_start=above, snapshot_end=above)
        bad = save(tmp_path / "bad", replace(good, positions=tuple(positions)))
        result = run("checkpoint", "verify", bad, cluster.url)
        results = json.loads(run("checkpoint", "verify", bad, cluster.url, "--json").output)
        # Compare with what the cluster does.
        rollbacks = {}
        for batch in client.stream(dcp.Checkpoint.from_json(bad.read_text()), "now"):
            for row in batch.to_arrow().to_pylist():
                if row["event"] == "rollback":
                    rollbacks[row["vbucket"]] = row["seqno"]
    assert result.exit_code == 3
    assert "2 of 4 vbuckets can resume" in result.output
    assert "its history bad is unknown" in result.output
    lines = [line.split()[:3] for line in result.output.splitlines()]
    assert [line for line in lines if line and line[0].isdigit() and len(line) == 3][1:] == [
        [str(row["vbucket"]), row["seqno"], row["back_to"]] for row in results if row["back_to"] is not None
    ]
    back = {row["vbucket"]: int(row["back_to"]) for row in results if row["back_to"] is not None}
    assert back == {1: 0, 2: above - 5}
    assert rollbacks.keys() == back.keys()
    assert rollbacks[1] == back[1]
    # The client rolls back to the end of a snapshot that it knows, at or below the predicted seqno.
    assert rollbacks[2] <= back[2]


@pytest.mark.parametrize(
    ("text", "options", "problem"),
    [
        ("hello", (), "file: checkpoint: line 1, column 1: Expecting value"),
        ("{}", (), "file: checkpoint: expected a member 'format', found none"),
        ("{}", ("--format", "kafka"), "'kafka' is not one of 'dcp', 'cbdatasource'"),
        ("[1]", ("--format", "go-dcp"), "file: go-dcp: expected an object"),
        (None, (), "file: expected a checkpoint, found no such file"),
    ],
)
def test_a_wrong_file_is_reported(tmp_path: Path, text: str | None, options: tuple[str, ...], problem: str) -> None:
    if text is not None:
        (tmp_path / "file").write_text(text)
    result = run("checkpoint", "show", tmp_path / "file", *options)
    assert result.exit_code in (1, 2)
    assert problem in result.output


def test_the_help_lists_every_format() -> None:
    output = run("checkpoint", "show", "--help").output
    assert [kind for kind in KINDS if kind not in output] == []
