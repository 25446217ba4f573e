"""Documents that are numbers, as text: counted up and down."""

from __future__ import annotations

from collections.abc import Callable

from dcp.embedded.commands.documents import body_of, document_ref, find
from dcp.embedded.commands.writes import absolute, unless_done, written
from dcp.embedded.connection import Handler, Refusal, ServerConnection
from dcp.embedded.store import StoredItem
from dcp.wire.frame import Frame
from dcp.wire.memcached import Status

# In ref of an expiry: do not create the counter.
_DO_NOT_CREATE = 0xFFFFFFFF
_MODULUS = 1 << 64


def increment(connection: ServerConnection, frame: Frame) -> Frame:
    return _count(connection, frame, lambda number, delta: (number + delta) % _MODULUS)


def decrement(connection: ServerConnection, frame: Frame) -> Frame:
    return _count(connection, frame, lambda number, delta: max(0, number - delta))


def _count(connection: ServerConnection, frame: Frame, counted: Callable[[int, int], int]) -> Frame:
    ref = document_ref(connection, frame)
    old = find(connection, ref)
    expiry = int(frame.fields["expiry"])
    if old is not None:
        number, flags, expires = counted(_number(old), int(frame.fields["delta"])), old.flags, old.expiry
    elif expiry == _DO_NOT_CREATE:
        raise Refusal(Status.KEY_ENOENT)
    else:
        number, flags, expires = int(frame.fields["initial"]), 0, absolute(connection, expiry)
    return written(connection, frame, ref, old, b"%d" % number, flags, expires, number=number)


def _number(item: StoredItem) -> int:
    text = body_of(item).strip()
    if not text.isdigit() or len(text) > len(str(_MODULUS)) or int(text) >= _MODULUS:
        raise Refusal(Status.DELTA_BADVAL)
    return int(text)


HANDLERS: dict[str, Handler] = {
    "increment": increment,
    "decrement": decrement,
    "incrementq": unless_done(increment),
    "decrementq": unless_done(decrement),
}
