"""Compare this project's client with others on the same bytes: `python -m bench.peers`.

Every client is a process that reads a bucket from one producer, in turns. Its CPU time is that
of the whole process, less that of one that only connects.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.peers import figures
from bench.peers.consumers import LIVE, MODES, PEERS, Peer, Run, build, read, take_turn
from bench.peers.figures import Case, Comparison
from bench.peers.producer import producing
from dcp.bench.frames import KIB
from dcp.value_grammar import size

SIZES = (128, KIB, 20 * KIB)
VBUCKETS = (64, 1024)
# Bytes of a row beside its value, about.
_BESIDE = 80


def main(given: Sequence[str] | None = None) -> None:
    """Run the comparison, and write its results."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=7, help="turns of each client")
    parser.add_argument("--bytes", type=size, default="1g", help="bytes of each bucket, such as 1g")
    parser.add_argument("--modes", nargs="+", default=MODES, choices=MODES, help="kinds of connections, or of buckets")
    parser.add_argument("--sizes", nargs="+", type=size, default=SIZES, help="sizes of values, such as 128 or 20k")
    parser.add_argument("--vbuckets", nargs="+", type=int, default=VBUCKETS, help="numbers of vbuckets")
    parser.add_argument("--peers", nargs="+", metavar="NAME", help="only clients with one of these texts in their name")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="directory for peers.txt, .json and .svg")
    parser.add_argument("--pages", nargs="+", type=Path, default=[], help="pages to write the figures into")
    chosen = parser.parse_args(given)
    peers = [peer for peer in PEERS if not chosen.peers or any(text in peer.name for text in chosen.peers)]
    if missing := sorted({tool for peer in peers for tool in peer.missing()}):
        parser.error(f"needs {', '.join(missing)}; --peers chooses clients that need less")
    build(peers)
    comparisons: list[Comparison] = []
    for value_size in chosen.sizes:
        for vbuckets in chosen.vbuckets:
            rows = max(vbuckets, chosen.bytes // (value_size + _BESIDE))
            cases = [Case(mode, value_size, vbuckets, rows) for mode in chosen.modes]
            for live in (False, True):
                if those := [case for case in cases if (case.mode == LIVE) is live]:
                    comparisons += compare(peers, those, chosen.turns, live=live)
    # All sizes of one kind of connection are read together.
    comparisons.sort(key=lambda found: MODES.index(found.case.mode))
    write(chosen.out, comparisons, peers)
    command = shlex.join(["python", "-m", "bench.peers", *(sys.argv[1:] if given is None else given)])
    for page in chosen.pages:
        page.write_text(figures.rewrite(page.read_text("utf-8"), comparisons, peers, command), "utf-8")


def compare(peers: Sequence[Peer], cases: Sequence[Case], turns: int, *, live: bool) -> Iterator[Comparison]:
    """Measure cases that differ in the kind of connection only, with one producer."""
    with producing(cases[0].rows, cases[0].size, cases[0].vbuckets, live=live) as (served, producer_cpu):
        for case in cases:
            # The producer records now what it replays later.
            for peer in peers:
                read(peer, served, case.mode)
            runs: dict[str, list[Run]] = {peer.name: [] for peer in peers}
            for turn in range(turns):
                # Every other turn is in reverse order, so that none always runs after the same one.
                for peer in peers[:: -1 if turn % 2 else 1]:
                    runs[peer.name].append(take_turn(peer, served, case.mode, producer_cpu))
            comparison = Comparison(case, runs)
            shown = ", ".join(f"{name} {comparison.cpu(name):.3f}" for name in runs)
            print(f"{case.name}: CPU seconds per million: {shown}", flush=True)
            yield comparison


def write(out: Path, comparisons: Sequence[Comparison], peers: Sequence[Peer]) -> None:
    """Write table, JSON and plot into a directory, and print the table."""
    out.mkdir(parents=True, exist_ok=True)
    text = figures.table(comparisons)
    (out / "peers.txt").write_text(text, "utf-8")
    (out / "peers.json").write_text(json.dumps(figures.as_json(comparisons, peers), indent=1), "utf-8")
    has_plot = figures.plot(comparisons, out / "peers.svg")
    print(f"\n{text}\nwritten to {out}{'' if has_plot else ' without a plot, which needs matplotlib'}")


if __name__ == "__main__":
    main()
