"""Users and passwords from outside the URL."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dcp.embedded import Cluster
from tests.cli.commands import TIMEOUT, run

PASSWORD = "p/ss@w:rd?%"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(vbuckets=2, username="me", password=PASSWORD) as cluster:
        cluster.load(3)
        yield cluster


@pytest.fixture
def url(cluster: Cluster) -> str:
    return f"couchbase://{cluster.addresses[0]}/default"


def test_the_environment_has_user_and_password(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DCP_USERNAME", "me")
    monkeypatch.setenv("DCP_PASSWORD", PASSWORD)
    for command in (["count"], ["doctor"], ["tail", "--from", "beginning", "--to", "now"]):
        shown = run(*command, url)
        assert shown.exit_code == 0, shown.output
        assert PASSWORD not in shown.output


def test_a_file_has_the_password(url: str, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(PASSWORD + "\n")
    assert run("count", url, "--username", "me", "--password-file", file).exit_code == 0
    copied = run("copy", url, tmp_path / "out.ndjson", "--username", "me", "--password-file", file)
    assert "3 changes" in copied.output
    assert (
        run("checkpoint", "verify", tmp_path / "out.ndjson", url, "--username", "me", "--password-file", file).exit_code
        == 0
    )


def test_a_password_is_asked_for_on_a_terminal(url: str) -> None:
    environment = {**os.environ, "DCP_USERNAME": "me"}
    ours, terminal = pty.openpty()
    command = [sys.executable, "-m", "dcp", "count", url]
    # A new session has no controlling terminal, which a prompt would prefer to these.
    with subprocess.Popen(
        command, stdin=terminal, stdout=subprocess.PIPE, stderr=terminal, env=environment, start_new_session=True
    ) as process:
        os.close(terminal)
        prompt = b""
        while not prompt.endswith(b": "):
            prompt += os.read(ours, 1024)
        os.write(ours, PASSWORD.encode() + b"\n")
        shown, _ = process.communicate(timeout=TIMEOUT)
        assert process.returncode == 0
    assert prompt == b"Password of me: "
    assert b"3" in shown
    os.close(ours)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--username", "me"], "no password for 'me': set DCP_PASSWORD, or pass --password-file"),
        (["--password-file", __file__], "expected --username or DCP_USERNAME beside it, found none"),
        (["--username", "me", "--password-file", str(Path(__file__).parent)], "is a directory"),
    ],
)
def test_half_a_login_is_refused(url: str, arguments: list[str], says: str) -> None:
    shown = run("count", url, *arguments)
    assert shown.exit_code == 2
    assert says in shown.output


def test_the_user_may_stand_in_the_url_alone(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    url = f"couchbase://me@{cluster.addresses[0]}/default"
    assert run("count", url, "--password-file", file).exit_code == 0
    both = run("count", url, "--username", "you", "--password-file", file)
    assert both.exit_code == 2
    assert "--username: expected no user in URL beside it" in both.output


def test_two_logins_are_refused() -> None:
    shown = run("count", "couchbase://you:secret@localhost/default", "--username", "me")
    assert shown.exit_code == 2
    assert "expected no user in URL beside them" in shown.output
    assert "secret" not in shown.output
