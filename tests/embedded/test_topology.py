"""Nodes that fail, join and leave, against a model: for each vbucket, the writes that were not lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dcp.embedded import topology
from dcp.embedded.bucket import NOBODY, BucketStore
from dcp.embedded.store import JOURNAL, StoredItem, VbucketStore
from dcp.errors import LocalProtocolError
from dcp.position import FailoverLog
from dcp.wire.dcp import SystemEvent
from dcp.wire.memcached import VbucketState

KEYS = [b"key-%d" % n for n in range(12)]


def make_bucket(nodes: int = 3, replicas: int = 1, vbuckets: int = 8) -> BucketStore:
    return BucketStore("b", nodes=nodes, vbuckets=vbuckets, replicas=replicas, clock=lambda: 1000.0, seed=1)


def fill(bucket: BucketStore, count: int) -> list[StoredItem]:
    return [bucket.store(b"key-%d" % n, b"%d" % n) for n in range(count)]


def contents(copy: VbucketStore) -> dict[bytes, bytes]:
    return {item.key: item.value for item in copy if isinstance(item, StoredItem) and item.alive}


def documents(bucket: BucketStore) -> dict[bytes, bytes]:
    return {key: value for copy in bucket.actives() for key, value in contents(copy).items()}


class TopologyChanges(RuleBasedStateMachine):
    """State machine with a model: `writes` has for each vbucket the writes that were not lost, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.bucket = make_bucket()
        self.writes: dict[int, list[tuple[int, bytes, bytes | None]]] = {n: [] for n in range(8)}
        self.revision = 1

    def here(self) -> list[int]:
        return [node.number for node in self.bucket.nodes if node.alive]

    def owned(self, node: int) -> list[int]:
        return [number for number, owners in enumerate(self.bucket.owners) if owners[0] == node]

    def logs(self) -> dict[int, FailoverLog]:
        """Return the failover log of every vbucket that has an owner."""
        return {copy.number: copy.log for copy in self.bucket.actives()}

    def lose(self, node: int, count: int) -> None:
        """Return the last writes of a node, by the model."""
        mine = [(cas, n) for n in self.owned(node) for cas, _, _ in self.writes[n]]
        for _, number in sorted(mine)[len(mine) - count :]:
            self.writes[number].pop()

    @rule(key=st.sampled_from(KEYS), value=st.binary(max_size=3) | st.none())
    def write(self, key: bytes, value: bytes | None) -> None:
        number = self.bucket.vbucket_of(key)
        owner = self.bucket.owners[number][0]
        if owner == NOBODY or not self.bucket.nodes[owner].alive:
            with pytest.raises(LocalProtocolError, match=f"vbucket {number}: no node"):
                self.bucket.store(key, b"")
            return
        item = self.bucket.remove(key) if value is None else self.bucket.store(key, value)
        if item is not None:
            self.writes[number].append((item.cas, key, value))

    @precondition(lambda self: len(self.here()) > 1)
    @rule(data=st.data())
    def failover_and_recover(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(self.here()))
        before = self.owned(node)
        if not any(node in owners for owners in self.bucket.owners):
            return
        count = data.draw(st.integers(0, min(5, sum(len(self.writes[n]) for n in before))))
        self.lose(node, count)
        topology.failover(self.bucket, node, count)
        self.revision += 1
        assert all(node not in owners for owners in self.bucket.owners)
        if data.draw(st.booleans()):
            topology.recover(self.bucket, node)
            self.revision += 1

    @precondition(lambda self: self.here())
    @rule(data=st.data())
    def crash_and_recover(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(self.here()))
        count = data.draw(st.integers(0, min(5, sum(len(self.writes[n]) for n in self.owned(node)))))
        topology.crash(self.bucket, node)
        assert self.owned(node) == [n for n, owners in enumerate(self.bucket.owners) if owners[0] == node]
        self.lose(node, count)
        topology.recover(self.bucket, node, count)
        self.revision += 1

    @precondition(lambda self: len(self.here()) > 1)
    @rule(data=st.data(), number=st.integers(0, 7))
    def move(self, data: st.DataObject, number: int) -> None:
        owner = self.bucket.owners[number][0]
        others = [node for node in self.here() if node != owner]
        if owner == NOBODY or not others:
            return
        old = self.bucket.active(number)
        topology.move(self.bucket, number, data.draw(st.sampled_from(others)))
        self.revision += 1
        assert old.state is VbucketState.DEAD
        assert self.bucket.active(number).log == old.log

    @rule()
    def grow(self) -> None:
        if len(self.bucket.nodes) < 5:
            missing = [n for n, owners in enumerate(self.bucket.owners) if owners[0] == NOBODY]
            logs = self.logs()
            topology.rebalance_in(self.bucket)
            assert logs.items() <= self.logs().items()
            self.revision += 1
            for number in missing:
                self.writes[number] = []

    @precondition(lambda self: len(self.here()) > 2)
    @rule(data=st.data())
    def shrink(self, data: st.DataObject) -> None:
        missing = [n for n, owners in enumerate(self.bucket.owners) if owners[0] == NOBODY]
        logs = self.logs()
        topology.rebalance_out(self.bucket, data.draw(st.sampled_from(self.here())))
        assert logs.items() <= self.logs().items()
        self.revision += 1
        for number in missing:
            self.writes[number] = []

    @invariant()
    def every_copy_has_what_was_not_lost(self) -> None:
        assert self.bucket.revision == self.revision
        for number, owners in enumerate(self.bucket.owners):
            latest = {key: value for _, key, value in self.writes[number]}
            expected = {key: value for key, value in latest.items() if value is not None}
            for place, owner in enumerate(owners):
                if owner != NOBODY:
                    copy = self.bucket.nodes[owner].vbuckets[number]
                    assert copy.state is (VbucketState.REPLICA if place else VbucketState.ACTIVE)
                    assert contents(copy) == expected
                    assert copy.high_seqno == len(self.writes[number])
                    assert copy.log == self.bucket.active(number).log
            assert len({owner for owner in owners if owner != NOBODY}) == len(owners) - owners.count(NOBODY)


TopologyChanges.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestTroubles = TopologyChanges.TestCase


@given(st.integers(0, 30))
def test_a_failover_loses_exactly_the_last_writes_of_the_node(lose: int) -> None:
    bucket = make_bucket()
    items = fill(bucket, 100)
    numbers = {n for n, owners in enumerate(bucket.owners) if owners[0] == 0}
    mine = [item for item in items if bucket.vbucket_of(item.key) in numbers]
    highs = {n: bucket.active(n).high_seqno for n in numbers}
    topology.failover(bucket, 0, lose)
    gone = mine[len(mine) - lose :]
    assert documents(bucket) == {i.key: i.value for i in items if i not in gone}
    for number in numbers:
        active = bucket.active(number)
        assert active.high_seqno == highs[number] - sum(bucket.vbucket_of(i.key) == number for i in gone)
        assert active.log.newest.seqno == active.high_seqno
        assert len(active.log) == 2


def crash_and_recover(bucket: BucketStore, lose: int) -> None:
    topology.crash(bucket, 0)
    topology.recover(bucket, 0, lose)


TRANSFERS: dict[str, Callable[[BucketStore], object]] = {
    "move": lambda bucket: topology.move(bucket, 0, 2),
    "swap with a replica": lambda bucket: topology.move(bucket, 0, 1),
    "rebalance in": topology.rebalance_in,
    "rebalance out": lambda bucket: topology.rebalance_out(bucket, 0),
    "clean restart": lambda bucket: topology.restart(bucket, 0),
}
ACTIVATIONS: dict[str, Callable[[BucketStore], object]] = {
    "failover": lambda bucket: topology.failover(bucket, 0),
    "failover without loss": lambda bucket: topology.failover(bucket, 0, 0),
    "promotion": lambda bucket: topology.promote(bucket, 0, 1),
    "crash": lambda bucket: crash_and_recover(bucket, 0),
    "crash with loss": lambda bucket: crash_and_recover(bucket, 1),
}


@pytest.mark.parametrize("change", TRANSFERS.values(), ids=TRANSFERS)
def test_a_vbucket_that_is_transferred_keeps_its_history(change: Callable[[BucketStore], object]) -> None:
    # Seen in 8.0.1; so does the source of 6.6.5: VBucket::setState adds an entry only without a transfer.
    bucket = make_bucket()
    bucket.set_replica_lag(1)
    fill(bucket, 100)
    before = {copy.number: (copy.log, copy.high_seqno) for copy in bucket.actives()}
    change(bucket)
    assert {copy.number: (copy.log, copy.high_seqno) for copy in bucket.actives()} == before


@pytest.mark.parametrize("change", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_a_vbucket_that_becomes_active_without_a_transfer_begins_a_history(
    change: Callable[[BucketStore], object],
) -> None:
    # Seen in 8.0.1, 7.2.9 (crash_rollback) and all older ones.
    bucket = make_bucket()
    bucket.set_replica_lag(1)
    fill(bucket, 100)
    known = bucket.active(0).log
    change(bucket)
    active = bucket.active(0)
    assert (len(active.log), active.log.newest.seqno) == (2, active.high_seqno)
    assert list(active.log)[1] == known.newest
    assert active.log.newest.vbuuid != known.newest.vbuuid


@pytest.mark.parametrize("change", [*TRANSFERS.values(), *ACTIVATIONS.values()], ids=[*TRANSFERS, *ACTIVATIONS])
def test_replicas_catch_up_after_any_change_of_the_map(change: Callable[[BucketStore], object]) -> None:
    bucket = make_bucket()
    bucket.set_replica_lag(2)
    fill(bucket, 100)
    change(bucket)
    fill(bucket, 50)
    bucket.set_replica_lag(0)
    for number, copy in enumerate(bucket.actives()):
        assert all([*replica] == [*copy] for replica in bucket.live_replicas(number))


def test_documents_that_are_loaded_come_after_what_a_replica_lacks() -> None:
    bucket = make_bucket(nodes=2, vbuckets=1)
    bucket.set_replica_lag(3)
    fill(bucket, 2)
    bucket.load(0, [StoredItem("mutation", n, b"loaded-%d" % n) for n in (3, 4)])
    assert [item.seqno for item in bucket.nodes[1].vbuckets[0]] == [1, 2, 3, 4]


def test_a_node_that_does_not_persist_persists_nothing_of_a_vbucket_that_moves_to_it() -> None:
    bucket = make_bucket(vbuckets=1)
    bucket.set_persistence(bucket.nodes[2], at_once=False)
    topology.move(bucket, 0, 2)
    fill(bucket, 5)
    assert (bucket.active(0).high_seqno, bucket.active(0).persisted_seqno) == (5, 0)


def test_a_history_has_48_bits() -> None:
    bucket = make_bucket()
    assert {bucket.new_vbuuid().bit_length() for _ in range(50)} == {48}


def test_only_a_tombstone_has_a_delete_time() -> None:
    bucket = make_bucket()
    assert bucket.store(b"key", b"").delete_time == 0
    removed = bucket.remove(b"key")
    assert removed is not None
    assert removed.delete_time == 1000


def test_history_is_no_record_of_versions() -> None:
    assert BucketStore("b", vbuckets=1, clock=lambda: 1000.0, history=True).recorded is None


@pytest.mark.parametrize(("lose", "kept"), [(None, 7), (0, 10), (1, 9), (5, 5)])
def test_a_failover_loses_the_replica_lag_unless_a_number_is_given(lose: int | None, kept: int) -> None:
    bucket = make_bucket(nodes=2, vbuckets=1)
    bucket.set_replica_lag(3)
    fill(bucket, 10)
    topology.failover(bucket, 0, lose)
    assert documents(bucket) == {b"key-%d" % n: b"%d" % n for n in range(kept)}


def test_a_failover_cannot_lose_more_than_the_journal_has() -> None:
    bucket = make_bucket(nodes=2, vbuckets=1)
    fill(bucket, JOURNAL + 9)
    with pytest.raises(LocalProtocolError, match=f"lose: expected at most {JOURNAL} writes of node 0"):
        topology.failover(bucket, 0, JOURNAL + 1)
    assert bucket.nodes[0].alive
    topology.failover(bucket, 0, JOURNAL)
    assert len(documents(bucket)) == 9


def test_a_cleared_journal_of_one_vbucket_limits_the_lost_writes_of_all() -> None:
    bucket = make_bucket(nodes=2, vbuckets=4)
    fill(bucket, 40)
    forgetful = bucket.active(0)
    last = forgetful.last_cas
    forgetful.drop_collection(99)
    newer = [copy for n in (0, 2) for copy in [bucket.active(n)] for item in copy.last_writes if item.cas > last]
    with pytest.raises(LocalProtocolError, match=f"at most {len(newer)} writes"):
        topology.failover(bucket, 0, len(newer) + 1)


def test_the_last_writes_of_a_node_have_no_gaps() -> None:
    # Vbuckets 0 and 2 are on node 0. Nothing can be undone up to the last write of one of them: no older write either.
    bucket = make_bucket(nodes=2, vbuckets=4)
    for number in (2, 0, 2):
        bucket.store(b"key", b"", number=number)
        if not number:
            bucket.active(0).drop_collection(99)
    with pytest.raises(LocalProtocolError, match="at most 1 writes of node 0"):
        topology.failover(bucket, 0, 2)
    topology.failover(bucket, 0, 1)
    assert [bucket.active(number).high_seqno for number in (0, 2)] == [1, 1]


def test_no_write_from_before_a_full_journal_can_be_lost() -> None:
    bucket = make_bucket(nodes=2, vbuckets=4)
    for number in (2, *[0] * (JOURNAL + 1)):
        bucket.store(b"key", b"", number=number)
    with pytest.raises(LocalProtocolError, match=f"at most {JOURNAL} writes of node 0"):
        topology.failover(bucket, 0, JOURNAL + 1)


def test_a_node_without_replicas_comes_back_without_the_writes_that_it_lost() -> None:
    bucket = make_bucket(nodes=2, replicas=0, vbuckets=1)
    items = fill(bucket, 5)
    topology.failover(bucket, 0, 2)
    topology.recover(bucket, 0)
    assert documents(bucket) == {item.key: item.value for item in items[:3]}


def test_a_node_that_comes_back_has_no_copies_but_those_of_the_map() -> None:
    bucket = make_bucket()
    fill(bucket, 20)
    topology.failover(bucket, 0)
    topology.rebalance_in(bucket)
    assert bucket.nodes[0].vbuckets
    topology.recover(bucket, 0)
    assert bucket.nodes[0].vbuckets == {}


def test_a_clean_restart_persists_everything() -> None:
    bucket = make_bucket(vbuckets=1)
    bucket.set_persistence(bucket.nodes[0], at_once=False)
    fill(bucket, 5)
    topology.restart(bucket, 0)
    assert bucket.active(0).persisted_seqno == 5


def test_replicas_on_nodes_that_are_down_are_left_alone() -> None:
    bucket = make_bucket(nodes=3, replicas=2, vbuckets=1)
    fill(bucket, 2)
    topology.crash(bucket, 2)
    before = bucket.nodes[2].vbuckets[0]
    topology.move(bucket, 0, 1)
    topology.failover(bucket, 1)
    assert bucket.nodes[2].vbuckets == {0: before}
    assert bucket.owners == [[0, NOBODY, 2]]


def test_a_vbucket_without_replica_has_no_owner_until_its_node_recovers() -> None:
    bucket = make_bucket(nodes=2, replicas=0)
    fill(bucket, 50)
    mine = [n for n, owners in enumerate(bucket.owners) if owners[0] == 1]
    before = documents(bucket)
    topology.failover(bucket, 1)
    # Copies of these vbuckets exist on the failed node only.
    assert [owners for n, owners in enumerate(bucket.owners) if n in mine] == [[NOBODY]] * len(mine)
    bucket.change_manifest(*bucket.manifest.create_scope("s"))
    topology.recover(bucket, 1)
    assert documents(bucket) == before
    # The change of the manifest reached the vbuckets without owner as well.
    assert all(list(bucket.active(n))[-1].key == b"s" for n in range(8))


def test_a_vbucket_has_no_owner_once_all_nodes_with_a_copy_have_failed() -> None:
    bucket = make_bucket()
    fill(bucket, 30)
    copies = {number: {*owners} for number, owners in enumerate(bucket.owners)}
    topology.failover(bucket, 0)
    topology.failover(bucket, 1)
    assert [number for number, owners in enumerate(bucket.owners) if owners[0] == NOBODY] == [
        number for number, nodes in copies.items() if nodes == {0, 1}
    ]
    assert {owners[0] for owners in bucket.owners} == {NOBODY, 2}
    with pytest.raises(LocalProtocolError, match=r"expected a node that has a replica, \[\], found -1"):
        topology.promote(bucket, next(number for number, nodes in copies.items() if 2 in nodes), NOBODY)


def test_a_manifest_change_of_a_vbucket_without_owner_begins_a_new_history() -> None:
    bucket = make_bucket(nodes=3, vbuckets=1)
    bucket.set_replica_lag(1)
    fill(bucket, 2)
    known = bucket.active(0).log.newest
    topology.crash(bucket, 1)
    topology.failover(bucket, 0)
    bucket.change_manifest(*bucket.manifest.create_scope("s"))
    topology.recover(bucket, 1)
    # The scope has the seqno of the second write, which the recovered node never received.
    assert [branch for branch, _ in zip(bucket.active(0).log, range(3), strict=False)][-1] == known
    assert [seqno for _, seqno in bucket.active(0).log] == [2, 1, 0]


def test_a_recreated_vbucket_has_the_system_events_of_the_manifest() -> None:
    bucket = make_bucket(nodes=2, replicas=0)
    for step in (bucket.manifest.create_scope("s"),):
        bucket.change_manifest(*step)
    bucket.change_manifest(*bucket.manifest.create_collection("s", "c", 5))
    fill(bucket, 50)
    topology.failover(bucket, 1)
    topology.rebalance_in(bucket)
    fresh = [copy for copy in bucket.actives() if not contents(copy)]
    assert fresh
    for copy in fresh:
        assert copy.log.newest.seqno == 0
        assert [item.event_id for item in copy if not isinstance(item, StoredItem)] == [
            SystemEvent.SCOPE_CREATE,
            SystemEvent.COLLECTION_BEGIN,
        ]


def test_a_promotion_loses_writes_that_the_replica_lacks() -> None:
    bucket = make_bucket(nodes=2, vbuckets=1)
    bucket.set_replica_lag(2)
    fill(bucket, 5)
    revision = bucket.revision
    topology.promote(bucket, 0, 1)
    assert (bucket.owners, bucket.revision) == ([[1, 0]], revision + 1)
    assert documents(bucket) == contents(bucket.nodes[0].vbuckets[0]) == {b"key-%d" % n: b"%d" % n for n in range(3)}
    with pytest.raises(LocalProtocolError, match=r"vbucket 0: expected a node that has a replica, \[0\], found 1"):
        topology.promote(bucket, 0, 1)


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_a_rebalance_spreads_vbuckets_evenly_with_few_moves(nodes: int) -> None:
    bucket = make_bucket(nodes=nodes, vbuckets=24)
    before = [owners[0] for owners in bucket.owners]
    new = topology.rebalance_in(bucket).number
    actives = [owners[0] for owners in bucket.owners]
    assert {actives.count(n) for n in range(nodes + 1)} == {24 // (nodes + 1)}
    assert sum(old != now for old, now in zip(before, actives, strict=True)) == actives.count(new)
    assert all(NOBODY not in owners for owners in bucket.owners)
    topology.rebalance_out(bucket, 0)
    assert all(0 not in owners for owners in bucket.owners)
    assert bucket.nodes[0].vbuckets == {}
    actives = [owners[0] for owners in bucket.owners]
    assert {actives.count(n) for n in range(1, nodes + 1)} == {24 // nodes}


def test_replicas_are_on_the_nodes_that_follow_the_owner() -> None:
    bucket = make_bucket(nodes=3, replicas=2)
    topology.rebalance_in(bucket)
    for owner, *replicas in bucket.owners:
        assert replicas == [(owner + 1) % 4, (owner + 2) % 4]


Step = tuple[Callable[..., object], tuple[int, ...]]
MISTAKES: list[tuple[list[Step], str]] = [
    ([(topology.failover, (9,))], "node: expected 0 to 2, found 9"),
    ([(topology.failover, (0, -1))], "lose: expected at least 0"),
    ([(topology.recover, (0,))], "node 0: expected a node that is down, found it up"),
    ([(topology.move, (0, 0))], "vbucket 0: expected another node than its owner, found 0"),
    ([(topology.move, (8, 0))], "vbucket: expected 0 to 7, found 8"),
    ([(topology.crash, (0,)), (topology.promote, (0, 1))], "vbucket 0: no node that is up has an active copy"),
    ([(topology.crash, (1,)), (topology.crash, (1,))], "node 1: expected a node that is up, found it down"),
    ([(topology.crash, (1,)), (topology.rebalance_in, ())], "node 1: it is down; recover it"),
    ([(topology.failover, (1,)), (topology.failover, (1,))], "node 1: expected a node with vbuckets, found none"),
    ([(topology.rebalance_out, (n,)) for n in range(3)], "node 2: the last node cannot leave"),
    ([(BucketStore.set_replica_lag, (-1,))], "lag: expected at least 0"),
]


@pytest.mark.parametrize(("steps", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_impossible_changes_are_refused(steps: list[Step], message: str) -> None:
    bucket = make_bucket()
    *before, (mistake, arguments) = steps
    for step, numbers in before:
        step(bucket, *numbers)
    with pytest.raises(LocalProtocolError, match=message):
        mistake(bucket, *arguments)


def test_the_pager_expires_what_is_due() -> None:
    bucket = make_bucket()
    bucket.store(b"old", b"1", expiry=1000)
    bucket.store(b"new", b"1", expiry=1001)
    assert bucket.expire_due() == 1
    assert [item.event for copy in bucket.actives() for item in copy if isinstance(item, StoredItem)].count(
        "expiration"
    ) == 1
    assert documents(bucket) == {b"new": b"1"}


def test_the_pager_passes_over_vbuckets_without_a_node_that_is_up() -> None:
    # The last node, which would be taken for that of a vbucket without owner, is up.
    for change in (topology.failover, topology.crash):
        bucket = make_bucket(nodes=2, replicas=0)
        fill(bucket, 50)
        for key in KEYS:
            bucket.store(key, b"", expiry=1000)
        mine = [key for key in KEYS if bucket.owners[bucket.vbucket_of(key)][0] == 1]
        change(bucket, 0)
        assert 0 < len(mine) < len(KEYS)
        assert bucket.expire_due() == len(mine)


def test_the_drop_of_the_default_collection_removes_its_documents_from_every_copy() -> None:
    bucket = make_bucket(vbuckets=1)
    fill(bucket, 5)
    bucket.change_manifest(*bucket.manifest.drop_collection("_default", "_default"))
    assert all(contents(copy) == {} for copy in (bucket.active(0), *bucket.live_replicas(0)))


def test_a_purge_reaches_every_copy() -> None:
    bucket = make_bucket(vbuckets=1)
    for key in KEYS:
        bucket.store(key, b"")
        bucket.remove(key)
    assert bucket.purge() == len(KEYS) - 1
    assert {bucket.nodes[owner].vbuckets[0].purge_seqno for owner in bucket.owners[0]} == {2 * len(KEYS) - 2}


def test_a_node_that_comes_back_gets_the_replicas_that_are_missing() -> None:
    bucket = make_bucket(nodes=2, replicas=1)
    fill(bucket, 20)
    before = documents(bucket)
    topology.failover(bucket, 1)
    assert all(NOBODY in owners for owners in bucket.owners)
    topology.recover(bucket, 1)
    assert all(sorted(owners) == [0, 1] for owners in bucket.owners)
    topology.failover(bucket, 0)
    assert documents(bucket) == before


def test_a_replica_whose_node_is_restarted_catches_up_with_what_it_lacked() -> None:
    bucket = make_bucket(nodes=3, vbuckets=6)
    bucket.set_replica_lag(3)
    fill(bucket, 60)
    for number in range(3):
        topology.restart(bucket, number)
    copies = [(bucket.active(number), replica) for number in range(6) for replica in bucket.live_replicas(number)]
    assert {active.high_seqno - replica.high_seqno for active, replica in copies} == {3}
    bucket.set_replica_lag(0)
    assert all(contents(active) == contents(replica) for active, replica in copies)
