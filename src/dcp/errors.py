"""What can go wrong, and whose fault it is.

    DcpError
    ├── LocalProtocolError      you asked for something the protocol does not allow
    │   └── CheckpointError     … with a checkpoint that cannot be read, or is of another bucket
    ├── RemoteProtocolError     the peer broke the protocol
    │   └── FrameError          … in one frame: where it starts, whose it is, what is wrong
    ├── ServerError             the peer refused: with a status, and what it says of it
    │   └── AuthenticationError … to believe who you are
    ├── RollbackError           what a position is built on is lost, and you asked to be told
    └── TransportError          a node cannot be reached, or is there no more
        ├── SnapshotError       … or left out the end of a snapshot: it has to be asked again
        └── TimeoutError        … within the time that it had; also a TimeoutError of Python's own

Only these leave an entry point of the package; any other exception is a bug. All of them are
picklable with their attributes, so they cross process boundaries whole.
"""

from __future__ import annotations

import builtins


class DcpError(Exception):
    """The root of every error this package raises on purpose.

    `node` is host and port of the node that it is about, where there is one: its text begins with them.
    """

    retriable = False
    node = ""

    def __str__(self) -> str:
        return f"{self.node}: {self._text()}" if self.node else self._text()

    def _text(self) -> str:
        return super().__str__()


class LocalProtocolError(DcpError):
    """The caller asked for something that cannot be said on the wire."""


class CheckpointError(LocalProtocolError):
    """A checkpoint that is torn or foreign: what is wrong with it, and where."""


class RemoteProtocolError(DcpError):
    """The peer sent something that the protocol does not allow."""


class FrameError(RemoteProtocolError):
    """A frame that cannot be read.

    `offset` is the byte at which the frame starts in the input, `opcode` and `vbucket` are what its
    header says, or None where the header has none. `problem` says what was expected and what was
    found.
    """

    def __init__(self, problem: str, offset: int, opcode: int | None = None, vbucket: int | None = None) -> None:
        super().__init__(problem, offset, opcode, vbucket)
        self.problem = problem
        self.offset = offset
        self.opcode = opcode
        self.vbucket = vbucket

    def _text(self) -> str:
        whose = [f"opcode 0x{self.opcode:02x}"] if self.opcode is not None else []
        whose += [f"vbucket {self.vbucket}"] if self.vbucket is not None else []
        inside = f" ({', '.join(whose)})" if whose else ""
        return f"frame at byte {self.offset}{inside}: {self.problem}"


class ServerError(DcpError):
    """The peer refused.

    `status` is that of its answer, `context` what it says of it, if anything.
    """

    def __init__(self, problem: str, status: int | None = None, context: str = "") -> None:
        super().__init__(problem, status, context)
        self.problem = problem
        self.status = status
        self.context = context

    def _text(self) -> str:
        said = [f"status 0x{self.status:02x}"] if self.status else []
        said += [self.context] if self.context else []
        return f"{self.problem} ({', '.join(said)})" if said else self.problem


class AuthenticationError(ServerError):
    """The peer does not believe who you are, or did not prove who it is."""


class RollbackError(DcpError):
    """The producer has lost what a position is built on.

    `vbucket` has to go back from `seqno` to `rollback_seqno`; nothing was moved.
    """

    def __init__(self, vbucket: int, seqno: int, rollback_seqno: int) -> None:
        super().__init__(vbucket, seqno, rollback_seqno)
        self.vbucket = vbucket
        self.seqno = seqno
        self.rollback_seqno = rollback_seqno

    def _text(self) -> str:
        return (
            f"vbucket {self.vbucket}: the cluster has lost changes: go back from seqno {self.seqno} to "
            f"{self.rollback_seqno} and undo what lies between, or stream with on_rollback='replay'"
        )


class TransportError(DcpError):
    """A node cannot be reached, or is there no more."""

    retriable = True


class SnapshotError(TransportError):
    """A node went on, or ended a stream, before the end of a snapshot that it announced.

    Of `vbucket`, `seqno` is the last that came, `end` what was announced.
    """

    def __init__(self, vbucket: int, seqno: int, end: int) -> None:
        super().__init__(vbucket, seqno, end)
        self.vbucket, self.seqno, self.end = vbucket, seqno, end

    def _text(self) -> str:
        return f"vbucket {self.vbucket}: the node stopped at seqno {self.seqno} of a snapshot up to {self.end}"


class TimeoutError(TransportError, builtins.TimeoutError):
    """Nothing came within the time that it had."""
