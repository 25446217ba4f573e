"""The Data Source: `format("dcp")` of `spark.read` and `spark.readStream`, planned and read as by `read`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NoReturn

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from dcp.errors import DcpError
from dcp.spark.options import Options
from dcp.spark.planner import plan_for
from dcp.spark.schema import Schema, chosen_by
from dcp.spark.share import Share
from dcp.spark.stream_reader import StreamReader
from dcp.spark.task import rows

# Spark 4.0 finds `dcp` by itself, and refuses to register that name. Who does so anyway registers one that nobody uses.
_NAME = "dcp registered" if pyspark.__version__.startswith("4.0.") else "dcp"


class DcpDataSource(DataSource):  # type: ignore[misc]
    """Register it with `spark.dataSource.register(dcp.spark.DcpDataSource)`.

    A schema that is given chooses columns, as the option `columns` does.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._chosen = Options.of(options)

    @classmethod
    def name(cls) -> str:
        return _NAME

    def schema(self) -> StructType:
        return Schema(self._chosen).struct()

    def reader(self, schema: StructType) -> DataSourceReader:
        return Reader(replace(self._chosen, columns=chosen_by(schema, self._chosen)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            return StreamReader(replace(self._chosen, columns=chosen_by(schema, self._chosen)))
        except DcpError as error:
            return Refused(error)


class Reader(DataSourceReader):  # type: ignore[misc]
    """A batch read, planned once for each `load()`."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        return [Share(partition) for partition in plan_for(self._options).partitions]

    def read(self, share: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes a partition of its own where there is none.
        if isinstance(share, Share):
            yield from rows(share.partition, self._options)


class Refused(DataSourceStreamReader):  # type: ignore[misc]
    """Raises when it is asked first. Behind what is raised while it is made, Spark fails with a mistake of its own."""

    def __init__(self, error: DcpError) -> None:
        self._error = error

    def initialOffset(self) -> NoReturn:
        raise self._error

    def latestOffset(self, *_: object) -> NoReturn:
        raise self._error

    def read(self, _: InputPartition) -> NoReturn:
        raise self._error
