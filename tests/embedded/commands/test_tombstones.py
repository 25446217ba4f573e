"""Mutations of tombstones, and what else the transactions of SDKs need: names and expectations of kv_engine's tests.

Most are in tests/testapp/testapp_xattr_deleted.cc and testapp_xattr.cc there.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import pytest

from dcp.wire.dcp import OpenFlag
from dcp.wire.document import Datatype, split_xattrs
from dcp.wire.frame import Frame
from dcp.wire.memcached import Feature, Status
from tests.embedded.commands.test_subdoc import (
    ADD,
    CREATE,
    DELETED,
    GET,
    MACROS,
    MAKE,
    UPSERT,
    XATTR,
    lookups,
    mutations,
    single,
)
from tests.embedded.raw_client import (
    KEY,
    NOW,
    USUAL_FEATURES,
    CommandClient,
    DcpClient,
    make_bucket,
    store,
    stored_item,
)

AS_DELETED, REVIVE, BINARY = 8, 16, 0x20
GET_BODY, DELETE_DOCUMENT, REMOVE, REPLACE_BODY = 0x00, 0x04, 0xC9, 0xD3
STAGED = b'{"id":{"txn":"1"},"op":{"stgd":{"n":1},"type":"insert"}}'
USER_XATTRS = OpenFlag.PRODUCER | OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETED_USER_XATTRS


def flags(number: int, **more: int) -> dict[str, Any]:
    return {"fields": {"doc_flags": number, **more}}


def stage(client: CommandClient) -> Frame:
    """Stage an insert as the transactions of SDKs do: in an xattr of a tombstone."""
    return mutations(client, (UPSERT, XATTR | CREATE, "txn", STAGED), **flags(ADD | DELETED | AS_DELETED))


def xattrs(client: CommandClient) -> dict[bytes, bytes]:
    return dict(split_xattrs(stored_item(client).value)[0])


def test_a_document_is_created_as_a_tombstone(client: CommandClient) -> None:
    staged = stage(client)
    item = stored_item(client)
    assert (staged.status, staged.cas) == (Status.SUBDOC_SUCCESS_DELETED, item.cas)
    assert staged.fields == {"vbuuid": client.bucket.active(0).log.newest.vbuuid, "seqno": 1}
    assert (item.event, item.datatype, item.expiry, item.delete_time) == ("deletion", Datatype.XATTR, 0, NOW)
    assert split_xattrs(item.value) == (((b"txn", STAGED),), b"")
    assert client.status("get", key=KEY) is Status.KEY_ENOENT
    found = lookups(client, (GET, XATTR, "txn.op.type"), (GET, XATTR, "$document.deleted"), **flags(DELETED))
    assert found[0].status == Status.SUBDOC_SUCCESS_DELETED
    assert found[1] == [(0, b'"insert"'), (0, b"true")]


def test_a_tombstone_does_not_expire(client: CommandClient) -> None:
    mutations(client, (UPSERT, XATTR, "txn", b"1"), **flags(ADD | AS_DELETED, expiry=NOW + 60))
    assert (stored_item(client).expiry, stored_item(client).delete_time) == (0, NOW)


def test_a_consumer_sees_a_staged_document_as_a_deletion(client: CommandClient) -> None:
    stage(client)
    (_, change) = DcpClient(client.bucket, flags=USER_XATTRS).stream()
    assert (change.name, change.datatype, split_xattrs(change.value)[0]) == (
        "deletion",
        Datatype.XATTR,
        ((b"txn", STAGED),),
    )
    # Its xattr is one of users: others get the deletion without it.
    (_, change) = DcpClient(client.bucket, flags=OpenFlag.PRODUCER | OpenFlag.INCLUDE_XATTRS).stream()
    assert (change.name, change.datatype, change.value) == ("deletion", 0, b"")


def test_a_staged_document_is_committed_by_reviving_it(client: CommandClient) -> None:
    cas = stage(client).cas
    committed = mutations(
        client,
        (REPLACE_BODY, XATTR, "txn.op.stgd", b""),
        (REMOVE, XATTR, "txn", b""),
        cas=cas,
        **flags(DELETED | REVIVE),
    )
    item = stored_item(client)
    assert (committed.status, committed.cas) == (Status.SUCCESS, item.cas)
    assert (item.event, item.value, item.datatype, item.rev_seqno) == ("mutation", b'{"n":1}', Datatype.JSON, 2)
    assert client.request("get", key=KEY).value == b'{"n":1}'
    (_, change) = DcpClient(client.bucket, flags=USER_XATTRS).stream()
    assert (change.name, change.value, change.fields["seqno"]) == ("mutation", b'{"n":1}', 2)


def test_a_mutation_of_a_tombstone_leaves_it_one(client: CommandClient) -> None:
    stage(client)
    changed = single(client, "dict_upsert", "txn.id.txn", b'"2"', XATTR, **flags(DELETED))
    assert changed.status == Status.SUBDOC_SUCCESS_DELETED
    assert stored_item(client).event == "deletion"
    assert json.loads(xattrs(client)[b"txn"])["id"] == {"txn": "2"}
    single(client, "delete", "txn", flags=XATTR, **flags(DELETED))
    assert (stored_item(client).event, stored_item(client).value, stored_item(client).datatype) == ("deletion", b"", 0)


@pytest.mark.parametrize(
    ("number", "status"),
    [
        # The fetch ignores the tombstone, and the store does not.
        (ADD | AS_DELETED, Status.NOT_STORED),
        (MAKE | AS_DELETED, Status.ETMPFAIL),
        (ADD | AS_DELETED | DELETED, Status.KEY_EEXISTS),
        (MAKE | AS_DELETED | DELETED, Status.SUBDOC_SUCCESS_DELETED),
        (DELETED, Status.SUBDOC_SUCCESS_DELETED),
        (0, Status.KEY_ENOENT),
        # Over a tombstone, a live document is created unless the tombstone is asked for.
        (ADD, Status.SUCCESS),
        (MAKE, Status.SUCCESS),
        (AS_DELETED | DELETED, Status.EINVAL),
        (ADD | MAKE | AS_DELETED, Status.EINVAL),
        (0x40, Status.EINVAL),
    ],
)
def test_the_flags_say_what_becomes_of_a_tombstone(client: CommandClient, number: int, status: Status) -> None:
    stage(client)
    assert single(client, "dict_upsert", "txn.id", b"2", XATTR, **flags(number)).status == status
    assert stored_item(client).seqno == (2 if status in (Status.SUCCESS, Status.SUBDOC_SUCCESS_DELETED) else 1)


def test_a_tombstone_has_no_body(client: CommandClient) -> None:
    stage(client)
    found = lookups(client, (GET_BODY, 0, ""), **flags(DELETED))
    assert found[1] == [(Status.SUBDOC_PATH_ENOENT, b"")]
    store(client, value=b"1")
    client.request("delete", key=KEY)
    answer = mutations(client, (UPSERT, XATTR, "txn", b"1"), (UPSERT, 0, "n", b"1"), **flags(ADD | AS_DELETED))
    assert answer.status == Status.SUBDOC_MULTI_PATH_FAILURE
    assert answer.value == struct.pack(">BH", 1, Status.SUBDOC_DOC_NOTJSON)
    mutations(client, (UPSERT, XATTR, "txn", STAGED), **flags(DELETED))
    answer = mutations(client, (REPLACE_BODY, XATTR, "txn.op.stgd", b""), **flags(DELETED))
    assert answer.status == Status.SUBDOC_DELETED_DOCUMENT_CANT_HAVE_VALUE
    body = single(client, "dict_upsert", "n", b"1", **flags(ADD | AS_DELETED))
    assert body.body()["error"]["context"] == "CreateAsDeleted does not support body path"


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (DELETED | REVIVE, Status.SUBDOC_CAN_ONLY_REVIVE_DELETED_DOCUMENTS),
        (REVIVE, Status.EINVAL),
        (DELETED | REVIVE | AS_DELETED | MAKE, Status.EINVAL),
    ],
)
def test_only_tombstones_are_revived(client: CommandClient, number: int, status: Status) -> None:
    store(client, value=b"{}")
    assert mutations(client, (UPSERT, XATTR, "txn", b"1"), **flags(number)).status == status
    if number == DELETED | REVIVE:
        assert lookups(client, (GET, 0, "n"), **flags(number))[0].status == status


def test_a_wrong_cas_keeps_a_tombstone_as_it_is(client: CommandClient) -> None:
    cas = stage(client).cas
    answer = mutations(client, (UPSERT, XATTR, "txn", b"1"), cas=cas + 1, **flags(DELETED))
    assert answer.status == Status.KEY_EEXISTS
    assert stored_item(client).cas == cas


def test_a_mutation_removes_a_whole_document_and_keeps_system_xattrs(client: CommandClient) -> None:
    store(client, value=b'{"n":1}')
    mutations(client, (UPSERT, XATTR, "_sync", b"3"), (UPSERT, XATTR, "user", b"4"))
    removed = mutations(client, (UPSERT, XATTR, "_sync", b"5"), (DELETE_DOCUMENT, 0, "", b""))
    assert removed.status == Status.SUCCESS
    item = stored_item(client)
    assert (item.event, item.datatype, split_xattrs(item.value)) == (
        "deletion",
        Datatype.XATTR,
        (((b"_sync", b"5"),), b""),
    )
    store(client, value=b"1")
    mutations(client, (DELETE_DOCUMENT, 0, "", b""))
    assert (stored_item(client).event, stored_item(client).value, stored_item(client).datatype) == ("deletion", b"", 0)


def test_a_removal_of_the_document_is_the_only_operation_on_the_body(client: CommandClient) -> None:
    store(client, value=b'{"n":1}')
    for specs in (
        [(UPSERT, 0, "n", b"2"), (DELETE_DOCUMENT, 0, "", b"")],
        [(DELETE_DOCUMENT, 0, "", b""), (UPSERT, 0, "n", b"2")],
    ):
        assert mutations(client, *specs).status == Status.SUBDOC_INVALID_COMBO


def test_the_body_is_replaced_by_an_xattr(client: CommandClient) -> None:
    store(client, value=b'{"old":true}', flags=3)
    mutations(client, (UPSERT, XATTR | CREATE, "txn.op.stgd", b'{"new":true}'))
    answer = mutations(client, (REPLACE_BODY, XATTR, "txn.op.stgd", b""), (REMOVE, XATTR, "txn", b""))
    item = stored_item(client)
    assert (answer.status, item.value, item.datatype, item.flags) == (Status.SUCCESS, b'{"new":true}', 1, 3)
    assert single(client, "replace_body_with_xattr", "txn.op", flags=XATTR).status == Status.SUBDOC_PATH_ENOENT
    assert single(client, "replace_body_with_xattr", "n").status == Status.EINVAL


def test_macros_stand_for_the_version_that_was_read(client: CommandClient) -> None:
    store(client, value=b'{"n":1}', flags=5, expiry=NOW + 60)
    before = stored_item(client)
    names = ("CAS", "revid", "seqno", "exptime", "flags", "value_bytes", "deleted", "vbucket_uuid", "datatype")
    specs = [(UPSERT, XATTR | CREATE | MACROS, f"txn.{name}", b'"${$document.%b}"' % name.encode()) for name in names]
    assert mutations(client, *specs).status == Status.SUCCESS
    found = json.loads(xattrs(client)[b"txn"])
    assert (int(found["CAS"], 16), found["revid"], int(found["seqno"], 16)) == (before.cas, "1", 1)
    assert (found["exptime"], found["flags"], found["value_bytes"], found["deleted"]) == (NOW + 60, 5, 7, False)
    assert (int(found["vbucket_uuid"], 16), found["datatype"]) == (client.bucket.active(0).log.newest.vbuuid, ["json"])
    mutations(client, (UPSERT, XATTR | MACROS, "written", b'"${$document.last_modified}"'))
    # A number, although it is text in $document.
    assert xattrs(client)[b"written"].isdigit()
    unknown = mutations(client, (UPSERT, XATTR | MACROS, "x", b'"${$document.other}"'))
    assert unknown.value == struct.pack(">BH", 0, Status.SUBDOC_XATTR_UNKNOWN_VATTR_MACRO)


def test_of_a_new_document_no_version_was_read(client: CommandClient) -> None:
    refused = mutations(client, (UPSERT, XATTR | MACROS, "a", b'"${$document.CAS}"'), **flags(ADD))
    assert refused.value == struct.pack(">BH", 0, Status.SUBDOC_XATTR_UNKNOWN_VATTR_MACRO)
    assert mutations(client, (UPSERT, XATTR | MACROS, "a", b'"${$document}"'), **flags(ADD)).status == Status.SUCCESS
    assert xattrs(client) == {b"a": b"{}"}


def test_the_clock_of_a_vbucket_is_a_virtual_xattr(client: CommandClient) -> None:
    store(client, value=b"{}")
    found = json.loads(single(client, "get", "$vbucket", flags=XATTR).value)
    assert found == {"HLC": {"now": str(NOW), "mode": "real"}}
    # The check value of CRC-32C.
    store(client, key=b"\0check", value=b"123456789")
    checksum = single(client, "get", "$document.value_crc32c", key=b"\0check", flags=XATTR)
    assert checksum.value == b'"0xe3069283"'


def test_binary_values_are_kept_in_xattrs(client: CommandClient) -> None:
    store(client, value=b"{}")
    mutations(client, (UPSERT, XATTR | CREATE | BINARY, "txn.op.bin", b"\xff\0binary"))
    assert xattrs(client)[b"txn"] == b'{"op":{"bin":"cb-content-base64-encoded:/wBiaW5hcnk="}}'
    assert lookups(client, (GET, XATTR | BINARY, "txn.op.bin"))[1] == [(0, b"\xff\0binary")]
    mutations(client, (UPSERT, XATTR, "other", b'"cb-content-base64-encoded:/w*BiaW5hcnk="'))
    for path in ("txn.op", "other"):
        assert lookups(client, (GET, XATTR | BINARY, path))[1] == [(Status.SUBDOC_FIELD_NOT_BINARY_VALUE, b"")]
    mutations(client, (REPLACE_BODY, XATTR | BINARY, "txn.op.bin", b""), **flags(0, expiry=0, flags=9))
    item = stored_item(client)
    assert (split_xattrs(item.value)[1], item.datatype, item.flags) == (b"\xff\0binary", Datatype.XATTR, 9)


# Releases.


@pytest.mark.parametrize(
    ("version", "feature"),
    [
        ("6.6", Feature.SUBDOC_CREATE_AS_DELETED),
        ("6.6", Feature.VATTR),
        ("7.0", Feature.SUBDOC_DOCUMENT_MACRO),
        ("7.0", Feature.SUBDOC_REPLACE_BODY_WITH_XATTR),
        ("7.6", Feature.SUBDOC_REPLICA_READ),
        ("7.6", Feature.SUBDOC_ALLOW_MULTIPLE_XATTR_KEYS),
        ("8.0", Feature.SUBDOC_BINARY_XATTR),
    ],
)
def test_a_release_tells_what_it_can_do(version: str, feature: Feature) -> None:
    before = {"6.6": "6.5", "7.0": "6.6", "7.6": "7.2", "8.0": "7.6"}[version]
    assert feature in CommandClient(make_bucket(version)).hello(Feature.XATTR, feature)
    assert feature not in CommandClient(make_bucket(before)).hello(Feature.XATTR, feature)


def client_of(version: str) -> CommandClient:
    client = CommandClient(make_bucket(version))
    client.hello(*USUAL_FEATURES)
    store(client, value=b"{}")
    return client


def test_what_a_release_lacks_is_refused_by_it() -> None:
    client = client_of("6.5")
    assert single(client, "dict_upsert", "a", b"1", XATTR, **flags(ADD | AS_DELETED)).status == Status.EINVAL
    assert single(client, "get", "$vbucket", flags=XATTR).status == Status.SUBDOC_XATTR_UNKNOWN_VATTR
    assert single(client, "replace_body_with_xattr", "a", flags=XATTR).status == Status.UNKNOWN_COMMAND
    assert mutations(client, (REPLACE_BODY, XATTR, "a", b"")).status == Status.SUBDOC_INVALID_COMBO
    macro = (UPSERT, XATTR | MACROS, "a", b'"${$document.CAS}"')
    assert mutations(client, macro).status == Status.SUBDOC_XATTR_UNKNOWN_MACRO
    client = client_of("7.2")
    assert single(client, "get", "a", flags=XATTR | BINARY).status == Status.EINVAL
    assert single(client, "dict_upsert", "a", b"1", fields={"expiry": 0, "flags": 1}).status == Status.EINVAL
    two = mutations(client, (UPSERT, XATTR, "a", b"1"), (UPSERT, XATTR, "b", b"1"))
    assert two.status == Status.SUBDOC_XATTR_INVALID_KEY_COMBO
    assert lookups(client, (GET, XATTR, "$document"), (GET, XATTR, "a"))[0].status == Status.SUBDOC_MULTI_PATH_FAILURE


def test_before_7_6_only_the_changed_xattr_is_written_again() -> None:
    for version, written in (
        ("7.2", ((b"b", b"2"), (b"a", b'{"y": 1, "x": 3}'))),
        ("7.6", ((b"a", b'{"x":3,"y":1}'), (b"b", b"2"))),
    ):
        client = client_of(version)
        single(client, "dict_upsert", "a", b'{"y": 1, "x": 2}', XATTR)
        single(client, "dict_upsert", "b", b"2", XATTR)
        single(client, "dict_upsert", "a.x", b"3", XATTR)
        assert split_xattrs(stored_item(client).value)[0] == written


REPLICA = 0x20
# The last release without a part of the requests, the first one with it, a request that has it, and the refusal.
Ask = Callable[[CommandClient], int]
BEGINNINGS: dict[str, tuple[str, str, Ask, Status]] = {
    "documents may be created as tombstones": (
        *("6.5", "6.6"),
        lambda client: single(client, "dict_upsert", "a", b"1", XATTR, key=b"\0new", **flags(ADD | AS_DELETED)).status,
        Status.EINVAL,
    ),
    "$vbucket is an xattr": (
        *("6.5", "6.6"),
        lambda client: single(client, "get", "$vbucket", flags=XATTR).status,
        Status.SUBDOC_XATTR_UNKNOWN_VATTR,
    ),
    "the body may be replaced by an xattr": (
        *("6.6", "7.0"),
        lambda client: single(client, "replace_body_with_xattr", "a", flags=XATTR).status,
        Status.UNKNOWN_COMMAND,
    ),
    "the body may be replaced by an xattr among other operations": (
        *("6.6", "7.0"),
        lambda client: mutations(client, (REPLACE_BODY, XATTR, "a", b"")).status,
        Status.SUBDOC_INVALID_COMBO,
    ),
    "tombstones may be revived": (
        *("6.6", "7.0"),
        lambda client: mutations(client, (UPSERT, XATTR, "a", b"1"), **flags(DELETED | REVIVE)).status,
        Status.EINVAL,
    ),
    "macros stand for metadata": (
        *("6.6", "7.0"),
        lambda client: mutations(client, (UPSERT, XATTR | MACROS, "a", b'"${$document.CAS}"')).status,
        Status.SUBDOC_XATTR_UNKNOWN_MACRO,
    ),
    "several xattrs may be changed": (
        *("7.2", "7.6"),
        lambda client: mutations(client, (UPSERT, XATTR, "a", b"1"), (UPSERT, XATTR, "b", b"1")).status,
        Status.SUBDOC_XATTR_INVALID_KEY_COMBO,
    ),
    "replicas may be read": (
        *("7.2", "7.6"),
        lambda client: lookups(client, (GET_BODY, 0, ""), **flags(REPLICA))[0].status,
        Status.EINVAL,
    ),
}


@pytest.mark.parametrize("what", BEGINNINGS)
def test_parts_of_requests_begin_with_the_release_that_the_servers_source_says(what: str) -> None:
    last, first, ask, refusal = BEGINNINGS[what]
    assert ask(client_of(last)) == refusal
    assert ask(client_of(first)) != refusal
