"""What a fault is: where it may act, how often, and the options it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import Field, dataclass, field, fields
from random import Random
from typing import TYPE_CHECKING, Any

from dcp.errors import LocalProtocolError

if TYPE_CHECKING:
    from dcp.embedded.connection import ServerConnection
    from dcp.embedded.link import ServerLink
    from dcp.embedded.stream import ServerStream
    from dcp.wire.frame import Frame

Parts = list[bytes | memoryview]
# Longer than any time there is: until somebody says so.
FOR_EVER = float("inf")


def number(value: object) -> int:
    """A whole number of at least 0, or its text."""
    found = int(value) if isinstance(value, int | str) else -1
    if found < 0:
        raise ValueError("a number of at least 0")
    return found


def positive(value: object) -> int:
    """A whole number of at least 1, or its text: with 0 nothing would ever happen."""
    found = number(value)
    if found == 0:
        raise ValueError("a number of at least 1")
    return found


def several(value: object) -> frozenset[int]:
    """Numbers, or text such as 0,4-7."""
    if isinstance(value, int):
        return frozenset([number(value)])
    if not isinstance(value, str):
        return _some(map(number, _iterable(value)))
    found: set[int] = set()
    for piece in value.split(","):
        first, _, last = piece.partition("-")
        found |= set(range(number(first), number(last or first) + 1))
    return _some(found)


def _some(numbers: Iterable[int]) -> frozenset[int]:
    found = frozenset(numbers)
    if not found:
        raise ValueError("one or more")
    return found


def chain(value: object) -> tuple[int, ...]:
    """Numbers one after the other, or text such as 300,100,0."""
    if isinstance(value, int):
        return (number(value),)
    return tuple(map(number, value.split(",") if isinstance(value, str) else _iterable(value)))


def switch(value: object) -> bool:
    """True or false, or their text."""
    said = {"true": True, "false": False}.get(str(value).lower())
    if said is None:
        raise ValueError("true or false")
    return said


def one_of(kind: Any) -> Callable[[object], int]:
    """A member of an enumeration, its name in any case, or its number, be it known or not."""

    def read(value: object) -> int:
        if isinstance(value, str) and value.upper() in kind.__members__:
            return int(kind[value.upper()])
        return number(value)

    return read


def _iterable(value: object) -> Iterable[object]:
    if not isinstance(value, Iterable):
        raise ValueError("numbers")
    return value


def option(read: Callable[[object], object], says: str, default: Any) -> Any:
    """A field of a fault that its users may set."""
    return field(default=default, kw_only=True, metadata={"read": read, "says": says})


@dataclass(eq=False)
class Fault:
    """Something that goes wrong as long as it is on. The docstring says what, in its first line.

    Every hook but `requested` is called for a node that the fault is for; what a fault has no hook for is right.
    """

    node: int | None = option(number, "only on this node", None)
    vbuckets: frozenset[int] | None = option(several, "only these, such as 0,4-7", None)
    times: int | None = option(positive, "how often, at least once; without, as long as it is on", None)
    hits: int = field(default=0, init=False)
    random: Random = field(default_factory=Random, init=False, repr=False)

    # Hooks.

    def rest(self, link: ServerLink, now: float) -> float:
        """Asked before every write: until when there is to be none. FOR_EVER lets the link receive nothing either."""
        return 0.0

    def room(self, link: ServerLink, now: float) -> int | None:
        """How many bytes the link may send at once; None for any number."""
        return None

    def received(self, link: ServerLink, data: bytes) -> bytes:
        """What the node gets to see of what the client sent."""
        return data

    def sending(self, link: ServerLink, parts: Parts) -> Parts:
        """What the client gets to see of what the node sends: whole frames."""
        return parts

    def requested(self, connection: ServerConnection, frame: Frame) -> Frame | None:
        """An answer to a stream request, instead of the right one."""
        return None

    def writes(self, connection: ServerConnection, stream: ServerStream) -> bool:
        """Whether a stream may write now."""
        return True

    def cleared(self, links: Sequence[ServerLink]) -> None:
        """The fault is over."""

    # What hooks need.

    @property
    def spent(self) -> bool:
        """Whether it has been as often as it should."""
        return self.times is not None and self.hits >= self.times

    def concerns(self, node: int, vbucket: int | None = None) -> bool:
        """Whether it acts here, still."""
        here = self.node in (None, node) and (vbucket is None or self.vbuckets is None or vbucket in self.vbuckets)
        return here and not self.spent


def options_of(fault: type[Fault]) -> list[Field[Any]]:
    """The options of a fault: name, default, and what they are for."""
    return [one for one in fields(fault) if "says" in one.metadata]


def make(name: str, fault: type[Fault], options: dict[str, object]) -> Fault:
    """A fault with these options, whose values may be text."""
    known = {one.name: one for one in options_of(fault)}
    given = {}
    for key, value in options.items():
        if key not in known:
            raise LocalProtocolError(f"fault {name}: expected options among {', '.join(known)}, found {key!r}")
        try:
            none = value is None and "None" in str(known[key].type)
            given[key] = None if none else known[key].metadata["read"](value)
        except (TypeError, ValueError):
            says = known[key].metadata["says"]
            raise LocalProtocolError(f"fault {name}: {key}: expected {says}, found {value!r}") from None
    return fault(**given)
