"""What a DCP consumer may set on its connection, and what each release makes of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from dcp.embedded.release import NEWEST, NEWEST_RELEASE, Release, ReleaseNumber
from dcp.wire.memcached import Status

_LARGEST_WINDOW = (1 << 32) - 1
_SHORTEST_INTERVAL = 0.1
_WHOLE, _DECIMAL = re.compile(r"[0-9]{1,10}"), re.compile(r"[0-9]{1,10}(\.[0-9]{1,10})?")
_NEVER: ReleaseNumber = (99, 0)


@dataclass
class Controls:
    """The settings of a connection, as it opens."""

    window: int = 0
    noop: bool = False
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


@dataclass(frozen=True, slots=True)
class Connection:
    """What of the connection decides about a setting."""

    collections: bool = False
    snappy: bool = False
    deleted_user_xattrs: bool = False
    history: bool = False
    release: Release = NEWEST_RELEASE


Setter = Callable[[Controls, str, Connection], Status]


def set_control(controls: Controls, name: str, value: str, connection: Connection) -> Status:
    """Set one, and say how that went."""
    since, until, setter = _CONTROLS.get(name, (_NEVER, NEWEST, _accept))
    if not since <= connection.release.number <= until:
        return Status.EINVAL
    return setter(controls, value, connection)


def _accept(controls: Controls, value: str, connection: Connection) -> Status:
    return Status.SUCCESS


def _refuse(controls: Controls, value: str, connection: Connection) -> Status:
    return Status.NOT_SUPPORTED


def _window(controls: Controls, value: str, connection: Connection) -> Status:
    if not value.isdecimal() or int(value) > _LARGEST_WINDOW:
        return Status.EINVAL
    controls.window = int(value)
    return Status.SUCCESS


def _interval(controls: Controls, value: str, connection: Connection) -> Status:
    whole = connection.release.whole_noop_intervals
    if not (_WHOLE if whole else _DECIMAL).fullmatch(value) or not (whole or float(value) >= _SHORTEST_INTERVAL):
        return Status.EINVAL
    controls.noop_interval = float(value)
    return Status.SUCCESS


def _switch(name: str) -> Setter:
    """On with true, off with anything else."""

    def setter(controls: Controls, value: str, connection: Connection) -> Status:
        setattr(controls, name, value == "true")
        return Status.SUCCESS

    return setter


def _one_way(name: str, *, other_values: Status = Status.EINVAL) -> Setter:
    """On with true, and never off again."""

    def setter(controls: Controls, value: str, connection: Connection) -> Status:
        if value != "true":
            return other_values
        setattr(controls, name, True)
        return Status.SUCCESS

    return setter


def _one_of(*values: str) -> Setter:
    def setter(controls: Controls, value: str, connection: Connection) -> Status:
        return Status.SUCCESS if value in values else Status.EINVAL

    return setter


def _stream_ids(controls: Controls, value: str, connection: Connection) -> Status:
    if controls.sync_writes:
        return Status.NOT_SUPPORTED
    return _one_way("stream_ids")(controls, value, connection)


def _sync_writes(controls: Controls, value: str, connection: Connection) -> Status:
    if controls.stream_ids:
        return Status.NOT_SUPPORTED
    return _one_way("sync_writes")(controls, value, connection)


def _consumer_name(controls: Controls, value: str, connection: Connection) -> Status:
    controls.consumer_name = value
    return Status.SUCCESS


def _compress(controls: Controls, value: str, connection: Connection) -> Status:
    if not connection.snappy:
        return Status.EINVAL
    return _switch("compress")(controls, value, connection)


def _deleted_user_xattrs(controls: Controls, value: str, connection: Connection) -> Status:
    return Status.SUCCESS if value == "true" and connection.deleted_user_xattrs else Status.EINVAL


def _out_of_order(controls: Controls, value: str, connection: Connection) -> Status:
    if value not in ("true", "true_with_seqno_advanced"):
        return Status.EINVAL
    controls.out_of_order = True
    controls.out_of_order_advances = value == "true_with_seqno_advanced"
    return Status.SUCCESS


def _change_streams(controls: Controls, value: str, connection: Connection) -> Status:
    if not connection.history:
        return Status.NOT_SUPPORTED
    return _one_way("change_streams")(controls, value, connection)


def _marker_version(controls: Controls, value: str, connection: Connection) -> Status:
    if value != "2.2":
        return Status.EINVAL
    if not connection.collections:
        return Status.NOT_SUPPORTED
    controls.marker_2_2 = True
    return Status.SUCCESS


# By name: the releases that know it, and what it does.
_CONTROLS: dict[str, tuple[ReleaseNumber, ReleaseNumber, Setter]] = {
    "connection_buffer_size": ((3, 0), NEWEST, _window),
    "stream_buffer_size": ((3, 0), NEWEST, _refuse),
    "enable_noop": ((3, 0), NEWEST, _switch("noop")),
    "set_noop_interval": ((3, 0), NEWEST, _interval),
    "enable_ext_metadata": ((4, 0), (6, 6), _accept),
    "set_priority": ((4, 0), NEWEST, _one_of("high", "medium", "low")),
    "enable_value_compression": ((4, 5), (5, 1), _accept),
    "supports_cursor_dropping": ((4, 5), NEWEST, _accept),
    "supports_cursor_dropping_vulcan": ((5, 5), NEWEST, _accept),
    "supports_hifi_MFU": ((5, 5), NEWEST, _accept),
    "force_value_compression": ((5, 5), NEWEST, _compress),
    "send_stream_end_on_client_close_stream": (
        (5, 5),
        NEWEST,
        _one_way("end_on_close", other_values=Status.SUCCESS),
    ),
    "enable_expiry_opcode": ((6, 5), NEWEST, _switch("expirations")),
    "enable_stream_id": ((6, 5), NEWEST, _stream_ids),
    "enable_sync_writes": ((6, 5), NEWEST, _sync_writes),
    "consumer_name": ((6, 5), NEWEST, _consumer_name),
    "backfill_order": ((6, 6), NEWEST, _one_of("round-robin", "sequential")),
    "include_deleted_user_xattrs": ((6, 6), NEWEST, _deleted_user_xattrs),
    "enable_out_of_order_snapshots": ((7, 0), NEWEST, _out_of_order),
    "v7_dcp_status_codes": ((7, 0), NEWEST, _one_of("true")),
    "flatbuffers_system_events": ((7, 2), NEWEST, _one_way("flatbuffers")),
    "change_streams": ((7, 2), NEWEST, _change_streams),
    "max_marker_version": ((8, 0), NEWEST, _marker_version),
    "cache_transfer": ((8, 5), NEWEST, _refuse),
}
