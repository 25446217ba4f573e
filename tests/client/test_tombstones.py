"""Xattrs of deletions: those of users arrive as well as those of the system."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest

import dcp
from dcp.embedded import Cluster
from dcp.wire.memcached import Status
from tests.embedded.sockets import Client, plain_auth, request

# Flags of sub-document commands, from docs/SubDocument.md of kv_engine.
_CREATE_PATH_OF_XATTR = 0x05
_ADD, _ACCESS_DELETED, _CREATE_AS_DELETED = 0x02, 0x04, 0x08
_DICT_UPSERT = 0xC8


def stage(cluster: Cluster, key: bytes) -> None:
    """Write a tombstone with an xattr of a user and one of the system, as transactions of SDKs do."""
    user = cluster.credentials
    hello = request("hello", key=b"t", value=b"\0\x06\0\x07\0\x0b\0\x17")
    creation = _ADD | _ACCESS_DELETED | _CREATE_AS_DELETED
    with Client(cluster) as client:
        client.exchange(hello, plain_auth(user.username, user.password), request("select_bucket", key=b"default"))
        for flags, path, value in ((creation, b"txn", b'{"id":1}'), (_ACCESS_DELETED, b"_sync", b"2")):
            head = struct.pack(">BBHI", _DICT_UPSERT, _CREATE_PATH_OF_XATTR, len(path), len(value))
            fields = {"doc_flags": flags}
            (answer,) = client.exchange(
                request("subdoc_multi_mutation", key=key, fields=fields, value=head + path + value)
            )
            assert answer.status == Status.SUBDOC_SUCCESS_DELETED, answer


def read(cluster: Cluster, *columns: str) -> list[dict[str, Any]]:
    with dcp.connect(cluster.url) as client, client.stream(end="now", columns=columns, xattrs="map") as stream:
        return [row for batch in stream for row in pa.record_batch(batch).to_pylist()]


@pytest.mark.parametrize("version", ["6.6", "7.0", "7.2", "8.0"])
def test_xattrs_of_users_arrive_with_a_deletion(version: str) -> None:
    with Cluster(vbuckets=1, server_version=version) as cluster:
        stage(cluster, b"staged")
        (row,) = read(cluster, "event", "key", "xattrs")
        assert (row["event"], row["key"]) == ("deletion", b"staged")
        assert dict(row["xattrs"]) == {"txn": '{"id":1}', "_sync": "2"}


def test_nobody_else_gets_them() -> None:
    with Cluster(vbuckets=1) as cluster:
        stage(cluster, b"staged")
        assert read(cluster, "event", "key", "value") == [{"event": "deletion", "key": b"staged", "value": b""}]
