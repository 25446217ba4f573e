"""The collections manifest, and ids of scopes and collections."""

from __future__ import annotations

import pytest

import dcp
from dcp.wire.memcached import Feature, Status
from tests.embedded.raw_client import CommandClient, make_bucket


def make_client(version: str = "8.0") -> CommandClient:
    client = CommandClient(make_bucket(version))
    client.bucket.change_manifest(*client.bucket.manifest.create_scope("inventory"))
    client.bucket.change_manifest(*client.bucket.manifest.create_collection("inventory", "hotel", 60))
    client.hello()
    return client


def test_the_manifest_lists_scopes_and_collections() -> None:
    answer = make_client().request("get_collections_manifest")
    assert answer.datatype == 1
    assert answer.body() == {
        "uid": "2",
        "scopes": [
            {"name": "_default", "uid": "0", "collections": [{"name": "_default", "uid": "0"}]},
            {"name": "inventory", "uid": "8", "collections": [{"name": "hotel", "uid": "9", "maxTTL": 60}]},
        ],
    }


PATHS = [
    (b"inventory.hotel", 9),
    (b"_default._default", 0),
    (b".", 0),
    (b"._default", 0),
    (b"inventory.flight", Status.UNKNOWN_COLLECTION),
    (b"inventory.", Status.UNKNOWN_COLLECTION),
    (b"nowhere.hotel", Status.UNKNOWN_SCOPE),
    (b"inventory", Status.EINVAL),
    (b"a.b.c", Status.EINVAL),
    (b"", Status.EINVAL),
    (b"\xff.\xfe", Status.UNKNOWN_SCOPE),
]


@pytest.mark.parametrize("part", ["key", "value"])
@pytest.mark.parametrize(("path", "outcome"), PATHS)
def test_a_collection_is_found_by_its_path(part: str, path: bytes, outcome: int) -> None:
    answer = make_client().request("get_collection_id", **{part: path})
    if isinstance(outcome, Status):
        assert answer.status == outcome
    else:
        assert answer.fields == {"manifest_uid": 2, "collection_id": outcome}


@pytest.mark.parametrize(("path", "outcome"), [(b"inventory", 8), (b"inventory.x", 8), (b"", 0), (b"_default", 0)])
def test_a_scope_is_found_by_its_name(path: bytes, outcome: int) -> None:
    assert make_client().request("get_scope_id", value=path).fields == {"manifest_uid": 2, "scope_id": outcome}


def test_an_unknown_name_is_answered_with_the_manifest_uid() -> None:
    for name, path in (("get_scope_id", b"nowhere"), ("get_collection_id", b"inventory.flight")):
        answer = make_client().request(name, value=path)
        assert (answer.body(), answer.datatype) == ({"manifest_uid": "2"}, 1)


def test_only_one_of_key_and_value_has_the_path() -> None:
    assert make_client().status("get_collection_id", key=b"a.b", value=b"a.b") is Status.EINVAL
    assert make_client("6.6").status("get_collection_id", value=b"inventory.hotel") is Status.EINVAL
    assert make_client("6.6").request("get_collection_id", key=b"inventory.hotel").fields["collection_id"] == 9


@pytest.mark.parametrize("part", [{"vbucket": 1}, {"cas": 1}])
def test_a_request_has_neither_vbucket_nor_cas(part: dict[str, int]) -> None:
    client = make_client()
    assert client.status("get_collection_id", value=b"inventory.hotel", **part) is Status.EINVAL
    assert client.status("get_collections_manifest", **part) is Status.EINVAL


def test_the_example_of_the_reference() -> None:
    # The example of the protocol reference, where the collection has another id.
    request = "80bb0000000000000000000f000000080000000000000000" + "696e76656e746f72792e686f74656c"
    expected = "81bb00000c0000000000000c000000080000000000000000" + "0000000000000002" + "00000009"
    (answer,) = make_client().exchange(bytes.fromhex(request))
    assert dcp.encode(answer).hex() == expected


def test_ids_need_collections_to_be_negotiated() -> None:
    client = make_client()
    client.hello(Feature.XERROR)
    assert client.status("get_collection_id", value=b"inventory.hotel") is Status.NOT_SUPPORTED


@pytest.mark.parametrize(("version", "found"), [("6.5", False), ("6.6", False), ("7.0", True), ("7.2", True)])
def test_the_path_may_be_the_value_since_7_0(version: str, found: bool) -> None:
    client = make_client(version)
    assert client.request("get_collection_id", key=b"inventory.hotel").status == Status.SUCCESS
    answer = client.request("get_collection_id", value=b"inventory.hotel")
    assert answer.status == (Status.SUCCESS if found else Status.EINVAL)
