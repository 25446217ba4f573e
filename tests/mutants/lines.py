"""Which tests run which lines: a pytest plugin that notes it, `-p tests.mutants.lines --lines=DIRECTORY`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from coverage import Coverage

SOURCE = Path(__file__).parents[2] / "src" / "dcp"


# What a process does that a test starts: `coverage` begins by itself in it, since it is told so by the environment.
_OF_PROCESSES = """
[run]
core = ctrace
source = {source}
data_file = {directory}/process.lines
parallel = true
sigterm = true
context = ${{DCP_TEST}}
disable_warnings = no-data-collected, module-not-imported
"""


class Lines:
    """Lines of each test, in files of `coverage` with a context for each; and the seconds of those that passed."""

    def __init__(self, directory: Path) -> None:
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()
        self._directory = directory
        settings = directory / "settings"
        settings.write_text(_OF_PROCESSES.format(source=SOURCE, directory=directory), "utf-8")
        os.environ["COVERAGE_PROCESS_START"] = str(settings)
        self._coverage = Coverage(data_file=directory / f"{os.getpid()}.lines", source=[str(SOURCE)], config_file=False)
        # The newer way to count lines knows no contexts.
        self._coverage.set_option("run:core", "ctrace")
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Note the lines of a test, in all threads and processes that it starts."""
        os.environ["DCP_TEST"] = item.nodeid
        self._coverage.switch_context(item.nodeid)
        begun = time.monotonic()
        try:
            return (yield)
        finally:
            self._seconds[item.nodeid] = time.monotonic() - begun

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out tests with a session of Spark: its start takes longer than all others of the room."""
        items[:] = [item for item in items if "spark" not in getattr(item, "fixturenames", ())]

    def pytest_sessionfinish(self) -> None:
        """Write down what was noted. Processes that share the tests have a file each."""
        self._coverage.stop()
        self._coverage.save()
        passed = {test: each for test, each in self._seconds.items() if test not in self._failed}
        (self._directory / f"{os.getpid()}.json").write_text(json.dumps(passed), "utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lines", type=Path, help="directory for files that say which tests run which lines")


def pytest_configure(config: pytest.Config) -> None:
    # The process that only hands out the tests has no lines.
    if (directory := config.getoption("--lines")) and (hasattr(config, "workerinput") or not config.getoption("-n")):
        directory.mkdir(parents=True, exist_ok=True)
        config.pluginmanager.register(Lines(directory))
