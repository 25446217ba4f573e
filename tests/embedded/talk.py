"""A client of a conversation, without a socket between them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import dcp
from dcp.embedded.bucket import BucketStore
from dcp.embedded.connection import ServerConnection
from dcp.embedded.handlers import HANDLERS
from dcp.embedded.release import Release
from dcp.embedded.store import StoredItem
from dcp.embedded.users import User
from dcp.wire.layout import Magic
from dcp.wire.memcached import FEATURES, Feature, Status

NOW = 1_700_000_000
ALICE = User("alice", "s3cret")
# As long as collections were agreed on.
KEY = b"\0key"
USUAL = (
    Feature.XERROR,
    Feature.SELECT_BUCKET,
    Feature.JSON,
    Feature.XATTR,
    Feature.SNAPPY,
    Feature.COLLECTIONS,
    Feature.MUTATION_SEQNO,
)


class Clock:
    """Time that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = float(NOW)

    def __call__(self) -> float:
        return self.now


def bucket(version: str = "8.0", *, nodes: int = 1, vbuckets: int = 4, replicas: int = 0) -> BucketStore:
    return BucketStore(
        "default",
        nodes=nodes,
        vbuckets=vbuckets,
        replicas=replicas,
        release=Release.of(version),
        clock=Clock(),
        seed=1,
    )


class Client:
    """Asks a node, and reads what it answers."""

    def __init__(self, of: BucketStore | None = None, node: int = 0, *, users: Iterable[User] | None = None) -> None:
        self.bucket = of or bucket()
        named = None if users is None else {user.name: user for user in users}
        self.connection = ServerConnection(self.bucket, self.bucket.nodes[node], HANDLERS, users=named)
        self.now = 0.0

    def hello(self, *features: int) -> tuple[int, ...]:
        granted: tuple[int, ...] = self.one("hello", key=b"test", value=FEATURES.encode(features or USUAL)).body()
        return granted

    def all(self, name: str, *, magic: Magic = Magic.REQUEST, opaque: int = 7, **parts: Any) -> list[dcp.Frame]:
        """Ask; everything that is said then."""
        return self.raw(dcp.encode(dcp.Frame(name, magic, opaque, **parts)))

    def one(self, name: str, **parts: Any) -> dcp.Frame:
        """Ask; the only answer."""
        (answer,) = self.all(name, **parts)
        assert (answer.name, answer.opaque) == (name, parts.get("opaque", 7))
        return answer

    def status(self, name: str, **parts: Any) -> Status:
        return Status(self.one(name, **parts).status)

    def raw(self, data: bytes) -> list[dcp.Frame]:
        self.connection.receive(data, self.now)
        return self.heard()

    def heard(self) -> list[dcp.Frame]:
        """What the node says of its own accord."""
        return dcp.decode(b"".join(map(bytes, self.connection.send(self.now))))

    @property
    def hung_up(self) -> bool:
        return self.connection.closing


def store(
    client: Client, name: str = "set", *, key: bytes = KEY, flags: int = 0, expiry: int = 0, **more: Any
) -> dcp.Frame:
    return client.one(name, key=key, fields={"flags": flags, "expiry": expiry}, **more)


def stored(client: Client, key: bytes = b"key", vbucket: int = 0, collection: int = 0) -> StoredItem:
    """The latest version that a vbucket holds."""
    item = client.bucket.active(vbucket).get(collection, key)
    assert item is not None
    return item
