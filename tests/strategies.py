"""Hypothesis strategies from the tables: everything that a dialect can express."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

import cramjam
from hypothesis import strategies as st

import dcp
from dcp.checkpoint import Checkpoint
from dcp.columns.plan import events_of
from dcp.columns.schema import columns_of
from dcp.json_reader import MAX_U64
from dcp.position import FailoverLog, StreamPosition
from dcp.wire.body import Records
from dcp.wire.document import join_collection, join_xattrs
from dcp.wire.field import Field
from dcp.wire.frame import UNKNOWN, encode
from dcp.wire.framing import FrameInfo, stream_id
from dcp.wire.layout import EMPTY, ERROR, Dialect, Effect, Kind, Layout, Magic, Message, Presence, Role
from dcp.wire.memcached import MAX_FRAME
from tests.reference import Options

DIALECTS = st.sampled_from(list(dcp.DIALECTS.values()))
_STATUSES = st.integers(1, 0xFFFF)


def frames(dialect: Dialect) -> st.SearchStrategy[dcp.Frame]:
    """Any frame of any form of any message, and now and then one with an unknown opcode."""
    known = [_frames(message, kind, form) for message in dialect.messages for kind, form in _forms(message)]
    return st.one_of(*known, _unknown(dialect))


@st.composite
def conversations(draw: st.DrawFn, longest: int = 5) -> tuple[Dialect, list[dcp.Frame]]:
    """A dialect and a few of its frames."""
    dialect = draw(DIALECTS)
    return dialect, draw(st.lists(frames(dialect), max_size=longest))


def _forms(message: Message) -> list[tuple[Kind, Layout]]:
    sent = [(message.kind, form) for form in message.sent]
    if message.type is not None:
        return sent
    successes = [form for form in message.answer if not form.status] or [EMPTY]
    refusals = [form for form in message.answer if form.status] + [ERROR]
    return sent + [(message.kind.answer, form) for form in successes + refusals]


@st.composite
def _frames(draw: st.DrawFn, message: Message, kind: Kind, form: Layout) -> dcp.Frame:
    magic = draw(st.sampled_from([magic for magic in Magic if magic.kind is kind]))
    answers, typed = kind.answers, message.type is not None
    return dcp.Frame(
        message.name,
        int(magic),
        opaque=draw(_integers(4)),
        cas=draw(_integers(8)),
        vbucket=draw(_integers(2)) if typed or not answers else 0,
        status=draw(_status(message, form)) if answers and not typed else 0,
        datatype=0 if typed else draw(_integers(1)),
        fields=draw(_fields(message, kind, form)),
        key=draw(_bytes(form.key, 40)),
        value=draw(_values(form)),
        frame_info=draw(_infos(kind, form)) if magic.framed else (),
    )


def _status(message: Message, form: Layout) -> st.SearchStrategy[int]:
    declared = {answer.status for answer in message.answer}
    return _STATUSES.filter(lambda status: status not in declared) if form is ERROR else st.just(form.status)


def _integers(width: int, *, signed: bool = False) -> st.SearchStrategy[int]:
    bits = 8 * width - signed
    return st.integers(-(signed << bits), (1 << bits) - 1)


def _numbers(field: Field) -> st.SearchStrategy[int]:
    any_number = _integers(field.width, signed=field.signed)
    return any_number if field.values is None else st.sampled_from([int(v) for v in field.values]) | any_number


@st.composite
def _fields(draw: st.DrawFn, message: Message, kind: Kind, form: Layout) -> dict[str, int | bytes]:
    fields: dict[str, int | bytes] = {}
    for name, field in form.fields.items():
        if name in form.when:
            fields[name] = form.when[name]
        elif field.visible:
            fields[name] = draw(_numbers(field))
        elif field.reserved and draw(st.booleans()):
            fields[name] = draw(st.binary(min_size=field.width, max_size=field.width).filter(any))
    siblings = message.forms(kind, form.status)
    known = {sibling.engine_length for sibling in siblings if sibling.engine}
    for name in sorted(form.measured):
        section = draw(st.binary(max_size=20).filter(lambda b: len(b) not in known))
        fields |= {name: section} if section else {}
    return _spare(fields, siblings, form)


def _spare(fields: dict[str, Any], siblings: tuple[Layout, ...], form: Layout) -> dict[str, Any]:
    """Numbers that no form requires, for the form that takes all others."""
    taken = [sibling.when for sibling in siblings if sibling.when]
    if not form.when and any(when.keys() <= fields.keys() for when in taken):
        fields["version"] = max(when["version"] for when in taken) + 1
    return fields


def _bytes(presence: Presence, longest: int) -> st.SearchStrategy[bytes]:
    if presence is Presence.NONE:
        return st.just(b"")
    return st.binary(min_size=presence is Presence.MUST, max_size=longest)


def _values(form: Layout) -> st.SearchStrategy[bytes]:
    if isinstance(form.body, Records):
        size = form.body.struct.size
        fewest = int(form.value is Presence.MUST)
        return st.integers(fewest, 4).flatmap(lambda n: st.binary(min_size=n * size, max_size=n * size))
    return _bytes(form.value, 80)


def _infos(kind: Kind, form: Layout) -> st.SearchStrategy[tuple[FrameInfo, ...]]:
    counted = st.builds(FrameInfo, st.integers(0, 270), st.binary(max_size=50))
    listed = st.lists(counted, min_size=int(form.stream_id_defect), max_size=3).map(tuple)
    return listed | _integers(2).map(lambda n: (stream_id(n, counted=False),)) if form.stream_id_defect else listed


@st.composite
def _unknown(draw: st.DrawFn, dialect: Dialect) -> dcp.Frame:
    magic = draw(st.sampled_from(list(Magic)))
    taken = {opcode for kind, opcode in dialect.by_opcode if kind is magic.kind}
    opcode = draw(st.integers(0, 0xFF).filter(lambda number: number not in taken))
    return dcp.Frame(
        UNKNOWN,
        int(magic),
        opaque=draw(_integers(4)),
        cas=draw(_integers(8)),
        vbucket=0 if magic.kind.answers else draw(_integers(2)),
        status=draw(_integers(2)) if magic.kind.answers else 0,
        datatype=draw(_integers(1)),
        fields={"opcode": opcode, "extras": draw(st.binary(max_size=20))},
        key=draw(st.binary(max_size=20)),
        value=draw(st.binary(max_size=20)),
        frame_info=draw(_infos(magic.kind, EMPTY)) if magic.framed else (),
    )


# -------------------------------------------------------------------------------- whole streams

SNAPPY, XATTR = 2, 4
OUT_OF_ORDER, IN_ORDER = 1, 2


@dataclass
class Stream:
    """One stream of a connection, as its producer sees it."""

    vbucket: int
    opaque: int
    id: int | None = None
    seqno: int = 0


# Steps of a stream. A change is a run of plain mutations if the dialect has them.
STEPS = ("run", "run", "run", "change", "change", "change", "snapshot", "snapshot", "control", "disorder", "end")


class Producer:
    """Producer of everything that a table allows, on three streams at once.

    All of it follows from a seed, so that an example is a list of small numbers. `faults` are the chances of what an
    honest producer does not send: falling seqnos, broken prefixes, blocks and sections.
    """

    def __init__(self, dialect: Dialect, collections: bool = False, faults: float = 0.0) -> None:
        self.dialect, self.collections, self.faults = dialect, collections, faults
        self.rows = [m for m in dialect.messages if m.role is Role.ROW]
        # Rows that cannot carry a stream id need an opaque of their own for each stream.
        third = Stream(0, 7, 2) if self.rows[0].kind is Kind.REQUEST else Stream(0, 9)
        self.streams = [Stream(0, 7), Stream(1023, 8, 300), third]
        self.controls = [m for m in dialect.messages if m.role is Role.CONTROL and m.effect is not Effect.DISORDER]
        self.dice = Random(0)

    def say(self, step: str, which: int, seed: int) -> list[dcp.Frame]:
        self.dice = Random(seed)
        stream = self.streams[which]
        if step == "run":
            return [self._row(self.dialect.by_name["mutation"], stream, plain=True) for _ in range(seed % 7)]
        if step == "change":
            return [self._row(self.dice.choice(self.rows), stream)]
        effect = {"snapshot": Effect.SNAPSHOT, "disorder": Effect.DISORDER, "end": Effect.STREAM_END}.get(step)
        choices = [m for m in self.dialect.messages if m.effect is effect] if effect else self.controls
        if step == "end" and self.dice.random() < 0.5:
            choices = []
        return [self._control(self.dice.choice(choices), stream)] if choices else []

    def _fault(self) -> bool:
        return self.dice.random() < self.faults

    def _control(self, message: Message, stream: Stream) -> dcp.Frame:
        form = self.dice.choice(message.sent)
        fields = self._fields(message, form) | {"snapshot_start": stream.seqno, "snapshot_end": stream.seqno + 9}
        if message.effect is Effect.DISORDER:
            fields["flags"] = self.dice.choice([OUT_OF_ORDER, IN_ORDER])
        return self._frame(message, form, stream, {name: fields[name] for name in fields if name in form.fields})

    def _row(self, message: Message, stream: Stream, *, plain: bool = False) -> dcp.Frame:
        form = self.dice.choice(message.sent)
        fields = self._fields(message, form)
        if "seqno" in form.fields:
            stream.seqno += self.dice.choice([-stream.seqno, 0]) if self._fault() else self.dice.choice([1, 1, 300])
            fields["seqno"] = stream.seqno
        datatype, value = self._value(plain) if form.value is not Presence.NONE else (0, b"")
        if "meta" in form.measured and not plain and self.dice.random() < 0.3:
            fields["meta"] = self.dice.randbytes(5)
        key = self._key(message) if form.key is not Presence.NONE else b""
        return self._frame(message, form, stream, fields, key, datatype, value, plain)

    def _frame(
        self,
        message: Message,
        form: Layout,
        stream: Stream,
        fields: dict[str, int | bytes],
        key: bytes = b"",
        datatype: int = 0,
        value: bytes = b"",
        plain: bool = False,
    ) -> dcp.Frame:
        infos = () if plain and stream.id is None else self._infos(message, form, stream)
        magic = next(m for m in Magic if m.kind is message.kind and m.framed == bool(infos))
        typed = message.type is not None
        return dcp.Frame(
            message.name,
            int(magic),
            opaque=stream.opaque,
            cas=self.dice.getrandbits(64),
            vbucket=stream.vbucket,
            datatype=0 if typed else datatype,
            fields=fields,
            key=key or (b"k" if form.key is Presence.MUST else b""),
            # The size of an entry of a failover log.
            value=value or (bytes(16) if form.value is Presence.MUST else b""),
            frame_info=infos,
        )

    def _fields(self, message: Message, form: Layout) -> dict[str, int | bytes]:
        visible = [field for field in form.fields.values() if field.visible]
        fields = {field.name: self.dice.getrandbits(8 * field.width - field.signed) for field in visible}
        return _spare({**fields, **form.when}, message.forms(message.kind, 0), form)

    def _infos(self, message: Message, form: Layout, stream: Stream) -> tuple[FrameInfo, ...]:
        if message.kind.answers or message.kind is Kind.SERVER_REQUEST:
            return ()
        counted = not (form.stream_id_defect and self.dice.random() < 0.7)
        infos = [] if stream.id is None else [stream_id(stream.id, counted=counted)]
        if counted and self.dice.random() < 0.1:
            infos.append(FrameInfo(self.dice.choice([0, 1, 5, 20]), self.dice.randbytes(self.dice.choice([0, 1, 20]))))
        return tuple(infos)

    def _key(self, message: Message) -> bytes:
        key = self.dice.choice([b"k", "key é".encode(), b"airline_%d" % self.dice.getrandbits(10), b"k" * 40])
        if not message.document:
            return key
        if self._fault():
            return self.dice.choice([b"\x80", b"\xff" * 6, b"\x80\x00k", b"\xc3("])
        return join_collection(self.dice.choice([0, 8, 0x80, 0xFFFFFFFF]), key) if self.collections else key

    def _text(self) -> bytes:
        return b"\xff" if self._fault() else self.dice.choice([b"", "é".encode(), b'"text"' * 9])

    def _value(self, plain: bool) -> tuple[int, bytes]:
        body = self.dice.choice([b"", b"{}", b"short body", b'{"n": 17}' * 5, self.dice.randbytes(200), bytes(3000)])
        if plain:
            return (self.dice.choice([0x08, 0x80]) if self._fault() else self.dice.choice([0, 1])), body
        datatype = self.dice.choice([0, 1, SNAPPY, XATTR, SNAPPY | XATTR, 7])
        if not body or self._fault():
            return datatype, body
        if datatype & XATTR:
            body = join_xattrs([(b"_sync", b"{}"), (b"x" * self.dice.choice([1, 30]), self._text())], body)
            body = b"\0\0\0\1" + body if self._fault() else body
        if datatype & SNAPPY:
            body = bytes(cramjam.snappy.compress_raw(body))
            body = body[:-1] if self._fault() else body
        return datatype, body


@st.composite
def produced(
    draw: st.DrawFn, dialect: Dialect, collections: bool = False, faults: float = 0.0, longest: int = 20
) -> list[bytes]:
    """Frames of a few streams of one connection."""
    producer = Producer(dialect, collections, faults)
    step = st.tuples(st.sampled_from(STEPS), st.integers(0, 2), st.integers(0, 2**20))
    steps = draw(st.lists(step, max_size=longest))
    return [encode(frame, dialect.name) for each in steps for frame in producer.say(*each)]


def chunks(data: bytes, cuts: list[int]) -> list[bytes]:
    """Split `data` at these places, which count from its beginning, its end or anywhere."""
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


CUTS = st.lists(st.integers(0, 2**16), max_size=6)


@st.composite
def options(draw: st.DrawFn, dialect: Dialect, collections: bool = False) -> Options:
    """Any arguments of a decoder; the default columns as often as all others together."""
    possible = events_of(dialect, [message.name for message in dialect.messages if message.role is Role.ROW])
    names = sorted(columns_of(dialect))
    return Options(
        columns=draw(st.none() | st.lists(st.sampled_from(names), min_size=1, unique=True).map(tuple)),
        collections=collections if draw(st.integers(0, 9)) else not collections,
        events=draw(st.none() | st.just(frozenset(possible)) | st.frozensets(st.sampled_from(possible))),
        inflate=draw(st.booleans()),
        xattrs=draw(st.sampled_from(["split", "map", "inline"])),
        keys=draw(st.sampled_from(["binary", "utf8"])),
        on_bad_value=draw(st.sampled_from(["fail", "quarantine"])),
        types=draw(st.sampled_from(["wire", "plain"])),
        max_frame=draw(st.sampled_from([MAX_FRAME, MAX_FRAME, 300])),
        max_value=draw(st.sampled_from([MAX_FRAME, 100])),
    )


@dataclass(frozen=True)
class Case:
    """Bytes of a dialect, and how to decode them."""

    dialect: str
    data: bytes
    options: Options
    views: bool
    cuts: list[int]
    feeding: str
    limits: tuple[int | None, int | None]


FEEDING = ("bytes", "bytearray", "buffer")
LIMITS = st.tuples(st.none() | st.integers(1, 20), st.none() | st.sampled_from([1, 100, 1000, 10_000]))


@st.composite
def cases(draw: st.DrawFn, sound: bool = False) -> Case:
    """Streams, or any frames, of any dialect; now and then garbage."""
    dialect, collections = draw(DIALECTS), draw(st.booleans())
    faults = 0.0 if sound else draw(st.sampled_from([0.0, 0.0, 0.1]))
    streams = produced(dialect, collections, faults)
    anything = st.lists(frames(dialect).map(lambda frame: encode(frame, dialect.name)), max_size=5)
    data = bytearray(b"".join(draw(streams if sound else streams | streams | anything)))
    if data and not sound and not draw(st.integers(0, 3)):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return Case(
        dialect.name,
        bytes(data),
        draw(st.just(Options(collections=collections)) if sound else options(dialect, collections)),
        draw(st.booleans()),
        draw(CUTS),
        draw(st.sampled_from(FEEDING)),
        draw(LIMITS),
    )


# Positions and checkpoints.

U64 = st.integers(0, MAX_U64)


@st.composite
def positions(draw: st.DrawFn, vbucket: int) -> StreamPosition:
    start, seqno, end = sorted(draw(st.tuples(U64, U64, U64)))
    log = FailoverLog.of(draw(st.lists(st.tuples(U64, U64), max_size=3)))
    marks = tuple(sorted(draw(st.sets(st.integers(0, seqno), max_size=3)), reverse=True))
    return StreamPosition(vbucket, draw(U64), seqno, start, end, draw(U64), draw(U64), log, marks)


@st.composite
def checkpoints(draw: st.DrawFn) -> Checkpoint:
    vbuckets = sorted(draw(st.sets(st.integers(0, 63), max_size=4)))
    return Checkpoint(
        tuple(draw(positions(vbucket)) for vbucket in vbuckets),
        draw(st.none() | st.integers(64, 1024)),
        draw(st.text(max_size=5)),
        draw(st.text("0123456789abcdef", max_size=8)),
        draw(st.none() | st.integers(0, (1 << 32) - 1)),
        tuple(draw(st.lists(st.integers(0, (1 << 32) - 1), max_size=2))),
    )
