"""Tables in an object store, and in a catalog behind a REST service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import parquet

import dcp
from dcp.embedded import Cluster
from dcp.sync import Sync, open_target
from dcp.sync.iceberg_target import IcebergTarget
from dcp.sync.target import SyncTarget
from tests.object_store import Lake, lake, s3_address
from tests.sync.rest_catalog import TOKEN, rest_catalog
from tests.sync.tables import TableOf, rows_of, truth_of

__all__ = ["lake", "s3_address"]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2, vbuckets=4, replicas=1) as cluster:
        yield cluster


def change_and_sync(cluster: Cluster, client: dcp.Client, open: object) -> None:
    """Apply three transactions, the last one after a failover that lost a change."""
    assert callable(open)

    def sync() -> None:
        target: SyncTarget = open()
        Sync(client, target).run()

    cluster.load(50)
    sync()
    cluster.delete("key-0000000001")
    cluster.upsert("key-0000000002", b'"new"')
    sync()
    cluster.failover(cluster.owner("key-0000000002"), lose=1)
    sync()


def test_a_parquet_file_in_an_object_store(lake: Lake, cluster: Cluster) -> None:
    url = lake.url("docs.parquet")
    with dcp.connect(cluster.url) as client:
        change_and_sync(cluster, client, lambda: open_target(url))
    with lake.system.open_input_file("lake/docs.parquet") as file:
        assert rows_of(parquet.read_table(file)) == truth_of(cluster)
    assert lake.files("") == ["docs.parquet"]


def test_a_delta_table_in_an_object_store(lake: Lake, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    import deltalake

    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{lake.address}")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    with dcp.connect(cluster.url) as client:
        change_and_sync(cluster, client, lambda: open_target("s3://lake/docs.delta"))
    assert rows_of(deltalake.DeltaTable("s3://lake/docs.delta").to_pyarrow_table()) == truth_of(cluster)


def test_an_iceberg_table_of_a_rest_catalog(cluster: Cluster, tmp_path: Path) -> None:
    from pyiceberg.catalog.rest import RestCatalog

    stored = TableOf("iceberg", tmp_path)
    with rest_catalog(stored.catalog) as url, dcp.connect(cluster.url) as client:

        def open() -> SyncTarget:
            return IcebergTarget(RestCatalog("rest", uri=url, token=TOKEN), "shop.docs")

        change_and_sync(cluster, client, open)
        assert open().count() == 0
        assert rows_of(stored.read()) == truth_of(cluster)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(TOKEN.encode() in path.read_bytes() for path in files)
