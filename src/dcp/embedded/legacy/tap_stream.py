"""Stream of a TAP connection: control messages, existing items, then changes, as acknowledgements allow.

What is sent when, and what waits for acknowledgements, follows recordings of 3.0 and 3.1 (ep-engine).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Mapping

from dcp.embedded.connection import ServerConnection
from dcp.embedded.legacy.ack_log import (
    CHECKPOINT_END,
    CHECKPOINT_START,
    INTERVAL,
    OPAQUE,
    VBUCKET_SET,
    AckLog,
    TapMessage,
)
from dcp.embedded.legacy.backfill import Backfill, Cursor, ItemRun, TapPosition
from dcp.embedded.legacy.tap_messages import ENCODER, TapMessages
from dcp.embedded.outbox import Outbox
from dcp.embedded.store import VbucketStore
from dcp.wire.frame import Frame
from dcp.wire.layout import Magic
from dcp.wire.memcached import Status, VbucketState
from dcp.wire.tap import TapConnectFlag, TapOpaque

# Seconds after a refusal for lack of room, between no-ops, and until a client that acknowledges nothing is closed.
BACKOFF = 5.0
NOOP_INTERVAL = 20.0
ACK_TIMEOUT = 300.0
# Items that are written before the room in the window is checked again.
_SLICE = 256


class ServerTapStream:
    """Everything that one TAP connection sends.

    `date` (Unix seconds) leaves older items out. With `as_specified` all flags are honoured and all messages of the
    specification sent, including those that servers since 3.0 leave out.
    """

    def __init__(self, connection: ServerConnection, flags: TapConnectFlag, date: int, as_specified: bool) -> None:
        self.connection = connection
        self.flags = flags
        self.ended = False
        # A date in the future (clients send the largest number) means no existing items at all.
        self._only_changes = date > connection.bucket.now
        self._as_specified = as_specified
        self._messages = TapMessages(connection.node, flags, may_leave_out=as_specified)
        self._log = AckLog(TapConnectFlag.SUPPORT_ACK in flags)
        self._backfill = Backfill(connection.node, date, lambda: connection.bucket.now)
        # Queues, in the order of priority: control messages, refused items, vbuckets to hand over.
        self._controls: deque[TapMessage] = deque()
        self._resend: deque[TapMessage] = deque()
        self._handovers: deque[int] = deque()
        self._vbuckets: set[int] = set()
        self._cursors: dict[int, Cursor] = {}
        # Highest seqno that was sent, by vbucket.
        self._reached: dict[int, int] = {}
        # Time at which a client without room is tried again; None if it has room.
        self._resume_at: float | None = None
        self._last_ack = self._last_sent = connection.now
        if self._log.enabled:
            self._controls.append(TapMessage(OPAQUE, 0, TapOpaque.ENABLE_AUTO_NACK))
        if TapConnectFlag.CHECKPOINT in flags:
            self._controls.append(TapMessage(OPAQUE, 0, TapOpaque.ENABLE_CHECKPOINT_SYNC))

    # Vbuckets.

    def open(
        self,
        vbuckets: Iterable[int],
        checkpoints: Mapping[int, int],
        positions: Mapping[int, TapPosition] | None = None,
    ) -> None:
        """Begin with these vbuckets, after the checkpoints or positions that the client has reached."""
        numbers = [number for number in sorted(set(vbuckets)) if self._live_vbucket(number) is not None]
        self._vbuckets.update(numbers)
        if TapConnectFlag.TAKEOVER_VBUCKETS in self.flags:
            self._controls.extend(TapMessage(VBUCKET_SET, number, VbucketState.PENDING) for number in numbers)
            self._handovers.extend(numbers)
        for number in numbers:
            vbucket = self.connection.node.vbuckets[number]
            if TapConnectFlag.DUMP in self.flags:
                if vbucket.state is VbucketState.ACTIVE and len(vbucket):
                    self._start_backfill(vbucket, 0)
            else:
                self._follow(vbucket, checkpoints.get(number), (positions or {}).get(number))

    def _follow(self, vbucket: VbucketStore, checkpoint: int | None, position: TapPosition | None) -> None:
        """Send changes, and before them the existing items unless the client has them.

        Items of the checkpoint in memory are sent twice, in the backfill and as changes, as servers do; those that are
        not persisted yet only as changes.
        """
        last_before_changes = min(vbucket.checkpoint_start - 1, vbucket.persisted_seqno)
        cursor = self._cursors[vbucket.number] = Cursor(last_before_changes)
        # Seqno after which the backfill begins; None for no backfill.
        after: int | None
        if checkpoint is not None and checkpoint + 1 == vbucket.checkpoint:
            after = None
        elif checkpoint is None and position is not None and position.backfilled:
            after, cursor.seqno = None, min(position.seqno, vbucket.high_seqno)
        elif self._only_changes:
            after, cursor.seqno = None, vbucket.high_seqno
        else:
            after = position.seqno if position is not None and checkpoint is None else 0
        self._reached[vbucket.number] = cursor.seqno if after is None else after
        if after is not None:
            self._start_backfill(vbucket, after)
        else:
            self._open_checkpoints([vbucket.number])

    def _start_backfill(self, vbucket: VbucketStore, after: int) -> None:
        self._backfill.add(vbucket.number, after)
        self._controls.append(TapMessage(OPAQUE, vbucket.number, TapOpaque.INITIAL_VBUCKET_STREAM))

    def change_filter(self, checkpoints: Mapping[int, int]) -> None:
        """Send these vbuckets from now on, and no others."""
        for number in self._vbuckets - checkpoints.keys():
            self._cursors.pop(number, None)
            self._reached.pop(number, None)
            self._backfill.drop(number)
        # Servers since 3.0 use this code with another meaning: the change of the filter is complete.
        complete = TapMessage(OPAQUE, 0, TapOpaque.START_ONLINEUPDATE)
        self._controls = deque(
            message for message in self._controls if message != complete and _concerns(message, checkpoints)
        )
        self._resend = deque(message for message in self._resend if message.vbucket in checkpoints)
        self._handovers = deque(number for number in self._handovers if number in checkpoints)
        self._controls.append(complete)
        added = checkpoints.keys() - self._vbuckets
        self._vbuckets &= checkpoints.keys()
        self.open(added, checkpoints)

    def positions(self) -> dict[int, TapPosition]:
        """Return the position of the client in each vbucket, by what it has acknowledged."""
        missing = self._log.oldest()
        for message in self._resend:
            assert message.item is not None
            seqno = message.item.seqno
            missing[message.vbucket] = min(seqno, missing.get(message.vbucket, seqno))
        return {
            number: TapPosition(
                min(reached, missing[number] - 1) if number in missing else reached,
                number not in self._backfill.vbuckets,
            )
            for number, reached in self._reached.items()
        }

    def _live_vbucket(self, number: int) -> VbucketStore | None:
        vbucket = self.connection.node.vbucket(number)
        if vbucket is None or vbucket.state is VbucketState.DEAD:
            return None
        forgotten = not vbucket.announced and self.connection.bucket.release.tap_forgets_first_checkpoints
        return None if forgotten else vbucket

    # Order of messages.

    def write(self, out: Outbox) -> None:
        """Write messages until there is nothing more to send, no more room, or too many in flight."""
        before = out.written
        while out.open and not self.ended and self._resume_at is None and self._log.room > 0 and self._step(out):
            pass
        if out.written != before:
            self._last_sent = self.connection.now

    def _step(self, out: Outbox) -> bool:
        """Do one step; return False if there is nothing to do but wait."""
        if self._controls:
            self._send(self._controls.popleft(), out)
            return True
        # Servers wait for the acknowledgement of opaque messages: a client that does not answer gets nothing else.
        if self._log.opaques:
            return False
        if (run := self._backfill.run()) is not None:
            self._send_run(run, out)
            return True
        if self._resend:
            message = self._resend.popleft()
            assert message.item is not None
            self._send_run(ItemRun(message.vbucket, [message.item]), out)
            return True
        if self._backfill.vbuckets:
            return self._close_backfill()
        if self._log.checkpoints:
            return False
        return self._send_changes(out) or self._finish(out)

    def _close_backfill(self) -> bool:
        """Close the backfill once all of its messages are acknowledged."""
        if len(self._log):
            return False
        numbers, self._backfill.vbuckets = self._backfill.vbuckets, []
        self._controls.extend(TapMessage(OPAQUE, number, TapOpaque.CLOSE_BACKFILL) for number in numbers)
        self._open_checkpoints(number for number in numbers if number in self._cursors)
        return True

    def _open_checkpoints(self, vbuckets: Iterable[int]) -> None:
        """Announce that only changes follow for these vbuckets."""
        if self._as_specified and TapConnectFlag.REGISTERED_CLIENT in self.flags:
            self._controls.extend(TapMessage(OPAQUE, number, TapOpaque.OPEN_CHECKPOINT) for number in vbuckets)

    def _send_changes(self, out: Outbox) -> bool:
        """Send changes of all vbuckets, and the starts and ends of checkpoints; return whether anything was done."""
        sent = False
        for number, cursor in self._cursors.items():
            vbucket = self._live_vbucket(number)
            if vbucket is None or not out.open or self._log.room <= 0:
                continue
            # A failover may have undone changes that were sent.
            cursor.seqno = min(cursor.seqno, vbucket.high_seqno)
            if cursor.run.done:
                until = self._end_of_checkpoint(cursor, vbucket)
                if cursor.seqno < until:
                    cursor.advance(vbucket, until)
                elif cursor.checkpoint != self._checkpoint_of(vbucket) and self._send_checkpoint(cursor, vbucket, out):
                    return True
            if not cursor.run.done:
                self._send_run(cursor.run, out)
                sent = True
        return sent

    def _checkpoint_of(self, vbucket: VbucketStore) -> int:
        """Return the present checkpoint; 0 if the client did not ask for checkpoints."""
        return vbucket.checkpoint if TapConnectFlag.CHECKPOINT in self.flags else 0

    def _end_of_checkpoint(self, cursor: Cursor, vbucket: VbucketStore) -> int:
        """Return the last seqno that may be sent before another checkpoint has to be announced."""
        if cursor.checkpoint == self._checkpoint_of(vbucket):
            return vbucket.high_seqno
        return min(vbucket.checkpoint_start - 1, vbucket.high_seqno) if cursor.checkpoint else cursor.seqno

    def _send_checkpoint(self, cursor: Cursor, vbucket: VbucketStore, out: Outbox) -> bool:
        """Send the end of the announced checkpoint, or the start of the present one."""
        if not cursor.checkpoint:
            cursor.checkpoint = vbucket.checkpoint
            self._send(TapMessage(CHECKPOINT_START, vbucket.number, cursor.checkpoint), out)
        elif self._log.changes[vbucket.number]:
            # A checkpoint ends only when all of its changes are acknowledged.
            return False
        else:
            self._send(TapMessage(CHECKPOINT_END, vbucket.number, cursor.checkpoint), out)
            cursor.checkpoint = 0
        return True

    def _finish(self, out: Outbox) -> bool:
        """End a dump or a takeover once all of its messages are acknowledged."""
        if not self.flags & (TapConnectFlag.DUMP | TapConnectFlag.TAKEOVER_VBUCKETS) or len(self._log):
            return False
        if self._handovers:
            number = self._handovers.popleft()
            if (vbucket := self._live_vbucket(number)) is not None and vbucket.state is VbucketState.ACTIVE:
                vbucket.state = VbucketState.DEAD
            self._controls.append(TapMessage(VBUCKET_SET, number, VbucketState.ACTIVE))
            return True
        if self._as_specified:
            self._send(TapMessage(OPAQUE, 0, TapOpaque.CLOSE_TAP_STREAM), out)
        self.ended = self.connection.closing = True
        return False

    # Messages.

    def _send_run(self, run: ItemRun, out: Outbox) -> None:
        """Send items until the run is done or there is no more room."""
        end = min(len(run.items), run.next + min(_SLICE, self._log.room))
        if self._log.enabled:
            while run.next < end and out.open:
                self._send_item(run, out)
        else:
            number = self._log.add(TapMessage("", run.vbucket))
            rows = [self._messages.row(item) for item in run.items[run.next : end]]
            run.next += out.rows(ENCODER, rows, 0, opaque=number, vbucket=run.vbucket)
        reached = run.items[run.next - 1].seqno
        self._reached[run.vbucket] = max(reached, self._reached.get(run.vbucket, 0))

    def _send_item(self, run: ItemRun, out: Outbox) -> None:
        item = run.items[run.next]
        run.next += 1
        number = self._log.add(TapMessage(item.event, run.vbucket, item=item))
        acknowledge = number % INTERVAL == 0 or (run.done and self._is_last(run))
        out.rows(ENCODER, [self._messages.row(item, acknowledge)], 0, opaque=number, vbucket=run.vbucket)

    def _is_last(self, run: ItemRun) -> bool:
        """Return whether nothing else is about to be sent after a run, so that its last item has to be acknowledged.

        Where the end of a backfill or a checkpoint waits for acknowledgements, only this vbucket counts.
        """
        if self._backfill.run() is not None or self._resend:
            return False
        if self._backfill.vbuckets or self.flags & (TapConnectFlag.CHECKPOINT | TapConnectFlag.TAKEOVER_VBUCKETS):
            return True
        return not any(
            not cursor.run.done or vbucket.high_seqno > cursor.seqno
            for number, cursor in self._cursors.items()
            if number != run.vbucket and (vbucket := self._live_vbucket(number)) is not None
        )

    def _send(self, message: TapMessage, out: Outbox) -> None:
        out.frame(self._messages.control(message, self._log.add(message), acknowledge=self._log.enabled))

    # Acknowledgements and timeouts.

    def answered(self, frame: Frame) -> None:
        """Take an acknowledgement of a message and all before it, or a refusal of the message."""
        self._last_ack = self.connection.now
        message = self._log.settle(frame.opaque)
        if frame.status in (Status.EBUSY, Status.ETMPFAIL):
            # The client has no room: send the message again after a while.
            self._resume_at = self.connection.now + BACKOFF if self._resume_at is None else self._resume_at
            if message is not None and (message.item is None or message.vbucket in self._vbuckets):
                (self._controls if message.item is None else self._resend).append(message)
        elif frame.status:
            self.connection.closing = True

    def due(self) -> float | None:
        """Return when `tick` has something to do."""
        if self.connection.closing:
            return None
        if self._log.room <= 0:
            return self._last_ack + ACK_TIMEOUT
        noop = self._last_sent + NOOP_INTERVAL
        return noop if self._resume_at is None else min(noop, self._resume_at)

    def tick(self, now: float) -> None:
        """End a backoff, send a no-op, or close a connection that acknowledges nothing."""
        if self._resume_at is not None and now >= self._resume_at:
            self._resume_at = None
        if self._log.room <= 0:
            self.connection.closing = self.connection.closing or now >= self._last_ack + ACK_TIMEOUT
        elif now >= self._last_sent + NOOP_INTERVAL:
            self._last_sent = now
            self.connection.queue(Frame("noop", Magic.REQUEST))


def _concerns(message: TapMessage, vbuckets: Container[int]) -> bool:
    """Return whether a control message is about one of these vbuckets, or about none."""
    about_vbucket = message.name == VBUCKET_SET or message.number == TapOpaque.INITIAL_VBUCKET_STREAM
    return not about_vbucket or message.vbucket in vbuckets
