"""Handshakes with every generation of servers, recorded ones, and servers that refuse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

import dcp
from dcp.embedded.bucket import BucketStore
from dcp.embedded.connection import ServerConnection
from dcp.embedded.handlers import HANDLERS
from dcp.embedded.release import Release
from dcp.embedded.users import User
from dcp.errors import (
    AuthenticationError,
    DcpError,
    LocalProtocolError,
    RemoteProtocolError,
    ServerError,
    TransportError,
)
from dcp.position import Progress, StreamPosition
from dcp.session.demands import Demands
from dcp.session.events import MapChanged, SessionReady
from dcp.session.handshake import Agreement, ConnectionSettings
from dcp.session.sasl import BearerToken, Credentials
from dcp.session.session import Session
from dcp.wire.dcp import OpenFlag
from dcp.wire.frame import Frame, encode
from dcp.wire.layout import Kind, Magic
from dcp.wire.memcached import FEATURES, Feature, Status
from tests.conformance import TRANSCRIPTS, cut, transcript
from tests.session.harness import MANY, PASSWORD, SETTINGS, Answer, Peer, decoder, handshake, hear, requested

METADATA = OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE
FLAGS = OpenFlag.PRODUCER | OpenFlag.INCLUDE_XATTRS | METADATA | OpenFlag.INCLUDE_DELETE_TIMES
OLD = {"hello": Status.UNKNOWN_COMMAND, "select_bucket": Status.UNKNOWN_COMMAND}


def released(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


@pytest.mark.parametrize(
    "version", ["3.0", "4.0", "4.6", "5.0", "5.5", "6.0", "6.5", "6.6", "7.0", "7.2", "7.6", "8.0", "8.5"]
)
def test_every_generation_of_servers_is_agreed_with(version: str) -> None:
    bucket = BucketStore("travel", vbuckets=4, release=Release.of(version), clock=lambda: 1e9, seed=1)
    talk = ServerConnection(bucket, bucket.nodes[0], HANDLERS, users={"alice": User("alice", PASSWORD)})
    mechanism = None if released(version) >= (5, 0) else "PLAIN"
    settings = ConnectionSettings("t", "travel", SETTINGS.credentials, mechanism, xattrs=True, values=False)
    session = Session(settings, decoder, 0.0)
    for _ in range(40):
        talk.receive(session.outgoing(), 0.0)
        events = hear(session, b"".join(bytes(part) for part in talk.send(0.0)))
        session.take()
        if any(isinstance(event, SessionReady) for event in events):
            break
    agreement = session.agreement
    assert agreement is not None
    since = released(version)
    assert agreement.collections == (since >= (6, 5))
    assert agreement.mechanism == ("SCRAM-SHA512" if since >= (5, 0) else "PLAIN")
    expected = OpenFlag.PRODUCER
    expected |= OpenFlag.INCLUDE_XATTRS if since >= (5, 0) else OpenFlag(0)
    expected |= METADATA if since >= (6, 0) else OpenFlag(0)
    expected |= OpenFlag.INCLUDE_DELETE_TIMES if since >= (5, 5) else OpenFlag(0)
    expected |= OpenFlag.INCLUDE_DELETED_USER_XATTRS if since >= (6, 6) else OpenFlag(0)
    assert agreement.flags == expected
    assert ("max_marker_version" in agreement.controls) == (since >= (8, 0))
    assert ("enable_expiry_opcode" in agreement.controls) == (since >= (6, 5))
    assert (agreement.window, agreement.noop_interval is None) == (20 << 20, False)


# ------------------------------------------------------------------ recorded servers

# Requests in which our client differs from the recorded one, with the reason.
OTHERWISE = {
    "hello": "other features are asked for",
    "get_cluster_config": "the recorded client knew its node",
    "send_stream_end_on_client_close_stream": "before 5.5 the recorded client did not ask",
}
RECORDED = [path for path in TRANSCRIPTS if path.stem == "handshake_controls"]


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.parent.name)
def test_recorded_servers_are_agreed_with_in_the_bytes_that_were_recorded(path: object) -> None:
    talk = transcript(next(one for one in RECORDED if one == path))
    asked = [(dcp.decode(raw)[0], raw) for raw in cut(talk.main.client)]
    answers = {
        frame.opaque: raw for raw in cut(talk.main.server) if (frame := dcp.decode(raw)[0]).kind is Kind.RESPONSE
    }
    book = {(frame.name, frame.key, frame.value): raw for frame, raw in asked if frame.opaque in answers}
    login = next((f.value for f, raw in asked if f.name == "sasl_auth" and answers[f.opaque][7] == 0), b"\0\0")
    _, username, password = login.split(b"\0")
    credentials = Credentials(username.decode(), password.decode()) if username else None
    settings = ConnectionSettings(
        "hs-conn",
        "default",
        credentials,
        "PLAIN",
        collections=False,
        delete_times=False,
        window=20480,
        noop_interval=20,
    )
    session = Session(settings, decoder, 0.0)
    same, other = [], set()
    while session.agreement is None:
        raw = session.outgoing()
        (frame,) = dcp.decode(raw)
        what = frame.key.decode() if frame.name == "control" else frame.name
        recorded = book.get((frame.name, frame.key, frame.value))
        if recorded is not None:
            assert recorded[:12] + raw[12:16] + recorded[16:] == raw
            same.append(what)
            opaque = int.from_bytes(recorded[12:16], "big")
            heard = answers[opaque][:12] + raw[12:16] + answers[opaque][16:]
        else:
            other.add(what)
            # The answer of this server to a request that it does not know, or has nothing for.
            status = Status.SUCCESS if frame.name in ("hello", "get_cluster_config") else Status.EINVAL
            heard = encode(Frame(frame.name, Magic.RESPONSE, frame.opaque, status=int(status)))
        hear(session, heard)
        session.take()
    assert other <= OTHERWISE.keys() | ({"select_bucket"} if talk.version < "5" else set())
    assert {"open", "enable_noop", "set_noop_interval", "connection_buffer_size"} <= set(same)
    assert session.agreement.window == 20480
    # The interval of 3.0.0 cannot be set.
    assert session.agreement.noop_interval == (180.0 if talk.version.startswith("3.0.0") else 20.0)


def test_there_are_recordings() -> None:
    assert len(RECORDED) == 5


# ------------------------------------------------------------------ servers that refuse


def test_a_server_from_before_hello_and_buckets_is_agreed_with() -> None:
    session, agreement = handshake(Peer(OLD))
    assert not agreement.features
    assert not agreement.collections
    session.open(Progress(StreamPosition(3)))
    (asked,) = dcp.decode(session.outgoing())
    assert asked.fields["flags"] == 0


@pytest.mark.parametrize("status", [Status.EBUSY, Status.ETMPFAIL, Status.ENOMEM, Status.EACCESS, 0x7777])
def test_a_server_that_knows_hello_and_refuses_it_is_not_taken_for_an_old_one(status: Status) -> None:
    peer = Peer({"hello": status})
    with pytest.raises(ServerError, match=rf"hello: refused \(status 0x{status:02x}\)"):
        handshake(peer)
    assert [frame.name for frame in peer.requests] == ["hello"]


# ------------------------------------------------------------------ connections after the first one


def granted(demands: Demands, peer: Peer, **settings: bool) -> Agreement:
    return handshake(peer, demands=demands, **settings)[1]


def test_less_than_the_first_connection_was_granted_is_refused_before_the_login() -> None:
    demands = Demands()
    granted(demands, Peer())
    answers: list[Answer] = [b"", b"\0\x07\0\x08", Status.UNKNOWN_COMMAND]
    for hello in answers:
        peer = Peer({"hello": hello})
        with pytest.raises(TransportError, match=r"COLLECTIONS \(changes in all but the default collection"):
            granted(demands, peer)
        assert [frame.name for frame in peer.requests] == ["hello"]


def test_a_connection_that_requests_less_is_not_asked_for_more() -> None:
    demands = Demands()
    granted(demands, Peer(), xattrs=True)
    assert not granted(demands, Peer(), stream=False, collections=False).collections
    assert OpenFlag.INCLUDE_XATTRS not in granted(demands, Peer()).flags


def test_what_the_first_connection_did_not_request_is_learned_later() -> None:
    demands = Demands()
    granted(demands, Peer(), stream=False)
    granted(demands, Peer())
    with pytest.raises(TransportError, match="enable_noop"):
        granted(demands, Peer({"enable_noop": Status.EINVAL}))


def test_a_first_connection_that_fails_is_no_measure() -> None:
    demands = Demands()
    with pytest.raises(ServerError):
        granted(demands, Peer({"open": Status.EACCESS}))
    granted(demands, Peer({"hello": b"\0\x07\0\x08"}))


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_flags_go_one_by_one_the_newest_first(count: int) -> None:
    newest = [METADATA, OpenFlag.INCLUDE_DELETE_TIMES, OpenFlag.INCLUDE_XATTRS]

    class Older(Peer):
        def answer(self, frame: Frame) -> bytes:
            known = FLAGS
            for flag in newest[:count]:
                known &= ~flag
            self.answers["open"] = Status.EINVAL if int(frame.fields.get("flags", 0)) & ~known else Status.SUCCESS
            return super().answer(frame)

    peer = Older()
    _, agreement = handshake(peer, xattrs=True, values=False)
    assert len(peer.named("open")) == count + 1
    assert agreement.flags == [FLAGS, FLAGS & ~newest[0], OpenFlag.PRODUCER | newest[2], OpenFlag.PRODUCER][count]


CAPABLE = b'{"bucketCapabilities":["xattr","tombstonedUserXAttrs"]}'


@pytest.mark.parametrize(
    ("config", "xattrs", "asked"),
    [
        (CAPABLE, True, True),
        (CAPABLE, False, False),
        (b'{"bucketCapabilities":["xattr"]}', True, False),
        (b'{"bucketCapabilities":"tombstonedUserXAttrs"}', True, False),
        (b"[]", True, False),
        (Status.KEY_ENOENT, True, False),
    ],
)
def test_xattrs_of_users_of_deletions_are_asked_for_where_nodes_know_the_flag(
    config: Answer, xattrs: bool, asked: bool
) -> None:
    # An older node might hang up on it.
    peer = Peer({"get_cluster_config": config})
    _, agreement = handshake(peer, xattrs=xattrs)
    (opened,) = peer.named("open")
    assert (OpenFlag.INCLUDE_DELETED_USER_XATTRS in OpenFlag(int(opened.fields["flags"]))) == asked
    assert (OpenFlag.INCLUDE_DELETED_USER_XATTRS in agreement.flags) == asked


def test_a_later_node_that_would_leave_them_out_is_not_read() -> None:
    demands = Demands()
    granted(demands, Peer({"get_cluster_config": CAPABLE}), xattrs=True)
    # One that sends no map is asked all the same.
    without_map = Peer({"get_cluster_config": Status.KEY_ENOENT})
    assert OpenFlag.INCLUDE_DELETED_USER_XATTRS in granted(demands, without_map, xattrs=True).flags

    class Older(Peer):
        def answer(self, frame: Frame) -> bytes:
            flags = OpenFlag(int(frame.fields.get("flags", 0)))
            refused = OpenFlag.INCLUDE_DELETED_USER_XATTRS in flags
            self.answers["open"] = Status.EINVAL if refused else Status.SUCCESS
            return super().answer(frame)

    with pytest.raises(TransportError, match="xattrs of users would be missing from deletions"):
        granted(demands, Older(), xattrs=True)


OPTIONAL = [
    "set_noop_interval",
    "connection_buffer_size",
    "send_stream_end_on_client_close_stream",
    "enable_expiry_opcode",
    "max_marker_version",
    "enable_out_of_order_snapshots",
    "backfill_order",
]


@pytest.mark.parametrize("name", OPTIONAL)
@pytest.mark.parametrize("status", [Status.EINVAL, Status.NOT_SUPPORTED, Status.UNKNOWN_COMMAND])
def test_an_optional_control_is_done_without(name: str, status: Status) -> None:
    peer = Peer({name: status})
    _, agreement = handshake(peer, out_of_order=True, history=True, backfill_order="sequential")
    assert agreement.controls == peer.controls.keys() - {name}
    assert agreement.window == (0 if name == "connection_buffer_size" else SETTINGS.window)
    assert agreement.noop_interval == (180 if name == "set_noop_interval" else 120)


def test_without_noops_there_is_no_deadline() -> None:
    session, agreement = handshake(Peer({"enable_noop": Status.EINVAL}), collections=False)
    assert agreement.noop_interval is None
    assert session.deadline() is None


ROLE = "data_dcp_reader"
REFUSED: list[tuple[dict[str, Answer], type[DcpError], str]] = [
    ({"sasl_auth": Status.AUTH_ERROR}, AuthenticationError, "'alice': wrong name or password"),
    ({"sasl_auth": Status.ETMPFAIL}, AuthenticationError, "cannot authenticate user 'alice' now"),
    ({"sasl_list_mechs": Status.UNKNOWN_COMMAND}, AuthenticationError, "server offers none.*sasl_mech_force=PLAIN"),
    ({"sasl_list_mechs": b"GSSAPI"}, AuthenticationError, "offers GSSAPI"),
    ({"select_bucket": Status.KEY_ENOENT}, ServerError, "'travel': bucket not found; check"),
    ({"select_bucket": Status.EACCESS}, ServerError, f"'travel': bucket not found, or.*{ROLE}"),
    ({"select_bucket": Status.ETMPFAIL}, ServerError, "'travel': refused .status 0x86"),
    ({"open": Status.EACCESS}, ServerError, ROLE),
    ({"open": Status.NOT_SUPPORTED}, ServerError, "'travel': buckets of its type do not support DCP"),
    ({"open": Status.EINVAL}, ServerError, "open of 'test': refused"),
    ({"open": (Status.ENOMEM, b'{"error":{"context":"full up"}}')}, ServerError, "full up"),
    (
        {"enable_noop": Status.EINVAL},
        ServerError,
        "enable_noop: refused, but servers do not stream collections or xattrs",
    ),
    ({"enable_noop": Status.ENOMEM}, ServerError, "control enable_noop: refused"),
    ({"enable_stream_id": Status.EINVAL}, ServerError, "need server 6.5"),
    ({"change_streams": Status.NOT_SUPPORTED}, ServerError, "keeps none"),
    ({"get_cluster_config": b"{no"}, RemoteProtocolError, "expected JSON"),
]


@pytest.mark.parametrize(("answers", "kind", "words"), REFUSED)
def test_a_refusal_says_what_to_do(answers: dict[str, Answer], kind: type[DcpError], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        handshake(Peer(answers), stream_ids="enable_stream_id" in answers, history="change_streams" in answers)
    assert PASSWORD not in f"{caught.value!s}{caught.value!r}"


# ------------------------------------------------------------------ passwords


def messages_of(session: Session, peer: Peer) -> Iterator[bytes]:
    while session.agreement is None:
        raw = session.outgoing()
        yield raw
        hear(session, peer.answer(dcp.decode(raw)[0]))
        if session.agreement is None:
            session.take()


@pytest.mark.parametrize("offered", [b"PLAIN", b"PLAIN CRAM-MD5", b""])
def test_a_password_does_not_go_over_an_open_wire_by_itself(offered: bytes) -> None:
    session = Session(ConnectionSettings("t", "b", SETTINGS.credentials), decoder, 0.0)
    sent: list[bytes] = []
    with pytest.raises(AuthenticationError, match="sasl_mech_force=PLAIN"):
        sent.extend(messages_of(session, Peer({"sasl_list_mechs": offered})))
    assert [frame.name for frame in dcp.decode(b"".join(sent))] == ["hello", "sasl_list_mechs"]


def test_asked_by_name_it_does() -> None:
    settings = ConnectionSettings("t", "b", SETTINGS.credentials, "PLAIN")
    sent = b"".join(messages_of(Session(settings, decoder, 0.0), Peer()))
    assert sent.count(PASSWORD.encode()) == 1


def test_a_mechanism_that_nobody_knows_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="sasl_mech_force: expected one of SCRAM-SHA512"):
        handshake(Peer(), mechanism="OAUTHBEARER")


@pytest.mark.parametrize("password", ["a\0b", chr(0xD800), chr(0xDFFF)])
@pytest.mark.parametrize("tls", [True, False])
def test_a_password_that_cannot_be_said_is_refused(password: str, tls: bool) -> None:
    with pytest.raises(LocalProtocolError, match="user name or password") as caught:
        handshake(Peer(), credentials=Credentials("alice", password), tls=tls)
    assert password not in str(caught.value)


# ------------------------------------------------------------------ what comes in between


def test_a_noop_and_a_map_during_the_handshake_disturb_nothing() -> None:
    session = Session(requested(), decoder, 0.0)
    (hello,) = dcp.decode(session.outgoing())
    noop = Frame("dcp_noop", Magic.REQUEST, 77)
    sent = Frame("clustermap_change_notification", Magic.SERVER_REQUEST, fields={"epoch": 1, "revision": 2}, key=b"b")
    events = hear(session, Peer().answer(hello) + encode(noop) + encode(sent))
    assert [type(event) for event in events] == [MapChanged]
    # The answer to the noop overtakes a request that was made before it.
    assert [frame.name for frame in dcp.decode(session.outgoing())] == ["dcp_noop", "sasl_list_mechs"]


def test_half_a_message_may_follow_the_last_answer_of_a_server_without_collections() -> None:
    sent = Frame("clustermap_change_notification", Magic.SERVER_REQUEST, fields={"epoch": 1, "revision": 2}, key=b"b")
    peer = Peer({"hello": b"\0\x07\0\x08"})
    session = Session(requested(), decoder, 0.0)
    while session.agreement is None:
        answer = peer.answer(dcp.decode(session.outgoing())[0])
        hear(session, answer + (encode(sent)[:30] if peer.requests[-1].key == b"enable_expiry_opcode" else b""))
    assert [type(event) for event in hear(session, encode(sent)[30:])] == [MapChanged]


def test_an_answer_to_something_else_breaks_the_protocol() -> None:
    session = Session(requested(), decoder, 0.0)
    assert hear(session, encode(Frame("open", Magic.RESPONSE))) == []
    with pytest.raises(RemoteProtocolError, match="expected the answer to hello, found one to open"):
        session.take()
    with pytest.raises(RemoteProtocolError):
        session.take()


# ------------------------------------------------------------------ tokens

BEARER = BearerToken("a-token", usable=100.0)
ACCEPTING: dict[str, Answer] = {"sasl_list_mechs": b"PLAIN OAUTHBEARER"}


def test_a_token_is_sent_as_rfc_7628_says() -> None:
    peer = Peer(ACCEPTING)
    session, agreement = handshake(peer, credentials=lambda: BEARER)
    (login,) = peer.named("sasl_auth")
    assert (login.key, login.value) == (b"OAUTHBEARER", b"n,,\x01auth=Bearer a-token\x01\x01")
    assert (agreement.mechanism, agreement.usable) == ("OAUTHBEARER", 100.0)
    assert "a-token" not in repr((agreement, BEARER))
    assert session.deadline() == 100.0


@pytest.mark.parametrize(
    ("answers", "error", "text"),
    [
        ({"sasl_list_mechs": b"PLAIN"}, AuthenticationError, "does not offer OAUTHBEARER.*; it offers PLAIN"),
        (ACCEPTING | {"sasl_auth": Status.AUTH_ERROR}, AuthenticationError, "the server refuses the token"),
        (ACCEPTING | {"sasl_auth": Status.ETMPFAIL}, AuthenticationError, "cannot check the token now"),
        (ACCEPTING | {"sasl_auth": Status.AUTH_CONTINUE}, AuthenticationError, "request for another step"),
        (ACCEPTING | {"select_bucket": Status.AUTH_STALE}, TransportError, "the token has expired"),
    ],
)
def test_a_token_that_is_refused_is_not_shown(answers: dict[str, Answer], error: type[DcpError], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        handshake(Peer(answers), credentials=lambda: BEARER)
    assert "a-token" not in str(caught.value)


def test_a_session_ends_before_its_token_expires() -> None:
    session, _ = handshake(Peer(ACCEPTING), credentials=lambda: BEARER)
    noop = encode(Frame("dcp_noop", Magic.REQUEST))
    hear(session, noop, now=99.0)
    session.take()
    session.check(99.0)
    with pytest.raises(TransportError, match="expires soon"):
        session.check(100.0)
    hear(session, noop, now=100.0)
    with pytest.raises(TransportError, match="expires soon"):
        session.take()


def test_an_acknowledgement_that_is_refused_as_stale_ends_the_session() -> None:
    session, _ = handshake(Peer(ACCEPTING), credentials=lambda: BEARER)
    hear(session, encode(Frame("buffer_ack", Magic.RESPONSE, status=int(Status.AUTH_STALE))))
    with pytest.raises(TransportError, match="the token has expired"):
        session.take()


def test_a_server_that_says_nothing_is_given_up() -> None:
    session = Session(replace(requested(), handshake_timeout=7.0), decoder, 100.0)
    assert session.deadline() == 107.0


def test_bytes_do_not_extend_the_time_of_the_handshake() -> None:
    session = Session(replace(requested(), handshake_timeout=7.0), decoder, 100.0)
    session.buffer()[:1] = b"\x81"
    session.received(1, 106.0, MANY, MANY)
    assert (session.last_heard, session.deadline()) == (106.0, 107.0)


@pytest.mark.parametrize("snappy", [False, True])
def test_compressed_values_are_requested_only_if_they_are_wanted(snappy: bool) -> None:
    peer = Peer()
    handshake(peer, snappy=snappy)
    (hello,) = peer.named("hello")
    assert (Feature.SNAPPY in FEATURES.decode(hello.value, {})) == snappy
