"""`dcp inspect`: any input gives a table or one line of explanation, and never a credential."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import dcp
from dcp.cli.commands import dcp as command

NOOP = dcp.encode(dcp.Frame("dcp_noop", 0x80, opaque=0x989681))
BAD_OPEN = bytes.fromhex("80500003040000000000000710000001000000000000000000000001626164")


def inspect(tmp_path: Path, data: bytes, *options: str) -> Result:
    """Run the command on a file with these bytes."""
    path = tmp_path / "input"
    path.write_bytes(data)
    return CliRunner().invoke(command, ["inspect", *options, str(path)])


@pytest.mark.parametrize(
    "data", [NOOP, NOOP.hex().encode(), b" ".join([NOOP[:5].hex().encode(), NOOP[5:].hex().encode()])]
)
def test_raw_bytes_and_hex_are_read(tmp_path: Path, data: bytes) -> None:
    result = inspect(tmp_path, data)
    assert result.exit_code == 0
    assert "dcp_noop" in result.output
    assert "0x00989681" in result.output


def test_a_frame_is_printed_with_the_rule_that_it_breaks_and_the_next_is_read(tmp_path: Path) -> None:
    output = inspect(tmp_path, BAD_OPEN + NOOP).output
    assert "open: extras length: expected 8, found 4" in output
    assert "dcp_noop" in output


def test_bytes_that_are_no_frame_are_located(tmp_path: Path) -> None:
    assert "frame at byte 24: magic: expected 0x80 to 0x83" in inspect(tmp_path, NOOP + b"\x00").output


def test_an_input_that_ends_inside_a_frame_is_reported(tmp_path: Path) -> None:
    assert "frame at byte 24: the input ends inside it" in inspect(tmp_path, NOOP + NOOP[:7]).output


def test_the_dialect_decides_what_an_opcode_means(tmp_path: Path) -> None:
    frame = dcp.encode(dcp.Frame("snapshot_end", 0x80), "upr2")
    assert "snapshot_end" in inspect(tmp_path, frame, "--dialect", "upr2").output
    # It is not guessed where it is given: TAP knows no no-ops.
    assert "dcp_noop" in inspect(tmp_path, NOOP).output
    assert "dcp_noop" not in inspect(tmp_path, NOOP, "--dialect", "tap").output


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "no frames of dcp in 0 bytes"),
        (b"805", "hex text: expected an even number of digits, found 3"),
        (b"\n\r\r\n" + bytes(40), "capture: "),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line_of_explanation(tmp_path: Path, data: bytes, problem: str) -> None:
    result = inspect(tmp_path, data)
    assert result.exit_code == 1
    assert problem in result.output
    assert "Traceback" not in result.output


def test_a_password_is_never_printed(tmp_path: Path) -> None:
    frame = dcp.Frame("sasl_auth", 0x80, key=b"PLAIN", value=b"\0alice\0s3cret")
    assert "s3cret" not in repr(frame)
    output = inspect(tmp_path, dcp.encode(frame)).output
    assert "s3cret" not in output
    assert "(13 bytes, not shown)" in output


def test_a_frame_says_what_it_means_in_json_too(tmp_path: Path) -> None:
    found = [json.loads(line) for line in inspect(tmp_path, NOOP + BAD_OPEN, "--json").output.splitlines()]
    assert next((one["frame"], "says" in one, "violation" in one) for one in found if "frame" in one) == (
        "dcp_noop",
        True,
        False,
    )
