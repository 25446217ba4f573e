"""Both drafts of UPR: commands of a consumer, and streams. `Draft` has the differences between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dcp.columns.rows import RowEncoder
from dcp.embedded.connection import Handler, ServerConnection, response
from dcp.embedded.legacy.backfill import ItemRun, items_of
from dcp.embedded.outbox import Outbox
from dcp.embedded.refusals import Refusal
from dcp.embedded.rollback import Resume, rollback_point
from dcp.embedded.store import StoredItem, VbucketStore
from dcp.wire.body import FAILOVER_LOG
from dcp.wire.dcp import StreamFlag
from dcp.wire.frame import Frame, encode
from dcp.wire.layout import Magic
from dcp.wire.memcached import Status, VbucketState
from dcp.wire.upr2 import UprStreamEnd, UprVbucketState

_Respond = Callable[[Frame, Status, int], Frame]
_STREAMED = (VbucketState.ACTIVE, VbucketState.REPLICA)


@dataclass(frozen=True)
class Draft:
    """Differences of a draft.

    `respond` builds the response to a stream request from a status and the seqno to roll back to. `ends` are the
    messages that end a stream, with their fields. `strict` says whether the draft has statuses for an unknown history
    and for a second stream of a vbucket.
    """

    dialect: str
    magic: Magic
    respond: _Respond
    ends: Mapping[UprStreamEnd, tuple[str, Mapping[str, int]]]
    strict: bool

    def encoder(self) -> RowEncoder:
        return _ENCODERS[self.dialect]


def _respond_1(request: Frame, status: Status, seqno: int) -> Frame:
    name, fields = {
        Status.SUCCESS: ("stream_ok", {}),
        Status.NOT_MY_VBUCKET: ("not_my_vbucket", {}),
        Status.ROLLBACK: ("rollback", {"rollback_seqno": seqno}),
    }[status]
    return Frame(name, Magic.RESPONSE, request.opaque, vbucket=request.vbucket, fields=fields)


def _respond_2(request: Frame, status: Status, seqno: int) -> Frame:
    return response(request, status, fields={"rollback_seqno": seqno} if status is Status.ROLLBACK else None)


_DRAFTS = {
    draft.dialect: draft
    for draft in (
        Draft(
            "upr1",
            Magic.RESPONSE,
            _respond_1,
            {
                UprStreamEnd.OK: ("stream_end_ok", {}),
                UprStreamEnd.STATE_CHANGED: ("stream_end_state_changed", {}),
            },
            strict=False,
        ),
        Draft(
            "upr2",
            Magic.REQUEST,
            _respond_2,
            {reason: ("stream_end", {"reason": int(reason)}) for reason in UprStreamEnd},
            strict=True,
        ),
    )
}
_ENCODERS = {dialect: RowEncoder(dialect, StoredItem._fields) for dialect in _DRAFTS}


class ServerUprStream:
    """Sends the items of a vbucket above `start`, until a snapshot has reached `end`.

    With `hands_over`, the consumer takes the vbucket over at the end, and this copy becomes dead.
    """

    def __init__(
        self, draft: Draft, vbucket: VbucketStore, opaque: int, start: int, end: int, *, hands_over: bool = False
    ) -> None:
        self.draft = draft
        self.vbucket = vbucket
        self.opaque = opaque
        self.cursor = start
        self.end_seqno = end
        self.ended = False
        self._hands_over = hands_over
        self._state = vbucket.state
        self._started = self._in_snapshot = False
        self._run = ItemRun(vbucket.number, [])

    def write(self, out: Outbox) -> None:
        """Write frames until there is nothing more to send or no more room."""
        while out.open and not self.ended and self._step(out):
            pass

    def _step(self, out: Outbox) -> bool:
        """Do one step; return False if there is nothing to send."""
        if not self._started:
            self._started = True
            self._send("stream_start", out)
            if self._hands_over:
                self._send("set_vbucket_state", out, state=UprVbucketState.PENDING)
        elif self.vbucket.state is not self._state:
            self._finish(UprStreamEnd.STATE_CHANGED, out)
        elif not self._run.done:
            self._run.next = out.rows(
                self.draft.encoder(), self._run.items, self._run.next, opaque=self.opaque, vbucket=self._run.vbucket
            )
        elif self._in_snapshot:
            self._in_snapshot = False
            self._send("snapshot_end", out)
        elif self.cursor >= self.end_seqno:
            self._finish(UprStreamEnd.OK, out)
        elif self.vbucket.high_seqno > self.cursor:
            self._open_snapshot(out)
        elif self._hands_over:
            self._state = self.vbucket.state = VbucketState.DEAD
            self._send("set_vbucket_state", out, state=UprVbucketState.ACTIVE)
            self._finish(UprStreamEnd.OK, out)
        else:
            return False
        return True

    def _open_snapshot(self, out: Outbox) -> None:
        items = items_of(self.vbucket, self.cursor, self.vbucket.high_seqno)
        self.cursor = self.vbucket.high_seqno
        if items:
            self._run = ItemRun(self.vbucket.number, items)
            self._in_snapshot = True
            self._send("snapshot_start", out)

    def _finish(self, reason: UprStreamEnd, out: Outbox) -> None:
        self.ended = True
        name, fields = self.draft.ends[reason]
        self._send(name, out, **fields)

    def _send(self, name: str, out: Outbox, **fields: int) -> None:
        frame = Frame(name, self.draft.magic, self.opaque, vbucket=self.vbucket.number, fields=fields)
        out.frame(encode(frame, self.draft.dialect))


def stream_request(connection: ServerConnection, frame: Frame) -> Frame:
    """Grant or refuse a stream. The key, the name of a group, has no effect."""
    draft, numbers = _DRAFTS[connection.dialect], frame.fields
    vbucket = connection.node.vbucket(frame.vbucket)
    if vbucket is None or vbucket.state not in _STREAMED:
        return draft.respond(frame, Status.NOT_MY_VBUCKET, 0)
    start, end, vbuuid = (int(numbers[name]) for name in ("start_seqno", "end_seqno", "vbuuid"))
    if draft.strict:
        _check(connection, vbucket, start, end, vbuuid)
    # The drafts have no snapshot in the request: the consumer has received everything up to its start.
    resume = Resume(start, vbuuid, start, start)
    point = rollback_point(resume, vbucket.log, vbucket.high_seqno, vbucket.purge_seqno)
    if point is not None:
        return draft.respond(frame, Status.ROLLBACK, point)
    hands_over = draft.strict and bool(int(numbers["flags"]) & StreamFlag.TAKE_OVER)
    # Draft 1 has no status for a second stream of a vbucket: the new one replaces the old one.
    for other in _streams_of(connection, frame.vbucket):
        connection.sources.remove(other)
    connection.sources.append(ServerUprStream(draft, vbucket, frame.opaque, start, end, hands_over=hands_over))
    return draft.respond(frame, Status.SUCCESS, 0)


def _check(connection: ServerConnection, vbucket: VbucketStore, start: int, end: int, vbuuid: int) -> None:
    if start > end:
        raise Refusal(Status.ERANGE)
    if _streams_of(connection, vbucket.number):
        raise Refusal(Status.KEY_EEXISTS)
    if (start or vbuuid) and vbucket.log.end_of(vbuuid, vbucket.high_seqno) is None:
        raise Refusal(Status.KEY_ENOENT)


def _streams_of(connection: ServerConnection, vbucket: int) -> list[ServerUprStream]:
    streams = [source for source in connection.sources if isinstance(source, ServerUprStream)]
    return [stream for stream in streams if stream.vbucket.number == vbucket and not stream.ended]


def failover_log(connection: ServerConnection, frame: Frame) -> Frame:
    draft, vbucket = _DRAFTS[connection.dialect], connection.node.vbucket(frame.vbucket)
    if vbucket is None:
        return draft.respond(frame, Status.NOT_MY_VBUCKET, 0)
    value = FAILOVER_LOG.encode(vbucket.log)
    if draft.strict:
        return response(frame, value=value)
    return Frame("failover_log", Magic.RESPONSE, frame.opaque, vbucket=frame.vbucket, value=value)


HANDLERS: dict[str, Handler] = {
    "stream_request": stream_request,
    "failover_log_request": failover_log,
    "get_failover_log": failover_log,
}
