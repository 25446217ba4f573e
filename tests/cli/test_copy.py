"""`dcp copy`: every change is in the files once, also after crashes, rollbacks and interrupts."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import dcp
from dcp.checkpoint import Checkpoint
from dcp.cli.checkpoint_args import copy_checkpoints, load, number_of
from dcp.cli.copy import _copy, _ProgressBar
from dcp.cli.copy_output import CopyOutput
from dcp.cli.json_rows import CollectionNames
from dcp.cli.stop_signals import stop_signals
from dcp.embedded import Cluster
from tests.cli.commands import TIMEOUT, fill_two_collections, run, start
from tests.waiting import until

COLLECTIONS = ("_default._default", "inventory.hotel")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2, vbuckets=8, password="s3cret") as cluster:
        yield cluster


def rows(out: Path) -> list[dict[str, Any]]:
    """Return the rows of a copy, in the order of its files."""
    found: list[dict[str, Any]] = []
    for path in sorted(out.rglob("part-*"), key=lambda path: path.name):
        if path.suffix == ".ndjson":
            found += [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        elif path.suffix == ".arrow":
            found += pa.ipc.open_file(path).read_all().to_pylist()
        else:
            found += parquet.ParquetFile(path).read().to_pylist()
    return found


def copied(out: Path) -> list[tuple[int, int]]:
    """Return vbucket and seqno of every row of a copy."""
    return sorted((row["vbucket"], int(row["seqno"])) for row in rows(out))


def everything(cluster: Cluster) -> list[tuple[int, int]]:
    """Return vbucket and seqno of every document of the cluster."""
    return sorted((found.vbucket, found.seqno) for found in cluster.truth().values())


def test_a_copy_of_a_bucket_is_not_resumed_with_one_collection(cluster: Cluster, tmp_path: Path) -> None:
    cluster.load(10)
    out = tmp_path / "out.parquet"
    assert run("copy", cluster.url, out).exit_code == 0
    result = run("copy", cluster.url, out, "--collection", "_default")
    assert result.exit_code == 1
    assert "expected the whole bucket, as it was begun with, found collections 0x0; copy the same" in result.output
    assert run("copy", cluster.url, out).exit_code == 0


def test_the_first_rows_decide_if_collections_have_directories(cluster: Cluster, tmp_path: Path) -> None:
    def parts(out: Path) -> list[str]:
        return sorted(str(part.relative_to(out)) for part in out.rglob("part-*"))

    one, several = tmp_path / "one.parquet", tmp_path / "several.parquet"
    cluster.upsert("a", b"1")
    assert run("copy", cluster.url, one).exit_code == 0
    cluster.create_collection("_default", "hotel")
    assert run("copy", cluster.url, several, "--from", "now").exit_code == 0
    cluster.upsert("b", b"1", collection="_default.hotel")
    assert run("copy", cluster.url, one).exit_code == 0
    assert parts(one) == ["part-00000001.parquet", "part-00000002.parquet"]
    assert run("copy", cluster.url, several).exit_code == 0
    assert parts(several) == ["collection=_default.hotel/part-00000002.parquet"]


def test_a_copy_of_a_recreated_bucket_says_how_to_begin_again(cluster: Cluster, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    with Cluster(vbuckets=4) as before:
        before.create_collection("_default", "hotel")
        before.load(10, collection="_default.hotel")
        assert run("copy", before.url, out, "--collection", "hotel").exit_code == 0
    files = sorted(out.rglob("*"))
    # The collection is missing: that is not the reason.
    result = run("copy", cluster.url, out, "--collection", "hotel")
    assert result.exit_code == 1
    assert f"{out}: bucket_uuid: expected " in result.output
    assert (
        "copy into a new directory, or remove this one with its files and checkpoint to copy all again" in result.output
    )
    assert sorted(out.rglob("*")) == files


def test_a_copy_of_a_recreated_collection_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    cluster.create_collection("_default", "hotel")
    assert run("copy", cluster.url, out, "--collection", "hotel").exit_code == 0
    cluster.drop_collection("_default", "hotel")
    cluster.create_collection("_default", "hotel")
    result = run("copy", cluster.url, out, "--collection", "hotel")
    assert result.exit_code == 1
    assert "expected collections 0x8, as it was begun with, found collections 0x9; copy the same" in result.output
    assert "a collection that was dropped and created again is another one" in result.output


def test_a_failed_write_names_the_file(cluster: Cluster, tmp_path: Path) -> None:
    cluster.load(500, value_size=1000)
    small = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)); "
    with start(
        "copy", cluster.url, str(tmp_path / "out.ndjson"), main=small + "from dcp.cli import main; main()"
    ) as copying:
        _, errors = copying.communicate(timeout=TIMEOUT)
    assert copying.returncode == 1
    assert "part-00000001.ndjson" in errors
    assert "File too large" in errors


def test_a_failed_first_save_leaves_nothing_that_the_next_run_refuses(cluster: Cluster, tmp_path: Path) -> None:
    cluster.load(10)
    out = tmp_path / "out.ndjson"
    small = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10)); "
    with start("copy", cluster.url, str(out), main=small + "from dcp.cli import main; main()") as copying:
        _, errors = copying.communicate(timeout=TIMEOUT)
    assert copying.returncode == 1
    assert "_checkpoint-00000000.json: File too large" in errors
    assert not out.exists()
    assert run("copy", cluster.url, out).exit_code == 0
    assert copied(out) == everything(cluster)


def test_a_first_save_that_a_crash_cut_short_is_taken_up(cluster: Cluster, tmp_path: Path) -> None:
    cluster.load(10)
    out = tmp_path / "out.ndjson"
    out.mkdir()
    (out / "._checkpoint-00000000.json.new").write_text('{"form', "utf-8")
    assert run("copy", cluster.url, out).exit_code == 0
    assert copied(out) == everything(cluster)
    assert [path.name for path in out.iterdir() if path.name.startswith(".")] == []


def test_long_names_of_collections_are_shortened_to_distinct_ones(cluster: Cluster, tmp_path: Path) -> None:
    scope = "s" * 251
    cluster.create_scope(scope)
    names = ["x" + "%" * 249 + "a", "x" + "%" * 249 + "b"]
    for name in names:
        cluster.create_collection(scope, name)
        cluster.upsert(f"key-{name[-1]}", b"{}", collection=f"{scope}.{name}")
    out = tmp_path / "out.ndjson"
    for _ in range(2):
        assert run("copy", cluster.url, out).exit_code == 0
        cluster.upsert("key-a", b"{}", collection=f"{scope}.{names[0]}")
    found = sorted(out.glob("collection=sss*"))
    assert len(found) == 2
    assert all(len(path.name) <= 255 for path in found)
    assert sorted(row["key"] for row in rows(out)) == ["key-a", "key-a", "key-b"]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".ndjson", ""])
def test_every_change_is_copied_once(cluster: Cluster, tmp_path: Path, suffix: str) -> None:
    cluster.load(500)
    cluster.upsert("with", b'{"a":1}', xattrs={"_sync": '{"rev":1}'})
    out = tmp_path / f"out{suffix}"
    result = run("copy", cluster.url, out)
    assert result.exit_code == 0
    assert copied(out) == everything(cluster)
    (row,) = (row for row in rows(out) if row["key"] in ("with", b"with"))
    assert dict(row["xattrs"]) == {"_sync": '{"rev":1}'}
    assert row["value"] in (b'{"a":1}', {"a": 1})
    assert "501 changes (501 mutations)" in result.output
    assert "s3cret" not in result.output


def test_the_next_run_copies_new_changes(cluster: Cluster, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    cluster.load(100)
    assert run("copy", cluster.url, out).exit_code == 0
    first = {path: path.stat().st_mtime_ns for path in out.rglob("part-*")}
    cluster.delete("key-0000000003")
    cluster.upsert("more", b"1")
    found = json.loads(run("copy", cluster.url, out, "--json").stdout)
    assert (found["rows"], found["events"]) == (2, {"mutation": 1, "deletion": 1})
    assert {path: path.stat().st_mtime_ns for path in first} == first
    assert [row["key"] for row in rows(out)[100:]] != []
    assert load(out) == load(found["checkpoint"])
    assert len(copy_checkpoints(out)) == 1


def test_the_summary_says_what_was_copied(tmp_path: Path) -> None:
    with Cluster(vbuckets=4) as cluster:
        cluster.load(30)
        cluster.delete("key-0000000003")
        told = json.loads(run("copy", cluster.url, tmp_path / "json", "--max-rows-per-file", "20", "--json").stdout)
        size = sum(path.stat().st_size for path in (tmp_path / "json").rglob("part-*"))
        assert {name: told[name] for name in ("rows", "events", "files", "bytes", "rollbacks")} == {
            "rows": 30,
            "events": {"mutation": 29, "deletion": 1},
            "files": len([*(tmp_path / "json").rglob("part-*")]),
            "bytes": size,
            "rollbacks": 0,
        }
        out = tmp_path / "text"
        changes, files, checkpoint = run("copy", cluster.url, out, "--max-rows-per-file", "20").stdout.splitlines()
        assert re.fullmatch(r"30 changes \(29 mutations, 1 deletion\) in \d+\.\d s", changes)
        size = sum(path.stat().st_size for path in out.rglob("part-*"))
        assert files == f"{told['files']} files of parquet, {size:,} bytes, in {out}"
        assert checkpoint == f"checkpoint: {out / '_checkpoint-'}{checkpoint[-13:]}"
        assert Path(checkpoint.removeprefix("checkpoint: ")).exists()
        changes, files, _ = run("copy", cluster.url, out).stdout.splitlines()
        assert changes.startswith("0 changes in ")
        assert files == f"0 files of parquet, 0 bytes, in {out}"


def test_a_directory_is_created_with_those_above_it(cluster: Cluster, tmp_path: Path) -> None:
    cluster.load(10)
    for _ in range(2):
        assert run("copy", cluster.url, tmp_path / "new" / "below" / "out").exit_code == 0
    assert copied(tmp_path / "new" / "below" / "out") == everything(cluster)


@pytest.mark.parametrize("follow", [False, True])
def test_a_terminal_shows_how_far_the_copy_is(tmp_path: Path, follow: bool) -> None:
    ours, theirs = pytest.importorskip("pty").openpty()
    with Cluster(vbuckets=4) as cluster:
        cluster.load(40)
        assert run("copy", cluster.url, tmp_path / "out").exit_code == 0
        # What was copied before does not count.
        cluster.load(20, prefix="later-")
        main = [sys.executable, "-c", "from dcp.cli import main; main()"]
        command = [*main, "copy", cluster.url, str(tmp_path / "out"), *(["--follow"] if follow else [])]
        environment = {**os.environ, "TERM": "xterm"}
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs, env=environment) as process:
            os.close(theirs)
            output, follows = b"", follow
            # Reading after the end of a pseudo terminal fails on Linux, and returns nothing elsewhere.
            with contextlib.suppress(OSError):
                while piece := os.read(ours, 1 << 16):
                    output += piece
                    if follows and b"20 seqnos" in output:
                        follows = False
                        process.send_signal(signal.SIGTERM)
        os.close(ours)
    assert process.returncode == 0
    assert (b"20 of 20 seqnos" in output) is not follow
    # Without an end there is no part of it that is done.
    assert ("━".encode() in output) is not follow
    assert b"20 seqnos" in output


def test_each_of_several_collections_has_a_directory(cluster: Cluster, tmp_path: Path) -> None:
    fill_two_collections(cluster)
    assert run("copy", cluster.url, tmp_path / "out.parquet").exit_code == 0
    table = parquet.read_table(tmp_path / "out.parquet")
    assert set(zip(*(table.column(name).to_pylist() for name in ("collection", "collection_id")), strict=True)) == {
        ("_default._default", 0),
        ("inventory.hotel", 9),
    }
    assert table.num_rows == 32
    assert run("copy", cluster.url, tmp_path / "one", "--collection", "inventory.hotel").exit_code == 0
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == [
        "_checkpoint-00000001.json",
        "part-00000001.parquet",
    ]


def test_a_file_has_no_more_rows_than_its_limit(cluster: Cluster, tmp_path: Path) -> None:
    cluster.load(100)
    assert run("copy", cluster.url, tmp_path / "out", "--max-rows-per-file", "7").exit_code == 0
    sizes = [parquet.ParquetFile(path).metadata.num_rows for path in (tmp_path / "out").glob("part-*")]
    assert sum(sizes) == 100
    assert max(sizes) <= 7


@pytest.mark.parametrize("collections", [False, True])
def test_files_that_a_crash_left_uncommitted_are_copied_again_and_not_twice(
    cluster: Cluster, tmp_path: Path, collections: bool
) -> None:
    out, before = tmp_path / "out", tmp_path / "before"
    cluster.load(50)
    if collections:
        cluster.create_collection("_default", "other")
        cluster.upsert("there", b"1", collection="_default.other")
    assert run("copy", cluster.url, out).exit_code == 0
    shutil.copytree(out, before)
    cluster.load(20, prefix="later-")
    assert run("copy", cluster.url, out, "--max-rows-per-file", "7").exit_code == 0
    whole = copied(out)
    # The state after a power failure just before the checkpoint: new files, the old checkpoint, an open file.
    copy_checkpoints(out)[-1].unlink()
    shutil.copy(copy_checkpoints(before)[-1], out)
    (next(out.rglob("part-*")).parent / ".part-00000002.parquet.new").write_bytes(b"PAR1")
    assert run("copy", cluster.url, out).exit_code == 0
    assert copied(out) == whole
    assert [path for path in out.rglob(".*") if path.is_file()] == []


def test_of_two_checkpoints_the_last_one_counts(cluster: Cluster, tmp_path: Path) -> None:
    """The state after a power failure just before the older checkpoint was removed."""
    out, before = tmp_path / "out", tmp_path / "before"
    cluster.load(50)
    assert run("copy", cluster.url, out).exit_code == 0
    shutil.copytree(out, before)
    cluster.load(20, prefix="later-")
    assert run("copy", cluster.url, out).exit_code == 0
    shutil.copy(copy_checkpoints(before)[-1], out)
    assert run("copy", cluster.url, out).exit_code == 0
    assert copied(out) == everything(cluster)
    assert len(copy_checkpoints(out)) == 1


def test_a_rollback_is_a_row_before_the_replay(cluster: Cluster, tmp_path: Path) -> None:
    cluster.load(40)
    lost = dcp.Checkpoint((dcp.StreamPosition(3, 4711, 2, 2, 2),), bucket="default")
    (tmp_path / "lost.json").write_text(lost.to_json())
    result = run("copy", cluster.url, tmp_path / "out", "--from", tmp_path / "lost.json")
    assert result.exit_code == 0
    firsts = [parquet.ParquetFile(path).read().to_pylist()[0] for path in (tmp_path / "out").glob("part-*")]
    assert [row["event"] for row in firsts].count("rollback") == 1
    found = [row for row in rows(tmp_path / "out") if row["vbucket"] == 3]
    assert [row["event"] for row in found].index("rollback") == 0
    assert (found[0]["seqno"], found[0]["snapshot_end"]) == (0, 2)
    assert [row["seqno"] for row in found[1:]] == [seqno for vbucket, seqno in everything(cluster) if vbucket == 3]
    assert "1 rollback" in result.output


def test_it_follows_until_a_signal(cluster: Cluster, tmp_path: Path) -> None:
    out = tmp_path / "out"
    cluster.load(50)

    def write_and_interrupt() -> None:
        until(lambda: list(out.glob("part-*")))
        cluster.upsert("late", b"1")
        until(lambda: list(out.glob("part-00000002*")))
        os.kill(os.getpid(), signal.SIGINT)

    other = threading.Thread(target=write_and_interrupt)
    other.start()
    result = run("copy", cluster.url, out, "--follow", "--commit-every", "0.1")
    other.join()
    assert result.exit_code == 0
    assert copied(out) == everything(cluster)


def test_a_commit_begins_a_new_interval(cluster: Cluster, tmp_path: Path) -> None:
    """The clock advances by a second each time that it is read, which is once for each batch of one row."""
    cluster.load(30)
    with (
        dcp.connect(cluster.url) as client,
        client.stream(end="now", batch_rows=1) as stream,
        closing(CopyOutput(tmp_path / "out", "ndjson")) as output,
    ):
        output.begin(stream.checkpoint, CollectionNames(client))
        bar = _ProgressBar({}, stream.checkpoint, follow=True)
        _copy(stream, output, bar, [], max_rows=1000, interval=10.0, clock=map(float, count()).__next__)
        assert 3 <= output.files <= 4
    assert len(copied(tmp_path / "out")) == 30


def test_a_bar_that_is_not_shown_asks_for_no_position() -> None:
    bar = _ProgressBar({}, Checkpoint(), follow=True)
    with bar:
        bar.update(lambda: pytest.fail("a checkpoint costs time for each vbucket"))


def test_the_second_signal_acts_as_usual() -> None:
    # Not always Python's own: a SparkContext in this process replaces it.
    usual = signal.getsignal(signal.SIGINT)
    with stop_signals() as received:
        signal.raise_signal(signal.SIGINT)
        assert received == [signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is usual


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux names the file of a descriptor")
def test_a_commit_syncs_files_and_their_directories_before_the_checkpoint(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_two_collections(cluster)
    out = tmp_path / "out.ndjson"
    synced: list[tuple[str, bool]] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        fsync(descriptor)
        found = Path(f"/proc/self/fd/{descriptor}").readlink()
        saved = [path.name for path in out.iterdir() if number_of(path.name) == 1]
        synced.append((found.relative_to(tmp_path).as_posix(), bool(saved)))

    with (
        dcp.connect(cluster.url) as client,
        client.stream(end="now") as stream,
        closing(CopyOutput(out, "ndjson")) as output,
    ):
        output.begin(stream.checkpoint, CollectionNames(client))
        for batch in stream:
            output.add(pa.table(batch))
        monkeypatch.setattr(os, "fsync", note)
        output.commit(stream.checkpoint)
    before = [name for name, saved in synced if not saved]
    assert len(set(before)) == 6
    files = [f"out.ndjson/collection={name}/.part-00000001.ndjson.new" for name in COLLECTIONS]
    directories = [*(f"out.ndjson/collection={name}" for name in COLLECTIONS), "out.ndjson"]
    # Each file before the directory that has its name. What follows is of the checkpoint itself.
    assert set(before[:2]) == set(files)
    assert set(before[2:5]) == set(directories)


@pytest.mark.parametrize(
    ("out", "options", "code", "problem"),
    [
        ("out.csv", (), 2, "expected a suffix of .parquet, .pq, .arrow"),
        ("full", (), 1, "expected a new directory, or one that a copy wrote, found files and no checkpoint"),
        ("copied", ("--from", "now"), 1, "has a checkpoint of its own; leave out --from"),
        ("copied", ("--format", "ndjson"), 1, "has .parquet files, not ndjson"),
        (
            "new",
            ("--from", "nothing.json"),
            2,
            "nothing.json: expected beginning, now, a time with a UTC offset",
        ),
    ],
)
def test_a_refused_copy_changes_no_files(
    cluster: Cluster, tmp_path: Path, out: str, options: tuple[str, ...], code: int, problem: str
) -> None:
    cluster.load(5)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("mine")
    assert run("copy", cluster.url, tmp_path / "copied").exit_code == 0
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    result = run("copy", cluster.url, tmp_path / out, *options)
    assert result.exit_code == code
    assert problem in result.output
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before


def test_two_copies_do_not_write_to_one_directory(cluster: Cluster, tmp_path: Path) -> None:
    with closing(CopyOutput(tmp_path / "out", "parquet")):
        result = run("copy", cluster.url, tmp_path / "out")
    # There is no lock on Windows.
    assert ("out: another copy is writing to it" in result.output) == (result.exit_code == 1) == (os.name != "nt")
    assert run("copy", cluster.url, tmp_path / "out").exit_code == 0


def test_another_bucket_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    cluster.load(5)
    assert run("copy", cluster.url, tmp_path / "out").exit_code == 0
    with Cluster(vbuckets=8, bucket="other") as other:
        result = run("copy", other.url, tmp_path / "out")
    assert result.exit_code == 1
    assert "out: bucket: expected 'other', found 'default'" in result.output


def state(out: Path) -> dict[bytes, tuple[int, bytes]]:
    """Return the documents of a reader that applies rollbacks."""
    logs: dict[int, list[dict[str, Any]]] = {}
    for row in rows(out):
        log = logs.setdefault(row["vbucket"], [])
        if row["event"] == "rollback":
            log[:] = [kept for kept in log if kept["seqno"] <= row["seqno"]]
        else:
            log.append(row)
    latest = {row["key"]: row for log in logs.values() for row in sorted(log, key=lambda row: int(row["seqno"]))}
    return {key: (row["seqno"], row["value"]) for key, row in latest.items() if row["event"] == "mutation"}


def test_after_a_failover_that_loses_changes_the_files_have_the_state_of_the_cluster(tmp_path: Path) -> None:
    with Cluster(nodes=2, vbuckets=8, replicas=1, password="s3cret") as cluster:
        cluster.load(200)
        assert run("copy", cluster.url, tmp_path / "out").exit_code == 0
        cluster.failover(0, lose=3)
        cluster.upsert("after", b"1")
        found = json.loads(run("copy", cluster.url, tmp_path / "out", "--json").stdout)
        assert found["rollbacks"] > 0
        assert state(tmp_path / "out") == {key: (one.seqno, one.value) for key, one in cluster.truth().items()}
        verified = run("checkpoint", "verify", tmp_path / "out", cluster.url)
    assert verified.exit_code == 0


def test_a_killed_copy_resumes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with Cluster(nodes=2, vbuckets=8, password="s3cret") as cluster:
        cluster.load(3000)
        for part in (2, 5):
            with start("copy", cluster.url, out, "--max-rows-per-file", "100") as copy:
                until(lambda part=part: list(out.glob(f"part-{part:08d}*")))  # type: ignore[misc]
                copy.kill()
        assert run("copy", cluster.url, out).exit_code == 0
        assert copied(out) == everything(cluster)


def test_warnings_of_the_client_are_printed_on_standard_error(tmp_path: Path) -> None:
    with Cluster(nodes=2, vbuckets=4) as cluster:
        cluster.load(20)
        for option, warnings in (("--quiet", 0), ("--verbose", 1)):
            with cluster.fault("refuse", status="ETMPFAIL", times=1):
                result = run("copy", cluster.url, tmp_path / f"out{option}.ndjson", option)
            assert result.exit_code == 0
            assert result.stderr.count("warning: ") == warnings


def test_a_copy_that_ends_commits_at_its_end_only(cluster: Cluster, tmp_path: Path) -> None:
    cluster.load(3000, value_size=300)
    # It takes several times as long as the interval.
    with cluster.fault("slow", rate=1_000_000):
        assert run("copy", cluster.url, tmp_path / "out", "--commit-every", "100ms").exit_code == 0
    assert len(list((tmp_path / "out").glob("part-*"))) == 1


@pytest.mark.parametrize("end", ["now", None])
def test_the_checkpoint_of_a_collection_passes_the_changes_of_others(
    cluster: Cluster, tmp_path: Path, end: str | None
) -> None:
    """Otherwise the next run reads them again, and all of the collection once deletions among them were purged."""
    fill_two_collections(cluster)
    out, signals = tmp_path / "out", list[int]()

    def seqnos(checkpoint: dcp.Checkpoint) -> dict[int, int]:
        return {position.vbucket: position.seqno for position in checkpoint}

    def clock() -> float:
        # They arrive after the copy has begun.
        silent.clear()
        if end is None and seqnos(stream.checkpoint) == highs:
            signals.append(signal.SIGINT)
        return 0.0

    with dcp.connect(cluster.url) as client, cluster.fault("silent") as silent:
        start = client.positions("now", collections=["inventory.hotel"])
        cluster.load(60)
        highs = client.high_seqnos()
        with (
            client.stream(start, end, collections=["inventory.hotel"]) as stream,
            closing(CopyOutput(out, "ndjson")) as output,
            _ProgressBar({}, stream.checkpoint, follow=True) as progress,
        ):
            output.begin(stream.checkpoint, CollectionNames(client))
            _copy(stream, output, progress, signals, 10, 1.0, clock)
    assert seqnos(load(out)) == highs


def test_a_directory_is_known_as_that_of_a_copy_before_its_first_commit(cluster: Cluster, tmp_path: Path) -> None:
    cluster.load(10)
    out = tmp_path / "out"
    with dcp.connect(cluster.url) as client, client.stream(end="now") as stream:
        with closing(CopyOutput(out, "ndjson")) as output:
            output.begin(stream.checkpoint, CollectionNames(client))
        with closing(CopyOutput(out, "ndjson")) as again:
            assert again.checkpoint == stream.checkpoint


def test_files_of_others_below_a_copy_stay(cluster: Cluster, tmp_path: Path) -> None:
    cluster.load(10)
    assert run("copy", cluster.url, tmp_path).exit_code == 0
    kept = [tmp_path / "notes" / ".draft.new", tmp_path / "notes" / "part-99999999.parquet"]
    removed = [tmp_path / ".part-00000009.parquet.new", tmp_path / "part-00000009.parquet"]
    kept[0].parent.mkdir()
    for path in (*kept, *removed):
        path.write_bytes(b"")
    assert run("copy", cluster.url, tmp_path).exit_code == 0
    assert [path.exists() for path in (*kept, *removed)] == [True, True, False, False]


def test_a_copy_has_the_columns_that_are_asked_for(cluster: Cluster, tmp_path: Path) -> None:
    cluster.load(10)
    assert run("copy", cluster.url, tmp_path / "out.parquet", "--columns", "key,cas").exit_code == 0
    table = parquet.read_table(tmp_path / "out.parquet" / "part-00000001.parquet")
    assert table.column_names == ["event", "vbucket", "seqno", "collection_id", "key", "cas"]
    again = run("copy", cluster.url, tmp_path / "out.parquet")
    assert again.exit_code == 1
    assert "expected --columns 'key,cas', as it was begun with, found none of" in again.output
    assert run("copy", cluster.url, tmp_path / "out.parquet", "--columns", "key,cas").exit_code == 0


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("key,keyy", "there is no column 'keyy'"),
        ("key,collection", "expected collection_id for 'collection': directories have the names"),
        ("key,key", "expected one or more names, each once"),
    ],
)
def test_wrong_columns_are_refused(cluster: Cluster, tmp_path: Path, columns: str, message: str) -> None:
    found = run("copy", cluster.url, tmp_path / "out.parquet", "--columns", columns)
    assert found.exit_code in (1, 2)
    assert message in found.output
