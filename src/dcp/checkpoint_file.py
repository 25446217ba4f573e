"""A checkpoint in a file, which is whole at every moment, whatever happens to the machine."""

from __future__ import annotations

import os
from pathlib import Path

from dcp.checkpoint import Checkpoint
from dcp.errors import CheckpointError


class CheckpointFile:
    """Where a consumer keeps its checkpoint. One consumer at a time writes it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def load(self) -> Checkpoint | None:
        """What was saved last; None if nothing ever was."""
        try:
            return Checkpoint.from_json(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except CheckpointError as wrong:
            raise CheckpointError(f"{self.path}: {wrong}") from None

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the file: a reader finds the old checkpoint or the new one, after a loss of power too."""
        new = self.path.with_name(f".{self.path.name}.new")
        with new.open("w", encoding="utf-8") as file:
            file.write(checkpoint.to_json())
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path)
        sync_directory(self.path.parent)


def sync_directory(directory: Path) -> None:
    """Make the new name last. Windows has no such call, and no need of one."""
    if os.name == "nt":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
