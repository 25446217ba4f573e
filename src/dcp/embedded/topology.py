"""Changes of the cluster map: nodes fail, recover, join and leave, and copies of vbuckets move.

Each public function is one change and raises the revision of the map, except `crash`, which no map announces. A copy
that becomes active without a transfer from the active one begins a new history (an entry of the failover log); a move
or a rebalance transfers the history, so the vbucket keeps its uuid on another node (seen in 8.0.1).
"""

from __future__ import annotations

from collections import Counter

from dcp.embedded.arguments import check_count, check_number
from dcp.embedded.bucket import NOBODY, BucketStore, ServerNode
from dcp.embedded.store import VbucketStore
from dcp.errors import UsageError
from dcp.position import FailoverLog
from dcp.wire.memcached import VbucketState


def failover(bucket: BucketStore, number: int, lose: int | None = None) -> None:
    """Remove a node and promote replicas of its vbuckets.

    `lose` is the number of its last writes that are lost; None loses those that the replicas have not received. The
    only node that is up cannot be failed over.
    """
    node = _node(bucket, number)
    if not any(number in owners for owners in bucket.owners):
        raise UsageError(f"node {number}: expected a node with vbuckets, found none on it")
    if not any(other.alive for other in bucket.nodes if other is not node):
        raise UsageError(f"node {number}: the only node that is up cannot be failed over; crash() stops it")
    lost = _last_writes(bucket, node, 0 if lose is None else lose)
    node.alive = False
    for vbucket, owners in enumerate(bucket.owners):
        if owners[0] == number:
            _promote_replica(bucket, vbucket, node, None if lose is None else lost[vbucket])
        elif number in owners:
            owners[owners.index(number)] = NOBODY
    _end_streams(node)
    bucket.new_map()


def crash(bucket: BucketStore, number: int) -> None:
    """Stop a node without a replacement."""
    node = live_node(bucket, number)
    node.alive = False
    _end_streams(node)


def restart(bucket: BucketStore, number: int) -> None:
    """Restart a node cleanly: everything is persisted, nothing is lost, and all histories go on.

    Streams of the node end, and its vbuckets are read from disk afterwards.
    """
    node = live_node(bucket, number)
    for vbucket, old in list(node.vbuckets.items()):
        copy = old.copy(old.state)
        copy.persisted_seqno = copy.high_seqno
        # The checkpoint of a vbucket that has never had another one: see Release.tap_forgets_first_checkpoints.
        copy.announced = old.announced and old.checkpoint > 1
        copy.evict_checkpoint()
        bucket.replace_copy(vbucket, number, copy)


def recover(bucket: BucketStore, number: int, lose: int = 0) -> None:
    """Restart a node without its last `lose` writes.

    Vbuckets without another owner become active on it again, with a new history.
    """
    node = _node(bucket, number)
    if node.alive:
        raise UsageError(f"node {number}: expected a node that is down, found it up")
    lost = _last_writes(bucket, node, lose)
    node.alive = True
    for vbucket, owners in enumerate(bucket.owners):
        if _belongs(bucket, node, vbucket):
            owners[0] = number
            copy = node.vbuckets[vbucket]
            copy.undo_writes(lost[vbucket])
            _begin_history(bucket, vbucket, copy)
        elif owners[0] != NOBODY and bucket.nodes[owners[0]].alive:
            _rejoin(bucket, vbucket, number)
    bucket.new_map()


def promote(bucket: BucketStore, vbucket: int, number: int) -> None:
    """Make a replica the active copy. Writes that it has not received are lost, also on the old active copy."""
    owners = _owners(bucket, vbucket)
    replicas = [owner for owner in owners[1:] if owner != NOBODY and bucket.nodes[owner].alive]
    if number not in replicas:
        raise UsageError(f"vbucket {vbucket}: expected a node that has a replica, {replicas}, found {number}")
    _swap(owners, number)
    _begin_history(bucket, vbucket, bucket.nodes[number].vbuckets[vbucket])
    bucket.new_map()


def move(bucket: BucketStore, vbucket: int, number: int) -> None:
    """Move the active copy to another node, with all of its items and its history."""
    _owners(bucket, vbucket)
    live_node(bucket, number)
    if bucket.owners[vbucket][0] == number:
        raise UsageError(f"vbucket {vbucket}: expected another node than its owner, found {number}")
    _take_over(bucket, vbucket, number)
    bucket.new_map()


def rebalance_in(bucket: BucketStore) -> ServerNode:
    """Add a node and move its share of the vbuckets to it."""
    node = ServerNode(len(bucket.nodes))
    healthy = _healthy_nodes(bucket)
    bucket.nodes.append(node)
    _rebalance(bucket, [*healthy, node.number])
    bucket.new_map()
    return node


def rebalance_out(bucket: BucketStore, number: int) -> None:
    """Move all vbuckets of a node to the others, and remove it."""
    node = live_node(bucket, number)
    others = [other for other in _healthy_nodes(bucket) if other != number]
    if not others:
        raise UsageError(f"node {number}: the last node cannot leave")
    # Its copies move or are removed, which ends their streams.
    _rebalance(bucket, others)
    node.alive = False
    node.vbuckets.clear()
    bucket.new_map()


# Steps of these changes.


def _promote_replica(bucket: BucketStore, vbucket: int, node: ServerNode, lost: int | None) -> None:
    """Activate the first live replica of a vbucket of a failed node.

    With `lost`, the new active copy has everything but this number of last writes; with None, what the replica has.
    """
    owners, old = bucket.owners[vbucket], node.vbuckets[vbucket]
    replicas = [owner for owner in owners[1:] if owner != NOBODY and bucket.nodes[owner].alive]
    if not replicas:
        old.undo_writes(lost or 0)
        owners[:] = [NOBODY] * len(owners)
        return
    _swap(owners, replicas[0])
    owners[owners.index(node.number)] = NOBODY
    if lost is None:
        old = bucket.nodes[replicas[0]].vbuckets[vbucket]
    else:
        old.undo_writes(lost)
    _begin_history(bucket, vbucket, old)


def _begin_history(bucket: BucketStore, vbucket: int, origin: VbucketStore) -> None:
    """Activate a copy that may lack writes of the old active one: consumers find out by the new history."""
    _activate(bucket, vbucket, origin, origin.log.begin(bucket.new_vbuuid(), origin.high_seqno))


def _activate(bucket: BucketStore, vbucket: int, origin: VbucketStore, log: FailoverLog) -> None:
    """Give the owner an active copy with the items of `origin` and a failover log, and copy it to the replicas."""
    active = origin.copy(VbucketState.ACTIVE)
    active.log = log
    owner, *replicas = bucket.owners[vbucket]
    bucket.install(vbucket, owner, active)
    for replica in replicas:
        if replica != NOBODY and bucket.nodes[replica].alive:
            _copy_to_replica(bucket, vbucket, replica)


def _copy_to_replica(bucket: BucketStore, vbucket: int, number: int) -> None:
    owner = bucket.nodes[bucket.owners[vbucket][0]]
    bucket.install(vbucket, number, owner.vbuckets[vbucket].copy(VbucketState.REPLICA))


def _rejoin(bucket: BucketStore, vbucket: int, number: int) -> None:
    """Give a recovered node a replica of a vbucket if one is missing."""
    owners = bucket.owners[vbucket]
    if number not in owners and NOBODY in owners:
        owners[owners.index(NOBODY)] = number
    if number in owners:
        _copy_to_replica(bucket, vbucket, number)
    else:
        bucket.install(vbucket, number, None)


def _take_over(bucket: BucketStore, vbucket: int, number: int) -> None:
    owners, old = bucket.owners[vbucket], bucket.active(vbucket)
    source = owners[0]
    if number in owners:
        _swap(owners, number)
    else:
        owners[0] = number
        bucket.install(vbucket, source, None)
    _activate(bucket, vbucket, old, old.log)


def _rebalance(bucket: BucketStore, nodes: list[int]) -> None:
    """Distribute the vbuckets evenly over these nodes and move as few as possible."""
    most = -(-len(bucket.owners) // len(nodes))
    held = Counter(dict.fromkeys(nodes, 0))
    to_move = []
    for vbucket, (owner, *_) in enumerate(bucket.owners):
        if owner in nodes and held[owner] < most:
            held[owner] += 1
        else:
            to_move.append(vbucket)
    for vbucket in to_move:
        number = min(nodes, key=lambda node: held[node])
        held[number] += 1
        if bucket.owners[vbucket][0] == NOBODY:
            bucket.owners[vbucket][0] = number
            bucket.create(vbucket, number)
        else:
            _take_over(bucket, vbucket, number)
    for vbucket in range(len(bucket.owners)):
        _place_replicas(bucket, vbucket, nodes)


def _place_replicas(bucket: BucketStore, vbucket: int, nodes: list[int]) -> None:
    """Put the replicas of a vbucket on the nodes that follow its owner."""
    owner, *before = bucket.owners[vbucket]
    index = nodes.index(owner)
    replicas = (nodes[index + 1 :] + nodes[:index])[: bucket.replicas]
    bucket.owners[vbucket] = [owner, *replicas, *[NOBODY] * (bucket.replicas - len(replicas))]
    for number in before:
        if number != NOBODY and number not in replicas:
            bucket.install(vbucket, number, None)
    for number in replicas:
        if number not in before:
            _copy_to_replica(bucket, vbucket, number)


def _end_streams(node: ServerNode) -> None:
    """Let the streams of a node end. Its items stay, as on the disk of a server that is down."""
    for vbucket in node.vbuckets.values():
        vbucket.state = VbucketState.DEAD


def _swap(owners: list[int], number: int) -> None:
    """Exchange the first owner and another one."""
    index = owners.index(number)
    owners[0], owners[index] = owners[index], owners[0]


def _last_writes(bucket: BucketStore, node: ServerNode, count: int) -> Counter[int]:
    """Return for each vbucket how many of the last `count` writes of a node are its own."""
    check_count("lose", count, "writes")
    copies = [copy for number, copy in node.vbuckets.items() if _belongs(bucket, node, number)]
    # The CAS orders writes across vbuckets. Before the latest start of a journal, some writes can no longer be undone,
    # so that "the last n writes of the node" would have gaps.
    since = max((_journal_start(copy) for copy in copies), default=0)
    writes = sorted((item.cas, copy.number) for copy in copies for item in copy.last_writes if item.cas >= since)
    if count > len(writes):
        raise UsageError(f"lose: expected at most {len(writes)} writes of node {node.number}, found {count}")
    return Counter(number for _, number in writes[len(writes) - count :])


def _journal_start(copy: VbucketStore) -> int:
    """Return the CAS from which on all writes of a copy can be undone."""
    if not copy.last_writes:
        return copy.last_cas + 1
    first = copy.last_writes[0]
    return first.cas if first.seqno > 1 else 0


def _belongs(bucket: BucketStore, node: ServerNode, vbucket: int) -> bool:
    """Return whether a node has the active copy of a vbucket, or would have it after a recovery."""
    owner = bucket.owners[vbucket][0]
    return vbucket in node.vbuckets and owner in (node.number, NOBODY)


# Checks of arguments.


def _node(bucket: BucketStore, number: int) -> ServerNode:
    check_number("node", number, 0, len(bucket.nodes) - 1)
    return bucket.nodes[number]


def live_node(bucket: BucketStore, number: int) -> ServerNode:
    """Return a node; raise UsageError if there is none of this number or it is down."""
    node = _node(bucket, number)
    if not node.alive:
        raise UsageError(f"node {number}: expected a node that is up, found it down")
    return node


def _owners(bucket: BucketStore, vbucket: int) -> list[int]:
    check_number("vbucket", vbucket, 0, len(bucket.owners) - 1)
    bucket.active(vbucket)
    return bucket.owners[vbucket]


def _healthy_nodes(bucket: BucketStore) -> list[int]:
    """Return the nodes that are up; raise UsageError if one that is down still owns vbuckets."""
    for node in bucket.nodes:
        if not node.alive and any(node.number in owners for owners in bucket.owners):
            raise UsageError(f"node {node.number}: it is down; recover it or fail it over before a rebalance")
    return [node.number for node in bucket.nodes if node.alive]
