"""Cluster maps as nodes send them: the nodes, and the owner of each vbucket."""

from __future__ import annotations

from typing import Any

from dcp.embedded.bucket import NOBODY, BucketStore, ServerNode
from dcp.embedded.release import ReleaseNumber

# Servers send this placeholder, and clients replace it with the host by which they reached the node.
_HOST = "$HOST"
# Nodes are named by their management ports. Nothing listens there, so the port is not listed as a service: clients
# would try to connect to it.
_MANAGEMENT_PORT = 8091

_EPOCHS: ReleaseNumber = (7, 0)
_GLOBAL_MAPS: ReleaseNumber = (6, 5)
_MANIFESTS: ReleaseNumber = (7, 0)
_CLUSTER_CAPABILITIES: ReleaseNumber = (6, 5)
_BUCKET_TYPES: ReleaseNumber = (7, 0)
_STORAGE_BACKENDS: ReleaseNumber = (7, 1)
_VBUCKET_COUNTS: ReleaseNumber = (7, 2)
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
    return {**_revision(bucket), "nodesExt": [_services(one, node) for one in _nodes(bucket)]}


def bucket_map(bucket: BucketStore, node: ServerNode) -> dict[str, Any]:
    """Return the map of the bucket as `node` sends it: nodes, and owners of all vbuckets.

    It has what a server's map has, without the addresses of services that this cluster does not have.
    """
    number, nodes = bucket.release.number, _nodes(bucket)
    later: list[tuple[ReleaseNumber, dict[str, Any]]] = [
        (_BUCKET_TYPES, {"bucketType": "membase"}),
        (_STORAGE_BACKENDS, {"storageBackend": "magma" if bucket.retains_history else "couchstore"}),
        (_VBUCKET_COUNTS, {"numVBuckets": len(bucket.owners)}),
        (_MANIFESTS, {"collectionsManifestUid": f"{bucket.manifest.uid:x}"}),
        (_CLUSTER_CAPABILITIES, {"clusterCapabilitiesVer": [1, 0], "clusterCapabilities": {}}),
    ]
    return {
        **_revision(bucket),
        "name": bucket.name,
        "uuid": bucket.uuid,
        "nodeLocator": "vbucket",
        "bucketCapabilitiesVer": "",
        "bucketCapabilities": _capabilities(bucket),
        **{name: value for since, members in later if since <= number for name, value in members.items()},
        "nodes": [
            {"hostname": f"{_HOST}:{_MANAGEMENT_PORT}", "ports": {"direct": one.port}} | _this_node(one, node)
            for one in nodes
        ],
        "nodesExt": [_services(one, node) for one in nodes],
        "vBucketServerMap": {
            "hashAlgorithm": "CRC",
            "numReplicas": bucket.replicas,
            "serverList": [f"{_HOST}:{one.port}" for one in nodes],
            "vBucketMap": _owners(bucket, nodes),
        },
    }


def _capabilities(bucket: BucketStore) -> list[str]:
    known = [name for name, since in _CAPABILITIES.items() if since <= bucket.release.number]
    return [name for name in known if _OF_MAGMA.get(name, bucket.retains_history) == bucket.retains_history]


def _revision(bucket: BucketStore) -> dict[str, int]:
    epoch = {"revEpoch": bucket.epoch} if bucket.release.number >= _EPOCHS else {}
    return {"rev": bucket.revision, **epoch}


def _nodes(bucket: BucketStore) -> list[ServerNode]:
    return [node for node in bucket.nodes if node.alive]


def _this_node(one: ServerNode, node: ServerNode) -> dict[str, bool]:
    return {"thisNode": True} if one is node else {}


def _services(one: ServerNode, node: ServerNode) -> dict[str, Any]:
    tls = {"kvSSL": one.tls_port} if one.tls_port else {}
    return {"services": {"kv": one.port, **tls}} | _this_node(one, node)


def _owners(bucket: BucketStore, nodes: list[ServerNode]) -> list[list[int]]:
    """Return for each vbucket the owners of its copies, as indexes into the map's list of nodes."""
    # The list leaves dead nodes out, so the indexes differ from the numbers of the nodes.
    indexes = {node.number: index for index, node in enumerate(nodes)}
    width = bucket.replicas + 1
    return [
        [indexes.get(owner, NOBODY) for owner in owners[:width]] + [NOBODY] * (width - len(owners))
        for owners in bucket.owners
    ]
