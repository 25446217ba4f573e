"""Reads of replicas, and the state of documents on each copy."""

from __future__ import annotations

import struct

from dcp.wire.memcached import Status
from tests.embedded.commands.test_subdoc import GET, lookups
from tests.embedded.raw_client import KEY, NOW, Clock, CommandClient, make_bucket, store

REPLICA_READ = {"doc_flags": 0x20}


def pair(version: str = "8.0") -> tuple[CommandClient, CommandClient]:
    """Return clients of the node with the active copy and of the one with the replica."""
    bucket = make_bucket(version, nodes=2, replicas=1)
    clients = CommandClient(bucket), CommandClient(bucket, 1)
    for client in clients:
        client.hello()
    return clients


def test_a_replica_is_read_where_it_is() -> None:
    active, replica = pair()
    cas = store(active, value=b"old", flags=4).cas
    active.bucket.set_replica_lag(1)
    store(active, value=b"new")
    found = replica.request("get_replica", key=KEY)
    assert (found.value, found.cas, found.fields) == (b"old", cas, {"flags": 4})
    assert replica.status("get", key=KEY) is Status.NOT_MY_VBUCKET
    assert active.status("get_replica", key=KEY) is Status.NOT_MY_VBUCKET
    assert replica.status("get_replica", key=b"\0other") is Status.KEY_ENOENT


def test_an_expired_document_is_not_read_from_a_replica() -> None:
    active, replica = pair()
    clock = active.bucket.clock
    assert isinstance(clock, Clock)
    store(active, value=b"1", expiry=NOW + 5)
    clock.now += 4
    assert replica.status("get_replica", key=KEY) is Status.SUCCESS
    clock.now += 1
    assert replica.status("get_replica", key=KEY) is Status.KEY_ENOENT
    active.bucket.store(b"long ago", b"1", expiry=1, number=0)
    assert replica.status("get_replica", key=b"\0long ago") is Status.KEY_ENOENT


def test_parts_of_a_document_are_read_from_a_replica() -> None:
    active, replica = pair()
    store(active, value=b'{"n":1}')
    assert lookups(replica, (GET, 0, "n"), fields=REPLICA_READ)[1] == [(0, b"1")]
    assert lookups(active, (GET, 0, "n"), fields=REPLICA_READ)[0].status == Status.NOT_MY_VBUCKET
    active.request("delete", key=KEY)
    assert lookups(replica, (GET, 0, "n"), fields=REPLICA_READ)[0].status == Status.KEY_ENOENT
    assert lookups(pair("7.2")[1], (GET, 0, "n"), fields=REPLICA_READ)[0].status == Status.EINVAL


def test_each_copy_says_in_which_state_it_has_documents() -> None:
    active, replica = pair()
    kept, deleted = store(active, value=b"1").cas, store(active, key=b"\0gone").cas
    active.request("delete", key=b"\0gone")
    active.bucket.set_persistence(active.bucket.nodes[1], False)
    active.bucket.set_replica_lag(1)
    newest = store(active, value=b"2").cas
    names = (KEY, b"\0gone", b"\0never")
    question = b"".join(struct.pack(">HH", 0, len(name)) + name for name in names)

    def states(client: CommandClient) -> list[tuple[int, int]]:
        answer, found = client.request("observe", value=question).value, []
        for name in names:
            assert answer[: 4 + len(name)] == struct.pack(">HH", 0, len(name)) + name
            found.append(struct.unpack_from(">BQ", answer, 4 + len(name)))
            answer = answer[4 + len(name) + 9 :]
        assert not answer
        return [(state, cas) for state, cas in found]

    assert [state for state, _ in states(active)] == [0x01, 0x81, 0x80]
    assert states(active)[0] == (0x01, newest)
    assert states(active)[2] == (0x80, 0)
    assert states(replica)[0] == (0x01, kept)
    assert states(replica)[1][1] > deleted
    active.bucket.set_replica_lag(0)
    assert states(replica)[0] == (0x00, newest)


def test_a_malformed_question_is_refused() -> None:
    active, _ = pair()
    for value in (b"\0", struct.pack(">HH", 0, 9) + KEY):
        assert active.status("observe", value=value) is Status.EINVAL
    assert active.status("observe", value=struct.pack(">HH", 7, 2) + KEY[:2]) is Status.NOT_MY_VBUCKET
