"""The cluster that users start: documents in, changes out, trouble on command."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote

from dcp.embedded import arguments
from dcp.embedded.bucket import BucketStore, ServerNode
from dcp.embedded.connection import ServerConnection
from dcp.embedded.document import body_of, check_document
from dcp.embedded.faults import Faults
from dcp.embedded.handlers import HANDLERS_OF
from dcp.embedded.load import documents, padded
from dcp.embedded.operations import Operations
from dcp.embedded.release import Release
from dcp.embedded.server import ClusterServer, Traffic
from dcp.embedded.store import StoredItem
from dcp.embedded.tls import Tls
from dcp.embedded.users import User
from dcp.errors import LocalProtocolError
from dcp.wire.document import Datatype, join_xattrs
from dcp.wire.frame import dialect_of
from dcp.wire.mechanisms import PLAIN

# What is like a server that did not speak DCP yet.
_BEFORE_DCP = "3.0"


class StoredDocument(NamedTuple):
    """A document that is there."""

    value: bytes
    cas: int
    seqno: int
    rev_seqno: int
    flags: int
    expiry: int
    vbucket: int


class DocumentVersion(NamedTuple):
    """A version of a document that a consumer may have seen, whether or not it was lost since."""

    event: str
    value: bytes
    cas: int
    seqno: int
    rev_seqno: int
    flags: int
    expiry: int
    vbucket: int
    vbuuid: int


@dataclass(frozen=True, slots=True)
class ClusterCredentials:
    """Who may do what. The password is in no text."""

    username: str
    password: str

    def __repr__(self) -> str:
        return f"Credentials(username={self.username!r})"


class Cluster(Operations):
    """A cluster in memory, on real sockets.

        with Cluster(nodes=3, vbuckets=64, replicas=1) as cluster:
            cluster.upsert("key", b'{"a": 1}')
            client = dcp.connect(cluster.url)

    nodes: 1 to 8. vbuckets: how many parts the bucket has. replicas: copies of each besides the active one.
    server_version: the release whose features and quirks it shows, 3.0 to 8.5.
    host: the address to listen on. port: that of the first node's door, the others have the next ones; 0
    for any that are free.
    username, password: who may connect; random unless given. users: who else may, and what.
    tls: a second door for each node. certificate, key: PEM files for it; made unless given, signed by an authority
    whose certificate is `ca_file`. client_ca: PEM file of those whose clients need no password: their certificates
    have the names of users.
    seed: of everything that is random otherwise, such as the uuids of histories.
    history: keep every version of every document, as change streams show them.
    record: remember every version of every document for `history()`, which takes memory with every write.
    dialect: what its nodes speak: `dcp` (and TAP with it up to 4.6), or one of its predecessors alone, `tap`,
    `upr1` or `upr2`: such nodes are older than any `server_version`, and ask nobody for a password.
    """

    def __init__(
        self,
        *,
        nodes: int = 1,
        vbuckets: int = 64,
        replicas: int = 0,
        bucket: str = "default",
        server_version: str = "8.0",
        host: str = "127.0.0.1",
        port: int = 0,
        username: str = "dcp",
        password: str | None = None,
        users: Iterable[User] = (),
        tls: bool = False,
        certificate: str | None = None,
        key: str | None = None,
        client_ca: str | None = None,
        seed: int | None = None,
        history: bool = False,
        record: bool = False,
        dialect: str = "dcp",
    ) -> None:
        users = list(users)
        arguments.check_size(nodes, vbuckets, replicas)
        arguments.check_names(bucket, host, server_version)
        arguments.check_ports(port, nodes, tls=tls)
        arguments.check_users(username, password, users)
        arguments.check_seed(seed)
        self._closed = False
        self._dialect = dialect_of(dialect).name
        self._lock = threading.RLock()
        self._bucket = BucketStore(
            bucket,
            nodes=nodes,
            vbuckets=vbuckets,
            replicas=replicas,
            release=Release.of(server_version if dialect == "dcp" else _BEFORE_DCP),
            clock=time.time,
            seed=seed,
            history=history,
            record=record,
        )
        self.credentials = ClusterCredentials(username, password or secrets.token_urlsafe(12))
        me = User(username, self.credentials.password)
        self._users = {user.name: user for user in (me, *users)}
        self._tls = Tls(host, certificate, key, client_ca) if tls else None
        self._faults = Faults(seed)
        handlers = HANDLERS_OF[self._dialect]
        self._handlers = handlers | {"stream_request": self._faults.on_request(handlers["stream_request"])}
        self._server = ClusterServer(self._lock, self._converse, self._faults)
        self._host = host
        # Those that nodes are to have; others take what is free.
        self._ports = {number: port + number for number in range(nodes)} if port else {}
        try:
            for node in self._bucket.nodes:
                self._open(node)
        except LocalProtocolError:
            self.close()
            raise
        self._server.start()

    # Being there.

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Cluster {self._bucket.name} on {', '.join(self.addresses)}>"

    def close(self) -> None:
        """Close all connections and doors. What there is can be looked at still, and changes no more."""
        self._closed = True
        self._server.stop()
        if self._tls is not None:
            self._tls.close()

    @property
    def addresses(self) -> list[str]:
        """host:port of every node that is there."""
        return [f"{_bracketed(node.host)}:{node.port}" for node in self._bucket.nodes if node.alive]

    @property
    def url(self) -> str:
        """What a client connects to, with the credentials in it."""
        option = "" if self._bucket.release.has_users else f"?sasl_mech_force={PLAIN}"
        return self._url("couchbase", self.addresses) + option

    @property
    def tls_url(self) -> str:
        """As `url`, for the doors with TLS; a client has to trust `ca_file`."""
        self._need_tls()
        ports = [(node.host, node.tls_port) for node in self._bucket.nodes if node.alive]
        return self._url("couchbases", [f"{_bracketed(host)}:{port}" for host, port in ports])

    @property
    def ca_file(self) -> str:
        """The path of the PEM file with the certificate that clients are to trust, as long as the cluster is there."""
        return self._need_tls().ca_file

    def _need_tls(self) -> Tls:
        if self._tls is None:
            raise LocalProtocolError("tls: the cluster was started without it: Cluster(tls=True)")
        return self._tls

    def _url(self, scheme: str, addresses: list[str]) -> str:
        user, password = (quote(text, safe="") for text in (self.credentials.username, self.credentials.password))
        return f"{scheme}://{user}:{password}@{','.join(addresses)}/{quote(self._bucket.name)}"

    def _open(self, node: ServerNode) -> None:
        """Let clients in: at the node's old address if it had one."""
        first = self._ports.get(node.number, 0)
        node.host, node.port = self._host, self._server.listen(node, self._host, node.port or first)
        if self._tls is not None:
            second = first and first + len(self._ports)
            node.tls_port = self._server.listen(node, self._host, node.tls_port or second, self._tls.context)

    def _converse(self, node: ServerNode) -> ServerConnection:
        return ServerConnection(
            self._bucket,
            node,
            self._handlers,
            self._dialect,
            users=self._users,
            now=time.monotonic(),
            writes=self._faults.writes,
        )

    # Documents.

    def upsert(
        self,
        key: str | bytes,
        value: bytes | str,
        *,
        collection: str = "_default._default",
        flags: int = 0,
        expiry: int = 0,
        datatype: int | None = None,
        xattrs: dict[str, str] | None = None,
    ) -> int:
        """Write a document; its seqno. `expiry` is in Unix seconds."""
        body = value.encode() if isinstance(value, str) else bytes(value)
        kind = int(Datatype.JSON if body[:1] in (b"{", b"[", b'"') else 0) if datatype is None else datatype
        if xattrs:
            body = join_xattrs(((name.encode(), text.encode()) for name, text in xattrs.items()), body)
            kind |= Datatype.XATTR
        check_document(_key(key), body, flags, expiry, kind)
        with self._changing():
            item = self._bucket.store(
                _key(key),
                body,
                collection_id=self._collection(collection),
                flags=flags,
                expiry=expiry,
                datatype=kind,
            )
        return item.seqno

    def delete(self, key: str | bytes, *, collection: str = "_default._default") -> int:
        """Delete a document; the seqno of that."""
        return self._remove(key, collection, "deletion")

    def expire(self, key: str | bytes, *, collection: str = "_default._default") -> int:
        """Let a document expire now; the seqno of that."""
        return self._remove(key, collection, "expiration")

    def get(self, key: str | bytes, *, collection: str = "_default._default") -> bytes | None:
        """The body of a document."""
        with self._changing():
            item = self._bucket.get(_key(key), self._collection(collection))
        return None if item is None else item.value

    def owner(self, key: str | bytes) -> int:
        """The number of the node that takes the writes of a key."""
        with self._lock:
            return self._bucket.owners[self._bucket.vbucket_of(_key(key))][0]

    def load(
        self,
        count: int,
        *,
        value_size: int = 100,
        seed: int = 0,
        prefix: str = "key-",
        collection: str = "_default._default",
        value: Callable[[int], bytes] | None = None,
    ) -> None:
        """Write many JSON documents, whose keys are numbered: of a size, or what `value` makes of a number.

        The same seed makes the same documents.
        """
        with self._changing():
            documents(self._bucket, count, value or padded(value_size, seed), prefix, self._collection(collection))

    def truth(self, collection: str = "_default._default") -> dict[bytes, StoredDocument]:
        """What a correct consumer must end up with: the documents of a collection, by their keys."""
        with self._lock:
            wanted = self._collection(collection)
            return {
                item.key: _truth(item, vbucket.number)
                for vbucket in self._bucket.actives()
                for item in vbucket
                if isinstance(item, StoredItem) and item.alive and item.collection_id == wanted
            }

    def history(self, collection: str = "_default._default") -> dict[bytes, list[DocumentVersion]]:
        """Every version that any consumer may have seen, by key, in the order of writing."""
        with self._lock:
            if self._bucket.record is None:
                raise LocalProtocolError("history: it is only known of a Cluster(record=True)")
            wanted = self._collection(collection)
            found: dict[bytes, list[DocumentVersion]] = {}
            for vbucket, vbuuid, item in self._bucket.record:
                if item.collection_id == wanted:
                    found.setdefault(item.key, []).append(_version(item, vbucket, vbuuid))
            return found

    def stats(self) -> dict[int, Traffic]:
        """What every node does for its clients, and has done so far, by its number."""
        with self._lock:
            return {node.number: self._server.traffic(node) for node in self._bucket.nodes}

    # Collections.

    def create_scope(self, name: str) -> None:
        with self._changing():
            self._bucket.change_manifest(*self._bucket.manifest.create_scope(name))

    def create_collection(self, scope: str, name: str, *, max_ttl: int | None = None) -> None:
        with self._changing():
            self._bucket.change_manifest(*self._bucket.manifest.create_collection(scope, name, max_ttl))

    def drop_collection(self, scope: str, name: str) -> None:
        with self._changing():
            self._bucket.change_manifest(*self._bucket.manifest.drop_collection(scope, name))

    def collection_ids(self) -> dict[str, int]:
        """The id of every collection, by its path."""
        with self._lock:
            return {
                f"{scope.name}.{collection.name}": collection.id
                for scope in self._bucket.manifest.scopes
                for collection in scope.collections
            }

    def drop_scope(self, name: str) -> None:
        with self._changing():
            self._bucket.change_manifest(*self._bucket.manifest.drop_scope(name))

    def _remove(self, key: str | bytes, collection: str, event: str) -> int:
        with self._changing():
            item = self._bucket.remove(_key(key), self._collection(collection), event=event)
        if item is None:
            raise LocalProtocolError(f"key {key!r}: there is no such document in {collection}")
        return item.seqno

    def _collection(self, path: str) -> int:
        scope, _, name = path.rpartition(".")
        return self._bucket.manifest.collection(scope or "_default", name).id

    def _changing(self) -> _Change:
        if self._closed:
            raise LocalProtocolError("the cluster is closed: start another one")
        return _Change(self._lock, self._server)


class _Change:
    """The lock, and word to the conversations when it is let go."""

    def __init__(self, lock: threading.RLock, server: ClusterServer) -> None:
        self._lock, self._server = lock, server

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        self._server.wake()


def _truth(item: StoredItem, vbucket: int) -> StoredDocument:
    return StoredDocument(body_of(item), item.cas, item.seqno, item.rev_seqno, item.flags, item.expiry, vbucket)


def _version(item: StoredItem, vbucket: int, vbuuid: int) -> DocumentVersion:
    numbers = item.cas, item.seqno, item.rev_seqno, item.flags, item.expiry
    return DocumentVersion(item.event, item.value, *numbers, vbucket, vbuuid)


def _key(key: str | bytes) -> bytes:
    return key.encode() if isinstance(key, str) else key


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
