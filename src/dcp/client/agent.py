"""A bucket as a client reaches it: its newest map, and connections to its nodes, for commands and for streams."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from dcp.client import connection_string as urls
from dcp.client.callers import Callers, Place
from dcp.client.commands import Caller
from dcp.client.dialects import DCP, check_options
from dcp.client.srv import lookup
from dcp.client.transport import Security, connect
from dcp.cluster_map import ClusterMap, Node
from dcp.errors import DcpError, LocalProtocolError, RemoteProtocolError, ServerError, TransportError
from dcp.session.handshake import ConnectionSettings
from dcp.session.sasl import Credentials
from dcp.wire.body import JSON
from dcp.wire.frame import Frame

log = logging.getLogger("dcp.client")

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


class Access:
    """Of one client. It knows no streams: what their threads hold is this."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self.target = urls.parse(url)
        given = {**self.target.options, **urls.checked(options)}
        self.options: dict[str, Any] = {**DEFAULTS, **given}
        check_options(self.dialect, given)
        urls.check_tls(self.target, given)
        self._credentials = Credentials(self.target.username, self.target.password) if self.target.username else None
        self._context = tls_context(self.options) if self.target.tls else None
        self._closed = False
        self._name = f"dcp-arrow {os.getpid()} {uuid.uuid4().hex[:12]}"
        self._count = 0
        self._callers = Callers(partial(self._call, stream=False))
        self._map: ClusterMap | None = None
        # Where it was told.
        self._told_at: Place = ("", 0)
        # The threads of several nodes learn of a map at once. Nothing is waited for under it.
        self._map_lock = threading.Lock()
        found = lookup(self.target.srv, self.options["bootstrap_timeout"]) if self.target.srv else ()
        self._seeds = found or self.target.addresses
        try:
            self.refresh()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Nothing is opened any more."""
        self._closed = True
        self._callers.close()

    @property
    def dialect(self) -> str:
        return str(self.options["dialect"])

    @property
    def poll_interval(self) -> float:
        return float(self.options["config_poll_interval"])

    # The map.

    @property
    def map(self) -> ClusterMap:
        """The newest that is known."""
        assert self._map is not None
        return self._map

    def refresh(self) -> ClusterMap:
        """Fetch the map. Any node that tells it will do: first those of the map, then those of the url."""
        problems: dict[str, DcpError] = {}
        for place in self._places():
            try:
                self._take(self._fetch(place))
                self._told_at = place
                self._callers.keep([place, *self._nodes()])
                return self.map
            except (TransportError, RemoteProtocolError) as error:
                problems[str(urls.Address(*place))] = error
                log.info("%s", error)
        if len(problems) == 1:
            raise next(iter(problems.values()))
        raise TransportError(f"no node can be reached: {_listed(problems)}")

    def learn(self, config: Any, host: str) -> None:
        """A node told a map."""
        if isinstance(config, dict) and "nodeLocator" in config:
            network = self.options["network"]
            self._take(ClusterMap.parse(JSON.encode(config), host.rpartition(":")[0], None, network))

    def _take(self, found: ClusterMap) -> None:
        known = self._map
        if known is not None and not found.newer_than(known):
            return
        if known is not None and found.change_since(known).recreated:
            raise ServerError(
                f"bucket {found.name!r} was deleted and made anew: no position holds any more; connect again, and "
                "stream from the beginning"
            )
        with self._map_lock:
            if taken := self._map is known:
                self._map = found
        if not taken:
            # Another node told one meanwhile, which may be newer.
            self._take(found)
            return
        log.info(
            "bucket %s: map %d.%d, %d vbuckets on %s",
            found.name,
            found.epoch,
            found.revision,
            found.num_vbuckets,
            ", ".join(map(str, found.nodes)),
        )

    def _places(self) -> Iterable[Place]:
        """Each once."""
        return dict.fromkeys([*self._nodes(), *((seed.host, seed.port) for seed in self._seeds)])

    def _nodes(self) -> Iterator[Place]:
        for node in self._map.nodes if self._map is not None else ():
            port = node.address.tls_port if self.target.tls else node.address.port
            if port is not None:
                yield node.address.host, port

    def _fetch(self, place: Place) -> ClusterMap:
        answer = self._callers.ask(place, lambda caller: caller.ask("get_cluster_config"))
        if answer.status:
            raise ServerError(f"{urls.Address(*place)}: the node does not tell the cluster map", answer.status)
        return ClusterMap.parse(answer.value, *place, self.options["network"])

    # Commands.

    def ask(self, name: str, **parts: Any) -> Frame:
        """A command, to the node that told the map."""

        def question(caller: Caller) -> Frame:
            return caller.ask(name, **parts)

        try:
            return self._callers.ask(self._told_at, question)
        except TransportError:
            self.refresh()
            return self._callers.ask(self._told_at, question)

    def ask_node(self, node: Node, name: str, questions: Sequence[Mapping[str, Any]]) -> list[Frame]:
        """Many questions of a kind, to the node that can answer them."""
        return self._callers.ask(self._place(node), lambda caller: caller.ask_all(name, questions))

    def stats_of(self, node: Node, group: str) -> dict[str, str]:
        """A group of statistics of a node; none where it does not have it."""
        return self._callers.ask(self._place(node), lambda caller: caller.stats(group))

    def hang_up(self) -> None:
        """Close what commands went over. The next one opens it again."""
        self._callers.keep(())

    @property
    def where(self) -> str:
        """The node that commands go to."""
        return str(urls.Address(*self._told_at))

    def call(self, node: Node, *, stream: bool = False) -> Caller:
        """A connection of its own to a node, to ask it commands; `stream`: opened for DCP."""
        return self._call(*self._place(node), stream=stream)

    def _call(self, host: str, port: int, *, stream: bool) -> Caller:
        wishes = self._wishes("commands", stream=stream)
        if self._closed:
            raise LocalProtocolError("the client is closed: connect again")
        sock = connect(host, port, self.options["kv_connect_timeout"], self._context)
        return Caller(sock, wishes, host, port, self.options["bootstrap_timeout"])

    # Connections.

    def dialer(self, node: Node) -> Callable[[], socket.socket]:
        """What opens a socket to a node."""
        return partial(connect, *self._place(node), self.options["kv_connect_timeout"], self._context)

    def _place(self, node: Node) -> Place:
        port = node.address.tls_port if self.target.tls else node.address.port
        if port is None:
            raise TransportError(f"{node}: no port {'with' if self.target.tls else 'without'} TLS in the map")
        return node.address.host, port

    def wishes(self, **more: Any) -> ConnectionSettings:
        """For another connection with streams; two of one name would cut each other off."""
        self._count += 1
        return self._wishes(str(self._count), **more)

    def _wishes(self, name: str, **more: Any) -> ConnectionSettings:
        return ConnectionSettings(
            f"{self._name} {name}",
            self.target.bucket,
            self._credentials,
            self.options.get("sasl_mech_force"),
            self.target.tls,
            window=self.options["dcp_buffer_size"],
            noop_interval=max(1, round(self.options["noop_interval"])),
            snappy=self.options["compression"] != "off",
            **more,
        )


def _listed(problems: Mapping[str, DcpError]) -> str:
    """What is wrong with nodes, each problem once."""
    said: dict[str, list[str]] = {}
    for where, error in problems.items():
        said.setdefault(str(error).removeprefix(f"{where}: "), []).append(where)
    return "; ".join(f"{', '.join(places)}: {problem}" for problem, places in said.items())


def tls_context(options: Mapping[str, Any]) -> ssl.SSLContext:
    """How TLS is to be done, by the options of a connection string."""
    return Security(
        options.get("ca_cert_path"), options.get("cert_path"), options.get("key_path"), options["tls_verify"]
    ).context()
