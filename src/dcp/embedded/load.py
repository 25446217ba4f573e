"""Bulk loading of documents that depend on a seed only."""

from __future__ import annotations

import gc
import random
import zlib
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dcp.embedded.bucket import BucketStore
from dcp.embedded.store import StoredItem
from dcp.wire.document import Datatype

_HEAD = b'{"n":%d,"pad":"'
_TAIL = b'"}'
# All values are cut from one text. Consecutive ones begin `_STEP` bytes apart, and repeat after `_PERIOD` bytes.
_STEP = 7
_PERIOD = 4096


def load_documents(
    bucket: BucketStore, count: int, value: Callable[[int], bytes], prefix: bytes, collection_id: int
) -> None:
    """Write `count` JSON documents with the keys `prefix` + 10 digits; `value` makes the body of each number."""
    first = bucket.next_cas(count)
    head, datatype, name = prefix.replace(b"%", b"%%") + b"%010d", int(Datatype.JSON), "mutation"
    # Faster than the __new__ that NamedTuple generates.
    make = tuple.__new__
    with _no_garbage_collection():
        for vbucket, numbers in enumerate(_numbers_by_vbucket(head, count, len(bucket.owners))):
            seqno = bucket.active(vbucket).high_seqno
            items = []
            for n in numbers:
                seqno += 1
                document = head % n, value(n), 1, first + n, 0, 0, 0, datatype, collection_id
                items.append(make(StoredItem, (name, seqno, *document)))
            if items:
                bucket.load(vbucket, items)


def padded_values(size: int, seed: int) -> Callable[[int], bytes]:
    """Return a function that makes a JSON value of `size` bytes, or a little more if it needs them, of a number."""
    text = random.Random(seed).randbytes((size + _PERIOD) // 2 + 1).hex().encode()

    def value(n: int) -> bytes:
        head = _HEAD % n
        start = n * _STEP % _PERIOD
        return head + text[start : start + max(0, size - len(head) - 2)] + _TAIL

    return value


def _numbers_by_vbucket(head: bytes, count: int, vbuckets: int) -> list[array[int]]:
    """Return the numbers of the documents in each vbucket.

    The items of a vbucket are created one after the other, so that they are neighbours in memory: a stream reads them
    several times as fast as items that lie between those of other vbuckets.
    """
    numbers = [array("Q") for _ in range(vbuckets)]
    crc = zlib.crc32
    for n in range(count):
        # The formula of `vbucket_of`, without a call for each document.
        numbers[((crc(head % n) >> 16) & 0x7FFF) % vbuckets].append(n)
    return numbers


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Switch garbage collection off: items have no cycles, and searching for some takes as long as creating them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
