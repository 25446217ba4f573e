"""Recorded conversations, held again with an embedded node in the server's place.

What real servers said is the yardstick: every frame must be the same, apart from what is chance.
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
from dcp.embedded.store import StoredItem, SystemItem
from dcp.embedded.users import Privilege, User
from dcp.wire.dcp import StreamEnd, SystemEvent
from dcp.wire.frame import Frame, encode, read_frame
from dcp.wire.layout import Magic
from dcp.wire.memcached import FEATURES, Feature, Status, VbucketState
from tests.conformance import TRANSCRIPTS, Transcript, cut, transcript
from tests.embedded.recorded import (
    DCP,
    Said,
    absent_vbuckets,
    begins_checkpoint,
    bucket_of,
    end_of,
    is_from_disk,
    items_of,
    logs_of,
    manifest_of,
    said,
    seqnos_of,
)

# Recordings that are not held again, and why.
_BETA_MARKERS = "this beta announces what is in memory as one snapshot without an end, and disk with the flag of memory"
_BETA_NOOPS = "this beta refuses the interval of noops, and takes any text for a window"
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
    "*/sync_writes_enabled": "there are no sync writes in an embedded cluster",
}
# What each server has of its own: its build, its map, its words for statuses.
OF_THEIR_OWN = ("version", "get_cluster_config", "get_error_map", "sasl_list_mechs")
# Their values refer to a log, or are a map.
REFERRING = (Status.NOT_MY_VBUCKET, Status.AUTH_ERROR, Status.EACCESS)
# One ends in the middle of a snapshot: what was still to come is no difference.
ENDS_EARLY = "6.0.5/snappy_passive_hello"
HOW_MANY = {"equal": 138, "excluded": 17}

VERSIONS = {"3.0.0-beta1": "3.0", "3.1.6": "3.1", "6.0.5": "6.0", "6.6.5": "6.6", "7.0.5": "7.0"}
# A snapshot that begins so long after its stream is of writes that came in between.
SOON = 0.5
_A_SECOND_OR_SO = 1.5

USERS = {
    "@admin": User("@admin", "password"),
    "noob": User("noob", "password", frozenset({Privilege.READ})),
}

RECORDINGS = [path for path in TRANSCRIPTS if not path.stem.startswith("tap_")]


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def why_excluded(path: Path) -> str:
    return next((reason for pattern, reason in EXCLUDED.items() if fnmatch(named(path), pattern)), "")


EQUAL = [path for path in RECORDINGS if not why_excluded(path)]


class Rerun:
    """A recorded conversation, with an embedded node as the server."""

    def __init__(self, talk: Transcript) -> None:
        self.transcript = talk
        self.server = said(talk, "server")
        self.client = said(talk, "client")
        self.sent: list[bytes] = []
        # How many bytes of streams had been sent when a turn of the client came.
        self.paces: list[tuple[int, int]] = []
        self.items = items_of(talk)
        release = Release.of(VERSIONS[talk.version])
        self.bucket = BucketStore(bucket_of(talk), vbuckets=64, release=release, clock=lambda: 0)
        self.node = self.bucket.nodes[0]
        for number, log in logs_of(talk).items():
            self.node.vbuckets[number].log = log
        for number in absent_vbuckets(talk) & self.node.vbuckets.keys():
            del self.node.vbuckets[number]
            self.bucket.owners[number] = [NOBODY]
        self._fill()
        self._advance()
        self.connection = ServerConnection(self.bucket, self.node, HANDLERS, users=USERS)

    # What was stored when.

    def _fill(self) -> None:
        """What was there before the conversation: all of the first snapshots, if they came at once."""
        answered = {one.frame.opaque: self._when(one) for one in self.server if one.frame.kind.answers}
        for number, opening in self._openings().items():
            if opening is None:
                self._put(number, self.items[number][-1].seqno)
            elif opening.frame.name == "oso_snapshot":
                self._put(number, self._last_out_of_order())
            elif self._when(opening) - answered[opening.frame.opaque] < SOON:
                self._store(opening.frame)
            if opening is None or opening.frame.name == "oso_snapshot":
                self.node.vbuckets[number].evict_checkpoint()

    def _advance(self) -> None:
        """Let the vbuckets be as far as the server said."""
        for told in seqnos_of(self.transcript):
            for number in self.node.vbuckets.keys() - told:
                del self.node.vbuckets[number]
                self.bucket.owners[number] = [NOBODY]
            for number, seqno in told.items():
                if seqno > self.node.vbuckets[number].high_seqno:
                    self.node.vbuckets[number].put(StoredItem("mutation", seqno, b"last"))

    def _openings(self) -> dict[int, Said | None]:
        """What the first snapshot of each vbucket begins with."""
        found: dict[int, Said | None] = dict.fromkeys(self.items)
        for one in self.server:
            if one.frame.name in ("snapshot_marker", "oso_snapshot") and found.get(one.frame.vbucket) is None:
                found[one.frame.vbucket] = one
        return found

    def _last_out_of_order(self) -> int:
        names = [one.frame.name for one in self.server]
        end = len(names) - names[::-1].index("oso_snapshot")
        return max(int(one.frame.fields.get("seqno", 0)) for one in self.server[:end])

    def _when(self, one: Said) -> float:
        return self.transcript.timeline[one.turn].when

    def _store(self, marker: Frame) -> None:
        """Put what a snapshot ends with, where the snapshot shows it: on disk, or in memory."""
        vbucket = self.node.vbuckets[marker.vbucket]
        new = vbucket.high_seqno < end_of(marker)
        self._put(marker.vbucket, end_of(marker))
        if is_from_disk(marker):
            vbucket.evict_checkpoint()
        elif new and begins_checkpoint(marker):
            vbucket.checkpoint_start = int(marker.fields["snapshot_start"])

    def _put(self, number: int, until: int) -> None:
        vbucket = self.node.vbuckets[number]
        items = [item for item in self.items.get(number, ()) if item.seqno <= until]
        for item in items:
            if item.seqno <= vbucket.high_seqno:
                continue
            vbucket.put(item)
            if isinstance(item, SystemItem) and item.event_id == SystemEvent.COLLECTION_END:
                vbucket.drop_collection(item.collection_id or 0)
        if any(isinstance(item, SystemItem) for item in items):
            self.bucket.manifest = manifest_of(items)

    # The conversation.

    def run(self) -> None:
        for number, turn in enumerate(self.transcript.timeline):
            if turn.side == "client":
                self.paces.append((number, counted(self.sent)))
                data = b"".join(one.raw for one in self.client if one.turn == number)
                self.connection.receive(data, turn.when)
                self._drain(turn.when)
            for one in self.server:
                if one.turn == number:
                    self._happen(one.frame, turn.when)

    def _happen(self, frame: Frame, now: float) -> None:
        """Let happen what made the server say this."""
        if frame.name == "snapshot_marker":
            self._store(frame)
        elif frame.name == "stream_end" and frame.fields["reason"] == StreamEnd.STATE_CHANGED:
            self.node.vbuckets[frame.vbucket].state = VbucketState.DEAD
        elif frame.name == "dcp_noop" and not frame.kind.answers:
            self._wait_for_noop(now)
        self._drain(now)

    def _wait_for_noop(self, now: float) -> None:
        """Let it be due. Servers count whole seconds, and what came together has the time of the first."""
        due = self.connection.due()
        assert due is not None
        assert abs(due - now) < _A_SECOND_OR_SO
        self.connection.tick(due)

    def _drain(self, now: float) -> None:
        while parts := self.connection.send(now):
            self.sent.extend(cut(b"".join(bytes(part) for part in parts)))


# ------------------------------------------------------------------------- what is compared


def comparable(raw: bytes) -> bytes:
    """A frame without what is chance: how hot a document is; of answers their CAS, how long they took, references."""
    frame = read_frame(raw, DCP)
    if frame.kind.answers:
        if frame.name == "hello":
            # How long an answer took is asked for with this one.
            frame = replace(frame, value=FEATURES.encode(one for one in frame.body() if one != Feature.TRACING))
        if frame.name in OF_THEIR_OWN:
            frame = replace(frame, value=b"")
        if frame.status in REFERRING:
            frame = replace(frame, value=b"", datatype=0)
        return encode(replace(frame, magic=Magic.RESPONSE, frame_info=(), cas=0))
    if "nru" in frame.fields:
        return encode(replace(frame, fields={**frame.fields, "nru": 0}))
    return raw


def by_stream(raws: list[bytes]) -> dict[object, list[bytes]]:
    """Frames in order, each stream for itself: which stream has its turn when is a matter of scheduling."""
    found: dict[object, list[bytes]] = {}
    for raw in raws:
        frame = read_frame(raw, DCP)
        stream = "answers" if frame.kind.answers else frame.name if frame.name == "dcp_noop" else ""
        found.setdefault(stream or (frame.vbucket, frame.stream_id), []).append(comparable(raw))
    return found


def counted(raws: Iterable[bytes]) -> int:
    """The bytes that fill the window of a consumer."""
    frames = ((raw, read_frame(raw, DCP)) for raw in raws)
    return sum(len(raw) for raw, frame in frames if not frame.kind.answers and frame.name != "dcp_noop")


@pytest.mark.parametrize("path", EQUAL, ids=named)
def test_the_node_says_what_the_server_said(path: Path) -> None:
    rerun = Rerun(transcript(path))
    rerun.run()
    recorded = by_stream([one.raw for one in rerun.server])
    ours = by_stream(rerun.sent)
    assert recorded.keys() == ours.keys()
    for stream, frames in recorded.items():
        sent = ours[stream][: len(frames)] if rerun.transcript.id == ENDS_EARLY else ours[stream]
        assert shown(sent) == shown(frames)
        assert sent == frames
    assert rerun.connection.closing == any(turn.side == "server_close" for turn in rerun.transcript.timeline)


def shown(raws: list[bytes]) -> list[str]:
    return [str(read_frame(raw, DCP)) for raw in raws]


@pytest.mark.parametrize("path", [path for path in EQUAL if "flow_control" in path.stem], ids=named)
def test_the_node_stands_still_where_the_server_did(path: Path) -> None:
    rerun = Rerun(transcript(path))
    rerun.run()
    window = acknowledged = still = 0
    for turn, ours in rerun.paces:
        theirs = counted(one.raw for one in rerun.server if one.turn < turn)
        if 0 < window <= theirs - acknowledged:
            assert ours == theirs
            still += 1
        for frame in (one.frame for one in rerun.client if one.turn == turn):
            acknowledged += int(frame.fields["bytes"]) if frame.name == "buffer_ack" else 0
            window = int(frame.value) if frame.key == b"connection_buffer_size" else window
    assert still > 3


def test_every_recording_is_equal_or_excluded_for_a_reason() -> None:
    assert {"equal": len(EQUAL), "excluded": len(RECORDINGS) - len(EQUAL)} == HOW_MANY
    for pattern in EXCLUDED:
        assert any(fnmatch(named(path), pattern) for path in RECORDINGS)
