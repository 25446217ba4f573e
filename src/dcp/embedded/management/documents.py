"""Documents of the management service about the cluster, its nodes and its bucket, in the form of ns_server."""

from __future__ import annotations

from typing import Any

from dcp.embedded.bucket import BucketStore, ServerNode
from dcp.embedded.cluster_map import (
    SERVER_GROUP,
    bucket_map,
    bucket_path,
    cluster_uuid,
    hostname,
    node_uuid,
    this_node,
)
from dcp.embedded.users import EVERYTHING, User

# Bytes. The cluster has no quota; clients read one.
_QUOTA = 256 << 20


def cluster(bucket: BucketStore) -> dict[str, Any]:
    """Return the document at the root: version and pools. A cluster has one pool."""
    uuid = cluster_uuid(bucket)
    version = bucket.release.full_version
    paths = {"uri": f"/pools/default?uuid={uuid}", "streamingUri": f"/poolsStreaming/default?uuid={uuid}"}
    return {
        "isAdminCreds": True,
        "isROAdminCreds": False,
        "isEnterprise": True,
        "allowedServices": ["kv"],
        "pools": [{"name": "default", **paths}],
        "settings": {},
        "uuid": uuid,
        "implementationVersion": version,
        "componentsVersion": {"ns_server": version},
    }


def user(user: User) -> dict[str, Any]:
    """Return what the cluster knows of a user."""
    if not user.name:
        return {"id": "", "domain": "anonymous", "roles": []}
    roles = ["admin"] if user.privileges == EVERYTHING else [one.value for one in user.privileges]
    return {"id": user.name, "domain": "local", "roles": [{"role": role} for role in sorted(roles)]}


def pool(bucket: BucketStore, node: ServerNode, local_host: str) -> dict[str, Any]:
    """Return the document of the only pool: its nodes, and where its buckets are."""
    paths = {
        "uri": f"/pools/default/buckets?v={bucket.revision}&uuid={cluster_uuid(bucket)}",
        "terseBucketsBase": "/pools/default/b/",
        "terseStreamingBucketsBase": "/pools/default/bs/",
    }
    return {
        "name": "default",
        "clusterName": "",
        "nodes": _nodes(bucket, node, local_host),
        "buckets": paths,
        "bucketNames": [{"bucketName": bucket.name, "uuid": bucket.uuid}],
        "nodeServicesUri": f"/pools/default/nodeServices?v={bucket.revision}",
        "rebalanceStatus": "none",
        "balanced": True,
    }


def bucket_details(bucket: BucketStore, node: ServerNode, local_host: str) -> dict[str, Any]:
    """Return the document of the bucket: its map and its settings, and its nodes with their state."""
    terse = bucket_map(bucket, node, local_host)
    for only_terse in ("rev", "revEpoch", "nodesExt", "clusterCapabilities", "clusterCapabilitiesVer"):
        terse.pop(only_terse, None)
    return {
        **terse,
        "bucketType": "membase",
        "nodes": _nodes(bucket, node, local_host),
        "authType": "sasl",
        "replicaNumber": bucket.replicas,
        "replicaIndex": False,
        "quota": {"ram": _QUOTA * len(bucket.nodes), "rawRAM": _QUOTA},
        "basicStats": {},
        "evictionPolicy": "valueOnly",
        "durabilityMinLevel": "none",
        "conflictResolutionType": "seqno",
        "maxTTL": 0,
        "compressionMode": "passive",
        "controllers": {},
        "stats": {"uri": f"{bucket_path(bucket)}/stats"},
    }


def _nodes(bucket: BucketStore, node: ServerNode, local_host: str) -> list[dict[str, Any]]:
    """Return the members of the cluster: nodes that are up, and those that are down and were not failed over."""
    members = [one for one in bucket.nodes if one.alive or any(one.number in owners for owners in bucket.owners)]
    return [_node(bucket, one, node, local_host) for one in members]


def _node(bucket: BucketStore, one: ServerNode, node: ServerNode, local_host: str) -> dict[str, Any]:
    major, minor = bucket.release.number
    tls = {"httpsMgmt": one.tls_management_port} if one.tls_management_port else {}
    return {
        "clusterMembership": "active",
        "recoveryType": "none",
        "status": "healthy" if one.alive else "unhealthy",
        "otpNode": f"n_{one.number}@{one.host}",
        "hostname": hostname(one, one.management_port, local_host),
        "nodeUUID": node_uuid(bucket, one),
        "clusterCompatibility": major << 16 | minor,
        "version": bucket.release.full_version,
        "os": "embedded",
        "ports": {"direct": one.port, **tls},
        "services": ["kv"],
        "serverGroup": SERVER_GROUP,
        **this_node(one, node),
    }
