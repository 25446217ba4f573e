"""The history of a vbucket: its changes, branches and copies."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from typing import NamedTuple


class Change(NamedTuple):
    """One change. kind: `mutation`, `deletion` or `expiration`."""

    seqno: int
    collection: int
    key: bytes
    kind: str
    value: bytes
    cas: int


@dataclass
class Vbucket:
    """Changes of the active copy, and how far each copy has them on disk.

    log: pairs of uuid and seqno, newest first.
    copies: index of the node of each copy, the active first; `persisted` has the same order.
    """

    number: int
    copies: list[int]
    log: list[tuple[int, int]]
    changes: list[Change] = field(default_factory=list)
    persisted: list[int] = field(default_factory=list)

    @property
    def high(self) -> int:
        return self.changes[-1].seqno if self.changes else 0

    @property
    def safe(self) -> int:
        """The seqno that every copy has on disk."""
        return min(self.persisted)

    def write(self, draw: random.Random, collection: int, key: bytes, kind: str, value: bytes, cas: int) -> None:
        # Seqnos of other kinds of items, which no client sees, lie in between.
        seqno = self.high + draw.choice((1, 1, 1, 1, 2, 5))
        self.changes.append(Change(seqno, collection, key, kind, value, cas))

    def persist(self, draw: random.Random) -> None:
        self.persisted = [draw.randint(done, self.high) for done in self.persisted]

    def promote(self, draw: random.Random, keep: int) -> None:
        """Let another copy go on from what it has: changes above `keep` are lost, and a new branch begins."""
        if len(self.copies) > 1:
            self.copies.append(self.copies.pop(0))
            self.persisted.append(self.persisted.pop(0))
        self.changes = [change for change in self.changes if change.seqno <= keep]
        self.persisted = [min(done, self.high) for done in self.persisted]
        log = [entry for entry in self.log if entry[1] <= self.high]
        self.log = [(draw.getrandbits(48) | 1, self.high), *log][:25]

    def packed_log(self) -> bytes:
        return b"".join(struct.pack(">QQ", *entry) for entry in self.log)

    def newest(self, above: int, collections: frozenset[int] | None) -> list[Change]:
        """Return the newest change of each key above a seqno, as a backfill sends them."""
        return newest([c for c in self.changes if c.seqno > above and visible(c, collections)])

    def rollback(self, start: int, uuid: int, snap_start: int, snap_end: int) -> int | None:
        """Return the seqno to which a consumer has to roll back, or None."""
        if start == 0:
            return None
        places = [index for index, (known, _) in enumerate(self.log) if known == uuid]
        if not places:
            return 0
        upper = self.log[places[-1] - 1][1] if places[-1] else self.high
        if start == snap_start:
            snap_end = start
        if snap_end <= upper:
            return None
        if start == snap_end:
            snap_start = start
        return upper if upper < snap_start else snap_start


def newest(changes: list[Change]) -> list[Change]:
    last = {(change.collection, change.key): change.seqno for change in changes}
    return [change for change in changes if last[change.collection, change.key] == change.seqno]


def visible(change: Change, collections: frozenset[int] | None) -> bool:
    return collections is None or change.collection in collections
