"""State tables of connections and streams in every dialect, and their diagrams for docs/session.md."""

from __future__ import annotations

from collections.abc import Mapping

from dcp.errors import RemoteProtocolError

# For each state the events that may happen in it, each with the next state.
Table = Mapping[str, Mapping[str, str]]

READY, OVER = "ready", "over"

# Requests of a client from a fresh connection to streams; each one is answered before the next is sent.
SESSION: Table = {
    "connected": {"hello": "greeting"},
    "greeting": {
        "sasl_list_mechs": "authenticating",
        "select_bucket": "selecting",
        "get_cluster_config": "locating",
    },
    "authenticating": {
        "sasl_auth": "authenticating",
        "sasl_step": "authenticating",
        "select_bucket": "selecting",
        "get_cluster_config": "locating",
    },
    "selecting": {"get_cluster_config": "locating"},
    "locating": {"open": "opening", "agreed": READY},
    "opening": {"open": "opening", "control": "setting"},
    "setting": {"control": "setting", "agreed": READY},
    READY: {},
}

REQUESTED, ACCEPTED, IN_ORDER, OUT_OF_ORDER = "requested", "accepted", "in_order", "out_of_order"

# Messages of a node about one stream.
STREAM: Table = {
    REQUESTED: {"accepted": ACCEPTED, "refused": OVER, "rolled_back": OVER},
    ACCEPTED: {
        "snapshot_marker": IN_ORDER,
        "oso_begins": OUT_OF_ORDER,
        "cache_transfer": ACCEPTED,
        "cache_transfer_end": ACCEPTED,
        "stream_end": OVER,
        "closed": OVER,
    },
    IN_ORDER: {
        "row": IN_ORDER,
        "system_event": IN_ORDER,
        "seqno_advanced": IN_ORDER,
        "snapshot_marker": IN_ORDER,
        "stream_end": OVER,
        "closed": OVER,
    },
    OUT_OF_ORDER: {
        "row": OUT_OF_ORDER,
        "system_event": OUT_OF_ORDER,
        "seqno_advanced": OUT_OF_ORDER,
        "oso_ends": IN_ORDER,
        "stream_end": OVER,
        "closed": OVER,
    },
    OVER: {},
}

KNOWN, BETWEEN, IN_SNAPSHOT = "known", "between_snapshots", "in_snapshot"

# Messages of a node about one UPR stream, in either draft. The failover log is requested before the stream.
UPR: Table = {
    REQUESTED: {"failover_log": KNOWN, "refused": OVER},
    KNOWN: {"accepted": ACCEPTED, "refused": OVER, "rolled_back": OVER},
    ACCEPTED: {"stream_start": BETWEEN, "stream_flush": OVER, "stream_end": OVER},
    BETWEEN: {"snapshot_start": IN_SNAPSHOT, "stream_flush": OVER, "stream_end": OVER},
    IN_SNAPSHOT: {"row": IN_SNAPSHOT, "snapshot_end": BETWEEN, "stream_flush": OVER, "stream_end": OVER},
    OVER: {},
}

BACKFILLING, CURRENT, IN_CHECKPOINT = "backfilling", "current", "in_checkpoint"

# Messages of a node about one vbucket over TAP. One request covers all vbuckets of a connection, and only a refusal
# is answered.
TAP: Table = {
    REQUESTED: {"initial_vbucket_stream": BACKFILLING, "only_changes": CURRENT, "refused": OVER},
    BACKFILLING: {"close_backfill": CURRENT, "end_of_backfill": OVER, "tap_flush": OVER, "close_tap_stream": OVER},
    CURRENT: {
        "initial_vbucket_stream": BACKFILLING,
        "open_checkpoint": CURRENT,
        "tap_checkpoint_start": IN_CHECKPOINT,
        "taken_over": OVER,
        "tap_flush": OVER,
        "close_tap_stream": OVER,
    },
    IN_CHECKPOINT: {
        "initial_vbucket_stream": BACKFILLING,
        "tap_checkpoint_end": CURRENT,
        "taken_over": OVER,
        "tap_flush": OVER,
        "close_tap_stream": OVER,
    },
    OVER: {},
}


def follow(table: Table, state: str, event: str, subject: str) -> str:
    """Return the state after an event.

    subject: what the error message says it is about.

    Raises RemoteProtocolError if the event is not allowed in the state.
    """
    possible = table[state]
    if event not in possible:
        expected = ", ".join(possible) or "nothing"
        raise RemoteProtocolError(f"{subject}, {state}: expected {expected}, found {event}")
    return possible[event]


def events(table: Table) -> frozenset[str]:
    """Return the events that the table has in any state."""
    return frozenset(event for possible in table.values() for event in possible)


def mermaid(table: Table) -> str:
    """Return the table as a Mermaid diagram. It starts in the first state."""
    lines = ["stateDiagram-v2", f"    [*] --> {next(iter(table))}"]
    for state, possible in table.items():
        for target in dict.fromkeys(possible.values()):
            events = ", ".join(event for event, after in possible.items() if after == target)
            lines.append(f"    {state} --> {target}: {events}")
        if not possible:
            lines.append(f"    {state} --> [*]")
    return "\n".join(lines)
