"""HELLO features: the release that introduced each one, and what they require."""

from __future__ import annotations

from collections.abc import Iterable

from dcp.embedded.refusals import Refusal
from dcp.embedded.release import Release, ReleaseNumber
from dcp.wire.memcached import Feature, Status

_SINCE: dict[Feature, ReleaseNumber] = {
    Feature.TCP_NODELAY: (4, 0),
    Feature.MUTATION_SEQNO: (4, 0),
    Feature.XATTR: (5, 0),
    Feature.XERROR: (5, 0),
    Feature.SELECT_BUCKET: (5, 0),
    Feature.SNAPPY: (5, 0),
    Feature.JSON: (5, 0),
    Feature.DUPLEX: (5, 5),
    Feature.CLUSTERMAP_CHANGE_NOTIFICATION: (5, 5),
    Feature.UNORDERED_EXECUTION: (5, 5),
    Feature.TRACING: (5, 5),
    Feature.ALT_REQUEST_SUPPORT: (6, 5),
    Feature.SYNC_REPLICATION: (6, 5),
    Feature.COLLECTIONS: (6, 5),
    Feature.SNAPPY_EVERYWHERE: (7, 6),
    Feature.PRESERVE_TTL: (7, 0),
    Feature.VATTR: (6, 6),
    Feature.SUBDOC_CREATE_AS_DELETED: (6, 6),
    Feature.SUBDOC_DOCUMENT_MACRO: (7, 0),
    Feature.SUBDOC_REPLACE_BODY_WITH_XATTR: (7, 0),
    Feature.SUBDOC_REPLICA_READ: (7, 6),
    Feature.SUBDOC_ALLOW_MULTIPLE_XATTR_KEYS: (7, 6),
    Feature.SUBDOC_BINARY_XATTR: (8, 0),
    Feature.SUBDOC_REPLICA_READ_DELETED: (8, 0),
    Feature.GET_CLUSTER_CONFIG_WITH_KNOWN_VERSION: (7, 6),
    Feature.DEDUPE_NOT_MY_VBUCKET_CLUSTERMAP: (7, 6),
    Feature.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF: (7, 6),
    Feature.RANGE_SCAN_INCLUDE_XATTR: (8, 0),
    Feature.GET_RANDOM_KEY_INCLUDE_XATTR: (8, 0),
    Feature.DCP_SKIP_DELETES_IN_INITIAL_BACKFILL: (8, 5),
}
# Checked but never granted: clients request them together with others, and this cluster does not implement them.
_NOT_GRANTED = frozenset(
    {
        Feature.TRACING,
        Feature.GET_RANDOM_KEY_INCLUDE_XATTR,
    }
)
# Features that must be in the same HELLO.
_REQUIRED: dict[Feature, frozenset[Feature]] = {
    Feature.CLUSTERMAP_CHANGE_NOTIFICATION: frozenset({Feature.DUPLEX}),
    Feature.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF: frozenset({Feature.DUPLEX}),
    Feature.VATTR: frozenset({Feature.XATTR}),
    Feature.SUBDOC_DOCUMENT_MACRO: frozenset({Feature.XATTR}),
    Feature.RANGE_SCAN_INCLUDE_XATTR: frozenset({Feature.XATTR}),
    Feature.GET_RANDOM_KEY_INCLUDE_XATTR: frozenset({Feature.XATTR, Feature.JSON, Feature.SNAPPY_EVERYWHERE}),
}


def granted_features(requested: Iterable[int], release: Release) -> list[Feature]:
    """Return the features that a release grants: in the order of the request, since 7.2 in that of their codes.

    Unknown codes are left out. Raises Refusal if a feature is requested without another one that it requires.
    """
    codes = [code for code in dict.fromkeys(requested) if _SINCE.get(code, (99, 0)) <= release.number]  # type: ignore[call-overload]
    known = [Feature(code) for code in codes]
    for feature in known:
        if missing := _REQUIRED.get(feature, frozenset()).difference(known):
            names = ", ".join(sorted(one.name for one in missing))
            raise Refusal(Status.EINVAL, f"{feature.name} needs {names} in the same HELLO")
    # Brief notifications replace the full ones: servers grant only one of the two.
    brief = Feature.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF in known
    granted = [
        feature
        for feature in known
        if feature not in _NOT_GRANTED and not (brief and feature is Feature.CLUSTERMAP_CHANGE_NOTIFICATION)
    ]
    return sorted(granted) if release.sorts_features else granted
