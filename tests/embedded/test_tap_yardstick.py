"""TAP as recorded servers spoke it: the same client, the same documents, and so the same frames.

The recorded server's frames say when something was written during a conversation: what it sent behind the backfill
and not before was written just then. All else is in the store from the beginning.
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
# Why a conversation cannot be led again; there is none.
EXCLUDED: dict[str, str] = {}
# Later than all that is recorded.
NOW = 2e9


def is_row(frame: Frame) -> bool:
    return frame.name in ("mutation", "deletion")


def asks(frame: Frame) -> bool:
    return bool(int(frame.fields["tap_flags"]) & TapFlag.ACK)


def version(vbucket: int, key: bytes, cas: int) -> tuple[int, bytes, int]:
    return vbucket, key, cas


class Replay:
    """One recorded conversation, led again frame by frame."""

    def __init__(self, path: Path) -> None:
        talk = transcript(path)
        self.raw: dict[str, Any] = json.loads(path.read_text("utf-8"))
        self.recorded = decode(talk.main.server, "tap")
        self.documents = {version(d.vbucket, d.key, d.cas or 0): d for d in talk.documents}
        self.backfilled = next(
            (i for i, frame in enumerate(self.recorded) if frame.fields.get("code") == TapOpaque.CLOSE_BACKFILL), 0
        )
        release = Release.of(".".join(path.parent.name.split(".")[:2]))
        self.bucket = BucketStore("default", vbuckets=8, release=release, clock=lambda: NOW)
        self.connection = ServerConnection(self.bucket, self.bucket.nodes[0], HANDLERS)
        self.written: set[tuple[int, bytes, int]] = set()
        self.fill()

    # What is stored, and when.

    def fill(self) -> None:
        """What there is before the client connects."""
        for frame in self.recorded[: self.backfilled or self.no_backfill()]:
            self.write(frame)
        sent = {version(f.vbucket, f.key, f.cas) for f in self.recorded if is_row(f)}
        for mark, document in self.documents.items():
            if mark not in sent:
                self.put(document, rev_seqno=1)
        self.place_checkpoints()

    def no_backfill(self) -> int:
        """All rows belong to a backfill that was never closed, unless there was none."""
        codes = {frame.fields.get("code") for frame in self.recorded}
        return len(self.recorded) if TapOpaque.INITIAL_VBUCKET_STREAM in codes else 0

    def place_checkpoints(self) -> None:
        """What a server sends again behind the backfill is in its open checkpoint."""
        for vbucket in self.bucket.actives():
            vbucket.evict_checkpoint()
        behind = self.recorded[self.backfilled :] if self.backfilled else []
        for frame in reversed(behind):
            vbucket = self.bucket.active(frame.vbucket)
            if is_row(frame) and version(frame.vbucket, frame.key, frame.cas) in self.written:
                found = vbucket.get(0, frame.key)
                assert found is not None
                vbucket.checkpoint_start = found.seqno
            if frame.name == "tap_checkpoint_start":
                vbucket.checkpoint = int(frame.fields["checkpoint"])

    def write(self, frame: Frame) -> None:
        """What a recorded row shows, if that is not stored yet."""
        mark = version(frame.vbucket, frame.key, frame.cas)
        if not is_row(frame) or mark in self.written:
            return
        document = self.documents.get(mark) or self.unknown(frame)
        assert document.deleted is (frame.name == "deletion")
        self.put(document, int(frame.fields["rev_seqno"]))

    def unknown(self, frame: Frame) -> Document:
        """A version that was replaced, of which only the recorded server tells."""
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
        """What was written before the recorded server sent this frame: all up to the next one that is the last."""
        if position <= self.backfilled and self.backfilled:
            return
        if self.recorded[position].name == "tap_checkpoint_end":
            self.bucket.active(self.recorded[position].vbucket).evict_checkpoint()
        for frame in self.recorded[position:]:
            if position and frame.name == "tap_checkpoint_end" and frame is not self.recorded[position]:
                return
            self.write(frame)
            if is_row(frame) and asks(frame):
                return
        # The recording ends before what followed.
        vbucket = self.recorded[position].vbucket
        self.put(Document(vbucket, 0, b"more", b"", None, 0, 0, 1, None, False, {}), rev_seqno=1)

    # The conversation.

    def run(self) -> tuple[list[Frame], list[Frame]]:
        """What was recorded, and what we say."""
        client = memoryview(bytes.fromhex(self.raw["client_hex"]))
        ours: list[Frame] = []
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
                    raw = self.say(len(ours), now)
                    if not raw:
                        return self.recorded, ours
                    ours += decode(raw, "tap")
                    due -= len(raw)
        return self.recorded, ours

    def say(self, position: int, now: float) -> bytes:
        """One frame: a window lets no more out."""
        if position < len(self.recorded) and (is_row(self.recorded[position]) or "end" in self.recorded[position].name):
            self.write_for(position)
        self.connection.out.window, self.connection.out.outstanding = 1, 0
        return b"".join(bytes(part) for part in self.connection.send(now))

    def alike(self, position: int, frame: Frame) -> Frame:
        """A frame without what is a matter of chance."""
        fields = dict(frame.fields)
        if "nru" in fields:
            # How recently a document was used.
            fields["nru"] = 0
        if is_row(frame) and self.hurried(position):
            fields["tap_flags"] = int(fields["tap_flags"]) & ~TapFlag.ACK
        return replace(frame, fields=fields)

    def hurried(self, position: int) -> bool:
        """Whether a row may have been sent while the next one was still being read: then it asks to be acknowledged."""
        return position < (self.backfilled - 1 if self.backfilled else self.no_backfill())


@cache
def replayed(path: Path) -> tuple[Replay, list[Frame], list[Frame]]:
    replay = Replay(path)
    recorded, ours = replay.run()
    alike = [[replay.alike(i, frame) for i, frame in enumerate(frames)] for frames in (recorded, ours)]
    return replay, alike[0], alike[1]


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


LED_AGAIN = [path for path in RECORDED if name_of(path) not in EXCLUDED]


@pytest.mark.parametrize("path", LED_AGAIN, ids=name_of)
def test_the_frames_are_those_of_the_recorded_server(path: Path) -> None:
    _, recorded, ours = replayed(path)
    assert ours == recorded


@pytest.mark.parametrize("path", LED_AGAIN, ids=name_of)
def test_the_connection_closes_when_the_recorded_server_closed_it(path: Path) -> None:
    replay, _, _ = replayed(path)
    replay.connection.out.window = 0
    replay.connection.send(100.0)
    assert replay.connection.closing is any(direction == "server_close" for direction, _, _ in replay.raw["timeline"])


def test_so_many_conversations_are_the_same() -> None:
    assert (len(LED_AGAIN), len(EXCLUDED)) == (21, 0)
    assert sum(len(cut(transcript(path).main.server)) for path in LED_AGAIN) == 568
    assert sum(len(replayed(path)[2]) for path in LED_AGAIN) == 568
