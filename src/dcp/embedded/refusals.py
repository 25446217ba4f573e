"""Refused commands: the exceptions that handlers raise, and the response that a client gets, by release."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import KW_ONLY, dataclass

from dcp.embedded.release import Release
from dcp.wire.body import JSON
from dcp.wire.document import Datatype
from dcp.wire.layout import MUST, Dialect, Kind
from dcp.wire.memcached import Feature, Status


@dataclass(eq=False)
class Refusal(Exception):
    """A command failed and is answered with an error.

    `status` is that of the response. `context` is a text for people; a `value` with its `datatype`
    replaces the text. With `close`, the connection is closed after the response.
    """

    status: Status
    context: str = ""
    _: KW_ONLY
    value: bytes = b""
    datatype: int = 0
    close: bool = False


class Hangup(Exception):
    """The connection is to be closed without a response."""


# Values of error responses of 3.x.
_TEXTS = {
    Status.AUTH_ERROR: b"Auth failure",
    Status.EINVAL: b"Invalid arguments",
    Status.ERANGE: b"Outside range",
    Status.NOT_SUPPORTED: b"Not supported",
}


# A client without HELLO XERROR knows only the older statuses. Servers since 5.0 send it one of these instead, and close
# the connection where no older status fits.
_OLDER_STATUSES = {
    Status.LOCKED: Status.KEY_EEXISTS,
    Status.NOT_LOCKED: Status.ETMPFAIL,
    Status.SYNC_WRITE_IN_PROGRESS: Status.ETMPFAIL,
    Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS: Status.ETMPFAIL,
}
_WITHOUT_OLDER_STATUS = frozenset(
    {
        Status.EACCESS,
        Status.NO_BUCKET,
        Status.AUTH_STALE,
        Status.DURABILITY_INVALID_LEVEL,
        Status.DURABILITY_IMPOSSIBLE,
        Status.SYNC_WRITE_AMBIGUOUS,
        Status.DCP_STREAM_ID_INVALID,
        Status.CANCELLED,
    }
)


def status_for(status: Status, features: Collection[Feature], release: Release) -> Status | None:
    """Return the status that a client with these features understands; None to close its connection instead."""
    if not release.has_users or Feature.XERROR in features:
        return status
    if status in (Status.UNKNOWN_COLLECTION, Status.UNKNOWN_SCOPE) and Feature.COLLECTIONS not in features:
        return Status.EINVAL
    return None if status in _WITHOUT_OLDER_STATUS else _OLDER_STATUSES.get(status, status)


def error_value(status: Status, context: str, release: Release) -> tuple[bytes, int]:
    """Return value and datatype of an error response: text, JSON or nothing, by release."""
    if release.errors_in_words:
        return _TEXTS.get(status, b""), 0
    if context and release.errors_in_json(status):
        return JSON.encode({"error": {"context": context}}), int(Datatype.JSON)
    return b"", 0


def malformed_context(raw: bytes, dialect: Dialect) -> str:
    """Return the servers' text about a request whose extras or key do not fit its opcode; empty if they have none."""
    extras, key = raw[4], raw[2:4]
    for message in dialect.by_opcode.get((Kind.REQUEST, raw[1]), ()):
        form = message.sent[0]
        if all(form.extras_length != extras for form in message.sent):
            return f"Request must include extras of length {form.extras_length}"
        if form.key is MUST and not any(key):
            return "Request must include key"
    return ""
