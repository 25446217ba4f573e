"""A streaming query without Spark: calls a stream reader as Spark's engine does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dcp.spark.options import Options
from dcp.spark.retry import DEFAULTS, Timing
from dcp.spark.stream_reader import StreamReader
from tests.spark.rows import RowReader

# The driver observes the cluster anew at each call.
ALWAYS_FRESH = Timing(interval=-1.0)


class MaxRows(NamedTuple):
    """Stand-in for Spark's ReadMaxRows (4.2 and newer)."""

    max_rows: int


class MaxBytes(NamedTuple):
    """Stand-in for Spark's ReadMaxBytes (4.2 and newer)."""

    max_bytes: int


class MinRows(NamedTuple):
    """Stand-in for Spark's ReadMinRows (4.2 and newer)."""

    min_rows: int


class AllAvailable(NamedTuple):
    """Stand-in for Spark's ReadAllAvailable (4.2 and newer)."""


class Query:
    """A stream reader, its logged offset, and the rows of each batch that succeeded."""

    def __init__(self, url: str, timing: Timing = DEFAULTS, /, **options: str) -> None:
        self.options = Options.of({"url": url, "startingOffsets": "earliest", **options})
        self.timing = timing
        self.reader = RowReader()
        self.driver = StreamReader(self.options, timing)
        self.offset = self.driver.initialOffset()
        # Where the next batch ends, once that is logged.
        self.end: dict[str, Any] | None = None

    def __enter__(self) -> Query:
        return self

    def __exit__(self, *_: object) -> None:
        self.driver.stop()

    def restart(self) -> None:
        """Replace the driver's reader with a new one, as a restart of the query does."""
        self.driver.stop()
        self.driver = StreamReader(self.options, self.timing)

    def hurry(self) -> None:
        """Make the driver query the cluster again."""
        self.driver._view.hurry()

    @property
    def behind(self) -> int:
        """Number of seqnos yet to be read, as the query's progress reports it."""
        return (self.driver.reportLatestOffset() or {})["behind"]  # type: ignore[no-any-return]

    def next_end(self, limit: Any = None) -> dict[str, Any]:
        """Return where the next batch would end."""
        return self.driver.latestOffset(self.offset, limit)

    def log_end(self, limit: Any = None) -> dict[str, Any]:
        """Decide where the next batch ends."""
        self.end = self.next_end(limit)
        return self.end

    def tasks(self) -> Sequence[Any]:
        """Plan the tasks of the batch whose end is logged."""
        assert self.end is not None
        return self.driver.partitions(self.offset, self.end)

    def batch(self) -> None:
        """Run the next batch; first decide where it ends, unless that is logged."""
        if self.end is None:
            self.log_end()
        self.run(self.tasks())

    def run(self, tasks: Sequence[Any]) -> None:
        """Run tasks, keep their rows, and commit the batch."""
        for task in tasks:
            for batch in self.driver.read(task):
                self.reader.apply_batch(batch)
        self.commit()

    def commit(self) -> None:
        """Let the next batch start where this one ended."""
        assert self.end is not None
        self.offset, self.end = self.end, None


def fresh_query(url: str, **options: str) -> Query:
    """Return a query whose driver never uses what it observed before."""
    return Query(url, ALWAYS_FRESH, **options)
