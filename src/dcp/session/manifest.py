"""The scopes and collections of a bucket, as the system events of its streams tell of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dcp.errors import RemoteProtocolError
from dcp.wire.dcp import SystemEvent
from dcp.wire.frame import Frame

DEFAULT = "_default"
# The version of an event whose value is a table.
FLATBUFFERS = 2
# Ids, dropped ones among them; servers have 1200 collections at most at a time.
MOST_IDS = 1 << 20

_CREATED = (SystemEvent.COLLECTION_BEGIN, SystemEvent.COLLECTION_MODIFY, SystemEvent.SCOPE_CREATE)
_DROPPED = (SystemEvent.COLLECTION_END, SystemEvent.SCOPE_DROP)
_OF_SCOPES = (SystemEvent.SCOPE_CREATE, SystemEvent.SCOPE_DROP)


class Scope(NamedTuple):
    """A scope, and the uid of the manifest that brought it in this form."""

    uid: int
    name: str


class Collection(NamedTuple):
    """A collection. `max_ttl` is None where documents do not expire by themselves."""

    uid: int
    name: str
    scope_id: int
    max_ttl: int | None = None


@dataclass
class Manifest:
    """What exists, by id. `uid` is the newest that any event told.

    Every vbucket tells the same changes, each at its own pace. No id is ever used again: so what one of them
    saw dropped stays dropped, and of two forms the one of the newer manifest counts. The order of events of
    different vbuckets does not matter.
    """

    uid: int = 0
    scopes: dict[int, Scope] = field(default_factory=lambda: {0: Scope(0, DEFAULT)})
    collections: dict[int, Collection] = field(default_factory=lambda: {0: Collection(0, DEFAULT, 0)})
    _gone: set[tuple[bool, int]] = field(default_factory=set, repr=False)

    def path(self, collection_id: int) -> str | None:
        """`scope.collection`, as far as events told."""
        collection = self.collections.get(collection_id)
        scope = None if collection is None else self.scopes.get(collection.scope_id)
        return None if collection is None or scope is None else f"{scope.name}.{collection.name}"

    def take(self, frame: Frame) -> None:
        """A system event; those of unknown kinds change nothing."""
        event = frame.fields["event_id"]
        if event not in _CREATED + _DROPPED:
            return
        said = frame.body() if frame.fields["version"] == FLATBUFFERS else frame.fields
        if "manifest_uid" not in said:
            return
        of_scope = event in _OF_SCOPES
        number = int(said["scope_id" if of_scope else "collection_id"])
        self.uid = max(self.uid, int(said["manifest_uid"]))
        if event in _DROPPED:
            self._drop(of_scope, number)
        elif (of_scope, number) not in self._gone:
            self._create(said, frame.key.decode(errors="replace"), of_scope, number)

    def _create(self, said: Mapping[str, Any], name: str, of_scope: bool, number: int) -> None:
        uid = int(said["manifest_uid"])
        if of_scope:
            self.scopes[number] = Scope(uid, name)
        elif number not in self.collections or self.collections[number].uid <= uid:
            ttl = said.get("max_ttl") if said.get("ttl_valid", True) else None
            self.collections[number] = Collection(uid, name, int(said["scope_id"]), ttl)
        self._check_room()

    def _drop(self, of_scope: bool, number: int) -> None:
        self._gone.add((of_scope, number))
        if of_scope:
            self.scopes.pop(number, None)
        else:
            self.collections.pop(number, None)
        self._check_room()

    def _check_room(self) -> None:
        if len(self.scopes) + len(self.collections) + len(self._gone) > MOST_IDS:
            raise RemoteProtocolError(f"manifest: expected at most {MOST_IDS} scopes and collections, found more")
