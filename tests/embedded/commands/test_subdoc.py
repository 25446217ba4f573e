"""Commands about parts of documents, as clients send them, and what DCP makes of them."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from dcp.embedded.document import deflate
from dcp.wire.dcp import OpenFlag
from dcp.wire.document import Datatype, join_xattrs, split_xattrs
from dcp.wire.frame import Frame
from dcp.wire.framing import FrameInfo, RequestInfo
from dcp.wire.memcached import Feature, Status
from tests.embedded.raw_client import KEY, NOW, CommandClient, DcpClient, store, stored_item

CREATE, XATTR, MACROS = 0x01, 0x04, 0x10
MAKE, ADD, DELETED = 1, 2, 4
GET, EXISTS, COUNT, ADD_MEMBER, UPSERT, PUSH, COUNTER = 0xC5, 0xC6, 0xD2, 0xC7, 0xC8, 0xCB, 0xCF


def single(client: CommandClient, name: str, path: str, value: bytes = b"", flags: int = 0, **more: Any) -> Frame:
    fields = {"path_length": len(path.encode()), "path_flags": flags} | more.pop("fields", {})
    return client.request(
        f"subdoc_{name}", key=more.pop("key", KEY), fields=fields, value=path.encode() + value, **more
    )


def lookups(client: CommandClient, *specs: tuple[int, int, str], **more: Any) -> tuple[Frame, list[tuple[int, bytes]]]:
    """Look several paths up; return the response, and status and value of each."""
    value = b"".join(struct.pack(">BBH", code, flags, len(path)) + path.encode() for code, flags, path in specs)
    answer = client.request("subdoc_multi_lookup", key=KEY, value=value, **more)
    found, at = [], 0
    while at < len(answer.value):
        status, length = struct.unpack_from(">HI", answer.value, at)
        found.append((status, answer.value[at + 6 : at + 6 + length]))
        at += 6 + length
    return answer, found


def mutations(client: CommandClient, *specs: tuple[int, int, str, bytes], **more: Any) -> Frame:
    value = b"".join(
        struct.pack(">BBHI", code, flags, len(path), len(new)) + path.encode() + new for code, flags, path, new in specs
    )
    return client.request("subdoc_multi_mutation", key=more.pop("key", KEY), value=value, **more)


@pytest.fixture
def filled(client: CommandClient) -> CommandClient:
    """Client of a bucket with a document that has xattrs."""
    vbucket = client.bucket.active(0)
    value = join_xattrs([(b"_sync", b'{"rev": 3}'), (b"meta", b"[1, 2]")], b'{"a": {"b": [1, 2.50]}, "n": 5}')
    client.bucket.store(b"key", value, flags=7, expiry=NOW + 50, datatype=5, number=vbucket.number)
    return client


def test_one_path_is_looked_up(filled: CommandClient) -> None:
    found = single(filled, "get", "a.b[1]")
    assert (found.status, found.value, found.cas) == (Status.SUCCESS, b"2.50", stored_item(filled).cas)
    assert single(filled, "exists", "a").value == b""
    assert single(filled, "get_count", "").value == b"2"
    assert single(filled, "get", "meta[1]", flags=XATTR).value == b"2"
    assert single(filled, "get", "x").status == Status.SUBDOC_PATH_ENOENT
    assert single(filled, "get", "a", key=b"\0other").status == Status.KEY_ENOENT
    store(filled, key=b"\0text", value=b"{oops")
    assert single(filled, "get", "a", key=b"\0text").status == Status.SUBDOC_DOC_NOTJSON


def test_several_paths_are_looked_up(filled: CommandClient) -> None:
    specs = [(GET, XATTR, "_sync.rev"), (GET, XATTR, "$XTOC"), (EXISTS, 0, "n"), (COUNT, 0, "a.b"), (0, 0, "")]
    answer, found = lookups(filled, *specs)
    assert answer.status == Status.SUCCESS
    body = b'{"a": {"b": [1, 2.50]}, "n": 5}'
    assert found == [(0, b"3"), (0, b'["_sync","meta"]'), (0, b""), (0, b"2"), (0, body)]
    answer, found = lookups(filled, (GET, 0, "n"), (GET, 0, "x"))
    assert answer.status == Status.SUBDOC_MULTI_PATH_FAILURE
    assert found == [(0, b"5"), (Status.SUBDOC_PATH_ENOENT, b"")]


def test_metadata_are_virtual_xattrs(filled: CommandClient) -> None:
    item = stored_item(filled)
    found = json.loads(single(filled, "get", "$document", flags=XATTR).value)
    assert (int(found["CAS"], 16), int(found["seqno"], 16), found["revid"]) == (item.cas, item.seqno, "1")
    assert (found["exptime"], found["flags"], found["deleted"]) == (NOW + 50, 7, False)
    assert found["value_bytes"] == len(b'{"a": {"b": [1, 2.50]}, "n": 5}')
    assert found["datatype"] == ["json", "xattr"]
    assert single(filled, "get", "$document.exptime", flags=XATTR).value == b"%d" % (NOW + 50)
    assert single(filled, "get", "$other", flags=XATTR).status == Status.SUBDOC_XATTR_UNKNOWN_VATTR
    refused = single(filled, "dict_upsert", "$document.CAS", b"1", XATTR)
    assert refused.status == Status.SUBDOC_XATTR_CANT_MODIFY_VATTR


@pytest.mark.parametrize(
    ("name", "status"), [("x", Status.SUCCESS), ("x" * 15, Status.SUCCESS), ("x" * 16, Status.XATTR_EINVAL)]
)
def test_the_name_of_an_xattr_has_up_to_15_bytes(filled: CommandClient, name: str, status: Status) -> None:
    assert single(filled, "dict_upsert", name, b"1", XATTR).status == status


def test_a_tombstone_is_looked_up_on_request(filled: CommandClient) -> None:
    filled.request("delete", key=KEY)
    assert single(filled, "get", "_sync.rev", flags=XATTR).status == Status.KEY_ENOENT
    found = single(filled, "get", "_sync.rev", flags=XATTR, fields={"doc_flags": DELETED})
    assert (found.status, found.value) == (Status.SUBDOC_SUCCESS_DELETED, b"3")
    answer, results = lookups(filled, (GET, XATTR, "_sync.rev"), (GET, XATTR, "meta"), fields={"doc_flags": DELETED})
    assert answer.status == Status.SUBDOC_MULTI_PATH_FAILURE_DELETED
    assert results == [(0, b"3"), (Status.SUBDOC_PATH_ENOENT, b"")]


def test_one_path_is_changed(filled: CommandClient) -> None:
    changed = single(filled, "counter", "n", b"3")
    item = stored_item(filled)
    assert (changed.status, changed.value, changed.cas) == (Status.SUCCESS, b"8", item.cas)
    assert changed.fields["seqno"] == item.seqno
    xattrs, body = split_xattrs(item.value)
    assert (body, item.flags, item.datatype) == (b'{"a": {"b": [1, 2.50]}, "n": 8}', 7, 5)
    assert dict(xattrs) == {b"_sync": b'{"rev": 3}', b"meta": b"[1, 2]"}


def test_the_expiry_is_removed_unless_it_is_given_or_preserved(filled: CommandClient) -> None:
    preserve = FrameInfo(RequestInfo.PRESERVE_TTL, b"")
    single(filled, "dict_upsert", "n", b"1", frame_info=(preserve,), magic=0x08)
    assert stored_item(filled).expiry == NOW + 50
    single(filled, "dict_upsert", "n", b"1", fields={"expiry": NOW + 90})
    assert stored_item(filled).expiry == NOW + 90
    single(filled, "dict_upsert", "n", b"1")
    assert stored_item(filled).expiry == 0


def test_several_paths_are_changed_at_once_or_not_at_all(filled: CommandClient) -> None:
    before = stored_item(filled)
    failed = mutations(filled, (UPSERT, 0, "x", b"1"), (ADD_MEMBER, 0, "n", b"1"), (UPSERT, 0, "y", b"1"))
    assert failed.status == Status.SUBDOC_MULTI_PATH_FAILURE
    assert failed.value == struct.pack(">BH", 1, Status.SUBDOC_PATH_EEXISTS)
    assert stored_item(filled) == before
    done = mutations(
        filled,
        (UPSERT, XATTR | CREATE, "txn.id", b'"t"'),
        (PUSH, 0, "a.b", b"3,4"),
        (COUNTER, 0, "n", b"-5"),
    )
    assert (done.status, done.value) == (Status.SUCCESS, struct.pack(">BHI", 2, 0, 1) + b"0")
    item = stored_item(filled)
    xattrs, body = split_xattrs(item.value)
    assert item.seqno == before.seqno + 1
    assert body == b'{"a": {"b": [1, 2.50,3,4]}, "n": 0}'
    assert dict(xattrs)[b"txn"] == b'{"id":"t"}'


def test_the_whole_body_is_set_beside_xattrs(filled: CommandClient) -> None:
    mutations(filled, (UPSERT, XATTR, "meta", b"0"), (0x01, 0, "", b"text"))
    item = stored_item(filled)
    # Since 7.6 a change of xattrs writes all of them again.
    assert split_xattrs(item.value) == (((b"_sync", b'{"rev":3}'), (b"meta", b"0")), b"text")
    assert item.datatype == Datatype.XATTR


@pytest.mark.parametrize(
    ("flags", "exists", "status"),
    [
        (0, False, Status.KEY_ENOENT),
        (MAKE, False, Status.SUCCESS),
        (MAKE, True, Status.SUCCESS),
        (ADD, False, Status.SUCCESS),
        (ADD, True, Status.KEY_EEXISTS),
        (MAKE | ADD, False, Status.EINVAL),
    ],
)
def test_documents_are_created_on_request(client: CommandClient, flags: int, exists: bool, status: Status) -> None:
    if exists:
        store(client, value=b"{}")
    assert single(client, "dict_upsert", "a.b" if flags else "a", b"1", fields={"doc_flags": flags}).status == status
    if status is Status.SUCCESS:
        item = stored_item(client)
        assert (item.value, item.datatype, item.flags) == (b'{"a":{"b":1}}', Datatype.JSON, 0)


def test_an_array_is_created_for_items(client: CommandClient) -> None:
    assert single(client, "array_push_last", "", b"1", fields={"doc_flags": MAKE}).status == Status.SUCCESS
    assert stored_item(client).value == b"[1]"


def test_macros_stand_for_what_the_write_becomes(filled: CommandClient) -> None:
    names = ("CAS", "seqno", "value_crc32c")
    specs = [(UPSERT, XATTR | MACROS, name, b'"${Mutation.%b}"' % name.encode()) for name in names]
    mutations(filled, *specs, (0x01, 0, "", b"123456789"))
    item = stored_item(filled)
    found = {name.decode(): json.loads(text) for name, text in split_xattrs(item.value)[0]}
    assert int.from_bytes(bytes.fromhex(found["CAS"][2:]), "little") == item.cas
    assert int(found["seqno"], 16) == item.seqno
    # The check value of CRC-32C.
    assert found["value_crc32c"] == "0xe3069283"
    refused = single(filled, "dict_upsert", "x", b'"${Mutation.other}"', XATTR | MACROS)
    assert refused.status == Status.SUBDOC_XATTR_UNKNOWN_MACRO
    refused = single(filled, "dict_upsert", "x", b'"${Mutation.CAS}"', MACROS)
    assert refused.status == Status.SUBDOC_XATTR_INVALID_FLAG_COMBO


def test_a_macro_in_the_only_xattr_stands_for_the_checksum(client: CommandClient) -> None:
    store(client, value=b"123456789")
    single(client, "dict_upsert", "sum", b'"${Mutation.value_crc32c}"', XATTR | MACROS)
    assert split_xattrs(stored_item(client).value) == (((b"sum", b'"0xe3069283"'),), b"123456789")


def test_an_xattr_keeps_its_characters(client: CommandClient) -> None:
    store(client, value=b"{}")
    single(client, "dict_upsert", "name", '"ü"'.encode(), XATTR)
    assert split_xattrs(stored_item(client).value)[0] == ((b"name", '"ü"'.encode()),)


def test_a_document_stays_below_its_largest_size(client: CommandClient) -> None:
    def written(size: int) -> int:
        return mutations(client, (0x01, 0, "", bytes(size)), fields={"doc_flags": MAKE}).status

    assert written(20 << 20) == Status.SUCCESS
    assert written((20 << 20) + 1) == Status.E2BIG


def test_a_change_is_streamed_with_its_xattrs(filled: CommandClient) -> None:
    mutations(filled, (UPSERT, XATTR, "meta", b'"new"'), (UPSERT, 0, "n", b"6"))
    (_, change) = DcpClient(filled.bucket, flags=OpenFlag.PRODUCER | OpenFlag.INCLUDE_XATTRS).stream()
    xattrs, body = split_xattrs(change.value)
    assert change.datatype == Datatype.JSON | Datatype.XATTR
    assert (dict(xattrs)[b"meta"], body) == (b'"new"', b'{"a": {"b": [1, 2.50]}, "n": 6}')


def test_a_wrong_cas_or_a_lock_keeps_a_document_as_it_is(filled: CommandClient) -> None:
    before = stored_item(filled)
    assert single(filled, "dict_upsert", "n", b"6", cas=before.cas + 1).status == Status.KEY_EEXISTS
    cas = filled.request("get_locked", key=KEY).cas
    assert single(filled, "dict_upsert", "n", b"6").status == Status.LOCKED
    assert stored_item(filled) == before
    assert single(filled, "dict_upsert", "n", b"6", cas=cas).status == Status.SUCCESS


@pytest.mark.parametrize(
    ("specs", "status"),
    [
        ([(GET, 0, "a")] * 17, Status.SUBDOC_INVALID_COMBO),
        ([(UPSERT, 0, "a")], Status.SUBDOC_INVALID_COMBO),
        ([(GET, 0, "a"), (GET, XATTR, "x")], Status.SUBDOC_INVALID_XATTR_ORDER),
        ([(GET, 0x40, "a")], Status.EINVAL),
        ([(0, 0, "a")], Status.EINVAL),
    ],
)
def test_operations_that_make_no_request_are_refused(
    filled: CommandClient, specs: list[tuple[int, int, str]], status: Status
) -> None:
    assert lookups(filled, *specs)[0].status == status


@pytest.mark.parametrize(
    ("name", "path", "value", "flags", "doc_flags", "cas", "context"),
    [
        ("replace", "n", b"1", 0, MAKE, 0, "Request document flags invalid"),
        ("dict_upsert", "n", b"", 0, 0, 0, "Request must include value"),
        ("delete", "n", b"1", 0, 0, 0, "Request must not include value"),
        ("get", "n" * 1025, b"", 0, 0, 0, "Request path length exceeds maximum"),
        ("get", "", b"", 0, 0, 0, "Request must include path"),
        ("delete", "n", b"", CREATE, 0, 0, "Request flags invalid"),
        ("dict_upsert", "n", b"1", 0, ADD, 5, "Request with add flag must have CAS 0"),
    ],
)
def test_parts_that_do_not_fit_are_refused_with_the_reason_of_servers(
    filled: CommandClient, name: str, path: str, value: bytes, flags: int, doc_flags: int, cas: int, context: str
) -> None:
    refused = single(filled, name, path, value, flags, fields={"doc_flags": doc_flags}, cas=cas)
    assert (refused.status, refused.body()["error"]["context"]) == (Status.EINVAL, context)


def test_a_value_is_binary_or_has_macros(filled: CommandClient) -> None:
    refused = single(filled, "dict_upsert", "x", b'"${Mutation.CAS}"', XATTR | MACROS | 0x20)
    assert refused.status == Status.SUBDOC_XATTR_INVALID_FLAG_COMBO
    for flag, name in ((MACROS, "EXPAND_MACROS"), (0x20, "BINARY_VALUE")):
        refused = single(filled, "dict_upsert", "x", b'"${Mutation.CAS}"', flag)
        assert refused.status == Status.SUBDOC_XATTR_INVALID_FLAG_COMBO
        assert refused.body()["error"]["context"] == f"{name} flag requires XATTR flag to be set"


def test_what_is_cut_off_is_refused(filled: CommandClient) -> None:
    for value in (b"\xc5", struct.pack(">BBH", GET, 0, 9) + b"a"):
        assert filled.status("subdoc_multi_lookup", key=KEY, value=value) is Status.EINVAL
    fields = {"path_length": 9, "path_flags": 0}
    assert filled.status("subdoc_get", key=KEY, fields=fields, value=b"a") is Status.EINVAL


def test_xattrs_have_to_be_negotiated(filled: CommandClient) -> None:
    filled.hello(Feature.XERROR, Feature.COLLECTIONS)
    assert single(filled, "get", "meta", flags=XATTR).status == Status.NOT_SUPPORTED


def test_a_compressed_document_is_looked_up_too(client: CommandClient) -> None:
    value = deflate(join_xattrs([(b"meta", b"[1, 2]")], b'{"n": 5}'))
    client.bucket.store(b"key", value, datatype=7, number=client.bucket.active(0).number)
    assert single(client, "get", "meta[1]", flags=XATTR).value == b"2"
    assert single(client, "get", "n").value == b"5"
