"""`dcp serve` as a process: its output, its clients, and its end."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import signal
import socket
import ssl
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from dcp import connect
from dcp.cli.commands import dcp
from dcp.cli.serve import _greet, _is_loopback, _show_json, _show_lines, _size, _table
from dcp.embedded import Cluster
from dcp.embedded.faults import FAULTS
from dcp.embedded.server import Traffic
from dcp.wire import DIALECTS
from tests.waiting import until

# Seconds: longer than any step takes unless it fails.
TIMEOUT = 60


@contextmanager
def serving(*arguments: str, stdout: int = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", "from dcp.cli import main; main()", "serve", *arguments]
    with subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def lines(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stdout is not None
    return iter(process.stdout.readline, "")


def refused(*arguments: str) -> Result:
    result = CliRunner().invoke(dcp, ["serve", *arguments])
    assert result.exit_code
    assert isinstance(result.exception, SystemExit)
    return result


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_a_cluster_is_served_until_a_signal(end: signal.Signals) -> None:
    with serving("--nodes", "2", "--load", "50", "--json", "--fault", "gap:items=2") as process:
        greeting = json.loads(next(lines(process)))
        assert greeting["documents"] == 50
        assert len(greeting["addresses"]) == 2
        assert f"{greeting['username']}:" in greeting["url"]
        assert greeting["password"]
        host, _, port = greeting["addresses"][1].rpartition(":")
        with socket.create_connection((host, int(port)), TIMEOUT):
            while not json.loads(next(lines(process)))["nodes"]["1"]["connections"]:
                pass
        process.send_signal(end)
        assert process.wait(TIMEOUT) == 0
        assert process.stderr is not None
        assert process.stderr.read() == "gap: 0 hits\n"


def test_a_pipe_gets_lines() -> None:
    with serving("--password", "open sesame") as process:
        greeting = [next(lines(process)) for _ in range(8)]
        named = ["url", "management", "page", "control", "nodes", "user", "password", "documents"]
        assert [line.split()[0] for line in greeting] == named
        assert greeting[6] == "password   open sesame\n"
        host, _, port = greeting[4].split()[1].rpartition(":")
        next(lines(process))
        with socket.create_connection((host, int(port)), TIMEOUT):
            assert next(lines(process)).startswith("node 0: 1 connections, 0 streams, 0 items, 0 bytes sent")


def test_a_terminal_gets_a_table() -> None:
    mine, theirs = pty.openpty()
    with serving("--nodes", "3", stdout=theirs) as process:
        os.close(theirs)
        seen = b""
        # It is drawn again with new counters.
        while seen.count(b"sent/s") < 3:
            seen += os.read(mine, 4096)
        process.send_signal(signal.SIGINT)
        # Until its end it may write more than the terminal holds.
        with contextlib.suppress(OSError):
            while os.read(mine, 4096):
                pass
        assert process.wait(TIMEOUT) == 0
    os.close(mine)


def test_listening_beyond_loopback_is_warned_about() -> None:
    with serving("--host", "0.0.0.0", "--json") as process:
        next(lines(process))
        process.terminate()
        assert process.wait(TIMEOUT) == 0
        assert process.stderr is not None
        assert process.stderr.read().startswith("warning: 0.0.0.0 is no loopback address")


@pytest.mark.parametrize(
    ("arguments", "greeting"),
    [
        (["--nodes", "99"], "Error: --nodes: expected 1 to 8, found 99"),
        (["--server-version", "new"], "Error: --server-version: expected a release such as 7.2, found 'new'"),
        (["--fault", "x"], "Error: --fault: expected one of pause,"),
        (["--fault", "gap:items"], "expected NAME:key=value, found 'gap:items'"),
        (
            ["--fault", "gap:items=x"],
            "Error: --fault gap: items: expected a number of at least 1 (number of consecutive items), found 'x'",
        ),
        (["--host", "192.0.2.1"], "Error: host and port: cannot listen on 192.0.2.1:0"),
        (["--nodes", "2", "--replicas", "2"], "Error: --replicas: expected one node more than replicas"),
        (["--nodes", "many"], "'many' is not a valid integer range"),
    ],
)
def test_a_bad_option_is_reported_without_a_traceback(arguments: list[str], greeting: str) -> None:
    result = refused(*arguments)
    assert greeting in result.output.replace("\n", " ")
    # An address that this machine does not have is no wrong value.
    assert result.exit_code == (1 if "--host" in arguments else 2)


def test_the_faults_are_listed() -> None:
    listed = CliRunner().invoke(dcp, ["serve", "--list-faults"])
    assert listed.exit_code == 0
    assert all(f"\n{name}: " in f"\n{listed.output}" for name in FAULTS)


def test_a_client_reads_over_tls_what_was_loaded() -> None:
    with serving("--tls", "--username", "me", "--password", "s3cret", "--load", "50", "--json") as process:
        greeting = json.loads(next(lines(process)))
        authority = Path(greeting["ca_file"])
        with connect(greeting["tls_url"], ca_cert_path=authority) as client:
            assert sum(client.high_seqnos().values()) == 50
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == 0
        assert not authority.exists()


@pytest.mark.parametrize("tls", [False, True])
def test_people_get_urls_that_connect(tls: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with Cluster(vbuckets=2, tls=tls) as cluster:
        cluster.upsert("key", b"1")
        _greet(cluster, 1, tls=tls, as_json=False)
        shown = [line.split() for line in capsys.readouterr().out.splitlines()]
        urls = [words[-1] for words in shown if words[:1] == ["url"] or words[:2] == ["with", "TLS"]]
        secure = [f"{cluster.tls_url}?ca_cert_path={cluster.ca_file}", cluster.tls_management_url] if tls else []
        assert urls == [cluster.url, *secure]
        for url in urls[:2]:
            with connect(url) as client:
                assert sum(client.high_seqnos().values()) == 1


def test_the_management_service_is_served() -> None:
    with serving("--tls", "--username", "me", "--password", "s3cret", "--json") as process:
        greeting = json.loads(next(lines(process)))
        context = ssl.create_default_context(cafile=greeting["ca_file"])
        for url in (greeting["management_url"], greeting["tls_management_url"]):
            headers = {"Authorization": f"Basic {b64encode(b'me:s3cret').decode()}"}
            with urlopen(Request(f"{url}/whoami", headers=headers), timeout=TIMEOUT, context=context) as answer:
                assert json.load(answer)["id"] == "me"


def test_a_served_cluster_is_steered_over_http() -> None:
    with serving("--nodes", "2", "--replicas", "1", "--username", "me", "--password", "s3cret", "--json") as process:
        greeting = json.loads(next(lines(process)))
        headers = {"Authorization": f"Basic {b64encode(b'me:s3cret').decode()}", "Content-Type": "application/json"}
        failover = Request(f"{greeting['control_url']}/failover", b'{"node": 0}', headers)
        with urlopen(failover, timeout=TIMEOUT) as answer:
            assert json.load(answer) == {"result": None}
        with urlopen(Request(greeting["page_url"], headers=headers), timeout=TIMEOUT) as answer:
            assert answer.headers["Content-Type"] == "text/html; charset=utf-8"


@pytest.mark.parametrize("dialect", list(DIALECTS))
def test_any_dialect_is_served_until_a_signal(dialect: str) -> None:
    with serving("--dialect", dialect, "--json") as process:
        assert json.loads(next(lines(process)))["addresses"]
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_certificate_without_its_key_is_refused(tmp_path: Path) -> None:
    certificate = tmp_path / "node.pem"
    certificate.write_text("no certificate")
    assert "expected both certificate and key" in refused("--certificate", str(certificate)).output


def test_a_bucket_has_a_name() -> None:
    assert "bucket: expected" in refused("--bucket", "").output


def test_rates_are_those_since_the_last_row() -> None:
    now, before = Traffic(1, 2, 5000, 3_000_000), Traffic(1, 2, 4000, 1_000_000)
    shown = Console(width=100, record=True, file=io.StringIO())
    shown.print(_table({0: now}, {0: before}))
    assert shown.export_text().splitlines()[1].split() == ["0", "1", "2", "5,000", "1,000", "3", "MB", "2", "MB"]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (999_400, "999 kB"),
        (2_000_000, "2 MB"),
        (1_250_000_000, "1.2 GB"),
        (5_000_000_000_000, "5000.0 GB"),
    ],
)
def test_a_size_has_a_unit(size: int, text: str) -> None:
    assert _size(size) == text


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("localhost", True), ("127.0.0.1", True), ("::1", True), ("0.0.0.0", False), ("example.org", False)],
)
def test_only_this_machine_reaches_a_loopback_address(host: str, loopback: bool) -> None:
    assert _is_loopback(host) is loopback


class Turns(threading.Event):
    """Event that is set after some turns, in each of which it calls a function instead of waiting."""

    def __init__(self, *turns: Callable[[], object]) -> None:
        super().__init__()
        self.turns = [*turns]

    def wait(self, timeout: float | None = None) -> bool:
        if not self.turns:
            return True
        self.turns.pop(0)()
        return False


@pytest.mark.parametrize("show", [_show_lines, _show_json])
def test_counters_are_printed_when_they_have_changed(
    show: Callable[[Cluster, threading.Event], None], capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[list[str]] = []

    def note() -> None:
        shown.append(capsys.readouterr().out.splitlines())

    with Cluster(nodes=2, vbuckets=4) as cluster, connect(cluster.url) as client:
        cluster.load(40)

        def read() -> None:
            note()
            for _ in client.stream(end="now"):
                pass
            client.close()
            # A connection counts until the node has noticed its end.
            until(lambda: not any(traffic.connections for traffic in cluster.stats().values()))

        show(cluster, Turns(note, read, note, note, note))
        note()
        counters = cluster.stats()
    assert sum(traffic.items for traffic in counters.values()) == 40
    last = shown[2]
    assert shown[3:] == [[], [], []]
    if show is _show_json:
        assert [json.loads(line) for line in last] == [
            {"nodes": {str(number): traffic._asdict() for number, traffic in counters.items()}}
        ]
    else:
        assert last == [
            f"node {number}: 0 connections, 0 streams, {traffic.items} items, {traffic.bytes_sent} bytes sent, "
            f"{traffic.bytes_received} bytes received"
            for number, traffic in counters.items()
        ]
