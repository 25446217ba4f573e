"""Conversations recorded from real servers: every frame, against the recorder's summary and stored documents."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import dcp
from dcp._codec import Splitter
from dcp.wire.dcp import OpenFlag
from dcp.wire.document import Datatype, split_collection, split_xattrs
from dcp.wire.frame import UNKNOWN, dialect_of, encode, layout_of, read_frame, read_opaque
from dcp.wire.memcached import MAX_FRAME, Status
from dcp.wire.tap import TapFlag
from tests.conformance import (
    MALFORMED,
    TRANSCRIPTS,
    Change,
    Connection,
    Transcript,
    compare_with_documents,
    cut,
    has_collections,
    open_flags,
    transcript,
)

UNKNOWN_OPCODES = {"error_kv_on_dcp_connection": 0x99}
NO_JSON = "collections_filter_nojson"
CHANGES = frozenset(["mutation", "deletion", "expiration", "prepare"])

# Number of frames by name in all recordings; None for malformed ones.
NAMES: dict[str | None, int] = {
    None: 15,
    UNKNOWN: 6,
    "add_stream": 6,
    "buffer_ack": 90,
    "close_stream": 6,
    "commit": 14,
    "control": 906,
    "dcp_noop": 96,
    "deletion": 492,
    "expiration": 224,
    "get": 26,
    "get_all_vb_seqnos": 26,
    "get_cluster_config": 46,
    "get_error_map": 12,
    "get_failover_log": 56,
    "hello": 282,
    "mutation": 5602,
    "noop": 10,
    "open": 334,
    "oso_snapshot": 68,
    "prepare": 14,
    "sasl_auth": 294,
    "sasl_list_mechs": 46,
    "sasl_step": 36,
    "select_bucket": 284,
    "seqno_advanced": 23,
    "set": 32,
    "snapshot_marker": 1061,
    "stream_end": 36,
    "stream_request": 591,
    "system_event": 71,
    "tap_checkpoint_end": 8,
    "tap_checkpoint_start": 16,
    "tap_connect": 21,
    "tap_opaque": 122,
    "version": 10,
}


@pytest.fixture(params=TRANSCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def talk(request: pytest.FixtureRequest) -> Transcript:
    return transcript(request.param)


@dataclass(frozen=True)
class Read:
    """Bytes of a frame, and the frame or the error."""

    raw: bytes
    frame: dcp.Frame | None
    error: dcp.FrameError | None = None


@cache
def reads(data: bytes, dialect: str) -> tuple[Read, ...]:
    """Yield every frame of one direction, also those after a malformed one."""
    found: list[Read] = []
    offset = 0
    for raw in cut(data):
        try:
            found.append(Read(raw, read_frame(raw, dialect_of(dialect), offset)))
        except dcp.FrameError as error:
            found.append(Read(raw, None, error))
        offset += len(raw)
    return tuple(found)


def frames(data: bytes, dialect: str) -> list[dcp.Frame]:
    return [read.frame for read in reads(data, dialect) if read.frame is not None]


def everything(path: Path) -> Iterator[Read]:
    talk = transcript(path)
    for _, data in talk.streams:
        yield from reads(data, talk.dialect)


def test_all_recordings_are_here() -> None:
    versions = Counter(path.parent.name for path in TRANSCRIPTS)
    assert versions == {"3.0.0-beta1": 28, "3.1.6": 29, "6.0.5": 35, "6.6.5": 40, "7.0.5": 44, "7.2.9": 7, "8.0.1": 7}
    found = Counter(read.frame.name if read.frame else None for path in TRANSCRIPTS for read in everything(path))
    assert found == NAMES
    assert sum(found.values()) == 10982


def test_both_directions_split_into_whole_frames(talk: Transcript) -> None:
    for _, data in talk.streams:
        splitter = Splitter(MAX_FRAME)
        splitter.feed(data)
        assert list(splitter) == cut(data)
        splitter.finish()
        assert (splitter.pending, splitter.offset) == (0, len(data))


def test_byte_by_byte_the_frames_are_the_same(talk: Transcript) -> None:
    for _, data in talk.streams:
        splitter = Splitter(MAX_FRAME)
        found: list[bytes] = []
        for position in range(len(data)):
            splitter.feed(data[position : position + 1])
            found.extend(splitter)
        assert found == cut(data)


def test_every_frame_decodes_and_encodes_back(talk: Transcript) -> None:
    for _, data in talk.streams:
        for read in reads(data, talk.dialect):
            frame = read.frame or read_opaque(read.raw)
            assert encode(frame, talk.dialect) == read.raw


def test_only_what_the_client_got_wrong_on_purpose_is_refused(talk: Transcript) -> None:
    refused = []
    for side, data in talk.streams:
        offset = 0
        for read in reads(data, talk.dialect):
            if read.error is not None:
                error = read.error
                refused.append((side, error.offset - offset, error.opcode, error.vbucket, error.problem))
            offset += len(read.raw)
    expected = MALFORMED.get(talk.scenario)
    assert refused == ([("client", 0, expected[0], 0, expected[1])] if expected else [])


def test_only_the_opcode_that_no_server_has_is_unknown(talk: Transcript) -> None:
    unknown = [f for _, data in talk.streams for f in frames(data, talk.dialect) if f.name == UNKNOWN]
    assert {f.fields["opcode"] for f in unknown} <= {UNKNOWN_OPCODES.get(talk.scenario)}
    assert all(f.status in (Status.UNKNOWN_COMMAND, Status.EACCESS) for f in unknown if f.kind.answers)


def test_structured_values_are_read_and_read_the_same_when_written(talk: Transcript) -> None:
    refused = []
    for side, data in talk.streams:
        for frame in frames(data, talk.dialect):
            body = None if frame.name == UNKNOWN else layout_of(frame, dialect_of(talk.dialect))[1].body
            try:
                content = frame.body(talk.dialect)
            except dcp.RemoteProtocolError:
                refused.append((side, frame.name, frame.value))
            else:
                assert body is None or body.decode(body.encode(content), frame.fields) == content
    assert refused == ([("client", "stream_request", b"{nojson")] if talk.scenario == NO_JSON else [])


# ------------------------------------------------------------------------- the recorder's summary lines

# Two recorders made the recordings: 7.2.9 and 8.0.1 are those of the second one, which writes a line like this.
FULL_LINE = re.compile(
    r"(?P<side>[CS]) (?P<name>\S+) vb=(?P<vbucket>\d+) opaque=(?P<opaque>\S+) status=(?P<status>\S+)"
    r" (?P<fields>\{.*\}) key=(?P<key>b.*) vlen=(?P<size>\d+)"
)
LINE = re.compile(r"(?P<side>[CS]) (?P<name>\S+)(?P<answer> res)?(?P<rest>.*)")
ELISION = re.compile(r"[CS] \.\.\. (\d+) more mutations/deletions")
CLOSED = "S (connection closed by server)"
TOKEN = re.compile(r"""(\w+)=(b'(?:[^'\\]|\\.)*'|b"(?:[^"\\]|\\.)*"|\S*)""")
RANGE = re.compile(r" (\d+)\.\.(\d+) ")
BARE_VALUE = re.compile(r" (b'[^']*') ")

RECORDED_AS = {
    "dcp_ack": "buffer_ack",
    "dcp_failover": "get_failover_log",
    "dcp_noop": "dcp_noop",
    "dcp_oso": "oso_snapshot",
    "dcp_seqno_adv": "seqno_advanced",
    "dcp_snap": "snapshot_marker",
    "dcp_stream_req": "stream_request",
    "dcp_sysevent": "system_event",
    "get_cccp": "get_cluster_config",
    "sasl_list": "sasl_list_mechs",
    "tap_ckpt_end": "tap_checkpoint_end",
    "tap_ckpt_start": "tap_checkpoint_start",
    "tap_connect": "tap_connect",
    "tap_delete": "deletion",
    "tap_mutation": "mutation",
    "tap_opaque": "tap_opaque",
    "0x99": UNKNOWN,
    "0xfe": "get_error_map",
}
# The recorder's `ex` has all extras in hex.
EXTRAS = {
    "add_stream": "{flags:08x}",
    "commit": "{prepared_seqno:016x}{seqno:016x}",
    "get_all_vb_seqnos": "{state:08x}",
    "oso_snapshot": "{flags:08x}",
    "prepare": "{seqno:016x}{rev_seqno:016x}{flags:08x}{expiry:08x}{lock_time:08x}"
    "{nru:02x}{deleted:02x}{durability:02x}",
    "seqno_advanced": "{seqno:016x}",
    "set": "{flags:08x}{expiry:08x}",
    "snapshot_marker": "{version:02x}",
    "system_event": "{seqno:016x}{event_id:08x}{version:02x}",
}
ENGINE = {
    "mutation": "{rev_seqno:016x}{nru:02x}",
    "deletion": "{rev_seqno:016x}",
    "tap_opaque": "{code:08x}",
    "tap_checkpoint_start": "{rev_seqno:016x}",
    "tap_checkpoint_end": "",
}
# The recorder truncates keys.
LONGEST_KEY = 40


# The recorder's words as parts of the frame; the functions below handle the others.
WORDS = {
    "opaque": "{frame.opaque:#x}",
    "vb": "{frame.vbucket}",
    "dt": "{frame.datatype}",
    "key": "{frame.key!r}",
    "name": "{frame.key!r}",
    "seq": "{seqno}",
    "rev": "{rev_seqno}",
    "itemflags": "{flags:08x}",
    "exp": "{expiry}",
    "lock": "{lock_time}",
    "start": "{start_seqno}",
    "end": "{end_seqno:#x}",
    "uuid": "{vbuuid:#x}",
    "snap": "{snapshot_start}..{snapshot_end}",
    "rollback_to": "{rollback_seqno}",
    "reason": "{reason}",
    "n": "{bytes}",
    "ttl": "{ttl}",
}


def spell(word: str, frame: dcp.Frame, dialect: str) -> str:
    """Return the value that we read, as the recorder spells it."""
    if word in WORDS:
        return WORDS[word].format(frame=frame, **frame.fields)
    return SPECIAL_WORDS[word](frame, dialect)


def _number(frame: dcp.Frame, name: str) -> int:
    return int(frame.fields[name])


def _flags(frame: dcp.Frame, dialect: str) -> str:
    if frame.name == "tap_connect":
        return f"{_number(frame, 'flags'):08x}"
    return f"{_number(frame, 'tap_flags' if dialect == 'tap' else 'flags'):#x}"


def _extras(frame: dcp.Frame, dialect: str) -> str:
    return EXTRAS[frame.name].format(**frame.fields)


def _engine(frame: dcp.Frame, dialect: str) -> str:
    return ENGINE[frame.name].format(**frame.fields)


def _status(frame: dcp.Frame, dialect: str) -> str:
    return f"{frame.status:#x}({Status(frame.status).name.lower()})"


def _value(frame: dcp.Frame, dialect: str) -> str:
    if "checkpoint" in frame.fields:
        return f"{_number(frame, 'checkpoint'):016x}"
    return frame.value.hex() if frame.name == "tap_connect" else repr(frame.value)


def _value_length(frame: dcp.Frame, dialect: str) -> str:
    return str(layout_of(frame, dialect_of(dialect))[1].content_length + len(frame.value))


def _log(frame: dcp.Frame, dialect: str) -> str:
    return ",".join(f"{vbuuid:#x}:{seqno}" for vbuuid, seqno in frame.body(dialect))


def _tail(frame: dcp.Frame, dialect: str) -> str:
    """Return the end of a deletion's extras: no extended metadata, or the delete time and an unused byte."""
    if "delete_time" not in frame.fields:
        return "0000"
    return f"{_number(frame, 'delete_time'):08x}" + ("00" if frame.name == "deletion" else "")


def _extras_length(frame: dcp.Frame, dialect: str) -> str:
    return str(16 + len(_tail(frame, dialect)) // 2)


SPECIAL_WORDS: dict[str, Callable[[dcp.Frame, str], str]] = {
    "flags": _flags,
    "ex": _extras,
    "engine": _engine,
    "status": _status,
    "value": _value,
    "vlen": _value_length,
    "log": _log,
    "tail": _tail,
    "exlen": _extras_length,
}


def lines(connection: Connection, side: str) -> Iterator[str | int]:
    """Yield the lines of one direction; a number stands for that many changes without a line."""
    for line in connection.summary:
        if line[0] == side and line != CLOSED:
            elided = ELISION.fullmatch(line)
            yield int(elided[1]) if elided else line


def check_line(line: str, read: Read, dialect: str) -> int:
    """Compare a summary line with a frame. Return the number of words compared."""
    if (whole := FULL_LINE.fullmatch(line)) is not None:
        return _check_full_line(whole, read)
    found = LINE.fullmatch(line)
    assert found is not None
    if read.frame is None:
        assert "(short)" in line or read.raw[2:4] == bytes(2)
        return 0
    frame = read.frame
    name = RECORDED_AS.get(found["name"], found["name"].removeprefix("dcp_"))
    assert (frame.name, frame.kind.answers) == (name, found["answer"] is not None)
    if any(not info.counted for info in frame.frame_info):
        return 0
    words = dict(TOKEN.findall(found["rest"]))
    for word, text in words.items():
        ours = spell(word, frame, dialect)
        assert text == ours or (word == "key" and _is_cut(text, frame.key)), word
    assert words.get("vb", "0") == str(frame.vbucket)
    assert words.get("dt", "0") == str(frame.datatype)
    return len(words) + _check_bare(found["rest"], frame)


def _check_full_line(found: re.Match[str], read: Read) -> int:
    """Compare a line of the second recorder with a frame. Return the number of values compared."""
    frame = read.frame
    assert frame is not None
    fields = ast.literal_eval(found["fields"])
    value = read.raw[len(read.raw) - int(found["size"]) :] if int(found["size"]) else b""
    assert (frame.name, frame.vbucket, dict(frame.fields)) == (found["name"], int(found["vbucket"]), fields)
    assert (frame.opaque, frame.status) == (int(found["opaque"], 16), int(found["status"], 16))
    assert (frame.key, frame.value) == (ast.literal_eval(found["key"]), value)
    return 5 + len(fields)


def _is_cut(text: str, key: bytes) -> bool:
    return len(key) > LONGEST_KEY and ast.literal_eval(text) == key[:LONGEST_KEY]


def _check_bare(rest: str, frame: dcp.Frame) -> int:
    """Compare a marker's range and a control's value, which have no name in a line."""
    bounds, value = RANGE.search(rest), BARE_VALUE.search(rest)
    if frame.name == "snapshot_marker" and bounds:
        assert (int(bounds[1]), int(bounds[2])) == (frame.fields["snapshot_start"], frame.fields["snapshot_end"])
        return 2
    if frame.name == "control" and not frame.kind.answers:
        assert value is not None
        assert ast.literal_eval(value[1]) == frame.value
        return 1
    return 0


@cache
def check_summaries(path: Path) -> tuple[int, int]:
    """Compare all lines of a recording with its frames. Return the number of lines and words compared."""
    talk, compared, words = transcript(path), 0, 0
    for connection in talk.connections:
        if not connection.summary:
            # The second recorder has lines for the main connection only.
            continue
        for side, data in connection.directions:
            waiting = list(reversed(reads(data, talk.dialect)))
            for line in lines(connection, side[0].upper()):
                if isinstance(line, int):
                    elided = [waiting.pop().frame for _ in range(line)]
                    assert all(frame is not None and frame.name in CHANGES for frame in elided)
                else:
                    words += check_line(line, waiting.pop(), talk.dialect)
                    compared += 1
            assert not waiting
    return compared, words


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_frames_are_those_that_the_recorder_saw(path: Path) -> None:
    check_summaries(path)


def test_the_summaries_were_not_empty() -> None:
    lines, words = (sum(one) for one in zip(*map(check_summaries, TRANSCRIPTS), strict=True))
    assert (lines, words) == (8909, 64944)


# ------------------------------------------------------------------------- what had been stored


@cache
def check_documents(path: Path) -> Counter[str]:
    talk = transcript(path)
    sent = frames(talk.main.server, talk.dialect)
    changes = [frame for frame in sent if frame.name in CHANGES and not frame.kind.answers]
    return compare_with_documents(talk, [_change(talk, frame) for frame in changes])


def _change(talk: Transcript, frame: dcp.Frame) -> Change:
    collection, key = split_collection(frame.key) if has_collections(talk) else (0, frame.key)
    # With this open flag the datatype is that of the stored value; what is sent is not compressed.
    underlying = open_flags(talk) & OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE
    compressed = bool(frame.datatype & Datatype.SNAPPY and frame.value and not underlying)
    has_xattrs = frame.datatype & Datatype.XATTR and not compressed
    pairs, value = split_xattrs(frame.value) if has_xattrs else ((), frame.value)
    return Change(
        frame.name,
        frame.vbucket,
        collection,
        key,
        frame.cas,
        _optional(frame, "seqno"),
        _item_flags(frame),
        _optional(frame, "expiry"),
        value,
        compressed,
        {name.decode(): text.decode() for name, text in pairs},
    )


def _optional(frame: dcp.Frame, name: str) -> int | None:
    return _number(frame, name) if name in frame.fields else None


def _item_flags(frame: dcp.Frame) -> int | None:
    """Return the flags of a TAP item: little-endian, as the server stores them, unless the frame says otherwise."""
    found, tap_flags = _optional(frame, "flags"), _optional(frame, "tap_flags")
    if found is None or tap_flags is None or tap_flags & TapFlag.NETWORK_BYTE_ORDER:
        return found
    return int.from_bytes(found.to_bytes(4, "big"), "little")


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_server_sent_what_had_been_stored(path: Path) -> None:
    counts = check_documents(path)
    assert sum(counts[name] for name in ("sent", "superseded", "unsent")) >= len(transcript(path).documents)


def test_the_comparison_with_what_had_been_stored_was_not_empty() -> None:
    total: Counter[str] = Counter()
    for path in TRANSCRIPTS:
        total += check_documents(path)
    assert total == {
        # Changes with the CAS of a document. A refused one is sent again, so there may be several.
        "sent": 2834,
        "superseded": 42,
        "unsent": 338,
        "seqno": 1673,
        "flags": 2550,
        "expiry": 2550,
        "values": 2737,
        "compressed": 75,
        "xattrs": 188,
        # Compressed by the server; the recording does not have the result.
        "incomparable": 22,
    }


def named(version: str, scenario: str) -> Transcript:
    (path,) = [path for path in TRANSCRIPTS if (path.parent.name, path.stem) == (version, scenario)]
    return transcript(path)


@pytest.mark.parametrize("version", ["6.6.5", "7.0.5"])
def test_each_change_belongs_to_the_stream_that_asked_for_its_collection(version: str) -> None:
    collections = {1: {8}, 2: {9}, 3: {0xC1, 0x1000}}
    sent = frames(named(version, "collections_stream_ids").main.server, "dcp")
    changes = [frame for frame in sent if frame.name in CHANGES]
    for frame in changes:
        assert frame.stream_id is not None
        assert split_collection(frame.key)[0] in collections[frame.stream_id]
    (deletion,) = [frame for frame in changes if frame.name == "deletion"]
    assert (deletion.stream_id, deletion.key, deletion.fields["seqno"]) == (1, b"\x08apple0", 26)
    assert not deletion.frame_info[0].counted


@pytest.mark.parametrize("version", ["6.6.5", "7.0.5"])
def test_sync_writes_are_prepared_and_committed_as_their_writer_was_told(version: str) -> None:
    stream, writer = named(version, "sync_writes_enabled").connections
    asked = {f.opaque: f for f in frames(writer.client, "dcp") if f.name == "set" and f.frame_info}
    told = {f.cas: f for f in frames(writer.server, "dcp") if f.name == "set" and f.opaque in asked}
    sent = frames(stream.server, "dcp")
    (log,) = [f.body() for f in sent if f.name == "stream_request"]
    commits = {f.fields["prepared_seqno"]: f for f in sent if f.name == "commit"}
    prepares = [f for f in sent if f.name == "prepare"]
    assert len(prepares) == len(asked) == 7
    for prepare in prepares:
        answer = told[prepare.cas]
        request = asked[answer.opaque]
        seqno = int(prepare.fields["seqno"])
        assert (answer.fields["vbuuid"], answer.fields["seqno"]) == (log[0].vbuuid, seqno)
        assert (prepare.key, prepare.value) == (request.key, request.value)
        assert {name: prepare.fields[name] for name in request.fields} == request.fields
        assert bytes([int(prepare.fields["durability"])]) == request.frame_info[0].data
        assert (commits[seqno].key, commits[seqno].fields["seqno"]) == (prepare.key, seqno + 1)
