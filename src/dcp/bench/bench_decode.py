"""Benchmark `decode`: bytes to columns, compared with memcpy and with a decoder in plain Python."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from mmap import mmap

import numpy as np

import dcp
from dcp.bench import conventional
from dcp.bench.frames import KIB, MIB, Case, Wire, make_wire, options
from dcp.bench.timing import Contender, Measurement, Sample, take_turns

COPY, VIEWS = "decode", "decode, views"
COPY_RECEIVED, VIEWS_RECEIVED = "received, decode", "received, views"
# Baseline of the budgets: the same bytes in the same chunks, copied into memory that is in use already.
MEMCPY = "memcpy"
# The same into newly mapped memory, which the kernel has to clear.
FRESH = "memcpy, fresh"
STRUCT = "struct loop"
ONE_THREAD, TWO_THREADS = "one thread", "two threads"
# Baseline of the threads: hashlib is known to release the GIL, so it shows if a second core is free.
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
    # In memory only: in the few bytes of a case in cache, the first marker of each vbucket would be most of the frames.
    Case(vbuckets=1024, in_cache=False),
    # Many small snapshots: the cost of a marker, which is handled in Python.
    Case(vbuckets=1024, mix="markers", in_cache=False),
)
THREADS_CASE = Case(total=16 * MIB, in_cache=False)
# Number of times that a thread decodes its bytes, so that the start of the thread is a small part.
PASSES = 16

# The decoder in plain Python is some fifty times slower, so it gets fewer bytes.
STRUCT_BYTES = MIB // 2


def run(cases: tuple[Case, ...] = CASES, *, repetitions: int = 15, total: int = 64 * MIB) -> Iterator[Measurement]:
    """Measure each case with about `total` bytes for each repetition."""
    for case in cases:
        yield decode_case(case.sized(total), repetitions)
    # More repetitions: whether a second core is free changes from moment to moment.
    yield threads_case(THREADS_CASE.sized(min(THREADS_CASE.total, total)), 3 * repetitions)


def decode_case(case: Case, repetitions: int) -> Measurement:
    """Measure one case."""
    wire = make_wire(case)
    contenders = contenders_of(wire)
    sizes = dict.fromkeys(contenders, (wire.rows, len(wire.data)))
    if is_conventional(case):
        small = make_wire(case.sized(min(STRUCT_BYTES, case.total)))
        contenders[STRUCT] = lambda: conventional.decode(small.data)
        sizes[STRUCT] = small.rows, len(small.data)
    times = take_turns(contenders, turns(case, repetitions))
    # Not in turns with the others: clearing its pages would evict their data from the cache.
    times |= take_turns({FRESH: lambda: copy_fresh(wire)}, 3)
    sizes[FRESH] = wire.rows, len(wire.data)
    return Measurement("decode", case, {name: Sample(times[name], *sizes[name]) for name in times})


def contenders_of(wire: Wire) -> dict[str, Contender]:
    """Return the functions to measure, by name."""
    choice = options(wire.case)
    copying, viewing = dcp.Decoder(**choice), dcp.Decoder(views=True, **choice)
    received, received_views = dcp.Decoder(**choice), dcp.Decoder(views=True, **choice)
    warm = warm_memory(wire)
    return {
        COPY: lambda: feed(copying, wire),
        VIEWS: lambda: feed(viewing, wire),
        COPY_RECEIVED: lambda: receive(received, wire),
        VIEWS_RECEIVED: lambda: receive(received_views, wire),
        MEMCPY: lambda: copy_warm(warm, wire),
    }


def turns(case: Case, repetitions: int) -> int:
    """Return the number of repetitions. Short ones are many, so that some run without being preempted."""
    return 8 * repetitions if case.in_cache else repetitions


def feed(decoder: dcp.Decoder, wire: Wire) -> int:
    """Decode the chunks of a wire. Return the number of rows."""
    rows = 0
    for chunk in wire.chunks:
        decoder.feed(chunk)
        rows += decoder.take().num_rows
    return rows


def receive(decoder: dcp.Decoder, wire: Wire) -> int:
    """Copy chunks into the decoder's buffer, as recv_into does, and decode them. Return the number of rows."""
    rows, at, data = 0, 0, memoryview(wire.data)
    while at < len(data):
        room = decoder.buffer()
        count = min(len(room), wire.case.chunk, len(data) - at)
        room[:count] = data[at : at + count]
        decoder.received(count)
        rows += decoder.take().num_rows
        at += count
    return rows


def warm_memory(wire: Wire) -> ctypes.Array[ctypes.c_char]:
    """Return memory for a chunk, which all repetitions use."""
    return ctypes.create_string_buffer(wire.case.chunk)


def copy_warm(warm: ctypes.Array[ctypes.c_char], wire: Wire) -> None:
    """Copy each chunk to the same memory."""
    move, address = ctypes.memmove, ctypes.addressof(warm)
    for chunk in wire.chunks:
        move(address, chunk, len(chunk))


def copy_fresh(wire: Wire) -> None:
    """Copy each chunk to newly mapped memory."""
    for chunk in wire.chunks:
        # mmap, since an allocator would return memory of the last repetition.
        fresh = np.frombuffer(mmap(-1, len(chunk)), np.uint8)
        np.copyto(fresh, np.frombuffer(chunk, np.uint8))


def is_conventional(case: Case) -> bool:
    """True if the decoder in plain Python can read a case."""
    return case.dialect == "dcp" and case.mix in ("plain", "deletions")


# ---------------------------------------------------------------------------------------- threads


def threads_case(case: Case, repetitions: int) -> Measurement:
    """Measure two decoders in two threads. Without the GIL they decode nearly twice as many rows as one."""
    wire = make_wire(case)
    first, second = (dcp.Decoder(**options(case)) for _ in range(2))
    data = bytes(len(wire.data))
    # A pool, since the threads of a client live long: a new thread would first fault in its own memory arena.
    with ThreadPoolExecutor(2) as threads:
        contenders: dict[str, Contender] = {
            ONE_THREAD: lambda: together(threads, lambda: passes(first, wire)),
            TWO_THREADS: lambda: together(threads, lambda: passes(first, wire), lambda: passes(second, wire)),
            ONE_HASH: lambda: together(threads, lambda: sha256(data)),
            TWO_HASHES: lambda: together(threads, lambda: sha256(data), lambda: sha256(data)),
        }
        times = take_turns(contenders, repetitions)
    rows, size = PASSES * wire.rows, PASSES * len(wire.data)
    return Measurement(
        "threads",
        case,
        {
            ONE_THREAD: Sample(times[ONE_THREAD], rows, size),
            TWO_THREADS: Sample(times[TWO_THREADS], 2 * rows, 2 * size),
            ONE_HASH: Sample(times[ONE_HASH], wire.rows, len(data)),
            TWO_HASHES: Sample(times[TWO_HASHES], 2 * wire.rows, 2 * len(data)),
        },
    )


def passes(decoder: dcp.Decoder, wire: Wire) -> None:
    """Decode a wire several times."""
    for _ in range(PASSES):
        feed(decoder, wire)


def together(threads: ThreadPoolExecutor, *works: Contender) -> None:
    """Run functions at the same time, each in a thread."""
    for running in [threads.submit(work) for work in works]:
        running.result()
