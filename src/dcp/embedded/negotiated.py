"""The agreement of a DCP connection: HELLO features, open flags and controls in one record."""

from __future__ import annotations

from dataclasses import dataclass

from dcp.embedded.release import NEWEST_RELEASE, Release
from dcp.wire.dcp import OpenFlag

WITHOUT_VALUES = OpenFlag.NO_VALUE | OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE


@dataclass(frozen=True, slots=True)
class Negotiated:
    """Everything that a DCP connection has agreed on so far.

    The record is immutable: each control replaces the connection's record, and a stream keeps the record that was in
    force when it was requested, as on servers.
    """

    release: Release = NEWEST_RELEASE
    # Whether the bucket retains all versions of its documents, without which change streams are refused.
    retains_history: bool = False

    # HELLO features. Later HELLOs do not change a connection that is open.
    collections: bool = False
    snappy: bool = False

    # Open flags.
    xattrs: bool = False
    deleted_user_xattrs: bool = False
    values: bool = True
    # Keep the datatype of the stored value although parts of the value are left out.
    underlying_datatype: bool = False
    # Neither values nor xattrs, so that a node can send documents that it has not read from disk.
    keys_only: bool = False
    delete_times: bool = False
    skip_deletes: bool = False

    # Controls.
    window: int = 0
    noop: bool = False
    # Seconds.
    noop_interval: float = 20.0
    end_on_close: bool = False
    expirations: bool = False
    stream_ids: bool = False
    sync_writes: bool = False
    consumer_name: str = ""
    compress: bool = False
    out_of_order: bool = False
    out_of_order_advances: bool = False
    flatbuffers: bool = False
    change_streams: bool = False
    marker_2_2: bool = False

    @classmethod
    def opened(
        cls, flags: OpenFlag, *, collections: bool, snappy: bool, retains_history: bool, release: Release
    ) -> Negotiated:
        """Return the agreement of a connection that has just been opened, with the default of every control."""
        keeps_datatype = OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE
        if release.no_value_keeps_datatype:
            keeps_datatype |= OpenFlag.NO_VALUE
        return cls(
            release,
            retains_history,
            collections=collections,
            snappy=snappy,
            xattrs=OpenFlag.INCLUDE_XATTRS in flags,
            deleted_user_xattrs=OpenFlag.INCLUDE_DELETED_USER_XATTRS in flags,
            values=not flags & WITHOUT_VALUES,
            underlying_datatype=bool(flags & keeps_datatype),
            keys_only=OpenFlag.NO_VALUE in flags and OpenFlag.INCLUDE_XATTRS not in flags,
            delete_times=OpenFlag.INCLUDE_DELETE_TIMES in flags,
            skip_deletes=OpenFlag.SKIP_DELETES_IN_INITIAL_BACKFILL in flags,
        )

    @property
    def tombstones_with_user_xattrs(self) -> bool:
        """True if deletions carry the xattrs of users, not only those of the system."""
        return self.deleted_user_xattrs or self.release.all_xattrs_of_tombstones

    @property
    def replicates(self) -> bool:
        """True if the consumer replicates sync writes, as nodes do: snapshot markers have version 2.0 or newer."""
        return self.sync_writes and bool(self.consumer_name)

    @property
    def seqno_advanced(self) -> bool:
        """True if the consumer gets SEQNO_ADVANCED for seqnos that are not in its stream."""
        # A consumer of all of these gets a frame for every seqno: ActiveStream::isSeqnoAdvancedEnabled of kv_engine.
        every_seqno = self.sync_writes and self.flatbuffers and not self.skip_deletes
        return self.collections and self.release.seqno_advanced and not every_seqno
