"""What a server said, recorded: a transcript, a capture, raw bytes or hex; and saying it again."""

from __future__ import annotations

import json
from collections import defaultdict

from dcp._codec import HEADER
from dcp.cli.capture import Flow, is_capture, streams
from dcp.cli.inspect import chunks
from dcp.errors import LocalProtocolError
from dcp.wire.dcp import DCP
from dcp.wire.frame import Frame, encode, read_opaque, split
from dcp.wire.layout import Kind
from dcp.wire.memcached import Status

_OPCODE, _OPAQUE = HEADER["opcode"], slice(HEADER["opaque"], HEADER["opaque"] + 4)


def server_bytes(data: bytes) -> bytes:
    """What the server said in a recording; of a capture, on the connection where it said most."""
    if is_capture(data):
        said: dict[Flow, bytes] = defaultdict(bytes)
        for _, flow, chunk in streams(data):
            said[flow] += chunk
        servers = [found for found in said.values() if _is_servers(found)]
        if not servers:
            raise LocalProtocolError("capture: expected a connection on which a server answers, found none")
        return max(servers, key=len)
    if data.lstrip()[:1] == b"{":
        try:
            return bytes.fromhex(json.loads(data)["server_hex"])
        except (ValueError, KeyError, TypeError):
            raise LocalProtocolError("recording: expected an object with a member server_hex of hex text") from None
    return b"".join(chunk for _, _, chunk in chunks(data))


def _is_servers(data: bytes) -> bool:
    for _, raw in split(data):
        return read_opaque(raw).kind.answers
    return False


class Replay:
    """Answers requests as the recorded server did: each takes the next answer to its opcode, and what followed it.

    The opaques are those of the client. What was never answered is an unknown command.
    """

    def __init__(self, recorded: bytes) -> None:
        self._exchanges: list[list[bytes]] = []
        self._opaques: dict[bytes, bytes] = {}
        for _, raw in split(recorded):
            if read_opaque(raw).kind is Kind.RESPONSE:
                self._exchanges.append([raw])
            elif self._exchanges:
                self._exchanges[-1].append(raw)

    def __len__(self) -> int:
        return len(self._exchanges)

    def answer(self, request: bytes) -> list[bytes]:
        """What to send for the bytes of a frame."""
        frame = read_opaque(request)
        if frame.kind is not Kind.REQUEST:
            return []
        for place, exchange in enumerate(self._exchanges):
            if exchange[0][_OPCODE] == request[_OPCODE]:
                self._opaques[exchange[0][_OPAQUE]] = request[_OPAQUE]
                return [self._readdressed(raw) for raw in self._exchanges.pop(place)]
        return [_unknown(frame)] if _wants_answer(request[_OPCODE]) else []

    def _readdressed(self, raw: bytes) -> bytes:
        opaque = self._opaques.get(raw[_OPAQUE], raw[_OPAQUE])
        return raw[: _OPAQUE.start] + opaque + raw[_OPAQUE.stop :]


def _wants_answer(opcode: int) -> bool:
    messages = DCP.by_opcode.get((Kind.REQUEST, opcode), ())
    return not messages or any(message.answer for message in messages)


def _unknown(request: Frame) -> bytes:
    fields = {"opcode": request.fields["opcode"], "extras": b""}
    return encode(Frame(request.name, 0x81, request.opaque, status=int(Status.UNKNOWN_COMMAND), fields=fields))
