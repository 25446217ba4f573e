"""Many documents at once, the same ones for the same seed."""

from __future__ import annotations

import gc
import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from dcp.embedded.bucket import Bucket
from dcp.embedded.store import Item
from dcp.errors import LocalProtocolError
from dcp.wire.document import Datatype

_HEAD = b'{"n":%d,"pad":"'
_TAIL = b'"}'
# How far the texts of neighbours are apart in the text that all are cut from.
_STEP = 7
_PERIOD = 4096


def documents(bucket: Bucket, count: int, value_size: int, seed: int, prefix: str, collection_id: int) -> None:
    """Write documents of `value_size` bytes, or as long as they need to be, whose keys are numbered."""
    if count < 0 or value_size < 0:
        raise LocalProtocolError(f"load: expected a count and a size of at least 0, found {count} and {value_size}")
    text = random.Random(seed).randbytes((value_size + _PERIOD) // 2 + 1).hex().encode()
    vbuckets = len(bucket.owners)
    highs = [bucket.active(number).high_seqno for number in range(vbuckets)]
    batches: list[list[Item]] = [[] for _ in range(vbuckets)]
    cas = bucket.next_cas(count)
    head, datatype, name = prefix.encode() + b"%010d", int(Datatype.JSON), "mutation"
    make, crc = tuple.__new__, zlib.crc32
    with _no_garbage_collection():
        for n in range(count):
            key = head % n
            value = _HEAD % n
            start = n * _STEP % _PERIOD
            value += text[start : start + max(0, value_size - len(value) - 2)] + _TAIL
            # As `vbucket_of`, without a call for every document.
            number = ((crc(key) >> 16) & 0x7FFF) % vbuckets
            seqno = highs[number] = highs[number] + 1
            batches[number].append(make(Item, (name, seqno, key, value, 1, cas + n, 0, 0, 0, datatype, collection_id)))
    for number, batch in enumerate(batches):
        if batch:
            bucket.load(number, batch)


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
