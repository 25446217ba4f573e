"""Random bytes from clients: none may crash a connection or keep it busy for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.wire.frame import encode
from dcp.wire.layout import Magic
from dcp.wire.memcached import Status
from dcp.wire.tap import TapConnectFlag
from tests.embedded.raw_client import LegacyClient, fill, legacy_bucket, upr_stream_request

OPCODES = st.one_of(
    st.integers(0, 5), st.integers(0x40, 0x60), st.sampled_from([0x0A, 0x9E, 0xB0]), st.integers(0, 255)
)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Draw a frame whose lengths are consistent and whose other parts are random."""
    extras, key, value = (draw(st.binary(max_size=length)) for length in (48, 8, 24))
    magic = draw(st.sampled_from([*Magic, Magic.REQUEST, Magic.RESPONSE]))
    status = draw(st.sampled_from([0, 1, 2, *map(int, Status)]))
    head = bytes([magic, draw(OPCODES)]) + len(key).to_bytes(2, "big") + bytes([len(extras), draw(st.integers(0, 6))])
    size = len(extras) + len(key) + len(value)
    opaque = draw(st.integers(0, 30))
    return (
        head
        + status.to_bytes(2, "big")
        + size.to_bytes(4, "big")
        + opaque.to_bytes(4, "big")
        + bytes(8)
        + (extras + key + value)
    )


@pytest.mark.parametrize("dialect", ["dcp", "tap", "upr1", "upr2"])
@given(st.lists(frames() | st.binary(max_size=40), max_size=12), st.integers(0, 0x1FF), st.booleans())
def test_a_connection_survives_any_bytes(dialect: str, pieces: list[bytes], flags: int, streams: bool) -> None:
    peer = LegacyClient(legacy_bucket(), dialect)
    fill(peer.bucket, 10)
    if streams and dialect in ("dcp", "tap"):
        flags &= ~int(TapConnectFlag.BACKFILL | TapConnectFlag.LIST_VBUCKETS | TapConnectFlag.CHECKPOINT)
        peer.connect(TapConnectFlag(flags), name=b"me")
    elif streams:
        peer.connection.receive(encode(upr_stream_request(peer), dialect), 0.0)
    for piece in pieces:
        peer.connection.receive(piece, peer.now)
        peer.receive_bytes()
        peer.wait(7)
        fill(peer.bucket, 3)
    peer.receive_bytes()
    peer.connection.closed()
