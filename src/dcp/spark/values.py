"""What reads the value of an option: text as Spark has it, or a value of Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from typing import Any

from dcp.checkpoint import Checkpoint
from dcp.client.time_search import tick
from dcp.columns.plan import events_of
from dcp.columns.schema import choose
from dcp.errors import CheckpointError, LocalProtocolError
from dcp.wire.dcp import DCP

# Columns that no message has: the names that belong to a collection's id.
PATH = ("scope", "collection")

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def refuse(option: str, expected: str, found: object) -> LocalProtocolError:
    return LocalProtocolError(f"option {option}: expected {expected}, found {str(found)[:40]!r}")


def text(option: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise LocalProtocolError(f"option {option}: expected text, found {'none' if value == '' else type(value)}")
    return value


def names(option: str, value: Any) -> tuple[str, ...]:
    """A list, or text with commas."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, Iterable):
        raise refuse(option, "names between commas, or a list of them", value)
    found = tuple(str(part).strip() for part in parts)
    if not all(found) or len(set(found)) != len(found) or not found:
        raise refuse(option, "one name or more, each once", value)
    return found


def keys(option: str, value: Any) -> tuple[str, ...]:
    found = names(option, value)
    if any("*" in key.rstrip("*") for key in found):
        raise refuse(option, "a star at the end of a key only, where it stands for anything", value)
    return found


def columns(option: str, value: Any) -> tuple[str, ...]:
    found = names(option, value)
    try:
        choose(DCP, [name for name in found if name not in PATH] or None)
    except LocalProtocolError as error:
        raise LocalProtocolError(f"{error}; and the names {' and '.join(PATH)}") from None
    return found


def events(option: str, value: Any) -> tuple[str, ...]:
    found, possible = names(option, value), events_of(DCP, None)
    if not {*found} <= {*possible}:
        raise refuse(option, f"some of {', '.join(possible)}", value)
    return found


def numbers(option: str, value: Any) -> tuple[int, ...]:
    """Numbers, or text such as 0-511,600."""
    try:
        if not isinstance(value, str):
            return tuple(sorted({int(number) for number in value}))
        found: set[int] = set()
        for part in value.split(","):
            first, _, last = part.partition("-")
            if int(last or first) >= 1 << 16:
                raise refuse(option, "numbers below 65536", value)
            if int(last or first) < int(first):
                raise refuse(option, "the lower number of a range first", value)
            found |= set(range(int(first), int(last or first) + 1))
        return tuple(sorted(found))
    except (TypeError, ValueError):
        raise refuse(option, "numbers such as 0-511,600, or a list of them", value) from None


def count(option: str, value: Any) -> int:
    try:
        count = int(str(value))
    except ValueError:
        count = 0
    if count < 1:
        raise refuse(option, "a number of 1 or more", value)
    return count


def size(option: str, value: Any) -> int:
    """Bytes, or text such as 512m, as Spark writes it."""
    match = re.fullmatch(r"(\d{1,18})\s*([kmgt]?)b?", str(value).strip().lower())
    if match is None or not int(match[1]):
        raise refuse(option, "bytes, such as 67108864, 64m or 1g", value)
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[match[2]]


def flag(option: str, value: Any) -> bool:
    return one_of("true", "false")(option, value) == "true"


def delay(option: str, value: Any) -> float:
    """A time in words, such as 15m, as seconds."""
    match = re.fullmatch(r"(\d{1,9})\s*(ms|s|m|h)", str(value).strip().lower())
    if match is None:
        raise refuse(option, "a time such as 500ms, 30s, 15m or 1h", value)
    return int(match[1]) * {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}[match[2]]


def moment(option: str, value: Any) -> Any:
    """A time with its zone, as text or not, or milliseconds since 1970."""
    try:
        if str(value).isdecimal():
            return _EPOCH + timedelta(milliseconds=int(value))
        known = tick("start", value)
    except (LocalProtocolError, OverflowError):
        known = None
    if known is None:
        raise refuse(option, "a time with its zone, such as 2026-11-01T00:00Z, or milliseconds since 1970", value)
    return value


def one_of(*accepted: str) -> Callable[[str, Any], str]:
    def read(option: str, value: Any) -> str:
        found = next((word for word in accepted if word.lower() == str(value).lower()), None)
        if found is None:
            raise refuse(option, " or ".join(accepted), value)
        return found

    return read


# What Spark's users call the two ends, and what the client does.
_ENDS = {"earliest": "beginning", "beginning": "beginning", "latest": "now", "now": "now"}


def position(*accepted: str) -> Callable[[str, Any], str | Checkpoint]:
    def read(option: str, value: Any) -> str | Checkpoint:
        if isinstance(value, Checkpoint):
            return value
        if isinstance(value, str) and value.lstrip().startswith("{"):
            try:
                return Checkpoint.from_json(value)
            except CheckpointError as error:
                raise CheckpointError(f"option {option}: {error}: expected what `plan.end.to_json()` gives") from None
        if str(value).lower() not in accepted:
            raise refuse(option, f"{', '.join(accepted)}, a checkpoint, or its JSON", value)
        return _ENDS[str(value).lower()]

    return read
