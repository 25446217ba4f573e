"""What a refusal says besides its status: words, JSON or nothing, as releases differ."""

from __future__ import annotations

from dcp.embedded.generation import Generation
from dcp.wire.body import JSON
from dcp.wire.document import Datatype
from dcp.wire.layout import MUST, Dialect, Kind
from dcp.wire.memcached import Status

_WORDS = {
    Status.AUTH_ERROR: b"Auth failure",
    Status.EINVAL: b"Invalid arguments",
    Status.ERANGE: b"Outside range",
    Status.NOT_SUPPORTED: b"Not supported",
}


def explain(status: Status, context: str, generation: Generation) -> tuple[bytes, int]:
    """The value and datatype of an error."""
    if generation.errors_in_words:
        return _WORDS.get(status, b""), 0
    if context and generation.errors_in_json(status):
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
