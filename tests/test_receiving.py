"""Decoders that receive from a socket themselves: the same results, and the conditions to return."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dcp
from dcp.columns.decoder import CAN_RECEIVE
from tests.decoding import assert_same, decoder_for, drain, encoded, marker, mutation, take
from tests.reference import Answer, Options, answer
from tests.strategies import Case, cases, chunks
from tests.waiting import until

pytestmark = pytest.mark.skipif(not CAN_RECEIVE, reason="on Windows bytes come by buffer() and received()")

PATIENCE = 60.0


@dataclass
class Connection:
    """Connection to a node played by the test, with a bell."""

    ours: socket.socket
    node: socket.socket
    ear: socket.socket
    bell: socket.socket

    def receive(
        self,
        decoder: dcp.Decoder,
        seconds: float | None = PATIENCE,
        max_rows: int | None = None,
        max_bytes: int | None = None,
    ) -> tuple[int, bool]:
        return decoder.receive(self.ours.fileno(), self.ear.fileno(), seconds, max_rows, max_bytes)


@contextmanager
def line() -> Iterator[Connection]:
    ours, node = socket.socketpair()
    ear, bell = socket.socketpair()
    with ours, node, ear, bell:
        yield Connection(ours, node, ear, bell)


def received(case: Case, pieces: list[bytes]) -> Answer:
    """Return what a decoder makes of pieces, each sent once all before it are decoded."""
    decoder, found = decoder_for(case.dialect, case.options, case.views), Answer()
    with line() as there:
        for piece in pieces:
            if found.error is not None:
                break
            there.node.sendall(piece)
            left = len(piece)
            while found.error is None:
                count, closed = there.receive(decoder, 0, *case.limits)
                assert not closed
                left -= count
                if decoder.advance(*case.limits):
                    drain(decoder, found, case.limits)
                    continue
                if not left:
                    break
        drain(decoder, found, case.limits)
    return found


# ----------------------------------------------------------------------------------- the same answers


@given(cases())
@settings(max_examples=200, deadline=None)
def test_what_comes_from_a_socket_gives_the_rows_and_controls_that_the_tables_say(case: Case) -> None:
    assert_same(received(case, chunks(case.data, case.cuts)), answer(case.data, case.dialect, case.options))


@given(cases())
@settings(deadline=None)
def test_byte_by_byte_the_answer_is_the_same(case: Case) -> None:
    pieces = [case.data[place : place + 1] for place in range(len(case.data))]
    assert_same(received(case, pieces), answer(case.data, case.dialect, case.options))


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("size", [0, 100, 20_000, 70_000, 20 << 20])
def test_documents_of_any_size_come_whole(size: int, views: bool) -> None:
    """Sizes: below a piece, above one, and above the memory that a decoder starts with."""
    count = max(3, min(2000, (4 << 20) // (size + 1)))
    values = [bytes([n % 251]) * size for n in range(count)]
    data = encoded(marker(1, count), *(mutation(n + 1, value=value) for n, value in enumerate(values)))
    decoder = dcp.Decoder(views=views)
    found: list[dcp.Batch] = []
    with line() as there:
        sender = threading.Thread(target=there.node.sendall, args=(data,))
        sender.start()
        while sum(map(len, found)) < count:
            there.receive(decoder, 0.001, max_bytes=1 << 20)
            if decoder.advance(max_bytes=1 << 20) or decoder.offset == len(data):
                found.append(decoder.finish_batch())
        sender.join()
    # Read the views last: later bytes must not have overwritten what they point to.
    assert [value for batch in found for value in batch.to_arrow()["value"].to_pylist()] == values


# -------------------------------------------------------------------------------- when it comes back


def test_a_full_batch_ends_it_and_the_rest_stays_for_the_next_one() -> None:
    decoder, found = dcp.Decoder(), Answer()
    rows = encoded(*(mutation(n) for n in range(1, 8)))
    with line() as there:
        there.node.sendall(encoded(marker(1, 9)))
        there.receive(decoder)
        decoder.advance()
        there.node.sendall(rows)
        sizes = []
        while len(found.rows) < 7:
            there.receive(decoder, 0, max_rows=3)
            if decoder.advance(3) or not decoder.pending:
                sizes.append(decoder.rows)
                take(decoder, found, 3)
    assert sizes == [3, 3, 1]
    assert_same(found, answer(encoded(marker(1, 9)) + rows))


def test_a_control_ends_it_before_the_rows_behind_it_are_many() -> None:
    decoder = dcp.Decoder()
    with line() as there:
        there.node.sendall(encoded(marker(1, 1)))
        assert there.receive(decoder) == (len(encoded(marker(1, 1))), False)
        decoder.advance()
        assert [frame.name for _, frame, _ in decoder.new_controls if isinstance(frame, dcp.Frame)] == [
            "snapshot_marker"
        ]


def test_the_first_rows_of_a_batch_end_it_and_later_ones_do_not() -> None:
    decoder = dcp.Decoder()
    one = encoded(mutation(1))
    with line() as there:
        there.node.sendall(one)
        # Without the bell it would wait for a minute, as it does below.
        assert there.receive(decoder) == (len(one), False)
        decoder.advance()
        there.node.sendall(one)
        waiting = threading.Thread(target=there.receive, args=(decoder,))
        waiting.start()
        until(lambda: decoder.rows == 2)
        assert waiting.is_alive()
        there.bell.send(b"\0")
        waiting.join(PATIENCE)
        assert not waiting.is_alive()


def test_a_bell_ends_it_once_however_often_it_was_rung() -> None:
    decoder = dcp.Decoder()
    with line() as there:
        there.bell.sendall(b"\0" * 1000)
        assert there.receive(decoder, None) == (0, False)
        there.ear.setblocking(False)
        with pytest.raises(BlockingIOError):
            there.ear.recv(1)


@pytest.mark.parametrize("seconds", [0, 0.02, -1])
def test_it_waits_for_so_long_and_no_longer(seconds: float) -> None:
    began = time.monotonic()
    with line() as there:
        assert there.receive(dcp.Decoder(), seconds) == (0, False)
    assert time.monotonic() - began >= seconds


def test_bytes_that_trickle_in_do_not_make_it_longer() -> None:
    decoder, over = dcp.Decoder(), threading.Event()
    frame = encoded(mutation(1, value=bytes(1 << 20)))
    with line() as there:

        def trickle() -> None:
            for place in range(len(frame)):
                there.node.send(frame[place : place + 1])
                if over.wait(0.001):
                    return

        sender = threading.Thread(target=trickle)
        sender.start()
        count, closed = there.receive(decoder, 0.1)
        over.set()
        sender.join()
    assert 0 < count < len(frame)
    assert not closed


@pytest.mark.parametrize(("rings", "seconds"), [(b"\0", None), (b"", 0)], ids=["bell", "time"])
def test_what_ends_it_does_so_while_more_and_more_is_there(rings: bytes, seconds: float | None) -> None:
    decoder, (ear, bell) = dcp.Decoder(), socket.socketpair()
    with ear, bell, socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as node:
        # The largest buffer that systems allow by default, so that several pieces wait in it.
        for end, option in ((server, socket.SO_RCVBUF), (node, socket.SO_SNDBUF)):
            end.setsockopt(socket.SOL_SOCKET, option, 1 << 20)
        node.connect(server.getsockname())
        node.setblocking(False)
        ours, _ = server.accept()
        with ours:
            frame, sent = encoded(mutation(1, value=bytes(1 << 20))), 0
            with suppress(BlockingIOError):
                while sent < len(frame):
                    sent += node.send(frame[sent:])
            bell.send(rings)
            count, _ = decoder.receive(ours.fileno(), ear.fileno(), seconds)
    assert 0 < count < sent


def test_what_came_before_the_end_of_a_connection_is_there() -> None:
    decoder = dcp.Decoder()
    data = encoded(mutation(1), mutation(2))
    with line() as there:
        there.node.sendall(data)
        there.receive(decoder)
        decoder.advance()
        there.node.sendall(data)
        there.node.close()
        assert there.receive(decoder) == (len(data), True)
        assert there.receive(decoder) == (0, True)
    assert len(decoder.take()) == 4


def test_a_connection_that_broke_is_an_error_of_the_system_behind_what_came() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        node, _ = server.accept()
        decoder, (ear, bell) = dcp.Decoder(), socket.socketpair()
        with ear, bell:
            node.sendall(encoded(mutation(1)))
            assert decoder.receive(ours.fileno(), ear.fileno(), PATIENCE)[0]
            decoder.advance()
            # Close at once, with a reset.
            node.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            node.close()
            with pytest.raises(ConnectionResetError):
                decoder.receive(ours.fileno(), ear.fileno(), PATIENCE)
        assert len(decoder.take()) == 1


def test_what_is_no_socket_is_an_error_of_the_system() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        dcp.Decoder().receive(-1, -1, 0)


def test_behind_what_breaks_the_protocol_nothing_is_received() -> None:
    decoder, found = dcp.Decoder(), Answer()
    data = encoded(mutation(1)) + b"\0" * 24
    with line() as there:
        there.node.sendall(data)
        there.receive(decoder)
        assert decoder.advance()
        there.node.sendall(data)
        assert there.receive(decoder, None) == (0, False)
    drain(decoder, found)
    assert_same(found, answer(data))


@pytest.mark.parametrize("name", ["max_rows", "max_bytes"])
def test_a_limit_of_nothing_is_refused(name: str) -> None:
    with line() as there, pytest.raises(dcp.LocalProtocolError, match=f"{name}: expected 1 or more, found 0"):
        there.receive(dcp.Decoder(), **{name: 0})


@given(st.lists(st.sampled_from(["feed", "buffer", "socket"]), max_size=12), st.data())
@settings(deadline=None)
def test_the_ways_in_may_take_turns(ways: list[str], data: st.DataObject) -> None:
    """Each way leaves its undecoded bytes where the next finds them."""
    whole = encoded(marker(1, 99), *(mutation(n, value=bytes(50)) for n in range(1, 20)))
    decoder, found, at = dcp.Decoder(), Answer(), 0
    with line() as there:
        for way in [*ways, "socket"]:
            end = data.draw(st.integers(at, len(whole)))
            piece, at = whole[at:end], end
            if way == "feed":
                decoder.feed(piece)
            elif way == "buffer":
                room = decoder.buffer()
                room[: len(piece)] = piece
                decoder.received(len(piece))
            else:
                there.node.sendall(piece)
                left = len(piece)
                while left:
                    left -= there.receive(decoder, 0)[0]
                    decoder.advance()
            if data.draw(st.booleans()):
                drain(decoder, found)
        decoder.feed(whole[at:])
    drain(decoder, found)
    assert_same(found, answer(whole, "dcp", Options()))
