"""DCP consumer on a blocking socket that reacts to nothing by itself."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import count

from dcp._codec import Splitter
from dcp.embedded import Cluster
from dcp.wire import DIALECTS
from dcp.wire.body import JSON
from dcp.wire.dcp import ENDLESS, OpenFlag
from dcp.wire.frame import Frame, encode, read_frame
from dcp.wire.layout import Kind, Magic
from dcp.wire.memcached import FEATURES, MAX_FRAME, Feature, Status

# Seconds: longer than any step takes unless it fails.
TIMEOUT = 20.0


class ConnectionClosed(Exception):
    """The node has closed the connection."""


class Consumer:
    """DCP connection to one node of a cluster."""

    def __init__(
        self,
        cluster: Cluster,
        node: int = 0,
        *,
        features: Sequence[Feature] = (),
        controls: Mapping[str, str] | None = None,
    ) -> None:
        host, _, port = cluster.addresses[node].rpartition(":")
        self.socket = socket.create_connection((host, int(port)), TIMEOUT)
        self.received = 0
        self._splitter = Splitter(MAX_FRAME)
        self._arrived: deque[Frame] = deque()
        # Frames that arrived before the response to a request.
        self._early: list[Frame] = []
        self._opaques = count(1)
        try:
            self._open(cluster, features, controls or {})
        except BaseException:
            self.socket.close()
            raise

    def _open(self, cluster: Cluster, features: Sequence[Feature], controls: Mapping[str, str]) -> None:
        user = cluster.credentials
        if features:
            self.request("hello", key=b"consumer", value=FEATURES.encode(features))
        self.request("sasl_auth", key=b"PLAIN", value=f"\0{user.username}\0{user.password}".encode())
        self.request("select_bucket", key=b"default")
        flags = OpenFlag.PRODUCER | OpenFlag.INCLUDE_DELETE_TIMES
        opened = self.request("open", key=b"consumer", fields={"flags": int(flags)})
        assert opened.status == Status.SUCCESS
        for name, value in controls.items():
            assert self.request("control", key=name.encode(), value=value.encode()).status == Status.SUCCESS

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def request(
        self, name: str, vbucket: int = 0, *, fields: dict[str, int] | None = None, key: bytes = b"", value: bytes = b""
    ) -> Frame:
        """Send a request and wait for its response; frames that arrive before it are kept for `frames`."""
        opaque = next(self._opaques)
        frame = Frame(name, Magic.REQUEST, opaque, vbucket=vbucket, fields=fields or {}, key=key, value=value)
        self.socket.sendall(encode(frame))
        while received := self._next():
            if received.kind is Kind.RESPONSE and received.opaque == opaque:
                return received
            self._early.append(received)
        raise ConnectionClosed

    def stream(
        self, vbucket: int, start: int = 0, end: int = ENDLESS, *, vbuuid: int = 0, sid: int | None = None
    ) -> Frame:
        fields = {"flags": 0, "start_seqno": start, "end_seqno": end, "vbuuid": vbuuid}
        fields |= {"snapshot_start": start, "snapshot_end": start}
        value = b"" if sid is None else JSON.encode({"sid": sid})
        return self.request("stream_request", vbucket, fields=fields, value=value)

    def acknowledge(self, size: int) -> None:
        self.socket.sendall(encode(Frame("buffer_ack", Magic.REQUEST, fields={"bytes": size})))

    def frames(self) -> Iterator[Frame]:
        """Iterate over all frames until the node closes the connection."""
        while self._early:
            yield self._early.pop(0)
        while frame := self._next():
            yield frame

    def until(self, *last: str, seqno: int = 0) -> list[Frame]:
        """Return the frames up to the first one with one of these names, or that reaches a seqno."""
        found: list[Frame] = []
        for frame in self.frames():
            found.append(frame)
            if frame.name in last or 0 < seqno <= int(frame.fields.get("seqno", 0)):
                return found
        raise ConnectionClosed

    def remaining(self) -> list[Frame]:
        """Return all frames until the node closes the connection."""
        return list(self.frames())

    def is_quiet(self) -> bool:
        """Return whether streams have sent nothing before the response to a second request.

        Each response follows a turn of the node in which its streams could have sent something."""
        for _ in range(2):
            self.request("get_failover_log")
        return not self._early and not self._arrived

    def receives_nothing(self) -> bool:
        """Return whether there is nothing to read from the socket."""
        # Not a wait: everything that the node has sent is in the buffers of the socket.
        self.socket.setblocking(False)
        try:
            self.socket.recv(1)
        except BlockingIOError:
            return not self._early and not self._arrived
        finally:
            self.socket.settimeout(TIMEOUT)
        return False

    def _next(self) -> Frame | None:
        """Return the next frame, or None if the node has closed the connection."""
        while not self._arrived:
            if not (data := self._receive()):
                return None
            self.received += len(data)
            self._splitter.feed(data)
            self._arrived.extend(read_frame(raw, DIALECTS["dcp"]) for raw in self._splitter)
        return self._arrived.popleft()

    def _receive(self) -> bytes:
        try:
            return self.socket.recv(1 << 16)
        except ConnectionError:
            return b""


def items(frames: list[Frame]) -> list[int]:
    """Return the seqnos of items among frames."""
    return [int(frame.fields["seqno"]) for frame in frames if "seqno" in frame.fields]


def frames_named(frames: list[Frame], name: str) -> list[Frame]:
    return [frame for frame in frames if frame.name == name]
