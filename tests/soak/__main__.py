"""Run a cluster and its consumers for a long time, under faults; fail if they disagree at the end, or if anything grew.

python -m tests.soak --seconds 3600 --out build/soak

Memory, threads and descriptors of the consumers' process are sampled, with their lag and the memory of the cluster:
soak.csv and soak.svg.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.soak.chart import draw
from tests.soak.running import Soak
from tests.soak.samples import growth, summary, write_csv


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600.0, help="duration, without the end")
    parser.add_argument("--interval", type=float, default=5.0, help="seconds between samples")
    parser.add_argument("--seed", type=int, default=0, help="of the writes, faults and restarts")
    parser.add_argument("--out", type=Path, default=Path("build/soak"), help="directory of soak.csv and soak.svg")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    soak = Soak(chosen.seed)
    problems = soak.run(chosen.seconds, chosen.interval)
    write_csv(soak.samples, chosen.out / "soak.csv")
    (chosen.out / "soak.svg").write_text(draw(f"{chosen.seconds:,.0f} s, seed {chosen.seed}", soak.samples))
    problems += growth(soak.samples)
    print("\n".join([*summary(soak.samples), *(f"{name}: {count:,}" for name, count in sorted(soak.done.items()))]))
    print("\n".join(problems) or "passed", flush=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
