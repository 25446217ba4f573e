"""Options: what is taken, what is refused in which words, and where a password may be."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from dcp.checkpoint import Checkpoint
from dcp.client.options import spark_options
from dcp.errors import CheckpointError, LocalProtocolError, UsageError
from dcp.spark.options import Options, as_text
from dcp.spark.schema import SparkSchema, selected_columns

URL = "couchbase://host/bucket"


def test_names_have_neither_case_nor_underscores() -> None:
    given = {"URL": URL, "min_partitions": 3, "KEYFORMAT": "String", "vbuckets": "0-2, 9", "collections": "a, b.c"}
    options = Options.of(given)
    assert options == Options(
        URL, min_partitions=3, key_format="string", vbuckets=(0, 1, 2, 9), collections=("a", "b.c")
    )


def test_a_column_that_may_not_be_null_is_refused() -> None:
    options = Options(URL)
    may = StructType([StructField("seqno", LongType(), nullable=True)])
    assert selected_columns(may, options).columns == ("seqno",)
    with pytest.raises(UsageError, match="schema: seqno: expected a nullable column, found NOT NULL"):
        selected_columns(StructType([StructField("seqno", LongType(), nullable=False)]), options)


def test_values_may_be_those_of_python() -> None:
    checkpoint = Checkpoint(num_vbuckets=4)
    options = Options.of({"url": URL, "columns": ["key", "cas"], "vbuckets": {3, 1}, "start": checkpoint, "end": None})
    assert options == Options(URL, columns=("key", "cas"), vbuckets=(1, 3), start=checkpoint)


def test_a_connection_string_and_a_bucket_are_a_url() -> None:
    given = {"connectionString": "couchbase://h1,h2?tls_verify=false", "bucket": "travel"}
    assert Options.of(given).url == "couchbase://h1,h2/travel?tls_verify=false"
    assert Options.of({"url": "couchbase://h/", "bucket": "a%b"}).url == "couchbase://h/a%25b"


def test_what_is_named_as_in_other_sources_is_what_it_is_there() -> None:
    without = Options.of({"url": URL, "includeXattrs": "FALSE"}).columns
    assert without == tuple(name for name in SparkSchema(Options(URL)).names if name != "xattrs")
    assert Options.of({"url": URL, "includeXattrs": True}).columns is None
    assert Options.of({"url": URL, "maxTriggerDelay": "90 s", "minOffsetsPerTrigger": "5"}).max_delay == 90
    midnight = datetime(2026, 11, 1, tzinfo=timezone.utc)
    for moment in ("1793491200000", 1793491200000):
        assert Options.of({"url": URL, "startingTimestamp": moment}).start == midnight
    assert Options.of({"url": URL, "startingTimestamp": "2026-11-01T01:00+01:00"}).start == midnight


@pytest.mark.parametrize(("word", "meant"), [("earliest", "beginning"), ("beginning", "beginning"), ("LATEST", "now")])
def test_the_ends_have_the_names_of_spark_and_of_the_client(word: str, meant: str) -> None:
    assert Options.of({"url": URL, "startingOffsets": word}).start == meant
    assert Options.of({"url": URL, "start": Checkpoint().to_json()}).start == Checkpoint()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "option url: expected couchbase://host/bucket, found none"),
        ({"url": "couchbase://host"}, "url: bucket: expected a name"),
        (
            {"url": URL, "partitions": 1},
            "option 'partitions': unknown (did you mean minPartitions?)",
        ),
        ({"url": URL, "start": "now", "startingOffsets": "now"}, "expected it once, found it again"),
        ({"url": URL, "minPartitions": "0"}, "option minPartitions: expected a number of at least 1, found '0'"),
        ({"url": URL, "minPartitions": 2.7}, "option minPartitions: expected a number of at least 1, found 2.7"),
        ({"url": URL, "columns": "zzz"}, "; Spark also has scope and collection"),
        ({"url": URL, "password": "secret"}, "option username: expected it beside a password, or DCP_USERNAME"),
        ({"url": URL, "vbuckets": "a-b"}, "option vbuckets: expected numbers such as 0,4-7"),
        ({"url": URL, "vbuckets": "0-99999999999"}, "option vbuckets: expected numbers from 0 to 65535"),
        ({"url": URL, "columns": "key,key"}, "option columns: expected one or more names, each once"),
        ({"url": URL, "columns": "kex"}, "columns: there is no column 'kex'"),
        ({"url": URL, "valueFormat": "json"}, "option valueFormat: expected binary or string, found 'json'"),
        (
            {"url": URL, "startingOffsets": "never"},
            "option startingOffsets: expected beginning, earliest, now, latest, a Checkpoint",
        ),
        (
            {"url": URL, "endingOffsets": "earliest"},
            "option endingOffsets: expected now, latest, a Checkpoint or its JSON, a time",
        ),
        (
            {"url": URL, "vbuckets": "5-2"},
            "option vbuckets: expected numbers such as 0,4-7, with the lower number of a range first",
        ),
        ({"url": URL, "connectionString": URL}, "option connectionString: expected it or url, found both"),
        ({"connectionString": "couchbase://u:secret@host/b"}, "connectionString: expected no user in it, since Spark"),
        ({"bucket": "travel"}, "option url: expected couchbase://host/bucket, found none"),
        ({"url": URL, "bucket": "other"}, "option bucket: expected it or a bucket in the url, found both"),
        ({"url": URL, "columns": "key", "includeXattrs": "true"}, "option includeXattrs: expected it or columns"),
        ({"url": URL, "includeXattrs": "maybe"}, "option includeXattrs: expected on or off"),
        ({"url": URL, "start": "now", "startingTimestamp": "0"}, "startingTimestamp: expected it or startingOffsets"),
        ({"url": URL, "startingTimestamp": "2026-11-01"}, "startingTimestamp: expected a time with a UTC offset"),
        ({"url": URL, "startingTimestamp": "9" * 30}, "startingTimestamp: expected a time with a UTC offset"),
        ({"url": URL, "startingTimestamp": "now"}, "startingTimestamp: expected a time with a UTC offset"),
        ({"url": URL, "startingTimestamp": "0", "dialect": "tap"}, "expected earliest and latest, as TAP has no"),
        ({"url": URL, "startingOffsets": "latest", "dialect": "tap"}, "expected earliest and latest, as TAP has no"),
        ({"url": URL, "endingTimestamp": "0", "dialect": "tap"}, "expected earliest and latest, as TAP has no"),
        ({"url": URL, "persistedOnly": "true", "dialect": "tap"}, "persisted_only: TAP does not support it"),
        (
            {"url": URL, "startingTimestamp": "1000", "endingTimestamp": "1000"},
            "option endingTimestamp: expected a time after 1970-01-01T00:00:01+00:00, found 1970-01-01T00:00:01+00:00",
        ),
        ({"url": URL, "startingTimestamp": "2000", "endingTimestamp": "1000"}, "endingTimestamp: expected a time"),
        ({"url": URL, "outOfOrder": "true", "persistedOnly": "true"}, "outOfOrder: expected it without persistedOnly"),
        ({"url": URL, "owner": "root"}, "CREATE TABLE: expected a view, found a table"),
        ({"url": URL, "passwordFile": "f"}, "option username: expected it beside a password, or DCP_USERNAME"),
        ({"url": URL, "credentialProvider": "a:b", "username": "u"}, "credentialProvider: expected it without user"),
        ({"url": "couchbase://u:p@host/b", "credentialProvider": "a:b"}, "option url: expected no user in it beside"),
        ({"url": URL, "maxTriggerDelay": "soon"}, "option maxTriggerDelay: expected a duration such as 500ms"),
        ({"url": URL, "events": "rollback"}, "option events: expected some of mutation, deletion"),
        ({"url": URL, "scope": ""}, "option scope: expected text, found ''"),
        ({"url": URL, "username": "u", "password": "p", "passwordFile": "f"}, "option passwordFile: expected it or"),
        ({"url": "couchbase://u:p@host/b", "username": "v"}, "option url: expected no user in it beside username"),
        ({"url": "couchbase://u:secret@host/b?x=1"}, "url: option: expected one of"),
    ],
)
def test_a_wrong_option_is_reported(given: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DCP_USERNAME", raising=False)
    with pytest.raises(LocalProtocolError, match=re.escape(message)) as caught:
        Options.of(given)
    assert "secret" not in str(caught.value)


def test_parsed_options_are_texts_again() -> None:
    end = datetime(2026, 11, 1, 12, 30, tzinfo=timezone.utc)
    values = {"url": URL, "start": Checkpoint(), "end": end, "collections": ("a.b", "a.c"), "min_partitions": 3}
    assert as_text(values) == {
        "url": URL,
        "startingOffsets": Checkpoint().to_json(),
        "endingOffsets": "2026-11-01T12:30:00+00:00",
        "collections": "a.b,a.c",
        "minPartitions": "3",
    }
    with pytest.raises(LocalProtocolError, match="collections: expected names without commas, found 'a,b'"):
        as_text({"collections": ("a,b",)})


@pytest.mark.parametrize(
    "given",
    [
        {"startingTimestamp": "1000", "endingTimestamp": "2000"},
        {"endingTimestamp": "1000", "startingOffsets": "earliest"},
        {"outOfOrder": "true", "persistedOnly": "false"},
        {"persistedOnly": "false", "dialect": "tap"},
        {"outOfOrder": "false", "persistedOnly": "true"},
        {"dialect": "tap", "startingOffsets": "earliest", "endingOffsets": "latest"},
        {"username": "u", "passwordFile": "f"},
        {"username": "u", "password": "p"},
        {"credentialProvider": "a:b"},
    ],
)
def test_options_that_agree_are_accepted(given: dict[str, str]) -> None:
    assert Options.of({"url": URL, **given}).url


def test_the_error_for_an_unknown_option_lists_all_options() -> None:
    with pytest.raises(LocalProtocolError) as caught:
        Options.of({"url": URL, "zzz": 1})
    assert all(name in str(caught.value) for name in spark_options())


def test_the_guide_has_every_option() -> None:
    guide = (Path(__file__).parents[2] / "docs/reference/spark.md").read_text("utf-8")
    table = guide.partition("| option |")[2].partition("<!--")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(spark_options())


def test_a_checkpoint_that_is_none_is_refused_as_one() -> None:
    # As another source has them.
    with pytest.raises(CheckpointError, match=r"^option startingOffsets: .*: expected the text of Checkpoint.to_json"):
        Options.of({"url": URL, "startingOffsets": '{"0": -2}'})


def test_credentials_are_taken_out_of_the_url_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DCP_USERNAME", "DCP_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    options = Options.of({"url": "couchbases://a%40b:p%2Fw@h1,h2:1/bucket?tls_verify=false"})
    assert options.url == "couchbases://h1,h2:1/bucket?tls_verify=false"
    assert options.login_url() == "couchbases://a%40b:p%2Fw@h1,h2:1/bucket?tls_verify=false"
    assert "p/w" not in repr(options)
    assert "p%2Fw" not in repr(options)
    assert Options.of({"url": URL}).login_url() == URL
    assert Options.of({"url": URL, "username": "u", "password": "p"}).login_url() == "couchbase://u:p@host/bucket"


def test_a_missing_password_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DCP_PASSWORD", raising=False)
    options = Options.of({"url": URL, "username": "u"})
    with pytest.raises(LocalProtocolError, match=r"expected one for 'u', found none: .* on every executor"):
        options.login_url()
    monkeypatch.setenv("DCP_PASSWORD", "")
    assert options.login_url() == "couchbase://u:@host/bucket"


def test_a_missing_password_file_is_reported() -> None:
    options = Options.of({"url": URL, "username": "u", "passwordFile": "/nowhere/at/all"})
    with pytest.raises(LocalProtocolError, match="password file: cannot read /nowhere/at/all: No such file"):
        options.login_url()


@pytest.mark.parametrize(
    ("given", "errors"),
    [
        ({}, False),
        ({"columns": "key,value"}, False),
        ({"columns": "value,error"}, True),
        ({"valueFormat": "string"}, True),
        ({"valueFormat": "string", "columns": "key,value"}, True),
        ({"valueFormat": "string", "columns": "key"}, False),
        ({"valueFormat": "string", "columns": "key,error"}, True),
        ({"valueFormat": "string", "onBadValue": "fail"}, False),
    ],
)
def test_bad_values_are_set_aside_where_a_column_can_say_so(given: dict[str, str], errors: bool) -> None:
    options = Options.of({"url": "couchbase://host/bucket", **given})
    assert options.decoding["on_bad_value"] == ("quarantine" if errors else "fail")
