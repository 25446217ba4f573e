"""SCRAM, with the vectors of the RFCs and of the server's documentation, and against another library's server."""

from __future__ import annotations

import itertools
from base64 import b64decode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scramp import ScramMechanism

from dcp.errors import AuthenticationError, TransportError
from dcp.session.sasl import Credentials, choose, exchange
from dcp.session.scram import MOST_ITERATIONS, SaltedPassword, Scram, ScramRejection
from dcp.wire.mechanisms import SCRAM

# Hash, user, password, nonce, the server's challenge, our proof, the server's proof.
VECTORS = [
    # RFC 5802, section 5.
    (
        *("sha1", "user", "pencil", "fyko+d2lbbFgONRv9qkxdawL"),
        "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
        *("v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=", "rmF9pqV8S7suAoZWja4dJRkFsKQ="),
    ),
    # RFC 7677, section 3.
    (
        *("sha256", "user", "pencil", "rOprNGfwEbeRWgbNEkqO"),
        "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        *("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="),
    ),
]


@pytest.mark.parametrize(("hash_name", "user", "password", "nonce", "challenge", "proof", "signature"), VECTORS)
def test_vectors(
    hash_name: str, user: str, password: str, nonce: str, challenge: str, proof: str, signature: str
) -> None:
    scram = Scram(hash_name, user, SaltedPassword(password), nonce)
    assert scram.first() == f"n,,n={user},r={nonce}".encode()
    both = challenge.split(",")[0]
    assert scram.final(challenge.encode()) == f"c=biws,{both},p={proof}".encode()
    scram.verify(f"v={signature}".encode())
    with pytest.raises(ScramRejection):
        scram.verify(b"v=" + b"A" * 27 + b"=")


def test_a_password_is_hashed_once_for_a_salt_and_again_for_another() -> None:
    """Both vectors in turn, with the same password object."""
    password = SaltedPassword("pencil")
    for hash_name, user, _, nonce, challenge, proof, _ in (*VECTORS, *VECTORS):
        scram = Scram(hash_name, user, password, nonce)
        assert scram.final(challenge.encode()).endswith(f",p={proof}".encode())
        salt, iterations = b64decode(challenge.split(",")[1][2:]), int(challenge.split(",")[2][2:])
        assert password.hashed(hash_name, salt, iterations) is password.hashed(hash_name, salt, iterations)
        assert password.hashed(hash_name, salt, iterations + 1) != password.hashed(hash_name, salt, iterations)


def test_a_comma_and_an_equals_sign_in_a_name_are_no_syntax() -> None:
    assert Scram("sha1", "a,b=c", SaltedPassword("pencil"), "nonce").first() == b"n,,n=a=2Cb=3Dc,r=nonce"


WORDS = st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]) | st.sampled_from("é,=ß "), min_size=1)


@settings(max_examples=30)
@given(st.sampled_from(sorted(SCRAM)), WORDS, WORDS)
def test_another_librarys_server_is_convinced_and_believed(mechanism: str, user: str, password: str) -> None:
    theirs = ScramMechanism(mechanism.replace("SHA", "SHA-"))
    known = theirs.make_auth_info(password)
    server = theirs.make_server(lambda _: known)
    steps = exchange(mechanism, Credentials(user, password))
    server.set_client_first(next(steps).decode())
    server.set_client_final(steps.send((False, server.get_server_first().encode())).decode())
    with pytest.raises(StopIteration):
        steps.send((True, server.get_server_final().encode()))


LIES = [
    [(True, b"")],
    [(False, b"")],
    [(False, b"\xff")],
    [(False, b"e=other-error")],
    [(False, b"r=someone,s=AAAA,i=4096")],
    [(False, b"r=NONCE,s=AAAA,i=4096")],
    [(False, b"r=NONCEx,i=4096")],
    [(False, b"r=NONCEx,s=!!!!,i=4096")],
    *(
        [(False, b"r=NONCEx,s=AAAA,i=%s" % i)]
        for i in (b"", b"0", b"-1", b"1e3", b"10", b"3999", b"9" * 50, b"%d" % (MOST_ITERATIONS + 1))
    ),
    [(False, b"m=new,r=NONCEx,s=AAAA,i=4096")],
    [(False, b"r=NONCEx,s=AAAA,i=4096,m=new")],
    *([(False, b"r=NONCEx,s=AAAA,i=4000"), (True, last)] for last in (b"", b"v=", b"v=AAAA", b"v=!", b"e=no", b"\xff")),
    [(False, b"r=NONCEx,s=AAAA,i=4000"), (False, b"v=AAAA")],
]


@pytest.mark.parametrize(("mechanism", "lies"), list(itertools.product(SCRAM, LIES)))
def test_who_does_not_know_the_password_is_found_out(mechanism: str, lies: list[tuple[bool, bytes]]) -> None:
    steps = exchange(mechanism, Credentials("alice", "s3cret"))
    nonce = next(steps).rpartition(b"r=")[2]
    *believed, (done, last) = [(done, message.replace(b"NONCE", nonce)) for done, message in lies]
    for message in believed:
        steps.send(message)
    with pytest.raises(AuthenticationError, match="prove"):
        steps.send((done, last))


def test_no_two_nonces_are_the_same() -> None:
    assert len({Scram("sha1", "u", SaltedPassword("p")).first() for _ in range(100)}) == 100


def test_the_strongest_is_chosen_and_over_tls_the_plainest() -> None:
    offered = ["SCRAM-SHA1", "PLAIN", "SCRAM-SHA512", "SCRAM-SHA256"]
    assert choose(offered, None, tls=False) == "SCRAM-SHA512"
    assert choose(offered[:2], None, tls=False) == "SCRAM-SHA1"
    assert choose(offered, None, tls=True) == "PLAIN"
    assert choose(offered, None, tls=True, verified=False) == "SCRAM-SHA512"
    assert choose(["PLAIN"], None, tls=True, verified=False) == "PLAIN"
    assert choose(offered, "SCRAM-SHA256", tls=True) == "SCRAM-SHA256"
    with pytest.raises(AuthenticationError, match="does not offer SCRAM-SHA256; it offers PLAIN"):
        choose(["PLAIN"], "SCRAM-SHA256", tls=True)


@pytest.mark.parametrize(
    ("offered", "tls", "chosen"),
    [
        (["SCRAM-SHA512", "SCRAM-SHA256", "PLAIN"], True, "SCRAM-SHA512"),
        (["SCRAM-SHA256", "PLAIN"], True, "SCRAM-SHA256"),
        (["SCRAM-SHA1", "PLAIN"], True, None),
        (["SCRAM-SHA1", "PLAIN"], False, None),
        ([], False, None),
    ],
)
def test_no_weaker_mechanism_than_before_is_chosen(offered: list[str], tls: bool, chosen: str | None) -> None:
    if chosen is not None:
        assert choose(offered, None, tls=tls, before="SCRAM-SHA256") == chosen
        return
    with pytest.raises(TransportError, match="nothing as strong as SCRAM-SHA256"):
        choose(offered, None, tls=tls, before="SCRAM-SHA256")
