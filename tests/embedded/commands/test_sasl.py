"""Authentication: all mechanisms, with the vectors of the protocol reference."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from base64 import b64decode, b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dcp
from dcp.embedded.users import IssuedToken, Privilege, User, make_token
from dcp.errors import UsageError
from dcp.wire.layout import Magic
from dcp.wire.memcached import Status
from tests.conformance import TRANSCRIPTS, transcript
from tests.embedded.raw_client import ALICE, NOW, Clock, CommandClient, make_bucket

NONCE = bytes.fromhex("00112233445566ff")
FIRST = b"n,,n=alice,r=0f1e2d3c4b5a6978"
CHALLENGE = b"r=0f1e2d3c4b5a697800112233445566ff,s=AAECAwQFBgcICQoLDA0ODw==,i=4096"

# Proofs of the client and of the server.
VECTORS = {
    "SCRAM-SHA1": ("y2NUlgHlO7D7cPe18qmH/89fO6k=", "iJQPmN2qOy0dqrtQskhSRNtbCYo="),
    "SCRAM-SHA256": ("DqzHAPb1wQ4uTZb0l4v5sJdh9fpNB3k9W0gE0O03mdU=", "ETxTlX3xwQpf3CDwpu9mvyH4EIg+2A06ezINq2ps9jo="),
    "SCRAM-SHA512": (
        "9/ORm+R+2HrCHu6GPplFGSiO6zhZ/MsUZBMIYkCRdeQ5Fvs1yU65qZPeIsJbBZpSn3FidtcMYgcU4dDuxZoYBw==",
        "OerhNbjRDwaYm7NxgUMMCTnW78j2AA52dyrWfX/ErWRV8bg/58ntvZV/sIEj8cUQz1YXRGQJW0bZbLrW48k3wQ==",
    ),
}


def make_client(*users: User, version: str = "8.0") -> CommandClient:
    client = CommandClient(make_bucket(version), users=users or [ALICE])
    client.connection.random_bytes = {len(NONCE): NONCE}.__getitem__
    return client


def authenticate(client: CommandClient, name: str, mechanism: str, text: bytes) -> dcp.Frame:
    return client.request(name, key=mechanism.encode(), value=text)


def final(proof: str, nonce: str = "0f1e2d3c4b5a697800112233445566ff") -> bytes:
    return f"c=biws,r={nonce},p={proof}".encode()


@pytest.mark.parametrize("mechanism", VECTORS)
def test_both_sides_prove_that_they_know_the_password(mechanism: str) -> None:
    proof, signature = VECTORS[mechanism]
    client = make_client()
    challenge = authenticate(client, "sasl_auth", mechanism, FIRST)
    assert (challenge.status, challenge.value) == (Status.AUTH_CONTINUE, CHALLENGE)
    assert client.connection.state.user is None
    done = authenticate(client, "sasl_step", mechanism, final(proof))
    assert (done.status, done.value) == (Status.SUCCESS, b"v=" + signature.encode())
    assert client.connection.state.user == ALICE


@pytest.mark.parametrize(
    ("mechanism", "text"),
    [
        ("SCRAM-SHA1", final(VECTORS["SCRAM-SHA256"][0])),
        ("SCRAM-SHA1", final(VECTORS["SCRAM-SHA1"][0], "0f1e2d3c4b5a6978")),
        ("SCRAM-SHA1", final("AAAA")),
        ("SCRAM-SHA1", final("not base64")),
        ("SCRAM-SHA256", final(VECTORS["SCRAM-SHA1"][0])),
    ],
)
def test_a_wrong_proof_is_refused_and_the_exchange_is_over(mechanism: str, text: bytes) -> None:
    client = make_client()
    authenticate(client, "sasl_auth", "SCRAM-SHA1", FIRST)
    assert authenticate(client, "sasl_step", mechanism, text).status == Status.AUTH_ERROR
    assert authenticate(client, "sasl_step", "SCRAM-SHA1", final(VECTORS["SCRAM-SHA1"][0])).status == Status.AUTH_ERROR
    assert client.connection.state.user is None


def test_a_proof_for_another_nonce_is_refused() -> None:
    # Otherwise a recorded exchange could be replayed.
    client, nonce = make_client(), "0f1e2d3c4b5a6978"
    authenticate(client, "sasl_auth", "SCRAM-SHA1", FIRST)
    key = hmac.digest(hashlib.pbkdf2_hmac("sha1", b"s3cret", ALICE.salt, 4096), b"CommandClient Key", "sha1")
    signed = b",".join((FIRST.removeprefix(b"n,,"), CHALLENGE, f"c=biws,r={nonce}".encode()))
    signature = hmac.digest(hashlib.sha1(key).digest(), signed, "sha1")
    proof = b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
    assert authenticate(client, "sasl_step", "SCRAM-SHA1", final(proof, nonce)).status == Status.AUTH_ERROR


def test_a_proof_with_trailing_bytes_is_refused() -> None:
    client = make_client()
    authenticate(client, "sasl_auth", "SCRAM-SHA1", FIRST)
    longer = b64encode(b64decode(VECTORS["SCRAM-SHA1"][0]) + b"x").decode()
    assert authenticate(client, "sasl_step", "SCRAM-SHA1", final(longer)).status == Status.AUTH_ERROR


def test_a_proof_that_is_no_base64_is_refused() -> None:
    client = make_client()
    authenticate(client, "sasl_auth", "SCRAM-SHA1", FIRST)
    # Decoders that skip what they do not know would accept it.
    padded = f"{VECTORS['SCRAM-SHA1'][0]}*"
    assert authenticate(client, "sasl_step", "SCRAM-SHA1", final(padded)).status == Status.AUTH_ERROR


@pytest.mark.parametrize("text", [b"", b"n,,", b"y,,n=alice,r=x", b"n,,n=bob,r=x", b"n,,n=alice,r=", b"\xff"])
def test_a_malformed_first_message_is_refused(text: bytes) -> None:
    assert authenticate(make_client(), "sasl_auth", "SCRAM-SHA1", text).status == Status.AUTH_ERROR


def test_a_nonce_with_blanks_is_accepted() -> None:
    # Nonces of the official C++ client contain blanks.
    challenge = authenticate(make_client(), "sasl_auth", "SCRAM-SHA1", b"n,,n=alice,r=0x38 0xffffffd1")
    assert challenge.status == Status.AUTH_CONTINUE
    assert challenge.value.startswith(b"r=0x38 0xffffffd100112233445566ff,")


def salts(*challenges: bytes) -> set[bytes]:
    return {found for challenge in challenges for found in re.findall(rb",s=([^,]+),i=", challenge)}


@pytest.mark.parametrize("version", ["7.2.9", "8.0.1"])
def test_every_connection_gets_the_salt_of_its_user(version: str) -> None:
    # A recording in which a user logs in several times, and what two embedded nodes send.
    (path,) = (path for path in TRANSCRIPTS if path.match(f"{version}/no_value_disk*"))
    recorded = [connection.server for connection in transcript(path).connections]
    assert len(recorded) == 3
    assert len(salts(*recorded)) == 1
    bob = User("bob", "s3cret")
    sent = [
        authenticate(make_client(bob), "sasl_auth", "SCRAM-SHA512", b"n,,n=bob,r=0f1e2d3c4b5a6978").value
        for _ in range(2)
    ]
    assert len(salts(*sent)) == 1
    assert bob.salt != User("bob", "s3cret").salt


def test_commas_and_equal_signs_in_names_are_escaped() -> None:
    strange = User("a,b=c", "s3cret")
    client = make_client(strange)
    assert authenticate(client, "sasl_auth", "SCRAM-SHA1", b"n,,n=a=2Cb=3Dc,r=x").status == Status.AUTH_CONTINUE
    assert authenticate(client, "sasl_auth", "PLAIN", b"\0a,b=c\0s3cret").status == Status.SUCCESS


@pytest.mark.parametrize(
    "text", [b"", b"alice", b"\0alice", b"\0alice\0", b"\0alice\0S3cret", b"\0alice\0s3cret\0", b"\0bob\0s3cret"]
)
def test_a_wrong_password_is_refused(text: bytes) -> None:
    client = make_client()
    answer = authenticate(client, "sasl_auth", "PLAIN", text)
    assert (answer.status, b"s3cret" in answer.value) == (Status.AUTH_ERROR, False)
    assert client.connection.state.user is None


def test_a_failed_second_authentication_removes_the_user() -> None:
    client = make_client()
    assert authenticate(client, "sasl_auth", "PLAIN", b"\0alice\0s3cret").status == Status.SUCCESS
    assert authenticate(client, "sasl_auth", "PLAIN", b"\0alice\0wrong").status == Status.AUTH_ERROR
    assert client.connection.state.user is None


@given(st.sampled_from(["PLAIN", *VECTORS]), st.binary(max_size=60), st.binary(max_size=60))
def test_noise_does_not_authenticate(mechanism: str, first: bytes, second: bytes) -> None:
    client = make_client()
    for name, text in (("sasl_auth", first), ("sasl_auth", FIRST), ("sasl_step", second)):
        assert authenticate(client, name, mechanism, text).status in (Status.AUTH_ERROR, Status.AUTH_CONTINUE)
    assert client.connection.state.user is None


def test_no_password_is_in_a_repr() -> None:
    assert "s3cret" not in repr(ALICE)
    client = make_client()
    authenticate(client, "sasl_auth", "SCRAM-SHA1", FIRST)
    assert "s3cret" not in repr(client.connection.state)


@pytest.mark.parametrize(
    ("version", "names"), [("3.1", "CRAM-MD5 PLAIN"), ("8.0", "SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN")]
)
def test_the_mechanisms_are_listed_strongest_first(version: str, names: str) -> None:
    assert make_client(version=version).request("sasl_list_mechs").body() == names


def test_an_unknown_mechanism_is_refused() -> None:
    assert authenticate(make_client(), "sasl_auth", "GSSAPI", b"x").status == Status.AUTH_ERROR


def test_a_release_without_users_admits_everybody() -> None:
    client = make_client(version="3.1")
    assert client.status("get", key=b"k") is Status.KEY_ENOENT


OPEN = {"key": b"a", "fields": {"flags": 1}}


def admitted(user: User) -> CommandClient:
    client = make_client(user)
    client.hello()
    authenticate(client, "sasl_auth", "PLAIN", f"\0{user.name}\0{user.password}".encode())
    client.request("select_bucket", key=b"default")
    return client


def test_a_user_without_the_privilege_may_not_open_a_dcp_connection() -> None:
    client = admitted(User("reader", "x", frozenset({Privilege.READ, Privilege.WRITE})))
    answer = client.request("open", **OPEN)
    assert (answer.status, answer.datatype) == (Status.EACCESS, 1)
    # Texts of real servers.
    assert answer.body()["error"]["context"] == (
        "Authorization failure: can't execute DCP_OPEN operation without the DcpProducer privilege"
    )
    assert admitted(ALICE).status("open", **OPEN) is Status.SUCCESS


def test_reading_and_writing_are_separate_privileges() -> None:
    reader = admitted(User("reader", "x", frozenset({Privilege.READ})))
    assert reader.status("get", key=b"\0k") is Status.KEY_ENOENT
    store = {"key": b"\0k", "fields": {"flags": 0, "expiry": 0}}
    assert reader.status("set", **store) is Status.EACCESS
    assert reader.status("setq", **store) is Status.EACCESS
    writer = admitted(User("writer", "x", frozenset({Privilege.WRITE})))
    assert writer.status("set", **store) is Status.SUCCESS
    assert writer.status("getkq", key=b"\0k") is Status.EACCESS


# Scope 8 has the collections 9 and 10.
@pytest.mark.parametrize(
    ("readable", "filter_", "status"),
    [
        ("inventory.hotel", {"collections": ["9"]}, Status.SUCCESS),
        ("inventory.hotel", {"collections": ["9", "a"]}, Status.UNKNOWN_COLLECTION),
        ("inventory.hotel", {"collections": ["63"]}, Status.UNKNOWN_COLLECTION),
        ("inventory.hotel", {"scope": "8"}, Status.UNKNOWN_COLLECTION),
        ("inventory.hotel", {"sid": 1}, Status.EACCESS),
        ("inventory.hotel", None, Status.EACCESS),
        ("inventory.hotel", {}, Status.EINVAL),
        ("inventory", {"collections": ["9", "a"]}, Status.SUCCESS),
        ("inventory", {"collections": ["9", "0"]}, Status.UNKNOWN_COLLECTION),
        ("inventory", {"scope": "8"}, Status.SUCCESS),
        ("inventory", {"scope": "0"}, Status.UNKNOWN_COLLECTION),
    ],
)
def test_a_user_of_some_collections_streams_these_alone(readable: str, filter_: object, status: Status) -> None:
    client = admitted(User("reader", "x", collections=frozenset({readable})))
    bucket = client.bucket
    bucket.change_manifest(*bucket.manifest.create_scope("inventory"))
    for name in ("hotel", "cart"):
        bucket.change_manifest(*bucket.manifest.create_collection("inventory", name))
    numbers = ("flags", "start_seqno", "end_seqno", "vbuuid", "snapshot_start", "snapshot_end")
    request: dict[str, Any] = {
        "fields": dict.fromkeys(numbers, 0),
        "value": b"" if filter_ is None else json.dumps(filter_).encode(),
    }
    assert client.status("open", **OPEN) is Status.SUCCESS
    assert client.status("control", key=b"enable_noop", value=b"true") is Status.SUCCESS
    answer = client.request_all("stream_request", **request)[0]
    assert answer.status == status
    if status is Status.UNKNOWN_COLLECTION:
        assert (answer.body(), answer.datatype) == ({"manifest_uid": "3"}, 1)
    for collection, readable_too in ((9, True), (10, readable == "inventory"), (0, False), (99, False)):
        found = client.status("get_all_vb_seqnos", fields={"state": 1, "collection_id": collection})
        assert found is (Status.SUCCESS if readable_too else Status.UNKNOWN_COLLECTION)
    assert client.status("get_all_vb_seqnos", fields={"state": 1}) is Status.EACCESS


def test_the_collections_of_a_user_are_a_set() -> None:
    with pytest.raises(UsageError, match="collections: expected a frozenset of names, found a list"):
        User("reader", "x", collections=["inventory"])  # type: ignore[arg-type]


def test_a_dcp_connection_keeps_its_user_and_its_bucket() -> None:
    client = admitted(ALICE)
    client.request("open", **OPEN)
    assert authenticate(client, "sasl_auth", "PLAIN", b"\0alice\0s3cret").status == Status.NOT_SUPPORTED
    assert authenticate(client, "sasl_step", "SCRAM-SHA512", b"").status == Status.NOT_SUPPORTED
    assert client.status("sasl_list_mechs") is Status.NOT_SUPPORTED
    assert client.status("select_bucket", key=b"default") is Status.NOT_SUPPORTED


def test_a_login_with_cram_md5_fails_although_it_is_listed() -> None:
    client = make_client(version="3.1")
    assert authenticate(client, "sasl_auth", "CRAM-MD5", b"").status == Status.AUTH_ERROR


# ------------------------------------------------------------------ tokens

TOKEN = make_token("alice", NOW + 60)


class TokenClient(CommandClient):
    """Client over TLS of a node that has issued TOKEN to Alice; the clock is the bucket's."""

    def __init__(self, version: str = "8.1") -> None:
        self.clock = Clock()
        super().__init__(make_bucket(version, clock=self.clock), users=[ALICE])
        self.connection.encrypted = True
        self.connection.tokens = {TOKEN: IssuedToken(ALICE, NOW + 60)}

    def log_in(self, message: str = f"n,,\x01auth=Bearer {TOKEN}\x01\x01") -> Status:
        return Status(authenticate(self, "sasl_auth", "OAUTHBEARER", message.encode()).status)


@pytest.mark.parametrize(("version", "encrypted", "offered"), [("8.1", True, 1), ("8.1", False, 0), ("8.0", True, 0)])
def test_tokens_are_accepted_over_tls_since_8_1(version: str, encrypted: bool, offered: bool) -> None:
    client = TokenClient(version)
    client.connection.encrypted = encrypted
    assert (b"OAUTHBEARER" in client.request("sasl_list_mechs").value) is bool(offered)
    assert client.log_in() == (Status.SUCCESS if offered else Status.AUTH_ERROR)
    assert client.connection.state.user == (ALICE if offered else None)


@pytest.mark.parametrize(
    ("message", "status"),
    [
        (f"n,a=alice,\x01auth=Bearer {TOKEN}\x01\x01", Status.SUCCESS),
        (f"n,,\x01host=x\x01auth=bearer {TOKEN}\x01\x01", Status.SUCCESS),
        ("n,,\x01auth=Bearer another\x01\x01", Status.AUTH_ERROR),
        (f"n,,\x01auth=Basic {TOKEN}\x01\x01", Status.EINVAL),
        (f"n,,\x01auth=Bearer{TOKEN}\x01\x01", Status.EINVAL),
        (f"y,,\x01auth=Bearer {TOKEN}\x01\x01", Status.EINVAL),
        (f"n,\x01auth=Bearer {TOKEN}\x01\x01", Status.EINVAL),
        ("n,,\x01\x01", Status.EINVAL),
    ],
)
def test_the_message_of_a_token_is_checked(message: str, status: Status) -> None:
    assert TokenClient().log_in(message) == status


def test_a_connection_whose_token_has_expired_renews_it_and_keeps_its_bucket() -> None:
    client = TokenClient()
    client.hello()
    client.log_in()
    assert client.status("select_bucket", key=b"default") == Status.SUCCESS
    client.clock.now += 60
    assert client.status("noop") == Status.SUCCESS
    client.clock.now += 1
    assert client.status("noop") == Status.AUTH_STALE
    client.connection.tokens = {TOKEN: IssuedToken(ALICE, client.clock.now + 60)}
    assert client.log_in() == Status.SUCCESS
    assert client.status("get_cluster_config") == Status.SUCCESS
    assert client.connection.state.bucket == "default"


def test_an_expired_token_does_not_log_in() -> None:
    client = TokenClient()
    client.clock.now += 61
    assert client.log_in() == Status.AUTH_ERROR
    assert client.connection.state.user is None


def test_a_dcp_connection_takes_no_other_token_and_is_closed_at_its_next_answer() -> None:
    client = TokenClient()
    client.hello()
    client.log_in()
    client.status("select_bucket", key=b"default")
    assert client.status("open", key=b"stream", fields={"flags": 1}) == Status.SUCCESS
    assert client.log_in() == Status.NOT_SUPPORTED
    # An answer to a request of the node, as to a noop.
    answer = dcp.Frame("set_vbucket_state", Magic.RESPONSE)
    client.send(answer)
    assert not client.closed
    client.clock.now += 61
    assert client.status("buffer_ack", fields={"bytes": 1}) == Status.AUTH_STALE
    assert not client.closed
    client.send(answer)
    assert client.closed
