"""Peak memory of a client while it reads: `python -m dcp.bench.memory` prints it after every tenth of the changes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import dcp
from dcp.bench.producer import producing

_PARTS = 10


def peak_memory(url: str, rows: int) -> Iterator[tuple[int, float]]:
    """Yield the number of changes so far, and the peak MiB of this process."""
    # The module does not exist on Windows.
    import resource

    count, next_report = 0, rows // _PARTS
    with dcp.connect(url) as client, client.stream(end="now") as stream:
        for batch in stream:
            count += len(batch)
            if count >= next_report:
                yield count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                next_report += rows // _PARTS


def main() -> None:
    """Run the measurement and print it."""
    parser = argparse.ArgumentParser(prog="python -m dcp.bench.memory", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="number of changes")
    parser.add_argument("--value", type=int, default=100, help="bytes of a value")
    chosen = parser.parse_args()
    with producing(chosen.rows, chosen.value) as url:
        for count, peak in peak_memory(url, chosen.rows):
            print(f"{count:>12,} changes {peak:8.1f} MiB", flush=True)


if __name__ == "__main__":
    main()
