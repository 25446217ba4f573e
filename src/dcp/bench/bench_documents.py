"""Benchmark `documents`: JSON to typed columns, beside other ways to the same columns, on one core."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from importlib.util import find_spec
from random import Random
from typing import Any

import dcp
from dcp.bench.frames import CACHED, JSON_BIT, MIB, Case
from dcp.bench.timing import Contender, Measurement, Sample, take_turns
from dcp.wire.layout import Magic

ALL, THREE, NONE = "document, all fields", "document, 3 fields", "no document"
PYARROW, DUCKDB, POLARS = "pyarrow.json", "DuckDB", "Polars"
MSGSPEC, ORJSON = "msgspec", "orjson, then pyarrow"

SIZES = (100, 250, 550, 4096)
# Size of the documents that are read with Spark.
IN_SPARK = 232
CASES = tuple(Case(value=size, mix="documents") for size in SIZES)
# Fields of an order, in the order in which larger documents have more of them.
_FIELDS = (
    *(("id", "bigint"), ("status", "string"), ("total", "double"), ("paid", "boolean")),
    *(("created", "timestamp"), ("currency", "string"), ("customer", "struct<id bigint, name string, city string>")),
    ("shipping", "struct<street string, zip string, country string, express boolean>"),
    *(("score", "double"), ("vat", "int"), ("note", "string")),
    ("lines", "array<struct<sku string, count int, price double>>"),
)
# Fields of a document of each size.
_COUNTS = {100: 4, IN_SPARK: 7, 250: 7, 550: 11, 4096: 12}
_THREE = {100: "id bigint, status string, total double"}
_THREE_DEEP = "id bigint, total double, city string from customer.city"


def run(cases: tuple[Case, ...] = CASES, *, repetitions: int = 15, total: int = 64 * MIB) -> Iterator[Measurement]:
    """Measure each case with about `total` bytes for each repetition, as far as they fit into the cache."""
    for case in cases:
        yield documents_case(case.sized(min(total, CACHED)), repetitions)


def documents_case(case: Case, repetitions: int) -> Measurement:
    """Measure one case. What is not installed is left out."""
    chance = Random(case.value)
    texts = [order(case.value, number, chance) for number in range(case.total // (case.value + 60))]
    wire = b"".join(frame(number, text) for number, text in enumerate(texts, 1))
    schema = schema_of(case.value)
    contenders: dict[str, Contender] = {
        ALL: decode(wire, schema),
        THREE: decode(wire, _THREE.get(case.value, _THREE_DEEP)),
        NONE: decode(wire, None),
    }
    # Polars reads the number of its threads once.
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    for name, module, make in (
        (PYARROW, "pyarrow", _with_pyarrow),
        (DUCKDB, "duckdb", _with_duckdb),
        (POLARS, "polars", _with_polars),
        (MSGSPEC, "msgspec", _with_msgspec),
        (ORJSON, "orjson", _with_orjson),
    ):
        if find_spec(module) is not None:
            contenders[name] = make(texts, schema)
    times = take_turns(contenders, repetitions)
    return Measurement("documents", case, {name: Sample(times[name], len(texts), len(wire)) for name in times})


def schema_of(size: int) -> str:
    """Return the schema of orders of a size: all of their fields, but for what fills them up."""
    return ", ".join(f"{name} {type}" for name, type in _FIELDS[: _COUNTS[size]])


def order(size: int, number: int, chance: Random) -> bytes:
    """Return an order as JSON, of about `size` bytes."""
    whole: dict[str, Any] = {
        "id": number,
        "status": chance.choice(("new", "paid", "shipped")),
        "total": round(chance.uniform(1, 1000), 2),
        "paid": chance.random() < 0.5,
        "created": f"2026-03-{chance.randrange(1, 29):02}T12:34:56.789Z",
        "currency": "EUR",
        "customer": {"id": number % 1000, "name": f"Customer {number}", "city": chance.choice(("Graz", "Wien"))},
        "shipping": {
            "street": f"Main street {chance.randrange(200)}",
            "zip": f"{chance.randrange(10**5):05}",
            "country": "AT",
            "express": chance.random() < 0.5,
        },
        "score": chance.random(),
        "vat": 19,
        "note": "",
        "lines": [],
    }
    document: dict[str, Any] = {name: whole[name] for name, _ in _FIELDS[: _COUNTS[size]]}
    if "lines" in document:
        document["lines"] = [{"sku": f"sku-{chance.randrange(10**6)}", "count": n, "price": n / 4} for n in range(60)]
    missing = size - len(_compact(document))
    # Small documents have a field that no schema asks for.
    document["note" if "note" in document else "remark"] = "x" * max(0, missing - (0 if "note" in document else 12))
    return _compact(document)


def _compact(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def frame(seqno: int, value: bytes) -> bytes:
    """Return the frame of an order."""
    fields = {"seqno": seqno, "rev_seqno": 1, "flags": 0, "expiry": 0, "lock_time": 0, "nru": 0}
    key = b"order::%012d" % seqno
    return dcp.encode(dcp.Frame("mutation", Magic.REQUEST, datatype=JSON_BIT, key=key, value=value, fields=fields))


def decode(wire: bytes, schema: str | None) -> Contender:
    """Return the contender that decodes a wire, with a column of documents or without."""
    decoder = dcp.Decoder(columns=["seqno"], document=schema)

    def run() -> dcp.Batch:
        decoder.feed(wire)
        return decoder.take()

    return run


def _arrow_type(schema: str) -> Any:
    import pyarrow

    return pyarrow.schema(dcp.Decoder(columns=["seqno"], document=schema).schema).field("document").type


def _with_pyarrow(texts: list[bytes], schema: str) -> Contender:
    import pyarrow
    from pyarrow import json as reader

    lines = b"\n".join(texts)
    types = pyarrow.schema(list(_arrow_type(schema)))
    parse = reader.ParseOptions(explicit_schema=types, unexpected_field_behavior="ignore")
    read = reader.ReadOptions(use_threads=False, block_size=len(lines) + 1)
    return lambda: reader.read_json(io.BytesIO(lines), read_options=read, parse_options=parse)


def _with_duckdb(texts: list[bytes], schema: str) -> Contender:
    import duckdb
    import pyarrow

    connection = duckdb.connect(config={"threads": 1})
    connection.register("texts", pyarrow.table({"v": pyarrow.array(texts, pyarrow.binary()).cast(pyarrow.string())}))
    structure = json.dumps(_duckdb_type(_arrow_type(schema)))
    return lambda: pyarrow.table(connection.sql(f"select json_transform(v, '{structure}') from texts"))


def _duckdb_type(type: Any) -> Any:
    import pyarrow

    if pyarrow.types.is_struct(type):
        return {field.name: _duckdb_type(field.type) for field in type}
    if pyarrow.types.is_list(type):
        return [_duckdb_type(type.value_type)]
    names = {"int64": "BIGINT", "int32": "INTEGER", "double": "DOUBLE", "bool": "BOOLEAN", "string": "VARCHAR"}
    return names.get(str(type), "TIMESTAMPTZ")


def _with_polars(texts: list[bytes], schema: str) -> Contender:
    import polars
    import pyarrow

    series = polars.Series("v", [text.decode() for text in texts])
    # It reads no times.
    fields = [field.with_type(pyarrow.string()) if field.name == "created" else field for field in _arrow_type(schema)]
    empty: Any = polars.from_arrow(pyarrow.nulls(0, pyarrow.struct(fields)))
    return lambda: series.str.json_decode(empty.dtype)


def _with_msgspec(texts: list[bytes], schema: str) -> Contender:
    import msgspec

    decoder = msgspec.json.Decoder(_msgspec_type(msgspec, _arrow_type(schema), "Order"))
    return lambda: [decoder.decode(text) for text in texts]


def _msgspec_type(msgspec: Any, type: Any, name: str) -> Any:
    import datetime

    import pyarrow

    if pyarrow.types.is_struct(type):
        return msgspec.defstruct(name, [(field.name, _msgspec_type(msgspec, field.type, field.name)) for field in type])
    if pyarrow.types.is_list(type):
        return list[_msgspec_type(msgspec, type.value_type, name)]  # type: ignore[misc]
    names = {"int64": int, "int32": int, "double": float, "bool": bool, "string": str}
    return names.get(str(type), datetime.datetime)


def _with_orjson(texts: list[bytes], schema: str) -> Contender:
    import orjson
    import pyarrow

    type = _arrow_type(schema)
    # pyarrow does not read times from text.
    fields = [field.with_type(pyarrow.string()) if field.name == "created" else field for field in type]
    type = pyarrow.struct(fields)
    return lambda: pyarrow.array([orjson.loads(text) for text in texts], type)
