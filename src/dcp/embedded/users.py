"""Users, their privileges, and the check of both before a command runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from dcp.embedded.refusals import Refusal
from dcp.wire.frame import Frame
from dcp.wire.memcached import MEMCACHED, Status

if TYPE_CHECKING:
    from dcp.embedded.connection import Handler, ServerConnection


class Privilege(Enum):
    """Right to run some commands. The value is its name in the servers' error messages."""

    READ = "Read"
    WRITE = "Upsert"
    DCP = "DcpProducer"


EVERYTHING = frozenset(Privilege)


@dataclass(frozen=True, slots=True)
class User:
    """User of an embedded cluster.

    `name` and `password` authenticate it, and `privileges` (default: all) are what it may do. The password does not
    appear in the repr.
    """

    name: str
    password: str = field(repr=False)
    privileges: frozenset[Privilege] = EVERYTHING


Users = Mapping[str, User]
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

_READS = ("get", "getq", "getk", "getkq", "get_meta", "get_random_key")
_PRIVILEGES = (
    {message.name: Privilege.WRITE for message in MEMCACHED.messages if message.document}
    | dict.fromkeys(_READS, Privilege.READ)
    | {"open": Privilege.DCP}
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
        return handler(connection, frame)

    return checked
