"""Checkpoints and times as arguments of commands: FILE, `--from` and `--to`."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

from dcp.checkpoint import Checkpoint, CheckpointFile
from dcp.cli.arguments import WrongValue
from dcp.client.options import Use, options_of
from dcp.errors import CheckpointError, LocalProtocolError

NATIVE = "dcp"
EXAMPLE_TIME = "2026-11-01T00:00Z"
# `dcp copy` numbers its checkpoints: each covers all files up to its number.
_COPY_NAME = "_checkpoint-{:08d}.json"
_COPY_PATTERN = "_checkpoint-*.json"


def load(path: str | Path, kind: str = NATIVE) -> Checkpoint:
    """Return the checkpoint in a file, or the latest one of a directory that `dcp copy` wrote.

    kind: `dcp`, or the format of another consumer. Raises CheckpointError if there is none.
    """
    file = Path(path)
    if file.is_dir():
        found = copy_checkpoints(file)
        if not found:
            raise CheckpointError(f"{file}: expected a checkpoint or the output of dcp copy, found another directory")
        file = found[-1]
    if kind != NATIVE:
        return _load_foreign(file, kind)
    checkpoint = CheckpointFile(file).load()
    if checkpoint is None:
        raise CheckpointError(f"{file}: expected a checkpoint, found no such file")
    return checkpoint


def parse_start(text: str) -> str | datetime | Checkpoint:
    """Return the value of `--from`: beginning, now, a time, or a checkpoint from a file."""
    return _parse("start", text, "beginning", "now")


def parse_end(text: str | None) -> str | datetime | Checkpoint | None:
    """Return the value of `--to`: now, a time, or a checkpoint from a file; None without an end."""
    return None if text is None else _parse("end", text, "now")


def _parse(name: str, text: str, *words: str) -> str | datetime | Checkpoint:
    """Return the position that a word, a time, or a checkpoint in a file stands for."""
    if text in words:
        return text
    if "://" in text:
        # Not shown: it may have a password.
        raise CheckpointError(f"expected {', '.join(words)}, a time or a checkpoint, found a URL")
    if Path(text).exists():
        return load(text)
    try:
        position: str | datetime = options_of(Use.STREAM)[name].read(text)
    except LocalProtocolError:
        raise WrongValue(
            f"{text}: expected {', '.join(words)}, a time with a UTC offset such as {EXAMPLE_TIME}, or a checkpoint, "
            "found no such file"
        ) from None
    return position


def copy_checkpoints(directory: Path) -> list[Path]:
    """Return the checkpoints in a directory of `dcp copy`, the newest last. A crash may leave two."""
    return sorted(path for path in directory.glob(_COPY_PATTERN) if number_of(path) is not None)


def copy_checkpoint(directory: Path, number: int) -> Path:
    """Return the path of a copy's checkpoint."""
    return directory / _COPY_NAME.format(number)


def number_of(path: Path) -> int | None:
    """Return the number in the name of a copy's checkpoint or file; None if there is none."""
    digits = path.stem.rpartition("-")[2]
    return int(digits) if digits.isascii() and digits.isdecimal() else None


def _load_foreign(path: Path, kind: str) -> Checkpoint:
    """Return the checkpoint of another consumer. Errors name the file."""
    try:
        return Checkpoint.from_foreign(kind, path.read_bytes())
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None


def as_json(checkpoint: Checkpoint) -> dict[str, object]:
    """Return the content of a checkpoint's file."""
    found: dict[str, object] = json.loads(checkpoint.to_json())
    return found
