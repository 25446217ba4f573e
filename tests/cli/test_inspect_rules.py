"""`dcp inspect`: dialects, rules between frames, and rows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import dcp
from dcp.cli.inspect import captured_frames, guess
from dcp.cli.protocol_rules import ProtocolChecker
from dcp.wire.frame import UNKNOWN
from dcp.wire.framing import stream_id
from tests.cli.commands import run
from tests.conformance import MALFORMED, TRANSCRIPTS, transcript

CAPTURE = Path(__file__).parents[1] / "captures" / "couchbase-xattr.pcapng"
END = dcp.Frame("stream_end", 0x80, opaque=5, fields={"reason": 0})
OUT_OF_ORDER = dcp.Frame("oso_snapshot", 0x80, opaque=5, fields={"flags": 1})
ACCEPTED = dcp.Frame("stream_request", 0x81, opaque=5, value=bytes(16))


def marker(start: int, end: int) -> dcp.Frame:
    """Return a snapshot marker."""
    fields = {"snapshot_start": start, "snapshot_end": end, "flags": 1}
    return dcp.Frame("snapshot_marker", 0x80, opaque=5, fields=fields)


def mutation(seqno: int) -> dcp.Frame:
    """Return a mutation."""
    fields = {"seqno": seqno, "rev_seqno": 1, "flags": 0, "expiry": 0, "lock_time": 0, "nru": 0}
    return dcp.Frame("mutation", 0x80, opaque=5, fields=fields, key=b"k")


def advanced(seqno: int) -> dcp.Frame:
    """Return the news that changes of other collections were left out."""
    return dcp.Frame("seqno_advanced", 0x80, opaque=5, fields={"seqno": seqno})


def of_stream(number: int, frame: dcp.Frame) -> dcp.Frame:
    """Return a frame with a stream id."""
    return replace(frame, magic=0x08, frame_info=(stream_id(number),))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_dialect_of_every_recording_is_found_and_no_rule_is_broken(path: Path) -> None:
    talk = transcript(path)
    for _, data in talk.streams:
        if data:
            found = guess(data)
            assert found.name == talk.dialect
            broken = {seen.violation for seen in captured_frames(data, found) if seen.violation}
            assert broken <= {MALFORMED[path.stem][1] if path.stem in MALFORMED else ""}


@pytest.mark.parametrize(
    ("frames", "rule"),
    [
        ((ACCEPTED, marker(0, 5), mutation(3), mutation(3)), "mutation: seqno: expected more than 3, found 3"),
        ((ACCEPTED, marker(0, 5), mutation(6)), "mutation: seqno: expected 0 to 5 of its snapshot, found 6"),
        ((ACCEPTED, mutation(1)), "mutation: expected a snapshot marker before it, found none"),
        ((ACCEPTED, marker(0, 5), mutation(3), mutation(5), marker(6, 7), mutation(7)), None),
        ((mutation(4), mutation(2)), None),
    ],
)
def test_a_rule_between_frames_is_named(tmp_path: Path, frames: tuple[dcp.Frame, ...], rule: str | None) -> None:
    (tmp_path / "raw").write_bytes(b"".join(dcp.encode(frame) for frame in frames))
    lines = run("inspect", tmp_path / "raw", "--json", "--dialect", "dcp").output.splitlines()
    violations = [found["violation"] for found in map(json.loads, lines) if "violation" in found]
    assert len(violations) == (rule is not None)
    if rule is not None:
        assert violations[0].startswith(rule)
    assert run("inspect", tmp_path / "raw", "--check", "--dialect", "dcp").exit_code == (3 if rule else 0)
    assert run("inspect", tmp_path / "raw", "--dialect", "dcp").exit_code == 0


@pytest.mark.parametrize(
    ("frames", "rule"),
    [
        ((marker(3, 5), mutation(3), mutation(5)), ""),
        ((marker(3, 5), mutation(2)), "mutation: seqno: expected 3 to 5 of its snapshot, found 2"),
        # A request with the same opaque begins a stream, and so does the end of the one before.
        ((marker(0, 5), mutation(3), ACCEPTED, marker(0, 5), mutation(1)), ""),
        ((marker(0, 5), mutation(3), ACCEPTED, mutation(4)), "mutation: expected a snapshot marker before it"),
        ((marker(0, 5), mutation(3), END, marker(0, 5), mutation(1)), ""),
        # Streams with ids share the opaque.
        (
            (of_stream(1, marker(0, 5)), of_stream(1, mutation(3)), ACCEPTED, of_stream(1, mutation(2))),
            "mutation: seqno: expected more than 3, found 2",
        ),
        (
            (
                of_stream(1, marker(0, 5)),
                of_stream(1, mutation(3)),
                of_stream(2, marker(0, 5)),
                of_stream(2, mutation(1)),
            ),
            "",
        ),
        ((OUT_OF_ORDER, mutation(5), mutation(2)), ""),
        ((OUT_OF_ORDER, mutation(5), mutation(2), marker(0, 9), mutation(5)), "mutation: seqno: expected more than 5"),
        ((advanced(4),), ""),
        ((marker(0, 5), mutation(3), advanced(4), mutation(4)), "mutation: seqno: expected more than 4, found 4"),
        ((marker(0, 5), mutation(3), advanced(2), mutation(4)), ""),
    ],
)
def test_the_order_of_rows_is_judged_within_their_stream(frames: tuple[dcp.Frame, ...], rule: str) -> None:
    checker = ProtocolChecker()
    *before, last = [checker.violation(frame, "server") for frame in (ACCEPTED, *frames)]
    assert {*before} <= {""}
    assert last.startswith(rule)
    assert bool(last) is bool(rule)


@pytest.mark.parametrize(("incomplete", "judged"), [("client", False), ("server", True)])
def test_what_may_answer_to_a_lost_frame_is_not_judged(incomplete: str, judged: bool) -> None:
    checker = ProtocolChecker()
    checker.violation(dcp.Frame("dcp_noop", 0x80, 1), "client")
    for frame in (ACCEPTED, marker(0, 5)):
        checker.violation(frame, "server")
    checker.lose(incomplete)
    assert bool(checker.violation(dcp.Frame("dcp_noop", 0x81, 2), "server")) is judged
    # The marker of this row may be among what was lost, and so may the end of the stream that was accepted.
    assert checker.violation(mutation(9), "server") == ""


def test_a_response_of_an_unknown_kind_is_not_judged() -> None:
    checker = ProtocolChecker()
    checker.violation(dcp.Frame("dcp_noop", 0x80, 1), "client")
    unknown = dcp.Frame(UNKNOWN, 0x81, 2, fields={"opcode": 0x7A, "extras": b""})
    assert checker.violation(unknown, "server") == ""


def test_rows_that_break_a_rule_between_frames_are_written(tmp_path: Path) -> None:
    frames = ACCEPTED, mutation(3)
    (tmp_path / "raw").write_bytes(b"".join(dcp.encode(frame) for frame in frames))
    result = run("inspect", tmp_path / "raw", "--check", "--dialect", "dcp", "--arrow", tmp_path / "out")
    assert result.exit_code == 3
    rows = pa.ipc.open_file(tmp_path / "out").read_all()
    found = rows.select(["seqno", "key", "collection_id"]).to_pylist()
    # Keys have no collection ids unless that was agreed on.
    assert found == [{"seqno": 3, "key": b"k", "collection_id": None}]


def test_a_response_needs_a_request_of_the_other_side() -> None:
    request, response, other = (
        dcp.Frame("dcp_noop", magic, opaque) for magic, opaque in ((0x80, 1), (0x81, 1), (0x81, 2))
    )
    assert ProtocolChecker().violation(response, "client") == ""
    checker = ProtocolChecker()
    assert [checker.violation(request, "server"), checker.violation(response, "client")] == ["", ""]
    assert checker.violation(other, "client") == "dcp_noop response: expected the opaque of a request, found 0x00000002"


def test_a_capture_has_both_directions_and_its_changes_as_rows(tmp_path: Path) -> None:
    out = tmp_path / "out.arrow"
    result = run("inspect", CAPTURE, "--json", "--arrow", out)
    assert result.exit_code == 0
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert len({frame["from"] for frame in found}) >= 2
    # The capture lacks a segment in each direction of the replication; nothing else is wrong.
    assert [frame["missing_bytes"] for frame in found if "violation" in frame] == [72, 72]
    found = [frame for frame in found if "frame" in frame]
    rows = pa.ipc.open_file(out).read_all()
    changes = [frame for frame in found if frame["frame"] in ("mutation", "deletion", "expiration")]
    assert rows.num_rows == len(changes) > 0
    assert result.stderr == f"{len(changes)} rows: {out}\n"
    assert rows.column("event").to_pylist() == [frame["frame"] for frame in changes]


@pytest.mark.parametrize(("status", "value"), [("0004", "6e6f"), ("0000", "6f6464")])
def test_a_refused_or_damaged_hello_is_no_error(tmp_path: Path, status: str, value: str) -> None:
    (tmp_path / "raw").write_text(f"811f00000000{status}{len(value) // 2:08x}{'00' * 12}{value}")
    result = run("inspect", tmp_path / "raw", "--arrow", tmp_path / "out")
    assert result.exit_code == 0
    assert "0 rows" in result.output


def test_collection_ids_are_removed_from_keys_after_a_hello_with_collections(tmp_path: Path) -> None:
    path = next(path for path in TRANSCRIPTS if path.stem == "collections_all")
    recorded = json.loads(path.read_text())["server_hex"]
    (tmp_path / "hex").write_text(recorded)
    assert run("inspect", tmp_path / "hex", "--arrow", tmp_path / "out").exit_code == 0
    rows = pa.ipc.open_file(tmp_path / "out").read_all()
    assert rows.num_rows
    assert None not in rows.column("collection_id").to_pylist()


@pytest.mark.parametrize(("more", "judged"), [(0, True), (1, False)])
def test_a_response_is_judged_as_long_as_all_requests_are_remembered(more: int, judged: bool) -> None:
    """The newest 65,536 are: a capture may lack the responses of millions."""
    checker = ProtocolChecker()
    for opaque in range(65_536 + more):
        assert checker.violation(dcp.Frame("get_failover_log", 0x80, opaque=opaque), "client") == ""
    stray = dcp.Frame("get_failover_log", 0x81, opaque=1 << 20)
    assert ("expected the opaque of a request" in checker.violation(stray, "server")) is judged
