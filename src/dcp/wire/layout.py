"""Types of the protocol tables.

A table is a `Dialect`: a list of `Message`s. A message has an opcode, and one `Layout` for each form in which it is
sent or answered. A layout lists its `Field`s in wire order, and whether it has a key and a value. Offsets, lengths,
struct formats, columns and the plan of the C decoder are all computed from the tables.

A frame after its 24-byte header (with magic 0x08 and 0x18, framing extras come first):

    | extras: fields | engine: fields (TAP only) | key | value: bytes, or fields | meta: legacy trailer |
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from functools import cached_property
from typing import NamedTuple

from dcp.wire.body import TEXT_OR_JSON, Body
from dcp.wire.field import Field, struct_of, u8, u16, u32, u64


class Kind(Enum):
    """Kind of a frame, which its magic decides: request or response, of the client or of the server.

    Requests of the server have opcodes of their own.

    answers: True for responses. Bytes 6 and 7 of their header hold a status, those of requests a vbucket.
    """

    REQUEST = "request"
    RESPONSE = "response"
    SERVER_REQUEST = "server request"
    SERVER_RESPONSE = "server response"

    def __init__(self, title: str) -> None:
        self.answers = title.endswith("response")

    @property
    def answer(self) -> Kind:
        """Kind of the response to a frame of this kind."""
        return Kind.RESPONSE if self in (Kind.REQUEST, Kind.RESPONSE) else Kind.SERVER_RESPONSE


class Magic(IntEnum):
    """First byte of every frame."""

    REQUEST = 0x80
    RESPONSE = 0x81
    FRAMED_REQUEST = 0x08
    FRAMED_RESPONSE = 0x18
    SERVER_REQUEST = 0x82
    SERVER_RESPONSE = 0x83

    @property
    def kind(self) -> Kind:
        """Kind of the frames with this magic."""
        return KINDS[self]

    @property
    def framed(self) -> bool:
        """True if byte 2 is the length of framing extras, and byte 3 alone that of the key."""
        return self in (Magic.FRAMED_REQUEST, Magic.FRAMED_RESPONSE)


# By magic, as number or member.
KINDS: dict[int, Kind] = {
    Magic.REQUEST: Kind.REQUEST,
    Magic.FRAMED_REQUEST: Kind.REQUEST,
    Magic.RESPONSE: Kind.RESPONSE,
    Magic.FRAMED_RESPONSE: Kind.RESPONSE,
    Magic.SERVER_REQUEST: Kind.SERVER_REQUEST,
    Magic.SERVER_RESPONSE: Kind.SERVER_RESPONSE,
}


class Side(Enum):
    """Side that sends a message first; the other side answers it."""

    CONSUMER = "consumer"
    PRODUCER = "producer"
    EITHER = "either"


class Role(Enum):
    """Treatment of a message by the column decoder: a row, a control frame, or neither."""

    ROW = "row"
    CONTROL = "control"
    OBJECT = "object"


class Effect(Enum):
    """Effect of a message on the later rows of its stream, or on flow control."""

    NONE = "none"
    SNAPSHOT = "opens a snapshot, whose window is in snapshot_start and snapshot_end if it has them"
    DISORDER = "opens (bit 1 of its flags) or closes a snapshot whose seqnos are in any order"
    STREAM_END = "ends the stream"
    UNCOUNTED = "does not count for flow control"
    ADVANCE = "moves the stream on to its seqno"


class Presence(Enum):
    """Presence of a key or value in a frame."""

    NONE = "none"
    MAY = "may"
    MUST = "must"


NONE, MAY, MUST = Presence.NONE, Presence.MAY, Presence.MUST


HEADER = (
    u8("magic", Magic),
    u8("opcode"),
    u16("key_length"),
    u8("extras_length"),
    u8("datatype"),
    u16("vbucket"),
    u32("body_length"),
    u32("opaque"),
    u64("cas"),
)


HEADER_STRUCT = struct_of(HEADER)


class FieldPlace(NamedTuple):
    """Offset and width of a field in a frame without framing extras, from the frame's first byte."""

    name: str
    offset: int
    width: int


@dataclass(frozen=True)
class Layout:
    """One form of one message.

    extras, engine, content: fields of fixed width in these sections. A value with `content` consists of it alone.
    key, value: whether the form has them.
    body: structure of the value; None for plain bytes.
    when: values that fields of the extras must have, such as a version.
    status: status of the responses with this form.
    since: first server version that sends it.
    note: what distinguishes it from the other forms of its message.
    stream_id_defect: servers since 6.5 send this form with a stream id that the header's framing-extras length does
        not count: its byte 2 is 0, the three bytes are there.

    Forms of a message are tried in order, and recognised by lengths, `status` and `when`. One whose `when` matches
    is final: if the rest does not fit, the frame is malformed.
    """

    extras: tuple[Field, ...] = ()
    engine: tuple[Field, ...] = ()
    key: Presence = NONE
    value: Presence = NONE
    content: tuple[Field, ...] = ()
    body: Body | None = None
    when: Mapping[str, int] = field(default_factory=dict)
    status: int = 0
    since: str = ""
    note: str = ""
    stream_id_defect: bool = False

    @property
    def sections(self) -> tuple[tuple[Field, ...], ...]:
        """Sections with fields, in wire order."""
        return (self.extras, self.engine, self.content)

    @cached_property
    def structs(self) -> tuple[struct.Struct, struct.Struct, struct.Struct]:
        """Structs that pack and unpack `sections`."""
        return struct_of(self.extras), struct_of(self.engine), struct_of(self.content)

    @cached_property
    def extras_length(self) -> int:
        """Bytes of the extras."""
        return self.structs[0].size

    @cached_property
    def engine_length(self) -> int:
        """Bytes of the engine section."""
        return self.structs[1].size

    @cached_property
    def content_length(self) -> int:
        """Bytes of the fields in the value."""
        return self.structs[2].size

    @cached_property
    def fields(self) -> dict[str, Field]:
        """Fields by name, in wire order."""
        return {f.name: f for section in self.sections for f in section}

    @cached_property
    def required(self) -> frozenset[str]:
        """Names of the fields that every frame of this form has."""
        return frozenset(name for name, f in self.fields.items() if f.visible)

    @cached_property
    def measured(self) -> frozenset[str]:
        """Names of sections of any length whose length is a field of the extras: `engine`, `meta`."""
        sections = frozenset(f.measures for f in self.extras if f.measures)
        return sections - {"engine"} if self.engine else sections

    @cached_property
    def optional(self) -> frozenset[str]:
        """Names that `Frame.fields` may have besides `required`."""
        return frozenset(name for name, f in self.fields.items() if f.reserved) | self.measured

    def places(self) -> Iterator[FieldPlace]:
        """Yield the visible fields of extras and engine section, which can become columns."""
        offset = HEADER_STRUCT.size
        for f in self.extras + self.engine:
            if f.visible:
                yield FieldPlace(f.name, offset, f.width)
            offset += f.width


@dataclass(frozen=True)
class Message:
    """One command or stream message, with all of its forms.

    name: name of the frames.
    opcode: byte 1 of the header.
    sent: forms of the message.
    sender: side that sends it.
    source: document or file that specifies it.
    answer: forms of the response; empty if there is none.
    kind: kind of the message.
    type: sub-opcode in byte 5, which UPR draft 1 has instead of a datatype. That draft has no status either: its
        responses carry the vbucket.
    role: treatment by the column decoder.
    effect: effect on later rows, or on flow control.
    since, until: first and last server version that sends it.
    enabled_by: what a client has to request to receive it.
    note: remark for the documentation.
    document: True if the key is that of a document, so that connections with collections put a collection id before it.
    secret: True if the value holds credentials, so that it is never shown.
    """

    name: str
    opcode: int
    sent: tuple[Layout, ...]
    sender: Side
    source: str
    answer: tuple[Layout, ...] = ()
    kind: Kind = Kind.REQUEST
    type: int | None = None
    role: Role = Role.OBJECT
    effect: Effect = Effect.NONE
    since: str = "3.0"
    until: str = ""
    enabled_by: str = ""
    note: str = ""
    document: bool = False
    secret: bool = False

    def forms(self, kind: Kind, status: int) -> tuple[Layout, ...]:
        """Return the forms that a frame of a kind can have; for responses, those with the status."""
        if kind is self.kind:
            return self.sent
        return tuple(form for form in self.answer if form.status == status) or ((ERROR,) if status else (EMPTY,))


EMPTY = Layout()
# The value of an error may be text (3.x), a JSON object, or a cluster map (NOT_MY_VBUCKET).
ERROR = Layout(value=MAY, body=TEXT_OR_JSON, note="error")


# Compared by identity: there is one of each, so what is computed from it can be cached.
@dataclass(frozen=True, eq=False, repr=False)
class Dialect:
    """Messages of one generation of the protocol."""

    name: str
    title: str
    messages: tuple[Message, ...]

    def __repr__(self) -> str:
        return f"<Dialect {self.name}: {len(self.messages)} messages>"

    def extend(self, name: str, title: str, *messages: Message) -> Dialect:
        """Return a dialect with the messages of this one and further ones, which replace those with the same opcode."""
        taken = {(m.kind.answer, m.opcode) for m in messages}
        kept = tuple(m for m in self.messages if (m.kind.answer, m.opcode) not in taken)
        return replace(self, name=name, title=title, messages=kept + messages)

    @cached_property
    def by_opcode(self) -> dict[tuple[Kind, int], tuple[Message, ...]]:
        """Messages by kind and opcode; several only where byte 5 distinguishes them."""
        index: dict[tuple[Kind, int], tuple[Message, ...]] = {}
        for message in self.messages:
            kinds = {message.kind} if message.type is not None else {message.kind, message.kind.answer}
            for kind in kinds:
                index[kind, message.opcode] = (*index.get((kind, message.opcode), ()), message)
        return index

    @cached_property
    def by_name(self) -> dict[str, Message]:
        """Messages by name."""
        return {message.name: message for message in self.messages}
