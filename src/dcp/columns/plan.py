"""Compiler from the tables to a decoding plan: what the loop in `_codec` needs to know of a dialect."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

from dcp import _codec
from dcp.columns.document_schema import compile_document
from dcp.columns.schema import Column
from dcp.errors import UsageError
from dcp.wire.field import Field
from dcp.wire.layout import HEADER, HEADER_STRUCT, Dialect, Effect, FieldPlace, Kind, Layout, Message, Presence, Role

_KINDS = list(Kind)
_NOWHERE = -1
# Fields of a marker of which the loop needs to know no more than the window.
_WINDOW = {"snapshot_start", "snapshot_end", "flags"}
_EFFECTS = {
    Effect.NONE: _codec.Effect.NOTHING,
    Effect.SNAPSHOT: _codec.Effect.SNAPSHOT,
    Effect.DISORDER: _codec.Effect.DISORDER,
    Effect.STREAM_END: _codec.Effect.STREAM_END,
    Effect.UNCOUNTED: _codec.Effect.UNCOUNTED,
    Effect.ADVANCE: _codec.Effect.ADVANCE,
}
# Messages whose value is a document: (True, whether it may be missing). Prepared deletions have none.
_DOCUMENTS = {"mutation": (True, False), "prepare": (True, True)}
# Messages about one document, which a selection may leave out. Others, such as system events, pass it.
CHANGES = frozenset({"mutation", "deletion", "expiration", "prepare", "commit", "abort"})
# Rows only on request. By default they are control frames, which carry the collections manifest.
_NOT_BY_DEFAULT = frozenset({"system_event"})


def events_of(dialect: Dialect, names: Collection[str] | None) -> tuple[str, ...]:
    """Return the messages that become rows, in the order of the table.

    names: those that the caller wants; None for the default. Raises UsageError for one that cannot be a row.
    """
    possible = [message.name for message in dialect.messages if message.role is Role.ROW]
    if names is None:
        return tuple(name for name in possible if name not in _NOT_BY_DEFAULT)
    for name in names:
        if name not in possible:
            raise UsageError(f"events: expected some of {', '.join(possible)}, found {name!r}")
    return tuple(name for name in possible if name in names)


@lru_cache(maxsize=64)
def compile_plan(dialect: Dialect, columns: tuple[Column, ...], events: tuple[str, ...]) -> _codec.Plan:
    """Return the plan for these columns and events. Cached: all connections of a stream have the same."""
    described = [
        (column.name, column.format, column.source, column.nullable, column.nullable or column.declared_nullable)
        for column in columns
    ]
    shapes = [shape for message in dialect.messages for shape in _shapes(message, events)]
    documents = [compile_document(column.document) for column in columns if column.document is not None]
    return _codec.Plan(described, events, shapes, *documents)


def _shapes(message: Message, events: Sequence[str]) -> Iterator[dict[str, Any]]:
    # A caller may insert rows with the name of a message that is not decoded to rows.
    row = message.role is Role.ROW and message.name in events
    event = events.index(message.name) if row else _NOWHERE
    if event == _NOWHERE and message.effect is Effect.NONE:
        return
    seen = set()
    for layout in message.sent:
        # The loop reads only the window of a marker, so forms that differ after it are one shape: Python checks them.
        shape = layout.extras_length, layout.engine_length, event == _NOWHERE or tuple(layout.when.items())
        if shape not in seen:
            seen.add(shape)
            yield _shape(message, layout, event)


def _shape(message: Message, layout: Layout, event: int) -> dict[str, Any]:
    places = {place.name: (place.offset, place.width) for place in _places(message, layout)}
    offsets = field_offsets(layout.extras + layout.content)
    lengths = {field.measures: offsets[field.name] for field in layout.extras if field.measures}
    row = event != _NOWHERE
    conditions = [(offsets[name], layout.fields[name].width, number) for name, number in layout.when.items()]
    return {
        "kind": _KINDS.index(message.kind),
        "opcode": message.opcode,
        "type": _NOWHERE if message.type is None else message.type,
        "event": event,
        "effect": _EFFECTS[message.effect],
        "extras_length": layout.extras_length,
        "engine_at": lengths.get("engine", _NOWHERE),
        "engine_length": layout.engine_length if layout.engine else _NOWHERE,
        "meta_at": lengths.get("meta", _NOWHERE),
        "seqno_at": places["seqno"][0] if "seqno" in places else _NOWHERE,
        "start_at": offsets.get("snapshot_start", _NOWHERE),
        "end_at": offsets.get("snapshot_end", _NOWHERE),
        "only_window": offsets.keys() == _WINDOW,
        "prefixed": message.document,
        "key": (layout.key is Presence.MUST, layout.key is not Presence.NONE),
        "value": (layout.value is Presence.MUST, layout.value is not Presence.NONE or bool(layout.content)),
        "conditions": conditions if row else [],
        "content_length": layout.content_length if row and layout.content else _NOWHERE,
        "selectable": message.name in CHANGES,
        "document": _DOCUMENTS.get(message.name, (False, False)),
        "defect": layout.stream_id_defect,
        "places": places,
    }


def _places(message: Message, layout: Layout) -> Iterator[FieldPlace]:
    """Yield all numbers of a row: those of the header, then those of the form."""
    offsets = field_offsets(HEADER, 0)
    for field in HEADER:
        # A message with a type has it instead of the datatype.
        if field.name != "datatype" or message.type is None:
            yield FieldPlace(field.name, offsets[field.name], field.width)
    yield from layout.places()


def field_offsets(fields: Sequence[Field], start: int = HEADER_STRUCT.size) -> dict[str, int]:
    """Return the offset of each field, the first one at `start`."""
    return dict(zip((f.name for f in fields), accumulate((f.width for f in fields), initial=start), strict=False))
