"""Exceptions of the package, and which side each of them blames.

    DcpError
    ├── LocalProtocolError      the calling program
    │   ├── UsageError          a wrong call, argument or option
    │   ├── ClosedError         use of something that was closed
    │   └── CheckpointError     a checkpoint that cannot be read, or belongs to another bucket
    ├── RemoteProtocolError     the peer broke the protocol
    │   └── FrameError          one frame is malformed: byte offset, opcode, vbucket, problem
    ├── DocumentError           a value is not of the type that was asked for (only with on_bad_...="fail")
    ├── ServerError             the peer refused a request, with a status
    │   └── AuthenticationError it refused the credentials, or did not prove its own identity
    ├── RollbackError           changes that a position is built on were lost (only with on_rollback="fail")
    └── TransportError          a node cannot be reached, or the connection broke
        ├── SnapshotError       a node skipped the end of a snapshot that it announced
        └── TimeoutError        no answer in time; also a builtins.TimeoutError

No other exception leaves an entry point of the package: any other one is a bug. All of them can be pickled with
their attributes, so they cross process boundaries whole. No message contains a password, token or control character.
"""

from __future__ import annotations

import builtins

from dcp.printable import printable

# Bytes of a key that a message shows: the longest that a server accepts.
_LONGEST_KEY = 250


class DcpError(Exception):
    """Base class of every error that this package raises on purpose.

    retriable: True if the same call may succeed later without a change by the caller.
    node: host and port of the node that the error is about; empty if there is none. The message begins with it.
    """

    retriable = False
    node = ""

    def __str__(self) -> str:
        # Parts of the text may be the server's words.
        return printable(f"{self.node}: {self._text()}" if self.node else self._text())

    def _text(self) -> str:
        return super().__str__()


class LocalProtocolError(DcpError):
    """Error of the calling program: what it asked for cannot be done, whatever the peer answers."""


class UsageError(LocalProtocolError):
    """Wrong call, argument or option. The message says what was expected, and what was found."""


class ClosedError(LocalProtocolError):
    """Use of a client, stream or connection after it was closed."""


class CheckpointError(LocalProtocolError):
    """Checkpoint that cannot be read, or that belongs to another bucket or filter.

    The message says which part of it is wrong, what was expected there and what was found.
    """


class RemoteProtocolError(DcpError):
    """Message of the peer that the protocol does not allow."""


class FrameError(RemoteProtocolError):
    """Malformed frame.

    problem: what was expected, and what was found.
    offset: byte at which the frame starts, counted from the beginning of the input or of the connection.
    opcode, vbucket: as the frame's header says; None if the header has none, or is itself incomplete.
    """

    def __init__(self, problem: str, offset: int, opcode: int | None = None, vbucket: int | None = None) -> None:
        super().__init__(problem, offset, opcode, vbucket)
        self.problem = problem
        self.offset = offset
        self.opcode = opcode
        self.vbucket = vbucket

    def _text(self) -> str:
        header = [f"opcode 0x{self.opcode:02x}"] if self.opcode is not None else []
        header += [f"vbucket {self.vbucket}"] if self.vbucket is not None else []
        inside = f" ({', '.join(header)})" if header else ""
        return f"frame at byte {self.offset}{inside}: {self.problem}"


class DocumentError(DcpError):
    """Value that is not of the requested type. Raised with on_bad_document="fail", or on_bad_value="fail", only.

    problem: path of the part that is wrong, what was expected there, and what was found.
    key, collection_id, vbucket, seqno: of the document; `collection_id` is None without collections.
    """

    def __init__(self, problem: str, key: bytes, collection_id: int | None, vbucket: int, seqno: int) -> None:
        super().__init__(problem, key, collection_id, vbucket, seqno)
        self.problem = problem
        self.key = key
        self.collection_id = collection_id
        self.vbucket = vbucket
        self.seqno = seqno

    def _text(self) -> str:
        key = self.key[:_LONGEST_KEY].decode("utf-8", "backslashreplace")
        collection = "" if self.collection_id is None else f" of collection 0x{self.collection_id:x}"
        return f"document {key!r}{collection} (vbucket {self.vbucket}, seqno {self.seqno}): {self.problem}"


class ServerError(DcpError):
    """Refusal of a request by the peer.

    problem: what was refused, and what to do about it.
    status: status of the answer; None if the refusal has none.
    context: the server's own explanation; empty if it sent none.
    step: name of the refused command, of those from a connection to its streams; empty for others.
    retriable: True if the status is about the present state of the node, such as ETMPFAIL.
    """

    step = ""

    def __init__(self, problem: str, status: int | None = None, context: str = "") -> None:
        super().__init__(problem, status, context)
        self.problem = problem
        self.status = status
        self.context = context

    def _text(self) -> str:
        details = [f"status 0x{self.status:02x}"] if self.status else []
        details += [self.context] if self.context else []
        return f"{self.problem} ({', '.join(details)})" if details else self.problem


class AuthenticationError(ServerError):
    """Refused credentials, or a server that did not prove that it knows the password."""


class RollbackError(DcpError):
    """Loss of changes that a position is built on. Raised with on_rollback="fail" only; nothing was moved.

    vbucket: number of the vbucket.
    seqno: where the consumer is.
    rollback_seqno: where it has to go back to before it can resume.
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
    """Failed or lost connection to a node. `retriable` is True."""

    retriable = True


class SnapshotError(TransportError):
    """Missing end of a snapshot: the node ended the stream, or began another snapshot, before the announced end.

    vbucket: number of the vbucket.
    seqno: last seqno that arrived.
    end: end of the snapshot as its marker announced it.
    """

    def __init__(self, vbucket: int, seqno: int, end: int) -> None:
        super().__init__(vbucket, seqno, end)
        self.vbucket, self.seqno, self.end = vbucket, seqno, end

    def _text(self) -> str:
        return f"vbucket {self.vbucket}: the node stopped at seqno {self.seqno} of a snapshot up to {self.end}"


class TimeoutError(TransportError, builtins.TimeoutError):
    """Missing answer: nothing arrived within the time limit of the operation."""
