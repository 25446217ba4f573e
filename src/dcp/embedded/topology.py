"""How the map of a bucket changes: nodes fail, come and go, and their vbuckets with them.

Every function is one change of the map, and raises its revision. A copy that becomes active begins a history.
"""

from __future__ import annotations

from collections import Counter

from dcp.embedded.bucket import NOBODY, BucketStore, ServerNode
from dcp.embedded.store import VbucketStore
from dcp.errors import LocalProtocolError
from dcp.wire.memcached import VbucketState


def failover(bucket: BucketStore, number: int, lose: int | None = None) -> None:
    """A node is gone, and replicas take its place. With it go its last `lose` writes; by default those that
    the replicas have not got yet."""
    node = _node(bucket, number)
    if not any(number in owners for owners in bucket.owners):
        raise LocalProtocolError(f"node {number}: it has no vbuckets to take from it")
    lost = _last_writes(bucket, node, lose or 0)
    node.alive = False
    for vbucket, owners in enumerate(bucket.owners):
        if owners[0] == number:
            _inherit(bucket, vbucket, node, None if lose is None else lost[vbucket])
        elif number in owners:
            owners[owners.index(number)] = NOBODY
    _abandon(node)
    bucket.new_map()


def crash(bucket: BucketStore, number: int) -> None:
    """A node is gone, and nobody takes its place."""
    node = present(bucket, number)
    node.alive = False
    _abandon(node)


def recover(bucket: BucketStore, number: int, lose: int = 0) -> None:
    """A node is back, without its last `lose` writes. What has no other owner is its again, with a new history."""
    node = _node(bucket, number)
    if node.alive:
        raise LocalProtocolError(f"node {number}: it is there already")
    lost = _last_writes(bucket, node, lose)
    node.alive = True
    for vbucket, owners in enumerate(bucket.owners):
        if _belongs(bucket, node, vbucket):
            owners[0] = number
            mine = node.vbuckets[vbucket]
            mine.take_back(lost[vbucket])
            _activate(bucket, vbucket, mine)
        elif owners[0] != NOBODY and bucket.nodes[owners[0]].alive:
            _rejoin(bucket, vbucket, number)
    bucket.new_map()


def promote(bucket: BucketStore, vbucket: int, number: int) -> None:
    """A replica takes the place of the active copy, which follows it from now on: what it had more is lost."""
    owners = _owners(bucket, vbucket)
    replicas = [owner for owner in owners[1:] if owner != NOBODY and bucket.nodes[owner].alive]
    if number not in replicas:
        raise LocalProtocolError(f"vbucket {vbucket}: expected a node that has a replica, {replicas}, found {number}")
    _swap(owners, number)
    _activate(bucket, vbucket, bucket.nodes[number].vbuckets[vbucket])
    bucket.new_map()


def move(bucket: BucketStore, vbucket: int, number: int) -> None:
    """The active copy goes to another node, with all it has."""
    _owners(bucket, vbucket)
    present(bucket, number)
    if bucket.owners[vbucket][0] == number:
        raise LocalProtocolError(f"vbucket {vbucket}: node {number} has the active copy already")
    _take_over(bucket, vbucket, number)
    bucket.new_map()


def rebalance_in(bucket: BucketStore) -> ServerNode:
    """Another node, with its share of the vbuckets."""
    node = ServerNode(len(bucket.nodes))
    there = _healthy(bucket)
    bucket.nodes.append(node)
    _spread(bucket, [*there, node.number])
    bucket.new_map()
    return node


def rebalance_out(bucket: BucketStore, number: int) -> None:
    """A node hands everything over, and leaves."""
    node = present(bucket, number)
    there = [other for other in _healthy(bucket) if other != number]
    if not there:
        raise LocalProtocolError(f"node {number}: the last node cannot leave")
    _spread(bucket, there)
    node.alive = False
    _abandon(node)
    node.vbuckets.clear()
    bucket.new_map()


# What the steps are made of.


def _inherit(bucket: BucketStore, vbucket: int, node: ServerNode, lost: int | None) -> None:
    """The first replica becomes the active copy. `lost` is None where it is to stay as it is."""
    owners, old = bucket.owners[vbucket], node.vbuckets[vbucket]
    heirs = [owner for owner in owners[1:] if owner != NOBODY and bucket.nodes[owner].alive]
    if not heirs:
        old.take_back(lost or 0)
        owners[:] = [NOBODY] * len(owners)
        return
    _swap(owners, heirs[0])
    owners[owners.index(node.number)] = NOBODY
    if lost is None:
        old = bucket.nodes[heirs[0]].vbuckets[vbucket]
    else:
        old.take_back(lost)
    _activate(bucket, vbucket, old)


def _activate(bucket: BucketStore, vbucket: int, origin: VbucketStore) -> None:
    """What `origin` has becomes the active copy of the owner, and its replicas follow."""
    active = origin.copy(VbucketState.ACTIVE)
    active.log = active.log.begin(bucket.new_branch(), active.high_seqno)
    owner, *replicas = bucket.owners[vbucket]
    bucket.install(vbucket, owner, active)
    for replica in replicas:
        if replica != NOBODY and bucket.nodes[replica].alive:
            _replicate(bucket, vbucket, replica)


def _replicate(bucket: BucketStore, vbucket: int, number: int) -> None:
    owner = bucket.nodes[bucket.owners[vbucket][0]]
    bucket.install(vbucket, number, owner.vbuckets[vbucket].copy(VbucketState.REPLICA))


def _rejoin(bucket: BucketStore, vbucket: int, number: int) -> None:
    """A node that is back has a replica again if there is one to have."""
    owners = bucket.owners[vbucket]
    if number not in owners and NOBODY in owners:
        owners[owners.index(NOBODY)] = number
    if number in owners:
        _replicate(bucket, vbucket, number)
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
    _activate(bucket, vbucket, old)


def _spread(bucket: BucketStore, there: list[int]) -> None:
    """Let every one of these nodes have its share, and nobody else anything; what can stay stays."""
    most = -(-len(bucket.owners) // len(there))
    held = Counter(dict.fromkeys(there, 0))
    homeless = []
    for vbucket, (owner, *_) in enumerate(bucket.owners):
        if owner in there and held[owner] < most:
            held[owner] += 1
        else:
            homeless.append(vbucket)
    for vbucket in homeless:
        number = min(there, key=lambda node: held[node])
        held[number] += 1
        if bucket.owners[vbucket][0] == NOBODY:
            bucket.owners[vbucket][0] = number
            bucket.create(vbucket, number)
        else:
            _take_over(bucket, vbucket, number)
    for vbucket in range(len(bucket.owners)):
        _place_replicas(bucket, vbucket, there)


def _place_replicas(bucket: BucketStore, vbucket: int, there: list[int]) -> None:
    owner, *before = bucket.owners[vbucket]
    place = there.index(owner)
    wanted = (there[place + 1 :] + there[:place])[: bucket.replicas]
    bucket.owners[vbucket] = [owner, *wanted, *[NOBODY] * (bucket.replicas - len(wanted))]
    for number in before:
        if number != NOBODY and number not in wanted:
            bucket.install(vbucket, number, None)
    for number in wanted:
        if number not in before:
            _replicate(bucket, vbucket, number)


def _abandon(node: ServerNode) -> None:
    """Its streams end; what it holds stays on its disk."""
    for vbucket in node.vbuckets.values():
        vbucket.state = VbucketState.DEAD


def _swap(owners: list[int], number: int) -> None:
    """The first owner and another change places."""
    place = owners.index(number)
    owners[0], owners[place] = owners[place], owners[0]


def _last_writes(bucket: BucketStore, node: ServerNode, count: int) -> Counter[int]:
    """How many of the last writes of a node are those of each vbucket."""
    if count < 0:
        raise LocalProtocolError(f"lose: expected at least 0 writes, found {count}")
    copies = [copy for number, copy in node.vbuckets.items() if _belongs(bucket, node, number)]
    # What a vbucket forgot how to take back was written before this.
    since = max((_journal_start(copy) for copy in copies), default=0)
    writes = sorted((item.cas, copy.number) for copy in copies for item in copy.last_writes if item.cas >= since)
    if count > len(writes):
        raise LocalProtocolError(f"lose: expected at most {len(writes)} writes of node {node.number}, found {count}")
    return Counter(number for _, number in writes[len(writes) - count :])


def _journal_start(copy: VbucketStore) -> int:
    """The version from which on every write can be taken back."""
    if not copy.last_writes:
        return copy.last_cas + 1
    first = copy.last_writes[0]
    return first.cas if first.seqno > 1 else 0


def _belongs(bucket: BucketStore, node: ServerNode, vbucket: int) -> bool:
    """Whether the active copy is that of the node, or would be if the node came back."""
    owner = bucket.owners[vbucket][0]
    return vbucket in node.vbuckets and owner in (node.number, NOBODY)


# What callers say.


def _node(bucket: BucketStore, number: int) -> ServerNode:
    if not 0 <= number < len(bucket.nodes):
        raise LocalProtocolError(f"node: expected 0 to {len(bucket.nodes) - 1}, found {number!r}")
    return bucket.nodes[number]


def present(bucket: BucketStore, number: int) -> ServerNode:
    node = _node(bucket, number)
    if not node.alive:
        raise LocalProtocolError(f"node {number}: it is not there")
    return node


def _owners(bucket: BucketStore, vbucket: int) -> list[int]:
    if not 0 <= vbucket < len(bucket.owners):
        raise LocalProtocolError(f"vbucket: expected 0 to {len(bucket.owners) - 1}, found {vbucket!r}")
    bucket.active(vbucket)
    return bucket.owners[vbucket]


def _healthy(bucket: BucketStore) -> list[int]:
    """The nodes that are there, if no other has vbuckets still."""
    for node in bucket.nodes:
        if not node.alive and any(node.number in owners for owners in bucket.owners):
            raise LocalProtocolError(f"node {node.number}: it is down; recover it or fail it over before a rebalance")
    return [node.number for node in bucket.nodes if node.alive]
