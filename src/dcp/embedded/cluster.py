"""The embedded cluster: documents, collections, nodes, vbuckets and faults, as users see them."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote

from dcp.embedded import arguments, topology
from dcp.embedded.bucket import BucketStore, ServerNode
from dcp.embedded.connection import ServerConnection
from dcp.embedded.control.event_log import EventLog
from dcp.embedded.control.service import CONTROL, ControlService
from dcp.embedded.control.state import ClusterView
from dcp.embedded.document import body_of, check_document, encode_body, encode_key, encode_xattrs, is_json
from dcp.embedded.faults import FaultHandle, Faults
from dcp.embedded.faults.fault import Fault
from dcp.embedded.handlers import HANDLERS_OF
from dcp.embedded.load import load_documents, padded_values
from dcp.embedded.management.connection import ManagementConnection
from dcp.embedded.release import Release
from dcp.embedded.server import ClusterServer, Traffic
from dcp.embedded.store import StoredItem
from dcp.embedded.tls import Tls
from dcp.embedded.users import IssuedToken, User, make_token
from dcp.errors import UsageError
from dcp.wire.document import Datatype, join_xattrs
from dcp.wire.frame import dialect_of
from dcp.wire.mechanisms import PLAIN

# Release whose other commands the nodes of the older dialects answer.
_BEFORE_DCP = "3.0"
_DEFAULT_COLLECTION = "_default._default"


class StoredDocument(NamedTuple):
    """Document as a consumer must end up with it. `value` is the body; `expiry` is in Unix seconds, 0 for none."""

    value: bytes
    cas: int
    seqno: int
    rev_seqno: int
    flags: int
    expiry: int
    vbucket: int


class DocumentVersion(NamedTuple):
    """Version of a document that a consumer may have received, even if it was lost since.

    `event` is mutation, deletion or expiration. `value` is as stored, with xattrs. `vbuuid` is the history in which the
    version was written.
    """

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
    """User name and password of a cluster. The password does not appear in the repr."""

    username: str
    password: str

    def __repr__(self) -> str:
        return f"ClusterCredentials(username={self.username!r})"


class Cluster:
    """A cluster in memory that speaks the real protocol on local sockets.

        with Cluster(nodes=3, vbuckets=64, replicas=1) as cluster:
            cluster.upsert("key", b'{"a": 1}')
            client = dcp.connect(cluster.url)

    Methods may be called from any thread. After `close`, methods that change the cluster raise UsageError (also
    `get`, which may expire a document); those that only read still work.

    nodes: Number of nodes, 1 to 8.
    vbuckets: Number of vbuckets of the bucket, 1 to 32768. Servers have 1024 (or 128).
    replicas: Number of replicas of each vbucket, 0 to 3, besides the active copy; fewer than nodes.
    bucket: Name of the bucket.
    server_version: Release whose features and quirks the nodes show, "3.0" to "8.5".
    host: Host name or address to listen on.
    port: Port of the first node; the others take the next ones. After them follows one port of each node for TLS (with
        `tls`), one for the management service, and one for its TLS (with `tls`); the last one is the control service's.
        0 takes any free ports.
    username: Name of the user that `url` contains. Releases before 5.0 admit everybody.
    password: Password of that user; None generates one.
    users: Further users, with their privileges.
    tls: Listen for TLS as well, on a second port of each node.
    certificate: Path of the nodes' certificate (PEM). None generates one; this needs the package cryptography.
    key: Path of the private key of `certificate` (PEM).
    client_ca: Path of the certificates (PEM) that sign client certificates. A client with one of them needs no
        password: the common name in it is its user.
    seed: Seed of everything that is random otherwise, such as vbuuids and the choices of faults. None is random.
    history: Retain every version of every document, so that change streams can be requested.
    record_versions: Record every version of every document for `recorded_versions`. Each write takes memory.
    dialect: Protocol of the nodes: "dcp" (and TAP with it up to 4.6), or one of the older ones alone, "tap", "upr1"
        or "upr2". Nodes of an older dialect ignore `server_version` and admit everybody.

    Raises UsageError if an argument is not valid, a file cannot be used, or a port is taken.
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
        record_versions: bool = False,
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
        # The one lock of the cluster: held for every access to the bucket, the faults and the connections. It is
        # reentrant, so that several changes can be made as one.
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
            record=record_versions,
        )
        self.credentials = ClusterCredentials(username, password or secrets.token_urlsafe(12))
        first_user = User(username, self.credentials.password)
        self._users = {user.name: user for user in (first_user, *users)}
        self._tokens: dict[str, IssuedToken] = {}
        self._tls = Tls(host, certificate, key, client_ca) if tls else None
        self._faults = Faults(seed)
        handlers = HANDLERS_OF[self._dialect]
        self._handlers = {name: self._faults.on_request(handler) for name, handler in handlers.items()}
        self._server = ClusterServer(self._lock, self._faults, self._bucket.durable_writes)
        self._host = host
        # Ports that were asked for. Nodes that are added later take free ones.
        self._ports = {number: port + number for number in range(nodes)} if port else {}
        self._control_port = port + arguments.ports_of_nodes(nodes, tls=tls) if port else 0
        self._log = EventLog(self._bucket.clock)
        state = ClusterView(self._bucket, self._server, self._log, self.faults, self._page_addresses)
        self._control = ControlService(self, state)
        try:
            control = partial(self._new_management_connection, None)
            self._control_port = self._server.listen(None, control, host, self._control_port)
            for node in self._bucket.nodes:
                self._listen(node)
        except UsageError:
            self.close()
            raise
        self._server.start()

    # Lifetime and addresses.

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Cluster {self._bucket.name} on {', '.join(self.addresses)}>"

    def close(self) -> None:
        """Close all connections and stop listening. Documents can still be read; closing twice does nothing."""
        self._closed = True
        self._server.stop()
        if self._tls is not None:
            self._tls.close()

    @property
    def addresses(self) -> list[str]:
        """`host:port` of every node that is up."""
        return [f"{_bracketed(node.host)}:{node.port}" for node in self._bucket.nodes if node.alive]

    @property
    def url(self) -> str:
        """Connection string for clients, with user name and password in it."""
        # Servers before 5.0 offer PLAIN only, which clients do not choose by themselves without TLS.
        option = "" if self._bucket.release.has_users else f"?sasl_mech_force={PLAIN}"
        return self._url("couchbase", self.addresses) + option

    @property
    def tls_url(self) -> str:
        """Connection string for TLS; clients have to trust `ca_file`. Raises UsageError without `tls=True`."""
        return self._url("couchbases", self._tls_addresses())

    @property
    def tls_url_without_user(self) -> str:
        """Connection string for TLS without user and password, for clients with a token or a certificate."""
        return f"couchbases://{','.join(self._tls_addresses())}/{quote(self._bucket.name)}"

    def _tls_addresses(self) -> list[str]:
        self._require_tls()
        return [f"{_bracketed(node.host)}:{node.tls_port}" for node in self._bucket.nodes if node.alive]

    @property
    def management_url(self) -> str:
        """Address of the management service (HTTP) of the first node that is up, without user and password.

        Every node has one: `{management_url}/pools/default` lists them. Clients authenticate with the users of the
        cluster.
        """
        return self._management_url("http", [node.management_port for node in self._bucket.nodes if node.alive])

    @property
    def tls_management_url(self) -> str:
        """Address of the management service for TLS (HTTPS); clients have to trust `ca_file`.

        Raises UsageError without `tls=True`.
        """
        self._require_tls()
        return self._management_url("https", [node.tls_management_port for node in self._bucket.nodes if node.alive])

    def _management_url(self, scheme: str, ports: list[int]) -> str:
        if not ports:
            raise UsageError("no node is up: recover one first")
        return f"{scheme}://{_bracketed(self._host)}:{ports[0]}"

    @property
    def page_url(self) -> str:
        """Address of the page that shows the cluster to a browser, without user and password.

        The management service of every node that is up shows it as well.
        """
        return f"http://{_bracketed(self._host)}:{self._control_port}/"

    @property
    def control_url(self) -> str:
        """Base of the control service (HTTP): `POST {control_url}/failover` with `{"node": 1}` is `failover(1)`.

        It is there whatever nodes are down. Clients authenticate with a user that has all privileges.
        """
        return f"{self.page_url}{CONTROL}"

    def _page_addresses(self) -> dict[str, Any]:
        return {"addresses": self.addresses, "control_port": self._control_port}

    @property
    def ca_file(self) -> str:
        """Path of the certificate (PEM) that clients have to trust. A generated one is removed by `close`."""
        return self._require_tls().ca_file

    def issue_token(self, username: str | None = None, *, lifetime: float = 3600.0) -> str:
        """Return a token with which a user may log in over TLS, as from the identity provider of a cluster.

        It is a JSON web token without a real signature. A connection whose token has expired gets AUTH_STALE for every
        command, and is closed at its next answer to a noop.

        username: Name of the user; None for that of `url`.
        lifetime: Seconds until the token expires.

        Raises UsageError without `tls=True`, before release 8.1, and for an unknown user.
        """
        self._require_tls()
        if not self._bucket.release.has_tokens:
            raise UsageError('server_version: expected "8.1" or newer, for tokens')
        user = self._users.get(self.credentials.username if username is None else username)
        if user is None:
            raise UsageError(f"username: expected one of the cluster's users, found {username!r:.100}")
        arguments.check_seconds("lifetime", lifetime)
        with self._lock:
            expires = self._bucket.clock() + lifetime
            token = make_token(user.name, expires)
            self._tokens[token] = IssuedToken(user, expires)
        return token

    def _require_tls(self) -> Tls:
        if self._tls is None:
            raise UsageError("tls: the cluster was started without it: Cluster(tls=True)")
        return self._tls

    def _url(self, scheme: str, addresses: list[str]) -> str:
        user, password = (quote(text, safe="") for text in (self.credentials.username, self.credentials.password))
        return f"{scheme}://{user}:{password}@{','.join(addresses)}/{quote(self._bucket.name)}"

    def _listen(self, node: ServerNode) -> None:
        """Accept clients of a node, at its old address if it had one."""
        data, management = partial(self._new_connection, node), partial(self._new_management_connection, node)
        ports = self._ports_of(node.number)
        node.host, host, listen = self._host, self._host, self._server.listen
        node.port = listen(node, data, host, node.port or next(ports))
        if self._tls is not None:
            node.tls_port = listen(node, data, host, node.tls_port or next(ports), self._tls.context)
        node.management_port = listen(node, management, host, node.management_port or next(ports))
        if self._tls is not None:
            port = node.tls_management_port or next(ports)
            node.tls_management_port = listen(node, management, host, port, self._tls.context)

    def _ports_of(self, number: int) -> Iterator[int]:
        """Yield the ports for a node that were asked for, one after the other; 0 where any will do."""
        first = self._ports.get(number, 0)
        return itertools.count(first, len(self._ports)) if first else itertools.repeat(0)

    def _new_management_connection(self, node: ServerNode | None, encrypted: bool) -> ManagementConnection:
        return ManagementConnection(self._bucket, node, self._users, self._control)

    def _new_connection(self, node: ServerNode, encrypted: bool) -> ServerConnection:
        return ServerConnection(
            self._bucket,
            node,
            self._handlers,
            self._dialect,
            users=self._users,
            tokens=self._tokens,
            encrypted=encrypted,
            now=time.monotonic(),
            may_write=self._faults.may_write,
        )

    # Documents.

    def upsert(
        self,
        key: str | bytes,
        value: bytes | str | dict[str, Any] | list[Any],
        *,
        collection: str = _DEFAULT_COLLECTION,
        flags: int = 0,
        expiry: int = 0,
        datatype: int | None = None,
        xattrs: dict[str, str | dict[str, Any] | list[Any]] | None = None,
    ) -> int:
        """Write a document and return its seqno.

        key: Key, 1 to 250 bytes.
        value: Body, as bytes or text, or a dict or list to store as JSON; or, with a `datatype` that says so, the
            stored bytes: compressed or with xattrs.
        collection: Path of the collection, `scope.collection`.
        flags: Flags of the application, 32 bits.
        expiry: Unix seconds at which the document expires, 0 for never. SDKs take seconds from now.
        datatype: Datatype bits; None detects JSON.
        xattrs: Extended attributes by name: JSON texts, or dicts or lists to store as JSON.

        Raises UsageError if no server would store this document, the collection does not exist, or the node that owns
        the vbucket is down.
        """
        body = encode_body(value)
        kind = int(Datatype.JSON if is_json(body) else 0) if datatype is None else datatype
        if pairs := encode_xattrs({} if xattrs is None else xattrs):
            body = join_xattrs(pairs, body)
            kind |= Datatype.XATTR
        check_document(encode_key(key), body, flags, expiry, kind)
        with self._changing():
            item = self._bucket.store(
                encode_key(key),
                body,
                collection_id=self._collection(collection),
                flags=flags,
                expiry=expiry,
                datatype=kind,
            )
        return item.seqno

    def delete(self, key: str | bytes, *, collection: str = _DEFAULT_COLLECTION) -> int:
        """Delete a document and return the seqno of the deletion. UsageError if there is no document."""
        return self._remove(key, collection, "deletion")

    def expire(self, key: str | bytes, *, collection: str = _DEFAULT_COLLECTION) -> int:
        """Expire a document now and return the seqno of the expiration. UsageError if there is no document."""
        return self._remove(key, collection, "expiration")

    def get(self, key: str | bytes, *, collection: str = _DEFAULT_COLLECTION) -> bytes | None:
        """Return a document as it is stored, xattrs in a binary section before the body; None if there is none."""
        # A read is a change: it expires a document whose expiry has passed.
        with self._changing():
            item = self._bucket.get(encode_key(key), self._collection(collection))
        return None if item is None else item.value

    def owner(self, key: str | bytes) -> int:
        """Return the number of the node that owns the vbucket of a key; -1 if no node does."""
        with self._lock:
            return self._bucket.owners[self._bucket.vbucket_of(encode_key(key))][0]

    def load(
        self,
        count: int,
        *,
        value_size: int = 100,
        seed: int = 0,
        prefix: str = "key-",
        collection: str = _DEFAULT_COLLECTION,
        value: Callable[[int], bytes] | None = None,
    ) -> None:
        """Write many JSON documents at once; streams read them from disk.

        count: Number of documents. Their keys are `prefix` and a number from 0 on with 10 digits.
        value_size: Size of each body in bytes. Very small ones are a little larger, since they are JSON.
        seed: Seed of the bodies: the same seed gives the same documents.
        prefix: Beginning of all keys.
        collection: Path of the collection, `scope.collection`.
        value: Function that returns the body of a number, instead of `value_size` and `seed`.
        """
        with self._changing("load", count=count, collection=collection):
            arguments.check_count("count", count, "documents")
            arguments.check_count("value_size", value_size, "bytes")
            arguments.check_seed(seed)
            check_document(encode_key(prefix) + bytes(10), b"", 0, 0, 0)
            if value is not None and not callable(value):
                raise UsageError(f"value: expected a function of a number, found {value!r:.100}")
            make_value = value or padded_values(value_size, seed)
            load_documents(self._bucket, count, make_value, encode_key(prefix), self._collection(collection))

    def truth(self, collection: str = _DEFAULT_COLLECTION) -> dict[bytes, StoredDocument]:
        """Return the documents of a collection by key: the state that a correct consumer must end up with."""
        with self._lock:
            wanted = self._collection(collection)
            return {
                item.key: _document(item, vbucket.number)
                for vbucket in self._bucket.actives()
                for item in vbucket
                if isinstance(item, StoredItem) and item.alive and item.collection_id == wanted
            }

    def recorded_versions(self, collection: str = _DEFAULT_COLLECTION) -> dict[bytes, list[DocumentVersion]]:
        """Return all versions that any consumer may have received, by key, in the order in which they were written.

        Includes versions that a failover has lost. Raises UsageError without `record_versions=True`.
        """
        with self._lock:
            if self._bucket.recorded is None:
                raise UsageError("recorded_versions: expected Cluster(record_versions=True), found it off")
            wanted = self._collection(collection)
            found: dict[bytes, list[DocumentVersion]] = {}
            for vbucket, vbuuid, item in self._bucket.recorded:
                if item.collection_id == wanted:
                    found.setdefault(item.key, []).append(_version(item, vbucket, vbuuid))
            return found

    def stats(self) -> dict[int, Traffic]:
        """Return the traffic of every node by its number: open connections and streams, and totals."""
        with self._lock:
            return {node.number: self._server.traffic(node) for node in self._bucket.nodes}

    def purge(self, before: int | None = None) -> int:
        """Purge tombstones, as servers do some days after deletions, and return how many.

        `before` (Unix seconds) spares those that were created later. The purge seqno of the vbuckets rises, so that
        consumers with an older position have to roll back to 0.
        """
        arguments.check_count("before", 0 if before is None else before, "seconds")
        with self._changing("purge", before=before):
            return self._bucket.purge(before)

    def run_pager(self) -> int:
        """Expire all documents whose expiry has passed, and return how many.

        Without it, as on servers between two runs of the pager, a document expires when it is read.
        """
        with self._changing("run_pager"):
            return self._bucket.expire_due()

    def snapshot(self) -> None:
        """Move all items from memory to disk: streams that have not read them yet get a snapshot from disk."""
        with self._changing("snapshot"):
            self._bucket.evict_checkpoints()

    def _remove(self, key: str | bytes, collection: str, event: str) -> int:
        with self._changing():
            item = self._bucket.remove(encode_key(key), self._collection(collection), event=event)
        if item is None:
            raise UsageError(f"key {key!r}: there is no such document in {collection}")
        return item.seqno

    # Collections.

    def create_scope(self, name: str) -> None:
        """Create a scope. UsageError if it exists or servers do not accept the name."""
        with self._changing("create_scope", name=name):
            self._bucket.change_manifest(*self._bucket.manifest.create_scope(name))

    def create_collection(self, scope: str, name: str, *, max_ttl: int | None = None) -> None:
        """Create a collection in a scope.

        `max_ttl` is the longest time in seconds after which a document expires; None for no limit. Raises
        UsageError if the scope does not exist, the collection exists or servers do not accept the name.
        """
        with self._changing("create_collection", scope=scope, name=name, max_ttl=max_ttl):
            self._bucket.change_manifest(*self._bucket.manifest.create_collection(scope, name, max_ttl))

    def drop_collection(self, scope: str, name: str) -> None:
        """Drop a collection with its documents. UsageError if it does not exist."""
        with self._changing("drop_collection", scope=scope, name=name):
            self._bucket.change_manifest(*self._bucket.manifest.drop_collection(scope, name))

    def drop_scope(self, name: str) -> None:
        """Drop a scope with its collections. UsageError if it does not exist or is the default scope."""
        with self._changing("drop_scope", name=name):
            self._bucket.change_manifest(*self._bucket.manifest.drop_scope(name))

    def collection_ids(self) -> dict[str, int]:
        """Return the id of every collection by its path, `scope.collection`."""
        with self._lock:
            return {
                f"{scope.name}.{collection.name}": collection.id
                for scope in self._bucket.manifest.scopes
                for collection in scope.collections
            }

    def _collection(self, path: str) -> int:
        if not isinstance(path, str):
            raise UsageError(f"collection: expected text such as scope.collection, found {path!r:.100}")
        scope, _, name = path.rpartition(".")
        return self._bucket.manifest.collection(scope or "_default", name).id

    # Nodes. Each raises UsageError if the change is not possible in the present state of the cluster.

    def failover(self, node: int, lose: int | None = None) -> None:
        """Fail a node over: remove it and promote replicas. A vbucket without a replica has no owner afterwards.

        As servers do, refuses to fail over the only node that is up.

        `lose` is the number of the node's last writes that are lost; None loses those that the replicas have not
        received. Consumers that have received lost writes have to roll back.
        """
        with self._changing("failover", node=node, lose=lose):
            topology.failover(self._bucket, node, lose)
            self._server.stop_listening(self._bucket.nodes[node], disconnect=True)

    def crash(self, node: int) -> None:
        """Stop a node. Its vbuckets are not available before it recovers or is failed over."""
        with self._changing("crash", node=node):
            topology.crash(self._bucket, node)
            self._server.stop_listening(self._bucket.nodes[node], disconnect=True)

    def recover(self, node: int, lose: int = 0) -> None:
        """Restart a crashed node at its old address, without its last `lose` writes.

        Its vbuckets get new histories: consumers that have received lost writes have to roll back.
        """
        with self._changing("recover", node=node, lose=lose):
            topology.recover(self._bucket, node, lose)
            self._listen(self._bucket.nodes[node])

    def restart(self, node: int) -> None:
        """Restart a node cleanly, at its old address: nothing is lost, and all histories go on.

        Its clients are disconnected. Up to 3.1, TAP never announces the small vbuckets of such a node again.
        """
        with self._changing("restart", node=node):
            topology.restart(self._bucket, node)
            self._server.stop_listening(self._bucket.nodes[node], disconnect=True)
            self._listen(self._bucket.nodes[node])

    def rebalance_in(self) -> int:
        """Add a node, move its share of the vbuckets to it, and return its number."""
        with self._changing("rebalance_in"):
            node = topology.rebalance_in(self._bucket)
            self._listen(node)
        return node.number

    def rebalance_out(self, node: int) -> None:
        """Move all vbuckets of a node to the others. Its streams end, and new clients are refused."""
        with self._changing("rebalance_out", node=node):
            topology.rebalance_out(self._bucket, node)
            self._server.stop_listening(self._bucket.nodes[node], disconnect=False)

    def set_persistence(self, node: int, at_once: bool) -> None:
        """Let a node persist its writes at once (the default), or not at all until this is called again."""
        arguments.check_flag("at_once", at_once)
        with self._changing("set_persistence", node=node, at_once=at_once):
            self._bucket.set_persistence(topology.live_node(self._bucket, node), at_once)

    # Vbuckets.

    def promote(self, vbucket: int, node: int) -> None:
        """Make the replica on a node the active copy. Writes that it has not received are lost."""
        with self._changing("promote", vbucket=vbucket, node=node):
            topology.promote(self._bucket, vbucket, node)

    def move(self, vbucket: int, node: int) -> None:
        """Move the active copy of a vbucket to another node, with its history. Streams from the old one end."""
        with self._changing("move", vbucket=vbucket, node=node):
            topology.move(self._bucket, vbucket, node)

    def set_lag(self, writes: int) -> None:
        """Let replicas lag the active copies by a number of writes for each vbucket; 0 lets them catch up."""
        with self._changing("set_lag", writes=writes):
            self._bucket.set_replica_lag(writes)

    # Faults.

    def fault(self, name: str, **options: object) -> FaultHandle:
        """Start a fault and return its handle, which is a context manager: the fault ends with the block.

        name: Name of the fault; `dcp.embedded.FAULTS` has all of them, and `describe_faults()` their options.
        options: Options of the fault, as Python values or as text (`vbuckets="0,4-7"`, `rate="64k"`).

        Raises UsageError if the fault or an option is unknown, or an option has a value with which it never acts.
        """
        with self._changing("fault", name=name, **options):
            fault = self._faults.add(name, options, len(self._bucket.nodes), len(self._bucket.owners))
        return self._handle(fault)

    def faults(self) -> list[FaultHandle]:
        """Return the handles of all faults that were started and not cleared."""
        return [self._handle(fault) for fault in self._faults.active]

    def clear_fault(self, number: int) -> None:
        """End the fault with this number, which its handle has. UsageError if there is none."""
        for handle in self.faults():
            if handle.number == number:
                return handle.clear()
        raise UsageError(f"number: expected that of an active fault, found {number!r:.100}")

    def _handle(self, fault: Fault) -> FaultHandle:
        return FaultHandle(fault, lambda: self._clear(fault))

    def _clear(self, fault: Fault) -> None:
        # Works on a closed cluster as well: a fault's `with` block may end after that of its cluster.
        with self._lock:
            if self._faults.remove(fault, self._server.links):
                self._log.add("clear_fault", {"number": fault.number, "name": fault.name})
        self._server.wake()

    def _changing(self, method: str = "", /, **arguments: object) -> _Changing:
        """Return the context of a change, which is logged as a call of `method` unless that is empty.

        Raises UsageError if the cluster is closed.
        """
        if self._closed:
            raise UsageError("the cluster is closed: start another one")
        return _Changing(self._lock, self._server, self._log, method, arguments)


class _Changing:
    """Context that holds the lock, and wakes the server's thread after releasing it.

    In this order: a thread that is woken up while the lock is held would only wait for it. Not a generator, which would
    take a fifth of the time of a write.
    """

    def __init__(
        self, lock: threading.RLock, server: ClusterServer, log: EventLog, method: str, arguments: dict[str, object]
    ) -> None:
        self._lock, self._server, self._log = lock, server, log
        self._method, self._arguments = method, arguments

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._method and kind is None:
            self._log.add(self._method, self._arguments)
        self._lock.release()
        self._server.wake()


def _document(item: StoredItem, vbucket: int) -> StoredDocument:
    return StoredDocument(body_of(item), item.cas, item.seqno, item.rev_seqno, item.flags, item.expiry, vbucket)


def _version(item: StoredItem, vbucket: int, vbuuid: int) -> DocumentVersion:
    numbers = item.cas, item.seqno, item.rev_seqno, item.flags, item.expiry
    return DocumentVersion(item.event, item.value, *numbers, vbucket, vbuuid)


def _bracketed(host: str) -> str:
    """Return a host as it stands before a port: IPv6 addresses need brackets."""
    return f"[{host}]" if ":" in host else host
