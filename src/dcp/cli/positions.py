"""Checkpoints that users name: files of ours, of other consumers, and those beside what `dcp copy` wrote."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from dcp.checkpoint import Checkpoint, CheckpointFile
from dcp.client.options import Use, options_of
from dcp.errors import CheckpointError, LocalProtocolError

NATIVE = "dcp"
TIME = "2026-11-01T00:00Z"
# The checkpoints of a copy are numbered: each speaks of all files up to its number.
_COPIED = "_checkpoint-{:08d}.json"
_COPIES = "_checkpoint-*.json"


def load(path: str | Path, kind: str = NATIVE) -> Checkpoint:
    """The checkpoint in a file, or the last one of a directory that `dcp copy` wrote."""
    place = Path(path)
    if place.is_dir():
        found = of_copy(place)
        if not found:
            raise CheckpointError(f"{place}: expected a checkpoint or the output of dcp copy, found another directory")
        place = found[-1]
    if kind != NATIVE:
        return _foreign(place, kind)
    checkpoint = CheckpointFile(place).load()
    if checkpoint is None:
        raise CheckpointError(f"{place}: expected a checkpoint, found no such file")
    return checkpoint


def start_of(text: str) -> str | datetime | Checkpoint:
    """What a user says to begin at: beginning, now, a time, or a checkpoint."""
    position: str | datetime | Checkpoint = _place("start", text, "beginning", "now")
    return position


def end_of(text: str | None) -> str | datetime | Checkpoint | None:
    """What a user says to end at: now, a time, a checkpoint, or nothing."""
    return None if text is None else _place("end", text, "now")


def _place(name: str, text: str, *words: str) -> Any:
    if text in words:
        return text
    if Path(text).exists():
        return load(text)
    try:
        return options_of(Use.STREAM)[name].read(text)
    except LocalProtocolError:
        raise CheckpointError(
            f"{text}: expected {', '.join(words)}, a time with a UTC offset such as {TIME}, or a checkpoint, "
            "found no such file"
        ) from None


def of_copy(directory: Path) -> list[Path]:
    """The checkpoints of a copy, the newest last."""
    return sorted(path for path in directory.glob(_COPIES) if number_of(path) is not None)


def path_of_copy(directory: Path, number: int) -> Path:
    return directory / _COPIED.format(number)


def number_of(path: Path) -> int | None:
    digits = path.stem.rpartition("-")[2]
    return int(digits) if digits.isascii() and digits.isdecimal() else None


def _foreign(path: Path, kind: str) -> Checkpoint:
    try:
        return Checkpoint.from_foreign(kind, path.read_bytes())
    except CheckpointError as wrong:
        raise CheckpointError(f"{path}: {wrong}") from None


def as_json(checkpoint: Checkpoint) -> dict[str, object]:
    """For machines: what the file of a checkpoint says."""
    found: dict[str, object] = json.loads(checkpoint.to_json())
    return found
