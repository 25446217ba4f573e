"""Frames drawn from the tables: whatever a dialect can say, Hypothesis says here."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

import dcp
from dcp.wire.body import Records
from dcp.wire.field import Field
from dcp.wire.frame import UNKNOWN
from dcp.wire.framing import FrameInfo, stream_id
from dcp.wire.layout import EMPTY, ERROR, Dialect, Kind, Layout, Magic, Message, Presence

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
    """Numbers that are nobody's `when`, for the form that takes all the rest."""
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
