"""Plans: what each task gets, and that reads which go on from each other's ends miss nothing, whatever fails over."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dcp
from dcp.checkpoint import Checkpoint
from dcp.embedded import Cluster
from dcp.embedded.rollback import Resume, rollback_point
from dcp.errors import CheckpointError, LocalProtocolError, RollbackError
from dcp.position import UNKNOWN_END, FailoverLog, StreamPosition
from dcp.spark import planner
from dcp.spark.options import Options
from dcp.spark.planner import (
    Plan,
    Range,
    divide,
    filtered_high_seqnos,
    narrowed,
    plan,
    position_after,
    range_of,
    shortened,
    worth_asking,
)

OPTIONS = Options("couchbase://host/bucket")


@dataclass
class Vbucket:
    """The writes of a vbucket as its producer has them now: at each seqno a key, and which write it was."""

    writes: list[tuple[str, int]] = field(default_factory=list)
    log: FailoverLog = field(default_factory=lambda: FailoverLog.of([(1, 0)]))
    count: int = 0

    def write(self, key: str) -> None:
        self.count += 1
        self.writes.append((key, self.count))

    def change(self, keys: list[str], lose: int | None) -> None:
        """Writes, and then a failover that loses some of what there is, if any."""
        for key in keys:
            self.write(key)
        if lose is not None:
            self.count += 1
            del self.writes[max(0, len(self.writes) - lose) :]
            self.log = self.log.begin(1000 + self.count, len(self.writes))

    @property
    def high(self) -> int:
        return len(self.writes)

    def state_at(self, seqno: int) -> dict[str, int]:
        return dict(self.writes[:seqno])


@dataclass
class Reader:
    """Keeps the rows it got, and undoes what it is told to."""

    rows: dict[int, tuple[str, int]] = field(default_factory=dict)

    def undo(self, above: int) -> None:
        self.rows = {seqno: row for seqno, row in self.rows.items() if seqno <= above}

    @property
    def state(self) -> dict[str, int]:
        return {key: write for _, (key, write) in sorted(self.rows.items())}

    def read(self, part: Range, vbucket: Vbucket, snapshot: int) -> int:
        """As a task does; how far it came."""
        here = part.start
        if part.undone_from is not None:
            self.undo(here.seqno)
        while (back := asked(here, vbucket)) is not None:
            here = here.rolled_back(back)
            self.undo(here.seqno)
        at = here.seqno
        while at < part.end:
            end = min(at + snapshot, vbucket.high)
            newest = {key: seqno for seqno, (key, _) in enumerate(vbucket.writes[:end], 1) if seqno > at}
            self.rows |= {seqno: vbucket.writes[seqno - 1] for seqno in newest.values()}
            at = end
        return at


def asked(position: StreamPosition, vbucket: Vbucket) -> int | None:
    request = position.resume_point()
    resume = Resume(request.start_seqno, request.vbuuid, request.snapshot_start, request.snapshot_end)
    return rollback_point(resume, vbucket.log, vbucket.high, 0)


KEYS = st.lists(st.sampled_from("abc"), max_size=4)
LOSSES = st.none() | st.integers(0, 5)
# What is written before a read is planned, what between plan and read, the failover then, the size of snapshots,
# and the failover after the read.
ROUNDS = st.tuples(KEYS, KEYS, LOSSES, st.integers(1, 9), LOSSES)


@settings(max_examples=500)
@given(st.lists(ROUNDS, max_size=8))
def test_reads_that_go_on_from_each_other_end_with_the_state_of_the_producer(
    rounds: list[tuple[list[str], list[str], int | None, int, int | None]],
) -> None:
    vbucket, reader, position = Vbucket(), Reader(), StreamPosition(0)
    for before, between, lost_before, snapshot, lost_after in rounds:
        vbucket.change(before, None)
        uuid = vbucket.log.newest.vbuuid
        part = range_of(position, vbucket.high, vbucket.high, uuid, OPTIONS)
        vbucket.change(between, lost_before)
        # A task whose end got lost fails, and nothing that it did is kept.
        if vbucket.high >= part.end:
            came_to = reader.read(part, vbucket, snapshot) if worth_asking(part, uuid) else part.end
            assert reader.state == vbucket.state_at(came_to)
            position = position_after(part, uuid, 0)
        vbucket.change([], lost_after)


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=5), min_size=1, max_size=8))
def test_without_a_failover_nothing_is_sent_back(rounds: list[list[str]]) -> None:
    vbucket, position = Vbucket(), StreamPosition(0)
    for keys in rounds:
        for key in keys:
            vbucket.write(key)
        part = range_of(position, vbucket.high, vbucket.high, 1, OPTIONS)
        assert part.start.seqno == position.seqno
        assert asked(part.start, vbucket) is None
        position = position_after(part, 1, 0)
        assert position.seqno == vbucket.high
    # A client that does not know that the history is the same has to go back.
    assert asked(position, vbucket) == position.snapshot_start
    quiet = range_of(position, vbucket.high, vbucket.high, 1, OPTIONS)
    assert quiet.size == 0
    assert position_after(quiet, 1, 0).complete


def test_what_was_lost_is_undone_or_refused() -> None:
    start = StreamPosition(3, 7, 100, 100, 100, marks=(80, 20))
    assert range_of(start, 90, 90, 8, OPTIONS) == Range(start.rolled_back(90), 90, 100)
    with pytest.raises(RollbackError, match="vbucket 3: the cluster has lost changes: go back from seqno 100 to 90"):
        range_of(start, 90, 90, 8, replace(OPTIONS, on_rollback="fail"))


def test_a_window_is_narrowed_in_its_own_history_only() -> None:
    position = StreamPosition(0, 7, 100, 60, UNKNOWN_END)
    assert narrowed(position, 130, 7) == replace(position, snapshot_end=130)
    assert narrowed(position, 100, 7) == replace(position, snapshot_start=100, snapshot_end=100)
    assert narrowed(position, 130, 8) == position
    known = replace(position, snapshot_end=110)
    assert narrowed(known, 130, 7) == known


def test_a_plan_ends_in_a_window_from_where_the_state_was_whole() -> None:
    inside = StreamPosition(0, 7, 100, 60, 130, marks=(60, 20))
    assert position_after(Range(inside, 200), 7, 0) == replace(inside, seqno=200, snapshot_end=UNKNOWN_END)
    whole = StreamPosition(0, 7, 100, 100, 100, marks=(60, 20))
    after = position_after(Range(whole, 200), 7, 0)
    assert after == replace(whole, seqno=200, snapshot_end=UNKNOWN_END, marks=(100, 60, 20))
    assert position_after(Range(whole, 200), 8, 0) == StreamPosition(0, 8, 200, 0, UNKNOWN_END)


def test_where_deletions_are_forgotten_the_state_was_whole_nowhere() -> None:
    whole = StreamPosition(0, 7, 100, 100, 100, marks=(60, 20))
    kept = replace(whole, seqno=200, snapshot_end=UNKNOWN_END)
    assert position_after(Range(whole, 200), 7, 60) == replace(kept, marks=(100, 60))
    assert position_after(Range(whole, 200), 7, 100) == replace(kept, marks=(100,))
    for purged in (101, 200, None):
        assert position_after(Range(whole, 200), 7, purged) == replace(kept, snapshot_start=0, marks=())


RANGES = st.lists(st.integers(1, 1000), max_size=40).map(
    lambda sizes: [Range(StreamPosition(number), size) for number, size in enumerate(sizes)]
)


@given(RANGES, st.integers(1, 4), st.integers(1, 50))
def test_every_range_is_in_one_partition_of_its_node(ranges: list[Range], nodes: int, at_least: int) -> None:
    owners = {part.vbucket: f"node {part.vbucket % nodes}" for part in ranges}
    partitions = divide(ranges, owners, at_least)
    assert sorted(part.vbucket for partition in partitions for part in partition.ranges) == list(range(len(ranges)))
    for partition in partitions:
        assert {owners[vbucket] for vbucket in partition.vbuckets} == {partition.node}
    most = {node: max(1, vbuckets // 2) for node, vbuckets in Counter(owners.values()).items()}
    counts = Counter(partition.node for partition in partitions)
    assert counts.keys() == most.keys()
    assert counts <= Counter(most)
    # As many as were asked for, where nothing stands in the way.
    assert len(partitions) == min(sum(most.values()), max(len(most), at_least))


def test_where_there_is_more_to_read_there_are_more_partitions() -> None:
    ranges = [Range(StreamPosition(number), 3000 if number % 2 else 1000) for number in range(64)]
    owners = {part.vbucket: f"node {part.vbucket % 2}" for part in ranges}
    counts = Counter(partition.node for partition in divide(ranges, owners, 4))
    assert counts == {"node 0": 1, "node 1": 3}


def test_partitions_are_about_equally_large() -> None:
    ranges = [Range(StreamPosition(number), 1000 if number < 4 else 10) for number in range(64)]
    sizes = [sum(part.size for part in p.ranges) for p in divide(ranges, dict.fromkeys(range(64), "node"), 4)]
    assert len(sizes) == 4
    assert max(sizes) - min(sizes) <= 10


def test_an_end_is_no_further_than_the_bucket_is() -> None:
    with Cluster(vbuckets=4) as cluster:
        cluster.load(40)
        end = plan(cluster.url).end
        assert plan(cluster.url, endingOffsets=end).end == end
        last = end.positions[-1]
        beyond = replace(last, seqno=last.seqno + 1, snapshot_end=last.seqno + 1)
        further = replace(end, positions=(*end.positions[:-1], beyond))
        problem = f"endingOffsets: vbucket 3: expected up to {last.seqno}, where it is, found {last.seqno + 1}"
        with pytest.raises(LocalProtocolError, match=problem):
            plan(cluster.url, endingOffsets=further)
        with pytest.raises(CheckpointError, match="bucket: expected 'default', found 'other'"):
            plan(cluster.url, endingOffsets=replace(end, bucket="other"))
        # Who does not ask for the vbucket need not care.
        assert plan(cluster.url, vbuckets="0-2", endingOffsets=further).end.positions == end.positions[:-1]


def test_the_last_seqno_of_a_scope_is_that_of_its_newest_collection() -> None:
    with Cluster(vbuckets=4) as cluster:
        expected: dict[int, int] = {}
        cluster.create_scope("shop")
        cluster.create_scope("farm")
        for scope, name in (("farm", "cows"), ("shop", "old"), ("shop", "new")):
            cluster.create_collection(scope, name)
        for path in ("shop.new", "shop.old", "farm.cows"):
            for number in range(40):
                cluster.upsert(f"{path}-{number}", b"{}", collection=path)
        for path in ("shop.new", "shop.old"):
            for document in cluster.truth(path).values():
                expected[document.vbucket] = max(document.seqno, expected.get(document.vbucket, 0))
        with dcp.connect(cluster.url) as client:
            assert filtered_high_seqnos(client, Checkpoint(), "shop") == expected
            cows = next(number for number, path in client.collections().items() if path == "farm.cows")
            assert filtered_high_seqnos(client, Checkpoint(collections=(cows,)), None) == client.high_seqnos(cows)


def test_a_history_that_begins_while_it_is_planned_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the plan would end where the new history has yet to come, with changes that nobody would read."""
    with Cluster(vbuckets=1) as cluster:
        cluster.load(50)
        known = planner.high_seqnos

        def and_then_fails(client: dcp.Client, options: Options) -> dict[int, int]:
            monkeypatch.setattr(planner, "high_seqnos", known)
            found = known(client, options)
            cluster.crash(0)
            cluster.recover(0, lose=10)
            return found

        monkeypatch.setattr(planner, "high_seqnos", and_then_fails)
        planned = plan(cluster.url)
        with dcp.connect(cluster.url) as client:
            uuid = client.failover_logs()[0].newest.vbuuid
        assert [(at.seqno, at.vbuuid) for at in planned.end] == [(40, uuid)]


def test_of_a_collection_only_what_it_has_is_planned() -> None:
    with Cluster(vbuckets=16) as cluster:
        cluster.create_collection("_default", "stock")

        def write(*keys: str) -> dict[int, int]:
            for key in keys:
                cluster.upsert(key, b"{}", collection="_default.stock")
            documents = cluster.truth("_default.stock")
            # Others go on behind it.
            cluster.load(200, seed=len(documents))
            return {documents[key.encode()].vbucket: documents[key.encode()].seqno for key in keys}

        def ends(planned: Plan) -> dict[int, int]:
            return {vbucket: end for part in planned.partitions for vbucket, end in part.end.items()}

        expected = write("a", "b", "c")
        first = plan(cluster.url, collections="stock")
        # That it was made is the first that every vbucket knows of it.
        assert ends(first) == dict.fromkeys(range(16), 1) | expected
        assert {at.vbucket: at.seqno for at in first.end} == highs(cluster)
        assert plan(cluster.url, collections="stock", start=first.end).partitions == ()
        expected = write("d")
        second = plan(cluster.url, collections="stock", start=first.end)
        assert ends(second) == expected
        assert {at.vbucket: at.seqno for at in second.end} == highs(cluster)


def highs(cluster: Cluster) -> dict[int, int]:
    with dcp.connect(cluster.url) as client:
        return client.high_seqnos()


def test_a_range_is_shortened_where_the_last_wanted_seqno_is_known() -> None:
    part = Range(StreamPosition(3, 7, 100, 100, 100), 200)
    assert shortened(part, {}) == shortened(part, {4: 150}) == shortened(part, {3: 300}) == part
    assert shortened(part, {3: 150}) == replace(part, end=150)
    assert shortened(part, {3: 50}).size == 0
