"""Messages of a node that a client cannot use: logged, refused, or errors, never passed over in silence."""

from __future__ import annotations

import logging
import socket

import pytest

import dcp
from dcp.embedded import Cluster
from dcp.wire.dcp import StreamEnd
from dcp.wire.frame import UNKNOWN
from dcp.wire.layout import Magic
from dcp.wire.memcached import Status
from tests.client.consumer import PATIENCE
from tests.client.hostile import HostileNode, marker, mutation
from tests.waiting import until


def message(opaque: int, name: str, magic: Magic = Magic.REQUEST, **fields: int | bytes) -> bytes:
    return dcp.encode(dcp.Frame(name, magic, opaque, fields=fields))


def odd(opaque: int, opcode: int, magic: Magic = Magic.REQUEST) -> bytes:
    return message(opaque, UNKNOWN, magic, opcode=opcode, extras=b"")


def test_unknown_messages_are_logged_once_and_the_stream_continues(caplog: pytest.LogCaptureFixture) -> None:
    def script(guest: socket.socket, opaque: int) -> None:
        guest.sendall(marker(opaque, 0, 9) + odd(opaque, 0x7A) * 100 + odd(99, 0x7B))
        guest.sendall(odd(0, 0x09, Magic.SERVER_REQUEST) + message(opaque, "set_vbucket_state", state=2))
        guest.sendall(mutation(opaque, 1))

    with HostileNode(script) as node, dcp.connect(node.url) as client, client.stream() as stream:
        batch = stream.next(PATIENCE)
        assert batch is not None
        assert len(batch) == 1
        answer = until(lambda: next((frame for frame in node.received if frame.name == "set_vbucket_state"), None))
        assert (answer.kind.answers, answer.status) == (True, Status.NOT_SUPPORTED)
    where = node.url.partition("//")[2].partition("/")[0]
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [line for line in logged if "unexpected" in line] == [
        f"{where}: vbucket 0: unexpected message unknown (opcode 0x7a) ignored",
        f"{where}: vbucket 0: unexpected message unknown (opcode 0x7b) ignored",
        f"{where}: vbucket 0: unexpected message unknown (opcode 0x09) ignored",
        f"{where}: vbucket 0: unexpected message set_vbucket_state (opcode 0x5b) refused with NOT_SUPPORTED",
    ]


def test_a_flush_is_an_error_after_the_rows_before_it() -> None:
    def script(guest: socket.socket, opaque: int) -> None:
        guest.sendall(marker(opaque, 0, 9) + mutation(opaque, 1) + message(opaque, "stream_flush"))

    with HostileNode(script) as node, dcp.connect(node.url) as client, client.stream() as stream:
        batch = stream.next(PATIENCE)
        assert batch is not None
        assert len(batch) == 1
        with pytest.raises(dcp.ServerError, match="vbucket 0: it was flushed: no position is valid any more"):
            stream.next(PATIENCE)


@pytest.mark.parametrize("columns", [None, ["key", "value"]], ids=["all columns", "two columns"])
def test_a_value_of_unknown_datatype_is_an_error(columns: list[str] | None) -> None:
    def script(guest: socket.socket, opaque: int) -> None:
        sound = mutation(opaque, 1, b"{}", datatype=1)
        guest.sendall(marker(opaque, 0, 9) + sound + mutation(opaque, 2, b"{}", datatype=9))

    with HostileNode(script) as node, dcp.connect(node.url) as client, client.stream(columns=columns) as stream:
        batch = stream.next(PATIENCE)
        assert batch is not None
        assert len(batch) == 1
        assert stream.checkpoint.positions[0].seqno == 1
        with pytest.raises(dcp.FrameError, match="datatype: expected the bits of JSON, snappy and xattrs at most"):
            stream.next(PATIENCE)


def test_in_quarantine_a_value_of_unknown_datatype_is_delivered_as_it_arrived() -> None:
    decoder = dcp.Decoder(columns=["value", "datatype"], on_bad_value="quarantine")
    decoder.feed(mutation(1, 2, b"{}", datatype=0x0B))
    assert decoder.take().to_arrow().to_pylist() == [
        {"value": b"{}", "datatype": 0x0B, "error": "datatype: unknown bits"}
    ]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        # Format, vbucket, uuid, persisted seqno, high seqno.
        ("00 0001 000000000000000a 0000000000000009 0000000000000009", "found one for vbucket 1 of 0xa"),
        ("00 0000 000000000000000b 0000000000000009 0000000000000009", "found one for vbucket 0 of 0xb"),
        ("00 0000 000000000000000a 0000000000000009", "observe_seqno"),
        (
            "01 0000 000000000000000a 0000000000000009 0000000000000009 000000000000000c 0000000000000009",
            "found one for vbucket 0 of 0xc",
        ),
    ],
    ids=["another vbucket", "another history", "too short", "another older history"],
)
def test_a_wrong_answer_counts_as_nothing_persisted(value: str, problem: str, caplog: pytest.LogCaptureFixture) -> None:
    def script(guest: socket.socket, opaque: int) -> None:
        guest.sendall(marker(opaque, 0, 1) + mutation(opaque, 1))

    wrong = {"observe_seqno": bytes.fromhex(value)}
    with (
        HostileNode(script, malformed=wrong) as node,
        dcp.connect(node.url) as client,
        client.stream(persisted_only=True, persisted_within=0.5) as stream,
        pytest.raises(dcp.TransportError, match="seqno 1 is not persisted by every copy"),
    ):
        stream.next(PATIENCE)
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    [line] = [line for line in logged if "counts as nothing persisted" in line]
    assert problem in line


def test_a_right_answer_counts() -> None:
    def script(guest: socket.socket, opaque: int) -> None:
        guest.sendall(marker(opaque, 0, 1) + mutation(opaque, 1))

    right = bytes.fromhex("00 0000 000000000000000a 0000000000000009 0000000000000009")
    with (
        HostileNode(script, malformed={"observe_seqno": right}) as node,
        dcp.connect(node.url) as client,
        client.stream(persisted_only=True) as stream,
    ):
        batch = stream.next(PATIENCE)
        assert batch is not None
        assert len(batch) == 1


@pytest.mark.parametrize("reason", [*StreamEnd][1:], ids=lambda reason: reason.name)
def test_each_reason_of_the_end_of_a_stream_has_its_consequence(reason: StreamEnd) -> None:
    with Cluster(vbuckets=1) as cluster, dcp.connect(cluster.url) as client:
        cluster.load(3)
        with cluster.fault("end", status=reason.name, after=1, times=1), client.stream() as stream:
            keys: list[bytes] = []
            if reason == StreamEnd.LOST_PRIVILEGES:
                with pytest.raises(dcp.ServerError, match="vbucket 0: the user lost the privilege to stream it"):
                    list(stream)
            elif reason == StreamEnd.FILTER_EMPTY:
                # Nothing more will pass: the stream ends, although it was asked for without an end.
                keys = [key for batch in stream for key in batch.to_arrow().column("key").to_pylist()]
                assert keys == [b"key-0000000000"]
            else:
                while len(keys) < 3:
                    batch = stream.next(PATIENCE)
                    assert batch is not None
                    keys += batch.to_arrow().column("key").to_pylist()
                assert keys == [b"key-000000000%d" % number for number in range(3)]
            assert stream.counters.stream_ends == {reason.name.lower(): 1}


def test_a_refused_position_is_streamed_from_the_beginning() -> None:
    with Cluster(vbuckets=1) as cluster, dcp.connect(cluster.url) as client:
        cluster.load(3)
        with client.stream(end="now") as before:
            assert sum(map(len, before)) == 3
        with cluster.fault("refuse", status="ERANGE", times=1), client.stream(before.checkpoint, end="now") as stream:
            rows = [row for batch in stream for row in batch.to_arrow().to_pylist()]
    assert [(row["event"], row["seqno"]) for row in rows] == [
        ("rollback", 0),
        ("mutation", 1),
        ("mutation", 2),
        ("mutation", 3),
    ]
