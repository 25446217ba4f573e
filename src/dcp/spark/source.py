"""The Data Source: `format("dcp")` of `spark.read` and `spark.readStream`, planned and read as by `dcp.spark.read`."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NoReturn

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from dcp.errors import DcpError
from dcp.spark.failures import portable, short_errors, with_short_errors
from dcp.spark.options import Options
from dcp.spark.planner import plan_for
from dcp.spark.schema import SparkSchema, selected_columns
from dcp.spark.stream_reader import StreamReader, TaskPartition
from dcp.spark.task import read_partition

# Spark 4.0 finds `dcp` through the package pyspark_dcp, and refuses to register a name that it finds that way. So that
# `register` works in every version, it registers a name there that nobody uses.
_NAME = "dcp registered" if pyspark.__version__.startswith("4.0.") else "dcp"


# Environment variable that Spark sets for its Python processes.
_SESSION = "SPARK_JOB_ARTIFACT_UUID"

log = logging.getLogger("dcp.spark")


class DcpDataSource(DataSource):  # type: ignore[misc]
    """Data source `dcp`, for `spark.dataSource.register(dcp.spark.DcpDataSource)`.

    A schema that is given selects columns, as the option `columns` does.
    """

    @short_errors
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._chosen = Options.of(options)
        # "default" in a classic session, a name of its own for each session of Connect.
        if self._chosen.has_password and os.environ.get(_SESSION, "default") != "default":
            log.warning(
                "password: Spark Connect wrote it to its pages and to the event log, with all options; use "
                "passwordFile, credentialProvider, or DCP_USERNAME and DCP_PASSWORD on the server"
            )

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return _NAME

    @short_errors
    def schema(self) -> StructType:
        """Return the columns of a read with these options."""
        return SparkSchema(self._chosen).struct()

    @short_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        return BatchReader(selected_columns(schema, self._chosen))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream."""
        try:
            return StreamReader(selected_columns(schema, self._chosen))
        except DcpError as error:
            return FailingStreamReader(error.with_traceback(None))


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """A batch read, planned once for each `load()`."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def __reduce__(self) -> tuple[Any, ...]:
        return portable(BatchReader, self._options), ()

    @short_errors
    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks, on the driver."""
        return [TaskPartition(partition) for partition in plan_for(self._options).partitions]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, on an executor."""
        # For a read without partitions Spark makes one of its own class, which has no rows.
        if isinstance(partition, TaskPartition):
            yield from with_short_errors(read_partition(partition.partition, self._options))


class FailingStreamReader(DataSourceStreamReader):  # type: ignore[misc]
    """Reader that raises on first use: Spark masks exceptions raised in streamReader() with an UnboundLocalError."""

    def __init__(self, error: DcpError) -> None:
        self._error = error

    def initialOffset(self) -> NoReturn:
        """Raise the error."""
        raise self._error

    def latestOffset(self, *_: object) -> NoReturn:
        """Raise the error."""
        raise self._error

    def read(self, _: InputPartition) -> NoReturn:
        """Raise the error."""
        raise self._error


@cache
def registered() -> type[DataSource]:
    """Return the class to register. A worker without this package can unpickle it, and says what to set."""
    load, source_name = portable(_source_class), _NAME

    # A class of a function is pickled by value.
    class RegisteredDcpDataSource(DataSource):  # type: ignore[misc]
        """Data source `dcp`, for `spark.dataSource.register(dcp.spark.DcpDataSource)`."""

        def __new__(cls, options: dict[str, str]) -> DataSource:
            return load()(options)

        @classmethod
        def name(cls) -> str:
            return source_name

    return RegisteredDcpDataSource


def _source_class() -> type[DcpDataSource]:
    return DcpDataSource
