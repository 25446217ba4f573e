"""Random streams and failovers: resuming from any position gives the state that the vbucket has.

The producer's side is the rollback test of the embedded cluster.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from dcp.embedded.rollback import Resume, rollback_point
from dcp.embedded.store import StoredItem, VbucketStore
from dcp.position import UNKNOWN_END, FailoverLog, Progress, StreamPosition
from dcp.wire.memcached import VbucketState

KEYS = [b"a", b"b", b"c", b"d"]
# A filtered row: at the end of a snapshot, only SEQNO_ADVANCED reports it.
HIDDEN = b"d"

Event = tuple[int, bytes, bytes | None]


class Round(NamedTuple):
    """Events between two moments at which the stream may break."""

    written: list[tuple[bytes, bool]]
    purged: bool
    newer: bool
    before: int
    twice: bool
    received: int
    at_once: bool
    written_meanwhile: list[tuple[bytes, bool]]
    lost: int | None
    disconnected: bool
    saved: bool
    crashed: bool
    forgotten: bool


WRITES = st.lists(st.tuples(st.sampled_from(KEYS), st.booleans()), max_size=6)
ROUNDS = st.builds(
    Round,
    WRITES,
    st.booleans(),
    st.booleans(),
    st.integers(0, 3),
    st.booleans(),
    st.integers(0, 6),
    st.booleans(),
    WRITES,
    st.none() | st.integers(0, 6),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


class Model:
    def __init__(self) -> None:
        self.versions: list[StoredItem] = []
        self.uuids = 1
        self.vbucket = VbucketStore(7, VbucketState.ACTIVE, FailoverLog.of([(1, 0)]))
        # What the consumer applied, and where it stands: saved and restored together.
        self.events: list[Event] = []
        self.progress = Progress(StreamPosition(7))
        self.saved: tuple[list[Event], StreamPosition] = ([], self.progress.position)
        self.streaming = False
        self.cursor = 0
        self.purged = 0
        self.waiting: list[StoredItem] = []
        self.snapshot = (0, 0)

    # ------------------------------------------------------------------ the vbucket

    def write(self, changes: list[tuple[bytes, bool]]) -> None:
        for key, alive in changes:
            seqno = self.vbucket.high_seqno + 1
            value = b"%d:%d" % (self.uuids, seqno) if alive else b""
            item = StoredItem("mutation" if alive else "deletion", seqno, key, value)
            self.versions.append(item)
            self.vbucket.put(item)

    def fail_over(self, lost: int) -> None:
        kept = max(0, self.vbucket.high_seqno - lost)
        self.uuids += 1
        log = self.vbucket.log.begin(self.uuids, kept)
        self.versions = [item for item in self.versions if item.seqno <= kept]
        self.vbucket = VbucketStore(7, VbucketState.ACTIVE, log)
        for item in self.versions:
            self.vbucket.put(item)

    # ------------------------------------------------------------------ the stream

    def connect(self) -> None:
        self.progress = Progress(self.progress.position)
        while (point := self._answer()) is not None:
            before = self.progress.position
            self.progress = Progress(before.rolled_back(point))
            after = self.progress.position.seqno
            assert after <= point
            assert after < before.seqno or after == 0
            self.events = [event for event in self.events if event[0] <= after]
        self.progress = self.progress.accepted(self.vbucket.log)
        self.streaming, self.waiting = True, []
        self.cursor, self.purged = self.progress.position.seqno, self.vbucket.purge_seqno

    def _answer(self) -> int | None:
        position = self.progress.position
        start, vbuuid, first, last = position.resume_point()
        asked = Resume(start, vbuuid, first, last, purge_seqno=position.purge_seqno)
        return rollback_point(asked, self.vbucket.log, self.vbucket.high_seqno, self.vbucket.purge_seqno)

    def announce(self, before: int, newer: bool) -> None:
        """Send a marker. It starts at the first row or below; newer ones have the purge seqno."""
        if self.cursor < self.vbucket.purge_seqno != self.purged:
            # A backfill that finds its start purged ends the stream.
            self.streaming = False
            return
        if self.vbucket.high_seqno == self.cursor:
            return
        items = [item for item in self.vbucket.since(self.cursor) if isinstance(item, StoredItem)]
        start, end = max(0, items[0].seqno - before), self.vbucket.high_seqno
        if self.progress.first:
            start = min(start, self.progress.position.snapshot_start)
        self.snapshot, self.waiting, self.cursor = (start, end), items, end
        self.progress = self.progress.marker(start, end, self.vbucket.purge_seqno if newer else 0)

    def receive(self, count: int, at_once: bool) -> None:
        rows, self.waiting = self.waiting[:count], self.waiting[count:]
        shown = [item for item in rows if item.key != HIDDEN]
        self.events += [(item.seqno, item.key, item.value if item.alive else None) for item in shown]
        seqnos = [item.seqno for item in shown]
        if not self.waiting and rows[-1].key == HIDDEN:
            seqnos.append(rows[-1].seqno)
        for seqno in seqnos[-1:] if at_once else seqnos:
            self.progress = self.progress.seen(seqno)

    # ------------------------------------------------------------------ all of it

    def play(self, step: Round) -> None:
        self.write(step.written)
        if step.purged:
            self.vbucket.purge()
        if not self.streaming:
            self.connect()
        if not self.waiting:
            self.announce(step.before, step.newer)
        if self.streaming and self.waiting and step.received:
            self.receive(step.received, step.at_once)
        if self.waiting and step.twice:
            # The second marker of a backfill with history has the range of the first.
            self.progress = self.progress.marker(*self.snapshot)
        self.write(step.written_meanwhile)
        if step.lost is not None:
            self.fail_over(step.lost)
        if step.saved:
            self.saved = (list(self.events), self.progress.position)
        if step.crashed:
            events, position = self.saved
            if step.forgotten and position.seqno:
                # A position as another consumer keeps it: without its window and marks.
                position = StreamPosition(7, position.vbuuid, position.seqno, 0, UNKNOWN_END)
            self.events, self.progress = list(events), Progress(position)
        if step.disconnected or step.crashed or step.lost is not None:
            self.streaming, self.waiting = False, []

    def catch_up(self) -> None:
        while self.waiting or not self.streaming or self.vbucket.high_seqno > self.cursor:
            if not self.streaming:
                self.connect()
            elif self.waiting:
                self.receive(1, False)
            else:
                self.announce(0, True)

    def state(self) -> dict[bytes, bytes]:
        state = {key: value for _, key, value in self.events}
        return {key: value for key, value in state.items() if value is not None}

    def truth(self) -> dict[bytes, bytes]:
        items = (item for item in self.vbucket if isinstance(item, StoredItem))
        return {item.key: item.value for item in items if item.alive and item.key != HIDDEN}


@settings(max_examples=1000)
@given(st.lists(ROUNDS, min_size=1, max_size=4))
def test_no_change_is_lost_wherever_a_stream_broke(rounds: list[Round]) -> None:
    model = Model()
    for step in rounds:
        model.play(step)
    model.catch_up()
    assert model.progress.position.seqno == model.vbucket.high_seqno
    assert model.state() == model.truth()
