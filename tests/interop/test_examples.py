"""The example pipelines of docs/testing.md, in Java and Go: their own tests run against `dcp serve`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.programs import GO, JAVA, need
from tests.pages import ROOT

EXAMPLES = Path(__file__).parent / "examples"
# Seconds: the build may have to download.
TIMEOUT = 290
COMMANDS = {"java": ["mvn", "-q", "-B", "test"], "go": ["go", "test", "-count=1", "-v", "./..."]}
TOOLCHAINS = {"java": JAVA, "go": GO}


@pytest.mark.parametrize("language", list(COMMANDS))
def test_the_tests_of_an_example_pass(language: str, tmp_path: Path) -> None:
    need(TOOLCHAINS[language])
    project = shutil.copytree(EXAMPLES / language, tmp_path / language, ignore=shutil.ignore_patterns("target"))
    # The command `dcp` of this environment.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        COMMANDS[language],
        cwd=project,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    reports = done.stdout + "".join(one.read_text("utf-8") for one in project.glob("target/surefire-reports/*.txt"))
    assert re.search(r"Tests run: 4, Failures: 0, Errors: 0, Skipped: 0|\nok  \tpipeline", reports)


def test_the_guide_shows_the_examples_as_they_are() -> None:
    """Every block of the guide in Java or Go is in a file of the examples, line by line."""
    guide = (ROOT / "docs/testing.md").read_text("utf-8")
    sources = "".join(path.read_text("utf-8") for path in EXAMPLES.rglob("*") if path.suffix in (".java", ".go"))
    squeezed = re.sub(r"\s+", " ", sources)
    blocks = re.findall(r"^```(?:java|go)\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        for part in re.split(r"\n *// …\n", block):
            assert re.sub(r"\s+", " ", part).strip() in squeezed
