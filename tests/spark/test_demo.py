"""The demo with Spark, as a process."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.cli.commands import start

# Seconds. Starting Spark takes most of it on a loaded machine.
TIMEOUT = 200


def test_the_copy_survives_the_failover(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    with start("demo", "--small", "--json", "--out", out) as demo:
        output, errors = demo.communicate(timeout=TIMEOUT)
    assert (demo.returncode, errors) == (0, "")
    found = json.loads(output)
    assert found["differing"] == 0
    assert found["documents"] > 20_000
    assert found["vbuckets_rolled_back"] > 0
    assert [path.name for path in out.iterdir()] == ["demo.svg"]


def test_an_interrupted_demo_leaves_neither_files_nor_a_java(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    with start("demo", "--small", "--out", out) as demo:
        assert demo.stdout is not None
        while not demo.stdout.readline().startswith("✓ read"):
            assert demo.poll() is None
        demo.send_signal(signal.SIGINT)
        # Java inherits the pipe, so this returns only once Java has ended, too.
        _, errors = demo.communicate(timeout=TIMEOUT)
    assert (demo.returncode, errors) == (130, "\ninterrupted\n")
    assert not out.exists()
