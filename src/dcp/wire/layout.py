"""The vocabulary of the protocol tables.

A table is a `Dialect`: a list of `Message`s. A message has an opcode and one `Layout` for each form
in which it is sent or answered. A layout lists its `Field`s in wire order and says which of key and
value belong to it. Nothing else about a frame is written down anywhere: offsets, lengths, struct
formats, columns and the plan of the C decoder are computed from here.

A frame, after its 24-byte header (magics 0x08 and 0x18 put framing extras before all of it):

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
    """What a magic makes of a frame: who asks, who answers, and in which opcode space."""

    REQUEST = "request"
    RESPONSE = "response"
    SERVER_REQUEST = "server request"
    SERVER_RESPONSE = "server response"

    @property
    def answers(self) -> bool:
        """Bytes 6 and 7 of an answer hold a status, those of a request a vbucket."""
        return self in (Kind.RESPONSE, Kind.SERVER_RESPONSE)

    @property
    def answer(self) -> Kind:
        """The kind of frame that answers, in the same opcode space."""
        return Kind.RESPONSE if self in (Kind.REQUEST, Kind.RESPONSE) else Kind.SERVER_RESPONSE


class Magic(IntEnum):
    """The first byte of every frame."""

    REQUEST = 0x80
    RESPONSE = 0x81
    FRAMED_REQUEST = 0x08
    FRAMED_RESPONSE = 0x18
    SERVER_REQUEST = 0x82
    SERVER_RESPONSE = 0x83

    @property
    def kind(self) -> Kind:
        """Which kind of frame it opens."""
        return _KINDS[self]

    @property
    def framed(self) -> bool:
        """Whether byte 2 is the length of framing extras, and byte 3 alone that of the key."""
        return self in (Magic.FRAMED_REQUEST, Magic.FRAMED_RESPONSE)


_KINDS = {
    Magic.REQUEST: Kind.REQUEST,
    Magic.FRAMED_REQUEST: Kind.REQUEST,
    Magic.RESPONSE: Kind.RESPONSE,
    Magic.FRAMED_RESPONSE: Kind.RESPONSE,
    Magic.SERVER_REQUEST: Kind.SERVER_REQUEST,
    Magic.SERVER_RESPONSE: Kind.SERVER_RESPONSE,
}


class Side(Enum):
    """Who sends a message of its own accord; the other side answers it."""

    CONSUMER = "consumer"
    PRODUCER = "producer"
    EITHER = "either"


class Role(Enum):
    """What the column decoder makes of a message that a producer sends."""

    ROW = "row"
    CONTROL = "control"
    OBJECT = "object"


class Effect(Enum):
    """What a message does to the rows that follow it on its stream, or to what is counted."""

    NONE = "none"
    SNAPSHOT = "opens a snapshot, whose window is in snapshot_start and snapshot_end if it has them"
    DISORDER = "opens (bit 1 of its flags) or closes a snapshot whose seqnos come in any order"
    STREAM_END = "ends the stream"
    UNCOUNTED = "does not count for flow control"


class Presence(Enum):
    """Whether a frame has a key, or a value."""

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
    """Where a field stands in a frame without framing extras, counted from the frame's first byte."""

    name: str
    offset: int
    width: int


@dataclass(frozen=True)
class Layout:
    """One form of one message.

    Chosen among its siblings by what only it has: its lengths, its `status` (answers), its `when`
    (values that fields of the extras must have, such as a version). Siblings are tried in order; one whose
    `when` fits is final. `since` and `note` say what sets it apart.

    `stream_id_defect`: servers since 6.5 send this form with a stream id that the header's
    framing-extras length does not count (its byte 2 is 0, the three bytes are there).
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
        """The fixed sections, in wire order."""
        return (self.extras, self.engine, self.content)

    @cached_property
    def structs(self) -> tuple[struct.Struct, struct.Struct, struct.Struct]:
        """What packs and unpacks each of `sections`."""
        return struct_of(self.extras), struct_of(self.engine), struct_of(self.content)

    @cached_property
    def extras_length(self) -> int:
        return self.structs[0].size

    @cached_property
    def engine_length(self) -> int:
        return self.structs[1].size

    @cached_property
    def content_length(self) -> int:
        return self.structs[2].size

    @cached_property
    def fields(self) -> dict[str, Field]:
        """Every field by name, in wire order."""
        return {f.name: f for section in self.sections for f in section}

    @cached_property
    def required(self) -> frozenset[str]:
        """The fields that every frame of this form has."""
        return frozenset(name for name, f in self.fields.items() if f.visible)

    @cached_property
    def measured(self) -> frozenset[str]:
        """Sections of any length that a field of the extras measures: `engine`, `meta`."""
        sections = frozenset(f.measures for f in self.extras if f.measures)
        return sections - {"engine"} if self.engine else sections

    @cached_property
    def optional(self) -> frozenset[str]:
        """What a frame's fields may hold besides `required`."""
        return frozenset(name for name, f in self.fields.items() if f.reserved) | self.measured

    def places(self) -> Iterator[FieldPlace]:
        """The visible fields of extras and engine section: what a decoder of columns gathers."""
        offset = HEADER_STRUCT.size
        for f in self.extras + self.engine:
            if f.visible:
                yield FieldPlace(f.name, offset, f.width)
            offset += f.width


@dataclass(frozen=True)
class Message:
    """One command or stream message: every form in which it travels, and where that is written.

    `sent` are the forms of the message itself, under a magic of `kind`; `answer` those of the reply,
    empty where no reply is due. `type` is the sub-opcode in byte 5 that UPR draft 1 has instead of a
    datatype (it has no status either: its answers carry the vbucket). The key of a `document` message
    is a document's: on a connection with collections it stands behind the collection's id. The value
    of a `secret` message is never shown.
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
        """The forms that a frame of `kind` (with `status`, if it answers) can have."""
        if kind is self.kind:
            return self.sent
        return tuple(form for form in self.answer if form.status == status) or ((ERROR,) if status else (EMPTY,))


EMPTY = Layout()
# An error's value may be a text (3.x), a JSON object, or a cluster map (not my vbucket).
ERROR = Layout(value=MAY, body=TEXT_OR_JSON, note="error")


# There is one of each, which is equal to itself only: so what is made of it can be kept.
@dataclass(frozen=True, eq=False, repr=False)
class Dialect:
    """All messages of one generation of the protocol."""

    name: str
    title: str
    messages: tuple[Message, ...]

    def __repr__(self) -> str:
        return f"<Dialect {self.name}: {len(self.messages)} messages>"

    def extend(self, name: str, title: str, *messages: Message) -> Dialect:
        """This dialect and `messages`, which take over their opcodes."""
        taken = {(m.kind.answer, m.opcode) for m in messages}
        kept = tuple(m for m in self.messages if (m.kind.answer, m.opcode) not in taken)
        return replace(self, name=name, title=title, messages=kept + messages)

    @cached_property
    def by_opcode(self) -> dict[tuple[Kind, int], tuple[Message, ...]]:
        """The messages that a magic and an opcode can mean; several only where byte 5 decides."""
        index: dict[tuple[Kind, int], tuple[Message, ...]] = {}
        for message in self.messages:
            kinds = {message.kind} if message.type is not None else {message.kind, message.kind.answer}
            for kind in kinds:
                index[kind, message.opcode] = (*index.get((kind, message.opcode), ()), message)
        return index

    @cached_property
    def by_name(self) -> dict[str, Message]:
        return {message.name: message for message in self.messages}
