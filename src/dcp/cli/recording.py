"""Recordings of a server: a transcript, a capture, raw bytes or hex text; and a playback of its answers."""

from __future__ import annotations

import json
from collections import defaultdict

from dcp._codec import HEADER
from dcp.cli.capture import Flow, is_capture
from dcp.cli.inspect import captured_frames, segments
from dcp.errors import UsageError
from dcp.wire.dcp import DCP
from dcp.wire.frame import Frame, encode, read_opaque, split
from dcp.wire.layout import Kind
from dcp.wire.memcached import Status

_OPCODE, _OPAQUE = HEADER["opcode"], slice(HEADER["opaque"], HEADER["opaque"] + 4)


def server_bytes(data: bytes) -> bytes:
    """Return what the server sent in a recording. From a capture, take the connection with the most server bytes.

    Raises UsageError if there are none.
    """
    if is_capture(data):
        sent: dict[Flow, bytes] = defaultdict(bytes)
        # Whole frames only: a segment that the capture lacks must not shift those after it.
        for captured in captured_frames(data, DCP):
            sent[captured.flow] += captured.raw
        servers = [found for found in sent.values() if _is_from_server(found)]
        if not servers:
            raise UsageError("capture: expected a connection on which a server answers, found none")
        return max(servers, key=len)
    # Transcripts of the tests are JSON. Frames never begin with a brace, which is no magic.
    if data.lstrip()[:1] == b"{":
        try:
            return bytes.fromhex(json.loads(data)["server_hex"])
        except (ValueError, KeyError, TypeError):
            raise UsageError("recording: expected an object with a member server_hex of hex text") from None
    return b"".join(segment.data for segment in segments(data))


def _is_from_server(data: bytes) -> bool:
    """True if the first frame is a response."""
    for _, raw in split(data):
        return read_opaque(raw).kind.answers
    return False


class Playback:
    """Answers requests as the recorded server did.

    Each request gets the next recorded response to its opcode, and the frames that followed that response, all with the
    request's opaque. A request that was never answered gets the status "unknown command".
    """

    def __init__(self, recorded: bytes) -> None:
        # A response, and the messages until the next response.
        self._exchanges: list[list[bytes]] = []
        # From recorded opaques to those of the client.
        self._opaques: dict[bytes, bytes] = {}
        for _, raw in split(recorded):
            if read_opaque(raw).kind is Kind.RESPONSE:
                self._exchanges.append([raw])
            elif self._exchanges:
                self._exchanges[-1].append(raw)

    def __len__(self) -> int:
        return len(self._exchanges)

    def answer(self, request: bytes) -> list[bytes]:
        """Return the frames that answer the frame `request`; none for messages that need no answer."""
        frame = read_opaque(request)
        if frame.kind is not Kind.REQUEST:
            return []
        for number, exchange in enumerate(self._exchanges):
            if exchange[0][_OPCODE] == request[_OPCODE]:
                self._opaques[exchange[0][_OPAQUE]] = request[_OPAQUE]
                return [self._with_client_opaque(raw) for raw in self._exchanges.pop(number)]
        return [_unknown_command(frame)] if _expects_answer(request[_OPCODE]) else []

    def _with_client_opaque(self, raw: bytes) -> bytes:
        """Return a recorded frame with the opaque that the client uses for its request."""
        opaque = self._opaques.get(raw[_OPAQUE], raw[_OPAQUE])
        return raw[: _OPAQUE.start] + opaque + raw[_OPAQUE.stop :]


def _expects_answer(opcode: int) -> bool:
    """True if a client waits for an answer to this opcode, or if the opcode is unknown here."""
    messages = DCP.by_opcode.get((Kind.REQUEST, opcode), ())
    return not messages or any(message.answer for message in messages)


def _unknown_command(request: Frame) -> bytes:
    """Return the response to a request that was not recorded."""
    fields = {"opcode": request.fields["opcode"], "extras": b""}
    return encode(Frame(request.name, 0x81, request.opaque, status=int(Status.UNKNOWN_COMMAND), fields=fields))
