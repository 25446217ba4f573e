"""What exists, as the events of many vbuckets tell of it, each in its own order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dcp
from dcp.embedded.manifest import BucketManifest as Truth
from dcp.embedded.store import SystemItem
from dcp.embedded.system_event import system_event
from dcp.errors import RemoteProtocolError
from dcp.session import manifest
from dcp.session.manifest import Collection, Manifest
from dcp.wire.frame import Frame, encode
from dcp.wire.layout import Magic
from tests.conformance import vectors

CHANGES = st.lists(
    st.tuples(st.sampled_from(["scope", "collection", "drop", "drop scope"]), st.integers(0, 5)), max_size=20
)


def events(changes: list[tuple[str, int]]) -> tuple[Truth, list[SystemItem]]:
    truth = Truth()
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
            said = (int(c.event), c.name.encode(), c.manifest_uid, c.scope_id, c.collection_id, c.max_ttl)
            items.append(SystemItem(len(items) + 1, *said))
    return truth, items


def frame(item: SystemItem, flatbuffers: bool) -> Frame:
    fields, key, value = system_event(item, flatbuffers)
    return dcp.decode(encode(Frame("system_event", Magic.REQUEST, 1, fields=fields, key=key, value=value)))[0]


@given(CHANGES, st.data(), st.integers(1, 4))
def test_in_whatever_order_vbuckets_tell_it_is_what_the_cluster_has(
    changes: list[tuple[str, int]], data: st.DataObject, vbuckets: int
) -> None:
    truth, items = events(changes)
    told = Manifest()
    left = [list(items) for _ in range(vbuckets)]
    while any(left):
        one = data.draw(st.sampled_from([items for items in left if items]))
        told.take(frame(one.pop(0), data.draw(st.booleans())))
    assert told.scopes.keys() == {scope.id for scope in truth.scopes}
    assert {number: scope.name for number, scope in told.scopes.items()} == {s.id: s.name for s in truth.scopes}
    found = {number: (c.scope_id, c.name, c.max_ttl) for number, c in told.collections.items()}
    assert found == {c.id: (s.id, c.name, c.max_ttl) for s in truth.scopes for c in s.collections}
    assert told.uid == max([item.manifest_uid for item in items], default=0)
    for scope in truth.scopes:
        for collection in scope.collections:
            assert told.path(collection.id) == f"{scope.name}.{collection.name}"


def test_what_one_vbucket_saw_dropped_does_not_come_back_with_the_news_of_a_slower_one() -> None:
    begins, ends = SystemItem(1, 0, b"hotel", 1, 0, 8), SystemItem(2, 1, b"", 2, 0, 8)
    told = Manifest()
    for item in (begins, ends, begins):
        told.take(frame(item, False))
    assert told.collections.keys() == {0}
    assert told.uid == 2


def test_the_drawn_events_tell_of_inventory() -> None:
    """The frames of the reference: a scope, a collection, one with a time to live that goes, a modified one."""
    drawn = [dcp.decode(one.sound)[0] for one in vectors() if one.file == "examples" and one.sound[1] == 0x5F]
    assert len(drawn) == 6
    told = Manifest()
    for event in drawn:
        told.take(event)
    assert told.uid == 0x20
    assert told.scopes.keys() == {0}
    assert told.collections[0x91] == Collection(0x20, "room", 0xC, 86400)
    assert told.path(0) == "_default._default"
    assert told.path(0x8F) is None
    assert told.path(99) is None


def test_there_is_an_end_to_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "MOST_IDS", 50)
    told = Manifest()
    for number in range(48):
        told.take(frame(SystemItem(number + 1, 1, b"", 1, 0, number + 100), False))
    with pytest.raises(RemoteProtocolError, match="at most 50"):
        told.take(frame(SystemItem(99, 1, b"", 1, 0, 999), False))
