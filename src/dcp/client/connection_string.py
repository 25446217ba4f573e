"""Connection strings in the form of Couchbase's SDKs.

    couchbase://user:password@host1,host2:11210/bucket?network=external

Sources: SDK-RFC 11 for the form and DNS SRV; the names of options are those of the C, Python and Go SDKs.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import unquote

from dcp.client.options import Use, options_of
from dcp.errors import UsageError
from dcp.value_grammar import suggestion

# Schemes, and True for those that mean TLS.
SCHEMES = {"couchbase": False, "couchbases": True}
DEFAULT_PORTS = {"couchbase": 11210, "couchbases": 11207}
# Schemes and ports of the web console and of other clients, which people write instead.
_INSTEAD = {
    "http": "couchbase",
    "https": "couchbases",
    "memcached": "couchbase",
    "ws": "couchbase",
    "wss": "couchbases",
}
_WEB_PORTS = (8091, 18091)


class HostPort(NamedTuple):
    """Host and port of a node. IPv6 addresses have brackets in its text."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed connection string. Neither its text nor its repr contains the password.

    srv: name to look up as DNS SRV before the one address is tried, or empty.
    options: those that the string sets, as values of their types.
    """

    scheme: str
    addresses: tuple[HostPort, ...]
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
    """Return the parts of a connection string.

    Raises UsageError with the part that is wrong and what is accepted there. Its text shows nothing that may be a part
    of a password.
    """
    if not isinstance(url, str):
        raise _error("scheme", "text such as couchbase://user:password@host/bucket", f"a {type(url).__name__}")
    scheme, colon, rest = url.partition("://")
    if not colon or scheme not in SCHEMES:
        raise _bad_scheme(scheme if colon else "")
    authority, path, query = _parts(rest)
    credentials, at, hosts = authority.rpartition("@")
    username, password = _credentials(credentials) if at else ("", "")
    found = [_host(text) for text in hosts.split(",")]
    addresses = tuple(HostPort(host, port or DEFAULT_PORTS[scheme]) for host, port in found)
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
    """Return hosts with credentials, path, and query."""
    before, _, query = rest.partition("?")
    authority, _, path = before.partition("/")
    if "@" in path or "@" in query:
        # A password with / or ? in it is cut there, so the rest may be a part of it and must not be shown.
        raise _error("password", "%2F for a /, %3F for a ?, and after the hosts %40 for an @", "an @ after / or ?")
    return authority, path, query


def _error(part: str, expected: str, found: str) -> UsageError:
    return UsageError(f"url: {part}: expected {expected}, found {found}")


def _bad_scheme(scheme: str) -> UsageError:
    """Return the error for a scheme. Without `://` any part may be a password, so that none is shown."""
    expected = " or ".join(f"{name}://" for name in SCHEMES)
    if not scheme:
        return _error("scheme", expected, "none")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]{0,20}", scheme):
        return _error("scheme", expected, "something else")
    close = difflib.get_close_matches(scheme.lower(), SCHEMES, cutoff=0.6)
    meant = _INSTEAD.get(scheme.lower()) or next(iter(close), "")
    return _error("scheme", expected, f"{scheme}://{f' (did you mean {meant}://?)' if meant else ''}")


def _credentials(text: str) -> tuple[str, str]:
    username, colon, password = text.partition(":")
    if not username:
        raise _error("user", "a name before the colon", "none")
    if not colon:
        raise _error("password", "user:password@", "no colon after the user")
    return _decoded("user", username), _decoded("password", password)


def _decoded(part: str, text: str) -> str:
    """Return percent-decoded text. Errors never show it: it may be a secret."""
    if re.search(r"%(?![0-9A-Fa-f]{2})", text):
        raise _error(part, "two hexadecimal digits after each %, and %25 for a % itself", "something else")
    decoded = unquote(text, errors="surrogateescape")
    if re.search(r"[\ud800-\udfff]", decoded):
        raise _error(part, "percent-encoded UTF-8", "other bytes")
    return decoded


def _host(text: str) -> tuple[str, int | None]:
    match = re.fullmatch(
        r"(?:\[(?P<v6>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<name>[\w.-]+))(?::(?P<port>.*))?", text, re.DOTALL
    )
    if match is None:
        raise _error("host", "names or addresses separated by commas, and IPv6 in brackets", _described(text))
    return match["v6"] or match["name"], None if match["port"] is None else _port(match["port"])


def _described(text: str) -> str:
    """Describe an invalid host without showing it: a password with an @ or a comma leaves a part of it there."""
    if not text:
        return "nothing"
    return "an IPv6 address without brackets" if text.count(":") > 1 else "a character that hosts cannot have"


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) < 1 << 16):
        raise _error("port", "a number from 1 to 65535", "something else")
    if int(text) in _WEB_PORTS:
        raise _error("port", "a port of the data service, or none", f"{text}, which is the web console's")
    return int(text)


def _bucket(text: str) -> str:
    name = _decoded("bucket", text.removesuffix("/"))
    if not name:
        raise _error("bucket", "a name after the hosts, as in couchbase://host/bucket", "none")
    if not re.fullmatch(r"[A-Za-z0-9_.%-]{1,100}", name):
        raise _error("bucket", "up to 100 letters, digits, _, -, . and %", repr(name[:100]))
    return name


def _srv(scheme: str, host: str, port: int | None) -> str:
    """Return the SRV name of a single host, which may be the name of a cluster: one without a port, and no address."""
    is_address = ":" in host or re.fullmatch(r"[0-9.]+", host) is not None
    return "" if port is not None or is_address else f"_{scheme}._tcp.{host}"


def _options(query: str) -> dict[str, Any]:
    table, options = options_of(Use.URL), {}
    for part in filter(None, query.split("&")):
        name, equals, value = part.partition("=")
        if name not in table:
            raise _error("option", f"one of {', '.join(sorted(table))}", repr(name[:40]) + suggestion(name, table))
        if name in options:
            raise _error(f"option {name}", "one value", "two")
        if not equals:
            raise _error(f"option {name}", "a value after =", "none")
        options[name] = table[name].read(_decoded(f"option {name}", value), f"url: option {name}")
    return options
