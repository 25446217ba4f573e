"""Who speaks each dialect, and what cannot be asked for there: it is refused, never ignored."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from dcp.errors import LocalProtocolError, TransportError
from dcp.session.legacy.tap import ONLY_CHANGES, TapSession
from dcp.session.legacy.upr import UprSession
from dcp.session.session import Session
from dcp.session.stream import ConsumerStream
from dcp.wire import DIALECTS
from dcp.wire.dcp import ENDLESS

DCP, TAP = "dcp", "tap"
SESSIONS: dict[str, type[Session]] = {DCP: Session, "upr1": UprSession, "upr2": UprSession, TAP: TapSession}
# What only DCP has.
_OF_CONNECTIONS = ("compression", "dcp_priority", "noop_interval")
_OF_STREAMS = ("scope", "collections", "persisted_only", "ignore_purged", "out_of_order", "history", "times")

_UP_TO_NOW = 1


@dataclass(frozen=True, slots=True)
class Manner:
    """How the streams of a connection behave.

    make: makes its session. closes: there is a message that closes a stream. one_request: all vbuckets are asked for
    at once. resumes: streams go on from a position; where they do not, `replays` says whether a vbucket may begin
    again when its connection is lost.
    """

    make: Callable[..., Session] = Session
    closes: bool = False
    one_request: bool = False
    resumes: bool = True
    replays: bool = True

    def leave(self, session: Session, stream: ConsumerStream) -> None:
        """Let a stream end; where nothing else can, with its connection."""
        if not self.closes:
            raise TransportError(f"vbucket {stream.vbucket}: another node has it now")
        session.close_stream(stream)


def manner_of(dialect: str, start: object) -> Manner:
    if dialect != TAP:
        return Manner(SESSIONS[dialect], closes=dialect == DCP)
    if start == "now":
        return Manner(partial(TapSession, date=ONLY_CHANGES), one_request=True, resumes=False, replays=False)
    return Manner(TapSession, one_request=True, resumes=False)


def tap_end(start: object, end: object) -> int:
    """What ends a vbucket's stream over TAP, where a range has words only."""
    if start not in ("beginning", "now"):
        raise LocalProtocolError(f"start: expected beginning or now, as TAP numbers no changes, found {_shown(start)}")
    accepted = (None, "now") if start == "beginning" else (None,)
    if end not in accepted:
        words = " or ".join(map(str, accepted))
        raise LocalProtocolError(f"end: expected {words}, as TAP numbers no changes, found {_shown(end)}")
    return ENDLESS if end is None else _UP_TO_NOW


def _shown(value: object) -> str:
    return repr(value)[:40] if isinstance(value, str) else f"a {type(value).__name__}"


def check_options(dialect: str, given: Iterable[str]) -> None:
    """given: the options of a connection that somebody set."""
    if dialect != DCP:
        _refuse(dialect, given, _OF_CONNECTIONS, "leave it out")


def check_stream(dialect: str, given: Iterable[str]) -> None:
    """given: the options of a stream that somebody set."""
    if dialect != DCP:
        _refuse(dialect, given, _OF_STREAMS, "stream the whole bucket as it comes")


def _refuse(dialect: str, given: Iterable[str], lacking: Iterable[str], instead: str) -> None:
    for name in lacking:
        if name in given:
            raise LocalProtocolError(f"{name}: {DIALECTS[dialect].title} has no such thing; {instead}")
