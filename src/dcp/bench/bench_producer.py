"""Benchmark `producer`: the embedded cluster streams a bucket to another process, compared with a plain sendall."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from dcp._codec import Splitter
from dcp.bench.frames import KIB, MIB, Case
from dcp.bench.timing import Measurement, Sample, take_turns
from dcp.embedded import Cluster
from dcp.wire.dcp import DCP, OpenFlag, StreamFlag
from dcp.wire.frame import Frame, encode
from dcp.wire.layout import HEADER_STRUCT, Magic
from dcp.wire.memcached import MAX_FRAME

PRODUCER, SENDALL = "producer", "sendall"
CASES = (Case(value=KIB, key=14, vbuckets=64, total=320 * MIB, in_cache=False),)
# Bytes of the bucket for each byte of `total`: in short runs, connecting would take a large part.
_SCALE = 5
_PIECE = MIB
_ENDLESS = (1 << 64) - 1


def run(cases: tuple[Case, ...] = CASES, *, repetitions: int = 15, total: int = 64 << 20) -> Iterator[Measurement]:
    """Measure each case with a bucket of 5 times `total` bytes."""
    for case in cases:
        yield producer_case(case.sized(_SCALE * total), repetitions)


def producer_case(case: Case, repetitions: int) -> Measurement:
    """Measure one case."""
    rows = max(1, case.total // (case.value + case.key + 64))
    with ExitStack() as stack:
        directory = stack.enter_context(TemporaryDirectory())
        address = stack.enter_context(process("serve", rows, case.value, case.vbuckets))
        path = Path(directory, "bytes")
        size = path.write_bytes(b"".join(sent_bytes(address, case.vbuckets)))
        # Another process, as the cluster is: both contenders then have a core for the sender.
        plain = stack.enter_context(process("send", path))
        contenders = {
            PRODUCER: lambda: receive(request_all(address, case.vbuckets), size),
            SENDALL: lambda: receive(_connect(plain), size),
        }
        times = take_turns(contenders, repetitions)
    return Measurement("producer", case, {name: Sample(times[name], rows, size) for name in contenders})


# The sink.


def receive(sock: socket.socket, size: int) -> None:
    """Receive `size` bytes and discard them."""
    buffer = memoryview(bytearray(_PIECE))
    with sock:
        while size > 0 and (count := sock.recv_into(buffer)):
            size -= count
    assert size <= 0


def request_all(address: str, vbuckets: int) -> socket.socket:
    """Return a connection on which a node sends all its changes. address: as `serve` prints it."""
    host_port, user, password = address.split()
    sock = _connect(host_port)
    login = f"\0{user}\0{password}".encode()
    # The streams end at the present high seqnos, so the number of bytes is the same each time.
    flags = int(StreamFlag.TO_LATEST)
    numbers = dict.fromkeys(("start_seqno", "vbuuid", "snapshot_start", "snapshot_end"), 0)
    requests = [
        Frame("sasl_auth", Magic.REQUEST, key=b"PLAIN", value=login),
        Frame("select_bucket", Magic.REQUEST, key=b"default"),
        Frame("open", Magic.REQUEST, key=b"bench", fields={"flags": int(OpenFlag.PRODUCER)}),
    ]
    requests += [
        Frame("stream_request", Magic.REQUEST, n, vbucket=n, fields=numbers | {"flags": flags, "end_seqno": _ENDLESS})
        for n in range(vbuckets)
    ]
    sock.sendall(b"".join(map(encode, requests)))
    return sock


def sent_bytes(address: str, vbuckets: int) -> Iterator[bytes]:
    """Yield what a node sends, up to the end of its last stream."""
    splitter, ends = Splitter(MAX_FRAME), 0
    end = DCP.by_name["stream_end"].opcode
    with request_all(address, vbuckets) as sock:
        while ends < vbuckets:
            data = sock.recv(_PIECE)
            assert data
            yield data
            splitter.feed(data)
            for raw in splitter:
                magic, opcode, *_ = HEADER_STRUCT.unpack_from(raw)
                ends += magic == Magic.REQUEST and opcode == end


def _connect(host_port: str) -> socket.socket:
    """Connect to host:port."""
    host, _, port = host_port.rpartition(":")
    return socket.create_connection((host, int(port)))


# Processes at the other end. Each prints its address, and runs until it is terminated.


@contextmanager
def process(*arguments: object) -> Iterator[str]:
    """Start this module as a process. Yield the address that it prints."""
    command = [sys.executable, "-m", "dcp.bench.bench_producer", *map(str, arguments)]
    # A session of its own keeps Ctrl-C away from it: the parent process ends it.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def serve(rows: str, value_size: str, vbuckets: str) -> None:
    """Run an embedded cluster. Print host and port, user and password."""
    with Cluster(vbuckets=int(vbuckets)) as cluster:
        cluster.load(int(rows), value_size=int(value_size))
        print(cluster.addresses[0], cluster.credentials.username, cluster.credentials.password, flush=True)
        threading.Event().wait()


def send(path: str) -> None:
    """Send a file to each client that connects, one after the other."""
    data = Path(path).read_bytes()
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(f"127.0.0.1:{server.getsockname()[1]}", flush=True)
        while True:
            sock, _ = server.accept()
            with sock:
                sock.sendall(data)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(*sys.argv[2:])
    else:
        send(*sys.argv[2:])
