"""Benchmarks run, on tiny sizes, and their contenders do the same work. Nothing here is timed."""

from __future__ import annotations

import json
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Literal
from xml.etree import ElementTree

import pytest

import dcp

pa = pytest.importorskip("pyarrow")
pytest.importorskip("numpy")
pytest.importorskip("click", reason="the command line is an extra")

from bench import callgrind, recorded  # noqa: E402
from bench.peers import consumers, figures, producer  # noqa: E402
from dcp.bench import (  # noqa: E402
    SPARK,
    bench_decode,
    bench_documents,
    bench_encode,
    bench_producer,
    bench_socket,
    budgets,
    conventional,
    frames,
    memory,
    plot,
    readme,
    report,
    timing,
)
from dcp.bench.frames import KIB, Case  # noqa: E402
from dcp.bench.producer import producing  # noqa: E402
from tests.cli.commands import TIMEOUT, run, start  # noqa: E402
from tests.pages import PAGES  # noqa: E402

TINY = 16 * KIB
# Each case once, in an order that is the same in every process of a parallel run.
CASES = list(
    dict.fromkeys(replace(case, total=64 * KIB, in_cache=True) for case in (*bench_decode.CASES, *bench_encode.CASES))
)


def rows_of(case: Case, data: bytes) -> list[dict[str, object]]:
    """Decode the bytes of a case."""
    decoder = dcp.Decoder(**frames.options(case))
    decoder.feed(data)
    rows: list[dict[str, object]] = decoder.take().to_arrow().to_pylist()
    return rows


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_wire_has_the_properties_of_its_case(case: Case) -> None:
    wire = frames.make_wire(case)
    rows = rows_of(case, wire.data)
    assert len(rows) == wire.rows
    assert wire.data == b"".join(wire.chunks) == frames.make_wire(case).data
    assert len(wire.data) <= case.total or wire.rows == 1
    assert {len(key) for row in rows if isinstance(key := row["key"], bytes)} == {case.key}
    assert {row["vbucket"] for row in rows} == set(range(min(case.vbuckets, len(rows))))
    values = [len(v) for row in rows if row["event"] == "mutation" and isinstance(v := row["value"], bytes)]
    assert all(abs(length - case.value) <= min(case.spread, case.value // 4) for length in values)


@pytest.mark.parametrize(
    ("mix", "column", "share"),
    [
        ("deletions", lambda row: row["event"] == "deletion", 0.1),
        ("snappy", lambda row: row["datatype"] & frames.SNAPPY_BIT, 1),
        ("xattrs", lambda row: row["xattrs"] is not None, 1),
        ("collections", lambda row: row["collection_id"] == 0x1234, 1),
        ("stream_ids", lambda row: row["stream_id"] == 7, 1),
    ],
)
def test_a_mix_has_the_feature_of_its_name(mix: str, column: object, share: float) -> None:
    case = Case(mix=mix, total=256 * KIB)
    rows = rows_of(case, frames.make_wire(case).data)
    assert callable(column)
    assert sum(map(bool, map(column, rows))) / len(rows) == pytest.approx(share, abs=0.03)


def test_a_decoder_can_read_a_wire_repeatedly() -> None:
    wire = frames.make_wire(Case(vbuckets=1024, total=256 * KIB))
    decoder = dcp.Decoder()
    assert [bench_decode.feed(decoder, wire) for _ in range(3)] == [wire.rows] * 3
    assert bench_decode.receive(dcp.Decoder(), wire) == wire.rows


@pytest.mark.parametrize("mix", ["plain", "deletions"])
def test_the_loop_in_python_makes_the_same_columns(mix: str) -> None:
    wire = frames.make_wire(Case(mix=mix, vbuckets=3, total=TINY))
    expected = conventional.decode(wire.data)
    decoder = dcp.Decoder(columns=expected.schema.names)
    decoder.feed(wire.data)
    assert decoder.take().to_arrow().to_pylist() == expected.to_pylist()


@pytest.mark.parametrize("mix", ["plain", "deletions"])
def test_the_loop_in_python_makes_the_same_frames(mix: str) -> None:
    batches = bench_encode.batches_of(frames.make_wire(Case(mix=mix, total=TINY)))
    expected = [conventional.encode(batch.to_arrow(), bench_encode.OPAQUE) for batch in batches]
    assert [dcp.Encoder().encode(batch, opaque=bench_encode.OPAQUE) for batch in batches] == expected


def test_a_run_leaves_a_table_and_json(tmp_path: Path) -> None:
    printed = run("bench", "--out", tmp_path, "--repetitions", 2, "--bytes", TINY).output
    assert (tmp_path / "bench.txt").read_text("utf-8") in printed
    found = json.loads((tmp_path / "bench.json").read_text("utf-8"))
    tables = (
        bench_decode.CASES,
        "1",
        bench_documents.CASES,
        bench_encode.CASES,
        bench_producer.CASES,
        bench_socket.CASES,
    )
    assert len(found["measurements"]) == sum(map(len, tables))
    # Spark is not measured by default.
    assert len(found["budgets"]) == sum(budget.bench not in SPARK for budget in budgets.BUDGETS)
    assert found["machine"]["cores"]
    assert found["versions"]["cython"]
    for measurement in found["measurements"]:
        for sample in measurement["samples"].values():
            assert sample["ns_per_row"] == pytest.approx(min(sample["nanoseconds"]) / sample["rows"])


@pytest.mark.parametrize("size", bench_documents.SIZES)
def test_an_order_has_its_size_and_is_read_alike_by_others(size: int) -> None:
    orders = [bench_documents.order(size, number, Random(number)) for number in range(20)]
    assert all(0.9 * size < len(order) < 1.2 * size for order in orders)
    schema = "id bigint, status string, total double"
    decoder = dcp.Decoder(columns=["document"], document=schema)
    for number, order in enumerate(orders, 1):
        decoder.feed(bench_documents.frame(number, order))
    found = decoder.take().to_arrow()
    assert found["error"].null_count == 20
    assert found["document"].to_pylist() == [
        {name: value for name, value in json.loads(order).items() if name in ("id", "status", "total")}
        for order in orders
    ]


def test_one_benchmark_as_json_prints_nothing_else(tmp_path: Path) -> None:
    ran = run("bench", "--only", "encode", "--repetitions", 1, "--bytes", TINY, "--out", tmp_path / "new", "--json")
    found = json.loads(ran.stdout)
    assert {measurement["bench"] for measurement in found["measurements"]} == {"encode"}
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["bench.json", "bench.txt"]


def test_a_quick_benchmark_repeats_less() -> None:
    counts = []
    for how in ([], ["--quick"]):
        found = json.loads(run("bench", *how, "--only", "encode", "--bytes", TINY, "--json").stdout)
        counts.append(len(found["measurements"][0]["samples"]["encode"]["nanoseconds"]))
    full, quick = counts
    assert full == 5 * quick


@pytest.mark.parametrize(
    ("library", "only", "extra"), [("numpy", "decode", "cli,arrow,testing"), ("pyspark", "spark", "spark")]
)
def test_a_missing_library_is_reported_on_one_line(tmp_path: Path, library: str, only: str, extra: str) -> None:
    main = f"import sys; sys.modules[{library!r}] = None; from dcp.cli import main; main()"
    with start("bench", "--only", only, "--out", tmp_path / "new", main=main) as bench:
        printed, errors = bench.communicate(timeout=TIMEOUT)
    assert (bench.returncode, printed) == (1, "")
    assert errors == f"Error: this command needs {library}: pip install 'dcp-arrow[{extra}]'\n"
    assert not (tmp_path / "new").exists()


def test_an_interrupted_run_prints_a_line_and_leaves_no_files(tmp_path: Path) -> None:
    # All benchmarks: a single one may end before the signal arrives.
    with start("bench", "--quick", "--out", tmp_path / "new") as bench:
        assert bench.stdout is not None
        assert bench.stdout.readline().startswith("decode: ")
        bench.send_signal(signal.SIGTERM)
        _, errors = bench.communicate(timeout=TIMEOUT)
    assert (bench.returncode, errors) == (130, "\ninterrupted\n")
    assert not (tmp_path / "new").exists()


def test_memory_is_reported_for_every_tenth_of_the_changes() -> None:
    pytest.importorskip("resource", reason="the module does not exist on Windows")
    with producing(2000, 100) as url:
        found = list(memory.peak_memory(url, 2000))
    assert [count for count, _ in found][-1] == 2000
    assert all(peak > 0 for _, peak in found)


def test_a_plot_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="it draws the plot")
    cases = tuple(replace(case, total=TINY) for case in (Case(), Case(value=1024), Case(mix="xattrs")))
    measurements = list(bench_decode.run(cases, repetitions=1, total=TINY))
    plot.plot(measurements, tmp_path / "bench.svg")
    assert ElementTree.parse(tmp_path / "bench.svg").getroot().tag.endswith("svg")


def measured(**times: int) -> timing.Measurement:
    """Return a measurement in which each contender took these times, in ns."""
    names = {"decode": bench_decode.COPY, "views": bench_decode.VIEWS, "memcpy": bench_decode.MEMCPY}
    samples = {names[name]: timing.Sample([time, 2 * time], 10, 1000) for name, time in times.items()}
    return timing.Measurement("decode", Case(value=4096, total=TINY), samples)


def test_a_budget_is_met_or_missed() -> None:
    (budget,) = (b for b in budgets.BUDGETS if b.case == Case(value=4096) and b.bench == "decode")
    for views, met in ((50, True), (100, True), (101, False)):
        verdict = budget.verdict([measured(views=views, memcpy=100, decode=1)])
        assert verdict is not None
        assert verdict.met is met
        assert ("met" if met else "MISSED") in report.budget_table([verdict])
    assert budget.verdict([]) is None


def test_a_sample_has_its_best_time_and_its_noise() -> None:
    sample = timing.Sample([400, 300, 200], 10, 1000)
    assert (sample.best, sample.throughput, sample.noise) == (20, 5, 0.5)
    pair = measured(views=50, memcpy=100)
    assert pair.speed(bench_decode.VIEWS, bench_decode.MEMCPY) == 2
    assert pair.speed(bench_decode.VIEWS, bench_decode.STRUCT) is None


def test_speed_compares_pairs_and_not_the_fastest_repetitions() -> None:
    """The machine was fast in the third turn of one contender and in the first of the other."""
    samples = {"one": timing.Sample([200, 220, 50], 10, 1000), "other": timing.Sample([50, 110, 100], 10, 1000)}
    pair = timing.Measurement("decode", Case(value=4096, total=TINY), samples)
    assert pair.speed("one", "other") == 0.5
    assert pair.range("one", "other") == (0.375, 1.25)
    assert pair.range("one", "nobody") is None


def test_the_figures_of_a_run_are_written_into_the_readme() -> None:
    fast = measured(decode=100, views=50, memcpy=100)
    fast = replace(fast, case=replace(fast.case, in_cache=False))
    marked = "<!-- {0}: from the benchmarks -->\nold\n<!-- {0}: end -->"
    page = f"before\n{marked.format('speeds')}\n{marked.format('budgets')}\nafter"
    (budget,) = (b for b in budgets.BUDGETS if b.case == replace(fast.case, total=b.case.total) and b.bench == "decode")
    verdict = budget.verdict([fast])
    assert verdict is not None
    written = readme.rewrite(page, [fast], [verdict], "dcp bench")
    assert (written[:7], written[-6:]) == ("before\n", "\nafter")
    assert "old" not in written
    assert "`dcp bench` at" in written
    # 10 rows of 1000 bytes in 100 and in 50 nanoseconds.
    assert (
        "| bytes to columns | 4,096 | 100.00 | 10.00 |\n| bytes to columns, as views | 4,096 | 200.00 | 20.00 |"
        in written
    )
    assert "| views, value 4096, in memory: times memcpy | ≥ 1 x | 2.00 x | yes |" in written
    missed, busy = readme.budgets([budgets.Verdict(budget, 0.5), budgets.Verdict(budget, None)]).splitlines()[2:]
    assert missed.endswith("| ≥ 1 x | 0.50 x | **no** |")
    assert busy.endswith("| ≥ 1 x |  | no core was free |")
    assert readme.rewrite(written, [fast], [verdict], "dcp bench") == written


def test_one_page_has_the_figures() -> None:
    names = {page: re.findall(r"<!-- (\w+): from the benchmarks -->", page.read_text("utf-8")) for page in PAGES}
    assert {page.name: found for page, found in names.items() if found} == {"benchmarks.md": ["speeds", "budgets"]}
    with pytest.raises(ValueError, match="expected the markers"):
        readme.rewrite("", [], [], "dcp bench")


@pytest.mark.parametrize("live", [False, True], ids=["one snapshot", "live"])
@pytest.mark.parametrize("window", ["3k", "20m"])
@pytest.mark.parametrize("compression", ["on", "off"])
def test_a_replayed_bucket_is_the_bucket(window: str, compression: Literal["on", "off"], live: bool) -> None:
    """Whatever was recorded first, and with the opaques of each reader."""
    with producer.ReplayCluster(live=live, vbuckets=8, seed=1) as cluster:
        cluster.load(400, value=producer.value(200))
        for vbuckets in (None, [5, 2], None):
            with dcp.connect(cluster.url, dcp_buffer_size=window, compression=compression) as client:
                rows = [
                    row for batch in client.stream(end="now", vbuckets=vbuckets) for row in batch.to_arrow().to_pylist()
                ]
            truth = {key: found for key, found in cluster.truth().items() if found.vbucket in (vbuckets or range(8))}
            assert len(rows) == len(truth)
            assert {row["key"]: row["value"] for row in rows} == {key: found.value for key, found in truth.items()}


def test_a_live_bucket_sends_few_rows_at_a_time_of_all_vbuckets_in_turn() -> None:
    order: list[int] = []
    cluster = producer.ReplayCluster(live=True, vbuckets=4, seed=1)
    with cluster, dcp.connect(cluster.url) as client:
        cluster.load(200)
        for batch in client.stream(end="now", batch_rows=1):
            order += batch.to_arrow()["vbucket"].to_pylist()
        recordings = [dcp.decode(bytes(recording.data)) for recording in cluster._recordings.values()]
    # Before the shortest of them ends, no vbucket is 3 rows ahead of another.
    shortest = min(order.count(vbucket) for vbucket in range(4))
    for count in range(4 * (shortest - 3)):
        ahead = [order[:count].count(vbucket) for vbucket in range(4)]
        assert max(ahead) - min(ahead) <= 3
    for frames_of_one in recordings:
        *changes, end = frames_of_one
        assert end.name == "stream_end"
        snapshots: list[tuple[dict[str, Any], list[int]]] = []
        for frame in changes:
            if frame.name == "snapshot_marker":
                snapshots.append((dict(frame.fields), []))
            else:
                snapshots[-1][1].append(int(frame.fields["seqno"]))
        assert [len(seqnos) for _, seqnos in snapshots][:6] == [1, 2, 3, 1, 2, 3]
        for fields, seqnos in snapshots:
            assert (fields["snapshot_start"], fields["snapshot_end"]) == (seqnos[0], seqnos[-1])


@pytest.mark.parametrize("size", [128, 1024, 20480])
def test_values_of_the_producer_have_their_size_and_can_be_compressed(size: int) -> None:
    value = producer.value(size)(7)
    assert len(value) == size
    assert json.loads(value)["n"] == "0000000007"
    assert 0.4 * size < len(frames.compressed(value)) < 0.75 * size


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory of processes is read from /proc")
@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("print('connected', flush=True); print(99, 12800)", "expected 100 rows of 12800 bytes, found 99 12800"),
        ("print('connected', flush=True); raise SystemExit('out of order')", "out of order"),
        ("pass", "ended with 0"),
    ],
)
def test_a_client_that_receives_less_ends_the_comparison(program: str, why: str) -> None:
    peer = consumers.Peer("other", (sys.executable, "-c", program))
    served = producer.Served("couchbase://localhost", "couchbases://localhost", "ca.pem", 100, 12800)
    with pytest.raises(consumers.ConsumerFailed, match=why):
        consumers.read(peer, served, "plain")


def test_figures_leave_out_what_connecting_takes() -> None:
    def runs(*cpu: float) -> list[consumers.Run]:
        return [consumers.Run(one, 1.0, 2.0, 50.0, 0.95) for one in cpu]

    found = figures.Comparison(
        figures.Case("plain", 128, 64, 2_000_000),
        {consumers.OURS.name: runs(1.2, 1.4, 9.0), "other": runs(2.0, 2.0), "best other": runs(1.8)},
    )
    assert found.cpu(consumers.OURS.name) == pytest.approx(0.2)
    assert found.lead() == pytest.approx(2.0)
    line = next(line for line in figures.table([found]).splitlines() if line.startswith("plain"))
    assert line.split()[-4:] == ["0.200", "0.500", "0.400", "2.0"]
    assert found.is_limited("other")


CALLGRIND = """events: Ir
ob=(1) /somewhere/dcp/_codec.cpython-311-x86_64-linux-gnu.so
fn=(1) scan
10 100
+1 20
cob=(2) /usr/lib/libc.so.6
cfn=(2) memcpy
calls=3 0
* 1000
cfn=(3) put_row
calls=3 +5
-1 50000
cob=(3) /usr/lib/libpython3.11.so.1.0
cfn=(4) PyBytes_FromStringAndSize
calls=1 0
12 70000
ob=(2)
fn=(2)
5 900000
"""


def test_instructions_of_the_extension_are_summed(tmp_path: Path) -> None:
    path = tmp_path / "callgrind.out"
    path.write_text(CALLGRIND, "utf-8")
    # Own code, and calls into the C library. Calls between its own functions are counted there, not at the call.
    assert callgrind.instructions(path) == 100 + 20 + 1000


CHANGELOG = """# Changelog

## [Unreleased]

- Rows know their weather: "tap" takes
  1,100 instructions a row.

## [0.1.0] - 2026-01-31

- "xattrs" takes 900 instructions.
"""


def test_more_instructions_than_recorded_need_a_line_of_the_changelog() -> None:
    before = {"tap": 1000.0, "xattrs": 500.0, "views": 200.0}
    allowed = recorded.allowed(CHANGELOG)
    assert allowed == {"tap": 1100}
    assert recorded.grown(before, {"tap": 1130.0, "xattrs": 515.0, "views": 100.0, "new": 9.0}, allowed) == []
    (problem,) = recorded.grown(before, {"tap": 1134.0, "xattrs": 515.0}, allowed)
    assert problem.startswith("tap: 1000.0 instructions a row before, 1134.0 now (+13.4%; the limit is +3%)")
    assert '"tap" and "1134 instructions"' in problem
    (problem,) = recorded.grown(before, {"xattrs": 516.0}, allowed)
    assert "xattrs" in problem
    # The line that the message asks for is one that is understood.
    line = '## [Unreleased]\n\n- Decoding: "xattrs" takes 516 instructions.\n'
    assert recorded.grown(before, {"xattrs": 516.0}, recorded.allowed(line)) == []


def test_every_workload_has_recorded_instructions() -> None:
    found = json.loads(recorded.RECORDED.read_text("utf-8"))
    assert list(found["instructions"]) == [name for name in frames.COUNTED if name not in recorded.UNSTEADY]
    assert found["compiler"]


def test_the_workloads_of_a_comparison_are_files(tmp_path: Path) -> None:
    frames.write_counted(tmp_path, TINY)
    workloads = json.loads((tmp_path / "workloads.json").read_text("utf-8"))
    assert [workload["name"] for workload in workloads] == list(frames.COUNTED)
    for workload in workloads:
        decoder = dcp.Decoder(**workload["options"])
        decoder.feed((tmp_path / workload["file"]).read_bytes())
        assert len(decoder.take()) == workload["rows"]
