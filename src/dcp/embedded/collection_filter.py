"""What of a vbucket a stream is for."""

from __future__ import annotations

from dcp.embedded.store import AnyItem, StoredItem, SystemItem, VbucketStore
from dcp.embedded.stream_request import GrantedStream
from dcp.wire.dcp import SystemEvent


class CollectionFilter:
    """The collections of a stream; the items of the stream themselves change which those are.

    events: whether changes of the manifest are among what is sent.
    """

    def __init__(self, accepted: GrantedStream, *, events: bool) -> None:
        self._events = events
        self._scope = accepted.scope
        self._scope_dropped = False
        self._collections = None if accepted.collections is None else set(accepted.collections)

    @property
    def empty(self) -> bool:
        """Whether all that the stream is for was dropped."""
        if self._scope is not None:
            return self._scope_dropped
        return self._collections is not None and not self._collections

    @property
    def is_one_collection(self) -> bool:
        return self._scope is None and self._collections is not None and len(self._collections) == 1

    def of(self, items: list[AnyItem], vbucket: VbucketStore) -> list[AnyItem]:
        """Those of the items that are sent."""
        chosen = self._collections
        if chosen is None or (0 in chosen and not vbucket.mixed):
            return items
        found: list[AnyItem] = []
        for item in items:
            if isinstance(item, StoredItem):
                if item.collection_id in chosen:
                    found.append(item)
            elif self._concerns(item, chosen) and self._events:
                found.append(item)
        return found

    def _concerns(self, item: SystemItem, chosen: set[int]) -> bool:
        within = item.scope_id == self._scope
        if within and item.event_id == SystemEvent.COLLECTION_BEGIN:
            chosen.add(item.collection_id or 0)
        concerned = within or item.collection_id in chosen
        if item.event_id == SystemEvent.COLLECTION_END:
            chosen.discard(item.collection_id or 0)
        self._scope_dropped |= within and item.event_id == SystemEvent.SCOPE_DROP
        return concerned
