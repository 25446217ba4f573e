"""Where streams begin and end: what words, checkpoints and times mean for each vbucket."""

from __future__ import annotations

import time
from collections.abc import Mapping

from dcp.checkpoint import Checkpoint
from dcp.client.agent import Access
from dcp.client.dialects import DCP, TAP, check_stream, manner_of, tap_end
from dcp.client.follow.follower import Follower
from dcp.client.follow.node_link import Limits
from dcp.client.follow.settings import Terms
from dcp.client.follow.vbucket import Vbucket
from dcp.client.opener import Opener
from dcp.client.queries import failover_logs, high_seqnos, server_version
from dcp.client.rollback import rollback_rows, with_rollback
from dcp.client.time_search import Places, Probe, Seen, Span, Time, find, tick
from dcp.cluster_map import no_owner_error
from dcp.columns.decoder import Decoder
from dcp.errors import LocalProtocolError, TransportError
from dcp.position import FailoverLog, StreamPosition
from dcp.wire.dcp import ENDLESS
from dcp.wire.dcp_body import StreamFilter

_COLUMNS = ("vbucket", "seqno", "cas")
_TRIES = 5
_LIMITS = Limits(65_536, 4 << 20, 0.02)
# Servers of 6.6 do not survive a stream without values over documents with xattrs from disk (seen with 6.6.5).
_VALUES_ONLY = "6.6"


class Bounds:
    """Of some vbuckets of a bucket, under a filter. `found` has what was looked for at a time, by `start` and `end`."""

    def __init__(self, access: Access, wanted: list[int], chosen: StreamFilter | None) -> None:
        self.found: dict[str, Places] = {}
        # The lowest CAS that belongs to the stream, and the lowest that does not any more.
        self.since: int | None = None
        self.until: int | None = None
        self._access, self._wanted, self._chosen = access, wanted, chosen

    def between(
        self, start: Time | Checkpoint, end: Time | Checkpoint | None, empty: Checkpoint
    ) -> tuple[Mapping[int, StreamPosition], Mapping[int, int]]:
        """Where each vbucket begins, and where it ends."""
        if self._access.dialect == TAP:
            last = tap_end(start, end)
            return self.begin("beginning", empty), dict.fromkeys(self._wanted, last)
        return self.begin(start, empty), self.end(end, empty)

    def begin(self, start: Time | Checkpoint, empty: Checkpoint) -> Mapping[int, StreamPosition]:
        self.since = tick("start", start)
        if self.since is not None:
            places, logs = self._find(self.since)
            self.found["start"] = places
            return {n: _at(n, 0 if place.how == "purged" else place.seqno, logs.get(n)) for n, place in places.items()}
        if isinstance(start, Checkpoint):
            start.check(empty)
            known = start.by_vbucket()
            return {number: known.get(number, StreamPosition(number)) for number in self._wanted}
        if start == "beginning":
            return {number: StreamPosition(number) for number in self._wanted}
        highs, logs = self._settled()
        return {number: _at(number, highs[number], logs.get(number)) for number in self._wanted}

    def purged(self, vbucket: int) -> int:
        """Up to where deletions since the start may be forgotten; 0 if none can be."""
        place = self.found.get("start", {}).get(vbucket)
        return place.seqno if place is not None and place.how == "purged" else 0

    def end(self, end: Time | Checkpoint | None, empty: Checkpoint) -> Mapping[int, int]:
        self.until = tick("end", end)
        if self.until is not None:
            if self.until > time.time_ns():
                raise LocalProtocolError(
                    f"end: expected a time that is over, found {end}: follow without an end till then"
                )
            self.found["end"], _ = self._find(self.until)
            return {number: place.seqno for number, place in self.found["end"].items()}
        if end is None:
            return dict.fromkeys(self._wanted, ENDLESS)
        if isinstance(end, Checkpoint):
            end.check_bucket(empty)
            known = end.by_vbucket()
            return {n: known[n].seqno if n in known else 0 for n in self._wanted}
        return self._highs()

    def _highs(self) -> dict[int, int]:
        highs = high_seqnos(self._access)
        missing = [number for number in self._wanted if number not in highs]
        if missing:
            raise no_owner_error(missing)
        return {number: highs[number] for number in self._wanted}

    def _settled(self) -> tuple[dict[int, int], Mapping[int, FailoverLog]]:
        """Where each vbucket is, and histories that have come as far: a failover in between makes new ones."""
        for _ in range(_TRIES):
            highs, logs = self._highs(), failover_logs(self._access, self._wanted)
            after = self._highs()
            if all(highs[number] <= after[number] for number in highs):
                return highs, logs
        raise TransportError("vbuckets lost changes each time they were looked at: try again when the cluster is whole")

    # Probes.

    def _find(self, moment: int) -> tuple[Places, Mapping[int, FailoverLog]]:
        """Where each vbucket was, and its histories, which are not older than what is known of the seqnos."""
        check_stream(self._access.dialect, ["times"])
        highs, logs = self._settled()
        return find(self._probe(logs), moment, highs), logs

    def _probe(self, logs: Mapping[int, FailoverLog]) -> Probe:
        values = server_version(self._access).startswith(_VALUES_ONLY)
        opener = Opener(
            self._access,
            lambda collections: Decoder(DCP, _COLUMNS, collections=collections),
            _LIMITS,
            manner_of(DCP, None),
            {"values": values},
        )

        terms = Terms(self._chosen, rollback_rows(Decoder(with_rollback(DCP), _COLUMNS)), "stop")

        def probe(spans: Mapping[int, Span]) -> Mapping[int, list[Seen] | None]:
            follower = Follower(
                opener,
                [Vbucket(n, _at(n, start, logs.get(n)), end) for n, (start, end) in spans.items()],
                terms,
            )
            seen: dict[int, list[Seen]] = {number: [] for number in spans}
            try:
                while (item := follower.next()) is not None:
                    rows = item.batch.to_arrow().to_pydict()
                    for vbucket, *change in zip(*(rows[name] for name in _COLUMNS), strict=True):
                        seen[vbucket].append((change[0], change[1]))
                    follower.processed(item)
            finally:
                follower.close()
            return {number: None if number in follower.stopped else rows for number, rows in seen.items()}

        return probe


def _at(vbucket: int, seqno: int, log: FailoverLog | None) -> StreamPosition:
    """Behind a seqno of the newest history."""
    return StreamPosition(vbucket, log.newest.vbuuid if log and seqno else 0, seqno, seqno, seqno)
