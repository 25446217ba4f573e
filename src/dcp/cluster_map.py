"""Cluster map of a bucket: the node that serves each vbucket, and the difference between two maps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from dcp.errors import RemoteProtocolError, TransportError
from dcp.json_reader import MAX_U64, JsonReader

Network = Literal["auto", "default", "external"]

_HOST = "$HOST"
_MOST_VBUCKETS = 1 << 16
_MOST_PORT = (1 << 16) - 1
# Messages list this many vbuckets at most.
_LISTED = 10


class NodeAddress(NamedTuple):
    """Host and ports of a node's data service on one network. A port is None if the node does not offer it."""

    host: str
    port: int | None
    tls_port: int | None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.tls_port if self.port is None else self.port}"


@dataclass(frozen=True, slots=True)
class Node:
    """A node that serves the bucket. Nodes with the same address are equal.

    address: on the chosen network.
    uuid, server_group: as the map says; empty if it does not.
    external: address on the external network, if the node has one.
    """

    address: NodeAddress
    uuid: str = field(default="", compare=False)
    server_group: str = field(default="", compare=False)
    external: NodeAddress | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return str(self.address)


@dataclass(frozen=True, slots=True)
class ClusterMap:
    """One revision of a bucket's map.

    name, uuid: of the bucket.
    epoch, revision: version of the map; a higher pair is newer.
    nodes: nodes that serve the bucket.
    chains: for each vbucket its active node and its replicas, as indexes into `nodes`, -1 for none.
    forward: chains that a running rebalance leads to; empty if none runs.
    capabilities: names of features that all nodes support.
    manifest_uid: uid of the collections manifest; None if the map has none.
    num_replicas: configured number of replicas.
    network: "default" or "external", of which the nodes have their addresses.
    """

    name: str
    uuid: str
    epoch: int
    revision: int
    nodes: tuple[Node, ...]
    chains: tuple[tuple[int, ...], ...] = field(repr=False)
    forward: tuple[tuple[int, ...], ...] = field(default=(), repr=False)
    capabilities: frozenset[str] = frozenset()
    manifest_uid: int | None = None
    num_replicas: int = 0
    network: Network = "default"

    @classmethod
    def parse(cls, text: str | bytes, host: str, port: int | None = None, network: Network = "auto") -> ClusterMap:
        """Return the map in the answer of a node.

        text: JSON of the map.
        host: where the client reached the node; it replaces $HOST in the map.
        port: port of the seed; None for any. Seeds decide the network that "auto" means.
        network: "default", "external", or "auto" for the one that lists the host and port as a node. If neither does,
            "auto" is external if all nodes have external addresses.

        Raises RemoteProtocolError if something is missing or malformed: the message says where.
        """
        return _parsed(text, host, port, network)

    @classmethod
    def from_dict(cls, config: Any, host: str, port: int | None = None, network: Network = "auto") -> ClusterMap:
        """Return the map in JSON that was parsed already, such as the config of MapChanged. Otherwise as `parse`."""
        return cls._read(JsonReader(config, "cluster map", RemoteProtocolError), host, port, network)

    @classmethod
    def _read(cls, root: JsonReader, host: str, port: int | None, network: Network) -> ClusterMap:
        locator = root["nodeLocator"]
        if locator.value != "vbucket":
            locator.refuse("'vbucket'")
        vbuckets = root["vBucketServerMap"]
        listed = tuple(_nodes(root, vbuckets, host))
        chosen = _network(listed, host, port) if network == "auto" else network
        nodes = _external_nodes(listed) if chosen == "external" else listed
        capabilities, manifest = root.get("bucketCapabilities"), root.get("collectionsManifestUid")
        forward = vbuckets.get("vBucketMapForward")
        return cls(
            _text(root, "name"),
            _text(root, "uuid"),
            *_version(root),
            nodes,
            _chains(vbuckets["vBucketMap"], len(nodes)),
            () if forward is None else _chains(forward, len(nodes)),
            frozenset(capability.name() for capability in capabilities or ()),
            None if manifest is None else manifest.hexadecimal(),
            _number(vbuckets, "numReplicas", 255) or 0,
            chosen,
        )

    @property
    def num_vbuckets(self) -> int:
        """Number of vbuckets of the bucket."""
        return len(self.chains)

    @property
    def version(self) -> tuple[int, int]:
        """Epoch and revision. Of two maps, that with the higher pair is newer."""
        return self.epoch, self.revision

    def newer_than(self, other: ClusterMap) -> bool:
        """Return whether this map is newer than another."""
        return self.version > other.version

    def owner(self, vbucket: int) -> Node | None:
        """Return the active node of a vbucket; None if it has none now."""
        # Called for each vbucket whenever a stream looks for work.
        index = self.chains[vbucket][0] if 0 <= vbucket < len(self.chains) else -1
        return None if index < 0 else self.nodes[index]

    def replicas(self, vbucket: int) -> tuple[Node, ...]:
        """Return the nodes that have a replica of a vbucket."""
        return tuple(node for node in self._chain(vbucket)[1:] if node is not None)

    def vbuckets_of(self, node: Node) -> tuple[int, ...]:
        """Return the vbuckets that are active on a node."""
        return tuple(self.vbuckets_by_owner().get(node, ()))

    def vbuckets_by_owner(self) -> dict[Node, list[int]]:
        """Return the active vbuckets of each node that has some, in the order of the nodes."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for vbucket, (owner, *_) in enumerate(self.chains):
            if owner >= 0:
                found[owner].append(vbucket)
        return {node: vbuckets for node, vbuckets in zip(self.nodes, found, strict=True) if vbuckets}

    def is_of_another_bucket(self, other: ClusterMap) -> bool:
        """Return whether two maps belong to two buckets, even of one name: no position of one is valid in the other."""
        return bool(self.uuid and other.uuid and self.uuid != other.uuid) or self.num_vbuckets != other.num_vbuckets

    def _chain(self, vbucket: int) -> tuple[Node | None, ...]:
        if not 0 <= vbucket < self.num_vbuckets:
            return ()
        return tuple(None if index < 0 else self.nodes[index] for index in self.chains[vbucket])


# Nodes send the same map again and again, and reading that of 1,024 vbuckets takes longer than any other answer.
@lru_cache(maxsize=4)
def _parsed(text: str | bytes, host: str, port: int | None, network: Network) -> ClusterMap:
    return ClusterMap._read(JsonReader.parse(text, "cluster map", RemoteProtocolError), host, port, network)


def format_vbuckets(vbuckets: Iterable[int]) -> str:
    """Return vbucket numbers for a message: the lowest ones, and the number of the others."""
    numbers = sorted(vbuckets)
    more = f" and {len(numbers) - _LISTED} more" if len(numbers) > _LISTED else ""
    return ", ".join(map(str, numbers[:_LISTED])) + more


def no_owner_error(vbuckets: Iterable[int]) -> TransportError:
    """Return the error for vbuckets that have no active node."""
    return TransportError(
        f"vbuckets {format_vbuckets(vbuckets)} have no active node; retry when the cluster is healthy"
    )


def _text(node: JsonReader, name: str) -> str:
    found = node.get(name)
    return "" if found is None else found.name()


def _number(node: JsonReader, name: str, most: int = MAX_U64) -> int | None:
    found = node.get(name)
    return None if found is None else found.number(most)


def _version(root: JsonReader) -> tuple[int, int]:
    """Return epoch and revision. An epoch that is absent, or -1 for unknown, counts as 0."""
    epoch = root.get("revEpoch")
    return 0 if epoch is None or epoch.value == -1 else epoch.number(), root["rev"].number()


def _nodes(root: JsonReader, vbuckets: JsonReader, host: str) -> Iterator[Node]:
    """Yield the nodes that serve the bucket.

    nodesExt lists them first, in the order of serverList; nodes without data service of the bucket follow.
    """
    extended = list(root.get("nodesExt") or ())
    for index, server in enumerate(vbuckets["serverList"]):
        listed = _listed(server, host)
        if index >= len(extended):
            yield Node(listed)
            continue
        node = extended[index]
        own = _own_address(node, listed, host)
        yield Node(own, _text(node, "nodeUUID"), _text(node, "serverGroup"), _external(node, own))


def _listed(server: JsonReader, seed: str) -> NodeAddress:
    """Return the address in text such as `10.0.0.1:11210`, `[::1]:11210` or `$HOST:11210`."""
    host, colon, port = server.name().rpartition(":")
    if not colon or not host or not _is_port(port):
        server.refuse("a host and a port")
    return NodeAddress(seed if host == _HOST else host.removeprefix("[").removesuffix("]"), int(port), None)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) <= _MOST_PORT


def _own_address(node: JsonReader, listed: NodeAddress, seed: str) -> NodeAddress:
    services, hostname = node.get("services"), _text(node, "hostname")
    host = (seed if hostname == _HOST else hostname.removeprefix("[").removesuffix("]")) or listed.host
    if services is None:
        return NodeAddress(host, listed.port, None)
    port, tls_port = _ports(services)
    return NodeAddress(host, port, tls_port)


def _external(node: JsonReader, own: NodeAddress) -> NodeAddress | None:
    """Return the external address of a node. One without ports of its own has those of the node."""
    addresses = node.get("alternateAddresses")
    external = None if addresses is None else addresses.get("external")
    if external is None:
        return None
    ports = external.get("ports")
    port, tls_port = (own.port, own.tls_port) if ports is None else _ports(ports)
    return NodeAddress(external["hostname"].name().removeprefix("[").removesuffix("]"), port, tls_port)


def _ports(services: JsonReader) -> tuple[int | None, int | None]:
    return _number(services, "kv", _MOST_PORT), _number(services, "kvSSL", _MOST_PORT)


def _external_nodes(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Return the nodes with their external addresses. Raises RemoteProtocolError if one has none."""
    missing = [str(node) for node in nodes if node.external is None]
    if missing:
        raise RemoteProtocolError(
            f"cluster map: expected an external address of every node, found none of {missing[0]}; use network=default"
        )
    return tuple(Node(node.external, node.uuid, node.server_group, node.external) for node in nodes if node.external)


def _network(nodes: tuple[Node, ...], host: str, port: int | None) -> Network:
    """Return the network on which the seed is a node, the default one first.

    A seed on neither is behind a load balancer or a port forward, from where internal addresses can hardly be reached:
    then the network is external, if there is one. Couchbase's C++ client has the same rule since CXXCBC-707.
    """
    if any(_is_at(node.address, host, port) for node in nodes):
        return "default"
    externals = [node.external for node in nodes]
    found = any(external is not None and _is_at(external, host, port) for external in externals)
    return "external" if found or (externals and None not in externals) else "default"


def _is_at(address: NodeAddress, host: str, port: int | None) -> bool:
    return address.host == host and (port is None or port in address[1:])


def _chains(map_: JsonReader, num_nodes: int) -> tuple[tuple[int, ...], ...]:
    chains = []
    for chain in map_:
        indexes = chain.value
        # Booleans are of another type.
        whole = isinstance(indexes, list) and {*map(type, indexes)} == {int}
        if not whole or not -1 <= min(indexes) <= max(indexes) < num_nodes:
            chain.refuse(f"a list of indexes from -1 to {num_nodes - 1}")
        chains.append(tuple(indexes))
    if not 0 < len(chains) <= _MOST_VBUCKETS:
        raise RemoteProtocolError(f"{map_.path}: expected 1 to {_MOST_VBUCKETS} vbuckets, found {len(chains)}")
    return tuple(chains)
