"""System events of many vbuckets, each read in its own order, give the scopes and collections that the cluster has."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

import dcp
from dcp.embedded.manifest import BucketManifest
from dcp.embedded.store import SystemItem
from dcp.embedded.system_event import system_event
from dcp.wire.dcp import SystemEvent
from dcp.wire.frame import Frame, encode
from dcp.wire.layout import Magic
from tests.conformance import vectors

DROPPED = (SystemEvent.COLLECTION_END, SystemEvent.SCOPE_DROP)
OF_SCOPES = (SystemEvent.SCOPE_CREATE, SystemEvent.SCOPE_DROP)
FLATBUFFERS = 2


class Known(NamedTuple):
    """A scope or collection, and the uid of the manifest that brought it in this form."""

    uid: int
    name: str
    scope_id: int | None = None
    max_ttl: int | None = None


class EventManifest:
    """Scopes and collections by id, as system events report them.

    Ids are never used again: one that any vbucket saw dropped stays dropped, and of two forms of a collection that
    of the newer manifest counts. So events of different vbuckets may arrive in any order.
    """

    def __init__(self) -> None:
        self.uid = 0
        self.scopes = {0: Known(0, "_default")}
        self.collections = {0: Known(0, "_default", 0)}
        self._dropped: set[tuple[bool, int]] = set()

    def path(self, collection_id: int) -> str | None:
        """Return `scope.collection`; None if either is unknown."""
        collection = self.collections.get(collection_id)
        scope = None if collection is None else self.scopes.get(collection.scope_id or 0)
        return None if collection is None or scope is None else f"{scope.name}.{collection.name}"

    def take(self, frame: Frame) -> None:
        """Apply a system event."""
        event = frame.fields["event_id"]
        values: Any = frame.body() if frame.fields["version"] == FLATBUFFERS else frame.fields
        known = self.scopes if event in OF_SCOPES else self.collections
        number = int(values["scope_id" if event in OF_SCOPES else "collection_id"])
        uid, key = int(values["manifest_uid"]), (event in OF_SCOPES, number)
        self.uid = max(self.uid, uid)
        if event in DROPPED:
            self._dropped.add(key)
            known.pop(number, None)
        elif key not in self._dropped and (number not in known or known[number].uid <= uid):
            ttl = values.get("max_ttl") if values.get("ttl_valid", True) else None
            name = frame.key.decode(errors="replace")
            known[number] = Known(uid, name) if event in OF_SCOPES else Known(uid, name, int(values["scope_id"]), ttl)


CHANGES = st.lists(
    st.tuples(st.sampled_from(["scope", "collection", "drop", "drop scope"]), st.integers(0, 5)), max_size=20
)


def events(changes: list[tuple[str, int]]) -> tuple[BucketManifest, list[SystemItem]]:
    truth = BucketManifest()
    items: list[SystemItem] = []
    for n, (what, pick) in enumerate(changes):
        scope = truth.scopes[pick % len(truth.scopes)]
        if what == "scope":
            truth, made = truth.create_scope(f"s{n}")
        elif what == "collection":
            truth, made = truth.create_collection(scope.name, f"c{n}", pick or None)
        elif what == "drop" and scope.collections:
            truth, made = truth.drop_collection(scope.name, scope.collections[pick % len(scope.collections)].name)
        elif what == "drop scope" and scope.id:
            truth, made = truth.drop_scope(scope.name)
        else:
            continue
        for c in made:
            values = (int(c.event), c.name.encode(), c.manifest_uid, c.scope_id, c.collection_id, c.max_ttl)
            items.append(SystemItem(len(items) + 1, *values))
    return truth, items


def frame(item: SystemItem, flatbuffers: bool) -> Frame:
    fields, key, value = system_event(item, flatbuffers)
    return dcp.decode(encode(Frame("system_event", Magic.REQUEST, 1, fields=fields, key=key, value=value)))[0]


@given(CHANGES, st.data(), st.integers(1, 4))
def test_in_whatever_order_vbuckets_tell_it_is_what_the_cluster_has(
    changes: list[tuple[str, int]], data: st.DataObject, vbuckets: int
) -> None:
    truth, items = events(changes)
    manifest = EventManifest()
    left = [list(items) for _ in range(vbuckets)]
    while any(left):
        one = data.draw(st.sampled_from([items for items in left if items]))
        manifest.take(frame(one.pop(0), data.draw(st.booleans())))
    assert manifest.scopes.keys() == {scope.id for scope in truth.scopes}
    assert {number: scope.name for number, scope in manifest.scopes.items()} == {s.id: s.name for s in truth.scopes}
    collections = {number: (c.scope_id, c.name, c.max_ttl) for number, c in manifest.collections.items()}
    assert collections == {c.id: (s.id, c.name, c.max_ttl) for s in truth.scopes for c in s.collections}
    assert manifest.uid == max([item.manifest_uid for item in items], default=0)
    for scope in truth.scopes:
        for collection in scope.collections:
            assert manifest.path(collection.id) == f"{scope.name}.{collection.name}"


def test_what_one_vbucket_saw_dropped_does_not_come_back_with_the_news_of_a_slower_one() -> None:
    begins, ends = SystemItem(1, 0, b"hotel", 1, 0, 8), SystemItem(2, 1, b"", 2, 0, 8)
    manifest = EventManifest()
    for item in (begins, ends, begins):
        manifest.take(frame(item, False))
    assert manifest.collections.keys() == {0}
    assert manifest.uid == 2


def test_the_drawn_events_tell_of_inventory() -> None:
    """Frames of the reference: a scope, a collection, one with a time to live that is dropped, a modified one."""
    drawn = [dcp.decode(one.sound)[0] for one in vectors() if one.file == "examples" and one.sound[1] == 0x5F]
    assert len(drawn) == 6
    manifest = EventManifest()
    for event in drawn:
        manifest.take(event)
    assert manifest.uid == 0x20
    assert manifest.scopes.keys() == {0}
    assert manifest.collections[0x91] == Known(0x20, "room", 0xC, 86400)
    assert manifest.path(0) == "_default._default"
    assert manifest.path(0x8F) is None
    assert manifest.path(99) is None
