"""Error messages of the guide, compared with those that the same failures really raise."""

from __future__ import annotations

import contextlib
import datetime
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import dcp
from dcp.embedded import Cluster
from dcp.embedded.certificate import Authority
from dcp.embedded.users import Privilege, User
from tests.pages import ROOT
from tests.waiting import until

# Only who waits for what never comes gives up so soon.
IMPATIENT: dict[str, Any] = {"bootstrap_timeout": 0.3, "kv_connect_timeout": 0.3}


class Promise(NamedTuple):
    """A row of the guide: error class and message; `…` stands for words of other libraries."""

    error: str
    text: str

    def kept_by(self, error: dcp.DcpError) -> bool:
        pattern = ".+".join(map(re.escape, self.text.split("…")))
        said = re.sub(r"127\.0\.0\.1:\d+", "node:11210", str(error))
        return type(error).__name__ == self.error and re.fullmatch(pattern, said, re.DOTALL) is not None


def promises() -> dict[str, Promise]:
    _, _, section = (ROOT / "docs/client.md").read_text("utf-8").partition("## Errors")
    rows = re.findall(r"^\| ([^|`]+) \| `(\w+)` \| `([^`]+)` \|$", section, re.MULTILINE)
    return {what: Promise(error, text) for what, error, text in rows}


class World:
    """A cluster, and other listeners on this machine."""

    def __init__(self, directory: Path, cluster: Cluster, stack: contextlib.ExitStack) -> None:
        self.cluster = cluster
        self._directory, self._stack = directory, stack
        self.port = cluster.addresses[0].rpartition(":")[2]
        self.tls_port = cluster.tls_url.partition("@")[2].partition("/")[0].rpartition(":")[2]

    def connect(
        self, port: str | int, *, scheme: str = "couchbase", user: str = "", bucket: str = "default", **options: Any
    ) -> None:
        """Connect to a port of this machine, and read until the end."""
        known = self.cluster.credentials
        who = user or f"{known.username}:{known.password}@"
        option = f"?ca_cert_path={self.cluster.ca_file}" if scheme == "couchbases" else ""
        self.read(f"{scheme}://{who}127.0.0.1:{port}/{bucket}{option}", **options)

    def read(self, url: str, **options: Any) -> None:
        with dcp.connect(url, **options) as client, client.stream(end="now") as stream:
            for _ in stream:
                pass

    def anonymous(self) -> None:
        self.read(f"couchbase://127.0.0.1:{self.port}/default")

    def stream(self, **options: Any) -> None:
        with dcp.connect(self.cluster.url) as client:
            client.stream(**options)

    def wait(self) -> None:
        with dcp.connect(self.cluster.url) as client, client.stream("now") as stream:
            stream.next(0.05)

    def answers(self, said: bytes | None) -> int:
        """Return the port of a listener that answers everything with `said`; None for no answer at all."""
        door = self._stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def serve() -> None:
            with contextlib.suppress(OSError), contextlib.ExitStack() as guests:
                while True:
                    guest = guests.enter_context(door.accept()[0])
                    if said is not None:
                        with guest:
                            guest.recv(4096)
                            guest.sendall(said)

        thread = threading.Thread(target=serve)
        thread.start()
        self._stack.callback(thread.join)
        self._stack.callback(door.shutdown, socket.SHUT_RDWR)
        return int(door.getsockname()[1])

    def nobody(self) -> int:
        """Return a port on which no process listens."""
        door = self._stack.enter_context(socket.socket())
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])

    def certified(self, host: str = "127.0.0.1", valid: int = 7200) -> str:
        """Return the URL of a cluster with a certificate for a host, valid for `valid` seconds since an hour ago."""
        authority = Authority()
        issued = authority.issue("node", (host,), datetime.timedelta(seconds=valid))
        paths = {}
        for name, content in (
            ("ca", authority.certificate),
            ("certificate", issued.certificate),
            ("key", issued.key),
        ):
            path = self._directory / f"{name}.pem"
            path.write_bytes(content)
            paths[name] = str(path)
        cluster = Cluster(vbuckets=1, tls=True, certificate=paths["certificate"], key=paths["key"])
        return f"{self._stack.enter_context(cluster).tls_url}?ca_cert_path={paths['ca']}"

    def old(self) -> Cluster:
        return self._stack.enter_context(Cluster(vbuckets=2, server_version="6.0"))


def names_in_an_old_server(world: World) -> None:
    with dcp.connect(world.old().url) as client:
        client.stream(collections=["a"])


def a_recreated_bucket(world: World) -> None:
    with Cluster(vbuckets=4) as other, dcp.connect(other.url) as client, client.stream(end="now") as stream:
        list(stream)
        checkpoint = stream.checkpoint
    world.stream(start=checkpoint)


def an_expired_token(world: World) -> None:
    with Cluster(vbuckets=1, server_version="8.1", tls=True) as other:
        token = other.issue_token(lifetime=-1)
        dcp.connect(other.tls_url_without_user, ca_cert_path=other.ca_file, token=token)


HTTP = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"

FAILURES: dict[str, Callable[[World], None]] = {
    "token that has expired": an_expired_token,
    "wrong password": lambda world: world.connect(world.port, user="dcp:wrong@"),
    "no user in the URL": lambda world: world.anonymous(),
    "no such bucket": lambda world: world.connect(world.port, bucket="nothing"),
    "no privilege": lambda world: world.connect(world.port, user="reader:secret@"),
    "unknown certificate authority": lambda world: world.read(world.cluster.tls_url),
    "certificate of another host": lambda world: world.read(world.certified("other.example")),
    "certificate expired": lambda world: world.read(world.certified(valid=60)),
    "certificate file not found": lambda world: world.read(world.cluster.tls_url, ca_cert_path="ca.pem"),
    "no service at the port": lambda world: world.connect(world.nobody()),
    "no such host": lambda world: world.read("couchbase://u:p@nohost.invalid:11210/default"),
    "no answer": lambda world: world.connect(world.answers(None), **IMPATIENT),
    "no answer, with TLS": lambda world: world.connect(world.answers(None), scheme="couchbases", **IMPATIENT),
    "couchbase:// at a port for TLS": lambda world: world.connect(world.answers(b"\x15\3\1\0\2\2\x0a" * 4)),
    "couchbases:// at a port without TLS": lambda world: world.connect(world.port, scheme="couchbases"),
    "the port of a web server": lambda world: world.connect(world.answers(HTTP)),
    "the port of the web console": lambda world: world.read("couchbase://u:p@node:8091/default"),
    "the address of the web console": lambda world: world.read("http://u:p@node:8091/default"),
    "the node closes at once": lambda world: world.connect(world.answers(b"")),
    "the bucket was recreated": a_recreated_bucket,
    "no such vbucket": lambda world: world.stream(vbuckets=[1, 1024]),
    "no such scope": lambda world: world.stream(scope="shop"),
    "no such collection": lambda world: world.stream(collections=["shop.order"]),
    "a server without collections": names_in_an_old_server,
    "no such option in the URL": lambda world: world.read("couchbase://host/default?netwrk=auto"),
    "a value of the wrong type": lambda world: world.stream(linger="soon"),
    "a batch of nothing": lambda world: world.stream(batch_rows=0),
    "no changes in time": lambda world: world.wait(),
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    reader = User("reader", "secret", frozenset({Privilege.READ}))
    with (
        contextlib.ExitStack() as stack,
        Cluster(vbuckets=4, tls=True, users=[reader], server_version="7.6") as cluster,
    ):
        cluster.load(20)
        yield World(tmp_path, cluster, stack)


@pytest.mark.parametrize("what", FAILURES)
def test_a_failure_says_what_the_guide_says(what: str, world: World) -> None:
    with pytest.raises(dcp.DcpError) as found:
        FAILURES[what](world)
    promise = promises()[what]
    assert promise.kept_by(found.value), f"{type(found.value).__name__}: {found.value}"
    assert world.cluster.credentials.password not in str(found.value)


def test_the_guide_speaks_of_these_failures() -> None:
    assert list(promises()) == list(FAILURES)


def test_what_is_about_a_node_names_it_and_says_what_to_do() -> None:
    for what, (error, text) in promises().items():
        about_a_node = error in ("AuthenticationError", "ServerError", "TransportError", "RemoteProtocolError")
        assert not about_a_node or text.startswith(("node:11210: ", "nohost.invalid:11210: ")), what
        assert ";" in text or "expected" in text, what


def test_a_timeout_is_what_python_calls_one() -> None:
    assert issubclass(dcp.TimeoutError, TimeoutError)
    assert issubclass(dcp.TimeoutError, dcp.TransportError)


def test_a_stream_that_an_error_ends_releases_its_connections() -> None:
    with Cluster(vbuckets=4) as cluster, dcp.connect(cluster.url, stats_interval=0) as client:
        cluster.load(100)
        before = threading.active_count()
        refused = cluster.fault("refuse", status="E2BIG")
        # Kept, as a program does that looks at it later.
        stream = client.stream()
        with pytest.raises(dcp.ServerError, match="E2BIG"):
            list(stream)
        refused.clear()
        assert stream.closed
        until(lambda: threading.active_count() == before and not client.stats().streams)
        # The error stays the answer.
        with pytest.raises(dcp.ServerError, match="E2BIG"):
            stream.next()


# In a process of its own: pytest keeps what is logged, and the log has the error.
FORGOTTEN = """
import contextlib, gc, threading, weakref
import dcp
from dcp.embedded import Cluster

def fail(url):
    with dcp.connect(url) as client:
        stream = client.stream()
        # The frames of the error have the stream, and the stream has the error.
        with contextlib.suppress(dcp.FrameError):
            for _ in stream:
                pass
        assert stream.closed
        return [weakref.ref(each) for each in (client, stream, stream._follower)]

with Cluster(vbuckets=1) as cluster:
    cluster.load(100)
    cluster.fault("garbage")
    left = fail(cluster.url)
    for thread in threading.enumerate():
        if thread.name.startswith("dcp "):
            thread.join(30)
    gc.collect()
    assert [each() for each in left] == [None, None, None], left
"""


def test_a_stream_that_an_error_ends_is_forgotten_with_its_batches() -> None:
    done = subprocess.run([sys.executable, "-c", FORGOTTEN], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_stream_that_was_closed_with_batches_in_its_queue_did_not_end() -> None:
    with Cluster(vbuckets=1) as cluster, dcp.connect(cluster.url) as client:
        cluster.load(100)
        stream = client.stream(end="now", batch_rows=10)
        assert stream.next(10) is not None
        until(lambda: client.stats().changes == 100)
        stream.close()
        with pytest.raises(dcp.ClosedError):
            stream.next(10)
