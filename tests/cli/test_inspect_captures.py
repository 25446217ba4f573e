"""`dcp inspect` of captures: link types, segments that are missing, and captures that arrive while they are made."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import dpkt
import pytest

from dcp.cli.capture import Flow, Segment, streams
from dcp.cli.frame_finder import FrameFinder
from dcp.cli.inspect import FrameReader, _counted_frames, _RowWriter, _Totals
from dcp.wire.dcp import DCP
from dcp.wire.frame import UNKNOWN, Frame, encode
from dcp.wire.memcached import MAX_FRAME
from tests.cli.captures import (
    BSD_RAW,
    CLIENT,
    COOKED_2,
    ETHERNET,
    PUBLIC,
    RAW,
    SERVER,
    Packet,
    pcap,
    pcap_records,
    pcapng,
    pcapng_header,
    pcapng_records,
    public,
    tcp,
)
from tests.cli.commands import run
from tests.conformance import TRANSCRIPTS, cut, tcp_streams, transcript


def inspected(tmp_path: Path, capture: bytes, *options: str) -> list[dict[str, Any]]:
    """Return the objects that the command prints for a capture."""
    (tmp_path / "capture").write_bytes(capture)
    return [json.loads(line) for line in run("inspect", tmp_path / "capture", "--json", *options).stdout.splitlines()]


def opaques(frames: list[dict[str, Any]], sender: int, receiver: int) -> list[int]:
    """Return the opaques of the frames that a port sent to another."""
    return [one["opaque"] for one in frames if "frame" in one and ports(one) == (sender, receiver)]


def ports(frame: dict[str, Any]) -> tuple[int, int]:
    """Return the port that sent a frame, and the port that received it."""
    return int(frame["from"].rpartition(":")[2]), int(frame["to"].rpartition(":")[2])


def headers(data: bytes) -> list[int]:
    """Return the opaque of each frame, cut by its length alone."""
    return [int.from_bytes(raw[12:16], "big") for raw in cut(data)]


def noop(opaque: int, value: bytes = b"") -> bytes:
    """Return the bytes of a noop; with a value, of a mutation that carries it."""
    if not value:
        return bytes.fromhex("805c0000000000000000000000000000")[:12] + opaque.to_bytes(4, "big") + bytes(8)
    body = 31 + 1 + len(value)
    return (
        bytes.fromhex("805700011f000000")
        + body.to_bytes(4, "big")
        + opaque.to_bytes(4, "big")
        + (1).to_bytes(8, "big")
        + bytes(7)
        + bytes([opaque])
        + bytes(23)
        + b"k"
        + value
    )


@pytest.mark.parametrize("link", [ETHERNET, BSD_RAW, RAW, COOKED_2])
@pytest.mark.parametrize("packed", [pcap, pcapng])
def test_the_packets_of_each_link_type_are_the_same_frames(tmp_path: Path, link: int, packed: Any) -> None:
    found = inspected(tmp_path, packed(public(), link))
    for (source, target), runs in tcp_streams(PUBLIC).items():
        assert opaques(found, source, target) == [opaque for data in runs for opaque in headers(data)]
    # The capture itself lacks 72 bytes that each side of the replication acknowledged; a frame follows on one side.
    gaps = [(*ports(one), one["missing_bytes"]) for one in found if "missing_bytes" in one]
    assert sorted(gaps) == [(11999, 49285, 72), (49285, 11999, 72)]
    assert all("missing_bytes" in one for one in found if "violation" in one)


def test_an_unknown_link_type_is_refused(tmp_path: Path) -> None:
    (tmp_path / "capture").write_bytes(pcap([], 147))
    result = run("inspect", tmp_path / "capture")
    assert result.exit_code == 1
    assert "link type 147: expected one of 0, 1, 12, 101, " in " ".join(result.output.split())


def test_raw_ip_of_version_6_is_read(tmp_path: Path) -> None:
    segment = dpkt.tcp.TCP(sport=SERVER, dport=CLIENT, seq=1, flags=dpkt.tcp.TH_ACK, data=noop(7))
    host = bytes(15) + b"\1"
    packet = dpkt.ip6.IP6(src=host, dst=host, nxt=6, hlim=64, data=segment, plen=20 + 24)
    found = inspected(tmp_path, pcap([Packet(1.0, bytes(packet))]))
    assert [(one["from"], one["opaque"]) for one in found] == [("[::1]:12000", 7)]


def stream_segments(packets: list[Packet]) -> list[int]:
    """Return the places of the packets in which the server sends mutations."""
    return [
        place
        for place, packet in enumerate(packets)
        if packet.segment.sport == SERVER and b"\x80\x57\x00" in packet.segment.data
    ]


def test_a_missing_segment_of_the_public_capture_is_a_gap_and_decoding_resumes(tmp_path: Path) -> None:
    packets = public()
    lost = stream_segments(packets)[1]
    missing = packets[lost].segment
    found = inspected(tmp_path, pcap(packets[:lost] + packets[lost + 1 :]))
    gaps = [one for one in found if "missing_bytes" in one and ports(one) == (SERVER, missing.dport)]
    assert [one["missing_bytes"] for one in gaps] == [len(missing.data)]
    assert packets[lost].time <= gaps[0]["time"] <= packets[-1].time
    expected = [opaque for data in tcp_streams(PUBLIC)[SERVER, missing.dport] for opaque in headers(data)]
    for opaque in headers(bytes(missing.data)):
        expected.remove(opaque)
    assert opaques(found, SERVER, missing.dport) == expected
    assert all("missing_bytes" in one for one in found if "violation" in one)
    assert run("inspect", tmp_path / "capture", "--check").exit_code == 3
    shown = run("inspect", tmp_path / "capture")
    assert shown.exit_code == 0
    assert f"gap: {len(missing.data)} bytes of TCP are missing" in shown.output
    total = sum(one.get("missing_bytes", 0) for one in found)
    assert f"{total} bytes of TCP missing from the capture" in shown.output
    assert "of the protocol" not in shown.output


# Ten frames: three noops and seven mutations, whose values contain what looks like a header's first bytes.
FRAMES = [noop(number, b"\x80\x57\x81\x5c" * 9 if number % 3 else b"") for number in range(1, 11)]
SENT = b"".join(FRAMES)


@pytest.mark.parametrize("size", [10, 24, 37, 100])
@pytest.mark.parametrize("first", [0, 5, 24, 30, 110, 200])
def test_after_a_gap_at_any_byte_the_next_whole_frame_is_found(tmp_path: Path, first: int, size: int) -> None:
    before, after = SENT[:first], SENT[first + size :]
    # The acknowledgement of all bytes proves that the missing ones had been sent.
    packets = [tcp(before, 1000)] if before else [tcp(b"", 1000)]
    packets += [tcp(after, 1000 + first + size)]
    packets += [tcp(b"", 1, ack=1000 + len(SENT), source=CLIENT, target=SERVER)]
    found = inspected(tmp_path, pcap(packets))
    whole, position = [], 0
    for number, frame in enumerate(FRAMES, 1):
        if position + len(frame) <= first or position >= first + size:
            whole.append(number)
        position += len(frame)
    assert opaques(found, SERVER, CLIENT) == whole
    assert [one["missing_bytes"] for one in found if "missing_bytes" in one] == [size]


def test_the_last_segment_is_missing_if_it_was_acknowledged(tmp_path: Path) -> None:
    packets = [tcp(FRAMES[0], 1000), tcp(b"", 1, ack=1000 + len(SENT), source=CLIENT, target=SERVER)]
    found = inspected(tmp_path, pcap(packets))
    assert [one["missing_bytes"] for one in found if "missing_bytes" in one] == [len(SENT) - len(FRAMES[0])]


def test_segments_that_arrive_late_are_no_gap(tmp_path: Path) -> None:
    pieces = [tcp(SENT[place : place + 50], 1000 + place) for place in range(0, len(SENT), 50)]
    found = inspected(tmp_path, pcap([pieces[0], *reversed(pieces[1:]), *pieces]), "--check")
    assert opaques(found, SERVER, CLIENT) == list(range(1, 11))
    assert not [one for one in found if "violation" in one]


def test_early_segments_wait_while_the_receiver_acknowledges_what_came_before(tmp_path: Path) -> None:
    """A receiver repeats its acknowledgement for each segment that came too early."""
    first, second, third = SENT[:100], SENT[100:200], SENT[200:]
    repeated = tcp(b"", 1, ack=1000 + len(first), source=CLIENT, target=SERVER)
    packets = [tcp(first, 1000), repeated, tcp(third, 1200), repeated, tcp(second, 1100)]
    found = inspected(tmp_path, pcap(packets), "--check")
    assert opaques(found, SERVER, CLIENT) == list(range(1, 11))
    assert not [one for one in found if "missing_bytes" in one]


def test_a_response_whose_request_is_in_a_gap_breaks_no_rule(tmp_path: Path) -> None:
    requests, answer = [noop(number) for number in (1, 2)], b"\x81" + noop(1)[1:]
    packets = [tcp(b"", 1, source=CLIENT, target=SERVER)]
    packets += [tcp(requests[1], 25, source=CLIENT, target=SERVER), tcp(b"", 500, ack=49)]
    packets += [tcp(answer, 500)]
    found = inspected(tmp_path, pcap(packets))
    assert [one.get("missing_bytes") for one in found if "violation" in one] == [24]
    assert opaques(found, CLIENT, SERVER) == [2]
    assert opaques(found, SERVER, CLIENT) == [1]


def test_rows_of_changes_after_a_gap_are_written(tmp_path: Path) -> None:
    import pyarrow as pa

    packets = [tcp(SENT[:60], 1000), tcp(SENT[100:], 1100)]
    inspected(tmp_path, pcap(packets), "--arrow", str(tmp_path / "rows"))
    seqnos = pa.ipc.open_file(tmp_path / "rows").read_all().column("seqno").to_pylist()
    # The gap cuts the first two changes.
    assert seqnos == [4, 5, 7, 8, 10]


# Captures that arrive while they are made.


def live(*options: str) -> subprocess.Popen[bytes]:
    """Start the command on standard input."""
    main = "from dcp.cli import main; main()"
    command = [sys.executable, "-c", main, "inspect", "-", *options]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def written(pipe: IO[bytes], data: bytes) -> None:
    """Write to a pipe at once."""
    pipe.write(data)
    pipe.flush()


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    ("header", "records"), [(pcap([]), pcap_records), (pcapng_header(), pcapng_records)], ids=["pcap", "pcapng"]
)
def test_frames_are_printed_while_the_capture_arrives(header: bytes, records: Any, as_json: bool) -> None:
    with live(*(["--json"] if as_json else [])) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        written(process.stdin, header)
        sequence = 1000
        for number, frame in enumerate(FRAMES, 1):
            # The next packet is only written once the frame of this one was read from standard output.
            written(process.stdin, next(records([tcp(frame, sequence)])))
            sequence += len(frame)
            wanted = f'"opaque": {number},' if as_json else f"0x{number:08x}"
            assert any(wanted.encode() in line for line in iter(process.stdout.readline, b""))
        process.stdin.close()
        assert process.wait(30) == 0


def conversation() -> list[Packet]:
    """Packets of a noop with its answer, a frame that breaks a rule, and one after a gap."""
    request, answer = encode(Frame("dcp_noop", 0x80, 7, vbucket=3)), encode(Frame("dcp_noop", 0x81, 7))
    wrong = encode(Frame("dcp_noop", 0x81, 8))
    packets = [
        tcp(request, 1, source=CLIENT, target=SERVER),
        tcp(answer, 1, ack=25),
        tcp(wrong, 25, ack=25),
        # 24 bytes are missing before it.
        tcp(answer, 73, ack=25),
        tcp(b"", 25, ack=97, source=CLIENT, target=SERVER),
    ]
    return [packet._replace(time=10 + number / 4) for number, packet in enumerate(packets)]


def test_a_capture_is_the_same_as_objects_as_a_table_and_while_it_arrives(tmp_path: Path) -> None:
    (tmp_path / "capture").write_bytes(pcap(conversation()))
    rule = "dcp_noop response: expected the opaque of a request, found 0x00000008"
    gap = "gap: 24 bytes of TCP are missing"
    ours, theirs = f"127.0.0.1:{CLIENT}", f"127.0.0.1:{SERVER}"
    objects = [json.loads(line) for line in run("inspect", tmp_path / "capture", "--json").stdout.splitlines()]
    sent = {"from": ours, "to": theirs, "frame": "dcp_noop", "opaque": 7}
    answered = {"from": theirs, "to": ours, "frame": "dcp_noop", "answers": True}
    assert [{name: value for name, value in one.items() if name != "says"} for one in objects] == [
        {**sent, "time": 10.0, "answers": False, "vbucket": 3},
        {**answered, "time": 10.25, "opaque": 7},
        {**answered, "time": 10.5, "opaque": 8, "violation": rule},
        {"time": 11.0, "from": theirs, "to": ours, "missing_bytes": 24, "violation": gap},
        {**answered, "time": 11.0, "opaque": 7},
    ]
    assert ["says" in one for one in objects] == [True, True, False, False, True]
    process = live()
    output, _ = process.communicate(pcap(conversation()), timeout=60)
    for shown in (run("inspect", tmp_path / "capture").stdout, output.decode()):
        titles, *lines = [line.split() for line in shown.splitlines()]
        assert titles == ["seconds", "from", "to", "frame", "vbucket", "opaque", "content"]
        assert [line[:3] for line in lines[:2]] == [
            ["0.000000", f":{CLIENT}", f":{SERVER}"],
            ["0.250000", f":{SERVER}", f":{CLIENT}"],
        ]
        assert [line[3:] for line in lines[:2]] == [
            ["dcp_noop", "3", "0x00000007"],
            ["dcp_noop", "response", "0x00000007", "SUCCESS"],
        ]
        # A table breaks long lines, so that the words are looked for in all of them.
        words = " ".join(" ".join(line) for line in lines)
        assert "dcp_noop response 0x00000008 dcp_noop response: expected" in words
        assert f"1.000000 :{SERVER} :{CLIENT} gap: 24 bytes" in words
        assert "4 frames of dcp: 4 dcp_noop 1 violation of the protocol 24 bytes of TCP missing from the" in words
    raw = b"".join(packet.segment.data for packet in conversation()[:2])
    (tmp_path / "raw").write_bytes(raw)
    titles, *lines = [line.split() for line in run("inspect", tmp_path / "raw").stdout.splitlines()]
    assert titles == ["frame", "vbucket", "opaque", "content"]
    assert lines[:2] == [["dcp_noop", "3", "0x00000007"], ["dcp_noop", "response", "0x00000007", "SUCCESS"]]
    assert "from" not in json.loads(run("inspect", tmp_path / "raw", "--json").stdout.splitlines()[0])


def test_a_live_capture_takes_bounded_memory() -> None:
    def packets() -> Iterator[bytes]:
        yield pcap([])
        sequence, value = 1000, bytes(60_000)
        for number in range(1000):
            yield from pcap_records([tcp(noop(number % 200 + 1, value), sequence)])
            # Of each hundred segments one is missing.
            sequence += (len(value) + 56) * (2 if number % 100 == 99 else 1)

    class Pipe:
        """Pipe whose bytes are made when they are read."""

        def __init__(self) -> None:
            self.source, self.ready = packets(), b""

        def read(self, size: int = -1) -> bytes:
            while len(self.ready) < size and (more := next(self.source, b"")):
                self.ready += more
            taken, self.ready = self.ready[:size], self.ready[size:]
            return taken

    tracemalloc.start()
    try:
        total = sum(len(segment.data) for segment in streams(Pipe()))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == 1000 * 60_056
    assert peak < 24 << 20


def test_a_live_capture_has_the_same_frames_rows_and_exit_code_as_the_file(tmp_path: Path) -> None:
    import pyarrow as pa

    packets = public()
    lost = stream_segments(packets)[1]
    (tmp_path / "capture").write_bytes(pcap(packets[:lost] + packets[lost + 1 :]))
    data, rows = (tmp_path / "capture").read_bytes(), tmp_path / "rows"
    options = "--json", "--check", "--arrow", str(rows)
    of_file = run("inspect", tmp_path / "capture", *options)
    written_rows = pa.ipc.open_file(rows).read_all().to_pylist()
    process = live(*options)
    output, errors = process.communicate(data, timeout=60)
    assert process.returncode == of_file.exit_code == 3, errors
    assert output.decode() == of_file.stdout
    assert pa.ipc.open_file(rows).read_all().to_pylist() == written_rows


def test_the_dialect_of_a_live_capture_is_found() -> None:
    path = next(path for path in TRANSCRIPTS if path.stem.startswith("tap"))
    talk = transcript(path)
    packets = [tcp(talk.main.client[:1000], 1, source=CLIENT, target=SERVER), tcp(talk.main.server[:1000], 1)]
    output, _ = live().communicate(pcap(packets), timeout=60)
    assert b"frames of tap:" in output
    output, _ = live("--dialect", "dcp").communicate(pcap(packets), timeout=60)
    assert b"frames of dcp:" in output


def test_a_live_capture_without_frames_is_one_line_of_explanation() -> None:
    process = live("--json")
    output, errors = process.communicate(pcap([]), timeout=60)
    assert (process.returncode, output) == (1, b"")
    assert errors.decode().strip().endswith("<stdin>: no frames of dcp in 0 bytes")


def test_a_file_of_many_frames_is_printed_line_by_line(tmp_path: Path) -> None:
    count = 10_001
    (tmp_path / "frames").write_bytes(noop(7) * count)
    shown = run("inspect", tmp_path / "frames").stdout.splitlines()
    assert shown[0].split() == ["frame", "vbucket", "opaque", "content"]
    assert shown[1:-1] == [shown[1]] * count
    assert shown[1].split() == ["dcp_noop", "0", "0x00000007"]
    assert shown[-1] == f"{count} frames of dcp: {count} dcp_noop"


def test_nothing_is_kept_of_connections_that_are_over(tmp_path: Path) -> None:
    reader = FrameReader(DCP)
    with _RowWriter(tmp_path / "rows", collections=False) as rows:
        for number in range(100):
            flow = Flow(f"10.0.0.1:{number}", "10.0.0.2:11210")
            for segment in Segment(0.0, flow, noop(7)), Segment(1.0, flow, b"", last=True):
                assert all(found.frame for found in _counted_frames([segment], reader, _Totals(), rows))
        assert rows.finish(DCP) == 0
        assert not rows._decoders
    assert not reader._finders
    assert not reader._checkers


def test_a_direction_ends_with_its_last_byte_and_only_once() -> None:
    data = tcp(noop(7), 1000)
    end = dpkt.ip.IP(tcp(b"", 1024).data)
    end.data.flags |= dpkt.tcp.TH_FIN
    last = Packet(2.0, bytes(end))
    packets = pcap([tcp(b"", 1000), last, data, last, data, last])
    found = list(streams(io.BytesIO(packets)))
    assert [(segment.data, segment.last) for segment in found if segment.data or segment.last] == [
        (noop(7), False),
        (b"", True),
    ]


def test_a_direction_ends_with_the_bytes_that_end_it() -> None:
    packet = dpkt.ip.IP(tcp(noop(8), 1024).data)
    packet.data.flags |= dpkt.tcp.TH_FIN
    segments = streams(io.BytesIO(pcap([tcp(noop(7), 1000), Packet(2.0, bytes(packet))])))
    assert [(segment.data, segment.last) for segment in segments] == [(noop(7), False), (noop(8), False), (b"", True)]
    live = streams(
        io.BytesIO(
            pcap([tcp(noop(7), 1000), Packet(2.0, bytes(packet)), tcp(noop(9), 9000, source=CLIENT, target=SERVER)])
        )
    )
    ends = [segment.last for segment in live]
    # It does not wait for the end of the capture.
    assert ends[:3] == [False, False, True]


def test_a_syn_begins_a_new_connection_of_the_same_ports() -> None:
    """The sequence numbers of the first one say nothing about it."""
    first, second = noop(7), noop(8)
    opening = dpkt.ip.IP(tcp(b"", 4999).data)
    opening.data.flags = dpkt.tcp.TH_SYN
    packets = [tcp(first, 90_000), Packet(2.0, bytes(opening)), tcp(second, 5000)]
    found = [(segment.data, segment.missing) for segment in streams(io.BytesIO(pcap(packets))) if segment.data]
    assert found == [(first, 0), (second, 0)]


@pytest.mark.parametrize("resumes", [False, True])
def test_after_bytes_that_are_no_frame_the_rest_is_read_only_if_reading_resumes(resumes: bool) -> None:
    finder = FrameFinder(DCP, resumes=resumes)
    pieces = [*finder.feed(b"\0" * 24), *finder.feed(noop(7)), *finder.end()]
    assert [piece.raw for piece in pieces if piece.raw] == ([noop(7)] if resumes else [])
    assert len([piece for piece in pieces if piece.problem]) == (2 if resumes else 1)


def test_a_gap_in_a_header_is_followed_by_a_search(tmp_path: Path) -> None:
    finder = FrameFinder(DCP, resumes=True)
    # The size of the frame is in the part that is missing.
    frame = encode(Frame("select_bucket", 0x80, key=b"travel"))
    pieces = [*finder.feed(frame[:8]), *finder.skip(5), *finder.feed(frame[13:] + noop(7)), *finder.end()]
    assert [piece.raw for piece in pieces if piece.raw] == [noop(7)]
    assert [piece.missing for piece in pieces if piece.problem] == [5, 0]
    assert sum(piece.skipped for piece in pieces) == len(frame[13:])


def test_the_frame_that_a_search_finds_may_arrive_in_two_parts() -> None:
    fields = {"seqno": 1, "rev_seqno": 1, "flags": 0, "expiry": 0, "lock_time": 0, "nru": 0}
    frame = encode(Frame("mutation", 0x80, fields=fields, key=b"key", value=b"value"))
    for size in range(1, len(frame)):
        finder = FrameFinder(DCP, resumes=True)
        pieces = [*finder.feed(bytes(24)), *finder.feed(frame[:size]), *finder.feed(frame[size:]), *finder.end()]
        assert [piece.raw for piece in pieces if piece.raw] == [frame]


@pytest.mark.parametrize(("begin", "missing"), [(30, 5), (24, 1), (30, 20), (50, 4), (30, 28)])
def test_a_gap_inside_a_frame_ends_with_that_frame(begin: int, missing: int) -> None:
    """Its header says where the next one begins, so nothing is searched."""
    fields = {"seqno": 1, "rev_seqno": 1, "flags": 0, "expiry": 0, "lock_time": 0, "nru": 0}
    frame = encode(Frame("mutation", 0x80, fields=fields, key=b"key"))
    assert len(frame) == 58
    left = bytearray(frame[begin + missing :])
    finder = FrameFinder(DCP, resumes=True)
    pieces = [*finder.feed(noop(1) + frame[:begin]), *finder.skip(missing)]
    # A search would pass over a frame of an unknown opcode.
    unknown = encode(Frame(UNKNOWN, 0x80, fields={"opcode": 0x7A, "extras": b""}))
    for part in (left[:2], left[2:] + unknown):
        pieces += finder.feed(bytes(part))
    assert [(piece.offset, piece.raw, piece.missing, piece.skipped) for piece in [*pieces, *finder.end()]] == [
        (0, noop(1), 0, 0),
        (24 + begin, b"", missing, 0),
        (24 + 58, unknown, 0, 0),
    ]
    assert pieces[1].problem.endswith("missing, inside the frame at byte 24")


def test_a_gap_during_a_search_or_between_frames_is_inside_none() -> None:
    finder = FrameFinder(DCP, resumes=True)
    # No frame, and the begin of one that may be.
    pieces = [*finder.feed(bytes(24) + noop(1)[:20]), *finder.skip(10), *finder.feed(noop(2)), *finder.skip(5)]
    found = [(piece.offset, piece.raw, piece.missing, piece.skipped) for piece in [*pieces, *finder.end()]]
    assert found[1:] == [(0, b"", 0, 44), (44, b"", 10, 0), (54, noop(2), 0, 0), (78, b"", 5, 0)]
    assert [piece.problem for piece in pieces if piece.missing] == [
        "gap: 10 bytes of TCP are missing",
        "gap: 5 bytes of TCP are missing",
    ]


@pytest.mark.parametrize(("size", "found"), [(MAX_FRAME, False), (MAX_FRAME + 1, True)])
def test_a_header_of_a_frame_that_is_too_large_is_none(size: int, found: bool) -> None:
    """A search waits for the rest of a frame that may be one, and goes on after a header that is none."""
    finder = FrameFinder(DCP, resumes=True)
    large = bytearray(noop(5))
    large[8:12] = (size - 24).to_bytes(4, "big")
    pieces = [*finder.feed(bytes(24)), *finder.feed(bytes(large)), *finder.feed(noop(7))]
    assert (noop(7) in [piece.raw for piece in pieces]) is found
