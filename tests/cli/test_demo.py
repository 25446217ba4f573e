"""The demo without Spark, and its parts."""

from __future__ import annotations

import itertools
import json
import signal
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from dcp.cli.demo.chart import draw
from dcp.cli.demo.monitor import ProgressSample, TimelineEvent
from dcp.cli.demo.parquet_batches import COLUMNS, CopiedState, ParquetBatches, differences
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
    files = sorted(Path(found["parquet"]).rglob("*.parquet"))
    assert sum(parquet.read_metadata(file).num_rows for file in files) == found["rows"]
    assert sum(file.stat().st_size for file in files) == found["bytes_parquet"]
    texts = [text.text for text in ElementTree.parse(found["picture"]).iter(f"{SVG}text")]
    assert "failover" in texts


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


def replayed(rows: list[dict[str, Any]]) -> dict[int, dict[str, str]]:
    """Return the documents that result from rows, applied one by one."""
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
    return {number: documents for number, documents in found.items() if documents}


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
            assert state.documents == replayed(rows)
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
