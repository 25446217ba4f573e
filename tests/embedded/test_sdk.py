"""Couchbase's own Python SDK: its writes are streamed, and it reads what the cluster wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

import dcp
from dcp.embedded import Cluster
from dcp.wire.document import split_collection
from dcp.wire.memcached import FEATURES, Feature, Status
from tests.embedded.sockets import Client, addresses_of, plain_auth, request

pytest.importorskip("couchbase", reason="the official client is not installed")
auth = pytest.importorskip("couchbase.auth")
errors = pytest.importorskip("couchbase.exceptions")
options = pytest.importorskip("couchbase.options")
subdocument = pytest.importorskip("couchbase.subdocument")
Sdk = pytest.importorskip("couchbase.cluster").Cluster

VBUCKETS = 8
CHANGES = ("mutation", "deletion", "expiration")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2, vbuckets=VBUCKETS, replicas=1, tls=True) as cluster:
        cluster.create_scope("inventory")
        cluster.create_collection("inventory", "hotel")
        yield cluster


def connect(cluster: Cluster, *, tls: bool = False, password: str | None = None) -> Any:
    # The SDK does not accept credentials in the URL.
    addresses = ",".join(f"{host}:{port}" for host, port in addresses_of(cluster.tls_url if tls else cluster.url))
    me = cluster.credentials
    who = auth.PasswordAuthenticator(
        me.username, password or me.password, **({"cert_path": cluster.ca_file} if tls else {})
    )
    return Sdk(f"couchbase{'s' if tls else ''}://{addresses}", options.ClusterOptions(who))


@pytest.fixture(scope="module", params=["plain", "tls"])
def sdk(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Any]:
    sdk = connect(cluster, tls=request.param == "tls")
    yield sdk
    sdk.close()


@pytest.fixture(params=["_default._default", "inventory.hotel"])
def path(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def collection(sdk: Any, path: str) -> Any:
    scope, name = path.split(".")
    return sdk.bucket("default").scope(scope).collection(name)


def changes(cluster: Cluster, path: str, key: str) -> list[dcp.Frame]:
    """Return the latest change of a document, as a DCP consumer of all vbuckets receives it."""
    found = []
    me, ids = cluster.credentials, {"_default._default": 0, "inventory.hotel": 9}
    for node in range(len(cluster.addresses)):
        with Client(cluster, node=node) as client:
            features = [Feature.XERROR, Feature.SELECT_BUCKET, Feature.JSON, Feature.COLLECTIONS]
            client.exchange(
                request("hello", value=FEATURES.encode(features)),
                plain_auth(me.username, me.password),
                request("select_bucket", key=b"default"),
                request("open", key=b"reader", fields={"flags": 0x21}),
                request("control", key=b"enable_noop", value=b"true"),
                request("control", key=b"enable_expiry_opcode", value=b"true"),
            )
            (seqnos,) = client.exchange(request("get_all_vb_seqnos", fields={"state": 1}))
            for vbucket, seqno in seqnos.body():
                found += stream(client, vbucket, seqno)
    return [frame for frame in found if split_collection(frame.key) == (ids[path], key.encode())]


def stream(client: Client, vbucket: int, end: int) -> list[dcp.Frame]:
    fields = {"flags": 0, "start_seqno": 0, "end_seqno": end, "vbuuid": 0, "snapshot_start": 0, "snapshot_end": 0}
    (answer,) = client.exchange(request("stream_request", vbucket=vbucket, fields=fields))
    assert answer.status == Status.SUCCESS
    found: list[dcp.Frame] = []
    while not found or found[-1].name != "stream_end":
        found += client.read(1)
    return [frame for frame in found if frame.name in CHANGES]


def test_upserts_of_the_sdk_are_streamed(cluster: Cluster, collection: Any, path: str) -> None:
    result = collection.upsert("upserted", {"n": 1})
    (change,) = changes(cluster, path, "upserted")
    assert (change.name, json.loads(change.value), change.cas) == ("mutation", {"n": 1}, result.cas)
    token = result.mutation_token()
    assert (token.partition_id, token.sequence_number) == (change.vbucket, change.fields["seqno"])
    assert collection.get("upserted").content_as[dict] == {"n": 1}


def test_removals_of_the_sdk_are_streamed(cluster: Cluster, collection: Any, path: str) -> None:
    collection.upsert("removed", "text")
    result = collection.remove("removed")
    (change,) = changes(cluster, path, "removed")
    assert (change.name, change.cas) == ("deletion", result.cas)
    with pytest.raises(errors.DocumentNotFoundException):
        collection.get("removed")
    assert not collection.exists("removed").exists


def test_expiries_of_the_sdk_are_streamed(cluster: Cluster, collection: Any, path: str) -> None:
    collection.upsert("expired", [1], options.UpsertOptions(expiry=timedelta(seconds=1)))
    (before,) = changes(cluster, path, "expired")
    assert int(before.fields["expiry"]) > 1_700_000_000
    while collection.exists("expired").exists:
        pass
    (change,) = changes(cluster, path, "expired")
    assert change.name == "expiration"


def test_the_sdk_reads_documents_of_the_cluster(cluster: Cluster, collection: Any, path: str) -> None:
    cluster.upsert("here", b'{"a": [1, 2]}', collection=path, flags=0x02000006)
    assert collection.get("here").content_as[dict] == {"a": [1, 2]}
    cluster.delete("here", collection=path)
    with pytest.raises(errors.DocumentNotFoundException):
        collection.get("here")


def test_cas_conditions_of_the_sdk_hold(collection: Any) -> None:
    collection.upsert("condition", 1)
    with pytest.raises(errors.DocumentExistsException):
        collection.insert("condition", 2)
    first = collection.replace("condition", 2)
    collection.replace("condition", 3, options.ReplaceOptions(cas=first.cas))
    with pytest.raises(errors.CasMismatchException):
        collection.replace("condition", 4, options.ReplaceOptions(cas=first.cas))
    assert collection.get_and_touch("condition", timedelta(seconds=60)).content_as[int] == 3
    collection.touch("condition", timedelta(seconds=0))
    collection.remove("condition")


def test_counters_of_the_sdk_work(collection: Any) -> None:
    binary, begin = collection.binary(), options.SignedInt64(5)
    assert [binary.increment("counter", options.IncrementOptions(initial=begin)).content for _ in range(3)] == [5, 6, 7]
    assert binary.decrement("counter").content == 6
    collection.remove("counter")


def test_parts_of_documents_are_read_and_changed(cluster: Cluster, collection: Any, path: str) -> None:
    collection.upsert("parts", {"a": {"b": [1, 2]}, "n": 5}, options.UpsertOptions(expiry=timedelta(hours=1)))
    assert collection.get("parts", options.GetOptions(with_expiry=True)).expiry_time.timestamp() > 1_700_000_000
    found = collection.lookup_in(
        "parts", [subdocument.get("a.b[1]"), subdocument.count("a.b"), subdocument.exists("x")]
    )
    assert (found.content_as[int](0), found.content_as[int](1), found.exists(2)) == (2, 2, False)
    changed = collection.mutate_in(
        "parts",
        [
            subdocument.upsert("txn.cas", subdocument.MutationMacro.cas(), xattr=True, create_parents=True),
            subdocument.array_append("a.b", 3),
            subdocument.increment("n", 2),
        ],
    )
    assert changed.content_as[int](2) == 7
    assert collection.get("parts").content_as[dict] == {"a": {"b": [1, 2, 3]}, "n": 7}
    (change,) = changes(cluster, path, "parts")
    assert (change.cas, json.loads(change.value)) == (changed.cas, {"a": {"b": [1, 2, 3]}, "n": 7})
    collection.remove("parts")


def test_a_locked_document_is_written_by_its_owner_only(collection: Any) -> None:
    collection.upsert("locked", 1)
    lock = collection.get_and_lock("locked", timedelta(seconds=30))
    with pytest.raises(errors.DocumentLockedException):
        collection.upsert("locked", 2, options.UpsertOptions(timeout=timedelta(milliseconds=100)))
    collection.unlock("locked", lock.cas)
    collection.upsert("locked", 3)
    collection.remove("locked")


def test_collections_are_created_and_dropped(cluster: Cluster, sdk: Any) -> None:
    manager = sdk.bucket("default").collections()
    manager.create_scope("made")
    manager.create_collection("made", "here")
    sdk.bucket("default").scope("made").collection("here").upsert("key", 1)
    assert list(cluster.truth("made.here")) == [b"key"]
    with pytest.raises(errors.ScopeAlreadyExistsException):
        manager.create_scope("made")
    manager.drop_scope("made")
    assert "made" not in [scope.name for scope in manager.get_all_scopes()]


def test_many_documents_reach_all_nodes(cluster: Cluster, collection: Any, path: str) -> None:
    documents = {f"many-{n}": n for n in range(200)}
    assert collection.upsert_multi(documents).all_ok
    truth = cluster.truth(path)
    assert {int(truth[key.encode()].value) for key in documents} == set(range(200))
    assert {truth[key.encode()].vbucket for key in documents} == set(range(VBUCKETS))
    assert collection.get_any_replica("many-7").content_as[int] == 7
    assert collection.remove_multi(list(documents)).all_ok


def test_the_sdk_finds_the_cluster_ready(sdk: Any) -> None:
    sdk.wait_until_ready(timedelta(seconds=10))


def test_the_sdk_is_refused_with_a_wrong_password(cluster: Cluster) -> None:
    with pytest.raises(errors.AuthenticationException):
        connect(cluster, password="wrong")
