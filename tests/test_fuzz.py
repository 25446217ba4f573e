"""Targets of the fuzzers, run once over their seeds and all of their findings: see tests/fuzz/README.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dcp
from tests.fuzz.rows import options_of
from tests.fuzz.run import read
from tests.fuzz.seeds import seeds
from tests.fuzz.stream import Source, stream_of
from tests.fuzz.targets import TARGETS, decode_whole

HERE = Path(__file__).parent
FINDINGS = sorted((HERE / "fuzz" / "findings").glob("*.hex"))
# Replay every n-th seed: all of them would take a minute.
STEP = 7
WITHOUT_ARROW = frozenset(("frames", "splitter", "codec", "bodies"))


def run(target: str, data: bytes) -> None:
    if target not in WITHOUT_ARROW:
        pytest.importorskip("pyarrow")
    TARGETS[target](data)


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_takes_its_seeds(target: str) -> None:
    for data in list(seeds(target))[::STEP]:
        run(target, data)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("data", [b"", bytes(1), bytes(40), b"\xff" * 40], ids=repr)
def test_a_target_takes_next_to_nothing(target: str, data: bytes) -> None:
    run(target, data)


@pytest.mark.parametrize("path", FINDINGS, ids=lambda path: path.stem)
def test_what_was_found_stays_mended(path: Path) -> None:
    run(path.stem.split("-")[0], read(path))


def test_the_seeds_reach_rows_controls_and_errors() -> None:
    pytest.importorskip("pyarrow")
    found = {dialect: [0, 0, 0] for dialect in dcp.DIALECTS}
    for data in list(seeds("decoder"))[::STEP]:
        source = Source(data)
        options = options_of(source)
        stream = stream_of(options.mode, source.rest(), options.dialect, collections=options.collections)
        decoded = decode_whole(options, stream)
        counts = decoded.rows, len(decoded.controls), bool(decoded.error)
        found[options.dialect] = [a + b for a, b in zip(found[options.dialect], counts, strict=True)]
    assert all(all(counts) for counts in found.values()), found


def test_make_fuzz_runs_every_target() -> None:
    listed = re.search(r"^FUZZ_TARGETS \?= (.*)$", (HERE.parent / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert listed is not None
    assert listed[1].split() == list(TARGETS)
