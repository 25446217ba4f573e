"""Commands that lock documents, and what a lock keeps others from."""

from __future__ import annotations

from typing import Any

import pytest

from dcp.embedded import topology
from dcp.wire.memcached import Feature, Status
from tests.embedded.raw_client import KEY, NOW, Clock, CommandClient, make_bucket, store, stored_item

HIDDEN = (1 << 64) - 1


def lock(client: CommandClient, **fields: int) -> int:
    """Lock the document; return the CAS of the lock."""
    found = client.request("get_locked", key=KEY, fields=fields)
    assert (found.status, found.value, found.fields["flags"]) == (Status.SUCCESS, b"1", 7)
    return found.cas


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def locking(clock: Clock) -> CommandClient:
    """Client of a bucket with one document."""
    client = CommandClient(make_bucket(vbuckets=4, clock=clock))
    client.hello()
    store(client, value=b"1", flags=7)
    return client


WRITES: dict[str, dict[str, Any]] = {
    "set": {"fields": {"flags": 0, "expiry": 0}, "value": b"2"},
    "replace": {"fields": {"flags": 0, "expiry": 0}, "value": b"2"},
    "append": {"value": b"2"},
    "increment": {"fields": {"delta": 1, "initial": 0, "expiry": 0}},
    "delete": {},
}


@pytest.mark.parametrize(("name", "parts"), WRITES.items())
def test_only_a_write_with_the_cas_of_the_lock_is_possible(
    locking: CommandClient, name: str, parts: dict[str, Any]
) -> None:
    before = stored_item(locking)
    cas = lock(locking)
    assert cas > before.cas
    for other in (0, before.cas, cas + 1):
        assert locking.status(name, key=KEY, cas=other, **parts) is Status.LOCKED
    assert stored_item(locking) == before
    assert locking.status(name, key=KEY, cas=cas, **parts) is Status.SUCCESS
    assert stored_item(locking).seqno == before.seqno + 1
    # The write has ended the lock.
    assert store(locking, value=b"3").status == Status.SUCCESS


@pytest.mark.parametrize("name", ["touch", "gat"])
def test_a_locked_document_is_not_touched(locking: CommandClient, name: str) -> None:
    cas = lock(locking)
    assert locking.status(name, key=KEY, cas=cas, fields={"expiry": NOW + 9}) is Status.LOCKED
    assert stored_item(locking).expiry == 0


def test_the_cas_of_a_locked_document_is_hidden(locking: CommandClient) -> None:
    cas = lock(locking)
    assert locking.request("get", key=KEY).cas == locking.request("getk", key=KEY).cas == HIDDEN
    assert locking.status("unlock_key", key=KEY, cas=cas) is Status.SUCCESS
    # A lock is no change of the document.
    assert locking.request("get", key=KEY).cas == stored_item(locking).cas < cas


@pytest.mark.parametrize(("fields", "seconds"), [({}, 15), ({"lock_time": 0}, 15), ({"lock_time": 1}, 1),
                                                 ({"lock_time": 30}, 30), ({"lock_time": 31}, 15)])  # fmt: skip
def test_a_lock_ends_after_its_time(locking: CommandClient, clock: Clock, fields: dict[str, int], seconds: int) -> None:
    lock(locking, **fields)
    clock.now += seconds - 0.5
    assert locking.status("get_locked", key=KEY) is Status.LOCKED
    clock.now += 0.5
    assert store(locking, value=b"2").status == Status.SUCCESS


def test_a_lock_ends_with_its_cas_only(locking: CommandClient) -> None:
    cas = lock(locking)
    assert locking.status("unlock_key", key=KEY) is Status.EINVAL
    assert locking.status("unlock_key", key=KEY, cas=cas + 1) is Status.LOCKED
    assert locking.status("unlock_key", key=KEY, cas=cas) is Status.SUCCESS
    assert locking.status("unlock_key", key=KEY, cas=cas) is Status.NOT_LOCKED
    lock(locking)


@pytest.mark.parametrize("name", ["get_locked", "unlock_key"])
def test_what_does_not_exist_has_no_lock(locking: CommandClient, name: str) -> None:
    assert locking.status(name, key=b"\0other", cas=1) is Status.KEY_ENOENT
    assert locking.status(name, key=b"\x15other", cas=1) is Status.UNKNOWN_COLLECTION


def test_older_clients_and_releases_have_other_statuses() -> None:
    client = CommandClient(make_bucket("7.2"))
    client.hello(Feature.SELECT_BUCKET)
    store(client, key=b"key", value=b"1", flags=7)
    assert client.request("get_locked", key=b"key").cas
    assert client.status("get_locked", key=b"key") is Status.ETMPFAIL
    assert store(client, key=b"key").status == Status.KEY_EEXISTS
    client.hello(Feature.XERROR)
    store(client, key=b"other")
    assert client.status("unlock_key", key=b"other", cas=1) is Status.ETMPFAIL


def test_a_replica_that_becomes_active_has_no_locks(clock: Clock) -> None:
    bucket = make_bucket(nodes=2, vbuckets=1, replicas=1, clock=clock)
    client = CommandClient(bucket)
    client.hello()
    store(client, value=b"1", flags=7)
    lock(client)
    topology.promote(bucket, 0, 1)
    client = CommandClient(bucket, node=1)
    client.hello()
    assert store(client, value=b"2").status == Status.SUCCESS
