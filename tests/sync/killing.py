"""The command `dcp sync` is killed at random moments and started again, while the cluster changes."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from random import Random

from dcp.embedded import Cluster
from tests.sync.changing import NODES, VBUCKETS, ChangingCluster
from tests.sync.tables import TableOf, rows_of, truth_of

# Kills between two comparisons.
_COMPARE_EVERY = 10
# Seconds after which a run without an end has failed.
_TIMEOUT = 120


class SyncProcess:
    """The command in a process of its own."""

    def __init__(self, cluster: Cluster, table: TableOf, *options: str) -> None:
        command = [sys.executable, "-m", "dcp", "sync", cluster.url, table.name, "--verbose", *options]
        self._popen = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, **table.environment}
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._messages: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._popen.stderr is not None
        for line in self._popen.stderr:
            self._messages.append(line)
            if ": transaction " in line:
                self._lines.put(line)

    def wait_for_transaction(self, seconds: float) -> bool:
        """Return whether a transaction ends within this time."""
        assert self._popen.poll() is None, "".join(self._messages)
        with contextlib.suppress(queue.Empty):
            return bool(self._lines.get(timeout=seconds))
        return False

    def end(self) -> None:
        """Wait for the end of the command."""
        self._popen.wait(_TIMEOUT)
        self._close()
        assert self._popen.returncode == 0, "".join(self._messages)

    def kill(self) -> None:
        """Kill the process (SIGKILL, where there are signals)."""
        self._popen.kill()
        self._popen.wait()
        self._close()

    def _close(self) -> None:
        self._reader.join()
        assert self._popen.stderr is not None
        self._popen.stderr.close()


class SyncKilling:
    """One cluster, and one table whose command is killed `kills` times."""

    def __init__(self, kind: str, seed: int, kills: int) -> None:
        self._kind, self._seed, self._kills = kind, seed, kills
        self._random = Random(f"killing sync {kind} {seed}")

    def run(self) -> Counter[str]:
        with (
            tempfile.TemporaryDirectory() as name,
            Cluster(nodes=NODES, vbuckets=VBUCKETS, replicas=1, seed=self._seed) as cluster,
        ):
            changing = ChangingCluster(cluster, self._random)
            table = TableOf(self._kind, Path(name))
            for number in range(1, self._kills + 1):
                self._run_until_killed(changing, table)
                if number % _COMPARE_EVERY == 0 or number == self._kills:
                    SyncProcess(cluster, table).end()
                    assert rows_of(table.read()) == truth_of(cluster)
                    changing.done["comparisons"] += 1
            return changing.done

    def _run_until_killed(self, changing: ChangingCluster, table: TableOf) -> None:
        process = SyncProcess(changing.cluster, table, "--follow", "--commit-every", "100ms")
        try:
            # Transactions after which the process is killed.
            left = self._random.choice((0, 1, 1, 2, 4))
            while left:
                ended = process.wait_for_transaction(0.1)
                left -= ended
                changing.done["transactions"] += ended
                changing.change()
            changing.change()
            # At other moments than right after a transaction as well.
            process.wait_for_transaction(self._random.choice((0.0, 0.1, 0.2)) + self._random.random() / 5)
        finally:
            process.kill()
        changing.done["kills"] += 1
