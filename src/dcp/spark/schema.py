"""The columns in Spark's words: their types there, and batches of those types."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from dcp.columns.schema import choose, plain
from dcp.errors import LocalProtocolError
from dcp.spark.options import Options
from dcp.spark.values import PATH
from dcp.wire.dcp import DCP

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


# By the plain types of a batch: the types in Spark and in Arrow.
_KINDS: dict[str, tuple[str, Any]] = {
    "i": ("int", pa.int32()),
    "l": ("bigint", pa.int64()),
    "tsu:UTC": ("timestamp", pa.timestamp("us", "UTC")),
    "z": ("binary", pa.binary()),
    "u": ("string", pa.string()),
}


class Schema:
    """The columns of a read. `ddl` is for Spark, `arrow` what its batches have."""

    def __init__(self, options: Options) -> None:
        named = options.columns
        wire = choose(DCP, (named and [name for name in named if name not in PATH]) or None)
        formats = {column.name: plain(column).format for column in wire}
        self.names = named or tuple(formats)
        texts = {"key": options.key_format == "string", "value": options.value_format == "string"}
        texts |= dict.fromkeys(PATH, True)
        kinds = [_KINDS["u" if texts.get(name) else formats[name]] for name in self.names]
        self.ddl = ", ".join(f"`{name}` {kind[0]}" for name, kind in zip(self.names, kinds, strict=True))
        self.arrow = pa.schema([pa.field(name, kind[1]) for name, kind in zip(self.names, kinds, strict=True)])
        self._kinds = [kind[0] for kind in kinds]
        self._texts = [name for name in self.names if texts.get(name) and name not in PATH]

    def checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch of plain types, with text where that is asked for."""
        for name in self._texts:
            try:
                batch = batch.set_column(self.names.index(name), name, pc.cast(batch[name], pa.string()))
            except pa.ArrowInvalid as error:
                raise LocalProtocolError(f"{name}Format: expected binary, since not all are UTF-8: {error}") from None
        return batch

    def struct(self) -> StructType:
        from pyspark.sql import types

        kinds = {"string": types.StringType, "binary": types.BinaryType, "timestamp": types.TimestampType}
        kinds |= {"int": types.IntegerType, "bigint": types.LongType}
        struct = types.StructType()
        for name, kind in zip(self.names, self._kinds, strict=True):
            struct.add(name, kinds[kind]())
        return struct


def chosen_by(struct: StructType, options: Options) -> tuple[str, ...]:
    """The columns that a schema names. They have the types that they have: Spark would take other ones silently."""
    chosen = replace(options, columns=tuple(struct.fieldNames()))
    for own, wanted in zip(Schema(chosen).struct(), struct, strict=True):
        if own.dataType != wanted.dataType:
            raise LocalProtocolError(
                f"schema: {own.name}: expected {own.dataType.simpleString()}, found "
                f"{wanted.dataType.simpleString()}; cast it behind the source"
            )
        if not wanted.nullable:
            raise LocalProtocolError(f"schema: {own.name}: expected one that may be null, found NOT NULL")
    return chosen.columns or ()
