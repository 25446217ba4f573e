"""`dcp demo`: a cluster's changes followed through a failover, and held against the cluster."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable

import click

import dcp
from dcp.client.rollback import EVENT as ROLLBACK
from dcp.embedded import Cluster

_SCOPE = "shop"
_COLLECTIONS = ("orders", "customers")
_COLUMNS = ("event", "vbucket", "seqno", "collection_id", "key", "value")
_PATIENCE = 60.0
_LOST = 20

Document = tuple[int, bytes]
_Change = tuple[int, str, Document, bytes]


class _Copy:
    """Every change that came, and what is left of them."""

    def __init__(self) -> None:
        self.rows = 0
        self.events: Counter[str] = Counter()
        # The documents that are there, and the changes of each vbucket that made them.
        self.documents: dict[Document, bytes] = {}
        self._logs: dict[int, list[_Change]] = defaultdict(list)

    def take(self, batch: dcp.Batch) -> None:
        """Add a batch. After a rollback nothing above its seqno has ever been."""
        columns = [batch.to_arrow().column(name).to_pylist() for name in _COLUMNS]
        for event, vbucket, seqno, collection, key, value in zip(*columns, strict=True):
            self.events[event] += 1
            log = self._logs[vbucket]
            if event == ROLLBACK:
                self._roll_back(log, seqno)
            else:
                log.append((seqno, event, (collection, key), value))
                self._apply(log[-1])
        self.rows += len(batch)

    def _apply(self, change: _Change) -> None:
        _, event, document, value = change
        if event == "mutation":
            self.documents[document] = value
        else:
            self.documents.pop(document, None)

    def _roll_back(self, log: list[_Change], seqno: int) -> None:
        for _, _, document, _ in log:
            self.documents.pop(document, None)
        log[:] = [change for change in log if change[0] <= seqno]
        for change in log:
            self._apply(change)


@click.command()
@click.option(
    "--documents", default=200_000, show_default=True, type=click.IntRange(100), help="How many to begin with."
)
@click.option("--small", is_flag=True, help="No more than 10000 documents.")
@click.option("--seed", default=1, show_default=True, help="The same seed makes the same cluster.")
def demo(documents: int, small: bool, seed: int) -> None:
    """Watch a bucket of three nodes being followed, one of which fails.

    Everything runs here, in memory and on the loopback interface: nothing has to be set up.

    \b
    Example:
      dcp demo
      dcp demo --small
    """
    count = min(documents, 10_000) if small else documents
    with Cluster(nodes=3, vbuckets=64, replicas=1, seed=seed) as cluster:
        _timed(
            f"a cluster of 3 nodes, 64 vbuckets and 1 replica, with {count:,} documents", lambda: _fill(cluster, count)
        )
        with dcp.connect(cluster.url) as client:
            copy = _Copy()
            stream = client.stream(end="now", columns=_COLUMNS)
            _timed("everything up to now", lambda: _drain(stream, copy), lambda: f"{copy.rows:,} rows")
            saved = stream.checkpoint.to_json()
            click.echo(f"  a checkpoint of {len(saved):,} bytes: the next stream goes on from there")
            with client.stream(dcp.Checkpoint.from_json(saved), columns=_COLUMNS) as following:
                _live(cluster, following, copy)
                _failover(cluster, following, copy)
                click.echo(f"  {', '.join(f'{number:,} {event}s' for event, number in copy.events.most_common())}")
                _compare(cluster, copy)


def _fill(cluster: Cluster, count: int) -> None:
    cluster.create_scope(_SCOPE)
    for name in _COLLECTIONS:
        cluster.create_collection(_SCOPE, name)
        cluster.load(count // len(_COLLECTIONS), prefix=f"{name}::", collection=f"{_SCOPE}.{name}")


def _drain(stream: dcp.ChangeStream, copy: _Copy) -> None:
    for batch in stream:
        copy.take(batch)


def _live(cluster: Cluster, stream: dcp.ChangeStream, copy: _Copy) -> None:
    def write() -> None:
        for number in range(1000):
            cluster.upsert(f"orders::{number:010d}", f'{{"n":{number},"paid":true}}', collection=f"{_SCOPE}.orders")
        for number in range(100):
            cluster.delete(f"customers::{number:010d}", collection=f"{_SCOPE}.customers")
        _follow(cluster, stream, copy)

    _timed("1,000 writes and 100 deletes, followed as they happen", write)


def _failover(cluster: Cluster, stream: dcp.ChangeStream, copy: _Copy) -> None:
    for number in range(200):
        cluster.upsert(f"orders::{number:010d}", f'{{"n":{number},"sent":true}}', collection=f"{_SCOPE}.orders")
    _follow(cluster, stream, copy)
    _timed(
        f"node 0 fails, and its last {_LOST} writes are lost",
        lambda: _lose(cluster, stream, copy),
        lambda: f"{copy.events[ROLLBACK]} vbuckets rolled back",
    )


def _lose(cluster: Cluster, stream: dcp.ChangeStream, copy: _Copy) -> None:
    cluster.failover(0, lose=_LOST)
    _follow(cluster, stream, copy)


def _follow(cluster: Cluster, stream: dcp.ChangeStream, copy: _Copy) -> None:
    """Take what comes until it is what the cluster has."""
    truth = _truth(cluster)
    while copy.documents != truth:
        try:
            batch = stream.next(_PATIENCE)
        except TimeoutError:
            raise click.ClickException(f"nothing came for {_PATIENCE:g} s, and the copy is not complete") from None
        assert batch is not None
        copy.take(batch)


def _truth(cluster: Cluster) -> dict[Document, bytes]:
    ids = cluster.collection_ids()
    return {
        (ids[path], key): document.value
        for path in (f"{_SCOPE}.{name}" for name in _COLLECTIONS)
        for key, document in cluster.truth(path).items()
    }


def _compare(cluster: Cluster, copy: _Copy) -> None:
    truth, found = _truth(cluster), copy.documents
    if found != truth:
        raise click.ClickException(f"{len(found.items() ^ truth.items()):,} documents differ from the cluster's")
    click.secho(f"the copy is the cluster's {len(truth):,} documents, byte for byte", fg="green")


def _timed(what: str, action: Callable[[], None], result: Callable[[], str] = str) -> None:
    started = time.monotonic()
    action()
    seconds = time.monotonic() - started
    click.echo(f"{what}: {', '.join(part for part in (result(), f'{seconds:.1f} s') if part)}")
