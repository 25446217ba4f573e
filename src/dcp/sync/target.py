"""The operations of a table that is kept equal to a bucket, whatever stores it."""

from __future__ import annotations

import re
from typing import Protocol

from dcp.errors import DcpError, UsageError
from dcp.sync.changes import Transaction
from dcp.sync.state import SyncState


class TargetError(DcpError):
    """Failed transaction of a table. Nothing of it is in the table, and the next attempt may succeed."""

    retriable = True

    def _text(self) -> str:
        return without_credentials(super()._text())


class SyncTarget(Protocol):
    """A table. `shown` is its name for messages, without credentials."""

    shown: str

    def load(self) -> SyncState | None:
        """Return the state of the last transaction; None if there is no table yet.

        Raises UsageError for a table that something else wrote.
        """

    def commit(self, transaction: Transaction) -> None:
        """Apply a transaction: after a crash at any moment the table has all of it, with its state, or nothing.

        Raises TargetError if it fails, and UsageError if another process has changed the table.
        """

    def count(self) -> int:
        """Return the number of rows."""

    def close(self) -> None:
        """Release what the table holds."""


def check_unchanged(shown: str, found: SyncState | None, transaction: Transaction) -> None:
    """Raise UsageError if the table has another state than the transaction begins with."""
    if found != transaction.before:
        raise UsageError(f"{shown}: another process has changed the table; only one dcp sync at a time may write to it")


def without_credentials(text: str) -> str:
    """Return a message of a library on one line, without the user, password and options of URLs in it."""
    text = " ".join(re.sub(r"\x1b\[[\d;]*m", "", text).split())
    return re.sub(r"(?<=://)[^/@\s'\"]*@", "", re.sub(r"(://[^\s'\"?]*)\?[^\s'\"]*", r"\1", text))
