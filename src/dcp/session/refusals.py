"""The table of refusals: for each step of a connection and each status, what a client does about it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from dcp.errors import ServerError
from dcp.wire.memcached import Status

HELLO, MECHANISMS, SASL, SELECT, GET_MAP = (
    "hello",
    "sasl_list_mechs",
    "sasl_auth",
    "select_bucket",
    "get_cluster_config",
)
OPEN, CONTROL, STREAM_REQUEST = "open", "control", "stream_request"
# Commands from a fresh connection to streams, in their order.
STEPS = (HELLO, MECHANISMS, SASL, SELECT, GET_MAP, OPEN, CONTROL, STREAM_REQUEST)
# The second command of an authentication is refused for the reasons of the first.
_SAME_STEP = {"sasl_step": SASL}
# A status that `CONFIRM` tolerates ends a stream when it is the answer to this many requests in a row.
CONFIRMATIONS = 7


class Reaction(Enum):
    """Reaction to a refusal. Each value describes it for the docs.

    All but ADAPT and END are repeated with backoff for `refusal_timeout` at most. A refused handshake is repeated on a
    new connection.
    """

    RETRY = "repeat the step with backoff; a handshake on a new connection"
    # The status means as well that something does not exist, or is not allowed: no reason to retry at the first call.
    RETRY_KNOWN = "the same, as the bucket was reached before: not `retriable` in an error of `dcp.connect`"
    RECONNECT = "close the connection, and repeat the request on a new one"
    REFRESH_MAP = "fetch the cluster map, and repeat the request at the owner in it"
    CONFIRM = f"the same as retry, but end after {CONFIRMATIONS} answers in a row; for a stream's first `open`, at once"
    ADAPT = "continue without what an older server does not have; roll back if a stream request is answered so"
    END = "end with the refusal; `open` is repeated without newer flags before"

    @property
    def passes(self) -> bool:
        """True if the refusal is about the present state of the node: a later call may succeed."""
        return self in (Reaction.RETRY, Reaction.RECONNECT, Reaction.REFRESH_MAP)

    @property
    def repeats(self) -> bool:
        """True if a stream repeats the request."""
        return self not in (Reaction.ADAPT, Reaction.END)


# For statuses that the table does not know, such as those of newer servers. The stream does not end for a state that
# passes, and `refusal_timeout` limits the retries.
UNKNOWN_STATUS = Reaction.RETRY


class RefusalRow(NamedTuple):
    """Statuses that have the same reactions, by step. A step that is not named retries."""

    statuses: tuple[Status, ...]
    reactions: Mapping[str, Reaction]

    def reaction(self, step: str) -> Reaction:
        """Return the reaction of a step."""
        return self.reactions.get(step, Reaction.RETRY)


REFUSALS: tuple[RefusalRow, ...] = (
    RefusalRow(
        (
            Status.EWOULD_THROTTLE,
            Status.RATE_LIMITED_INGRESS,
            Status.RATE_LIMITED_EGRESS,
            Status.RATE_LIMITED_CONNECTIONS,
            Status.RATE_LIMITED_COMMANDS,
            Status.ENCRYPTION_KEY_NOT_AVAILABLE,
            Status.BUCKET_PAUSED,
            Status.CANCELLED,
            Status.ENOMEM,
            Status.EINTERNAL,
            Status.EBUSY,
            Status.ETMPFAIL,
            Status.NO_COLLECTIONS_MANIFEST,
            Status.COLLECTIONS_MANIFEST_IS_AHEAD,
            # The connection that had the stream before may not be closed yet.
            Status.KEY_EEXISTS,
        ),
        {},
    ),
    # Nothing succeeds on this connection any more.
    RefusalRow((Status.NO_BUCKET, Status.AUTH_STALE, Status.NOT_INITIALIZED), {STREAM_REQUEST: Reaction.RECONNECT}),
    RefusalRow((Status.NOT_MY_VBUCKET, Status.ECONFIG_ONLY), {STREAM_REQUEST: Reaction.REFRESH_MAP}),
    # A node that starts knows its users and buckets only after a while.
    RefusalRow(
        (Status.KEY_ENOENT,),
        {
            SASL: Reaction.CONFIRM,
            SELECT: Reaction.RETRY_KNOWN,
            GET_MAP: Reaction.RETRY_KNOWN,
            OPEN: Reaction.RETRY_KNOWN,
            CONTROL: Reaction.CONFIRM,
            STREAM_REQUEST: Reaction.CONFIRM,
        },
    ),
    RefusalRow(
        (Status.EACCESS,),
        {
            SASL: Reaction.CONFIRM,
            SELECT: Reaction.RETRY_KNOWN,
            GET_MAP: Reaction.RETRY_KNOWN,
            OPEN: Reaction.CONFIRM,
            CONTROL: Reaction.CONFIRM,
            STREAM_REQUEST: Reaction.CONFIRM,
        },
    ),
    RefusalRow((Status.AUTH_ERROR,), dict.fromkeys(STEPS, Reaction.CONFIRM)),
    # Nodes learn of new collections at different times.
    RefusalRow((Status.UNKNOWN_COLLECTION, Status.UNKNOWN_SCOPE), {STREAM_REQUEST: Reaction.CONFIRM}),
    # Older servers answer so to commands, flags and controls that they do not know.
    RefusalRow(
        (Status.EINVAL, Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED),
        dict.fromkeys(STEPS, Reaction.END) | dict.fromkeys((HELLO, MECHANISMS, GET_MAP, CONTROL), Reaction.ADAPT),
    ),
    RefusalRow((Status.ROLLBACK, Status.ERANGE), {STREAM_REQUEST: Reaction.ADAPT}),
    RefusalRow(
        (
            Status.E2BIG,
            Status.XATTR_EINVAL,
            Status.UNKNOWN_FRAME_INFO,
            Status.DCP_STREAM_ID_INVALID,
            Status.CANNOT_APPLY_COLLECTIONS_MANIFEST,
        ),
        {STREAM_REQUEST: Reaction.END},
    ),
)

# Results of reads and writes of documents. No step has them as an answer: they are as good as unknown.
OF_DOCUMENTS = frozenset(
    {
        Status.NOT_STORED,
        Status.DELTA_BADVAL,
        Status.LOCKED,
        Status.DCP_STREAM_NOT_FOUND,
        Status.OPAQUE_NO_MATCH,
        Status.NOT_LOCKED,
        Status.CAS_VALUE_INVALID,
        Status.AUTH_CONTINUE,
        Status.CHECKSUM_MISMATCH,
        Status.EXPIRY_OVERFLOW,
        Status.LOCK_EXPIRY_OVERFLOW,
        Status.SCOPE_SIZE_LIMIT_EXCEEDED,
        Status.BUCKET_SIZE_LIMIT_EXCEEDED,
        Status.BUCKET_RESIDENT_RATIO_TOO_LOW,
        Status.BUCKET_DATA_SIZE_TOO_BIG,
        Status.BUCKET_DISK_SPACE_TOO_LOW,
        Status.DURABILITY_INVALID_LEVEL,
        Status.DURABILITY_IMPOSSIBLE,
        Status.SYNC_WRITE_IN_PROGRESS,
        Status.SYNC_WRITE_AMBIGUOUS,
        Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS,
        Status.RANGE_SCAN_CANCELLED,
        Status.RANGE_SCAN_MORE,
        Status.RANGE_SCAN_COMPLETE,
        Status.VBUUID_NOT_EQUAL,
    }
) | {status for status in Status if status.name.startswith("SUBDOC_")}


_ROWS = {status: row for row in REFUSALS for status in row.statuses}


def reaction(step: str, status: int | None) -> Reaction:
    """Return the reaction to a refusal.

    step: name of the refused command. status: None for a refusal by the client itself, which ends.
    """
    if status is None:
        return Reaction.END
    row = _ROWS.get(Status(status)) if status in list(Status) else None
    return UNKNOWN_STATUS if row is None else row.reaction(_SAME_STEP.get(step, step))


def status_name(status: int) -> str:
    """Return the name of a status; its number if it has none."""
    return Status(status).name if status in list(Status) else f"status 0x{status:02x}"


def refused(step: str, problem: str, status: int | None, *, retriable: bool | None = None) -> ServerError:
    """Return the error for a refused command. It is retriable as its reaction says, unless that is given."""
    error = ServerError(problem, status)
    error.step = step
    error.retriable = reaction(step, status).passes if retriable is None else retriable
    return error
