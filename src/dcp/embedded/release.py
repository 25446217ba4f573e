"""Server releases: the differences in behaviour between them, each with the release that introduced it."""

from __future__ import annotations

from dataclasses import dataclass

from dcp.embedded.rollback import RollbackRules
from dcp.errors import UsageError
from dcp.wire.dcp import OpenFlag, StreamFlag
from dcp.wire.memcached import Status

ReleaseNumber = tuple[int, int]
NEWEST: ReleaseNumber = (8, 5)

# First release that knows a flag of a stream request.
_STREAM_FLAGS: dict[StreamFlag, ReleaseNumber] = {
    StreamFlag.TAKE_OVER: (3, 0),
    StreamFlag.DISK_ONLY: (3, 0),
    StreamFlag.TO_LATEST: (3, 0),
    StreamFlag.ACTIVE_VB_ONLY: (5, 0),
    StreamFlag.STRICT_VB_UUID: (5, 1),
    StreamFlag.FROM_LATEST: (7, 2),
    StreamFlag.IGNORE_PURGED_TOMBSTONES: (7, 2),
    StreamFlag.CACHE_TRANSFER: (8, 5),
}
# First and last release that knows a flag of an open request.
_OPEN_FLAGS: dict[OpenFlag, tuple[ReleaseNumber, ReleaseNumber]] = {
    OpenFlag.PRODUCER: ((3, 0), NEWEST),
    OpenFlag.NOTIFIER: ((3, 0), (6, 6)),
    OpenFlag.INCLUDE_XATTRS: ((5, 0), NEWEST),
    OpenFlag.NO_VALUE: ((5, 0), NEWEST),
    OpenFlag.COLLECTIONS_PREVIEW: ((5, 0), (6, 0)),
    OpenFlag.INCLUDE_DELETE_TIMES: ((5, 5), NEWEST),
    OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE: ((6, 0), NEWEST),
    OpenFlag.PITR: ((7, 0), (7, 6)),
    OpenFlag.INCLUDE_DELETED_USER_XATTRS: ((6, 6), NEWEST),
    OpenFlag.SKIP_DELETES_IN_INITIAL_BACKFILL: ((8, 5), NEWEST),
}


@dataclass(frozen=True, slots=True)
class Release:
    """One server release, such as 7.2, and how it behaves where releases differ.

    The properties follow recordings of 3.0, 3.1, 6.0, 6.6, 7.0, 7.2 and 8.0; the boundaries in between are those of the
    servers' source.
    """

    number: ReleaseNumber = NEWEST

    @classmethod
    def of(cls, version: str) -> Release:
        """Parse text such as `7.2` or `7.2.4`; raise UsageError unless it is 3.0 to 8.5."""
        parts = version.split(".")
        if len(parts) < 2 or not all(part.isdigit() for part in parts):
            raise UsageError(f"server_version: expected a release such as 7.2, found {version!r}")
        number = int(parts[0]), int(parts[1])
        if not (3, 0) <= number <= NEWEST:
            raise UsageError(f"server_version: expected 3.0 to {NEWEST[0]}.{NEWEST[1]}, found {version!r}")
        return cls(number)

    @property
    def full_version(self) -> str:
        """Version with a build number and the edition, as the management service has it."""
        return f"{self.number[0]}.{self.number[1]}.0-0000-enterprise"

    @property
    def version(self) -> str:
        """Version as the data service has it: before 4.0 without a build number."""
        return self.full_version if self.number >= (4, 0) else self.full_version.partition("-")[0]

    # Requests.

    @property
    def stream_flags(self) -> StreamFlag:
        """Known flags of a stream request; others are refused with EINVAL."""
        return StreamFlag(sum(flag for flag, since in _STREAM_FLAGS.items() if since <= self.number))

    @property
    def open_flags(self) -> OpenFlag:
        """Known flags of an open request; others are refused with EINVAL."""
        return OpenFlag(sum(flag for flag, (since, until) in _OPEN_FLAGS.items() if since <= self.number <= until))

    @property
    def has_users(self) -> bool:
        """True if clients must authenticate. Before 5.0, a bucket without a password was open to everybody."""
        return self.number >= (5, 0)

    @property
    def has_tokens(self) -> bool:
        """True if clients may authenticate with a token, over TLS."""
        return self.number >= (8, 1)

    @property
    def unknown_command(self) -> Status:
        """Status of the response to an unknown opcode."""
        return Status.EACCESS if (5, 0) <= self.number < (6, 5) else Status.UNKNOWN_COMMAND

    @property
    def hangs_up_on_misuse(self) -> bool:
        """True if a command at the wrong time closes the connection without a response."""
        return self.number < (6, 5)

    def hangs_up_on_malformed(self, opened: bool) -> bool:
        """Return whether a malformed request closes the connection; `opened` says if it was opened for DCP."""
        if opened:
            return (4, 0) <= self.number < (6, 5)
        return (4, 0) <= self.number < (7, 0)

    @property
    def failover_log_for_all(self) -> bool:
        """True if the DCP command for failover logs works before the connection is opened for DCP."""
        return (4, 0) <= self.number < (6, 5)

    @property
    def whole_noop_intervals(self) -> bool:
        """True if no-op intervals are whole seconds, 0 included; since 7.6, decimals of at least 0.1 s."""
        return self.number < (7, 6)

    @property
    def checks_manifest_uid(self) -> bool:
        """True if a stream request with a newer manifest than the node's is refused until the node catches up."""
        return (6, 5) <= self.number < (7, 0)

    @property
    def rollback(self) -> RollbackRules:
        """Comparisons that decide whether a consumer has to roll back."""
        return RollbackRules(
            purge=self.number >= (4, 0), purge_window=self.number < (5, 5), collapse=self.number >= (4, 0)
        )

    # Responses.

    @property
    def sorts_features(self) -> bool:
        """True if HELLO lists granted features by code, whatever the order of the request (seen in 7.2.9, 8.0.1)."""
        return self.number >= (7, 2)

    @property
    def tells_not_locked(self) -> bool:
        """True if unlocking a document that is not locked has a status of its own."""
        return self.number >= (7, 6)

    @property
    def errors_in_words(self) -> bool:
        """True if the value of an error response is its status as text."""
        return self.number < (4, 0)

    def errors_in_json(self, status: Status) -> bool:
        """Return whether the value of an error response is JSON with the reason."""
        return self.number >= (6, 5) or (status is Status.EACCESS and self.number >= (5, 5))

    @property
    def json_unasked(self) -> bool:
        """True if documents have datatype JSON without HELLO JSON."""
        return self.number < (4, 0)

    @property
    def maps_are_json(self) -> bool:
        """True if cluster maps have datatype JSON."""
        return self.number >= (5, 0)

    @property
    def refusals_with_maps_are_json(self) -> bool:
        """True if the cluster map in a NOT_MY_VBUCKET response has datatype JSON."""
        return self.number >= (7, 0)

    @property
    def tokens_are_of_prepares(self) -> bool:
        """True if the mutation token of a durable write has the seqno of its prepare, not of its commit.

        Later ones have a setting for that, which is on: sync_writes_return_committed_seqno of kv_engine.
        """
        return self.number < (8, 5)

    # Streams.

    @property
    def tap_forgets_first_checkpoints(self) -> bool:
        """True if TAP announces no vbucket whose open checkpoint was 1 before a clean restart (seen in 3.1.6).

        Such a vbucket is not streamed, even to a client that asks for it alone.
        """
        return self.number < (4, 0)

    @property
    def stream_id_defect(self) -> bool:
        """True if deletions with a stream id do not count its 3 bytes in the header (seen in 6.6.5 and 7.0.5)."""
        return self.number >= (6, 5)

    @property
    def no_value_keeps_datatype(self) -> bool:
        """True if documents sent without value keep the datatype of the stored value."""
        return self.number < (8, 0)

    @property
    def backfills_keys_without_metadata(self) -> bool:
        """True if documents that a stream without values and xattrs gets from disk have CAS 0, and no other metadata.

        Seen in 8.0.1 and not in 7.2.9. kv_engine since 7.6 makes such documents of their keys alone:
        CacheCallback::callback in engines/ep/src/dcp/backfill_disk.cc. From memory they have their metadata.
        """
        return self.number >= (7, 6)

    @property
    def all_xattrs_of_tombstones(self) -> bool:
        """True if tombstones are sent with user xattrs whatever the open flags are."""
        return self.number < (6, 6)

    @property
    def seqno_advanced(self) -> bool:
        """True if clients with collections get SEQNO_ADVANCED for seqnos that their filter leaves out."""
        return self.number >= (7, 0)

    @property
    def resumes_after_out_of_order(self) -> bool:
        """True if the marker after an out-of-order snapshot starts at the last seqno of it (seen in 7.2.9 and 8.0.1).

        In 7.0.5 it starts at the requested snapshot start, as the first marker of any other stream does.
        """
        return self.number >= (7, 2)

    @property
    def disk_checkpoints(self) -> bool:
        """True if markers of snapshots from disk have the CHECKPOINT flag."""
        return self.number >= (6, 5)


NEWEST_RELEASE = Release()
