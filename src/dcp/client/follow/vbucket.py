"""One vbucket that is followed: where it stands, what was asked for it, and when to ask again."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from dcp.client.follow.node_link import Link
from dcp.client.pauses import longer
from dcp.position import StreamPosition
from dcp.session.stream import ConsumerStream
from dcp.wire.dcp import ENDLESS


@dataclass(eq=False, slots=True)
class Vbucket:
    """One of those that are followed. `stream` is what was asked for, on `link`."""

    number: int
    position: StreamPosition
    end: int = ENDLESS
    # Up to where deletions may be lost for a stream that begins at the beginning to begin at a time.
    purged: int = 0
    done: bool = False
    link: Link | None = None
    stream: ConsumerStream | None = None
    # Whether the stream was asked to end, since another node has the active copy.
    leaving: bool = False
    pause: float = 0.0
    retry_at: float = 0.0
    # Why it has no stream, if it has none.
    trouble: str = ""

    def release(self) -> ConsumerStream | None:
        """It has no stream any more; its position is what came of the one that it had."""
        stream, self.stream, self.link = self.stream, None, None
        if stream is not None:
            self.position = stream.position
        return stream

    def retry(self, trouble: str) -> None:
        """Ask again, later each time."""
        self.trouble = trouble
        self.pause = longer(self.pause)
        self.retry_at = time.monotonic() + self.pause * random.uniform(0.5, 1.0)
