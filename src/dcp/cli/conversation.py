"""The rules of a DCP conversation that no single frame can break."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from dcp.wire.frame import UNKNOWN, Frame
from dcp.wire.layout import Kind


@dataclass
class _Stream:
    """What was seen of one. `accepted`: from its beginning on. In disorder seqnos say nothing."""

    accepted: bool = False
    window: tuple[int, int] | None = None
    last: int = 0
    disorder: bool = False


@dataclass
class Conversation:
    """Both directions of a connection, frame by frame in the order of a capture."""

    # By who asked. Where only one direction was captured, nobody was asked anything.
    _asked: dict[str, set[tuple[str, int]]] = field(default_factory=lambda: defaultdict(set))
    _accepted: set[int] = field(default_factory=set)
    _streams: dict[tuple[int, int, int | None], _Stream] = field(default_factory=dict)

    def broken_rule(self, frame: Frame, sender: str) -> str:
        """Which rule the next frame breaks, or nothing."""
        if frame.kind is Kind.REQUEST:
            self._asked[sender].add((frame.name, frame.opaque))
            return self._message(frame)
        if frame.kind is not Kind.RESPONSE or frame.name == UNKNOWN:
            return ""
        if frame.name == "stream_request" and not frame.status:
            self._accepted.add(frame.opaque)
            self._streams = {key: stream for key, stream in self._streams.items() if key[0] != frame.opaque or key[2]}
        asked = [questions for other, questions in self._asked.items() if other != sender]
        if asked and not any((frame.name, frame.opaque) in questions for questions in asked):
            return f"{frame.name} response: expected the opaque of a request, found 0x{frame.opaque:08x}"
        return ""

    def _message(self, frame: Frame) -> str:
        if frame.name == "stream_request":
            return ""
        key = frame.opaque, frame.vbucket, frame.stream_id
        stream = self._streams.setdefault(key, _Stream(accepted=frame.opaque in self._accepted))
        if frame.name == "stream_end":
            del self._streams[key]
        elif frame.name == "oso_snapshot":
            stream.disorder = True
        elif frame.name == "snapshot_marker" and "snapshot_start" in frame.fields:
            stream.window = int(frame.fields["snapshot_start"]), int(frame.fields["snapshot_end"])
            stream.disorder = False
        elif "seqno" in frame.fields and "start_seqno" not in frame.fields:
            return self._row(stream, frame, int(frame.fields["seqno"]))
        return ""

    @staticmethod
    def _row(stream: _Stream, frame: Frame, seqno: int) -> str:
        before, stream.last = stream.last, max(stream.last, seqno)
        if stream.disorder or frame.name in ("seqno_acknowledged", "seqno_advanced"):
            return ""
        if stream.window is None:
            return f"{frame.name}: expected a snapshot marker before it, found none" if stream.accepted else ""
        if seqno <= before:
            return f"{frame.name}: seqno: expected more than {before}, found {seqno}"
        start, end = stream.window
        if not start <= seqno <= end:
            return f"{frame.name}: seqno: expected {start} to {end} of its snapshot, found {seqno}"
        return ""
