"""Memory tests in a process of their own: `python -m tests.memory NAME` repeats NAME and fails if memory grows."""

from __future__ import annotations

import resource
import socket
import sys
from collections.abc import Callable

import dcp
from dcp.wire.frame import encode

MIB = 1 << 20
NUMBERS = dict.fromkeys(["seqno", "rev_seqno", "flags", "expiry", "lock_time", "nru"], 0)
LENGTH_AT = slice(8, 12)


def mutation(number: int, value: bytes, datatype: int = 0) -> bytes:
    key = b"a key that no view has room for: %d" % number
    return encode(dcp.Frame("mutation", 0x80, number, datatype=datatype, fields=NUMBERS, key=key, value=value))


# Plain, compressed, with xattrs.
ROWS = b"".join(
    mutation(n, value, datatype)
    for n in range(20)
    for value, datatype in (
        (b"a plain value" * 9, 0),
        (b"\x0d\x08abc\x19\x03", 2),
        (b"\0\0\0\x0a\0\0\0\x06key\0{\0" + b"a body that no view has room for", 4),
    )
)


def batch(views: bool) -> dcp.Batch:
    decoder = dcp.Decoder(views=views, on_bad_value="quarantine")
    decoder.feed(ROWS[:-10])
    decoder.advance(max_rows=50)
    decoder.feed(bytearray(ROWS[-10:]))
    return decoder.take()


def dropped() -> None:
    batch(False), batch(True)


def unconsumed() -> None:
    for views in (False, True):
        made = batch(views)
        made.__arrow_c_array__(), made.__arrow_c_stream__(), made.__arrow_c_schema__()
        made.schema.__arrow_c_schema__()


def consumed() -> None:
    import pyarrow

    for views in (False, True):
        made = batch(views)
        pyarrow.record_batch(made), pyarrow.table(made), pyarrow.schema(made.schema), made.to_numpy()


def refused() -> None:
    decoder = dcp.Decoder(views=True)
    decoder.feed(ROWS[:500] + b"\0" * 500)
    decoder.take()
    try:
        decoder.take()
    except dcp.FrameError:
        return
    raise AssertionError


def one_decoder() -> None:
    buffer = CONNECTION.buffer()
    buffer[: len(ROWS)] = ROWS
    CONNECTION.received(len(ROWS))
    while CONNECTION.take(max_rows=20).num_rows:
        pass


def one_socket() -> None:
    NODE.sendall(ROWS)
    CONNECTION.receive(OURS.fileno(), EAR.fileno(), 0, max_rows=20)
    while CONNECTION.take(max_rows=20).num_rows:
        CONNECTION.receive(OURS.fileno(), EAR.fileno(), 0, max_rows=20)


CONNECTION = dcp.Decoder(views=True, on_bad_value="quarantine")
(OURS, NODE), (EAR, BELL) = socket.socketpair(), socket.socketpair()


def flat(step: Callable[[], None], warm_up: int = 300, steps: int = 2000) -> None:
    """Repeat a step 2,000 times: enough to notice a leak of one structure per column."""
    for _ in range(warm_up):
        step()
    before = peak()
    for _ in range(steps):
        step()
    grown = peak() - before
    assert grown < MIB, f"{step.__name__}: {grown} bytes more after {steps} steps"


def peak() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def limit_address_space(room: int) -> None:
    """Limit the process to `room` more bytes of address space: what is allocated counts, touched or not."""
    with open("/proc/self/statm") as statm:  # noqa: PTH123
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + room, used + room))


def announced(take_in: Callable[[dcp.Decoder, bytes], object] = lambda decoder, data: decoder.feed(data)) -> None:
    """Announce 30 MiB on each of twenty connections, and send next to nothing."""
    header = bytearray(mutation(1, b"value"))
    header[LENGTH_AT] = (30 * MIB - 24).to_bytes(4, "big")
    limit_address_space(100 * MIB)
    decoders = [dcp.Decoder() for _ in range(20)]
    for decoder in decoders:
        for _ in range(5):
            take_in(decoder, bytes(header))
            decoder.advance()
        decoder.buffer()
        assert decoder.pending == 5 * len(header)


def announced_on_sockets() -> None:
    """Do the same with decoders that receive from sockets."""
    announced(from_socket)


def from_socket(decoder: dcp.Decoder, data: bytes) -> None:
    NODE.sendall(data)
    decoder.receive(OURS.fileno(), EAR.fileno(), 0)


def large() -> None:
    """Receive a document of 20 MiB in pieces of 64 KiB: twice its size, the column, and one copy while it grows."""
    frame = mutation(1, bytes(20 * MIB))
    limit_address_space(120 * MIB)
    decoder = dcp.Decoder()
    for begin in range(0, len(frame), 1 << 16):
        decoder.feed(frame[begin : begin + (1 << 16)])
        decoder.advance()
    assert len(decoder.take()) == 1


LIMITED = {step.__name__: step for step in (announced, announced_on_sockets, large)}
FLAT = {step.__name__: step for step in (dropped, unconsumed, consumed, refused, one_decoder, one_socket)}

if __name__ == "__main__":
    name = sys.argv[1]
    if name in LIMITED:
        LIMITED[name]()
    else:
        flat(FLAT[name])
