"""The client following a bucket to its end, beside a bare loop that throws away what the same node sends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import dcp
from dcp.bench.bench_producer import ask, process, receive, sent
from dcp.bench.frames import KIB, MIB, Case
from dcp.bench.timing import Measurement, Sample, take_turns

CLIENT, BARE = "client", "bare recv_into"
CASES = tuple(
    Case(value=value, key=14, vbuckets=vbuckets, total=640 * MIB, in_cache=False)
    for value, vbuckets in ((KIB, 64), (100, 64), (20 * KIB, 64), (KIB, 1024))
)
# As many bytes of a bucket for each that is asked for: connecting takes a part of short runs.
_SCALE = 10


def run(cases: tuple[Case, ...] = CASES, *, repetitions: int = 15, total: int = 64 << 20) -> Iterator[Measurement]:
    for case in cases:
        yield socket_case(case.sized(_SCALE * total), repetitions)


def socket_case(case: Case, repetitions: int) -> Measurement:
    rows = max(1, case.total // (case.value + case.key + 64))
    with ExitStack() as stack:
        address = stack.enter_context(process("serve", rows, case.value, case.vbuckets))
        where, user, password = address.split()
        size = sum(map(len, sent(address, case.vbuckets)))
        client = stack.enter_context(dcp.connect(f"couchbase://{user}:{password}@{where}/default"))
        contenders = {
            CLIENT: lambda: _follow(client, rows),
            BARE: lambda: receive(ask(address, case.vbuckets), size),
        }
        times = take_turns(contenders, repetitions)
    return Measurement("socket", case, {name: Sample(times[name], rows, size) for name in contenders})


def _follow(client: dcp.Client, rows: int) -> None:
    with client.stream(end="now") as stream:
        assert sum(map(len, stream)) == rows
