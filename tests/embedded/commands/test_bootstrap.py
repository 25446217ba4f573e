"""The beginning of a connection: features, error map, bucket, and the commands that work before authentication."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dcp
from dcp.wire.memcached import FEATURES, Feature, Status
from tests.embedded.raw_client import ALICE, CommandClient, make_bucket

# Features that a client requested, and those that real servers of these releases granted.
RECORDED = [
    ("3.1", "00040005000700080012", ""),
    ("6.0", "00030004000600070008000a000b", "00030004000600070008000a000b"),
    ("6.0", "00070008000e", "00070008000e"),
    ("6.6", "00030004000600070008000a000b0012", "00030004000600070008000a000b0012"),
    ("6.6", "00030004000600070008000a000b00100011", "00030004000600070008000a000b00100011"),
    ("7.0", "00030004000600070008000a000b00100011", "00030004000600070008000a000b00100011"),
]


@pytest.mark.parametrize(("version", "requested", "granted"), RECORDED)
def test_a_release_grants_the_features_that_it_has(version: str, requested: str, granted: str) -> None:
    answer = CommandClient(make_bucket(version)).request("hello", key=b"test", value=bytes.fromhex(requested))
    assert answer.value.hex() == granted


def test_every_hello_replaces_the_features() -> None:
    client = CommandClient()
    assert client.hello(Feature.XERROR, Feature.JSON) == (Feature.XERROR, Feature.JSON)
    assert client.hello(Feature.XERROR) == (Feature.XERROR,)
    assert client.connection.state.features == {Feature.XERROR}


NEEDS = [
    ([Feature.CLUSTERMAP_CHANGE_NOTIFICATION], Feature.DUPLEX),
    ([Feature.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF], Feature.DUPLEX),
    ([Feature.VATTR], Feature.XATTR),
    ([Feature.SUBDOC_DOCUMENT_MACRO], Feature.XATTR),
    ([Feature.RANGE_SCAN_INCLUDE_XATTR], Feature.XATTR),
    ([Feature.GET_RANDOM_KEY_INCLUDE_XATTR, Feature.XATTR, Feature.JSON], Feature.SNAPPY_EVERYWHERE),
    ([Feature.GET_RANDOM_KEY_INCLUDE_XATTR, Feature.SNAPPY_EVERYWHERE, Feature.JSON], Feature.XATTR),
]


@pytest.mark.parametrize(("features", "needed"), NEEDS)
def test_a_feature_is_refused_without_those_it_needs(features: list[Feature], needed: Feature) -> None:
    client = CommandClient()
    client.hello(Feature.XERROR)
    refused = client.request("hello", value=FEATURES.encode(features))
    assert (refused.status, needed.name in refused.value.decode()) == (Status.EINVAL, True)
    assert client.connection.state.features == frozenset()
    assert client.status("hello", value=FEATURES.encode([*features, needed])) is Status.SUCCESS


def test_of_both_forms_of_notifications_the_brief_one_is_granted() -> None:
    both = (Feature.CLUSTERMAP_CHANGE_NOTIFICATION, Feature.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF)
    assert CommandClient().hello(Feature.DUPLEX, *both) == (Feature.DUPLEX, both[1])


def test_an_odd_number_of_bytes_is_no_list_of_features() -> None:
    raw = bytearray(dcp.encode(dcp.Frame("hello", 0x80, value=b"\x00\x07")))
    raw[8:12] = (1).to_bytes(4, "big")
    (answer,) = CommandClient().exchange(bytes(raw[:-1]))
    assert answer.status == Status.EINVAL


@given(st.lists(st.integers(0, 0xFFFF), max_size=50))
def test_only_requested_features_are_granted_each_once(codes: list[int]) -> None:
    answer = CommandClient().request("hello", value=FEATURES.encode(codes))
    if answer.status == Status.SUCCESS:
        granted = answer.body()
        assert len(set(granted)) == len(granted)
        assert set(granted) <= set(codes)


BEFORE_AUTHENTICATION = [
    ("noop", {}, Status.SUCCESS),
    ("version", {}, Status.SUCCESS),
    ("get_error_map", {"fields": {"version": 2}}, Status.SUCCESS),
    ("sasl_list_mechs", {}, Status.SUCCESS),
    ("select_bucket", {"key": b"default"}, Status.EACCESS),
    ("get_cluster_config", {}, Status.EACCESS),
    ("get", {"key": b"\0k"}, Status.EACCESS),
    ("stat", {}, Status.EACCESS),
    ("open", {"key": b"name", "fields": {"flags": 1}}, Status.EACCESS),
    ("get_all_vb_seqnos", {}, Status.EACCESS),
]


@pytest.mark.parametrize(("name", "parts", "status"), BEFORE_AUTHENTICATION)
def test_few_commands_work_before_authentication(name: str, parts: dict[str, object], status: Status) -> None:
    client = CommandClient(users=[ALICE])
    client.hello()
    assert client.status(name, **parts) is status


def test_documents_need_a_bucket() -> None:
    client = CommandClient(users=[ALICE])
    client.hello()
    client.request("sasl_auth", key=b"PLAIN", value=b"\0alice\0s3cret")
    assert client.status("get", key=b"\0k") is Status.NO_BUCKET
    assert client.status("select_bucket", key=b"other") is Status.KEY_ENOENT
    assert client.status("select_bucket", key=b"default") is Status.SUCCESS
    assert client.status("get", key=b"\0k") is Status.KEY_ENOENT
    assert client.status("select_bucket", key=b"@no bucket@") is Status.SUCCESS
    assert client.status("get", key=b"\0k") is Status.NO_BUCKET


def test_a_client_without_xerror_is_disconnected_for_unknown_statuses() -> None:
    client = CommandClient(users=[ALICE])
    assert client.request_all("get", key=b"k") == []
    assert client.closed


def test_without_collections_an_unknown_one_is_only_an_invalid_argument() -> None:
    client = CommandClient()
    client.bucket.change_manifest(*client.bucket.manifest.drop_collection("_default", "_default"))
    assert client.status("get", key=b"k") is Status.EINVAL
    client.hello(Feature.XERROR)
    assert client.status("get", key=b"k") is Status.UNKNOWN_COLLECTION


def test_the_error_map_has_every_status_of_servers() -> None:
    answer = CommandClient().request("get_error_map", fields={"version": 2})
    found = answer.body()
    assert (found["version"], found["revision"], answer.datatype) == (2, 9, 1)
    # From the error map of real servers.
    assert found["errors"]["7"] == {
        "name": "NOT_MY_VBUCKET",
        "desc": "Not my vbucket",
        "attrs": ["fetch-config", "invalid-input"],
    }
    assert found["errors"]["1f"]["attrs"] == ["conn-state-invalidated", "auth"]
    assert found["errors"]["86"]["attrs"] == ["temp", "retry-now"]
    # Statuses of releases before version 2 of the error map.
    gone = {Status.SCOPE_SIZE_LIMIT_EXCEEDED, Status.NO_COLLECTIONS_MANIFEST, Status.COLLECTIONS_MANIFEST_IS_AHEAD}
    assert set(found["errors"]) == {f"{status:x}" for status in Status if status not in gone}


@pytest.mark.parametrize(("requested", "version"), [(1, 1), (2, 2), (9, 2)])
def test_the_error_map_has_at_most_the_requested_version(requested: int, version: int) -> None:
    assert CommandClient().request("get_error_map", fields={"version": requested}).body()["version"] == version


def test_there_is_no_error_map_of_version_0() -> None:
    assert CommandClient().status("get_error_map", fields={"version": 0}) is Status.KEY_ENOENT


@pytest.mark.parametrize(("release", "text"), [("3.1", "3.1.0"), ("7.6", "7.6.0-0000-enterprise")])
def test_the_version_is_that_of_the_release(release: str, text: str) -> None:
    assert CommandClient(make_bucket(release)).request("version").body() == text


def test_quit_is_answered_and_closes_the_connection() -> None:
    client = CommandClient()
    assert client.status("quit") is Status.SUCCESS
    assert client.closed


def test_quiet_quit_closes_the_connection() -> None:
    client = CommandClient()
    assert client.request_all("quitq") == []
    assert client.closed


@pytest.mark.parametrize("whole", [True, False])
def test_large_requests_before_authentication_close_the_connection(whole: bool) -> None:
    raw = dcp.encode(dcp.Frame("set", 0x80, key=b"\0k", value=bytes(17 << 10), fields={"flags": 0, "expiry": 0}))
    client = CommandClient(users=[ALICE])
    client.hello()
    assert client.exchange(raw if whole else raw[:-1]) == []
    assert client.closed
