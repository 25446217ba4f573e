"""Checks of the arguments of a cluster, before any socket is opened."""

from __future__ import annotations

import re
from math import isfinite
from typing import TypeGuard

from dcp.embedded.users import User
from dcp.errors import UsageError

_MAX_NODES, _MAX_REPLICAS, _MAX_VBUCKETS = 8, 3, 32_768
_MAX_PORT = (1 << 16) - 1


def check_size(nodes: int, vbuckets: int, replicas: int) -> None:
    check_number("nodes", nodes, 1, _MAX_NODES)
    check_number("vbuckets", vbuckets, 1, _MAX_VBUCKETS)
    check_number("replicas", replicas, 0, _MAX_REPLICAS)
    if replicas >= nodes:
        needed = "one node more than replicas, since a node holds at most one copy of a vbucket"
        raise UsageError(f"replicas: expected {needed}, found {replicas} with nodes={nodes}")


def check_names(bucket: object, host: object, server_version: object) -> None:
    for name, value, pattern, expected in (
        ("bucket", bucket, r"[A-Za-z0-9_.%-]{1,100}", "up to 100 letters, digits, _, -, . and %"),
        ("host", host, r"[\w.:%-]+", "a name or an address, such as 127.0.0.1"),
        ("server_version", server_version, r".*", "text such as '7.2'"),
    ):
        if not isinstance(value, str) or re.fullmatch(pattern, value) is None:
            raise UsageError(f"{name}: expected {expected}, found {value!r:.100}")


def check_ports(port: object, nodes: int, *, tls: bool) -> None:
    """Check the first port: all ports of the nodes follow, and the one of the control service."""
    check_number("port", port, 0, _MAX_PORT - ports_of_nodes(nodes, tls=tls))


def ports_of_nodes(nodes: int, *, tls: bool) -> int:
    """Return the number of ports of all nodes: one for each of their two services, and with TLS two."""
    return nodes * (4 if tls else 2)


def check_seconds(name: str, value: object) -> None:
    """Check a number of seconds, which may be negative."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise UsageError(f"{name}: expected seconds, found {value!r:.100}")


def check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise UsageError(f"{name}: expected True or False, found {value!r:.100}")


def check_users(username: object, password: object, users: list[User]) -> None:
    for name, value in (("username", username), ("password", password)):
        if value is not None and (not isinstance(value, str) or not value or "\0" in value):
            # The value may be a password, so the message does not contain it.
            raise UsageError(f"{name}: expected text without zero bytes, found something else")
    for user in users:
        if not isinstance(user, User):
            raise UsageError(f"users: expected instances of dcp.embedded.User, found a {type(user).__name__}")


def check_seed(seed: object) -> None:
    if not isinstance(seed, int | str | None):
        raise UsageError(f"seed: expected a number, found {seed!r:.100}")


def check_number(name: str, value: object, least: int, most: int) -> None:
    """Check a number that has both bounds."""
    if not _is_number(value) or not least <= value <= most:
        raise UsageError(f"{name}: expected {least} to {most}, found {value!r:.100}")


def check_count(name: str, value: object, counted: str) -> None:
    """Check a number that may be 0 or any above."""
    if not _is_number(value) or value < 0:
        raise UsageError(f"{name}: expected at least 0 {counted}, found {value!r:.100}")


def _is_number(value: object) -> TypeGuard[int]:
    # A bool is an int to Python; True nodes would be a mistake of the caller.
    return isinstance(value, int) and not isinstance(value, bool)
