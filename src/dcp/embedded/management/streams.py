"""Responses that do not end: they have more to say after each change, or now and then."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol

from dcp.embedded.bucket import BucketStore
from dcp.embedded.cluster_map import revision
from dcp.embedded.management.http import JSON_TYPE, stream_chunk


class ResponseStream(Protocol):
    """Response that does not end."""

    content_type: str

    def take(self, now: float) -> bytes:
        """Return the chunks to send now, if any."""

    def due(self) -> float | None:
        """Return when there may be more even if nothing has changed; None if there will not."""

    def tick(self, now: float) -> None:
        """Take the time, when it is due."""

    def close(self) -> None:
        """Release what the stream holds: nobody reads it any more."""


class MapStream:
    """Document that is sent again after each change of the cluster map."""

    content_type = JSON_TYPE

    def __init__(self, bucket: BucketStore, content: Callable[[], Any]) -> None:
        self._bucket = bucket
        self._content = content
        self._revision = (0, 0)

    def take(self, now: float) -> bytes:
        newest = revision(self._bucket)
        if self._revision >= newest:
            return b""
        self._revision = newest
        # As in the streams of servers, four line ends follow each document.
        return stream_chunk(json.dumps(self._content()).encode(), b"\n\n\n\n")

    def due(self) -> float | None:
        return None

    def tick(self, now: float) -> None:
        pass

    def close(self) -> None:
        pass
