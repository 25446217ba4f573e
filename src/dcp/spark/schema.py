"""The columns in Spark's words: their types there, and batches of those types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from dcp.columns.schema import Column, choose
from dcp.errors import LocalProtocolError
from dcp.spark.options import Options
from dcp.wire.dcp import DCP

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def _same(column: Any) -> Any:
    return column


def _bits(column: Any) -> Any:
    """Spark has no unsigned numbers: those of 64 bits keep their bits."""
    return column.view(pa.int64())


def _to(type_: Any) -> Callable[[Any], Any]:
    return lambda column: pc.cast(column, type_)


# By the types of a batch: the type in Spark, in Arrow, and how to get there.
_PLAIN: dict[str, tuple[str, Any, Callable[[Any], Any]]] = {
    "c": ("string", pa.string(), _to(pa.string())),
    "C": ("int", pa.int32(), _to(pa.int32())),
    "S": ("int", pa.int32(), _to(pa.int32())),
    "I": ("bigint", pa.int64(), _to(pa.int64())),
    "L": ("bigint", pa.int64(), _bits),
    "tsu:UTC": ("timestamp", pa.timestamp("us", "UTC"), _same),
    "z": ("binary", pa.binary(), _same),
    "u": ("string", pa.string(), _same),
}
_TEXT = ("string", pa.string(), _to(pa.string()))


class Schema:
    """The columns of a read. `ddl` is for Spark, `arrow` what its batches have."""

    def __init__(self, options: Options) -> None:
        columns = choose(DCP, options.columns)
        texts = {"key": options.key_format == "string", "value": options.value_format == "string"}
        kinds = [_TEXT if texts.get(column.name) else _PLAIN[column.format] for column in columns]
        self.names = tuple(column.name for column in columns)
        self.ddl = ", ".join(f"{_quoted(column)} {kind[0]}" for column, kind in zip(columns, kinds, strict=True))
        self.arrow = pa.schema([pa.field(name, kind[1]) for name, kind in zip(self.names, kinds, strict=True)])
        self._kinds = [kind[0] for kind in kinds]
        self._casts = [kind[2] for kind in kinds]

    def plain(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch of the client with the types of Spark."""
        columns = []
        for name, cast, column in zip(self.names, self._casts, batch.columns, strict=True):
            try:
                columns.append(cast(column))
            except pa.ArrowInvalid as error:
                raise LocalProtocolError(f"{name}Format: expected binary, since not all are UTF-8: {error}") from None
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)

    def struct(self) -> StructType:
        from pyspark.sql import types

        kinds = {"string": types.StringType, "binary": types.BinaryType, "timestamp": types.TimestampType}
        kinds |= {"int": types.IntegerType, "bigint": types.LongType}
        struct = types.StructType()
        for name, kind in zip(self.names, self._kinds, strict=True):
            struct.add(name, kinds[kind]())
        return struct


def _quoted(column: Column) -> str:
    return f"`{column.name}`"


def chosen_by(struct: StructType, options: Options) -> tuple[str, ...]:
    """The columns that a schema names. They have the types that they have: Spark would take other ones silently."""
    chosen = replace(options, columns=tuple(struct.fieldNames()))
    for own, wanted in zip(Schema(chosen).struct(), struct, strict=True):
        if own.dataType != wanted.dataType:
            raise LocalProtocolError(
                f"schema: {own.name}: expected {own.dataType.simpleString()}, found "
                f"{wanted.dataType.simpleString()}; cast it behind the source"
            )
    return chosen.columns or ()
