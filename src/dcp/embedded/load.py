"""Many documents at once, the same ones for the same seed."""

from __future__ import annotations

import gc
import random
import zlib
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dcp.embedded.bucket import BucketStore
from dcp.embedded.store import StoredItem
from dcp.errors import LocalProtocolError
from dcp.wire.document import Datatype

_HEAD = b'{"n":%d,"pad":"'
_TAIL = b'"}'
# How far the texts of neighbours are apart in the text that all are cut from.
_STEP = 7
_PERIOD = 4096


def documents(bucket: BucketStore, count: int, value: Callable[[int], bytes], prefix: str, collection_id: int) -> None:
    """Write JSON documents whose keys are numbered."""
    if count < 0:
        raise LocalProtocolError(f"load: expected a count of at least 0, found {count}")
    first = bucket.next_cas(count)
    head, datatype, name = prefix.encode() + b"%010d", int(Datatype.JSON), "mutation"
    make = tuple.__new__
    with _no_garbage_collection():
        for vbucket, numbers in enumerate(_numbers(head, count, len(bucket.owners))):
            seqno = bucket.active(vbucket).high_seqno
            items = []
            for n in numbers:
                seqno += 1
                document = head % n, value(n), 1, first + n, 0, 0, 0, datatype, collection_id
                items.append(make(StoredItem, (name, seqno, *document)))
            if items:
                bucket.load(vbucket, items)


def padded(size: int, seed: int) -> Callable[[int], bytes]:
    """Values of `size` bytes, or as long as they need to be."""
    if size < 0:
        raise LocalProtocolError(f"load: expected a size of at least 0, found {size}")
    text = random.Random(seed).randbytes((size + _PERIOD) // 2 + 1).hex().encode()

    def value(n: int) -> bytes:
        head = _HEAD % n
        start = n * _STEP % _PERIOD
        return head + text[start : start + max(0, size - len(head) - 2)] + _TAIL

    return value


def _numbers(head: bytes, count: int, vbuckets: int) -> list[array[int]]:
    """Which documents each vbucket has.

    The items of a vbucket are made one after the other, so that they are neighbours in memory: a stream
    reads them several times as fast as when they lie between those of all others.
    """
    numbers = [array("Q") for _ in range(vbuckets)]
    crc = zlib.crc32
    for n in range(count):
        # As `vbucket_of`, without a call for every document.
        numbers[((crc(head % n) >> 16) & 0x7FFF) % vbuckets].append(n)
    return numbers


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Items have no cycles, and to look for them again and again takes as long as to make them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
