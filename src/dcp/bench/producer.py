"""Embedded cluster in a process of its own: `python -m dcp.bench.producer COUNT SIZE [orders]`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from random import Random

from dcp.bench.bench_documents import order
from dcp.embedded import Cluster

NODES, VBUCKETS = 2, 32


def main(count: int, value_size: int, *, orders: bool) -> None:
    """Run a cluster with documents. Print its URL, and end when standard input is closed."""
    chance = Random(value_size)
    with Cluster(nodes=NODES, vbuckets=VBUCKETS) as cluster:
        cluster.load(count, value_size=value_size, value=partial(order, value_size, chance=chance) if orders else None)
        print(cluster.url, flush=True)
        # The pipe closes when the parent ends, however it ends: no cluster is left over.
        sys.stdin.read()


@contextmanager
def producing(count: int, value_size: int, *, orders: bool = False) -> Iterator[str]:
    """Start a cluster with `count` documents, or with the orders of the benchmark `documents`, in another process.

    Yields its URL.
    """
    command = [sys.executable, "-m", "dcp.bench.producer", str(count), str(value_size), *(["orders"] if orders else [])]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), orders="orders" in sys.argv[3:])
