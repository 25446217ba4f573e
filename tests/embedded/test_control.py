"""The control service of a cluster, as HTTP clients see it."""

from __future__ import annotations

import inspect
import json
import re
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatch
from http.client import HTTPResponse
from itertools import pairwise
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

import pytest

import dcp
from dcp.embedded import FAULTS, Cluster, Privilege, User
from dcp.embedded.control.event_log import EventLog
from dcp.embedded.control.operations import GROUPS, Parameter, operations
from dcp.embedded.control.state import ClusterView, EventStream
from dcp.embedded.faults.fault import options_of
from dcp.wire.dcp import OpenFlag, StreamEnd
from tests.embedded.consumer import Consumer
from tests.embedded.sockets import TIMEOUT, Client, plain_auth, request
from tests.embedded.test_management import basic, login, send
from tests.pages import ROOT
from tests.waiting import until

READER = User("reader", "s3cret", frozenset({Privilege.READ, Privilege.DCP}))
PARTIAL = User("partial", "s3cret", collections=frozenset({"_default"}))
HOSTILE = "<script>alert(1)</script>\u202e\x00\x07"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, vbuckets=8, replicas=1, users=[READER, PARTIAL]) as cluster:
        yield cluster


def post(cluster: Cluster, operation: str, base: str = "", **arguments: Any) -> Any:
    """Run an operation and return its result."""
    headers = login(cluster) | {"Content-Type": "application/json"}
    url = f"{base or cluster.control_url}/{operation}"
    with send(url, headers, data=json.dumps(arguments).encode(), method="POST") as response:
        return json.load(response)["result"]


def refusal(cluster: Cluster, path: str, status: int, headers: dict[str, str] | None = None, **parts: Any) -> str:
    """Send a request that is refused with this status; return the sentence."""
    with pytest.raises(HTTPError) as caught:
        send(cluster.control_url + path, login(cluster) if headers is None else headers, **parts)
    with caught.value as error:
        assert (error.status, error.headers["Content-Type"]) == (status, "application/json")
        return str(json.load(error)["error"])


def refused(cluster: Cluster, operation: str, **arguments: Any) -> str:
    headers = login(cluster) | {"Content-Type": "application/json"}
    return refusal(cluster, f"/{operation}", 400, headers, data=json.dumps(arguments).encode())


def state(cluster: Cluster) -> Any:
    with send(cluster.control_url, login(cluster)) as response:
        return json.load(response)


@contextmanager
def watching(cluster: Cluster) -> Iterator[Iterator[Any]]:
    """Yield the events of a cluster."""
    with send(f"{cluster.control_url}/events", login(cluster)) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        yield (json.loads(line[6:]) for line in response if line.startswith(b"data: "))


# Operations.


def test_every_public_method_that_changes_or_reads_a_cluster_is_an_operation() -> None:
    methods = {name for name, value in vars(Cluster).items() if inspect.isfunction(value) and name[0] != "_"}
    assert {name for names in GROUPS.values() for name in names} == methods - {"close"}


def test_documents_are_written_and_read(cluster: Cluster) -> None:
    assert post(cluster, "upsert", key="a", value={"x": [1, None]}, xattrs={"m": "1", "n": {"by": "me"}}) == "1"
    post(cluster, "upsert", key_hex="00ff", value_hex="ff")
    post(cluster, "upsert", key="text", value='{"kept": 4.50}', flags=7)
    assert {key: found.value for key, found in cluster.truth().items()} == {
        b"a": b'{"x":[1,null]}',
        b"\0\xff": b"\xff",
        b"text": b'{"kept": 4.50}',
    }
    assert post(cluster, "get", key="text") == {"value": '{"kept": 4.50}'}
    assert post(cluster, "get", key_hex="00ff") == {"value_hex": "ff"}
    assert post(cluster, "get", key="none") is None
    documents = {one.get("key", one.get("key_hex")): one for one in post(cluster, "truth")}
    cas = cluster.truth()[b"text"].cas
    assert (documents["text"]["cas"], documents["text"]["flags"]) == (str(cas), 7)
    assert documents["00ff"]["value_hex"] == "ff"
    assert int(post(cluster, "delete", key="a")) > 1
    assert b"a" not in cluster.truth()


def test_nodes_and_vbuckets_are_changed(cluster: Cluster) -> None:
    assert post(cluster, "failover", node=2, lose=0) is None
    assert len(cluster.addresses) == 2
    assert post(cluster, "rebalance_in") == 3
    owner = state(cluster)["vbuckets"][0]["owner"]
    post(cluster, "move", vbucket=0, node=3 if owner != 3 else 0)
    assert state(cluster)["vbuckets"][0]["owner"] != owner
    assert post(cluster, "stats")["0"]["connections"] == 0


def test_a_fault_is_started_listed_and_cleared(cluster: Cluster) -> None:
    started = post(cluster, "fault", name="refuse", status="KEY_ENOENT", vbuckets="0-7", times=1)
    assert started["number"] == 1
    with dcp.connect(cluster.url) as client, client.stream(start="beginning") as stream:
        (listed,) = until(lambda: [one for one in post(cluster, "faults") if one["hits"]])
        stream.close()
    assert listed == {
        "number": 1,
        "name": "refuse",
        "options": {"status": "KEY_ENOENT", "vbuckets": "0,1,2,3,4,5,6,7", "times": "1"},
        "hits": 1,
    }
    post(cluster, "clear_fault", number=1)
    assert post(cluster, "faults") == []
    assert refused(cluster, "clear_fault", number=1) == "number: expected that of an active fault, found 1"


def test_the_only_node_may_crash_and_recover() -> None:
    with Cluster(vbuckets=2) as cluster:
        cluster.upsert("key", "1")
        post(cluster, "crash", node=0)
        assert not cluster.addresses
        post(cluster, "recover", node=0)
        assert cluster.get("key") == b"1"


def test_every_node_answers_as_well_and_has_answered_before_it_stops(cluster: Cluster) -> None:
    for operation in ("restart", "crash"):
        assert post(cluster, operation, f"{cluster.management_url}/control", node=0) is None
    assert len(cluster.addresses) == 2


def test_collections_are_created(cluster: Cluster) -> None:
    post(cluster, "create_scope", name="shop")
    post(cluster, "create_collection", scope="shop", name="order", max_ttl=60)
    post(cluster, "upsert", key="a", value="1", collection="shop.order")
    assert post(cluster, "collection_ids") == {"_default._default": 0, "shop.order": 9}
    assert [one["path"] for one in state(cluster)["collections"]["shown"]] == ["_default._default", "shop.order"]


@pytest.mark.parametrize(
    ("operation", "arguments", "reason"),
    [
        ("failover", {"node": "a"}, "failover: node: expected a whole number, found 'a'"),
        ("failover", {"node": True}, "failover: node: expected a whole number, found True"),
        ("failover", {}, "failover: node: expected a whole number, found none"),
        ("failover", {"nod": 1}, "failover: expected arguments among node, lose, found 'nod'"),
        ("failover", {"node": 9}, "node: expected 0 to 2, found 9"),
        ("failover", {"node": 10**400}, "node: expected 0 to 2, found 1000"),
        ("rebalance_in", {"node": 1}, "rebalance_in: expected arguments among none, found 'node'"),
        ("upsert", {"key": "a", "value": 1}, "upsert: value: expected text, an object or an array, found 1"),
        ("upsert", {"key": "a", "value_hex": "x"}, "upsert: value_hex: expected hexadecimal digits, found 'x'"),
        ("upsert", {"key": "a", "value_hex": 7}, "upsert: value_hex: expected hexadecimal digits, found 7"),
        ("upsert", {"key": "", "value": ""}, "key: expected 1 to 250 bytes, found 0"),
        ("upsert", {"key": "\ud800", "value": ""}, "expected the arguments as JSON, in UTF-8"),
        (
            "upsert",
            {"key": "a", "value": "", "xattrs": {"a": 1}},
            "xattrs: expected a dict of JSON texts, dicts or lists by name",
        ),
        ("delete", {"key": "a"}, "key 'a': there is no such document"),
        ("load", {"count": 1, "value": "f"}, "load: expected arguments among count, value_size, seed, prefix, coll"),
        ("fault", {"name": "gap", "items": {}}, "fault gap: items: expected a number of at least 1"),
        ("fault", {"name": "unknown"}, "fault: expected one of pause"),
        ("close", {}, "expected an operation among failover"),
        ("__class__", {}, "expected an operation among failover"),
        ("recorded_versions", {}, "recorded_versions: expected Cluster(record_versions=True), found it off"),
    ],
)
def test_a_refusal_is_a_sentence(cluster: Cluster, operation: str, arguments: Any, reason: str) -> None:
    assert refused(cluster, operation, **arguments).startswith(reason)
    assert post(cluster, "truth") == []


@pytest.mark.parametrize(
    "body", [b"{", b"[1,", b"\xff", b"[" * 100_000, b'{"node": NaN}', b'{"node": 1' + b"0" * 5000 + b"}"]
)
def test_arguments_that_are_no_json_are_refused(cluster: Cluster, body: bytes) -> None:
    headers = login(cluster) | {"Content-Type": "application/json"}
    assert "expected the arguments as JSON" in refusal(cluster, "/failover", 400, headers, data=body)
    assert len(cluster.addresses) == 3


@pytest.mark.parametrize("body", [b"", b"{}", b"null"])
def test_an_operation_without_arguments_needs_no_body(cluster: Cluster, body: bytes) -> None:
    headers = login(cluster) | {"Content-Type": "application/json"}
    with send(f"{cluster.control_url}/rebalance_in", headers, data=body, method="POST") as response:
        assert json.load(response) == {"result": 3}


def test_arguments_are_an_object(cluster: Cluster) -> None:
    headers = login(cluster) | {"Content-Type": "application/json"}
    assert refusal(cluster, "/failover", 400, headers, data=b"[0]") == "failover: expected an object with the arguments"


# Users, and pages of others.


@pytest.mark.parametrize("path", ["", "/operations", "/events", "/failover", "/../page/page.js"])
@pytest.mark.parametrize("headers", [{}, basic("dcp", "wrong"), {"Authorization": "Bearer x"}])
def test_only_users_are_answered(cluster: Cluster, path: str, headers: dict[str, str]) -> None:
    assert refusal(cluster, path, 401, headers).startswith("authenticate as a user of the cluster")


@pytest.mark.parametrize("user", [READER, PARTIAL])
def test_users_need_all_privileges(cluster: Cluster, user: User) -> None:
    for path in ("", "/events", "/operations", "/failover"):
        text = refusal(cluster, path, 403, basic(user.name, user.password))
        assert text == f"user {user.name}: expected one with all privileges"


def test_old_releases_ask_for_the_user_as_well() -> None:
    with Cluster(server_version="4.6", vbuckets=2) as cluster:
        refusal(cluster, "", 401, {})
        assert post(cluster, "upsert", key="a", value="1") == "1"


@pytest.mark.parametrize(
    "given",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "text/plain; application/json", ""],
)
def test_a_type_that_browsers_send_to_any_server_is_refused(cluster: Cluster, given: str) -> None:
    text = refusal(cluster, "/failover", 415, login(cluster) | {"Content-Type": given}, data=b'{"node": 0}')
    assert text.startswith("Content-Type: expected application/json")
    assert len(cluster.addresses) == 3


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
def test_changes_for_the_pages_of_others_are_refused(cluster: Cluster, origin: str) -> None:
    headers = login(cluster) | {"Content-Type": "application/json", "Origin": origin}
    assert refusal(cluster, "/failover", 403, headers, data=b'{"node": 0}') == (
        "requests of the pages of other servers are refused"
    )
    # Those of the management service, which take forms, as well.
    url = f"{cluster.management_url}/pools/default/buckets/default/scopes"
    with pytest.raises(HTTPError, match="403"):
        send(url, login(cluster) | {"Origin": origin}, data=b"name=theirs")
    assert len(cluster.addresses) == 3
    assert list(cluster.collection_ids()) == ["_default._default"]


def test_no_other_server_is_admitted(cluster: Cluster) -> None:
    with send(cluster.control_url, login(cluster) | {"Origin": "http://evil.example"}) as response:
        assert not [name for name in response.headers if name.lower().startswith("access-control")]
    refusal(cluster, "/failover", 403, login(cluster) | {"Origin": "http://evil.example"}, method="OPTIONS")


@pytest.mark.parametrize(
    ("path", "method", "allowed"), [("", "POST", "GET"), ("/events", "PUT", "GET"), ("/failover", "GET", "POST")]
)
def test_the_method_has_to_be_right(cluster: Cluster, path: str, method: str, allowed: str) -> None:
    assert refusal(cluster, path, 405, method=method) == f"expected {allowed}, found {method}"


def test_what_is_no_request_is_refused_with_a_sentence(cluster: Cluster) -> None:
    parts = urlsplit(cluster.control_url)
    with socket.create_connection((parts.hostname, parts.port), TIMEOUT) as sock, HTTPResponse(sock) as response:
        sock.sendall(b"POST /control/load HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n")
        response.begin()
        assert (response.status, json.load(response)) == (413, {"error": "Request Entity Too Large"})


# The state and its events.


def _busy(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@pytest.mark.parametrize(("seconds", "rest"), [(0.0, (0.5, 0.5)), (0.01, (0.9, 3.0)), (0.1, (3.0, 3.0))])
def test_events_that_take_long_become_rarer_but_do_not_cease(seconds: float, rest: tuple[float, float]) -> None:
    with Cluster(vbuckets=1) as cluster:

        def addresses() -> dict[str, Any]:
            _busy(seconds)
            return {}

        view = ClusterView(cluster._bucket, cluster._server, cluster._log, cluster.faults, addresses)
        events = EventStream(view, lambda stream: None)
        assert b"data: {" in events.take(100.0)
        due = events.due()
        assert due is not None
        assert rest[0] <= due - 100.0 <= rest[1]


def events_of(cluster: Cluster) -> EventStream:
    """Return a stream of events that only the test reads."""
    view = ClusterView(cluster._bucket, cluster._server, cluster._log, cluster.faults, dict)
    return EventStream(view, lambda stream: None)


def taken_at(events: EventStream, now: float) -> Any:
    """Return the event that is taken at a time: a document or a comment; None if nothing is sent."""
    data = events.take(now)
    if not data:
        return None
    size, _, text = data.partition(b"\r\n")
    assert len(text) == int(size, 16) + 2
    line = text.decode().removesuffix("\n\n\r\n")
    return json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else line


def test_an_event_has_its_time_and_the_seconds_since_the_one_before() -> None:
    with Cluster(vbuckets=2) as cluster:
        cluster.snapshot()
        events = events_of(cluster)
        first = taken_at(events, 100.0)
        assert first["seconds"] == 0.0
        assert first["time"] == round(first["time"], 3)
        # From the first call on that the log has.
        assert [event["number"] for event in first["log"]] == [1]
        cluster.upsert("key", "1")
        # Nothing is sent before it is due.
        assert taken_at(events, 100.1) is None
        events.tick(101.2345678)
        assert events.due() == 101.2345678 + 0.5
        second = taken_at(events, 101.2345678)
        assert (second["seconds"], second["total"]) == (1.235, 1)


def test_a_stream_without_events_says_now_and_then_that_it_is_alive() -> None:
    with Cluster(vbuckets=2) as cluster:
        events = events_of(cluster)
        taken = []
        for now in (100.0, 100.5, 114.9, 115.0, 115.5, 129.9, 130.0):
            events.tick(now)
            found = taken_at(events, now)
            taken.append(found if found is None or isinstance(found, str) else "state")
    assert taken == ["state", None, None, ": alive", None, None, ": alive"]


def test_the_state_has_connections_with_their_streams(cluster: Cluster) -> None:
    cluster.load(100)
    with dcp.connect(cluster.url) as client, client.stream(start="beginning") as stream:
        next(stream)

        def connected() -> Any:
            seen = state(cluster)["connections"]
            return sum(len(connection["shown"]) for connection in seen["shown"]) == 8 and seen

        found = until(connected)
        assert len(found["shown"]) == 3
        streams = [one for connection in found["shown"] for one in connection["shown"]]
        assert sorted(one["vbucket"] for one in streams) == list(range(8))
        assert all(connection["window"] > 0 for connection in found["shown"])
        assert {"collections", "noop"} <= set(found["shown"][0]["agreed"])
        until(lambda: sum(one["items"] for one in state(cluster)["connections"]["shown"]) == 100)
    until(lambda: state(cluster)["connections"]["count"] == 0)


def test_a_stream_whose_window_is_full_is_shown_with_its_backlog() -> None:
    with Cluster(vbuckets=2) as cluster:
        for number in range(200):
            cluster.upsert(f"key-{number}", b"x" * 30)
        highs = [cluster._bucket.active(number).high_seqno for number in range(2)]
        with Consumer(cluster, controls={"connection_buffer_size": "300"}) as consumer:
            consumer.stream(0, end=1000)

            def full() -> Any:
                (shown,) = state(cluster)["connections"]["shown"]
                return shown["unacknowledged"] >= 300 and shown

            shown = until(full)
            (stream,) = shown["shown"]
            assert 0 < stream["seqno"] < highs[0]
            assert stream["behind"] == shown["behind"] == highs[0] - stream["seqno"]
            assert (stream["vbucket"], stream["end"], stream["stream_id"]) == (0, 1000, None)
            assert (shown["window"], shown["streams"], shown["items"]) == (300, 1, stream["seqno"])
            consumer.stream(1)
            # The one that is behind most is the first.
            (shown,) = state(cluster)["connections"]["shown"]
            behind = {stream["vbucket"]: stream["behind"] for stream in shown["shown"]}
            assert behind == {0: highs[0] - stream["seqno"], 1: highs[1]}
            assert [*behind.values()] == sorted(behind.values(), reverse=True)
            assert shown["behind"] == sum(behind.values())


def test_a_node_has_its_copies() -> None:
    with Cluster(nodes=3, vbuckets=4, replicas=2) as cluster:
        cluster.crash(1)
        cluster.failover(1)
        nodes = state(cluster)["nodes"]
        owners = [vbucket["owner"] for vbucket in state(cluster)["vbuckets"]]
    assert [node["active"] for node in nodes] == [owners.count(number) for number in range(3)]
    assert [node["active"] + node["replicas"] for node in nodes] == [4, 0, 4]


def test_a_node_is_up_down_or_failed_over() -> None:
    with Cluster(nodes=3, vbuckets=4, replicas=1) as cluster:
        cluster.crash(1)
        cluster.failover(2)
        assert [node["state"] for node in state(cluster)["nodes"]] == ["up", "down", "out"]


def test_events_have_the_state_and_then_what_changes(cluster: Cluster) -> None:
    cluster.load(100)
    with watching(cluster) as events:
        first = next(events)
        assert first["cluster"]["vbuckets"] == 8
        assert [owner for _, owner, _ in first["owners"]] == [0, 1, 2, 0, 1, 2, 0, 1]
        assert sum(first["seqnos"][1::2]) == first["total"] == 100
        cluster.upsert("key", "1")
        changed = next(events)
        assert (len(changed["seqnos"]), changed["total"]) == (2, 101)
        assert not {"cluster", "owners", "collections"} & set(changed)
        cluster.failover(1)
        moved = next(events)
        assert [node["state"] for node in moved["nodes"]] == ["up", "out", "up"]
        assert [event["text"] for event in moved["log"]] == ["failover(node=1, lose=None)"]
        assert not any(owner == 1 for _, *owners in moved["owners"] for owner in owners)


def test_events_are_a_few_a_second_whatever_changes(cluster: Cluster) -> None:
    with watching(cluster) as events:
        next(events)
        times = []
        for number in range(8):
            cluster.upsert(f"key-{number}", "1")
            times.append(next(events)["time"])
    assert all(after - before > 0.4 for before, after in pairwise(times))


def test_the_state_of_many_vbuckets_arrives_in_pieces() -> None:
    with Cluster(vbuckets=3000) as cluster:
        events, numbers = events_of(cluster), list[list[int]]()
        for now in range(4):
            events.tick(now)
            taken = taken_at(events, now)
            assert isinstance(taken, dict)
            numbers.append(taken["seqnos"][::2])
            # All change all the time, and every one has its turn.
            for number in range(3000):
                cluster._bucket.store(b"key", b"", number=number)
    assert [(each[0], each[-1], len(each)) for each in numbers] == [
        (0, 2047, 2048),
        (2048, 1095, 2048),
        (1096, 143, 2048),
        (144, 2191, 2048),
    ]


def test_what_clients_choose_is_bounded(cluster: Cluster) -> None:
    with ExitStack() as stack:
        for number in range(40):
            client = stack.enter_context(Client(cluster))
            client.exchange(plain_auth("dcp", cluster.credentials.password))
            client.exchange(request("select_bucket", key=b"default"))
            name = f"{number}{HOSTILE}{300 * 'x'}".encode()
            fields = {"flags": int(OpenFlag.PRODUCER)}
            assert client.exchange(request("open", key=name[:200] if number else name, fields=fields))[0].status == 0
        found = state(cluster)["connections"]
    assert (found["count"], len(found["shown"])) == (40, 32)
    names = [one["name"] for one in found["shown"]]
    assert max(map(len, names)) == 256
    assert all(HOSTILE in name for name in names)


def test_watchers_are_limited_and_forgotten(cluster: Cluster) -> None:
    responses = [send(f"{cluster.control_url}/events", login(cluster)) for _ in range(16)]
    assert refusal(cluster, "/events", 503) == "16 clients watch the cluster already: close one of them"
    for response in responses:
        response.close()

    def admitted() -> bool:
        try:
            with watching(cluster) as events:
                return bool(next(events))
        except HTTPError as error:
            error.close()
            return False

    assert until(admitted)


def test_the_log_has_calls_from_anywhere(cluster: Cluster) -> None:
    cluster.crash(1)
    post(cluster, "recover", node=1)
    with cluster.fault("slow", rate="64k"):
        pass
    cluster.upsert("key", "not logged")
    assert [event["text"] for event in state(cluster)["log"]] == [
        "crash(node=1)",
        "recover(node=1, lose=0)",
        "fault(name='slow', rate='64k')",
        "clear_fault(number=1, name='slow')",
    ]


def test_arguments_are_logged_up_to_a_length() -> None:
    log = EventLog(lambda: 1.0)
    for length in (58, 59):
        log.add("get", {"key": length * "x"})
    shown = [event.text for event in log.since(0)]
    assert shown == [f"get(key='{58 * 'x'}')", f"get(key='{59 * 'x'}…)"]


def test_all_versions_of_a_document_are_read() -> None:
    with Cluster(vbuckets=1, record_versions=True) as cluster:
        for value in ("1", "2"):
            cluster.upsert("key", value)
        (found,) = post(cluster, "recorded_versions")
    assert (found["key"], [version["value"] for version in found["versions"]]) == ("key", ["1", "2"])


@pytest.mark.parametrize(
    ("types", "value", "taken"),
    [
        ((float,), 5, True),
        ((float,), 5.5, True),
        ((float,), True, False),
        ((int,), 5.0, False),
        ((int,), False, False),
        ((bool,), True, True),
        ((str, int), "5", True),
    ],
)
def test_a_whole_number_is_a_number(types: tuple[type, ...], value: object, taken: bool) -> None:
    assert Parameter("name", types, binary=False, required=True, default=None).takes(value) is taken


def test_the_log_is_bounded(cluster: Cluster) -> None:
    for _ in range(300):
        cluster.snapshot()
    numbers = [event["number"] for event in state(cluster)["log"]]
    assert numbers == list(range(101, 301))


@pytest.mark.parametrize("dialect", ["tap", "upr1", "upr2"])
def test_consumers_of_older_dialects_are_shown(dialect: str) -> None:
    with Cluster(vbuckets=2, dialect=dialect) as cluster:
        cluster.load(10)
        url = f"{cluster.url}{'&' if '?' in cluster.url else '?'}dialect={dialect}"
        with dcp.connect(url) as client, client.stream(start="beginning") as stream:
            next(stream)
            (shown,) = until(lambda: state(cluster)["connections"]["shown"])
            assert shown["dialect"] == dialect
            assert shown["streams"] >= 1


# Descriptions.


def test_operations_and_faults_are_described(cluster: Cluster) -> None:
    with send(f"{cluster.control_url}/operations", login(cluster)) as response:
        found = json.load(response)
    assert {one["name"]: one["group"] for one in found["operations"]} == {
        name: group for group, names in GROUPS.items() for name in names
    }
    recover = next(one for one in found["operations"] if one["name"] == "recover")
    assert [(one["name"], one["default"]) for one in recover["parameters"]] == [("node", None), ("lose", 0)]
    upsert = next(one for one in found["operations"] if one["name"] == "upsert")
    assert upsert["parameters"][0] == {
        "name": "key",
        "expected": "text",
        "types": ["string"],
        "required": True,
        "default": None,
    }
    described = {one["name"]: [option["name"] for option in one["options"]] for one in found["faults"]}
    assert described == {name: [option.name for option in options_of(fault)] for name, fault in FAULTS.items()}
    choices = {(one["name"], option["name"]): option["choices"] for one in found["faults"] for option in one["options"]}
    assert choices["refuse", "map"] == ["on", "off"]
    assert choices["end", "status"] == [reason.name for reason in StreamEnd]
    assert choices["bad_map", "defect"] == ["no_vbuckets", "no_locator", "other_bucket"]


def test_every_default_and_choice_of_a_fault_is_one_that_it_takes(cluster: Cluster) -> None:
    with send(f"{cluster.control_url}/operations", login(cluster)) as response:
        faults = json.load(response)["faults"]
    for fault in faults:
        given = {option["name"]: option["default"] for option in fault["options"] if option["default"]}
        post(cluster, "fault", name=fault["name"], **given)
        for option in fault["options"]:
            for choice in option["choices"]:
                post(cluster, "fault", name=fault["name"], **{option["name"]: choice})
    assert {fault.name for fault in cluster.faults()} == set(FAULTS)


# Packages and addresses.


def test_the_files_of_the_page_are_in_the_package() -> None:
    (listed,) = re.findall(r"^dcp = (\[.*\])$", (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    globs = json.loads(listed)
    package = ROOT / "src/dcp"
    files = [path.relative_to(package).as_posix() for path in (package / "embedded").rglob("*") if path.is_file()]
    others = [name for name in files if not name.endswith((".py", ".pyc"))]
    assert len(others) == 3
    assert all(any(fnmatch(name, glob) for glob in globs) for name in others)


def test_the_last_port_is_that_of_the_control_service() -> None:
    with Cluster(nodes=2, vbuckets=2) as free:
        first = int(free.addresses[0].rpartition(":")[2])
    # Ports that were free a moment ago, as far as one can know.
    try:
        cluster = Cluster(nodes=2, vbuckets=2, port=first)
    except dcp.UsageError:
        pytest.skip("another program has taken one of these ports")
    with cluster:
        assert cluster.control_url == f"http://127.0.0.1:{first + 4}/control"
        assert cluster.page_url == f"http://127.0.0.1:{first + 4}/"


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("text/html,application/xhtml+xml,*/*;q=0.8", "text/html; charset=utf-8"),
        ("*/*", "application/json"),
        ("application/json", "application/json"),
        ("", "application/json"),
    ],
)
def test_browsers_get_the_page_of_a_node_and_others_its_document(cluster: Cluster, accept: str, expected: str) -> None:
    with send(cluster.management_url, login(cluster) | {"Accept": accept}) as response:
        assert response.headers["Content-Type"] == expected
        policy = response.headers.get("Content-Security-Policy", "")
        assert ("script-src 'self'" in policy) == (expected != "application/json")


def test_the_service_is_there_over_tls_as_well() -> None:
    pytest.importorskip("cryptography", reason="certificates are made with cryptography")
    with Cluster(vbuckets=2, tls=True) as cluster:
        context = ssl.create_default_context(cafile=cluster.ca_file)
        url, headers = f"{cluster.tls_management_url}/control/snapshot", login(cluster)
        headers |= {"Content-Type": "application/json", "Origin": cluster.tls_management_url}
        with send(url, headers, context=context, data=b"", method="POST") as response:
            assert json.load(response) == {"result": None}


def test_the_guide_lists_every_endpoint_of_the_control_service() -> None:
    text = (ROOT / "docs/testing.md").read_text("utf-8")
    for endpoint in ("GET {control_url}", "GET {control_url}/operations", "GET {control_url}/events"):
        assert f"`{endpoint}`" in text
    assert all(re.search(rf"^\| `{name}\(", text, re.MULTILINE) for name in operations())


def test_a_vbucket_without_owner_has_no_seqno() -> None:
    with Cluster(nodes=2, vbuckets=2, replicas=0) as cluster:
        cluster.load(20)
        cluster.failover(0)
        shown = {vbucket["owner"]: vbucket["high_seqno"] for vbucket in state(cluster)["vbuckets"]}
        assert shown[-1] == 0
        assert shown[1] > 0
