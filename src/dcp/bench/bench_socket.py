"""Benchmark `socket`: the client reads a bucket, compared with a bare recv_into loop over the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import dcp
from dcp.bench.bench_producer import process, receive, request_all, sent_bytes
from dcp.bench.frames import KIB, MIB, Case
from dcp.bench.timing import Measurement, Sample, take_turns

CLIENT, BARE = "client", "bare recv_into"
CASES = tuple(
    Case(value=value, key=14, vbuckets=vbuckets, total=640 * MIB, in_cache=False)
    for value, vbuckets in ((KIB, 64), (100, 64), (20 * KIB, 64), (KIB, 1024))
)
# Bytes of the bucket for each byte of `total`: in short runs, connecting would take a large part.
_SCALE = 10


def run(cases: tuple[Case, ...] = CASES, *, repetitions: int = 15, total: int = 64 << 20) -> Iterator[Measurement]:
    """Measure each case with a bucket of 10 times `total` bytes."""
    for case in cases:
        yield socket_case(case.sized(_SCALE * total), repetitions)


def socket_case(case: Case, repetitions: int) -> Measurement:
    """Measure one case."""
    rows = max(1, case.total // (case.value + case.key + 64))
    with ExitStack() as stack:
        address = stack.enter_context(process("serve", rows, case.value, case.vbuckets))
        host_port, user, password = address.split()
        size = sum(map(len, sent_bytes(address, case.vbuckets)))
        client = stack.enter_context(dcp.connect(f"couchbase://{user}:{password}@{host_port}/default"))
        contenders = {
            CLIENT: lambda: _follow(client, rows),
            BARE: lambda: receive(request_all(address, case.vbuckets), size),
        }
        times = take_turns(contenders, repetitions)
    return Measurement("socket", case, {name: Sample(times[name], rows, size) for name in contenders})


def _follow(client: dcp.Client, rows: int) -> None:
    """Read the bucket."""
    with client.stream(end="now") as stream:
        assert sum(map(len, stream)) == rows
