"""A DCP producer for one connection: answers to requests, and streams in every form that the protocol allows."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from tests.model.history import Change, Vbucket, newest, visible
from tests.model.wire import PUSHED, Message, answer, leb128, request, snappy

# Opcodes.
HELLO, SASL_LIST, SASL_AUTH, SELECT_BUCKET, GET_MAP = 0x1F, 0x20, 0x21, 0x89, 0xB5
VERSION, STATISTICS, MANIFEST, COLLECTION_ID = 0x0B, 0x10, 0xBA, 0xBB
ALL_SEQNOS, OBSERVE_SEQNO, FAILOVER_LOG, STREAM_FAILOVER_LOG = 0x48, 0x91, 0x96, 0x54
OPEN, CLOSE_STREAM, STREAM, STREAM_END, MARKER = 0x50, 0x52, 0x53, 0x55, 0x56
MUTATION, DELETION, EXPIRATION, NOOP, BUFFER_ACK, CONTROL = 0x57, 0x58, 0x59, 0x5C, 0x5D, 0x5E
ADVANCED, OSO = 0x64, 0x65
# Statuses.
UNKNOWN_KEY, EXISTS, EINVAL, NOT_MY_VBUCKET, RANGE = 0x01, 0x02, 0x04, 0x07, 0x22
ROLLBACK, AUTH_ERROR, UNKNOWN_COMMAND, TEMPORARY = 0x23, 0x20, 0x81, 0x86
# Features of HELLO.
XATTR, XERROR, SELECT, SNAPPY, JSON, DUPLEX, MAP_PUSHED, ALT, COLLECTIONS = 6, 7, 8, 10, 11, 12, 13, 16, 18
IN_MEMORY, ON_DISK = 0x01, 0x02
HOTEL = 8
MANIFEST_TEXT = {
    "uid": "2",
    "scopes": [
        {
            "name": "_default",
            "uid": "0",
            "collections": [{"name": "_default", "uid": "0"}, {"name": "hotel", "uid": "8"}],
        }
    ],
}


@dataclass
class Habits:
    """Features and controls of the servers of one schedule, drawn once."""

    features: frozenset[int]
    controls: frozenset[str]
    oso: bool
    password: bytes = b""


class Cluster(Protocol):
    """The part of the cluster that a producer reads. Its lock is held around every call of a producer."""

    habits: Habits
    vbuckets: list[Vbucket]

    def map_for(self, node: int) -> bytes: ...
    def revision(self) -> int: ...


@dataclass
class Stream:
    vbucket: Vbucket
    opaque: int
    seqno: int
    end: int
    snap_start: int
    snap_end: int
    collections: frozenset[int] | None
    first: bool = True
    # The rest of a snapshot, which is sent bit by bit.
    pending: list[bytes] = field(default_factory=list)


class Producer:
    """State of one connection. `receive` takes a message and `produce` the next bytes that the window allows."""

    def __init__(self, cluster: Cluster, node: int, draw: random.Random, send: Callable[[bytes], None]) -> None:
        self.cluster, self.node, self.draw, self.send = cluster, node, draw, send
        self.streams: dict[int, Stream] = {}
        self.features: frozenset[int] = frozenset()
        self.controls: dict[str, str] = {}
        self.open_flags: int | None = None
        self.window, self.outstanding = 0, 0
        self.noop: int | None = None
        self.pushed, self.selected = 0, False
        self.wants_close = False

    # Requests.

    def receive(self, message: Message) -> None:
        if message.magic == 0x81:
            assert message.opcode == NOOP, message
            assert message.opaque == self.noop, "a noop has to be answered with its own opaque"
            self.noop = None
            return
        handler = self._handlers().get(message.opcode)
        reply = answer(message, UNKNOWN_COMMAND) if handler is None else handler(message)
        if reply:
            self.send(reply)

    def _handlers(self) -> dict[int, Callable[[Message], bytes]]:
        return {
            HELLO: self._hello,
            SASL_LIST: lambda m: answer(m, value=b"PLAIN"),
            SASL_AUTH: self._authenticate,
            SELECT_BUCKET: self._select,
            GET_MAP: lambda m: answer(m, value=self.cluster.map_for(self.node), datatype=1),
            VERSION: lambda m: answer(m, value=b"7.6.1-0000-enterprise"),
            STATISTICS: answer,
            MANIFEST: lambda m: answer(m, value=json.dumps(MANIFEST_TEXT).encode(), datatype=1),
            COLLECTION_ID: lambda m: answer(m, extras=struct.pack(">QI", 2, HOTEL)),
            ALL_SEQNOS: self._all_seqnos,
            OBSERVE_SEQNO: self._observe,
            FAILOVER_LOG: self._failover_log,
            STREAM_FAILOVER_LOG: self._failover_log,
            OPEN: self._open,
            CONTROL: self._control,
            STREAM: self._stream,
            CLOSE_STREAM: self._close_stream,
            BUFFER_ACK: self._acknowledged,
            0x0A: answer,
        }

    def _hello(self, message: Message) -> bytes:
        asked = struct.unpack(f">{len(message.value) // 2}H", message.value)
        self.features = self.cluster.habits.features & {*asked}
        return answer(message, value=struct.pack(f">{len(self.features)}H", *sorted(self.features)))

    def _authenticate(self, message: Message) -> bytes:
        good = message.value == b"\0reader\0" + self.cluster.habits.password
        return answer(message, 0 if good else AUTH_ERROR)

    def _select(self, message: Message) -> bytes:
        self.selected = message.key == b"travel"
        return answer(message, 0 if self.selected else UNKNOWN_KEY)

    def _mine(self, number: int) -> Vbucket | None:
        found = self.cluster.vbuckets[number] if number < len(self.cluster.vbuckets) else None
        return found if found is not None and found.copies[0] == self.node else None

    def _all_seqnos(self, message: Message) -> bytes:
        collection = struct.unpack(">I", message.extras[4:])[0] if len(message.extras) == 8 else None
        if collection is not None and COLLECTIONS not in self.features:
            return answer(message, EINVAL)
        if COLLECTIONS not in self.features:
            collection = 0
        rows = []
        for vbucket in self.cluster.vbuckets:
            if vbucket.copies[0] == self.node:
                seqnos = [c.seqno for c in vbucket.changes if collection in (None, c.collection)]
                rows.append(struct.pack(">HQ", vbucket.number, max(seqnos, default=0)))
        return answer(message, value=b"".join(rows))

    def _observe(self, message: Message) -> bytes:
        vbucket = self.cluster.vbuckets[message.vbucket]
        (uuid,) = struct.unpack(">Q", message.value)
        if self.node not in vbucket.copies:
            return answer(message, NOT_MY_VBUCKET)
        if uuid not in [known for known, _ in vbucket.log]:
            return answer(message, UNKNOWN_KEY)
        done = vbucket.persisted[vbucket.copies.index(self.node)]
        current = vbucket.log[0][0]
        if uuid != current:
            place = [known for known, _ in vbucket.log].index(uuid)
            end = vbucket.log[place - 1][1]
            body = struct.pack(">BHQQQQQ", 1, vbucket.number, current, done, vbucket.high, uuid, end)
        else:
            body = struct.pack(">BHQQQ", 0, vbucket.number, uuid, done, vbucket.high)
        return answer(message, value=body)

    def _failover_log(self, message: Message) -> bytes:
        vbucket = self._mine(message.vbucket)
        return self._not_mine(message) if vbucket is None else answer(message, value=vbucket.packed_log())

    def _not_mine(self, message: Message) -> bytes:
        text = self.cluster.map_for(self.node) if self.draw.random() < 0.5 else b""
        return answer(message, NOT_MY_VBUCKET, value=text, datatype=1 if text else 0)

    def _open(self, message: Message) -> bytes:
        assert message.key
        self.open_flags = struct.unpack(">II", message.extras)[1]
        return answer(message)

    def _control(self, message: Message) -> bytes:
        name, value = message.key.decode(), message.value.decode()
        assert value
        if name not in self.cluster.habits.controls:
            return answer(message, EINVAL)
        self.controls[name] = value
        if name == "connection_buffer_size":
            self.window = int(value)
        return answer(message)

    def _stream(self, message: Message) -> bytes:
        _, _, start, end, uuid, snap_start, snap_end = struct.unpack(">IIQQQQQ", message.extras)
        assert "enable_noop" in self.controls, "collections and xattrs need noops"
        vbucket = self._mine(message.vbucket)
        if vbucket is None:
            return self._not_mine(message)
        if start > end or not snap_start <= start <= snap_end:
            return answer(message, RANGE)
        if any(stream.vbucket is vbucket for stream in self.streams.values()):
            return answer(message, EXISTS)
        if self.draw.random() < 0.03:
            return answer(message, TEMPORARY)
        back = vbucket.rollback(start, uuid, snap_start, snap_end)
        if back is not None:
            return answer(message, ROLLBACK, value=struct.pack(">Q", back))
        collections = frozenset([0]) if COLLECTIONS not in self.features else None
        if message.value:
            chosen = json.loads(message.value)
            if "collections" in chosen:
                collections = frozenset(int(each, 16) for each in chosen["collections"])
        if start == snap_start and snap_end > vbucket.high:
            snap_end = snap_start
        self.streams[message.opaque] = Stream(vbucket, message.opaque, start, end, snap_start, snap_end, collections)
        return answer(message, value=vbucket.packed_log())

    def _close_stream(self, message: Message) -> bytes:
        opaque = next((o for o, stream in self.streams.items() if stream.vbucket.number == message.vbucket), None)
        if opaque is None:
            return answer(message, UNKNOWN_KEY)
        reply = answer(message)
        if "send_stream_end_on_client_close_stream" in self.controls:
            reply += self._counted(request(STREAM_END, message.vbucket, opaque, extras=struct.pack(">I", 1)))
        del self.streams[opaque]
        return reply

    def _acknowledged(self, message: Message) -> bytes:
        (count,) = struct.unpack(">I", message.extras)
        assert count <= self.outstanding, f"{count} bytes acknowledged, {self.outstanding} outstanding"
        self.outstanding -= count
        return b""

    def _counted(self, frame: bytes) -> bytes:
        self.outstanding += len(frame)
        return frame

    # Streams.

    def produce(self) -> bytes:
        """Return the next frames: none if there is nothing to send, or no window to send it in."""
        out = self._between()
        ready = [stream for stream in self.streams.values() if self._has_more(stream)]
        if not ready or (self.window and self.outstanding >= self.window):
            return out
        stream = self.draw.choice(ready)
        if not stream.pending:
            stream.pending = list(self._snapshot(stream))
        for _ in range(self.draw.randint(1, 20)):
            if not stream.pending or (self.window and self.outstanding >= self.window):
                break
            frame = stream.pending.pop(0)
            out += self._counted(frame)
            if frame[1] == STREAM_END:
                del self.streams[stream.opaque]
        return out

    def end_stream(self, stream: Stream, status: int) -> bytes:
        del self.streams[stream.opaque]
        return self._counted(
            request(STREAM_END, stream.vbucket.number, stream.opaque, extras=struct.pack(">I", status))
        )

    def _between(self) -> bytes:
        """Return frames that may stand between any two others of streams."""
        out = b""
        if "enable_noop" in self.controls and self.noop is None and self.draw.random() < 0.02:
            self.noop = self.draw.getrandbits(32)
            out += request(NOOP, 0, self.noop)
        if (
            self.selected
            and MAP_PUSHED in self.features
            and self.pushed < self.cluster.revision()
            and self.draw.random() < 0.5
        ):
            self.pushed = self.cluster.revision()
            extras = struct.pack(">qq", 1, self.pushed)
            text = self.cluster.map_for(self.node)
            out += Message(PUSHED, 1, b"travel", extras, 1, 0, 0, 0, text).packed()
        return out

    def _has_more(self, stream: Stream) -> bool:
        return bool(stream.pending) or stream.seqno >= stream.end or stream.vbucket.high > stream.seqno

    def _snapshot(self, stream: Stream) -> Iterator[bytes]:
        """Yield the frames of the next snapshot, and of the end if it reaches that."""
        vbucket = stream.vbucket
        if stream.seqno < stream.end and vbucket.high > stream.seqno:
            one = stream.collections is not None and len(stream.collections) == 1
            oso = "enable_out_of_order_snapshots" in self.controls and one and COLLECTIONS in self.features
            if stream.first and stream.seqno == 0 and oso and self.draw.random() < 0.7:
                yield from self._out_of_order(stream)
            elif stream.first and self.draw.random() < 0.6:
                yield from self._from_disk(stream)
            else:
                yield from self._from_memory(stream)
            stream.first = False
        if stream.seqno >= stream.end:
            yield request(STREAM_END, vbucket.number, stream.opaque, extras=struct.pack(">I", 0))

    def _from_disk(self, stream: Stream) -> Iterator[bytes]:
        found = stream.vbucket.newest(stream.seqno, stream.collections)
        last = stream.vbucket.high
        if COLLECTIONS not in self.features:
            last = found[-1].seqno if found else stream.seqno
        if last > stream.seqno:
            yield self._marker(stream, stream.snap_start, last, ON_DISK | self.draw.choice((0, 4)))
            yield from self._items(stream, found, last)
        stream.seqno = stream.vbucket.high

    def _from_memory(self, stream: Stream) -> Iterator[bytes]:
        vbucket = stream.vbucket
        changes = [change for change in vbucket.changes if change.seqno > stream.seqno]
        least = next((i + 1 for i, c in enumerate(changes) if stream.first and c.seqno >= stream.snap_end), 1)
        if stream.first and stream.snap_end > vbucket.high:
            least = len(changes)
        part = changes[: self.draw.randint(least, len(changes))]
        found = newest([change for change in part if visible(change, stream.collections)])
        last = part[-1].seqno
        if COLLECTIONS not in self.features:
            last = found[-1].seqno if found else stream.seqno
        if last > stream.seqno:
            begin = self.draw.choice((stream.seqno + 1, part[0].seqno))
            begin = min(stream.snap_start, begin) if stream.first else begin
            yield self._marker(stream, begin, last, IN_MEMORY | self.draw.choice((0, 4)))
            yield from self._items(stream, found, last)
        stream.seqno = part[-1].seqno

    def _out_of_order(self, stream: Stream) -> Iterator[bytes]:
        found = stream.vbucket.newest(0, stream.collections)
        last = stream.vbucket.high
        if not found:
            yield from self._from_disk(stream)
            return
        self.draw.shuffle(found)
        yield request(OSO, stream.vbucket.number, stream.opaque, extras=struct.pack(">I", 1))
        for change in found:
            yield self._item(stream, change)
        stream.seqno = max(change.seqno for change in found)
        if self.controls["enable_out_of_order_snapshots"] == "true_with_seqno_advanced" and stream.seqno < last:
            yield self._advanced(stream, last)
            stream.seqno = last
        yield request(OSO, stream.vbucket.number, stream.opaque, extras=struct.pack(">I", 2))

    def _items(self, stream: Stream, found: list[Change], last: int) -> Iterator[bytes]:
        for change in found:
            yield self._item(stream, change)
        if not found or found[-1].seqno < last:
            yield self._advanced(stream, last)

    def _advanced(self, stream: Stream, seqno: int) -> bytes:
        return request(ADVANCED, stream.vbucket.number, stream.opaque, extras=struct.pack(">Q", seqno))

    def _marker(self, stream: Stream, start: int, end: int, flags: int) -> bytes:
        number, opaque = stream.vbucket.number, stream.opaque
        if flags & ON_DISK and "max_marker_version" in self.controls and self.draw.random() < 0.7:
            value = struct.pack(">QQIQQQQ", start, end, flags, 0, 0, 0, 0)
            return request(MARKER, number, opaque, extras=b"\x02", value=value)
        return request(MARKER, number, opaque, extras=struct.pack(">QQI", start, end, flags))

    def _item(self, stream: Stream, change: Change) -> bytes:
        prefix = leb128(change.collection) if COLLECTIONS in self.features else b""
        key, value, datatype = prefix + change.key, change.value, 0
        if change.kind == "mutation":
            if SNAPPY in self.features and self.draw.random() < 0.4:
                value, datatype = snappy(value), 2
            extras = struct.pack(">QQIIIHB", change.seqno, 1, 0, 0, 0, 0, 0)
            opcode = MUTATION
        elif change.kind == "expiration" and "enable_expiry_opcode" in self.controls and self._delete_times():
            extras, opcode = struct.pack(">QQI", change.seqno, 1, 1_700_000_000), EXPIRATION
        elif self._delete_times():
            extras, opcode = struct.pack(">QQIB", change.seqno, 1, 1_700_000_000, 0), DELETION
        else:
            extras, opcode = struct.pack(">QQH", change.seqno, 1, 0), DELETION
        return request(
            opcode,
            stream.vbucket.number,
            stream.opaque,
            key=key,
            extras=extras,
            value=value,
            datatype=datatype,
            cas=change.cas,
        )

    def _delete_times(self) -> bool:
        return bool((self.open_flags or 0) & 0x20)
