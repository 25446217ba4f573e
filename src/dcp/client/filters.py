"""What of a bucket a stream is about: names of scopes and collections as the ids that nodes know."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from dcp.checkpoint import Checkpoint
from dcp.client import options as arguments
from dcp.client import queries as questions
from dcp.client.agent import Access
from dcp.errors import LocalProtocolError
from dcp.wire.dcp_body import StreamFilter


@dataclass(frozen=True, slots=True)
class Selection:
    """chosen: what is asked of nodes; None for all. empty: a checkpoint of nothing that says for what it is one."""

    chosen: StreamFilter | None
    empty: Checkpoint
    scope: str | None = None

    def follows(self, number: int, path: str) -> bool:
        """Whether a collection belongs to it."""
        if self.chosen is None:
            return True
        return number in self.chosen.collections if self.chosen.collections else path.startswith(f"{self.scope}.")


def select(access: Access, scope: str | None, collections: Iterable[str] | None) -> Selection:
    cluster_map = access.map
    whole = Checkpoint((), cluster_map.num_vbuckets, cluster_map.name, cluster_map.uuid)
    if scope == "" or (scope is not None and not isinstance(scope, str)):
        raise LocalProtocolError(f"scope: expected a name, found {scope!r:.100}")
    if collections is not None:
        ids = _ids(access, scope, arguments.names("collections", collections))
        return Selection(StreamFilter(collections=ids), replace(whole, collections=ids), scope)
    if scope is not None:
        number = questions.scope_id(access, scope)
        return Selection(StreamFilter(scope=number), replace(whole, scope=number), scope)
    return Selection(None, whole)


def _ids(access: Access, scope: str | None, names: list[str]) -> tuple[int, ...]:
    paths = [path_of(name, scope) for name in names]
    if not paths:
        raise LocalProtocolError("collections: expected one name or more, found none")
    for name, path in zip(names, paths, strict=True):
        # Servers take no name at all for _default.
        if not all(path.split(".")):
            raise LocalProtocolError(f"collections: expected names such as hotel or inventory.hotel, found {name!r}")
    return tuple(sorted(questions.collection_id(access, path) for path in paths))


def path_of(name: str, scope: str | None) -> str:
    """A collection with its scope, which may stand before the name or apart."""
    return name if "." in name else f"{scope or '_default'}.{name}"
