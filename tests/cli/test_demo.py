"""The demo without Spark, and its parts."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import tempfile
import threading
from contextlib import closing
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

import dcp
from dcp.cli.demo.chart import draw
from dcp.cli.demo.command import _files, _summary
from dcp.cli.demo.monitor import ProgressMonitor, ProgressSample, TimelineEvent
from dcp.cli.demo.parquet_batches import COLUMNS, CopiedState, ParquetBatches, differences
from dcp.cli.demo.python_copier import PythonCopier
from dcp.cli.demo.scenario import _Scenario, run_scenario
from dcp.cli.demo.screen import Screen
from dcp.cli.demo.workload import OrderWriter
from dcp.embedded import Cluster
from tests.cli.commands import TIMEOUT, run, start
from tests.waiting import until

TYPES = {"event": pa.string(), "vbucket": pa.int32(), "key": pa.string(), "value": pa.string()}
SCHEMA = pa.schema([(name, TYPES.get(name, pa.int64())) for name in COLUMNS])
SVG = "{http://www.w3.org/2000/svg}"


def test_the_copy_survives_the_failover(tmp_path: Path) -> None:
    ran = run("demo", "--documents", 1000, "--small", "--no-spark", "--keep", "--json", "--out", tmp_path / "demo")
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)
    assert found["differing"] == 0
    assert found["documents"] > 1000
    assert found["vbuckets_rolled_back"] > 0
    assert found["undone"] > 0
    # All documents but 200 customers are orders.
    assert {row["status"] for row in found["orders"]} >= {"new", "paid", "packed", "sent", "delivered"}
    assert sum(row["orders"] for row in found["orders"]) == found["documents"] - 200
    files = sorted(Path(found["parquet"]).rglob("*.parquet"))
    assert sum(parquet.read_metadata(file).num_rows for file in files) == found["rows"]
    assert sum(file.stat().st_size for file in files) == found["bytes_parquet"]
    texts = [text.text for text in ElementTree.parse(found["picture"]).iter(f"{SVG}text")]
    assert "failover" in texts


def test_the_measurements_of_a_demo_begin_and_end_with_the_copy(tmp_path: Path) -> None:
    """They are what the chart shows."""
    screen = Screen(quiet=True)
    found, monitor = run_scenario(screen, tmp_path, count=1000, seed=1, short=True, with_spark=False)
    assert found["differing"] == 0
    assert not monitor.is_alive()
    first, *_, last = monitor.samples
    assert (first.rows, first.seconds < 1, last.lag) == (0, True, 0)
    assert [event.text for event in monitor.events] == ["read complete, following", "failover", "recovered"]
    after_read = [sample for sample in monitor.samples if sample.seconds <= monitor.events[0].seconds]
    assert after_read[-1].rows >= 1000
    assert monitor.events[-1].seconds <= last.seconds
    numbers = [int(path.name.partition("=")[2]) for path in sorted((tmp_path / "changes").iterdir())]
    assert numbers == [*range(len(numbers))]
    assert screen.steps.keys() == {"start", "cluster", "read", "follow", "failover", "recover", "compare", "types"}


def test_a_demo_tells_its_steps_and_leaves_the_chart(tmp_path: Path) -> None:
    ran = run("demo", "--documents", 1000, "--small", "--no-spark", "--out", tmp_path / "demo")
    assert ran.exit_code == 0, ran.output
    assert [path.name for path in (tmp_path / "demo").iterdir()] == ["demo.svg"]
    for words in (
        "3 nodes, 1 replica, 64 vbuckets; 1,000 orders and customers as JSON",
        "node 0 failed, its last 1,000 writes are lost",
        "rolled back, the copy is past the lost changes",
        "documents of the cluster, byte for byte",
        "removed; use --keep to keep it",
        str(tmp_path / "demo" / "demo.svg"),
    ):
        assert words in ran.output
    (read,) = [line for line in ran.output.splitlines() if "changes into Parquet: " in line]
    assert int(read.split("changes")[0].split()[-1].replace(",", "")) >= 1000


def test_a_copy_that_differs_from_the_cluster_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batches = ParquetBatches(tmp_path)
    with Cluster(vbuckets=2) as cluster:
        cluster.load(3)
        copier = PythonCopier(cluster.url, batches)
        monitor = ProgressMonitor(cluster, copier, 3)
        monitor.start()
        monitor.stop()
        scenario = _Scenario(Screen(quiet=False), cluster, copier, batches, monitor, OrderWriter(cluster, 3, 1))
        with closing(copier):
            # A batch without rows, and then all of them.
            batches.mark_complete(0)
            assert scenario.compare()["differing"] == 3
            assert scenario.compare()["restarts"] == 0
            copier._number = 1
            copier.read()
            found = scenario.compare()
        assert (found["documents"], found["differing"], found["rows"], found["bytes_parquet"]) == (
            3,
            0,
            3,
            batches.size,
        )
    first, _, second = capsys.readouterr().out.splitlines()
    assert "3 documents differ from the 3 of the cluster" in first
    assert "the copy has the 3 documents of the cluster, byte for byte" in second


def test_a_closed_copier_has_no_thread(tmp_path: Path) -> None:
    with Cluster(vbuckets=2) as cluster:
        copier = PythonCopier(cluster.url, ParquetBatches(tmp_path))
        copier.follow()
        assert copier._thread.is_alive()
        copier.close()
        assert not copier._thread.is_alive()
        with pytest.raises(dcp.ClosedError):
            copier.read()


@pytest.mark.parametrize("keep", [False, True])
def test_the_files_of_a_demo_are_kept_if_that_is_wanted(tmp_path: Path, keep: bool) -> None:
    out = tmp_path / "new" / "demo"
    with _files(out, keep=keep) as directory:
        assert directory == out
        (directory / "changes").mkdir()
        (directory / "demo.svg").write_text("")
    assert {path.name for path in out.iterdir()} == {"demo.svg", *(["changes"] if keep else [])}
    with pytest.raises(KeyError), _files(tmp_path / "failed", keep=keep):
        raise KeyError
    assert not (tmp_path / "failed").exists()


def test_the_summary_has_the_facts_of_a_demo() -> None:
    facts = {
        "orders": [
            {"status": "new", "orders": 1200, "total": "3500.25"},
            {"status": "sent", "orders": 1, "total": "2"},
        ],
        "bytes_received": 7_600_000,
        "bytes_parquet": 1_400_000,
        "rows_per_second": 123_456,
        "bytes_per_second": 5_000_000,
        "rows": 1300,
        "undone": 20,
        "seconds": {"read": 1.25, "follow": 4.5},
        "parquet": None,
        "picture": "demo.svg",
    }
    lines = _summary(facts, Screen(quiet=True))
    assert [(name, " ".join(text.split())) for name, text in lines if name != "time"] == [
        ("orders", "new 1,200 3,500.25"),
        ("", "sent 1 2"),
        ("rows", "1,300, 20 of them undone by rollbacks"),
        ("bytes", "8 MB received, 1 MB of Parquet"),
        ("speed", "123,456 rows/s, 5 MB/s, during the first read"),
        ("parquet", "removed; use --keep to keep it"),
        ("chart", "demo.svg"),
    ]
    assert dict(_summary(facts | {"parquet": "changes"}, Screen(quiet=True)))["parquet"] == "changes"


def test_rates_are_those_of_the_last_second_or_from_the_start(tmp_path: Path) -> None:
    with Cluster(vbuckets=2) as cluster:
        cluster.load(10)
        copier = PythonCopier(cluster.url, ParquetBatches(tmp_path))
        monitor = ProgressMonitor(cluster, copier, 25)
        try:
            monitor.start()
            # Nothing was sent yet, and the copy has nothing.
            assert (monitor.samples[0].rows, monitor.samples[0].lag) == (0, 25)
            assert not monitor.has_reached(monitor.highs)
            monitor.stop()
            del monitor.samples[1:]
            assert monitor.rates == (0.0, 0.0)
            monitor.samples = [
                ProgressSample(*row)
                for row in ((0.0, 0, 0, 9), (0.5, 10, 100, 9), (1.0, 30, 300, 9), (2.0, 130, 1300, 0))
            ]
            assert monitor.rates == (100.0, 1000.0)
            assert [monitor.rates_until(seconds) for seconds in (0.5, 0.6, 9.0)] == [(20, 200), (30, 300), (65, 650)]
            copier.read()
            assert monitor.has_reached(monitor.highs)
            assert not monitor.has_reached({0: 1, 1: monitor.highs[1] + 1})
        finally:
            monitor.stop()
            copier.close()


def test_a_copier_that_cannot_write_says_so(tmp_path: Path) -> None:
    with Cluster(vbuckets=2) as cluster:
        cluster.load(10)
        copier = PythonCopier(cluster.url, ParquetBatches(tmp_path / "changes"))
        try:
            copier.read()
            copier.check()
            shutil.rmtree(tmp_path / "changes")
            (tmp_path / "changes").write_bytes(b"a file where a directory has to be")
            copier.follow()
            cluster.upsert("later", b"{}")
            copier._thread.join()
            with pytest.raises(OSError, match="changes"):
                copier.check()
        finally:
            copier.close()


def test_a_demo_that_fails_leaves_no_thread(tmp_path: Path) -> None:
    (tmp_path / "changes").write_bytes(b"a file where a directory has to be")
    before = threading.active_count()
    with pytest.raises(OSError, match="changes"):
        run_scenario(Screen(quiet=True), tmp_path, count=1000, seed=1, short=True, with_spark=False)
    assert threading.active_count() == before


def test_an_interrupted_demo_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "new" / "demo"
    with start("demo", "--small", "--no-spark", "--out", out) as demo:
        until(lambda: (out / "changes" / "batch=00000001").exists())
        demo.send_signal(signal.SIGINT)
        _, errors = demo.communicate(timeout=TIMEOUT)
    assert demo.returncode == 130
    assert errors == "\ninterrupted\n"
    assert not out.exists()


def test_an_existing_directory_is_not_touched(tmp_path: Path) -> None:
    ran = run("demo", "--out", tmp_path)
    assert ran.exit_code == 2
    assert f"expected a new directory, found {tmp_path}" in ran.output
    assert tmp_path.exists()


def test_too_few_documents_are_refused() -> None:
    ran = run("demo", "--documents", 5)
    assert ran.exit_code == 2
    assert "5 is not in the range x>=1000" in ran.output


def test_a_missing_spark_is_reported_on_one_line(tmp_path: Path) -> None:
    main = "import sys; sys.modules['pyspark'] = None; from dcp.cli import main; main()"
    with start("demo", "--small", "--out", tmp_path / "demo", main=main) as demo:
        _, errors = demo.communicate(timeout=TIMEOUT)
    assert demo.returncode == 1
    assert "needs pyspark: pip install 'dcp-arrow[spark]', or leave Spark out: dcp demo --no-spark" in errors
    assert not (tmp_path / "demo").exists()


# The documents that result from the files.

ROWS = st.lists(
    st.tuples(
        st.sampled_from(["mutation", "mutation", "mutation", "deletion", "expiration", "rollback"]),
        st.integers(0, 2),
        st.sampled_from("abc"),
        st.integers(8, 9),
        st.integers(0, 5),
    ),
    max_size=30,
)


def rows_of(drawn: list[tuple[str, int, str, int, int]]) -> list[dict[str, Any]]:
    """Return rows as a stream delivers them: seqnos ascend in each vbucket, and a rollback goes back to a lower one."""
    highs = [0, 0, 0]
    rows = []
    for number, (event, vbucket, key, collection, back) in enumerate(drawn):
        highs[vbucket] = max(0, highs[vbucket] - back) if event == "rollback" else highs[vbucket] + 1
        # A key belongs to one vbucket.
        document = {"key": f"{vbucket}{key}", "value": str(number) if event == "mutation" else ""}
        position = {"vbucket": vbucket, "seqno": highs[vbucket], "collection_id": collection}
        rows.append({"event": event, "cas": number, "expiry": 0} | position | document)
    return rows


def replayed(rows: list[dict[str, Any]]) -> tuple[dict[int, dict[str, str]], int]:
    """Return the documents that result from rows, applied one by one, and how many rows rollbacks undid."""
    kept: list[dict[str, Any]] = []
    for row in rows:
        if row["event"] == "rollback":
            kept = [old for old in kept if old["vbucket"] != row["vbucket"] or old["seqno"] <= row["seqno"]]
        else:
            kept.append(row)
    found: dict[int, dict[str, str]] = {}
    for row in kept:
        documents = found.setdefault(row["collection_id"], {})
        documents.pop(row["key"], None)
        if row["event"] == "mutation":
            documents[row["key"]] = row["value"]
    undone = sum(row["event"] != "rollback" for row in rows) - len(kept)
    return {number: documents for number, documents in found.items() if documents}, undone


@settings(max_examples=60, deadline=None)
@given(ROWS, st.lists(st.integers(0, 30), max_size=4))
def test_the_state_is_the_result_of_applying_all_rows(
    drawn: list[tuple[str, int, str, int, int]], cuts: list[int]
) -> None:
    rows = rows_of(drawn)
    bounds = sorted({0, len(rows), *(min(cut, len(rows)) for cut in cuts)})
    with tempfile.TemporaryDirectory() as directory:
        batches = ParquetBatches(Path(directory))
        for number, (begin, end) in enumerate(itertools.pairwise(bounds)):
            # Each task writes a file of its own.
            for task in range(2):
                own = [row for row in rows[begin:end] if row["vbucket"] % 2 == task]
                batches.path(number).mkdir(exist_ok=True)
                parquet.write_table(pa.Table.from_pylist(own, SCHEMA), batches.path(number) / f"part-{task}.parquet")
            batches.mark_complete(number)
        if rows:
            state = batches.state()
            assert (state.documents, state.undone) == replayed(rows)
            assert state.rows == len(rows)


# The chart.

SAMPLES = st.lists(
    st.tuples(st.floats(0, 100), st.integers(0, 10**9), st.integers(0, 10**12), st.integers(0, 10**9)),
    min_size=1,
    max_size=40,
)


@given(SAMPLES, st.lists(st.tuples(st.floats(0, 100), st.text("<&ab"), st.booleans()), max_size=4))
@example([(0.0, 0, 0, 0)] * 3 + [(5e-324, 1, 0, 0)], [])
def test_any_measurements_can_be_drawn(
    drawn: list[tuple[float, int, int, int]], marked: list[tuple[float, str, bool]]
) -> None:
    columns = [sorted(column) for column in zip(*drawn, strict=True)]
    samples = [ProgressSample(*row) for row in zip(*columns, strict=True)]
    end = samples[-1].seconds
    events = [TimelineEvent(min(seconds, end), text, bad) for seconds, text, bad in marked]
    root = ElementTree.fromstring(draw("a <title>", samples, events))
    curves = [line.attrib["points"] for line in root.iter(f"{SVG}polyline")]
    points = [point.split(",") for curve in curves for point in curve.split()]
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert len(curves) == 2
    assert all(0 <= float(x) <= width and 0 <= float(y) <= height for x, y in points)
    texts = [text.text or "" for text in root.iter(f"{SVG}text")]
    assert texts.count("a <title>") == 1
    assert {event.text for event in events} <= set(texts)


def test_documents_that_differ_from_their_copy_are_counted() -> None:
    with Cluster(vbuckets=2) as cluster:
        for key in "abc":
            cluster.upsert(key, "1")
        same = {"a": "1", "b": "1", "c": "1"}
        assert differences(CopiedState({0: same}, 3, 0), cluster) == (3, 0)
        # One is older, one is missing, and one was deleted.
        assert differences(CopiedState({0: {"a": "1", "b": "0", "d": "1"}}, 3, 0), cluster) == (3, 3)
