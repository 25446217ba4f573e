"""Demands of a client on each connection: whatever its first one was granted."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from dcp.errors import TransportError
from dcp.wire.dcp import OpenFlag
from dcp.wire.memcached import Feature

# Features of HELLO, flags of OPEN and controls on which rows or promises depend, with what happens without each one.
# The others are not demanded, since the client does right without them: it inflates no value that is not compressed,
# fetches maps that are not pushed, and asks for purge seqnos that markers do not have.
CONSEQUENCES: dict[str, str] = {
    Feature.SELECT_BUCKET.name: "another bucket might be read",
    Feature.COLLECTIONS.name: "changes in all but the default collection would be missing",
    Feature.XATTR.name: "xattrs would be missing",
    Feature.JSON.name: "no document would have the datatype JSON",
    str(OpenFlag.INCLUDE_XATTRS.name): "xattrs would be missing",
    str(OpenFlag.INCLUDE_DELETED_USER_XATTRS.name): "xattrs of users would be missing from deletions",
    str(OpenFlag.INCLUDE_DELETE_TIMES.name): "times of deletions would be missing",
    "enable_noop": "a dead node would not be noticed",
    "connection_buffer_size": "the node might send more than there is room for",
    "enable_expiry_opcode": "expirations would arrive as deletions",
}


class Demands:
    """Features, flags, controls and SASL mechanism that the first connection of a client to its bucket was granted.

    Shared by all connections of a client, in any thread. What no connection requested so far is learned from the first
    one that requests it. A later connection may be granted more: that changes nothing.
    """

    def __init__(self) -> None:
        self._granted: dict[str, bool] = {}
        self._mechanism = ""

    @property
    def mechanism(self) -> str:
        """SASL mechanism of the first connection; empty if there was none."""
        return self._mechanism

    def include(self, name: str) -> bool:
        """Return whether the first connection was granted a feature, flag or control."""
        return self._granted.get(name, False)

    def check(self, requested: Iterable[str], granted: Collection[str]) -> None:
        """Raise TransportError if a connection is not granted something that it requested and the first one had."""
        missing = [name for name in requested if self._granted.get(name) and name not in granted]
        if missing:
            reasons = ", ".join(f"{name} ({CONSEQUENCES[name]})" for name in missing)
            raise TransportError(
                f"the node does not grant what the first connection of this client was granted: {reasons}; nothing is "
                "read from it. If it runs an older release than the others, finish the upgrade; if not, somebody may "
                "alter the connection: use couchbases://. To accept less, connect with a new client"
            )

    def learn(self, requested: Iterable[str], granted: Collection[str], mechanism: str) -> None:
        """Remember what the first connection was granted. Raises TransportError as `check` does."""
        demanded = [name for name in requested if name in CONSEQUENCES]
        # Before the check, in one step for each name: of two first connections, one sees what the other was granted.
        for name in demanded:
            self._granted.setdefault(name, name in granted)
        self.check(demanded, granted)
        self._mechanism = self._mechanism or mechanism
