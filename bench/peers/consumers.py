"""Consumers that are compared: how each is built and run, and one run of one of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bench.peers.producer import PASSWORD, ROOT, USER, Served
from dcp.bench import report

HERE = Path(__file__).parent
BUILT = ROOT / "build" / "peers"
# Seconds for a build, which may have to download, and for a run.
_BUILD, _RUN = 900, 300
# Of connections, and of a bucket that is written to meanwhile.
LIVE = "live"
MODES = ("plain", "tls", "snappy", LIVE)


class ConsumerFailed(Exception):
    """A consumer ended with an error, or did not receive everything."""


@dataclass(frozen=True)
class Peer:
    """A client: the programs that it needs, what builds its consumer in a copy of `folder`, and what runs it there.

    The command gets arguments name=value: url, user, password, ca (over TLS), snappy=on, streams=off (connect only),
    and `option`. It prints `connected`, then the number of rows that it received and the bytes of their values. It ends
    when its standard input is closed.
    `version` is a pattern for the version of the client in a file of the folder.
    """

    name: str
    command: tuple[str, ...]
    folder: str = ""
    tools: tuple[str, ...] = ()
    build: tuple[str, ...] = ()
    option: str = ""
    version: tuple[str, str] = ("", "")

    def missing(self) -> list[str]:
        """Return the programs that this machine lacks."""
        return [tool for tool in self.tools if shutil.which(tool) is None]

    def found_version(self) -> str:
        """Return the version of the client."""
        file, pattern = self.version
        if not file:
            return report.commit() or "unknown"
        found = re.search(pattern, (HERE / self.folder / file).read_text("utf-8"))
        return found[1] if found else "unknown"


OURS = Peer("dcp-arrow", (sys.executable, str(HERE / "consume.py")))
_JAVA = Peer(
    "java-dcp-client, objects",
    ("java", "-cp", "target/classes:target/lib/*", "Consume"),
    "java",
    ("java", "mvn"),
    ("mvn", "-q", "-B", "compile", "dependency:copy-dependencies", "-DoutputDirectory=target/lib"),
    version=("pom.xml", r"dcp-client</artifactId>\s*<version>(.*?)</version>"),
)
_JAVA_BUFFERS = Peer(
    "java-dcp-client, buffers",
    _JAVA.command,
    _JAVA.folder,
    _JAVA.tools,
    _JAVA.build,
    "buffers=on",
    _JAVA.version,
)
_GO = Peer(
    "gocbcore",
    ("./consume",),
    "go",
    ("go",),
    ("go", "build", "-o", "consume", "."),
    version=("go.mod", r"gocbcore/v10 (v\S+)"),
)
# Another client is one more row, with a consumer in a folder of its own.
PEERS = (OURS, _JAVA, _JAVA_BUFFERS, _GO)


def build(peers: Sequence[Peer]) -> None:
    """Build the consumers. Maven and Go do again only what has changed."""
    for folder, command in dict.fromkeys((peer.folder, peer.build) for peer in peers if peer.build):
        shutil.copytree(HERE / folder, BUILT / folder, dirs_exist_ok=True)
        done = subprocess.run(command, cwd=BUILT / folder, capture_output=True, text=True, timeout=_BUILD, check=False)
        if done.returncode:
            raise ConsumerFailed(f"{' '.join(command)} in {BUILT / folder}:\n{done.stdout}{done.stderr}")


@dataclass(frozen=True)
class Run:
    """One run of a consumer.

    cpu: user and system seconds of the process.
    idle_cpu: those of a process that only connected.
    seconds: from the connection to the last row.
    peak_mb: largest memory of the process in MB.
    producer_busy: share of `seconds` in which the producer used a core.
    """

    cpu: float
    idle_cpu: float
    seconds: float
    peak_mb: float
    producer_busy: float


def take_turn(peer: Peer, served: Served, mode: str, producer_cpu: Callable[[], float]) -> Run:
    """Let a consumer connect only, and then read everything."""
    idle = _run(peer, arguments(peer, served, mode, streams="off"))
    before = producer_cpu()
    ended = read(peer, served, mode)
    busy = producer_cpu() - before
    seconds = ended.done - ended.connected
    return Run(ended.cpu, idle.cpu, seconds, ended.peak_mb, min(1.0, busy / seconds))


def read(peer: Peer, served: Served, mode: str) -> Ended:
    """Let a consumer read everything. Raises ConsumerFailed if it receives less, or something else."""
    ended = _run(peer, arguments(peer, served, mode))
    if ended.line != f"{served.rows} {served.bytes}":
        raise ConsumerFailed(f"{peer.name}: expected {served.rows} rows of {served.bytes} bytes, found {ended.line}")
    return ended


def arguments(peer: Peer, served: Served, mode: str, **more: str) -> list[str]:
    """Return the arguments of a consumer."""
    options = {"url": served.tls_url if mode == "tls" else served.url, "user": USER, "password": PASSWORD}
    options |= {"ca": served.ca} if mode == "tls" else {}
    options |= {"snappy": "on"} if mode == "snappy" else {}
    given = [f"{name}={value}" for name, value in (options | more).items()]
    return [*given, *([peer.option] if peer.option else [])]


@dataclass(frozen=True)
class Ended:
    """A process that has ended: its last line, times of its two lines, CPU seconds and largest memory in MB."""

    line: str
    connected: float
    done: float
    cpu: float
    peak_mb: float


def _run(peer: Peer, given: Sequence[str]) -> Ended:
    """Run a consumer to its end. Raises ConsumerFailed with its errors if it fails, or takes too long."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [*peer.command, *given],
            cwd=BUILT / peer.folder if peer.folder else ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(_RUN, process.kill)
        timer.start()
        try:
            first, connected = _line(process.stdout)
            last, done = _line(process.stdout)
            peak_mb = _peak_mb(process.pid)
            process.stdin.close()
            # Not `wait`, which would not say what this process alone has used.
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            timer.cancel()
            process.kill()
            process.wait()
            process.stdout.close()
        if process.returncode or first != "connected":
            errors.seek(0)
            raise ConsumerFailed(f"{peer.name} ended with {process.returncode}, in {_RUN} s:\n{errors.read()[-4000:]}")
    return Ended(last, connected, done, usage.ru_utime + usage.ru_stime, peak_mb)


def _line(lines: IO[str]) -> tuple[str, float]:
    """Return the next line, and when it came."""
    return lines.readline().rstrip("\n"), time.monotonic()


def _peak_mb(pid: int) -> float:
    """Return the largest memory of a process so far. That of `wait4` includes the process that it was forked from."""
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0
