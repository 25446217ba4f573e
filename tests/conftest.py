"""Fixtures and settings of all tests."""

from __future__ import annotations

import re
import signal
from collections import Counter
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# The command line is an extra: without it, there is nothing to test.
collect_ignore = [] if find_spec("click") else ["test_inspect.py", "test_serve.py"]

# How long something takes is no matter of right or wrong, least of all under the sanitizers.
settings.register_profile(
    "untimed", parent=settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("untimed")

# A shell starts what runs in its background with SIGINT ignored, and so would be the commands that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_TALLY = pytest.StashKey[Counter[str]]()


@pytest.fixture
def tally(pytestconfig: pytest.Config) -> Counter[str]:
    """Counts of what happened in the schedules of the chaos tests: everybody adds to them."""
    return pytestconfig.stash.setdefault(_TALLY, Counter())


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Processes that share the tests have a count each."""
    if hasattr(session.config, "workeroutput"):
        counts: Counter[str] = session.config.stash.get(_TALLY, Counter())
        session.config.workeroutput["tally"] = dict(counts)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    # One that died has nothing to say.
    told = getattr(node, "workeroutput", {}).get("tally", {})
    node.config.stash.setdefault(_TALLY, Counter()).update(told)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if counts := config.stash.get(_TALLY, Counter()):
        from tests.chaos.running import report

        terminalreporter.section("what happened in the schedules")
        terminalreporter.write_line(report(counts))


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name tokens without their signatures, which differ in each process: all have to collect the same tests."""
    text = val.decode("latin-1") if isinstance(val, bytes) else val
    if not isinstance(text, str) or not _TOKEN.search(text):
        return None
    return _TOKEN.sub(r"\1.SIGNATURE", text).encode("unicode_escape").decode()


# Header and payload of a JSON web token, and its signature.
_TOKEN = re.compile(r"(eyJ[\w-]+\.[\w-]+)\.[\w-]+")
