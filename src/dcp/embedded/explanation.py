"""What a refusal says: a status that the client knows; words, JSON or nothing besides, as releases differ."""

from __future__ import annotations

from collections.abc import Collection

from dcp.embedded.release import Release
from dcp.wire.body import JSON
from dcp.wire.document import Datatype
from dcp.wire.layout import MUST, Dialect, Kind
from dcp.wire.memcached import Feature, Status

_WORDS = {
    Status.AUTH_ERROR: b"Auth failure",
    Status.EINVAL: b"Invalid arguments",
    Status.ERANGE: b"Outside range",
    Status.NOT_SUPPORTED: b"Not supported",
}


# Without HELLO XERROR, clients get these instead of statuses that they do not know; others end the connection.
_OLD_STATUSES = {
    Status.LOCKED: Status.KEY_EEXISTS,
    Status.NOT_LOCKED: Status.ETMPFAIL,
    Status.SYNC_WRITE_IN_PROGRESS: Status.ETMPFAIL,
    Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS: Status.ETMPFAIL,
}
_UNKNOWN_TO_OLD_CLIENTS = frozenset(
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


def told(status: Status, features: Collection[Feature], release: Release) -> Status | None:
    """What a client is told that may not know all statuses; None to end the connection instead."""
    if not release.has_users or Feature.XERROR in features:
        return status
    if status in (Status.UNKNOWN_COLLECTION, Status.UNKNOWN_SCOPE) and Feature.COLLECTIONS not in features:
        return Status.EINVAL
    return None if status in _UNKNOWN_TO_OLD_CLIENTS else _OLD_STATUSES.get(status, status)


def explain(status: Status, context: str, release: Release) -> tuple[bytes, int]:
    """The value and datatype of an error."""
    if release.errors_in_words:
        return _WORDS.get(status, b""), 0
    if context and release.errors_in_json(status):
        return JSON.encode({"error": {"context": context}}), int(Datatype.JSON)
    return b"", 0


def complaint(raw: bytes, dialect: Dialect) -> str:
    """What is wrong with a request that has not the form of its opcode."""
    extras, key = raw[4], raw[2:4]
    for message in dialect.by_opcode.get((Kind.REQUEST, raw[1]), ()):
        form = message.sent[0]
        if all(form.extras_length != extras for form in message.sent):
            return f"Request must include extras of length {form.extras_length}"
        if form.key is MUST and not any(key):
            return "Request must include key"
    return ""
