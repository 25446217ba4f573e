"""Bytes to columns, against copying them and against a loop in Python."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from mmap import mmap

import numpy as np

import dcp
from dcp.bench import conventional
from dcp.bench.frames import KIB, MIB, Case, Wire, options, wire
from dcp.bench.timing import Contender, Measurement, Sample, take_turns

COPY, VIEWS = "decode", "decode, views"
COPY_RECEIVED, VIEWS_RECEIVED = "received, decode", "received, views"
# What the budgets are counted in: the same bytes in the same chunks, into memory that is warm.
MEMCPY = "memcpy"
FRESH = "memcpy, fresh"
STRUCT = "struct loop"
ONE_THREAD, TWO_THREADS = "one thread", "two threads"
# What the machine has to give: the same with something that is known to run without the GIL.
ONE_HASH, TWO_HASHES = "one hash", "two hashes"

VALUES = (0, 32, 100, 256, 1024, 4096, 65536)
CASES = (
    *(Case(value=value) for value in VALUES),
    *(Case(value=value, in_cache=False) for value in (100, 1024, 4096)),
    *(Case(key=key) for key in (8, 100)),
    *(Case(value=value, chunk=64 * KIB) for value in (100, 1024)),
    *(Case(value=value, chunk=16 * MIB, in_cache=False) for value in (100, 1024)),
    *(Case(dialect=dialect) for dialect in ("upr1", "upr2", "tap")),
    *(Case(mix=mix) for mix in ("deletions", "xattrs", "collections", "stream_ids")),
    Case(value=1024, mix="snappy"),
    # Its first markers, one for each vbucket, would be most of what a few bytes hold.
    Case(vbuckets=1024, in_cache=False),
    # Writers that change a few documents here and there: what a marker costs in Python.
    Case(vbuckets=1024, mix="markers", in_cache=False),
)
THREADS_CASE = Case(total=16 * MIB, in_cache=False)
# How often a thread goes over its bytes: starting it must not count.
PASSES = 16

# The loop in Python takes a thousand times as long for a row: it gets fewer of them.
STRUCT_BYTES = MIB // 2


def run(cases: tuple[Case, ...] = CASES, *, repetitions: int = 15, total: int = 64 * MIB) -> Iterator[Measurement]:
    """Measures each case on about `total` bytes a turn."""
    for case in cases:
        yield decode_case(case.sized(total), repetitions)
    # Whether a second core is free changes from moment to moment.
    yield threads_case(THREADS_CASE.sized(min(THREADS_CASE.total, total)), 3 * repetitions)


def decode_case(case: Case, repetitions: int) -> Measurement:
    made = wire(case)
    contenders = contenders_of(made)
    sizes = dict.fromkeys(contenders, (made.rows, len(made.data)))
    if is_conventional(case):
        small = wire(case.sized(min(STRUCT_BYTES, case.total)))
        contenders[STRUCT] = lambda: conventional.decode(small.data)
        sizes[STRUCT] = small.rows, len(small.data)
    times = take_turns(contenders, turns(case, repetitions))
    # Apart from the others, whose caches it would empty: the system clears every page of it.
    times |= take_turns({FRESH: lambda: copy_fresh(made)}, 3)
    sizes[FRESH] = made.rows, len(made.data)
    return Measurement("decode", case, {name: Sample(times[name], *sizes[name]) for name in times})


def contenders_of(made: Wire) -> dict[str, Contender]:
    choice = options(made.case)
    copying, viewing = dcp.Decoder(**choice), dcp.Decoder(views=True, **choice)
    received, received_views = dcp.Decoder(**choice), dcp.Decoder(views=True, **choice)
    warm = warm_memory(made)
    return {
        COPY: lambda: feed(copying, made),
        VIEWS: lambda: feed(viewing, made),
        COPY_RECEIVED: lambda: receive(received, made),
        VIEWS_RECEIVED: lambda: receive(received_views, made),
        MEMCPY: lambda: copy_warm(warm, made),
    }


def turns(case: Case, repetitions: int) -> int:
    """Short turns are many: of those, some end before the system gives the core to somebody else."""
    return 8 * repetitions if case.in_cache else repetitions


def feed(decoder: dcp.Decoder, made: Wire) -> int:
    rows = 0
    for chunk in made.chunks:
        decoder.feed(chunk)
        rows += decoder.take().num_rows
    return rows


def receive(decoder: dcp.Decoder, made: Wire) -> int:
    """What a socket would do: write into the decoder's memory. This copy stands for the one of the kernel."""
    rows, at, whole = 0, 0, memoryview(made.data)
    while at < len(whole):
        room = decoder.buffer()
        count = min(len(room), made.case.chunk, len(whole) - at)
        room[:count] = whole[at : at + count]
        decoder.received(count)
        rows += decoder.take().num_rows
        at += count
    return rows


def warm_memory(made: Wire) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(made.case.chunk)


def copy_warm(warm: ctypes.Array[ctypes.c_char], made: Wire) -> None:
    move, address = ctypes.memmove, ctypes.addressof(warm)
    for chunk in made.chunks:
        move(address, chunk, len(chunk))


def copy_fresh(made: Wire) -> None:
    for chunk in made.chunks:
        # From an allocator it would be memory of the turn before.
        fresh = np.frombuffer(mmap(-1, len(chunk)), np.uint8)
        np.copyto(fresh, np.frombuffer(chunk, np.uint8))


def is_conventional(case: Case) -> bool:
    return case.dialect == "dcp" and case.mix in ("plain", "deletions")


# ---------------------------------------------------------------------------------------- threads


def threads_case(case: Case, repetitions: int) -> Measurement:
    """Two decoders in two threads. Wanted is nearly twice the rows: the loop runs without the GIL."""
    made = wire(case)
    first, second = (dcp.Decoder(**options(case)) for _ in range(2))
    data = bytes(len(made.data))
    # Threads that are there already, as those of connections are: a new one begins with memory that it never touched.
    with ThreadPoolExecutor(2) as threads:
        contenders: dict[str, Contender] = {
            ONE_THREAD: lambda: together(threads, lambda: passes(first, made)),
            TWO_THREADS: lambda: together(threads, lambda: passes(first, made), lambda: passes(second, made)),
            ONE_HASH: lambda: together(threads, lambda: sha256(data)),
            TWO_HASHES: lambda: together(threads, lambda: sha256(data), lambda: sha256(data)),
        }
        times = take_turns(contenders, repetitions)
    rows, size = PASSES * made.rows, PASSES * len(made.data)
    return Measurement(
        "threads",
        case,
        {
            ONE_THREAD: Sample(times[ONE_THREAD], rows, size),
            TWO_THREADS: Sample(times[TWO_THREADS], 2 * rows, 2 * size),
            ONE_HASH: Sample(times[ONE_HASH], made.rows, len(data)),
            TWO_HASHES: Sample(times[TWO_HASHES], 2 * made.rows, 2 * len(data)),
        },
    )


def passes(decoder: dcp.Decoder, made: Wire) -> None:
    for _ in range(PASSES):
        feed(decoder, made)


def together(threads: ThreadPoolExecutor, *works: Contender) -> None:
    for running in [threads.submit(work) for work in works]:
        running.result()
