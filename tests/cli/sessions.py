"""Console sessions of the pages: their commands run again, and have to print what the pages show."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from base64 import b64encode
from pathlib import Path
from typing import NamedTuple
from urllib.request import Request, urlopen

import pytest

from tests.cli.commands import TIMEOUT, start

# Parts of an output that differ from run to run, and what stands for them.
_CHANGING = (
    (r"\d{4}-\d\d-\d\d[T ][\d:.]{8,}(\+00:00)?", "TIME"),
    (r'"cas": "\d+"', '"cas": "…"'),
    (r" in [\d.]+ s\b", " in … s"),
    (r"[\d,]+ bytes", "… bytes"),
)


in_a_shell = pytest.mark.skipif(os.name == "nt", reason="the sessions are those of a POSIX shell")


class Typed(NamedTuple):
    """A command of a session, and the output below it."""

    command: str
    shown: str


def session(page: Path, *headings: str) -> list[Typed]:
    """Return the commands in the console blocks of some sections of a page, in order."""
    sections = re.split(r"^##? ", page.read_text("utf-8"), flags=re.MULTILINE)
    chosen = [section for section in sections if section.partition("\n")[0] in headings]
    assert len(chosen) == len(headings)
    blocks = [block for section in chosen for block in re.findall(r"```console\n(.*?)```", section, re.DOTALL)]
    return [Typed(*typed.split("\n", 1)) for block in blocks for typed in re.split(r"^\$ ", block, flags=re.M)[1:]]


def repeat(typed: list[Typed], directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the commands of a session, the first of which starts a cluster. Fail if one prints something else.

    The cluster gets free ports in place of those of the page.
    """
    monkeypatch.chdir(directory)
    (served, *others) = typed
    options = re.sub(r"--port \d+", "--port 0", served.command).split()
    assert options[:2] == ["dcp", "serve"]
    with start(*options[1:], "--json") as process:
        assert process.stdout is not None
        cluster = json.loads(process.stdout.readline())
        last_code = 0
        for command, shown in others:
            words = shlex.split(command)
            if words[0] == "export":
                for word in words[1:]:
                    monkeypatch.setenv(*word.replace("$PWD", str(directory)).split("=", 1))
                continue
            if words[0] == "control()":
                continue
            if words[0] == "control":
                found = _controlled(cluster, *words[1:])
            elif words[0] == "dcp":
                address = cluster["addresses"][0]
                # Each in a process of its own: PyIceberg reads the environment once in a process.
                with start(*(re.sub(r"127\.0\.0\.1(?=/)", address, word) for word in words[1:])) as ran:
                    printed = "".join(ran.communicate(timeout=TIMEOUT))
                last_code, found = ran.returncode, printed.replace(address, "127.0.0.1:11210")
            elif command == "echo $?":
                found = str(last_code)
            else:
                found = subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout
            assert _comparable(found) == _comparable(shown), command
        process.terminate()
        process.communicate(timeout=TIMEOUT)


def _comparable(output: str) -> list[str]:
    """Return the lines of an output without what differs from run to run. Nodes send their rows in any order."""
    for pattern, name in _CHANGING:
        output = re.sub(pattern, name, output)
    return sorted(line.rstrip() for line in output.splitlines())


def _controlled(cluster: dict[str, str], operation: str, body: str) -> str:
    """Return the answer of the control service to a request."""
    login = b64encode(f"{cluster['username']}:{cluster['password']}".encode()).decode()
    headers = {"content-type": "application/json", "authorization": f"Basic {login}"}
    request = Request(f"{cluster['control_url']}/{operation}", body.encode(), headers)
    with urlopen(request, timeout=TIMEOUT) as answer:
        return str(answer.read().decode())
