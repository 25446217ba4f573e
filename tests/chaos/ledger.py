"""Consumer that checks the order of everything that it receives, and that all of it was written."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from dcp.embedded import Cluster
from tests.client.consumer import Consumer


class Ledger(Consumer):
    """Rows of a consumer, checked as they arrive."""

    def keep(self, rows: Iterable[dict[str, Any]]) -> None:
        before = {vbucket: log[-1].seqno for vbucket, log in self.rows.items() if log}
        known = len(self.rollbacks)
        super().keep(rows)
        undone = self.rollbacks[known:]
        for vbucket, since, back in undone:
            assert back <= since, f"vbucket {vbucket}: rolled back from {since} to {back}"
            assert before.get(vbucket, 0) <= since, f"vbucket {vbucket}: has more than {since}, which is undone"
        for vbucket, log in self.rows.items():
            seqnos = [row.seqno for row in log]
            assert all(a < b for a, b in pairwise(seqnos)), f"vbucket {vbucket}: {seqnos}"

    def copy(self) -> Ledger:
        twin = Ledger()
        twin.rows.update({vbucket: list(log) for vbucket, log in self.rows.items()})
        twin.rollbacks = list(self.rollbacks)
        return twin

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
