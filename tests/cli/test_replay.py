"""`dcp replay`: a client receives what the recorded one received."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import dcp
from dcp.cli.recording import server_bytes
from dcp.cli.replay import ReplayServer
from tests.cli.commands import TIMEOUT, run, start
from tests.conformance import TRANSCRIPTS, cut

RECORDED = next(path for path in TRANSCRIPTS if path.parent.name == "7.0.5" and path.stem == "xattr_included")


@contextmanager
def serving(recorded: bytes, *, raw: bool = False) -> Iterator[socket.socket]:
    """Serve a recording. Yield a connected client."""
    with ReplayServer(("127.0.0.1", 0), recorded, raw=raw) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            with socket.create_connection(server.server_address[:2], TIMEOUT) as client:  # type: ignore[arg-type]
                yield client
        finally:
            server.shutdown()
            thread.join()


def received(client: socket.socket, size: int) -> bytes:
    """Return the next `size` bytes; fewer if the server closes the connection."""
    data = b""
    while len(data) < size and (chunk := client.recv(size - len(data))):
        data += chunk
    return data


@pytest.fixture
def talk() -> dict[str, str]:
    found: dict[str, str] = json.loads(RECORDED.read_text())
    return found


def test_each_request_gets_the_answer_to_its_opcode_with_its_own_opaque(talk: dict[str, str]) -> None:
    recorded = bytes.fromhex(talk["server_hex"])
    with serving(recorded) as client:
        requests = [raw[:12] + bytes([0xAB]) + raw[13:] for raw in cut(bytes.fromhex(talk["client_hex"]))]
        client.sendall(b"".join(requests))
        answered = received(client, len(recorded))
    assert answered == b"".join(raw[:12] + bytes([0xAB]) + raw[13:] for raw in cut(recorded))


def test_a_request_without_a_recorded_answer_is_an_unknown_command(talk: dict[str, str]) -> None:
    request = dcp.encode(dcp.Frame("get_scope_id", 0x80, opaque=7, value=b"shop"))
    with serving(bytes.fromhex(talk["server_hex"])) as client:
        client.sendall(request)
        (answer,) = dcp.decode(received(client, 24))
    assert (answer.status, answer.opaque) == (0x81, 7)


def test_raw_bytes_are_sent_at_once() -> None:
    with serving(b"anything", raw=True) as client:
        assert received(client, 8) == b"anything"


def test_every_form_of_a_recording_is_read(talk: dict[str, str]) -> None:
    recorded = bytes.fromhex(talk["server_hex"])
    assert server_bytes(RECORDED.read_bytes()) == server_bytes(talk["server_hex"].encode()) == server_bytes(recorded)
    captured = (Path(__file__).parents[1] / "captures" / "couchbase-xattr.pcapng").read_bytes()
    assert {frame.kind.answers for frame in dcp.decode(server_bytes(captured))[:1]} == {True}


def test_it_prints_its_address_and_ctrl_c_ends_it() -> None:
    with start("replay", RECORDED) as replay:
        assert replay.stdout is not None
        line = replay.stdout.readline()
        with socket.create_connection(("127.0.0.1", int(line.rpartition(":")[2])), TIMEOUT):
            replay.send_signal(signal.SIGINT)
            _, errors = replay.communicate(timeout=TIMEOUT)
    assert (replay.returncode, errors.strip()) == (130, "interrupted")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"hello", "frame at byte 0: magic: expected 0x80 to 0x83"),
        (b"{}", "recording: expected an object with a member server_hex of hex text"),
        (dcp.encode(dcp.Frame("dcp_noop", 0x80)), "no answer of a server in 24 bytes"),
    ],
)
def test_a_file_without_a_recording_is_reported(tmp_path: Path, data: bytes, problem: str) -> None:
    (tmp_path / "file").write_bytes(data)
    result = run("replay", tmp_path / "file")
    assert result.exit_code == 1
    assert problem in result.output


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("replay", RECORDED, "--port", str(port))
    assert result.exit_code == 1
    assert f"127.0.0.1:{port}: cannot listen" in result.output
