"""Run many schedules of `dcp sync`; report their events, and the seeds of those that failed.

python -m tests.sync --table delta --count 50
python -m tests.sync --table delta --kills 200
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter

from tests.sync.killing import SyncKilling
from tests.sync.schedule import SyncSchedule
from tests.sync.tables import KINDS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sync", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--table", choices=KINDS, action="append", help="kinds of tables; all by default")
    parser.add_argument("--seed", type=int, default=0, help="of the first schedule")
    parser.add_argument("--count", type=int, default=1, help="how many schedules, each with the next seed")
    parser.add_argument("--kills", type=int, default=0, help="kill the command so many times in each schedule")
    chosen = parser.parse_args()
    failed = False
    for kind in chosen.table or KINDS:
        began, done, seeds = time.monotonic(), Counter[str](), list[int]()
        for seed in range(chosen.seed, chosen.seed + chosen.count):
            schedule = SyncKilling(kind, seed, chosen.kills) if chosen.kills else SyncSchedule(kind, seed)
            try:
                done += schedule.run()
            except Exception:
                seeds.append(seed)
                print(f"{kind}, seed {seed}:\n{traceback.format_exc()}", flush=True)
        counts = ", ".join(f"{name} {count:,}" for name, count in sorted(done.items()))
        print(f"{kind}: {counts}; failed: {seeds or 'none'}; {time.monotonic() - began:.0f} s", flush=True)
        failed = failed or bool(seeds)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
