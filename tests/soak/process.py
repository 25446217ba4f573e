"""Process of the consumers of a soak: it samples itself, and answers the process that started it."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, cast

from tests.soak.following import SoakConsumer
from tests.soak.samples import usage

# Arguments of a SoakConsumer: name, url, options, stream, seed.
ConsumerArguments = tuple[str, str, dict[str, Any], dict[str, Any], int]
State = dict[bytes, tuple[bytes, int]]
# Seconds for an answer. A consumer that merges its log holds its lock for less.
_ANSWER = 60


class ConsumerProcess:
    """Runs consumers in another process, for the duration of a `with` block.

    Every call raises what a consumer raised, if it is a bug.
    """

    def __init__(self, consumers: list[ConsumerArguments]) -> None:
        # No fork: the threads of the cluster run here.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(theirs, consumers), daemon=True)
        self._theirs = theirs

    def sample(self) -> tuple[float, int, int, int | None]:
        """Return memory, threads and descriptors of the process, and the lag of the consumer furthest behind."""
        return cast("tuple[float, int, int, int | None]", self._ask("sample"))

    def calm(self) -> None:
        """End restarts and pauses of the consumers."""
        self._ask("calm")

    def states(self) -> dict[str, State]:
        """Return the documents of each consumer."""
        return cast("dict[str, State]", self._ask("states"))

    def done(self) -> Counter[str]:
        """Return counts of what the consumers did."""
        return cast("Counter[str]", self._ask("done"))

    def _ask(self, question: str) -> object:
        self._pipe.send(question)
        assert self._pipe.poll(_ANSWER), f"the consumers do not answer {question!r} within {_ANSWER} s"
        answer = self._pipe.recv()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def __enter__(self) -> ConsumerProcess:
        self._process.start()
        self._theirs.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The end of the pipe ends the process.
        self._pipe.close()
        self._process.join(_ANSWER)
        self._process.kill()
        self._process.join()


def _run(pipe: Connection, arguments: list[ConsumerArguments]) -> None:
    consumers = [SoakConsumer(*each) for each in arguments]
    questions: dict[str, Callable[[], object]] = {
        "sample": lambda: (*usage(), _lag(consumers)),
        "calm": lambda: _calm(consumers),
        "states": lambda: {each.name: each.state() for each in consumers},
        "done": lambda: _done(consumers),
    }
    for consumer in consumers:
        consumer.start()
    try:
        while True:
            answer = questions[pipe.recv()]()
            bugs = [each.bug for each in consumers if each.bug is not None]
            pipe.send(bugs[0] if bugs else answer)
    except EOFError:
        pass
    finally:
        for consumer in consumers:
            consumer.close()


def _calm(consumers: list[SoakConsumer]) -> None:
    for consumer in consumers:
        consumer.calm.set()


def _lag(consumers: list[SoakConsumer]) -> int | None:
    known = [lag for consumer in consumers if (lag := consumer.lag()) is not None]
    return max(known, default=None)


def _done(consumers: list[SoakConsumer]) -> Counter[str]:
    return Counter({f"{each.name}: {name}": count for each in consumers for name, count in each.done.items()})
