"""The client: finds a cluster, and streams its changes."""

from __future__ import annotations

import inspect
import logging
import weakref
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from dcp.checkpoint import Checkpoint
from dcp.client import options as arguments
from dcp.client import queries as questions
from dcp.client.agent import Access
from dcp.client.commands import Caller
from dcp.client.dialects import check_stream, manner_of
from dcp.client.filters import select
from dcp.client.follow.follower import Follower
from dcp.client.follow.node_link import Limits
from dcp.client.follow.settings import Terms
from dcp.client.follow.vbucket import Vbucket
from dcp.client.monitor import Watcher
from dcp.client.opener import Opener
from dcp.client.row_format import Look
from dcp.client.stats import Stats, together
from dcp.client.stream import ChangeStream
from dcp.client.stream_range import Bounds
from dcp.client.time_search import Time
from dcp.client.work import Work
from dcp.cluster_map import ClusterMap, Node
from dcp.errors import LocalProtocolError
from dcp.position import FailoverLog

log = logging.getLogger("dcp.client")


class Client:
    """Knows a bucket of a cluster. `stream` follows its changes; `close`, or `with`, ends everything."""

    def __init__(self, url: str, **options: Any) -> None:
        self._access = Access(url, options)
        self._bucket = self._access.target.bucket
        self._works: list[Work] = []
        self._past = Stats(self._bucket)
        weakref.finalize(self, self._access.close).atexit = False

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client {self._access.target}>"

    def close(self) -> None:
        """End all streams, and close all connections."""
        self._access.close()
        for work in self._works:
            work.close()

    @property
    def dialect(self) -> str:
        """What streams speak: `dcp`, or what was before it, `tap`, `upr1` or `upr2`."""
        return self._access.dialect

    @property
    def map(self) -> ClusterMap:
        """The newest map that is known."""
        return self._access.map

    def refresh(self) -> ClusterMap:
        """Fetch the map, from any node that answers."""
        return self._access.refresh()

    # Streams.

    def stream(
        self,
        start: Time | Checkpoint = "beginning",
        end: Time | Checkpoint | None = None,
        *,
        scope: str | None = None,
        collections: Iterable[str] | None = None,
        vbuckets: Iterable[int] | None = None,
        columns: Iterable[str] | None = None,
        batch_rows: int = 65_536,
        batch_bytes: int = 4 << 20,
        linger: float = 0.02,
        on_rollback: str = "replay",
        ignore_purged: bool = False,
        persisted_only: bool = False,
        persisted_within: float = 60.0,
        out_of_order: bool = False,
        history: bool = False,
        **decoding: Any,
    ) -> ChangeStream:
        """Follow the changes.

        start: "beginning", "now", a checkpoint to go on from, or a time. end: None for ever, "now" for what
        there is, a checkpoint, or a time that is over. Times are a datetime or its ISO text, with a zone: only
        changes that by their CAS were made at `start` or later, and before `end`. scope, collections: names;
        only these. vbuckets: only these, to share the work. columns, and what else `Decoder` has: how batches
        look. batch_rows, batch_bytes, linger: a batch is handed out at so many rows or bytes, or when its
        first row is so many seconds old.
        on_rollback: "replay", where a row with the event `rollback` comes before what is sent again, or
        "fail" with a RollbackError.
        ignore_purged: go on from a checkpoint although deletions since may be forgotten, where otherwise the vbucket
        is rolled back to 0 and comes whole; a row with the event `purged` says that some may never come.
        persisted_only: hand out only what every copy of its vbucket has on disk, so that no failover takes it
        back. What has to wait for longer than `persisted_within` seconds is a TransportError that names the
        copies which lag.
        out_of_order: let nodes send what a collection has in any order at first, which may be faster. Positions of
        a vbucket stay at its beginning until that is whole.
        history: every version of a document that is kept, not only the last one of a snapshot.
        """
        arguments.check_decoding(decoding, _STREAM_OPTIONS)
        arguments.check_limits(batch_rows, batch_bytes, linger)
        arguments.check_flags(
            ignore_purged=ignore_purged, persisted_only=persisted_only, out_of_order=out_of_order, history=history
        )
        if on_rollback not in ("replay", "fail"):
            raise LocalProtocolError(f"on_rollback: expected replay or fail, found {on_rollback!r}")
        if out_of_order and persisted_only:
            raise LocalProtocolError(
                "out_of_order: expected it without persisted_only, which waits for whole snapshots"
            )
        asked = {"scope": scope is not None, "collections": collections is not None}
        asked |= {"persisted_only": persisted_only, "ignore_purged": ignore_purged}
        asked |= {"out_of_order": out_of_order, "history": history}
        check_stream(self.dialect, [name for name, value in asked.items() if value])
        look = Look(self.dialect, columns, decoding)
        wanted, selection = self._wanted(vbuckets), select(self._access, scope, collections)
        bounds = Bounds(self._access, wanted, selection.chosen)
        begins, ends = bounds.between(start, end, selection.empty)
        cut = look.cut(bounds.since, bounds.until) if bounds.found else None
        opener = Opener(
            self._access,
            look.decoder,
            Limits(batch_rows, batch_bytes, linger),
            manner_of(self.dialect, start),
            {"out_of_order": out_of_order, "history": history, "xattrs": look.has_xattrs},
        )
        within = persisted_within if persisted_only else None
        terms = Terms(selection.chosen, look.rollback_rows(), on_rollback, ignore_purged, within)
        followed = [Vbucket(number, begins[number], ends[number], bounds.purged(number)) for number in wanted]
        log.info("bucket %s: following %d vbuckets from %s", self._bucket, len(wanted), _shown(start))
        # Each stream has connections of its own, and may last for long without a question.
        self.hang_up()
        follower = Follower(opener, followed, terms)
        interval = self._access.options["stats_interval"]
        watcher = Watcher(self._access, follower, interval, selection)
        work = Work(self._bucket, follower, watcher)
        self._add(work)
        # Where nothing has a number, nobody can tell how far behind it is.
        if interval and opener.manner.resumes:
            watcher.start()
        return ChangeStream(self, follower, work, selection.empty, bounds.found, cut)

    def _add(self, work: Work) -> None:
        """Of those that are over only what they did is kept."""
        over = [one for one in self._works if one.closed]
        self._past = together(self._bucket, [self._past, *(one.stats() for one in over)])
        self._works = [*(one for one in self._works if one not in over), work]

    def stats(self) -> Stats:
        """What came so far, and how all streams stand now. Lag and stuck vbuckets are as new as `stats_interval`."""
        return together(self._bucket, [self._past, *(work.stats() for work in self._works)])

    def positions(
        self,
        start: Time | Checkpoint = "beginning",
        *,
        scope: str | None = None,
        collections: Iterable[str] | None = None,
        vbuckets: Iterable[int] | None = None,
    ) -> Checkpoint:
        """Where a stream that starts there begins, for each vbucket; no values are streamed."""
        wanted, selection = self._wanted(vbuckets), select(self._access, scope, collections)
        # Vbuckets that nobody asks for stay where they are.
        known = start.by_vbucket() if isinstance(start, Checkpoint) else {}
        known |= Bounds(self._access, wanted, selection.chosen).begin(start, selection.empty)
        return replace(selection.empty, positions=tuple(known[number] for number in sorted(known)))

    def _wanted(self, vbuckets: Iterable[int] | None) -> list[int]:
        return arguments.vbuckets(vbuckets, self.map.num_vbuckets)

    # Questions.

    def call(self, node: Node, *, stream: bool = False) -> Caller:
        """A connection of its own to a node, to ask it commands; `stream`: opened for DCP."""
        return self._access.call(node, stream=stream)

    def hang_up(self) -> None:
        """Close the connections that questions went over: the next question opens them again. Streams go on."""
        self._access.hang_up()

    def server_version(self) -> str:
        """That of the node that commands go to."""
        return questions.server_version(self._access)

    def high_seqnos(self, collection_id: int | None = None) -> dict[int, int]:
        """The last seqno of every vbucket, or of a collection in it, from the nodes that have them now.

        Vbuckets that never had anything of the collection may be missing.
        """
        return questions.high_seqnos(self._access, collection_id)

    def failover_logs(self, vbuckets: Iterable[int] | None = None) -> dict[int, FailoverLog]:
        """The histories of each vbucket, or of these. Those that no node has now are missing."""
        return questions.failover_logs(self._access, self._wanted(vbuckets))

    def purge_seqnos(self) -> dict[int, int]:
        """Up to where each vbucket has forgotten deletions; vbuckets whose node does not say so are missing."""
        return questions.purge_seqnos(self._access)

    def collections(self) -> dict[int, str]:
        """The paths of all collections, by their ids; none from a server that has no collections."""
        return self.manifest().paths

    def manifest(self, newest: int = 0) -> questions.Manifest:
        """The collections, and how new that is. TransportError from a node that has yet to learn of the one with the
        uid `newest`.
        """
        return questions.manifest(self._access, newest)


_STREAM_OPTIONS = [name for name in inspect.signature(Client.stream).parameters if name not in ("self", "decoding")]


def _shown(start: object) -> str:
    return "a checkpoint" if isinstance(start, Checkpoint) else str(start)
