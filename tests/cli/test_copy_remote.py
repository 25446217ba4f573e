"""`dcp copy` into an object store, and into file systems that are not local."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from dcp.embedded import Cluster
from tests.cli.commands import fill_two_collections, run
from tests.cli.copy_killing import everything, kill_copies
from tests.object_store import Lake, lake, s3_address

__all__ = ["lake", "s3_address"]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2, vbuckets=8) as cluster:
        yield cluster


def test_a_copy_in_an_object_store_resumes(lake: Lake, cluster: Cluster) -> None:
    cluster.load(100)
    first = run("copy", cluster.url, lake.url("changes"))
    assert first.exit_code == 0, first.output
    assert "1 file of parquet" in first.stdout
    assert first.stdout.endswith("checkpoint: s3://lake/changes/_checkpoint-00000001.json\n")
    cluster.load(50, prefix="more-")
    assert run("copy", cluster.url, lake.url("changes")).exit_code == 0
    assert lake.copied("changes") == everything(cluster)
    assert lake.files("changes") == [
        "changes/_checkpoint-00000002.json",
        "changes/part-00000001.parquet",
        "changes/part-00000002.parquet",
    ]


def test_collections_are_partitions_in_an_object_store_too(lake: Lake, cluster: Cluster) -> None:
    fill_two_collections(cluster)
    assert run("copy", cluster.url, lake.url("both")).exit_code == 0
    names = {path.split("/")[1] for path in lake.files("both")}
    assert {"collection=_default._default", "collection=inventory.hotel"} < names


@pytest.mark.parametrize("seed", range(2))
def test_a_copy_that_is_killed_at_any_moment_loses_and_repeats_nothing(lake: Lake, seed: int) -> None:
    assert kill_copies(lake, seed, kills=4) == 4


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "ndjson"])
def test_a_copy_that_fails_leaves_no_unfinished_file(lake: Lake, cluster: Cluster, suffix: str) -> None:
    cluster.load(500)
    with cluster.fault("end", status="lost_privileges", after=20):
        failed = run("copy", cluster.url, lake.url(f"out.{suffix}"))
    assert failed.exit_code == 1
    assert "the user lost the privilege" in failed.output
    assert lake.files(f"out.{suffix}") == [f"out.{suffix}/_checkpoint-00000000.json"]


def test_a_copy_in_other_columns_is_refused(lake: Lake, cluster: Cluster) -> None:
    cluster.load(10)
    assert run("copy", cluster.url, lake.url("out"), "--where", "a = 1").exit_code == 0
    found = run("copy", cluster.url, lake.url("out"))
    assert found.exit_code == 1
    assert "s3://lake/out: expected --where 'a = 1', as it was begun with" in found.output


def test_a_bucket_that_is_not_there_is_named_in_one_line(lake: Lake, cluster: Cluster) -> None:
    found = run("copy", cluster.url, lake.url("out").replace("//lake", "//key:s3cret@nothing"))
    assert found.exit_code == 1
    assert "s3://nothing/out/_checkpoint-00000000.json" in found.output
    assert "The specified bucket does not exist" in found.output
    assert "s3cret" not in found.output
    assert found.output.count("\n") == 1


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("ftq://lake/out", "OUT: expected a path, or a URL of s3, gs, abfs, hdfs, file or a file system of fsspec"),
        ("s3://key:s3cret@[", "expected a path or a URL, found a malformed URL"),
        ("s3://key:s3cret@lake/out?no=option", "OUT: expected a URL that pyarrow can read, found another one of s3://"),
        ("s3://", "OUT: expected a bucket and a directory in it, found none"),
        ("couchbase://host/bucket", "expected a directory, found the URL of a bucket; check the order"),
        ("s3://lake/out.csv", "expected a suffix of .parquet"),
    ],
)
def test_what_is_no_directory_is_refused(cluster: Cluster, out: str, message: str) -> None:
    found = run("copy", cluster.url, out)
    assert found.exit_code == 2
    assert message in found.output
    assert "s3cret" not in found.output


def test_a_copy_in_another_file_system_is_published_by_renames(cluster: Cluster) -> None:
    fsspec = pytest.importorskip("fsspec", reason="fsspec is a test dependency")
    memory = fsspec.filesystem("memory")
    cluster.load(60)
    for _ in range(2):
        assert run("copy", cluster.url, "memory://out", "--max-rows-per-file", "10").exit_code == 0
    names = sorted(path.rpartition("/")[2] for path in memory.find("/out"))
    assert names[0].startswith("_checkpoint-")
    assert all(name.startswith("part-") for name in names[1:])
    rows = sum(len(parquet.read_table(memory.open(path))) for path in memory.find("/out") if "part-" in path)
    assert rows == 60


def test_a_file_url_is_a_path(cluster: Cluster, tmp_path: Path) -> None:
    cluster.load(10)
    assert run("copy", cluster.url, f"file://{tmp_path}/out.arrow").exit_code == 0
    assert pa.ipc.open_file(tmp_path / "out.arrow" / "part-00000001.arrow").read_all().num_rows == 10
