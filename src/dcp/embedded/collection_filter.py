"""Filter of a stream: the items of the collections that it was requested for."""

from __future__ import annotations

from dcp.embedded.store import StreamItem, SystemItem, VbucketStore
from dcp.embedded.stream_request import GrantedStream
from dcp.wire.dcp import SystemEvent


class CollectionFilter:
    """Collections of one stream.

    The set changes with the items that pass: a dropped collection leaves it, and one that is created in the scope of
    the stream joins it. `events` says whether system events are sent.
    """

    def __init__(self, granted: GrantedStream, *, events: bool) -> None:
        self._events = events
        self._scope = granted.scope
        self._scope_dropped = False
        # None for all collections.
        self._collections = None if granted.collections is None else set(granted.collections)

    @property
    def empty(self) -> bool:
        """True if everything that the stream was requested for has been dropped."""
        if self._scope is not None:
            # A scope without collections may still get some.
            return self._scope_dropped
        return self._collections is not None and not self._collections

    @property
    def is_one_collection(self) -> bool:
        """True if the stream was requested for exactly one collection."""
        return self._scope is None and self._collections is not None and len(self._collections) == 1

    def apply(self, items: list[StreamItem], vbucket: VbucketStore) -> list[StreamItem]:
        """Return the items that are sent, and update the filter by the system events among all of them."""
        chosen = self._collections
        # A vbucket with nothing but documents of the default collection needs no look at each item.
        if chosen is None or (0 in chosen and not vbucket.mixed):
            return items
        found: list[StreamItem] = []
        for item in items:
            if not isinstance(item, SystemItem):
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
