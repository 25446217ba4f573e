"""Run many schedules; report their events, and the seeds of those that failed.

python -m tests.chaos --count 20000 --seed 0
python -m tests.chaos --kind memory --count 20000
python -m tests.chaos --kind model --count 5000
python -m tests.chaos --kind kills --count 50
python -m tests.chaos --replay --seed 17
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter

from tests.chaos.running import KINDS, play_all, report
from tests.chaos.schedule import Schedule


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--kind",
        choices=KINDS,
        default="sockets",
        help="a client and a cluster on sockets; a session and a bucket in memory; "
        "a client and the independent producers of tests/model; a process that is killed",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the first schedule")
    parser.add_argument("--count", type=int, default=1000, help="how many schedules, each with the next seed")
    parser.add_argument("--replay", action="store_true", help="the one schedule on sockets of --seed, step by step")
    chosen = parser.parse_args()
    if chosen.replay:
        logging.basicConfig(level=logging.INFO)
        Schedule(chosen.seed, print).run()
        return 0
    return many(chosen.kind, range(chosen.seed, chosen.seed + chosen.count))


def many(kind: str, seeds: range) -> int:
    began, done, failed = time.monotonic(), Counter[str](), list[int]()
    for played, outcome in enumerate(play_all(kind, seeds), 1):
        done += outcome.done
        if outcome.error:
            failed.append(outcome.seed)
            print(f"seed {outcome.seed}:\n{outcome.error}", flush=True)
        if played % 1000 == 0 or played == len(seeds):
            seconds = time.monotonic() - began
            print(report(done))
            print(f"{played:,} schedules from seed {seeds[0]} in {seconds:.0f} s, {played / seconds:.1f} a second")
            print(f"failed: {len(failed)} {failed or ''}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
