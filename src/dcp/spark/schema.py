"""Column types of a read in Spark and in Arrow."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from dcp.columns.decoder import Decoder
from dcp.columns.document_schema import ddl, document_type, spark_ddl
from dcp.columns.path_columns import PATH_COLUMNS
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
        columns = (named and [name for name in named if name not in PATH_COLUMNS]) or None
        # A decoder for the same rows knows the type of documents, and which columns are added.
        wire = Decoder(DCP, columns, **options.decoding, where=options.where).schema
        formats = {column.name: column.format for column in wire}
        self.names = tuple(dict.fromkeys([*(named or ()), *formats]))
        texts = {"key": options.key_format == "string"} | dict.fromkeys(PATH_COLUMNS, True)
        documents = {
            column.name: (spark_ddl(column.document), pa.schema(wire).field(column.name).type)
            for column in wire
            if column.document is not None
        }
        types = [documents.get(name) or _TYPES["u" if texts.get(name) else formats[name]] for name in self.names]
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
        from pyspark.sql.pandas.types import from_arrow_type

        classes = {"string": types.StringType, "binary": types.BinaryType, "timestamp": types.TimestampType}
        classes |= {"int": types.IntegerType, "bigint": types.LongType}
        struct = types.StructType()
        for name, kind, arrow in zip(self.names, self._spark_types, self.arrow.types, strict=True):
            struct.add(name, classes[kind]() if kind in classes else from_arrow_type(arrow))
        return struct


def with_document(struct: StructType, options: Options) -> Options:
    """Return the options with the type of the field `document` as the schema of documents, if there is no other."""
    from pyspark.sql.pandas.types import to_arrow_type

    if options.document_schema is not None or "document" not in struct.fieldNames():
        return options
    return replace(options, document_schema=ddl(document_type(to_arrow_type(struct["document"].dataType))))


def selected_columns(struct: StructType, options: Options) -> Options:
    """Return the options for the columns that a user's schema names.

    Raises UsageError if a type differs from the column's, or if a column is NOT NULL: Spark would take either
    without an error, and misread the rows.
    """
    selected = replace(with_document(struct, options), columns=tuple(struct.fieldNames()))
    own_columns = SparkSchema(selected).struct()
    if missing := [name for name in own_columns.fieldNames() if name not in struct.fieldNames()]:
        raise UsageError(
            f"schema: expected the column {' and '.join(missing)} as well: `error` says why a value or a document is "
            "null; or set onBadDocument and onBadValue to fail"
        )
    for own, wanted in zip(own_columns, struct, strict=True):
        if own.dataType != wanted.dataType:
            raise UsageError(
                f"schema: {own.name}: expected {own.dataType.simpleString()}, found "
                f"{wanted.dataType.simpleString()}; cast the column after load()"
            )
        if not wanted.nullable:
            raise UsageError(f"schema: {own.name}: expected a nullable column, found NOT NULL")
    return selected
