"""Recorded conversations, replayed with an embedded node as the server.

Every frame must be the one that the real server sent, except for values that are random.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import pytest

from dcp.embedded.bucket import NOBODY, BucketStore
from dcp.embedded.connection import ServerConnection
from dcp.embedded.handlers import HANDLERS
from dcp.embedded.release import Release
from dcp.embedded.store import StoredItem, StreamItem, SystemItem
from dcp.embedded.users import Privilege, User
from dcp.wire.dcp import StreamEnd, SystemEvent
from dcp.wire.frame import Frame, encode, read_frame
from dcp.wire.layout import Magic
from dcp.wire.memcached import FEATURES, Feature, Status, VbucketState
from tests.conformance import HEADER_SIZE, TRANSCRIPTS, Transcript, cut, transcript
from tests.embedded.recorded import (
    DCP,
    SentFrame,
    absent_vbuckets,
    begins_checkpoint,
    bucket_of,
    end_of,
    frames_of,
    is_from_disk,
    items_of,
    logs_of,
    manifest_of,
    purged_of,
    seqnos_of,
)

# Recordings that are not replayed, and the reason.
_BETA_MARKERS = "this beta sends memory snapshots without an end, and disk snapshots with the flag of memory"
_BETA_NOOPS = "this beta refuses the no-op interval, and accepts any text as window"
EXCLUDED: dict[str, str] = {
    "3.0.0-beta1/crash_rollback": _BETA_MARKERS,
    "3.0.0-beta1/error_open_twice": "this beta lets a connection be opened twice",
    "3.0.0-beta1/flow_control_*": _BETA_MARKERS,
    "3.0.0-beta1/four_vbuckets_pipelined": _BETA_MARKERS,
    "3.0.0-beta1/handshake_controls": _BETA_NOOPS,
    "3.0.0-beta1/noop_answered": _BETA_NOOPS,
    "3.0.0-beta1/stream_*": _BETA_MARKERS,
    "3.0.0-beta1/vbucket_dead_while_streaming": _BETA_MARKERS,
    "*/server_as_consumer": "an embedded node is never a consumer",
    "*/sync_writes_live": "the writes of the recorder are repeated in tests/embedded/commands/test_durability.py",
}
# Responses that differ for each server: build number, cluster map, descriptions of statuses.
DIFFERENT = ("version", "get_cluster_config", "get_error_map")
# Error responses whose value refers to a log, or is a cluster map.
REFERRING = (Status.NOT_MY_VBUCKET, Status.AUTH_ERROR, Status.EACCESS)
# This recording ends in the middle of a snapshot, so the node sends more than was recorded.
ENDS_EARLY = "6.0.5/snappy_passive_hello"
COUNTS = {"equal": 152, "excluded": 17}

VERSIONS = {
    **{"3.0.0-beta1": "3.0", "3.1.6": "3.1", "6.0.5": "6.0", "6.6.5": "6.6"},
    **{"7.0.5": "7.0", "7.2.9": "7.2", "8.0.1": "8.0"},
}
# Seconds after the response from which on a snapshot consists of later writes.
SOON = 0.5
_A_SECOND_OR_SO = 1.5

USERS = {
    "@admin": User("@admin", "password"),
    "noob": User("noob", "password", frozenset({Privilege.READ})),
    "user": User("user", "password"),
}

RECORDINGS = [path for path in TRANSCRIPTS if not path.stem.startswith("tap_")]


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def why_excluded(path: Path) -> str:
    return next((reason for pattern, reason in EXCLUDED.items() if fnmatch(named(path), pattern)), "")


EQUAL = [path for path in RECORDINGS if not why_excluded(path)]


# The messages of SCRAM depend on the nonces and the salt of the exchange: PLAIN stands for it in a replay.
_SASL_OPCODES = (0x21, 0x22)
_PLAIN = encode(Frame("sasl_auth", Magic.REQUEST, key=b"PLAIN", value=b"\0user\0password"))


def without_scram(frame: SentFrame) -> bytes:
    """Return a request, or what takes its place if it belongs to SCRAM."""
    key = frame.raw[HEADER_SIZE : HEADER_SIZE + len(b"SCRAM")]
    if frame.raw[1] not in _SASL_OPCODES or key != b"SCRAM":
        return frame.raw
    return _PLAIN if frame.frame.name == "sasl_auth" else b""


def stored(item: StreamItem) -> StreamItem:
    """Return an item as it was stored: with metadata of some kind, if the server sent it without any."""
    if not isinstance(item, StoredItem) or item.cas:
        return item
    return item._replace(cas=item.seqno << 16, flags=5, expiry=7, rev_seqno=item.rev_seqno + 3)


class DcpReplay:
    """Replay of one recorded conversation."""

    def __init__(self, recording: Transcript) -> None:
        self.transcript = recording
        self.server = frames_of(recording, "server")
        self.client = frames_of(recording, "client")
        self.sent: list[bytes] = []
        # At each turn of the client: its number, and the counted bytes that were sent before.
        self.paces: list[tuple[int, int]] = []
        self.items = items_of(recording)
        release = Release.of(VERSIONS[recording.version])
        self.bucket = BucketStore(bucket_of(recording), vbuckets=64, release=release, clock=lambda: 0)
        self.node = self.bucket.nodes[0]
        for number, log in logs_of(recording).items():
            self.node.vbuckets[number].log = log
        for number, seqno in purged_of(recording).items():
            self.node.vbuckets[number].purge_seqno = seqno
        for number in absent_vbuckets(recording) & self.node.vbuckets.keys():
            del self.node.vbuckets[number]
            self.bucket.owners[number] = [NOBODY]
        self._fill()
        self._advance()
        self.connection = ServerConnection(self.bucket, self.node, HANDLERS, users=USERS)

    # Stored items.

    def _fill(self) -> None:
        """Store the items from before the conversation: the first snapshot of each stream that began at once."""
        answered = {one.frame.opaque: self._when(one) for one in self.server if one.frame.kind.answers}
        for number, opening in self._openings().items():
            if opening is None:
                self._put(number, self.items[number][-1].seqno)
            elif opening.frame.name == "oso_snapshot":
                self._put(number, self._last_out_of_order(number))
            elif self._when(opening) - answered[opening.frame.opaque] < SOON:
                self._store(opening.frame)
            if opening is None or opening.frame.name == "oso_snapshot":
                self.node.vbuckets[number].evict_checkpoint()

    def _advance(self) -> None:
        """Give the vbuckets the high seqnos that the server sent."""
        for seqnos in seqnos_of(self.transcript):
            for number in self.node.vbuckets.keys() - seqnos:
                del self.node.vbuckets[number]
                self.bucket.owners[number] = [NOBODY]
            for number, seqno in seqnos.items():
                if seqno > self.node.vbuckets[number].high_seqno:
                    self.node.vbuckets[number].put(StoredItem("mutation", seqno, b"last"))

    def _openings(self) -> dict[int, SentFrame | None]:
        """Return the frame that opens the first snapshot of each vbucket; None if there was no snapshot."""
        found: dict[int, SentFrame | None] = dict.fromkeys(self.items)
        for one in self.server:
            if one.frame.name in ("snapshot_marker", "oso_snapshot") and found.get(one.frame.vbucket) is None:
                found[one.frame.vbucket] = one
        return found

    def _last_out_of_order(self, number: int) -> int:
        frames = [one.frame for one in self.server if not one.frame.kind.answers and one.frame.vbucket == number]
        names = [frame.name for frame in frames]
        end = len(names) - names[::-1].index("oso_snapshot")
        return max(int(frame.fields.get("seqno", 0)) for frame in frames[:end])

    def _when(self, one: SentFrame) -> float:
        return self.transcript.timeline[one.turn].when

    def _store(self, marker: Frame) -> None:
        """Store the items of a snapshot, on disk or in memory, as its marker says."""
        vbucket = self.node.vbuckets[marker.vbucket]
        new = vbucket.high_seqno < end_of(marker)
        self._put(marker.vbucket, end_of(marker))
        if is_from_disk(marker):
            vbucket.evict_checkpoint()
        elif new and begins_checkpoint(marker):
            vbucket.checkpoint_start = int(marker.fields["snapshot_start"])

    def _put(self, number: int, until: int) -> None:
        vbucket = self.node.vbuckets[number]
        items = [stored(item) for item in self.items.get(number, ()) if item.seqno <= until]
        for item in items:
            if item.seqno <= vbucket.high_seqno:
                continue
            vbucket.put(item)
            if isinstance(item, SystemItem) and item.event_id == SystemEvent.COLLECTION_END:
                vbucket.drop_collection(item.collection_id or 0)
        if any(isinstance(item, SystemItem) for item in items):
            self.bucket.manifest = manifest_of(items)

    # Conversation.

    def run(self) -> None:
        for number, turn in enumerate(self.transcript.timeline):
            if turn.side == "client":
                self.paces.append((number, counted(self.sent)))
                data = b"".join(without_scram(one) for one in self.client if one.turn == number)
                self.connection.receive(data, turn.when)
                self._drain(turn.when)
            for one in self.server:
                if one.turn == number:
                    self._cause(one.frame, turn.when)

    def _cause(self, frame: Frame, now: float) -> None:
        """Cause the event that made the server send this frame."""
        if frame.name == "snapshot_marker":
            self._store(frame)
        elif frame.name == "stream_end" and frame.fields["reason"] == StreamEnd.STATE_CHANGED:
            self.node.vbuckets[frame.vbucket].state = VbucketState.DEAD
        elif frame.name == "dcp_noop" and not frame.kind.answers:
            self._wait_for_noop(now)
        self._drain(now)

    def _wait_for_noop(self, now: float) -> None:
        """Advance to the next no-op. Recorded times are rounded: servers count whole seconds."""
        due = self.connection.due()
        assert due is not None
        assert abs(due - now) < _A_SECOND_OR_SO
        self.connection.tick(due)

    def _drain(self, now: float) -> None:
        while parts := self.connection.send(now):
            self.sent.extend(cut(b"".join(bytes(part) for part in parts)))


# Comparison.


def comparable(raw: bytes) -> bytes:
    """Return a frame without random values: hotness of documents; CAS, duration and references of responses."""
    frame = read_frame(raw, DCP)
    if frame.kind.answers:
        if frame.name == "hello":
            # Not granted by the embedded node: with it, responses contain their duration.
            frame = replace(frame, value=FEATURES.encode(one for one in frame.body() if one != Feature.TRACING))
        if frame.name in DIFFERENT:
            frame = replace(frame, value=b"")
        if frame.name == "sasl_auth" and frame.status == Status.AUTH_CONTINUE:
            frame = replace(frame, status=Status.SUCCESS, value=b"")
        if frame.status in REFERRING:
            frame = replace(frame, value=b"", datatype=0)
        return encode(replace(frame, magic=Magic.RESPONSE, frame_info=(), cas=0))
    if "nru" in frame.fields:
        return encode(replace(frame, fields={**frame.fields, "nru": 0}))
    return raw


def by_stream(raws: list[bytes]) -> dict[object, list[bytes]]:
    """Group frames by stream: the order between streams depends on scheduling."""
    found: dict[object, list[bytes]] = {}
    for raw in raws:
        frame = read_frame(raw, DCP)
        if frame.name == "sasl_step":
            continue
        stream = "answers" if frame.kind.answers else frame.name if frame.name == "dcp_noop" else ""
        found.setdefault(stream or (frame.vbucket, frame.stream_id), []).append(comparable(raw))
    return found


def counted(raws: Iterable[bytes]) -> int:
    """Return the number of bytes that flow control counts."""
    frames = ((raw, read_frame(raw, DCP)) for raw in raws)
    return sum(len(raw) for raw, frame in frames if not frame.kind.answers and frame.name != "dcp_noop")


@pytest.mark.parametrize("path", EQUAL, ids=named)
def test_the_node_sends_what_the_server_sent(path: Path) -> None:
    replay = DcpReplay(transcript(path))
    replay.run()
    recorded = by_stream([one.raw for one in replay.server])
    sent_by_stream = by_stream(replay.sent)
    assert recorded.keys() == sent_by_stream.keys()
    for stream, frames in recorded.items():
        sent = sent_by_stream[stream][: len(frames)] if replay.transcript.id == ENDS_EARLY else sent_by_stream[stream]
        assert shown(sent) == shown(frames)
        assert sent == frames
    assert replay.connection.closing == any(turn.side == "server_close" for turn in replay.transcript.timeline)


def shown(raws: list[bytes]) -> list[str]:
    return [str(read_frame(raw, DCP)) for raw in raws]


@pytest.mark.parametrize("path", [path for path in EQUAL if "flow_control" in path.stem], ids=named)
def test_the_node_waits_for_acknowledgements_where_the_server_did(path: Path) -> None:
    replay = DcpReplay(transcript(path))
    replay.run()
    window = acknowledged = still = 0
    for turn, sent in replay.paces:
        recorded = counted(one.raw for one in replay.server if one.turn < turn)
        if 0 < window <= recorded - acknowledged:
            assert sent == recorded
            still += 1
        for frame in (one.frame for one in replay.client if one.turn == turn):
            acknowledged += int(frame.fields["bytes"]) if frame.name == "buffer_ack" else 0
            window = int(frame.value) if frame.key == b"connection_buffer_size" else window
    assert still > 3


def test_every_recording_is_equal_or_excluded_for_a_reason() -> None:
    assert {"equal": len(EQUAL), "excluded": len(RECORDINGS) - len(EQUAL)} == COUNTS
    for pattern in EXCLUDED:
        assert any(fnmatch(named(path), pattern) for path in RECORDINGS)
