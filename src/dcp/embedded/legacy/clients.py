"""The TAP clients of each node: those that are connected, and how far those are that will come again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from dcp.embedded.bucket import ServerNode
from dcp.embedded.legacy.backfill import Position

if TYPE_CHECKING:
    from dcp.embedded.legacy.tap_stream import ServerTapStream

# A node remembers so many clients that are gone at most.
MOST_REGISTERED = 1000


@dataclass
class Clients:
    """By their names."""

    connected: dict[bytes, ServerTapStream] = field(default_factory=dict)
    registered: dict[bytes, Mapping[int, Position]] = field(default_factory=dict)

    def may_register(self, name: bytes) -> bool:
        return name in self.registered or len(self.registered) < MOST_REGISTERED

    def enter(self, name: bytes, stream: ServerTapStream, registers: bool) -> Mapping[int, Position]:
        """A client connects, and whoever has its name must go; how far it was, if it is registered."""
        if (other := self.connected.get(name)) is not None:
            self.leave(name, other)
            other.connection.closing = True
        self.connected[name] = stream
        return self.registered.setdefault(name, {}) if registers else {}

    def leave(self, name: bytes, stream: ServerTapStream) -> None:
        """A connection is gone."""
        if self.connected.get(name) is stream:
            del self.connected[name]
            if name in self.registered:
                self.registered[name] = stream.positions()


_CLIENTS: WeakKeyDictionary[ServerNode, Clients] = WeakKeyDictionary()


def clients_of(node: ServerNode) -> Clients:
    return _CLIENTS.setdefault(node, Clients())
