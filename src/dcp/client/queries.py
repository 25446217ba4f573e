"""Questions to nodes: high seqnos, failover logs, a consistent read of both, purge seqnos, disk, collections."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from dcp.client.agent import Agent
from dcp.cluster_map import ClusterMap, Node, format_vbuckets, no_owner_error
from dcp.errors import RemoteProtocolError, ServerError, TransportError, UsageError
from dcp.json_reader import JsonReader
from dcp.position import FailoverLog
from dcp.session.refusals import STREAM_REQUEST, reaction
from dcp.wire.frame import Frame
from dcp.wire.memcached import SEQNOS, Status, VbucketState

# Seconds between questions for a manifest that a node does not have yet.
_MANIFEST_INTERVAL = 0.1
_PURGE_SEQNO = re.compile(r"vb_([0-9]{1,5}):purge_seqno")
# Nodes that are asked at the same time.
_MOST_AT_ONCE = 32

T = TypeVar("T")

_NO_COLLECTIONS = (Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED, Status.NO_COLLECTIONS_MANIFEST)


_NOT_READABLE = (
    "the user may not read the whole bucket: grant the role data_dcp_reader on it, or select collections that the user "
    "may read (collections=, --collection)"
)
# A 6.6 node can crash when it streams documents with xattrs from disk without values (seen with 6.6.5).
_CRASHES_WITHOUT_VALUES = "6.6"


def server_version(agent: Agent) -> str:
    """Return the version of the node that commands go to."""
    return str(agent.ask("version").value, errors="replace")


def can_leave_out_values(agent: Agent) -> bool:
    """Return whether nodes may be asked for changes without their values."""
    return not server_version(agent).startswith(_CRASHES_WITHOUT_VALUES)


def high_seqnos(agent: Agent, collection_ids: Collection[int] | None = None) -> dict[int, int]:
    """Return the high seqno of each vbucket, or the highest of these collections in it, from the vbuckets' owners."""
    of_all = {"state": int(VbucketState.ACTIVE)}
    ids = [None] if collection_ids is None else [*collection_ids]
    questions = [{"fields": of_all if number is None else of_all | {"collection_id": number}} for number in ids]

    def ask(node: Node, owned: set[int]) -> dict[int, int]:
        highest: dict[int, int] = {}
        for number, answer in zip(ids, agent.ask_node(node, "get_all_vb_seqnos", questions), strict=True):
            _check_seqnos(node, number, answer.status)
            for vbucket, seqno in SEQNOS.decode(answer.value, {}):
                if seqno >= highest.get(vbucket, 0):
                    highest[vbucket] = seqno
        # During a failover the old and the new owner may both report a vbucket. Histories and streams are asked of
        # the owner in the map, so its high seqno is the one that counts.
        return {vbucket: seqno for vbucket, seqno in highest.items() if vbucket in owned}

    # A fresh map: an owner that is outdated would leave its vbuckets out.
    found = ask_each({node: partial(ask, node, owned) for node, owned in _owners(agent.refresh_map())})
    return dict(sorted((vbucket, seqno) for seqnos in found.values() for vbucket, seqno in seqnos.items()))


def _check_seqnos(node: Node, collection_id: int | None, status: int) -> None:
    """Raise ServerError if a node refused to send its high seqnos."""
    if status == Status.UNKNOWN_COLLECTION:
        problem = f"the collection with the id {collection_id} was dropped, or is not readable for this user"
        raise ServerError(f"{node}: {problem}", status)
    if status:
        problem = "the node refused to send its high seqnos" if status != Status.EACCESS else _NOT_READABLE
        raise _refused(f"{node}: {problem}", status)


def ask_each(questions: Mapping[Node, Callable[[], T]]) -> dict[Node, T]:
    """Return the answers of several nodes, asked at the same time. Raises the error of the first that has one."""
    if len(questions) < 2:
        return {node: question() for node, question in questions.items()}
    with ThreadPoolExecutor(min(len(questions), _MOST_AT_ONCE), "dcp-queries") as threads:
        waiting = {node: threads.submit(question) for node, question in questions.items()}
        return {node: answer.result() for node, answer in waiting.items()}


def _refused(problem: str, status: int) -> ServerError:
    """Return the error for a refused question. It is retriable if a stream would repeat its request."""
    error = ServerError(problem, status)
    error.retriable = reaction(STREAM_REQUEST, status).passes
    return error


def failover_logs(agent: Agent, vbuckets: Iterable[int]) -> dict[int, FailoverLog]:
    """Return the failover log of each vbucket that has an owner which sends it.

    Raises a retriable ServerError if an owner is too busy to send it: without its log, a position would be rolled back.
    """
    wanted = set(vbuckets)
    asked = {node: sorted(wanted & owned) for node, owned in _owners(agent.map) if wanted & owned}
    found = ask_each({node: partial(_failover_logs_at, agent, node, numbers) for node, numbers in asked.items()})
    return {number: log for logs in found.values() for number, log in logs.items()}


def _failover_logs_at(agent: Agent, node: Node, vbuckets: list[int]) -> dict[int, FailoverLog]:
    found: dict[int, FailoverLog] = {}
    answers = agent.ask_node(node, "kv_get_failover_log", [{"vbucket": number} for number in vbuckets])
    for number, answer in zip(vbuckets, answers, strict=True):
        if not answer.status:
            found[number] = FailoverLog.of(answer.body())
        elif answer.status != Status.NOT_MY_VBUCKET and reaction(STREAM_REQUEST, answer.status).passes:
            error = ServerError(f"{node}: the node refused to send the failover log of vbucket {number}", answer.status)
            error.retriable = True
            raise error
    return found


def purge_seqnos(agent: Agent) -> dict[int, int]:
    """Return the purge seqno of each vbucket whose owner reports it to this user."""

    def ask(node: Node) -> dict[int, int]:
        try:
            return purge_seqnos_at(agent, node)
        except ServerError as error:
            if error.status != Status.EACCESS:
                raise
            agent.warn_once(f"{error}; purged deletions are not reported")
            return {}

    owners = dict(_owners(agent.map))
    found = ask_each({node: partial(ask, node) for node in owners})
    return {
        vbucket: seqno for node, seqnos in found.items() for vbucket, seqno in seqnos.items() if vbucket in owners[node]
    }


def purge_seqnos_at(agent: Agent, node: Node) -> dict[int, int]:
    """Return the purge seqnos of the vbuckets of one node, its replicas included."""
    found: dict[int, int] = {}
    for name, value in agent.stats_of(node, "vbucket-seqno").items():
        if (match := _PURGE_SEQNO.fullmatch(name)) and value.isascii() and value.isdecimal():
            found[int(match[1])] = int(value)
    return found


def _owners(cluster_map: ClusterMap) -> Iterator[tuple[Node, set[int]]]:
    """Yield the nodes that own vbuckets, and these. A node that owns none has nothing to report, and may be down."""
    for node, owned in cluster_map.vbuckets_by_owner().items():
        yield node, set(owned)


class DiskBacklog(NamedTuple):
    """Changes of a vbucket, numbered in the order in which its node writes them to disk.

    newest: number of the newest change. persisted: number of the newest change on disk. From servers that report the
    length of the queue only, that length and 0: once it is 0, everything before is on disk.
    """

    newest: int
    persisted: int


# Changes that wait for the disk, and those that are being written (ep-engine since 1.8 src/ep_engine.cc).
_DISK_QUEUES = ("ep_queue_size", "ep_flusher_todo")


class NodeStatistics(Protocol):
    """The part of the agent that reads statistics."""

    def stats_of(self, node: Node, group: str) -> dict[str, str]: ...


def disk_backlogs(agent: NodeStatistics, node: Node, vbuckets: Collection[int]) -> dict[int, DiskBacklog]:
    """Return what a node has to write to disk yet, of each of these vbuckets that it has.

    Raises ServerError if the node has none of the statistics that tell.
    """
    general = agent.stats_of(node, "")
    queued = [_number(general, name) for name in _DISK_QUEUES]
    if queued == [0, 0]:
        return dict.fromkeys(vbuckets, DiskBacklog(0, 0))
    # Since 4.5; earlier servers have the high seqno alone.
    seqnos = agent.stats_of(node, "vbucket-seqno")
    if found := {
        vbucket: DiskBacklog(newest, persisted)
        for vbucket in vbuckets
        if (newest := _number(seqnos, f"vb_{vbucket}:high_seqno")) is not None
        and (persisted := _number(seqnos, f"vb_{vbucket}:last_persisted_seqno")) is not None
    }:
        return found
    # Since 2.0. The length counts a change until it is committed (3.1.6: PersistenceCallback in src/ep.cc).
    details = agent.stats_of(node, "vbucket-details")
    if found := {
        vbucket: DiskBacklog(size, 0)
        for vbucket in vbuckets
        if (size := _number(details, f"vb_{vbucket}:queue_size")) is not None
    }:
        return found
    waiting, writing = queued
    if waiting is None or writing is None:
        raise ServerError(f"{node}: the node does not report what is on disk; stream without an end")
    return dict.fromkeys(vbuckets, DiskBacklog(waiting + writing, 0))


def _number(statistics: Mapping[str, str], name: str) -> int | None:
    value = statistics.get(name, "")
    return int(value) if value.isdecimal() else None


def persisted_seqno(frame: Frame) -> int | None:
    """Return the persisted seqno of an OBSERVE_SEQNO answer; None if the node has another history.

    After a failover the node answers for the old history with `old_seqno`, at which the new one began: its persisted
    seqno above that is of the new history.
    """
    if frame.status == Status.UNKNOWN_COMMAND:
        raise ServerError("persisted_only: the server does not report persisted seqnos; requires 4.0", frame.status)
    if frame.status:
        return None
    fields = frame.fields
    return min(int(fields["persisted_seqno"]), int(fields.get("old_seqno", fields["persisted_seqno"])))


def persisted_seqnos(agent: Agent, histories: Mapping[int, int]) -> dict[int, dict[str, int | None]]:
    """Return the seqno up to which each copy of a vbucket is on disk, by vbucket and node.

    histories: uuid of the history by vbucket. A node that does not answer, or has another history, has None.
    """
    by_node: defaultdict[Node, list[int]] = defaultdict(list)
    for vbucket in histories:
        owner = agent.map.owner(vbucket)
        for node in () if owner is None else (owner, *agent.map.replicas(vbucket)):
            by_node[node].append(vbucket)
    found: dict[int, dict[str, int | None]] = {vbucket: {} for vbucket in histories}

    def ask(node: Node, asked: list[int]) -> list[int | None]:
        questions = [{"vbucket": vbucket, "fields": {"vbuuid": histories[vbucket]}} for vbucket in asked]
        with suppress(TransportError):
            return [persisted_seqno(frame) for frame in agent.ask_node(node, "observe_seqno", questions)]
        return [None] * len(asked)

    answers = ask_each({node: partial(ask, node, asked) for node, asked in by_node.items()})
    for node, asked in by_node.items():
        for vbucket, seqno in zip(asked, answers[node], strict=True):
            found[vbucket][str(node)] = seqno
    return found


class Heads(NamedTuple):
    """Newest state of some vbuckets. Each failover log is of a history that reached the high seqno beside it.

    failover_logs: missing for vbuckets whose owner sends none.
    """

    high_seqnos: dict[int, int]
    failover_logs: dict[int, FailoverLog]


# Returns the ids of the collections that a stream is limited to; none if it follows the whole bucket.
CollectionIds = Callable[[], Collection[int]]


class LogOrigin(NamedTuple):
    """State in which failover logs were asked for, and when, in monotonic seconds."""

    cluster_map: ClusterMap
    connections: int
    asked_at: float


class KnownLogs:
    """Failover logs that `heads` received, for its next calls. Thread-safe.

    The log of a vbucket is the same as long as its high seqno, the cluster map and the connections to the nodes are: a
    failover changes the map, and the restart of a node breaks connections. What else may change it, such as a flush of
    the bucket, is noticed at the age at which all logs are asked for again.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Replaced as a whole, so that no thread takes logs for those of another origin.
        self._kept: tuple[LogOrigin, Heads] | None = None

    def valid(
        self, agent: Agent, high_seqnos: Mapping[int, int], max_age: float
    ) -> tuple[LogOrigin, dict[int, FailoverLog]]:
        """Return the logs that need not be asked for, and the origin to keep them and others with.

        high_seqnos: as they are now. max_age: age in seconds at which a log is asked for again.
        """
        now = LogOrigin(agent.map, agent.connections_opened, self._clock())
        if self._kept is None:
            return now, {}
        origin, (known, logs) = self._kept
        if origin[:2] != now[:2] or now.asked_at - origin.asked_at >= max_age:
            return now, {}
        return origin, {vbucket: log for vbucket, log in logs.items() if high_seqnos.get(vbucket) == known[vbucket]}

    def keep(self, origin: LogOrigin, found: Heads) -> None:
        """Keep the result of a call."""
        self._kept = origin, found


def heads(
    agent: Agent,
    vbuckets: Iterable[int],
    limited_to: CollectionIds = tuple,
    attempts: int = 5,
    known: KnownLogs | None = None,
    max_age: float = 0.0,
) -> Heads:
    """Return the high seqno and failover log of each vbucket, consistent with each other.

    limited_to: see `owned_high_seqnos`. known, max_age: logs of earlier calls, and the age in seconds up to which they
        are used; None to ask for all.

    A failover between the two reads would pair a seqno with a newer history that has not reached it, and so with other
    changes of the same numbers. High seqnos are therefore read again after the logs: if none is lower, no change was
    lost in between. Raises TransportError if changes were lost at each attempt, or a vbucket has no owner.
    """
    wanted = [*vbuckets]
    known = KnownLogs() if known is None else known
    lost: list[int] = []
    for _ in range(attempts):
        before = owned_high_seqnos(agent, wanted, limited_to)
        origin, logs = known.valid(agent, before, max_age)
        if asked := [number for number in wanted if number not in logs]:
            logs |= failover_logs(agent, asked)
            after = owned_high_seqnos(agent, asked, limited_to)
            lost = [number for number in asked if after[number] < before[number]]
        if not lost:
            found = Heads(before, {number: logs[number] for number in wanted if number in logs})
            known.keep(origin, found)
            return found
    raise TransportError(
        f"vbuckets {format_vbuckets(lost)} lost changes at each of {attempts} reads of their high seqnos; "
        "retry when the cluster is healthy"
    )


def owned_high_seqnos(agent: Agent, vbuckets: Iterable[int], limited_to: CollectionIds = tuple) -> dict[int, int]:
    """Return the high seqno of each of these vbuckets. Raises TransportError if one has no owner.

    limited_to: collections whose seqnos are asked for where the user may not read those of the whole bucket.
    """
    try:
        found = high_seqnos(agent)
    except ServerError as error:
        if error.status != Status.EACCESS or not (ids := limited_to()):
            raise
        # A vbucket that never had a change of the collections is not reported.
        owned = {number for _, numbers in _owners(agent.map) for number in numbers}
        found = dict.fromkeys(owned, 0) | high_seqnos(agent, ids)
    wanted = [*vbuckets]
    missing = [number for number in wanted if number not in found]
    if missing:
        raise no_owner_error(missing)
    return {number: found[number] for number in wanted}


# Collections.


class CollectionsManifest(NamedTuple):
    """Paths (`scope.collection`) of all collections by id. Each change gives the manifest a larger uid."""

    uid: int
    paths: dict[int, str]


def collections_manifest(agent: Agent, newest: int = 0) -> CollectionsManifest:
    """Return the collections of the bucket; none from a server without collections.

    newest: uid of the newest manifest that is known. TransportError if the node has an older one, or has not loaded
    its manifest yet.
    """
    answer = agent.ask("get_collections_manifest")
    if answer.status == Status.NO_COLLECTIONS_MANIFEST:
        # A node that warms up answers so; that does not mean that there are no collections.
        raise TransportError(f"{agent.command_node}: collections manifest not loaded yet; retry")
    if answer.status in _NO_COLLECTIONS:
        return CollectionsManifest(0, {})
    if answer.status:
        raise _refused("the server refused to send its collections manifest", answer.status)
    root = JsonReader.parse(answer.value, "collections manifest", RemoteProtocolError)
    found = CollectionsManifest(root["uid"].hexadecimal(), dict(_paths(root)))
    # Nodes load a new manifest at different times; an older one would hide collections that exist.
    if found.uid < newest:
        raise TransportError(
            f"{agent.command_node}: collections manifest {found.uid:x} is older than {newest:x}, which another node "
            "has; retry"
        )
    return found


def awaited_manifest(agent: Agent, newest: int) -> CollectionsManifest:
    """Return the collections of the bucket, once the node that is asked has a manifest that is at least as new.

    Raises TransportError if it has not within `bootstrap_timeout`.
    """
    deadline = time.monotonic() + agent.options.bootstrap_timeout
    while True:
        try:
            return collections_manifest(agent, newest)
        except TransportError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_MANIFEST_INTERVAL)


def _paths(root: JsonReader) -> Iterator[tuple[int, str]]:
    for scope in root["scopes"]:
        for collection in scope["collections"]:
            yield collection["uid"].hexadecimal(), f"{scope['name'].name()}.{collection['name'].name()}"


def scope_id(agent: Agent, name: str) -> int:
    """Return the id of a scope. Raises UsageError if there is none of this name."""
    return _id(agent, "get_scope_id", name, "scope_id")


def collection_id(agent: Agent, path: str) -> int:
    """Return the id of a collection. Raises UsageError if there is none of this path."""
    return _id(agent, "get_collection_id", path, "collection_id")


def _id(agent: Agent, command: str, path: str, field: str) -> int:
    answer = agent.ask(command, value=path.encode())
    if answer.status in (Status.UNKNOWN_SCOPE, Status.UNKNOWN_COLLECTION):
        raise UsageError(
            f"{field.removesuffix('_id')}: {path!r} not found in bucket {agent.target.bucket!r}; "
            "client.collections(), or dcp count, lists those that exist"
        )
    if answer.status:
        error = ServerError(
            f"{path}: the server does not accept this as the name of a scope or collection", answer.status
        )
        if answer.status in _NO_COLLECTIONS:
            error = ServerError(f"{path}: the server has no collections; they require 7.0 or newer", answer.status)
        error.node = agent.command_node
        raise error
    return int(answer.fields[field])
