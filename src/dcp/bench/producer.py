"""Embedded cluster in a process of its own: `python -m dcp.bench.producer COUNT SIZE`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from dcp.embedded import Cluster

NODES, VBUCKETS = 2, 32


def main(count: int, value_size: int) -> None:
    """Run a cluster with documents. Print its URL, and end when standard input is closed."""
    with Cluster(nodes=NODES, vbuckets=VBUCKETS) as cluster:
        cluster.load(count, value_size=value_size)
        print(cluster.url, flush=True)
        # The pipe closes when the parent ends, however it ends: no cluster is left over.
        sys.stdin.read()


@contextmanager
def producing(count: int, value_size: int) -> Iterator[str]:
    """Start a cluster with `count` documents in another process. Yield its URL."""
    command = [sys.executable, "-m", "dcp.bench.producer", str(count), str(value_size)]
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
    main(int(sys.argv[1]), int(sys.argv[2]))
