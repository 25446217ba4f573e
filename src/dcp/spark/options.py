"""What may be said of a read: every option, what it accepts, and how it is checked."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dcp.checkpoint import Checkpoint
from dcp.client import url as urls
from dcp.client.dialects import TAP, check_stream
from dcp.columns.schema import choose
from dcp.errors import LocalProtocolError
from dcp.spark.login import Login, split
from dcp.wire import DIALECTS
from dcp.wire.dcp import DCP


@dataclass(frozen=True, slots=True)
class Options:
    """Options as values. `url` has no credentials in it, but the dialect; None is what was not said."""

    url: str
    login: Login = field(default_factory=Login)
    scope: str | None = None
    collections: tuple[str, ...] | None = None
    vbuckets: tuple[int, ...] | None = None
    columns: tuple[str, ...] | None = None
    key_format: str = "binary"
    value_format: str = "binary"
    start: str | Checkpoint | None = field(default=None, repr=False)
    end: str | Checkpoint | None = field(default=None, repr=False)
    min_partitions: int | None = None
    on_rollback: str = "replay"
    max_offsets: int | None = None
    dialect: str = DCP.name

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """From options under their names, of which neither case nor underscores count.

        LocalProtocolError says which is wrong, and what is accepted.
        """
        values: dict[str, Any] = {}
        for name, value in given.items():
            option = _NAMES.get(_bare(name))
            if option is None:
                raise LocalProtocolError(_unknown(name))
            if option in values:
                raise LocalProtocolError(f"option {option}: expected it once, found it again as {name!r}")
            if value is not None:
                values[option] = OPTIONS[option][1](option, value)
        if "url" not in values:
            raise LocalProtocolError("option url: expected couchbase://host/bucket, found none")
        login = _login(values)
        values["dialect"] = _dialect(values)
        fields = {OPTIONS[option][0]: value for option, value in values.items() if OPTIONS[option][0]}
        return cls(**fields, login=login)


def _login(values: dict[str, Any]) -> Login:
    """Name and password, from the url or from options of their own. The url stays without them."""
    values["url"], username, password = split(values["url"])
    if username and {"username", "password", "passwordFile"} & values.keys():
        raise LocalProtocolError("option url: expected no user in it beside username, password or passwordFile")
    if {"password", "passwordFile"} <= values.keys():
        raise LocalProtocolError("option passwordFile: expected it or password, found both")
    return Login(
        username or values.get("username", ""), password or values.get("password", ""), values.get("passwordFile", "")
    )


def _dialect(values: dict[str, Any]) -> str:
    """What is spoken, from an option of its own or of the url, which then has it. What it lacks is refused."""
    if "dialect" in values:
        values["url"] += f"{'&' if '?' in values['url'] else '?'}dialect={values['dialect']}"
    dialect = str(urls.parse(values["url"]).options.get("dialect", DCP.name))
    check_stream(dialect, values)
    words = values.get("startingOffsets", "beginning"), values.get("endingOffsets", "now")
    if dialect == TAP and words != ("beginning", "now"):
        raise LocalProtocolError(
            "option startingOffsets, endingOffsets: expected earliest and latest, as TAP numbers no changes; "
            "leave them out"
        )
    return dialect


def _bare(name: object) -> str:
    return str(name).lower().replace("_", "")


def _unknown(name: object) -> str:
    close = difflib.get_close_matches(_bare(name), _NAMES, 1)
    hint = f" (did you mean {_NAMES[close[0]]}?)" if close else ""
    return f"option {str(name)[:40]!r}: there is none of this name{hint}; there are {', '.join(sorted(OPTIONS))}"


def _refuse(option: str, expected: str, found: object) -> LocalProtocolError:
    return LocalProtocolError(f"option {option}: expected {expected}, found {str(found)[:40]!r}")


def _text(option: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise LocalProtocolError(f"option {option}: expected text, found {'none' if value == '' else type(value)}")
    return value


def _names(option: str, value: Any) -> tuple[str, ...]:
    """A list, or text with commas."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, Iterable):
        raise _refuse(option, "names between commas, or a list of them", value)
    names = tuple(str(part).strip() for part in parts)
    if not all(names) or len(set(names)) != len(names) or not names:
        raise _refuse(option, "one name or more, each once", value)
    return names


def _columns(option: str, value: Any) -> tuple[str, ...]:
    names = _names(option, value)
    choose(DCP, names)
    return names


def _numbers(option: str, value: Any) -> tuple[int, ...]:
    """Numbers, or text such as 0-511,600."""
    try:
        if not isinstance(value, str):
            return tuple(sorted({int(number) for number in value}))
        found: set[int] = set()
        for part in value.split(","):
            first, _, last = part.partition("-")
            if int(last or first) >= 1 << 16:
                raise _refuse(option, "numbers below 65536", value)
            found |= set(range(int(first), int(last or first) + 1))
        return tuple(sorted(found))
    except (TypeError, ValueError):
        raise _refuse(option, "numbers such as 0-511,600, or a list of them", value) from None


def _count(option: str, value: Any) -> int:
    try:
        count = int(value)
    except (TypeError, ValueError):
        count = 0
    if count < 1:
        raise _refuse(option, "a number of 1 or more", value)
    return count


def _one_of(*accepted: str) -> Callable[[str, Any], str]:
    def read(option: str, value: Any) -> str:
        found = next((word for word in accepted if word.lower() == str(value).lower()), None)
        if found is None:
            raise _refuse(option, " or ".join(accepted), value)
        return found

    return read


# What Spark's users call the two ends, and what the client does.
_ENDS = {"earliest": "beginning", "beginning": "beginning", "latest": "now", "now": "now"}


def _position(*accepted: str) -> Callable[[str, Any], str | Checkpoint]:
    def read(option: str, value: Any) -> str | Checkpoint:
        if isinstance(value, Checkpoint):
            return value
        if isinstance(value, str) and value.lstrip().startswith("{"):
            return Checkpoint.from_json(value)
        if str(value).lower() not in accepted:
            raise _refuse(option, f"{accepted[0]}, or a checkpoint or its JSON", value)
        return _ENDS[str(value).lower()]

    return read


# For each option the field it is kept in, if any, and what reads it.
OPTIONS: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "url": ("url", _text),
    "username": ("", _text),
    "password": ("", _text),
    "passwordFile": ("", _text),
    "dialect": ("dialect", _one_of(*DIALECTS)),
    "scope": ("scope", _text),
    "collections": ("collections", _names),
    "vbuckets": ("vbuckets", _numbers),
    "columns": ("columns", _columns),
    "keyFormat": ("key_format", _one_of("binary", "string")),
    "valueFormat": ("value_format", _one_of("binary", "string")),
    "startingOffsets": ("start", _position("earliest", "beginning", "latest", "now")),
    "endingOffsets": ("end", _position("latest", "now")),
    "minPartitions": ("min_partitions", _count),
    "onRollback": ("on_rollback", _one_of("replay", "fail")),
    "maxOffsetsPerTrigger": ("max_offsets", _count),
}
# Other names of the same: those of the client, and of Couchbase's own connector.
_ALIASES = {"start": "startingOffsets", "end": "endingOffsets", "numPartitions": "minPartitions"}
_NAMES = {_bare(name): option for name, option in ({name: name for name in OPTIONS} | _ALIASES).items()}
