"""Where a vbucket stands, and why nothing would come of it now, as far as the client knows."""

from __future__ import annotations

from collections.abc import Mapping

from dcp.client.follow.node_link import Link
from dcp.client.follow.vbucket import Vbucket
from dcp.client.stats import Window
from dcp.client.watch import CONSUMER, NO_CONNECTION, NO_OWNER, RETRYING, SILENT, UNANSWERED, Seen
from dcp.cluster_map import Node
from dcp.session.states import REQUESTED
from dcp.session.stream import LazyPosition


def see(vbucket: Vbucket, owner: Node | None, links: Mapping[Node, Link], troubles: Mapping[str, str]) -> Seen:
    """`troubles` has what went wrong last with each node, by its name."""
    received = vbucket.position.seqno if vbucket.stream is None else vbucket.stream.last_seqno
    return Seen(vbucket.number, received, vbucket.end, *_why(vbucket, owner, links, troubles))


def _why(
    vbucket: Vbucket, owner: Node | None, links: Mapping[Node, Link], troubles: Mapping[str, str]
) -> tuple[str, str]:
    if vbucket.link is not None and is_full(window_of(vbucket.link)):
        return CONSUMER, "the consumer takes no batch, and the flow-control window is full"
    if owner is None:
        return NO_OWNER, "no node has them; recover the node that had them, or fail it over"
    link = links.get(owner)
    if link is None or not link.ready:
        known = troubles.get(str(owner))
        return NO_CONNECTION, f"no connection to {owner}{f': {known}' if known else ''}"
    if vbucket.stream is None:
        return (
            RETRYING,
            f"{owner} is asked for them again and again: {vbucket.trouble or 'no stream yet'}",
        )
    if vbucket.stream.state == REQUESTED:
        return UNANSWERED, f"{owner} does not answer the request for their streams"
    return SILENT, f"{owner} has agreed to send them, and sends nothing"


def window_of(link: Link) -> Window:
    """The flow control of a connection."""
    agreement = None if link.session is None else link.session.agreement
    return Window(0 if agreement is None else agreement.window, link.unprocessed)


def is_full(window: Window) -> bool:
    """Whether the node may have to wait: acknowledgements, and batches in work, take the other half."""
    return 0 < window.size <= 2 * window.used


def position(mark: LazyPosition) -> int:
    """The seqno that a consumer has come to."""
    return max(mark.last_seqno, mark.progress.position.seqno)
