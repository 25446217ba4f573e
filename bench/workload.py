"""Decode a file, for `compare.py`. It needs only the standard library and the `dcp` to be measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter_ns

import dcp

CHUNK = 1 << 20


def decode(decoder: dcp.Decoder, chunks: list[bytes]) -> int:
    """Decode chunks. Return the number of rows."""
    rows = 0
    for chunk in chunks:
        decoder.feed(chunk)
        rows += decoder.take().num_rows
    return rows


def main(path: str, options: str, repetitions: str) -> None:
    """Print ns per row of the fastest repetition."""
    data = Path(path).read_bytes()
    chunks = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
    decoder = dcp.Decoder(**json.loads(options))
    times, rows = [], 0
    for _ in range(int(repetitions)):
        start = perf_counter_ns()
        rows = decode(decoder, chunks)
        times.append(perf_counter_ns() - start)
    print(min(times) / rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
