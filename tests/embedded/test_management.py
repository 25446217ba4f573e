"""The management service of a cluster, as HTTP clients on real sockets see it."""

from __future__ import annotations

import json
import re
import socket
import ssl
from base64 import b64encode
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

import pytest

from dcp.embedded import Cluster, Privilege, User
from dcp.embedded.management.connection import ManagementConnection
from dcp.embedded.management.http import HttpError, HttpRequest, HttpResponse, RequestSplitter, stream_head
from dcp.embedded.management.routes import ENDPOINTS
from dcp.errors import LocalProtocolError
from tests.embedded.sockets import TIMEOUT, addresses_of
from tests.pages import ROOT
from tests.waiting import until

READER = User("reader", "s3cret", frozenset({Privilege.READ}))
REFUSED = "Requested resource not found.\r\n"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, vbuckets=4, replicas=1, bucket="a-b%", users=[READER]) as cluster:
        yield cluster


def basic(name: str, password: str) -> dict[str, str]:
    return {"Authorization": f"Basic {b64encode(f'{name}:{password}'.encode()).decode()}"}


def login(cluster: Cluster) -> dict[str, str]:
    return basic(cluster.credentials.username, cluster.credentials.password)


def send(url: str, headers: dict[str, str], *, context: ssl.SSLContext | None = None, **parts: Any) -> Any:
    """Send a request, without a proxy; return the open response."""
    opener = build_opener(ProxyHandler({}), *([HTTPSHandler(context=context)] if context else []))
    return opener.open(Request(url, headers=headers, **parts), timeout=TIMEOUT)


def get(cluster: Cluster, path: str, headers: dict[str, str] | None = None) -> Any:
    with send(cluster.management_url + path, login(cluster) if headers is None else headers) as response:
        return json.load(response)


def change(cluster: Cluster, method: str, path: str, headers: dict[str, str] | None = None, **form: object) -> Any:
    url = f"{cluster.management_url}/pools/default/buckets/a-b%25/scopes{path}"
    with send(url, headers or login(cluster), method=method, data=urlencode(form).encode()) as response:
        return json.load(response)


def refused(status: int, *arguments: Any, **options: Any) -> str:
    with pytest.raises(HTTPError) as caught:
        (change if isinstance(arguments[1], str) and arguments[1].isupper() else get)(*arguments, **options)
    with caught.value as error:
        assert error.status == status
        return error.read().decode()


def documents(response: Any) -> Iterator[Any]:
    """Yield the documents of a stream: each is a line, and empty lines follow it."""
    while line := response.readline():
        if line != b"\n":
            yield json.loads(line)


def management_ports(cluster: Cluster) -> list[int]:
    return [node["services"]["mgmt"] for node in get(cluster, "/pools/default/nodeServices")["nodesExt"]]


def address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return str(parts.hostname), int(parts.port or 0)


# Documents.


@pytest.mark.parametrize("path", ["/", "/pools"])
def test_the_root_names_the_version_and_the_pool(cluster: Cluster, path: str) -> None:
    found = get(cluster, path)
    assert found["implementationVersion"] == "8.0.0-0000-enterprise"
    assert (found["isAdminCreds"], found["isROAdminCreds"]) == (True, False)
    assert found["pools"][0]["uri"].partition("?")[0] == "/pools/default"
    assert get(cluster, found["pools"][0]["uri"])["name"] == "default"


def test_a_user_is_told_its_name(cluster: Cluster) -> None:
    assert get(cluster, "/whoami") == {"id": "dcp", "domain": "local", "roles": [{"role": "admin"}]}
    assert get(cluster, "/whoami", basic("reader", "s3cret"))["roles"] == [{"role": "Read"}]
    assert get(cluster, "/whoami", {}) == {"id": "", "domain": "anonymous", "roles": []}


@pytest.mark.parametrize("path", ["/pools/default", "/pools/nodes"])
def test_the_pool_lists_its_nodes(cluster: Cluster, path: str) -> None:
    found = get(cluster, path)
    assert [node["ports"]["direct"] for node in found["nodes"]] == [port for _, port in addresses_of(cluster.url)]
    assert [node["hostname"] for node in found["nodes"]] == [f"127.0.0.1:{port}" for port in management_ports(cluster)]
    assert [node.get("thisNode", False) for node in found["nodes"]] == [True, False, False]
    assert found["bucketNames"][0]["bucketName"] == "a-b%"
    assert get(cluster, found["buckets"]["uri"])[0]["name"] == "a-b%"


def test_each_node_answers_for_itself(cluster: Cluster) -> None:
    for number, port in enumerate(management_ports(cluster)):
        with send(f"http://127.0.0.1:{port}/pools/default/nodeServices", login(cluster)) as response:
            marks = [node.get("thisNode", False) for node in json.load(response)["nodesExt"]]
        assert marks == [number == other for other in range(3)]


def test_the_bucket_has_settings_and_the_state_of_nodes(cluster: Cluster) -> None:
    found = get(cluster, "/pools/default/buckets/a-b%25")
    assert (found["name"], found["replicaNumber"], found["bucketType"]) == ("a-b%", 1, "membase")
    assert len(found["vBucketServerMap"]["vBucketMap"]) == 4
    assert [node["status"] for node in found["nodes"]] == 3 * ["healthy"]
    assert all(node["ports"].keys() == {"direct"} for node in found["nodes"])
    assert (found["maxTTL"], found["replicaIndex"]) == (0, False)
    # These are in the map of the data service only.
    assert not {"rev", "revEpoch", "nodesExt", "clusterCapabilities", "clusterCapabilitiesVer"} & found.keys()
    cluster.crash(2)
    found = get(cluster, "/pools/default/buckets/a-b%25")
    assert [node["status"] for node in found["nodes"]] == ["healthy", "healthy", "unhealthy"]
    cluster.failover(2)
    assert len(get(cluster, "/pools/default/buckets/a-b%25")["nodes"]) == 2


def test_the_terse_bucket_is_the_map_of_the_data_service(cluster: Cluster) -> None:
    found = get(cluster, "/pools/default/b/a-b%25")
    assert found["vBucketServerMap"]["serverList"] == cluster.addresses
    assert found["rev"] == 1
    assert get(cluster, found["uri"])["uuid"] == found["uuid"]


def test_a_node_on_all_addresses_is_named_as_the_client_names_it() -> None:
    with Cluster(host="0.0.0.0", vbuckets=2) as cluster:
        port = address(cluster.management_url)[1]
        with send(f"http://127.0.0.1:{port}/pools/default", login(cluster)) as response:
            assert json.load(response)["nodes"][0]["hostname"] == f"127.0.0.1:{port}"


@pytest.mark.parametrize("path", ["/pools/other", "/pools/default/b/other", "/pools/default/buckets/other/scopes"])
def test_what_does_not_exist_is_not_found(cluster: Cluster, path: str) -> None:
    assert refused(404, cluster, path) == REFUSED


def test_the_guide_lists_every_endpoint() -> None:
    shown = re.findall(r"`(GET|POST|DELETE) /([^`]*)`", (ROOT / "docs/testing.md").read_text("utf-8"))
    known = {(method, "/".join(path)) for path, methods in ENDPOINTS.items() for method in methods}
    assert sorted(shown) == sorted(known)


# Users.


@pytest.mark.parametrize(
    "headers",
    [
        {},
        basic("dcp", "wrong"),
        basic("nobody", "s3cret"),
        {"Authorization": "Basic ???"},
        {"Authorization": "Bearer abc"},
    ],
)
@pytest.mark.parametrize("path", ["/", "/pools", "/pools/default/bs/a-b%25", "/nowhere"])
def test_only_users_are_answered(cluster: Cluster, path: str, headers: dict[str, str]) -> None:
    with pytest.raises(HTTPError) as caught:
        get(cluster, path, headers)
    with caught.value as error:
        assert error.status == 401
        assert error.headers["WWW-Authenticate"].startswith("Basic realm=")
        assert error.read() == b""


def test_old_releases_admit_everybody() -> None:
    with Cluster(server_version="4.6", vbuckets=2) as cluster:
        found = get(cluster, "/pools/default/b/default", {})
        assert found["vBucketServerMap"]["serverList"] == cluster.addresses
        assert refused(404, cluster, "/pools/default/buckets/default/scopes", {}) == REFUSED


# Streams.


@pytest.mark.parametrize(
    ("path", "count"),
    [
        ("/pools/default/bs/a-b%25", lambda found: len(found["nodesExt"])),
        ("/pools/default/bucketsStreaming/a-b%25", lambda found: len(found["nodes"])),
        ("/pools/default/nodeServicesStreaming", lambda found: len(found["nodesExt"])),
        ("/poolsStreaming/default", lambda found: len(found["nodes"])),
    ],
)
def test_a_stream_has_each_new_map(cluster: Cluster, path: str, count: Any) -> None:
    with send(cluster.management_url + path, login(cluster)) as response:
        stream = documents(response)
        assert count(next(stream)) == 3
        cluster.failover(1)
        assert count(next(stream)) == 2
        cluster.create_scope("other")
        cluster.rebalance_in()
        assert count(next(stream)) == 3


def test_the_streams_of_a_node_end_with_it(cluster: Cluster) -> None:
    ports = management_ports(cluster)
    with send(f"http://127.0.0.1:{ports[1]}/pools/default/bs/a-b%25", login(cluster)) as response:
        stream = documents(response)
        next(stream)
        cluster.rebalance_out(1)
        assert list(stream) == []
        # The node closes the connection, whatever its client does.
        node = cluster._bucket.nodes[1]
        until(lambda: all(link.connection.node is not node for link in cluster._server._all_links))
    with pytest.raises(URLError):
        send(f"http://127.0.0.1:{ports[1]}/pools", login(cluster))


def test_a_stream_says_that_it_ends(cluster: Cluster) -> None:
    head = "".join(f"{name}: {value}\r\n" for name, value in login(cluster).items())
    with socket.create_connection(("127.0.0.1", management_ports(cluster)[1]), TIMEOUT) as sock:
        sock.sendall(f"GET /pools/default/bs/a-b%25 HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode())
        received = sock.recv(1 << 16)
        cluster.rebalance_out(1)
        while data := sock.recv(1 << 16):
            received += data
    assert b"Transfer-Encoding: chunked\r\n" in received
    assert received.endswith(b"\r\n0\r\n\r\n")


@pytest.mark.parametrize("leave", [Cluster.rebalance_out, Cluster.crash, Cluster.failover])
def test_a_connection_without_a_request_ends_with_its_node(
    cluster: Cluster, leave: Callable[[Cluster, int], object]
) -> None:
    connection = HTTPConnection("127.0.0.1", management_ports(cluster)[1], timeout=TIMEOUT)
    connection.request("GET", "/pools", headers=login(cluster))
    connection.getresponse().read()
    leave(cluster, 1)
    assert connection.sock.recv(1) == b""
    connection.close()


def test_a_restarted_node_disconnects_its_clients(cluster: Cluster) -> None:
    with talk(cluster, request_of(cluster, "/pools")) as sock, HTTPResponse(sock) as response:
        response.begin()
        response.read()
        cluster.restart(0)
        assert sock.recv(1) == b""


def test_a_node_recovers_at_its_address(cluster: Cluster) -> None:
    before = management_ports(cluster)
    cluster.crash(0)
    assert address(cluster.management_url)[1] == before[1]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", before[0]), TIMEOUT)
    cluster.recover(0)
    assert management_ports(cluster) == before


def test_a_cluster_closes_all_of_it() -> None:
    with Cluster(vbuckets=2) as cluster:
        url = cluster.management_url
        response = send(f"{url}/pools/default/bs/default", login(cluster))
        next(documents(response))
    with response:
        assert list(documents(response)) == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address(url), TIMEOUT)


# Collections.


def test_collections_are_created_and_dropped(cluster: Cluster) -> None:
    assert change(cluster, "POST", "", name="inventory") == {"uid": "1"}
    assert change(cluster, "POST", "/inventory/collections", name="hotel", maxTTL=60) == {"uid": "2"}
    assert cluster.collection_ids()["inventory.hotel"] == 9
    found = get(cluster, "/pools/default/buckets/a-b%25/scopes")
    assert found["scopes"][1]["collections"] == [{"name": "hotel", "uid": "9", "maxTTL": 60}]
    assert change(cluster, "DELETE", "/inventory/collections/hotel") == {"uid": "3"}
    assert change(cluster, "DELETE", "/inventory") == {"uid": "4"}
    assert list(cluster.collection_ids()) == ["_default._default"]


def test_the_longest_lifetime_of_documents_is_accepted(cluster: Cluster) -> None:
    longest = (1 << 31) - 1
    change(cluster, "POST", "/_default/collections", name="c", maxTTL=longest)
    found = get(cluster, "/pools/default/buckets/a-b%25/scopes")["scopes"][0]["collections"]
    assert [one["maxTTL"] for one in found if one["name"] == "c"] == [longest]
    with pytest.raises(HTTPError) as caught:
        change(cluster, "POST", "/_default/collections", name="d", maxTTL=longest + 1)
    caught.value.close()


@pytest.mark.parametrize(("version", "status"), [("6.6", 404), ("7.0", 200)])
def test_a_manifest_can_be_waited_for_since_7_0(version: str, status: int) -> None:
    with Cluster(vbuckets=1, server_version=version) as cluster:
        connection = connection_of(cluster)
        request = request_of(cluster, "/pools/default/buckets/default/scopes/@ensureManifest/0")
        connection.receive(request.replace(b"GET", b"POST", 1), 0.0)
        assert b"".join(connection.send(0.0)).startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize(
    ("status", "method", "path", "form", "reason"),
    [
        (400, "POST", "", {"name": "here"}, 'Scope with name "here" already exists'),
        (400, "POST", "", {"name": "_no"}, "name '_no': expected"),
        (400, "POST", "", {}, "name '': expected"),
        (400, "POST", "/here/collections", {"name": "c"}, 'Collection with name "c" in scope "here" already exists'),
        (400, "POST", "/here/collections", {"name": "d", "maxTTL": "x"}, "maxTTL must be between"),
        (404, "POST", "/gone/collections", {"name": "c"}, 'Scope with name "gone" is not found'),
        (404, "DELETE", "/here/collections/d", {}, 'Collection with name "d" in scope "here" is not found'),
        (404, "DELETE", "/gone", {}, 'Scope with name "gone" is not found'),
        (400, "DELETE", "/_default", {}, "Deleting _default scope is not allowed"),
    ],
)
def test_a_change_that_is_not_possible_is_refused(
    cluster: Cluster, status: int, method: str, path: str, form: dict[str, str], reason: str
) -> None:
    cluster.create_scope("here")
    cluster.create_collection("here", "c")
    (text,) = json.loads(refused(status, cluster, method, path, **form))["errors"].values()
    assert text.startswith(reason)
    assert list(cluster.collection_ids()) == ["_default._default", "here.c"]


def test_collections_are_changed_with_all_privileges_only(cluster: Cluster) -> None:
    headers = basic("reader", "s3cret")
    assert get(cluster, "/pools/default/buckets/a-b%25/scopes", headers)["uid"] == "0"
    assert "Forbidden" in refused(403, cluster, "POST", "", headers=headers, name="other")
    assert list(cluster.collection_ids()) == ["_default._default"]


# TLS.


def test_the_service_is_there_with_tls_as_well(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="certificates are made with cryptography")
    from dcp.embedded.certificate import Authority

    authority = Authority("authority of clients")
    issued = authority.issue("reader")
    (tmp_path / "ca.pem").write_bytes(authority.certificate)
    (tmp_path / "client.pem").write_bytes(issued.certificate + issued.key)
    with Cluster(vbuckets=2, tls=True, client_ca=str(tmp_path / "ca.pem"), users=[READER]) as cluster:
        (node,) = get(cluster, "/pools/default/b/default")["nodesExt"]
        assert node["services"]["mgmtSSL"] == address(cluster.tls_management_url)[1]
        context = ssl.create_default_context(cafile=cluster.ca_file)
        with send(f"{cluster.tls_management_url}/whoami", login(cluster), context=context) as response:
            assert json.load(response)["id"] == "dcp"
        context.load_cert_chain(tmp_path / "client.pem")
        with send(f"{cluster.tls_management_url}/whoami", {}, context=context) as response:
            assert json.load(response)["id"] == "reader"


def test_each_node_has_its_own_addresses() -> None:
    pytest.importorskip("cryptography", reason="certificates are made with cryptography")
    with Cluster(nodes=2, vbuckets=2, tls=True, server_version="7.6") as cluster:
        services = get(cluster, "/pools/default/nodeServices")["nodesExt"]
        nodes = get(cluster, "/pools/default")["nodes"]
        assert len({node.pop("nodeUUID") for node in nodes}) == 2
        versions = {node.pop("version") for node in nodes}
        assert [version.startswith("7.6.") for version in versions] == [True]
        for number, (node, ports) in enumerate(zip(nodes, (node["services"] for node in services), strict=True)):
            assert node.pop("thisNode", False) is (number == 0)
            assert node == {
                "clusterMembership": "active",
                "recoveryType": "none",
                "status": "healthy",
                "otpNode": f"n_{number}@127.0.0.1",
                "hostname": f"127.0.0.1:{ports['mgmt']}",
                "clusterCompatibility": 7 << 16 | 6,
                "os": "embedded",
                "ports": {"direct": ports["kv"], "httpsMgmt": ports["mgmtSSL"]},
                "services": ["kv"],
                "serverGroup": "Group 1",
            }


def test_a_node_recovers_at_its_addresses_for_tls() -> None:
    pytest.importorskip("cryptography", reason="certificates are made with cryptography")
    with Cluster(vbuckets=1, tls=True) as cluster:
        before = cluster.tls_management_url, cluster.tls_url, cluster.management_url, cluster.url
        cluster.crash(0)
        with pytest.raises(LocalProtocolError, match="no node is up: recover one first"):
            _ = cluster.management_url
        cluster.recover(0)
        assert (cluster.tls_management_url, cluster.tls_url, cluster.management_url, cluster.url) == before


def test_without_tls_there_is_no_address_for_it(cluster: Cluster) -> None:
    with pytest.raises(LocalProtocolError, match="tls: the cluster was started without it"):
        _ = cluster.tls_management_url


# HTTP.


def talk(cluster: Cluster, data: bytes) -> socket.socket:
    sock = socket.create_connection(address(cluster.management_url), TIMEOUT)
    sock.sendall(data)
    return sock


def test_a_connection_takes_many_requests(cluster: Cluster) -> None:
    connection = HTTPConnection(*address(cluster.management_url), timeout=TIMEOUT)
    sockets = []
    for path in ("/pools", "/nowhere", "/pools/default"):
        connection.request("GET", path, headers=login(cluster))
        response = connection.getresponse()
        response.read()
        sockets.append(connection.sock)
    assert sockets == 3 * sockets[:1]
    connection.close()


def test_requests_that_arrive_at_once_or_in_pieces_are_answered(cluster: Cluster) -> None:
    head = f"GET /whoami HTTP/1.1\r\nHost: x\r\n{''.join(': '.join(pair) for pair in login(cluster).items())}\r\n\r\n"
    first, rest = head.encode()[:20], head.encode()[20:]
    with talk(cluster, 2 * head.encode() + first) as sock:
        received = b""
        while received.count(b'{"id": "dcp"') < 2:
            received += sock.recv(1 << 16)
        sock.sendall(rest)
        while received.count(b'{"id": "dcp"') < 3:
            received += sock.recv(1 << 16)


def test_a_body_may_arrive_in_chunks(cluster: Cluster) -> None:
    connection = HTTPConnection(*address(cluster.management_url), timeout=TIMEOUT)
    path = "/pools/default/buckets/a-b%25/scopes"
    connection.request("POST", path, iter([b"name=", b"chunked"]), login(cluster), encode_chunked=True)
    assert connection.getresponse().status == 200
    connection.close()
    assert get(cluster, path)["scopes"][1]["name"] == "chunked"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"GET /pools HTTP/3\r\n\r\n", 400),
        (b"GET /pools HTTP/1.1\r\nno header\r\n\r\n", 400),
        (b"GET /pools HTTP/1.1\r\n: no name\r\n\r\n", 400),
        (b"GET /pools HTTP/1.1\r\n name: x\r\n\r\n", 400),
        (b"POST /pools HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /pools HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", 413),
        (b"POST /pools HTTP/1.1\r\nContent-Length: 1234567890\r\n\r\n", 413),
        (b"POST /pools HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"POST /pools HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", 400),
        (b"POST /pools HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + (1 << 17) * b"x", 431),
    ],
)
def test_what_is_no_request_is_refused(cluster: Cluster, request_: bytes, status: int) -> None:
    with talk(cluster, request_) as sock, HTTPResponse(sock) as response:
        response.begin()
        assert response.status == status
        assert response.getheader("Connection") == "close"


def splitter_of(*data: bytes) -> RequestSplitter:
    splitter = RequestSplitter()
    for part in data:
        splitter.feed(part)
    return splitter


def body_of(*data: bytes) -> bytes:
    """Return the body of a request. Fail if it is not complete."""
    (request,) = splitter_of(*data)
    return request.body


@pytest.mark.parametrize(
    ("version", "connection", "persistent"),
    [
        ("HTTP/1.1", "", True),
        ("HTTP/1.1", "Connection: close\r\n", False),
        ("HTTP/1.0", "", False),
        ("HTTP/1.0", "Connection: Keep-Alive\r\n", True),
    ],
)
def test_a_connection_persists_by_version_and_on_request(version: str, connection: str, persistent: bool) -> None:
    (request,) = splitter_of(f"GET / {version}\r\n{connection}\r\n".encode())
    assert request.persistent is persistent


def test_a_head_has_64_kib_at_most() -> None:
    head = b"GET / HTTP/1.1\r\nX: ".ljust((64 << 10) - 4, b"x") + b"\r\n\r\n"
    (request,) = splitter_of(head)
    assert request.method == "GET"
    assert [*splitter_of(bytes((64 << 10) - 1))] == []
    for longer in (bytes(64 << 10), b"G" + head):
        with pytest.raises(HttpError):
            [*splitter_of(longer)]


@pytest.mark.parametrize("given", ["Bearer eDp5", "Basic eHk=", "Basic ?", "Basic"])
def test_only_names_and_passwords_are_credentials(given: str) -> None:
    with pytest.raises(HttpError):
        _ = HttpRequest("GET", (), {"authorization": given}).credentials
    assert HttpRequest("GET", (), {"authorization": "BASIC eDp5Onog"}).credentials == ("x", "y:z ")


def test_a_form_may_have_empty_fields() -> None:
    assert HttpRequest("POST", (), {}, b"a=&b=1+2").form == {"a": "", "b": "1 2"}


def test_a_response_says_what_it_contains() -> None:
    for content, kind in (("text", b"text/plain"), ({"a": 1}, b"application/json")):
        assert b"\r\nContent-Type: %b\r\n" % kind in HttpResponse(content).encode()
    assert b"Connection" not in stream_head("text/event-stream")
    assert b"Connection: close" in HttpResponse("").encode(persistent=False)


def test_a_body_has_a_mebibyte_at_most() -> None:
    whole = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n"
    chunks = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    half = b"80000\r\n" + bytes(1 << 19) + b"\r\n"
    assert body_of(whole % (1 << 20), bytes(1 << 20)) == bytes(1 << 20)
    assert body_of(chunks, half, half, b"0\r\n\r\n") == bytes(1 << 20)
    assert body_of(chunks, b"a\r\n0123456789\r\nA;x\r\n", bytes(10), b"\r\n0\r\n\r\n") == b"0123456789" + bytes(10)
    assert body_of(b"POST / HTTP/1.1\r\nContent-Length: 0000000000000002\r\n\r\nab") == b"ab"
    assert [*splitter_of(chunks + bytes(1 << 20))] == []
    for longer in (
        chunks + bytes((1 << 20) + 1),
        whole % ((1 << 20) + 1),
        chunks + b"100001\r\n",
        chunks + half + half + b"1\r\n1\r\n",
    ):
        with pytest.raises(HttpError):
            body_of(longer)


def connection_of(cluster: Cluster) -> ManagementConnection:
    """Return a connection to the first node, of which the test has the bytes."""
    return cluster._new_management_connection(cluster._bucket.nodes[0], encrypted=False)


def request_of(cluster: Cluster, path: str, *more: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", *(": ".join(pair) for pair in login(cluster).items()), *more, "", ""]
    return "\r\n".join(lines).encode()


def heads(parts: list[bytes | memoryview]) -> int:
    return b"".join(parts).count(b"HTTP/1.1 200 OK")


def test_responses_wait_until_earlier_ones_are_sent(cluster: Cluster) -> None:
    connection, count = connection_of(cluster), 500
    request = request_of(cluster, "/control/operations")
    connection.receive(request, 0.0)
    (one,) = connection.send(0.0)
    # 4 MiB of responses may be queued, and one more is added before the node stops.
    most = (4 << 20) // len(one) + 1
    assert most < count
    connection.receive(count * request, 0.0)
    assert connection.backlogged
    # What arrives meanwhile is answered later.
    connection.receive(request, 0.0)
    sent = []
    while parts := connection.send(0.0):
        sent.append(heads(parts))
    assert (sent[0], sum(sent), connection.backlogged) == (most, count + 1, False)


def test_nothing_is_answered_behind_a_stream(cluster: Cluster) -> None:
    connection = connection_of(cluster)
    connection.receive(request_of(cluster, "/pools/default/bs/a-b%25") + request_of(cluster, "/pools"), 0.0)
    assert heads(connection.send(0.0)) == 1
    connection.receive(request_of(cluster, "/pools"), 0.0)
    assert connection.send(0.0) == []


@pytest.mark.parametrize(("header", "closing"), [("Connection: close", True), ("Connection: keep-alive", False)])
def test_a_connection_is_closed_after_a_response_on_request(cluster: Cluster, header: str, closing: bool) -> None:
    connection = connection_of(cluster)
    connection.receive(request_of(cluster, "/pools", header), 0.0)
    assert (heads(connection.send(0.0)), connection.closing) == (1, closing)


def test_a_connection_whose_socket_is_gone_answers_nothing(cluster: Cluster) -> None:
    connection = connection_of(cluster)
    connection.closed()
    connection.receive(request_of(cluster, "/pools"), 0.0)
    assert (connection.closing, connection.send(0.0)) == (True, [])


def test_only_a_user_is_admitted_by_a_certificate(cluster: Cluster) -> None:
    known, unknown = connection_of(cluster), connection_of(cluster)
    known.admit("reader")
    unknown.admit("nobody")
    assert (known.closing, unknown.closing) == (False, True)
    known.receive(b"GET /whoami HTTP/1.1\r\n\r\n", 0.0)
    assert b'{"id": "reader"' in b"".join(known.send(0.0))


def test_other_methods_are_refused(cluster: Cluster) -> None:
    with pytest.raises(HTTPError) as caught:
        send(f"{cluster.management_url}/pools", login(cluster), method="DELETE")
    with caught.value as error:
        assert (error.status, error.headers["Allow"]) == (405, "GET")


def test_the_data_service_is_what_traffic_counts(cluster: Cluster) -> None:
    with send(f"{cluster.management_url}/pools/default/bs/a-b%25", login(cluster)) as response:
        next(documents(response))
        assert not any(any(traffic) for traffic in cluster.stats().values())
    assert not any(any(traffic) for traffic in cluster.stats().values())
