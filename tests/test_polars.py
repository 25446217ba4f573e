"""`dcp.polars.scan`: what a query excludes is not decoded, and its rows are those of the whole table."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

import pytest

import dcp
from dcp.embedded import Cluster
from tests.pages import ROOT, examples, output

pytest.importorskip("polars", reason="Polars is a test dependency")

import polars as pl

from dcp import polars as dcp_polars

SCHEMA = "id bigint, small tinyint, total double, name string, ok boolean, city string from customer.city, at timestamp"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(vbuckets=4) as cluster:
        cluster.create_scope("shop")
        cluster.create_collection("shop", "order")
        for n in range(40):
            text = (
                f'{{"id":{n},"small":{n % 7},"total":{n / 8},"name":"n{n % 5}","ok":{"true" if n % 2 else "false"},'
                f'"customer":{{"city":"c\'{n % 3}"}},"at":"2026-01-02T03:04:{n:02}Z"}}'
            )
            cluster.upsert(f"order::{n}", text, collection="shop.order" if n % 4 else "_default._default")
        cluster.upsert("star*", '{"id": 1.0, "total": 0.30000000000000001, "name": 5, "ok": 1}')
        cluster.upsert("below", '{"id": 2, "total": 0.29999999999999999}')
        cluster.upsert("empty", "{}")
        cluster.upsert("nothing", '{"id": null, "total": null}')
        cluster.upsert("text", "no JSON")
        cluster.upsert("bytes", b"\xff")
        cluster.delete("order::8")
        cluster.expire("order::12")
        yield cluster


def column(name: str) -> pl.Expr:
    return pl.col(name)


PREDICATES = {
    "event": column("event") == "mutation",
    "events": column("event").is_in(["deletion", "expiration"]),
    "no event": column("event") == "nothing of the kind",
    "key": column("key") == "star*",
    "pattern": column("key") == "*",
    "keys": column("key").is_in(["order::3", "below", "empty"]),
    "prefix": column("key").str.starts_with("order::1"),
    "key from the right": pl.lit("below") == column("key"),
    "whole": column("id") > 30,
    "whole, mirrored": pl.lit(5, pl.Int64) >= column("id"),
    "whole, unequal": column("id") != 3,
    "whole, as written otherwise": column("id") == 1,
    "wholes": column("id").is_in([1, 2, 39]),
    "wholes and null": column("id").is_in([1, None, 39]),
    "small": column("small") <= 2,
    "double": column("total") == 0.3,
    "double above": column("total") > 0.3,
    "double at least": column("total") >= 0.3,
    "double below": column("total") < 0.3,
    "double at most": column("total") <= 0.3,
    "text": column("name") == "n3",
    "texts": column("city").is_in(["c'1", "c'2"]),
    "texts and null": column("name").is_in(["n3", None]),
    "text, other order": column("name") > "n3",
    "truth": column("ok") == True,  # noqa: E712
    "column of truth": column("ok"),
    "not": ~column("ok"),
    "null": column("id").is_null(),
    "time": column("at") > datetime(2026, 1, 2, 3, 4, 30, tzinfo=timezone.utc),
    "either": (column("id") == 3) | (column("name") == "n1"),
    "all": (column("event") == "mutation")
    & (column("id") > 3)
    & column("name").is_in(["n1"])
    & (column("total") < 4.0),
    "two columns": column("id") > column("small"),
    "collection": column("collection") == "order",
    "error": column("error").is_not_null(),
}


@pytest.mark.parametrize("name", PREDICATES)
def test_a_filter_has_the_rows_that_it_has_after_reading_everything(cluster: Cluster, name: str) -> None:
    frame = dcp_polars.scan(cluster.url, document=SCHEMA)
    found = frame.filter(PREDICATES[name]).collect().sort("vbucket", "seqno")
    assert found.equals(frame.collect().filter(PREDICATES[name]).sort("vbucket", "seqno"))


@pytest.mark.parametrize(
    ("predicate", "options"),
    [
        ("event", {"only_events": ["mutation"]}),
        ("events", {"only_events": ["deletion", "expiration"]}),
        ("no event", {"only_events": None}),
        ("key", {"only_keys": ["star\\*"]}),
        ("keys", {"only_keys": ["order::3", "below", "empty"]}),
        ("prefix", {"only_keys": ["order::1*"]}),
        ("key from the right", {"only_keys": ["below"]}),
        ("whole", {"where": "id > 30"}),
        ("whole, mirrored", {"where": "id <= 5"}),
        ("whole, unequal", {"where": "id != 3"}),
        ("wholes", {"where": "id in (1, 2, 39)"}),
        ("wholes and null", {}),
        ("small", {"where": "small <= 2"}),
        # The numbers next to 0.3: a document may have more digits than a double.
        ("double", {"where": "total >= 0.29999999999999993 and total <= 0.30000000000000004"}),
        ("double above", {"where": "total >= 0.29999999999999993"}),
        ("double at least", {"where": "total >= 0.29999999999999993"}),
        ("double below", {"where": "total <= 0.30000000000000004"}),
        ("double at most", {"where": "total <= 0.30000000000000004"}),
        ("text", {"where": "name = 'n3'"}),
        ("texts", {"where": "customer.city in ('c''1', 'c''2')"}),
        ("texts and null", {}),
        ("text, other order", {}),
        ("truth", {"where": "ok = true"}),
        ("either", {}),
        ("null", {}),
        ("time", {}),
        ("two columns", {}),
        ("collection", {}),
    ],
)
def test_a_filter_becomes_options_of_the_stream(predicate: str, options: dict[str, object]) -> None:
    fields = dcp_polars._fields(SCHEMA)
    assert dcp_polars.pushed_down(PREDICATES[predicate], fields) == options


def test_rows_that_a_filter_excludes_are_not_built(cluster: Cluster) -> None:
    with dcp.connect(cluster.url) as client:
        frame = dcp_polars.scan(client, document=SCHEMA)
        assert frame.filter(pl.col("event") == "mutation", pl.col("id") > 37).collect().height == 2
        stats = client.stats()
        # Values that are no JSON pass every condition.
        assert (stats.changes, stats.unselected_rows) == (4, 42)


def test_a_query_that_needs_no_values_receives_none(cluster: Cluster) -> None:
    with dcp.connect(cluster.url) as client:
        dcp_polars.scan(client, document=SCHEMA).select("key").collect()
        keys = client.stats().bytes
        dcp_polars.scan(client, document=SCHEMA).select("key", "city").collect()
        assert client.stats().bytes - keys > 2 * keys


def test_a_condition_of_the_user_holds_too(cluster: Cluster) -> None:
    frame = dcp_polars.scan(cluster.url, document=SCHEMA, where="id < 10 or id > 38")
    found = frame.filter(pl.col("event") == "mutation", pl.col("id") > 5).collect()
    assert sorted(found["id"].to_list()) == [6, 7, 9, 39]


def test_a_limit_ends_the_read(cluster: Cluster) -> None:
    frame = dcp_polars.scan(cluster.url)
    assert frame.head(3).collect().height == 3
    assert frame.select("key").head(0).collect().height == 0


def test_a_limit_has_the_first_rows(cluster: Cluster) -> None:
    frame = dcp_polars.scan(cluster.url, vbuckets=[0])
    whole = frame.collect()
    deleted = pl.col("event") != "mutation"
    for count in (0, 1, 7, whole.height, whole.height + 1):
        assert frame.head(count).collect().equals(whole.head(count))
        assert frame.head(count).filter(deleted).collect().equals(whole.head(count).filter(deleted))


@pytest.mark.parametrize(
    ("limit", "batch_rows", "height"), [(5, 2, 5), (4, 2, 4), (3, 0, 3), (None, 40, 46), (None, None, 46)]
)
def test_a_limit_counts_the_rows_of_all_batches(
    cluster: Cluster, limit: int | None, batch_rows: int | None, height: int
) -> None:
    stream = {"start": "beginning", "end": "now", **dcp_polars._DECODING}
    frames = dcp_polars._Reader(cluster.url, stream, None, {}).read(["key", "seqno"], None, limit, batch_rows)
    heights = [frame.height for frame in frames]
    assert sum(heights) == height
    assert all(0 < one <= max(1, batch_rows or height) for one in heights)


def test_a_frame_is_of_the_selection_of_its_call(cluster: Cluster) -> None:
    shop = dcp_polars.scan(cluster.url, scope="shop").collect()
    assert (shop.height, {*shop["scope"]}) == (30, {"shop"})
    with dcp.connect(cluster.url) as client:
        assert dcp_polars.scan(client, start=client.positions("now")).collect().height == 0
        assert dcp_polars.scan(client, end=client.positions("beginning")).collect().height == 0
        # The client is that of the caller, and stays open.
        assert client.high_seqnos()


def test_rows_can_be_counted_and_streamed(cluster: Cluster) -> None:
    frame = dcp_polars.scan(cluster.url, collections=["shop.order"])
    assert frame.select(pl.len()).collect().item() == 30
    grouped = frame.group_by("collection").len().collect(engine="streaming")
    assert grouped.rows() == [("order", 30)]


def test_an_iterator_of_options_serves_every_read_of_a_frame(cluster: Cluster) -> None:
    frame = dcp_polars.scan(cluster.url, collections=iter(["shop.order"]), vbuckets=iter([0, 2]))
    found = [frame.select("vbucket", "collection").unique().sort("vbucket").collect().rows() for _ in range(2)]
    assert found == 2 * [[(0, "order"), (2, "order")]]


def test_the_types_are_those_of_the_rows(cluster: Cluster) -> None:
    for document in (None, SCHEMA):
        frame = dcp_polars.scan(cluster.url, document=document)
        assert frame.collect_schema() == frame.collect().schema


def test_what_cannot_be_read_says_why(cluster: Cluster) -> None:
    found = dcp_polars.scan(cluster.url, document=SCHEMA).filter(pl.col("key").is_in(["star*", "bytes"])).collect()
    errors = dict(found.select("key", "error").rows())
    assert errors["star*"].startswith("name: expected string, found 5")
    assert errors["bytes"].startswith("document: expected JSON")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"document": "key string"}, "there is a column 'key' besides the fields"),
        ({"document": "map<string, double>"}, "expected fields such as 'id bigint, name string', found map"),
        ({"document": "id bigintt"}, "document: expected"),
        ({"where": "id >"}, "where: expected"),
        ({"end": None}, "end: expected one"),
    ],
)
def test_a_wrong_call_is_refused_before_it_is_collected(options: dict[str, str], message: str) -> None:
    with pytest.raises(dcp.UsageError, match=message):
        dcp_polars.scan("couchbase://host/bucket", **options)  # type: ignore[arg-type]


def test_the_example_of_the_page_prints_what_it_shows() -> None:
    example = examples(ROOT / "docs" / "client.md")["As a LazyFrame of Polars"]
    assert output(example.code) == example.prints
