"""The connections of one stream to its nodes: connect, reconnect with backoff, close."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from dcp.client.follow.backoff import FIRST_DELAY, jittered, next_delay
from dcp.client.follow.node_link import NodeLink
from dcp.client.follow.vbucket import window_of
from dcp.client.stats import Window
from dcp.cluster_map import Node
from dcp.errors import DcpError, TransportError
from dcp.session.session import Session


class NodePool:
    """Links by node. Guarded by the stream's lock.

    open_link: makes a link to a node, which the pool starts.
    """

    def __init__(self, open_link: Callable[[Node], NodeLink]) -> None:
        # By name of the node.
        self.last_errors: dict[str, str] = {}
        self._open_link = open_link
        self._links: dict[Node, NodeLink] = {}
        # Links that take no more requests, in dialects where one request starts all streams of a connection.
        self._full: dict[NodeLink, Node] = {}
        # For each node the earliest time of the next attempt, and the delay after that.
        self._backoff: dict[Node, tuple[float, float]] = {}

    def __iter__(self) -> Iterator[NodeLink]:
        return iter([*self._links.values(), *self._full])

    def by_node(self) -> dict[Node, NodeLink]:
        """Return one link for each node: one that has streams and takes no more requests, if there is such a one."""
        return self._links | {node: link for link, node in self._full.items()}

    def windows(self) -> dict[str, Window]:
        """Return the flow-control windows of ready connections, by name of the node."""
        return {link.name: window_of(link) for link in self if link.ready}

    def serves(self, link: NodeLink, node: Node) -> bool:
        """Return True if a link is a connection to this node."""
        return self._links.get(node) is link or self._full.get(link) == node

    def link_to(self, node: Node, now: float, wake_times: list[float]) -> NodeLink | None:
        """Return the ready link of a node, or None; then start one unless its backoff has not passed.

        wake_times: gets the time of the next attempt.
        """
        if (known := self._links.get(node)) is not None:
            return known if known.ready else None
        retry_at, delay = self._backoff.get(node, (0.0, FIRST_DELAY))
        if retry_at > now:
            wake_times.append(retry_at)
            return None
        # Set before connecting, and never reset: a node that accepts connections and drops them must not be hammered.
        self._backoff[node] = now + jittered(delay), next_delay(delay)
        link = self._links[node] = self._open_link(node)
        link.start()
        return None

    def node_of(self, link: NodeLink) -> Node | None:
        """Return the node of a link; None if the link was lost."""
        return next((node for node, other in self.by_node().items() if other is link), None)

    def mark_full(self, link: NodeLink) -> None:
        """Keep a link for its streams, but send further requests to its node over another one."""
        node = next(node for node, other in self._links.items() if other is link)
        self._full[self._links.pop(node)] = node

    def mark_ready(self, link: NodeLink) -> None:
        """Take requests on a link from now on: its handshake succeeded."""
        link.ready = True
        self.last_errors.pop(link.name, None)

    def remove_lost(self, link: NodeLink, error: DcpError) -> None:
        """Forget a link whose connection failed."""
        self._forget({link})
        self.last_errors[link.name] = str(error)

    def close(self, links: Collection[NodeLink]) -> None:
        """Close and forget some links."""
        for link in links:
            link.close()
        self._forget(links)

    def close_idle(self, busy: Collection[NodeLink | None]) -> None:
        """Close links that take no more requests, except those in `busy`, which have streams."""
        self.close([link for link in self._full if link not in busy])

    def abandon_all_but(self, nodes: Iterable[Node]) -> None:
        """Fail the links to nodes that left the cluster."""
        remaining = set(nodes)
        for node, link in self._links.items():
            if node not in remaining and link.ready:
                link.ready = False
                # Raised in the link's thread, so that its last rows are delivered before it is lost.
                link.run_in_thread(_node_left)

    def stop(self) -> None:
        """Tell all links to end, without waiting for their threads."""
        for link in self:
            link.close()

    def _forget(self, links: Collection[NodeLink]) -> None:
        self._links = {node: link for node, link in self._links.items() if link not in links}
        self._full = {link: node for link, node in self._full.items() if link not in links}


def _node_left(session: Session) -> None:
    raise TransportError("the node left the cluster")
