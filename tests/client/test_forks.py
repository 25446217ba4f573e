"""Forked processes: they may not use a stream or client of their parent, and do not disturb it."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable

import pytest

import dcp
from dcp.embedded import Cluster
from tests.client.consumer import PATIENCE

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")


def in_a_fork(work: Callable[[], object]) -> str:
    """Return the class and text of the error of `work` in a forked process; its result, if it raises none."""
    receiver, sender = os.pipe()
    child = os.fork()
    if not child:
        try:
            said = repr(work())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(sender, said.encode())
        os._exit(0)
    os.close(sender)
    try:
        if not select.select([receiver], [], [], PATIENCE)[0]:
            os.kill(child, signal.SIGKILL)
            return "hangs"
        return os.read(receiver, 65536).decode()
    finally:
        os.close(receiver)
        os.waitpid(child, 0)


USES: dict[str, Callable[[dcp.Client, dcp.ChangeStream], object]] = {
    "next": lambda _, stream: stream.next(1),
    "iteration": lambda _, stream: next(stream),
    "another stream": lambda client, _: client.stream(),
    "a question": lambda client, _: client.high_seqnos(),
    "a refresh": lambda client, _: client.refresh_map(),
    "statistics": lambda client, _: client.stats(),
    "a connection": lambda client, _: client.open_command_connection(client.map.nodes[0]),
}


@pytest.mark.parametrize("use", USES)
def test_a_fork_may_not_use_what_its_parent_opened(use: str) -> None:
    with Cluster(vbuckets=1) as cluster, dcp.connect(cluster.url) as client, client.stream() as stream:
        cluster.upsert("one", b"1")
        said = in_a_fork(lambda: USES[use](client, stream))
        assert said.startswith("UsageError: ")
        assert f"made in process {os.getpid()}" in said
        assert "connect in each process, and resume from a checkpoint" in said
        batch = stream.next(PATIENCE)
        assert batch is not None
        assert len(batch) == 1


def hold(lock: threading.RLock, held: threading.Event, released: threading.Event) -> None:
    with lock:
        held.set()
        released.wait(PATIENCE)


def test_what_a_fork_closes_goes_on_in_its_parent() -> None:
    """The stream's lock is held by a thread that the fork does not have."""
    held, released = threading.Event(), threading.Event()
    with Cluster(vbuckets=1) as cluster, dcp.connect(cluster.url) as client, client.stream() as stream:
        client.high_seqnos()
        other = threading.Thread(target=hold, args=[stream._follower._lock, held, released])
        other.start()
        held.wait(PATIENCE)
        said = in_a_fork(lambda: [each.close() for each in (stream, client)])
        released.set()
        other.join()
        assert said == "[None, None]"
        cluster.upsert("one", b"1")
        batch = stream.next(PATIENCE)
        assert batch is not None
        assert len(batch) == 1
        assert client.high_seqnos() == {0: 1}


def test_a_fork_may_resume_from_the_checkpoint_of_its_parent() -> None:
    with Cluster(vbuckets=1) as cluster, dcp.connect(cluster.url) as client, client.stream() as stream:
        cluster.upsert("one", b"1")
        assert stream.next(PATIENCE) is not None
        cluster.upsert("two", b"2")

        def resume() -> int:
            with dcp.connect(cluster.url) as own, own.stream(stream.checkpoint, end="now") as resumed:
                return sum(map(len, resumed))

        assert in_a_fork(resume) == "1"
