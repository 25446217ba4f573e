"""Helpers of the Spark tests: rows applied as by a reader, and the documents of a cluster."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import dcp
from dcp.embedded import Cluster
from dcp.spark import Plan
from dcp.spark.retry import DEFAULTS, Timing
from dcp.spark.task import read_partition
from dcp.wire.frame import Frame
from dcp.wire.layout import Magic

LARGEST_SEQNO = (1 << 64) - 1

Documents = dict[bytes, tuple[bytes, int]]


class RowReader:
    """Keeps each row under its vbucket and seqno, and undoes rows as rollbacks demand."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int], dict[str, Any]] = {}
        # Vbucket and seqno of each rollback.
        self.rolled_back_to: list[tuple[int, int]] = []

    @property
    def rollbacks(self) -> int:
        """Number of rollbacks so far."""
        return len(self.rolled_back_to)

    def read(self, plan: Plan, timing: Timing = DEFAULTS) -> None:
        """Apply the rows of a plan, without Spark."""
        for partition in plan.partitions:
            for batch in read_partition(partition, plan.options, timing=timing):
                self.apply_batch(batch)

    def apply_batch(self, batch: pa.RecordBatch) -> None:
        """Apply the rows of a batch."""
        for row in batch.to_pylist():
            self.apply(row)

    def apply(self, row: dict[str, Any]) -> None:
        """Keep a row, or undo those after a rollback."""
        if row["event"] == "rollback":
            self.rolled_back_to.append((row["vbucket"], row["seqno"]))
            kept = self.rows.items()
            self.rows = {at: row_ for at, row_ in kept if at[0] != row["vbucket"] or at[1] <= row["seqno"]}
        else:
            self.rows[row["vbucket"], row["seqno"]] = row

    @property
    def documents(self) -> Documents:
        """Value and CAS of each document, by key."""
        newest = {row["key"]: row for _, row in sorted(self.rows.items(), key=lambda item: item[0])}
        return {key: (row["value"], row["cas"]) for key, row in newest.items() if row["event"] == "mutation"}


def truth(cluster: Cluster, collection: str = "_default._default") -> Documents:
    """Return value and CAS of each document that the cluster has, by key."""
    return {key: (document.value, document.cas) for key, document in cluster.truth(collection).items()}


def replace_and_delete(cluster: Cluster) -> None:
    """Write 60 of the documents `key 0` to `key 199` again, and delete 60 others."""
    for number in range(60):
        cluster.upsert(f"key {number}", b"2")
        cluster.delete(f"key {number + 100}")


def high_seqnos(cluster: Cluster) -> dict[int, int]:
    """Return the high seqno of each vbucket."""
    with dcp.connect(cluster.url) as client:
        return client.high_seqnos()


def mutation(columns: tuple[str, ...], *keys: bytes) -> pa.RecordBatch:
    """Return a batch of mutations with the largest possible numbers, one for each key."""
    fields = {
        "seqno": LARGEST_SEQNO,
        "rev_seqno": 2,
        "flags": 0xFFFF_FFFF,
        "expiry": 0,
        "lock_time": 0,
        "nru": 0,
    }
    decoder = dcp.Decoder(columns=columns, types="plain")
    for key in keys or (b"k",):
        decoder.feed(dcp.encode(Frame("mutation", Magic.REQUEST, vbucket=0xFFFF, fields=fields, key=key, value=b"v")))
    return decoder.take().to_arrow()
