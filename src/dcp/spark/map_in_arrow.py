"""A read as a DataFrame over mapInArrow, which is the fastest way for Arrow batches into Spark."""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from dcp.checkpoint import Checkpoint
from dcp.client.options import Option, Use, options_of
from dcp.columns.decoder import DocumentLike
from dcp.errors import UsageError
from dcp.spark.failures import portable, short_errors, with_short_errors
from dcp.spark.options import Options
from dcp.spark.planner import Partition, Plan, plan_for
from dcp.spark.schema import SparkSchema
from dcp.spark.task import read_partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@short_errors
def read(
    spark: SparkSession,
    source: str | Plan,
    *,
    dialect: Literal["dcp", "tap", "upr1", "upr2"] | None = None,
    scope: str | None = None,
    collections: str | Iterable[str] | None = None,
    vbuckets: str | Iterable[int] | None = None,
    on_rollback: Literal["replay", "fail"] = "replay",
    persisted_only: bool = False,
    out_of_order: bool = False,
    history: bool = False,
    username: str | None = None,
    password: str | None = None,
    password_file: str | None = None,
    credential_provider: str | None = None,
    columns: str | Iterable[str] | None = None,
    events: str | Iterable[str] | None = None,
    keys: str | Iterable[str] | None = None,
    key_format: Literal["binary", "string"] = "binary",
    value_format: Literal["binary", "string"] = "binary",
    on_bad_value: Literal["quarantine", "fail"] = "quarantine",
    document_schema: DocumentLike | None = None,
    on_bad_document: Literal["quarantine", "fail"] = "quarantine",
    where: str | None = None,
    newest_only: bool = False,
    start: str | datetime | Checkpoint | None = None,
    end: str | datetime | Checkpoint | None = None,
    min_partitions: int | None = None,
    node_timeout: float | str | timedelta = 300.0,
    fail_on_data_loss: bool = True,
) -> DataFrame:
    """Return the changes of a bucket as a DataFrame.

    spark: A classic or a Connect session.
    source: URL of the bucket, as for `dcp.connect`, or a plan of `dcp.spark.plan`, which has all other options.

    The read is planned here: every action on the DataFrame starts and ends at the same seqnos, and includes the rest of
    the snapshot that its end lies in.

    dialect: Protocol: `dcp`, `tap` for servers up to 4.6 over TAP, `upr1` or `upr2` for the drafts of UPR. Default:
        dcp.
    scope: Name of a scope: only its collections. With `collections`, the scope of names without one.
    collections: Names of collections, as `scope.name` or in `scope`: only these.
    vbuckets: Numbers of vbuckets, as "0-511,600" or several: only these.
    on_rollback: `replay` delivers a row with the event `rollback`, then what the cluster has above its seqno. What the
        lost changes had replaced is not sent: see docs/semantics.md. `fail` raises RollbackError. Default: replay.
    persisted_only: Deliver only changes that every copy of their vbucket has on disk, so that no failover takes them
        back. Default: False.
    out_of_order: Let nodes send the first snapshot of a collection in any order, which may be faster. Until it is
        complete, positions stay at the beginning. Default: False.
    history: Deliver every version that the bucket keeps of a document, not only the last one of a snapshot. Default:
        False.
    username: User to connect as, if the URL names none. Default: `DCP_USERNAME`.
    password: Password of `username`. It travels to the executors with each task. Default: `DCP_PASSWORD`.
    password_file: File with the password, on the driver and on every executor.
    credential_provider: Function that returns user and password, as `module:function`. It is called on the driver and
        on executors.
    columns: Names of the columns, in order; `scope` and `collection` are the names of a row's collection. Columns that
        are not named are not decoded. Default: event, vbucket, seqno, rev_seqno, cas, flags, expiry, lock_time,
        delete_time, datatype, collection_id, key, value, xattrs, snapshot_start, snapshot_end, stream_id.
    events: Names of events, such as `mutation,deletion`: only these, and rows that report a rollback or a purge.
        Default: all.
    keys: Keys, such as `order::*,user::7`: only these. A star stands for any bytes, unless a backslash is before it.
        Default: all.
    key_format: Type of the column `key`; `string` requires UTF-8. Default: binary.
    value_format: Type of the column `value`; see `onBadValue` for values that are not UTF-8. Default: binary.
    on_bad_value: Values that are no text, or cannot be read: `quarantine` delivers null, or the bytes as received, with
        the reason in the column `error`, which `valueFormat=string` adds. `fail` ends the query. Default: quarantine.
    document_schema: Schema of the documents, for the columns `document` and `error`: DDL such as `id bigint, customer
        struct<city string>`. See docs/documents.md.
    on_bad_document: Documents that do not fit the schema: `quarantine` delivers null for what does not, with the reason
        in the column `error`. `fail` ends the query. Default: quarantine.
    where: Condition on the document, such as `type = 'order' and total > 100`: only mutations for which it is true.
        Deletions are delivered, and values that are no JSON.
    newest_only: Deliver of each key only the newest version that the read or batch encounters. It excludes `events`,
        `where`, `history` and `outOfOrder`, with which an older version could be taken for it. Default: False.
    start: Where to begin: `earliest`, `latest`, a Checkpoint or its JSON, or a time. A stream that resumes from its own
        checkpoint ignores it. Default: `earliest` for a read or table, `latest` for a stream.
    end: Where a read ends: `latest`, a Checkpoint or its JSON, or a past time: only changes made before it. Default:
        `latest`.
    min_partitions: Least number of tasks, up to one for every two vbuckets. Default: the session's cores; with
        `format("dcp")` one for each 250,000 seqnos.
    node_timeout: How long nodes may be away before a read or a stream fails. Automatic failover takes 2 minutes by
        default. Default: 5m.
    fail_on_data_loss: Set it to false to continue where changes are lost: purged deletions, dropped collections.
        Default: True.

    Raises UsageError for a wrong option, and TransportError if the cluster cannot be reached.
    """
    # Nothing but the parameters is local yet.
    given = {name: value for name, value in locals().items() if name not in ("spark", "source")}
    if isinstance(source, Plan):
        if changed := [name for name, option in options_of(Use.SPARK_READ).items() if given[name] != _unset(option)]:
            raise UsageError(f"{', '.join(changed)}: expected no options with a plan, which has its own")
        planned = source
    else:
        planned = plan_for(Options.of_keywords(source, given), _parallelism(spark))
    # A function of this package itself could not be unpickled by a worker without the package.
    load = portable(_reader, [pickle.dumps(part) for part in planned.partitions], planned.options)

    def dcp_changes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return load()(batches)

    # One row with its number for each partition; its task reads that partition.
    numbers = spark.range(0, len(planned.partitions), 1, max(1, len(planned.partitions)))
    return map_partitions(numbers, dcp_changes, SparkSchema(planned.options))


def _reader(
    partitions: Sequence[bytes], options: Options
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that yields the rows of the partitions whose numbers are in the first column of batches.

    partitions: pickled, so that each task, which gets all of them, makes the ranges of its own alone.
    """

    def read_numbered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                partition: Partition = pickle.loads(partitions[number])
                yield from with_short_errors(read_partition(partition, options))

    return read_numbered


def _unset(option: Option) -> Any:
    """Return the value of a keyword that the caller did not set."""
    return None if Use.URL in option.use else option.default


def map_partitions(
    numbers: DataFrame, tasks: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: SparkSchema
) -> DataFrame:
    """Return the DataFrame that `tasks` makes of partition numbers."""
    with warnings.catch_warnings():
        # mapInArrow checks the version of pandas, although only pyarrow is used here.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        return numbers.mapInArrow(tasks, schema.ddl)


def _parallelism(spark: SparkSession) -> int | None:
    """Return the number of partitions that the session makes by default: the cores of its cluster. None if unknown."""
    # Spark Connect has no SparkContext: reading the attribute raises an AttributeError.
    if (context := getattr(spark, "sparkContext", None)) is not None:
        return int(context.defaultParallelism)
    # Only a plan says it there. No job runs for it.
    (row,) = spark.sql("EXPLAIN SELECT id FROM range(1)").collect()
    found = re.search(r"splits=(\d+)", row[0])
    return int(found[1]) if found else None
