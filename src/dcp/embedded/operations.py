"""What can happen to the cluster as a whole: trouble and maintenance, on command."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager

from dcp.embedded import topology
from dcp.embedded.bucket import BucketStore, ServerNode
from dcp.embedded.faults import FaultHandle, Faults
from dcp.embedded.faults.fault import Fault
from dcp.embedded.server import ClusterServer


class Operations:
    """The part of a cluster that its administrator sees."""

    _bucket: BucketStore
    _server: ClusterServer
    _faults: Faults
    _lock: threading.RLock

    # Nodes.

    def failover(self, node: int, lose: int | None = None) -> None:
        """A node is gone for good, and replicas become active; where there is none, the vbucket has no owner.

        lose: how many of the node's last writes nobody has any more; by default those that the replicas
        lag behind.
        """
        with self._changing():
            topology.failover(self._bucket, node, lose)
            self._server.close_door(self._bucket.nodes[node], cut=True)

    def crash(self, node: int) -> None:
        """A node is gone, and its vbuckets with it, until it recovers or is failed over."""
        with self._changing():
            topology.crash(self._bucket, node)
            self._server.close_door(self._bucket.nodes[node], cut=True)

    def recover(self, node: int, lose: int = 0) -> None:
        """A node is back, without its last `lose` writes; its vbuckets have new histories."""
        with self._changing():
            topology.recover(self._bucket, node, lose)
            self._open(self._bucket.nodes[node])

    def rebalance_in(self) -> int:
        """Add a node, which gets its share of the vbuckets; says which number it has."""
        with self._changing():
            node = topology.rebalance_in(self._bucket)
            self._open(node)
        return node.number

    def rebalance_out(self, node: int) -> None:
        """A node hands its vbuckets over, and leaves: streams from it end, and nobody new gets in."""
        with self._changing():
            topology.rebalance_out(self._bucket, node)
            self._server.close_door(self._bucket.nodes[node], cut=False)

    # Vbuckets.

    def promote(self, vbucket: int, node: int) -> None:
        """A replica becomes active, as it is: what it lags behind is lost."""
        with self._changing():
            topology.promote(self._bucket, vbucket, node)

    def move(self, vbucket: int, node: int) -> None:
        """The active copy goes to another node. Streams from the old one end."""
        with self._changing():
            topology.move(self._bucket, vbucket, node)

    def set_lag(self, writes: int) -> None:
        """Let replicas be so many writes behind, for each vbucket."""
        with self._changing():
            self._bucket.set_lag(writes)

    def set_persistence(self, node: int, at_once: bool) -> None:
        """Whether a node writes to its disks: while it does not, what comes is in its memory only."""
        with self._changing():
            self._bucket.set_persistence(topology.present(self._bucket, node), at_once)

    # Documents.

    def purge(self, before: int | None = None) -> int:
        """Forget tombstones (made before a Unix time); says how many. The purge seqno rises."""
        with self._changing():
            return self._bucket.purge(before)

    def run_pager(self) -> int:
        """Let every document expire whose time has come; says how many. Otherwise a read does, one by one."""
        with self._changing():
            return self._bucket.expire_due()

    def snapshot(self) -> None:
        """What is in memory goes to disk: streams from before come from there."""
        with self._changing():
            self._bucket.leave_memory()

    # Faults.

    def fault(self, name: str, **options: object) -> FaultHandle:
        """Let something go wrong until the handle is cleared: `dcp.embedded.faults.FAULTS` has the names."""
        with self._changing():
            fault = self._faults.add(name, options, len(self._bucket.nodes), len(self._bucket.owners))
        return FaultHandle(name, fault, lambda: self._clear(fault))

    def _clear(self, fault: Fault) -> None:
        """Also when the cluster is closed: a block may end after it."""
        with self._lock:
            self._faults.remove(fault, self._server.links)
        self._server.wake()

    # What the cluster gives.

    def _changing(self) -> AbstractContextManager[None]:
        raise NotImplementedError

    def _open(self, node: ServerNode) -> None:
        raise NotImplementedError
