"""What a client needs while changes pass through it: `python -m dcp.bench.memory` prints it for every tenth of them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import dcp
from dcp.bench.producer import producing

_PARTS = 10


def passing(url: str, rows: int) -> Iterator[tuple[int, float]]:
    """How many changes came, and the most MiB that this process has needed until then."""
    # Windows has none.
    import resource

    came, next_report = 0, rows // _PARTS
    with dcp.connect(url) as client, client.stream(end="now") as stream:
        for batch in stream:
            came += len(batch)
            if came >= next_report:
                yield came, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                next_report += rows // _PARTS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dcp.bench.memory", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--value", type=int, default=100, help="bytes of a value")
    chosen = parser.parse_args()
    with producing(chosen.rows, chosen.value) as url:
        for came, most in passing(url, chosen.rows):
            print(f"{came:>12,} changes {most:8.1f} MiB", flush=True)


if __name__ == "__main__":
    main()
