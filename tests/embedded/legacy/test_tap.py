"""TAP: all flags of TAP_CONNECT, backfills, acknowledgements, checkpoints, registered clients."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.embedded.legacy import clients
from dcp.embedded.legacy.ack_log import AckLog, TapMessage
from dcp.embedded.legacy.backfill import Backfill, _without_expired
from dcp.embedded.load import load_documents, padded_values
from dcp.embedded.store import StoredItem
from dcp.wire.dcp import OpenFlag
from dcp.wire.frame import Frame, decode, encode
from dcp.wire.layout import Magic
from dcp.wire.memcached import Status, VbucketState
from dcp.wire.tap import CHECKPOINTS, TapConnectFlag, TapFlag, TapOpaque
from tests.embedded.raw_client import (
    NOW,
    Clock,
    LegacyClient,
    codes,
    fill,
    keys,
    legacy_bucket,
    names,
    rows,
    stored_items,
    wants_acknowledgement,
)
from tests.strategies import CUTS, chunks

BEGIN, END = TapOpaque.INITIAL_VBUCKET_STREAM, TapOpaque.CLOSE_BACKFILL
DUMP, ACK = TapConnectFlag.DUMP, TapConnectFlag.SUPPORT_ACK
REGISTERED = TapConnectFlag.REGISTERED_CLIENT | ACK
# Clients send the largest date to get no existing items at all.
FUTURE = 0xFFFF_FFFF_FFFF_FFFF


def filled(count: int = 10, **options: Any) -> LegacyClient:
    """Create a client of a node with documents on disk."""
    peer = LegacyClient(legacy_bucket(**options))
    fill(peer.bucket, count)
    settle(peer)
    return peer


def settle(peer: LegacyClient) -> None:
    for vbucket in peer.bucket.actives():
        vbucket.evict_checkpoint()


def open_dcp(peer: LegacyClient) -> None:
    peer.send(Frame("open", Magic.REQUEST, fields={"flags": int(OpenFlag.PRODUCER)}, key=b"me"))


# Connecting.


def test_servers_without_tap_close_the_connection() -> None:
    # TAP ended with 5.0, and 5.0 to 6.0 refuse unknown commands with EACCESS, which clients without XERROR do not know.
    peer = filled(version="5.0")
    peer.connect()
    assert (peer.receive_bytes(), peer.connection.dialect, peer.connection.closing) == (b"", "dcp", True)


@pytest.mark.parametrize("version", ["6.5", "7.2", "8.0"])
def test_newer_servers_do_not_know_the_command(version: str) -> None:
    peer = filled(version=version)
    peer.connect()
    (answer,) = peer.receive()
    assert (answer.status, answer.opaque) == (Status.UNKNOWN_COMMAND, 7)
    assert (peer.connection.dialect, peer.connection.closing) == ("dcp", False)


@pytest.mark.parametrize("version", ["3.0", "4.6"])
def test_older_servers_speak_tap_on_the_same_port(version: str) -> None:
    peer = filled(version=version)
    peer.connect(DUMP)
    assert len(keys(peer.receive())) == 10
    assert peer.connection.closing
    other = LegacyClient(peer.bucket)
    open_dcp(other)
    assert other.receive()[0].status == Status.SUCCESS


# Bytes that no encoder produces: the extras or the bodies of the flags are too short or too long.
MALFORMED = {
    "no room for flags": bytes.fromhex("80400000 03000000 00000003 00000007 0000000000000000 000000"),
    "no date": bytes.fromhex("80400000 04000000 0000000b 00000007 0000000000000000 00000001 00000000000000"),
    "a list cut short": bytes.fromhex("80400000 04000000 00000008 00000007 0000000000000000 00000004 00020001"),
    "no list": bytes.fromhex("80400000 04000000 00000004 00000007 0000000000000000 00000004"),
    "more than the flags say": bytes.fromhex("80400000 04000000 00000005 00000007 0000000000000000 00000002 00"),
}


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_connect_closes_the_connection(raw: bytes) -> None:
    peer = filled()
    peer.connection.receive(raw, 0.0)
    assert (peer.receive_bytes(), peer.connection.closing) == (b"", True)


def test_a_refused_connect_is_answered_before_the_connection_closes() -> None:
    # A takeover without a list, a second TAP_CONNECT, and one on a DCP connection.
    unlisted, again, other = filled(), filled(), filled()
    unlisted.connect(TapConnectFlag.TAKEOVER_VBUCKETS)
    again.connect()
    again.receive_bytes()
    again.connect()
    open_dcp(other)
    other.receive_bytes()
    other.connect()
    for peer in (unlisted, again, other):
        (answer,) = decode(b"".join(bytes(part) for part in peer.connection.send(0.0)), "tap")
        assert (answer.name, answer.status) == ("tap_connect", Status.NOT_SUPPORTED)
        assert peer.connection.closing


def test_dcp_is_refused_after_a_tap_connect() -> None:
    peer = filled()
    peer.connect()
    peer.receive_bytes()
    peer.send(Frame("open", Magic.REQUEST, 9, fields={"flags": 1}, key=b"me"), dialect="dcp")
    (answer,) = peer.receive()
    assert (answer.status, answer.opaque) == (Status.UNKNOWN_COMMAND, 9)


# Backfill and changes.


@pytest.mark.parametrize("extras", [b"", b"\0\0\0\0"])
def test_without_flags_existing_items_are_sent_and_then_changes(extras: bytes) -> None:
    peer = filled()
    peer.connection.receive(
        b"\x80\x40\0\0" + bytes([len(extras)]) + bytes(3) + len(extras).to_bytes(4, "big") + bytes(12) + extras, 0.0
    )
    frames = peer.receive()
    assert codes(frames) == [(0, BEGIN), (1, BEGIN), (0, END), (1, END)]
    assert keys(frames) == [item.key for item in stored_items(peer.bucket)]
    item = peer.bucket.store(b"new", b"value")
    (frame,) = peer.receive()
    assert (frame.key, frame.value, frame.cas, wants_acknowledgement(frame)) == (b"new", b"value", item.cas, False)
    peer.bucket.remove(b"new")
    (frame,) = peer.receive()
    # rev_seqno counts the versions of the document: written once, then deleted.
    assert (frame.name, frame.key, frame.fields["rev_seqno"]) == ("deletion", b"new", 2)
    assert not peer.connection.closing


COLUMNS = ("event", "vbucket", "key", "value", "cas", "rev_seqno", "flags", "expiry")


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from(["store", "remove", "expire"])), max_size=30))
def test_decoded_rows_are_the_stored_items(changes: list[tuple[str, str]]) -> None:
    peer = LegacyClient(legacy_bucket(vbuckets=3))
    for n, (key, change) in enumerate(changes):
        if change == "store":
            peer.bucket.store(key.encode(), b"%d" % n * n, flags=n << 20, expiry=NOW + 1 + n)
        else:
            peer.bucket.remove(key.encode(), event="deletion" if change == "remove" else "expiration")
    peer.connect(TapConnectFlag.FIX_FLAG_BYTEORDER | DUMP)
    expected = [
        {
            "event": "mutation" if item.alive else "deletion",
            "vbucket": peer.bucket.vbucket_of(item.key),
            "key": item.key,
            "value": item.value,
            "cas": item.cas,
            "rev_seqno": item.rev_seqno,
            "flags": item.flags,
            "expiry": item.expiry,
        }
        for item in stored_items(peer.bucket)
    ]
    assert rows(peer.receive_bytes(), "tap", *COLUMNS) == expected


def test_item_flags_are_swapped_unless_the_client_can_read_them() -> None:
    swapped, fixed = filled(), filled()
    swapped.connect(DUMP)
    fixed.connect(DUMP | TapConnectFlag.FIX_FLAG_BYTEORDER)
    for wrong, right in zip(swapped.receive(), fixed.receive(), strict=True):
        if right.name == "mutation":
            flags = int(right.fields["flags"])
            assert int(wrong.fields["flags"]).to_bytes(4, "big") == flags.to_bytes(4, "little")
            assert (wrong.fields["tap_flags"], right.fields["tap_flags"]) == (0, TapFlag.NETWORK_BYTE_ORDER)
        else:
            assert wrong == right


def test_messages_have_a_ttl_and_engine_specific_fields() -> None:
    peer = filled()
    peer.connect(ACK, checkpoints=())
    for raw in decode(b"".join(encode(frame, "tap") for frame in peer.follow()), "tap"):
        assert raw.fields["ttl"] == 255
        assert ("rev_seqno" in raw.fields) is (raw.name in ("mutation", "deletion", "tap_checkpoint_start"))


@pytest.mark.parametrize(("second", "sent"), [(30, [b"3", b"4", b"5"]), (50, [b"5"])])
def test_changes_before_a_date_are_left_out(second: int, sent: list[bytes]) -> None:
    clock = Clock()
    peer = LegacyClient(legacy_bucket(clock=clock))
    for n in range(6):
        clock.now = NOW + 10 * n
        peer.bucket.store(b"%d" % n, b"")
    settle(peer)
    # An empty list stands for all vbuckets.
    peer.connect(date=NOW + second, vbuckets=())
    assert sorted(keys(peer.receive())) == sent


@pytest.mark.parametrize("date", [NOW + 1, FUTURE])
def test_a_date_in_the_future_requests_changes_from_now_on(date: int) -> None:
    peer = LegacyClient(legacy_bucket())
    fill(peer.bucket, 10)
    peer.connect(date=date)
    assert peer.receive() == []
    peer.bucket.store(b"new", b"")
    assert keys(peer.receive()) == [b"new"]


@pytest.mark.parametrize("flags", [TapConnectFlag(0), ACK])
def test_items_in_memory_are_sent_again_after_the_backfill(flags: TapConnectFlag) -> None:
    peer = filled(4)
    fill(peer.bucket, 3, "later")
    peer.connect(flags, vbuckets=(0, 1))
    frames = peer.follow()
    last = max(n for n, frame in enumerate(frames) if frame.name == "tap_opaque")
    assert sorted(keys(frames[:last])) == sorted(item.key for item in stored_items(peer.bucket))
    assert sorted(keys(frames[last:])) == [b"later-0", b"later-1", b"later-2"]


@pytest.mark.parametrize("flags", [DUMP, DUMP | ACK])
def test_a_dump_ends_after_the_last_item(flags: TapConnectFlag) -> None:
    peer = filled()
    peer.connect(flags, vbuckets=(1,))
    frames = peer.follow()
    assert keys(frames) == [item.key for item in stored_items(peer.bucket, 1)]
    assert peer.connection.closing


def test_a_dump_of_nothing_ends_at_once() -> None:
    peer = LegacyClient(legacy_bucket())
    peer.connect(DUMP)
    assert (peer.receive(), peer.connection.closing) == ([], True)


@pytest.mark.parametrize(("listed", "found"), [((), (0, 1, 2)), ((2,), (2,)), ((1, 0, 1), (0, 1)), ((99, 1), (1,))])
def test_the_listed_vbuckets_are_sent(listed: tuple[int, ...], found: tuple[int, ...]) -> None:
    peer = filled(vbuckets=3)
    peer.connect(DUMP, vbuckets=listed)
    assert keys(peer.receive()) == [item.key for item in stored_items(peer.bucket, *found)]


def test_vbuckets_that_are_dead_are_not_sent() -> None:
    peer = filled()
    peer.bucket.active(0).state = VbucketState.DEAD
    peer.connect()
    assert keys(peer.receive()) == [item.key for item in stored_items(peer.bucket, 1)]
    peer.bucket.active(1).state = VbucketState.DEAD
    for n in range(8):
        peer.bucket.store(b"%d" % n, b"")
    assert peer.receive() == []


def test_values_are_left_out_only_by_servers_that_honour_keys_only() -> None:
    # Servers since 3.0 ignore the flag.
    newer = filled()
    newer.connect(DUMP | TapConnectFlag.KEYS_ONLY)
    assert all(frame.value for frame in newer.receive() if frame.name == "mutation")
    older = LegacyClient(newer.bucket, "tap")
    older.connect(DUMP | TapConnectFlag.KEYS_ONLY)
    mutations = [frame for frame in older.receive() if frame.name == "mutation"]
    assert {(frame.value, frame.fields["tap_flags"]) for frame in mutations} == {(b"", TapFlag.NO_VALUE)}


def test_servers_of_the_tap_dialect_send_all_specified_messages() -> None:
    peer = LegacyClient(filled().bucket, "tap")
    peer.connect(DUMP | ACK)
    assert codes(peer.follow())[-1] == (0, TapOpaque.CLOSE_TAP_STREAM)
    assert peer.connection.closing
    opened = [(0, TapOpaque.OPEN_CHECKPOINT), (1, TapOpaque.OPEN_CHECKPOINT)]
    for name, date in ((b"me", FUTURE), (b"you", 0)):
        registered = LegacyClient(peer.bucket, "tap")
        registered.connect(TapConnectFlag.REGISTERED_CLIENT, name=name, date=date)
        assert codes(registered.receive())[-2:] == opened


# Takeover.


@pytest.mark.parametrize("flags", [TapConnectFlag(0), ACK])
def test_a_vbucket_is_handed_over_after_its_last_item(flags: TapConnectFlag) -> None:
    peer = filled()
    peer.connect(flags | TapConnectFlag.TAKEOVER_VBUCKETS, vbuckets=(1,))
    frames = peer.follow()
    states = [(frame.vbucket, frame.fields["state"]) for frame in frames if frame.name == "tap_vbucket_set"]
    assert states == [(1, VbucketState.PENDING), (1, VbucketState.ACTIVE)]
    assert names(frames)[-1] == "tap_vbucket_set"
    assert keys(frames) == [item.key for item in stored_items(peer.bucket, 1)]
    assert [peer.bucket.active(n).state for n in (0, 1)] == [VbucketState.ACTIVE, VbucketState.DEAD]
    assert peer.connection.closing


def test_a_vbucket_is_handed_over_after_all_of_its_changes() -> None:
    peer = LegacyClient(legacy_bucket())
    # Changes that no backfill has, more than are sent at once.
    peer.bucket.active(1).set_persistence(at_once=False)
    for n in range(600):
        peer.bucket.store(b"%d" % n, b"", number=1)
    peer.connect(TapConnectFlag.TAKEOVER_VBUCKETS, vbuckets=(1,))
    frames = peer.receive()
    assert len(keys(frames)) == 600
    assert frames[-1].fields.get("state") == VbucketState.ACTIVE


@pytest.mark.parametrize("state", [VbucketState.DEAD, VbucketState.REPLICA])
def test_a_vbucket_that_is_not_active_stays_as_it_is_when_it_is_handed_over(state: VbucketState) -> None:
    peer = filled()
    peer.connect(ACK | TapConnectFlag.TAKEOVER_VBUCKETS, vbuckets=(0, 1))
    vbucket = peer.bucket.active(1)
    peer.receive_bytes()
    vbucket.state = state
    for number in (2, 4, 6, 8, 10):
        peer.send(Frame("tap_opaque", Magic.RESPONSE, number))
    handed_over = [frame.vbucket for frame in peer.follow() if frame.fields.get("state") == VbucketState.ACTIVE]
    assert handed_over == [0, 1]
    assert (peer.bucket.active(0).state, vbucket.state) == (VbucketState.DEAD, state)


def test_control_messages_take_two_numbers_and_changes_one() -> None:
    peer = filled()
    peer.connect(ACK | TapConnectFlag.TAKEOVER_VBUCKETS, vbuckets=(1,))
    control, changes = peer.receive(), []
    for frame in control:
        peer.acknowledge(frame)
    changes = peer.receive()
    assert names(control) == ["tap_opaque", "tap_vbucket_set", "tap_opaque"]
    # Seen in 3.x: the opaque is a running number, of which these messages take two.
    assert [frame.opaque for frame in control + changes[:2]] == [2, 4, 6, 7, 8]


def test_a_vbucket_is_kept_until_the_client_has_acknowledged_all() -> None:
    peer = filled()
    peer.connect(ACK | TapConnectFlag.TAKEOVER_VBUCKETS, vbuckets=(1,))
    waiting = [frame for frame in peer.receive() if wants_acknowledgement(frame)]
    while waiting:
        assert peer.bucket.active(1).state is VbucketState.ACTIVE
        for frame in waiting:
            peer.acknowledge(frame)
        waiting = [frame for frame in peer.receive() if wants_acknowledgement(frame)]
        if any(frame.fields.get("state") == VbucketState.ACTIVE for frame in waiting):
            break
    assert (peer.bucket.active(1).state, peer.connection.closing) == (VbucketState.DEAD, False)
    peer.acknowledge(waiting[-1])
    assert (peer.receive(), peer.connection.closing) == ([], True)


# Acknowledgements.


def test_nothing_follows_the_first_opaques_until_they_are_acknowledged() -> None:
    peer = filled()
    peer.connect(ACK)
    frames = peer.receive()
    assert codes(frames) == [(0, TapOpaque.ENABLE_AUTO_NACK), (0, BEGIN), (1, BEGIN)]
    assert all(wants_acknowledgement(frame) for frame in frames)
    peer.acknowledge(frames[0])
    peer.acknowledge(frames[1])
    assert peer.receive() == []
    peer.acknowledge(frames[2])
    assert len(peer.receive()) == 10


def test_a_window_of_unacknowledged_messages_stops_the_server() -> None:
    peer = LegacyClient(legacy_bucket(vbuckets=1))
    # 500 more than may be in flight.
    load_documents(peer.bucket, 10_500, padded_values(20, 1), b"k", 0)
    peer.connect(ACK)
    for frame in peer.receive():
        peer.acknowledge(frame)
    frames = peer.receive()
    assert len(frames) == 10_000
    assert [frame.opaque for frame in frames if wants_acknowledgement(frame)] == list(range(1000, 10_001, 1000))
    # Acknowledges this message and all before it.
    peer.acknowledge(frames[299])
    more = peer.receive()
    assert len(more) == 300
    peer.acknowledge(more[-1])
    last = peer.receive()
    assert len(last) == 200
    assert wants_acknowledgement(last[-1])
    peer.acknowledge(last[-1])
    assert codes(peer.receive()) == [(0, END)]


@pytest.mark.parametrize(("count", "closing"), [(9_999, False), (10_000, True)])
def test_only_a_client_with_a_full_window_has_to_acknowledge(count: int, closing: bool) -> None:
    peer = LegacyClient(legacy_bucket(vbuckets=1))
    peer.connect(ACK)
    while frames := peer.receive():
        for frame in frames:
            peer.acknowledge(frame)
    for _ in range(count):
        peer.bucket.store(b"k%d" % peer.bucket.active(0).high_seqno, b"", number=0)
    assert len(peer.receive()) == count
    peer.wait(301)
    assert peer.connection.closing is closing


def test_changes_that_have_to_wait_for_the_window_are_not_counted_as_sent() -> None:
    peer = LegacyClient(legacy_bucket())
    peer.connect(REGISTERED, name=b"me")
    peer.follow()
    # The last changes of the first vbucket fill the window.
    for changes in ({0: 9_900}, {0: 100, 1: 5}):
        for vbucket, count in changes.items():
            for n in range(count):
                peer.bucket.store(b"%d-%d" % (count, n), b"", number=vbucket)
        assert {frame.vbucket for frame in peer.receive()} == {0}
    peer.connection.closed()
    back = LegacyClient(peer.bucket)
    back.connect(REGISTERED, name=b"me")
    assert len(keys(back.follow())) == 10_005


def test_changes_after_some_that_were_undone_are_sent() -> None:
    peer = filled(vbuckets=1)
    peer.connect()
    peer.receive()
    for key in (b"kept", b"lost", b"lost too"):
        peer.bucket.store(key, b"")
    assert keys(peer.receive()) == [b"kept", b"lost", b"lost too"]
    peer.bucket.active(0).undo_writes(2)
    assert peer.receive() == []
    peer.bucket.store(b"after", b"")
    assert keys(peer.receive()) == [b"after"]


def test_changes_use_the_whole_window() -> None:
    peer = LegacyClient(legacy_bucket(vbuckets=1))
    peer.connect(ACK)
    # The backfill is closed once its beginning is acknowledged.
    while frames := peer.receive():
        for frame in frames:
            peer.acknowledge(frame)
    for number, received in ((9_999, 9_999), (2, 1), (1, 0)):
        for _ in range(number):
            peer.bucket.store(b"k%d" % peer.bucket.active(0).high_seqno, b"", number=0)
        assert len(peer.receive()) == received


def test_a_client_that_stops_acknowledging_is_disconnected() -> None:
    peer = LegacyClient(legacy_bucket(vbuckets=1))
    load_documents(peer.bucket, 10_500, padded_values(20, 1), b"k", 0)
    peer.connect(ACK)
    for frame in peer.receive():
        peer.acknowledge(frame)
    frames = peer.receive()
    # The timeout is 300 s since the last acknowledgement.
    peer.wait(200)
    peer.acknowledge(frames[0])
    assert len(peer.receive()) == 1
    peer.wait(299)
    assert not peer.connection.closing
    peer.wait(2)
    assert peer.connection.closing


@pytest.mark.parametrize("status", [Status.ETMPFAIL, Status.EBUSY])
def test_items_that_a_client_has_no_room_for_are_sent_again(status: Status) -> None:
    peer = filled(4, vbuckets=1)
    peer.connect(ACK | DUMP)
    for frame in peer.receive():
        peer.acknowledge(frame)
    first = peer.receive()
    peer.acknowledge(first[1], status)
    # The backoff is 5 s since the first refusal.
    peer.wait(2.9)
    peer.acknowledge(first[3], status)
    assert peer.connection.due() == 5
    peer.wait(2)
    assert peer.receive() == []
    peer.wait(0.2)
    again = peer.receive()
    assert keys(again) == [first[1].key, first[3].key]
    # The last message that waits for nothing else requests an acknowledgement.
    assert [wants_acknowledgement(frame) for frame in again] == [False, True]
    peer.acknowledge(again[1])
    assert codes(peer.follow()) == [(0, END)]
    assert peer.connection.closing


def test_refused_control_messages_are_sent_again() -> None:
    peer = filled()
    peer.connect(ACK, vbuckets=(1,), checkpoints=())
    frames = peer.receive()
    peer.acknowledge(frames[0], Status.ETMPFAIL)
    peer.wait(6)
    assert codes(peer.receive()) == [(0, TapOpaque.ENABLE_AUTO_NACK)]


@pytest.mark.parametrize("status", [Status.EINTERNAL, Status.NOT_MY_VBUCKET, Status.EINVAL])
def test_any_other_refusal_closes_the_connection(status: Status) -> None:
    peer = filled()
    peer.connect(ACK)
    peer.acknowledge(peer.receive()[0], status)
    assert (peer.receive(), peer.connection.closing) == ([], True)


def test_a_client_without_acknowledgements_gets_no_request_for_any() -> None:
    peer = filled()
    peer.connect(TapConnectFlag.REGISTERED_CLIENT, checkpoints=())
    assert not any(wants_acknowledgement(frame) for frame in peer.receive())


# Opaque, name and status of a response, whether or not such a message is in flight.
ACKS = st.tuples(
    st.integers(0, 60),
    st.sampled_from(["mutation", "deletion", "tap_opaque", "tap_checkpoint_start", "tap_vbucket_set", "noop"]),
    st.sampled_from([Status.SUCCESS, Status.SUCCESS, Status.ETMPFAIL]),
)


@given(st.lists(ACKS, max_size=25), st.booleans())
def test_acknowledgements_in_any_order_lose_nothing(acks: list[tuple[int, str, Status]], checkpoints: bool) -> None:
    peer = filled()
    peer.connect(ACK, checkpoints=() if checkpoints else None)
    found = peer.receive()
    for number, name, status in acks:
        peer.send(Frame(name, Magic.RESPONSE, number, status=int(status)))
        peer.wait(1)
        found += peer.receive()
    peer.wait(6)
    for frame in found:
        peer.acknowledge(frame)
    found += peer.follow()
    assert {frame.key for frame in found if frame.name in ("mutation", "deletion")} == {
        item.key for item in stored_items(peer.bucket)
    }
    peer.bucket.store(b"new", b"")
    assert b"new" in keys(peer.follow())
    assert not peer.connection.closing


@given(st.data())
def test_requests_may_arrive_in_any_pieces(data: st.DataObject) -> None:
    whole = filled()
    whole.connect(ACK | DUMP, vbuckets=())
    # Responses to the messages that a dump of two vbuckets sends, by their running numbers.
    responses = [Frame("tap_opaque", Magic.RESPONSE, n) for n in (2, 4, 6)]
    responses += [Frame("mutation", Magic.RESPONSE, 16), Frame("tap_opaque", Magic.RESPONSE, 20)]
    connect = Frame("tap_connect", Magic.REQUEST, fields={"flags": int(ACK | DUMP)})
    client = b"".join(encode(frame, "tap") for frame in [connect, *responses])
    outputs = []
    for pieces in ([client], chunks(client, data.draw(CUTS))):
        peer = filled()
        output = b""
        for piece in pieces:
            peer.connection.receive(piece, 0.0)
        output += peer.receive_bytes()
        outputs.append((output, peer.connection.closing))
    assert outputs[0] == outputs[1]


def test_an_idle_node_sends_noops() -> None:
    peer = LegacyClient(legacy_bucket())
    peer.connect()
    peer.receive_bytes()
    # No-ops are due every 20 s since the last message.
    peer.wait(19)
    assert peer.receive() == []
    peer.wait(22)
    assert names(peer.receive()) == ["noop", "noop"]
    peer.wait(10)
    peer.bucket.store(b"new", b"")
    peer.receive_bytes()
    peer.wait(19)
    assert peer.receive() == []


# Checkpoints.


def test_checkpoints_are_announced_and_wait_for_their_acknowledgements() -> None:
    peer = filled(vbuckets=1)
    vbucket = peer.bucket.active(0)
    peer.connect(ACK, checkpoints=())
    frames = peer.follow()
    assert (0, TapOpaque.ENABLE_CHECKPOINT_SYNC) in codes(frames)
    start = frames[-1]
    assert (start.name, start.key) == ("tap_checkpoint_start", b"checkpoint_start")
    assert (start.fields["checkpoint"], start.fields["rev_seqno"]) == (vbucket.checkpoint, 2)
    peer.bucket.store(b"new", b"")
    (row,) = peer.receive()
    # A new checkpoint begins, but the end of the old one waits for the acknowledgement of its row.
    vbucket.evict_checkpoint()
    assert peer.receive() == []
    peer.acknowledge(row)
    (end,) = peer.receive()
    assert (end.name, end.fields["checkpoint"]) == ("tap_checkpoint_end", start.fields["checkpoint"])
    peer.acknowledge(end)
    (start,) = peer.receive()
    assert (start.name, start.fields["checkpoint"]) == ("tap_checkpoint_start", vbucket.checkpoint)


def test_a_checkpoint_ends_after_its_last_change() -> None:
    peer = filled(vbuckets=1)
    peer.connect(ACK, checkpoints=())
    peer.follow()
    for key in (b"one", b"two"):
        peer.bucket.store(key, b"")
    settle(peer)
    peer.bucket.store(b"three", b"")
    sent = [(frame.name, frame.key) for frame in peer.follow()]
    assert sent == [
        ("mutation", b"one"),
        ("mutation", b"two"),
        ("tap_checkpoint_end", b"checkpoint_end"),
        ("tap_checkpoint_start", b"checkpoint_start"),
        ("mutation", b"three"),
    ]


def test_the_end_of_a_checkpoint_waits_for_no_other_vbucket() -> None:
    peer = filled()
    peer.connect(ACK, checkpoints=())
    peer.follow()
    for key in (b"one", b"two"):
        settle(peer)
        for number in (0, 1):
            peer.bucket.store(b"%s-%d" % (key, number), b"", number=number)
    assert sorted(keys(peer.follow())) == [b"one-0", b"one-1", b"two-0", b"two-1"]


def test_changes_that_no_backfill_has_are_sent_in_the_present_checkpoint() -> None:
    peer = filled(vbuckets=1)
    peer.bucket.active(0).set_persistence(at_once=False)
    peer.bucket.store(b"new", b"")
    settle(peer)
    peer.connect(ACK, checkpoints=())
    assert names(peer.follow())[-2:] == ["tap_checkpoint_start", "mutation"]


def test_a_checkpoint_begins_with_the_highest_revision_of_a_deleted_document() -> None:
    peer = LegacyClient(legacy_bucket(vbuckets=2))
    for _ in range(5):
        peer.bucket.store(b"kept", b"", number=0)
    for key, writes in ((b"one", 1), (b"three", 3), (b"two", 2)):
        for _ in range(writes):
            peer.bucket.store(key, b"", number=0)
        peer.bucket.remove(key, number=0)
    peer.connect(checkpoints=())
    starts = [frame for frame in peer.receive() if frame.name == "tap_checkpoint_start"]
    # The removal is a revision, too. Nothing was deleted in the other vbucket.
    assert [(frame.vbucket, frame.fields["rev_seqno"]) for frame in starts] == [(0, 4), (1, 0)]


def test_a_client_that_has_all_checkpoints_but_the_open_one_needs_no_backfill() -> None:
    peer = filled(vbuckets=1)
    fill(peer.bucket, 3, "later")
    peer.connect(checkpoints=((0, peer.bucket.active(0).checkpoint - 1),))
    frames = peer.receive()
    assert BEGIN not in [code for _, code in codes(frames)]
    assert sorted(keys(frames)) == [b"later-0", b"later-1", b"later-2"]
    older = LegacyClient(peer.bucket)
    older.connect(checkpoints=((0, 0),))
    assert (0, BEGIN) in codes(older.receive())


# Named and registered clients.


def test_a_registered_client_resumes_after_its_last_acknowledgement() -> None:
    peer = filled(6, vbuckets=1)
    peer.connect(REGISTERED, name=b"me")
    peer.follow()
    fill(peer.bucket, 5, "later")
    later = peer.receive()
    peer.acknowledge(later[1])
    peer.connection.closed()
    back = LegacyClient(peer.bucket)
    back.connect(REGISTERED, name=b"me")
    frames = back.follow()
    assert codes(frames) == [(0, TapOpaque.ENABLE_AUTO_NACK)]
    assert keys(frames) == keys(later[2:])
    back.connection.closed()
    again = LegacyClient(peer.bucket)
    again.connect(REGISTERED, name=b"me")
    assert keys(again.follow()) == []


def test_a_registered_client_gets_refused_items_after_a_reconnect() -> None:
    peer = filled(6, vbuckets=1)
    peer.connect(REGISTERED, name=b"me")
    peer.follow()
    fill(peer.bucket, 5, "later")
    later = peer.receive()
    peer.acknowledge(later[1], Status.ETMPFAIL)
    peer.acknowledge(later[3], Status.ETMPFAIL)
    peer.connection.closed()
    back = LegacyClient(peer.bucket)
    back.connect(REGISTERED, name=b"me")
    first = back.receive()
    # ENABLE_AUTO_NACK: nothing else is sent before its acknowledgement.
    back.acknowledge(first[0])
    rest = back.receive()
    assert keys(rest) == keys(later[1:])
    back.acknowledge(rest[1], Status.ETMPFAIL)
    back.acknowledge(rest[-1])
    back.wait(6)
    assert keys(back.follow()) == [rest[1].key]
    back.connection.closed()
    again = LegacyClient(peer.bucket)
    again.connect(REGISTERED, name=b"me")
    assert keys(again.follow()) == []


def test_a_registered_client_gets_the_rest_of_its_backfill() -> None:
    peer = filled(8, vbuckets=1)
    peer.connect(REGISTERED, name=b"me")
    for frame in peer.receive():
        peer.acknowledge(frame)
    first = peer.receive()
    peer.acknowledge(first[3])
    peer.connection.closed()
    back = LegacyClient(peer.bucket)
    back.connect(REGISTERED, name=b"me")
    frames = back.follow()
    assert keys(frames) == keys(first[4:])
    assert (0, BEGIN) in codes(frames)


def test_a_registered_client_that_leaves_before_its_backfill_gets_all_of_it_later() -> None:
    peer = filled(8, vbuckets=1)
    for _ in range(2):
        early = LegacyClient(peer.bucket)
        early.connect(REGISTERED, name=b"me")
        assert keys(early.receive()) == []
        early.connection.closed()
    back = LegacyClient(peer.bucket)
    back.connect(REGISTERED, name=b"me")
    assert keys(back.follow()) == [item.key for item in stored_items(peer.bucket)]


@pytest.mark.parametrize("sender", ["dcp", "tap"])
def test_a_deregistered_client_starts_from_the_beginning(sender: str) -> None:
    peer = filled(6, vbuckets=1)
    peer.connect(REGISTERED, name=b"me")
    peer.follow()
    peer.connection.closed()
    other = LegacyClient(peer.bucket, sender)
    other.send(Frame("deregister_tap_client", Magic.REQUEST, 5, key=b"me"), dialect="tap")
    (answer,) = decode(other.receive_bytes(), "tap")
    assert (answer.name, answer.status, answer.opaque) == ("deregister_tap_client", Status.SUCCESS, 5)
    back = LegacyClient(peer.bucket)
    back.connect(REGISTERED, name=b"me")
    assert (0, BEGIN) in codes(back.follow())


def test_an_unregistered_client_starts_from_the_beginning() -> None:
    peer = filled(6, vbuckets=1)
    for _ in range(2):
        client = LegacyClient(peer.bucket)
        client.connect(ACK, name=b"me")
        assert len(keys(client.follow())) == 6
        client.connection.closed()


def test_the_second_client_with_a_name_replaces_the_first() -> None:
    peer = filled(6, vbuckets=1)
    peer.connect(REGISTERED, name=b"me")
    peer.follow()
    second = LegacyClient(peer.bucket)
    second.connect(REGISTERED, name=b"me")
    assert peer.connection.closing
    assert keys(second.follow()) == []
    peer.connection.closed()
    assert clients.clients_of(peer.bucket.nodes[0]).connected.keys() == {b"me"}


def test_a_node_remembers_a_limited_number_of_registered_clients() -> None:
    peer = filled()
    clients.clients_of(peer.bucket.nodes[0]).max_registered = 1
    peer.connect(REGISTERED, name=b"one")
    other = LegacyClient(peer.bucket)
    other.connect(REGISTERED, name=b"two")
    assert decode(other.receive_bytes(), "tap")[0].status == Status.NOT_SUPPORTED
    assert other.connection.closing


def change_filter(peer: LegacyClient, name: bytes, *vbuckets: int) -> Status:
    value = CHECKPOINTS.put([(number, 0) for number in vbuckets])
    admin = LegacyClient(peer.bucket)
    admin.send(Frame("change_vb_filter", Magic.REQUEST, key=name, value=value), dialect="tap")
    return Status(decode(admin.receive_bytes(), "tap")[0].status)


def test_the_vbuckets_of_a_client_can_be_changed() -> None:
    peer = filled(vbuckets=3)
    peer.connect(name=b"me", vbuckets=(0, 1))
    peer.receive_bytes()
    assert change_filter(peer, b"me", 1, 2) is Status.SUCCESS
    frames = peer.receive()
    complete = TapOpaque.START_ONLINEUPDATE
    assert codes(frames) == [(0, complete), (2, BEGIN), (2, END)]
    assert keys(frames) == [item.key for item in stored_items(peer.bucket, 2)]
    fill(peer.bucket, 30, "later")
    assert {frame.vbucket for frame in peer.receive()} == {1, 2}
    assert change_filter(peer, b"nobody", 1) is Status.KEY_ENOENT
    peer.connection.closed()
    assert change_filter(peer, b"me", 1) is Status.KEY_ENOENT


def test_of_vbuckets_that_a_filter_drops_nothing_more_is_sent() -> None:
    peer = filled(vbuckets=3)
    peer.connect(ACK | TapConnectFlag.TAKEOVER_VBUCKETS, name=b"me", vbuckets=(0, 1, 2))
    change_filter(peer, b"me", 1)
    frames = peer.follow()
    assert codes(frames) == [(0, TapOpaque.ENABLE_AUTO_NACK), (1, BEGIN), (0, TapOpaque.START_ONLINEUPDATE), (1, END)]
    states = [(frame.vbucket, frame.fields["state"]) for frame in frames if frame.name == "tap_vbucket_set"]
    assert states == [(1, VbucketState.PENDING), (1, VbucketState.ACTIVE)]
    assert keys(frames) == [item.key for item in stored_items(peer.bucket, 1)]
    active = [vbucket.number for vbucket in peer.bucket.actives() if vbucket.state is VbucketState.ACTIVE]
    assert active == [0, 2]


@pytest.mark.parametrize("first", ["the refusal", "the filter"])
def test_refused_items_of_vbuckets_that_a_filter_drops_are_not_sent_again(first: str) -> None:
    peer = filled()
    peer.connect(ACK, name=b"me")
    peer.follow()
    for number in (0, 1):
        peer.bucket.store(b"later-%d" % number, b"", number=number)
    later = peer.receive()
    if first == "the filter":
        change_filter(peer, b"me", 1)
    for frame in later:
        peer.acknowledge(frame, Status.ETMPFAIL)
    if first == "the refusal":
        change_filter(peer, b"me", 1)
    peer.wait(6)
    assert keys(peer.follow()) == [b"later-1"]


def test_a_vbucket_that_is_added_again_starts_from_the_beginning() -> None:
    peer = filled()
    peer.connect(REGISTERED, name=b"me")
    peer.follow()
    change_filter(peer, b"me", 1)
    peer.follow()
    change_filter(peer, b"me", 0, 1)
    frames = peer.follow()
    assert [code for code in codes(frames) if code[1] in (BEGIN, END)] == [(0, BEGIN), (0, END)]
    assert keys(frames) == [item.key for item in stored_items(peer.bucket, 0)]
    change_filter(peer, b"me", 1)
    peer.follow()
    peer.connection.closed()
    back = LegacyClient(peer.bucket)
    back.connect(REGISTERED, name=b"me")
    assert [code for code in codes(back.follow()) if code[1] == BEGIN] == [(0, BEGIN)]


def test_repeated_changes_of_a_filter_queue_no_stale_messages() -> None:
    peer = filled(vbuckets=3)
    peer.connect(ACK, name=b"me", vbuckets=(0,))
    peer.receive_bytes()
    for n in range(50):
        change_filter(peer, b"me", n % 3)
    assert len(peer.receive()) <= 4
    peer.acknowledge(Frame("tap_opaque", Magic.RESPONSE, 0), Status.ETMPFAIL)


def test_a_malformed_filter_is_refused() -> None:
    peer = filled()
    peer.connect(name=b"me")
    admin = LegacyClient(peer.bucket)
    admin.send(Frame("change_vb_filter", Magic.REQUEST, key=b"me", value=b"\0\2\0\1"), dialect="tap")
    assert decode(admin.receive_bytes(), "tap")[0].status == Status.EINVAL


def test_a_vbucket_that_is_dropped_before_its_turn_is_not_sent() -> None:
    bucket = filled().bucket
    first, second = (vbucket.number for vbucket in bucket.actives())
    backfill = Backfill(bucket.nodes[0], 0, lambda: NOW)
    backfill.add(first, 0)
    backfill.add(second, 0)
    backfill.drop(second)
    run = backfill.run()
    assert run is not None
    assert run.vbucket == first
    run.next = len(run.items)
    assert backfill.run() is None
    assert backfill.vbuckets == [first]


def test_a_vbucket_that_is_dropped_in_its_turn_is_not_sent_to_its_end() -> None:
    bucket = filled().bucket
    first, second = (vbucket.number for vbucket in bucket.actives())
    backfill = Backfill(bucket.nodes[0], 0, lambda: NOW)
    backfill.add(first, 0)
    run = backfill.run()
    assert run is not None
    # Another one that is dropped changes nothing.
    backfill.drop(second)
    assert backfill.run() is run
    backfill.drop(first)
    assert backfill.run() is None


def test_the_last_of_all_changes_asks_for_an_acknowledgement() -> None:
    peer = filled()
    peer.connect(ACK, date=FUTURE)
    peer.follow()
    for n in range(20):
        peer.bucket.store(b"new-%d" % n, b"1")
    asking = [wants_acknowledgement(frame) for frame in peer.receive() if frame.key]
    assert asking == [False] * 19 + [True]


def test_the_number_of_a_message_has_32_bits_and_is_never_0() -> None:
    log = AckLog(enabled=True)
    log._next = 0xFFFF_FFFF
    assert [log.add(TapMessage("mutation", 0)) for _ in range(2)] == [0xFFFF_FFFF, 1]


def test_a_document_expires_in_the_second_of_its_expiry() -> None:
    items = [StoredItem("mutation", n + 1, b"key", expiry=at) for n, at in enumerate((0, 1, NOW, NOW + 1))]
    sent = ["mutation", "deletion", "deletion", "mutation"]
    assert [item.event for item in _without_expired(items, NOW)] == sent
