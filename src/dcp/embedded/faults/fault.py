"""The base of all faults: the nodes and vbuckets on which they act, how often, their options, and their hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import Field, dataclass, field, fields
from enum import Enum
from random import Random
from typing import TYPE_CHECKING, Any

from dcp.errors import UsageError
from dcp.value_grammar import number_range, size, whole_number

if TYPE_CHECKING:
    from dcp.embedded.connection import ServerConnection
    from dcp.embedded.link import ServerLink
    from dcp.embedded.stream import ServerStream
    from dcp.wire.frame import Frame

Parts = list[bytes | memoryview]
# Time that never comes: a pause that only ends when its fault is cleared.
FOREVER = float("inf")
_MAX_VBUCKET = (1 << 16) - 1


# Parsers of options. Each takes text or a Python value and raises ValueError for others.


def positive(value: object) -> int:
    """Parse a number of at least 1."""
    return whole_number(value, 1)


def positive_size(value: object) -> int:
    """Parse a size of at least 1 byte."""
    return whole_number(size(value), 1)


def vbucket_numbers(value: object) -> frozenset[int]:
    """Parse numbers of vbuckets, such as 0,4-7."""
    return frozenset(number_range(value, _MAX_VBUCKET))


def sequence(value: object) -> tuple[int, ...]:
    """Parse numbers whose order counts, such as 300,100,0."""
    if isinstance(value, str):
        value = value.split(",")
    numbers = tuple(map(whole_number, value)) if isinstance(value, Iterable) else (whole_number(value),)
    if not numbers:
        raise ValueError("one number or more")
    return numbers


class MemberOf:
    """Parser of the members of an enumeration: a name in any case, or any number, even an unknown one."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self.choices = tuple(kind.__members__)

    def __call__(self, value: object) -> int:
        if isinstance(value, str) and value.upper() in self._kind.__members__:
            # A member is an int, whose name errors and pages show.
            return self._kind[value.upper()]  # type: ignore[no-any-return]
        try:
            return whole_number(value)
        except ValueError:
            raise ValueError(f"a name of {self._kind.__name__} or a number") from None


class OneOf:
    """Parser of a text that is one of several. `expected` describes them if they are too many for an error."""

    def __init__(self, choices: Iterable[str], expected: str = "") -> None:
        self.choices = tuple(choices)
        self._expected = expected or " or ".join(self.choices)

    def __call__(self, value: object) -> str:
        if value not in self.choices:
            raise ValueError(self._expected)
        return str(value)


def option(parse: Callable[[object], object], text: str, default: Any) -> Any:
    """Declare a field of a fault that users may set. `text` describes it, also in error messages."""
    return field(default=default, kw_only=True, metadata={"parse": parse, "help": text})


@dataclass(eq=False)
class Fault:
    """Something that goes wrong while it is active.

    The first line of a subclass's docstring describes the fault to users. A subclass overrides the hooks that it needs;
    the cluster calls them, with its lock held, for the nodes that the fault acts on.
    """

    node: int | None = option(whole_number, "only on this node", None)
    vbuckets: frozenset[int] | None = option(vbucket_numbers, "only these vbuckets, such as 0,4-7", None)
    times: int | None = option(positive, "how often it acts; by default as long as it is active", None)
    # Name in the table of faults, and number in the cluster, once it is started.
    name: str = field(default="", init=False, repr=False)
    number: int = field(default=0, init=False, repr=False)
    # Number of times that it has acted, or of bytes, for faults that count those.
    hits: int = field(default=0, init=False)
    random: Random = field(default_factory=Random, init=False, repr=False)
    # Name of the requests that `requested` is called for.
    command: str = field(default="stream_request", init=False, repr=False)

    # Hooks.

    def paused_until(self, link: ServerLink, now: float) -> float:
        """Return the time until which the link must not send, before each write.

        0.0 (any time that has passed) lets it send. FOREVER stops it from receiving as well.
        """
        return 0.0

    def room(self, link: ServerLink, now: float) -> int | None:
        """Return the number of bytes that the link may send at once; None for no limit."""
        return None

    def received(self, link: ServerLink, data: bytes) -> bytes:
        """Return the bytes that the node receives instead of those that the client sent."""
        return data

    def sending(self, link: ServerLink, parts: Parts) -> Parts:
        """Return the bytes that the client receives instead of those that the node sends, which are whole frames."""
        return parts

    def requested(self, connection: ServerConnection, frame: Frame) -> Frame | None:
        """Return a response to a request named `command`, instead of the node's own; None leaves it to the node."""
        return None

    def may_write(self, connection: ServerConnection, stream: ServerStream) -> bool:
        """Return whether a stream may write now."""
        return True

    def cleared(self, links: Sequence[ServerLink]) -> None:
        """Undo what would outlast the fault."""

    # Helpers of hooks.

    @property
    def spent(self) -> bool:
        """True if the fault has acted as often as it should."""
        return self.times is not None and self.hits >= self.times

    def concerns(self, node: int, vbucket: int | None = None) -> bool:
        """Return whether the fault still acts on a node and vbucket; None stands for any vbucket."""
        here = self.node in (None, node) and (vbucket is None or self.vbuckets is None or vbucket in self.vbuckets)
        return here and not self.spent


def options_of(fault: type[Fault]) -> list[Field[Any]]:
    """Return the options of a fault as dataclass fields; their metadata has the help text."""
    return [one for one in fields(fault) if "help" in one.metadata]


def option_text(value: object) -> str:
    """Return the value of an option in the form in which it may be given; "" for None."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple | frozenset):
        return ",".join(map(str, sorted(value) if isinstance(value, frozenset) else value))
    # The name of a member, which the parser takes as well.
    return "" if value is None else value.name if isinstance(value, Enum) else str(value)


def changed_options(fault: Fault) -> dict[str, str]:
    """Return the options of a fault that differ from their defaults."""
    values = {one.name: (getattr(fault, one.name), one.default) for one in options_of(type(fault))}
    return {name: option_text(value) for name, (value, default) in values.items() if value != default}


def create_fault(name: str, fault: type[Fault], options: dict[str, object]) -> Fault:
    """Create a fault with these options; raise UsageError if one is unknown or its value not valid."""
    known = {one.name: one for one in options_of(fault)}
    parsed = {}
    for key, value in options.items():
        if key not in known:
            raise UsageError(f"fault {name}: expected options among {', '.join(known)}, found {key!r}")
        try:
            # None is the default of some options, and stands for no value.
            is_default = value is None and "None" in str(known[key].type)
            parsed[key] = None if is_default else known[key].metadata["parse"](value)
        except ValueError as error:
            expected = f"{error} ({known[key].metadata['help']})"
            raise UsageError(f"fault {name}: {key}: expected {expected}, found {value!r:.100}") from None
    return fault(**parsed)
