"""Packets of real servers: a public capture of a client's stream with xattrs, and of replication on a loopback."""

from __future__ import annotations

from collections import Counter

import pytest

import dcp
from dcp.wire.document import Datatype, join_xattrs, split_xattrs
from dcp.wire.frame import decode, encode
from tests.conformance import HERE, cut, tcp_streams

CAPTURE = tcp_streams(HERE / "captures" / "couchbase-xattr.pcapng")
RUNS = [pytest.param(run, id=f"{a}-{b}") for (a, b), runs in CAPTURE.items() for run in runs]
CLIENT, REPLICATION = 12000, 11999

# By magic and opcode: the number of frames, and their name.
SEEN = {
    (0x80, 0x01): (1, "set"),
    (0x80, 0x1F): (3, "hello"),
    (0x80, 0x20): (3, "sasl_list_mechs"),
    (0x80, 0x21): (4, "sasl_auth"),
    (0x80, 0x50): (1, "open"),
    (0x80, 0x53): (1, "stream_request"),
    (0x80, 0x56): (7, "snapshot_marker"),
    (0x80, 0x57): (7, "mutation"),
    (0x80, 0x5D): (2, "buffer_ack"),
    (0x80, 0xB5): (2, "get_cluster_config"),
    (0x80, 0xC5): (1, "subdoc_get"),
    (0x80, 0xC8): (2, "subdoc_dict_upsert"),
    (0x81, 0x01): (1, "set"),
    (0x81, 0x1F): (3, "hello"),
    (0x81, 0x20): (3, "sasl_list_mechs"),
    (0x81, 0x21): (4, "sasl_auth"),
    (0x81, 0x50): (1, "open"),
    (0x81, 0x53): (1, "stream_request"),
    (0x81, 0xB5): (2, "get_cluster_config"),
    (0x81, 0xC5): (1, "subdoc_get"),
    (0x81, 0xC8): (2, "subdoc_dict_upsert"),
}


@pytest.mark.parametrize("run", RUNS)
def test_every_packet_decodes_and_encodes_back(run: bytes) -> None:
    assert [encode(frame) for frame in decode(run)] == cut(run)


def test_the_capture_holds_these_frames() -> None:
    found: Counter[tuple[int, int, str]] = Counter()
    for parameter in RUNS:
        (run,) = parameter.values
        assert isinstance(run, bytes)
        found.update((raw[0], raw[1], frame.name) for raw, frame in zip(cut(run), decode(run), strict=True))
    assert found == {(magic, opcode, name): count for (magic, opcode), (count, name) in SEEN.items()}


def _sent(port: int) -> list[dcp.Frame]:
    """Return the frames that a port sent."""
    return [frame for (source, _), runs in CAPTURE.items() for run in runs if source == port for frame in decode(run)]


def _received(port: int) -> list[dcp.Frame]:
    """Return the frames that a port received."""
    return [frame for (_, to), runs in CAPTURE.items() for run in runs if to == port for frame in decode(run)]


def _mutations(port: int) -> list[dcp.Frame]:
    """Return the mutations that a port sent."""
    return [frame for frame in _sent(port) if frame.name == "mutation"]


def test_the_xattrs_of_the_client_stream_split_and_join_exactly() -> None:
    mutations = _mutations(CLIENT)
    assert [mutation.datatype for mutation in mutations] == [Datatype.JSON | Datatype.XATTR] * 4
    for mutation in mutations:
        pairs, body = split_xattrs(mutation.value)
        assert pairs
        assert join_xattrs(pairs, body) == mutation.value


def test_the_stream_has_the_xattrs_that_the_capture_shows_being_written() -> None:
    (stored,) = (frame for frame in _received(CLIENT) if frame.name == "set")
    subdocument_sets = [frame for frame in _received(CLIENT) if frame.name == "subdoc_dict_upsert"]
    written = {frame.value[:5]: frame.value[5:] for frame in subdocument_sets}
    assert list(written) == [b"_sync", b"_data"]
    mutation = _mutations(CLIENT)[-1]
    pairs, body = split_xattrs(mutation.value)
    assert dict(pairs) == written
    assert body == stored.value
    assert {name: mutation.fields[name] for name in stored.fields} == stored.fields


def test_replication_sends_the_same_changes_without_xattrs() -> None:
    with_xattrs = {mutation.cas: split_xattrs(mutation.value)[1] for mutation in _mutations(CLIENT)}
    replicated = _mutations(REPLICATION)
    assert len(replicated) == 3
    for mutation in replicated:
        assert mutation.datatype == Datatype.JSON
        assert with_xattrs[mutation.cas] == mutation.value


def test_consecutive_snapshots_hold_the_mutations_that_follow_them() -> None:
    for port, first in ((CLIENT, 0), (REPLICATION, 8)):
        frames = [frame for frame in _sent(port) if frame.name in ("snapshot_marker", "mutation")]
        for marker, mutation in zip(frames[::2], frames[1::2], strict=True):
            start, end = marker.fields["snapshot_start"], marker.fields["snapshot_end"]
            assert (start, mutation.fields["seqno"]) == (first, end)
            assert isinstance(end, int)
            first = end + 1
