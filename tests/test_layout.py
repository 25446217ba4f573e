"""The tables: every form can be recognised, is complete, and says what it should."""

from __future__ import annotations

from itertools import combinations

import pytest

import dcp
from dcp.wire.dcp import DCP
from dcp.wire.field import u8, u64
from dcp.wire.layout import HEADER_STRUCT, Dialect, FieldPlace, Kind, Layout, Message, Role, Side

ALL = [(dialect, message) for dialect in dcp.DIALECTS.values() for message in dialect.messages]
ROWS = pytest.mark.parametrize(("dialect", "message"), ALL, ids=[f"{d.name}-{m.name}" for d, m in ALL])


def _forms(message: Message) -> list[tuple[Layout, ...]]:
    """Yield the sets of forms that have to be distinguishable: those sent, and for each status those of the answer."""
    answers: dict[int, list[Layout]] = {}
    for form in message.answer:
        answers.setdefault(form.status, []).append(form)
    return [message.sent, *map(tuple, answers.values())]


@ROWS
def test_a_row_says_where_it_comes_from_and_since_when(dialect: Dialect, message: Message) -> None:
    assert message.source
    assert message.since
    assert message.name == message.name.lower()


@ROWS
def test_the_forms_of_a_message_can_be_told_apart_by_a_reader(dialect: Dialect, message: Message) -> None:
    for forms in _forms(message):
        for a, b in combinations(forms, 2):
            shapes = [(f.extras_length, f.engine, f.content_length, f.value, dict(f.when)) for f in (a, b)]
            assert shapes[0] != shapes[1]


@ROWS
def test_the_forms_of_a_message_can_be_told_apart_by_a_writer(dialect: Dialect, message: Message) -> None:
    for forms in _forms(message):
        for a, b in combinations(forms, 2):
            assert (a.required, a.optional, a.value, dict(a.when)) != (b.required, b.optional, b.value, dict(b.when))


@ROWS
def test_what_selects_a_form_is_among_its_extras(dialect: Dialect, message: Message) -> None:
    for form in message.sent + message.answer:
        assert form.when.keys() <= {field.name for field in form.extras}
        assert len(form.fields) == sum(map(len, form.sections))


@ROWS
def test_a_row_of_columns_is_sent_by_producers_and_has_a_key(dialect: Dialect, message: Message) -> None:
    if message.role is Role.OBJECT:
        return
    assert message.sender in (Side.PRODUCER, Side.EITHER)
    if message.role is Role.ROW and dialect.name != "tap":
        assert all("seqno" in form.required for form in message.sent)


@pytest.mark.parametrize("dialect", dcp.DIALECTS.values(), ids=str)
def test_names_and_opcodes_are_unique(dialect: Dialect) -> None:
    names = [message.name for message in dialect.messages]
    assert len(set(names)) == len(names)
    opcodes = [(m.kind, m.opcode, m.type, m.sent[0].value) for m in dialect.messages]
    assert len(set(opcodes)) == len(opcodes)


def test_every_dcp_opcode_from_0x50_to_0x67_has_its_row() -> None:
    assert {opcode for kind, opcode in DCP.by_opcode if kind is Kind.REQUEST and opcode >> 4 in (5, 6)} == set(
        range(0x50, 0x68)
    )


def test_a_dialect_takes_over_an_opcode_in_both_directions() -> None:
    theirs = Message("get", 1, (Layout(),), Side.CONSUMER, "here", (Layout(),))
    ours = Message("ask", 1, (Layout(),), Side.CONSUMER, "here", kind=Kind.RESPONSE, type=3)
    merged = Dialect("a", "A", (theirs,)).extend("b", "B", ours)
    assert merged.by_opcode == {(Kind.RESPONSE, 1): (ours,)}


def test_places_count_from_the_first_byte_of_the_frame_and_skip_what_does_not_show() -> None:
    form = Layout(extras=(u64("seqno"), u8("nmeta", measures="meta"), u8("nru")), engine=(u8("rank"),))
    start = HEADER_STRUCT.size
    assert list(form.places()) == [
        FieldPlace("seqno", start, 8),
        FieldPlace("nru", start + 9, 1),
        FieldPlace("rank", start + 10, 1),
    ]
