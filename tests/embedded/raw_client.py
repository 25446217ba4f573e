"""Clients of a node without sockets: frames in, frames out, on a clock that only moves when a test moves it.

`CommandClient` asks and reads responses, `DcpClient` opens a DCP connection and its streams, `LegacyClient` speaks TAP
or UPR. `tests.embedded.consumer` and `tests.embedded.sockets` have clients on real sockets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa

import dcp
from dcp import Frame
from dcp.embedded.bucket import BucketStore
from dcp.embedded.connection import ConnectionState, Handler, ServerConnection
from dcp.embedded.handlers import HANDLERS_OF
from dcp.embedded.release import Release
from dcp.embedded.store import StoredItem, VbucketStore
from dcp.embedded.users import User
from dcp.wire.dcp import ENDLESS, OpenFlag
from dcp.wire.frame import decode, encode
from dcp.wire.framing import stream_id
from dcp.wire.layout import Magic
from dcp.wire.memcached import FEATURES, Feature, Status
from dcp.wire.tap import TAP_CONNECT, TapConnect, TapConnectFlag, TapFlag

# Unix seconds of the bucket's clock.
NOW = 1_700_000_000
# With the salt of the vectors in the protocol reference.
ALICE = User("alice", "s3cret", salt=bytes(range(16)))
# A key as clients with collections send it.
KEY = b"\0key"
USUAL_FEATURES = (
    Feature.XERROR,
    Feature.SELECT_BUCKET,
    Feature.JSON,
    Feature.XATTR,
    Feature.SNAPPY,
    Feature.COLLECTIONS,
    Feature.MUTATION_SEQNO,
)
# DCP refuses connections with unordered execution.
ALL_FEATURES = frozenset(Feature) - {Feature.UNORDERED_EXECUTION}
NO_FLAGS = TapConnectFlag(0)


class Clock:
    """Clock of a bucket."""

    def __init__(self) -> None:
        self.now = float(NOW)

    def __call__(self) -> float:
        return self.now


def make_bucket(
    version: str = "8.0",
    *,
    nodes: int = 1,
    vbuckets: int = 1,
    replicas: int = 0,
    history: bool = False,
    clock: Callable[[], float] | None = None,
) -> BucketStore:
    """Create an empty bucket. Its uuids are the same in every run."""
    return BucketStore(
        "default",
        nodes=nodes,
        vbuckets=vbuckets,
        replicas=replicas,
        release=Release.of(version),
        clock=clock or Clock(),
        seed=1,
        history=history,
    )


def legacy_bucket(version: str = "3.1", vbuckets: int = 2, clock: Callable[[], float] | None = None) -> BucketStore:
    """Create an empty bucket of a release that speaks TAP."""
    return make_bucket(version, vbuckets=vbuckets, clock=clock)


def filled_bucket(count: int = 5, version: str = "8.0", **options: Any) -> tuple[BucketStore, VbucketStore]:
    """Create a bucket with `count` documents in its first vbucket; return both."""
    bucket = make_bucket(version, **options)
    vbucket = bucket.active(0)
    for n in range(1, count + 1):
        vbucket.put(StoredItem("mutation", n, b"key%d" % n, b'{"n":%d}' % n, cas=n, datatype=1))
    return bucket, vbucket


class RawClient:
    """Client of one connection to a node."""

    def __init__(
        self,
        bucket: BucketStore,
        node: int = 0,
        *,
        dialect: str = "dcp",
        users: Iterable[User] | None = None,
        features: Iterable[Feature] = (),
        now: float = 0.0,
    ) -> None:
        self.bucket = bucket
        self.now = now
        # All bytes from the node.
        self.received = b""
        handlers: Mapping[str, Handler] = HANDLERS_OF[dialect]
        by_name = None if users is None else {user.name: user for user in users}
        state = ConnectionState(frozenset(features))
        self.connection = ServerConnection(bucket, bucket.nodes[node], handlers, dialect, users=by_name, state=state)
        self.connection.now = now

    def send(self, *frames: Frame, dialect: str | None = None) -> None:
        """Send frames, in another dialect than the connection's if one is given."""
        for frame in frames:
            self.send_bytes(encode(frame, dialect or self.connection.dialect))

    def send_bytes(self, data: bytes) -> None:
        self.connection.receive(data, self.now)

    def receive(self) -> list[Frame]:
        """Return everything that the node has to send, until there is no more or the window is full."""
        return decode(self.receive_bytes(), self.connection.dialect)

    def receive_bytes(self) -> bytes:
        found = b""
        # As in every turn of the server's thread.
        self.bucket.durable_writes.tick(self.now)
        while data := b"".join(map(bytes, self.connection.send(self.now))):
            found += data
        self.received += found
        return found

    def wait(self, seconds: float) -> None:
        """Let time pass, with the ticks that the server's thread would give the connection."""
        end = self.now + seconds
        while (due := self.connection.due()) is not None and due <= end:
            self.now = max(due, self.now)
            self.connection.tick(self.now)
        self.now = end
        # The server's thread has turns at any time: before anything is due they change nothing.
        self.connection.tick(self.now)

    @property
    def closed(self) -> bool:
        """True if the node closes the connection."""
        return self.connection.closing


class CommandClient(RawClient):
    """Sends requests, and returns everything that the node answers."""

    def __init__(
        self, bucket: BucketStore | None = None, node: int = 0, *, users: Iterable[User] | None = None
    ) -> None:
        super().__init__(bucket or make_bucket(vbuckets=4), node, users=users)

    def hello(self, *features: int) -> tuple[int, ...]:
        """Request features (by default the usual ones) and return those that are granted."""
        value = FEATURES.encode(features or USUAL_FEATURES)
        granted: tuple[int, ...] = self.request("hello", key=b"test", value=value).body()
        return granted

    def request_all(self, name: str, *, magic: Magic = Magic.REQUEST, opaque: int = 7, **parts: Any) -> list[Frame]:
        """Send a request; return everything that the node sends then."""
        return self.exchange(encode(Frame(name, magic, opaque, **parts)))

    def request(self, name: str, **parts: Any) -> Frame:
        """Send a request; return its response, which must be all that the node sends."""
        (response,) = self.request_all(name, **parts)
        assert (response.name, response.opaque) == (name, parts.get("opaque", 7))
        return response

    def status(self, name: str, **parts: Any) -> Status:
        """Send a request; return the status of its response."""
        return Status(self.request(name, **parts).status)

    def exchange(self, data: bytes) -> list[Frame]:
        """Send bytes; return everything that the node sends then."""
        self.send_bytes(data)
        return self.receive()


def store(
    client: CommandClient, name: str = "set", *, key: bytes = KEY, flags: int = 0, expiry: int = 0, **parts: Any
) -> Frame:
    """Write a document with a command; return the response."""
    return client.request(name, key=key, fields={"flags": flags, "expiry": expiry}, **parts)


def stored_item(client: CommandClient, key: bytes = b"key", vbucket: int = 0, collection: int = 0) -> StoredItem:
    """Return the latest version that a vbucket holds."""
    item = client.bucket.active(vbucket).get(collection, key)
    assert item is not None
    return item


class DcpClient(RawClient):
    """Opens a DCP connection, sets controls (no-ops are on unless these say otherwise), and requests streams."""

    def __init__(
        self,
        bucket: BucketStore,
        *,
        flags: OpenFlag = OpenFlag.PRODUCER,
        features: Iterable[Feature] = ALL_FEATURES,
        controls: Mapping[str, str] | None = None,
        name: bytes = b"consumer",
        now: float = 0.0,
    ) -> None:
        super().__init__(bucket, features=features, now=now)
        assert self.request("open", fields={"flags": int(flags)}, key=name).status == Status.SUCCESS
        for control, value in {"enable_noop": "true", **(controls or {})}.items():
            assert self.control(control, value) == Status.SUCCESS, control

    def request(self, name: str, **parts: Any) -> Frame:
        """Send a request; return its response. Frames of streams that arrive with it are dropped."""
        self.send(Frame(name, Magic.FRAMED_REQUEST if parts.get("frame_info") else Magic.REQUEST, 99, **parts))
        responses = [frame for frame in self.receive() if frame.kind.answers]
        assert len(responses) == 1
        return responses[0]

    def control(self, name: str, value: str) -> int:
        """Set a control; return the status of the response."""
        return self.request("control", key=name.encode(), value=value.encode()).status

    def send_stream_request(
        self,
        start: int = 0,
        end: int = ENDLESS,
        *,
        vbuuid: int = 0,
        window: tuple[int, int] | None = None,
        flags: int = 0,
        opaque: int = 7,
        vbucket: int = 0,
        chosen: Mapping[str, Any] | None = None,
    ) -> None:
        """Request a stream. `window` is the snapshot of the position, `chosen` the JSON value with the filter."""
        first, last = window or (start, start)
        numbers = {"start_seqno": start, "end_seqno": end, "vbuuid": vbuuid, "flags": flags}
        fields = numbers | {"snapshot_start": first, "snapshot_end": last}
        value = b"" if chosen is None else json.dumps(chosen).encode()
        self.send(Frame("stream_request", Magic.REQUEST, opaque, vbucket=vbucket, fields=fields, value=value))

    def stream(self, start: int = 0, end: int = ENDLESS, **options: Any) -> list[Frame]:
        """Request a stream, which must be granted; return its first frames."""
        self.send_stream_request(start, end, **options)
        response, *frames = self.receive()
        assert response.status == Status.SUCCESS, response
        return frames

    def refused_stream(self, start: int = 0, end: int = ENDLESS, **options: Any) -> Frame:
        """Request a stream, which must be refused; return the response."""
        self.send_stream_request(start, end, **options)
        [response] = self.receive()
        assert response.status
        return response

    def close_stream(self, vbucket: int = 0, sid: int | None = None) -> Frame:
        """Close a stream; return the response."""
        info = () if sid is None else (stream_id(sid),)
        return self.request("close_stream", vbucket=vbucket, frame_info=info)

    def acknowledge(self, count: int) -> None:
        """Acknowledge bytes for flow control."""
        self.send(Frame("buffer_ack", Magic.REQUEST, 0, fields={"bytes": count}))


def summaries(frames: Iterable[Frame]) -> list[tuple[Any, ...]]:
    """Return a short tuple for each frame of a stream: its name and seqno, or what else matters."""
    return [_summary(frame) for frame in frames]


def _summary(frame: Frame) -> tuple[Any, ...]:
    fields = frame.fields
    if frame.name == "snapshot_marker":
        return "marker", fields["snapshot_start"], fields["snapshot_end"], fields["flags"]
    if frame.name == "stream_end":
        return "end", fields["reason"]
    if frame.name == "oso_snapshot":
        return "oso", fields["flags"]
    return frame.name, fields["seqno"]


# TAP and UPR.


class LegacyClient(RawClient):
    """Speaks TAP or one of the UPR drafts with the only node of a bucket."""

    def __init__(self, bucket: BucketStore, dialect: str = "dcp") -> None:
        super().__init__(bucket, dialect=dialect)

    def connect(
        self,
        flags: TapConnectFlag = NO_FLAGS,
        *,
        name: bytes = b"",
        date: int | None = None,
        vbuckets: tuple[int, ...] | None = None,
        checkpoints: tuple[tuple[int, int], ...] | None = None,
    ) -> None:
        """Send TAP_CONNECT, with the flags for the arguments that are given."""
        flags |= TapConnectFlag.BACKFILL if date is not None else NO_FLAGS
        flags |= TapConnectFlag.LIST_VBUCKETS if vbuckets is not None else NO_FLAGS
        flags |= TapConnectFlag.CHECKPOINT if checkpoints is not None else NO_FLAGS
        value = TAP_CONNECT.encode(TapConnect(date, vbuckets, checkpoints))
        self.send(
            Frame("tap_connect", Magic.REQUEST, 7, fields={"flags": int(flags)}, key=name, value=value), dialect="tap"
        )

    def acknowledge(self, frame: Frame, status: Status = Status.SUCCESS) -> None:
        """Answer a TAP message."""
        self.send(Frame(frame.name, Magic.RESPONSE, frame.opaque, status=int(status)))

    def follow(self) -> list[Frame]:
        """Receive, and acknowledge every message that requests it, until there is no more."""
        found: list[Frame] = []
        while frames := self.receive():
            found += frames
            for frame in frames:
                if wants_acknowledgement(frame):
                    self.acknowledge(frame)
        return found


def upr_stream_request(
    client: LegacyClient,
    vbucket: int = 0,
    *,
    start: int = 0,
    end: int = ENDLESS,
    vbuuid: int = 0,
    high: int = 0,
    flags: int = 0,
    opaque: int = 11,
    group: bytes = b"",
) -> Frame:
    """Return a stream request in the draft of a client."""
    numbers = {"start_seqno": start, "end_seqno": end, "vbuuid": vbuuid, "high_seqno": high}
    fields = numbers if client.connection.dialect == "upr1" else {"flags": flags} | numbers
    return Frame("stream_request", Magic.REQUEST, opaque, vbucket=vbucket, fields=fields, key=group)


def fill(bucket: BucketStore, count: int, prefix: str = "key") -> None:
    """Write documents to all vbuckets; delete the last one and expire the one before it."""
    for n in range(count):
        bucket.store(b"%s-%d" % (prefix.encode(), n), b'{"n":%d}' % n, flags=0x01020304 + n, expiry=NOW + 1000 + n)
    bucket.remove(b"%s-%d" % (prefix.encode(), count - 1))
    bucket.remove(b"%s-%d" % (prefix.encode(), count - 2), event="expiration")


def wants_acknowledgement(frame: Frame) -> bool:
    return bool(int(frame.fields.get("tap_flags", 0)) & TapFlag.ACK)


def names(frames: list[Frame]) -> list[str]:
    return [frame.name for frame in frames]


def codes(frames: list[Frame]) -> list[tuple[int, Any]]:
    """Return vbucket and code of each opaque message."""
    return [(frame.vbucket, frame.fields["code"]) for frame in frames if frame.name == "tap_opaque"]


def keys(frames: list[Frame]) -> list[bytes]:
    """Return the keys of all changes."""
    return [frame.key for frame in frames if frame.name in ("mutation", "deletion", "expiration")]


def stored_items(bucket: BucketStore, *vbuckets: int) -> list[StoredItem]:
    """Return the items of some vbuckets (by default of all), in order of vbuckets and seqnos."""
    chosen = vbuckets or range(len(bucket.owners))
    return [item for number in chosen for item in bucket.active(number) if isinstance(item, StoredItem)]


def rows(data: bytes, dialect: str, *columns: str) -> list[dict[str, Any]]:
    """Decode bytes into rows of these columns."""
    decoder = dcp.Decoder(dialect, columns=columns)
    decoder.feed(data)
    found: list[dict[str, Any]] = pa.record_batch(decoder.take()).to_pylist()
    assert decoder.pending == 0
    return found
