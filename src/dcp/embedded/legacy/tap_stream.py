"""What a TAP connection sends: control messages, what exists, then what changes, as acknowledgements allow.

How servers do it, and when they wait, is that of ep-engine 3.x as its connections show it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dcp.columns.rows import RowEncoder
from dcp.embedded.conversation import Conversation
from dcp.embedded.legacy.ack_log import CHECKPOINT_END, CHECKPOINT_START, INTERVAL, OPAQUE, VBUCKET_SET, AckLog, Sent
from dcp.embedded.legacy.backfill import Backfill, Cursor, Position, Run
from dcp.embedded.outbox import Outbox
from dcp.embedded.store import Item, Vbucket
from dcp.wire.frame import Frame, encode
from dcp.wire.layout import Magic
from dcp.wire.memcached import Status, VbucketState
from dcp.wire.tap import TapConnectFlag, TapFlag, TapOpaque

DIALECT = "tap"
# Seconds: after a client had no room, between signs of life, and until a client that acknowledges nothing is gone.
BACK_OFF = 5.0
NOOP_INTERVAL = 20.0
GRACE = 300.0
# Nothing is forwarded, so that nothing is lost on its way.
_TTL = 255
# How recently an item was used, which nobody keeps: that of one just written.
_NRU = 2
_SLICE = 256
_KEYS = {CHECKPOINT_START: b"checkpoint_start", CHECKPOINT_END: b"checkpoint_end"}


class _Row(NamedTuple):
    event: str
    tap_flags: int
    ttl: int
    flags: int
    expiry: int
    rev_seqno: int
    nru: int
    cas: int
    key: bytes
    value: bytes


_ENCODER = RowEncoder(DIALECT, _Row._fields, sent_as=(("expiration", "deletion"),))


class TapStream:
    """One connection's messages.

    date: what changed before is not sent. as_specified: every wish is granted and every message sent that the
    specification has, also where servers since 3.0 do not.
    """

    def __init__(self, talk: Conversation, flags: TapConnectFlag, date: int, as_specified: bool) -> None:
        self.talk = talk
        self.flags = flags
        self.ended = False
        self._future = date > talk.bucket.now
        self._as_specified = as_specified
        self._log = AckLog(TapConnectFlag.SUPPORT_ACK in flags)
        self._backfill = Backfill(talk.node, date)
        self._controls: deque[Sent] = deque()
        self._again: deque[Sent] = deque()
        self._handovers: deque[int] = deque()
        self._cursors: dict[int, Cursor] = {}
        # The highest seqno that was sent of each vbucket.
        self._reached: dict[int, int] = {}
        self._resume_at: float | None = None
        self._last_heard = self._last_said = talk.now
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
        if TapConnectFlag.TAKEOVER_VBUCKETS in self.flags:
            self._controls.extend(Sent(VBUCKET_SET, number, VbucketState.PENDING) for number in numbers)
            self._handovers.extend(numbers)
        for number in numbers:
            vbucket = self.talk.node.vbuckets[number]
            if TapConnectFlag.DUMP in self.flags:
                if vbucket.state is VbucketState.ACTIVE and len(vbucket):
                    self._fill(vbucket, 0)
            else:
                self._follow(vbucket, checkpoints.get(number), (positions or {}).get(number))

    def _follow(self, vbucket: Vbucket, checkpoint: int | None, position: Position | None) -> None:
        """Stream what changes; before that what exists, unless the client has it."""
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
        elif self._as_specified and TapConnectFlag.REGISTERED_CLIENT in self.flags:
            self._controls.append(Sent(OPAQUE, vbucket.number, TapOpaque.OPEN_CHECKPOINT))

    def _fill(self, vbucket: Vbucket, after: int) -> None:
        self._backfill.add(vbucket.number, after)
        self._controls.append(Sent(OPAQUE, vbucket.number, TapOpaque.INITIAL_VBUCKET_STREAM))

    def change_filter(self, checkpoints: Mapping[int, int]) -> None:
        """Stream these vbuckets from now on, and no others."""
        for number in [*self._cursors, *self._backfill.vbuckets]:
            if number not in checkpoints:
                self._cursors.pop(number, None)
                self._backfill.drop(number)
        self._again = deque(sent for sent in self._again if sent.vbucket in checkpoints)
        # Servers since 3.0 gave this code a meaning of its own: the change of the filter is complete.
        self._controls.append(Sent(OPAQUE, 0, TapOpaque.START_ONLINEUPDATE))
        self.open((number for number in checkpoints if number not in self._cursors), checkpoints)

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

    def _streamed(self, number: int) -> Vbucket | None:
        vbucket = self.talk.node.vbucket(number)
        return None if vbucket is None or vbucket.state is VbucketState.DEAD else vbucket

    # What is sent, and in which order.

    def write(self, out: Outbox) -> None:
        """Write what there is to send, as far as there is room and the client keeps up."""
        before = out.written
        while out.open and not self.ended and self._resume_at is None and self._log.room > 0 and self._step(out):
            pass
        if out.written != before:
            self._last_said = self.talk.now

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
        return True

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

    def _checkpoint_of(self, vbucket: Vbucket) -> int:
        """The checkpoint that a client should know of: none, if it did not ask for them."""
        return vbucket.checkpoint if TapConnectFlag.CHECKPOINT in self.flags else 0

    def _end_of_checkpoint(self, cursor: Cursor, vbucket: Vbucket) -> int:
        """Up to where changes belong to the checkpoint that was announced."""
        if cursor.checkpoint == self._checkpoint_of(vbucket):
            return vbucket.high_seqno
        return vbucket.checkpoint_start - 1 if cursor.checkpoint else cursor.seqno

    def _send_checkpoint(self, cursor: Cursor, vbucket: Vbucket, out: Outbox) -> bool:
        """The end of the checkpoint that was announced, or the start of the present one."""
        if not cursor.checkpoint:
            cursor.checkpoint = vbucket.checkpoint
            self._send(Sent(CHECKPOINT_START, vbucket.number, cursor.checkpoint), out)
        elif len(self._log):
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
        self.ended = self.talk.closing = True
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
            rows = [self._row(item, 0) for item in run.items[run.next : end]]
            run.next += out.rows(_ENCODER, rows, 0, opaque=number, vbucket=run.vbucket)
        reached = run.items[run.next - 1].seqno
        self._reached[run.vbucket] = max(reached, self._reached.get(run.vbucket, 0))

    def _send_item(self, run: Run, out: Outbox) -> None:
        item = run.items[run.next]
        run.next += 1
        number = self._log.add(Sent(item.event, run.vbucket, item=item))
        asks = number % INTERVAL == 0 or (run.done and self._is_last(run))
        out.rows(_ENCODER, [self._row(item, TapFlag.ACK if asks else 0)], 0, opaque=number, vbucket=run.vbucket)

    def _is_last(self, run: Run) -> bool:
        """Whether nothing else waits behind a run; with checkpoints, that of each vbucket is the last one."""
        if self._backfill.run() is not None or self._again:
            return False
        if self._backfill.vbuckets or TapConnectFlag.CHECKPOINT in self.flags:
            return True
        return not any(
            not cursor.run.done or vbucket.high_seqno > cursor.seqno
            for number, cursor in self._cursors.items()
            if number != run.vbucket and (vbucket := self._streamed(number)) is not None
        )

    def _row(self, item: Item, asked: int) -> _Row:
        flags, tap_flags, value = item.flags, asked, item.value
        if item.alive:
            if TapConnectFlag.FIX_FLAG_BYTEORDER in self.flags:
                tap_flags |= TapFlag.NETWORK_BYTE_ORDER
            else:
                flags = int.from_bytes(flags.to_bytes(4, "little"), "big")
            if self._as_specified and TapConnectFlag.KEYS_ONLY in self.flags:
                tap_flags, value = tap_flags | TapFlag.NO_VALUE, b""
        return _Row(item.event, tap_flags, _TTL, flags, item.expiry, item.rev_seqno, _NRU, item.cas, item.key, value)

    def _send(self, sent: Sent, out: Outbox) -> None:
        number = self._log.add(sent)
        fields = {"tap_flags": int(TapFlag.ACK) if self._log.wanted else 0, "ttl": _TTL} | self._fields(sent)
        frame = Frame(
            sent.name, Magic.REQUEST, number, vbucket=sent.vbucket, fields=fields, key=_KEYS.get(sent.name, b"")
        )
        out.frame(encode(frame, DIALECT))

    def _fields(self, sent: Sent) -> dict[str, int]:
        if sent.name == OPAQUE:
            return {"code": sent.number}
        if sent.name == VBUCKET_SET:
            return {"state": sent.number}
        fields = {"flags": 0, "expiry": 0, "checkpoint": sent.number}
        if sent.name == CHECKPOINT_START:
            deleted = (item for item in self.talk.node.vbuckets[sent.vbucket] if isinstance(item, Item))
            fields["rev_seqno"] = max((item.rev_seqno for item in deleted if not item.alive), default=0)
        return fields

    # What the client answers, and when it does not.

    def answered(self, frame: Frame) -> None:
        """An acknowledgement, of this message and of all before it; or a refusal of this one."""
        self._last_heard = self.talk.now
        sent = self._log.settle(frame.opaque)
        if frame.status in (Status.EBUSY, Status.ETMPFAIL):
            self._resume_at = self.talk.now + BACK_OFF if self._resume_at is None else self._resume_at
            if sent is not None:
                (self._controls if sent.item is None else self._again).append(sent)
        elif frame.status:
            self.talk.closing = True

    def due(self) -> float | None:
        if self._log.room <= 0:
            return self._last_heard + GRACE
        noop = self._last_said + NOOP_INTERVAL
        return noop if self._resume_at is None else min(noop, self._resume_at)

    def tick(self, now: float) -> None:
        if self._resume_at is not None and now >= self._resume_at:
            self._resume_at = None
        if self._log.room <= 0:
            self.talk.closing = self.talk.closing or now >= self._last_heard + GRACE
        elif now >= self._last_said + NOOP_INTERVAL:
            self._last_said = now
            self.talk.say(Frame("noop", Magic.REQUEST))
