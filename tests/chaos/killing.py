"""A consumer process is killed at random moments and restarted, while the cluster changes."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import dcp
from dcp.embedded import Cluster
from tests.chaos.following import last_length, read_log
from tests.chaos.ledger import Ledger
from tests.client.consumer import truth

KEYS = [f"key{n}" for n in range(30)]
VBUCKETS, NODES = 4, 3
TIMEOUT = 60


class Process:
    """Consumer process."""

    def __init__(self, url: str, directory: Path) -> None:
        command = [sys.executable, "-m", "tests.chaos.following", url, str(directory)]
        self._popen = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            self._lines.put(line)

    def wait_for_batch(self, seconds: float) -> bool:
        """Return whether the process stores a batch within this time."""
        assert self._popen.poll() is None, "the consumer ended by itself"
        with contextlib.suppress(queue.Empty):
            return bool(self._lines.get(timeout=seconds))
        return False

    def kill(self) -> None:
        """Kill the process (SIGKILL, where there are signals)."""
        self._popen.kill()
        self._popen.wait()
        self._reader.join()
        assert self._popen.stdout is not None
        self._popen.stdout.close()


class Killing:
    """One cluster, and one consumer that is killed `kills` times."""

    def __init__(self, seed: int, kills: int) -> None:
        self.done: Counter[str] = Counter()
        self._random = Random(f"killing {seed}")
        self._seed, self._kills = seed, kills
        self._written = 0

    def run(self) -> Counter[str]:
        with (
            tempfile.TemporaryDirectory() as name,
            Cluster(nodes=NODES, vbuckets=VBUCKETS, replicas=1, seed=self._seed) as self._cluster,
        ):
            directory = Path(name)
            self._change()
            for _ in range(self._kills):
                self._run_until_killed(directory)
                # The number of changes depends on the speed of the machine. A promotion has to be among them.
                while not self.done["promote"]:
                    self._try(Killing._promote)
            self._end(directory)
        return self.done

    def _run_until_killed(self, directory: Path) -> None:
        process = Process(self._cluster.url, directory)
        try:
            # Number of batches after which the process is killed.
            stored = self._random.choice((0, 1, 1, 2, 5))
            while stored:
                got = process.wait_for_batch(0.02)
                stored -= got
                self.done["batches"] += got
                self._change()
            # At other moments than right after a batch as well.
            process.wait_for_batch(self._random.choice((0.0, 0.001, 0.01, 0.5)))
        finally:
            process.kill()
        self.done["kills"] += 1
        self._change()

    def _end(self, directory: Path) -> None:
        process = Process(self._cluster.url, directory)
        try:
            deadline = time.monotonic() + TIMEOUT
            while self._ledger(directory).state() != truth(self._cluster):
                assert time.monotonic() < deadline, "the consumer does not get what the cluster has"
                process.wait_for_batch(0.5)
        finally:
            process.kill()
        self.done["rows"] += sum(1 for _ in read_log(directory))
        self.done["rollback rows"] += len(self._ledger(directory).rollbacks)

    def _ledger(self, directory: Path) -> Ledger:
        """Return the rows up to the last checkpoint; none if the process replaces the checkpoint at this moment."""
        ledger = Ledger()
        ledger.keep(read_log(directory) if last_length(directory) else ())
        return ledger

    def _change(self) -> None:
        change, weight = zip(*_CHANGES, strict=True)
        self._try(self._random.choices(change, weight)[0])

    def _try(self, action: Callable[[Killing], None]) -> None:
        """Make a change, unless the present state of the cluster does not allow it."""
        with contextlib.suppress(dcp.LocalProtocolError):
            action(self)
            self.done[action.__name__.strip("_")] += 1

    def _write(self) -> None:
        for _ in range(self._random.randrange(1, 12)):
            self._written += 1
            self._cluster.upsert(self._random.choice(KEYS), f'{{"n":{self._written}}}')

    def _delete(self) -> None:
        alive = sorted(truth(self._cluster))
        if alive:
            self._cluster.delete(self._random.choice(alive))

    def _lag(self) -> None:
        self._cluster.set_lag(self._random.choice((0, 1, 4)))

    def _promote(self) -> None:
        """Promote a replica: writes that it has not received are lost."""
        self._cluster.promote(self._random.randrange(VBUCKETS), self._random.randrange(NODES))

    def _move(self) -> None:
        self._cluster.move(self._random.randrange(VBUCKETS), self._random.randrange(NODES))

    def _snapshot(self) -> None:
        self._cluster.snapshot()

    def _purge(self) -> None:
        self._cluster.purge()


_CHANGES = (
    (Killing._write, 12),
    (Killing._delete, 4),
    (Killing._lag, 2),
    (Killing._promote, 3),
    (Killing._move, 1),
    (Killing._snapshot, 1),
    (Killing._purge, 1),
)
