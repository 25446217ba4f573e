"""The comparison with other clients runs: `make bench-peers`. Nothing here is timed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.peers.__main__ import main
from bench.peers.consumers import MODES, PEERS
from bench.peers.figures import END, EVERY, FEW
from tests.interop.programs import GO, JAVA, need


def test_every_client_reads_every_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for toolchain in (JAVA, GO):
        need(toolchain)
    every, few = tmp_path / "every.md", tmp_path / "few.md"
    every.write_text(f"before\n{EVERY}\nold\n{END}\nafter", "utf-8")
    few.write_text(f"before\n{FEW}\nold\n{END}\nafter", "utf-8")
    sizes = ["--turns", "1", "--bytes", "200k", "--sizes", "128", "1k", "--vbuckets", "16"]
    main([*sizes, "--out", str(tmp_path), "--pages", str(every), str(few)])
    printed = capsys.readouterr().out
    assert (tmp_path / "peers.txt").read_text("utf-8") in printed
    found = json.loads((tmp_path / "peers.json").read_text("utf-8"))
    names = {peer.name for peer in PEERS}
    assert [one["case"]["mode"] for one in found["comparisons"]] == [mode for mode in MODES for _ in range(2)]
    for one in found["comparisons"]:
        assert set(one["peers"]) == names
        for peer in one["peers"].values():
            (run,) = peer["runs"]
            assert min(run["cpu"], run["idle_cpu"], run["seconds"], run["peak_mb"]) > 0
    assert names <= set(found["versions"])
    assert "unknown" not in found["versions"].values()
    for page, sizes_of in ((every, ["128", "1,024"]), (few, ["1,024"])):
        written = page.read_text("utf-8")
        start = EVERY if page is every else FEW
        assert written.startswith(f"before\n{start}\n\nEach cell has CPU seconds per million changes")
        assert "`python -m bench.peers --turns 1" in written
        assert written.endswith(f"{END}\nafter")
        assert [size for size in ("128", "1,024") if f"| tls, {size} B, 16 vbuckets | " in written] == sizes_of
