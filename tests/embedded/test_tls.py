"""Clients on real sockets, with TLS: passwords, certificates, and data that does not fit into one record."""

from __future__ import annotations

import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import dcp
from dcp.embedded import Cluster, Privilege, User
from dcp.errors import LocalProtocolError
from dcp.wire.memcached import FEATURES, Feature, Status
from tests.embedded.sockets import TIMEOUT, Client, addresses_of, plain_auth, request

pytest.importorskip("cryptography", reason="certificates are made with cryptography")

from dcp.embedded.certificate import Authority

ALICE = User("alice", "s3cret", frozenset({Privilege.READ, Privilege.WRITE}))
HELLO = request("hello", value=FEATURES.encode([Feature.XERROR, Feature.SELECT_BUCKET, Feature.JSON]))
SELECT = request("select_bucket", key=b"default")


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("authority of clients")


@pytest.fixture(scope="module")
def cluster(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    client_ca = tmp_path_factory.mktemp("clients") / "ca.pem"
    client_ca.write_bytes(authority.certificate)
    with Cluster(nodes=2, vbuckets=2, tls=True, users=[ALICE], client_ca=str(client_ca)) as cluster:
        yield cluster


def trusting(cluster: Cluster) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=cluster.ca_file)


def certified(cluster: Cluster, authority: Authority, name: str, where: Path) -> ssl.SSLContext:
    issued = authority.issue(name)
    (where / "client.pem").write_bytes(issued.certificate + issued.key)
    context = trusting(cluster)
    context.load_cert_chain(where / "client.pem")
    return context


def test_a_client_that_trusts_the_authority_connects(cluster: Cluster) -> None:
    me = cluster.credentials
    with Client(cluster, trusting(cluster)) as client:
        answers = client.exchange(HELLO, plain_auth(me.username, me.password), SELECT, request("get_cluster_config"))
        assert [answer.status for answer in answers] == 4 * [Status.SUCCESS]
        ports = [node["services"]["kvSSL"] for node in answers[-1].body()["nodesExt"]]
        assert ports == [port for _, port in addresses_of(cluster.tls_url)]


@pytest.mark.skipif(sys.platform == "darwin", reason="it has one address of the loopback only")
def test_the_certificate_is_for_the_address_that_a_cluster_listens_on() -> None:
    with Cluster(vbuckets=2, tls=True, host="127.0.0.2") as cluster, Client(cluster, trusting(cluster)) as client:
        assert client.socket.getpeername()[0] == "127.0.0.2"
        assert client.exchange(HELLO)[0].status == Status.SUCCESS


def test_a_client_that_trusts_another_authority_does_not_connect(cluster: Cluster) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        Client(cluster, ssl.create_default_context())


def test_values_of_many_tls_records_arrive_whole(cluster: Cluster) -> None:
    me, value = cluster.credentials, bytes(range(256)) * (5 << 12)
    with Client(cluster, trusting(cluster)) as client:
        client.exchange(HELLO, plain_auth(me.username, me.password), SELECT)
        store = request("set", key=b"big", vbucket=0, value=value, fields={"flags": 0, "expiry": 0})
        assert client.exchange(store)[0].status == Status.SUCCESS
        # More than the buffers of sockets hold, so that the node has to keep responses back.
        answers = client.exchange(*(request("get", key=b"big", vbucket=0) for _ in range(6)))
        assert all(answer.value == value for answer in answers)


def test_the_name_in_a_certificate_is_the_user(cluster: Cluster, authority: Authority, tmp_path: Path) -> None:
    with Client(cluster, certified(cluster, authority, "alice", tmp_path)) as client:
        answers = client.exchange(HELLO, SELECT, request("open", key=b"a", fields={"flags": 1}))
        assert [answer.status for answer in answers] == [Status.SUCCESS, Status.SUCCESS, Status.EACCESS]


def test_a_password_replaces_the_user_of_a_certificate(cluster: Cluster, authority: Authority, tmp_path: Path) -> None:
    me = cluster.credentials
    with Client(cluster, certified(cluster, authority, "alice", tmp_path)) as client:
        assert client.exchange(HELLO, plain_auth(me.username, me.password), SELECT)[-1].status == Status.SUCCESS
        # Alice may not open a DCP connection.
        assert client.exchange(request("open", key=b"a", fields={"flags": 1}))[0].status == Status.SUCCESS


def test_a_certificate_of_an_unknown_user_is_refused(cluster: Cluster, authority: Authority, tmp_path: Path) -> None:
    with Client(cluster, certified(cluster, authority, "mallory", tmp_path)) as client:
        client.socket.sendall(dcp.encode(HELLO))
        assert client.socket.recv(1) == b""


def test_a_certificate_of_another_authority_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    # A client of TLS 1.3 learns of a refused certificate when it reads.
    with (
        Client(cluster, certified(cluster, Authority("of mallory"), "alice", tmp_path)) as client,
        pytest.raises(OSError, match=r"unknown ca|reset|[Bb]roken|EOF"),
    ):
        client.exchange(HELLO)


def test_noise_on_the_tls_port_closes_one_connection_only(cluster: Cluster) -> None:
    with socket.create_connection(addresses_of(cluster.tls_url)[0], timeout=TIMEOUT) as noise:
        noise.sendall(b"GET / HTTP/1.0\r\n\r\n")
        with suppress(ConnectionResetError):
            while noise.recv(100):
                pass
    with Client(cluster, trusting(cluster)) as client:
        assert client.exchange(HELLO)[0].status == Status.SUCCESS


def test_the_client_of_this_package_connects(authority: Authority, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="batches are read with pyarrow")
    (tmp_path / "clients.pem").write_bytes(authority.certificate)
    issued = authority.issue("alice")
    (tmp_path / "client.pem").write_bytes(issued.certificate)
    (tmp_path / "client.key").write_bytes(issued.key)
    everything = User("alice", "s3cret")
    with Cluster(nodes=2, vbuckets=4, tls=True, users=[everything], client_ca=str(tmp_path / "clients.pem")) as cluster:
        cluster.load(100)
        certificate = {"cert_path": str(tmp_path / "client.pem"), "key_path": str(tmp_path / "client.key")}
        without_name = cluster.tls_url.partition("://")[0] + "://" + cluster.tls_url.rpartition("@")[2]
        trust: dict[str, Any] = {"ca_cert_path": cluster.ca_file}
        for url, options in ((cluster.url, {}), (cluster.tls_url, trust), (without_name, trust | certificate)):
            with dcp.connect(url, **options) as client:
                keys = [key for batch in client.stream(end="now") for key in batch.to_arrow()["key"].to_pylist()]
            assert sorted(keys) == sorted(cluster.truth())


def test_the_plain_port_still_works(cluster: Cluster) -> None:
    with Client(cluster) as client:
        answers = client.exchange(HELLO, plain_auth("alice", "s3cret"), SELECT, plain_auth("alice", "wrong"))
        assert [answer.status for answer in answers] == 3 * [Status.SUCCESS] + [Status.AUTH_ERROR]


def test_a_certificate_can_be_given(authority: Authority, tmp_path: Path) -> None:
    issued = authority.issue("node", ("127.0.0.1",))
    (tmp_path / "node.pem").write_bytes(issued.certificate)
    (tmp_path / "node.key").write_bytes(issued.key)
    (tmp_path / "ca.pem").write_bytes(authority.certificate)
    with (
        Cluster(tls=True, certificate=str(tmp_path / "node.pem"), key=str(tmp_path / "node.key")) as cluster,
        Client(cluster, ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))) as client,
    ):
        assert cluster.ca_file == str(tmp_path / "node.pem")
        assert client.exchange(HELLO)[0].status == Status.SUCCESS


def test_a_certificate_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LocalProtocolError, match="both certificate and key"):
        Cluster(tls=True, certificate="x.pem")
    with pytest.raises(LocalProtocolError, match="tls: certificate, key or client_ca cannot be used"):
        Cluster(tls=True, certificate=str(tmp_path / "a"), key=str(tmp_path / "b"))


def test_generated_files_are_removed_on_close() -> None:
    with Cluster(tls=True) as cluster:
        path = Path(cluster.ca_file)
        assert path.exists()
    assert not path.exists()


def test_tls_url_needs_tls() -> None:
    with Cluster() as cluster, pytest.raises(LocalProtocolError, match="Cluster\\(tls=True\\)"):
        _ = cluster.tls_url


def test_a_private_key_is_in_no_repr(authority: Authority) -> None:
    assert "PRIVATE" not in repr(authority.issue("a"))


def test_the_certificate_of_an_authority_is_one_of_an_authority() -> None:
    """RFC 5280, 4.2.1.9: clients may refuse it otherwise."""
    from cryptography import x509

    found = x509.load_pem_x509_certificate(Authority().certificate)
    limits = found.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (limits.critical, limits.value.ca, limits.value.path_length) == (True, True, 0)


def test_certificates_have_what_python_demands_from_3_13_on(cluster: Cluster) -> None:
    context = ssl.create_default_context(cafile=cluster.ca_file)
    context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    host, port = addresses_of(cluster.tls_url)[0]
    with (
        socket.create_connection((host, port), TIMEOUT) as plain,
        context.wrap_socket(plain, server_hostname=host) as tls,
    ):
        assert tls.getpeercert()
