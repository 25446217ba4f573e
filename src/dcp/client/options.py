"""What callers give to a stream, checked before a node hears of it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping
from typing import Any

from dcp.columns.decoder import MAX_BATCH_BYTES, MAX_BATCH_ROWS, Decoder
from dcp.errors import LocalProtocolError

# Of a decoder's options those that are the stream's own business.
_OURS = frozenset({"dialect", "columns", "collections", "events", "also"})
# An hour is more than anybody waits for a row that is there.
_MOST_LINGER = 3600
DECODING = tuple(sorted(set(inspect.signature(Decoder).parameters) - _OURS))


def check_decoding(given: Mapping[str, Any], others: Iterable[str]) -> None:
    """What is left over, when the stream has taken its own."""
    for name in given:
        if name not in DECODING:
            raise LocalProtocolError(
                f"stream: expected options among {', '.join(sorted({*others, *DECODING}))}, found {name!r}"
            )
    for option in ("max_frame", "max_value"):
        value = given.get(option, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise LocalProtocolError(f"{option}: expected a number of bytes, such as 65536, found {value!r:.100}")


def names(option: str, given: Any) -> list[str]:
    """Names, where a single one is easily given in the place of several."""
    found = None if isinstance(given, str | bytes) or not isinstance(given, Iterable) else list(given)
    if found is None or not all(isinstance(name, str) for name in found):
        raise LocalProtocolError(f"{option}: expected names in a list, such as ['one', 'two'], found {given!r:.100}")
    return found


def vbuckets(given: Any, count: int) -> list[int]:
    """Numbers of vbuckets of a bucket that has so many, each once, in order."""
    if given is None:
        return list(range(count))
    found = list(given) if isinstance(given, Iterable) else None
    if not found or not all(type(number) is int and 0 <= number < count for number in found):
        raise LocalProtocolError(f"vbuckets: expected some of 0 to {count - 1}, found {given!r:.100}")
    return sorted(set(found))


def check_flags(**given: Any) -> None:
    for option, value in given.items():
        if not isinstance(value, bool):
            raise LocalProtocolError(f"{option}: expected True or False, found {value!r:.100}")


def check_timeout(given: Any) -> None:
    if given is not None and (not isinstance(given, int | float) or math.isnan(given)):
        raise LocalProtocolError(f"timeout: expected None or seconds, such as 10, found {given!r:.100}")


def check_limits(rows: Any, size: Any, linger: Any) -> None:
    """When a batch is handed out."""
    for option, value, most in (("batch_rows", rows, MAX_BATCH_ROWS), ("batch_bytes", size, MAX_BATCH_BYTES)):
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise LocalProtocolError(f"{option}: expected 1 to {most}, found {value!r:.100}")
    if not isinstance(linger, int | float) or isinstance(linger, bool) or not 0 <= linger <= _MOST_LINGER:
        raise LocalProtocolError(f"linger: expected 0 to {_MOST_LINGER} seconds, such as 0.02, found {linger!r:.100}")
