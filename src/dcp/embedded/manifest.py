"""The collections manifest of a bucket: its scopes and collections, and their changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dcp.embedded.arguments import check_number
from dcp.errors import UsageError
from dcp.wire.dcp import SystemEvent

# Servers reserve the ids below.
_FIRST_ID = 8
DEFAULT = "_default"
# Seconds: servers keep it in 31 bits.
LONGEST_TTL = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Collection:
    """Collection of a scope. `max_ttl` is in seconds; None for no limit."""

    id: int
    name: str
    max_ttl: int | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """Scope and its collections."""

    id: int
    name: str
    collections: tuple[Collection, ...] = ()


@dataclass(frozen=True, slots=True)
class ManifestStep:
    """One change of a manifest, which becomes a system event in every vbucket."""

    event: SystemEvent
    manifest_uid: int
    name: str
    scope_id: int
    collection_id: int | None = None
    max_ttl: int | None = None


@dataclass(frozen=True, slots=True)
class BucketManifest:
    """State of all scopes and collections. Each change returns a new manifest with the next uid, and its steps."""

    uid: int = 0
    scopes: tuple[Scope, ...] = (Scope(0, DEFAULT, (Collection(0, DEFAULT),)),)
    next_id: int = _FIRST_ID

    def create_scope(self, name: str) -> tuple[BucketManifest, list[ManifestStep]]:
        _check_name(name)
        if any(scope.name == name for scope in self.scopes):
            raise UsageError(f"scope {name!r}: it exists already")
        scope = Scope(self.next_id, name)
        changed = replace(self, uid=self.uid + 1, scopes=(*self.scopes, scope), next_id=self.next_id + 1)
        return changed, [ManifestStep(SystemEvent.SCOPE_CREATE, changed.uid, name, scope.id)]

    def create_collection(
        self, scope: str, name: str, max_ttl: int | None = None
    ) -> tuple[BucketManifest, list[ManifestStep]]:
        _check_name(name)
        check_number("max_ttl", 0 if max_ttl is None else max_ttl, 0, LONGEST_TTL)
        owner = self.scope(scope)
        if any(collection.name == name for collection in owner.collections):
            raise UsageError(f"collection {scope}.{name}: it exists already")
        collection = Collection(self.next_id, name, max_ttl)
        grown = replace(owner, collections=(*owner.collections, collection))
        changed = replace(self._with(grown), uid=self.uid + 1, next_id=self.next_id + 1)
        return changed, [
            ManifestStep(SystemEvent.COLLECTION_BEGIN, changed.uid, name, owner.id, collection.id, max_ttl)
        ]

    def drop_collection(self, scope: str, name: str) -> tuple[BucketManifest, list[ManifestStep]]:
        owner = self.scope(scope)
        dropped = self.collection(scope, name)
        shrunk = replace(owner, collections=tuple(c for c in owner.collections if c.id != dropped.id))
        changed = replace(self._with(shrunk), uid=self.uid + 1)
        return changed, [ManifestStep(SystemEvent.COLLECTION_END, changed.uid, name, owner.id, dropped.id)]

    def drop_scope(self, name: str) -> tuple[BucketManifest, list[ManifestStep]]:
        """Drop a scope after its collections."""
        dropped = self.scope(name)
        if dropped.id == 0:
            raise UsageError(f"scope {name}: the default scope cannot be dropped")
        scopes = tuple(scope for scope in self.scopes if scope.id != dropped.id)
        changed = replace(self, uid=self.uid + 1, scopes=scopes)
        # As on servers, only the last event of a change has the new uid.
        ends = [
            ManifestStep(SystemEvent.COLLECTION_END, self.uid, collection.name, dropped.id, collection.id)
            for collection in dropped.collections
        ]
        return changed, [*ends, ManifestStep(SystemEvent.SCOPE_DROP, changed.uid, name, dropped.id)]

    def scope(self, name: str) -> Scope:
        for scope in self.scopes:
            if scope.name == name:
                return scope
        raise UsageError(f"scope {name!r}: expected one of {', '.join(scope.name for scope in self.scopes)}")

    def collection(self, scope: str, name: str) -> Collection:
        owner = self.scope(scope)
        for collection in owner.collections:
            if collection.name == name:
                return collection
        names = ", ".join(collection.name for collection in owner.collections) or "none"
        raise UsageError(f"collection {name!r}: expected one of scope {scope}, which has {names}")

    def collections(self) -> dict[int, Collection]:
        """Return all collections by id."""
        return {collection.id: collection for scope in self.scopes for collection in scope.collections}

    def steps(self) -> list[ManifestStep]:
        """Return the steps that lead to this manifest from the initial one: each scope before its collections."""
        made: list[ManifestStep] = []
        for scope in self.scopes:
            if scope.id:
                made.append(ManifestStep(SystemEvent.SCOPE_CREATE, self.uid, scope.name, scope.id))
            made += [
                ManifestStep(SystemEvent.COLLECTION_BEGIN, self.uid, c.name, scope.id, c.id, c.max_ttl)
                for c in scope.collections
                if c.id
            ]
        return made

    def to_json(self) -> dict[str, Any]:
        """Return the manifest in the form of servers: ids are hexadecimal text."""
        return {"uid": f"{self.uid:x}", "scopes": [_scope_json(scope) for scope in self.scopes]}

    def _with(self, scope: Scope) -> BucketManifest:
        return replace(self, scopes=tuple(scope if old.id == scope.id else old for old in self.scopes))


def _scope_json(scope: Scope) -> dict[str, Any]:
    collections = [
        {"name": c.name, "uid": f"{c.id:x}"} | ({} if c.max_ttl is None else {"maxTTL": c.max_ttl})
        for c in scope.collections
    ]
    return {"name": scope.name, "uid": f"{scope.id:x}", "collections": collections}


def _check_name(name: object) -> None:
    """Raise UsageError unless servers accept the name."""
    if not isinstance(name, str):
        raise UsageError(f"name: expected text, found {name!r:.100}")
    allowed = name.isascii() and all(letter.isalnum() or letter in "_-%" for letter in name)
    if not allowed or not 1 <= len(name) <= 251 or name[0] in "_%":
        raise UsageError(f"name {name!r}: expected 1 to 251 letters, digits, _, - or %, and neither _ nor % first")
