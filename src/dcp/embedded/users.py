"""Users, their privileges, and the check of both before a command runs."""

from __future__ import annotations

import json
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from dcp.embedded.refusals import Refusal
from dcp.errors import RemoteProtocolError, UsageError
from dcp.wire.body import JSON
from dcp.wire.document import Datatype
from dcp.wire.frame import Frame
from dcp.wire.memcached import MEMCACHED, Status

if TYPE_CHECKING:
    from dcp.embedded.connection import Handler, ServerConnection


class Privilege(Enum):
    """Right to run some commands. The value is its name in the servers' error messages."""

    READ = "Read"
    WRITE = "Upsert"
    DCP = "DcpProducer"
    STATS = "SimpleStats"


EVERYTHING = frozenset(Privilege)


@dataclass(frozen=True, slots=True)
class User:
    """User of an embedded cluster.

    `name` and `password` authenticate it, and `privileges` (default: all) are what it may do. The password does not
    appear in the repr. With `collections`, paths such as `scope.collection` or names of whole scopes, it may read the
    seqnos and the changes of these alone, and not those of the whole bucket. `salt` is that of its SCRAM hashes, random
    by default: every node sends the same one (seen in 7.2.9 and 8.0.1), so clients keep what they compute with it.
    """

    name: str
    password: str = field(repr=False)
    privileges: frozenset[Privilege] = EVERYTHING
    collections: frozenset[str] | None = None
    salt: bytes = field(default_factory=partial(secrets.token_bytes, 16), repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.collections is not None and not isinstance(self.collections, frozenset):
            raise UsageError(f"collections: expected a frozenset of names, found a {type(self.collections).__name__}")


Users = Mapping[str, User]


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """Token of a user, valid until a time in Unix seconds."""

    user: User
    expires: float


def make_token(username: str, expires: float) -> str:
    """Return a JSON web token (RFC 7519) whose signature is random: the nodes know their tokens."""
    parts = [json.dumps(part).encode() for part in ({"alg": "HS256", "typ": "JWT"}, {"sub": username, "exp": expires})]
    return ".".join(urlsafe_b64encode(part).decode().rstrip("=") for part in (*parts, secrets.token_bytes(32)))


# User of every connection to a node that authenticates nobody.
ANYBODY = User("", "")


# Authorization.


class _Requirement(Enum):
    """State that a connection must have reached before a command."""

    NOTHING = 0
    AUTHENTICATED = 1
    BUCKET_SELECTED = 2


# Commands that are not listed require a selected bucket.
_REQUIREMENTS = dict.fromkeys(
    (
        "hello",
        "sasl_list_mechs",
        "sasl_auth",
        "sasl_step",
        "get_error_map",
        "noop",
        "version",
        "quit",
        "quitq",
    ),
    _Requirement.NOTHING,
) | dict.fromkeys(("select_bucket", "get_cluster_config"), _Requirement.AUTHENTICATED)

_READS = (
    *("get", "getq", "getk", "getkq", "get_meta", "get_random_key", "get_replica", "observe"),
    *("range_scan_create", "range_scan_continue", "range_scan_cancel"),
    *("subdoc_get", "subdoc_exists", "subdoc_get_count", "subdoc_multi_lookup"),
)
_PRIVILEGES = (
    {message.name: Privilege.WRITE for message in MEMCACHED.messages if message.document}
    | dict.fromkeys(_READS, Privilege.READ)
    | {"open": Privilege.DCP, "stat": Privilege.STATS}
)


def authorized(name: str, handler: Handler) -> Handler:
    """Return the handler of command `name` with the checks of user, bucket and privilege before it."""
    requirement, privilege = _REQUIREMENTS.get(name, _Requirement.BUCKET_SELECTED), _PRIVILEGES.get(name)

    def checked(connection: ServerConnection, frame: Frame) -> Frame | Sequence[Frame] | None:
        state = connection.state
        if requirement is not _Requirement.NOTHING and state.user is None:
            raise Refusal(Status.EACCESS, "Authentication is needed first")
        if requirement is _Requirement.BUCKET_SELECTED and state.bucket is None:
            raise Refusal(Status.NO_BUCKET, "No bucket is selected")
        if privilege is not None and (state.user is None or privilege not in state.user.privileges):
            # The text of servers, word for word: clients show it to their users.
            command = "DCP_OPEN" if privilege is Privilege.DCP else name.upper()
            context = (
                f"Authorization failure: can't execute {command} operation without the {privilege.value} privilege"
            )
            raise Refusal(Status.EACCESS, context)
        if state.user is not None and state.user.collections is not None and name in _BY_COLLECTION:
            _check_collections(connection, frame, state.user.collections)
        return handler(connection, frame)

    return checked


# Commands about the whole bucket, or about the collections that they name.
_BY_COLLECTION = ("get_all_vb_seqnos", "stream_request")


def _check_collections(connection: ServerConnection, frame: Frame, readable: frozenset[str]) -> None:
    """Refuse a request about anything but readable collections, as kv_engine does."""
    manifest = connection.bucket.manifest
    # Each collection is readable by its path, and by the name of its scope.
    names = {one.id: {f"{scope.name}.{one.name}", scope.name} for scope in manifest.scopes for one in scope.collections}
    scopes = {scope.id: {scope.name} for scope in manifest.scopes}
    if "collection_id" in frame.fields:
        requested = [names.get(int(frame.fields["collection_id"]), set())]
    else:
        try:
            chosen = frame.body() if frame.value else None
        except RemoteProtocolError:
            # The handler refuses a filter that is malformed.
            return
        if chosen is not None and chosen.collections is not None:
            requested = [names.get(number, set()) for number in chosen.collections]
        elif chosen is not None and chosen.scope is not None:
            requested = [scopes.get(chosen.scope, set())]
        else:
            raise Refusal(Status.EACCESS)
    # A collection on which the user has no privilege at all is unknown to it.
    if not all(each & readable for each in requested):
        body = JSON.encode({"manifest_uid": f"{manifest.uid:x}"})
        raise Refusal(Status.UNKNOWN_COLLECTION, value=body, datatype=int(Datatype.JSON))
