"""What makes the connections of one stream: where its nodes are, and how its rows come."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from dcp.client.agent import Access
from dcp.client.dialects import Manner
from dcp.client.follow.node_link import Limits, Link, Owner
from dcp.cluster_map import Node
from dcp.columns.decoder import Decoder


@dataclass(frozen=True)
class Opener:
    """decoder, limits: of its batches. manner: of its streams. wishes: what its connections want besides."""

    access: Access
    decoder: Callable[[bool], Decoder]
    limits: Limits
    manner: Manner
    wishes: Mapping[str, bool]

    def open_link(self, node: Node, owner: Owner) -> Link:
        make = partial(self.manner.make, self.access.wishes(**self.wishes), self.decoder)
        return Link(str(node), self.access.dialer(node), make, owner, self.limits)
