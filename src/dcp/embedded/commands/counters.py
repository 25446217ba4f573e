"""INCREMENT and DECREMENT: documents that are decimal numbers as text."""

from __future__ import annotations

from collections.abc import Callable

from dcp.embedded.commands.documents import document_ref, find
from dcp.embedded.commands.writes import absolute_expiry, quiet_on_success, write_document
from dcp.embedded.connection import Handler, ServerConnection
from dcp.embedded.document import body_of
from dcp.embedded.refusals import Refusal
from dcp.embedded.store import StoredItem
from dcp.wire.frame import Frame
from dcp.wire.memcached import Status

# Expiry of a request that must not create the counter.
_DO_NOT_CREATE = 0xFFFFFFFF
_MODULUS = 1 << 64


def increment(connection: ServerConnection, frame: Frame) -> Frame | None:
    return _count(connection, frame, lambda number, delta: (number + delta) % _MODULUS)


def decrement(connection: ServerConnection, frame: Frame) -> Frame | None:
    # Decrements stop at 0, while increments wrap around.
    return _count(connection, frame, lambda number, delta: max(0, number - delta))


def _count(connection: ServerConnection, frame: Frame, operation: Callable[[int, int], int]) -> Frame | None:
    ref = document_ref(connection, frame)
    old = find(connection, ref)
    expiry = int(frame.fields["expiry"])
    if old is not None:
        number, flags, expires = operation(_number(old), int(frame.fields["delta"])), old.flags, old.expiry
    elif expiry == _DO_NOT_CREATE:
        raise Refusal(Status.KEY_ENOENT)
    else:
        number, flags, expires = int(frame.fields["initial"]), 0, absolute_expiry(connection, expiry)
    return write_document(connection, frame, ref, old, b"%d" % number, flags, expires, number=number)


def _number(item: StoredItem) -> int:
    text = body_of(item).strip()
    # The length is checked before int(), which takes quadratic time for long texts.
    if not text.isdigit() or len(text) > len(str(_MODULUS)) or int(text) >= _MODULUS:
        raise Refusal(Status.DELTA_BADVAL)
    return int(text)


HANDLERS: dict[str, Handler] = {
    "increment": increment,
    "decrement": decrement,
    "incrementq": quiet_on_success(increment),
    "decrementq": quiet_on_success(decrement),
}
