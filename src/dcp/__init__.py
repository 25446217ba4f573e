"""Couchbase's change protocol as Arrow columns."""

from dcp.errors import DcpError, FrameError, LocalProtocolError, RemoteProtocolError
from dcp.wire import DIALECTS
from dcp.wire.frame import Frame, decode, encode
from dcp.wire.framing import FrameInfo

__version__ = "0.1.0"

__all__ = [
    "DIALECTS",
    "DcpError",
    "Frame",
    "FrameError",
    "FrameInfo",
    "LocalProtocolError",
    "RemoteProtocolError",
    "decode",
    "encode",
]
