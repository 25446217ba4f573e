"""What happened in all schedules, at the end of the run."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.chaos.running import report

_TALLY = pytest.StashKey[Counter[str]]()


@pytest.fixture
def tally(pytestconfig: pytest.Config) -> Counter[str]:
    """Counts that everybody adds to."""
    return pytestconfig.stash.setdefault(_TALLY, Counter())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    counts = config.stash.get(_TALLY, Counter())
    if counts:
        terminalreporter.section("what happened in the schedules")
        terminalreporter.write_line(report(counts))
