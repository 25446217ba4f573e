"""Recorded TAP conversations, replayed with an embedded node as the server.

The recorded frames show what was written during a conversation: items that the server sent after the backfill and not
before were written at that time. All others are in the store from the beginning.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dcp.embedded.bucket import BucketStore
from dcp.embedded.connection import ServerConnection
from dcp.embedded.handlers import HANDLERS
from dcp.embedded.release import Release
from dcp.embedded.store import StoredItem
from dcp.wire.frame import Frame, decode
from dcp.wire.tap import TapFlag, TapOpaque
from tests.conformance import TRANSCRIPTS, Document, cut, transcript

RECORDED = [path for path in TRANSCRIPTS if path.stem.startswith("tap_")]
# Recordings that are not replayed, and the reason.
EXCLUDED: dict[str, str] = {}
# Unix seconds, later than all recordings, and before the expiries of their documents.
NOW = 1.8e9


def is_row(frame: Frame) -> bool:
    return frame.name in ("mutation", "deletion")


def wants_response(frame: Frame) -> bool:
    return bool(int(frame.fields["tap_flags"]) & TapFlag.ACK)


def version(vbucket: int, key: bytes, cas: int) -> tuple[int, bytes, int]:
    return vbucket, key, cas


class TapReplay:
    """TapReplay of one recorded conversation, frame by frame."""

    def __init__(self, path: Path) -> None:
        recording = transcript(path)
        self.raw: dict[str, Any] = json.loads(path.read_text("utf-8"))
        self.recorded = decode(recording.main.server, "tap")
        self.documents = {version(d.vbucket, d.key, d.cas or 0): d for d in recording.documents}
        self.backfilled = next(
            (i for i, frame in enumerate(self.recorded) if frame.fields.get("code") == TapOpaque.CLOSE_BACKFILL), 0
        )
        release = Release.of(".".join(path.parent.name.split(".")[:2]))
        self.bucket = BucketStore("default", vbuckets=8, release=release, clock=lambda: NOW)
        self.connection = ServerConnection(self.bucket, self.bucket.nodes[0], HANDLERS)
        self.written: set[tuple[int, bytes, int]] = set()
        self.fill()

    # Stored items.

    def fill(self) -> None:
        """Store the items from before the conversation."""
        for frame in self.recorded[: self.backfilled or self.no_backfill()]:
            self.write(frame)
        sent = {version(f.vbucket, f.key, f.cas) for f in self.recorded if is_row(f)}
        for mark, document in self.documents.items():
            if mark not in sent:
                self.put(document, rev_seqno=1)
        self.place_checkpoints()

    def no_backfill(self) -> int:
        """Return the end of a backfill that was never closed: all frames; 0 if there was no backfill."""
        codes = {frame.fields.get("code") for frame in self.recorded}
        return len(self.recorded) if TapOpaque.INITIAL_VBUCKET_STREAM in codes else 0

    def place_checkpoints(self) -> None:
        """Put the items that the server sent again after the backfill into the checkpoint in memory."""
        for vbucket in self.bucket.actives():
            vbucket.evict_checkpoint()
        later = self.recorded[self.backfilled :] if self.backfilled else []
        for frame in reversed(later):
            vbucket = self.bucket.active(frame.vbucket)
            if is_row(frame) and version(frame.vbucket, frame.key, frame.cas) in self.written:
                found = vbucket.get(0, frame.key)
                assert found is not None
                vbucket.checkpoint_start = found.seqno
            if frame.name == "tap_checkpoint_start":
                vbucket.checkpoint = int(frame.fields["checkpoint"])

    def write(self, frame: Frame) -> None:
        """Store the item of a recorded row unless it is stored already."""
        mark = version(frame.vbucket, frame.key, frame.cas)
        if not is_row(frame) or mark in self.written:
            return
        document = self.documents.get(mark) or self.unknown(frame)
        assert document.deleted is (frame.name == "deletion")
        self.put(document, int(frame.fields["rev_seqno"]))

    def unknown(self, frame: Frame) -> Document:
        """Return the document of a row whose version was replaced: only the recorded frame has it."""
        flags = int(frame.fields.get("flags", 0))
        if not int(frame.fields["tap_flags"]) & TapFlag.NETWORK_BYTE_ORDER:
            flags = int.from_bytes(flags.to_bytes(4, "little"), "big")
        expiry, deleted = int(frame.fields.get("expiry", 0)), frame.name == "deletion"
        return Document(frame.vbucket, 0, frame.key, frame.value, None, flags, expiry, frame.cas, None, deleted, {})

    def put(self, document: Document, rev_seqno: int) -> None:
        vbucket = self.bucket.active(document.vbucket)
        item = StoredItem(
            "deletion" if document.deleted else "mutation",
            vbucket.high_seqno + 1,
            document.key,
            b"" if document.deleted else document.value or b"",
            rev_seqno,
            document.cas or 0,
            document.flags or 0,
            document.expiry or 0,
        )
        self.bucket.put(vbucket, item)
        self.written.add(version(document.vbucket, document.key, document.cas or 0))

    def write_for(self, position: int) -> None:
        """Store the rows that were written before a frame was sent: up to the next one that requests a response."""
        if position <= self.backfilled and self.backfilled:
            return
        if self.recorded[position].name == "tap_checkpoint_end":
            self.bucket.active(self.recorded[position].vbucket).evict_checkpoint()
        for frame in self.recorded[position:]:
            if position and frame.name == "tap_checkpoint_end" and frame is not self.recorded[position]:
                return
            self.write(frame)
            if is_row(frame) and wants_response(frame):
                return
        # The recording ends before the next write.
        vbucket = self.recorded[position].vbucket
        self.put(Document(vbucket, 0, b"more", b"", None, 0, 0, 1, None, False, {}), rev_seqno=1)

    # Conversation.

    def run(self) -> tuple[list[Frame], list[Frame]]:
        """Return the recorded frames and those of the embedded node."""
        client = memoryview(bytes.fromhex(self.raw["client_hex"]))
        sent: list[Frame] = []
        due = 0
        for direction, size, milliseconds in self.raw["timeline"]:
            now = milliseconds / 1000
            if direction == "client":
                self.connection.receive(client[:size], now)
                client = client[size:]
            elif direction == "server":
                self.connection.tick(now)
                due += size
                while due > 0:
                    raw = self.next_frame(len(sent), now)
                    if not raw:
                        return self.recorded, sent
                    sent += decode(raw, "tap")
                    due -= len(raw)
        return self.recorded, sent

    def next_frame(self, position: int, now: float) -> bytes:
        """Return the bytes of one frame: a flow-control window of one byte stops the node after it."""
        if position < len(self.recorded) and (is_row(self.recorded[position]) or "end" in self.recorded[position].name):
            self.write_for(position)
        self.connection.out.window, self.connection.out.outstanding = 1, 0
        return b"".join(bytes(part) for part in self.connection.send(now))

    def comparable(self, position: int, frame: Frame) -> Frame:
        """Return a frame without values that depend on timing."""
        fields = dict(frame.fields)
        if "nru" in fields:
            # Depends on how recently the document was used.
            fields["nru"] = 0
        if is_row(frame) and self.sent_early(position):
            fields["tap_flags"] = int(fields["tap_flags"]) & ~TapFlag.ACK
        return replace(frame, fields=fields)

    def sent_early(self, position: int) -> bool:
        """Return whether a row may have been sent before the next one was read: then it requests a response."""
        return position < (self.backfilled - 1 if self.backfilled else self.no_backfill())


@cache
def replayed(path: Path) -> tuple[TapReplay, list[Frame], list[Frame]]:
    replay = TapReplay(path)
    recorded, sent = replay.run()
    comparable = [[replay.comparable(i, frame) for i, frame in enumerate(frames)] for frames in (recorded, sent)]
    return replay, comparable[0], comparable[1]


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


REPLAYED = [path for path in RECORDED if name_of(path) not in EXCLUDED]


@pytest.mark.parametrize("path", REPLAYED, ids=name_of)
def test_the_frames_are_those_of_the_recorded_server(path: Path) -> None:
    _, recorded, sent = replayed(path)
    assert sent == recorded


@pytest.mark.parametrize("path", REPLAYED, ids=name_of)
def test_the_connection_closes_when_the_recorded_server_closed_it(path: Path) -> None:
    replay, _, _ = replayed(path)
    replay.connection.out.window = 0
    replay.connection.send(100.0)
    assert replay.connection.closing is any(direction == "server_close" for direction, _, _ in replay.raw["timeline"])


def test_all_recordings_are_replayed() -> None:
    assert (len(REPLAYED), len(EXCLUDED)) == (21, 0)
    assert sum(len(cut(transcript(path).main.server)) for path in REPLAYED) == 568
    assert sum(len(replayed(path)[2]) for path in REPLAYED) == 568
