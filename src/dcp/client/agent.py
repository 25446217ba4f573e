"""One bucket as a client reaches it: the newest cluster map, credentials, and connections to its nodes."""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from dcp.client.commands import CommandConnection, CommandPool
from dcp.client.connection_string import HostPort, Target
from dcp.client.options import ConnectionOptions
from dcp.client.own_process import OwnProcess
from dcp.client.tls import TlsSettings
from dcp.client.tokens import ClientTokens
from dcp.client.transport import NodeSocket, connect, lookup_srv
from dcp.cluster_map import ClusterMap, Node
from dcp.errors import ClosedError, DcpError, RemoteProtocolError, ServerError, TransportError
from dcp.session.demands import Demands
from dcp.session.handshake import ConnectionSettings
from dcp.session.refusals import GET_MAP, refused
from dcp.session.sasl import Credentials, TokenSource
from dcp.wire.frame import Frame

log = logging.getLogger("dcp.client")


class Agent:
    """The access to one bucket that a client and its streams share. Thread-safe.

    It knows no streams: the threads of a stream hold the agent, so that neither keeps a client from being collected.
    The constructor fetches the cluster map from the first node that answers.
    """

    def __init__(self, target: Target, options: ConnectionOptions) -> None:
        self.target, self.options = target, options
        self._credentials = _credentials(target, options)
        self._tls = tls_settings(options).context() if target.tls else None
        self._closed = False
        self._demands = Demands()
        # Names of connections are unique: a node closes the older one of two with the same name.
        self._name = f"dcp-arrow {os.getpid()} {uuid.uuid4().hex[:12]}"
        self._connections_named = 0
        self._process = OwnProcess()
        self._warned = set[str]()
        self._commands = CommandPool(partial(self._open_command_connection, stream=False))
        self._map: ClusterMap | None = None
        # The node that sent the map.
        self._map_source = HostPort("", 0)
        # Guards the replacement of `_map`, which threads of several nodes learn of at once. A leaf: nothing else is
        # acquired, and no node is asked, while it is held.
        self._map_lock = threading.Lock()
        seeds = lookup_srv(target.srv, options.bootstrap_timeout) if target.srv else ()
        self._seeds = seeds or target.addresses
        try:
            self.refresh_map()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close idle command connections; open no more."""
        self._closed = True
        self._commands.close()

    def warn_once(self, text: str) -> None:
        """Log a warning, unless it was logged before."""
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s", text)

    def check_open(self) -> None:
        """Raise ClosedError after `close`, UsageError in a forked process."""
        self._process.check("client")
        if self._closed:
            raise ClosedError("the client is closed: connect again")

    @property
    def dialect(self) -> str:
        """Protocol of streams."""
        return self.options.dialect

    # The cluster map.

    @property
    def map(self) -> ClusterMap:
        """Newest map that any node sent."""
        assert self._map is not None
        return self._map

    def refresh_map(self) -> ClusterMap:
        """Fetch the map from the first node that answers, those of the known map before those of the URL.

        Raises a node's refusal if there is one, as it says more than that others cannot be reached. Otherwise raises
        the node's error if there is one node, else TransportError with the reason of each.
        """
        problems: dict[str, DcpError] = {}
        # Nodes of the map come first: hosts of the URL may have left the cluster long ago, but remain as a last resort.
        for address in dict.fromkeys([*self._node_addresses(), *self._seeds]):
            try:
                found = self._fetch_map(address)
            except (TransportError, RemoteProtocolError, ServerError) as error:
                problems[str(address)] = error
                log.info("%s", error)
                continue
            self._replace_map(found)
            self._map_source = address
            self._commands.close_idle(keep=[address, *self._node_addresses()])
            return self.map
        refusals = [error for error in problems.values() if isinstance(error, ServerError)]
        # One that does not pass, such as a wrong password, needs a change by the user.
        refusals.sort(key=lambda error: error.retriable)
        if refusals or len(problems) == 1:
            raise next(iter([*refusals, *problems.values()]))
        raise TransportError(f"no node can be reached: {_grouped(problems)}")

    def learn_map(self, config: Any, node: str) -> None:
        """Adopt a map that a node pushed or sent with a refusal, if it is newer.

        config: its parsed JSON; anything that is not a map of a bucket is ignored.

        Raises a retriable ServerError for a map that does not serve this bucket: one without vbuckets, as a node sends
        that does not have the bucket yet, or one of another bucket.
        """
        if not isinstance(config, dict) or "nodeLocator" not in config:
            return
        # The name of a link has the brackets of an IPv6 address.
        host = node.rpartition(":")[0].removeprefix("[").removesuffix("]")
        try:
            found = ClusterMap.from_dict(config, host, None, self.options.network)
        except RemoteProtocolError as error:
            raise _unusable(node, str(error)) from None
        self._check_bucket(found, node)
        self._replace_map(found)

    def _check_bucket(self, found: ClusterMap, node: str) -> None:
        if self._map is not None and found.name != self._map.name:
            raise _unusable(node, f"expected the map of bucket {self._map.name!r}, found that of {found.name!r}")
        if self._map is not None and found.is_of_another_bucket(self._map) and not found.newer_than(self._map):
            # Either the node is behind, which passes, or another cluster has taken the place of this one.
            raise _unusable(
                node,
                f"expected bucket {found.name!r} with the uuid {self._map.uuid}, found {found.uuid}: the bucket was "
                "deleted and recreated, or the address leads to another cluster; if this stays so, no position is "
                "valid any more: connect again and stream from the beginning",
            )

    def _replace_map(self, found: ClusterMap) -> None:
        known = self._map
        # Nodes learn of a new map at different times: an older one must not replace a newer one.
        if known is not None and not found.newer_than(known):
            return
        if known is not None and found.is_of_another_bucket(known):
            raise ServerError(
                f"bucket {found.name!r} was deleted and recreated: no position is valid any more; connect again and "
                "stream from the beginning"
            )
        with self._map_lock:
            if replaced := self._map is known:
                self._map = found
        if not replaced:
            # Another node's map was adopted in between; it may be newer than this one.
            self._replace_map(found)
            return
        log.info(
            "bucket %s: map %d.%d, %d vbuckets on %s addresses %s",
            found.name,
            found.epoch,
            found.revision,
            found.num_vbuckets,
            found.network,
            ", ".join(map(str, found.nodes)),
        )
        if known is None and found.network == "external" and self.options.network == "auto":
            log.info("external addresses are used, as the URL's host is no internal one; network=default uses these")

    @property
    def node_addresses(self) -> dict[Node, HostPort]:
        """Address of each node of the map, for a client with these options."""
        return {node: self._address_of(node) for node in self.map.nodes if self._port_of(node) is not None}

    def _port_of(self, node: Node) -> int | None:
        return node.address.tls_port if self.target.tls else node.address.port

    def _node_addresses(self) -> Iterator[HostPort]:
        if self._map is not None:
            yield from self.node_addresses.values()

    def _fetch_map(self, address: HostPort) -> ClusterMap:
        answer = self._commands.ask(address, lambda connection: connection.ask("get_cluster_config"))
        if answer.status:
            raise refused(GET_MAP, f"{address}: the node refused to send the cluster map", answer.status)
        try:
            found = ClusterMap.parse(answer.value, address.host, address.port, self.options.network)
        except RemoteProtocolError as error:
            if self._map is None:
                raise
            raise _unusable(str(address), str(error)) from None
        self._check_bucket(found, str(address))
        return found

    # Commands.

    @property
    def connections_opened(self) -> int:
        """Number of connections for commands that were opened so far."""
        return self._commands.opened

    @property
    def command_node(self) -> str:
        """Host and port of the node that `ask` asks."""
        return str(self._map_source)

    def ask(self, name: str, **parts: Any) -> Frame:
        """Return the answer to a command that any node can answer."""

        def question(connection: CommandConnection) -> Frame:
            return connection.ask(name, **parts)

        try:
            return self._commands.ask(self._map_source, question)
        except (TransportError, ServerError):
            # The node that sent the map may be gone, or restart: ask the one that sends the next map.
            self.refresh_map()
            return self._commands.ask(self._map_source, question)

    def ask_node(self, node: Node, name: str, questions: Sequence[Mapping[str, Any]]) -> list[Frame]:
        """Return a node's answers to several commands of one name, pipelined."""
        return self._commands.ask(self._address_of(node), lambda connection: connection.ask_all(name, questions))

    def stats_of(self, node: Node, group: str) -> dict[str, str]:
        """Return a group of a node's statistics; empty if the node does not have that group."""
        return self._commands.ask(self._address_of(node), lambda connection: connection.stats(group))

    def close_idle(self) -> None:
        """Close idle command connections. The next command opens a new one."""
        self._commands.close_idle()

    def open_command_connection(self, node: Node, *, stream: bool = False) -> CommandConnection:
        """Return a new connection to a node. `stream`: opened for DCP, for commands that need it."""
        self._process.check("client")
        return self._open_command_connection(self._address_of(node), stream=stream)

    def _open_command_connection(self, address: HostPort, *, stream: bool) -> CommandConnection:
        settings = self._settings("commands", stream=stream)
        self.check_open()
        sock = connect(*address, self.options.kv_connect_timeout, self._tls)
        return CommandConnection(sock, settings, address, self.options.bootstrap_timeout)

    # Connections of streams.

    def dialer(self, node: Node) -> Callable[[], NodeSocket]:
        """Return a function that opens a socket to a node."""
        return partial(connect, *self._address_of(node), self.options.kv_connect_timeout, self._tls)

    def connection_settings(self, **more: Any) -> ConnectionSettings:
        """Return the requested settings of another connection for streams, under a name of its own."""
        self._connections_named += 1
        return self._settings(str(self._connections_named), **more)

    def _address_of(self, node: Node) -> HostPort:
        port = self._port_of(node)
        if port is None:
            raise TransportError(f"{node}: no port {'with' if self.target.tls else 'without'} TLS in the cluster map")
        return HostPort(node.address.host, port)

    # Servers count whole seconds for noops, and refuse 0.
    def _settings(self, name: str, **more: Any) -> ConnectionSettings:
        return ConnectionSettings(
            f"{self._name} {name}",
            self.target.bucket,
            self._credentials,
            self.options.sasl_mech_force,
            self.target.tls,
            self.options.tls_verify,
            window=self.options.dcp_buffer_size,
            noop_interval=max(1, round(self.options.noop_interval)),
            snappy=self.options.compression != "off",
            demands=self._demands,
            handshake_timeout=self.options.bootstrap_timeout,
            **more,
        )


class MapRefresher:
    """Schedules fetches of the cluster map for one stream, under that stream's lock.

    `due` is the monotonic time of the next fetch, or None. Requests within `delay` seconds become one fetch, since many
    vbuckets miss their node at the same time. After a failed fetch the next one is due in `retry_delay` seconds.
    """

    def __init__(self, agent: Agent, *, delay: float = 0.2, retry_delay: float = 1.0) -> None:
        self.due: float | None = None
        # True if a node is connected that does not push map changes.
        self.polls = False
        self._agent, self._delay, self._retry_delay = agent, delay, retry_delay

    def map_changed(self, config: object, node: str) -> None:
        """Adopt a pushed map, or schedule a fetch if the node only says that there is one."""
        if config is None:
            self.request()
        else:
            self._agent.learn_map(config, node)

    def request(self, within: float | None = None) -> None:
        """Schedule a fetch `within` seconds, unless an earlier one is due."""
        due = time.monotonic() + (self._delay if within is None else within)
        self.due = due if self.due is None else min(due, self.due)

    def poll(self) -> None:
        """Schedule the next regular fetch if a connected node pushes no maps."""
        if self.polls:
            self.request(self._agent.options.config_poll_interval)

    def refresh_if_due(self) -> None:
        """Fetch the map if that is due. Called without the stream's lock, since it waits for a node."""
        if self.due is None or time.monotonic() < self.due:
            return
        # Reset before the fetch: a request that arrives meanwhile is for a map that is newer still.
        self.due = None
        try:
            self._agent.refresh_map()
        except (TransportError, RemoteProtocolError, ServerError) as error:
            # Refusals may pass; the connections of streams meet them as well, and have a limit. A recreated bucket not.
            if isinstance(error, ServerError) and not error.step:
                raise
            log.warning("cluster map not refreshed: %s", error)
            self.due = time.monotonic() + self._retry_delay


def _credentials(target: Target, options: ConnectionOptions) -> Credentials | TokenSource | None:
    if options.token is not None:
        return ClientTokens(options.token)
    return Credentials(target.username, target.password) if target.username else None


def _unusable(node: str, problem: str) -> ServerError:
    error = refused(GET_MAP, f"the node sent a cluster map that cannot be used: {problem}", None, retriable=True)
    error.node = node
    return error


def tls_settings(options: ConnectionOptions) -> TlsSettings:
    """Return the TLS settings of a connection's options."""
    return TlsSettings(options.ca_cert_path, options.cert_path, options.key_path, options.tls_verify)


def _grouped(problems: Mapping[str, DcpError]) -> str:
    """Return each distinct problem once, after the nodes that have it."""
    nodes: dict[str, list[str]] = {}
    for node, error in problems.items():
        nodes.setdefault(str(error).removeprefix(f"{node}: "), []).append(node)
    return "; ".join(f"{', '.join(having)}: {problem}" for problem, having in nodes.items())
