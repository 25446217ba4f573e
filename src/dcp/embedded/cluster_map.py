"""Cluster maps as nodes send them: the nodes, and the owner of each vbucket."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid5

from dcp.embedded.bucket import NOBODY, BucketStore, ServerNode
from dcp.embedded.release import ReleaseNumber

# Servers send this placeholder, and clients replace it with the host by which they reached the node.
_HOST = "$HOST"
# Servers are in this group unless an administrator made others.
SERVER_GROUP = "Group 1"
# Addresses that only a listening socket has: clients cannot connect to them.
_ANY_HOST = ("", "0.0.0.0", "::")

_EPOCHS: ReleaseNumber = (7, 0)
_GLOBAL_MAPS: ReleaseNumber = (6, 5)
_MANIFESTS: ReleaseNumber = (7, 0)
_CLUSTER_CAPABILITIES: ReleaseNumber = (6, 5)
_BUCKET_TYPES: ReleaseNumber = (7, 0)
_STORAGE_BACKENDS: ReleaseNumber = (7, 1)
_VBUCKET_COUNTS: ReleaseNumber = (7, 2)
_SERVER_GROUPS: ReleaseNumber = (7, 6)
_CLUSTER_NAMES: ReleaseNumber = (7, 6)
_NODE_UUIDS: ReleaseNumber = (8, 0)
_PRODUCTS: ReleaseNumber = (8, 0)
# First release that lists a capability of a bucket, in the order of ns_server (build_bucket_capabilities), whose list
# names the features of all services: this cluster has those of the data service only.
_CAPABILITIES: dict[str, ReleaseNumber] = {
    "collections": (7, 0),
    "durableWrite": (6, 5),
    "tombstonedUserXAttrs": (6, 6),
    "couchapi": (3, 0),
    "subdoc.ReplaceBodyWithXattr": (7, 0),
    "subdoc.DocumentMacroSupport": (7, 0),
    "subdoc.ReviveDocument": (7, 1),
    "nonDedupedHistory": (7, 2),
    "dcp.IgnorePurgedTombstones": (7, 2),
    "preserveExpiry": (7, 6),
    "querySystemCollection": (7, 6),
    "mobileSystemCollection": (7, 6),
    "subdoc.ReplicaRead": (7, 6),
    "subdoc.BinaryXattr": (8, 0),
    "subdoc.AccessDeleted": (8, 0),
    "rangeScan": (7, 6),
    "dcp": (4, 0),
    "cbhello": (3, 0),
    "touch": (3, 0),
    "cccp": (3, 0),
    "xdcrCheckpointing": (3, 0),
    "nodesExt": (3, 0),
    "xattr": (5, 0),
}
# Capabilities that depend on the storage engine: whether they are those of Magma, which retains history.
_OF_MAGMA = {"couchapi": False, "nonDedupedHistory": True}


def revision(bucket: BucketStore) -> tuple[int, int]:
    """Return epoch and revision of the map; of two maps, the one with the greater pair is newer."""
    return bucket.epoch, bucket.revision


def has_global_map(bucket: BucketStore) -> bool:
    """Return whether clients without a selected bucket may fetch a map."""
    return bucket.release.number >= _GLOBAL_MAPS


def global_map(bucket: BucketStore, node: ServerNode) -> dict[str, Any]:
    """Return the map for clients without a selected bucket: the nodes only."""
    return {**_revision(bucket), "nodesExt": _extended(bucket, node), **_cluster(bucket)}


def bucket_map(bucket: BucketStore, node: ServerNode, local_host: str = _HOST) -> dict[str, Any]:
    """Return the map of the bucket as `node` sends it: nodes, and owners of all vbuckets.

    It has what a server's map has, without the addresses of services that this cluster does not have. `local_host` is
    the host of nodes that listen on all addresses.
    """
    number, nodes = bucket.release.number, _nodes(bucket)
    later: list[tuple[ReleaseNumber, dict[str, Any]]] = [
        (_BUCKET_TYPES, {"bucketType": "membase"}),
        (_STORAGE_BACKENDS, {"storageBackend": "magma" if bucket.retains_history else "couchstore"}),
        (_VBUCKET_COUNTS, {"numVBuckets": len(bucket.owners)}),
        (_MANIFESTS, {"collectionsManifestUid": f"{bucket.manifest.uid:x}"}),
    ]
    return {
        **_revision(bucket),
        "name": bucket.name,
        "uuid": bucket.uuid,
        "uri": f"{bucket_path(bucket)}?bucket_uuid={bucket.uuid}",
        "streamingUri": f"{bucket_path(bucket, 'bucketsStreaming')}?bucket_uuid={bucket.uuid}",
        "nodeLocator": "vbucket",
        "bucketCapabilitiesVer": "",
        "bucketCapabilities": capabilities(bucket),
        **{name: value for since, members in later if since <= number for name, value in members.items()},
        **_cluster(bucket),
        "nodes": [
            {"hostname": hostname(one, one.management_port, local_host), "ports": {"direct": one.port}}
            | this_node(one, node)
            for one in nodes
        ],
        "nodesExt": _extended(bucket, node),
        "vBucketServerMap": {
            "hashAlgorithm": "CRC",
            "numReplicas": bucket.replicas,
            "serverList": [hostname(one, one.port, local_host) for one in nodes],
            "vBucketMap": _owners(bucket, nodes),
        },
    }


def capabilities(bucket: BucketStore) -> list[str]:
    """Return the names of the features that the nodes have."""
    known = [name for name, since in _CAPABILITIES.items() if since <= bucket.release.number]
    return [name for name in known if _OF_MAGMA.get(name, bucket.retains_history) == bucket.retains_history]


def cluster_uuid(bucket: BucketStore) -> str:
    """Return the uuid of the cluster."""
    return uuid5(UUID(bucket.uuid), "cluster").hex


def node_uuid(bucket: BucketStore, node: ServerNode) -> str:
    """Return the uuid of a node."""
    return uuid5(UUID(bucket.uuid), f"node {node.number}").hex


def hostname(node: ServerNode, port: int, local_host: str = _HOST) -> str:
    """Return `host:port` of a node. `local_host` is the host of a node that listens on all addresses."""
    host = local_host if node.host in _ANY_HOST else node.host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def this_node(one: ServerNode, node: ServerNode) -> dict[str, bool]:
    """Return the mark of the node that sends the map."""
    return {"thisNode": True} if one is node else {}


def bucket_path(bucket: BucketStore, collection: str = "buckets") -> str:
    """Return a path of the bucket in the management service."""
    return f"/pools/default/{collection}/{quote(bucket.name)}"


def _cluster(bucket: BucketStore) -> dict[str, Any]:
    """Return what a map says of the whole cluster."""
    later: list[tuple[ReleaseNumber, dict[str, Any]]] = [
        (_CLUSTER_CAPABILITIES, {"clusterCapabilitiesVer": [1, 0], "clusterCapabilities": {}}),
        (_CLUSTER_NAMES, {"clusterUUID": cluster_uuid(bucket), "clusterName": ""}),
        (_PRODUCTS, {"prod": "server", "prodName": "Couchbase Server"}),
    ]
    return {
        name: value for since, members in later if since <= bucket.release.number for name, value in members.items()
    }


def _revision(bucket: BucketStore) -> dict[str, int]:
    epoch = {"revEpoch": bucket.epoch} if bucket.release.number >= _EPOCHS else {}
    return {"rev": bucket.revision, **epoch}


def _nodes(bucket: BucketStore) -> list[ServerNode]:
    return [node for node in bucket.nodes if node.alive]


def _extended(bucket: BucketStore, node: ServerNode) -> list[dict[str, Any]]:
    return [_services(bucket, one) | this_node(one, node) for one in _nodes(bucket)]


def _services(bucket: BucketStore, node: ServerNode) -> dict[str, Any]:
    """Return the ports of a node, and who it is. A node that listens on all addresses names no host."""
    ports = {
        "kv": node.port,
        "kvSSL": node.tls_port,
        "mgmt": node.management_port,
        "mgmtSSL": node.tls_management_port,
    }
    number = bucket.release.number
    return {
        "services": {name: port for name, port in ports.items() if port},
        **({} if node.host in _ANY_HOST else {"hostname": node.host}),
        **({"serverGroup": SERVER_GROUP} if number >= _SERVER_GROUPS else {}),
        **({"nodeUUID": node_uuid(bucket, node)} if number >= _NODE_UUIDS else {}),
    }


def _owners(bucket: BucketStore, nodes: list[ServerNode]) -> list[list[int]]:
    """Return for each vbucket the owners of its copies, as indexes into the map's list of nodes."""
    # The list leaves dead nodes out, so the indexes differ from the numbers of the nodes.
    indexes = {node.number: index for index, node in enumerate(nodes)}
    width = bucket.replicas + 1
    return [
        [indexes.get(owner, NOBODY) for owner in owners[:width]] + [NOBODY] * (width - len(owners))
        for owners in bucket.owners
    ]
