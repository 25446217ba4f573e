"""Framing extras: escapes, ends, and durations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.wire.framing import FrameInfo, ResponseInfo, join_infos, split_infos, stream_id

INFOS = st.lists(st.builds(FrameInfo, st.integers(0, 270), st.binary(max_size=270)), max_size=4)


@given(INFOS)
def test_what_is_joined_is_split_again(infos: list[FrameInfo]) -> None:
    assert list(split_infos(join_infos(infos))) == infos


@given(st.binary(max_size=60))
def test_any_bytes_are_split_or_refused_and_joined_again(extras: bytes) -> None:
    try:
        infos = list(split_infos(extras))
    except ValueError as error:
        assert "expected" in str(error)
    else:
        assert join_infos(infos) == extras


@pytest.mark.parametrize(
    ("info", "written"),
    [
        (stream_id(71), "220047"),
        (FrameInfo(1, b"\x01"), "1101"),
        (FrameInfo(14, b"\0" * 14), "ee" + "00" * 14),
        (FrameInfo(15), "f000"),
        (FrameInfo(0, b"\0" * 15), "0f00" + "00" * 15),
        (FrameInfo(16, b"\0" * 16), "ff0101" + "00" * 16),
    ],
)
def test_fifteen_and_more_take_an_escape_the_id_first(info: FrameInfo, written: str) -> None:
    assert join_infos([info]).hex() == written


@pytest.mark.parametrize("extras", ["22", "2200", "f0", "0f", "ff00", "ff0001"])
def test_an_info_that_runs_past_the_end_is_refused(extras: str) -> None:
    with pytest.raises(ValueError, match=r"framing extras: .*expected"):
        list(split_infos(bytes.fromhex(extras)))


def test_an_info_beyond_the_escape_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 270"):
        join_infos([FrameInfo(271)])


def test_a_duration_is_the_power_that_servers_use() -> None:
    # kv_engine: microseconds = encoded ** 1.74 / 2
    info = FrameInfo(ResponseInfo.SERVER_DURATION, (1000).to_bytes(2, "big"))
    assert info.microseconds == pytest.approx(82_979.3, rel=1e-4)
