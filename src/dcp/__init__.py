"""Couchbase's change protocol as Arrow columns."""

from dcp.columns.batch import Batch
from dcp.columns.decoder import Decoder
from dcp.columns.encoder import Encoder
from dcp.errors import DcpError, FrameError, LocalProtocolError, RemoteProtocolError
from dcp.wire import DIALECTS
from dcp.wire.frame import Frame, decode, encode
from dcp.wire.framing import FrameInfo

__version__ = "0.1.0"

__all__ = [
    "DIALECTS",
    "Batch",
    "DcpError",
    "Decoder",
    "Encoder",
    "Frame",
    "FrameError",
    "FrameInfo",
    "LocalProtocolError",
    "RemoteProtocolError",
    "decode",
    "encode",
]
