"""The client: finds a cluster, keeps its map, and streams its changes."""

from __future__ import annotations

import inspect
import logging
import os
import socket
import ssl
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from dcp.checkpoint import Checkpoint
from dcp.client import arguments
from dcp.client import url as urls
from dcp.client.bounds import Bounds
from dcp.client.call import Caller
from dcp.client.dialects import DCP, TAP, Manner, check_options, check_stream, manner_of, tap_end
from dcp.client.follower import Follower
from dcp.client.link import Limits, Link
from dcp.client.rollback import EVENT, PURGED, rollback_rows, with_rollback
from dcp.client.srv import lookup
from dcp.client.stats import Stats, together
from dcp.client.stream import ChangeStream
from dcp.client.terms import Terms
from dcp.client.transport import Security, connect
from dcp.client.vbucket import Vbucket
from dcp.client.watcher import Watcher
from dcp.client.when import Time
from dcp.cluster import ClusterMap, Node
from dcp.columns.cut import Cut, with_cas
from dcp.columns.decoder import Decoder
from dcp.errors import DcpError, LocalProtocolError, RemoteProtocolError, ServerError, TransportError
from dcp.position import FailoverLog
from dcp.session.handshake import Wishes
from dcp.session.sasl import Credentials
from dcp.tree import Tree
from dcp.wire.body import JSON
from dcp.wire.dcp_body import StreamFilter
from dcp.wire.memcached import SEQNOS, Status, VbucketState

log = logging.getLogger("dcp.client")

_NO_COLLECTIONS = (Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED, Status.NO_COLLECTIONS_MANIFEST)

DEFAULTS: dict[str, Any] = {
    "bootstrap_timeout": 10.0,
    # As the SDKs do.
    "config_poll_interval": 2.5,
    "kv_connect_timeout": 10.0,
    "network": "auto",
    "dcp_buffer_size": 20 << 20,
    "noop_interval": 120.0,
    "compression": "on",
    "dialect": DCP,
    "stats_interval": 10.0,
    "tls_verify": True,
}


class Client:
    """Knows a bucket of a cluster. `stream` follows its changes; `close`, or `with`, ends everything."""

    def __init__(self, url: str, **options: Any) -> None:
        target = urls.parse(url)
        self._target = target
        given = {**target.options, **urls.checked(options)}
        self._options = {**DEFAULTS, **given}
        check_options(self.dialect, given)
        self._credentials = Credentials(target.username, target.password) if target.username else None
        self._context = tls_context(self._options) if target.tls else None
        self._lock = threading.Lock()
        self._closed = False
        self._streams: list[ChangeStream] = []
        self._past = Stats(target.bucket)
        self._name = f"dcp-arrow {os.getpid()} {uuid.uuid4().hex[:12]}"
        self._links = 0
        self._caller: Caller | None = None
        self._map: ClusterMap
        found = lookup(target.srv, self._options["bootstrap_timeout"]) if target.srv else ()
        self._seeds = found or target.addresses
        self._bootstrap()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client {self._target}>"

    def close(self) -> None:
        """End all streams, and close all connections."""
        self._closed = True
        for stream in self._streams:
            stream.close()
        with self._lock:
            self._hang_up()

    @property
    def dialect(self) -> str:
        """What streams speak: `dcp`, or what was before it, `tap`, `upr1` or `upr2`."""
        return str(self._options["dialect"])

    # The map.

    @property
    def map(self) -> ClusterMap:
        """The newest map that is known."""
        return self._map

    def refresh(self) -> ClusterMap:
        """Fetch the map, from any node that answers."""
        with self._lock:
            self._bootstrap()
            return self._map

    def learn(self, config: Any, host: str) -> None:
        """A node told a map."""
        if isinstance(config, dict) and "nodeLocator" in config:
            self._take_map(ClusterMap.parse(JSON.encode(config), host.rpartition(":")[0], None, self._network))

    def _take_map(self, found: ClusterMap) -> None:
        known = getattr(self, "_map", None)
        if known is None or found.newer_than(known):
            if known is not None and found.change_since(known).recreated:
                raise ServerError(
                    f"bucket {found.name!r} was deleted and made anew: no position holds any more; connect again, and "
                    "stream from the beginning"
                )
            self._map = found
            log.info(
                "bucket %s: map %d.%d, %d vbuckets on %s",
                found.name,
                found.epoch,
                found.revision,
                found.num_vbuckets,
                ", ".join(map(str, found.nodes)),
            )

    @property
    def _network(self) -> Any:
        return self._options["network"]

    # Connections.

    def _wishes(self, name: str, **more: Any) -> Wishes:
        return Wishes(
            name,
            self._target.bucket,
            self._credentials,
            self._options.get("sasl_mech_force"),
            self._target.tls,
            window=self._options["dcp_buffer_size"],
            noop_interval=max(1, round(self._options["noop_interval"])),
            snappy=self._options["compression"] != "off",
            **more,
        )

    def _connect(self, host: str, port: int) -> socket.socket:
        if self._closed:
            raise LocalProtocolError("the client is closed: connect again")
        return connect(host, port, self._options["kv_connect_timeout"], self._context)

    def _bootstrap(self) -> None:
        """Any node that tells the map will do: first those of the map, then those of the url."""
        self._hang_up()
        problems: list[DcpError] = []
        for host, port in self._places():
            try:
                self._caller = self._call(host, port)
                self._take_map(self._fetch(self._caller))
                return
            except (TransportError, RemoteProtocolError) as error:
                self._hang_up()
                problems.append(error)
                log.info("%s", error)
        if len(problems) == 1:
            raise problems[0]
        raise TransportError("no node can be reached: " + "; ".join(map(str, problems)))

    def _places(self) -> Iterable[tuple[str, int]]:
        seen = set()
        known = getattr(self, "_map", None)
        for node in known.nodes if known is not None else ():
            port = node.address.tls_port if self._target.tls else node.address.port
            if port is not None:
                seen.add((node.address.host, port))
                yield node.address.host, port
        for address in self._seeds:
            if (address.host, address.port) not in seen:
                yield address.host, address.port

    def _call(self, host: str, port: int, *, stream: bool = False) -> Caller:
        wishes = self._wishes(f"{self._name} commands", stream=stream)
        return Caller(self._connect(host, port), wishes, host, port, self._options["bootstrap_timeout"])

    def _fetch(self, caller: Caller) -> ClusterMap:
        answer = caller.ask("get_cluster_config")
        if answer.status:
            raise ServerError(f"{caller.where}: the node does not tell the cluster map", answer.status)
        return ClusterMap.parse(answer.value, caller.host, caller.port, self._network)

    def _hang_up(self) -> None:
        if self._caller is not None:
            self._caller.close()
            self._caller = None

    def _ask(self, name: str, **parts: Any) -> Any:
        with self._lock:
            if self._caller is None:
                self._bootstrap()
            assert self._caller is not None
            try:
                return self._caller.ask(name, **parts)
            except TransportError:
                self._bootstrap()
                return self._caller.ask(name, **parts)

    # Streams.

    def stream(
        self,
        start: Time | Checkpoint = "beginning",
        end: Time | Checkpoint | None = None,
        *,
        scope: str | None = None,
        collections: Iterable[str] | None = None,
        vbuckets: Iterable[int] | None = None,
        columns: Iterable[str] | None = None,
        batch_rows: int = 65_536,
        batch_bytes: int = 4 << 20,
        linger: float = 0.02,
        on_rollback: str = "replay",
        ignore_purged: bool = False,
        persisted_only: bool = False,
        persisted_within: float = 60.0,
        out_of_order: bool = False,
        history: bool = False,
        **decoding: Any,
    ) -> ChangeStream:
        """Follow the changes.

        start: "beginning", "now", a checkpoint to go on from, or a time. end: None for ever, "now" for what
        there is, a checkpoint, or a time that is over. Times are a datetime or its ISO text, with a zone: only
        changes that by their CAS were made at `start` or later, and before `end`. scope, collections: names;
        only these. vbuckets: only these, to share the work. columns, and what else `Decoder` has: how batches
        look. batch_rows, batch_bytes, linger: a batch is handed out at so many rows or bytes, or when its
        first row is so many seconds old.
        on_rollback: "replay", where a row with the event `rollback` comes before what is sent again, or
        "fail" with a RollbackError.
        ignore_purged: go on from a checkpoint although deletions since may be forgotten, where otherwise the vbucket
        is rolled back to 0 and comes whole; a row with the event `purged` says that some may never come.
        persisted_only: hand out only what every copy of its vbucket has on disk, so that no failover takes it
        back. What has to wait for longer than `persisted_within` seconds is a TransportError that names the
        copies which lag.
        out_of_order: let nodes send what a collection has in any order at first, which may be faster. Positions of
        a vbucket stay at its beginning until that is whole.
        history: every version of a document that is kept, not only the last one of a snapshot.
        """
        arguments.check_decoding(decoding, _STREAM_OPTIONS)
        arguments.check_limits(batch_rows, batch_bytes, linger)
        if on_rollback not in ("replay", "fail"):
            raise LocalProtocolError(f"on_rollback: expected replay or fail, found {on_rollback!r}")
        if out_of_order and persisted_only:
            raise LocalProtocolError(
                "out_of_order: expected it without persisted_only, which waits for whole snapshots"
            )
        named = None if columns is None else arguments.names("columns", columns)
        asked = {"scope": scope is not None, "collections": collections is not None}
        asked |= {"persisted_only": persisted_only, "ignore_purged": ignore_purged}
        asked |= {"out_of_order": out_of_order, "history": history}
        check_stream(self.dialect, [name for name, value in asked.items() if value])
        wanted = self._wanted(vbuckets)
        chosen, empty = self._filter(scope, collections)
        bounds = Bounds(self, wanted, chosen)
        if self.dialect == TAP:
            ends: Mapping[int, int] = dict.fromkeys(wanted, tap_end(start, end))
            begins = bounds.begin("beginning", empty)
        else:
            begins, ends = bounds.begin(start, empty), bounds.end(end)
        cut = None
        if bounds.found:
            if decoding.get("views"):
                raise LocalProtocolError("views: expected False for a stream with a time, whose rows are cut there")
            cut = Cut(Decoder(self.dialect, named, **decoding).schema, bounds.since, bounds.until)
            named = named and with_cas(named)

        dialect = self.dialect

        def decoder(has_collections: bool) -> Decoder:
            return Decoder(dialect, named, collections=has_collections, also=(EVENT, PURGED), **decoding)

        limits = Limits(batch_rows, batch_bytes, linger)
        manner = manner_of(self.dialect, start)
        wishes = {"out_of_order": out_of_order, "history": history, "xattrs": named is None or "xattrs" in named}
        opener = self.opener(decoder, limits, manner, **wishes)
        events = (*decoder(True).plan.events,)
        rollbacks = rollback_rows(Decoder(with_rollback(self.dialect), named, events=events, **decoding))
        terms = Terms(chosen, rollbacks, on_rollback, ignore_purged, persisted_within if persisted_only else None)
        vbuckets_ = [Vbucket(number, begins[number], ends[number], bounds.purged(number)) for number in wanted]
        follower = Follower(opener, vbuckets_, terms)
        watcher = Watcher(opener, follower, self._options["stats_interval"], _follows(chosen, scope))
        log.info("bucket %s: following %d vbuckets from %s", empty.bucket, len(wanted), _shown(start))
        stream = ChangeStream(self, follower, empty, watcher, bounds.found, cut)
        if manner.resumes:
            # Where nothing has a number, nobody can tell how far behind it is.
            watcher.start()
        self._forget_closed()
        self._streams.append(stream)
        return stream

    def stats(self) -> Stats:
        """What came so far, and how all streams stand now. Lag and stuck vbuckets are as new as `stats_interval`."""
        return together(self._target.bucket, [self._past, *(one.stats(self._target.bucket) for one in self._streams)])

    def _forget_closed(self) -> None:
        """Of streams that are over only what they did is kept."""
        over = [one.stats(self._target.bucket) for one in self._streams if one.closed]
        self._past = together(self._target.bucket, [self._past, *over])
        self._streams = [one for one in self._streams if not one.closed]

    # Questions.

    def call(self, node: Node, *, stream: bool = False) -> Caller:
        """A connection of its own to a node, to ask it commands; `stream`: opened for DCP."""
        return self._call(node.address.host, self._port(node), stream=stream)

    def positions(
        self,
        start: Time | Checkpoint = "beginning",
        *,
        scope: str | None = None,
        collections: Iterable[str] | None = None,
        vbuckets: Iterable[int] | None = None,
    ) -> Checkpoint:
        """Where a stream that starts there begins, for each vbucket; no values are streamed."""
        wanted = self._wanted(vbuckets)
        chosen, empty = self._filter(scope, collections)
        # Vbuckets that nobody asks for stay where they are.
        known = start.by_vbucket() if isinstance(start, Checkpoint) else {}
        known |= Bounds(self, wanted, chosen).begin(start, empty)
        return replace(empty, positions=tuple(known[number] for number in sorted(known)))

    def server_version(self) -> str:
        """That of the node that commands go to."""
        return str(self._ask("version").value, errors="replace")

    def high_seqnos(self, collection_id: int | None = None) -> dict[int, int]:
        """The last seqno of every vbucket, or of a collection in it, from the nodes that have them now.

        Vbuckets that never had anything of the collection may be missing.
        """
        fields = {"state": int(VbucketState.ACTIVE)}
        fields |= {} if collection_id is None else {"collection_id": collection_id}
        found: dict[int, int] = {}
        for node in self.refresh().nodes:
            with self.call(node) as caller:
                answer = caller.ask("get_all_vb_seqnos", fields=fields)
            if answer.status:
                raise ServerError(f"{node}: no seqnos", answer.status)
            found |= {row.vbucket: row.seqno for row in SEQNOS.decode(answer.value, {})}
        return dict(sorted(found.items()))

    def failover_logs(self, vbuckets: Iterable[int] | None = None) -> dict[int, FailoverLog]:
        """The histories of each vbucket, or of these. Those that no node has now are missing."""
        wanted = set(self._wanted(vbuckets))
        found: dict[int, FailoverLog] = {}
        for node in self._map.nodes:
            mine = sorted(wanted.intersection(self._map.vbuckets_of(node)))
            if not mine:
                continue
            with self.call(node) as caller:
                answers = caller.ask_all("kv_get_failover_log", [{"vbucket": number} for number in mine])
            for number, answer in zip(mine, answers, strict=True):
                if not answer.status:
                    found[number] = FailoverLog.of(answer.body())
        return found

    def collections(self) -> dict[int, str]:
        """The paths of all collections, by their ids; none from a server that has no collections."""
        answer = self._ask("get_collections_manifest")
        if answer.status in _NO_COLLECTIONS:
            return {}
        if answer.status:
            raise ServerError("the server does not tell its collections", answer.status)
        return dict(_paths(Tree.parse(answer.value, "collections manifest", RemoteProtocolError)))

    def _wanted(self, vbuckets: Iterable[int] | None) -> list[int]:
        return arguments.vbuckets(vbuckets, self._map.num_vbuckets)

    def _filter(self, scope: str | None, collections: Iterable[str] | None) -> tuple[StreamFilter | None, Checkpoint]:
        """What is asked of the producer, and a checkpoint of nothing that says for what it is one."""
        cluster_map = self._map
        whole = Checkpoint((), cluster_map.num_vbuckets, cluster_map.name, cluster_map.uuid)
        if scope is not None and not isinstance(scope, str):
            raise LocalProtocolError(f"scope: expected a name, found {scope!r:.100}")
        if scope is None and collections is None:
            return None, whole
        if collections is None:
            number = self._id("get_scope_id", scope or "", "scope_id")
            return StreamFilter(scope=number), replace(whole, scope=number)
        paths = [
            name if "." in name else f"{scope or '_default'}.{name}"
            for name in arguments.names("collections", collections)
        ]
        ids = tuple(sorted(self._id("get_collection_id", path, "collection_id") for path in paths))
        if not ids:
            raise LocalProtocolError("collections: expected one name or more, found none")
        return StreamFilter(collections=ids), replace(whole, collections=ids)

    def _id(self, command: str, path: str, field: str) -> int:
        answer = self._ask(command, value=path.encode())
        if answer.status in (Status.UNKNOWN_SCOPE, Status.UNKNOWN_COLLECTION):
            raise LocalProtocolError(
                f"{field.removesuffix('_id')}: there is no {path!r} in {self._target.bucket!r}; "
                "client.collections() has those that there are"
            )
        if answer.status:
            error = ServerError(f"{path}: the server takes this for no name of a scope or collection", answer.status)
            if answer.status in _NO_COLLECTIONS:
                error = ServerError(f"{path}: the server has no collections; they take 7.0 or newer", answer.status)
            error.node = self._caller.where if self._caller is not None else ""
            raise error
        return int(answer.fields[field])

    def _port(self, node: Node) -> int:
        port = node.address.tls_port if self._target.tls else node.address.port
        if port is None:
            raise TransportError(f"{node}: no port {'with' if self._target.tls else 'without'} TLS in the map")
        return port

    def opener(self, decoder: Callable[[bool], Decoder], limits: Limits, manner: Manner, **wishes: bool) -> _Opener:
        """What makes the connections of a stream. wishes: what they want besides."""
        return _Opener(self, decoder, limits, manner, wishes)

    def _open_link(self, node: Node, owner: Follower, opener: _Opener) -> Link:
        host, port = node.address.host, self._port(node)
        self._links += 1
        wishes = self._wishes(f"{self._name} {self._links}", **opener.wishes)
        return Link(
            str(node),
            partial(connect, host, port, self._options["kv_connect_timeout"], self._context),
            partial(opener.manner.make, wishes, opener.decoder),
            owner,
            opener.limits,
        )


_STREAM_OPTIONS = [name for name in inspect.signature(Client.stream).parameters if name not in ("self", "decoding")]


def tls_context(options: Mapping[str, Any]) -> ssl.SSLContext:
    """How TLS is to be done, by the options of a connection string."""
    return Security(
        options.get("ca_cert_path"), options.get("cert_path"), options.get("key_path"), options["tls_verify"]
    ).context()


class _Opener:
    """What a follower needs of a client: links with the decoder and limits of its stream.

    It does not hold the client, so that threads end when nobody else does.
    """

    def __init__(
        self,
        client: Client,
        decoder: Callable[[bool], Decoder],
        limits: Limits,
        manner: Manner,
        wishes: Mapping[str, bool],
    ) -> None:
        self.decoder, self.limits, self.manner, self.wishes = decoder, limits, manner, wishes
        self._reference = weakref.ref(client)

    @property
    def _client(self) -> Client:
        client = self._reference()
        if client is None:
            raise LocalProtocolError("nobody holds the client any more: connect again")
        return client

    @property
    def map(self) -> ClusterMap:
        return self._client.map

    @property
    def poll_interval(self) -> float:
        return float(self._client._options["config_poll_interval"])

    def refresh(self) -> ClusterMap:
        return self._client.refresh()

    def learn(self, config: Any, host: str) -> None:
        self._client.learn(config, host)

    def call(self, node: Node) -> Caller:
        return self._client.call(node)

    def collections(self) -> dict[int, str]:
        return self._client.collections()

    def open_link(self, node: Node, owner: Follower) -> Link:
        return self._client._open_link(node, owner, self)


def _shown(start: object) -> str:
    return "a checkpoint" if isinstance(start, Checkpoint) else str(start)


def _follows(chosen: StreamFilter | None, scope: str | None) -> Callable[[int, str], bool] | None:
    """Which collections a stream is about, by id and path; None for all."""
    if chosen is None:
        return None
    wanted = set(chosen.collections or ())
    return lambda number, path: number in wanted if wanted else path.startswith(f"{scope}.")


def _paths(manifest: Tree) -> Iterator[tuple[int, str]]:
    for scope in manifest["scopes"]:
        for collection in scope["collections"]:
            path = f"{scope['name'].text()}.{collection['name'].text()}"
            try:
                yield int(collection["uid"].text(), 16), path
            except ValueError:
                collection["uid"].refuse("hexadecimal digits")
