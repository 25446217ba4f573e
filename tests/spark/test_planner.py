"""Plans: how they divide the work, and that reads which resume from each other miss nothing after failovers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dcp
from dcp.checkpoint import Checkpoint
from dcp.client import queries
from dcp.client.agent import Agent
from dcp.embedded import Cluster
from dcp.errors import CheckpointError, LocalProtocolError, RollbackError
from dcp.position import UNKNOWN_END, StreamPosition
from dcp.spark.options import Options
from dcp.spark.planner import Plan, divide, filtered_high_seqnos, partitions_of, plan
from dcp.spark.ranges import Range, narrowed, needs_stream, position_after, range_of, shortened
from tests.spark.model import KEYS, LOSSES, ModelReader, ModelVbucket, rollback_answer
from tests.spark.ports import at_a_port_of_its_own
from tests.spark.rows import high_seqnos

OPTIONS = Options("couchbase://host/bucket")


# Keys written before the plan, keys written between plan and read, the failover then, the size of snapshots, and the
# failover after the read.
ROUNDS = st.tuples(KEYS, KEYS, LOSSES, st.integers(1, 9), LOSSES)


@settings(max_examples=500)
@given(st.lists(ROUNDS, max_size=8))
def test_reads_that_resume_from_each_other_end_with_the_state_of_the_producer(
    rounds: list[tuple[list[str], list[str], int | None, int, int | None]],
) -> None:
    vbucket, reader, position = ModelVbucket(), ModelReader(), StreamPosition(0)
    for before, between, lost_before, snapshot, lost_after in rounds:
        vbucket.change(before, None)
        uuid = vbucket.log.newest.vbuuid
        part = range_of(position, vbucket.high, vbucket.high, uuid, OPTIONS)
        vbucket.change(between, lost_before)
        # A task whose end was lost fails, and its rows are thrown away.
        if vbucket.high >= part.end:
            reached = reader.read(part, vbucket, snapshot) if needs_stream(part, uuid) else part.end
            assert reader.state == vbucket.state_at(reached)
            position = position_after(part, uuid, 0)
        vbucket.change([], lost_after)


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=5), min_size=1, max_size=8))
def test_without_a_failover_nothing_is_rolled_back(rounds: list[list[str]]) -> None:
    vbucket, position = ModelVbucket(), StreamPosition(0)
    for keys in rounds:
        for key in keys:
            vbucket.write(key)
        part = range_of(position, vbucket.high, vbucket.high, 1, OPTIONS)
        assert part.start.seqno == position.seqno
        assert rollback_answer(part.start, vbucket) is None
        position = position_after(part, 1, 0)
        assert position.seqno == vbucket.high
    # A position that was not narrowed is rolled back to the start of its window.
    assert rollback_answer(position, vbucket) == position.snapshot_start
    unchanged = range_of(position, vbucket.high, vbucket.high, 1, OPTIONS)
    assert unchanged.size == 0
    assert position_after(unchanged, 1, 0).complete


def test_lost_changes_are_undone_or_an_error() -> None:
    start = StreamPosition(3, 7, 100, 100, 100, marks=(80, 20))
    assert range_of(start, 90, 90, 8, OPTIONS) == Range(start.rolled_back(90), 90, 100)
    with pytest.raises(RollbackError, match="vbucket 3: the cluster has lost changes: go back from seqno 100 to 90"):
        range_of(start, 90, 90, 8, replace(OPTIONS, on_rollback="fail"))


def test_a_range_never_ends_before_its_start() -> None:
    start = StreamPosition(3, 7, 100, 100, 100, marks=(80, 20))
    assert range_of(start, 60, 120, 7, OPTIONS) == Range(start, 100)
    assert range_of(start, 60, 90, 8, OPTIONS) == Range(start.rolled_back(90), 80, 100)
    # Nor after what the cluster has left.
    assert range_of(start, 120, 90, 8, OPTIONS) == Range(start.rolled_back(90), 90, 100)
    assert [shortened(Range(start, 110), wanted).end for wanted in ({}, {3: 105}, {3: 120}, {3: 7}, {2: 105})] == [
        *(110, 105, 110, 100, 110)
    ]


def test_a_vbucket_without_changes_stays_at_its_beginning() -> None:
    assert position_after(Range(StreamPosition(0), 0), 7, 0) == StreamPosition(0)
    assert not needs_stream(Range(StreamPosition(0), 0), 7)


def test_a_window_is_narrowed_in_its_own_history_only() -> None:
    position = StreamPosition(0, 7, 100, 60, UNKNOWN_END)
    assert narrowed(position, 130, 7) == replace(position, snapshot_end=130)
    assert narrowed(position, 100, 7) == replace(position, snapshot_start=100, snapshot_end=100)
    assert narrowed(position, 130, 8) == position
    known = replace(position, snapshot_end=110)
    assert narrowed(known, 130, 7) == known
    unknown = replace(position, vbuuid=0)
    assert narrowed(unknown, 130, 0) == unknown


def test_the_window_after_a_plan_starts_where_the_state_was_whole() -> None:
    inside = StreamPosition(0, 7, 100, 60, 130, marks=(60, 20))
    assert position_after(Range(inside, 200), 7, 0) == replace(inside, seqno=200, snapshot_end=UNKNOWN_END)
    whole = StreamPosition(0, 7, 100, 100, 100, marks=(60, 20))
    after = position_after(Range(whole, 200), 7, 0)
    assert after == replace(whole, seqno=200, snapshot_end=UNKNOWN_END, marks=(100, 60, 20))
    assert position_after(Range(whole, 200), 8, 0) == StreamPosition(0, 8, 200, 0, UNKNOWN_END)
    # No snapshot need have ended where a window starts, and a whole position may have its window.
    without = replace(inside, marks=(20,))
    assert position_after(Range(without, 200), 7, 0) == replace(without, seqno=200, snapshot_end=UNKNOWN_END)
    assert position_after(Range(replace(whole, snapshot_start=60), 200), 7, 0) == after
    first = StreamPosition(0, 7, 1, 1, 1)
    assert position_after(Range(first, 200), 7, 0) == StreamPosition(0, 7, 200, 1, UNKNOWN_END, marks=(1,))
    assert position_after(Range(StreamPosition(0), 200), 0, 0) == StreamPosition(0, 0, 200, 0, UNKNOWN_END)


def test_below_the_purge_seqno_no_state_counts_as_whole() -> None:
    whole = StreamPosition(0, 7, 100, 100, 100, marks=(60, 20))
    kept = replace(whole, seqno=200, snapshot_end=UNKNOWN_END)
    assert position_after(Range(whole, 200), 7, 60) == replace(kept, marks=(100, 60))
    assert position_after(Range(whole, 200), 7, 100) == replace(kept, marks=(100,))
    for purged in (101, 200, None):
        assert position_after(Range(whole, 200), 7, purged) == replace(kept, snapshot_start=0, marks=())


RANGES = st.lists(st.integers(1, 1000), max_size=40).map(
    lambda sizes: [Range(StreamPosition(number), size) for number, size in enumerate(sizes)]
)


def test_each_task_connects_to_its_own_node_first() -> None:
    with Cluster(nodes=3, vbuckets=6) as cluster, dcp.connect(cluster.url) as client:
        ranges = [Range(StreamPosition(vbucket), 1) for vbucket in range(6)]
        found = {part.node: part.addresses for part in partitions_of(client, ranges, 1)}
        assert found.keys() == {*cluster.addresses}
        for node, addresses in found.items():
            assert addresses[0] == node
            assert sorted(addresses) == sorted(cluster.addresses)
        # A vbucket that is lost with its node has none: its task waits for an owner, wherever it connects.
        lost = cluster.addresses[0]
        cluster.failover(0)
        client.refresh_map()
        found = {part.node: part.addresses for part in partitions_of(client, ranges, 1)}
        assert found.keys() == {"", *cluster.addresses} - {lost}
        assert sorted(found[""]) == sorted({*cluster.addresses} - {lost})


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
    # The wanted number, within the limits of the nodes, and up to twice as many to balance them.
    wanted = max(len(most), at_least)
    assert min(sum(most.values()), wanted) <= len(partitions) <= 2 * wanted


def test_a_node_with_more_to_read_gets_more_partitions() -> None:
    ranges = [Range(StreamPosition(number), 3000 if number % 2 else 1000) for number in range(64)]
    owners = {part.vbucket: f"node {part.vbucket % 2}" for part in ranges}
    counts = Counter(partition.node for partition in divide(ranges, owners, 4))
    assert counts == {"node 0": 1, "node 1": 3}


def test_partitions_are_about_equally_large() -> None:
    ranges = [Range(StreamPosition(number), 1000 if number < 4 else 10) for number in range(64)]
    sizes = [sum(part.size for part in p.ranges) for p in divide(ranges, dict.fromkeys(range(64), "node"), 4)]
    assert len(sizes) == 4
    assert max(sizes) - min(sizes) <= 10


@pytest.mark.parametrize(("nodes", "tasks"), [(5, 400), (5, 7), (3, 8), (7, 16), (100, 32), (100, 400)])
def test_partitions_use_all_nodes_at_once_and_are_balanced(nodes: int, tasks: int) -> None:
    ranges = [Range(StreamPosition(number), 980 + number * 7 % 40) for number in range(1024)]
    partitions = divide(ranges, {number: f"node {number % nodes}" for number in range(1024)}, tasks)
    assert max(nodes, tasks) <= len(partitions) <= 2 * max(nodes, tasks)
    # However many tasks run at a time, each node has its share of them.
    for running in range(1, len(partitions) + 1):
        connections = Counter(partition.node for partition in partitions[:running])
        assert max(connections.values()) <= -(-running // nodes) + 1
        assert running < 2 * nodes or len(connections) == nodes
    sizes = [sum(part.size for part in partition.ranges) for partition in partitions]
    # Vbuckets are read whole: with 2.56 for each task, some have 2 and some 3.
    assert max(sizes) <= 1.2 * sum(sizes) / len(sizes)


@pytest.mark.parametrize(("size", "tasks"), [(10, 2), (100_000, 25), (1_000_000, 32)])
def test_without_a_wanted_number_the_size_of_a_read_decides(size: int, tasks: int) -> None:
    owners = {number: f"node {number % 2}" for number in range(64)}
    ranges = [Range(StreamPosition(number), size) for number in owners]
    assert len(divide(ranges, owners)) == tasks


def test_an_end_above_the_high_seqno_is_refused() -> None:
    with Cluster(vbuckets=4) as cluster:
        cluster.load(40)
        end = plan(cluster.url).end
        assert plan(cluster.url, end=end).end == end
        last = end.positions[-1]
        beyond = replace(last, seqno=last.seqno + 1, snapshot_end=last.seqno + 1)
        further = replace(end, positions=(*end.positions[:-1], beyond))
        problem = (
            f"endingOffsets: vbucket 3: expected a seqno up to its high seqno {last.seqno}, found {last.seqno + 1}"
        )
        with pytest.raises(LocalProtocolError, match=problem):
            plan(cluster.url, end=further)
        with pytest.raises(CheckpointError, match="bucket: expected 'default', found 'other'"):
            plan(cluster.url, end=replace(end, bucket="other"))
        # A vbucket that is not read is not checked.
        assert plan(cluster.url, vbuckets="0-2", end=further).end.positions == end.positions[:-1]


def test_the_last_seqno_of_a_scope_is_the_highest_of_its_collections() -> None:
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


def test_without_a_filter_no_node_is_asked_for_collections() -> None:
    with Cluster(vbuckets=4) as cluster, dcp.connect(cluster.url) as client:
        cluster.load(10)
        with cluster.fault("refuse", command="get_collections_manifest", status="eaccess"):
            assert filtered_high_seqnos(client, Checkpoint(), None) == {}


def test_a_plan_during_a_failover_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the plan would end above the high seqno of the new history, and skip its next changes."""
    with Cluster(vbuckets=1) as cluster:
        cluster.load(50)
        known = queries.high_seqnos

        def before_a_failover(agent: Agent, collection_ids: Collection[int] | None = None) -> dict[int, int]:
            monkeypatch.setattr(queries, "high_seqnos", known)
            found = known(agent, collection_ids)
            cluster.crash(0)
            cluster.recover(0, lose=10)
            return found

        monkeypatch.setattr(queries, "high_seqnos", before_a_failover)
        planned = plan(cluster.url)
        with dcp.connect(cluster.url) as client:
            uuid = client.failover_logs()[0].newest.vbuuid
        assert [(at.seqno, at.vbuuid) for at in planned.end] == [(40, uuid)]


def test_a_plan_after_another_finds_the_cluster_although_the_host_of_the_url_is_gone() -> None:
    with Cluster(nodes=2, vbuckets=4, replicas=1) as cluster:
        cluster.load(10)
        url = cluster.url.replace(",".join(cluster.addresses), cluster.addresses[0])
        plan(url)
        cluster.failover(0)
        assert sum(part.size for one in plan(url).partitions for part in one.ranges) == 10


def test_a_plan_of_a_recreated_bucket_is_of_the_new_one() -> None:
    cluster, port = at_a_port_of_its_own(vbuckets=1)
    with cluster:
        url, password = cluster.url, cluster.credentials.password
        first = plan(url)
    with Cluster(vbuckets=1, port=port, password=password) as recreated:
        recreated.upsert("key", b"1")
        second = plan(url, node_timeout=5)
        assert second.end.bucket_uuid not in ("", first.end.bucket_uuid)
        assert [position.seqno for position in second.end] == [1]


def test_a_plan_of_a_collection_ends_at_its_last_seqno() -> None:
    with Cluster(vbuckets=16) as cluster:
        cluster.create_collection("_default", "stock")

        def write(*keys: str) -> dict[int, int]:
            for key in keys:
                cluster.upsert(key, b"{}", collection="_default.stock")
            documents = cluster.truth("_default.stock")
            # Changes of another collection follow.
            cluster.load(200, seed=len(documents))
            return {documents[key.encode()].vbucket: documents[key.encode()].seqno for key in keys}

        def ends(planned: Plan) -> dict[int, int]:
            return {vbucket: end for part in planned.partitions for vbucket, end in part.end.items()}

        expected = write("a", "b", "c")
        first = plan(cluster.url, collections="stock")
        # The creation of the collection has a seqno in every vbucket.
        assert ends(first) == dict.fromkeys(range(16), 1) | expected
        assert {at.vbucket: at.seqno for at in first.end} == high_seqnos(cluster)
        assert plan(cluster.url, collections="stock", start=first.end).partitions == ()
        expected = write("d")
        second = plan(cluster.url, collections="stock", start=first.end)
        assert ends(second) == expected
        assert {at.vbucket: at.seqno for at in second.end} == high_seqnos(cluster)


def test_a_range_is_shortened_to_the_last_seqno_that_passes_the_filter() -> None:
    part = Range(StreamPosition(3, 7, 100, 100, 100), 200)
    assert shortened(part, {}) == shortened(part, {4: 150}) == shortened(part, {3: 300}) == part
    assert shortened(part, {3: 150}) == replace(part, end=150)
    assert shortened(part, {3: 50}).size == 0


@pytest.mark.parametrize(("seqno", "uuid", "needed"), [(0, 8, False), (1, 7, False), (1, 8, True)])
def test_a_new_history_is_read_even_if_nothing_was_written_in_it(seqno: int, uuid: int, needed: bool) -> None:
    start = StreamPosition(3, 7 if seqno else 0, seqno, seqno, seqno)
    assert needs_stream(Range(start, seqno), uuid) == needed
