"""What a generation of servers knows, by the release that brought it."""

from __future__ import annotations

from dataclasses import dataclass

from dcp.embedded.rollback import Rules
from dcp.errors import LocalProtocolError
from dcp.wire.dcp import OpenFlag, StreamFlag
from dcp.wire.memcached import Status

ReleaseNumber = tuple[int, int]
NEWEST: ReleaseNumber = (8, 5)

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
# The releases between which a flag of an open request is known.
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
    """A release of the server, as far as its behaviour is its own."""

    number: ReleaseNumber = NEWEST

    @classmethod
    def of(cls, version: str) -> Release:
        """From text such as `7.2` or `7.2.4`."""
        parts = version.split(".")
        if len(parts) < 2 or not all(part.isdigit() for part in parts):
            raise LocalProtocolError(f"server_version: expected a release such as 7.2, found {version!r}")
        release = int(parts[0]), int(parts[1])
        if not (3, 0) <= release <= NEWEST:
            raise LocalProtocolError(f"server_version: expected 3.0 to {NEWEST[0]}.{NEWEST[1]}, found {version!r}")
        return cls(release)

    @property
    def stream_flags(self) -> StreamFlag:
        """The flags of a stream request that it knows; others are refused."""
        known = StreamFlag(0)
        for flag, since in _STREAM_FLAGS.items():
            known |= flag if since <= self.number else StreamFlag(0)
        return known

    @property
    def open_flags(self) -> OpenFlag:
        """The flags of an open request that it knows; others are refused."""
        known = OpenFlag(0)
        for flag, (since, until) in _OPEN_FLAGS.items():
            known |= flag if since <= self.number <= until else OpenFlag(0)
        return known

    @property
    def has_users(self) -> bool:
        """Whether a client has to say who it is: before, a bucket without a password was everybody's."""
        return self.number >= (5, 0)

    @property
    def stream_id_defect(self) -> bool:
        """Whether deletions with a stream id are sent without counting it."""
        return self.number >= (6, 5)

    @property
    def errors_in_words(self) -> bool:
        """Whether the value of an error is its status in words."""
        return self.number < (4, 0)

    def errors_in_json(self, status: Status) -> bool:
        """Whether the value of an error says what was wrong."""
        return self.number >= (6, 5) or (status is Status.EACCESS and self.number >= (5, 5))

    @property
    def json_unasked(self) -> bool:
        """Whether documents are said to be JSON to those who did not ask."""
        return self.number < (4, 0)

    @property
    def maps_are_json(self) -> bool:
        """Whether a map has the datatype that it is of."""
        return self.number >= (5, 0)

    @property
    def refusals_with_maps_are_json(self) -> bool:
        """Whether the map in a refusal has the datatype that it is of."""
        return self.number >= (7, 0)

    @property
    def unknown_command(self) -> Status:
        """The answer to a command that it does not know."""
        return Status.EACCESS if (5, 0) <= self.number < (6, 5) else Status.UNKNOWN_COMMAND

    @property
    def hangs_up_on_misuse(self) -> bool:
        """Whether a command at the wrong time closes the connection without an answer."""
        return self.number < (6, 5)

    def hangs_up_on_malformed(self, opened: bool) -> bool:
        """Whether a malformed request closes the connection, which is `opened` for DCP or not."""
        if opened:
            return (4, 0) <= self.number < (6, 5)
        return (4, 0) <= self.number < (7, 0)

    @property
    def failover_log_for_all(self) -> bool:
        """Whether the DCP command for a failover log works on any connection."""
        return (4, 0) <= self.number < (6, 5)

    @property
    def whole_noop_intervals(self) -> bool:
        """Whether noops come after whole seconds only, none among them."""
        return self.number < (7, 6)

    @property
    def no_value_keeps_datatype(self) -> bool:
        """Whether documents without their values keep the datatype of what is stored."""
        return self.number < (8, 0)

    @property
    def all_xattrs_of_tombstones(self) -> bool:
        """Whether tombstones come with the attributes of users, whatever the open flags say."""
        return self.number < (6, 6)

    @property
    def checks_manifest_uid(self) -> bool:
        """Whether a consumer that knows a newer manifest is told to wait."""
        return (6, 5) <= self.number < (7, 0)

    @property
    def rollback(self) -> Rules:
        """How it decides whether a consumer has to go back."""
        return Rules(purge=self.number >= (4, 0), purge_window=self.number < (5, 5), collapse=self.number >= (4, 0))

    @property
    def seqno_advanced(self) -> bool:
        """Whether a consumer with collections is told of seqnos that are not for it."""
        return self.number >= (7, 0)

    @property
    def disk_checkpoints(self) -> bool:
        """Whether snapshots from disk say that they are checkpoints."""
        return self.number >= (6, 5)


NEWEST_RELEASE = Release()
