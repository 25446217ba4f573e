"""Streams of small snapshots: the decoder passes from one to the next, and positions are those of every step."""

from __future__ import annotations

from random import Random

import pytest

from dcp.errors import RemoteProtocolError, SnapshotError
from dcp.position import Progress, StreamPosition
from dcp.session.session import Session
from dcp.session.stream import ConsumerStream
from dcp.wire.dcp import StreamEnd
from tests.session.harness import MANY, hear
from tests.session.test_session import AGREEMENT, LOG, answer, marker, message, ready, row


class Source:
    """A stream, and its progress by every marker, row and advance that was sent."""

    def __init__(self, session: Session, vbucket: int) -> None:
        start = Progress(StreamPosition(vbucket))
        self.stream = session.open(start)
        self.progress = start.accepted(LOG)
        self.ends = [0]
        hear(session, answer(self.stream))

    @property
    def seqno(self) -> int:
        return self.progress.position.seqno

    def wire(self, chance: Random) -> bytes:
        """Return the next messages: a snapshot, whole as a rule, in one or several parts."""
        start, rows = self.seqno + chance.choice((1, 1, 1, 5)), chance.choice((1, 1, 2, 3))
        end = start + rows - 1 + chance.choice((0, 0, 0, 2))
        self.progress = self.progress.marker(0 if self.progress.first else start, end)
        wire = marker(self.stream, 0 if self.ends == [0] else start, end)
        for seqno in range(start, start + rows):
            wire += row(self.stream, seqno)
            self.progress = self.progress.seen(seqno)
        if self.seqno < end:
            # What a filter kept from the stream at the end of the snapshot.
            wire += message(self.stream, "seqno_advanced", seqno=end)
            self.progress = self.progress.seen(end)
        self.ends.append(end)
        return wire


@pytest.mark.parametrize("seed", range(40))
def test_positions_are_those_of_every_marker_and_row(seed: int) -> None:
    chance, session = Random(seed), ready()
    sources = [Source(session, vbucket) for vbucket in range(chance.choice((1, 2, 7)))]
    sources_of = {source.stream.key: source for source in sources}
    taken = 0
    for _ in range(60):
        wire = b"".join(chance.choice(sources).wire(chance) for _ in range(chance.randrange(1, 30)))
        # The decoder sees no more than a part at a time.
        for at in range(0, len(wire), size := chance.choice((50, 500, MANY))):
            hear(session, wire[at : at + size])
        if chance.random() < 0.5:
            delivery = session.take()
            taken += len(delivery.batch)
            for key, reached in delivery.positions.items():
                found, source = reached.position, sources_of[key]
                expected = source.progress.position
                assert (found.seqno, found.snapshot_start, found.snapshot_end) == (
                    expected.seqno,
                    expected.snapshot_start,
                    expected.snapshot_end,
                )
                assert {*found.marks} <= {*source.ends}
                # A rollback loses no more than the last snapshot and what a failover lost.
                assert found.rolled_back(found.seqno - 1).seqno == source.ends[-2:][0]
                assert len(found.marks) <= 40
    assert taken


def test_a_position_inside_a_snapshot_has_its_window(stream_of_two: tuple[Session, ConsumerStream]) -> None:
    session, stream = stream_of_two
    hear(session, marker(stream, 3, 3) + row(stream, 3) + marker(stream, 4, 6) + row(stream, 4))
    position = session.take().positions[0, None].position
    assert (position.seqno, position.snapshot_start, position.snapshot_end, position.marks) == (4, 3, 6, (3, 2))


def test_a_marker_without_rows_moves_no_position(stream_of_two: tuple[Session, ConsumerStream]) -> None:
    session, stream = stream_of_two
    hear(session, marker(stream, 3, 9))
    position = session.take().positions[0, None].position
    assert (position.seqno, position.snapshot_start, position.snapshot_end) == (2, 2, 2)


def test_a_marker_without_rows_is_acknowledged(stream_of_two: tuple[Session, ConsumerStream]) -> None:
    session, stream = stream_of_two
    session.processed(session.take().flow_bytes)
    session.acknowledge()
    session.outgoing()
    wire = marker(stream, 3, 9)
    hear(session, wire)
    session.acknowledge()
    assert len(wire).to_bytes(4, "big") in session.outgoing()


@pytest.mark.parametrize(
    ("start", "end"), [(2, 5), (3, 2), (1, 1)], ids=["inside the one before", "backwards", "below the position"]
)
def test_other_windows_are_judged_as_they_always_are(
    start: int, end: int, stream_of_two: tuple[Session, ConsumerStream]
) -> None:
    session, stream = stream_of_two
    expected = stream_progress(2)
    hear(session, marker(stream, start, end))
    try:
        expected = expected.marker(start, end)
    except RemoteProtocolError as error:
        session.take()
        with pytest.raises(RemoteProtocolError, match=str(error)):
            session.take()
        return
    session.take()
    hear(session, row(stream, 4))
    assert session.take().positions[0, None].position == expected.seen(4).position


def stream_progress(seqno: int) -> Progress:
    return Progress(StreamPosition(0)).accepted(LOG).marker(0, seqno).seen(seqno)


def test_a_skipped_end_of_a_snapshot_is_an_error(stream_of_two: tuple[Session, ConsumerStream]) -> None:
    session, stream = stream_of_two
    session.take()
    hear(session, marker(stream, 3, 5) + row(stream, 3) + marker(stream, 6, 6) + row(stream, 6))
    session.take()
    with pytest.raises(SnapshotError):
        session.take()


def test_a_stream_ends_after_its_last_small_snapshot(stream_of_two: tuple[Session, ConsumerStream]) -> None:
    session, stream = stream_of_two
    end = message(stream, "stream_end", reason=int(StreamEnd.OK))
    events = hear(session, marker(stream, 3, 3) + row(stream, 3) + marker(stream, 4, 4) + row(stream, 4) + end)
    assert [type(event).__name__ for event in events] == ["StreamEnded"]
    position = session.take().positions[0, None].position
    assert (position.seqno, position.complete, position.marks) == (4, True, (3, 2))


def test_rows_beyond_the_window_of_a_small_snapshot_are_refused(stream_of_two: tuple[Session, ConsumerStream]) -> None:
    session, stream = stream_of_two
    hear(session, marker(stream, 3, 3) + row(stream, 3) + marker(stream, 4, 4) + row(stream, 5))
    assert session.take().positions[0, None].position.seqno == 3
    with pytest.raises(RemoteProtocolError, match="expected 4 at most"):
        session.take()


@pytest.fixture
def stream_of_two() -> tuple[Session, ConsumerStream]:
    """Return a session whose stream has received a snapshot of two rows."""
    session = ready(AGREEMENT)
    stream = session.open(Progress(StreamPosition(0)))
    hear(session, answer(stream) + marker(stream, 0, 2) + row(stream, 1) + row(stream, 2))
    return session, stream


def test_a_stream_keeps_the_ends_of_a_hundred_snapshots_at_most(stream_of_two: tuple[Session, ConsumerStream]) -> None:
    """A stream may run for years."""
    session, stream = stream_of_two
    for first in range(3, 1003, 50):
        hear(session, b"".join(marker(stream, seqno, seqno) + row(stream, seqno) for seqno in range(first, first + 50)))
        session.take()
        assert stream.position.seqno == first + 49
        assert stream.position.seqno - stream.progress.position.seqno < 110


def test_a_batch_has_the_positions_of_the_streams_that_moved(stream_of_two: tuple[Session, ConsumerStream]) -> None:
    session, stream = stream_of_two
    other = session.open(Progress(StreamPosition(1)))
    hear(session, answer(other) + marker(other, 0, 1) + row(other, 1))
    assert session.take().positions.keys() == {stream.key, other.key}
    # The one passes to its next snapshot without a row of it.
    hear(session, marker(stream, 3, 3))
    assert session.take().positions.keys() == {stream.key}
    hear(session, row(stream, 3) + marker(stream, 4, 4))
    assert session.take().positions.keys() == {stream.key}
    hear(session, marker(other, 2, 2) + row(other, 2))
    assert session.take().positions.keys() == {other.key}
