"""A correct consumer: it keeps delivered rows, and undoes rollbacks."""

from __future__ import annotations

import contextlib
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import dcp
from dcp.client.follow.node_link import NodeLink
from dcp.embedded import Cluster
from tests.waiting import until

# Seconds that nothing takes which works.
PATIENCE = 30


class Row(NamedTuple):
    """One delivered change."""

    seqno: int
    event: str
    collection_id: int
    key: bytes
    value: bytes


class Consumer:
    """Log of the rows that a stream has delivered, by vbucket."""

    def __init__(self) -> None:
        self.rows: dict[int, list[Row]] = defaultdict(list)
        self.rollbacks: list[tuple[int, int, int]] = []

    def take(self, batch: dcp.Batch) -> None:
        self.keep(batch.to_arrow().to_pylist())

    def keep(self, rows: Iterable[dict[str, Any]]) -> None:
        for row in rows:
            log = self.rows[row["vbucket"]]
            if row["event"] == "rollback":
                self.rollbacks.append((row["vbucket"], row["snapshot_end"], row["seqno"]))
                log[:] = [kept for kept in log if kept.seqno <= row["seqno"]]
            else:
                log.append(Row(row["seqno"], row["event"], row["collection_id"] or 0, row["key"], row["value"]))

    def state(self, collection_id: int = 0) -> dict[bytes, tuple[bytes, int]]:
        """Return value and seqno of each document that exists."""
        latest: dict[bytes, Row] = {}
        for log in self.rows.values():
            for row in log:
                if row.collection_id == collection_id and (row.key not in latest or latest[row.key].seqno < row.seqno):
                    latest[row.key] = row
        return {key: (row.value, row.seqno) for key, row in latest.items() if row.event == "mutation"}


def truth(cluster: Cluster, collection: str = "_default._default") -> dict[bytes, tuple[bytes, int]]:
    """Return the documents that a consumer should have, in the same form."""
    return {key: (found.value, found.seqno) for key, found in cluster.truth(collection).items()}


def catch_up(stream: dcp.ChangeStream, consumer: Consumer, cluster: Cluster) -> None:
    """Consume batches until the consumer has the documents of the cluster."""
    while consumer.state() != truth(cluster):
        batch = stream.next(PATIENCE)
        assert batch is not None
        consumer.take(batch)


def link_of(stream: dcp.ChangeStream) -> NodeLink:
    """Return the only connection of a stream."""
    [link] = until(lambda: list(stream._follower._pool))
    return link


@contextlib.contextmanager
def hasty_threads() -> Iterator[None]:
    """Switch threads so often that races between them happen."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
