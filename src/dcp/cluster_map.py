"""The cluster map: which node serves which vbucket of a bucket, and what changed since another map."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from dcp.errors import RemoteProtocolError, TransportError
from dcp.json_reader import MAX_U64, JsonReader

Network = Literal["auto", "default", "external"]

_HOST = "$HOST"
_MOST_VBUCKETS = 1 << 16
_MOST_PORT = (1 << 16) - 1
# So many numbers of vbuckets a text names.
_NAMED = 10


class Address(NamedTuple):
    """Where a node is reached. A port is None where it offers none of the kind."""

    host: str
    port: int | None
    tls_port: int | None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.tls_port if self.port is None else self.port}"


@dataclass(frozen=True, slots=True)
class Node:
    """A node that serves the bucket, with its address on the chosen network, and those it has on others."""

    address: Address
    uuid: str = field(default="", compare=False)
    server_group: str = field(default="", compare=False)
    external: Address | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return str(self.address)


class Move(NamedTuple):
    """A vbucket that has another owner, or none."""

    vbucket: int
    before: Node | None
    after: Node | None


class Change(NamedTuple):
    """What a newer map says otherwise. `recreated`: it is of another bucket of that name, so no position holds."""

    moved: tuple[Move, ...]
    added: tuple[Node, ...]
    removed: tuple[Node, ...]
    recreated: bool


@dataclass(frozen=True, slots=True)
class ClusterMap:
    """One revision of a bucket's map. `chains` has for each vbucket its active node and its replicas, as
    indexes into `nodes`, -1 for none; `forward` is where a rebalance leads, or empty.
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

    @classmethod
    def parse(cls, text: str | bytes, host: str, port: int | None = None, network: Network = "auto") -> ClusterMap:
        """From the answer of a node. `host` and `port` are where the client reached it, or, to choose the network,
        the seed it was given. RemoteProtocolError says what is missing, and where.
        """
        root = JsonReader.parse(text, "cluster map", RemoteProtocolError)
        locator = root["nodeLocator"]
        if locator.value != "vbucket":
            locator.refuse("'vbucket'")
        vbuckets = root["vBucketServerMap"]
        nodes = _on_network(tuple(_nodes(root, vbuckets, host)), host, port, network)
        capabilities, manifest = root.get("bucketCapabilities"), root.get("collectionsManifestUid")
        forward = vbuckets.get("vBucketMapForward")
        return cls(
            _text(root, "name"),
            _text(root, "uuid"),
            *_version(root),
            nodes,
            _chains(vbuckets["vBucketMap"], len(nodes)),
            () if forward is None else _chains(forward, len(nodes)),
            frozenset(capability.text() for capability in capabilities or ()),
            None if manifest is None else manifest.hexadecimal(),
            _number(vbuckets, "numReplicas", 255) or 0,
        )

    @property
    def num_vbuckets(self) -> int:
        return len(self.chains)

    @property
    def version(self) -> tuple[int, int]:
        """Epoch and revision, by which one map is newer than another."""
        return self.epoch, self.revision

    def newer_than(self, other: ClusterMap) -> bool:
        return self.version > other.version

    def owner(self, vbucket: int) -> Node | None:
        """The active node of a vbucket; None while it has none."""
        return next(iter(self._chain(vbucket)), None)

    def replicas(self, vbucket: int) -> tuple[Node, ...]:
        """The replicas of a vbucket that exist."""
        return tuple(node for node in self._chain(vbucket)[1:] if node is not None)

    def vbuckets_of(self, node: Node) -> tuple[int, ...]:
        """Those of which a node is the active one."""
        return tuple(vbucket for vbucket in range(self.num_vbuckets) if self.owner(vbucket) == node)

    def change_since(self, older: ClusterMap) -> Change:
        before = (
            older.owner(vbucket) if vbucket < older.num_vbuckets else None for vbucket in range(self.num_vbuckets)
        )
        moves = (Move(vbucket, node, self.owner(vbucket)) for vbucket, node in enumerate(before))
        return Change(
            tuple(move for move in moves if move.before != move.after),
            tuple(node for node in self.nodes if node not in older.nodes),
            tuple(node for node in older.nodes if node not in self.nodes),
            bool(self.uuid and older.uuid and self.uuid != older.uuid) or self.num_vbuckets != older.num_vbuckets,
        )

    def _chain(self, vbucket: int) -> tuple[Node | None, ...]:
        if not 0 <= vbucket < self.num_vbuckets:
            return ()
        return tuple(None if index < 0 else self.nodes[index] for index in self.chains[vbucket])


def named(vbuckets: Iterable[int]) -> str:
    """Vbuckets in a text: the first of them, and how many more there are."""
    numbers = sorted(vbuckets)
    more = f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else ""
    return ", ".join(map(str, numbers[:_NAMED])) + more


def nobody_has(vbuckets: Iterable[int]) -> TransportError:
    return TransportError(f"no node has vbuckets {named(vbuckets)} now: try again when the cluster is whole")


def _text(node: JsonReader, name: str) -> str:
    found = node.get(name)
    return "" if found is None else found.text()


def _number(node: JsonReader, name: str, most: int = MAX_U64) -> int | None:
    found = node.get(name)
    return None if found is None else found.number(most)


def _version(root: JsonReader) -> tuple[int, int]:
    """An epoch that is absent, or -1 for unknown, is the lowest."""
    epoch = root.get("revEpoch")
    return 0 if epoch is None or epoch.value == -1 else epoch.number(), root["rev"].number()


def _nodes(root: JsonReader, vbuckets: JsonReader, host: str) -> Iterator[Node]:
    """Those that serve the bucket. nodesExt has them first, and in the same order; behind them are others."""
    extended = list(root.get("nodesExt") or ())
    for place, server in enumerate(vbuckets["serverList"]):
        listed = _listed(server, host)
        if place >= len(extended):
            yield Node(listed)
            continue
        node = extended[place]
        own = _own_address(node, listed, host)
        yield Node(own, _text(node, "nodeUUID"), _text(node, "serverGroup"), _external(node, own))


def _listed(server: JsonReader, seed: str) -> Address:
    """From text such as `10.0.0.1:11210`, `[::1]:11210` or `$HOST:11210`."""
    host, colon, port = server.text().rpartition(":")
    if not colon or not host or not _is_port(port):
        server.refuse("a host and a port")
    return Address(seed if host == _HOST else host.removeprefix("[").removesuffix("]"), int(port), None)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) <= _MOST_PORT


def _own_address(node: JsonReader, listed: Address, seed: str) -> Address:
    services, hostname = node.get("services"), _text(node, "hostname")
    host = (seed if hostname == _HOST else hostname.removeprefix("[").removesuffix("]")) or listed.host
    if services is None:
        return Address(host, listed.port, None)
    port, tls_port = _ports(services)
    return Address(host, port, tls_port)


def _external(node: JsonReader, own: Address) -> Address | None:
    """Without ports of its own an external address has those of the node."""
    addresses = node.get("alternateAddresses")
    external = None if addresses is None else addresses.get("external")
    if external is None:
        return None
    ports = external.get("ports")
    port, tls_port = (own.port, own.tls_port) if ports is None else _ports(ports)
    return Address(external["hostname"].text().removeprefix("[").removesuffix("]"), port, tls_port)


def _ports(services: JsonReader) -> tuple[int | None, int | None]:
    return _number(services, "kv", _MOST_PORT), _number(services, "kvSSL", _MOST_PORT)


def _on_network(nodes: tuple[Node, ...], host: str, port: int | None, network: Network) -> tuple[Node, ...]:
    """Of each node the address on the network; `auto` is the one on which the seed is found, else the default one."""
    if network == "default" or (network == "auto" and not _seed_is_external(nodes, host, port)):
        return nodes
    missing = [str(node) for node in nodes if node.external is None]
    if missing:
        raise RemoteProtocolError(
            f"cluster map: expected an external address of every node, found none of {missing[0]}"
        )
    return tuple(Node(node.external, node.uuid, node.server_group, node.external) for node in nodes if node.external)


def _seed_is_external(nodes: tuple[Node, ...], host: str, port: int | None) -> bool:
    seed = host, port
    if any(_is_at(node.address, *seed) for node in nodes):
        return False
    return any(node.external is not None and _is_at(node.external, *seed) for node in nodes)


def _is_at(address: Address, host: str, port: int | None) -> bool:
    return address.host == host and (port is None or port in address[1:])


def _chains(map_: JsonReader, num_nodes: int) -> tuple[tuple[int, ...], ...]:
    chains = []
    for chain in map_:
        indexes = chain.value
        if not isinstance(indexes, list) or not indexes or not all(_is_index(index, num_nodes) for index in indexes):
            chain.refuse(f"a list of indexes from -1 to {num_nodes - 1}")
        chains.append(tuple(indexes))
    if not 0 < len(chains) <= _MOST_VBUCKETS:
        raise RemoteProtocolError(f"{map_.path}: expected 1 to {_MOST_VBUCKETS} vbuckets, found {len(chains)}")
    return tuple(chains)


def _is_index(index: object, num_nodes: int) -> bool:
    return isinstance(index, int) and not isinstance(index, bool) and -1 <= index < num_nodes
