"""Spark's standalone cluster on this machine: a master, two workers with different addresses, and drivers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

import dcp.spark
from tests.spark.driver import URL
from tests.waiting import until

ROOT = Path(__file__).parents[2]
HOME = Path(pyspark.__file__).parent
_DEPLOY = "org.apache.spark.deploy"
# Two hosts, since Spark runs speculative attempts of a task on different hosts only.
_HOSTS = ("127.0.0.1", "127.0.0.2")


class Standalone:
    """A running standalone cluster. `master` is its URL."""

    def __init__(self, at: Path) -> None:
        self._at = at
        self._processes: list[subprocess.Popen[bytes]] = []
        dcp.spark.session_options()
        log = self._start(f"{_DEPLOY}.master.Master", "--host", _HOSTS[0], "--port", "0")
        self.master = until(lambda: found(r"spark://[\d.]+:\d+", log))
        for host in _HOSTS:
            log = self._start(
                f"{_DEPLOY}.worker.Worker", "--host", host, "--cores", "1", "--memory", "600M", self.master
            )
            until(lambda log=log: found("Successfully registered", log))  # type: ignore[misc]

    def _start(self, role: str, *arguments: str) -> Path:
        """Start a process of the cluster. Return its log."""
        log = self._at / f"{len(self._processes)}.log"
        environment = os.environ | {
            "SPARK_HOME": str(HOME),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_WORKER_DIR": str(self._at),
        }
        with log.open("wb") as out:
            command = [str(HOME / "bin" / "spark-class"), role, "--webui-port", "0", *arguments]
            process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
        self._processes.append(process)
        return log

    def kill_an_executor(self) -> None:
        """Kill the process of an executor."""
        os.kill(until(lambda: next(self._executors(), None)), signal.SIGKILL)

    def _executors(self) -> Iterator[int]:
        """Yield the process ids of executors: the children of the workers."""
        workers = {process.pid for process in self._processes[1:]}
        output = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        for line in output.splitlines():
            pid, parent = map(int, line.split())
            if parent in workers:
                yield pid

    def close(self) -> None:
        """Terminate all processes."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait()


class Driver:
    """A process of `tests.spark.driver`, and all processes that it starts."""

    def __init__(self, standalone: Standalone, url: str, lake: Path, *mode: str) -> None:
        self.log = lake / f"driver{''.join(mode)}.log"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.driver", standalone.master, str(lake), *mode],
                cwd=ROOT,
                env=os.environ | {URL: url},
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition. Fail if the driver ends before."""
        until(lambda: condition() or self.process.poll() is not None)
        assert self.process.poll() is None, self.log.read_text("utf-8", "replace")

    def kill(self) -> None:
        """Kill the driver and all its processes."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def driver(standalone: Standalone, url: str, lake: Path, *mode: str) -> Iterator[Driver]:
    """Start a driver. Kill it at the end, unless it has ended."""
    started = Driver(standalone, url, lake, *mode)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.kill()


def found(pattern: str, log: Path) -> str | None:
    """Return the first match of a pattern in a log; None if there is none."""
    match = re.search(pattern, log.read_text("utf-8", "replace"))
    return match[0] if match else None
