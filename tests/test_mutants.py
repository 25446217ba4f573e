"""The list of known mutants and the rules still fit the code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutants.known import KNOWN, KnownMutant
from tests.mutants.rules import EQUIVALENTS, codec_mutants, mutants

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("mutant", KNOWN, ids=lambda mutant: f"{mutant.module}: {mutant.test.rpartition(':')[2]}")
def test_a_known_mutant_has_its_place_and_its_test(mutant: KnownMutant) -> None:
    code = (ROOT / "src/dcp" / mutant.module).read_text("utf-8")
    assert code.count(mutant.code) == 1
    ast.parse(code.replace(mutant.code, mutant.mutant))
    path, _, test = mutant.test.partition("::")
    assert f"\ndef {test}(" in (ROOT / "tests" / path).read_text("utf-8")


def test_drawn_mutants_are_python() -> None:
    found = mutants(ROOT / "src")
    assert len(found) > 1000
    for mutant in found[::25]:
        ast.parse(mutant.applied((ROOT / "src/dcp" / mutant.module).read_text("utf-8")))


def test_drawn_mutants_of_the_extension_change_what_their_rule_says() -> None:
    found = codec_mutants(ROOT / "src")
    assert len(found) > 300
    for mutant in found[::7]:
        code = (ROOT / "src/dcp" / mutant.module).read_bytes()
        assert mutant.rule == f"{mutant.text} for {code[mutant.start : mutant.end].decode()}"
        assert mutant.applied(code.decode()).splitlines()[mutant.number - 1].strip() != mutant.line


def test_an_equivalent_has_its_line() -> None:
    for one in EQUIVALENTS:
        assert one.line in [line.strip() for line in (ROOT / "src/dcp" / one.module).read_text("utf-8").splitlines()]
        assert one.reason
