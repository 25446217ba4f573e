"""One message as an object, and back to bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, NamedTuple

from dcp._codec import Splitter
from dcp.errors import FrameError, LocalProtocolError
from dcp.wire import DIALECTS
from dcp.wire.framing import (
    UNCOUNTED_HEAD,
    UNCOUNTED_LENGTH,
    FrameInfo,
    RequestInfo,
    join_infos,
    split_infos,
)
from dcp.wire.layout import HEADER_STRUCT, Dialect, Kind, Layout, Magic, Message, Presence
from dcp.wire.memcached import MAX_FRAME

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Frame:
    """One message.

    `name` is that of its row in the dialect's table, `fields` what the row names, in wire order.
    A request has a `vbucket`, an answer a `status`. `frame_info` are the framing extras of magics
    0x08 and 0x18. A frame with an opcode that the table lacks is called `unknown`; its fields are
    `opcode` and `extras`.
    """

    name: str
    magic: int
    opaque: int = 0
    cas: int = 0
    vbucket: int = 0
    status: int = 0
    datatype: int = 0
    fields: Mapping[str, int | bytes] = field(default_factory=dict)
    key: bytes = b""
    value: bytes = b""
    frame_info: tuple[FrameInfo, ...] = ()

    def __hash__(self) -> int:
        return hash((self.name, self.magic, self.opaque, self.vbucket, self.status, self.key, self.value))

    def __repr__(self) -> str:
        shown = [self.name, f"magic=0x{self.magic:02x}", f"opaque=0x{self.opaque:x}"]
        shown += [f"cas=0x{self.cas:x}"] if self.cas else []
        shown += [f"{name}={getattr(self, name)}" for name in ("vbucket", "status", "datatype") if getattr(self, name)]
        shown += [f"{name}={_short(value)}" for name, value in self.fields.items()]
        shown += [f"key={_short(self.key)}"] if self.key else []
        shown += [f"value={self.shown_value(32)}"] if self.value else []
        shown += [f"frame_info={self.frame_info}"] if self.frame_info else []
        return f"Frame({', '.join(shown)})"

    def shown_value(self, longest: int) -> str:
        """The value for a person to read: its beginning, and nothing of a credential."""
        if self.name in _SECRET:
            return f"({len(self.value)} bytes, not shown)"
        return _short(self.value, longest)

    @property
    def kind(self) -> Kind:
        """Whether the frame asks or answers."""
        return Magic(self.magic).kind

    @property
    def stream_id(self) -> int | None:
        """The stream that a request belongs to, where several share a vbucket."""
        for info in self.frame_info:
            if info.id == RequestInfo.STREAM_ID and len(info.data) == 2 and not self.kind.answers:
                return int.from_bytes(info.data, "big")
        return None

    def body(self, dialect: str = "dcp") -> Any:
        """What the value says: a failover log, JSON, a stream filter, …; the value itself if it is data."""
        if self.name == UNKNOWN:
            return self.value
        body = layout_of(self, dialect_of(dialect))[1].body
        return self.value if body is None else body.decode(self.value, self.fields)


_SECRET = frozenset(message.name for dialect in DIALECTS.values() for message in dialect.messages if message.secret)


def _short(value: int | bytes, longest: int = 32) -> str:
    if isinstance(value, int) or len(value) <= longest:
        return repr(value)
    return f"{value[:longest]!r}… ({len(value)} bytes)"


def dialect_of(name: str | Dialect) -> Dialect:
    """The dialect with this name, or the one that is given; LocalProtocolError lists those there are."""
    if isinstance(name, Dialect):
        return name
    try:
        return DIALECTS[name]
    except (KeyError, TypeError):
        raise LocalProtocolError(f"dialect: expected one of {', '.join(DIALECTS)}, found {name!r}") from None


# ---------------------------------------------------------------------------------------- reading


def decode(data: bytes, dialect: str = "dcp", *, max_frame: int = MAX_FRAME) -> list[Frame]:
    """The frames in `data`, which must be whole.

    Raises FrameError where a frame breaks its layout, or is not all there.
    """
    table = dialect_of(dialect)
    return [read_frame(raw, table, offset) for offset, raw in split(data, max_frame)]


def split(data: bytes, max_frame: int = MAX_FRAME) -> Iterator[tuple[int, bytes]]:
    """Each frame of `data` as the byte at which it starts, and its bytes."""
    splitter = Splitter(max_frame)
    splitter.feed(data)
    offset = 0
    for raw in splitter:
        yield offset, raw
        offset = splitter.offset
    splitter.finish()


class _Header(NamedTuple):
    magic: int
    opcode: int
    key_length: int
    extras_length: int
    datatype: int
    vbucket: int
    body_length: int
    opaque: int
    cas: int


class _Sections(NamedTuple):
    """A frame's bytes, cut where its header says; `rest` is everything behind the extras."""

    infos: tuple[FrameInfo, ...]
    extras: bytes
    key_length: int
    rest: bytes


class _Mismatch(NamedTuple):
    """Why a layout does not fit. The stages are in the order in which a layout is recognised."""

    stage: int
    what: str
    expected: str
    found: str


def read_frame(raw: bytes, dialect: Dialect, offset: int = 0) -> Frame:
    """The frame that `raw` holds, all of it and nothing else, as the splitter cuts it."""
    header = _Header._make(HEADER_STRUCT.unpack_from(raw))
    kind = Magic(header.magic).kind
    messages = _candidates(dialect, header, kind)
    if not messages:
        return read_opaque(raw, offset)
    status = header.vbucket if kind.answers and messages[0].type is None else 0
    forms = [(message, layout) for message in messages for layout in message.forms(kind, status)]
    sections = _cut(raw, header, offset, forms)
    message, fields, key, value = _recognise(forms, sections, header, kind, offset)
    return Frame(
        message.name,
        header.magic,
        header.opaque,
        header.cas,
        0 if status or (kind.answers and message.type is None) else header.vbucket,
        status,
        header.datatype if message.type is None else 0,
        fields,
        key,
        value,
        sections.infos,
    )


def read_opaque(raw: bytes, offset: int = 0) -> Frame:
    """A whole frame without a look at its layout: how unknown opcodes are kept."""
    header = _Header._make(HEADER_STRUCT.unpack_from(raw))
    answers = Magic(header.magic).kind.answers
    infos, extras, key_length, rest = _cut(raw, header, offset, [])
    return Frame(
        UNKNOWN,
        header.magic,
        header.opaque,
        header.cas,
        0 if answers else header.vbucket,
        header.vbucket if answers else 0,
        header.datatype,
        {"opcode": header.opcode, "extras": extras},
        rest[:key_length],
        rest[key_length:],
        infos,
    )


def _candidates(dialect: Dialect, header: _Header, kind: Kind) -> list[Message]:
    messages = dialect.by_opcode.get((kind, header.opcode), ())
    return [message for message in messages if message.type in (None, header.datatype)]


def _cut(raw: bytes, header: _Header, offset: int, forms: list[tuple[Message, Layout]]) -> _Sections:
    start, key_length = HEADER_STRUCT.size, header.key_length
    infos: tuple[FrameInfo, ...] = ()
    if Magic(header.magic).framed:
        start, key_length = start + (key_length >> 8), key_length & 0xFF
        if start == HEADER_STRUCT.size and _has_uncounted_stream_id(raw, header, forms):
            start += UNCOUNTED_LENGTH
            infos = (FrameInfo(RequestInfo.STREAM_ID, raw[start - 2 : start], counted=False),)
        else:
            try:
                infos = tuple(split_infos(raw[HEADER_STRUCT.size : start]))
            except ValueError as error:
                raise _frame_error(str(error), header, offset) from None
    extras_end = start + header.extras_length
    return _Sections(infos, raw[start:extras_end], key_length, raw[extras_end:])


def _has_uncounted_stream_id(raw: bytes, header: _Header, forms: list[tuple[Message, Layout]]) -> bool:
    # No correct frame looks so: a producer that sends magic 0x08 always has framing extras.
    return (
        any(layout.stream_id_defect and layout.extras_length == header.extras_length for _, layout in forms)
        and len(raw) >= HEADER_STRUCT.size + UNCOUNTED_LENGTH + header.extras_length + (header.key_length & 0xFF)
        and raw[HEADER_STRUCT.size] == UNCOUNTED_HEAD
    )


_Fields = dict[str, "int | bytes"]


def _recognise(
    forms: list[tuple[Message, Layout]], sections: _Sections, header: _Header, kind: Kind, offset: int
) -> tuple[Message, _Fields, bytes, bytes]:
    mismatches: list[_Mismatch] = []
    for message, layout in forms:
        found = _read_layout(layout, sections)
        if not isinstance(found, _Mismatch):
            return (message, *found)
        mismatches.append(found)
        if layout.when and found.stage > _WHEN:
            break
    furthest = max(mismatch.stage for mismatch in mismatches)
    wrong = [mismatch for mismatch in mismatches if mismatch.stage == furthest]
    *others, last = dict.fromkeys(mismatch.expected for mismatch in wrong)
    expected = f"{', '.join(others)} or {last}" if others else last
    name = forms[0][0].name + (" response" if kind.answers and forms[0][0].kind is not kind else "")
    raise _frame_error(f"{name}: {wrong[0].what}: expected {expected}, found {wrong[0].found}", header, offset)


_EXTRAS, _WHEN, _ENGINE, _META, _KEY, _VALUE = range(6)


def _read_layout(layout: Layout, sections: _Sections) -> tuple[_Fields, bytes, bytes] | _Mismatch:
    if len(sections.extras) != layout.extras_length:
        return _Mismatch(_EXTRAS, "extras length", str(layout.extras_length), str(len(sections.extras)))
    fields: _Fields = {}
    lengths: dict[str, int] = {}
    _unpack(layout, 0, sections.extras, fields, lengths)
    for name, number in layout.when.items():
        if fields[name] != number:
            return _Mismatch(_WHEN, name, str(number), str(fields[name]))
    rest = sections.rest
    engine_length = lengths.get("engine", layout.engine_length)
    if layout.engine and engine_length != layout.engine_length:
        return _Mismatch(_ENGINE, "engine section", f"{layout.engine_length} bytes", str(engine_length))
    if engine_length + sections.key_length > len(rest):
        room = len(rest) - sections.key_length
        return _Mismatch(_ENGINE, "engine section", f"at most {room} bytes", str(engine_length))
    engine, key = rest[:engine_length], rest[engine_length : engine_length + sections.key_length]
    _unpack(layout, 1, engine, fields, lengths)
    value = rest[engine_length + sections.key_length :]
    meta_length = lengths.get("meta", 0)
    if meta_length > len(value):
        return _Mismatch(_META, "nmeta", f"at most {len(value)}", str(meta_length))
    value, meta = value[: len(value) - meta_length], value[len(value) - meta_length :]
    for name, section in (("engine", engine), ("meta", meta)):
        if name in layout.measured and section:
            fields[name] = section
    return _check_key_and_value(layout, fields, key, value)


def _check_key_and_value(
    layout: Layout, fields: _Fields, key: bytes, value: bytes
) -> tuple[_Fields, bytes, bytes] | _Mismatch:
    if wrong := _presence(layout.key, len(key)):
        return _Mismatch(_KEY, "key length", wrong, str(len(key)))
    if layout.content:
        if len(value) != layout.content_length:
            return _Mismatch(_VALUE, "value length", str(layout.content_length), str(len(value)))
        _unpack(layout, 2, value, fields, {})
        return fields, key, b""
    wrong = _presence(layout.value, len(value)) or (layout.body.problem(len(value)) if layout.body else "")
    if wrong:
        return _Mismatch(_VALUE, "value length", wrong, str(len(value)))
    return fields, key, value


def _presence(presence: Presence, length: int) -> str:
    if presence is Presence.NONE and length:
        return "0"
    return "at least 1" if presence is Presence.MUST and not length else ""


def _unpack(layout: Layout, section: int, data: bytes, fields: _Fields, lengths: dict[str, int]) -> None:
    if not layout.sections[section]:
        return
    for f, value in zip(layout.sections[section], layout.structs[section].unpack(data), strict=True):
        if f.measures:
            lengths[f.measures] = value
        elif f.visible or any(value):
            fields[f.name] = value


def _frame_error(problem: str, header: _Header, offset: int) -> FrameError:
    vbucket = None if Magic(header.magic).kind.answers else header.vbucket
    return FrameError(problem, offset, header.opcode, vbucket)


# ---------------------------------------------------------------------------------------- writing


def encode(frame: Frame, dialect: str | Dialect = "dcp") -> bytes:
    """The bytes of a frame. All lengths are computed.

    Raises LocalProtocolError where the frame is not one that the dialect can say.
    """
    table = dialect_of(dialect)
    kind = _kind(frame)
    _check_header(frame, kind)
    if frame.name == UNKNOWN:
        opcode, extras = frame.fields.get("opcode"), frame.fields.get("extras")
        if not isinstance(opcode, int) or not isinstance(extras, bytes) or not 0 <= opcode <= 0xFF:
            raise _local(frame, "fields", "{opcode: 0 to 255, extras: bytes}", frame.fields)
        return _assemble(frame, kind, opcode, None, extras, frame.key + frame.value)
    message, layout = layout_of(frame, table)
    if message.type is not None and (frame.status or frame.datatype):
        raise _local(frame, "status and datatype", "0, this dialect has neither", (frame.status, frame.datatype))
    _check_infos(frame, layout)
    extras, engine, content = (_pack(frame, layout, section) for section in range(3))
    raw_engine, meta = (_bytes(frame, name) for name in ("engine", "meta"))
    tail = engine + raw_engine + frame.key + content + frame.value + meta
    return _assemble(frame, kind, message.opcode, message.type, extras, tail)


def layout_of(frame: Frame, dialect: Dialect) -> tuple[Message, Layout]:
    """The row of the table that a frame belongs to, and its form; LocalProtocolError if there is none."""
    kind = _kind(frame)
    message = dialect.by_name.get(frame.name)
    if message is None or kind not in (message.kind, message.kind.answer):
        raise LocalProtocolError(f"dialect {dialect.name} has no {kind.value} {frame.name!r}{_similar(dialect, frame)}")
    problems = []
    for layout in message.forms(kind, frame.status):
        problem = _fields_problem(frame, layout) or _shape_problem(frame, layout)
        if not problem:
            return message, layout
        problems.append(problem)
        if layout.when and _when_fits(frame, layout):
            problems = [problem]
            break
    raise LocalProtocolError(f"{frame.name}: {'; or '.join(dict.fromkeys(problems))}")


def _kind(frame: Frame) -> Kind:
    try:
        return Magic(frame.magic).kind
    except ValueError:
        raise _local(frame, "magic", "one of " + ", ".join(f"0x{magic:02x}" for magic in Magic), frame.magic) from None


def _local(frame: Frame, what: str, expected: str, found: object) -> LocalProtocolError:
    return LocalProtocolError(f"{frame.name}: {what}: expected {expected}, found {found!r}")


def _similar(dialect: Dialect, frame: Frame) -> str:
    close = get_close_matches(str(frame.name), dialect.by_name, 3)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _when_fits(frame: Frame, layout: Layout) -> bool:
    return all(frame.fields.get(name) == number for name, number in layout.when.items())


def _fields_problem(frame: Frame, layout: Layout) -> str:
    given = frozenset(frame.fields)
    if not layout.required <= given <= layout.required | layout.optional:
        names = [name for name in layout.fields if name in layout.required]
        return f"expected the fields {{{', '.join(names)}}}, found {{{', '.join(frame.fields)}}}"
    if not _when_fits(frame, layout):
        return f"expected {', '.join(f'{name} {number}' for name, number in layout.when.items())}"
    return ""


def _shape_problem(frame: Frame, layout: Layout) -> str:
    for name, presence in (("key", layout.key), ("value", layout.value)):
        length = len(getattr(frame, name))
        if wrong := _presence(presence, length):
            return f"{name} length: expected {wrong}, found {length}"
    if layout.body and (wrong := layout.body.problem(len(frame.value))):
        return f"value length: expected {wrong}, found {len(frame.value)}"
    return ""


def _check_header(frame: Frame, kind: Kind) -> None:
    for name, width in (("opaque", 4), ("cas", 8), ("vbucket", 2), ("status", 2), ("datatype", 1)):
        _check_number(frame, name, getattr(frame, name), width)
    if frame.status and not kind.answers:
        raise _local(frame, "status", "0 in a request", frame.status)
    if frame.frame_info and not Magic(frame.magic).framed:
        raise _local(frame, "magic", "0x08 or 0x18 with frame infos", frame.magic)


def _check_number(frame: Frame, name: str, number: object, width: int, *, signed: bool = False) -> None:
    bits = 8 * width - signed
    if not isinstance(number, int) or not -(signed << bits) <= number < 1 << bits:
        raise _local(frame, name, f"an integer of {8 * width} bits", number)


def _check_infos(frame: Frame, layout: Layout) -> None:
    """Refuse what a reader would take for something else: see `_has_uncounted_stream_id`."""
    uncounted = not all(info.counted for info in frame.frame_info)
    if uncounted and not (layout.stream_id_defect and len(frame.frame_info) == 1 and frame.stream_id is not None):
        raise _local(frame, "frame_info", "nothing uncounted but the stream id of a deletion V2 or expiration", frame)
    if layout.stream_id_defect and Magic(frame.magic).framed and not frame.frame_info:
        raise _local(frame, "frame_info", "at least one with magic 0x08", frame.frame_info)


def _pack(frame: Frame, layout: Layout, section: int) -> bytes:
    lengths = {"engine": layout.engine_length or len(_bytes(frame, "engine")), "meta": len(_bytes(frame, "meta"))}
    values: list[int | bytes] = []
    for f in layout.sections[section]:
        value = lengths[f.measures] if f.measures else frame.fields.get(f.name, b"")
        if f.reserved:
            if not isinstance(value, bytes) or len(value) not in (0, f.width):
                raise _local(frame, f.name, f"{f.width} bytes", value)
        else:
            _check_number(frame, f.measures or f.name, value, f.width, signed=f.signed)
        values.append(value)
    return layout.structs[section].pack(*values)


def _bytes(frame: Frame, name: str) -> bytes:
    section = frame.fields.get(name, b"")
    if not isinstance(section, bytes):
        raise _local(frame, name, "bytes", section)
    return section


def _assemble(frame: Frame, kind: Kind, opcode: int, type: int | None, extras: bytes, tail: bytes) -> bytes:
    try:
        infos = join_infos(frame.frame_info)
    except ValueError as error:
        raise LocalProtocolError(f"{frame.name}: {error}") from None
    framed = Magic(frame.magic).framed
    counted = len(infos) if all(info.counted for info in frame.frame_info) else 0
    for name, length, limit in (
        ("key length", len(frame.key), 0xFF if framed else 0xFFFF),
        ("framing extras length", counted, 0xFF),
        ("extras length", len(extras), 0xFF),
        ("body length", len(infos) + len(extras) + len(tail), 0xFFFF_FFFF),
    ):
        if length > limit:
            raise _local(frame, name, f"at most {limit}", length)
    if kind.answers and type is None and frame.vbucket:
        raise _local(frame, "vbucket", "0 in an answer", frame.vbucket)
    header = HEADER_STRUCT.pack(
        frame.magic,
        opcode,
        counted << 8 | len(frame.key) if framed else len(frame.key),
        len(extras),
        frame.datatype if type is None else type,
        frame.status if kind.answers and type is None else frame.vbucket,
        len(infos) + len(extras) + len(tail),
        frame.opaque,
        frame.cas,
    )
    return header + infos + extras + tail
