"""The send buffer of a connection: the bytes of its frames in order, and the window of its consumer."""

from __future__ import annotations

from dcp.embedded.outbox import CHUNK, Outbox


def test_frames_are_sent_whole_and_in_order_however_large_they_are() -> None:
    out = Outbox()
    frames = [bytes([n]) * size for n, size in enumerate((10, CHUNK - 20, 30, CHUNK + 1, 5, 0))]
    for frame in frames:
        out.frame(frame)
    assert b"".join(out.take()) == b"".join(frames)
    assert out.written == sum(map(len, frames))
    assert out.take() == []


def test_a_window_is_full_once_all_of_its_bytes_are_outstanding() -> None:
    out = Outbox()
    out.window = 10
    out.frame(b"9 bytes..")
    assert (out.outstanding, out.stalled, out.open) == (9, False, True)
    out.frame(b"1")
    assert (out.outstanding, out.stalled, out.open) == (10, True, False)
    out.acknowledge(1)
    assert (out.outstanding, out.open, out.written) == (9, True, 10)
    # As on servers, an acknowledgement of too much counts as one of everything.
    out.acknowledge(100)
    assert out.outstanding == 0


def test_without_a_window_nothing_is_outstanding() -> None:
    out = Outbox()
    out.frame(b"frame")
    assert (out.outstanding, out.stalled) == (0, False)
