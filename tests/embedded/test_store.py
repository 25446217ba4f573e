"""The store against a model: a list of all items that were ever put."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.embedded.store import (
    CHECKPOINT,
    JOURNAL,
    AbortedItem,
    CommittedItem,
    PreparedItem,
    StoredItem,
    SystemItem,
    VbucketStore,
)
from dcp.position import FailoverLog
from dcp.wire.dcp import DurabilityLevel
from dcp.wire.memcached import VbucketState

CHANGES = st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.sampled_from(["mutation", "deletion"])))


def vbucket() -> VbucketStore:
    return VbucketStore(7, VbucketState.ACTIVE, FailoverLog.of([(1, 0)]))


def filled(changes: list[tuple[bytes, str]]) -> tuple[VbucketStore, list[StoredItem]]:
    items = [StoredItem(event, 2 * n + 1, key, delete_time=n) for n, (key, event) in enumerate(changes)]
    vb = vbucket()
    for item in items:
        vb.put(item)
    return vb, items


# Changes of a vbucket of every kind: a durable write is a prepare and what it became.
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["mutation", "deletion", "committed", "aborted", "scope", "evict", "pause", "persist", "purge"]
        ),
        st.sampled_from([b"a", b"b", b"c"]),
        st.integers(0, 1),
    ),
    max_size=30,
)


def stepped(steps: list[tuple[str, bytes, int]], *, history: bool) -> VbucketStore:
    """Return a vbucket after these steps, of which each change is of a key and a collection."""
    vb = vbucket()
    vb.history = [] if history else None
    for step, key, collection in steps:
        seqno = vb.high_seqno + 1
        item = StoredItem("deletion" if step == "deletion" else "mutation", seqno, key, cas=seqno, datatype=collection)
        item = item._replace(collection_id=collection)
        if step in ("mutation", "deletion"):
            vb.put(item)
        elif step in ("committed", "aborted"):
            vb.put(PreparedItem(item, DurabilityLevel.MAJORITY))
            vb.put(
                CommittedItem(item._replace(seqno=seqno + 1), seqno)
                if step == "committed"
                else AbortedItem(seqno + 1, key, seqno, collection)
            )
        elif step == "scope":
            vb.put(SystemItem(seqno, 3, key, 1, 8 + collection))
        elif step == "evict":
            vb.evict_checkpoint()
        elif step == "purge":
            vb.purge()
        else:
            vb.set_persistence(step == "persist")
    return vb


@given(STEPS, st.booleans(), st.integers(0, 20))
def test_a_copy_has_everything_and_shares_nothing(
    steps: list[tuple[str, bytes, int]], history: bool, count: int
) -> None:
    vb, same = stepped(steps, history=history), stepped(steps, history=history)
    other = vb.copy(VbucketState.REPLICA)
    # A copy persists writes until it is told otherwise, and nobody has locked anything on it.
    own = {"state": VbucketState.REPLICA, "persists": True}
    assert vars(other) == vars(same) | own
    vb.undo_writes(count)
    vb.drop_collection(1)
    vb.put(StoredItem("mutation", vb.high_seqno + 1, b"new"))
    assert vars(other) == vars(same) | own


@given(STEPS, st.booleans(), st.integers(1, 20))
def test_what_is_left_after_undone_writes_is_what_was_there_before_them(
    steps: list[tuple[str, bytes, int]], history: bool, count: int
) -> None:
    vb = stepped(steps, history=history)
    begun, persisted = vb.checkpoint_start, vb.persisted_seqno
    writes = vb.last_writes[-count:]
    if not writes:
        return
    # The steps before the first write that is undone.
    before = vbucket()
    for number in range(len(steps) + 1):
        found = stepped(steps[:number], history=history)
        if writes[0] in found.last_writes:
            break
        before = found
    vb.undo_writes(count)
    assert [*vb] == [*before]
    assert vb.history == before.history
    assert (vb.high_seqno, vb.visible_seqno, vb.prepared) == (before.high_seqno, before.visible_seqno, {})
    assert vb.persisted_seqno == min(persisted, vb.high_seqno)
    assert vb.checkpoint_start == min(begun, vb.high_seqno + 1)
    assert max(vb.high_prepared_seqno, vb.high_completed_seqno, *vb.highs.values()) <= vb.high_seqno
    assert all(item.seqno <= vb.high_seqno for item in vb.with_sync_writes([], 0, disk=False))


def latest(items: list[StoredItem], after: int, until: int) -> list[StoredItem]:
    """Return the last version of each key if its seqno is above `after` and up to `until`."""
    last = {item.key: item for item in items}
    return [item for item in items if last[item.key] is item and after < item.seqno <= until]


@given(CHANGES, st.integers(0, 60))
def test_what_is_read_is_the_latest_version_of_each_key_in_order(changes: list[tuple[bytes, str]], after: int) -> None:
    vb, items = filled(changes)
    assert vb.since(after) == latest(items, after, vb.high_seqno)
    assert vb.since(0) == list(vb) == latest(items, 0, vb.high_seqno)
    assert len(vb) == len(latest(items, 0, vb.high_seqno))
    for key in (b"a", b"b", b"c"):
        assert vb.get(0, key) == next((item for item in reversed(items) if item.key == key), None)


@given(CHANGES, st.integers(0, 40))
def test_undone_writes_leave_no_trace(changes: list[tuple[bytes, str]], count: int) -> None:
    vb, items = filled(changes)
    vb.undo_writes(count)
    kept = items[: max(0, len(items) - count)]
    expected, _ = filled(changes[: len(kept)])
    assert vb.since(0) == expected.since(0) == latest(kept, 0, 1000)


def test_many_items_at_once_are_the_same_as_one_by_one() -> None:
    vb, items = filled([(b"a", "mutation"), (b"b", "deletion"), (b"a", "deletion")])
    other = vbucket()
    other.extend(items)
    assert other.since(0) == vb.since(0)
    assert (other.high_seqno, other.checkpoint_start) == (vb.high_seqno, vb.high_seqno + 1)
    assert other.last_writes == vb.last_writes == items


def test_the_history_has_all_of_many_items() -> None:
    vb = vbucket()
    vb.history = []
    items = [StoredItem("mutation", n, b"key") for n in range(1, JOURNAL + 11)]
    vb.extend(items)
    assert vb.history == items


def test_no_write_from_before_a_change_of_the_manifest_is_undone() -> None:
    vb, _ = filled([(b"a", "mutation")])
    vb.put(SystemItem(2, 3, b"scope", 1, 8))
    assert vb.last_writes == []


def test_an_empty_vbucket_has_its_first_checkpoint() -> None:
    vb = vbucket()
    assert (vb.purge_seqno, vb.checkpoint_start, vb.checkpoint, vb.datatypes) == (0, 1, 1, 0)
    # The default collection exists in every vbucket.
    assert (vb.high_seqno_of(0), vb.high_seqno_of(8)) == (0, None)


def test_many_items_at_once_replace_those_of_the_same_keys() -> None:
    vb, _ = filled([(b"0", "mutation"), (b"other", "mutation")])
    first = vb.high_seqno + 1
    vb.extend([StoredItem("mutation", first + n, b"%d" % n, datatype=4 if n == 1 else 1) for n in range(JOURNAL + 10)])
    assert [item.seqno for item in vb] == [3, *range(first, first + JOURNAL + 10)]
    assert vb.datatypes == 5


def test_of_many_items_each_collection_has_its_last_seqno() -> None:
    """Streams of the default collection read each item if the vbucket has other items as well."""
    vb = vbucket()
    vb.extend([StoredItem("mutation", n, b"%d" % n, collection_id=8 if n < 5 else 0) for n in range(1, JOURNAL + 11)])
    assert vb.highs == {8: 4, 0: JOURNAL + 10}
    assert vb.mixed


@pytest.mark.parametrize(
    ("item", "mixed"),
    [
        (StoredItem("mutation", 1, b"a"), False),
        (StoredItem("mutation", 1, b"a", collection_id=8), True),
        (SystemItem(1, 0, b"hotel", 1, 8, 9), True),
        (PreparedItem(StoredItem("mutation", 1, b"a"), DurabilityLevel.MAJORITY), False),
        (PreparedItem(StoredItem("mutation", 1, b"a", collection_id=8), DurabilityLevel.MAJORITY), True),
    ],
)
def test_items_other_than_documents_of_the_default_collection_are_remembered(
    item: StoredItem | SystemItem | PreparedItem, mixed: bool
) -> None:
    vb = vbucket()
    vb.put(item)
    assert vb.mixed is mixed
    vb.put(StoredItem("mutation", 2, b"b"))
    assert vb.mixed is mixed


def test_the_last_of_many_items_can_be_undone() -> None:
    items = [StoredItem("mutation", n, b"%d" % n) for n in range(1, JOURNAL + 11)]
    vb = vbucket()
    vb.extend(items)
    assert vb.last_writes == items[10:]
    vb.undo_writes(JOURNAL)
    assert vb.since(0) == items[:10]


@pytest.mark.parametrize("change", [lambda vb: vb.drop_collection(0), lambda vb: vb.purge()])
def test_undoing_writes_does_not_restore_dropped_or_purged_items(change: Callable[[VbucketStore], object]) -> None:
    vb, _ = filled([(b"a", "deletion"), (b"b", "mutation")])
    change(vb)
    assert vb.last_writes == []


@given(CHANGES, st.none() | st.integers(0, 20))
def test_a_purge_removes_tombstones_but_the_last_item_and_sets_the_purge_seqno(
    changes: list[tuple[bytes, str]], before: int | None
) -> None:
    vb, items = filled(changes)
    alive = latest(items, 0, vb.high_seqno)
    gone = [i for i in alive if not i.alive and i.seqno < vb.high_seqno and (before is None or i.delete_time < before)]
    assert vb.purge(before) == len(gone)
    assert vb.since(0) == [item for item in alive if item not in gone]
    assert vb.purge_seqno == max((item.seqno for item in gone), default=0)


def test_a_tombstone_of_the_very_second_is_not_purged() -> None:
    # Deleted at seconds 0 to 2; the last item stays in any case.
    vb, _ = filled([(b"a", "deletion"), (b"b", "deletion"), (b"c", "deletion"), (b"d", "mutation")])
    assert vb.purge(before=1) == 1
    assert [item.delete_time for item in vb.since(0) if isinstance(item, StoredItem)] == [1, 2, 3]


def test_a_copy_is_independent() -> None:
    vb, _ = filled([(b"a", "mutation")])
    other = vb.copy(VbucketState.REPLICA)
    vb.put(StoredItem("mutation", 9, b"b"))
    assert (len(vb), len(other), other.high_seqno, other.state) == (2, 1, 1, VbucketState.REPLICA)


def test_a_copy_has_high_seqnos_of_collections_of_its_own() -> None:
    vb, _ = filled([(b"a", "mutation")])
    other = vb.copy(VbucketState.REPLICA)
    vb.put(StoredItem("mutation", 9, b"b"))
    assert (vb.highs, other.highs) == ({0: 9}, {0: 1})


def test_the_drop_of_a_collection_replaces_its_creation() -> None:
    vb = vbucket()
    vb.put(SystemItem(1, 0, b"hotel", 1, 8, 9))
    vb.put(SystemItem(2, 1, b"", 2, 8, 9))
    assert [item.seqno for item in vb.since(0)] == [2]


def test_a_seqno_that_does_not_rise_is_refused() -> None:
    vb, _ = filled([(b"a", "mutation")])
    with pytest.raises(ValueError, match="vbucket 7: expected a seqno above 1, found 1"):
        vb.put(StoredItem("mutation", 1, b"b"))


def test_what_was_undone_is_not_persisted() -> None:
    vb, _ = filled([(b"a", "mutation"), (b"b", "mutation"), (b"c", "mutation")])
    high = vb.high_seqno
    for persisted, undone in ((high, 1), (vb.since(0)[0].seqno, 1)):
        copy = vb.copy(VbucketState.ACTIVE)
        copy.persisted_seqno = persisted
        copy.undo_writes(undone)
        assert copy.persisted_seqno == min(persisted, high - 1)


def test_with_history_a_checkpoint_has_each_key_once() -> None:
    vb = vbucket()
    vb.history = []
    begun = []
    for seqno, key in enumerate((b"a", b"a", b"b", b"a", b"a"), 1):
        vb.put(StoredItem("mutation", seqno, key))
        begun.append((vb.checkpoint, vb.checkpoint_start))
    assert begun == [(1, 1), (2, 2), (2, 2), (3, 4), (4, 5)]


def committed(vb: VbucketStore, key: bytes) -> None:
    """Put a durable write: its prepare, and its commit."""
    seqno = vb.high_seqno + 1
    vb.put(PreparedItem(StoredItem("mutation", seqno, key), DurabilityLevel.MAJORITY))
    vb.put(CommittedItem(StoredItem("mutation", seqno + 1, key), seqno))


def test_a_durable_write_in_a_checkpoint_leaves_other_keys_as_they_are() -> None:
    vb = vbucket()
    committed(vb, b"durable")
    for seqno in (3, 4):
        vb.put(StoredItem("mutation", seqno, b"plain"))
    assert (vb.checkpoint, vb.checkpoint_start) == (1, 1)
    vb.put(StoredItem("mutation", 5, b"durable"))
    assert (vb.checkpoint, vb.checkpoint_start) == (2, 5)


def test_what_a_consumer_has_of_a_durable_write_is_not_sent_again() -> None:
    vb = vbucket()
    prepare = PreparedItem(StoredItem("mutation", 1, b"a"), DurabilityLevel.MAJORITY)
    vb.put(prepare)
    assert [vb.with_sync_writes([], seqno, disk=False) for seqno in (0, 1)] == [[prepare], []]


def test_all_prepares_up_to_a_seqno_are_completed() -> None:
    vb = vbucket()
    committed(vb, b"first")
    pending = PreparedItem(StoredItem("mutation", 3, b"pending"), DurabilityLevel.MAJORITY)
    vb.put(pending)
    vb.put(PreparedItem(StoredItem("mutation", 4, b"aborted"), DurabilityLevel.MAJORITY))
    vb.put(AbortedItem(5, b"aborted", 4))
    assert vb.high_completed_seqno == 2
    vb.put(CommittedItem(pending.document._replace(seqno=6), 3))
    assert vb.high_completed_seqno == 4


def test_nothing_is_left_of_durable_writes_that_were_undone() -> None:
    vb = vbucket()
    vb.put(StoredItem("mutation", 1, b"kept"))
    committed(vb, b"lost")
    vb.put(PreparedItem(StoredItem("mutation", 4, b"pending"), DurabilityLevel.MAJORITY))
    vb.undo_writes(1)
    assert (vb.high_seqno, vb.prepared) == (1, {})
    for seqno in (2, 3):
        vb.put(StoredItem("mutation", seqno, b"new %d" % seqno))
    assert vb.with_sync_writes(vb.since(0), 0, disk=False) == vb.since(0)


@pytest.mark.parametrize("key", [b"same", b"key %d"])
def test_checkpoints_are_numbered_in_the_order_in_which_they_begin(key: bytes) -> None:
    vb = vbucket()
    begun = {vb.checkpoint: vb.checkpoint_start}
    for seqno in range(1, 2 * CHECKPOINT + 10):
        vb.put(StoredItem("mutation", seqno, key % seqno if b"%" in key else key))
        assert begun.setdefault(vb.checkpoint, vb.checkpoint_start) == vb.checkpoint_start
    assert list(begun) == list(range(1, len(begun) + 1))
    assert len(begun) > 2
    if key != b"same":
        first, *others = begun.values()
        assert others == [first + CHECKPOINT, first + 2 * CHECKPOINT]
