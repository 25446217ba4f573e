"""Checkpoints and times as arguments of commands: FILE, `--from` and `--to`."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path

from dcp.checkpoint import Checkpoint, CheckpointFile
from dcp.cli.arguments import WrongValue
from dcp.client.options import Use, options_of
from dcp.errors import CheckpointError, LocalProtocolError
from dcp.value_grammar import duration

NATIVE = "dcp"
EXAMPLE_TIME = "2026-11-01T00:00Z"


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
    try:
        checkpoint = CheckpointFile(file).load()
    except CheckpointError as error:
        advice = "one of another consumer has to be converted: dcp checkpoint convert FILE OUT --format NAME"
        raise CheckpointError(f"{error}; {advice}") from None
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
        position: str | datetime = options_of(Use.STREAM)[name].read(f"-{text}" if _is_duration(text) else text)
    except LocalProtocolError:
        raise WrongValue(
            f"{text}: expected {', '.join(words)}, a time with a UTC offset such as {EXAMPLE_TIME}, or before now such "
            "as 1h, or a checkpoint, found no such file"
        ) from None
    return position


def _is_duration(text: str) -> bool:
    """Return whether a text is a duration with a unit. A number alone may be a part of a time."""
    try:
        return bool(duration(text)) and text[-1].isalpha()
    except ValueError:
        return False


def copy_checkpoints(directory: Path) -> list[Path]:
    """Return the checkpoints in a directory of `dcp copy`, the newest last. A crash may leave two."""
    return sorted(path for path in directory.iterdir() if is_checkpoint(path.name))


def checkpoint_name(number: int) -> str:
    """Return the name of a copy's checkpoint."""
    return f"_checkpoint-{number:08d}.json"


def is_checkpoint(name: str) -> bool:
    """Return whether a file of a copy is a checkpoint."""
    return re.fullmatch(r"_checkpoint-[0-9]+\.json", name) is not None


def number_of(name: str) -> int:
    """Return the number in the name of a copy's checkpoint or file; 0 if there is none."""
    found = re.search(r"-([0-9]+)\.[a-z]+$", name)
    return int(found[1]) if found else 0


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
