"""Connections of a stream on their own: nobody hears of their events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from dcp.client.follow.node_link import NodeLink
from dcp.client.follow.settings import BatchLimits
from dcp.errors import DcpError
from dcp.session.events import Event
from dcp.session.session import Delivery


class Unheard:
    """Listener of a link that has nothing to say."""

    def on_events(self, link: NodeLink, events: Sequence[Event]) -> None: ...

    def on_delivery(self, link: NodeLink, delivery: Delivery) -> None: ...

    def on_lost(self, link: NodeLink, error: DcpError) -> None: ...

    def on_bug(self, bug: Exception) -> None: ...


def unconnected_link() -> NodeLink:
    """Return a link whose node refuses connections."""

    def refuse(*_: object) -> NoReturn:
        raise OSError

    return NodeLink("one:11210", refuse, refuse, Unheard(), BatchLimits(1, 1, 0.0, held=1))


def ended_link() -> NodeLink:
    """Return a link whose thread has ended."""
    link = unconnected_link()
    link.start()
    link.thread.join()
    return link
