"""TAP clients of each node: connected ones, and the positions of registered ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from dcp.embedded.bucket import ServerNode
from dcp.embedded.legacy.backfill import TapPosition

if TYPE_CHECKING:
    from dcp.embedded.legacy.tap_stream import ServerTapStream

# Registered clients that a node remembers. Names come from clients, so there has to be a limit.
MAX_REGISTERED = 1000


@dataclass
class TapClients:
    """Clients of one node by name."""

    connected: dict[bytes, ServerTapStream] = field(default_factory=dict)
    registered: dict[bytes, Mapping[int, TapPosition]] = field(default_factory=dict)
    max_registered: int = MAX_REGISTERED

    def may_register(self, name: bytes) -> bool:
        """Return whether the node has room for the position of this client."""
        return name in self.registered or len(self.registered) < self.max_registered

    def connect(self, name: bytes, stream: ServerTapStream, registers: bool) -> Mapping[int, TapPosition]:
        """Add a client, close an older connection of its name, and return its positions if it is registered."""
        if (other := self.connected.get(name)) is not None:
            self.disconnect(name, other)
            other.connection.closing = True
        self.connected[name] = stream
        return self.registered.setdefault(name, {}) if registers else {}

    def disconnect(self, name: bytes, stream: ServerTapStream) -> None:
        """Remove a client whose connection is gone, and keep its positions if it is registered."""
        if self.connected.get(name) is stream:
            del self.connected[name]
            if name in self.registered:
                self.registered[name] = stream.positions()


# Positions outlive connections, but not nodes.
_CLIENTS: WeakKeyDictionary[ServerNode, TapClients] = WeakKeyDictionary()


def clients_of(node: ServerNode) -> TapClients:
    """Return the clients of a node."""
    return _CLIENTS.setdefault(node, TapClients())
