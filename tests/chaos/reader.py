"""One stream of a consumer, with the rows that it has delivered and those that the consumer has stored."""

from __future__ import annotations

from collections.abc import Iterable

import dcp
from dcp.embedded import Cluster
from tests.chaos.ledger import Ledger
from tests.chaos.setting import Selection
from tests.client.consumer import truth


class Reader:
    """A stream with one selection of collections.

    Rows are stored together with the checkpoint, as in a transaction.
    """

    def __init__(self, cluster: Cluster, selection: Selection, *, in_order: bool) -> None:
        self.selection = selection
        self.ledger = Ledger(in_order=in_order)
        self.stream: dcp.ChangeStream
        self._cluster, self._in_order = cluster, in_order
        self._saved = "", Ledger(in_order=in_order)

    def save(self) -> None:
        """Store all rows so far with their checkpoint."""
        self._saved = self.stream.checkpoint.to_json(), self.ledger.copy()

    def resume(self) -> dcp.Checkpoint | None:
        """Forget what is not stored. Return the checkpoint to resume from; None for the beginning."""
        text, ledger = self._saved
        self.ledger = ledger.copy()
        checkpoint = dcp.Checkpoint.from_json(text) if text else None
        if not self._in_order:
            # An incomplete out-of-order snapshot is sent again, without what was deleted and purged meanwhile.
            self.ledger.forget_above({each.vbucket: each.seqno for each in checkpoint or ()})
        return checkpoint

    def followed(self) -> Iterable[str]:
        """Return the paths of the collections that exist and are selected."""
        return [path for path in self._cluster.collection_ids() if self.selection.sees(path)]

    def agrees(self) -> bool:
        """Return whether the rows are the documents of the cluster."""
        ids = self._cluster.collection_ids()
        return all(self.ledger.state(ids[path]) == truth(self._cluster, path) for path in self.followed())

    def difference(self) -> str:
        """Describe the documents that the consumer has in excess, and those that it lacks."""
        ids, lines = self._cluster.collection_ids(), []
        for path in self.followed():
            has, should = self.ledger.state(ids[path]).items(), truth(self._cluster, path).items()
            lines.append(f"{path}: has {sorted(has - should)}, lacks {sorted(should - has)}")
        return f"{'; '.join(lines)}; {self.stream.counters}; {self.stream.checkpoint.to_json()}"

    def check_versions(self) -> None:
        """Check that all rows were written to the cluster, even if they were lost later."""
        for path in self.followed():
            self.ledger.check_versions(self._cluster, path)
