"""Programs in Java, Go, JavaScript and Python, built from the registries, and the answers that they give."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import pytest

from dcp.embedded import Cluster

HERE = Path(__file__).parent
# What was built stays here, and is built again if its sources change.
BUILT = HERE.parents[1] / "build" / "interop"
# Seconds for a build, which may have to download, and for an answer.
_BUILD, _ANSWER = 600, 60
# Keys of the documents in which SDKs keep what they know of transactions.
TRANSACTION_RECORDS = b"_txn:"


class Toolchain(NamedTuple):
    """Folder of sources, and what builds them."""

    folder: str
    tools: tuple[str, ...]
    commands: tuple[tuple[str, ...], ...]


JAVA = Toolchain(
    "java",
    ("java", "mvn"),
    (("mvn", "-q", "-B", "compile", "dependency:copy-dependencies", "-DoutputDirectory=target/lib"),),
)
GO = Toolchain("go", ("go",), (("go", "build", "-o", "bin/", "./..."),))
# The compiled part of the SDK is a package of the registry, too; scripts would look for it elsewhere.
NODE = Toolchain("node", ("node", "npm"), (("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"),))
PYTHON = Toolchain("python", (), ())
TOOLCHAINS = (GO, JAVA, NODE, PYTHON)


class ForeignProgram(NamedTuple):
    """A program: its toolchain, the command that runs it in the folder of what was built, and an option of all jobs."""

    toolchain: Toolchain
    command: tuple[str, ...]
    option: str = ""


_CLASSES = os.pathsep.join(("target/classes", "target/lib/*"))
CONSUMERS = {
    "java-dcp-client": ForeignProgram(JAVA, ("java", "-cp", _CLASSES, "Consume")),
    "java-dcp-client-low": ForeignProgram(JAVA, ("java", "-cp", _CLASSES, "Consume"), "low=on"),
    "gocbcore": ForeignProgram(GO, ("bin/consume",)),
}
SDKS = {
    "java": ForeignProgram(JAVA, ("java", "-cp", _CLASSES, "Sdk")),
    "go": ForeignProgram(GO, ("bin/sdk",)),
    "node": ForeignProgram(NODE, ("node", "sdk.js")),
    "python": ForeignProgram(PYTHON, (sys.executable, "sdk.py")),
}
# Does what connectors do that are in no registry.
GO_DCP = ForeignProgram(GO, ("bin/godcp",))


class State(NamedTuple):
    """Number of documents, and the sum of their checksums."""

    documents: int
    checksum: int


def truth(cluster: Cluster, *collections: str) -> State:
    """Return the state of the documents of some collections, by default of all, as DCP has them: by collection id."""
    ids = cluster.collection_ids()
    return _state(cluster, {path: str(ids[path]) for path in collections or ids})


def truth_by_path(cluster: Cluster) -> State:
    """Return the state of all documents as SDKs have them: by scope and collection."""
    return _state(cluster, {path: path for path in cluster.collection_ids()})


def _state(cluster: Cluster, names: dict[str, str]) -> State:
    """Return the state of the documents of collections, with the name by which a program calls each."""
    sums = [
        zlib.crc32(b"%s/%s\0%s" % (name.encode(), key, document.value))
        for path, name in names.items()
        for key, document in cluster.truth(path).items()
        if not key.startswith(TRANSACTION_RECORDS)
    ]
    return State(len(sums), sum(sums))


def build(toolchain: Toolchain) -> Path:
    """Build programs unless their sources are those that were built last; return the folder to run them in."""
    sources, target = HERE / toolchain.folder, BUILT / toolchain.folder
    stamp, fingerprint = target / "built", _fingerprint(sources, toolchain)
    with _one_at_a_time(toolchain):
        if not stamp.exists() or stamp.read_text() != fingerprint:
            shutil.copytree(sources, target, dirs_exist_ok=True)
            for command in toolchain.commands:
                _run(command, target)
            stamp.write_text(fingerprint)
    return target


@contextmanager
def _one_at_a_time(toolchain: Toolchain) -> Iterator[None]:
    """Let other processes wait, which run tests as well."""
    BUILT.mkdir(parents=True, exist_ok=True)
    with (BUILT / f"{toolchain.folder}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fingerprint(sources: Path, toolchain: Toolchain) -> str:
    digest = hashlib.sha256(repr(toolchain).encode())
    for file in sorted(file for file in sources.rglob("*") if file.is_file()):
        digest.update(file.relative_to(sources).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def missing_tools(toolchain: Toolchain) -> list[str]:
    """Return the programs that a toolchain lacks on this machine."""
    return [tool for tool in toolchain.tools if shutil.which(tool) is None]


def need(toolchain: Toolchain) -> None:
    """Skip a test where a toolchain is missing, except in CI, where all of them are installed."""
    missing = ", ".join(missing_tools(toolchain))
    if missing and not os.environ.get("CI"):
        pytest.skip(f"needs {missing}")
    assert not missing, f"CI needs {missing}"


def _run(command: tuple[str, ...], directory: Path) -> None:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=_BUILD, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class Process:
    """A program that prints a line when it has started, and one for each line on its standard input.

    It is started when it is asked something, and again if it has ended since.
    """

    def __init__(self, program: ForeignProgram, errors: Path) -> None:
        self._program, self._errors = program, errors
        self._process: subprocess.Popen[str] | None = None

    def ask(self, question: str) -> str:
        """Return the answer to a line."""
        process = self._running()
        assert process.stdin is not None
        process.stdin.write(question + "\n")
        process.stdin.flush()
        return self._line(process)

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            need(self._program.toolchain)
            folder = build(self._program.toolchain)
            with self._errors.open("w") as errors:
                self._process = subprocess.Popen(
                    _located(self._program.command, folder),
                    cwd=folder,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                )
            assert self._line(self._process) == "started"
        return self._process

    def _line(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        with _limit(process.kill):
            line = process.stdout.readline()
        if not line:
            process.kill()
            process.wait()
            pytest.fail(f"the program ended, or did not answer for {_ANSWER} s:\n{self._errors.read_text()}")
        return line.rstrip("\n")

    def close(self) -> None:
        """Kill the program."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def arguments(self, options: Mapping[str, object]) -> str:
        """Return options as they stand in a line."""
        return " ".join([*(f"{name}={value}" for name, value in options.items()), self._program.option]).rstrip()


def _located(command: tuple[str, ...], folder: Path) -> list[str]:
    """Return the command with the path of its program, which may be one that was built."""
    built = folder / command[0]
    return [str(built) if built.exists() else command[0], *command[1:]]


class _limit:
    """Calls a function unless the body ends in time."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._timer = threading.Timer(_ANSWER, action)

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()


class Consumer:
    """A DCP client of others that follows a bucket, from `with` to its end."""

    def __init__(self, process: Process, options: Mapping[str, object]) -> None:
        self._process, self._options = process, options

    def state(self) -> State:
        """Return what the consumer has now."""
        return State(*map(int, self.ask("state").split()))

    def ask(self, question: str) -> str:
        """Return the answer to a question that the program knows."""
        return self._process.ask(question)

    def __enter__(self) -> Consumer:
        answer = self._process.ask(f"start {self._process.arguments(self._options)}")
        assert answer == "streaming", answer
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A consumer that a test has found to be wrong may be in a state in which it does not stop.
        if error is not None or self._process.ask("stop") != "stopped":
            self._process.close()


# Starts a consumer of a cluster: the fixture `start`.
Start = Callable[..., Consumer]


class Answer(NamedTuple):
    """Result of a job of an SDK: seconds until it was ready, and the documents that it read in the end."""

    ready: float
    state: State


class Sdk(Process):
    """An SDK that does jobs."""

    def do(self, job: str, cluster: Cluster, *, tls: bool = False, **options: str) -> Answer:
        """Do a job with a cluster; fail if the SDK does not find what it should."""
        answer = self.ask(self.arguments({"do": job, **connection(cluster, tls=tls), **options}))
        assert not answer.startswith("failed"), answer
        found = dict(part.split("=") for part in answer.split())
        return Answer(float(found["ready"]), State(int(found["documents"]), int(found["checksum"])))


def connection(cluster: Cluster, *, tls: bool = False) -> dict[str, str]:
    """Return the options by which programs connect."""
    scheme, _, rest = (cluster.tls_url if tls else cluster.url).partition("://")
    me = cluster.credentials
    # Hosts and ports, without the user and the bucket.
    url = f"{scheme}://{rest.rpartition('@')[2].partition('/')[0]}"
    certificate = {"ca": str(cluster.ca_file)} if tls else {}
    return {"url": url, "user": me.username, "password": me.password, "bucket": "default"} | certificate
