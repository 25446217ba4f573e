"""Wrong usage: one line of explanation, an exit code, and never a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from dcp.cli.commands import dcp
from dcp.embedded import Cluster
from dcp.errors import TransportError
from tests.cli.commands import TIMEOUT, run, start

PASSWORD = "s3cret"
# Files in the working directory.
FILES = {
    "notes.txt": b"hello, this is no capture\n",
    "empty": b"",
    "torn.json": b'{"a":',
    "other.json": b'{"version": 1}',
    "torn.pcap": bytes.fromhex("d4c3b2a1020004000000000000000000ffff000001000000010203"),
    "half.hex": b"8057",
    "directory/file": b"",
}
# Arguments, exit code, and a part of the message. URL is replaced with that of a cluster.
MISTAKES = [
    ("cout URL", 2, "Did you mean 'count'?"),
    ("tail", 2, "Missing argument 'URL'"),
    ("tail localhost/travel", 2, "expected couchbase:// or couchbases://, found none"),
    ("tail http://localhost:8091/travel", 2, "did you mean couchbase://?"),
    ("tail couchbase://localhost", 2, "as in couchbase://host/bucket, found none"),
    ("tail couchbase://me:p@ss:w/rd@localhost/travel", 2, "expected %2F for a /"),
    (
        "tail URL --from yesterday",
        2,
        "expected beginning, now, a time with a UTC offset such as 2026-11-01T00:00Z, or before now such as 1h",
    ),
    (
        "tail URL --to tomorrow",
        2,
        "expected now, a time with a UTC offset such as 2026-11-01T00:00Z, or before now such as 1h",
    ),
    ("tail URL --from torn.json", 1, "torn.json: checkpoint: line 1, column 6"),
    ("tail URL --from other.json", 1, "expected a member 'format', found none"),
    ("tail URL?noop_interval=soon", 2, "url: option noop_interval: expected a duration such as"),
    ("count URL?nope=1", 2, "url: option: expected one of bootstrap_timeout"),
    ("tail couchbase://me@localhost/travel", 2, "no password for 'me': set DCP_PASSWORD, or pass --password-file"),
    ("tail URL --event update", 2, "'update' is not one of 'mutation'"),
    ("tail URL --collection shop.orders", 1, "'shop.orders' not found in bucket 'default'"),
    ("tail URL --hex --no-values", 2, "expected one of them, found both"),
    ("tail URL --max 0", 2, "0 is not in the range"),
    ("copy URL new --follow --to now", 2, "--follow and --to: expected one of them, found both"),
    ("copy URL new --commit-every soon", 2, "expected a duration such as 500ms, 2.5s, 15m or 1h, found 'soon'"),
    ("copy URL new --commit-every 10ms", 2, "expected at least 0.1, found '10ms'"),
    ("serve --value-size large", 2, "expected a size in bytes such as 67108864, 64k, 20mb or 1g, found 'large'"),
    ("bench --bytes 0", 2, "expected at least 1, found '0'"),
    ("copy URL directory", 1, "expected a new directory, or one that a copy wrote"),
    ("copy URL out.csv", 2, "expected a suffix of .parquet"),
    ("copy URL notes.txt --format parquet", 2, "Directory 'notes.txt' is a file"),
    ("count URL --collection x.y", 1, "expected _default._default"),
    ("count URL --checkpoint nothing.json", 1, "expected a checkpoint, found no such file"),
    ("checkpoint show directory", 1, "expected a checkpoint or the output of dcp copy"),
    ("checkpoint show empty", 1, "empty: checkpoint: line 1, column 1"),
    ("checkpoint convert other.json out.json --to kafka", 2, "is not one of 'dcp'"),
    ("inspect missing.pcap", 2, "No such file or directory"),
    ("inspect directory", 2, "Is a directory"),
    ("inspect notes.txt", 1, "notes.txt: no frames of dcp in 26 bytes: frame at byte 0: magic: expected"),
    ("inspect empty", 1, "empty: no frames of dcp in 0 bytes"),
    ("inspect half.hex", 1, "the input ends inside it"),
    ("inspect torn.pcap", 1, "capture: damaged or truncated"),
    ("bench --only disk", 2, "'disk' is not one of 'decode'"),
    ("replay notes.txt", 1, "magic: expected"),
    ("replay other.json", 1, "expected an object with a member server_hex"),
    ("doctor nonsense", 1, "write it as couchbase://user:password@host1,host2/bucket"),
    ("doctor couchbase://me:secret@127.0.0.1:1/travel", 1, "check that the data service runs there"),
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Cluster(vbuckets=4, password=PASSWORD) as cluster:
        cluster.load(20)
        yield cluster.url


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("arguments", "code", "message"), MISTAKES, ids=[arguments for arguments, _, _ in MISTAKES])
def test_a_mistake_is_explained(url: str, arguments: str, code: int, message: str) -> None:
    ran = run(*arguments.replace("URL", url, 1 if " URL" in arguments else 0).split())
    assert ran.exit_code == code
    assert message in " ".join(ran.output.split())
    assert PASSWORD not in ran.output


def test_a_refused_copy_releases_its_lock(url: str, here: Path) -> None:
    assert run("copy", url, here / "out").exit_code == 0
    assert "not ndjson" in run("copy", url, here / "out", "--format", "ndjson").output
    assert run("copy", url, here / "out").exit_code == 0


@pytest.mark.parametrize("output", [{"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "cp1252"}])
def test_characters_that_the_encoding_lacks_are_escaped(output: dict[str, str]) -> None:
    command = [sys.executable, "-c", "from dcp.cli import main; main()", "doctor", "nonsense"]
    done = subprocess.run(command, capture_output=True, env=os.environ | output)
    assert done.returncode == 1
    assert b"\\u2717" in done.stdout
    assert b"Traceback" not in done.stderr


def test_a_command_does_not_import_what_only_others_need() -> None:
    """Imports take most of the time until a command starts."""
    main = "import sys, contextlib\nfrom dcp.cli import main\nwith contextlib.suppress(SystemExit): main()\n"
    loaded = "print([name for name in ('dpkt', 'dcp.embedded', 'dcp.cli.demo', 'pyarrow') if name in sys.modules])"
    command = [sys.executable, "-c", main + loaded, "tail", "--help"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1] == "[]"


def test_ctrl_c_during_the_import_ends_quietly() -> None:
    interrupted = """
import sys
class Interrupted:
    def find_spec(name, path, target=None):
        if name == "dcp.cli.commands":
            raise KeyboardInterrupt
from dcp.cli import main
sys.meta_path.insert(0, Interrupted)
main()
"""
    done = subprocess.run([sys.executable, "-c", interrupted, "tail"], capture_output=True)
    assert (done.returncode, done.stderr) == (130, b"")


@pytest.mark.parametrize("raised", [RuntimeError, OSError, TransportError])
def test_ctrl_c_is_reported_and_not_the_errors_that_it_causes(raised: type[Exception]) -> None:
    """py4j raises the error of its cleanup."""
    commands = type(dcp)("commands")

    @commands.command()
    def read() -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise raised("cannot send cancel") from None

    done = CliRunner().invoke(commands, ["read"])
    assert (done.exit_code, done.output) == (130, "\ninterrupted\n")


@pytest.mark.parametrize("command", [("tail", "--from", "beginning", "--to", "now"), ("count",), ("doctor",)])
def test_a_closed_standard_output_is_no_error(command: tuple[str, ...]) -> None:
    closed = "import sys; sys.stdout = None; from dcp.cli import main; main()"
    with Cluster(vbuckets=4) as cluster:
        cluster.load(3)
        done = subprocess.run([sys.executable, "-c", closed, *command, cluster.url], stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")


SECRET = "couchbase://me:hunter2@127.0.0.1:1/travel"


@pytest.mark.parametrize(
    "arguments",
    [
        ("tail", SECRET, "--from", SECRET),
        ("copy", "travel.parquet", SECRET),
        ("count", SECRET, "--checkpoint", SECRET),
        ("checkpoint", "verify", SECRET, SECRET),
        ("inspect", SECRET),
        ("replay", SECRET),
    ],
    ids=" ".join,
)
def test_a_url_in_place_of_a_file_is_refused_and_not_shown(arguments: tuple[str, ...], here: Path) -> None:
    before = set(here.iterdir())
    result = run(*arguments)
    assert result.exit_code != 0
    assert "found a URL" in result.output or "found the URL of a bucket" in result.output
    assert "hunter2" not in result.output
    assert set(here.iterdir()) == before


def test_a_copy_that_cannot_begin_leaves_no_directory(here: Path) -> None:
    before = set(here.iterdir())
    assert run("copy", SECRET, str(here / "travel.parquet")).exit_code == 1
    assert set(here.iterdir()) == before


def test_an_interrupt_during_the_start_leaves_no_traceback() -> None:
    # The signal comes while the command's module is imported, which is when Ctrl-C is the default again.
    main = (
        "import os, signal, sys, dcp.cli\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'dcp.cli.count': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "dcp.cli.main()"
    )
    with start("count", "couchbase://127.0.0.1:1/default", main=main) as process:
        _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == -signal.SIGINT
    assert errors == ""
