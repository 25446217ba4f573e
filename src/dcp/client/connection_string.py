"""Connection strings, as Couchbase's SDKs take them.

    couchbase://user:password@host1,host2:11210/bucket?network=external

Sources: SDK-RFC 11 for the form and DNS SRV; the names of options are those of the C, Python and Go SDKs.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from dcp.errors import LocalProtocolError
from dcp.wire import DIALECTS
from dcp.wire.mechanisms import MECHANISMS

# Schemes: whether they mean TLS.
SCHEMES = {"couchbase": False, "couchbases": True}
DEFAULT_PORTS = {"couchbase": 11210, "couchbases": 11207}
# What people write instead: the web console's scheme and port lead to another service.
_INSTEAD = {
    "http": "couchbase",
    "https": "couchbases",
    "memcached": "couchbase",
    "ws": "couchbase",
    "wss": "couchbases",
}
_WEB_PORTS = (8091, 18091)


@dataclass(frozen=True, slots=True)
class Address:
    """A host to begin with, and its port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Target:
    """What a connection string says. The password is in no text of it.

    `srv` is the name to look up as DNS SRV before the one address is tried, or empty. `options` has
    those that were given, as values of their types.
    """

    scheme: str
    addresses: tuple[Address, ...]
    bucket: str
    username: str = ""
    password: str = field(default="", repr=False)
    srv: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tls(self) -> bool:
        return SCHEMES[self.scheme]

    def __str__(self) -> str:
        user = f"{self.username}@" if self.username else ""
        return f"{self.scheme}://{user}{','.join(map(str, self.addresses))}/{self.bucket}"


def parse(url: str) -> Target:
    """LocalProtocolError says which part is wrong, and what is accepted."""
    if not isinstance(url, str):
        raise _refuse("scheme", "text such as couchbase://user:password@host/bucket", f"a {type(url).__name__}")
    scheme, colon, rest = url.partition("://")
    if not colon or scheme not in SCHEMES:
        raise _bad_scheme(scheme if colon else "")
    authority, path, query = _parts(rest)
    credentials, at, hosts = authority.rpartition("@")
    username, password = _credentials(credentials) if at else ("", "")
    found = [_host(text) for text in hosts.split(",")]
    addresses = tuple(Address(host, port or DEFAULT_PORTS[scheme]) for host, port in found)
    return Target(
        scheme,
        addresses,
        _bucket(path),
        username,
        password,
        _srv(scheme, *found[0]) if len(found) == 1 else "",
        _options(query),
    )


def _parts(rest: str) -> tuple[str, str, str]:
    """The hosts with the credentials, the path, and the options."""
    before, _, query = rest.partition("?")
    authority, _, path = before.partition("/")
    if "@" in path or "@" in query:
        # Perhaps a part of the password is taken for something else: nothing of it may be shown.
        raise _refuse("password", "%2F for a /, %3F for a ?, and behind the hosts %40 for an @", "an @ behind / or ?")
    return authority, path, query


def _refuse(part: str, expected: str, found: str) -> LocalProtocolError:
    return LocalProtocolError(f"url: {part}: expected {expected}, found {found}")


def _bad_scheme(scheme: str) -> LocalProtocolError:
    """Without `://` nobody knows what is a password: then nothing of the text is shown."""
    expected = " or ".join(f"{name}://" for name in SCHEMES)
    if not scheme:
        return _refuse("scheme", expected, "none")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]{0,20}", scheme):
        return _refuse("scheme", expected, "something else")
    close = difflib.get_close_matches(scheme.lower(), SCHEMES, n=1, cutoff=0.6)
    meant = _INSTEAD.get(scheme.lower()) or next(iter(close), "")
    return _refuse("scheme", expected, f"{scheme}://{f' (did you mean {meant}://?)' if meant else ''}")


def _credentials(text: str) -> tuple[str, str]:
    username, colon, password = text.partition(":")
    if not username:
        raise _refuse("user", "a name before the colon", "none")
    if not colon:
        raise _refuse("password", "user:password@", "no colon behind the user")
    return _decoded("user", username), _decoded("password", password)


def _decoded(part: str, text: str) -> str:
    """Percent-decoded. What stands there is never shown: it may be a secret."""
    if re.search(r"%(?![0-9A-Fa-f]{2})", text):
        raise _refuse(part, "two hexadecimal digits behind each %, and %25 for a % itself", "something else")
    decoded = unquote(text, errors="surrogateescape")
    if re.search(r"[\ud800-\udfff]", decoded):
        raise _refuse(part, "percent-encoded UTF-8", "other bytes")
    return decoded


def _host(text: str) -> tuple[str, int | None]:
    match = re.fullmatch(
        r"(?:\[(?P<v6>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<name>[\w.-]+))(?::(?P<port>.*))?", text, re.DOTALL
    )
    if match is None:
        raise _refuse("host", "names or addresses between commas, and IPv6 in brackets", _shown(text))
    return match["v6"] or match["name"], None if match["port"] is None else _port(match["port"])


def _shown(text: str) -> str:
    """A host that is none. A part of a password that holds an @ or a comma may stand there, so only little is told."""
    if not text:
        return "nothing"
    return "an IPv6 address without brackets" if text.count(":") > 1 else "a character that no host has"


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) < 1 << 16):
        raise _refuse("port", "a number from 1 to 65535", "something else")
    if int(text) in _WEB_PORTS:
        raise _refuse("port", "one of the data service, or none", f"{text}, which is the web console's")
    return int(text)


def _bucket(text: str) -> str:
    name = _decoded("bucket", text.removesuffix("/"))
    if not name:
        raise _refuse("bucket", "a name behind the hosts, as in couchbase://host/bucket", "none")
    if not re.fullmatch(r"[A-Za-z0-9_.%-]{1,100}", name):
        raise _refuse("bucket", "up to 100 letters, digits, _, -, . and %", repr(name[:100]))
    return name


def _srv(scheme: str, host: str, port: int | None) -> str:
    """The one host may be a name of the whole cluster: then it has no port, and is no address."""
    is_address = ":" in host or re.fullmatch(r"[0-9.]+", host) is not None
    return "" if port is not None or is_address else f"_{scheme}._tcp.{host}"


def _options(query: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for part in filter(None, query.split("&")):
        name, equals, value = part.partition("=")
        if name not in OPTIONS:
            raise _refuse("option", f"one of {', '.join(sorted(OPTIONS))}", repr(name[:40]))
        if name in options:
            raise _refuse(f"option {name}", "one value", "two")
        if not equals:
            raise _refuse(f"option {name}", "a value behind =", "none")
        options[name] = OPTIONS[name](name, _decoded(f"option {name}", value))
    return options


def checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options that are given as values: of the same names and forms as those of a connection string."""
    for name in options:
        if name not in OPTIONS:
            raise _refuse("option", f"one of {', '.join(sorted(OPTIONS))}", repr(name[:40]))
    return {name: OPTIONS[name](name, _worded(value)) for name, value in options.items()}


def check_tls(target: Target, given: Mapping[str, Any]) -> None:
    """Who names certificates does not want clear text."""
    if not target.tls:
        for name in ("ca_cert_path", "cert_path", "key_path"):
            if name in given:
                raise _refuse(f"option {name}", "couchbases://, which is TLS", "couchbase://, which is clear text")


def _worded(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _text(name: str, value: str) -> str:
    if not value:
        raise _refuse(f"option {name}", "text", "none")
    return value


def _one_of(*accepted: str) -> Callable[[str, str], str]:
    def read(name: str, value: str) -> str:
        if value not in accepted:
            raise _refuse(f"option {name}", " or ".join(accepted), repr(value[:40]))
        return value

    return read


def _flag(name: str, value: str) -> bool:
    return _one_of("true", "false", "1", "0", "on", "off")(name, value) in ("true", "1", "on")


def _seconds(name: str, value: str) -> float:
    """A number of seconds, or one with a unit."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)?", value)
    seconds = float(match[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[match[2] or "s"] if match else 0.0
    if seconds <= 0:
        raise _refuse(f"option {name}", "a time such as 2.5, 500ms, 30s or 2m", repr(value[:40]))
    return seconds


def _interval(name: str, value: str) -> float:
    """The same, or 0 for never."""
    return 0.0 if re.fullmatch(r"0(\.0)?", value) else _seconds(name, value)


def _size(name: str, value: str) -> int:
    """A number of bytes, or one with a unit."""
    match = re.fullmatch(r"([0-9]{1,9})([kmg]?)", value.lower())
    size = int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2]] if match else 1 << 32
    if size >= 1 << 32:
        raise _refuse(f"option {name}", "bytes below 4g, such as 20971520 or 20m, or 0 for none", repr(value[:40]))
    return size


OPTIONS: dict[str, Callable[[str, str], Any]] = {
    "bootstrap_timeout": _seconds,
    "ca_cert_path": _text,
    "cert_path": _text,
    "compression": _one_of("on", "off", "force"),
    "config_poll_interval": _seconds,
    "dcp_buffer_size": _size,
    "dcp_priority": _one_of("low", "medium", "high"),
    "dialect": _one_of(*DIALECTS),
    "key_path": _text,
    "kv_connect_timeout": _seconds,
    "network": _one_of("auto", "default", "external"),
    "noop_interval": _seconds,
    "sasl_mech_force": _one_of(*sorted(MECHANISMS)),
    "stats_interval": _interval,
    "tls_verify": _flag,
}
