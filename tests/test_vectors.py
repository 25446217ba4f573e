"""Frames drawn in documents: each label has the value that our frame has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import dcp
from dcp._codec import Splitter
from dcp.wire.body import Records
from dcp.wire.dcp_body import CachedDocument
from dcp.wire.document import Datatype, join_xattrs, split_xattrs
from dcp.wire.field import Field
from dcp.wire.frame import UNKNOWN, decode, dialect_of, encode, layout_of
from dcp.wire.framing import RequestInfo, join_infos, stream_id
from dcp.wire.layout import HEADER, Layout
from dcp.wire.memcached import MAX_FRAME
from dcp.wire.tap import TapConnect
from tests.conformance import HEADER_SIZE, Vector, vectors

ALL = {vector.short: vector for vector in vectors()}
UNSOUND = {name for name, vector in ALL.items() if vector.drawn != vector.sound}

# Labels whose table contradicts the drawing or the rules, with the right text.
DEVIATIONS: dict[str, dict[str, str]] = {
    # Extras and body are counted with one more field of eight bytes than there is.
    "seed000-02": {"Extra Length": "20", "Total Body": "0000002e"},
    "seed000-11": {"Extra Length": "1c", "Total Body": "00000028"},
    "seed000-12": {"Extra Length": "1c", "Total Body": "00000021"},
    "seed000-13": {"Extra Length": "1c", "Total Body": "00000021"},
    # The value is not counted.
    "seed000-05": {"Total Body": "00000008"},
    "seed000-07": {"Total Body": "00000020"},
    # The rollback seqno is the value, the answer has no extras.
    "seed001-04": {"Extra length": "00"},
    # Eight bytes are printed for a field of four.
    "seed001-08": {"flag": "00000000"},
    "seed001-11": {"Total body": "00000026"},
    # The bytes say that the snapshot starts where the stream does.
    "seed002-01": {"snapshot start seqno": "0000000000ffeedd"},
    "kv-stream-request-01": {"snapshot start seqno": "0000000000ffeedd"},
    # The length of the four bytes of state.
    "seed003-14": {"Engine priv.": "0004"},
    # The checkpoint is not counted, and printed with 17 digits.
    "seed003-15": {"Total body": "00000010", "VB State": "00000000000000ff"},
    "seed003-16": {"Total body": "00000010", "VB State": "00000000000000fa", "Opcode": "47"},
    # A control has a key and a value and no extras, its answer has nothing.
    "kv-control-01": {"Key length": "000b", "Extra length": "00", "Total body": "0000000f"},
    "kv-control-02": {"Extra length": "00", "Total body": "00000000"},
    "kv-expiration-01": {"Extra length": "14", "Total body": "00000019"},
    "kv-get-seqno-04": {"Total body": "00000008"},
    "kv-persist-seqno-01": {"Key length": "0000"},
}

# Parts of frames that their table does not mention: the four bytes of the code of a TAP opaque.
UNMENTIONED = {"seed003-13": ["code"]}

# Labels in another order than that in which every server sends the fields.
REORDERED = {"kv-system-event-01": ("Value collection id", "Value scope id")}

# Results for the bytes of wrong drawings. Most are refused at an offset, with a reason.
REFUSED = {
    "seed000-02": (0, "expected 78 bytes, found 70: the input ends inside the frame"),
    "seed000-05": (0, "rollback: value length: expected 8, found 0"),
    "seed000-07": (24, "magic: expected 0x80 to 0x83, 0x08 or 0x18, found 0x00"),
    "seed000-11": (0, "expected 72 bytes, found 64: the input ends inside the frame"),
    "seed000-12": (0, "expected 65 bytes, found 57: the input ends inside the frame"),
    "seed000-13": (0, "expected 65 bytes, found 57: the input ends inside the frame"),
    "seed001-11": (0, "expected 63 bytes, found 62: the input ends inside the frame"),
    "seed002-03": (0, "expected 72 bytes, found 64: the input ends inside the frame"),
    "seed003-15": (0, "tap_checkpoint_start: value length: expected 8, found 0"),
    "seed003-16": (0, "tap_checkpoint_end: value length: expected 8, found 0"),
    "kv-buffer-ack-01": (0, "buffer_ack: extras length: expected 4, found 0"),
    "kv-cache-transfer-01": (0, "expected 74 bytes, found 70: the input ends inside the frame"),
    "kv-control-01": (0, "control: extras length: expected 0, found 4"),
    "kv-control-02": (0, "expected 28 bytes, found 24: the input ends inside the frame"),
    "kv-deletion-01": (47, "magic: expected 0x80 to 0x83, 0x08 or 0x18, found 0x65"),
    "kv-expiration-01": (0, "expiration: extras length: expected 20, found 18"),
    "kv-no-op-01": (24, "magic: expected 0x80 to 0x83, 0x08 or 0x18, found 0x00"),
    "kv-oso-snapshot-01": (0, "4 of extras and 0 of key, found 0"),
    "kv-persist-seqno-01": (32, "magic: expected 0x80 to 0x83, 0x08 or 0x18, found 0x00"),
    "kv-random-key-02": (0, "expected 40 bytes, found 32: the input ends inside the frame"),
    "kv-seqno-advanced-01": (0, "4 of extras and 0 of key, found 0"),
    "kv-snapshot-marker-01": (0, "20 of extras and 0 of key, found 0"),
    "kv-snapshot-marker-02": (0, "20 of extras and 0 of key, found 0"),
    "kv-stream-request-03": (0, "expected 72 bytes, found 64: the input ends inside the frame"),
}
# The others can be decoded.
READ_AS: dict[str, tuple[str, dict[str, int]]] = {
    # The prose wants the seqno in the value; this draft drew it as extras, which is read too.
    "seed001-04": ("stream_request", {"rollback_seqno_in_extras": 0}),
    # The opcode is drawn as that of a mutation, whose extras are as long as those of a prepare.
    "kv-prepare-01": ("mutation", {"seqno": 4, "rev_seqno": 1, "lock_time": 0, "nru": 1}),
    # The collection id is drawn first, where every server sends the scope id.
    "kv-system-event-01": ("system_event", {"scope_id": 8, "collection_id": 0, "max_ttl": 72000}),
}

# Names in the drawings, and ours.
ALIASES: dict[str, tuple[str, ...]] = {
    "magic": ("magic",),
    "opcode": ("opcode",),
    "key length": ("key_length",),
    "key len": ("key_length",),
    "fe len+key len": ("key_length",),
    "extra length": ("extras_length",),
    "ext len": ("extras_length",),
    "data type": ("datatype",),
    "datatype": ("datatype",),
    "request type": ("datatype",),
    "vbucket": ("vbucket",),
    "vb": ("vbucket", "vbucket_id"),
    "status": ("status", "reason"),
    "total body": ("body_length",),
    "opaque": ("opaque", "stream_opaque"),
    "request id": ("opaque",),
    "stream opaque": ("stream_opaque",),
    "cas": ("cas",),
    "flags": ("tap_flags", "flags"),
    "item flags": ("flags",),
    "snapshot type": ("flags",),
    "flag": ("reason",),
    "reserved": ("reserved",),
    "unused": ("reserved",),
    "seqno": ("rollback_seqno", "seqno"),
    "by seqno": ("seqno",),
    "vb seqno": ("seqno",),
    "commit seqno": ("seqno",),
    "abort seqno": ("seqno",),
    "commit": ("seqno",),
    "abort": ("seqno",),
    "current": ("seqno",),
    "high seqno": ("high_seqno", "seqno"),
    "rev seqno": ("rev_seqno",),
    "prepared seqno": ("prepared_seqno",),
    "prepared": ("prepared_seqno",),
    "persisted": ("persisted_seqno",),
    "old last seqno": ("old_seqno",),
    "rollback seqno": ("rollback_seqno",),
    "rollback #": ("rollback_seqno",),
    "start by seqno": ("start_seqno",),
    "end by seqno": ("end_seqno",),
    "start seqno": ("start_seqno", "snapshot_start"),
    "end seqno": ("end_seqno", "snapshot_end"),
    "start": ("start_seqno", "snapshot_start"),
    "end": ("end_seqno", "snapshot_end"),
    "snapshot start seqno": ("snapshot_start",),
    "snapshot end seqno": ("snapshot_end",),
    "snap start": ("snapshot_start",),
    "snap end": ("snapshot_end",),
    "max visible seqno": ("max_visible_seqno",),
    "max visible": ("max_visible_seqno",),
    "high completed seqno": ("high_completed_seqno",),
    "high completed": ("high_completed_seqno",),
    "high prepared": ("high_prepared_seqno",),
    "purge": ("purge_seqno",),
    "vbucket uuid": ("vbuuid",),
    "vb uuid": ("vbuuid",),
    "uuid": ("vbuuid",),
    "old uuid": ("old_vbuuid",),
    "item exp": ("expiry",),
    "item expiry": ("expiry",),
    "expiration": ("expiry",),
    "expiry": ("expiry",),
    "lock time": ("lock_time",),
    "nmeta": ("nmeta",),
    "nru": ("nru",),
    "cachehint": ("nru",),
    "hint": ("nru",),
    "delete time": ("delete_time",),
    "deleted": ("deleted",),
    "level": ("durability",),
    "durability": ("durability",),
    "stream id": ("stream_id",),
    "buffer bytes": ("bytes",),
    "bytes": ("bytes",),
    "engine priv": ("engine_length",),
    "ttl": ("ttl",),
    "vb state": ("state", "checkpoint"),
    "state": ("state",),
    "event": ("event_id",),
    "version": ("version",),
    "format": ("format",),
    "epoch": ("epoch",),
    "revision": ("revision",),
    "manifest uid": ("manifest_uid",),
    "manifest": ("manifest_uid",),
    "value manifest id": ("manifest_uid",),
    "collection id": ("collection_id",),
    "collection": ("collection_id",),
    "value collection id": ("collection_id",),
    "scope": ("scope_id",),
    "value scope id": ("scope_id",),
    "max ttl": ("max_ttl",),
    "value max ttl": ("max_ttl",),
    "value len": ("value_length",),
    "backfill date": ("backfill",),
    "# listed": ("count",),
    "name": ("key",),
    "group id": ("key",),
    "key": ("key",),
    "value": ("value",),
    "flatbuffer": ("value",),
    "xattr section": ("xattrs",),
    "body": ("body",),
}
# Labels that mean something else in one message.
ALIASES_OF = {("open", "seqno"): ("reserved",), ("get_error_map", "value"): ("version",)}
# Labels over other labels, without a text.
HEADINGS = {"VBucket list"}

_WIDTHS = {f.name: f.width for f in HEADER}
# Members of values, which the layouts of frames do not list.
_VALUE_WIDTHS = {
    "vbucket": 2,
    "vbuuid": 8,
    "cas": 8,
    "seqno": 8,
    "rev_seqno": 8,
    "value_length": 4,
    "flags": 4,
    "expiry": 4,
    "key_length": 2,
    "datatype": 1,
    "nru": 1,
}

Members = Iterator[tuple[str, bytes]]


def members_of(frame: dcp.Frame, dialect: str) -> Members:
    """Yield name and bytes of every part of a frame, in wire order, from its members alone.

    Only the lengths, which no member has, are those of the encoded frame.
    """
    if frame.name == UNKNOWN:
        yield from _header(frame, dialect, int(frame.fields["opcode"]), frame.datatype)
        return
    message, layout = layout_of(frame, dialect_of(dialect))
    yield from _header(frame, dialect, message.opcode, frame.datatype if message.type is None else message.type)
    yield from _infos(frame)
    for f in layout.extras + layout.engine:
        yield from _field(frame, f, dialect)
    yield from _nonempty("key", frame.key)
    for f in layout.content:
        yield from _field(frame, f, dialect)
    yield from _value(frame, layout, dialect)


def _header(frame: dcp.Frame, dialect: str, opcode: int, byte_5: int) -> Members:
    raw = encode(frame, dialect)
    has_status = frame.kind.answers and dialect != "upr1"
    yield "magic", bytes([frame.magic])
    yield "opcode", bytes([opcode])
    yield "key_length", raw[2:4]
    yield "extras_length", raw[4:5]
    yield "datatype", bytes([byte_5])
    yield ("status", frame.status.to_bytes(2, "big")) if has_status else ("vbucket", frame.vbucket.to_bytes(2, "big"))
    yield "body_length", raw[8:12]
    yield "opaque", frame.opaque.to_bytes(_WIDTHS["opaque"], "big")
    yield "cas", frame.cas.to_bytes(_WIDTHS["cas"], "big")


def _infos(frame: dcp.Frame) -> Members:
    for info in frame.frame_info:
        if info.id == RequestInfo.STREAM_ID:
            assert frame.stream_id is not None
            yield "stream_id", join_infos([stream_id(frame.stream_id)])
        else:
            yield RequestInfo(info.id).name.lower(), join_infos([info])


def _field(frame: dcp.Frame, f: Field, dialect: str) -> Members:
    if f.measures == "engine":
        yield "engine_length", encode(frame, dialect)[HEADER_SIZE : HEADER_SIZE + f.width]
    elif f.measures == "meta":
        assert "meta" not in frame.fields
        yield "nmeta", bytes(f.width)
    elif f.reserved:
        raw = frame.fields.get("reserved", bytes(f.width))
        assert isinstance(raw, bytes)
        # TAP's three are drawn one by one.
        yield from (("reserved", bytes([byte])) for byte in raw) if f.width == 3 else [("reserved", raw)]
    else:
        yield f.name, int(frame.fields[f.name]).to_bytes(f.width, "big")


def _value(frame: dcp.Frame, layout: Layout, dialect: str) -> Members:
    content = frame.body(dialect)
    if isinstance(content, TapConnect):
        yield from _tap_connect(content)
    elif isinstance(layout.body, Records) and content and isinstance(content[0], tuple):
        for record in content:
            yield from _members(record._asdict())
    elif isinstance(content, tuple) and content and isinstance(content[0], CachedDocument):
        for document in content:
            yield from _cached(document)
    elif frame.datatype & Datatype.XATTR:
        pairs, body = split_xattrs(frame.value)
        yield "xattrs", join_xattrs(pairs)
        yield from _nonempty("body", body)
    else:
        yield from _nonempty("value", frame.value)


def _tap_connect(content: TapConnect) -> Members:
    if content.backfill is not None:
        yield "backfill", content.backfill.to_bytes(8, "big")
    if content.vbuckets is not None:
        yield "count", len(content.vbuckets).to_bytes(2, "big")
        yield from (("vbucket", vbucket.to_bytes(2, "big")) for vbucket in content.vbuckets)


def _members(numbers: dict[str, Any]) -> Members:
    for name, number in numbers.items():
        yield name, number.to_bytes(_VALUE_WIDTHS[name], "big")


def _cached(d: CachedDocument) -> Members:
    yield from _members({"cas": d.cas, "seqno": d.seqno, "rev_seqno": d.rev_seqno, "value_length": len(d.value)})
    yield from _members({"flags": d.flags, "expiry": d.expiry, "key_length": len(d.key)})
    yield from _members({"datatype": d.datatype, "nru": d.nru})
    yield from _nonempty("key", d.key)
    yield from _nonempty("value", d.value)


def _nonempty(name: str, data: bytes) -> Members:
    if data:
        yield name, data


def names_of(label: str, message: str) -> tuple[str, ...]:
    """Return our name of a label. Its range in brackets and its punctuation do not matter."""
    bare = re.sub(r" \(\d+(-\d+)?\)$", "", label).lower().rstrip(".").replace("_", " ")
    return ALIASES_OF.get((message, bare)) or ALIASES[bare]


def labels_of(vector: Vector) -> list[tuple[str, str]]:
    """Return labels and texts in wire order."""
    labels = [(label, text) for label, text in vector.fields if label not in HEADINGS]
    if swapped := REORDERED.get(vector.short):
        first, second = ([label for label, _ in labels].index(label) for label in swapped)
        labels[first], labels[second] = labels[second], labels[first]
    return labels


def spells(vector: Vector, name: str, text: str, value: bytes) -> bool:
    """Return whether the text of a label denotes `value`."""
    if vector.file == "examples":
        return bytes.fromhex(text) == value
    if name in ("key", "value"):
        return re.sub(r'^(["\[])(.*)["\]]$', r"\2", text).encode() == value
    digits = re.match(r"(?:0x)?([0-9a-fA-F]+)(?: |$)", text)
    # One digit stands for a small number of any width; otherwise all are there.
    return (
        digits is not None
        and int(digits[1], 16) == int.from_bytes(value, "big")
        and (len(digits[1]) in (1, 2 * len(value)))
    )


def read(vector: Vector) -> dcp.Frame:
    (frame,) = decode(vector.sound, vector.dialect)
    return frame


@pytest.fixture(params=ALL)
def vector(request: pytest.FixtureRequest) -> Vector:
    return ALL[request.param]


def test_all_vectors_are_here() -> None:
    files = [vector.file for vector in vectors()]
    assert [files.count(name) for name in ("seeds", "examples", "server_docs")] == [51, 66, 43]
    assert len(ALL) == 160


def test_the_sound_bytes_are_one_frame_and_encode_back(vector: Vector) -> None:
    assert encode(read(vector), vector.dialect) == vector.sound


def test_the_splitter_finds_the_frame_in_any_pieces(vector: Vector) -> None:
    second = bytes.fromhex("800a0000000000000000000000000000" + "00" * 8)
    for data, frames in ((vector.sound, [vector.sound]), (vector.sound + second, [vector.sound, second])):
        for size in (len(data), 1):
            splitter = Splitter(MAX_FRAME)
            found = []
            for start in range(0, len(data), size):
                splitter.feed(data[start : start + size])
                found += list(splitter)
            splitter.finish()
            assert found == frames


def test_every_label_has_the_value_that_the_frame_says(vector: Vector) -> None:
    frame = read(vector)
    unmentioned = UNMENTIONED.get(vector.short, [])
    ours = [(name, value) for name, value in members_of(frame, vector.dialect) if name not in unmentioned]
    labels = labels_of(vector)
    assert len(labels) == len(ours)
    for (label, text), (name, value) in zip(labels, ours, strict=True):
        assert name in names_of(label, frame.name)
        right = DEVIATIONS.get(vector.short, {}).get(label)
        if right is None:
            assert spells(vector, name, text, value), f"{label}: the table says {text!r}, the frame {value.hex()}"
        else:
            assert value == bytes.fromhex(right), label


@pytest.mark.parametrize("name", DEVIATIONS)
def test_a_listed_deviation_is_really_one(name: str) -> None:
    vector = ALL[name]
    assert not vector.consistent
    texts = dict(vector.fields)
    for label, right in DEVIATIONS[name].items():
        assert not spells(vector, "number", texts[label], bytes.fromhex(right))


def test_what_becomes_of_each_unsound_drawing_is_written_down() -> None:
    assert REFUSED.keys() | READ_AS.keys() == UNSOUND
    assert not REFUSED.keys() & READ_AS.keys()
    inconsistent = {name for name, vector in ALL.items() if not vector.consistent}
    assert inconsistent == UNSOUND | DEVIATIONS.keys()


def test_drawings_whose_lengths_do_not_add_up_are_refused() -> None:
    assert {name for name, vector in ALL.items() if not vector.lengths_add_up} <= REFUSED.keys()


@pytest.mark.parametrize("name", REFUSED)
def test_an_unsound_drawing_is_refused_with_the_reason(name: str) -> None:
    vector, (offset, reason) = ALL[name], REFUSED[name]
    with pytest.raises(dcp.FrameError) as refused:
        decode(vector.drawn, vector.dialect)
    assert refused.value.offset == offset
    assert refused.value.problem.endswith(reason)


@pytest.mark.parametrize("name", READ_AS)
def test_an_unsound_drawing_that_can_be_read_says_what_its_bytes_say(name: str) -> None:
    vector, (message, fields) = ALL[name], READ_AS[name]
    (frame,) = decode(vector.drawn, vector.dialect)
    assert frame.name == message
    assert {field: frame.fields[field] for field in fields} == fields
    assert encode(frame, vector.dialect) == vector.drawn
    assert frame != read(vector)


def test_the_first_draft_can_have_its_rollback_seqno_in_the_extras_too() -> None:
    in_value = ALL["seed000-05"].sound
    in_extras = in_value[:4] + b"\x08" + in_value[5:]
    (frame,) = decode(in_extras, "upr1")
    assert frame.fields == {"rollback_seqno_in_extras": 0x45A8}
    assert encode(frame, "upr1") == in_extras


def test_the_flatbuffer_of_a_system_event_says_what_its_title_does() -> None:
    frame = read(ALL["se_fb"])
    body = frame.body()
    assert (body["name"], body["collection_id"]) == (frame.key.decode(), 0x91)
