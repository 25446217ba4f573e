"""Benchmark `encode`: columns to frames, compared with decoding them and with an encoder in plain Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dcp
from dcp.bench import conventional
from dcp.bench.bench_decode import MEMCPY, STRUCT, STRUCT_BYTES, copy_warm, feed, is_conventional, turns, warm_memory
from dcp.bench.frames import Case, Wire, make_wire, options
from dcp.bench.timing import Contender, Measurement, Sample, take_turns

ENCODE, DECODE = "encode", "decode"
OPAQUE = 0x10000

CASES = (
    *(Case(value=value) for value in (0, 32, 100, 256, 1024, 4096, 65536)),
    *(Case(value=value, in_cache=False) for value in (100, 1024)),
    Case(key=100),
    *(Case(dialect=dialect) for dialect in ("upr1", "upr2", "tap")),
    *(Case(mix=mix) for mix in ("deletions", "xattrs", "collections", "stream_ids")),
)


def run(cases: tuple[Case, ...] = CASES, *, repetitions: int = 15, total: int = 64 << 20) -> Iterator[Measurement]:
    """Measure each case with about `total` bytes for each repetition."""
    for case in cases:
        yield encode_case(case.sized(total), repetitions)


def encode_case(case: Case, repetitions: int) -> Measurement:
    """Measure one case."""
    wire = make_wire(case)
    contenders = contenders_of(wire)
    sizes = dict.fromkeys(contenders, (wire.rows, len(wire.data)))
    if is_conventional(case):
        small = make_wire(case.sized(min(STRUCT_BYTES, case.total)))
        batches = [batch.to_arrow() for batch in batches_of(small)]
        contenders[STRUCT] = lambda: conventional_encode(batches)
        sizes[STRUCT] = small.rows, len(small.data)
    times = take_turns(contenders, turns(case, repetitions))
    return Measurement("encode", case, {name: Sample(times[name], *sizes[name]) for name in contenders})


def contenders_of(wire: Wire) -> dict[str, Contender]:
    """Return the functions to measure, by name."""
    encoder, decoder = dcp.Encoder(wire.case.dialect), dcp.Decoder(**options(wire.case))
    batches, warm = batches_of(wire), warm_memory(wire)
    return {
        ENCODE: lambda: encode(encoder, batches),
        DECODE: lambda: feed(decoder, wire),
        MEMCPY: lambda: copy_warm(warm, wire),
    }


def batches_of(wire: Wire) -> list[dcp.Batch]:
    """Return the batches of a wire, one for each chunk."""
    decoder = dcp.Decoder(**options(wire.case))
    batches = []
    for chunk in wire.chunks:
        decoder.feed(chunk)
        batches.append(decoder.take())
    return batches


def conventional_encode(batches: list[Any]) -> int:
    """Encode batches in plain Python. Return the number of bytes."""
    return sum(len(conventional.encode(batch, OPAQUE)) for batch in batches)


def encode(encoder: dcp.Encoder, batches: list[dcp.Batch]) -> int:
    """Encode batches. Return the number of bytes."""
    return sum(len(encoder.encode(batch, opaque=OPAQUE)) for batch in batches)
