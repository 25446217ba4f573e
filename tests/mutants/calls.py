"""Which tests call which functions: a pytest plugin that writes it down, `-p tests.mutants.calls --calls=DIRECTORY`."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from types import FrameType

import pytest

_SOURCE = str(Path(__file__).parents[2] / "src" / "dcp") + os.sep


class Calls:
    """Tests by the function that they call, as `module:line`; and the seconds that each takes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._test = ""
        self._callers: defaultdict[str, set[str]] = defaultdict(set)
        self._seconds: dict[str, float] = {}

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(_SOURCE):
            self._callers[f"{code.co_filename[len(_SOURCE) :]}:{code.co_firstlineno}"].add(self._test)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Note the calls of a test, in all threads that it starts."""
        self._test, begun = item.nodeid, time.monotonic()
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        try:
            return (yield)
        finally:
            sys.setprofile(None)
            self._seconds[item.nodeid] = time.monotonic() - begun

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out tests with a session of Spark: its start takes longer than all others of the room."""
        items[:] = [item for item in items if "spark" not in getattr(item, "fixturenames", ())]

    def pytest_sessionfinish(self) -> None:
        """Write down what was noted. Processes that share the tests have a file each."""
        callers = {
            function: sorted(tests, key=lambda test: self._seconds.get(test, 0.0))
            for function, tests in self._callers.items()
        }
        text = json.dumps({"callers": callers, "seconds": self._seconds})
        (self._directory / f"{os.getpid()}.json").write_text(text, "utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--calls", type=Path, help="directory for files that say which tests call which functions")


def pytest_configure(config: pytest.Config) -> None:
    if directory := config.getoption("--calls"):
        directory.mkdir(parents=True, exist_ok=True)
        config.pluginmanager.register(Calls(directory))
