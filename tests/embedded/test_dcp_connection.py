"""DCP connections: open flags, controls, no-ops, flow control, and the form of items."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dcp
from dcp import Frame, decode, encode
from dcp.embedded.dcp_connection import IDLE_TIMEOUT
from dcp.embedded.document import deflate
from dcp.embedded.negotiated import Negotiated
from dcp.embedded.store import StoredItem
from dcp.wire.dcp import OpenFlag, StreamEnd, StreamFlag
from dcp.wire.document import Datatype, join_xattrs
from dcp.wire.layout import Magic
from dcp.wire.memcached import Feature, Status, VbucketState
from tests.embedded.raw_client import ALL_FEATURES, CommandClient, DcpClient, filled_bucket, make_bucket, summaries

# Open requests.


def opened(version: str, flags: int, features: frozenset[Feature] = ALL_FEATURES) -> int:
    """Return the status of the response to an open request."""
    bucket = make_bucket(version)
    consumer = DcpClient(bucket, features=features)
    # Constructing the client opened the connection; open it again with the flags under test.
    consumer.connection.state.opened = False
    return consumer.request("open", fields={"flags": flags}, key=b"again").status


@pytest.mark.parametrize(
    ("version", "flags", "status"),
    [
        ("8.0", 0x01, Status.SUCCESS),
        ("8.0", 0x00, Status.NOT_SUPPORTED),
        ("8.0", 0x8001, Status.EINVAL),
        ("8.0", 0x49, Status.EINVAL),
        ("8.0", 0x101, Status.EINVAL),
        ("8.0", 0x105, Status.SUCCESS),
        ("6.0", 0x105, Status.EINVAL),
        ("8.5", 0x201, Status.SUCCESS),
        ("8.0", 0x201, Status.EINVAL),
    ],
)
def test_open_flags_are_known_by_release(version: str, flags: int, status: int) -> None:
    assert opened(version, flags) == status


def test_skipping_deletes_needs_collections() -> None:
    assert opened("8.5", 0x201, features=frozenset()) == Status.EINVAL


def test_a_connection_closes_an_older_one_of_its_name() -> None:
    bucket = make_bucket()
    first, other, second = DcpClient(bucket, name=b"a"), DcpClient(bucket, name=b"b"), DcpClient(bucket, name=b"a")
    assert (first.connection.closing, other.connection.closing, second.connection.closing) == (True, False, False)
    first.connection.closed()
    third = DcpClient(bucket, name=b"a")
    assert (second.connection.closing, third.connection.closing) == (True, False)


@pytest.mark.parametrize("version", ["3.1", "6.0"])
def test_old_servers_hang_up_on_a_second_open(version: str) -> None:
    consumer = DcpClient(make_bucket(version), features=())
    consumer.send(Frame("open", Magic.REQUEST, 1, fields={"flags": 1}, key=b"again"))
    assert (consumer.receive(), consumer.connection.closing) == ([], True)


# Controls.


@pytest.mark.parametrize(
    ("version", "name", "value", "status"),
    [
        ("8.0", "set_priority", "high", Status.SUCCESS),
        ("8.0", "set_priority", "medium", Status.SUCCESS),
        ("8.0", "set_priority", "low", Status.SUCCESS),
        ("8.0", "set_priority", "urgent", Status.EINVAL),
        ("8.0", "stream_buffer_size", "1", Status.NOT_SUPPORTED),
        ("8.0", "connection_buffer_size", "4294967295", Status.SUCCESS),
        ("8.0", "connection_buffer_size", "4294967296", Status.EINVAL),
        ("8.0", "connection_buffer_size", "-1", Status.EINVAL),
        ("7.6", "set_noop_interval", "0.1", Status.SUCCESS),
        ("7.6", "set_noop_interval", "0.09", Status.EINVAL),
        ("7.6", "set_noop_interval", "nan", Status.EINVAL),
        ("7.2", "set_noop_interval", "0.5", Status.EINVAL),
        ("7.2", "set_noop_interval", "0", Status.SUCCESS),
        ("7.0", "flatbuffers_system_events", "true", Status.EINVAL),
        ("7.2", "flatbuffers_system_events", "true", Status.SUCCESS),
        ("7.2", "flatbuffers_system_events", "false", Status.EINVAL),
        ("8.0", "change_streams", "true", Status.NOT_SUPPORTED),
        ("8.0", "max_marker_version", "2.2", Status.SUCCESS),
        ("8.0", "max_marker_version", "2.1", Status.EINVAL),
        ("7.6", "max_marker_version", "2.2", Status.EINVAL),
        ("8.5", "cache_transfer", "true", Status.NOT_SUPPORTED),
        ("8.0", "no_such_control", "1", Status.EINVAL),
    ],
)
def test_controls_are_taken_as_each_release_takes_them(version: str, name: str, value: str, status: int) -> None:
    assert DcpClient(make_bucket(version)).control(name, value) == status


@pytest.mark.parametrize(
    ("controls", "advanced"),
    [
        ({}, True),
        ({"sync_writes": True}, True),
        ({"sync_writes": True, "change_streams": True}, True),
        ({"flatbuffers": True}, True),
        ({"sync_writes": True, "flatbuffers": True}, False),
        ({"sync_writes": True, "flatbuffers": True, "noop": True}, False),
        ({"sync_writes": True, "flatbuffers": True, "skip_deletes": True}, True),
    ],
)
def test_only_a_consumer_of_every_seqno_does_without_advances(controls: dict[str, bool], advanced: bool) -> None:
    assert replace(Negotiated(collections=True), **controls).seqno_advanced is advanced  # type: ignore[arg-type]


def test_stream_ids_and_sync_writes_exclude_each_other() -> None:
    first, second = DcpClient(make_bucket()), DcpClient(make_bucket())
    assert first.control("enable_stream_id", "true") == second.control("enable_sync_writes", "true") == 0
    assert first.control("enable_sync_writes", "true") == Status.NOT_SUPPORTED
    assert second.control("enable_stream_id", "true") == Status.NOT_SUPPORTED


# Streams.


@pytest.mark.parametrize(("version", "status"), [("6.6", Status.COLLECTIONS_MANIFEST_IS_AHEAD), ("7.0", 0)])
def test_a_manifest_ahead_of_the_node_is_refused_before_7_0(version: str, status: int) -> None:
    bucket, _ = filled_bucket(1, version)
    consumer = DcpClient(bucket)
    consumer.send_stream_request(chosen={"uid": "5"})
    assert consumer.receive()[0].status == status


@pytest.mark.parametrize("value", [b"{", b"[]", b'{"collections": 1}'])
def test_a_malformed_filter_is_refused(value: bytes) -> None:
    consumer = DcpClient(make_bucket())
    fields = dict.fromkeys(("flags", "start_seqno", "end_seqno", "vbuuid", "snapshot_start", "snapshot_end"), 0)
    assert consumer.request("stream_request", fields=fields, value=value).status == Status.EINVAL


def test_a_takeover_is_refused() -> None:
    bucket, _ = filled_bucket()
    assert DcpClient(bucket).refused_stream(flags=StreamFlag.TAKE_OVER).status == Status.NOT_SUPPORTED


def test_a_request_for_an_unknown_collection_is_answered_with_the_manifest_uid() -> None:
    bucket = make_bucket()
    bucket.change_manifest(*bucket.manifest.create_scope("s"))
    consumer = DcpClient(bucket)
    for chosen, status in (
        ({"collections": ["99"]}, Status.UNKNOWN_COLLECTION),
        ({"scope": "99"}, Status.UNKNOWN_SCOPE),
    ):
        answer = consumer.refused_stream(chosen=chosen)
        assert (answer.status, answer.datatype, answer.body()) == (status, Datatype.JSON, {"manifest_uid": "1"})


@pytest.mark.parametrize("enabled", [True, False])
def test_a_closed_stream_sends_its_end_only_if_enabled(enabled: bool) -> None:
    bucket, vbucket = filled_bucket()
    control = "send_stream_end_on_client_close_stream"
    consumer = DcpClient(bucket, controls={control: "true"} if enabled else {})
    consumer.stream()
    consumer.send(Frame("close_stream", Magic.REQUEST, 3))
    answer, *rest = consumer.receive()
    assert (answer.status, summaries(rest)) == (Status.SUCCESS, [("end", StreamEnd.CLOSED)] if enabled else [])
    vbucket.put(StoredItem("mutation", 6, b"later"))
    assert consumer.receive() == []
    assert consumer.close_stream().status == Status.KEY_ENOENT


def test_a_stream_may_be_requested_again_right_after_it_was_closed() -> None:
    bucket, _ = filled_bucket(1)
    consumer = DcpClient(bucket, controls={"send_stream_end_on_client_close_stream": "true"})
    consumer.stream()
    assert consumer.refused_stream().status == Status.KEY_EEXISTS
    consumer.send(Frame("close_stream", Magic.REQUEST, 3))
    consumer.send_stream_request(opaque=8)
    assert [frame.status for frame in consumer.receive() if frame.kind.answers] == [Status.SUCCESS] * 2


def test_many_streams_take_turns() -> None:
    bucket = make_bucket(vbuckets=3)
    for vbucket in bucket.actives():
        for n in range(1, 400):
            vbucket.put(StoredItem("mutation", n, b"k%d" % n, bytes(1000)))
    # A window much smaller than the streams makes them take turns.
    consumer = DcpClient(bucket, controls={"connection_buffer_size": "100000"})
    for number in range(3):
        consumer.send_stream_request(vbucket=number, opaque=number)
    received: list[Frame] = []
    while frames := consumer.receive():
        received += frames
        consumer.acknowledge(100_000)
    changes = [frame.vbucket for frame in received if frame.name == "mutation"]
    assert sorted(changes) == sorted([0, 1, 2] * 399)
    # The last stream begins before the first one has ended.
    assert changes.index(2) < len(changes) - changes[::-1].index(0)


# No-ops and idle connections.


def noop_opaque(consumer: DcpClient) -> int:
    [frame] = [frame for frame in consumer.receive() if frame.name == "dcp_noop"]
    return frame.opaque


def answer_noop(consumer: DcpClient, opaque: int) -> None:
    consumer.send(Frame("dcp_noop", Magic.RESPONSE, opaque))


def wait(consumer: DcpClient) -> None:
    """Move the clock to the next time at which the connection has something to do."""
    due = consumer.connection.due()
    assert due is not None
    consumer.now = due
    consumer.connection.tick(due)


def test_noops_are_sent_in_their_interval_while_they_are_answered() -> None:
    consumer = DcpClient(make_bucket(), controls={"set_noop_interval": "2.5"}, now=100.0)
    times = []
    for _ in range(4):
        wait(consumer)
        times.append(consumer.now)
        answer_noop(consumer, noop_opaque(consumer))
    assert [later - earlier for earlier, later in pairwise([100.0, *times])] == [2.5] * 4
    # The interval has not passed yet.
    consumer.connection.tick(consumer.now + 2.4)
    assert consumer.receive() == []


def test_a_wrong_answer_to_a_noop_closes() -> None:
    consumer = DcpClient(make_bucket())
    wait(consumer)
    answer_noop(consumer, noop_opaque(consumer) + 1)
    assert consumer.connection.closing


def test_noops_pass_a_full_window() -> None:
    bucket, _ = filled_bucket()
    consumer = DcpClient(bucket, controls={"connection_buffer_size": "1"})
    consumer.stream()
    wait(consumer)
    assert noop_opaque(consumer)


def test_a_silent_consumer_is_disconnected_and_any_frame_counts() -> None:
    consumer = DcpClient(make_bucket())
    wait(consumer)
    first = noop_opaque(consumer)
    # The response to the no-op restarts the idle timeout.
    consumer.now = IDLE_TIMEOUT - 1
    answer_noop(consumer, first)
    consumer.connection.tick(consumer.now)
    assert not consumer.connection.closing
    assert noop_opaque(consumer) != first
    assert consumer.connection.due() == 2 * IDLE_TIMEOUT - 1
    wait(consumer)
    assert consumer.connection.closing


def test_without_noops_there_is_no_idle_timeout() -> None:
    assert DcpClient(make_bucket(), controls={"enable_noop": "false"}).connection.due() is None


@pytest.mark.parametrize(
    ("name", "fields", "key"),
    [
        ("dcp_noop", {}, b""),
        ("stream_end", {"reason": 0}, b""),
        ("snapshot_marker", {"snapshot_start": 1, "snapshot_end": 2, "flags": 1}, b""),
        ("deletion", {"seqno": 1, "rev_seqno": 1}, b"key"),
        ("add_stream", {"flags": 0}, b""),
    ],
)
def test_messages_of_producers_close_the_connection(name: str, fields: dict[str, int], key: bytes) -> None:
    consumer = DcpClient(make_bucket())
    consumer.send(Frame(name, Magic.REQUEST, 1, fields=fields, key=key))
    assert (consumer.receive(), consumer.connection.closing) == ([], True)


@pytest.mark.parametrize(
    ("name", "fields"), [("add_stream", {"flags": 0}), ("stream_flush", {}), ("buffer_ack", {"bytes": 1})]
)
def test_messages_of_dcp_are_refused_before_a_connection_is_opened(name: str, fields: dict[str, int]) -> None:
    client = CommandClient(make_bucket())
    assert client.status(name, fields=fields) is Status.EINVAL
    assert not client.closed


@pytest.mark.parametrize(("version", "datatype"), [("7.6", Datatype.JSON), ("8.0", 0)])
def test_documents_without_values_keep_their_datatype_before_8_0(version: str, datatype: int) -> None:
    bucket, _ = filled_bucket(1, version)
    _, change = DcpClient(bucket, flags=OpenFlag.PRODUCER | OpenFlag.NO_VALUE).stream()
    assert (change.value, change.datatype) == (b"", datatype)


def test_a_flush_is_not_supported() -> None:
    consumer = DcpClient(make_bucket())
    assert consumer.request("stream_flush").status == Status.NOT_SUPPORTED
    assert not consumer.connection.closing


# Flow control.


@given(window=st.integers(1, 3000), sizes=st.lists(st.integers(0, 900), min_size=1, max_size=20), data=st.data())
def test_no_window_is_exceeded_by_more_than_a_message(window: int, sizes: list[int], data: st.DataObject) -> None:
    bucket, vbucket = filled_bucket(0)
    for n, size in enumerate(sizes, 1):
        vbucket.put(StoredItem("mutation", n, b"k%d" % n, bytes(size)))
    consumer = DcpClient(bucket, controls={"connection_buffer_size": str(window)})
    outstanding, received = 0, []
    frames = consumer.stream(0, len(sizes))
    while True:
        lengths = [len(encode(frame)) for frame in frames]
        received += frames
        outstanding += sum(lengths)
        # Without its last frame, nothing exceeds the window.
        assert not lengths or outstanding - lengths[-1] < window
        if received[-1].name == "stream_end":
            break
        # The stream stops only because the window is full.
        assert outstanding >= window
        count = data.draw(st.integers(1, outstanding + 10))
        consumer.acknowledge(count)
        # Acknowledging more than was sent has no effect.
        outstanding = max(0, outstanding - count)
        frames = consumer.receive()
    assert [frame.fields["seqno"] for frame in received if frame.name == "mutation"] == list(range(1, len(sizes) + 1))


def test_a_document_larger_than_window_and_buffer_is_sent_whole() -> None:
    bucket, vbucket = filled_bucket(0)
    vbucket.put(StoredItem("mutation", 1, b"large", bytes(1 << 20)))
    vbucket.put(StoredItem("mutation", 2, b"small"))
    consumer = DcpClient(bucket, controls={"connection_buffer_size": "100"})
    # The marker, and the document that fills the window by itself.
    assert [len(frame.value) for frame in consumer.stream()] == [0, 1 << 20]
    consumer.acknowledge(1 << 21)
    assert summaries(consumer.receive()) == [("mutation", 2)]


def test_switching_the_window_off_resets_the_outstanding_bytes() -> None:
    bucket, vbucket = filled_bucket(3)
    consumer = DcpClient(bucket, controls={"connection_buffer_size": "1"})
    assert summaries(consumer.stream()) == [("marker", 0, 3, 5)]
    assert consumer.connection.out.stalled
    consumer.send(Frame("control", Magic.REQUEST, 1, key=b"connection_buffer_size", value=b"0"))
    assert summaries(consumer.receive()[1:]) == [("mutation", n) for n in (1, 2, 3)]
    consumer.control("connection_buffer_size", "1")
    vbucket.put(StoredItem("mutation", 4, b"k"))
    assert summaries(consumer.receive()) == [("marker", 4, 4, 1)]


@pytest.mark.parametrize(
    ("version", "answered"), [("3.1", False), ("4.0", True), ("6.0", True), ("6.5", False), ("8.0", False)]
)
def test_some_releases_have_failover_logs_for_clients_that_have_not_opened_a_connection(
    version: str, answered: bool
) -> None:
    client = CommandClient(make_bucket(version))
    client.send(Frame("get_failover_log", Magic.REQUEST, 7))
    found = [frame.status for frame in client.receive()]
    assert found == [Status.SUCCESS] if answered else found == [Status.EINVAL] or client.closed


# Bytes in any pieces.

_FROM_THE_BEGINNING = {"start_seqno": 0, "end_seqno": 3, "vbuuid": 0, "snapshot_start": 0, "snapshot_end": 0}
REQUESTS = [
    Frame("stream_request", Magic.REQUEST, 7, vbucket=0, fields=_FROM_THE_BEGINNING | {"flags": 0}),
    Frame("control", Magic.REQUEST, 1, key=b"set_priority", value=b"high"),
    Frame("get_failover_log", Magic.REQUEST, 2, vbucket=0),
    Frame("get_failover_log", Magic.REQUEST, 3, vbucket=9),
    Frame("close_stream", Magic.REQUEST, 4, vbucket=9),
]


@given(st.lists(st.integers(0, 200), max_size=12).map(sorted))
def test_responses_do_not_depend_on_how_the_bytes_arrive(cuts: list[int]) -> None:
    # The last request is an OPEN without extras.
    data = b"".join(encode(frame) for frame in REQUESTS) + b"\x80\x50" + bytes(22)
    whole, pieces = DcpClient(filled_bucket()[0]), DcpClient(filled_bucket()[0])
    whole.connection.receive(data, 0)
    for begin, end in pairwise([0, *(min(cut, len(data)) for cut in cuts), len(data)]):
        pieces.connection.receive(data[begin:end], 0)
        pieces.receive()
    whole.receive()
    for answers in (True, False):
        found = [[frame for frame in decode(one.received) if frame.kind.answers is answers] for one in (whole, pieces)]
        assert found[0] == found[1]
        assert found[0]


@pytest.mark.parametrize("version", ["3.1", "6.0", "6.6", "7.0", "8.0"])
def test_an_invalid_header_closes_the_connection(version: str) -> None:
    consumer = DcpClient(make_bucket(version), features=())
    consumer.connection.receive(b"\x80\x53" + bytes(6) + b"\xff\xff\xff\xff" + bytes(12), 0)
    assert (consumer.receive(), consumer.connection.closing) == ([], True)
    # Nothing of what still arrives is kept.
    before = consumer.connection._splitter.pending
    consumer.connection.receive(bytes(1 << 20), 0)
    assert consumer.connection._splitter.pending == before


# Items in the form that the connection negotiated.

Document = tuple[bytes, str, bytes, dict[bytes, bytes], bool]
XATTRS = st.dictionaries(st.sampled_from([b"_sys", b"user"]), st.sampled_from([b"1", b'{"a":"b"}']), max_size=2)
DOCUMENTS = st.tuples(
    st.sampled_from([b"a", b"b", b"c"]),
    st.sampled_from(["mutation", "deletion", "expiration"]),
    st.sampled_from([b"", b"{}", b"text", b'"' + b"x" * 200 + b'"']),
    XATTRS,
    st.booleans(),
)
FLAGS = st.sampled_from([0x01, 0x05, 0x25, 0x21, 0x125, 0x09, 0x0D])


def stored(seqno: int, document: Document) -> StoredItem:
    key, event, body, xattrs, compressed = document
    body = body if event == "mutation" else b""
    datatype = Datatype(1 if body[:1] in (b"{", b'"') and body else 0)
    value = join_xattrs(xattrs.items(), body) if xattrs else body
    datatype |= Datatype.XATTR if xattrs else Datatype(0)
    if compressed and value:
        value, datatype = deflate(value), datatype | Datatype.SNAPPY
    gone = event != "mutation"
    return StoredItem(event, seqno, key, value, seqno, 1000 + seqno, 3, 0, 77 if gone else 0, int(datatype))


def seen(seqno: int, document: Document, flags: int, expirations: bool, disk: bool) -> Any:
    """Return the expected row: event, seqno, key, value, xattrs, delete time, whether it is JSON, CAS, rev_seqno."""
    key, event, body, xattrs, _ = document
    wanted = OpenFlag(flags)
    gone = event != "mutation"
    if event == "expiration" and not (expirations and OpenFlag.INCLUDE_DELETE_TIMES in wanted):
        event = "deletion"
    body = b"" if gone or OpenFlag.NO_VALUE in wanted else body
    kept = xattrs if OpenFlag.INCLUDE_XATTRS in wanted else {}
    if gone and OpenFlag.INCLUDE_DELETED_USER_XATTRS not in wanted:
        kept = {name: text for name, text in kept.items() if name.startswith(b"_")}
    section = join_xattrs(kept.items()) if kept else None
    time = 77 if gone and OpenFlag.INCLUDE_DELETE_TIMES in wanted else None
    # Documents that are read from disk for their keys alone have no metadata.
    bare = disk and not gone and flags & (OpenFlag.NO_VALUE | OpenFlag.INCLUDE_XATTRS) == OpenFlag.NO_VALUE
    cas, rev_seqno = (0, 1) if bare else (1000 + seqno, seqno)
    return event, seqno, key, body, section, time, body[:1] in (b"{", b'"') and bool(body), cas, rev_seqno


@given(
    st.lists(DOCUMENTS, max_size=8), FLAGS, st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.booleans()
)
def test_decoded_items_are_the_stored_ones(
    documents: list[Any], flags: int, snappy: bool, force: bool, expirations: bool, sids: bool, disk: bool
) -> None:
    bucket, vbucket = filled_bucket(0)
    for seqno, document in enumerate(documents, 1):
        vbucket.put(stored(seqno, document))
    if disk:
        vbucket.evict_checkpoint()
    controls = {"enable_stream_id": "true"} if sids else {}
    controls |= {"enable_expiry_opcode": "true"} if expirations else {}
    controls |= {"force_value_compression": "true"} if force and snappy else {}
    features = {Feature.COLLECTIONS} | ({Feature.SNAPPY} if snappy else set())
    consumer = DcpClient(bucket, flags=OpenFlag(flags), features=features, controls=controls)
    before = len(consumer.received)
    consumer.stream(chosen={"sid": 4} if sids else None)
    columns = ("event", "seqno", "key", "value", "xattrs", "delete_time", "datatype", "cas", "rev_seqno")
    decoder = dcp.Decoder(columns=[*columns, "stream_id", "collection_id", "snapshot_end"], collections=True)
    decoder.feed(consumer.received[before:])
    rows = decoder.take().to_arrow().to_pylist()
    latest = {document[0]: (seqno, document) for seqno, document in enumerate(documents, 1)}
    expected = [seen(seqno, document, flags, expirations, disk) for seqno, document in sorted(latest.values())]
    for row in rows:
        assert snappy or not row["datatype"] & Datatype.SNAPPY
        row["datatype"] = bool(row["datatype"] & Datatype.JSON)
        assert (row["stream_id"], row["collection_id"], row["snapshot_end"]) == (4 if sids else None, 0, len(documents))
    assert [tuple(row[name] for name in columns) for row in rows] == expected


def test_values_are_compressed_where_that_saves_15_percent() -> None:
    values = [bytes(range(170)) + bytes(range(repeated)) for repeated in range(10, 90)]
    # Snappy makes 85 bytes of these 100.
    values.append(bytes(range(21)) + bytes(range(79)))
    worthwhile = [len(deflate(value)) <= 0.85 * len(value) for value in values]
    assert {*worthwhile} == {False, True}
    bucket, vbucket = filled_bucket(0)
    for number, value in enumerate(values):
        vbucket.put(StoredItem("mutation", number + 1, b"k%d" % number, value))
    _, *frames = DcpClient(bucket, controls={"force_value_compression": "true"}).stream()
    for frame, value, compressed in zip(frames, values, worthwhile, strict=True):
        assert (frame.datatype, frame.value) == ((2, deflate(value)) if compressed else (0, value))


def test_a_replica_is_streamed_unless_active_is_required() -> None:
    bucket, vbucket = filled_bucket(2)
    vbucket.state = VbucketState.REPLICA
    consumer = DcpClient(bucket)
    assert consumer.refused_stream(flags=StreamFlag.ACTIVE_VB_ONLY).status == Status.NOT_MY_VBUCKET
    assert len(consumer.stream()) == 3


def test_a_stream_that_is_not_open_is_told_from_one_of_another_id() -> None:
    bucket = make_bucket(vbuckets=2)
    consumer = DcpClient(bucket, controls={"enable_stream_id": "true"})
    for vbucket, sid in ((0, 4), (1, 5)):
        consumer.stream(vbucket=vbucket, opaque=vbucket, chosen={"sid": sid})
    assert consumer.close_stream(0, 5).status == Status.DCP_STREAM_ID_INVALID
    assert consumer.close_stream(0, 4).status == Status.SUCCESS
    assert consumer.close_stream(0, 4).status == Status.KEY_ENOENT


@pytest.mark.parametrize("snappy", [False, True])
def test_a_consumer_without_snappy_gets_values_inflated(snappy: bool) -> None:
    bucket = make_bucket()
    value = bytes(100)
    stored = deflate(value)
    bucket.active(0).put(StoredItem("mutation", 1, b"key", stored, datatype=int(Datatype.SNAPPY)))
    consumer = DcpClient(bucket, features=ALL_FEATURES - (set() if snappy else {Feature.SNAPPY}))
    (frame,) = (frame for frame in consumer.stream() if frame.name == "mutation")
    assert (frame.value, frame.datatype) == ((stored, Datatype.SNAPPY) if snappy else (value, 0))


@pytest.mark.parametrize(("enabled", "sid"), [(False, 4), (True, None)])
def test_a_stream_is_closed_by_its_id_if_streams_have_ids(enabled: bool, sid: int | None) -> None:
    consumer = DcpClient(make_bucket(), controls={"enable_stream_id": "true"} if enabled else {})
    consumer.stream(chosen={"sid": 4} if enabled else None)
    assert consumer.close_stream(0, sid).status == Status.DCP_STREAM_ID_INVALID
    assert consumer.close_stream(0, 4 if enabled else None).status == Status.SUCCESS


def test_a_consumer_without_noops_gets_none_and_is_never_idle() -> None:
    consumer = DcpClient(make_bucket(), controls={"enable_noop": "false"})
    assert consumer.connection.due() is None
    consumer.connection.tick(100 * IDLE_TIMEOUT)
    assert (consumer.receive(), consumer.closed) == ([], False)
