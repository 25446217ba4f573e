"""Rules of a DCP connection that involve more than one frame."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from dcp.wire.frame import UNKNOWN, Frame
from dcp.wire.layout import Kind

# Requests of one side that are remembered, since a live capture may go on for days.
_MAX_REQUESTS = 65_536


@dataclass
class _StreamState:
    """State of one stream.

    accepted: True if its stream request was captured. A capture may begin in the middle of a stream.
    window: bounds of the present snapshot.
    last: highest seqno so far.
    out_of_order: True inside an OSO snapshot, where seqnos need not ascend.
    """

    accepted: bool = False
    window: tuple[int, int] | None = None
    last: int = 0
    out_of_order: bool = False


@dataclass
class ProtocolChecker:
    """Checks the frames of one connection, both directions, in the order of a capture."""

    # Requests by sender, as name and opaque. Empty for a direction that was not captured.
    _requests: dict[str, set[tuple[str, int]]] = field(default_factory=lambda: defaultdict(set))
    _accepted: set[int] = field(default_factory=set)
    # By opaque, vbucket and stream id.
    _streams: dict[tuple[int, int, int | None], _StreamState] = field(default_factory=dict)
    # Senders of which not all requests are known, so that a response to them need not have one.
    _incomplete: set[str] = field(default_factory=set)

    def lose(self, sender: str) -> None:
        """Take note that frames of one side are missing: rules that involve them are not checked any more."""
        self._incomplete.add(sender)
        self._accepted.clear()
        self._streams.clear()

    def violation(self, frame: Frame, sender: str) -> str:
        """Return which rule the next frame breaks; empty text if none."""
        if frame.kind is Kind.REQUEST:
            self._remember(sender, (frame.name, frame.opaque))
            return self._check_message(frame)
        if frame.kind is not Kind.RESPONSE or frame.name == UNKNOWN:
            return ""
        if frame.name == "stream_request" and not frame.status:
            self._accepted.add(frame.opaque)
            # An opaque may be used for one stream after another. Streams with an id share the opaque of their request.
            self._streams = {key: stream for key, stream in self._streams.items() if key[0] != frame.opaque or key[2]}
        others = [requests for other, requests in self._requests.items() if other != sender]
        if (
            others
            and not self._incomplete - {sender}
            and not any((frame.name, frame.opaque) in requests for requests in others)
        ):
            return f"{frame.name} response: expected the opaque of a request, found 0x{frame.opaque:08x}"
        return ""

    def _remember(self, sender: str, request: tuple[str, int]) -> None:
        """Remember a request for its response. Of a side that sends too many, none is judged any more."""
        requests = self._requests[sender]
        requests.add(request)
        if len(requests) > _MAX_REQUESTS:
            requests.clear()
            self._incomplete.add(sender)

    def _check_message(self, frame: Frame) -> str:
        """Check a message of a stream and update the stream's state."""
        if frame.name == "stream_request":
            return ""
        key = frame.opaque, frame.vbucket, frame.stream_id
        stream = self._streams.setdefault(key, _StreamState(accepted=frame.opaque in self._accepted))
        if frame.name == "stream_end":
            del self._streams[key]
        elif frame.name == "oso_snapshot":
            stream.out_of_order = True
        elif frame.name == "snapshot_marker":
            stream.window = int(frame.fields["snapshot_start"]), int(frame.fields["snapshot_end"])
            stream.out_of_order = False
        # A message with a seqno is a change; one with a start_seqno describes a range of them.
        elif "seqno" in frame.fields and "start_seqno" not in frame.fields:
            return self._check_seqno(stream, frame, int(frame.fields["seqno"]))
        return ""

    @staticmethod
    def _check_seqno(stream: _StreamState, frame: Frame, seqno: int) -> str:
        """Check that a change is in its snapshot and after the change before it."""
        before, stream.last = stream.last, max(stream.last, seqno)
        # These two are no changes: one acknowledges a change, the other skips those of other collections.
        if stream.out_of_order or frame.name in ("seqno_acknowledged", "seqno_advanced"):
            return ""
        if stream.window is None:
            return f"{frame.name}: expected a snapshot marker before it, found none" if stream.accepted else ""
        if seqno <= before:
            return f"{frame.name}: seqno: expected more than {before}, found {seqno}"
        start, end = stream.window
        if not start <= seqno <= end:
            return f"{frame.name}: seqno: expected {start} to {end} of its snapshot, found {seqno}"
        return ""
