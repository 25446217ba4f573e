"""What the codec has to reach, as ratios within one run wherever there is something to compare with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from dcp.bench import bench_producer, bench_socket, bench_spark
from dcp.bench.bench_decode import COPY, MEMCPY, ONE_HASH, ONE_THREAD, STRUCT, TWO_HASHES, TWO_THREADS, VIEWS
from dcp.bench.bench_encode import DECODE, ENCODE
from dcp.bench.bench_producer import PRODUCER, SENDALL
from dcp.bench.bench_socket import BARE, CLIENT
from dcp.bench.bench_spark import FLOOR, READ
from dcp.bench.frames import Case
from dcp.bench.timing import Measurement

(_BUCKET,) = bench_producer.CASES
_FOLLOWED = bench_socket.CASES[0]
_Figure = Callable[[Measurement], "float | None"]


@dataclass(frozen=True)
class Budget:
    """A figure of one case, and its bound."""

    what: str
    bench: str
    case: Case
    figure: _Figure
    bound: float
    at_most: bool = False
    unit: str = "x"

    def verdict(self, measurements: Iterable[Measurement]) -> Verdict | None:
        """None if the run has no such case. A run on fewer bytes is one too."""
        for measurement in measurements:
            if measurement.bench == self.bench and _same(measurement.case, self.case):
                return Verdict(self, self.figure(measurement))
        return None


@dataclass(frozen=True)
class Verdict:
    """`found` is None where the machine could not tell."""

    budget: Budget
    found: float | None

    @property
    def met(self) -> bool | None:
        if self.found is None:
            return None
        return self.found <= self.budget.bound if self.budget.at_most else self.found >= self.budget.bound


def _same(case: Case, other: Case) -> bool:
    return replace(case, total=other.total) == other


def _speed(contender: str, other: str) -> _Figure:
    return lambda measurement: measurement.speed(contender, other)


def _longer(contender: str, other: str) -> _Figure:
    """How many times as long a contender takes."""
    return lambda measurement: measurement.speed(other, contender)


def _threads(measurement: Measurement) -> float | None:
    """None where other programs take the second core: then two threads are not faster whatever they do."""
    hashes = measurement.speed(TWO_HASHES, ONE_HASH)
    return measurement.speed(TWO_THREADS, ONE_THREAD) if hashes and hashes >= FREE_CORE else None


# How many times as fast two threads of pure C are if both cores are free.
FREE_CORE = 1.8


def _decode_budgets(*, in_cache: bool) -> tuple[Budget, ...]:
    plain, kib, page = (Case(value=value, in_cache=in_cache) for value in (100, 1024, 4096))
    where = "in cache" if in_cache else "in memory"
    return (
        Budget(f"decode, value 100, {where}: ns a row", "decode", plain, _nanoseconds, 16, True, "ns"),
        Budget(f"decode, value 100, {where}: times the struct loop", "decode", plain, _speed(COPY, STRUCT), 50),
        Budget(f"decode, value 1024, {where}: times memcpy", "decode", kib, _speed(COPY, MEMCPY), 0.40),
        Budget(f"views, value 4096, {where}: times memcpy", "decode", page, _speed(VIEWS, MEMCPY), 1),
    )


def _encode_budgets(*, in_cache: bool) -> tuple[Budget, ...]:
    where = "in cache" if in_cache else "in memory"
    return tuple(
        Budget(
            f"encode, value {value}, {where}: takes, times decode", "encode", case, _longer(ENCODE, DECODE), 1.5, True
        )
        for value in (100, 1024)
        for case in (Case(value=value, in_cache=in_cache),)
    )


def _nanoseconds(measurement: Measurement) -> float:
    return measurement.samples[COPY].best


def _fast_enough(measurement: Measurement) -> float | None:
    """A gigabyte a second, or half of what a sendall of the same bytes reaches."""
    ratio = measurement.speed(PRODUCER, SENDALL)
    return None if ratio is None else max(2 * ratio, measurement.samples[PRODUCER].throughput)


BUDGETS = (
    *_decode_budgets(in_cache=True),
    *_decode_budgets(in_cache=False),
    Budget("two threads: times one", "threads", Case(in_cache=False), _threads, 1.8),
    *_encode_budgets(in_cache=True),
    *_encode_budgets(in_cache=False),
    Budget("producer, value 1024: times half a sendall, or GB/s", "producer", _BUCKET, _fast_enough, 1),
    Budget("socket to batches, value 1024: times a recv_into loop", "socket", _FOLLOWED, _speed(CLIENT, BARE), 0.8),
    *(
        Budget(f"read of Spark, value {case.value}: times the floor", "spark", case, _speed(READ, FLOOR), 0.9)
        for case in bench_spark.CASES
    ),
)


def verdicts(measurements: Iterable[Measurement]) -> list[Verdict]:
    measured = list(measurements)
    return [verdict for budget in BUDGETS if (verdict := budget.verdict(measured))]
