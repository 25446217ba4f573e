"""The container file: its sources exist, and its command serves a cluster. Docker itself is not needed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from urllib.parse import urlsplit

from dcp.embedded import Cluster
from tests.pages import ROOT

TEXT = (ROOT / "Dockerfile").read_text("utf-8")


def instructions(name: str) -> list[str]:
    joined = TEXT.replace("\\\n", " ")
    return [line.removeprefix(f"{name} ") for line in joined.splitlines() if line.startswith(f"{name} ")]


def test_everything_that_is_copied_exists() -> None:
    sources = [name for line in instructions("COPY") for name in line.split()[:-1]]
    assert all((ROOT / name).exists() for name in sources)
    # What the build reads, by the sdist: the extension, and what pyproject.toml names.
    assert {"LICENSE", "README.md", "pyproject.toml", "setup.py", "src"} <= set(sources)


def test_the_exposed_ports_are_those_of_its_cluster() -> None:
    (entry,), (exposed,) = instructions("ENTRYPOINT"), instructions("EXPOSE")
    arguments = json.loads(entry)
    first = int(arguments[arguments.index("--port") + 1])
    with Cluster() as cluster:
        ports = [urlsplit(url).port for url in (cluster.url, cluster.management_url, cluster.page_url)]
    assert exposed == f"{first}-{first + len(ports) - 1}"
    assert f"--publish {exposed}:{exposed}" in TEXT


def test_its_command_serves_a_cluster_until_its_signal() -> None:
    (entry,), (command,) = instructions("ENTRYPOINT"), instructions("CMD")
    program, *arguments = json.loads(entry) + json.loads(command)
    assert program == "dcp"
    # Any free ports instead: these may be taken on this machine.
    arguments[arguments.index("--port") + 1] = "0"
    code = "from dcp.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        greeting = json.loads(process.stdout.readline())
        assert re.fullmatch(r"http://0\.0\.0\.0:\d+/control", greeting["control_url"])
        process.terminate()
        assert process.wait(60) == 0
