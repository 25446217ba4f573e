"""Filters of a stream: names of scopes and collections as the ids that nodes know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dcp.checkpoint import Checkpoint
from dcp.client import queries
from dcp.client.agent import Agent
from dcp.cluster_map import ClusterMap
from dcp.errors import UsageError
from dcp.wire.dcp_body import StreamFilter


@dataclass(frozen=True, slots=True)
class StreamSelection:
    """The part of a bucket that a stream follows.

    wire: filter of stream requests; None for the whole bucket.
    template: checkpoint without positions that names bucket and filter.
    scope: name of the scope, if one was given.
    """

    wire: StreamFilter | None
    template: Checkpoint
    scope: str | None = None

    def includes(self, collection_id: int, path: str) -> bool:
        """Return True if the stream follows a collection."""
        if self.wire is None:
            return True
        if self.wire.collections:
            return collection_id in self.wire.collections
        return path.startswith(f"{self.scope}.")

    def collection_ids(self, agent: Agent) -> tuple[int, ...]:
        """Return the ids of the collections that the stream is limited to; none if it follows the whole bucket."""
        if self.wire is None or self.wire.collections:
            return self.template.collections
        return tuple(
            number for number, path in queries.collections_manifest(agent).paths.items() if self.includes(number, path)
        )


def bucket_checkpoint(cluster_map: ClusterMap) -> Checkpoint:
    """Return the checkpoint without positions that names a bucket."""
    return Checkpoint((), cluster_map.num_vbuckets, cluster_map.name, cluster_map.uuid)


def resolve_filter(agent: Agent, scope: str | None, collections: Sequence[str] | None) -> StreamSelection:
    """Return the filter for names. Raises UsageError for names that do not exist."""
    bucket = bucket_checkpoint(agent.map)
    if collections is not None:
        ids = _collection_ids(agent, scope, collections)
        return StreamSelection(StreamFilter(collections=ids), replace(bucket, collections=ids), scope)
    if scope is not None:
        # The server follows collections that are created in the scope later, so they are not listed here.
        number = queries.scope_id(agent, scope)
        return StreamSelection(StreamFilter(scope=number), replace(bucket, scope=number), scope)
    return StreamSelection(None, bucket)


def _collection_ids(agent: Agent, scope: str | None, names: Sequence[str]) -> tuple[int, ...]:
    paths = [collection_path(name, scope) for name in names]
    for name, path in zip(names, paths, strict=True):
        # Servers take an empty name for _default, which a typing error must not select.
        if not all(path.split(".")):
            raise UsageError(f"collections: expected names such as hotel or inventory.hotel, found {name!r}")
    return tuple(sorted(queries.collection_id(agent, path) for path in paths))


def collection_path(name: str, scope: str | None) -> str:
    """Return `scope.collection` for a name with or without its scope."""
    return name if "." in name else f"{scope or '_default'}.{name}"
