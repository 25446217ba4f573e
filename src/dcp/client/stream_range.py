"""The range of a stream: `start=` and `end=` as a begin position and an end seqno for each vbucket."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from dcp.checkpoint import Checkpoint
from dcp.client import queries
from dcp.client.agent import Agent
from dcp.client.filters import StreamSelection
from dcp.client.follow.batch_queue import QueuedBatch
from dcp.client.follow.follower import Follower
from dcp.client.follow.settings import TAP, BatchLimits, StreamSettings, dialect_rules
from dcp.client.follow.vbucket import FollowedVbucket
from dcp.client.monitor import Observation
from dcp.client.row_format import report_row, with_report_rows
from dcp.client.time_search import Probe, ProbedChange, SeqnoSpan, TimePositions, find_positions, lowest_cas
from dcp.cluster_map import format_vbuckets
from dcp.columns.decoder import Decoder
from dcp.errors import ServerError, TimeoutError, UsageError
from dcp.position import UNKNOWN_END, FailoverLog, StreamPosition
from dcp.wire import DIALECTS
from dcp.wire.dcp import DCP, ENDLESS
from dcp.wire.memcached import MAX_FRAME

log = logging.getLogger("dcp.client")

# Values of `start` and `end`.
Bound = str | datetime | Checkpoint

_COLUMNS = ("vbucket", "seqno", "cas")
_PROBE_LIMITS = partial(BatchLimits.within, rows=65_536, bytes=4 << 20, linger=0.02)
# The end of a TAP stream is not a seqno: any number but ENDLESS asks the node to end after its backfill.
_END_OF_BACKFILL = 1


@dataclass(frozen=True, slots=True)
class StreamRange:
    """Begin and end of each vbucket of a stream.

    begins: positions to resume from. ends: last seqnos; ENDLESS for none.
    found: for `start` and `end`, where they are times, the position of each vbucket then.
    since, until: lowest CAS of the stream, and the lowest after it; None for no limit.
    last_seqnos: last seqno to deliver, by vbucket, where `end` is a checkpoint or a time: nodes round the end of a
    stream up to the end of its snapshot.
    """

    begins: Mapping[int, StreamPosition]
    ends: Mapping[int, int]
    found: Mapping[str, TimePositions] = field(default_factory=dict)
    since: int | None = None
    until: int | None = None
    last_seqnos: Mapping[int, int] = field(default_factory=dict)

    def purged_up_to(self, vbucket: int) -> int:
        """Return the seqno up to which deletions made since the start may be purged; 0 if none can be."""
        position = self.found.get("start", {}).get(vbucket)
        return position.seqno if position is not None and position.how == "purged" else 0

    def vbuckets(self) -> Iterator[FollowedVbucket]:
        """Yield the state from which each vbucket is followed."""
        for number, begin in self.begins.items():
            yield FollowedVbucket(number, begin, self.ends[number], self.purged_up_to(number))


def resolve_range(
    agent: Agent, vbuckets: Sequence[int], chosen: StreamSelection, start: Bound, end: Bound | None
) -> StreamRange:
    """Return the range of a stream. Probes the nodes for times, and asks them for high seqnos where these count."""
    if agent.dialect == TAP:
        return _tap_range(vbuckets, start, end)
    _check_times(agent.dialect, start=start, end=end)
    found: dict[str, TimePositions] = {}
    begins = _begins(agent, vbuckets, chosen, start, found)
    ends = _ends(agent, vbuckets, chosen, end, found)
    since = lowest_cas(start) if isinstance(start, datetime) else None
    until = lowest_cas(end) if isinstance(end, datetime) else None
    return StreamRange(begins, ends, found, since, until, _last_seqnos(end, ends))


def _last_seqnos(end: Bound | None, ends: Mapping[int, int]) -> Mapping[int, int]:
    """Return the seqnos after which no row is delivered.

    A checkpoint whose snapshot end is unknown, such as that of a Spark plan, stands for the rest of that snapshot, too:
    its reader never saw which versions the snapshot replaced.
    """
    if isinstance(end, Checkpoint):
        known = {position.vbucket: position.snapshot_end for position in end}
        return {number: seqno for number, seqno in ends.items() if known.get(number) != UNKNOWN_END}
    return ends if isinstance(end, datetime) else {}


def resolve_start(
    agent: Agent, vbuckets: Sequence[int], chosen: StreamSelection, start: Bound
) -> Mapping[int, StreamPosition]:
    """Return the position of each vbucket from which a stream with this start begins."""
    _check_times(agent.dialect, start=start)
    return _begins(agent, vbuckets, chosen, start, {})


def resolve_end(agent: Agent, vbuckets: Sequence[int], chosen: StreamSelection, end: Bound | None) -> Mapping[int, int]:
    """Return the last seqno of each vbucket that a stream with this end delivers; ENDLESS for none."""
    _check_times(agent.dialect, end=end)
    return _ends(agent, vbuckets, chosen, end, {})


def _check_times(dialect: str, **given: object) -> None:
    for name, value in given.items():
        if isinstance(value, datetime) and dialect != DCP.name:
            raise UsageError(f"{name}: {DIALECTS[dialect].title} does not support times; begin at the beginning")


def _begins(
    agent: Agent, vbuckets: Sequence[int], chosen: StreamSelection, start: Bound, found: dict[str, TimePositions]
) -> Mapping[int, StreamPosition]:
    if isinstance(start, Checkpoint):
        start.check(chosen.template)
        known = start.by_vbucket()
        # A vbucket that the checkpoint lacks begins at 0.
        return {number: known.get(number, StreamPosition(number)) for number in vbuckets}
    if start == "beginning":
        return {number: StreamPosition(number) for number in vbuckets}
    heads = queries.heads(agent, vbuckets, partial(chosen.collection_ids, agent))
    logs = heads.failover_logs
    if isinstance(start, datetime):
        found["start"] = find_positions(_prober(agent, chosen, logs), lowest_cas(start), heads.high_seqnos)
        return {
            number: _after(number, 0 if position.how == "purged" else position.seqno, logs.get(number))
            for number, position in found["start"].items()
        }
    return {number: _after(number, heads.high_seqnos[number], logs.get(number)) for number in vbuckets}


def _ends(
    agent: Agent,
    vbuckets: Sequence[int],
    chosen: StreamSelection,
    end: Bound | None,
    found: dict[str, TimePositions],
) -> Mapping[int, int]:
    if end is None:
        return dict.fromkeys(vbuckets, ENDLESS)
    if isinstance(end, Checkpoint):
        end.check_bucket(chosen.template)
        known = end.by_vbucket()
        # A vbucket that the checkpoint lacks is at its beginning: there is nothing to read of it.
        return {number: known[number].seqno if number in known else 0 for number in vbuckets}
    if isinstance(end, datetime):
        if lowest_cas(end) > time.time_ns():
            raise UsageError(
                f"end: expected a time in the past, found {end.isoformat()}: follow without an end until then"
            )
        # Read again, after the start was resolved: changes may have been lost since.
        heads = queries.heads(agent, vbuckets, partial(chosen.collection_ids, agent))
        probe = _prober(agent, chosen, heads.failover_logs)
        found["end"] = find_positions(probe, lowest_cas(end), heads.high_seqnos)
        return {number: position.seqno for number, position in found["end"].items()}
    return queries.owned_high_seqnos(agent, vbuckets, partial(chosen.collection_ids, agent))


def _tap_range(vbuckets: Sequence[int], start: Bound, end: Bound | None) -> StreamRange:
    if start not in ("beginning", "now"):
        raise UsageError(f"start: expected beginning or now, as TAP has no seqnos, found {_described(start)}")
    accepted = (None, "now") if start == "beginning" else (None,)
    if end not in accepted:
        words = " or ".join(map(str, accepted))
        raise UsageError(f"end: expected {words}, as TAP has no seqnos, found {_described(end)}")
    last = ENDLESS if end is None else _END_OF_BACKFILL
    return StreamRange({number: StreamPosition(number) for number in vbuckets}, dict.fromkeys(vbuckets, last))


def _described(value: object) -> str:
    return f"{value!r:.40}" if isinstance(value, str) else f"a {type(value).__name__}"


def _after(vbucket: int, seqno: int, log: FailoverLog | None) -> StreamPosition:
    """Return the position after a seqno of the newest history."""
    # The window (seqno, seqno) is safe here: a consumer that begins at `seqno` has no older version of anything.
    return StreamPosition(vbucket, log.newest.vbuuid if log and seqno else 0, seqno, seqno, seqno)


def _prober(agent: Agent, chosen: StreamSelection, logs: Mapping[int, FailoverLog]) -> Probe:
    """Return the function that streams short spans, for `find_positions`.

    logs: failover logs, not older than the high seqnos of the search.
    """
    values = not queries.can_leave_out_values(agent)

    def probe(spans: Mapping[int, SeqnoSpan]) -> Mapping[int, list[ProbedChange] | None]:
        nonlocal values
        seen = _stream_spans(agent, chosen, logs, spans, values)
        if not values and _without_cas(seen) is not None:
            # Some releases do not read metadata where no value is asked for. CAS 0 must never be taken for a time.
            log.warning("changes without a CAS were sent where no values were requested; searching with values")
            values = True
            seen = _stream_spans(agent, chosen, logs, spans, values)
        if (nameless := _without_cas(seen)) is not None:
            vbucket, seqno = nameless
            raise ServerError(
                f"vbucket {vbucket}: the node sent seqno {seqno} without a CAS, so that no time can be searched for; "
                "begin at the beginning, now or at a checkpoint"
            )
        return seen

    return probe


def _without_cas(seen: Mapping[int, list[ProbedChange] | None]) -> tuple[int, int] | None:
    """Return vbucket and seqno of a change that has no CAS; None if all have one."""
    return next(
        ((vbucket, change.seqno) for vbucket, changes in seen.items() for change in changes or () if not change.cas),
        None,
    )


def _stream_spans(
    agent: Agent,
    chosen: StreamSelection,
    logs: Mapping[int, FailoverLog],
    spans: Mapping[int, SeqnoSpan],
    values: bool,
) -> Mapping[int, list[ProbedChange] | None]:
    """Stream a span of each vbucket, and return its changes; None for a vbucket that was to roll back.

    Each round of a search has a stream of its own, over new connections, so that nothing of it is left afterwards.
    """
    settings = StreamSettings(
        # Without values the datatype says how they are stored, not that there is something to inflate.
        decoder=lambda collections: Decoder(DCP, _COLUMNS, collections=collections, inflate=values),
        limits=_PROBE_LIMITS(agent.options.dcp_buffer_size, MAX_FRAME),
        rules=dialect_rules(DCP.name, None),
        report_row=report_row(Decoder(with_report_rows(DCP.name), _COLUMNS)),
        on_rollback="stop",
        filter=chosen.wire,
        requested={"values": values},
    )
    vbuckets = [
        FollowedVbucket(number, _after(number, span.start, logs.get(number)), span.end)
        for number, span in spans.items()
    ]
    follower = Follower(agent, vbuckets, settings)
    seen: dict[int, list[ProbedChange]] = {number: [] for number in spans}
    try:
        while (item := _next(agent, follower)) is not None:
            rows = item.batch.to_arrow().to_pydict()
            for vbucket, seqno, cas in zip(*(rows[name] for name in _COLUMNS), strict=True):
                seen[vbucket].append(ProbedChange(seqno, cas))
            follower.processed(item)
    finally:
        follower.close()
    return {number: None if number in follower.rolled_back else changes for number, changes in seen.items()}


def _next(agent: Agent, follower: Follower) -> QueuedBatch | None:
    """Return the next batch of a probe. Raises TimeoutError after `refusal_timeout` without any progress.

    A node that reads much of its disk for few changes of a collection is silent for a while, too.
    """
    limit, since = agent.options.refusal_timeout, time.monotonic()
    standing = follower.observations()
    while True:
        try:
            return follower.next(min(limit, agent.options.bootstrap_timeout))
        except TimeoutError:
            observed, seconds = follower.observations(), time.monotonic() - since
        if _reached(observed) != _reached(standing):
            standing, since = observed, time.monotonic()
            continue
        problem = f"no progress on vbuckets {format_vbuckets(each.vbucket for each in observed)} for {seconds:.3g} s"
        detail = "; ".join({each.detail: None for each in observed})
        if seconds >= limit:
            raise TimeoutError(f"search for a time: {problem} (refusal_timeout): {detail}")
        log.warning("search for a time: %s: %s; waiting for up to %g s (refusal_timeout)", problem, detail, limit)


def _reached(observed: Iterable[Observation]) -> dict[int, int]:
    return {each.vbucket: each.received for each in observed}
