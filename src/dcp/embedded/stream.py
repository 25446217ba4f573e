"""One stream of a vbucket to a connection: its snapshots, item by item, until it ends."""

from __future__ import annotations

from collections.abc import Mapping

from dcp.embedded.collection_filter import CollectionFilter
from dcp.embedded.item_view import item_encoder, visible_items, without_metadata
from dcp.embedded.negotiated import Negotiated
from dcp.embedded.outbox import Outbox
from dcp.embedded.store import (
    AbortedItem,
    PreparedItem,
    StoredItem,
    StreamItem,
    SyncItem,
    SystemItem,
    VbucketStore,
)
from dcp.embedded.stream_request import GrantedStream
from dcp.embedded.system_event import system_event
from dcp.wire.dcp import MarkerFlag, OsoSnapshot, StreamEnd
from dcp.wire.document import join_collection
from dcp.wire.frame import Frame, encode
from dcp.wire.framing import stream_id
from dcp.wire.layout import Magic
from dcp.wire.memcached import VbucketState

_STREAMED = (VbucketState.ACTIVE, VbucketState.REPLICA)


class ServerStream:
    """Sends the items of a vbucket that a granted request is for.

    A stream without a snapshot in progress reads all items above its cursor, announces them with a marker, sends them,
    and closes the snapshot. `cursor` is the seqno up to which everything was sent, except during an out-of-order
    snapshot, which counts only as a whole.
    """

    def __init__(self, vbucket: VbucketStore, opaque: int, granted: GrantedStream, negotiated: Negotiated) -> None:
        self.vbucket = vbucket
        self.opaque = opaque
        self.granted = granted
        self.cursor = granted.start
        self.ended = False
        self.items_sent = 0
        # Number of items after which `write` returns early, once; 0 for none. Faults set it.
        self.pause_at = 0
        self._negotiated = negotiated
        self._encoder = item_encoder(negotiated)
        # A copy that changes its state ends its streams, even if it changes back before the stream checks.
        self._state = vbucket.state
        self._filter = CollectionFilter(granted, events=negotiated.collections)
        # Items of the snapshot in progress, and the index of the next one.
        self._rows: list[StreamItem] = []
        self._next = 0
        self._snapshot_end = granted.start
        # First seqno of the checkpoint in memory that was announced last.
        self._checkpoint: int | None = None
        self._marked = False
        # Start of the first marker, unless an item before it is sent.
        self._first_start = granted.snapshot_start
        self._out_of_order = False
        self._end_reason: StreamEnd | None = None
        self._purge_seqno_at_start = vbucket.purge_seqno

    @property
    def key(self) -> tuple[int, int | None]:
        """Vbucket and stream id, which are unique among the streams of a connection."""
        return self.vbucket.number, self.granted.stream_id

    @property
    def ending(self) -> bool:
        """True if the stream has ended or will end as soon as there is room for the message."""
        return self.ended or self._end_reason is not None

    def end(self, reason: StreamEnd) -> None:
        """End the stream as soon as there is room for the message. No other frame is sent before it."""
        self._end_reason = self._end_reason or reason

    def write(self, out: Outbox) -> None:
        """Write frames until there is nothing more to send or no more room."""
        while out.open and not self.ended:
            if self.vbucket.state is not self._state or self.vbucket.state not in _STREAMED:
                self.end(StreamEnd.STATE_CHANGED)
            elif self.vbucket.high_seqno < max(self.cursor, self._snapshot_end):
                # A failover undid writes that the consumer has received or that a marker has announced.
                self.end(StreamEnd.ROLLBACK)
            if self._end_reason is not None:
                self._finish(self._end_reason, out)
            elif self._next < len(self._rows):
                self._write_item(out)
                if self.items_sent == self.pause_at:
                    return
            elif self._out_of_order:
                self._close_out_of_order(out)
            elif self.cursor < self._snapshot_end:
                self._advance(out)
            elif self._filter.empty:
                self.end(StreamEnd.FILTER_EMPTY)
            # Only after a snapshot: as on servers, an end seqno inside a snapshot is rounded up to the snapshot's end.
            elif self.cursor >= self.granted.end:
                self.end(StreamEnd.OK)
            elif self._high_seqno > self.cursor:
                self._open_snapshot(out)
            else:
                return

    # Contents of a snapshot.

    def _open_snapshot(self, out: Outbox) -> None:
        vbucket, negotiated = self.vbucket, self._negotiated
        disk = self.granted.disk_only or self.cursor + 1 < vbucket.checkpoint_start
        if self._misses_tombstones:
            self.end(StreamEnd.ROLLBACK)
            return
        if disk and vbucket.mixed and negotiated.sync_writes and not negotiated.collections:
            # DCPBackfillBySeqnoDisk::markLegacyDiskSnapshot of kv_engine has nothing to tell such a consumer.
            self.end(StreamEnd.BACKFILL_FAILED)
            return
        history = disk and negotiated.change_streams and vbucket.history is not None
        stored = self._filter.apply(self._stored_items(disk, history), vbucket)
        rows = visible_items(stored, vbucket.datatypes, negotiated)
        if disk and negotiated.keys_only and negotiated.release.backfills_keys_without_metadata:
            rows = without_metadata(rows)
        # Without SEQNO_ADVANCED a snapshot has to end with an item, so that the consumer sees its end.
        whole = negotiated.seqno_advanced or (disk and negotiated.collections)
        if not rows and not negotiated.seqno_advanced:
            # Servers do not announce a snapshot without items to a consumer that gets no SEQNO_ADVANCED.
            self.cursor = self._snapshot_end = self._high_seqno
            return
        self._rows, self._next, self._snapshot_end = rows, 0, self._high_seqno if whole else rows[-1].seqno
        if disk and self._may_be_out_of_order():
            self._open_out_of_order(out)
        else:
            self._mark(disk, history, out)

    @property
    def _high_seqno(self) -> int:
        """Highest seqno that there is to send."""
        return self.granted.end if self.granted.disk_only else self.vbucket.high_seqno

    @property
    def _misses_tombstones(self) -> bool:
        """True if tombstones after the cursor were purged since the stream began."""
        purged = self.vbucket.purge_seqno
        return 0 < self.cursor < purged != self._purge_seqno_at_start and not self.granted.ignore_purged

    def _stored_items(self, disk: bool, history: bool) -> list[StreamItem]:
        """Return the stored items for the next snapshot."""
        vbucket = self.vbucket
        if history and vbucket.history is not None:
            rows: list[StreamItem] = [item for item in vbucket.history if item.seqno > self.cursor]
        else:
            rows = vbucket.since(self.cursor)
        if self._negotiated.sync_writes:
            rows = vbucket.with_sync_writes(rows, self.cursor, disk=disk)
        if self.granted.disk_only:
            rows = [item for item in rows if item.seqno <= self._high_seqno]
        if disk and self._negotiated.skip_deletes and self.granted.start == 0 and not self._marked:
            rows = [item for item in rows if not isinstance(item, StoredItem) or item.alive]
        return rows

    def _may_be_out_of_order(self) -> bool:
        # Servers send out of order only at the beginning of a stream, and only one collection.
        at_beginning = self.cursor == 0 and not self._marked
        wanted = self._negotiated.out_of_order and not self._negotiated.sync_writes
        return wanted and at_beginning and self._filter.is_one_collection

    # Frames.

    def _mark(self, disk: bool, history: bool, out: Outbox) -> None:
        first = self._rows[0].seqno if self._rows else self._snapshot_end
        flags = self._marker_flags(disk, history)
        # The start of a marker is not uniform on servers, and clients must not rely on it:
        if not self._marked:
            # the first one of a stream begins at the requested snapshot, so at or below the start seqno,
            start = min(self._first_start, first)
        elif disk:
            # a later one from disk where the backfill begins,
            start = self.cursor
        else:
            # and a later one from memory at the checkpoint that it enters, or at its first item.
            start = min(self.vbucket.checkpoint_start, first) if flags & MarkerFlag.CHECKPOINT else first
            start = max(start, self.cursor + 1)
        self._marked = True
        fields = {"snapshot_start": start, "snapshot_end": self._snapshot_end, "flags": int(flags)}
        self._send("snapshot_marker", fields | self._marker_extras(disk), out)

    def _marker_extras(self, disk: bool) -> dict[str, int]:
        """Return the fields that markers of version 2.0 and 2.2 have in addition."""
        vbucket, replicates = self.vbucket, self._negotiated.replicates
        # Servers leave the fields of sync writes at 0 without these, and some of them in snapshots from memory.
        extras = {
            "max_visible_seqno": min(vbucket.visible_seqno, self._snapshot_end) if replicates else 0,
            "high_completed_seqno": vbucket.high_completed_seqno if replicates and disk else 0,
        }
        if disk and self._negotiated.marker_2_2:
            prepared = vbucket.high_prepared_seqno if replicates else 0
            return {"version": 2, **extras, "purge_seqno": vbucket.purge_seqno, "high_prepared_seqno": prepared}
        return {"version": 0, **extras} if replicates else {}

    def _marker_flags(self, disk: bool, history: bool) -> MarkerFlag:
        if disk:
            flags = MarkerFlag.DISK | (MarkerFlag.CHECKPOINT if self._negotiated.release.disk_checkpoints else 0)
            return flags | MarkerFlag.HISTORY | MarkerFlag.MAY_CONTAIN_DUPLICATES if history else flags
        # CHECKPOINT marks the first snapshot from each checkpoint in memory.
        entered = self._checkpoint != self.vbucket.checkpoint_start
        self._checkpoint = self.vbucket.checkpoint_start
        return MarkerFlag.MEMORY | (MarkerFlag.CHECKPOINT if entered else 0)

    def _write_item(self, out: Outbox) -> None:
        item = self._rows[self._next]
        before = self._next
        left = self.pause_at - self.items_sent
        rows = self._rows[: before + left] if left > 0 else self._rows
        if isinstance(item, StoredItem):
            # The encoder writes as many documents as fit in one call, up to the next system event.
            self._next = out.rows(
                self._encoder,
                rows,
                self._next,
                opaque=self.opaque,
                vbucket=self.vbucket.number,
                stream_id=self.granted.stream_id,
            )
        else:
            self._send_single(item, out)
            self._next += 1
        self.items_sent += self._next - before
        # Seqnos inside an out-of-order snapshot are no position to resume from.
        if not self._out_of_order and self._next > before:
            self.cursor = self._rows[self._next - 1].seqno

    def _send_single(self, item: SystemItem | SyncItem, out: Outbox) -> None:
        """Write an item of a kind that is rare."""
        if isinstance(item, SystemItem):
            fields, key, value = system_event(item, self._negotiated.flatbuffers)
            self._send("system_event", fields, out, key=key, value=value)
        elif isinstance(item, PreparedItem):
            document = item.document
            numbers = {name: getattr(document, name) for name in ("seqno", "rev_seqno", "flags", "expiry")}
            of_prepares = {"deleted": int(not document.alive), "durability": int(item.level)}
            fields = numbers | {"lock_time": 0, "nru": 0} | of_prepares
            key, datatype = self._key(document), document.datatype
            self._send("prepare", fields, out, key=key, value=document.value, cas=document.cas, datatype=datatype)
        else:
            fields = {"prepared_seqno": item.prepared_seqno, "seqno": item.seqno}
            name, changed = ("abort", item) if isinstance(item, AbortedItem) else ("commit", item.document)
            self._send(name, fields, out, key=self._key(changed))

    def _key(self, item: StoredItem | AbortedItem) -> bytes:
        return join_collection(item.collection_id, item.key) if self._negotiated.collections else item.key

    def _advance(self, out: Outbox) -> None:
        """Move to the end of the snapshot, whose last seqnos are not in this stream."""
        self.cursor = self._snapshot_end
        if self._negotiated.seqno_advanced:
            self._send("seqno_advanced", {"seqno": self.cursor}, out)

    def _open_out_of_order(self, out: Outbox) -> None:
        """Begin a snapshot of system events, then documents, each in order of key."""
        self._rows.sort(key=_order_of_keys)
        self._out_of_order = True
        self._send("oso_snapshot", {"flags": int(OsoSnapshot.START)}, out)

    def _close_out_of_order(self, out: Outbox) -> None:
        self._out_of_order = False
        self.cursor = max((item.seqno for item in self._rows), default=0)
        if self._negotiated.out_of_order_advances and self.cursor < self._snapshot_end:
            self._advance(out)
        self.cursor = self._snapshot_end
        if self._negotiated.release.resumes_after_out_of_order:
            self._first_start = self.cursor
        self._send("oso_snapshot", {"flags": int(OsoSnapshot.END)}, out)

    def _finish(self, reason: StreamEnd, out: Outbox) -> None:
        self.ended = True
        self._rows = []
        # Clients without collections do not know the newer reasons; servers send them OK instead.
        hidden = not self._negotiated.collections and reason > StreamEnd.ROLLBACK
        self._send("stream_end", {"reason": int(StreamEnd.OK if hidden else reason)}, out)

    def _send(
        self,
        name: str,
        fields: Mapping[str, int],
        out: Outbox,
        *,
        key: bytes = b"",
        value: bytes = b"",
        cas: int = 0,
        datatype: int = 0,
    ) -> None:
        sid = self.granted.stream_id
        frame = Frame(
            name,
            Magic.REQUEST if sid is None else Magic.FRAMED_REQUEST,
            self.opaque,
            cas,
            vbucket=self.vbucket.number,
            datatype=datatype,
            fields=fields,
            key=key,
            value=value,
            frame_info=() if sid is None else (stream_id(sid),),
        )
        out.frame(encode(frame))


def _order_of_keys(item: StreamItem) -> tuple[bool, bytes]:
    """Return the rank of an item in an out-of-order snapshot, which has no sync writes."""
    return isinstance(item, StoredItem), item.key if isinstance(item, StoredItem | SystemItem) else b""
