"""Streams of typed documents and of selected rows, from an embedded cluster."""

from __future__ import annotations

import gc
from decimal import Decimal
from typing import Any

import pytest

import dcp
from dcp.embedded import Cluster
from dcp.wire.document import join_xattrs
from tests.client.consumer import PATIENCE
from tests.documents.frames import mutation

SCHEMA = "n bigint, total decimal(12,2), customer struct<city string>, tags array<string>"
# Values of every kind that a bucket may have, and the error that each one is delivered with.
BAD = {
    b"\x89PNG\r\n\x1a\n": "document: expected JSON, found a value without the JSON datatype: ",
    b'{"n":1': "document: expected JSON, found ",
    b"[1,2]": "document: expected an object, found an array",
    b"7": "document: expected an object, found 7",
    b'"text"': 'document: expected an object, found "text"',
    b'{"n":1.5}': "n: expected bigint, found 1.5",
    b'{"n":"1"}': 'n: expected bigint, found "1"',
    b'{"n":9223372036854775808}': "n: expected bigint, found 9223372036854775808",
    b'{"total":1.005}': "total: expected decimal(12,2), found 1.005",
    b'{"total":99999999999}': "total: expected decimal(12,2), found 99999999999",
    b'{"customer":[]}': "customer: expected an object, found an array",
    b'{"customer":{"city":5}}': "customer.city: expected string, found 5",
    b'{"tags":["a",1,"b"]}': "tags[1]: expected string, found 1",
    b'{"tags":{}}': "tags: expected an array, found an object",
    b'{"customer":{"city":"\xff"}}': "customer.city: expected string, found a string that is not valid Unicode",
    b'{"n":' * 5000 + b"1" + b"}" * 5000: "n: expected bigint, found an object",
}


def followed(client: dcp.Client, **options: Any) -> list[dict[str, Any]]:
    with client.stream(end="now", **options) as stream:
        return [row for batch in stream for row in batch.to_arrow().to_pylist()]


def test_a_stream_delivers_typed_documents_and_says_what_was_wrong_in_others() -> None:
    with Cluster(nodes=2, vbuckets=8) as cluster, dcp.connect(cluster.url) as client:
        for number in range(100):
            cluster.upsert(
                f"good{number}", f'{{"n":{number},"total":{number}.50,"customer":{{"city":"Graz"}},"tags":[]}}'
            )
        for number, value in enumerate(BAD):
            cluster.upsert(f"bad{number}", value)
        cluster.delete("good7")
        rows = {row["key"]: row for row in followed(client, columns=["event", "key"], document=SCHEMA)}
        assert rows[b"good3"]["document"] == {
            "n": 3,
            "total": Decimal("3.50"),
            "customer": {"city": "Graz"},
            "tags": [],
        }
        assert rows[b"good7"] == {"event": "deletion", "key": b"good7", "document": None, "error": None}
        for number, error in enumerate(BAD.values()):
            assert rows[b"bad%d" % number]["error"].startswith(error)
        assert len(rows) == 100 + len(BAD)
        assert client.stats().bad_rows == len(BAD)
        assert {row["error"] for key, row in rows.items() if key.startswith(b"good")} == {None}


def test_a_bucket_of_bad_documents_is_exact_over_a_restart() -> None:
    with Cluster(nodes=2, vbuckets=8) as cluster, dcp.connect(cluster.url) as client:
        for number in range(300):
            value = list(BAD)[number % len(BAD)] if number % 3 else b'{"n":%d}' % number
            cluster.upsert(f"key{number}", value)
        found: list[bytes] = []
        saved: dcp.Checkpoint | None = None
        # Restarted after each batch, by its checkpoint.
        while len(found) < 300:
            with client.stream(saved, columns=["key"], document=SCHEMA, batch_rows=37) as stream:
                batch = stream.next(PATIENCE)
                assert batch is not None
                found += batch.to_arrow()["key"].to_pylist()
                saved = stream.checkpoint
        assert sorted(found) == sorted(b"key%d" % number for number in range(300))


def test_a_bad_document_fails_the_stream_if_that_is_asked_for() -> None:
    with Cluster(vbuckets=1) as cluster, dcp.connect(cluster.url) as client:
        cluster.create_scope("shop")
        cluster.create_collection("shop", "orders")
        cluster.upsert("order::1", '{"n":1}', collection="shop.orders")
        cluster.upsert("order::2", '{"n":"\\u0000\\u001b[31m"}', collection="shop.orders")
        stream = client.stream(columns=["key", "seqno"], document="n bigint", on_bad_document="fail")
        batch = stream.next(PATIENCE)
        assert batch is not None
        assert [row["key"] for row in batch.to_arrow().to_pylist()] == [b"order::1"]
        with pytest.raises(dcp.DocumentError) as failed:
            stream.next(PATIENCE)
        error = failed.value
        assert (error.key, error.vbucket, error.retriable) == (b"order::2", 0, False)
        assert error.collection_id == cluster.collection_ids()["shop.orders"]
        assert error.problem == 'n: expected bigint, found "??[31m"'
        assert f"document 'order::2' of collection 0x{error.collection_id:x} (vbucket 0, seqno 4): n: " in str(error)
        # Resuming from the checkpoint meets it again, and nothing else was passed over.
        (row,) = followed(client, start=stream.checkpoint, columns=["key"], document="n bigint")
        assert row["error"] == error.problem


def test_without_collections_a_bad_document_is_named_by_its_whole_key() -> None:
    with Cluster(vbuckets=1, server_version="6.0") as cluster, dcp.connect(cluster.url) as client:
        cluster.upsert("order::1", '{"n":"text"}')
        with pytest.raises(dcp.DocumentError) as failed:
            followed(client, columns=["key"], document="n bigint", on_bad_document="fail")
        assert (failed.value.key, failed.value.collection_id) == (b"order::1", None)


def test_text_that_is_no_utf8_is_set_aside_with_its_bytes() -> None:
    with Cluster(vbuckets=1) as cluster, dcp.connect(cluster.url) as client:
        values = [b"text", "größe".encode(), b"\xff\xfe", b"", b"more"]
        for number, value in enumerate(values):
            cluster.upsert(f"k{number}", value)
        columns = ["value", "bad_value"]
        rows = followed(client, columns=columns, values="utf8", on_bad_value="quarantine")
        assert [row["value"] for row in rows] == ["text", "größe", None, "", "more"]
        assert [row["bad_value"] for row in rows] == [None, None, b"\xff\xfe", None, None]
        assert [row["error"] for row in rows] == [None, None, "value: not UTF-8", None, None]
        with pytest.raises(dcp.DocumentError, match=r"document 'k2' .*: value: expected UTF-8"):
            followed(client, columns=["value"], values="utf8")


def test_positions_move_past_rows_that_are_not_selected() -> None:
    with Cluster(nodes=2, vbuckets=8) as cluster, dcp.connect(cluster.url, dcp_buffer_size="64k") as client:
        cluster.load(5000, value_size=100)
        cluster.upsert("wanted", '{"type":"order"}')
        # Ten windows of changes that no row stands for: flow control goes on all the same.
        with client.stream(end="now", columns=["key"], only_keys="wanted") as stream:
            assert [row["key"] for batch in stream for row in batch.to_arrow().to_pylist()] == [b"wanted"]
            saved = stream.checkpoint
        assert {position.vbucket: position.seqno for position in saved.positions} == {
            position.vbucket: position.seqno for position in client.positions("now").positions
        }
        assert client.stats().unselected_rows == 5000
        assert followed(client, start=saved, columns=["key"]) == []


@pytest.mark.parametrize("where", ["type = 'order'", None])
def test_a_failover_is_reported_whatever_is_selected(where: str | None) -> None:
    with Cluster(nodes=2, vbuckets=1, replicas=1) as cluster, dcp.connect(cluster.url) as client:
        options: dict[str, Any] = {"where": where} if where else {"only_events": "deletion", "only_keys": "x*"}
        cluster.upsert("k1", '{"type":"order"}')
        with client.stream(columns=["event", "seqno"], **options) as stream:
            if where:
                batch = stream.next(PATIENCE)
                assert batch is not None
            cluster.upsert("k2", '{"type":"invoice"}')
            while client.stats().unselected_rows < (1 if where else 2):
                with pytest.raises(dcp.TimeoutError):
                    stream.next(0.01)
            cluster.failover(0, lose=1)
            batch = stream.next(PATIENCE)
            assert batch is not None
            assert batch.to_arrow()["event"].to_pylist() == ["rollback"]


@pytest.mark.parametrize("release", ["6.0", "6.6", "7.0", "7.6", "8.0"])
def test_nodes_send_no_values_where_none_are_asked_for(release: str) -> None:
    with Cluster(vbuckets=4, server_version=release) as cluster, dcp.connect(cluster.url) as client:
        cluster.load(200, value_size=5000)
        columns = ["event", "key", "cas", "rev_seqno", "flags", "expiry", "seqno"]
        lean = followed(client, columns=columns)
        received = client.stats().bytes
        whole = followed(client, columns=[*columns, "value"])
        assert [[row[name] for name in columns] for row in sorted(lean, key=lambda row: row["key"])] == [
            [row[name] for name in columns] for row in sorted(whole, key=lambda row: row["key"])
        ]
        # A 6.6 node can crash without values.
        assert (received < 200 * 200) is (release != "6.6")


def test_a_batch_in_a_cycle_of_references_is_freed() -> None:
    decoder = dcp.Decoder(columns=["key"], document="a struct<b string>, c array<string>")
    for number in range(1000):
        decoder.feed(mutation(b'{"a":{"b":"x"},"c":["y"]}', number + 1))
        batch: Any = decoder.take()
        batch.itself = batch
    del batch
    # The collector clears an object before it frees it.
    assert gc.collect() > 0


@pytest.mark.parametrize("views", [False, True])
def test_compressed_documents_and_those_behind_xattrs_are_read(views: bool) -> None:
    cramjam = pytest.importorskip("cramjam")
    document = b'{"a":"' + b"x" * 500 + b'"}'
    behind = join_xattrs([(b"_sync", b'{"rev":1}')], document)
    values = [
        (document, 1),
        (bytes(cramjam.snappy.compress_raw(document)), 3),
        (behind, 5),
        (bytes(cramjam.snappy.compress_raw(behind)), 7),
        # A block that cannot be decompressed is a bad document, and stops nothing.
        (b"\xff\xff\xff", 3),
    ]
    decoder = dcp.Decoder(columns=["seqno", "bad_value"], document="a string", views=views)
    for number, (value, datatype) in enumerate(values, 1):
        decoder.feed(mutation(value, number, datatype=datatype))
    *good, bad = decoder.take().to_arrow().to_pylist()
    assert [row["document"] for row in good] == [{"a": "x" * 500}] * 4
    assert (bad["document"], bad["bad_value"], bad["error"]) == (None, b"\xff\xff\xff", "snappy: not a valid block")


def test_a_document_of_20_mb_is_one_row_and_leaves_no_memory_behind() -> None:
    large = b'{"list":[' + b",".join(b'{"n":%d,"t":"x"}' % n for n in range(1_200_000)) + b'],"last":1}'
    assert len(large) > 20_000_000
    decoder = dcp.Decoder(columns=["seqno"], document="last int, list array<struct<n int>>")
    decoder.feed(mutation(large, 1) + mutation(b'{"last":2}', 2))
    first, second = decoder.take().to_arrow()["document"].to_pylist()
    assert (first["last"], len(first["list"]), first["list"][-1]) == (1, 1_200_000, {"n": 1_199_999})
    assert second == {"last": 2, "list": None}


def test_a_document_that_would_take_far_more_than_its_size_is_refused() -> None:
    fields = ", ".join(f"f{number} double" for number in range(100))
    decoder = dcp.Decoder(columns=["seqno"], document=f"list array<struct<{fields}>>")
    decoder.feed(mutation(b'{"list":[' + b",".join([b"{}"] * 400_000) + b"]}", 1) + mutation(b'{"list":[{}]}', 2))
    batch = decoder.take()
    first, second = batch.to_arrow().to_pylist()
    assert first["document"] is None
    assert first["error"].startswith("document: expected cells of at most ")
    assert second["document"] == {"list": [dict.fromkeys(f"f{number}" for number in range(100))]}
    assert batch.nbytes < 1 << 20
