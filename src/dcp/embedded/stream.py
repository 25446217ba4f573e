"""One stream of a vbucket to a connection: its snapshots, item by item, for as long as it lasts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dcp.embedded.collection_filter import CollectionFilter
from dcp.embedded.outbox import Outbox
from dcp.embedded.release import NEWEST_RELEASE, Release
from dcp.embedded.store import AnyItem, StoredItem, SystemItem, VbucketStore
from dcp.embedded.stream_request import GrantedStream
from dcp.embedded.system_event import system_event
from dcp.embedded.view import View
from dcp.wire.dcp import MarkerFlag, OsoSnapshot, StreamEnd
from dcp.wire.frame import Frame, encode
from dcp.wire.framing import stream_id
from dcp.wire.layout import Magic
from dcp.wire.memcached import VbucketState

_STREAMED = (VbucketState.ACTIVE, VbucketState.REPLICA)


@dataclass(frozen=True, slots=True)
class Rules:
    """How the snapshots of a stream look: what the generation, the connection and its controls make of them."""

    view: View
    release: Release = NEWEST_RELEASE
    marker_2_2: bool = False
    marker_2_0: bool = False
    out_of_order: bool = False
    out_of_order_advances: bool = False
    history: bool = False
    flatbuffers: bool = False
    skip_deletes: bool = False


class ServerStream:
    """Sends the items of a vbucket that an accepted request is for."""

    def __init__(self, vbucket: VbucketStore, opaque: int, accepted: GrantedStream, rules: Rules) -> None:
        self.vbucket = vbucket
        self.opaque = opaque
        self.accepted = accepted
        self.cursor = accepted.start
        self.ended = False
        self.items_sent = 0
        # After so many items in all it leaves the rest to its next turn.
        self.rests_at = 0
        self._rules = rules
        self._encoder = rules.view.encoder()
        self._state = vbucket.state
        self._selection = CollectionFilter(accepted, events=rules.view.collections)
        self._rows: list[AnyItem] = []
        self._next = 0
        self._snapshot_end = accepted.start
        self._checkpoint: int | None = None
        self._marked = False
        self._out_of_order = False
        self._reason: StreamEnd | None = None
        self._purged = vbucket.purge_seqno

    @property
    def key(self) -> tuple[int, int | None]:
        """What only one stream of a connection has."""
        return self.vbucket.number, self.accepted.stream_id

    @property
    def ending(self) -> bool:
        """Whether it is to end, or has ended."""
        return self.ended or self._reason is not None

    def end(self, reason: StreamEnd) -> None:
        """Let the stream end as soon as there is room to say so; nothing else is sent any more."""
        self._reason = self._reason or reason

    def write(self, out: Outbox) -> None:
        """Write what there is to send, as far as there is room."""
        while out.open and not self.ended:
            if self.vbucket.state is not self._state or self.vbucket.state not in _STREAMED:
                self.end(StreamEnd.STATE_CHANGED)
            elif self.vbucket.high_seqno < max(self.cursor, self._snapshot_end):
                # Writes were taken back that the consumer has, or was told of.
                self.end(StreamEnd.ROLLBACK)
            if self._reason is not None:
                self._finish(self._reason, out)
            elif self._next < len(self._rows):
                self._write_item(out)
                if self.items_sent == self.rests_at:
                    return
            elif self._out_of_order:
                self._close_out_of_order(out)
            elif self.cursor < self._snapshot_end:
                self._advance(out)
            elif self._selection.empty:
                self.end(StreamEnd.FILTER_EMPTY)
            elif self.cursor >= self.accepted.end:
                self.end(StreamEnd.OK)
            elif self._high > self.cursor:
                self._open_snapshot(out)
            else:
                return

    # What a snapshot is made of.

    def _open_snapshot(self, out: Outbox) -> None:
        vbucket, rules = self.vbucket, self._rules
        disk = self.accepted.disk_only or self.cursor + 1 < vbucket.checkpoint_start
        if self._misses_tombstones:
            self.end(StreamEnd.ROLLBACK)
            return
        history = disk and rules.history and vbucket.history is not None
        rows = rules.view.show(self._selection.of(self._stored(disk, history), vbucket), vbucket.datatypes)
        whole = self._advances or (disk and rules.view.collections)
        if not rows and not self._advances:
            # What has nothing for this stream is not announced.
            self.cursor = self._snapshot_end = self._high
            return
        self._rows, self._next, self._snapshot_end = rows, 0, self._high if whole else rows[-1].seqno
        if disk and self._may_be_out_of_order():
            self._open_out_of_order(out)
        else:
            self._mark(disk, history, out)

    @property
    def _high(self) -> int:
        """How far there is something to send."""
        return self.accepted.end if self.accepted.disk_only else self.vbucket.high_seqno

    @property
    def _misses_tombstones(self) -> bool:
        """Whether deletions that were still to be sent were purged since the stream began."""
        purged = self.vbucket.purge_seqno
        return 0 < self.cursor < purged != self._purged and not self.accepted.ignore_purged

    def _stored(self, disk: bool, history: bool) -> list[AnyItem]:
        """What the vbucket holds for the next snapshot."""
        vbucket = self.vbucket
        if history and vbucket.history is not None:
            rows = [item for item in vbucket.history if item.seqno > self.cursor]
        else:
            rows = vbucket.since(self.cursor)
        if self.accepted.disk_only:
            rows = [item for item in rows if item.seqno <= self._high]
        if disk and self._rules.skip_deletes and self.accepted.start == 0 and not self._marked:
            rows = [item for item in rows if isinstance(item, SystemItem) or item.alive]
        return rows

    @property
    def _advances(self) -> bool:
        """Whether the consumer is told of seqnos that are not for this stream."""
        return self._rules.view.collections and self._rules.release.seqno_advanced

    def _may_be_out_of_order(self) -> bool:
        return self._rules.out_of_order and self.cursor == 0 and not self._marked and self._selection.is_one_collection

    # What is written.

    def _mark(self, disk: bool, history: bool, out: Outbox) -> None:
        first = self._rows[0].seqno if self._rows else self._snapshot_end
        flags = self._flags(disk, history)
        if not self._marked:
            start = min(self.accepted.snapshot_start, first)
        elif disk:
            start = self.cursor
        else:
            start = min(self.vbucket.checkpoint_start, first) if flags & MarkerFlag.CHECKPOINT else first
            start = max(start, self.cursor + 1)
        self._marked = True
        fields = {"snapshot_start": start, "snapshot_end": self._snapshot_end, "flags": int(flags)}
        self._send("snapshot_marker", fields | self._marker_extras(disk), out)

    def _marker_extras(self, disk: bool) -> dict[str, int]:
        """What newer markers say besides."""
        visible = {"max_visible_seqno": self._snapshot_end, "high_completed_seqno": 0}
        if disk and self._rules.marker_2_2:
            unused = {} if self._rules.marker_2_0 else {"max_visible_seqno": 0}
            purged = {"purge_seqno": self.vbucket.purge_seqno, "high_prepared_seqno": 0}
            return {"version": 2} | visible | unused | purged
        return {"version": 0} | visible if self._rules.marker_2_0 else {}

    def _flags(self, disk: bool, history: bool) -> MarkerFlag:
        if disk:
            flags = MarkerFlag.DISK | (MarkerFlag.CHECKPOINT if self._rules.release.disk_checkpoints else 0)
            return flags | MarkerFlag.HISTORY | MarkerFlag.MAY_CONTAIN_DUPLICATES if history else flags
        entered = self._checkpoint != self.vbucket.checkpoint_start
        self._checkpoint = self.vbucket.checkpoint_start
        return MarkerFlag.MEMORY | (MarkerFlag.CHECKPOINT if entered else 0)

    def _write_item(self, out: Outbox) -> None:
        item = self._rows[self._next]
        before = self._next
        left = self.rests_at - self.items_sent
        rows = self._rows[: before + left] if left > 0 else self._rows
        if isinstance(item, StoredItem):
            self._next = out.rows(
                self._encoder,
                rows,
                self._next,
                opaque=self.opaque,
                vbucket=self.vbucket.number,
                stream_id=self.accepted.stream_id,
            )
        else:
            fields, key, value = system_event(item, self._rules.flatbuffers)
            self._send("system_event", fields, out, key=key, value=value)
            self._next += 1
        self.items_sent += self._next - before
        if not self._out_of_order and self._next > before:
            self.cursor = self._rows[self._next - 1].seqno

    def _advance(self, out: Outbox) -> None:
        self.cursor = self._snapshot_end
        if self._advances:
            self._send("seqno_advanced", {"seqno": self.cursor}, out)

    def _open_out_of_order(self, out: Outbox) -> None:
        """System events first, then documents by key."""
        self._rows.sort(key=lambda item: (isinstance(item, StoredItem), item.key))
        self._out_of_order = True
        self._send("oso_snapshot", {"flags": int(OsoSnapshot.START)}, out)

    def _close_out_of_order(self, out: Outbox) -> None:
        self._out_of_order = False
        self.cursor = max((item.seqno for item in self._rows), default=0)
        if self._rules.out_of_order_advances and self.cursor < self._snapshot_end:
            self._advance(out)
        self.cursor = self._snapshot_end
        self._send("oso_snapshot", {"flags": int(OsoSnapshot.END)}, out)

    def _finish(self, reason: StreamEnd, out: Outbox) -> None:
        self.ended = True
        self._rows = []
        hidden = not self._rules.view.collections and reason > StreamEnd.ROLLBACK
        self._send("stream_end", {"reason": int(StreamEnd.OK if hidden else reason)}, out)

    def _send(self, name: str, fields: Mapping[str, int], out: Outbox, *, key: bytes = b"", value: bytes = b"") -> None:
        sid = self.accepted.stream_id
        frame = Frame(
            name,
            Magic.REQUEST if sid is None else Magic.FRAMED_REQUEST,
            self.opaque,
            vbucket=self.vbucket.number,
            fields=fields,
            key=key,
            value=value,
            frame_info=() if sid is None else (stream_id(sid),),
        )
        out.frame(encode(frame))
