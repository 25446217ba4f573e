"""The process that made a client or stream: no other one may use it."""

from __future__ import annotations

import os

from dcp.errors import UsageError


class OwnProcess:
    """Notices use in a forked process.

    A fork copies no threads, so nothing would arrive there, and locks that they held are never released. Its sockets
    are those of the parent, whose conversations it would disturb.
    """

    def __init__(self) -> None:
        self._id = os.getpid()

    @property
    def left(self) -> bool:
        """True in a process that was forked from the one that made this."""
        return os.getpid() != self._id

    def check(self, subject: str) -> None:
        """Raise UsageError in a forked process."""
        if self.left:
            raise UsageError(
                f"{subject}: made in process {self._id}, used in process {os.getpid()}, which was forked: connect in "
                "each process, and resume from a checkpoint"
            )
