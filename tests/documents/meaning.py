"""The meaning of documents: one row for each rule, for the page, for tests, and for a comparison with Spark."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any, NamedTuple

UTC = timezone.utc


class Rule(NamedTuple):
    """A document in a schema of one field `a`.

    found, error: cell of `a` and the error that this project gives. `document`: the row has no document at all.
    from_json: what Spark's `from_json` gives for the same, if it is another value; SAME if not, and `why`.
    """

    what: str
    type: str
    text: str
    found: Any = None
    error: str = ""
    from_json: Any = "same"
    why: str = ""
    document: bool = True


SAME = "same"
_EXACT = "a number is never rounded in silence"
_TYPED = "a value of another type is an error, never converted"

RULES = (
    Rule("missing", "bigint", "{}"),
    Rule("null", "bigint", '{"a":null}'),
    Rule("other fields", "bigint", '{"x":{"a":1},"a":2}', 2),
    Rule("a name twice: the last one counts", "bigint", '{"a":1,"a":2}', 2),
    Rule("whole number", "tinyint", '{"a":-128}', -128),
    Rule("whole number, written otherwise", "bigint", '{"a":1.0}', 1, from_json=None, why="it is the same number"),
    Rule("64 bits", "bigint", '{"a":9007199254740993}', 9007199254740993),
    Rule("too large", "tinyint", '{"a":128}', error="a: expected tinyint, found 128", from_json=-128, why=_EXACT),
    Rule("fraction for a whole number", "bigint", '{"a":1.5}', error="a: expected bigint, found 1.5"),
    Rule("text for a number", "bigint", '{"a":"1"}', error='a: expected bigint, found "1"'),
    Rule("number for text", "string", '{"a":1}', error="a: expected string, found 1", from_json="1", why=_TYPED),
    Rule(
        "object for text",
        "string",
        '{"a":{"b": 1}}',
        error="a: expected string, found an object",
        from_json='{"b":1}',
        why="`json` is the type for the text of a part",
    ),
    Rule(
        "source text of a part",
        "json",
        '{"a":{"b": 1.50}}',
        '{"b": 1.50}',
        from_json='{"b":1.5}',
        why="Spark writes the part again, as a string",
    ),
    Rule("boolean", "boolean", '{"a":true}', True),
    Rule("number for a boolean", "boolean", '{"a":1}', error="a: expected boolean, found 1"),
    Rule("double", "double", '{"a":0.1}', 0.1),
    Rule("whole number for a double", "double", '{"a":3}', 3.0),
    Rule(
        "too large for a double",
        "double",
        '{"a":1e400}',
        error="a: expected double, found 1e400",
        from_json=float("inf"),
        why=_EXACT,
    ),
    Rule("decimal, from its digits", "decimal(12,2)", '{"a":12.50}', Decimal("12.50")),
    Rule("decimal as text", "decimal(12,2)", '{"a":"12.50"}', Decimal("12.50")),
    Rule(
        "digits beyond the scale",
        "decimal(12,2)",
        '{"a":1.005}',
        error="a: expected decimal(12,2), found 1.005",
        from_json=Decimal("1.01"),
        why=_EXACT,
    ),
    Rule("zeros beyond the scale", "decimal(12,2)", '{"a":1.5000}', Decimal("1.50")),
    Rule("too many digits", "decimal(4,2)", '{"a":123.45}', error="a: expected decimal(4,2), found 123.45"),
    Rule(
        "time with an offset", "timestamp", '{"a":"2026-11-01T12:00:00+02:00"}', datetime(2026, 11, 1, 10, tzinfo=UTC)
    ),
    Rule(
        "nanoseconds are cut",
        "timestamp",
        '{"a":"2026-11-01T12:00:00.123456789Z"}',
        datetime(2026, 11, 1, 12, 0, 0, 123456, tzinfo=UTC),
    ),
    Rule(
        "time without an offset",
        "timestamp",
        '{"a":"2026-11-01T12:00:00"}',
        error='a: expected timestamp (ISO 8601 with Z or an offset), found "2026-11-01T12:00:00"',
        from_json=datetime(2026, 11, 1, 12, tzinfo=UTC),
        why="Spark takes the zone of the session; `timestamp_ntz` is the type for these",
    ),
    Rule("local time", "timestamp_ntz", '{"a":"2026-11-01T12:00:00"}', datetime(2026, 11, 1, 12)),
    Rule(
        "seconds since 1970",
        "timestamp_s",
        '{"a":1700000000.25}',
        datetime(2023, 11, 14, 22, 13, 20, 250000, tzinfo=UTC),
        from_json=None,
        why="Spark has no such type",
    ),
    Rule("date", "date", '{"a":"2026-02-28"}', date(2026, 2, 28)),
    Rule("no such date", "date", '{"a":"2026-02-29"}', error='a: expected date (YYYY-MM-DD), found "2026-02-29"'),
    Rule("base64", "binary", '{"a":"aGk="}', b"hi"),
    Rule("no base64", "binary", '{"a":"hi!"}', error='a: expected binary (base64), found "hi!"'),
    Rule("empty containers", "array<string>", '{"a":[]}', []),
    Rule(
        "wrong element",
        "array<bigint>",
        '{"a":[1,"x",3]}',
        [1, None, 3],
        'a[1]: expected bigint, found "x"',
        None,
        "only the part that is wrong is null",
    ),
    Rule("map", "map<string, double>", '{"a":{"x":1,"y":null}}', [("x", 1.0), ("y", None)]),
    Rule("map, a name twice", "map<string, bigint>", '{"a":{"x":1,"x":2}}', [("x", 2)]),
    Rule("struct", "struct<b: bigint>", '{"a":{"b":1,"c":2}}', {"b": 1}),
    Rule("array for a struct", "struct<b: bigint>", '{"a":[1]}', error="a: expected an object, found an array"),
    Rule(
        "lone surrogate",
        "string",
        '{"a":"\\ud83d"}',
        error="a: expected string, found a string that is not valid Unicode",
        from_json="?",
        why="Spark replaces it",
    ),
    Rule("no object", "bigint", "[1]", error="document: expected an object, found an array", document=False),
    Rule(
        "no JSON",
        "bigint",
        '{"a":1',
        error="document: expected JSON, found unexpected end of data at byte 6",
        document=False,
    ),
    Rule("nothing", "bigint", "", error="document: expected JSON, found input is empty at byte 0", document=False),
)
