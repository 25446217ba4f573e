"""`dcp tail`: changes as text and as JSON, filtered and between two times."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

import dcp
from dcp.embedded import Cluster
from tests.cli.commands import TIMEOUT, fill_two_collections, run, start
from tests.waiting import until

EVERYTHING = ("--from", "beginning", "--to", "now")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2, vbuckets=8, password="s3cret") as cluster:
        fill_two_collections(cluster)
        cluster.delete("key-0000000007")
        cluster.upsert("big", b'{"n": 12345678901234567890.10,\n "ok": [true]}')
        cluster.upsert(b"\x1b[2J\xff", b"\x00\xfe")
        cluster.upsert("cls\x1b[2J", b"\x1b]0;title\x07")
        yield cluster


def rows(cluster: Cluster, *options: str) -> list[dict[str, object]]:
    """Return the changes that the command prints as JSON."""
    result = run("tail", cluster.url, *EVERYTHING, "--json", *options)
    assert result.exit_code == 0
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_every_change_is_an_object_with_64_bit_numbers_as_text(cluster: Cluster) -> None:
    found = {str(row.get("key")): row for row in rows(cluster) if row["collection"] == "_default._default"}
    truth = cluster.truth()
    assert {key.encode() for key in found if key != "None"} - {b"key-0000000007"} == {
        key for key in truth if key.isascii() and b"\xff" not in key
    }
    for key in (b"key-0000000003", b"big"):
        row = found[key.decode()]
        assert (row["seqno"], row["cas"]) == (str(truth[key].seqno), str(truth[key].cas))
        assert row["value"] == json.loads(truth[key].value)


def test_a_document_is_printed_as_stored_on_one_line(cluster: Cluster) -> None:
    output = run("tail", cluster.url, *EVERYTHING, "--json", "--key", "big").stdout
    assert '"value": {"n": 12345678901234567890.10,  "ok": [true]}}' in output
    assert output.count("\n") == 1


def test_bytes_that_are_not_utf8_are_hexadecimal(cluster: Cluster) -> None:
    (row,) = rows(cluster, "--key", "*2J?")
    assert (row["key_hex"], row["value_hex"]) == ("1b5b324aff", "00fe")


def test_control_characters_are_escaped(cluster: Cluster) -> None:
    output = run("tail", cluster.url, *EVERYTHING).stdout
    assert "\x1b" not in output
    assert "0x1b5b324aff" in output
    assert "cls\\x1b[2J  \\x1b]0;title\\x07" in output


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        (("--event", "deletion"), {"key-0000000007"}),
        (("--key", "key-000000001[02]"), {"key-0000000010", "key-0000000012"}),
        (("--collection", "inventory.hotel"), {"ritz", "bed"}),
        (("--scope", "inventory"), {"ritz", "bed"}),
        (("--collection", "hotel", "--scope", "inventory", "--key", "r*"), {"ritz"}),
        (("--event", "expiration"), set()),
    ],
)
def test_filters(cluster: Cluster, options: tuple[str, ...], keys: set[str]) -> None:
    assert {row["key"] for row in rows(cluster, *options)} == keys


def test_values_may_be_hexadecimal_or_none(cluster: Cluster) -> None:
    chosen = ("--collection", "inventory.hotel", "--key", "bed")
    assert [row["value"] for row in rows(cluster, *chosen, "--hex")] == [b'{"stars":1}'.hex()]
    assert "value" not in rows(cluster, *chosen, "--no-values")[0]


@pytest.mark.parametrize(
    ("options", "ritz", "bed"),
    [
        ((), '  {"stars":5.10}', '  {"stars":1}'),
        (("--hex",), "  " + b'{"stars":5.10}'.hex(), "  " + b'{"stars":1}'.hex()),
        (("--no-values",), "", ""),
        (("--schema", "stars double"), '  {"stars": 5.1}', '  {"stars": 1.0}'),
        (
            ("--schema", "stars bigint"),
            '  {"stars": null}  (stars: expected bigint, found 5.10)',
            '  {"stars": 1}',
        ),
    ],
)
def test_lines_have_what_the_objects_have(cluster: Cluster, options: tuple[str, ...], ritz: str, bed: str) -> None:
    chosen = ("--scope", "inventory", *options)
    header, *lines = run("tail", cluster.url, *EVERYTHING, *chosen).stdout.splitlines()
    assert header.split() == ["time", "(UTC)", "event", "vbucket", "seqno", "collection", "key", "value"]
    found = {row["key"]: row for row in rows(cluster, *chosen)}
    assert len(lines) == 2
    for key, value in (("ritz", ritz), ("bed", bed)):
        row = found[key]
        (line,) = [line for line in lines if key in line.split()]
        day, time = str(row["timestamp"])[:23].split("T")
        assert line.split()[:6] == [day, time, "mutation", str(row["vbucket"]), row["seqno"], "inventory.hotel"]
        assert line.endswith(key + value)


def test_it_stops_after_a_number_of_changes(cluster: Cluster) -> None:
    result = run("tail", cluster.url, "--from", "beginning", "--max", "3")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 1 + 3


def test_it_resumes_from_a_checkpoint_and_prints_a_rollback(cluster: Cluster, tmp_path: Path) -> None:
    lost = dcp.Checkpoint((dcp.StreamPosition(0, 4711, 2, 2, 2),), bucket="default")
    saved = tmp_path / "saved.json"
    saved.write_text(lost.to_json())
    options = ("--from", str(saved), "--to", "now")
    assert "rollback" in run("tail", cluster.url, *options, "--event", "rollback").stdout
    found = [
        json.loads(line)
        for line in run("tail", cluster.url, *options, "--json", "--key", "no such").stdout.splitlines()
    ]
    assert [(row["event"], row["vbucket"], row["seqno"]) for row in found] == [("rollback", 0, "0")]


@pytest.mark.parametrize(("time", "count"), [("1h", 3), ("-1h", 3), ("1ms", 0)])
def test_a_time_may_be_before_now(time: str, count: int) -> None:
    with Cluster(vbuckets=4) as cluster:
        for number in range(3):
            cluster.upsert(f"key{number}", b"1")
        until(lambda: datetime.now(timezone.utc) - newest(cluster) > timedelta(seconds=0.1))
        printed = run("tail", cluster.url, "--from", time, "--to", "now", "--json").stdout.splitlines()
        assert len(printed) == count


def newest(cluster: Cluster) -> datetime:
    """Return the time of the last change, by its CAS."""
    cas = max(found.cas for found in cluster.truth().values())
    return datetime.fromtimestamp(cas / 1e9, timezone.utc)


def test_changes_are_printed_as_they_arrive_until_ctrl_c() -> None:
    with Cluster(vbuckets=4, password="s3cret") as cluster:
        cluster.upsert("first", b"1")
        with start("tail", cluster.url, "--from", "beginning", "--json") as tail:
            assert tail.stdout is not None
            assert json.loads(tail.stdout.readline())["key"] == "first"
            cluster.upsert("second", b"2")
            assert json.loads(tail.stdout.readline())["key"] == "second"
            tail.send_signal(signal.SIGINT)
            output, errors = tail.communicate(timeout=TIMEOUT)
        assert (tail.returncode, output, errors.strip()) == (130, "", "interrupted")


@pytest.mark.parametrize(
    ("change", "options", "code", "problem"),
    [
        (("s3cret", "wr0ng"), (), 1, "the server refuses user 'dcp': wrong name or password"),
        (("/default", "/nothing"), (), 1, "bucket 'nothing': bucket not found"),
        (("couchbase", "http"), (), 2, r"url: scheme: expected couchbase:// or couchbases://, found http://"),
        (
            ("", ""),
            ("--from", "yesterday"),
            2,
            "yesterday: expected beginning, now, a time with a UTC offset",
        ),
        (("", ""), ("--collection", "a.b"), 1, "collection: 'a.b' not found in bucket 'default'"),
        (("", ""), ("--event", "mutations"), 2, "'mutations' is not one of 'mutation', 'deletion'"),
        (("", ""), ("--hex", "--no-values"), 2, "--hex and --no-values: expected one of them, found both"),
        (("", ""), ("--schema", "a int", "--hex"), 2, "--schema: expected it without --hex and --no-values"),
        (("", ""), ("--schema", "a int", "--no-values"), 2, "--schema: expected it without --hex and --no-values"),
    ],
)
def test_an_error_is_a_line_with_what_is_expected(
    cluster: Cluster, change: tuple[str, str], options: tuple[str, ...], code: int, problem: str
) -> None:
    result = run("tail", cluster.url.replace(*change), *options)
    assert result.exit_code == code
    assert problem in result.output
    assert "s3cret" not in result.output
    assert "wr0ng" not in result.output


def test_a_checkpoint_can_be_the_end(cluster: Cluster, tmp_path: Path) -> None:
    before = tmp_path / "before.json"
    with dcp.connect(cluster.url) as client, client.stream(end="now") as stream:
        seen = sum(map(len, stream))
        before.write_text(stream.checkpoint.to_json())
    cluster.upsert("later", b"{}")
    ran = run("tail", cluster.url, "--from", "beginning", "--to", before, "--json")
    assert ran.exit_code == 0
    # The snapshot that the end lies in is sent to its own end, which may include the later change.
    assert seen <= len(ran.stdout.splitlines()) <= seen + 1


@pytest.mark.parametrize("option", ["--from", "--to"])
def test_a_wrong_position_is_refused(cluster: Cluster, option: str) -> None:
    ran = run("tail", cluster.url, option, "yesterday")
    assert ran.exit_code == 2
    assert "yesterday: expected" in ran.output
    assert "or a checkpoint, found no such file" in ran.output


def write_times(cluster: Cluster) -> list[str]:
    """Return when the documents were written, as values of `--from` and `--to`."""
    epoch = datetime(1970, 1, 1, tzinfo=timezone.utc)
    ticks = sorted((row.cas & ~0xFFFF) // 1000 for row in cluster.truth().values())
    return [(epoch + timedelta(microseconds=tick)).isoformat() for tick in ticks]


def test_changes_between_two_times_are_printed(tmp_path: Path) -> None:
    with Cluster(vbuckets=2) as cluster:
        for n in range(30):
            cluster.upsert(f"key{n:02}", b"{}")
        times = write_times(cluster)
        found = [json.loads(line) for line in run("tail", cluster.url, *EVERYTHING, "--json").stdout.splitlines()]
        first, last = (datetime.fromisoformat(times[n]) for n in (10, 20))
        wanted = sorted(row["key"] for row in found if first <= datetime.fromisoformat(row["timestamp"]) < last)
        shown = run("tail", cluster.url, "--from", times[10], "--to", times[20], "--json").stdout.splitlines()
        assert sorted(json.loads(line)["key"] for line in shown) == wanted
        copied = json.loads(run("copy", cluster.url, tmp_path / "out.ndjson", "--from", times[20], "--json").stdout)
        assert copied["rows"] == sum(datetime.fromisoformat(row["timestamp"]) >= last for row in found) > 0
        day = [
            json.loads(run("copy", cluster.url, tmp_path / "day", *to, "--json").stdout)["rows"]
            for to in (("--to", times[20]), ())
        ]
        assert day == [30 - copied["rows"], copied["rows"]]


def test_purged_deletions_are_reported(tmp_path: Path) -> None:
    with Cluster(vbuckets=1) as cluster:
        cluster.load(300)
        start = write_times(cluster)[100]
        for n in range(200, 300):
            cluster.delete(f"key-{n:010d}")
        cluster.upsert("last", b"1")
        cluster.purge()
        lines = run("tail", cluster.url, "--from", start, "--to", "now", "--event", "purged").stdout.splitlines()
        assert len(lines) == 2
        assert "seqno 0: deletions above may be missing" in lines[1]
        assert run("copy", cluster.url, tmp_path / "out", "--from", start).exit_code == 0


def test_a_change_takes_two_lines_of_a_terminal_at_most(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    ours, theirs = pytest.importorskip("pty").openpty()
    command = [sys.executable, "-c", "from dcp.cli import main; main()", "tail", cluster.url, *EVERYTHING]
    with subprocess.Popen([*command, "--collection", "_default"], stdout=theirs) as process:
        os.close(theirs)
        output = b""
        # Reading after the end of a pseudo terminal fails on Linux, and returns nothing elsewhere.
        with contextlib.suppress(OSError):
            while piece := os.read(ours, 1 << 16):
                output += piece
    os.close(ours)
    assert process.returncode == 0
    lines = [line for line in re.sub(r"\x1b\[\d*m", "", output.decode()).splitlines() if "mutation" in line]
    assert max(map(len, lines)) == 160
    assert all(line.endswith("…") for line in lines if len(line) == 160)
    assert any("key-0000000003" in line for line in lines)


def test_warnings_of_the_client_are_printed_on_standard_error(cluster: Cluster) -> None:
    printed = {}
    for option in ("--quiet", "", "--verbose"):
        with cluster.fault("refuse", status="ETMPFAIL", times=2):
            result = run("tail", cluster.url, *EVERYTHING, "--json", *([option] if option else []))
        assert result.exit_code == 0
        assert len(result.stdout.splitlines()) == len(rows(cluster))
        printed[option] = result.stderr.splitlines()
    assert printed["--quiet"] == []
    assert all(line.startswith("warning: ") for line in printed[""])
    assert "stream request refused: ETMPFAIL" in printed[""][0]
    assert {"info", "warning"} == {line.partition(":")[0] for line in printed["--verbose"]}
    assert run("tail", cluster.url, "--verbose", "--quiet").exit_code == 2
