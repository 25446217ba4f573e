"""What a TAP connection sends: control messages, what exists, then what changes, as acknowledgements allow.

How servers do it, and when they wait, is that of ep-engine 3.x as its connections show it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Mapping

from dcp.embedded.connection import ServerConnection
from dcp.embedded.legacy.ack_log import CHECKPOINT_END, CHECKPOINT_START, INTERVAL, OPAQUE, VBUCKET_SET, AckLog, Sent
from dcp.embedded.legacy.backfill import Backfill, Cursor, Position, Run
from dcp.embedded.legacy.tap_messages import ENCODER, Messages
from dcp.embedded.outbox import Outbox
from dcp.embedded.store import VbucketStore
from dcp.wire.frame import Frame
from dcp.wire.layout import Magic
from dcp.wire.memcached import Status, VbucketState
from dcp.wire.tap import TapConnectFlag, TapOpaque

# Seconds: after a client had no room, between signs of life, and until a client that acknowledges nothing is gone.
BACK_OFF = 5.0
NOOP_INTERVAL = 20.0
GRACE = 300.0
_SLICE = 256


class ServerTapStream:
    """One connection's messages.

    date: what changed before is not sent. as_specified: every wish is granted and every message sent that the
    specification has, also where servers since 3.0 do not.
    """

    def __init__(self, connection: ServerConnection, flags: TapConnectFlag, date: int, as_specified: bool) -> None:
        self.connection = connection
        self.flags = flags
        self.ended = False
        self._future = date > connection.bucket.now
        self._as_specified = as_specified
        self._messages = Messages(connection.node, flags, may_leave_out=as_specified)
        self._log = AckLog(TapConnectFlag.SUPPORT_ACK in flags)
        self._backfill = Backfill(connection.node, date)
        self._controls: deque[Sent] = deque()
        self._again: deque[Sent] = deque()
        self._handovers: deque[int] = deque()
        self._vbuckets: set[int] = set()
        self._cursors: dict[int, Cursor] = {}
        # The highest seqno that was sent of each vbucket.
        self._reached: dict[int, int] = {}
        self._resume_at: float | None = None
        self._last_heard = self._last_said = connection.now
        if self._log.wanted:
            self._controls.append(Sent(OPAQUE, 0, TapOpaque.ENABLE_AUTO_NACK))
        if TapConnectFlag.CHECKPOINT in flags:
            self._controls.append(Sent(OPAQUE, 0, TapOpaque.ENABLE_CHECKPOINT_SYNC))

    # Which vbuckets.

    def open(
        self, vbuckets: Iterable[int], checkpoints: Mapping[int, int], positions: Mapping[int, Position] | None = None
    ) -> None:
        """Stream these vbuckets, from behind the checkpoints or the positions that the client has reached."""
        numbers = [number for number in sorted(set(vbuckets)) if self._streamed(number) is not None]
        self._vbuckets.update(numbers)
        if TapConnectFlag.TAKEOVER_VBUCKETS in self.flags:
            self._controls.extend(Sent(VBUCKET_SET, number, VbucketState.PENDING) for number in numbers)
            self._handovers.extend(numbers)
        for number in numbers:
            vbucket = self.connection.node.vbuckets[number]
            if TapConnectFlag.DUMP in self.flags:
                if vbucket.state is VbucketState.ACTIVE and len(vbucket):
                    self._fill(vbucket, 0)
            else:
                self._follow(vbucket, checkpoints.get(number), (positions or {}).get(number))

    def _follow(self, vbucket: VbucketStore, checkpoint: int | None, position: Position | None) -> None:
        """Stream what changes; before that what exists, unless the client has it.

        What is still in memory comes again behind what exists, as it does from all servers.
        """
        cursor = self._cursors[vbucket.number] = Cursor(vbucket.checkpoint_start - 1)
        if checkpoint is not None and checkpoint + 1 == vbucket.checkpoint:
            after = None
        elif checkpoint is None and position is not None and position.backfilled:
            after, cursor.seqno = None, min(position.seqno, vbucket.high_seqno)
        elif self._future:
            after, cursor.seqno = None, vbucket.high_seqno
        else:
            after = position.seqno if position is not None and checkpoint is None else 0
        self._reached[vbucket.number] = cursor.seqno if after is None else after
        if after is not None:
            self._fill(vbucket, after)
        else:
            self._open_checkpoints([vbucket.number])

    def _fill(self, vbucket: VbucketStore, after: int) -> None:
        self._backfill.add(vbucket.number, after)
        self._controls.append(Sent(OPAQUE, vbucket.number, TapOpaque.INITIAL_VBUCKET_STREAM))

    def change_filter(self, checkpoints: Mapping[int, int]) -> None:
        """Stream these vbuckets from now on, and no others."""
        for number in self._vbuckets - checkpoints.keys():
            self._cursors.pop(number, None)
            self._reached.pop(number, None)
            self._backfill.drop(number)
        # Servers since 3.0 gave this code a meaning of its own: the change of the filter is complete.
        complete = Sent(OPAQUE, 0, TapOpaque.START_ONLINEUPDATE)
        self._controls = deque(sent for sent in self._controls if sent != complete and _concerns(sent, checkpoints))
        self._again = deque(sent for sent in self._again if sent.vbucket in checkpoints)
        self._handovers = deque(number for number in self._handovers if number in checkpoints)
        self._controls.append(complete)
        added = checkpoints.keys() - self._vbuckets
        self._vbuckets &= checkpoints.keys()
        self.open(added, checkpoints)

    def positions(self) -> dict[int, Position]:
        """How far the client is, by what it has acknowledged."""
        missing = self._log.oldest()
        for sent in self._again:
            assert sent.item is not None
            missing[sent.vbucket] = min(sent.item.seqno, missing.get(sent.vbucket, sent.item.seqno))
        return {
            number: Position(min(reached, missing.get(number, reached + 1) - 1), number not in self._backfill.vbuckets)
            for number, reached in self._reached.items()
        }

    def _streamed(self, number: int) -> VbucketStore | None:
        vbucket = self.connection.node.vbucket(number)
        return None if vbucket is None or vbucket.state is VbucketState.DEAD else vbucket

    # What is sent, and in which order.

    def write(self, out: Outbox) -> None:
        """Write what there is to send, as far as there is room and the client keeps up."""
        before = out.written
        while out.open and not self.ended and self._resume_at is None and self._log.room > 0 and self._step(out):
            pass
        if out.written != before:
            self._last_said = self.connection.now

    def _step(self, out: Outbox) -> bool:
        """Send something, or find that something is done; False if there is nothing to do but wait."""
        if self._controls:
            self._send(self._controls.popleft(), out)
            return True
        if self._log.opaques:
            return False
        if (run := self._backfill.run()) is not None:
            self._send_run(run, out)
            return True
        if self._again:
            sent = self._again.popleft()
            assert sent.item is not None
            self._send_run(Run(sent.vbucket, [sent.item]), out)
            return True
        if self._backfill.vbuckets:
            return self._close_backfill()
        if self._log.checkpoints:
            return False
        return self._send_changes(out) or self._finish(out)

    def _close_backfill(self) -> bool:
        """The backfill is over when all of it is acknowledged."""
        if len(self._log):
            return False
        numbers, self._backfill.vbuckets = self._backfill.vbuckets, []
        self._controls.extend(Sent(OPAQUE, number, TapOpaque.CLOSE_BACKFILL) for number in numbers)
        self._open_checkpoints(number for number in numbers if number in self._cursors)
        return True

    def _open_checkpoints(self, vbuckets: Iterable[int]) -> None:
        """Say of vbuckets that only what changes will follow."""
        if self._as_specified and TapConnectFlag.REGISTERED_CLIENT in self.flags:
            self._controls.extend(Sent(OPAQUE, number, TapOpaque.OPEN_CHECKPOINT) for number in vbuckets)

    def _send_changes(self, out: Outbox) -> bool:
        """What is new in any vbucket, and where checkpoints begin and end."""
        sent = False
        for number, cursor in self._cursors.items():
            vbucket = self._streamed(number)
            if vbucket is None or not out.open or self._log.room <= 0:
                continue
            cursor.seqno = min(cursor.seqno, vbucket.high_seqno)
            if cursor.run.done:
                until = self._end_of_checkpoint(cursor, vbucket)
                if cursor.seqno < until:
                    cursor.advance(vbucket, until)
                    sent = True
                elif cursor.checkpoint != self._checkpoint_of(vbucket):
                    if self._send_checkpoint(cursor, vbucket, out):
                        return True
                    continue
            if not cursor.run.done:
                self._send_run(cursor.run, out)
                sent = True
        return sent

    def _checkpoint_of(self, vbucket: VbucketStore) -> int:
        """The checkpoint that a client should know of: none, if it did not ask for them."""
        return vbucket.checkpoint if TapConnectFlag.CHECKPOINT in self.flags else 0

    def _end_of_checkpoint(self, cursor: Cursor, vbucket: VbucketStore) -> int:
        """Up to where changes belong to the checkpoint that was announced."""
        if cursor.checkpoint == self._checkpoint_of(vbucket):
            return vbucket.high_seqno
        return min(vbucket.checkpoint_start - 1, vbucket.high_seqno) if cursor.checkpoint else cursor.seqno

    def _send_checkpoint(self, cursor: Cursor, vbucket: VbucketStore, out: Outbox) -> bool:
        """The end of the checkpoint that was announced, or the start of the present one."""
        if not cursor.checkpoint:
            cursor.checkpoint = vbucket.checkpoint
            self._send(Sent(CHECKPOINT_START, vbucket.number, cursor.checkpoint), out)
        elif self._log.changes[vbucket.number]:
            return False
        else:
            self._send(Sent(CHECKPOINT_END, vbucket.number, cursor.checkpoint), out)
            cursor.checkpoint = 0
        return True

    def _finish(self, out: Outbox) -> bool:
        """A dump or a takeover ends when all of it is acknowledged."""
        if not self.flags & (TapConnectFlag.DUMP | TapConnectFlag.TAKEOVER_VBUCKETS) or len(self._log):
            return False
        if self._handovers:
            number = self._handovers.popleft()
            if (vbucket := self._streamed(number)) is not None and vbucket.state is VbucketState.ACTIVE:
                vbucket.state = VbucketState.DEAD
            self._controls.append(Sent(VBUCKET_SET, number, VbucketState.ACTIVE))
            return True
        if self._as_specified:
            self._send(Sent(OPAQUE, 0, TapOpaque.CLOSE_TAP_STREAM), out)
        self.ended = self.connection.closing = True
        return False

    # How a message looks.

    def _send_run(self, run: Run, out: Outbox) -> None:
        """Some of the items, as far as there is room."""
        end = min(len(run.items), run.next + min(_SLICE, self._log.room))
        if self._log.wanted:
            while run.next < end and out.open:
                self._send_item(run, out)
        else:
            number = self._log.add(Sent("", run.vbucket))
            rows = [self._messages.row(item) for item in run.items[run.next : end]]
            run.next += out.rows(ENCODER, rows, 0, opaque=number, vbucket=run.vbucket)
        reached = run.items[run.next - 1].seqno
        self._reached[run.vbucket] = max(reached, self._reached.get(run.vbucket, 0))

    def _send_item(self, run: Run, out: Outbox) -> None:
        item = run.items[run.next]
        run.next += 1
        number = self._log.add(Sent(item.event, run.vbucket, item=item))
        asks = number % INTERVAL == 0 or (run.done and self._is_last(run))
        out.rows(ENCODER, [self._messages.row(item, asks)], 0, opaque=number, vbucket=run.vbucket)

    def _is_last(self, run: Run) -> bool:
        """Whether nothing else waits behind a run: in its vbucket, if there are acknowledgements to wait for."""
        if self._backfill.run() is not None or self._again:
            return False
        if self._backfill.vbuckets or self.flags & (TapConnectFlag.CHECKPOINT | TapConnectFlag.TAKEOVER_VBUCKETS):
            return True
        return not any(
            not cursor.run.done or vbucket.high_seqno > cursor.seqno
            for number, cursor in self._cursors.items()
            if number != run.vbucket and (vbucket := self._streamed(number)) is not None
        )

    def _send(self, sent: Sent, out: Outbox) -> None:
        out.frame(self._messages.control(sent, self._log.add(sent), asks=self._log.wanted))

    # What the client answers, and when it does not.

    def answered(self, frame: Frame) -> None:
        """An acknowledgement, of this message and of all before it; or a refusal of this one."""
        self._last_heard = self.connection.now
        sent = self._log.settle(frame.opaque)
        if frame.status in (Status.EBUSY, Status.ETMPFAIL):
            self._resume_at = self.connection.now + BACK_OFF if self._resume_at is None else self._resume_at
            if sent is not None and (sent.item is None or sent.vbucket in self._vbuckets):
                (self._controls if sent.item is None else self._again).append(sent)
        elif frame.status:
            self.connection.closing = True

    def due(self) -> float | None:
        if self.connection.closing:
            return None
        if self._log.room <= 0:
            return self._last_heard + GRACE
        noop = self._last_said + NOOP_INTERVAL
        return noop if self._resume_at is None else min(noop, self._resume_at)

    def tick(self, now: float) -> None:
        if self._resume_at is not None and now >= self._resume_at:
            self._resume_at = None
        if self._log.room <= 0:
            self.connection.closing = self.connection.closing or now >= self._last_heard + GRACE
        elif now >= self._last_said + NOOP_INTERVAL:
            self._last_said = now
            self.connection.say(Frame("noop", Magic.REQUEST))


def _concerns(sent: Sent, vbuckets: Container[int]) -> bool:
    """Whether a control message is for one of these vbuckets, or for none."""
    own = sent.name == VBUCKET_SET or sent.number == TapOpaque.INITIAL_VBUCKET_STREAM
    return not own or sent.vbucket in vbuckets
