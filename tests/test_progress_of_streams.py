"""Last seqnos of streams: those that a decoder reports beside its rows, against the rows themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dcp
from dcp.wire.dcp import OsoSnapshot
from dcp.wire.frame import Frame, encode

BIG = 1 << 20


def mutation(opaque: int, vbucket: int, seqno: int) -> Frame:
    numbers = {"seqno": seqno, "rev_seqno": 1, "flags": 0, "expiry": 0, "lock_time": 0, "nru": 0}
    return Frame("mutation", 0x80, opaque, vbucket=vbucket, fields=numbers, key=b"k")


def marker(opaque: int, vbucket: int, start: int, end: int) -> Frame:
    window = {"snapshot_start": start, "snapshot_end": end, "flags": 1}
    return Frame("snapshot_marker", 0x80, opaque, vbucket=vbucket, fields=window)


STREAMS = st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["row", "marker", "advanced"])), max_size=40)


@given(STREAMS, st.integers(1, 200), st.integers(1, 5))
def test_last_seqnos_of_batches_and_controls_are_those_of_the_rows(
    steps: list[tuple[int, str]], chunk: int, most: int
) -> None:
    frames, last, windowed = [], dict.fromkeys((1, 2, 3), 0), set()
    last_seqnos = []
    for opaque, kind in steps:
        if kind == "row":
            last[opaque] += 2 if opaque in windowed else 0
            frames.append(mutation(opaque, opaque + 4, last[opaque] or 1))
        elif kind == "marker":
            last_seqnos.append(last[opaque])
            windowed.add(opaque)
            frames.append(marker(opaque, opaque + 4, last[opaque], last[opaque] + BIG))
        else:
            last_seqnos.append(last[opaque])
            frames.append(Frame("seqno_advanced", 0x80, opaque, vbucket=opaque + 4, fields={"seqno": BIG}))
    data = b"".join(map(encode, frames))
    decoder = dcp.Decoder(columns=["opaque", "seqno"])
    found: dict[int, int] = {}
    reported: list[int] = []
    for begin in range(0, len(data), chunk):
        decoder.feed(data[begin : begin + chunk])
        while decoder.advance(most) or decoder.rows or decoder.new_controls:
            reported += [last_seqno for _, _, last_seqno in decoder.new_controls]
            batch = decoder.finish_batch()
            found |= {opaque: seqno for opaque, _, _, seqno in batch.last_seqnos}
    assert reported == last_seqnos
    assert found == {opaque: seqno for opaque, seqno in last.items() if seqno}


def test_in_disorder_the_highest_seqno_counts() -> None:
    decoder = dcp.Decoder(columns=["seqno"])
    frames = [Frame("oso_snapshot", 0x80, 9, fields={"flags": int(OsoSnapshot.START)})]
    frames += [mutation(9, 0, seqno) for seqno in (5, 8, 2)]
    decoder.feed(b"".join(map(encode, frames)))
    assert decoder.take().last_seqnos == [(9, 0, 0, 8)]


def test_of_rows_that_were_forgotten_nothing_is_said() -> None:
    decoder = dcp.Decoder(columns=["seqno"])
    bad = bytearray(encode(marker(9, 0, 0, 9)))
    bad[4] = 19
    decoder.feed(encode(marker(9, 0, 0, 9)) + encode(mutation(9, 0, 1)) + bytes(bad) + encode(mutation(9, 0, 2)))
    assert decoder.take().last_seqnos == []
    with pytest.raises(dcp.FrameError):
        decoder.take()
