"""Tables that `dcp sync` keeps: their rows are those of the cluster, whatever happened in between."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import dcp
from dcp.embedded import Cluster
from dcp.sync import Sync, open_target
from dcp.sync.state import SyncState, TableContent
from dcp.sync.target import SyncTarget, TargetError
from tests.sync.killing import SyncKilling
from tests.sync.schedule import Crash, SyncSchedule
from tests.sync.tables import KINDS, TableOf, rows_of, truth_of


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2, vbuckets=4, replicas=1) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: Cluster) -> Iterator[dcp.Client]:
    with dcp.connect(cluster.url) as client:
        yield client


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> TableOf:
    return TableOf(request.param, tmp_path)


@pytest.fixture
def duckdb_table(tmp_path: Path) -> TableOf:
    return TableOf("duckdb", tmp_path)


def synced(client: dcp.Client, table: TableOf, content: TableContent | None = None, **options: Any) -> Sync:
    sync = Sync(client, table.open(), content, **options)
    sync.run()
    return sync


def number_of(table: TableOf) -> int:
    """Return the number of the last transaction."""
    state = table.open().load()
    assert state is not None
    return state.number


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", KINDS)
def test_a_table_equals_the_cluster_after_any_changes_and_crashes(kind: str, seed: int) -> None:
    done = SyncSchedule(kind, seed, rounds=4).run()
    assert done["comparisons"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_command_repeats_and_loses_nothing(kind: str) -> None:
    assert SyncKilling(kind, 7, kills=3).run()["kills"] == 3


def test_inserts_updates_deletions_and_expirations_are_applied(
    cluster: Cluster, client: dcp.Client, table: TableOf
) -> None:
    for key in ("kept", "updated", "deleted", "expired"):
        cluster.upsert(key, b'{"a":1}')
    assert synced(client, table).progress.rows == 4
    assert number_of(table) == 1
    cluster.upsert("updated", b'{"a":2}')
    cluster.upsert("inserted", b"\xff")
    cluster.delete("deleted")
    cluster.expire("expired")
    sync = synced(client, table)
    assert (sync.progress.rows, sync.progress.deleted, sync.progress.transactions) == (2, 2, 1)
    assert sync.progress.pending == 0
    assert number_of(table) == 2
    assert rows_of(table.read()) == truth_of(cluster)
    assert {key for _, key in rows_of(table.read())} == {b"kept", b"updated", b"inserted"}


def test_what_a_lost_change_had_replaced_is_in_the_table_again(
    cluster: Cluster, client: dcp.Client, table: TableOf
) -> None:
    cluster.upsert("key", b'"old"')
    synced(client, table)
    cluster.upsert("key", b'"new"')
    synced(client, table)
    cluster.failover(cluster.owner("key"), lose=1)
    sync = synced(client, table)
    assert sync.progress.restarts == 1
    assert rows_of(table.read()) == truth_of(cluster)
    assert rows_of(table.read())["_default._default", b"key"][0] == b'"old"'


def test_of_several_versions_in_one_transaction_the_last_one_counts(
    cluster: Cluster, client: dcp.Client, duckdb_table: TableOf
) -> None:
    for key in ("updated", "deleted", "written again"):
        cluster.upsert(key, b'"first"')
    cluster.delete("written again")
    steps = [
        lambda: cluster.upsert("updated", b'"second"'),
        lambda: cluster.delete("deleted"),
        lambda: cluster.upsert("written again", b'"second"'),
    ]

    def change() -> None:
        # Each change arrives before the next one is made, or a node would send the last ones only.
        if steps and sum(sync.progress.events.values()) == 6 - len(steps):
            steps.pop(0)()

    def stopped() -> bool:
        return sum(sync.progress.events.values()) == 6

    sync = Sync(client, duckdb_table.open(), persisted_only=False, on_progress=change, stopped=stopped)
    sync.follow()
    assert sync.progress.transactions == 1
    assert rows_of(duckdb_table.read()) == truth_of(cluster)
    assert {value for value, *_ in rows_of(duckdb_table.read()).values()} == {b'"second"'}


def test_a_change_that_is_lost_before_its_transaction_costs_nothing(
    cluster: Cluster, client: dcp.Client, duckdb_table: TableOf
) -> None:
    cluster.upsert("key", b'"old"')
    synced(client, duckdb_table)
    cluster.upsert("key", b'"new"')
    owner = cluster.owner("key")
    lost: list[int] = []

    def lose() -> None:
        if not lost:
            lost.append(owner)
            cluster.failover(owner, lose=1)
            cluster.upsert("key", b'"newest"')

    def stopped() -> bool:
        return sync.progress.events["mutation"] == 2

    sync = Sync(client, duckdb_table.open(), persisted_only=False, on_progress=lose, stopped=stopped)
    sync.follow()
    assert lost
    assert sync.progress.restarts == 0
    assert rows_of(duckdb_table.read()) == truth_of(cluster)


def test_rows_that_were_read_again_stay_in_later_transactions(table: TableOf) -> None:
    with Cluster(nodes=2, vbuckets=1, replicas=1) as cluster, dcp.connect(cluster.url) as client:
        for key in ("kept", "lost"):
            # Each is a snapshot of its own: the stream goes on after the first one.
            cluster.upsert(key, b"1")
            synced(client, table)
        cluster.failover(cluster.owner("lost"), lose=1)

        asked = 0

        def stopped() -> bool:
            nonlocal asked
            asked += 1
            if sync.progress.rows == 1 and b"later" not in cluster.truth():
                cluster.upsert("later", b"2")
            return sync.progress.rows > 1 or asked > 100

        sync = Sync(client, table.open(), persisted_only=False, interval=0.0, stopped=stopped, clock=lambda: 0.0)
        sync.follow()
        assert sync.progress.restarts == 1
        assert rows_of(table.read()) == truth_of(cluster)
        assert {key for _, key in rows_of(table.read())} == {b"kept", b"later"}


@pytest.mark.parametrize("kept", [0, 2])
def test_changes_before_a_lost_one_wait_for_their_transaction(duckdb_table: TableOf, kept: int) -> None:
    with Cluster(nodes=2, vbuckets=1, replicas=1) as cluster, dcp.connect(cluster.url) as client:
        steps = [partial(cluster.upsert, f"key{number}", b"1") for number in range(kept)]
        steps.append(partial(cluster.upsert, "lost", b"1"))

        def stopped() -> bool:
            found = sum(sync.progress.events.values())
            # Each change arrives before the next one is made: a rollback goes back to the end of a snapshot.
            if steps and found == kept + 1 - len(steps):
                steps.pop(0)()
            elif not cluster.truth().get(b"after") and found == kept + 1:
                cluster.failover(cluster.owner("lost"), lose=1)
                cluster.upsert("after", b"2")
            return found >= kept + 2

        sync = Sync(client, duckdb_table.open(), persisted_only=False, stopped=stopped)
        sync.follow()
        assert (sync.progress.restarts, sync.progress.transactions) == (0, 1)
        assert rows_of(duckdb_table.read()) == truth_of(cluster)
        assert {key for _, key in rows_of(duckdb_table.read())} == {
            b"after",
            *(b"key%d" % number for number in range(kept)),
        }


def test_a_purge_removes_what_was_deleted_unseen(cluster: Cluster, client: dcp.Client, table: TableOf) -> None:
    cluster.load(20)
    synced(client, table)
    for number in range(10):
        cluster.delete(f"key-{number:010d}")
    cluster.upsert("later", b"1")
    cluster.purge()
    synced(client, table)
    assert rows_of(table.read()) == truth_of(cluster)
    assert table.read().num_rows == 11


def test_rows_of_dropped_collections_are_removed(cluster: Cluster, client: dcp.Client, table: TableOf) -> None:
    cluster.create_scope("shop")
    for name in ("order", "item"):
        cluster.create_collection("shop", name)
        cluster.upsert("key", b"1", collection=f"shop.{name}")
    synced(client, table)
    cluster.drop_collection("shop", "order")
    synced(client, table)
    assert set(rows_of(table.read())) == {("shop.item", b"key")}


def test_a_collection_that_was_created_again_is_read_from_its_beginning(
    cluster: Cluster, client: dcp.Client, table: TableOf
) -> None:
    cluster.create_scope("shop")
    cluster.create_collection("shop", "order")
    content = TableContent(collections=("shop.order",))
    cluster.upsert("old", b"1", collection="shop.order")
    synced(client, table, content)
    cluster.drop_collection("shop", "order")
    cluster.create_collection("shop", "order")
    cluster.upsert("new", b"2", collection="shop.order")
    synced(client, table, content)
    assert rows_of(table.read()) == truth_of(cluster, ["shop.order"])


def test_with_a_collection_that_was_created_again_the_others_are_read_again_too(
    cluster: Cluster, client: dcp.Client, duckdb_table: TableOf
) -> None:
    cluster.create_scope("shop")
    for name in ("order", "item"):
        cluster.create_collection("shop", name)
    content = TableContent(collections=("shop.order", "shop.item"))
    for key in ("kept", "deleted"):
        cluster.upsert(key, b"1", collection="shop.item")
    synced(client, duckdb_table, content)
    cluster.drop_collection("shop", "order")
    cluster.create_collection("shop", "order")
    # A stream from the beginning does not report it.
    cluster.delete("deleted", collection="shop.item")
    cluster.upsert("later", b"2", collection="shop.item")
    cluster.purge()
    synced(client, duckdb_table, content)
    assert rows_of(duckdb_table.read()) == truth_of(cluster, ["shop.order", "shop.item"])
    assert duckdb_table.read().num_rows == 2


@pytest.mark.parametrize("content", [TableContent(collections=("shop.order",)), TableContent(scope="shop")])
def test_a_table_of_a_dropped_collection_or_scope_is_empty(
    cluster: Cluster, client: dcp.Client, duckdb_table: TableOf, content: TableContent
) -> None:
    cluster.create_scope("shop")
    cluster.create_collection("shop", "order")
    cluster.upsert("key", b"1", collection="shop.order")
    cluster.upsert("other", b"1")
    synced(client, duckdb_table, content)
    assert duckdb_table.read().num_rows == 1
    cluster.drop_scope("shop")
    Sync(client, duckdb_table.open(), content).follow()
    assert duckdb_table.read().num_rows == 0


def test_a_new_table_of_a_collection_that_does_not_exist_is_refused(
    cluster: Cluster, client: dcp.Client, duckdb_table: TableOf
) -> None:
    cluster.upsert("other", b"1")
    with pytest.raises(dcp.UsageError, match="missing"):
        Sync(client, duckdb_table.open(), TableContent(collections=("_default.missing",))).run()
    assert duckdb_table.open().load() is None


def test_a_scope_without_collections_is_no_dropped_one(
    cluster: Cluster, client: dcp.Client, duckdb_table: TableOf
) -> None:
    cluster.create_scope("shop")
    cluster.create_collection("shop", "order")
    content = TableContent(scope="shop")
    cluster.upsert("key", b"1", collection="shop.order")
    synced(client, duckdb_table, content)
    cluster.drop_collection("shop", "order")
    synced(client, duckdb_table, content)
    cluster.create_collection("shop", "item")
    cluster.upsert("key", b"2", collection="shop.item")
    synced(client, duckdb_table, content)
    assert rows_of(duckdb_table.read()) == truth_of(cluster, ["shop.item"])


def test_documents_are_columns_of_their_types(cluster: Cluster, client: dcp.Client, table: TableOf) -> None:
    schema = "id bigint, at timestamp, tags array<string>, price decimal(10, 2), more struct<small tinyint, `a b` json>"
    cluster.upsert(
        "a",
        b'{"id":1,"at":"2026-01-02T03:04:05Z","tags":["x"],"price":1.25,"more":{"small":7,"a b":[1]}}',
    )
    cluster.upsert("b", b'{"id":"no number"}')
    cluster.upsert("c", b"\xff")
    synced(client, table, TableContent(schema=schema))
    found = {row["key"]: row for row in table.read().to_pylist()}
    first = found["a"]
    assert (first["id"], first["tags"], str(first["price"]), first["error"]) == (1, ["x"], "1.25", None)
    assert first["at"].astimezone(timezone.utc) == datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    assert first["more"] == {"small": 7, "a b": "[1]"}
    assert found["b"]["id"] is None
    assert "id: expected bigint" in found["b"]["error"]
    assert found["c"]["error"]
    # The schema is that of the table: a run that names none takes it.
    cluster.upsert("a", b'{"id":2}')
    synced(client, table)
    assert {row["key"]: row["id"] for row in table.read().to_pylist()}["a"] == 2


def test_an_empty_bucket_is_a_table_without_rows(client: dcp.Client, table: TableOf) -> None:
    synced(client, table)
    found = table.read()
    assert found.num_rows == 0
    assert found.column_names == ["key", "collection", "value", "error", "bad_value"] + [
        f"_{name}" for name in ("vbucket", "collection_id", "seqno", "cas")
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (TableContent(scope="_default"), "expected the whole bucket, which it has, found the scope _default"),
        (TableContent(collections=("a.b",)), "expected the whole bucket, which it has, found the collections a.b"),
        (
            TableContent(schema="id bigint"),
            "expected documents as JSON text, which it has, found the schema 'id",
        ),
    ],
)
def test_a_table_keeps_its_content(
    client: dcp.Client, duckdb_table: TableOf, content: TableContent, message: str
) -> None:
    synced(client, duckdb_table)
    with pytest.raises(dcp.UsageError, match=message):
        synced(client, duckdb_table, content)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("KEY string", "the table has a column 'key' of its own; name the field otherwise"),
        ("key bigint", "such as 'document_key bigint from key'"),
        ("_deleted boolean", "the table has a column '_deleted' of its own"),
        ("a int, A int", "expected names that differ in more than case, found 'a' twice"),
    ],
)
def test_a_field_with_the_name_of_another_column_is_refused(
    client: dcp.Client, duckdb_table: TableOf, schema: str, message: str
) -> None:
    with pytest.raises(dcp.UsageError, match=message):
        synced(client, duckdb_table, TableContent(schema=schema))


def test_a_table_of_a_recreated_bucket_is_refused_until_it_is_dropped(
    cluster: Cluster, client: dcp.Client, table: TableOf
) -> None:
    cluster.create_collection("_default", "hotel")
    cluster.upsert("key", b"1", collection="_default.hotel")
    synced(client, table, TableContent(collections=("hotel",)))
    before = table.read()
    with Cluster(vbuckets=4) as other, dcp.connect(other.url) as recreated:
        other.upsert("another", b"2")
        # Its collection, which the bucket lacks now, was not dropped from it.
        with pytest.raises(dcp.CheckpointError, match="it belongs to another bucket") as refused:
            synced(recreated, table)
        assert str(refused.value).startswith(f"{table.open().shown}: bucket_uuid: expected ")
        assert str(refused.value).endswith(
            "; name a new table, or drop this one, which has the checkpoint, to fill it again"
        )
        assert table.read().equals(before)
        table.drop()
        synced(recreated, table)
        assert rows_of(table.read()) == truth_of(other)


def write_something_else(table: TableOf) -> None:
    rows = pa.table({"a": [1]})
    if table.kind == "duckdb":
        import duckdb

        with duckdb.connect(table.name) as database:
            database.execute("create table Documents (a int)")
    elif table.kind == "delta":
        import deltalake

        deltalake.write_deltalake(table.name, rows)
    elif table.kind == "parquet":
        parquet.write_table(rows, table.name)
    else:
        table.catalog.create_namespace("shop")
        table.catalog.create_table("shop.docs", rows.schema).append(rows)


def test_a_table_that_something_else_wrote_is_refused(client: dcp.Client, table: TableOf) -> None:
    write_something_else(table)
    with pytest.raises(dcp.UsageError, match="one of dcp sync, found another one"):
        synced(client, table)


def test_of_two_syncs_only_one_writes(cluster: Cluster, client: dcp.Client, table: TableOf) -> None:
    cluster.upsert("a", b"1")
    synced(client, table)
    cluster.upsert("b", b"2")
    late = Sync(client, table.open())
    synced(client, table)
    with pytest.raises(dcp.UsageError, match="another process has changed the table"):
        late.run()
    assert rows_of(table.read()) == truth_of(cluster)


def test_many_changes_are_several_transactions(cluster: Cluster, client: dcp.Client, table: TableOf) -> None:
    cluster.load(2000, value_size=500)
    sync = synced(client, table, most_pending=100_000)
    assert sync.progress.transactions > 1
    assert rows_of(table.read()) == truth_of(cluster)


def filled_by_others(cluster: Cluster, client: dcp.Client, table: TableOf) -> TableContent:
    """Make a table of one collection, and change another one. Return the content of the table."""
    content = TableContent(collections=("_default.mine",))
    for name in ("mine", "other"):
        cluster.create_collection("_default", name)
    cluster.upsert("key", b"1", collection="_default.mine")
    synced(client, table, content)
    cluster.load(40, collection="_default.other")
    return content


def stored_seqnos(table: TableOf) -> list[int]:
    state = table.open().load()
    assert state is not None
    return [position.seqno for position in state.checkpoint]


def test_a_run_stores_the_position_that_changes_of_other_collections_have_moved(
    cluster: Cluster, client: dcp.Client, table: TableOf
) -> None:
    """Otherwise a purge overtakes it, and all rows are read again."""
    synced(client, table, filled_by_others(cluster, client, table))
    assert stored_seqnos(table) == [*client.high_seqnos().values()]
    assert table.read().num_rows == 1


def test_a_position_that_moves_without_rows_is_stored_after_ten_minutes(
    cluster: Cluster, client: dcp.Client, duckdb_table: TableOf
) -> None:
    content = filled_by_others(cluster, client, duckdb_table)
    before, time = stored_seqnos(duckdb_table), 0.0

    def stopped() -> bool:
        nonlocal time
        done = sync.progress.transactions > 0
        time += 0.0 if done else 199.0
        return done

    target = duckdb_table.open()
    sync = Sync(client, target, content, persisted_only=False, interval=0.0, clock=lambda: time, stopped=stopped)
    sync.follow()
    assert time >= 600.0
    assert stored_seqnos(duckdb_table) > before


class UnsureTarget:
    """A table whose transactions fail, before or after they are applied."""

    def __init__(self, table: SyncTarget, fails: Callable[[int], str]) -> None:
        self.shown = table.shown
        self._table, self._fails, self._number = table, fails, 0

    def load(self) -> SyncState | None:
        return self._table.load()

    def commit(self, transaction: Any) -> None:
        self._number += 1
        fault = self._fails(self._number)
        if fault != "before":
            self._table.commit(transaction)
        if fault:
            raise TargetError(f"store://user:secret@host/path?key=secret: fails {fault} it is applied")

    def count(self) -> int:
        return self._table.count()

    def close(self) -> None:
        self._table.close()


def test_transactions_that_fail_are_repeated_or_found_to_be_there(
    cluster: Cluster, client: dcp.Client, duckdb_table: TableOf
) -> None:
    cluster.load(50)
    errors: list[str] = []
    waits: list[float] = []
    time = 0.0

    def stopped() -> bool:
        errors.append(sync.progress.last_error)
        if sync.progress.transactions == 2:
            cluster.upsert("last", b"1")
        return sync.progress.transactions >= 3

    def wait(seconds: float) -> None:
        nonlocal time
        waits.append(seconds)
        time += seconds

    def fails(number: int) -> str:
        return {1: "before", 3: "after"}.get(number, "")

    def clock() -> float:
        nonlocal time
        time += 0.01
        return time

    target = UnsureTarget(duckdb_table.open(), fails)
    sync = Sync(client, target, interval=0.0, stopped=stopped, clock=clock, wait=wait)
    for number in range(20):
        cluster.upsert("changing", b"%d" % number)
    sync.follow()
    synced(client, duckdb_table)
    assert rows_of(duckdb_table.read()) == truth_of(cluster)
    assert waits
    assert any("fails before it is applied" in error for error in errors)
    assert not any("secret" in error for error in errors)


def test_pauses_between_attempts_grow_until_one_succeeds(
    cluster: Cluster, client: dcp.Client, duckdb_table: TableOf
) -> None:
    time, attempts = 0.0, list[float]()

    def wait(seconds: float) -> None:
        nonlocal time
        time += seconds

    def fails(number: int) -> str:
        attempts.append(time)
        cluster.upsert("key", b"%d" % number)
        return "" if number in (9, 11) else "before"

    sync = Sync(
        client,
        UnsureTarget(duckdb_table.open(), fails),
        persisted_only=False,
        interval=0.0,
        stopped=lambda: sync.progress.transactions == 2,
        clock=lambda: time,
        wait=wait,
    )
    sync.follow()
    pauses = [later - earlier for earlier, later in pairwise(attempts)]
    assert pauses[:10] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 0.0, 1.0]


def test_a_run_that_is_stopped_in_a_pause_does_not_wait_for_its_end(
    cluster: Cluster, client: dcp.Client, duckdb_table: TableOf
) -> None:
    waits: list[float] = []
    cluster.upsert("key", b"1")
    sync = Sync(
        client,
        UnsureTarget(duckdb_table.open(), lambda _: "before"),
        interval=0.0,
        stopped=lambda: bool(waits),
        clock=lambda: sum(waits),
        wait=waits.append,
    )
    sync.follow()
    assert len(waits) == 1


def test_what_arrived_before_an_error_is_stored_with_its_position(
    cluster: Cluster, client: dcp.Client, duckdb_table: TableOf
) -> None:
    """With the position before it, a failover that takes these rows back would not remove them."""
    cluster.upsert("key", b"1")
    with ExitStack() as faults:

        def fail() -> None:
            if sync.progress.pending and not sync.progress.transactions:
                faults.enter_context(cluster.fault("garbage"))
                cluster.upsert("key", b"2")

        sync = Sync(client, duckdb_table.open(), persisted_only=False, on_progress=fail)
        with pytest.raises(dcp.RemoteProtocolError):
            sync.follow()
    assert [value for value, *_ in rows_of(duckdb_table.read()).values()] == [b"1"]
    assert sum(stored_seqnos(duckdb_table)) == 1


def test_a_transaction_has_only_what_changed_since_the_one_before(
    cluster: Cluster, client: dcp.Client, duckdb_table: TableOf
) -> None:
    later = ["later"]

    def stopped() -> bool:
        if sync.progress.transactions == 1 and later:
            cluster.upsert(later.pop(), b"1")
        return sync.progress.rows > 1

    cluster.upsert("key", b"1")
    sync = Sync(client, duckdb_table.open(), persisted_only=False, interval=0.0, stopped=stopped, clock=lambda: 0.0)
    sync.follow()
    assert sync.progress.rows == 2


def test_a_file_that_is_no_database_is_not_waited_for(tmp_path: Path) -> None:
    table = TableOf("duckdb", tmp_path)
    Path(table.name).write_bytes(b"no database" * 9000)
    with pytest.raises(TargetError, match="not a valid DuckDB database"):
        table.open().load()


def test_a_transaction_begins_a_new_interval(cluster: Cluster, client: dcp.Client, duckdb_table: TableOf) -> None:
    """The clock advances by a second each time that the run asks whether to stop, and rows come until the last."""
    time = 0.0

    def stopped() -> bool:
        nonlocal time
        time += 1.0
        cluster.upsert(f"key{time:g}", b"1")
        return time >= 100.0

    sync = Sync(client, duckdb_table.open(), persisted_only=False, interval=30.0, stopped=stopped, clock=lambda: time)
    sync.follow()
    assert 3 <= sync.progress.transactions <= 5


class UnwritableState(SyncState):
    """A state that cannot be stored: the transaction ends in its middle."""

    def to_json(self) -> str:
        raise Crash


class InterruptedTarget(UnsureTarget):
    """A table whose transactions end before their state is written."""

    def commit(self, transaction: Any) -> None:
        state = transaction.state
        unwritable = UnwritableState(state.number, state.checkpoint, state.content, state.collection_ids)
        self._table.commit(replace(transaction, state=unwritable))


def test_rows_without_their_state_are_not_in_the_table(cluster: Cluster, client: dcp.Client, table: TableOf) -> None:
    cluster.load(20)
    synced(client, table)
    before = truth_of(cluster)
    cluster.delete("key-0000000001")
    cluster.upsert("new", b"1")
    with pytest.raises(Crash):
        Sync(client, InterruptedTarget(table.open(), lambda _: "")).run()
    assert rows_of(table.read()) == before
    synced(client, table)
    assert rows_of(table.read()) == truth_of(cluster)


@pytest.mark.skipif(os.name == "nt", reason="Windows does not sync directories")
def test_a_transaction_of_a_file_lasts_the_content_first_and_then_the_name(
    cluster: Cluster, client: dcp.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, new = tmp_path / "t.parquet", tmp_path / ".t.parquet.new"
    seen: list[tuple[bool, bool, bool]] = []

    def fsync(descriptor: int) -> None:
        is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        seen.append((is_directory, new.exists() and new.read_bytes().endswith(b"PAR1"), path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    cluster.load(10)
    Sync(client, open_target(str(path))).run()
    assert seen == [(False, True, False), (True, False, True)]


def test_a_transaction_of_a_file_that_fails_leaves_no_other_file(
    cluster: Cluster, client: dcp.Client, tmp_path: Path
) -> None:
    cluster.load(10)
    with pytest.raises(Crash):
        Sync(client, InterruptedTarget(open_target(str(tmp_path / "t.parquet")), lambda _: "")).run()
    assert [*tmp_path.iterdir()] == []


def test_no_file_of_a_table_has_the_password(cluster: Cluster, client: dcp.Client, table: TableOf) -> None:
    cluster.load(10)
    synced(client, table)
    password = cluster.credentials.password.encode()
    files = [path for path in table.directory.rglob("*") if path.is_file()]
    assert files
    assert not any(password in path.read_bytes() for path in files)


def test_a_delta_table_that_was_restored_follows_from_there(
    cluster: Cluster, client: dcp.Client, tmp_path: Path
) -> None:
    import deltalake

    table = TableOf("delta", tmp_path)
    for number in range(3):
        cluster.upsert(f"key{number}", b"1")
        synced(client, table)
    deltalake.DeltaTable(table.name).restore(0)
    assert table.read().num_rows == 1
    synced(client, table)
    assert rows_of(table.read()) == truth_of(cluster)


def test_an_iceberg_table_that_was_rolled_back_follows_from_there(
    cluster: Cluster, client: dcp.Client, tmp_path: Path
) -> None:
    table = TableOf("iceberg", tmp_path)
    for number in range(3):
        cluster.upsert(f"key{number}", b"1")
        synced(client, table)
    found = table.catalog.load_table("shop.docs")
    first = found.snapshots()[0]
    found.manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    assert table.read().num_rows == 1
    synced(client, table)
    assert rows_of(table.read()) == truth_of(cluster)


@pytest.mark.parametrize("schema", ["a array<struct<b int>>", "a struct<m map<string, array<struct<b int>>>>"])
def test_types_whose_nulls_iceberg_would_write_as_empty_are_refused(
    cluster: Cluster, client: dcp.Client, tmp_path: Path, schema: str
) -> None:
    cluster.upsert("key", b"{}")
    with pytest.raises(dcp.UsageError, match="take json as its type, or another kind of table"):
        synced(client, TableOf("iceberg", tmp_path), TableContent(schema=schema))


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_small_files_are_joined(cluster: Cluster, client: dcp.Client, tmp_path: Path, kind: str) -> None:
    table = TableOf(kind, tmp_path)
    for number in range(45):
        cluster.upsert(f"key{number}", b"1")
        synced(client, table, persisted_only=False)
    if kind == "delta":
        import deltalake

        files = len(deltalake.DeltaTable(table.name).file_uris())
    else:
        found = table.catalog.load_table("shop.docs")
        files = len(list(found.scan().plan_files()))
        snapshot = found.current_snapshot()
        assert snapshot is not None
        assert len(snapshot.manifests(found.io)) <= files + 1
        assert len(found.snapshots()) < 40
    assert files <= 20
    assert rows_of(table.read()) == truth_of(cluster)


def test_an_iceberg_snapshot_says_which_files_it_replaced(cluster: Cluster, client: dcp.Client, tmp_path: Path) -> None:
    table = TableOf("iceberg", tmp_path)
    for step in (cluster.upsert, cluster.upsert, lambda key, _: cluster.delete(key)):
        step("key", b"1")
        synced(client, table)
    found = table.catalog.load_table("shop.docs")
    snapshot = found.current_snapshot()
    assert snapshot is not None
    by_snapshot = {one.added_snapshot_id: one.deleted_files_count for one in snapshot.manifests(found.io)}
    # Not those of the snapshot before, which replaced files as well.
    assert by_snapshot == {snapshot.snapshot_id: 1}
    # Readers of what was added since a snapshot refuse one that replaced files: the first did not.
    operations = [one.summary.operation.value for one in found.snapshots() if one.summary is not None]
    assert operations == ["append", "overwrite", "overwrite"]
