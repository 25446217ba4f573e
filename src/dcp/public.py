"""The public names of the package, which `dcp` imports from here on first use."""

from dcp.checkpoint import Checkpoint, CheckpointFile
from dcp.client import ChangeStream, Client, connect
from dcp.client.schema_inference import InferredSchema, infer_schema
from dcp.client.stats import Lag, Stats, Stuck, Window
from dcp.columns.batch import Batch
from dcp.columns.decoder import Decoder
from dcp.columns.encoder import Encoder
from dcp.errors import (
    AuthenticationError,
    CheckpointError,
    ClosedError,
    DcpError,
    DocumentError,
    FrameError,
    LocalProtocolError,
    RemoteProtocolError,
    RollbackError,
    ServerError,
    SnapshotError,
    TimeoutError,
    TransportError,
    UsageError,
)
from dcp.position import FailoverLog, StreamPosition
from dcp.wire import DIALECTS
from dcp.wire.frame import Frame, decode, encode
from dcp.wire.framing import FrameInfo

__all__ = [
    "DIALECTS",
    "AuthenticationError",
    "Batch",
    "ChangeStream",
    "Checkpoint",
    "CheckpointError",
    "CheckpointFile",
    "Client",
    "ClosedError",
    "DcpError",
    "Decoder",
    "DocumentError",
    "Encoder",
    "FailoverLog",
    "Frame",
    "FrameError",
    "FrameInfo",
    "InferredSchema",
    "Lag",
    "LocalProtocolError",
    "RemoteProtocolError",
    "RollbackError",
    "ServerError",
    "SnapshotError",
    "Stats",
    "StreamPosition",
    "Stuck",
    "TimeoutError",
    "TransportError",
    "UsageError",
    "Window",
    "connect",
    "decode",
    "encode",
    "infer_schema",
]
