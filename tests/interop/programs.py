"""Programs in Java and Go, built from the registries, and the answers that they give."""

from __future__ import annotations

import os
import shutil
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import pytest

from dcp.embedded import Cluster

HERE = Path(__file__).parent
# Seconds for a build, which may have to download, and for an answer.
_BUILD, _ANSWER = 300, 60


class State(NamedTuple):
    """Number of documents, and the sum of their checksums."""

    documents: int
    checksum: int


def truth(cluster: Cluster) -> State:
    """Return the state of all documents of a cluster."""
    sums = [
        zlib.crc32(b"%d/%s\0%s" % (number, key, document.value))
        for path, number in cluster.collection_ids().items()
        for key, document in cluster.truth(path).items()
    ]
    return State(len(sums), sum(sums))


class Program:
    """A running consumer. It is asked for what it has on its standard input."""

    def __init__(self, command: list[str], errors: Path) -> None:
        with errors.open("w") as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True
            )
        self._errors = errors
        assert self._line() == "streaming", errors.read_text()

    def state(self) -> State:
        """Return what the consumer has now."""
        assert self._process.stdin is not None
        self._process.stdin.write("state\n")
        self._process.stdin.flush()
        return State(*map(int, self._line().split()))

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the program ended:\n{self._errors.read_text()}"
        return line.rstrip("\n")

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()


def needs(*tools: str) -> None:
    """Skip a test where a toolchain is missing, except in CI, where all of them are installed."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing and not os.environ.get("CI"):
        pytest.skip(f"needs {', '.join(missing)}")
    assert not missing, f"CI needs {', '.join(missing)}"


def build_java(directory: Path) -> list[str]:
    """Compile the Java program, and return the command that runs it."""
    shutil.copytree(HERE / "java", directory, dirs_exist_ok=True, ignore=shutil.ignore_patterns("target"))
    _run(["mvn", "-q", "-B", "compile", "dependency:copy-dependencies", "-DoutputDirectory=target/lib"], directory)
    classes = os.pathsep.join([str(directory / "target" / "classes"), str(directory / "target" / "lib" / "*")])
    return ["java", "-cp", classes, "Consume"]


def build_go(directory: Path) -> list[str]:
    """Compile the Go program, and return the command that runs it."""
    shutil.copytree(HERE / "go", directory, dirs_exist_ok=True)
    _run(["go", "build", "-o", "consume", "."], directory)
    return [str(directory / "consume")]


BUILDERS: dict[str, tuple[tuple[str, ...], Callable[[Path], list[str]]]] = {
    "java-dcp-client": (("java", "mvn"), build_java),
    "gocbcore": (("go",), build_go),
}


def _run(command: list[str], directory: Path) -> None:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=_BUILD, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
