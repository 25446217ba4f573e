"""Columns: names, order and types, and a place for each in every plan."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dcp
from dcp import _codec
from dcp._codec import Source
from dcp.columns.plan import compile_plan, events_of
from dcp.columns.schema import COLUMNS, BatchSchema, choose, columns_of
from dcp.wire.dcp import DCP
from dcp.wire.layout import Dialect, Role
from tests.strategies import DIALECTS

DEFAULT = [
    "event", "vbucket", "seqno", "rev_seqno", "cas", "flags", "expiry", "lock_time", "delete_time", "datatype",
    "collection_id", "key", "value", "xattrs", "snapshot_start", "snapshot_end", "stream_id",
]  # fmt: skip
FURTHER = {
    "tap": ["tap_flags", "ttl", "opaque", "nru"],
    "upr1": ["opaque"],
    "upr2": ["opaque"],
    "dcp": ["opaque", "nru", "event_id", "version", "deleted", "durability", "prepared_seqno"],
}
ALL = st.sampled_from(list(dcp.DIALECTS.values()))


def test_the_default_columns_are_these_in_this_order() -> None:
    assert [column.name for column in choose(DCP, None)] == DEFAULT
    assert dcp.Decoder().schema.names == tuple(DEFAULT)


@pytest.mark.parametrize("name", FURTHER)
def test_a_dialect_has_the_fields_of_its_rows_too(name: str) -> None:
    further = set(columns_of(dcp.DIALECTS[name])) - {column.name for column in COLUMNS}
    assert further == set(FURTHER[name])


@pytest.mark.parametrize("name", dcp.DIALECTS)
def test_every_field_of_a_row_is_a_column_that_can_hold_it(name: str) -> None:
    widths = {"C": 1, "S": 2, "I": 4, "L": 8}
    dialect = dcp.DIALECTS[name]
    columns = columns_of(dialect)
    for message in dialect.messages:
        for layout in message.sent if message.role is Role.ROW else ():
            for field in layout.extras + layout.engine:
                if field.visible:
                    assert widths[columns[field.name].format] >= field.width
                    assert columns[field.name].source is Source.FIELD


@given(DIALECTS, st.data())
def test_columns_come_in_the_order_in_which_they_are_asked_for(dialect: Dialect, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(columns_of(dialect))), min_size=1, unique=True))
    decoder = dcp.Decoder(dialect.name, columns=iter(names))
    assert decoder.schema.names == decoder.take().schema.names == tuple(names)
    assert decoder.plan.names == tuple(names)


def test_one_name_is_a_choice_of_one() -> None:
    assert dcp.Decoder(columns="key").schema.names == ("key",)


def test_quarantine_adds_the_column_that_says_why() -> None:
    assert dcp.Decoder(columns=["key"], on_bad_value="quarantine").schema.names == ("key", "error")
    assert dcp.Decoder(columns=["error", "key"], on_bad_value="quarantine").schema.names == ("error", "key")


@pytest.mark.parametrize(
    ("keys", "views", "formats"),
    [
        ("binary", False, {"key": "z", "value": "z", "xattrs": "z"}),
        ("utf8", False, {"key": "u", "value": "z", "xattrs": "z"}),
        ("binary", True, {"key": "vz", "value": "vz", "xattrs": "vz"}),
        ("utf8", True, {"key": "vu", "value": "vz", "xattrs": "vz"}),
    ],
)
def test_options_decide_over_the_types_of_three_columns(keys: str, views: bool, formats: dict[str, str]) -> None:
    schema = dcp.Decoder(keys=keys, views=views, columns=[*DEFAULT, "error"]).schema  # type: ignore[arg-type]
    usual = {column.name: column.format for column in COLUMNS}
    assert {column.name: column.format for column in schema} == {
        name: formats.get(name, usual[name]) for name in [*DEFAULT, "error"]
    }


@pytest.mark.parametrize("name", dcp.DIALECTS)
def test_plain_types_are_those_of_spark(name: str) -> None:
    pa = pytest.importorskip("pyarrow", reason="the types are those of pyarrow")
    names = list(columns_of(dcp.DIALECTS[name]))
    wire, plain = (pa.schema(dcp.Decoder(name, names, types=types).schema) for types in ("wire", "plain"))
    kept = {pa.binary(), pa.utf8(), pa.timestamp("us", "UTC")}
    others = {
        pa.dictionary(pa.int8(), pa.utf8()): pa.utf8(),
        pa.uint8(): pa.int32(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.int64(),
    }
    assert plain.types == [others.get(type_, type_) for type_ in wire.types]
    assert set(wire.types) == kept | others.keys()
    assert all(field.nullable for field in plain)


def test_schemas_of_equal_columns_are_equal() -> None:
    one, same, other = dcp.Decoder().schema, dcp.Decoder().schema, dcp.Decoder(keys="utf8").schema
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one != DEFAULT
    assert (len(one), one[0].name, [column.name for column in one]) == (17, "event", DEFAULT)
    assert repr(BatchSchema([one[0], one[1]], dcp.Decoder().plan)) == "BatchSchema(event: c, vbucket: S)"


def test_the_events_are_in_the_order_of_the_table_and_without_system_events() -> None:
    assert events_of(DCP, None) == ("mutation", "deletion", "expiration", "prepare", "commit", "abort")
    assert events_of(DCP, ["system_event", "deletion", "mutation"]) == ("mutation", "deletion", "system_event")
    assert events_of(DCP, []) == ()


def test_what_is_no_event_is_a_control() -> None:
    frame = dcp.Frame("deletion", 0x80, fields={"seqno": 1, "rev_seqno": 1}, key=b"k")
    decoder = dcp.Decoder(events=["mutation"])
    decoder.feed(dcp.encode(frame))
    batch = decoder.take()
    assert (batch.num_rows, batch.controls, batch.events) == (0, [(0, frame)], ("mutation",))


@given(ALL)
def test_a_plan_is_of_the_columns_and_events_that_it_was_compiled_for(dialect: Dialect) -> None:
    columns, events = tuple(columns_of(dialect).values()), events_of(dialect, None)
    plan = compile_plan(dialect, columns, events)
    assert plan.names == tuple(column.name for column in columns)
    assert plan.formats == tuple(column.format for column in columns)
    assert plan.events == events


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ([], "columns: expected 1 to 64, found 0"),
        ([("c", "C", Source.FIELD, False, False)] * 65, "columns: expected 1 to 64, found 65"),
        ([("c", "e", Source.FIELD, False, False)], "no column can have the Arrow type 'e'"),
    ],
)
def test_a_plan_that_the_loop_has_no_room_for_is_refused(
    columns: list[tuple[str, str, Source, bool, bool]], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        _codec.Plan(columns, [], [])
