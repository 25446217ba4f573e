"""Producer that no consumer has to wait for: `python -m bench.peers.producer ROWS SIZE VBUCKETS [live]`.

An embedded cluster does everything up to the stream request, so that any client can connect. The first stream of a
vbucket is recorded; all streams get these bytes from memory, with their own opaque, as far as the flow-control window
of their connection allows.

`live`: as from a bucket that is written to, each snapshot has 1 to 3 rows, and the vbuckets take turns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate, cycle
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dcp._codec import Splitter
from dcp.embedded import Cluster
from dcp.embedded.bucket import ServerNode
from dcp.embedded.commands import dcp as commands
from dcp.embedded.connection import ServerConnection
from dcp.embedded.dcp_connection import DcpConnection
from dcp.embedded.negotiated import Negotiated
from dcp.embedded.outbox import CHUNK, Outbox
from dcp.embedded.stream import ServerStream
from dcp.embedded.stream_request import GrantedStream
from dcp.embedded.users import authorized
from dcp.wire.dcp import DCP, MarkerFlag
from dcp.wire.frame import Frame, encode
from dcp.wire.layout import Magic
from dcp.wire.memcached import MAX_FRAME

ROOT = Path(__file__).resolve().parents[2]
USER, PASSWORD = "peer", "s3cret"
_OPCODE_AT, _VBUCKET_AT, _OPAQUE_AT, _EXTRAS_AT = 1, 6, 12, 24
# A mutation begins with its seqno; a marker with the first and the last of its snapshot.
_SEQNO = slice(_EXTRAS_AT, _EXTRAS_AT + 8)
_IN_MEMORY = {"snapshot_start": 0, "snapshot_end": 0, "flags": int(MarkerFlag.MEMORY)}
_MARKER = encode(Frame("snapshot_marker", Magic.REQUEST, fields=_IN_MEMORY))
# More than the outbox would copy into its own buffer.
_PIECE = 2 * CHUNK
_BLOCK = 48
_HEAD, _TAIL = b'{"n":"%010d","text":"', b'"}'


class Recording:
    """Frames of one stream, from its first marker to its end.

    ends: offset of the end of each frame.
    turns: offset of the end of each snapshot, where the vbuckets take turns.
    """

    def __init__(self, stream: ServerStream, *, live: bool) -> None:
        frames = _split(bytearray().join(_written(stream)))
        parts = list(_in_small_snapshots(frames) if live else frames)
        self.data = bytearray().join(parts)
        self.turns = list(accumulate(map(len, parts))) if live else None
        self.ends = np.cumsum(np.fromiter(map(len, _split(self.data)), np.int64))
        self._bytes: npt.NDArray[np.uint8] = np.frombuffer(self.data, np.uint8)
        self._opaques_at = self.ends - np.diff(self.ends, prepend=0) + _OPAQUE_AT
        self._opaque = -1

    def address(self, opaque: int) -> None:
        """Write another opaque into all frames."""
        if opaque != self._opaque:
            for i, byte in enumerate(opaque.to_bytes(4, "big")):
                self._bytes[self._opaques_at + i] = byte
            self._opaque = opaque


def _written(stream: ServerStream) -> Iterator[bytes]:
    """Yield what a stream sends to a connection without a window, up to its end."""
    out = Outbox()
    while not stream.ended:
        stream.write(out)
        parts = [bytes(part) for part in out.take()]
        if not parts and not stream.ended:
            raise ValueError(f"vbucket {stream.vbucket.number}: the stream has no end; request it up to the high seqno")
        yield from parts


def _split(data: bytearray) -> Splitter:
    splitter = Splitter(MAX_FRAME)
    splitter.feed(data)
    return splitter


def _in_small_snapshots(frames: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the mutations of a stream in snapshots of 1, 2 or 3, each with its marker, and then its end."""
    mutation = DCP.by_name["mutation"].opcode
    *frames, end = frames
    rows = [raw for raw in frames if raw[_OPCODE_AT] == mutation]
    sizes, at = cycle((1, 2, 3)), 0
    while at < len(rows):
        together = rows[at : at + next(sizes)]
        at += len(together)
        yield b"".join((_marker(together[0], together[-1]), *together))
    yield end


def _marker(first: bytes, last: bytes) -> bytes:
    """Return the marker of a snapshot in memory, from its first row to its last."""
    header = _MARKER[:_VBUCKET_AT] + first[_VBUCKET_AT : _VBUCKET_AT + 2] + _MARKER[_VBUCKET_AT + 2 : _EXTRAS_AT]
    return header + first[_SEQNO] + last[_SEQNO] + _MARKER[_EXTRAS_AT + 16 :]


class ReplayedStream:
    """Sends a recording instead of encoding items again."""

    def __init__(self, recording: Recording) -> None:
        self._view, self._ends = memoryview(recording.data), recording.ends
        self._at = 0

    @property
    def ended(self) -> bool:
        """True once the end of the stream was written."""
        return self._at == len(self._view)

    def write(self, out: Outbox) -> None:
        """Write whole frames while there is room; the last one may cross the limit of the window, as on servers."""
        while out.open and not self.ended:
            room = min(_PIECE, out.window - out.outstanding if out.window else _PIECE)
            last = min(int(np.searchsorted(self._ends, self._at + room)), len(self._ends) - 1)
            end = int(self._ends[last])
            out.frame(self._view[self._at : end])
            self._at = end


class LiveStream(ReplayedStream):
    """Sends a recording in turn with the other streams of the connection, a snapshot at a time."""

    def __init__(self, recording: Recording, turns: Iterable[int]) -> None:
        super().__init__(recording)
        self._turns = iter(turns)

    def write(self, out: Outbox) -> None:
        """Write the frames of one snapshot."""
        end = next(self._turns)
        out.frame(self._view[self._at : end])
        self._at = end


class ReplayCluster(Cluster):
    """Embedded cluster whose streams are recorded once, then replayed."""

    def __init__(self, *, live: bool, **options: Any) -> None:
        # Before connections are accepted, which is as soon as the cluster is made.
        self._live = live
        self._recordings: dict[tuple[int, GrantedStream, Negotiated], Recording] = {}
        super().__init__(**options)

    def _new_connection(self, node: ServerNode, encrypted: bool) -> ServerConnection:
        connection = super()._new_connection(node, encrypted)
        handler = authorized("stream_request", self._request)
        connection.handlers = {**connection.handlers, "stream_request": handler}
        return connection

    def _request(self, connection: ServerConnection, frame: Frame) -> Frame:
        """Answer a stream request, and replay the stream that it began."""
        answer = commands.stream_request(connection, frame)
        stream = connection.sources[-1] if connection.sources else None
        if isinstance(stream, ServerStream):
            (opened,) = (timer for timer in connection.timers if isinstance(timer, DcpConnection))
            recording = self._recording(stream, opened.negotiated)
            replayed = LiveStream(recording, recording.turns) if recording.turns else ReplayedStream(recording)
            connection.sources[-1] = replayed
            stream.ended = True
        return answer

    def _recording(self, stream: ServerStream, negotiated: Negotiated) -> Recording:
        """Return the recording of a stream, with its opaque."""
        # Clients that accept compressed values get them, as from a bucket in compression mode `active`. The rest of an
        # agreement that has no effect on frames is left out, so that all clients of one kind share a recording.
        form = replace(
            negotiated,
            compress=negotiated.snappy,
            window=0,
            noop=False,
            noop_interval=0,
            consumer_name="",
            end_on_close=False,
        )
        key = stream.vbucket.number, stream.granted, form
        if key not in self._recordings:
            self._recordings[key] = Recording(
                ServerStream(stream.vbucket, stream.opaque, stream.granted, form), live=self._live
            )
        self._recordings[key].address(stream.opaque)
        return self._recordings[key]


class Served(NamedTuple):
    """Addresses of a producer, and the rows and bytes of values that a consumer has to receive."""

    url: str
    tls_url: str
    ca: str
    rows: int
    bytes: int


def value(size: int) -> Callable[[int], bytes]:
    """Return a function that makes a JSON document of a number, of which Snappy saves almost half."""
    room = max(2, size - len(_HEAD % 0) - len(_TAIL))
    text = Random(size).randbytes(room).hex().encode()
    # Each block twice: Snappy looks less and less for repetitions, the longer it finds none.
    blocks = (2 * text[at : at + _BLOCK] for at in range(0, room, _BLOCK))
    body = b"".join(blocks)[:room] + _TAIL
    return lambda number: _HEAD % number + body


def main(rows: int, size: int, vbuckets: int, *, live: bool) -> None:
    """Run a cluster with documents. Print what it has, and end when standard input is closed."""
    with ReplayCluster(live=live, vbuckets=vbuckets, username=USER, password=PASSWORD, tls=True) as cluster:
        cluster.load(rows, value=value(size))
        served = Served(_hosts(cluster.url), _hosts(cluster.tls_url), cluster.ca_file, rows, rows * len(value(size)(0)))
        print(json.dumps(served._asdict()), flush=True)
        # The pipe closes when the parent ends, however it ends: no cluster is left over.
        sys.stdin.read()


def _hosts(url: str) -> str:
    """Return a URL without its user and bucket."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2].partition('/')[0]}"


@contextmanager
def producing(
    rows: int, size: int, vbuckets: int, *, live: bool = False
) -> Iterator[tuple[Served, Callable[[], float]]]:
    """Run a producer in another process. Yield what it has, and a function that returns its CPU seconds so far."""
    command = [sys.executable, "-m", "bench.peers.producer", str(rows), str(size), str(vbuckets), *["live"] * live]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            served = Served(**json.loads(process.stdout.readline()))
            yield served, lambda: _cpu_seconds(process.pid)
        finally:
            process.stdin.close()


def _cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process."""
    # Behind the name, which may contain spaces.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), live="live" in sys.argv[4:])
