"""What can go wrong, and whose fault it is.

    DcpError
    ├── LocalProtocolError      you asked for something the protocol does not allow
    │   └── CheckpointError     … with a checkpoint that cannot be read, or is of another bucket
    └── RemoteProtocolError     the peer broke the protocol
        └── FrameError          … in one frame: where it starts, whose it is, what is wrong

Only these leave an entry point of the package; any other exception is a bug. All of them are
picklable with their attributes, so they cross process boundaries whole.
"""

from __future__ import annotations


class DcpError(Exception):
    """The root of every error this package raises on purpose."""

    retriable = False


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

    def __str__(self) -> str:
        whose = [f"opcode 0x{self.opcode:02x}"] if self.opcode is not None else []
        whose += [f"vbucket {self.vbucket}"] if self.vbucket is not None else []
        inside = f" ({', '.join(whose)})" if whose else ""
        return f"frame at byte {self.offset}{inside}: {self.problem}"
