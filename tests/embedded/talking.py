"""The other end of an embedded node's conversation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from dcp import Frame, decode, encode
from dcp.embedded.bucket import BucketStore
from dcp.embedded.commands import dcp as producer
from dcp.embedded.connection import ConnectionState, ServerConnection
from dcp.embedded.release import Release
from dcp.embedded.store import StoredItem, VbucketStore
from dcp.wire.dcp import ENDLESS, OpenFlag
from dcp.wire.framing import stream_id
from dcp.wire.layout import Magic
from dcp.wire.memcached import Feature, Status

ALL = frozenset(Feature) - {Feature.UNORDERED_EXECUTION}


def bucket(version: str = "8.0", *, history: bool = False, vbuckets: int = 1) -> BucketStore:
    return BucketStore(
        "default",
        vbuckets=vbuckets,
        release=Release.of(version),
        clock=lambda: 1_800_000_000,
        seed=7,
        history=history,
    )


def filled(count: int = 5, version: str = "8.0", **more: Any) -> tuple[BucketStore, VbucketStore]:
    """A bucket with so many documents in its first vbucket."""
    made = bucket(version, **more)
    vbucket = made.active(0)
    for n in range(1, count + 1):
        vbucket.put(StoredItem("mutation", n, b"key%d" % n, b'{"n":%d}' % n, cas=n, datatype=1))
    return made, vbucket


class Consumer:
    """Opens a connection, sets its controls, and hears what comes.

    window: how much may be unacknowledged; what was heard is acknowledged with `acknowledge`.
    """

    def __init__(
        self,
        made: BucketStore,
        *,
        flags: OpenFlag = OpenFlag.PRODUCER,
        features: Iterable[Feature] = ALL,
        controls: Mapping[str, str] | None = None,
        name: bytes = b"consumer",
        now: float = 0.0,
    ) -> None:
        state = ConnectionState(frozenset(features))
        self.connection = ServerConnection(made, made.nodes[0], producer.HANDLERS, state=state)
        self.now = now
        self.said = b""
        assert self.ask("open", fields={"flags": int(flags)}, key=name).status == Status.SUCCESS
        for control, value in {"enable_noop": "true", **(controls or {})}.items():
            assert self.control(control, value) == Status.SUCCESS, control

    def tell(self, *frames: Frame) -> None:
        self.connection.receive(b"".join(encode(frame) for frame in frames), self.now)

    def hear(self) -> list[Frame]:
        """Everything there is to say, until there is no more or the window is full."""
        heard = b""
        while parts := self.connection.send(self.now):
            heard += b"".join(bytes(part) for part in parts)
        self.said += heard
        return decode(heard)

    def ask(self, name: str, **more: Any) -> Frame:
        """The answer to a request; what streams say before it is heard later, and never lost."""
        self.tell(Frame(name, Magic.REQUEST if not more.get("frame_info") else Magic.FRAMED_REQUEST, 99, **more))
        heard = [frame for frame in self.hear() if frame.kind.answers]
        assert len(heard) == 1
        return heard[0]

    def control(self, name: str, value: str) -> int:
        return self.ask("control", key=name.encode(), value=value.encode()).status

    def tell_stream(
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
        first, last = window or (start, start)
        numbers = {"start_seqno": start, "end_seqno": end, "vbuuid": vbuuid, "flags": flags}
        fields = numbers | {"snapshot_start": first, "snapshot_end": last}
        value = b"" if chosen is None else json.dumps(chosen).encode()
        self.tell(Frame("stream_request", Magic.REQUEST, opaque, vbucket=vbucket, fields=fields, value=value))

    def stream(self, start: int = 0, end: int = ENDLESS, **more: Any) -> list[Frame]:
        """Ask for a stream, which is granted; what it says so far."""
        self.tell_stream(start, end, **more)
        answer, *frames = self.hear()
        assert answer.status == Status.SUCCESS, answer
        return frames

    def refused(self, start: int = 0, end: int = ENDLESS, **more: Any) -> Frame:
        """The answer to a request for a stream that is not granted."""
        self.tell_stream(start, end, **more)
        [answer] = self.hear()
        assert answer.status
        return answer

    def close(self, vbucket: int = 0, sid: int | None = None) -> Frame:
        info = () if sid is None else (stream_id(sid),)
        return self.ask("close_stream", vbucket=vbucket, frame_info=info)

    def acknowledge(self, count: int) -> None:
        self.tell(Frame("buffer_ack", Magic.REQUEST, 0, fields={"bytes": count}))


def named(frames: Iterable[Frame]) -> list[tuple[Any, ...]]:
    """What frames say, in short."""
    return [_short(frame) for frame in frames]


def _short(frame: Frame) -> tuple[Any, ...]:
    fields = frame.fields
    if frame.name == "snapshot_marker":
        return "marker", fields["snapshot_start"], fields["snapshot_end"], fields["flags"]
    if frame.name == "stream_end":
        return "end", fields["reason"]
    if frame.name == "oso_snapshot":
        return "oso", fields["flags"]
    return frame.name, fields["seqno"]
