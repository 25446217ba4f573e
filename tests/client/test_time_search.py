"""Streams that begin or end at a time: the search, and the rows."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import dcp
from dcp.client.options import Use, options_of
from dcp.client.time_search import ProbedChange, SeqnoSpan, TimePosition, VbucketSearch, find_positions, lowest_cas
from dcp.embedded import Cluster
from tests.client.consumer import Consumer, truth

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@given(
    st.lists(st.integers(1, 9000), unique=True).map(sorted),
    st.integers(0, 10_000),
    st.integers(0, 200),
    st.integers(0, 10_000),
)
# The first probe begins below the purge seqno, and what is searched for is far above it.
@example([100, 8000, 8900], 5000, 0, 8500)
# A probe below the purge seqno is refused, and those above it have to grow until they reach the only change.
@example([2049], 1025, 0, 2050)
def test_a_search_finds_the_first_change_of_a_moment(seqnos: list[int], purged: int, more: int, moment: int) -> None:
    """Search a model of a vbucket: live seqnos, CAS that grow with them, no start below the purge seqno."""
    high = max(seqnos, default=0) + more
    purged = min(purged, high)
    search = VbucketSearch(moment, high)
    rounds = 0
    while search.result is None:
        rounds += 1
        start, end = search.span
        assert 0 <= start <= end <= high
        rows = [ProbedChange(seqno, seqno) for seqno in seqnos if start < seqno <= end + rounds % 3]
        search.learn(None if 0 < start < purged else rows)
    first = next((seqno for seqno in seqnos if seqno >= moment), high + 1)
    place, how = search.result
    assert place <= high
    assert rounds < 40
    if how == "purged":
        assert bisect_left(seqnos, first) == 0 or [seqno for seqno in seqnos if seqno < first][-1] <= purged
        assert not [seqno for seqno in seqnos if place < seqno < first]
        # Deletions up to the place, or up to the purge seqno, may be missing.
        assert place >= min(purged, first - 1)
    else:
        assert [seqno for seqno in seqnos if seqno > place] == [seqno for seqno in seqnos if seqno >= first]
        assert place == 0 or place >= purged
        assert how == ("beginning" if place == 0 else "end" if place == high else "probed")


def test_probes_are_few() -> None:
    search = VbucketSearch(777_777, 1_000_000)
    rounds = 0
    while search.result is None:
        start, end = search.span
        search.learn([ProbedChange(seqno, seqno) for seqno in range(start + 1, end + 1)])
        rounds += 1
    assert search.result == TimePosition(777_776, "probed")
    assert rounds <= 16


def test_the_log_says_how_much_a_search_has_read(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[Mapping[int, SeqnoSpan]] = []

    def probe(spans: Mapping[int, SeqnoSpan]) -> Mapping[int, list[ProbedChange] | None]:
        asked.append(spans)
        return {
            vbucket: [ProbedChange(seqno, seqno) for seqno in range(span.start + 1, span.end + 1)]
            for vbucket, span in spans.items()
        }

    with caplog.at_level(logging.INFO):
        found = find_positions(probe, 777_777, {4: 1_000_000, 9: 100})
    assert found == {4: TimePosition(777_776, "probed"), 9: TimePosition(100, "end")}
    assert f"found 2 vbuckets at 1970-01-01T00:00:00.000777+00:00 in {len(asked)} rounds of probes: " in caplog.text


def test_a_tick_is_the_first_whose_timestamp_is_not_before() -> None:
    moment = datetime(2026, 11, 1, tzinfo=timezone.utc)
    lowest = lowest_cas(moment)
    for text in ("2026-11-01T01:00+01:00", "2026-11-01T00:00Z"):
        assert lowest_cas(options_of(Use.STREAM)["start"].read(text)) == lowest
    for cas, inside in ((lowest, True), (lowest - 1, False)):
        stamp = EPOCH + timedelta(microseconds=(cas & ~0xFFFF) // 1000)
        assert (stamp >= moment) is inside


@pytest.mark.parametrize("value", ["2026-11-01T00:00", datetime(2026, 11, 1), "1969-12-31T00:00Z", "soon", 5])
def test_what_is_no_time_with_a_zone_is_refused(value: object) -> None:
    with pytest.raises(dcp.LocalProtocolError, match=r"start: expected .* a time with a UTC offset"):
        options_of(Use.STREAM)["start"].read(value)


def moments(cluster: Cluster) -> list[datetime]:
    """Return the times at which the documents were written."""
    return sorted(EPOCH + timedelta(microseconds=(row.cas & ~0xFFFF) // 1000) for row in cluster.truth().values())


def seen(stream: dcp.ChangeStream) -> dict[bytes, datetime]:
    rows = [row for batch in stream for row in batch.to_arrow().to_pylist()]
    return {row["key"]: row["timestamp"] for row in rows}


# A backfill from disk without values has CAS 0 from 7.6 on (seen with 8.0.1), and the real one before (7.2.9). With
# 6.6 a stream without values can crash the server (6.6.5). Each reads from disk what `snapshot` has written there.
@pytest.mark.parametrize("release", ["6.0", "6.6", "7.2", "7.6", "8.0"])
@pytest.mark.parametrize("memory", [True, False])
def test_exactly_the_rows_between_two_times_are_delivered(
    memory: bool, release: str, caplog: pytest.LogCaptureFixture
) -> None:
    columns = ["key", "timestamp"]
    with (
        Cluster(nodes=2, vbuckets=4, replicas=1, server_version=release) as cluster,
        dcp.connect(cluster.url) as client,
    ):
        for n in range(1500):
            cluster.upsert(f"key{n}", b"{}")
        if not memory:
            cluster.snapshot()
        when = moments(cluster)
        everything = seen(client.stream(end="now", columns=columns))
        for start, end in ((when[100], when[-1]), (when[700], when[720]), (when[0], when[1400])):
            with caplog.at_level(logging.INFO, "dcp.client"):
                stream = client.stream(start, end.isoformat(), columns=columns)
            assert seen(stream) == {key: at for key, at in everything.items() if start <= at < end}
            assert stream.found.keys() == {"start", "end"}
            assert {place.how for place in stream.found["start"].values()} <= {"probed", "beginning", "end"}
            assert "found 4 vbuckets" in caplog.text
            assert "without a CAS" not in caplog.text
        assert seen(client.stream(when[-1] + timedelta(hours=1), "now", columns=columns)) == {}


def test_a_checkpoint_of_a_stream_from_a_time_goes_on_exactly() -> None:
    with Cluster(vbuckets=2) as cluster, dcp.connect(cluster.url) as client:
        for n in range(400):
            cluster.upsert(f"key{n}", b"{}")
        start = moments(cluster)[250]
        columns = ["key", "timestamp"]
        stream = client.stream(start, "now", columns=columns, batch_rows=20)
        batch = stream.next(30)
        assert batch is not None
        keys = batch.to_arrow().column("key").to_pylist()
        keys += seen(client.stream(stream.checkpoint, "now", columns=columns))
        wanted = seen(client.stream(end="now", columns=columns))
        assert sorted(keys) == sorted(key for key, at in wanted.items() if at >= start)


@pytest.mark.parametrize("memory", [True, False])
def test_a_checkpoint_of_a_stream_to_a_time_goes_on_with_what_is_behind_it(memory: bool) -> None:
    columns = ["key", "timestamp"]
    with Cluster(nodes=2, vbuckets=4, replicas=1) as cluster, dcp.connect(cluster.url) as client:
        for n in range(600):
            cluster.upsert(f"key{n % 400}", b"{}")
        if not memory:
            cluster.snapshot()
        wanted = seen(client.stream(end="now", columns=columns))
        when = moments(cluster)
        saved: dcp.Checkpoint | str = "beginning"
        came: dict[bytes, datetime] = {}
        for end in (when[100], when[300], when[50], when[-1] + timedelta(seconds=1)):
            stream = client.stream(saved, end.isoformat() if end <= when[-1] else "now", columns=columns)
            part = seen(stream)
            assert not part.keys() & came.keys()
            came |= part
            saved = stream.checkpoint
        assert came == wanted


def test_a_time_before_purged_deletions_begins_at_the_beginning() -> None:
    with Cluster(vbuckets=1) as cluster, dcp.connect(cluster.url) as client:
        for n in range(600):
            cluster.upsert(f"key{n}", b"{}")
        start = moments(cluster)[200]
        for n in range(500, 550):
            cluster.delete(f"key{n}")
        cluster.snapshot()
        cluster.upsert("last", b"{}")
        cluster.purge()
        with client.stream(start, "now") as stream:
            consumer = Consumer()
            for batch in stream:
                consumer.take(batch)
        assert stream.found["start"][0].how == "purged"
        assert consumer.rollbacks == []
        assert len(consumer.state()) == len([at for at in moments(cluster) if at >= start])


def test_times_that_cannot_be_are_refused() -> None:
    with Cluster(vbuckets=1) as cluster, dcp.connect(cluster.url) as client:
        with pytest.raises(dcp.LocalProtocolError, match="end: expected a time in the past"):
            client.stream(end=datetime.now(timezone.utc) + timedelta(days=1))
        with pytest.raises(dcp.LocalProtocolError, match="views: expected False"):
            client.stream("2026-01-01T00:00Z", views=True)


def test_numpy_and_arrow_see_what_is_left() -> None:
    with Cluster(vbuckets=1) as cluster, dcp.connect(cluster.url) as client:
        for n in range(30):
            cluster.upsert(f"key{n}", b"{}")
        when = moments(cluster)
        start = when[20]
        (batch,) = client.stream(start, "now", columns=["event", "key", "seqno", "expiry"], batch_rows=1000)
        record, columns = batch.to_arrow(), batch.to_numpy()
        assert batch.schema.names == ("event", "key", "seqno", "expiry")
        assert columns["seqno"].tolist() == record.column("seqno").to_pylist()  # type: ignore[union-attr]
        assert [batch.events[n] for n in columns["event"].tolist()] == record.column("event").to_pylist()  # type: ignore[union-attr]
        key = columns["key"]
        assert key.data[key.offsets[0] : key.offsets[1]].tobytes() == record.column("key")[0].as_py()  # type: ignore[union-attr]
        assert len(batch) == batch.num_rows == record.num_rows == sum(at >= start for at in when)
        assert truth(cluster).keys() > set(record.column("key").to_pylist())


def test_a_time_before_now_counts_from_the_clock_of_this_machine() -> None:
    read = options_of(Use.STREAM)["start"].read
    before = datetime.now(timezone.utc)
    found = read("-1h"), read("-90m"), read("-500ms")
    after = datetime.now(timezone.utc)
    for moment, ago in zip(
        found, (timedelta(hours=1), timedelta(minutes=90), timedelta(milliseconds=500)), strict=True
    ):
        assert before <= moment + ago <= after
    assert read("-999999999s") >= EPOCH
    for text in ("-1 fortnight", "1h"):
        with pytest.raises(dcp.UsageError, match=f"before now such as -1h, with its minus sign, found '{text}'"):
            read(text)


def test_a_stream_of_the_last_hour() -> None:
    with Cluster(vbuckets=4) as cluster, dcp.connect(cluster.url) as client:
        cluster.load(50)
        with client.stream("-1h", end="now") as stream:
            assert sum(map(len, stream)) == 50
        with client.stream(end="-1h") as stream:
            assert sum(map(len, stream)) == 0
