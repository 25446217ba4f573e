"""All commands that read a document."""

from __future__ import annotations

from dcp.wire.document import Datatype
from dcp.wire.memcached import Status
from tests.embedded.raw_client import KEY, NOW, CommandClient, store


def test_a_quiet_read_is_answered_only_when_it_hits(client: CommandClient) -> None:
    for name in ("getq", "getkq"):
        assert client.request_all(name, key=KEY) == []
    assert client.request_all("gatq", key=KEY, fields={"expiry": 1}) == []
    store(client, value=b"1")
    assert client.request("getq", key=KEY).value == b"1"
    assert client.request("getkq", key=KEY).key == KEY
    assert client.request("gatq", key=KEY, fields={"expiry": 0}).value == b"1"
    assert client.status("getq", key=KEY, vbucket=99) is Status.NOT_MY_VBUCKET


def test_a_key_is_returned_on_request(client: CommandClient) -> None:
    missed = client.request("getk", key=KEY)
    assert (missed.status, missed.key) == (Status.KEY_ENOENT, KEY)
    store(client, value=b"1")
    assert (client.request("getk", key=KEY).key, client.request("get", key=KEY).key) == (KEY, b"")
    # Clients without collections send keys without one, and get them so.
    older = CommandClient(client.bucket)
    assert older.request("getk", key=KEY[1:]).key == KEY[1:]


def test_metadata_are_those_of_the_document_or_of_its_tombstone(client: CommandClient) -> None:
    assert client.status("get_meta", key=KEY) is Status.KEY_ENOENT
    response = store(client, value=b"[]", flags=7, expiry=60)
    meta = client.request("get_meta", key=KEY)
    assert meta.cas == response.cas
    assert meta.fields == {"deleted": 0, "flags": 7, "expiry": NOW + 60, "rev_seqno": 1}
    assert client.request("get_meta", key=KEY, fields={"version": 2}).fields["datatype"] == Datatype.JSON
    client.request("delete", key=KEY)
    assert client.request("get_meta", key=KEY).fields == {"deleted": 1, "flags": 0, "expiry": 0, "rev_seqno": 2}
