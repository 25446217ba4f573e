"""Consumer that checks the order of everything that it receives, and that all of it was written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from dcp.embedded import Cluster
from tests.client.consumer import Consumer


class Ledger(Consumer):
    """Rows of a consumer, checked as they arrive.

    in_order: False if snapshots may be out of order.
    """

    def __init__(self, *, in_order: bool = True) -> None:
        super().__init__()
        self._in_order = in_order

    def keep(self, rows: Iterable[dict[str, Any]]) -> None:
        before = {vbucket: max(row.seqno for row in log) for vbucket, log in self.rows.items() if log}
        known = len(self.rollbacks)
        super().keep(rows)
        undone = self.rollbacks[known:]
        for vbucket, since, back in undone:
            assert back <= since, f"vbucket {vbucket}: rolled back from {since} to {back}"
            assert before.get(vbucket, 0) <= since, f"vbucket {vbucket}: has more than {since}, which is undone"
        for vbucket, log in self.rows.items():
            seqnos = [row.seqno for row in log]
            if not self._in_order:
                seqnos.sort()
            assert all(a < b for a, b in pairwise(seqnos)), f"vbucket {vbucket}: {seqnos}"

    def copy(self) -> Ledger:
        twin = Ledger(in_order=self._in_order)
        twin.rows.update({vbucket: list(log) for vbucket, log in self.rows.items()})
        twin.rollbacks = list(self.rollbacks)
        return twin

    def forget_above(self, seqnos: Mapping[int, int]) -> None:
        """Forget the rows above a seqno of each vbucket, 0 for those that are not named."""
        for vbucket, log in self.rows.items():
            log[:] = [row for row in log if row.seqno <= seqnos.get(vbucket, 0)]

    def check_versions(self, cluster: Cluster, path: str) -> None:
        """Check that all rows were written to the cluster, even if they were lost later."""
        number = cluster.collection_ids()[path]
        written = {
            (version.vbucket, version.seqno, version.event, key)
            for key, versions in cluster.recorded_versions(path).items()
            for version in versions
        }
        for vbucket, log in self.rows.items():
            for row in log:
                # Unless it is enabled, expirations arrive as deletions.
                possible = {(vbucket, row.seqno, event, row.key) for event in (row.event, "expiration")}
                assert row.collection_id != number or possible & written, f"vbucket {vbucket}: not written: {row}"
