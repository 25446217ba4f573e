"""Documents that are loaded at once: what they are, and that they depend on a seed only."""

from __future__ import annotations

import gc
import json

import pytest

from dcp.embedded.load import load_documents, padded_values
from dcp.embedded.store import StoredItem
from tests.embedded.raw_client import make_bucket


@pytest.mark.parametrize("size", [0, 16, 100, 5000])
def test_a_value_has_its_size_unless_it_needs_more(size: int) -> None:
    value = padded_values(size, seed=1)
    # The text from which values are cut repeats after 4096 of them.
    for n in (5, 585, 4095, 1_000_000):
        least = b'{"n":%d,"pad":""}' % n
        assert len(value(n)) == max(size, len(least))
        assert json.loads(value(n))["n"] == n
        if size <= len(least):
            assert value(n) == least
    assert value(5) == padded_values(size, seed=1)(5)
    assert (value(5) == padded_values(size, seed=2)(5)) is (size <= 16)


def test_loaded_documents_are_numbered_in_each_vbucket() -> None:
    bucket = make_bucket(vbuckets=4)
    bucket.change_manifest(*bucket.manifest.create_collection("_default", "fruit"))
    before = bucket.store(b"before", b"", number=0)
    collecting = list[bool]()

    def value(n: int) -> bytes:
        collecting.append(gc.isenabled())
        return b"%d" % n

    load_documents(bucket, 100, value, b"50%-", 8)
    items = [item for copy in bucket.actives() for item in copy if isinstance(item, StoredItem) and item is not before]
    assert sorted(item.key for item in items) == [b"50%%-%010d" % n for n in range(100)]
    assert all(
        bucket.vbucket_of(item.key) == copy.number for copy in bucket.actives() for item in copy if item in items
    )
    for copy in bucket.actives():
        assert [item.seqno for item in copy] == list(range(1, len(copy) + 1))
    by_cas = sorted(items, key=lambda item: item.cas)
    assert [item.key for item in by_cas] == sorted(item.key for item in items)
    assert by_cas[0].cas > before.cas
    assert bucket.next_cas() > by_cas[-1].cas
    same = {(item.rev_seqno, item.flags, item.expiry, item.delete_time, item.datatype) for item in items}
    assert same == {(1, 0, 0, 0, 1)}
    assert {item.collection_id for item in items} == {8}
    # Items have no cycles.
    assert not any(collecting)
