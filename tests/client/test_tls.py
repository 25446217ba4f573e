"""TLS of the client, against the TLS of Python's library on the other side of a socket pair."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from queue import SimpleQueue
from random import Random

import pytest

pytest.importorskip("cryptography", reason="certificates are made with cryptography")

from dcp.client.follow.node_link import NodeLink
from dcp.client.follow.settings import BatchLimits
from dcp.client.network_errors import untrusted
from dcp.client.tls import TlsSettings, TlsSocket
from dcp.embedded.certificate import Authority, _Library
from dcp.errors import DcpError
from dcp.position import Progress, StreamPosition
from dcp.session.handshake import Agreement
from dcp.session.session import Session
from dcp.wire.frame import Frame, encode
from dcp.wire.layout import Magic
from tests.client.hostile import LOG, marker, mutation
from tests.client.links import Unheard
from tests.session.harness import MANY, decoder, ready_session

NAME = "node.example"
TIMEOUT = 30.0


class Peer:
    """Server side of a connection. Its encrypted bytes are sent when a test says so."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.near, self.socket = socket.socketpair()
        self.socket.settimeout(TIMEOUT)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=True)

    def shake_hands(self) -> None:
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self.socket.sendall(self.outgoing.read())
                self.incoming.write(self.socket.recv(1 << 16))
            else:
                self.socket.sendall(self.outgoing.read())
                return

    def encrypted(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self.outgoing.read()

    def received(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                data += self.tls.read(size)
            except ssl.SSLWantReadError:
                self.incoming.write(self.socket.recv(1 << 20))
        return data


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Contexts of server and client."""
    authority, folder = Authority(), tmp_path_factory.mktemp("tls")
    issued = authority.issue(NAME, (NAME,))
    (folder / "server.pem").write_bytes(issued.certificate + issued.key)
    (folder / "ca.pem").write_bytes(authority.certificate)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.pem")
    return server, TlsSettings(ca_file=str(folder / "ca.pem")).context()


@pytest.fixture
def pair(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> Iterator[tuple[Peer, TlsSocket]]:
    """Both sides of a connection after the handshake."""
    peer = Peer(contexts[0])
    with ThreadPoolExecutor(1) as pool:
        shaken = pool.submit(peer.shake_hands)
        mine = TlsSocket(peer.near, contexts[1], NAME, TIMEOUT)
        shaken.result()
    with peer.socket, mine:
        # Tickets for later sessions are records without data.
        mine.setblocking(False)
        with pytest.raises(BlockingIOError):
            mine.recv_into(memoryview(bytearray(1)))
        yield peer, mine


def read(mine: TlsSocket, room: int = 1 << 16) -> bytes:
    """Return what has arrived."""
    data, buffer = b"", memoryview(bytearray(room))
    try:
        while count := mine.recv_into(buffer):
            data += buffer[:count]
    except BlockingIOError:
        return data
    return data + b"END"


@pytest.mark.parametrize("seed", range(20))
def test_bytes_arrive_whole_wherever_their_records_are_cut(seed: int, pair: tuple[Peer, TlsSocket]) -> None:
    (peer, mine), chance = pair, Random(seed)
    data = chance.randbytes(chance.choice((1, 1000, 50_000, 200_000)))
    wire, found = peer.encrypted(data), b""
    while wire:
        cut = chance.choice((1, 5, 700, 16_401, 100_000))
        peer.socket.sendall(wire[:cut])
        wire, found = wire[cut:], found + read(mine, chance.choice((1, 100, 1 << 16)))
    assert found == data


def test_what_does_not_fit_into_the_buffer_is_known_to_be_there(pair: tuple[Peer, TlsSocket]) -> None:
    peer, mine = pair
    peer.socket.sendall(peer.encrypted(bytes(30_000)))
    buffer = memoryview(bytearray(20_000))
    assert (mine.recv_into(buffer), mine.has_more) == (20_000, True)
    assert (mine.recv_into(buffer), mine.has_more) == (10_000, False)


def test_one_call_returns_many_records(pair: tuple[Peer, TlsSocket]) -> None:
    peer, mine = pair
    peer.socket.sendall(peer.encrypted(bytes(100_000)))
    assert mine.recv_into(memoryview(bytearray(1 << 20))) == 100_000


def test_bytes_that_the_node_does_not_take_are_sent_once_it_does(pair: tuple[Peer, TlsSocket]) -> None:
    peer, mine = pair
    data = Random(1).randbytes(1 << 22)
    with pytest.raises(BlockingIOError):
        mine.send(data)
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(peer.received, len(data) + 4)
        sent = 0
        while sent == 0:
            try:
                # More bytes may follow those of the first attempt.
                sent = mine.send(data + b"more")
            except BlockingIOError:
                continue
        assert sent == len(data)
        mine.setblocking(True)
        mine.sendall(b"more")
        assert received.result(TIMEOUT) == data + b"more"


def test_bytes_of_each_call_are_sent(pair: tuple[Peer, TlsSocket]) -> None:
    peer, mine = pair
    assert [mine.send(b"one"), mine.send(b"other")] == [3, 5]
    assert peer.received(8) == b"oneother"


def test_records_before_a_forged_one_are_read_and_then_it_is_an_error(pair: tuple[Peer, TlsSocket]) -> None:
    peer, mine = pair
    good, forged = peer.encrypted(b"good"), bytearray(peer.encrypted(b"forged"))
    forged[-1] ^= 1
    peer.socket.sendall(good + forged)
    buffer = memoryview(bytearray(100))
    assert bytes(buffer[: mine.recv_into(buffer)]) == b"good"
    # Nothing else would make a link read again.
    assert mine.has_more
    # The node is told why.
    with pytest.raises(ssl.SSLError, match="ALERT_BAD_RECORD_MAC"):
        peer.received(1)
    for _ in range(2):
        with pytest.raises(ssl.SSLError, match=r"(?i)bad.record.mac|record.layer.failure"):
            mine.recv_into(buffer)


def test_a_forged_record_alone_is_an_error_at_once(pair: tuple[Peer, TlsSocket]) -> None:
    peer, mine = pair
    forged = bytearray(peer.encrypted(b"forged"))
    forged[-1] ^= 1
    peer.socket.sendall(forged)
    with pytest.raises(ssl.SSLError, match=r"BAD_RECORD_MAC|bad record mac"):
        mine.recv_into(memoryview(bytearray(100)))


def test_a_connection_that_tls_ends_ends_after_its_last_bytes(pair: tuple[Peer, TlsSocket]) -> None:
    peer, mine = pair
    wire = peer.encrypted(b"last")
    with pytest.raises(ssl.SSLWantReadError):
        peer.tls.unwrap()
    peer.socket.sendall(wire + peer.outgoing.read())
    assert mine.recv_into(memoryview(bytearray(100))) == len(b"last")
    assert mine.has_more
    assert read(mine) == b"END"


def test_a_connection_that_tcp_ends_ends_after_its_last_bytes(pair: tuple[Peer, TlsSocket]) -> None:
    peer, mine = pair
    peer.socket.sendall(peer.encrypted(b"last"))
    peer.socket.close()
    assert read(mine) == b"lastEND"


def test_a_node_that_is_silent_in_the_handshake_is_not_awaited_for_long(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    peer = Peer(contexts[0])
    with peer.socket, peer.near, pytest.raises(TimeoutError):
        TlsSocket(peer.near, contexts[1], NAME, 0.05)


def test_the_time_of_the_handshake_may_be_over_when_bytes_arrive(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    peer = Peer(contexts[0])
    with peer.socket, peer.near:
        peer.socket.sendall(b"\x16")
        with pytest.raises(TimeoutError):
            TlsSocket(peer.near, contexts[1], NAME, -1.0)


def test_a_node_that_closes_in_the_handshake_is_an_error(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    peer = Peer(contexts[0])
    with peer.near:
        peer.socket.close()
        with pytest.raises(OSError, match=r"EOF|Broken pipe"):
            TlsSocket(peer.near, contexts[1], NAME, TIMEOUT)


def test_a_certificate_for_another_name_is_refused(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], tmp_path: Path
) -> None:
    peer = Peer(contexts[0])
    with ThreadPoolExecutor(1) as pool, peer.socket, peer.near:
        shaken = pool.submit(peer.shake_hands)
        with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
            TlsSocket(peer.near, contexts[1], "other.example", TIMEOUT)
        peer.near.close()
        assert shaken.exception(TIMEOUT) is not None


def test_a_certificate_without_what_python_demands_has_a_remedy(tmp_path: Path) -> None:
    """Python checks this from 3.13 on without being told to."""
    library, authority = _Library(), Authority()
    key, now = library.new_key(), datetime.now(timezone.utc)
    bare = library.x509.CertificateBuilder().subject_name(library.name(NAME)).issuer_name(authority._name)
    bare = bare.public_key(key.public_key()).serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(1))
    bare = bare.add_extension(library.x509.SubjectAlternativeName([library.host(NAME)]), critical=False)
    files = [tmp_path / name for name in ("ca.pem", "certificate.pem", "key.pem")]
    signed = library.pem(bare.sign(authority._key, library.hash))
    for file, content in zip(files, (authority.certificate, signed, library.key_pem(key)), strict=True):
        file.write_bytes(content)
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(files[1], files[2])
    context = TlsSettings(ca_file=str(files[0])).context()
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    peer = Peer(serving)
    with ThreadPoolExecutor(1) as threads, peer.near, peer.socket:
        threads.submit(peer.shake_hands)
        with pytest.raises(ssl.SSLCertVerificationError) as caught:
            TlsSocket(peer.near, context, NAME, TIMEOUT)
    message = str(untrusted("node:11207", caught.value))
    assert message.endswith("Identifier; renew the cluster's certificates with what is missing, or use Python 3.12")


def test_an_error_behind_a_full_batch_ends_the_connection_without_more_bytes(pair: tuple[Peer, TlsSocket]) -> None:
    peer, mine = pair
    lost = SimpleQueue[DcpError]()

    class Heard(Unheard):
        def on_lost(self, link: NodeLink, error: DcpError) -> None:
            lost.put(error)

    def open_session(now: float) -> Session:
        session = ready_session(Agreement(), decoder)
        session.open(Progress(StreamPosition(0)))
        return session

    accepted = encode(Frame("stream_request", Magic.RESPONSE, 1, value=LOG))
    good = peer.encrypted(accepted + marker(1, 0, 9) + mutation(1, 1) + mutation(1, 2))
    forged = bytearray(peer.encrypted(b"forged"))
    forged[-1] ^= 1
    peer.socket.sendall(good + forged)
    # The batch of one row is delivered before the socket is read again, which has nothing to read then.
    link = NodeLink("node:11207", lambda: mine, open_session, Heard(), BatchLimits(1, MANY, 0.0))
    link.start()
    assert "node:11207" in str(lost.get(timeout=TIMEOUT))
    link.thread.join()
