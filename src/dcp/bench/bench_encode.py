"""Columns to frames, against the way there and against a loop in Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dcp
from dcp.bench import conventional
from dcp.bench.bench_decode import MEMCPY, STRUCT, STRUCT_BYTES, copy_warm, feed, is_conventional, turns, warm_memory
from dcp.bench.frames import Case, Wire, options, wire
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
    for case in cases:
        yield encode_case(case.sized(total), repetitions)


def encode_case(case: Case, repetitions: int) -> Measurement:
    made = wire(case)
    contenders = contenders_of(made)
    sizes = dict.fromkeys(contenders, (made.rows, len(made.data)))
    if is_conventional(case):
        small = wire(case.sized(min(STRUCT_BYTES, case.total)))
        batches = [batch.to_arrow() for batch in batches_of(small)]
        contenders[STRUCT] = lambda: conventional_encode(batches)
        sizes[STRUCT] = small.rows, len(small.data)
    times = take_turns(contenders, turns(case, repetitions))
    return Measurement("encode", case, {name: Sample(times[name], *sizes[name]) for name in contenders})


def contenders_of(made: Wire) -> dict[str, Contender]:
    encoder, decoder = dcp.Encoder(made.case.dialect), dcp.Decoder(**options(made.case))
    batches, warm = batches_of(made), warm_memory(made)
    return {
        ENCODE: lambda: encode(encoder, batches),
        DECODE: lambda: feed(decoder, made),
        MEMCPY: lambda: copy_warm(warm, made),
    }


def batches_of(made: Wire) -> list[dcp.Batch]:
    decoder = dcp.Decoder(**options(made.case))
    batches = []
    for chunk in made.chunks:
        decoder.feed(chunk)
        batches.append(decoder.take())
    return batches


def conventional_encode(batches: list[Any]) -> int:
    return sum(len(conventional.encode(batch, OPAQUE)) for batch in batches)


def encode(encoder: dcp.Encoder, batches: list[dcp.Batch]) -> int:
    return sum(len(encoder.encode(batch, opaque=OPAQUE)) for batch in batches)
