"""The connections of a stream to the nodes: opened when one is needed, with pauses where that fails."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator

from dcp.client.follow.node_link import Link
from dcp.client.pauses import FIRST, longer
from dcp.client.sight import window_of
from dcp.client.stats import Window
from dcp.cluster_map import Node
from dcp.errors import DcpError, TransportError
from dcp.session.session import Session


class Connections:
    """Of one stream, under its lock. open_link: makes one to a node, which is started here."""

    def __init__(self, open_link: Callable[[Node], Link]) -> None:
        # What went wrong last with a node, by its name.
        self.troubles: dict[str, str] = {}
        self._open_link = open_link
        self._links: dict[Node, Link] = {}
        # Those that take no more requests.
        self._full: dict[Link, Node] = {}
        self._pauses: dict[Node, tuple[float, float]] = {}

    def __iter__(self) -> Iterator[Link]:
        return iter([*self._links.values(), *self._full])

    def by_node(self) -> dict[Node, Link]:
        return self._links | {node: link for link, node in self._full.items()}

    def windows(self) -> dict[str, Window]:
        """The connections that are of use, by node."""
        return {link.name: window_of(link) for link in self if link.ready}

    def serves(self, link: Link, node: Node) -> bool:
        return self._links.get(node) is link or self._full.get(link) == node

    def at(self, node: Node, now: float, wakes: list[float]) -> Link | None:
        """The one to ask a node for streams, once it is ready. `wakes` gets the time of the next try."""
        if node in self._links:
            link = self._links[node]
            return link if link.ready else None
        again, pause = self._pauses.get(node, (0.0, FIRST))
        if again > now:
            wakes.append(again)
            return None
        self._pauses[node] = now + pause * random.uniform(0.75, 1.25), longer(pause)
        link = self._links[node] = self._open_link(node)
        link.start()
        return None

    def fill(self, link: Link) -> None:
        """It takes no more requests: the next ones for its node go to another."""
        node = next(node for node, other in self._links.items() if other is link)
        self._full[self._links.pop(node)] = node

    def ready(self, link: Link) -> None:
        link.ready = True
        self.troubles.pop(link.name, None)

    def lose(self, link: Link, error: DcpError) -> None:
        self._forget({link})
        self.troubles[link.name] = str(error)

    def close(self, links: Collection[Link]) -> None:
        for link in links:
            link.close()
        self._forget(links)

    def close_idle(self, busy: Collection[Link | None]) -> None:
        """What takes no more requests and has no stream left is of no use."""
        self.close([link for link in self._full if link not in busy])

    def abandon(self, nodes: Iterable[Node]) -> None:
        """Those to nodes that are not among these."""
        there = set(nodes)
        for node, link in self._links.items():
            if node not in there and link.ready:
                link.ready = False
                link.do(_left)

    def stop(self) -> None:
        """Let their threads end."""
        for link in self:
            link.close()

    def _forget(self, links: Collection[Link]) -> None:
        self._links = {node: link for node, link in self._links.items() if link not in links}
        self._full = {link: node for link, node in self._full.items() if link not in links}


def _left(session: Session) -> None:
    raise TransportError("the node left the cluster")
