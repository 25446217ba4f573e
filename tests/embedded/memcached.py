"""Responses of another server to document commands: memcached, which speaks the same binary protocol.

    python -m tests.embedded.memcached

sends the commands to the `memcached` of this machine and writes its responses to memcached.json beside this file.
"""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dcp
from dcp.wire.layout import Magic

RECORDING = Path(__file__).with_name("memcached.json")
# Placeholder for the CAS of the last response that had one.
LAST = -1
_TIMEOUT = 10.0
# Its response marks the end of the responses to a command, of which quiet ones have none.
_END = "noop"

Command = tuple[str, dict[str, Any]]
Exchange = Callable[[bytes], bytes]


def _store(name: str, key: bytes, value: bytes, flags: int = 0, cas: int = 0) -> Command:
    return name, {"key": key, "value": value, "cas": cas, "fields": {"flags": flags, "expiry": 0}}


def _plain(name: str, key: bytes, value: bytes = b"", cas: int = 0) -> Command:
    return name, {"key": key, "value": value, "cas": cas}


def _count(name: str, key: bytes, delta: int, initial: int = 0, expiry: int = 0) -> Command:
    return name, {"key": key, "fields": {"delta": delta, "initial": initial, "expiry": expiry}}


def _touch(name: str, key: bytes, expiry: int) -> Command:
    return name, {"key": key, "fields": {"expiry": expiry}}


COMMANDS: list[Command] = [
    *(_plain(name, b"none") for name in ("get", "getk", "getq", "getkq", "delete", "deleteq")),
    *(_plain(name, b"none", b"x") for name in ("append", "prepend", "appendq", "prependq")),
    *(_store(name, b"none", b"x") for name in ("replace", "replaceq")),
    *(_touch(name, b"none", 10) for name in ("touch", "gat", "gatq")),
    _count("increment", b"none", 1, expiry=0xFFFFFFFF),
    _count("decrementq", b"none", 1, expiry=0xFFFFFFFF),
    _store("set", b"none", b"x", cas=99),
    _store("set", b"a", b"one", flags=0xDEADBEEF),
    *(_plain(name, b"a") for name in ("get", "getk", "getq", "getkq")),
    _store("add", b"a", b"two"),
    _store("addq", b"a", b"two"),
    _store("set", b"a", b"two", cas=99),
    _store("setq", b"a", b"two", cas=99),
    _plain("delete", b"a", cas=99),
    _plain("get", b"a"),
    _store("set", b"a", b"two", cas=LAST),
    _store("replace", b"a", b"three", cas=LAST),
    _plain("append", b"a", b">", cas=LAST),
    _plain("prepend", b"a", b"<"),
    _plain("appendq", b"a", b">"),
    _plain("prependq", b"a", b"<"),
    _plain("get", b"a"),
    _touch("gat", b"a", 1000),
    _touch("gatq", b"a", 1000),
    _count("increment", b"a", 1),
    _store("setq", b"b", b""),
    _plain("get", b"b"),
    _store("addq", b"c", b"new"),
    _store("replaceq", b"c", b"newer"),
    _plain("get", b"c"),
    _count("increment", b"n", 3, initial=7),
    _count("increment", b"n", 3, initial=7),
    _count("decrement", b"n", 1),
    _count("incrementq", b"n", 40),
    _count("decrementq", b"n", 2),
    _plain("get", b"n"),
    _count("decrement", b"n", 1000),
    _store("set", b"n", b"18446744073709551615"),
    _count("increment", b"n", 2),
    _store("set", b"n", b"-1"),
    _count("increment", b"n", 2),
    _plain("delete", b"a"),
    _plain("get", b"a"),
    _plain("deleteq", b"b"),
    _plain("get", b"b"),
    _store("add", b"a", b"again"),
    _plain("get", b"a"),
    ("version", {}),
]


def responses(exchange: Exchange) -> Iterator[list[dcp.Frame]]:
    """Send all commands; yield the responses to each: none or one."""
    cas = 0
    for name, parts in COMMANDS:
        known = {**parts, "cas": cas} if parts.get("cas") == LAST else parts
        frames = dcp.Frame(name, Magic.REQUEST, **known), dcp.Frame(_END, Magic.REQUEST)
        *found, end = dcp.decode(exchange(b"".join(map(dcp.encode, frames))))
        assert end.name == _END
        cas = next((frame.cas for frame in found if frame.cas), cas)
        yield found


def recorded() -> list[list[dcp.Frame]]:
    return [dcp.decode(bytes.fromhex("".join(frames))) for frames in json.loads(RECORDING.read_text())["answers"]]


def _record() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/socket"
        command = ["memcached", "-B", "binary", "-s", path, "-u", "nobody", "-a", "0777"]
        Path(directory).chmod(0o777)
        server = subprocess.Popen(command)
        try:
            found = [[dcp.encode(frame).hex() for frame in frames] for frames in responses(_connect(path))]
        finally:
            server.terminate()
            server.wait()
    shown = " ".join(command).replace(path, "PATH")
    RECORDING.write_text(json.dumps({"command": shown, "answers": found}, indent=1) + "\n")


def _connect(path: str) -> Exchange:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_TIMEOUT)
    deadline = time.monotonic() + _TIMEOUT
    while connection.connect_ex(path) and time.monotonic() < deadline:
        time.sleep(0.01)

    def exchange(data: bytes) -> bytes:
        connection.sendall(data)
        found = b""
        while not found or dcp.decode(found)[-1].name != _END:
            found += connection.recv(65536)
        return found

    return exchange


if __name__ == "__main__":
    _record()
