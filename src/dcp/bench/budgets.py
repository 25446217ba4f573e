"""Performance budgets: bounds for figures of a run, as ratios to a baseline of the same run where there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from dcp.bench import bench_documents, bench_producer, bench_socket, bench_spark, bench_spark_documents
from dcp.bench.bench_decode import COPY, MEMCPY, ONE_HASH, ONE_THREAD, STRUCT, TWO_HASHES, TWO_THREADS, VIEWS
from dcp.bench.bench_documents import ALL, DUCKDB, NONE, THREE
from dcp.bench.bench_encode import DECODE, ENCODE
from dcp.bench.bench_producer import PRODUCER, SENDALL
from dcp.bench.bench_socket import BARE, CLIENT
from dcp.bench.bench_spark import FLOOR, READ
from dcp.bench.bench_spark_documents import BYTES, CORES, FROM_JSON, TYPED
from dcp.bench.frames import Case
from dcp.bench.timing import Measurement

(_BUCKET,) = bench_producer.CASES
_SMALL, _, _LARGE, _ = bench_socket.CASES
_ORDER = bench_documents.CASES[2]
(_IN_SPARK,) = bench_spark_documents.CASES
_Figure = Callable[[Measurement], "float | None"]


@dataclass(frozen=True)
class Budget:
    """Bound of a figure of one case: a lower one unless `at_most`."""

    what: str
    bench: str
    case: Case
    figure: _Figure
    bound: float
    at_most: bool = False
    unit: str = "x"

    def verdict(self, measurements: Iterable[Measurement]) -> Verdict | None:
        """Compare with a run; None if it lacks the case. The number of bytes does not matter."""
        for measurement in measurements:
            if measurement.bench == self.bench and _same(measurement.case, self.case):
                return Verdict(self, self.figure(measurement))
        return None


@dataclass(frozen=True)
class Verdict:
    """Result of a budget. `found` is None if the machine was too busy to tell."""

    budget: Budget
    found: float | None

    @property
    def met(self) -> bool | None:
        """True if the figure is within the bound; None if unknown."""
        if self.found is None:
            return None
        return self.found <= self.budget.bound if self.budget.at_most else self.found >= self.budget.bound


def _same(case: Case, other: Case) -> bool:
    """True for the same case, whatever its number of bytes."""
    return replace(case, total=other.total) == other


def _speed(contender: str, other: str) -> _Figure:
    """Return the figure: how many times as fast as another a contender is."""
    return lambda measurement: measurement.speed(contender, other)


def _duration(contender: str, other: str) -> _Figure:
    """Return the figure: how many times as long as another a contender takes."""
    return lambda measurement: measurement.speed(other, contender)


def _threads(measurement: Measurement) -> float | None:
    """Return the speed of two threads; None if other programs use the second core, as the hashes show."""
    hashes = measurement.speed(TWO_HASHES, ONE_HASH)
    return measurement.speed(TWO_THREADS, ONE_THREAD) if hashes and hashes >= FREE_CORE else None


# Speed of two hash threads relative to one, above which the second core counts as free.
FREE_CORE = 1.8


def _decode_budgets(*, in_cache: bool) -> tuple[Budget, ...]:
    """Return the budgets of decoding."""
    plain, kib, page = (Case(value=value, in_cache=in_cache) for value in (100, 1024, 4096))
    place = "in cache" if in_cache else "in memory"
    return (
        Budget(f"decode, value 100, {place}: ns per row", "decode", plain, _nanoseconds, 16, True, "ns"),
        Budget(f"decode, value 100, {place}: times the struct loop", "decode", plain, _speed(COPY, STRUCT), 50),
        Budget(f"decode, value 1024, {place}: times memcpy", "decode", kib, _speed(COPY, MEMCPY), 0.40),
        Budget(f"views, value 4096, {place}: times memcpy", "decode", page, _speed(VIEWS, MEMCPY), 1),
    )


def _encode_budgets(*, in_cache: bool) -> tuple[Budget, ...]:
    """Return the budgets of encoding."""
    place = "in cache" if in_cache else "in memory"
    return tuple(
        Budget(
            f"encode, value {value}, {place}: takes, times decode", "encode", case, _duration(ENCODE, DECODE), 1.5, True
        )
        for value in (100, 1024)
        for case in (Case(value=value, in_cache=in_cache),)
    )


def _nanoseconds(measurement: Measurement) -> float:
    """Return ns per row."""
    return measurement.samples[COPY].best


def _beside(contender: str) -> _Figure:
    """Return the figure: ns per row that documents take, without the rest of the frame."""
    return lambda measurement: measurement.samples[contender].best - measurement.samples[NONE].best


def _parsing(measurement: Measurement) -> float:
    """Return the figure: time of `from_json` on one core, relative to that of decoding the same documents."""
    samples = measurement.samples
    return CORES * (samples[FROM_JSON].best - samples[BYTES].best) / (samples[ALL].best - samples[NONE].best)


def _fast_enough(measurement: Measurement) -> float | None:
    """Return 1 or more for 1 GB/s, or for half the throughput of a sendall of the same bytes."""
    ratio = measurement.speed(PRODUCER, SENDALL)
    return None if ratio is None else max(2 * ratio, measurement.samples[PRODUCER].throughput)


BUDGETS = (
    *_decode_budgets(in_cache=True),
    *_decode_budgets(in_cache=False),
    Budget("two threads: times one", "threads", Case(in_cache=False), _threads, 1.8),
    Budget(
        "document of 550 bytes, all fields: ns beside its frame", "documents", _ORDER, _beside(ALL), 600, True, "ns"
    ),
    Budget(
        "document of 550 bytes, 3 fields: ns beside its frame", "documents", _ORDER, _beside(THREE), 350, True, "ns"
    ),
    Budget("document of 550 bytes, all fields: times DuckDB", "documents", _ORDER, _speed(ALL, DUCKDB), 2),
    *_encode_budgets(in_cache=True),
    *_encode_budgets(in_cache=False),
    Budget("producer, value 1024: times half a sendall, or GB/s", "producer", _BUCKET, _fast_enough, 1),
    *(
        Budget(
            f"socket to batches, value {case.value}: times a recv_into loop", "socket", case, _speed(CLIENT, BARE), 0.8
        )
        for case in (_SMALL, _LARGE)
    ),
    *(
        Budget(f"read of Spark, value {case.value}: times the floor", "spark", case, _speed(READ, FLOOR), 0.9)
        for case in bench_spark.CASES
    ),
    Budget("typed read of Spark: times from_json", "spark_documents", _IN_SPARK, _speed(TYPED, FROM_JSON), 4),
    Budget("document, a core: times from_json", "spark_documents", _IN_SPARK, _parsing, 8),
)


def verdicts(measurements: Iterable[Measurement]) -> list[Verdict]:
    """Return the results of all budgets that a run has the cases of."""
    measured = list(measurements)
    return [verdict for budget in BUDGETS if (verdict := budget.verdict(measured))]
