"""Column types of a read in Spark and in Arrow."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from dcp.client.options import PATH_COLUMNS
from dcp.columns.schema import choose, plain
from dcp.errors import UsageError
from dcp.spark.options import Options
from dcp.wire.dcp import DCP

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


# Types in Spark and in Arrow, by the format of a batch's plain column. Spark has no unsigned types.
_TYPES: dict[str, tuple[str, Any]] = {
    "i": ("int", pa.int32()),
    "l": ("bigint", pa.int64()),
    "tsu:UTC": ("timestamp", pa.timestamp("us", "UTC")),
    "z": ("binary", pa.binary()),
    "u": ("string", pa.string()),
}


class SparkSchema:
    """Columns of a read: their names, their types as DDL for Spark, and the Arrow schema of its batches."""

    def __init__(self, options: Options) -> None:
        named = options.columns
        wire = choose(DCP, (named and [name for name in named if name not in PATH_COLUMNS]) or None)
        formats = {column.name: plain(column).format for column in wire}
        self.names = named or tuple(formats)
        texts = {"key": options.key_format == "string", "value": options.value_format == "string"}
        texts |= dict.fromkeys(PATH_COLUMNS, True)
        types = [_TYPES["u" if texts.get(name) else formats[name]] for name in self.names]
        self.ddl = ", ".join(f"`{name}` {kind[0]}" for name, kind in zip(self.names, types, strict=True))
        self.arrow = pa.schema([pa.field(name, kind[1]) for name, kind in zip(self.names, types, strict=True)])
        self._spark_types = [kind[0] for kind in types]
        self._text_columns = [name for name in self.names if texts.get(name) and name not in PATH_COLUMNS]

    def with_text(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with key and value as text, where that was requested.

        Raises UsageError if one of them is not UTF-8.
        """
        for name in self._text_columns:
            try:
                batch = batch.set_column(self.names.index(name), name, pc.cast(batch[name], pa.string()))
            except pa.ArrowInvalid as error:
                raise UsageError(
                    f"{name}Format: expected UTF-8, found other bytes: {error}; use {name}Format=binary"
                ) from None
        return batch

    def struct(self) -> StructType:
        """Return the schema as Spark's class."""
        from pyspark.sql import types

        classes = {"string": types.StringType, "binary": types.BinaryType, "timestamp": types.TimestampType}
        classes |= {"int": types.IntegerType, "bigint": types.LongType}
        struct = types.StructType()
        for name, kind in zip(self.names, self._spark_types, strict=True):
            struct.add(name, classes[kind]())
        return struct


def selected_columns(struct: StructType, options: Options) -> tuple[str, ...]:
    """Return the columns that a user's schema names.

    Raises UsageError if a type differs from the column's, or if a column is NOT NULL: Spark would take either
    without an error, and misread the rows.
    """
    selected = replace(options, columns=tuple(struct.fieldNames()))
    for own, wanted in zip(SparkSchema(selected).struct(), struct, strict=True):
        if own.dataType != wanted.dataType:
            raise UsageError(
                f"schema: {own.name}: expected {own.dataType.simpleString()}, found "
                f"{wanted.dataType.simpleString()}; cast the column after load()"
            )
        if not wanted.nullable:
            raise UsageError(f"schema: {own.name}: expected a nullable column, found NOT NULL")
    return selected.columns or ()
