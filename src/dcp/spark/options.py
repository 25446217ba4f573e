"""Options of a Spark read or stream, parsed by the client's table of options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Literal
from urllib.parse import quote

from dcp.checkpoint import Checkpoint
from dcp.client.connection_string import parse
from dcp.client.follow.settings import TAP
from dcp.client.login import PASSWORD, USERNAME, Login, split_url
from dcp.client.options import Option, Use, check_supported, options_of, spark_options
from dcp.columns.schema import COLUMNS
from dcp.errors import UsageError
from dcp.spark.offsets import Selection
from dcp.value_grammar import suggestion
from dcp.wire.dcp import DCP


@dataclass(frozen=True, slots=True)
class Options:
    """Parsed options; None where an option is not set. The client's table says what they mean.

    url: without credentials, and with the dialect.
    """

    url: str
    credentials: Login = field(default_factory=Login)
    scope: str | None = None
    collections: tuple[str, ...] | None = None
    vbuckets: tuple[int, ...] | None = None
    columns: tuple[str, ...] | None = None
    key_format: str = "binary"
    value_format: str = "binary"
    on_bad_value: str = "quarantine"
    document_schema: str | None = None
    on_bad_document: str = "quarantine"
    where: str | None = None
    events: tuple[str, ...] | None = None
    keys: tuple[str, ...] | None = None
    start: str | datetime | Checkpoint | None = field(default=None, repr=False)
    end: str | datetime | Checkpoint | None = field(default=None, repr=False)
    min_partitions: int | None = None
    on_rollback: Literal["replay", "fail"] = "replay"
    node_timeout: float = 300.0
    fail_on_data_loss: bool = True
    persisted_only: bool = False
    out_of_order: bool = False
    history: bool = False
    newest_only: bool = False
    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay: float = 900.0
    dialect: str = DCP.name

    @property
    def decoding(self) -> dict[str, Any]:
        """Options of the decoder for these rows."""
        return {
            "types": "plain",
            "values": "utf8" if self.value_format == "string" else "binary",
            "on_bad_value": "quarantine" if self._has_errors_of_values else "fail",
            "document": self.document_schema,
            "on_bad_document": self.on_bad_document,
        }

    @property
    def selection(self) -> dict[str, Any]:
        """Options of a stream for the rows to deliver."""
        return {"only_events": self.events, "only_keys": self.keys, "where": self.where}

    @property
    def row_selection(self) -> Selection:
        """Options that select rows, as an offset keeps them."""
        return Selection(self.events, self.keys, self.where)

    @property
    def _has_errors_of_values(self) -> bool:
        """True if the column `error` says which values are wrong. Binary values need it only where it is asked for."""
        named = self.columns or ()
        text = self.value_format == "string" and (not named or "value" in named)
        return self.on_bad_value == "quarantine" and (text or "error" in named)

    @property
    def has_password(self) -> bool:
        """True if the password itself is in an option, not the way to it."""
        return bool(self.credentials.password)

    def login_url(self, nodes: Sequence[str] = ()) -> str:
        """Return the URL with user and password. Raises UsageError if there is a user without a password.

        nodes: addresses of the driver's cluster map: the first is asked before the hosts of the URL, the others after.
        """
        return self.credentials.add_to(
            _with_nodes(self.url, nodes),
            f"set the option password, passwordFile or credentialProvider, or {PASSWORD} on the driver and on every "
            "executor",
        )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """Return the options of format("dcp"), whose names are case-insensitive and ignore underscores.

        Raises UsageError with the option that is wrong and what is accepted.
        """
        # Spark adds this option for a table of a catalog, and passes none once the table exists.
        if "owner" in given:
            raise UsageError(f"CREATE TABLE: expected a view, found a table: {_NO_TABLE}")
        values: dict[str, Any] = {}
        for name, value in given.items():
            option = _BY_BARE_NAME.get(_bare(name))
            if option is None:
                known = ", ".join(sorted(spark_options()))
                raise UsageError(f"option {str(name)[:40]!r}: unknown{_hint(name)}; expected one of {known}")
            if option.name in values:
                raise UsageError(f"option {option.spark}: expected it once, found it again as {name!r}")
            if value is not None:
                values[option.name] = option.read(value, f"option {option.spark}")
        return cls._combined(values)

    @classmethod
    def of_keywords(cls, url: str, given: Mapping[str, Any]) -> Options:
        """Return the options of a call of dcp.spark.read or dcp.spark.plan."""
        return cls._combined({"url": url} | parsed(given, Use.SPARK_READ))

    @classmethod
    def _combined(cls, values: dict[str, Any]) -> Options:
        """Return the options of parsed values, after replacing those that have another form of the same."""
        _merge_equivalents(values)
        if "url" not in values:
            raise UsageError(
                f"option url: expected couchbase://host/bucket, found none; for a table of CREATE TABLE: {_NO_TABLE}"
            )
        credentials = _credentials(values)
        values["dialect"] = _dialect(values)
        _check_combination(values)
        names = {each.name for each in fields(cls)} - {"credentials"}
        return cls(**{name: value for name, value in values.items() if name in names}, credentials=credentials)


def parsed(given: Mapping[str, Any], use: Use) -> dict[str, Any]:
    """Return the values of keywords of a call, without those that are None."""
    table = options_of(use)
    return {name: table[name].read(value) for name, value in given.items() if value is not None}


def as_text(values: Mapping[str, Any]) -> dict[str, str]:
    """Return parsed values as options of format("dcp"), which are texts.

    Raises UsageError for a name with a comma: only a list can have it.
    """
    texts = {}
    for name, value in values.items():
        option = _TABLE[name]
        text = _text(value)
        if option.read(text) != value:
            raise UsageError(f"{name}: expected names without commas, found {text!r}")
        texts[option.spark] = text
    return texts


def _text(value: Any) -> str:
    if isinstance(value, Checkpoint):
        return value.to_json()
    if isinstance(value, datetime):
        return value.isoformat()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _merge_equivalents(values: dict[str, Any]) -> None:
    """Replace options that set the same as another one."""
    same = {"connection_string": "url", "include_xattrs": "columns"}
    same |= {"starting_timestamp": "start", "ending_timestamp": "end"}
    for name, other in same.items():
        if name in values and values.get(other) is not None:
            raise UsageError(f"{_label(name)}: expected it or {_TABLE[other].spark}, found both")
    if "connection_string" in values:
        # Spark redacts the value of url in its pages and logs, but not that of this name.
        if "@" in values["connection_string"]:
            raise UsageError("option connectionString: expected no user in it, since Spark shows it: use url")
        values["url"] = values["connection_string"]
    if "bucket" in values and "url" in values:
        values["url"] = _with_bucket(values["url"], values["bucket"])
    for name, other in (("starting_timestamp", "start"), ("ending_timestamp", "end")):
        if name in values:
            values[other] = values[name]
    if values.get("include_xattrs") is False:
        values["columns"] = tuple(column.name for column in COLUMNS if column.default and column.name != "xattrs")


def _with_bucket(url: str, bucket: str) -> str:
    hosts, mark, query = url.partition("?")
    scheme, colon, rest = hosts.partition("://")
    if rest.partition("/")[2]:
        raise UsageError("option bucket: expected it or a bucket in the url, found both")
    return f"{scheme}{colon}{rest.rstrip('/')}/{quote(bucket, safe='')}{mark}{query}"


def _with_nodes(url: str, nodes: Sequence[str]) -> str:
    scheme, mark, rest = url.partition("://")
    hosts, slash, path = rest.partition("/")
    return f"{scheme}{mark}{','.join(dict.fromkeys([*nodes[:1], *hosts.split(','), *nodes[1:]]))}{slash}{path}"


def _credentials(values: dict[str, Any]) -> Login:
    """Return the credentials of the URL or of options, and remove them from the URL."""
    values["url"], username, password = split_url(values["url"])
    names = ("username", "password", "password_file", "credential_provider")
    given = {name for name in names if values.get(name) is not None}
    if username and given:
        raise UsageError(
            "option url: expected no user in it beside username, password, passwordFile or credentialProvider"
        )
    if "credential_provider" in given and len(given) > 1:
        raise UsageError("option credentialProvider: expected it without username, password and passwordFile")
    if {"password", "password_file"} <= given:
        raise UsageError("option passwordFile: expected it or password, found both")
    credentials = Login(
        username or values.get("username") or "",
        password or values.get("password") or "",
        values.get("password_file") or "",
        values.get("credential_provider") or "",
    )
    if not credentials.name and (credentials.password or credentials.password_file):
        raise UsageError(f"option username: expected it beside a password, or {USERNAME}, found none")
    return credentials


def _dialect(values: dict[str, Any]) -> str:
    """Return the dialect, and put it into the URL, from which the tasks' clients read it."""
    if values.get("dialect") is not None:
        values["url"] += f"{'&' if '?' in values['url'] else '?'}dialect={values['dialect']}"
    dialect = str(parse(values["url"]).options.get("dialect", DCP.name))
    # A flag that is off needs no support.
    check_supported(dialect, [name for name, value in values.items() if value not in (None, False)], Use.SPARK)
    ends = values.get("start"), values.get("end")
    if dialect == TAP and not (ends[0] in (None, "beginning") and ends[1] in (None, "now")):
        raise UsageError(
            "option startingOffsets, endingOffsets: expected earliest and latest, as TAP has no seqnos; leave them out"
        )
    return dialect


def _check_combination(values: Mapping[str, Any]) -> None:
    """Raise UsageError for options that exclude each other."""
    if values.get("out_of_order") and values.get("persisted_only"):
        raise UsageError("option outOfOrder: expected it without persistedOnly, which waits for whole snapshots")
    if values.get("newest_only"):
        for name in ("events", "where", "history", "out_of_order"):
            if values.get(name):
                raise UsageError(
                    f"{_label(name)}: expected it without newestOnly, as an older version that passes could be "
                    "taken for the newest one; select rows after load()"
                )
    start, end = values.get("start"), values.get("end")
    if isinstance(start, datetime) and isinstance(end, datetime) and end <= start:
        raise UsageError(f"option endingTimestamp: expected a time after {start.isoformat()}, found {end.isoformat()}")


def _label(name: str) -> str:
    return f"option {_TABLE[name].spark}"


def _bare(name: object) -> str:
    return str(name).lower().replace("_", "")


def _hint(name: object) -> str:
    closest = suggestion(_bare(name), _BY_BARE_NAME)
    for bare, option in _BY_BARE_NAME.items():
        if closest == f" (did you mean {bare}?)":
            return f" (did you mean {option.spark}?)"
    return ""


_NO_TABLE = (
    "Spark keeps the options of a table in clear text, and does not pass them on; use CREATE TEMPORARY VIEW name USING "
    "dcp OPTIONS (...), or spark.read"
)
_TABLE = options_of(Use.SPARK)
# Names in Couchbase's own connector and in other sources of Spark.
_ALIASES = {"numpartitions": "min_partitions", "collection": "collections"}
_BY_BARE_NAME: dict[str, Option] = {
    **{_bare(option.spark): option for option in _TABLE.values()},
    **{_bare(name): option for name, option in _TABLE.items()},
    **{alias: _TABLE[name] for alias, name in _ALIASES.items()},
}
