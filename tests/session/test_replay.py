"""Conversations recorded from real servers, replayed to our session in any chunks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import dcp
from dcp.session.events import StreamAccepted, StreamEnded, StreamRefused, StreamRolledBack
from dcp.wire.document import split_collection
from dcp.wire.layout import Kind
from dcp.wire.memcached import Feature
from tests.conformance import UNSENT, transcript
from tests.session.replay import STREAMED, TALKS, WITHOUT_STREAM, Replay, chunkings, name, with_opaque


@pytest.mark.parametrize("path", STREAMED, ids=name)
def test_a_session_hears_what_was_said(path: Path) -> None:
    talk = transcript(path)
    for chunks in chunkings(len(talk.main.server), len(str(path.stem))):
        replay = Replay(talk)
        session = replay.run(chunks())
        replay.model()
        check(replay, session.stray_messages)
        check_documents(path, replay)


def check(replay: Replay, strays: int) -> None:
    collections = Feature.COLLECTIONS in replay.agreement.features
    assert replay.rows == replay.expected_rows(lambda key: split_collection(key)[1] if collections else key)
    frames = [(dcp.decode(step.raw)[0], step) for step in replay.steps]
    outcomes = Counter(type(event).__name__ for event in replay.events)
    for request in replay.requests:
        stream = request.stream
        assert stream is not None
        if request.model is not None:
            modelled, found = request.model.position, stream.position
            # Of several snapshots at once, other marks are left.
            assert replace(found, marks=()) == replace(modelled, marks=())
            assert found.marks[:1] == modelled.marks[:1]
            assert {*found.marks} <= request.ends
        if request.faithful:
            assert request.asked == with_opaque(request.raw, stream.opaque)
        mine = [event for event in replay.events if getattr(event, "stream", None) is stream]
        kinds = {"SUCCESS": StreamAccepted, "ROLLBACK": StreamRolledBack, "stream_end": StreamEnded}
        expected = [kinds.get(outcome, StreamRefused) for outcome in request.outcome if outcome != "close_stream"]
        assert [type(event) for event in mine] == expected
        assert stream.ended == (expected[-1] is not StreamAccepted)
    assert sum(outcomes.values()) == len(replay.events)
    # Answers to other requests of the recorded client.
    assert strays == sum(step.request_of is None and frame.name != "dcp_noop" for frame, step in frames)
    noops = [step.raw for frame, step in frames if frame.name == "dcp_noop"]
    ours = [raw for raw in dcp.decode(replay.sent) if raw.name == "dcp_noop"]
    assert [frame.opaque for frame in ours] == [int.from_bytes(raw[12:16], "big") for raw in noops]
    assert b"".join(replay.answered_noops) == b"".join(map(dcp.encode, ours[: len(replay.answered_noops)]))
    flow = [len(step.raw) for frame, step in frames if frame.kind is Kind.REQUEST and frame.name != "dcp_noop"]
    acknowledged = sum(int(frame.fields["bytes"]) for frame in dcp.decode(replay.sent) if frame.name == "buffer_ack")
    window = replay.agreement.window
    assert (sum(flow) - acknowledged < window / 4) if window else acknowledged == 0


def check_documents(path: Path, replay: Replay) -> None:
    """Check that all documents stored before or during the conversation are below the position."""
    if path.stem in UNSENT:
        return
    for document in transcript(path).documents:
        for request in replay.requests:
            if request.frame.vbucket == document.vbucket and request.model is not None and document.seqno is not None:
                assert document.seqno <= request.model.position.seqno


def test_every_recording_is_heard_or_has_a_reason() -> None:
    left_out = Counter(path.stem for path in TALKS if path.stem in WITHOUT_STREAM)
    assert len(TALKS) == len(STREAMED) + left_out.total()
    # The 21 recordings over TAP are in tests/session/test_tap_replay.py.
    assert (len(STREAMED), left_out.total()) == (123, 46)
    assert left_out.keys() == WITHOUT_STREAM.keys()
    # The others have windows that no position of ours can have, or name a history at seqno 0.
    requests = [request for path in STREAMED for request in Replay(transcript(path)).requests]
    assert (len(requests), sum(request.faithful for request in requests)) == (284, 264)
