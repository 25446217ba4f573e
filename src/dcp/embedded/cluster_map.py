"""The map of a cluster as a node tells it: who its nodes are, and which of them has which vbucket."""

from __future__ import annotations

from typing import Any

from dcp.embedded.bucket import NOBODY, BucketStore, ServerNode
from dcp.embedded.release import ReleaseNumber

# Clients put the name in its place under which they reached the node.
_HOST = "$HOST"
# Nodes are called by their management ports. Nothing listens there, so the port is not among the services: clients
# would wait for it.
_MANAGEMENT_PORT = 8091

_EPOCHS: ReleaseNumber = (7, 0)
_GLOBAL_MAPS: ReleaseNumber = (6, 5)
_MANIFESTS: ReleaseNumber = (7, 0)
_CAPABILITIES: dict[str, ReleaseNumber] = {
    "cbhello": (3, 0),
    "touch": (3, 0),
    "cccp": (3, 0),
    "nodesExt": (3, 0),
    "dcp": (3, 0),
    "xattr": (5, 0),
    "durableWrite": (6, 5),
    "tombstonedUserXAttrs": (6, 6),
    "collections": (7, 0),
    "preserveExpiry": (7, 1),
}


def revision(bucket: BucketStore) -> tuple[int, int]:
    """Of two maps, the one with the greater pair is newer."""
    return bucket.epoch, bucket.revision


def has_global_map(bucket: BucketStore) -> bool:
    """Whether there is a map for those who have selected no bucket."""
    return bucket.release.number >= _GLOBAL_MAPS


def global_map(bucket: BucketStore, node: ServerNode) -> dict[str, Any]:
    """The nodes alone."""
    return {**_revision(bucket), "nodesExt": [_services(one, node) for one in _nodes(bucket)]}


def bucket_map(bucket: BucketStore, node: ServerNode) -> dict[str, Any]:
    """The nodes, and the owners of all vbuckets, as `node` tells it."""
    release, nodes = bucket.release.number, _nodes(bucket)
    manifest = {"collectionsManifestUid": f"{bucket.manifest.uid:x}"} if release >= _MANIFESTS else {}
    return {
        **_revision(bucket),
        "name": bucket.name,
        "uuid": bucket.uuid,
        "nodeLocator": "vbucket",
        "bucketCapabilitiesVer": "",
        "bucketCapabilities": [name for name, since in _CAPABILITIES.items() if since <= release],
        **manifest,
        "nodes": [
            {"hostname": f"{_HOST}:{_MANAGEMENT_PORT}", "ports": {"direct": one.port}} | _this(one, node)
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


def _revision(bucket: BucketStore) -> dict[str, int]:
    epoch = {"revEpoch": bucket.epoch} if bucket.release.number >= _EPOCHS else {}
    return {"rev": bucket.revision, **epoch}


def _nodes(bucket: BucketStore) -> list[ServerNode]:
    return [node for node in bucket.nodes if node.alive]


def _this(one: ServerNode, node: ServerNode) -> dict[str, bool]:
    return {"thisNode": True} if one is node else {}


def _services(one: ServerNode, node: ServerNode) -> dict[str, Any]:
    secure = {"kvSSL": one.tls_port} if one.tls_port else {}
    return {"services": {"kv": one.port, **secure}} | _this(one, node)


def _owners(bucket: BucketStore, nodes: list[ServerNode]) -> list[list[int]]:
    """By their places in the list of nodes; each vbucket has as many as the bucket has copies."""
    places = {node.number: place for place, node in enumerate(nodes)}
    width = bucket.replicas + 1
    return [
        [places.get(owner, NOBODY) for owner in owners[:width]] + [NOBODY] * (width - len(owners))
        for owners in bucket.owners
    ]
