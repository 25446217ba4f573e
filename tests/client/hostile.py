"""A node on a raw socket that answers the handshake of a client, and then sends whatever a test wants."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

import dcp
from dcp.wire.body import FAILOVER_LOG
from dcp.wire.dcp import DCP, StreamEnd
from dcp.wire.layout import HEADER_STRUCT, Magic
from dcp.wire.memcached import Status
from tests.session.harness import Answer, Peer

LOG = FAILOVER_LOG.encode([(0xA, 0)])
# Sends what it likes on a connection, once the stream of this opaque was accepted.
Script = Callable[[socket.socket, int], None]


def mutation(opaque: int, seqno: int, value: bytes = b"", **parts: Any) -> bytes:
    """Return the row of a document in the default collection."""
    parts.setdefault("key", b"\0key")
    fields = {"seqno": seqno, "rev_seqno": 1, "flags": 0, "expiry": 0, "lock_time": 0, "nru": 0}
    return dcp.encode(dcp.Frame("mutation", Magic.REQUEST, opaque, fields=fields, value=value, **parts))


def marker(opaque: int, start: int, end: int, vbucket: int = 0) -> bytes:
    fields = {"snapshot_start": start, "snapshot_end": end, "flags": 1}
    return dcp.encode(dcp.Frame("snapshot_marker", Magic.REQUEST, opaque, vbucket=vbucket, fields=fields))


def stream_end(opaque: int, vbucket: int = 0, reason: int = StreamEnd.OK) -> bytes:
    return dcp.encode(dcp.Frame("stream_end", Magic.REQUEST, opaque, vbucket=vbucket, fields={"reason": int(reason)}))


class HostileNode:
    """The only node of a bucket with one vbucket. A context manager.

    script: runs in a thread of its own for each accepted stream; the connection stays open after it.
    answers: statuses or values of commands and controls, by name; Status.SUCCESS for all others.
    malformed: values of further answers, which need not be valid.
    received: frames of the client.
    """

    def __init__(
        self, script: Script, answers: Mapping[str, Answer] | None = None, malformed: Mapping[str, bytes] | None = None
    ) -> None:
        self._script, self._malformed = script, malformed or {}
        self.received: list[dcp.Frame] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port = self._listener.getsockname()[1]
        self._answers: dict[str, Answer] = {"get_cluster_config": self._map(), "get_failover_log": LOG} | dict(
            answers or {}
        )
        self._closing = contextlib.ExitStack()

    @property
    def url(self) -> str:
        return f"couchbase://127.0.0.1:{self._port}/default"

    def __enter__(self) -> HostileNode:
        self._serve(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        # On Linux this ends a thread that waits for a connection; `close` does not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._closing.close()

    def _map(self) -> bytes:
        owners = {"hashAlgorithm": "CRC", "numReplicas": 0, "serverList": [f"127.0.0.1:{self._port}"]}
        node = {"services": {"kv": self._port}, "hostname": "127.0.0.1"}
        config = {"rev": 1, "name": "default", "uuid": "a", "nodeLocator": "vbucket", "nodesExt": [node]}
        return json.dumps(config | {"vBucketServerMap": owners | {"vBucketMap": [[0]]}}).encode()

    def _serve(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        thread.start()
        self._closing.callback(thread.join)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                guest, _ = self._listener.accept()
                self._serve(self._converse, guest)
                self._closing.callback(_hang_up, guest)

    def _converse(self, guest: socket.socket) -> None:
        peer, data = Peer(self._answers), b""
        with guest, contextlib.suppress(OSError):
            while piece := guest.recv(65536):
                data += piece
                while len(data) >= HEADER_STRUCT.size and len(data) >= (size := 24 + int.from_bytes(data[8:12], "big")):
                    (frame,), data = dcp.decode(data[:size]), data[size:]
                    self._answer(guest, peer, frame)

    def _answer(self, guest: socket.socket, peer: Peer, frame: dcp.Frame) -> None:
        self.received.append(frame)
        if frame.kind.answers or frame.name == "buffer_ack":
            return
        if (value := self._malformed.get(frame.name)) is not None:
            opcode = DCP.by_name[frame.name].opcode
            guest.sendall(HEADER_STRUCT.pack(Magic.RESPONSE, opcode, 0, 0, 0, 0, len(value), frame.opaque, 0) + value)
            return
        if frame.name != "stream_request":
            guest.sendall(peer.answer(frame))
            return
        guest.sendall(dcp.encode(dcp.Frame(frame.name, Magic.RESPONSE, frame.opaque, status=Status.SUCCESS, value=LOG)))
        self._serve(self._run, guest, frame.opaque)

    def _run(self, guest: socket.socket, opaque: int) -> None:
        with contextlib.suppress(OSError):
            self._script(guest, opaque)


def _hang_up(guest: socket.socket) -> None:
    with contextlib.suppress(OSError):
        guest.shutdown(socket.SHUT_RDWR)
