"""A stream as an Arrow stream, which libraries of others read, and in asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dcp
from dcp.embedded import Cluster
from tests.client.consumer import PATIENCE

pa = pytest.importorskip("pyarrow")

KEYS = [f"key{number}" for number in range(500)]
COLUMNS = ["event", "vbucket", "seqno", "key", "value"]


@pytest.fixture(scope="module")
def client() -> Iterator[dcp.Client]:
    """A client of a bucket with one document for each key."""
    with Cluster(vbuckets=8) as cluster:
        for key in KEYS:
            cluster.upsert(key, key.upper().encode())
        with dcp.connect(cluster.url) as client:
            yield client


def with_pyarrow(stream: dcp.ChangeStream, _: Path) -> list[str]:
    keys: list[str] = pa.table(stream)["key"].cast(pa.string()).to_pylist()
    return keys


def with_polars(stream: dcp.ChangeStream, _: Path) -> list[str]:
    polars = pytest.importorskip("polars")
    return [key.decode() for key in polars.DataFrame(stream)["key"]]


def with_duckdb(stream: dcp.ChangeStream, _: Path) -> list[str]:
    duckdb = pytest.importorskip("duckdb")
    return [key.decode() for (key,) in duckdb.sql("select key from stream").fetchall()]


def with_deltalake(stream: dcp.ChangeStream, directory: Path) -> list[str]:
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(directory, stream)
    return with_pyarrow(deltalake.DeltaTable(directory).to_pyarrow_table(), directory)


def with_datafusion(stream: dcp.ChangeStream, directory: Path) -> list[str]:
    datafusion = pytest.importorskip("datafusion")
    return with_pyarrow(datafusion.SessionContext().from_arrow(stream), directory)


def with_daft(stream: dcp.ChangeStream, _: Path) -> list[str]:
    daft = pytest.importorskip("daft", reason="Daft does not allow the newest pyarrow")
    return [key.decode() for key in daft.from_arrow(stream).to_pydict()["key"]]


READERS = [with_pyarrow, with_polars, with_duckdb, with_deltalake, with_datafusion, with_daft]


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_a_library_reads_the_rows_of_a_stream(
    client: dcp.Client, tmp_path: Path, read: Callable[[Any, Path], list[str]]
) -> None:
    # Daft has no dictionaries of bytes.
    with client.stream(end="now", columns=COLUMNS, batch_rows=50, types="plain") as stream:
        assert sorted(read(stream, tmp_path)) == sorted(KEYS)
        assert stream.closed


@pytest.mark.parametrize("read", READERS[:5], ids=lambda read: read.__name__)
def test_a_library_reads_a_stream_without_changes(
    client: dcp.Client, tmp_path: Path, read: Callable[[Any, Path], list[str]]
) -> None:
    with client.stream("now", end="now", columns=COLUMNS) as stream:
        assert read(stream, tmp_path) == []


def test_the_columns_of_a_stream_are_known_before_its_first_batch(client: dcp.Client) -> None:
    with client.stream(end="now", columns=["key"], document="id bigint") as stream:
        assert stream.schema.names == ("key", "document", "error")
        schema = pa.schema(stream)
        assert schema == pa.schema(stream.schema) == pa.table(stream).schema


def test_the_checkpoint_moves_as_batches_are_pulled(client: dcp.Client) -> None:
    with client.stream(end="now", vbuckets=[0], batch_rows=10) as stream:
        reader = pa.RecordBatchReader.from_stream(stream)
        first = reader.read_next_batch()
        assert stream.checkpoint.by_vbucket()[0].seqno == first.num_rows == 10
        with client.stream(stream.checkpoint, end="now", vbuckets=[0]) as rest:
            left = pa.table(rest)
        assert left["seqno"].to_pylist() == reader.read_all()["seqno"].to_pylist()


def test_a_stream_is_read_once(client: dcp.Client) -> None:
    with client.stream(end="now") as stream:
        assert pa.table(stream).num_rows == len(KEYS)
        # No table without rows, which would look like a bucket without changes.
        with pytest.raises(dcp.ClosedError, match="is read once: open another one"):
            pa.table(stream)


def test_rows_of_a_rollback_are_in_the_stream() -> None:
    with Cluster(nodes=2, vbuckets=2, replicas=1, seed=1) as cluster, dcp.connect(cluster.url) as client:
        for key in KEYS[:40]:
            cluster.upsert(key, b"1")
        with client.stream(end="now") as before:
            pa.table(before)
        cluster.failover(0, lose=5)
        with client.stream(before.checkpoint, end="now") as stream:
            assert "rollback" in pa.table(stream)["event"].to_pylist()


def test_a_stream_with_limits_has_the_same_columns(client: dcp.Client) -> None:
    with client.stream(end="now") as whole:
        assert pa.table(whole).num_rows == len(KEYS)
    for document in (None, "id bigint"):
        with client.stream(end=whole.checkpoint, columns=["event", "key"], document=document) as stream:
            found = pa.table(stream)
            assert (found.num_rows, found.schema) == (len(KEYS), pa.schema(stream.schema))


def test_the_error_of_a_stream_is_told(client: dcp.Client) -> None:
    stream = client.stream()
    reader = pa.RecordBatchReader.from_stream(stream)
    assert reader.read_next_batch().num_rows
    stream.close()
    with pytest.raises(OSError, match="ClosedError: the stream was closed before its end"):
        reader.read_all()


# asyncio.


def test_a_loop_iterates_over_a_stream(client: dcp.Client) -> None:
    async def main() -> list[str]:
        keys: list[str] = []
        with client.stream(end="now", batch_rows=10) as stream:
            async for batch in stream:
                keys += batch.to_arrow().column("key").cast(pa.string()).to_pylist()
        return keys

    assert sorted(asyncio.run(main())) == sorted(KEYS)


def test_other_tasks_run_while_one_waits_for_changes() -> None:
    """The change is written by another task, so it would wait for ever if it blocked the loop."""

    async def main(cluster: Cluster, stream: dcp.ChangeStream) -> int:
        waiting = asyncio.create_task(stream.anext())
        for _ in range(100):
            await asyncio.sleep(0)
        cluster.upsert("late", b"1")
        batch = await asyncio.wait_for(waiting, PATIENCE)
        assert batch is not None
        return len(batch)

    with Cluster(vbuckets=2) as cluster, dcp.connect(cluster.url) as client, client.stream() as stream:
        assert asyncio.run(main(cluster, stream)) == 1


def test_a_wait_in_vain_is_an_error_and_the_stream_goes_on() -> None:
    async def main(cluster: Cluster, stream: dcp.ChangeStream) -> None:
        with pytest.raises(dcp.TimeoutError, match=r"no changes within 0\.1 s"):
            await stream.anext("100ms")
        with pytest.raises(dcp.UsageError, match="timeout"):
            await stream.anext("soon")
        cluster.upsert("late", b"1")
        assert await stream.anext(PATIENCE) is not None

    with Cluster(vbuckets=2) as cluster, dcp.connect(cluster.url) as client, client.stream() as stream:
        asyncio.run(main(cluster, stream))


@pytest.mark.parametrize("awaited", [True, False])
def test_a_cancelled_wait_loses_no_batch(awaited: bool) -> None:
    async def main(cluster: Cluster, stream: dcp.ChangeStream) -> list[bytes]:
        keys = []
        for number in range(20):
            waiting = asyncio.create_task(stream.anext())
            await asyncio.sleep(0)
            cluster.upsert(f"key{number}", b"1")
            waiting.cancel()
            if awaited:
                await asyncio.gather(waiting, return_exceptions=True)
            batch = await stream.anext(PATIENCE)
            assert batch is not None
            keys += batch.to_arrow().column("key").to_pylist()
        return keys

    with Cluster(vbuckets=1) as cluster, dcp.connect(cluster.url) as client, client.stream() as stream:
        assert asyncio.run(main(cluster, stream)) == [b"key%d" % number for number in range(20)]


def test_a_stream_that_is_closed_ends_the_wait() -> None:
    async def main(stream: dcp.ChangeStream) -> None:
        waiting = asyncio.create_task(stream.anext())
        await asyncio.sleep(0)
        stream.close()
        with pytest.raises(dcp.ClosedError):
            await asyncio.wait_for(waiting, PATIENCE)

    with Cluster(vbuckets=2) as cluster, dcp.connect(cluster.url) as client, client.stream() as stream:
        asyncio.run(main(stream))


def test_a_stream_outlives_the_loop_that_waited_for_it() -> None:
    async def main(stream: dcp.ChangeStream) -> None:
        waiting = asyncio.create_task(stream.anext())
        await asyncio.sleep(0)
        waiting.cancel()

    with Cluster(vbuckets=2) as cluster, dcp.connect(cluster.url) as client, client.stream() as stream:
        asyncio.run(main(stream))
        cluster.upsert("late", b"1")
        assert stream.next(PATIENCE) is not None


def test_a_loop_that_waits_takes_no_processor() -> None:
    async def main(stream: dcp.ChangeStream) -> None:
        with pytest.raises(dcp.TimeoutError):
            await stream.anext(1)

    with Cluster(vbuckets=2) as cluster:
        client = dcp.connect(cluster.url, stats_interval=0)
        with client, client.stream() as stream:
            stream_began = time.process_time()
            asyncio.run(main(stream))
            # A loop that does not sleep takes all of this second, unless others leave it less.
            assert time.process_time() - stream_began < 0.3
