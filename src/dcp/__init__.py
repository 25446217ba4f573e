"""Couchbase changes as Apache Arrow batches: client, decoder and encoder for DCP, UPR and TAP.

    import dcp

    with dcp.connect("couchbase://user:password@host/bucket") as client:
        for batch in client.stream(end="now"):
            print(batch.to_arrow())

Begin with `connect`, `Client.stream` and `ChangeStream`. Import further parts by themselves: `dcp.spark` (DataFrames),
`dcp.embedded` (a cluster for tests), `dcp.metrics` (Prometheus).
"""

from dcp.checkpoint import Checkpoint, CheckpointFile
from dcp.client import ChangeStream, Client, connect
from dcp.client.stats import Lag, Stats, Stuck, Window
from dcp.columns.batch import Batch
from dcp.columns.decoder import Decoder
from dcp.columns.encoder import Encoder
from dcp.errors import (
    AuthenticationError,
    CheckpointError,
    ClosedError,
    DcpError,
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

__version__ = "0.1.0"

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
    "Encoder",
    "FailoverLog",
    "Frame",
    "FrameError",
    "FrameInfo",
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
]
