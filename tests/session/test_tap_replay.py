"""Recorded TAP conversations, replayed to our session in any chunks: the same rows, and the same answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import dcp
from dcp.position import Progress, StreamPosition
from dcp.session.events import Event, StreamAccepted, StreamEnded
from dcp.session.handshake import ConnectionSettings
from dcp.session.legacy.tap import TapConsumerStream, TapSession
from dcp.wire.dcp import ENDLESS
from dcp.wire.frame import encode
from dcp.wire.memcached import Status
from dcp.wire.tap import TapConnectFlag, TapFlag, TapOpaque
from tests.conformance import TRANSCRIPTS, transcript
from tests.session.harness import Peer, hear
from tests.session.replay import chunkings, name

RECORDED = [path for path in TRANSCRIPTS if path.stem.startswith("tap")]
COLUMNS = ["event", "vbucket", "key", "cas", "value", "opaque"]
_PIECES = TapConnectFlag.BACKFILL | TapConnectFlag.LIST_VBUCKETS | TapConnectFlag.CHECKPOINT


class TapReplay:
    """One conversation, with our session in place of the recorded client."""

    def __init__(self, path: Path) -> None:
        talk = transcript(path)
        self.client, self.server = talk.main.client, talk.main.server
        first, *answers = dcp.decode(self.client, "tap")
        self.statuses = {frame.opaque: Status(frame.status) for frame in answers}
        self.messages = dcp.decode(self.server, "tap")
        asks, flags = first.body("tap"), TapConnectFlag(int(first.fields["flags"]))
        self.dump = TapConnectFlag.DUMP in flags
        self.session = TapSession(
            ConnectionSettings(first.key.decode(), "b"),
            lambda _: dcp.Decoder("tap", columns=COLUMNS),
            0.0,
            flags=flags & ~_PIECES,
            date=asks.backfill,
            checkpoints=asks.checkpoints,
        )
        peer = Peer()
        while self.session.agreement is None:
            (asked,) = dcp.decode(self.session.outgoing())
            hear(self.session, peer.answer(asked))
        self.streams = [self._open(vbucket) for vbucket in asks.vbuckets]
        self.events: list[Event] = []
        self.rows: list[tuple[str, int, bytes, int, bytes]] = []
        self.sent = b""

    def _open(self, vbucket: int) -> TapConsumerStream:
        stream = self.session.open(Progress(StreamPosition(vbucket)), end=1 if self.dump else ENDLESS)
        assert isinstance(stream, TapConsumerStream)
        return stream

    def run(self, chunks: Iterator[int]) -> None:
        self.sent += self.session.outgoing()
        data = self.server
        while data:
            size = next(chunks)
            piece, data = data[:size], data[size:]
            while piece:
                with self.session.buffer() as room:
                    count = min(len(room), len(piece))
                    room[:count] = piece[:count]
                piece = piece[count:]
                self._heard(*self.session.received(count, 0.0, self._most_rows, 1 << 30))
        self._take()

    @property
    def _most_rows(self) -> int:
        """Return the batch size. If the client refused some rows and not others, each has to be a batch of its own."""
        return 1 if any(self.statuses.values()) else 5

    def _heard(self, events: list[Event], full: bool) -> None:
        self.events += events
        while full:
            self._take()
            events, full = self.session.advance(self._most_rows, 1 << 30)
            self.events += events

    def _take(self) -> None:
        delivery = self.session.take()
        found = delivery.batch.to_arrow().to_pylist()
        self.rows += [(row["event"], row["vbucket"], row["key"], row["cas"], row["value"]) for row in found]
        status = max((self.statuses.get(row["opaque"], Status.SUCCESS) for row in found), default=Status.SUCCESS)
        if status and self._most_rows == 1:
            self.session.decline(delivery.flow_bytes, status)
        else:
            self.session.processed(delivery.flow_bytes)
        self.sent += self.session.outgoing()


@pytest.mark.parametrize("path", RECORDED, ids=name)
def test_a_session_hears_and_answers_what_was_said(path: Path) -> None:
    for chunks in chunkings(len(transcript(path).main.server), len(path.stem)):
        replay = TapReplay(path)
        replay.run(chunks())
        check(replay)


def check(replay: TapReplay) -> None:
    rows = [frame for frame in replay.messages if frame.name in ("mutation", "deletion")]
    assert replay.rows == [(frame.name, frame.vbucket, frame.key, frame.cas, frame.value) for frame in rows]
    # The bytes of the recorded client; if it gave up before it had answered everything, only further answers follow.
    assert replay.sent[: len(replay.client)] == replay.client
    asking = [frame for frame in replay.messages if int(frame.fields["tap_flags"]) & TapFlag.ACK]
    answered = dcp.decode(replay.sent, "tap")[1:]
    assert [(frame.name, frame.opaque) for frame in answered] == [(frame.name, frame.opaque) for frame in asking]
    assert b"".join(encode(frame, "tap") for frame in answered) == replay.sent[-24 * len(answered) :] or not answered
    assert replay.session.stray_messages == 0
    for stream in replay.streams:
        mine = [type(event) for event in replay.events if getattr(event, "stream", None) is stream]
        assert mine == ([StreamAccepted, StreamEnded] if replay.dump else [StreamAccepted])
        assert stream.ended == replay.dump
        last = [int(f.fields["checkpoint"]) for f in replay.messages if f.name == "tap_checkpoint_start"]
        assert stream.checkpoint == (last[-1] if last else None)


def test_all_of_them_are_heard() -> None:
    assert len(RECORDED) == 21
    codes = {
        frame.fields["code"] for path in RECORDED for frame in TapReplay(path).messages if frame.name == "tap_opaque"
    }
    assert codes >= {TapOpaque.INITIAL_VBUCKET_STREAM, TapOpaque.CLOSE_BACKFILL, TapOpaque.ENABLE_CHECKPOINT_SYNC}
