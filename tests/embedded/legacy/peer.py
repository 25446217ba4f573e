"""A client of a node without sockets: it says frames, and hears what the node says."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import dcp
from dcp.embedded.bucket import BucketStore
from dcp.embedded.connection import ServerConnection
from dcp.embedded.handlers import HANDLERS_OF
from dcp.embedded.release import Release
from dcp.embedded.store import StoredItem
from dcp.wire.frame import Frame, decode, encode
from dcp.wire.layout import Magic
from dcp.wire.memcached import Status
from dcp.wire.tap import TAP_CONNECT, TapConnect, TapConnectFlag, TapFlag

# Unix seconds at which everything happens, unless a test says otherwise.
NOW = 2_000_000_000
NO_FLAGS = TapConnectFlag(0)


class Clock:
    def __init__(self) -> None:
        self.now = float(NOW)

    def __call__(self) -> float:
        return self.now


def bucket(version: str = "3.1", vbuckets: int = 2, clock: Clock | None = None) -> BucketStore:
    return BucketStore("default", vbuckets=vbuckets, release=Release.of(version), clock=clock or Clock(), seed=1)


def fill(bucket: BucketStore, count: int, prefix: str = "key") -> None:
    """Documents in all vbuckets, the last of which is deleted, and the one before it expired."""
    for n in range(count):
        bucket.store(b"%s-%d" % (prefix.encode(), n), b'{"n":%d}' % n, flags=0x01020304 + n, expiry=NOW + 1000 + n)
    bucket.remove(b"%s-%d" % (prefix.encode(), count - 1))
    bucket.remove(b"%s-%d" % (prefix.encode(), count - 2), event="expiration")


class Peer:
    """A connection to the only node of a bucket."""

    def __init__(self, bucket: BucketStore, dialect: str = "dcp") -> None:
        self.bucket = bucket
        self.connection = ServerConnection(bucket, bucket.nodes[0], HANDLERS_OF[dialect], dialect)
        self.now = 0.0

    def say(self, *frames: Frame, dialect: str | None = None) -> None:
        for frame in frames:
            self.connection.receive(encode(frame, dialect or self.connection.dialect), self.now)

    def listen(self) -> bytes:
        """Everything that the node says without being asked anything."""
        found = b""
        while said := b"".join(bytes(part) for part in self.connection.send(self.now)):
            found += said
        return found

    def hear(self) -> list[Frame]:
        return decode(self.listen(), self.connection.dialect)

    def wait(self, seconds: float) -> None:
        """Let time go by, as the thread of a server does."""
        end = self.now + seconds
        while (due := self.connection.due()) is not None and due <= end:
            self.now = max(due, self.now)
            self.connection.tick(self.now)
        self.now = end

    # TAP.

    def connect(
        self,
        flags: TapConnectFlag = NO_FLAGS,
        *,
        name: bytes = b"",
        date: int | None = None,
        vbuckets: tuple[int, ...] | None = None,
        checkpoints: tuple[tuple[int, int], ...] | None = None,
    ) -> None:
        flags |= TapConnectFlag.BACKFILL if date is not None else NO_FLAGS
        flags |= TapConnectFlag.LIST_VBUCKETS if vbuckets is not None else NO_FLAGS
        flags |= TapConnectFlag.CHECKPOINT if checkpoints is not None else NO_FLAGS
        value = TAP_CONNECT.encode(TapConnect(date, vbuckets, checkpoints))
        self.say(
            Frame("tap_connect", Magic.REQUEST, 7, fields={"flags": int(flags)}, key=name, value=value), dialect="tap"
        )

    def acknowledge(self, frame: Frame, status: Status = Status.SUCCESS) -> None:
        self.say(Frame(frame.name, Magic.RESPONSE, frame.opaque, status=int(status)))

    def follow(self) -> list[Frame]:
        """What comes to a client that acknowledges what it is asked to."""
        found: list[Frame] = []
        while frames := self.hear():
            found += frames
            for frame in frames:
                if asks(frame):
                    self.acknowledge(frame)
        return found


def asks(frame: Frame) -> bool:
    return bool(int(frame.fields.get("tap_flags", 0)) & TapFlag.ACK)


def names(frames: list[Frame]) -> list[str]:
    return [frame.name for frame in frames]


def codes(frames: list[Frame]) -> list[tuple[int, Any]]:
    """The vbuckets and codes of opaque messages."""
    return [(frame.vbucket, frame.fields["code"]) for frame in frames if frame.name == "tap_opaque"]


def keys(frames: list[Frame]) -> list[bytes]:
    return [frame.key for frame in frames if frame.name in ("mutation", "deletion", "expiration")]


def stored(bucket: BucketStore, *vbuckets: int) -> list[StoredItem]:
    """What there is, in the order of vbuckets and seqnos."""
    chosen = vbuckets or range(len(bucket.owners))
    return [item for number in chosen for item in bucket.active(number) if isinstance(item, StoredItem)]


def rows(data: bytes, dialect: str, *columns: str) -> list[dict[str, Any]]:
    """What arrives, as it is decoded into columns."""
    decoder = dcp.Decoder(dialect, columns=columns)
    decoder.feed(data)
    found: list[dict[str, Any]] = pa.record_batch(decoder.take()).to_pylist()
    assert decoder.pending == 0
    return found
