"""A table of a cluster that changes by chance, with runs that end at any moment, all from one seed."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from random import Random

import dcp
from dcp.embedded import Cluster
from dcp.sync import Sync
from dcp.sync.state import TableContent
from tests.sync.changing import DEFAULT, ITEM, NODES, ORDER, VBUCKETS, ChangingCluster
from tests.sync.tables import TableOf, rows_of, truth_of

# Selections, and the collections that they have.
_SELECTIONS = (
    (TableContent(), None),
    (TableContent(), None),
    (TableContent(scope="shop"), (ORDER, ITEM)),
    (TableContent(collections=(ORDER, DEFAULT)), (ORDER, DEFAULT)),
    (TableContent(collections=(ORDER,)), (ORDER,)),
)


class Crash(BaseException):
    """End of a run at any moment."""


class SyncSchedule:
    """One cluster and one table, which is compared with the truth several times."""

    def __init__(self, kind: str, seed: int, rounds: int = 6) -> None:
        self._kind, self._seed, self._rounds = kind, seed, rounds
        self._random = Random(f"sync {kind} {seed}")

    def run(self) -> Counter[str]:
        """Return the counts of what happened. Raises AssertionError if the table has other rows than the cluster."""
        content, collections = self._random.choice(_SELECTIONS)
        with (
            tempfile.TemporaryDirectory() as name,
            Cluster(nodes=NODES, vbuckets=VBUCKETS, replicas=1, seed=self._seed) as cluster,
        ):
            table = TableOf(self._kind, Path(name))
            changing = ChangingCluster(cluster, self._random)
            self._done = changing.done
            with dcp.connect(cluster.url) as client:
                self._sync(client, table, content).run()
                for _ in range(self._rounds):
                    for _ in range(self._random.randrange(3)):
                        changing.change()
                        self._run_until_crash(client, table, content, changing)
                    changing.change()
                    self._sync(client, table, content).run()
                    assert rows_of(table.read()) == truth_of(cluster, collections)
                    self._done["comparisons"] += 1
        return self._done

    def _run_until_crash(
        self, client: dcp.Client, table: TableOf, content: TableContent, changing: ChangingCluster
    ) -> None:
        """Run while the cluster changes, and end after some batches."""
        left = self._random.randrange(8)
        # A run that follows has several versions of a key in one transaction.
        follows = self._random.random() < 0.4

        def progressed() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Crash
            if follows or self._random.random() < 0.5:
                changing.change()

        try:
            sync = self._sync(client, table, content, progressed)
            sync.follow() if follows else sync.run()
        except Crash:
            self._done["crashes"] += 1
        except dcp.DcpError as error:
            # Changes may go away while a run waits for them, or a collection.
            self._done[type(error).__name__] += 1

    def _sync(self, client: dcp.Client, table: TableOf, content: TableContent, progressed: object = None) -> Sync:
        def count() -> None:
            self._done["restarts"] += sync.progress.restarts
            sync.progress.restarts = 0
            if callable(progressed):
                progressed()

        # Transactions after each batch, or one for all.
        interval = self._random.choice((0.0, 60.0))
        persisted = self._random.random() < 0.5
        sync = Sync(client, table.open(), content, interval=interval, persisted_only=persisted, on_progress=count)
        return sync
