"""How much a batch may have, in seqnos."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from dcp.client import ChangeStream, Client
from dcp.columns.batch import Batch
from dcp.errors import TimeoutError
from dcp.position import StreamPosition
from dcp.spark.options import Options
from dcp.spark.planner import Partition, Range, still_there
from dcp.spark.projection import View
from dcp.spark.task import stream_of

# No server says how large changes are, so some are looked at: so many seqnos of so many vbuckets, up to so many bytes.
_SEQNOS, _VBUCKETS, _BYTES = 1000, 4, 8 << 20
_PATIENCE = 2.0


def limited(starts: Mapping[int, StreamPosition], highs: Mapping[int, int], most: int) -> dict[int, int]:
    """Ends such that about `most` seqnos lie between, each vbucket having its share of what is left."""
    left = {vbucket: max(0, high - starts[vbucket].seqno) for vbucket, high in highs.items() if vbucket in starts}
    total = sum(left.values())
    if total <= most:
        return dict(highs)
    return {vbucket: highs[vbucket] - rest + min(rest, -(-most * rest // total)) for vbucket, rest in left.items()}


def bytes_per_seqno(client: Client, options: Options, ranges: Iterable[Range]) -> float:
    """What a seqno adds to a batch, by the first changes of the longest ranges; 0 where none of them is wanted."""
    longest = sorted(heapq.nlargest(_VBUCKETS, ranges, key=lambda part: part.size), key=lambda part: part.vbucket)
    looked = tuple(replace(part, end=min(part.end, part.start.seqno + _SEQNOS)) for part in longest if part.size > 0)
    there = still_there(options, client.manifest)
    if not looked or there is None:
        return 0.0
    view, size = View(options, client.collections), 0
    with stream_of(client, Partition("", looked), there, view.decoded) as stream:
        for batch in _at_once(stream):
            size += view(batch.to_arrow()).nbytes
            if size >= _BYTES:
                break
        here = stream.checkpoint.by_vbucket()
    passed = sum(max(0, here[part.vbucket].seqno - part.start.seqno) for part in looked)
    return size / passed if passed else 0.0


def _at_once(stream: ChangeStream) -> Iterator[Batch]:
    """What comes without much waiting."""
    with suppress(TimeoutError):
        while (batch := stream.next(_PATIENCE)) is not None:
            yield batch
