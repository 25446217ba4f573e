"""The table of options: one row for each, with type, parser, default, unit, dialects and the calls that accept it.

Signatures and docstrings of `connect`, `Client.stream`, `Decoder` and `dcp.spark.read`, options of connection strings
and of Spark, and the tables of docs/ are checked against these rows, or drawn from them. A parser takes text or a
Python value, and raises ValueError with the expected form as its text.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta, timezone
from enum import Flag, auto
from functools import partial
from typing import Any

from dcp.checkpoint import Checkpoint
from dcp.client import tokens
from dcp.client.time_search import EPOCH
from dcp.columns.decoder import MAX_BATCH_BYTES, MAX_BATCH_ROWS
from dcp.columns.document_schema import DocumentType, ddl, document_type
from dcp.columns.path_columns import PATH_COLUMNS
from dcp.columns.plan import events_of
from dcp.columns.schema import COLUMNS, choose
from dcp.columns.selection import key_patterns, parse_condition
from dcp.errors import CheckpointError, LocalProtocolError, UsageError
from dcp.value_grammar import duration, flag, number_range, size, whole_number
from dcp.wire import DIALECTS
from dcp.wire.dcp import DCP
from dcp.wire.mechanisms import MECHANISMS, OAUTHBEARER
from dcp.wire.memcached import MAX_FRAME

Parser = Callable[[Any], Any]

_DEFAULT_COLUMNS = ", ".join(column.name for column in COLUMNS if column.default)

_MOST_VBUCKETS = 1 << 16
_LONGEST_SHOWN = 100
_TIME = "a time with a UTC offset such as 2026-11-01T00:00Z"
_AGO = "a time before now such as -1h, with its minus sign"
_WHERE = (
    "Condition on the document, such as `type = 'order' and total > 100`: only mutations for which it is true. "
    "Deletions are delivered, and values that are no JSON."
)
# A row that waits for more than an hour is a mistake in the unit.
_LONGEST_LINGER = 3600


class Use(Flag):
    """Calls that accept an option."""

    URL = auto()
    CONNECT = auto()
    STREAM = auto()
    DECODER = auto()
    # Options of format("dcp"), once and as a stream.
    SPARK = auto()
    # Keywords of dcp.spark.read and dcp.spark.plan.
    SPARK_READ = auto()
    # Keywords of dcp.spark.append and dcp.spark.mirror.
    SPARK_APPEND = auto()
    SPARK_MIRROR = auto()
    COMMAND_LINE = auto()


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    name: as a keyword of Python.
    type: annotation in signatures.
    default: value where no caller sets it, in `unit`. `default_text` is the form to show where it is another one.
    help: one line for docstrings, docs and the command line.
    dialects: those that support it; others refuse it.
    spark: name as an option of format("dcp"). flag: name on the command line.
    secret: never shown in a message.
    """

    name: str
    type: str
    parse: Parser
    default: Any
    help: str
    use: Use
    unit: str = ""
    default_text: str = ""
    dialects: tuple[str, ...] = tuple(DIALECTS)
    spark: str = ""
    flag: str = ""
    secret: bool = False

    @property
    def shown_default(self) -> str:
        """Default as users write it; empty if there is none."""
        if self.default_text:
            return self.default_text
        if self.default is None or self.default == ():
            return ""
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)

    @property
    def reference(self) -> str:
        """Help with unit and default, for docstrings and docs."""
        if not self.shown_default:
            return self.help
        # Texts such as 20m have their unit already.
        unit = f" {self.unit}" if self.unit and not self.default_text else ""
        return f"{self.help} Default: {self.shown_default}{unit}."

    def read(self, value: Any, label: str = "") -> Any:
        """Return the value of its type. Raises UsageError under the name `label`, or the option's own."""
        label = label or self.name
        try:
            return self.parse(value)
        except CheckpointError as error:
            raise CheckpointError(f"{label}: {error}: expected the text of Checkpoint.to_json()") from None
        except ValueError as error:
            found = f"a {type(value).__name__}" if self.secret else _shown(value)
            raise UsageError(f"{label}: expected {error}, found {found}") from None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


# Parsers besides those of `value_grammar`.


def parse_text(value: Any) -> str:
    """Return text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError("text")
    return value


def parse_token(value: Any) -> str | Callable[[], str]:
    """Return a bearer token, or the function that returns one."""
    if not callable(value) and not tokens.is_token(value):
        raise ValueError(tokens.EXPECTED)
    found: str | Callable[[], str] = value
    return found


def parse_document(value: Any) -> DocumentType:
    """Return the type of documents that a schema describes."""
    return document_type(value)


def parse_document_text(value: Any) -> str:
    """Return a schema of documents as DDL."""
    return ddl(document_type(value))


def parse_keys(value: Any) -> tuple[str | bytes, ...]:
    """Return keys and patterns of keys."""
    found = (value,) if isinstance(value, (str, bytes)) else tuple(value) if isinstance(value, Iterable) else ()
    if not all(isinstance(key, (str, bytes)) for key in found):
        raise ValueError("keys such as user::7 or order::*")
    key_patterns(found)
    return found


def parse_where(value: Any) -> str:
    """Return a condition on documents."""
    text = parse_text(value)
    parse_condition(text)
    return text


def parse_path(value: Any) -> str:
    """Return the text of a path."""
    return parse_text(os.fspath(value) if isinstance(value, os.PathLike) else value)


def optional(parse: Parser) -> Parser:
    """Return a parser that takes None for None as well."""
    return lambda value: None if value is None else parse(value)


def one_of(*accepted: str) -> Parser:
    """Return a parser for one of several words, in any case."""

    def parse(value: Any) -> str:
        word = next((word for word in accepted if isinstance(value, str) and word.lower() == value.lower()), None)
        if word is None:
            raise ValueError(" or ".join(accepted))
        return word

    return parse


def parse_positive_duration(value: Any) -> float:
    """Return a duration above 0 in seconds."""
    seconds = duration(value)
    if not seconds:
        raise ValueError("a duration above 0, such as 500ms, 2.5s, 15m or 1h")
    return seconds


def bounded_duration(most: float) -> Parser:
    """Return a parser for a duration of at most `most` seconds."""

    def parse(value: Any) -> float:
        if (seconds := duration(value)) > most:
            raise ValueError(f"a duration of at most {most} s, such as 20ms")
        return seconds

    return parse


def bounded_size(least: int, most: int) -> Parser:
    """Return a parser for a size from `least` to `most` bytes."""

    def parse(value: Any) -> int:
        if not least <= (count := size(value)) <= most:
            raise ValueError(f"a size from {least} to {most} bytes, such as 64k or 20m")
        return count

    return parse


def parse_names(value: Any) -> tuple[str, ...]:
    """Return names from text with commas, or from several."""
    parts = value.split(",") if isinstance(value, str) else value
    if isinstance(parts, bytes) or not isinstance(parts, Iterable):
        raise ValueError("names such as 'one,two' or ['one', 'two']")
    found = tuple(part.strip() if isinstance(part, str) else "" for part in parts)
    if not found or not all(found) or len(set(found)) != len(found):
        raise ValueError("one or more names, each once, such as 'one,two' or ['one', 'two']")
    return found


def parse_vbuckets(value: Any) -> tuple[int, ...]:
    """Return numbers of vbuckets, sorted and each once."""
    return number_range(value, _MOST_VBUCKETS - 1)


def parse_key_patterns(value: Any) -> tuple[str, ...]:
    """Return keys, in which a star stands for any bytes."""
    found = parse_names(value)
    key_patterns(found)
    return found


def parse_spark_columns(value: Any) -> tuple[str, ...]:
    """Return names of columns, the names of scope and collection among them."""
    found = parse_names(value)
    try:
        # The column of documents needs the option for their schema, which is checked with the others.
        choose(DCP, [name for name in found if name not in (*PATH_COLUMNS, "document")] or None)
    except LocalProtocolError as error:
        raise UsageError(f"{error}; Spark also has {' and '.join(PATH_COLUMNS)}") from None
    return found


def parse_events(value: Any) -> tuple[str, ...]:
    """Return names of events."""
    found, possible = parse_names(value), events_of(DCP, None)
    if not {*found} <= {*possible}:
        raise ValueError(f"some of {', '.join(possible)}")
    return found


_WORDS: Mapping[str, str] = {"beginning": "beginning", "earliest": "beginning", "now": "now", "latest": "now"}
_START_WORDS = ("beginning", "earliest", "now", "latest")
_END_WORDS = ("now", "latest")


def _position(words: tuple[str, ...], value: Any) -> str | datetime | Checkpoint:
    # A checkpoint without positions is false, as every empty collection.
    known = _position_or_none(words, value)
    position = known if known is not None else _time(value) or _time_ago(value)
    if position is None:
        raise ValueError(f"{', '.join(words)}, a Checkpoint or its JSON, {_TIME}, or {_AGO}")
    return position


def _position_or_none(words: tuple[str, ...], value: Any) -> str | Checkpoint | None:
    if isinstance(value, Checkpoint):
        return value
    if isinstance(value, str) and value.lower() in words:
        return _WORDS[value.lower()]
    if isinstance(value, str) and value.lstrip().startswith("{"):
        return Checkpoint.from_json(value)
    return None


def _time(value: Any) -> datetime | None:
    if isinstance(value, str):
        try:
            # Python 3.10 reads no Z.
            value = datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            return None
    return value if isinstance(value, datetime) and value.tzinfo is not None and value >= EPOCH else None


def _time_ago(value: Any) -> datetime | None:
    """Return the time that text such as `-1h` stands for, from now on the clock of this machine."""
    if not isinstance(value, str) or not value.startswith("-"):
        return None
    try:
        return max(EPOCH, datetime.now(timezone.utc) - timedelta(seconds=duration(value[1:])))
    except ValueError:
        return None


def parse_timestamp(value: Any) -> datetime:
    """Return a time from ISO text, a datetime, or milliseconds since 1970."""
    moment = _time(value)
    if moment is None:
        try:
            moment = EPOCH + timedelta(milliseconds=whole_number(value))
        except (ValueError, OverflowError):
            raise ValueError(f"{_TIME}, or milliseconds since 1970") from None
    return moment


def parse_read_end(value: Any) -> str | datetime | Checkpoint:
    """Return the end of a Spark read."""
    return _position(_END_WORDS, value)


def parse_start(value: Any) -> str | datetime | Checkpoint:
    """Return the start of a stream; None, such as from a CheckpointFile that is not there yet, is the beginning."""
    return "beginning" if value is None else _position(_START_WORDS, value)


def parse_end(value: Any) -> str | datetime | Checkpoint | None:
    """Return the end of a stream; None for none."""
    try:
        return None if value is None else _position(_END_WORDS, value)
    except ValueError as error:
        raise ValueError(f"None, {error}") from None


_CONNECTION = Use.URL | Use.CONNECT
_READ = Use.SPARK | Use.SPARK_READ
_TABLE = Use.SPARK_APPEND | Use.SPARK_MIRROR
_ONLY_DCP = (DCP.name,)
_POSITION = "str | datetime | Checkpoint"
_NAMES = "str | Iterable[str] | None"
_DURATION = "float | str | timedelta"

# A name and a use identify a row: `start`, `columns`, `keys` and others differ between the uses.
OPTIONS: tuple[Option, ...] = (
    # The connection.
    Option(
        "bootstrap_timeout",
        _DURATION,
        parse_positive_duration,
        10.0,
        "Time limit of a node for an answer to a command, for the whole handshake of a connection, and over TAP for "
        "the announcement of a vbucket.",
        _CONNECTION,
        "s",
    ),
    Option(
        "ca_cert_path",
        "str | PathLike[str]",
        parse_path,
        None,
        "PEM file of authorities to trust in addition to the system's. Requires couchbases://.",
        _CONNECTION,
    ),
    Option(
        "cert_path",
        "str | PathLike[str]",
        parse_path,
        None,
        "PEM file of the client's certificate. Requires couchbases://.",
        _CONNECTION,
    ),
    Option(
        "compression",
        'Literal["on", "off", "force"]',
        one_of("on", "off", "force"),
        "on",
        "`on` lets nodes send values compressed with Snappy, `off` does not; `force` is the same as `on`.",
        _CONNECTION,
        dialects=_ONLY_DCP,
    ),
    Option(
        "config_poll_interval",
        _DURATION,
        parse_positive_duration,
        2.5,
        "Interval at which the cluster map is fetched from nodes that do not push a new one.",
        _CONNECTION,
        "s",
    ),
    Option(
        "dcp_buffer_size",
        "int | str",
        bounded_size(0, (1 << 32) - 1),
        20 << 20,
        "Flow-control window of a connection: bytes that a node may send before they are processed. 0: no limit.",
        _CONNECTION,
        "bytes",
        "20m",
    ),
    Option(
        "dcp_priority",
        'Literal["low", "medium", "high"]',
        one_of("low", "medium", "high"),
        None,
        "Accepted for compatibility with other clients; ignored.",
        _CONNECTION,
        dialects=_ONLY_DCP,
    ),
    Option(
        "dialect",
        'Literal["dcp", "tap", "upr1", "upr2"]',
        one_of(*DIALECTS),
        DCP.name,
        "Protocol: `dcp`, `tap` for servers up to 4.6 over TAP, `upr1` or `upr2` for the drafts of UPR.",
        _CONNECTION | _READ,
        spark="dialect",
    ),
    Option(
        "key_path",
        "str | PathLike[str]",
        parse_path,
        None,
        "PEM file of the key of `cert_path`, if that file does not contain it.",
        _CONNECTION,
    ),
    Option(
        "kv_connect_timeout",
        _DURATION,
        parse_positive_duration,
        10.0,
        "Time limit for a TCP connection, and again for TLS on it.",
        _CONNECTION,
        "s",
    ),
    Option(
        "network",
        'Literal["auto", "default", "external"]',
        one_of("auto", "default", "external"),
        "auto",
        "Addresses of nodes to use: `default`, `external`, or `auto` for those among which the URL's host is found; "
        "if it is in neither, the external ones if there are any, as Couchbase's C++ client does (CXXCBC-707).",
        _CONNECTION,
    ),
    Option(
        "noop_interval",
        _DURATION,
        parse_positive_duration,
        120.0,
        "Interval at which a node sends noops. After two intervals without a byte the client reconnects.",
        _CONNECTION,
        "s",
        dialects=_ONLY_DCP,
    ),
    Option(
        "refusal_timeout",
        _DURATION,
        parse_positive_duration,
        600.0,
        "Time for which a stream repeats what a node refuses for a reason that may pass, such as that it starts or is "
        "busy; after it the stream ends with the refusal. Also the longest time without progress in the search for a "
        "time.",
        _CONNECTION,
        "s",
    ),
    Option(
        "sasl_mech_force",
        "str",
        one_of(*sorted(MECHANISMS)),
        None,
        f"The only SASL mechanism to use, of {', '.join(sorted(MECHANISMS))}. By default the strongest on offer; "
        "PLAIN, which sends the password, over TLS only.",
        _CONNECTION,
    ),
    Option(
        "stats_interval",
        _DURATION,
        duration,
        10.0,
        "Interval at which nodes are asked for high seqnos, for lag, rates and stalled vbuckets. 0: never.",
        _CONNECTION,
        "s",
    ),
    Option(
        "tls_verify",
        "bool",
        flag,
        True,
        "Verify the nodes' certificates. Turn it off in tests only.",
        _CONNECTION,
    ),
    Option(
        "token",
        "str | Callable[[], str] | None",
        optional(parse_token),
        None,
        "JSON web token to log in with (server 8.1 or newer), instead of a user in the URL, or a function that returns "
        "the present one. It is called at every login; connections are replaced before their token expires. "
        "Requires couchbases://.",
        Use.CONNECT,
        dialects=_ONLY_DCP,
        secret=True,
    ),
    # The selection of changes.
    Option(
        "start",
        f"{_POSITION} | None",
        parse_start,
        "beginning",
        'Where to begin: "beginning" (also None), "now", a Checkpoint to resume from, or a time: '
        "only changes made at it or later by their CAS.",
        Use.STREAM | Use.COMMAND_LINE,
        flag="--from",
    ),
    Option(
        "end",
        f"{_POSITION} | None",
        parse_end,
        None,
        'Where to end: None for never, "now" for the high seqnos at the start, a Checkpoint: only '
        "changes up to its positions, or a past time: only changes made before it.",
        Use.STREAM | Use.COMMAND_LINE,
        flag="--to",
    ),
    Option(
        "scope",
        "str | None",
        optional(parse_text),
        None,
        "Name of a scope: only its collections. With `collections`, the scope of names without one.",
        Use.STREAM | _READ | _TABLE | Use.COMMAND_LINE,
        dialects=_ONLY_DCP,
        spark="scope",
        flag="--scope",
    ),
    Option(
        "collections",
        _NAMES,
        optional(parse_names),
        None,
        "Names of collections, as `scope.name` or in `scope`: only these.",
        Use.STREAM | _READ | _TABLE | Use.COMMAND_LINE,
        dialects=_ONLY_DCP,
        spark="collections",
        flag="--collection",
    ),
    Option(
        "vbuckets",
        "str | Iterable[int] | None",
        optional(parse_vbuckets),
        None,
        'Numbers of vbuckets, as "0-511,600" or several: only these.',
        Use.STREAM | _READ | _TABLE,
        spark="vbuckets",
    ),
    # Batches of a stream.
    Option(
        "columns",
        _NAMES,
        optional(parse_names),
        None,
        "Names of the columns of a batch, in order; `scope` and `collection` are the names of a row's collection. "
        "Columns that are not named are not decoded.",
        Use.STREAM,
        default_text=_DEFAULT_COLUMNS,
    ),
    Option(
        "batch_rows",
        "int",
        partial(whole_number, least=1, most=MAX_BATCH_ROWS),
        65_536,
        "Number of rows at which a batch is delivered.",
        Use.STREAM,
    ),
    Option(
        "batch_bytes",
        "int | str",
        bounded_size(1, MAX_BATCH_BYTES),
        4 << 20,
        "Received bytes at which a batch is delivered.",
        Use.STREAM,
        "bytes",
        "4m",
    ),
    Option(
        "linger",
        _DURATION,
        bounded_duration(_LONGEST_LINGER),
        0.02,
        "Age of its first row at which a batch is delivered, however small.",
        Use.STREAM,
        "s",
    ),
    # Promises of a stream.
    Option(
        "on_rollback",
        'Literal["replay", "fail"]',
        one_of("replay", "fail"),
        "replay",
        "`replay` delivers a row with the event `rollback`, then what the cluster has above its seqno. What the lost "
        "changes had replaced is not sent: see docs/semantics.md. `fail` raises RollbackError.",
        Use.STREAM | _READ,
        spark="onRollback",
    ),
    Option(
        "ignore_purged",
        "bool",
        flag,
        False,
        "Resume even if deletions after the checkpoint were purged, with a row whose event is `purged`. "
        "Without it, such a vbucket restarts from seqno 0.",
        Use.STREAM,
        dialects=_ONLY_DCP,
    ),
    Option(
        "persisted_only",
        "bool",
        flag,
        False,
        "Deliver only changes that every copy of their vbucket has on disk, so that no failover takes them back.",
        Use.STREAM | _READ,
        dialects=_ONLY_DCP,
        spark="persistedOnly",
    ),
    Option(
        "persisted_within",
        _DURATION,
        duration,
        60.0,
        "Time limit of `persisted_only`, and of the wait for the disk before a TAP stream with an end: "
        "after it a TransportError names the nodes that lag.",
        Use.STREAM,
        "s",
    ),
    Option(
        "out_of_order",
        "bool",
        flag,
        False,
        "Let nodes send the first snapshot of a collection in any order, which may be faster. "
        "Until it is complete, positions stay at the beginning.",
        Use.STREAM | _READ,
        dialects=_ONLY_DCP,
        spark="outOfOrder",
    ),
    Option(
        "history",
        "bool",
        flag,
        False,
        "Deliver every version that the bucket keeps of a document, not only the last one of a snapshot.",
        Use.STREAM | _READ | Use.SPARK_APPEND,
        dialects=_ONLY_DCP,
        spark="history",
    ),
    # The form of rows.
    Option(
        "views",
        "bool",
        flag,
        False,
        "Make keys, values and xattrs Arrow views into the received bytes, without a copy.",
        Use.STREAM | Use.DECODER,
    ),
    Option(
        "max_frame",
        "int",
        bounded_size(24, 1 << 30),
        MAX_FRAME,
        "Largest frame that is accepted, the cluster map among them.",
        Use.STREAM | Use.DECODER,
        "bytes",
        "30m",
    ),
    Option(
        "max_value",
        "int",
        bounded_size(24, 1 << 30),
        MAX_FRAME,
        "Largest size to which a compressed value may inflate; `max_frame` limits the others.",
        Use.STREAM | Use.DECODER,
        "bytes",
        "30m",
    ),
    Option(
        "inflate",
        "bool",
        flag,
        True,
        "Decompress values that are compressed with Snappy.",
        Use.STREAM | Use.DECODER,
    ),
    Option(
        "xattrs",
        'Literal["split", "map", "inline"]',
        one_of("split", "map", "inline"),
        "split",
        "Extended attributes: `split` off the value as bytes, as a `map`, or left `inline` in the value.",
        Use.STREAM | Use.DECODER,
    ),
    Option(
        "keys",
        'Literal["binary", "utf8"]',
        one_of("binary", "utf8"),
        "binary",
        "Type of the column `key`. `utf8` checks the bytes.",
        Use.STREAM | Use.DECODER,
    ),
    Option(
        "values",
        'Literal["binary", "utf8"]',
        one_of("binary", "utf8"),
        "binary",
        "Type of the column `value`. `utf8` checks the bytes.",
        Use.STREAM | Use.DECODER,
    ),
    Option(
        "on_bad_value",
        'Literal["fail", "quarantine"]',
        one_of("fail", "quarantine"),
        "fail",
        "Values that cannot be read: `fail` raises an error, `quarantine` delivers them as received, or null as text, "
        "with the reason in the column `error`. The column `bad_value` has their bytes.",
        Use.STREAM | Use.DECODER,
    ),
    Option(
        "types",
        'Literal["wire", "plain"]',
        one_of("wire", "plain"),
        "wire",
        "`wire` has unsigned numbers as wide as sent and events as a dictionary; "
        "`plain` has the signed numbers and text that Spark takes.",
        Use.STREAM | Use.DECODER,
    ),
    Option(
        "document",
        "DocumentLike | None",
        optional(parse_document),
        None,
        "Schema of the documents, for the column `document`: DDL such as `id bigint, customer struct<city string>`, "
        "an Arrow schema, or names with paths and types. See docs/documents.md.",
        Use.STREAM | Use.DECODER,
    ),
    Option(
        "on_bad_document",
        'Literal["quarantine", "fail"]',
        one_of("quarantine", "fail"),
        "quarantine",
        "Documents that do not fit the schema: `quarantine` delivers null for what does not, with the reason in the "
        "column `error`. `fail` raises DocumentError.",
        Use.STREAM | Use.DECODER,
    ),
    Option(
        "only_events",
        "str | Iterable[str] | None",
        optional(parse_names),
        None,
        "Names of events, such as `mutation`: only these, and rows that report a rollback or a purge.",
        Use.STREAM | Use.DECODER,
        default_text="all",
    ),
    Option(
        "only_keys",
        "str | bytes | Iterable[str | bytes] | None",
        optional(parse_keys),
        None,
        "Keys, such as `order::*`: only these. A star stands for any bytes, unless a backslash is before it.",
        Use.STREAM | Use.DECODER,
        default_text="all",
    ),
    Option(
        "where",
        "str | None",
        optional(parse_where),
        None,
        _WHERE,
        Use.STREAM | Use.DECODER,
    ),
    # A decoder by itself.
    Option(
        "dialect",
        "str | Dialect",
        parse_text,
        DCP.name,
        "Protocol of the bytes: `dcp`, `tap`, `upr1` or `upr2`.",
        Use.DECODER,
    ),
    Option(
        "columns",
        "Iterable[str] | None",
        optional(parse_names),
        None,
        "Names of the columns of a batch, in order. Columns that are not named are not decoded.",
        Use.DECODER,
        default_text=_DEFAULT_COLUMNS,
    ),
    Option(
        "collections",
        "bool",
        flag,
        False,
        "Keys carry their collection id, as on a connection whose HELLO agreed on Collections.",
        Use.DECODER,
    ),
    Option(
        "events",
        "Collection[str] | None",
        optional(parse_names),
        None,
        "Names of the messages that become rows.",
        Use.DECODER,
        default_text="all but system events",
    ),
    Option(
        "also",
        "Collection[str]",
        parse_names,
        (),
        "Names that the column `event` has in addition, for rows from elsewhere.",
        Use.DECODER,
    ),
    # Spark.
    Option(
        "url",
        "str",
        parse_text,
        None,
        "Connection string: couchbase:// or couchbases://, hosts, bucket, and options of the connection.",
        Use.SPARK,
        spark="url",
        secret=True,
    ),
    Option(
        "connection_string",
        "str",
        parse_text,
        None,
        "The same as `url`, without a user: Spark redacts the value of `url`, but shows this one.",
        Use.SPARK,
        spark="connectionString",
        secret=True,
    ),
    Option("bucket", "str", parse_text, None, "Name of the bucket, if the URL has none.", Use.SPARK, spark="bucket"),
    Option(
        "username",
        "str | None",
        optional(parse_text),
        None,
        "User to connect as, if the URL names none.",
        _READ | _TABLE,
        default_text="`DCP_USERNAME`",
        spark="username",
    ),
    Option(
        "password",
        "str | None",
        optional(parse_text),
        None,
        "Password of `username`. It travels to the executors with each task.",
        _READ | _TABLE,
        default_text="`DCP_PASSWORD`",
        spark="password",
        secret=True,
    ),
    Option(
        "password_file",
        "str | None",
        optional(parse_text),
        None,
        "File with the password, on the driver and on every executor.",
        _READ | _TABLE,
        spark="passwordFile",
    ),
    Option(
        "credential_provider",
        "str | None",
        optional(parse_text),
        None,
        "Function that returns user and password, as `module:function`. It is called on the driver and on executors.",
        _READ | _TABLE,
        spark="credentialProvider",
    ),
    Option(
        "columns",
        _NAMES,
        optional(parse_spark_columns),
        None,
        "Names of the columns, in order; `scope` and `collection` are the names of a row's collection. "
        "Columns that are not named are not decoded.",
        _READ | Use.SPARK_APPEND,
        default_text=_DEFAULT_COLUMNS,
        spark="columns",
    ),
    Option(
        "columns",
        _NAMES,
        optional(parse_spark_columns),
        None,
        "Names of the columns that the table has besides vbucket, seqno, collection_id and key.",
        Use.SPARK_MIRROR,
        default_text="cas, flags, expiry, datatype, and value or document",
    ),
    Option(
        "include_xattrs",
        "bool",
        flag,
        True,
        "Set it to false for the default columns without `xattrs`.",
        Use.SPARK,
        spark="includeXattrs",
    ),
    Option(
        "events",
        _NAMES,
        optional(parse_events),
        None,
        "Names of events, such as `mutation,deletion`: only these, and rows that report a rollback or a purge.",
        _READ | Use.SPARK_APPEND,
        default_text="all",
        spark="events",
    ),
    Option(
        "keys",
        _NAMES,
        optional(parse_key_patterns),
        None,
        "Keys, such as `order::*,user::7`: only these. A star stands for any bytes, unless a backslash is before it.",
        _READ | _TABLE,
        default_text="all",
        spark="keys",
    ),
    Option(
        "key_format",
        'Literal["binary", "string"]',
        one_of("binary", "string"),
        "binary",
        "Type of the column `key`; `string` requires UTF-8.",
        _READ | _TABLE,
        spark="keyFormat",
    ),
    Option(
        "value_format",
        'Literal["binary", "string"]',
        one_of("binary", "string"),
        "binary",
        "Type of the column `value`; see `onBadValue` for values that are not UTF-8.",
        _READ | _TABLE,
        spark="valueFormat",
    ),
    Option(
        "on_bad_value",
        'Literal["quarantine", "fail"]',
        one_of("quarantine", "fail"),
        "quarantine",
        "Values that are no text, or cannot be read: `quarantine` delivers null, or the bytes as received, with the "
        "reason in the column `error`, which `valueFormat=string` adds. `fail` ends the query.",
        _READ | _TABLE,
        spark="onBadValue",
    ),
    Option(
        "document_schema",
        "DocumentLike | None",
        optional(parse_document_text),
        None,
        "Schema of the documents, for the columns `document` and `error`: DDL such as "
        "`id bigint, customer struct<city string>`. See docs/documents.md.",
        _READ | _TABLE,
        spark="documentSchema",
    ),
    Option(
        "on_bad_document",
        'Literal["quarantine", "fail"]',
        one_of("quarantine", "fail"),
        "quarantine",
        "Documents that do not fit the schema: `quarantine` delivers null for what does not, with the reason in the "
        "column `error`. `fail` ends the query.",
        _READ | _TABLE,
        spark="onBadDocument",
    ),
    Option(
        "where",
        "str | None",
        optional(parse_where),
        None,
        _WHERE,
        _READ | Use.SPARK_APPEND,
        spark="where",
    ),
    Option(
        "newest_only",
        "bool",
        flag,
        False,
        "Deliver of each key only the newest version that the read or batch encounters. It excludes `events`, `where`, "
        "`history` and `outOfOrder`, with which an older version could be taken for it.",
        _READ,
        dialects=_ONLY_DCP,
        spark="newestOnly",
    ),
    Option(
        "start",
        f"{_POSITION} | None",
        optional(parse_start),
        None,
        "Where to begin: `earliest`, `latest`, a Checkpoint or its JSON, or a time. "
        "A stream that resumes from its own checkpoint ignores it.",
        _READ | Use.SPARK_APPEND,
        default_text="`earliest` for a read or table, `latest` for a stream",
        spark="startingOffsets",
    ),
    Option(
        "starting_timestamp",
        "str | int",
        parse_timestamp,
        None,
        "Only changes made at this time or later: a time with a UTC offset, or milliseconds since 1970.",
        Use.SPARK,
        spark="startingTimestamp",
    ),
    Option(
        "end",
        f"{_POSITION} | None",
        optional(parse_read_end),
        None,
        "Where a read ends: `latest`, a Checkpoint or its JSON, or a past time: only changes made before it.",
        _READ,
        default_text="`latest`",
        spark="endingOffsets",
    ),
    Option(
        "ending_timestamp",
        "str | int",
        parse_timestamp,
        None,
        "Only changes of a read made before this time: a past time with a UTC offset, or milliseconds since 1970.",
        Use.SPARK,
        spark="endingTimestamp",
    ),
    Option(
        "min_partitions",
        "int | None",
        optional(partial(whole_number, least=1)),
        None,
        "Least number of tasks, up to one for every two vbuckets.",
        _READ | _TABLE,
        default_text='the session\'s cores; with `format("dcp")` one for each 250,000 seqnos',
        spark="minPartitions",
    ),
    Option(
        "node_timeout",
        "float | str | timedelta",
        duration,
        300.0,
        "How long nodes may be away before a read or a stream fails. Automatic failover takes 2 minutes by default.",
        _READ | _TABLE,
        "s",
        "5m",
        spark="nodeTimeout",
    ),
    Option(
        "fail_on_data_loss",
        "bool",
        flag,
        True,
        "Set it to false to continue where changes are lost: purged deletions, dropped collections.",
        _READ | _TABLE,
        spark="failOnDataLoss",
    ),
    Option(
        "max_offsets",
        "int | None",
        partial(whole_number, least=1),
        None,
        "Limit of seqnos in a batch of a stream, about.",
        Use.SPARK | _TABLE,
        default_text="no limit",
        spark="maxOffsetsPerTrigger",
    ),
    Option(
        "max_bytes",
        "int | None",
        bounded_size(1, (1 << 63) - 1),
        None,
        "Limit of bytes in a batch of a stream, about, such as `512m`.",
        Use.SPARK | _TABLE,
        default_text="no limit",
        spark="maxBytesPerTrigger",
    ),
    Option(
        "min_offsets",
        "int | None",
        partial(whole_number, least=1),
        None,
        "Number of seqnos that a batch of a stream waits for (Spark 4.2 and newer).",
        Use.SPARK | _TABLE,
        default_text="1",
        spark="minOffsetsPerTrigger",
    ),
    Option(
        "max_delay",
        "float",
        duration,
        900.0,
        "Time limit of `minOffsetsPerTrigger`, since the batch before.",
        Use.SPARK | _TABLE,
        "s",
        "15m",
        spark="maxTriggerDelay",
    ),
)


def options_of(use: Use) -> dict[str, Option]:
    """Return the options that a call accepts, by their names in Python."""
    return {option.name: option for option in OPTIONS if use in option.use}


def spark_options() -> dict[str, Option]:
    """Return the options of format("dcp"), by their names there."""
    return {option.spark: option for option in OPTIONS if Use.SPARK in option.use}


def check_supported(dialect: str, given: Iterable[str], use: Use) -> None:
    """Raise UsageError for an option that the dialect lacks: ignoring it would change what is delivered.

    given: names of the options that the caller set.
    """
    table = options_of(use)
    for name in given:
        if name in table and dialect not in table[name].dialects:
            raise UsageError(f"{name}: {DIALECTS[dialect].title} does not support it; leave it out")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Values of the connection's options, each of its type. The table says what they mean."""

    bootstrap_timeout: float
    ca_cert_path: str | None
    cert_path: str | None
    compression: str
    config_poll_interval: float
    dcp_buffer_size: int
    dcp_priority: str | None
    dialect: str
    key_path: str | None
    kv_connect_timeout: float
    network: Any
    noop_interval: float
    refusal_timeout: float
    sasl_mech_force: str | None
    stats_interval: float
    tls_verify: bool
    token: str | Callable[[], str] | None = field(repr=False)

    @classmethod
    def of(
        cls, url: Mapping[str, Any], keywords: Mapping[str, Any], *, tls: bool, username: str = ""
    ) -> ConnectionOptions:
        """Return the options of a URL, overridden by keywords that are not None.

        url: values that are parsed already. tls: the scheme of the URL is couchbases://. username: user of the URL.
        """
        table = options_of(Use.CONNECT)
        given = {name: table[name].read(value) for name, value in keywords.items() if value is not None}
        given = {**url, **given}
        options = cls(**{each.name: given.get(each.name, table[each.name].default) for each in fields(cls)})
        check_supported(options.dialect, given, Use.CONNECT)
        if options.token is not None and username:
            raise UsageError("token: expected no user in the URL beside it, found one: write couchbases://host/bucket")
        if options.token is not None and "sasl_mech_force" in given:
            raise UsageError(f"sasl_mech_force: expected it without token, whose mechanism is {OAUTHBEARER}")
        for name in ("ca_cert_path", "cert_path", "key_path", "token"):
            if not tls and name in given:
                raise UsageError(f"{name}: expected couchbases://, which is TLS, found couchbase://, which is not")
        return options


def read_all(use: Use, given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield name and parsed value of the options of a call."""
    table = options_of(use)
    for name, value in given.items():
        yield name, table[name].read(value)
