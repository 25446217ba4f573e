"""What a connection must have before a command is looked at: a user, a bucket, a privilege."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from dcp.embedded.connection import Handler, Refusal, ServerConnection
from dcp.embedded.users import Privilege
from dcp.wire.frame import Frame
from dcp.wire.memcached import MEMCACHED, Status


class Need(Enum):
    NOTHING = 0
    USER = 1
    BUCKET = 2


# All others need a bucket.
_NEEDS = dict.fromkeys(
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
    Need.NOTHING,
) | dict.fromkeys(("select_bucket", "get_cluster_config"), Need.USER)

_READS = ("get", "getq", "getk", "getkq", "get_meta", "get_random_key")
_PRIVILEGES = (
    {message.name: Privilege.WRITE for message in MEMCACHED.messages if message.document}
    | dict.fromkeys(_READS, Privilege.READ)
    | {"open": Privilege.DCP}
)


def guarded(name: str, handler: Handler) -> Handler:
    """The handler of a command, behind the checks of what it needs."""
    need, privilege = _NEEDS.get(name, Need.BUCKET), _PRIVILEGES.get(name)

    def checked(connection: ServerConnection, frame: Frame) -> Frame | Sequence[Frame] | None:
        state = connection.state
        if need is not Need.NOTHING and state.user is None:
            raise Refusal(Status.EACCESS, "Authentication is needed first")
        if need is Need.BUCKET and state.bucket is None:
            raise Refusal(Status.NO_BUCKET, "No bucket is selected")
        if privilege is not None and (state.user is None or privilege not in state.user.privileges):
            # The words of servers.
            what = "DCP_OPEN" if privilege is Privilege.DCP else name.upper()
            words = f"Authorization failure: can't execute {what} operation without the {privilege.value} privilege"
            raise Refusal(Status.EACCESS, words)
        return handler(connection, frame)

    return checked
