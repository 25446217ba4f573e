"""Resume arithmetic of a stream, on models of a vbucket and of a reader, in which everything may fail at any time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random

import pytest

from dcp.errors import RollbackError
from dcp.position import UNKNOWN_END, FailoverLog
from dcp.spark.offsets import Floor, LoggedPosition
from dcp.spark.options import Options
from dcp.spark.resume import ObservedVbucket, Start, observed, position_after, restart_at, start_at
from tests.spark.model import ModelReader, ModelVbucket

OPTIONS = Options("couchbase://host/bucket")


@dataclass
class ModelQuery:
    """A query of one vbucket: its logged position, and what its driver knows of that.

    losses: numbers of changes that a failover may lose; None is no failover.
    """

    random: Random
    losses: Sequence[int | None]
    vbucket: ModelVbucket = field(default_factory=ModelVbucket)
    reader: ModelReader = field(default_factory=ModelReader)
    logged: LoggedPosition = field(default_factory=lambda: LoggedPosition(0))
    known: LoggedPosition = field(default_factory=lambda: LoggedPosition(0))
    # Seqno of the reader at the start of its last batch.
    started: int = 0

    @property
    def state(self) -> ObservedVbucket:
        return ObservedVbucket(self.vbucket.high, self.vbucket.log)

    def chance(self, tenths: int) -> bool:
        return self.random.random() * 10 < tenths

    def change(self) -> None:
        """Write some keys, and perhaps fail over."""
        keys = [self.random.choice("abcdef") for _ in range(self.random.choice([0, 0, 1, 2, 4]))]
        self.vbucket.change(keys, self.random.choice(self.losses))

    def observe(self) -> Start:
        """Let the driver observe the cluster, and return where the next batch would start."""
        self.known = observed(self.known, self.state)
        return start_at(self.known, self.state)

    def batch(self, most: int = 1000, attempts: int = 0) -> None:
        """Run a batch of at most so many seqnos, after some attempts that fail."""
        start = self.observe()
        high = min(self.vbucket.high, start.floor.seqno + most)
        if not start.has_work(high):
            return
        end = position_after(start, high, self.state, 0)
        for _ in range(attempts):
            self._attempt(end, ModelReader(dict(self.reader.rows)), self.change)
        self.started = self._attempt(end, self.reader, self.change if attempts else lambda: None)
        self.logged = self.known = end

    def settle(self) -> None:
        """Log what the driver knows."""
        start = self.observe()
        if start.undone_from is None:
            self.logged = self.known = position_after(start, start.floor.seqno, self.state, 0)

    def _attempt(self, end: LoggedPosition, reader: ModelReader, change: Callable[[], None]) -> int:
        """Read as an attempt does. Return the seqno from which it read."""
        change()
        start = restart_at(self.logged, end, self.state)
        if not any(self.losses):
            # What the batch before had, and no more.
            assert start.floor.seqno >= self.started
        part = replace(start.range(min(end.seqno, self.vbucket.high), OPTIONS), whole=False)
        change()
        reader.read(part, self.vbucket, self.random.randint(1, 9), change if self.chance(3) else lambda: None)
        return start.floor.seqno

    def round(self) -> None:
        self.change()
        if self.chance(3):
            self.settle()
            self.change()
        if self.chance(3):
            # The driver is restarted.
            self.known = self.logged
        self.batch(self.random.choice([2, 5, 1000]), self.random.choice([0, 0, 1, 2]))

    def finish(self) -> None:
        """Read to the end, and compare."""
        for _ in range(3):
            self.batch()
        assert not self.observe().has_work(self.vbucket.high)
        assert self.reader.state == self.vbucket.state_at(self.vbucket.high)


@pytest.mark.parametrize("losses", [(None, None, None, 0, 1, 2, 3, 5), (None, None, 0)])
def test_whatever_fails_the_reader_ends_with_the_state_of_the_producer(losses: tuple[int | None, ...]) -> None:
    for seed in range(4000):
        query = ModelQuery(Random(seed), losses)
        for _ in range(query.random.randint(1, 6)):
            query.round()
        query.finish()
        # Nothing is lost and nothing written since: nothing is read again.
        query.vbucket.change([], 0)
        assert not query.observe().has_work(query.vbucket.high)


def test_a_vbucket_without_changes_stays_at_its_beginning() -> None:
    here, empty = LoggedPosition(0), ObservedVbucket(0, FailoverLog.of([(7, 0)]))
    assert position_after(start_at(here, empty), 0, empty, 0) == here


def test_a_repeated_batch_starts_where_its_offset_says_although_the_driver_forgot_why() -> None:
    log = FailoverLog.of([(7, 0)])
    logged = LoggedPosition(0, 7, 100, UNKNOWN_END, (Floor(60, 70),))
    start = start_at(logged, ObservedVbucket(120, log))
    assert (start.floor, start.undone_from) == (Floor(100, 120), None)
    end = position_after(start, 110, ObservedVbucket(120, log), 0)
    assert end == LoggedPosition(0, 7, 110, UNKNOWN_END, (Floor(100, 120), Floor(60, 70)))
    # The failover lost nothing of what the batch before had read, then a part of that, then all of it.
    for left, floor in ((120, Floor(100, 120)), (119, Floor(60, 70)), (69, Floor(0, 0))):
        begin = restart_at(logged, end, ObservedVbucket(130, log.begin(8, left)))
        assert begin.floor == floor
        assert begin.undone_from == (None if floor.seqno == 100 else 100)


def test_a_position_that_is_not_known_to_be_whole_is_an_error_with_on_rollback_fail() -> None:
    start = start_at(
        LoggedPosition(3, 7, 100, UNKNOWN_END, (Floor(60, 70),)),
        ObservedVbucket(120, FailoverLog.of([(8, 90), (7, 0)])),
    )
    with pytest.raises(RollbackError, match="vbucket 3: the cluster has lost changes: go back from seqno 100 to 60"):
        start.range(120, replace(OPTIONS, on_rollback="fail"))


def test_below_the_purge_seqno_no_floor_is_kept() -> None:
    state = ObservedVbucket(2000, FailoverLog.of([(7, 0)]))
    start = start_at(LoggedPosition(0, 7, 1000, 1000, (Floor(990, 990), Floor(20, 20))), state)
    for purged, kept in ((0, (1000, 990, 20)), (990, (1000, 990)), (1000, (1000,)), (1001, ()), (None, ())):
        assert tuple(floor.seqno for floor in position_after(start, 1001, state, purged).floors) == kept


def test_a_history_is_kept_up_to_its_end_and_the_present_one_as_far_as_it_was_read() -> None:
    state = ObservedVbucket(110, FailoverLog.of([(8, 90), (7, 0)]))
    # While the present history goes on, nothing of it is lost. The end of a batch that is unknown is beyond that.
    assert 2**62 < state.kept(8, 110) < UNKNOWN_END
    # A node has less of it than was read.
    assert state.kept(8, 111) == 110
    assert (state.kept(7, 50), state.kept(7, 111), state.kept(5, 50)) == (90, 90, 0)


def test_a_seqno_is_of_the_oldest_history_that_contains_it() -> None:
    state = ObservedVbucket(110, FailoverLog.of([(8, 90), (7, 40), (6, 0)]))
    assert [state.history_of(seqno) for seqno in (1, 40, 41, 90, 91, 110)] == [6, 6, 7, 7, 8, 8]


def test_the_newer_half_of_a_full_failover_log_is_recent() -> None:
    # Servers keep 25 entries.
    state = ObservedVbucket(9999, FailoverLog.of([(entry, 1000 - entry) for entry in range(25)]))
    assert [entry for entry in range(30) if state.is_recent(entry)] == list(range(12))


def test_an_offset_keeps_few_floors_further_apart_the_further_back_they_are() -> None:
    log, here = FailoverLog.of([(7, 0)]), LoggedPosition(0)
    for batch in range(1, 5000):
        start = start_at(here, ObservedVbucket(batch * 40, log))
        here = position_after(start, batch * 40, ObservedVbucket(batch * 40, log), 0)
    distances = [here.seqno - floor.seqno for floor in here.floors]
    assert distances[0] == 40
    assert len(distances) <= 5
    assert all(older < 256**2 * newer for newer, older in pairwise(distances))
