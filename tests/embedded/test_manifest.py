"""The manifest: its changes, and their system events."""

from __future__ import annotations

import pytest

from dcp.embedded.manifest import BucketManifest, ManifestStep
from dcp.errors import LocalProtocolError
from dcp.wire.dcp import SystemEvent


def built() -> BucketManifest:
    manifest, _ = BucketManifest().create_scope("inventory")
    manifest, _ = manifest.create_collection("inventory", "hotel")
    return manifest.create_collection("inventory", "cart", max_ttl=3600)[0]


def test_a_manifest_is_written_as_servers_answer_it() -> None:
    assert built().to_json() == {
        "uid": "3",
        "scopes": [
            {"name": "_default", "uid": "0", "collections": [{"name": "_default", "uid": "0"}]},
            {
                "name": "inventory",
                "uid": "8",
                "collections": [{"name": "hotel", "uid": "9"}, {"name": "cart", "uid": "a", "maxTTL": 3600}],
            },
        ],
    }


def test_every_change_is_an_event_with_the_new_uid() -> None:
    assert BucketManifest().create_scope("s")[1] == [ManifestStep(SystemEvent.SCOPE_CREATE, 1, "s", 8)]
    assert built().create_collection("_default", "c")[1] == [ManifestStep(SystemEvent.COLLECTION_BEGIN, 4, "c", 0, 11)]
    assert built().drop_collection("inventory", "hotel")[1] == [
        ManifestStep(SystemEvent.COLLECTION_END, 4, "hotel", 8, 9)
    ]


def test_a_new_vbucket_gets_each_scope_before_its_collections() -> None:
    assert built().steps() == [
        ManifestStep(SystemEvent.SCOPE_CREATE, 3, "inventory", 8),
        ManifestStep(SystemEvent.COLLECTION_BEGIN, 3, "hotel", 8, 9),
        ManifestStep(SystemEvent.COLLECTION_BEGIN, 3, "cart", 8, 10, 3600),
    ]


def test_the_collections_of_a_dropped_scope_go_first_with_the_old_uid() -> None:
    manifest, changes = built().drop_scope("inventory")
    assert [(c.event, c.manifest_uid, c.collection_id) for c in changes] == [
        (SystemEvent.COLLECTION_END, 3, 9),
        (SystemEvent.COLLECTION_END, 3, 10),
        (SystemEvent.SCOPE_DROP, 4, None),
    ]
    assert set(manifest.collections()) == {0}


def test_an_id_is_never_given_twice() -> None:
    manifest, _ = built().drop_scope("inventory")
    assert manifest.create_scope("inventory")[1][0].scope_id == 11


def test_missing_and_existing_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(LocalProtocolError, match="scope 'nope': expected one of _default, inventory"):
        built().scope("nope")
    with pytest.raises(
        LocalProtocolError, match="collection 'x': expected one of scope inventory, which has hotel, cart"
    ):
        built().drop_collection("inventory", "x")
    with pytest.raises(LocalProtocolError, match="it exists already"):
        built().create_collection("inventory", "hotel")
    with pytest.raises(LocalProtocolError, match="it exists already"):
        built().create_scope("inventory")
    with pytest.raises(LocalProtocolError, match="the default scope cannot be dropped"):
        built().drop_scope("_default")


@pytest.mark.parametrize("name", ["", "_x", "%x", "a b", "ä", "x" * 252])
def test_a_name_that_servers_refuse_is_refused(name: str) -> None:
    with pytest.raises(LocalProtocolError, match="expected 1 to 251 letters"):
        BucketManifest().create_scope(name)
