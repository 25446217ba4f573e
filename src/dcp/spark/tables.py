"""Streams into tables: `append` writes every change, `mirror` keeps a table equal to the bucket."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from dcp.checkpoint import Checkpoint
from dcp.client.options import Use, options_of
from dcp.client.row_format import PURGED, ROLLBACK
from dcp.columns.decoder import DocumentLike
from dcp.errors import UsageError
from dcp.spark.failures import short_errors
from dcp.spark.java import is_connect
from dcp.spark.map_in_arrow import read
from dcp.spark.options import Options, as_text, parsed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

# Columns that a mirror needs: which documents rows are about, and which vbucket to read again after a rollback.
_IDENTITY = ("vbucket", "seqno", "collection_id", "key")
_DOCUMENT = ("cas", "flags", "expiry", "datatype")


@short_errors
def append(
    spark: SparkSession,
    url: str,
    table: str,
    *,
    checkpoint: str,
    format: str | None = None,
    trigger: Mapping[str, Any] | None = None,
    query_name: str | None = None,
    scope: str | None = None,
    collections: str | Iterable[str] | None = None,
    vbuckets: str | Iterable[int] | None = None,
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
    start: str | datetime | Checkpoint | None = None,
    min_partitions: int | None = None,
    node_timeout: float | str | timedelta = 300.0,
    fail_on_data_loss: bool = True,
    max_offsets: int | None = None,
    max_bytes: int | None = None,
    min_offsets: int | None = None,
    max_delay: float = 900.0,
) -> StreamingQuery:
    """Start a query that appends every change to a table.

    Only changes that every copy of their vbucket has on disk are appended, so no failover takes one back. If deletions
    that the query had yet to read were purged, it fails with RollbackError: start a new table then.

    spark: A classic or a Connect session.
    url: URL of the bucket, as for `dcp.connect`.
    table: Name of a table, which is created if it does not exist, or a path: text with a slash.
    checkpoint: Directory where Spark keeps the position of the query.
    format: Format of the table, such as delta. Default: that of its catalog; parquet for a path.
    trigger: Keywords of DataStreamWriter.trigger, such as {"availableNow": True}. Default: without a pause.
    query_name: Name of the query.

    scope: Name of a scope: only its collections. With `collections`, the scope of names without one.
    collections: Names of collections, as `scope.name` or in `scope`: only these.
    vbuckets: Numbers of vbuckets, as "0-511,600" or several: only these.
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
    start: Where to begin: `earliest`, `latest`, a Checkpoint or its JSON, or a time. A stream that resumes from its own
        checkpoint ignores it. Default: `earliest` for a read or table, `latest` for a stream.
    min_partitions: Least number of tasks, up to one for every two vbuckets. Default: the session's cores; with
        `format("dcp")` one for each 250,000 seqnos.
    node_timeout: How long nodes may be away before a read or a stream fails. Automatic failover takes 2 minutes by
        default. Default: 5m.
    fail_on_data_loss: Set it to false to continue where changes are lost: purged deletions, dropped collections.
        Default: True.
    max_offsets: Limit of seqnos in a batch of a stream, about. Default: no limit.
    max_bytes: Limit of bytes in a batch of a stream, about, such as `512m`. Default: no limit.
    min_offsets: Number of seqnos that a batch of a stream waits for (Spark 4.2 and newer). Default: 1.
    max_delay: Time limit of `minOffsetsPerTrigger`, since the batch before. Default: 15m.

    Raises UsageError for a wrong option. A cluster that cannot be reached, and a wrong password, end the query.
    """
    # Nothing but the parameters is local yet.
    given = _given(locals(), Use.SPARK_APPEND)
    writer = _writer(_changes(spark, url, given | {"on_rollback": "fail"}), checkpoint, trigger, query_name)
    if "/" in table and "`" not in table:
        return writer.format(format or "parquet").start(table)
    return writer.toTable(table, format=format)


@short_errors
def mirror(
    spark: SparkSession,
    url: str,
    table: str,
    *,
    checkpoint: str,
    format: str | None = None,
    trigger: Mapping[str, Any] | None = None,
    query_name: str | None = None,
    scope: str | None = None,
    collections: str | Iterable[str] | None = None,
    vbuckets: str | Iterable[int] | None = None,
    username: str | None = None,
    password: str | None = None,
    password_file: str | None = None,
    credential_provider: str | None = None,
    columns: str | Iterable[str] | None = None,
    keys: str | Iterable[str] | None = None,
    key_format: Literal["binary", "string"] = "binary",
    value_format: Literal["binary", "string"] = "binary",
    on_bad_value: Literal["quarantine", "fail"] = "quarantine",
    document_schema: DocumentLike | None = None,
    on_bad_document: Literal["quarantine", "fail"] = "quarantine",
    min_partitions: int | None = None,
    node_timeout: float | str | timedelta = 300.0,
    fail_on_data_loss: bool = True,
    max_offsets: int | None = None,
    max_bytes: int | None = None,
    min_offsets: int | None = None,
    max_delay: float = 900.0,
) -> StreamingQuery:
    """Start a query that keeps a table equal to the documents of a bucket, with one MERGE for each batch.

    Only changes that every copy of their vbucket has on disk are applied, so no failover takes one back. A vbucket that
    is rolled back nevertheless, because deletions were purged, is read again. The first batch of a new checkpoint
    replaces what the table has, so the table must not be shared with other queries.

    spark: A classic or a Connect session.
    url: URL of the bucket, as for `dcp.connect`.
    table: Name of a table of a format with MERGE, such as Delta or Iceberg. It is created if it does not exist.
    checkpoint: Directory where Spark keeps the position of the query.
    format: Format of a new table, such as delta. Default: that of its catalog.
    trigger: Keywords of DataStreamWriter.trigger, such as {"availableNow": True}. Default: without a pause.
    query_name: Name of the query.

    scope: Name of a scope: only its collections. With `collections`, the scope of names without one.
    collections: Names of collections, as `scope.name` or in `scope`: only these.
    vbuckets: Numbers of vbuckets, as "0-511,600" or several: only these.
    username: User to connect as, if the URL names none. Default: `DCP_USERNAME`.
    password: Password of `username`. It travels to the executors with each task. Default: `DCP_PASSWORD`.
    password_file: File with the password, on the driver and on every executor.
    credential_provider: Function that returns user and password, as `module:function`. It is called on the driver and
        on executors.
    columns: Names of the columns that the table has besides vbucket, seqno, collection_id and key. Default: cas, flags,
        expiry, datatype, and value or document.
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
    min_partitions: Least number of tasks, up to one for every two vbuckets. Default: the session's cores; with
        `format("dcp")` one for each 250,000 seqnos.
    node_timeout: How long nodes may be away before a read or a stream fails. Automatic failover takes 2 minutes by
        default. Default: 5m.
    fail_on_data_loss: Set it to false to continue where changes are lost: purged deletions, dropped collections.
        Default: True.
    max_offsets: Limit of seqnos in a batch of a stream, about. Default: no limit.
    max_bytes: Limit of bytes in a batch of a stream, about, such as `512m`. Default: no limit.
    min_offsets: Number of seqnos that a batch of a stream waits for (Spark 4.2 and newer). Default: 1.
    max_delay: Time limit of `minOffsetsPerTrigger`, since the batch before. Default: 15m.

    Raises UsageError for a wrong option. A cluster that cannot be reached, and a wrong password, end the query.
    """
    # Nothing but the parameters is local yet.
    given = _given(locals(), Use.SPARK_MIRROR)
    wanted = given.get("columns") or (*_DOCUMENT, "document" if "document_schema" in given else "value")
    given["columns"] = tuple(dict.fromkeys(["event", *_IDENTITY, *wanted]))
    changes = _changes(spark, url, given | {"newest_only": True})
    _create(changes.drop("event"), table, format)
    return _writer(changes, checkpoint, trigger, query_name).foreachBatch(_Mirror(url, table, given)).start()


def _given(parameters: Mapping[str, Any], use: Use) -> dict[str, Any]:
    """Return the parsed source options among the parameters of a call: those that differ from their defaults."""
    table = options_of(use)
    return parsed(
        {name: value for name, value in parameters.items() if name in table and value != table[name].default}, use
    )


def _changes(spark: SparkSession, url: str, given: Mapping[str, Any]) -> DataFrame:
    """Return the stream of changes. Raises UsageError rather than show a password."""
    options = as_text({"url": url, "persisted_only": True, "start": "beginning", **given})
    if is_connect(spark) and Options.of(options).has_password:
        raise UsageError(
            "password: expected it outside of url and options, since Spark Connect writes these to its pages and to "
            "the event log; use password_file, credential_provider, or DCP_USERNAME and DCP_PASSWORD on the server"
        )
    return spark.readStream.format("dcp").options(**options).load()


def _writer(changes: DataFrame, checkpoint: str, trigger: Mapping[str, Any] | None, name: str | None) -> Any:
    writer = changes.writeStream.option("checkpointLocation", checkpoint)
    if trigger is not None:
        writer = writer.trigger(**trigger)
    return writer if name is None else writer.queryName(name)


def _create(rows: DataFrame, table: str, format: str | None) -> None:
    """Create a table for rows unless it exists. Raises UsageError if it lacks a column."""
    spark, using = rows.sparkSession, f" USING {format}" if format else ""
    ddl = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in rows.schema)
    spark.sql(f"CREATE TABLE IF NOT EXISTS {table} ({ddl}){using}")
    found = {field.name: field.dataType for field in spark.table(table).schema}
    for field in rows.schema:
        if found.get(field.name) != field.dataType:
            actual = found[field.name].simpleString() if field.name in found else "none"
            raise UsageError(
                f"table {table}: expected a column {field.name} of type {field.dataType.simpleString()}, found "
                f"{actual}: add it, or choose others with columns="
            )


class _Mirror:
    """Sink of a stream's batches that applies each to a table. It can be pickled, as Connect requires."""

    def __init__(self, url: str, table: str, given: Mapping[str, Any]) -> None:
        self._url, self._table = url, table
        of_reads = options_of(Use.SPARK_READ)
        self._given = {name: value for name, value in given.items() if name in of_reads}

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Apply a batch. The same batch again changes nothing, or brings newer versions."""
        from pyspark.sql import functions as F

        # The rows are used twice, and other attempts of the tasks may bring others: rows that are lost have to fail the
        # batch instead.
        rows = batch.localCheckpoint()
        lost = F.when(F.col("event").isin(ROLLBACK, PURGED), F.col("vbucket"))
        ((count, undone),) = rows.agg(F.count("*"), F.collect_set(lost)).collect()
        if undone:
            rows = rows.where(~F.col("vbucket").isin(undone)).unionByName(self._read_again(batch, undone))
        if count or number == 0:
            self._merge(rows, None if number == 0 else undone)

    def _read_again(self, batch: DataFrame, vbuckets: list[int]) -> DataFrame:
        """Return the documents of vbuckets: what the lost changes had replaced is not sent by itself."""
        options = self._given | {"vbuckets": sorted(vbuckets), "newest_only": True, "persisted_only": True}
        return read(batch.sparkSession, self._url, **options).localCheckpoint()

    def _merge(self, rows: DataFrame, replaced: list[int] | None) -> None:
        """Apply rows to the table. Replace what it has of some vbuckets; None for all."""
        columns = [f"`{name}`" for name in rows.columns if name != "event"]
        replace = ""
        if replaced is None or replaced:
            condition = f" AND t.vbucket IN ({', '.join(map(str, replaced))})" if replaced else ""
            replace = f"WHEN NOT MATCHED BY SOURCE{condition} THEN DELETE"
        rows.sparkSession.sql(
            f"""
            MERGE INTO {self._table} t USING {{rows}} s
            ON t.vbucket = s.vbucket AND t.key = s.key AND t.collection_id <=> s.collection_id
            WHEN MATCHED AND s.event <> 'mutation' THEN DELETE
            WHEN MATCHED THEN UPDATE SET {", ".join(f"t.{name} = s.{name}" for name in columns)}
            WHEN NOT MATCHED AND s.event = 'mutation' THEN INSERT ({", ".join(columns)})
            VALUES ({", ".join(f"s.{name}" for name in columns)})
            {replace}
            """,
            rows=rows,
        )
