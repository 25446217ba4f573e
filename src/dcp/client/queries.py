"""What nodes are asked: how far they are, which histories they have, and which collections there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dcp.client.agent import Access
from dcp.errors import LocalProtocolError, RemoteProtocolError, ServerError, TransportError
from dcp.json_reader import JsonReader
from dcp.position import FailoverLog
from dcp.wire.memcached import SEQNOS, Status, VbucketState

_NO_COLLECTIONS = (Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED, Status.NO_COLLECTIONS_MANIFEST)


def server_version(access: Access) -> str:
    return str(access.ask("version").value, errors="replace")


def high_seqnos(access: Access, collection_id: int | None = None) -> dict[int, int]:
    fields = {"state": int(VbucketState.ACTIVE)}
    fields |= {} if collection_id is None else {"collection_id": collection_id}
    found: dict[int, int] = {}
    cluster_map = access.refresh()
    for node in cluster_map.nodes:
        (answer,) = access.ask_node(node, "get_all_vb_seqnos", [{"fields": fields}])
        if answer.status == Status.UNKNOWN_COLLECTION:
            raise ServerError(f"{node}: there is no collection with the id {collection_id}", answer.status)
        if answer.status:
            raise ServerError(f"{node}: no seqnos", answer.status)
        # While a node is failed over, it and its heir may both say that they have a vbucket. Who is asked for histories
        # and streams is the one that the map names.
        mine = set(cluster_map.vbuckets_of(node))
        found |= {row.vbucket: row.seqno for row in SEQNOS.decode(answer.value, {}) if row.vbucket in mine}
    return dict(sorted(found.items()))


def failover_logs(access: Access, vbuckets: Iterable[int]) -> dict[int, FailoverLog]:
    wanted, cluster_map = set(vbuckets), access.map
    found: dict[int, FailoverLog] = {}
    for node in cluster_map.nodes:
        mine = sorted(wanted.intersection(cluster_map.vbuckets_of(node)))
        if not mine:
            continue
        answers = access.ask_node(node, "kv_get_failover_log", [{"vbucket": number} for number in mine])
        for number, answer in zip(mine, answers, strict=True):
            if not answer.status:
                found[number] = FailoverLog.of(answer.body())
    return found


def purge_seqnos(access: Access) -> dict[int, int]:
    """Up to where each vbucket has forgotten deletions, as the nodes tell that have them now."""
    found: dict[int, int] = {}
    for node in access.map.nodes:
        mine = {f"vb_{vbucket}:purge_seqno": vbucket for vbucket in access.map.vbuckets_of(node)}
        for name, value in access.stats_of(node, "vbucket-seqno").items():
            if name in mine and value.isdecimal():
                found[mine[name]] = int(value)
    return found


# Collections.


class Manifest(NamedTuple):
    """The paths of all collections, by their ids. Each change makes a manifest with a larger uid."""

    uid: int
    paths: dict[int, str]


def manifest(access: Access, newest: int = 0) -> Manifest:
    answer = access.ask("get_collections_manifest")
    if answer.status == Status.NO_COLLECTIONS_MANIFEST:
        # It is warming up: that is not to say that there are none.
        raise TransportError(f"{access.where}: the node has yet to learn which collections there are: try again")
    if answer.status in _NO_COLLECTIONS:
        return Manifest(0, {})
    if answer.status:
        raise ServerError("the server does not tell its collections", answer.status)
    told = JsonReader.parse(answer.value, "collections manifest", RemoteProtocolError)
    found = Manifest(told["uid"].hexadecimal(), dict(_paths(told)))
    if found.uid < newest:
        raise TransportError(f"{access.where}: the node has manifest {found.uid:x}, and there is {newest:x}: try again")
    return found


def _paths(told: JsonReader) -> Iterator[tuple[int, str]]:
    for scope in told["scopes"]:
        for collection in scope["collections"]:
            yield collection["uid"].hexadecimal(), f"{scope['name'].text()}.{collection['name'].text()}"


def scope_id(access: Access, name: str) -> int:
    return _id(access, "get_scope_id", name, "scope_id")


def collection_id(access: Access, path: str) -> int:
    return _id(access, "get_collection_id", path, "collection_id")


def _id(access: Access, command: str, path: str, field: str) -> int:
    answer = access.ask(command, value=path.encode())
    if answer.status in (Status.UNKNOWN_SCOPE, Status.UNKNOWN_COLLECTION):
        raise LocalProtocolError(
            f"{field.removesuffix('_id')}: there is no {path!r} in {access.target.bucket!r}; "
            "client.collections(), or dcp count, has those that there are"
        )
    if answer.status:
        error = ServerError(f"{path}: the server takes this for no name of a scope or collection", answer.status)
        if answer.status in _NO_COLLECTIONS:
            error = ServerError(f"{path}: the server has no collections; they take 7.0 or newer", answer.status)
        error.node = access.where
        raise error
    return int(answer.fields[field])
