"""Size of a micro-batch: its limits in rows and bytes, converted into last seqnos of vbuckets."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from dcp.client import ChangeStream, Client
from dcp.columns.batch import Batch
from dcp.errors import TimeoutError
from dcp.spark.options import Options
from dcp.spark.planner import Partition, without_dropped
from dcp.spark.projection import Projection
from dcp.spark.ranges import Range
from dcp.spark.task import stream_of

# No server reports the size of changes, so a sample is read: 1,000 seqnos of 4 vbuckets, at most 8 MiB of rows.
_SEQNOS, _VBUCKETS, _BYTES = 1000, 4, 8 << 20
# Seconds to wait for a batch of the sample.
_TIMEOUT = 2.0


def limited_ends(starts: Mapping[int, int], highs: Mapping[int, int], most: int) -> dict[int, int]:
    """Return ends with about `most` seqnos before them, divided among vbuckets in proportion to their backlogs."""
    backlogs = {vbucket: max(0, high - starts[vbucket]) for vbucket, high in highs.items() if vbucket in starts}
    total = sum(backlogs.values())
    if total <= most:
        return dict(highs)
    # Rounded up: each vbucket with a backlog gets at least one seqno, so none starves.
    return {
        vbucket: highs[vbucket] - backlog + min(backlog, -(-most * backlog // total))
        for vbucket, backlog in backlogs.items()
    }


def bytes_per_seqno(client: Client, options: Options, ranges: Iterable[Range]) -> float:
    """Estimate the bytes of rows for each seqno, from the first changes of the longest ranges.

    Return 0 if no change of the sample passes the filters.
    """
    # The longest ranges have most of the rows. Sorted by vbucket, as a partition requires.
    longest = sorted(heapq.nlargest(_VBUCKETS, ranges, key=lambda part: part.size), key=lambda part: part.vbucket)
    sample = tuple(replace(part, end=min(part.end, part.start.seqno + _SEQNOS)) for part in longest if part.size > 0)
    # The sample is only counted: it need not be on disk.
    remaining = without_dropped(replace(options, persisted_only=False), client.manifest)
    if not sample or remaining is None:
        return 0.0
    projection, size = Projection(options, client.collections), 0
    with stream_of(client, Partition("", sample), remaining, projection.wire_columns) as stream:
        for batch in _available(stream):
            size += projection(batch.to_arrow()).nbytes
            if size >= _BYTES:
                break
        here = stream.checkpoint.by_vbucket()
    passed = sum(max(0, here[part.vbucket].seqno - part.start.seqno) for part in sample)
    return size / passed if passed else 0.0


def _available(stream: ChangeStream) -> Iterator[Batch]:
    """Yield batches until the stream ends or one takes too long."""
    with suppress(TimeoutError):
        while (batch := stream.next(_TIMEOUT)) is not None:
            yield batch
