"""What may be said of a read: every option, what it accepts, and how it is checked."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote

from dcp.checkpoint import Checkpoint
from dcp.client import connection_string as urls
from dcp.client.dialects import TAP, check_stream
from dcp.columns.schema import COLUMNS
from dcp.errors import LocalProtocolError
from dcp.spark import values
from dcp.spark.login import USERNAME, Login, split
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
    events: tuple[str, ...] | None = None
    keys: tuple[str, ...] | None = None
    start: str | datetime | Checkpoint | None = field(default=None, repr=False)
    end: str | Checkpoint | None = field(default=None, repr=False)
    min_partitions: int | None = None
    on_rollback: str = "replay"
    fail_on_data_loss: bool = True
    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay: float = 15 * 60.0
    dialect: str = DCP.name

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """From options under their names, of which neither case nor underscores count.

        LocalProtocolError says which is wrong, and what is accepted.
        """
        told: dict[str, Any] = {}
        for name, value in given.items():
            option = _NAMES.get(_bare(name))
            if option is None:
                raise LocalProtocolError(_unknown(name))
            if option in told:
                raise LocalProtocolError(f"option {option}: expected it once, found it again as {name!r}")
            if value is not None:
                told[option] = OPTIONS[option][1](option, value)
        _fold(told)
        if "url" not in told:
            raise LocalProtocolError("option url: expected couchbase://host/bucket, found none")
        login = _login(told)
        told["dialect"] = _dialect(told)
        fields = {OPTIONS[option][0]: value for option, value in told.items() if OPTIONS[option][0]}
        return cls(**fields, login=login)


def _fold(told: dict[str, Any]) -> None:
    """What says the same as another option, in other words, becomes that one."""
    same = {"connectionString": "url", "startingTimestamp": "startingOffsets", "includeXattrs": "columns"}
    for option, other in same.items():
        if option in told and other in told:
            raise LocalProtocolError(f"option {option}: expected it or {other}, found both")
    if "connectionString" in told:
        # Spark hides values of options by their names.
        if "@" in told["connectionString"]:
            raise LocalProtocolError("option connectionString: expected no user in it, since Spark shows it: use url")
        told["url"] = told["connectionString"]
    if "bucket" in told and "url" in told:
        told["url"] = _with_bucket(told["url"], told["bucket"])
    if "startingTimestamp" in told:
        told["startingOffsets"] = told["startingTimestamp"]
    if told.get("includeXattrs") is False:
        told["columns"] = tuple(column.name for column in COLUMNS if column.default and column.name != "xattrs")


def _with_bucket(url: str, bucket: str) -> str:
    hosts, mark, query = url.partition("?")
    scheme, colon, rest = hosts.partition("://")
    if rest.partition("/")[2]:
        raise LocalProtocolError("option bucket: expected it or a bucket in the url, found both")
    return f"{scheme}{colon}{rest.rstrip('/')}/{quote(bucket, safe='')}{mark}{query}"


def _login(told: dict[str, Any]) -> Login:
    """Name and password, from the url or from options of their own. The url stays without them."""
    told["url"], username, password = split(told["url"])
    if username and {"username", "password", "passwordFile"} & told.keys():
        raise LocalProtocolError("option url: expected no user in it beside username, password or passwordFile")
    if {"password", "passwordFile"} <= told.keys():
        raise LocalProtocolError("option passwordFile: expected it or password, found both")
    login = Login(
        username or told.get("username", ""), password or told.get("password", ""), told.get("passwordFile", "")
    )
    if not login.name and (login.password or login.password_file):
        raise LocalProtocolError(f"option username: expected it beside a password, or {USERNAME}, found none")
    return login


def _dialect(told: dict[str, Any]) -> str:
    """What is spoken, from an option of its own or of the url, which then has it. What it lacks is refused."""
    if "dialect" in told:
        told["url"] += f"{'&' if '?' in told['url'] else '?'}dialect={told['dialect']}"
    dialect = str(urls.parse(told["url"]).options.get("dialect", DCP.name))
    check_stream(dialect, told)
    words = told.get("startingOffsets", "beginning"), told.get("endingOffsets", "now")
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


# For each option the field it is kept in, if any, and what reads it.
OPTIONS: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "url": ("url", values.text),
    "connectionString": ("", values.text),
    "bucket": ("", values.text),
    "username": ("", values.text),
    "password": ("", values.text),
    "passwordFile": ("", values.text),
    "dialect": ("dialect", values.one_of(*DIALECTS)),
    "scope": ("scope", values.text),
    "collections": ("collections", values.names),
    "vbuckets": ("vbuckets", values.numbers),
    "columns": ("columns", values.columns),
    "includeXattrs": ("", values.flag),
    "events": ("events", values.events),
    "keys": ("keys", values.keys),
    "keyFormat": ("key_format", values.one_of("binary", "string")),
    "valueFormat": ("value_format", values.one_of("binary", "string")),
    "startingOffsets": ("start", values.position("earliest", "beginning", "latest", "now")),
    "startingTimestamp": ("", values.moment),
    "endingOffsets": ("end", values.position("latest", "now")),
    "minPartitions": ("min_partitions", values.count),
    "onRollback": ("on_rollback", values.one_of("replay", "fail")),
    "failOnDataLoss": ("fail_on_data_loss", values.flag),
    "maxOffsetsPerTrigger": ("max_offsets", values.count),
    "maxBytesPerTrigger": ("max_bytes", values.size),
    "minOffsetsPerTrigger": ("min_offsets", values.count),
    "maxTriggerDelay": ("max_delay", values.delay),
}
# Other names of the same: those of the client, and of Couchbase's own connector.
_ALIASES = {
    "start": "startingOffsets",
    "end": "endingOffsets",
    "numPartitions": "minPartitions",
    "collection": "collections",
}
_NAMES = {_bare(name): option for name, option in ({name: name for name in OPTIONS} | _ALIASES).items()}
