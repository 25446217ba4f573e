"""Who speaks each dialect, and what cannot be asked for there: it is refused, never ignored."""

from __future__ import annotations

from collections.abc import Iterable

from dcp.errors import LocalProtocolError
from dcp.session.connection import Session
from dcp.session.upr import UprSession
from dcp.wire import DIALECTS

DCP = "dcp"
SESSIONS: dict[str, type[Session]] = {DCP: Session, "upr1": UprSession, "upr2": UprSession}
# What only DCP has.
_OF_CONNECTIONS = ("compression", "dcp_priority", "noop_interval")
_OF_STREAMS = ("scope", "collections", "persisted_only", "times")


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
