"""DCP_CONTROL: the settings that a consumer may change on its connection, and the releases that know them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from dcp.embedded.negotiated import Negotiated
from dcp.embedded.release import NEWEST, ReleaseNumber
from dcp.wire.memcached import Status

_LARGEST_WINDOW = (1 << 32) - 1
_SHORTEST_INTERVAL = 0.1
_WHOLE, _DECIMAL = re.compile(r"[0-9]{1,10}"), re.compile(r"[0-9]{1,10}(\.[0-9]{1,10})?")
_NEVER: ReleaseNumber = (99, 0)

# A setter returns the new agreement, or the status of its refusal.
Setter = Callable[[Negotiated, str], Negotiated | Status]


def set_control(negotiated: Negotiated, name: str, value: str) -> Negotiated | Status:
    """Return the agreement with one control changed, or the error status of the response."""
    # Servers refuse unknown controls with EINVAL, by which clients detect what a release supports.
    since, until, setter = _CONTROLS.get(name, (_NEVER, NEWEST, _accept))
    if not since <= negotiated.release.number <= until:
        return Status.EINVAL
    return setter(negotiated, value)


def _accept(negotiated: Negotiated, value: str) -> Negotiated | Status:
    """Accept any value, without effect here."""
    return negotiated


def _refuse(negotiated: Negotiated, value: str) -> Negotiated | Status:
    return Status.NOT_SUPPORTED


def _window(negotiated: Negotiated, value: str) -> Negotiated | Status:
    if not value.isdecimal() or int(value) > _LARGEST_WINDOW:
        return Status.EINVAL
    return replace(negotiated, window=int(value))


def _interval(negotiated: Negotiated, value: str) -> Negotiated | Status:
    whole = negotiated.release.whole_noop_intervals
    if not (_WHOLE if whole else _DECIMAL).fullmatch(value) or not (whole or float(value) >= _SHORTEST_INTERVAL):
        return Status.EINVAL
    return replace(negotiated, noop_interval=float(value))


def _switch(name: str) -> Setter:
    """Return a setter that `true` switches on and any other value off."""

    def setter(negotiated: Negotiated, value: str) -> Negotiated | Status:
        return replace(negotiated, **{name: value == "true"})  # type: ignore[arg-type]

    return setter


def _one_way(name: str, *, other_values_accepted: bool = False) -> Setter:
    """Return a setter that `true` switches on and nothing switches off again."""

    def setter(negotiated: Negotiated, value: str) -> Negotiated | Status:
        if value != "true":
            return negotiated if other_values_accepted else Status.EINVAL
        return replace(negotiated, **{name: True})  # type: ignore[arg-type]

    return setter


def _one_of(*values: str) -> Setter:
    def setter(negotiated: Negotiated, value: str) -> Negotiated | Status:
        return negotiated if value in values else Status.EINVAL

    return setter


def _stream_ids(negotiated: Negotiated, value: str) -> Negotiated | Status:
    if negotiated.sync_writes:
        return Status.NOT_SUPPORTED
    return _one_way("stream_ids")(negotiated, value)


def _sync_writes(negotiated: Negotiated, value: str) -> Negotiated | Status:
    if negotiated.stream_ids:
        return Status.NOT_SUPPORTED
    return _one_way("sync_writes")(negotiated, value)


def _consumer_name(negotiated: Negotiated, value: str) -> Negotiated | Status:
    return replace(negotiated, consumer_name=value)


def _compress(negotiated: Negotiated, value: str) -> Negotiated | Status:
    if not negotiated.snappy:
        return Status.EINVAL
    return _switch("compress")(negotiated, value)


def _deleted_user_xattrs(negotiated: Negotiated, value: str) -> Negotiated | Status:
    """Answer whether the open flag of the same name is in force; this control changes nothing."""
    return negotiated if value == "true" and negotiated.deleted_user_xattrs else Status.EINVAL


def _out_of_order(negotiated: Negotiated, value: str) -> Negotiated | Status:
    if value not in ("true", "true_with_seqno_advanced"):
        return Status.EINVAL
    return replace(negotiated, out_of_order=True, out_of_order_advances=value == "true_with_seqno_advanced")


def _change_streams(negotiated: Negotiated, value: str) -> Negotiated | Status:
    # Of the servers' storage engines only Magma retains history; Couchstore and Ephemeral answer like this.
    if not negotiated.retains_history:
        return Status.NOT_SUPPORTED
    return _one_way("change_streams")(negotiated, value)


def _marker_version(negotiated: Negotiated, value: str) -> Negotiated | Status:
    if value != "2.2":
        return Status.EINVAL
    if not negotiated.collections:
        return Status.NOT_SUPPORTED
    return replace(negotiated, marker_2_2=True)


# By name: first and last release that knows the control, and its setter.
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
        _one_way("end_on_close", other_values_accepted=True),
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
