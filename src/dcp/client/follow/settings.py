"""Settings of one stream: batch limits, rules of the dialect, filter, and what to do at a rollback."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from dcp.client.row_format import ReportRow
from dcp.columns.decoder import Decoder
from dcp.errors import TransportError
from dcp.session.legacy.tap import ONLY_CHANGES, TapSession
from dcp.session.legacy.upr import UprSession
from dcp.session.session import Session
from dcp.session.stream import ConsumerStream
from dcp.wire.dcp import DCP, StreamFlag
from dcp.wire.dcp_body import StreamFilter
from dcp.wire.tap import TAP as TAP_DIALECT

TAP = TAP_DIALECT.name
SESSIONS: dict[str, type[Session]] = {DCP.name: Session, "upr1": UprSession, "upr2": UprSession, TAP: TapSession}


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Conditions that deliver a batch: number of rows, received bytes, or age of its first row in seconds.

    held: bytes of delivered batches, with their values decompressed, at which a connection stops receiving until the
        consumer has processed some; 0 for no limit.
    """

    rows: int
    bytes: int
    linger: float
    held: int = 0

    @classmethod
    def within(cls, window: int, max_frame: int, *, rows: int, bytes: int, linger: float) -> BatchLimits:
        """Return limits for a flow-control window of `window` bytes; 0 for none.

        A node that keeps to the window exceeds it by less than one frame, so `held` does not stop it, unless values
        were compressed to less than half. A batch takes half of the window at most: while its rows wait for `linger`,
        the node waits for the acknowledgement of what fills the window.
        """
        if not window:
            return cls(rows, bytes, linger)
        return cls(rows, min(bytes, max(1, window // 2)), linger, 2 * window + max_frame)


@dataclass(frozen=True, slots=True)
class DialectRules:
    """Differences between the dialects that matter to a stream.

    session: makes the session of a connection.
    closes: a message closes one stream.
    one_request: one request starts all streams of a connection, and no more can follow.
    resumes: streams resume from a position. Where they do not, `replays` allows a vbucket to restart from the beginning
    after its connection was lost.
    """

    session: Callable[..., Session] = Session
    closes: bool = False
    one_request: bool = False
    resumes: bool = True
    replays: bool = True

    def leave(self, session: Session, stream: ConsumerStream) -> None:
        """End a stream: by a message, or with its connection if the dialect has no such message."""
        if not self.closes:
            raise TransportError(f"vbucket {stream.vbucket}: owned by another node now")
        session.close_stream(stream)


def dialect_rules(dialect: str, start: object) -> DialectRules:
    """Return the rules of a dialect for a stream with this start."""
    if dialect != TAP:
        return DialectRules(SESSIONS[dialect], closes=dialect == DCP.name)
    if start == "now":
        # A second stream of only changes would leave a gap between the two.
        return DialectRules(partial(TapSession, date=ONLY_CHANGES), one_request=True, resumes=False, replays=False)
    return DialectRules(TapSession, one_request=True, resumes=False)


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Everything that the engine has to know of a stream besides its range.

    decoder: makes the decoder of a connection; True if its keys carry collection ids.
    report_row: makes rollback and purge rows.
    on_rollback: `replay`, `fail`, or `stop` to end the vbucket there.
    filter: of stream requests; None for the whole bucket.
    persisted_within: seconds that rows may wait for all copies to persist them; None to deliver rows at once.
    on_disk_within: seconds that a vbucket may wait, before it is requested, for the disk of its node; None for no wait.
    announced_within: seconds in which a node has to announce a vbucket (TAP); None for dialects that answer requests.
    requested: further fields of ConnectionSettings.
    """

    decoder: Callable[[bool], Decoder]
    limits: BatchLimits
    rules: DialectRules
    report_row: ReportRow
    on_rollback: Literal["replay", "fail", "stop"] = "replay"
    filter: StreamFilter | None = None
    ignore_purged: bool = False
    persisted_within: float | None = None
    on_disk_within: float | None = None
    announced_within: float | None = None
    requested: Mapping[str, bool] = field(default_factory=dict)

    @property
    def flags(self) -> StreamFlag:
        """Flags of stream requests."""
        flags = StreamFlag.ACTIVE_VB_ONLY
        return flags | StreamFlag.IGNORE_PURGED_TOMBSTONES if self.ignore_purged else flags
