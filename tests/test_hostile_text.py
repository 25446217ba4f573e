"""Text of a server never reaches a terminal, a log or an error with control characters."""

from __future__ import annotations

import json
from typing import Any

import pytest

import dcp
from dcp.cluster_map import ClusterMap
from dcp.errors import FrameError, ServerError, TransportError
from dcp.json_reader import JsonReader

# Clears a terminal, forges a line of a log, turns the direction of text, rings, and hides what follows.
HOSTILE = "\x1b[2J\nINFO all is well\u202e\a\u2066\x9b31m\udc80"


@pytest.mark.parametrize(
    "error",
    [
        ServerError("refused", 0x24, HOSTILE),
        ServerError(f"bucket {HOSTILE} refused", 0x24),
        FrameError(f"found {HOSTILE}", 7),
        TransportError(HOSTILE),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_text_of_an_error_is_printable(error: dcp.DcpError) -> None:
    error.node = f"{HOSTILE}:11210"
    assert str(error).isprintable()
    assert "INFO all is well" in str(error)


def test_the_names_in_a_cluster_map_are_printable() -> None:
    config: dict[str, Any] = {
        "rev": 1,
        "name": HOSTILE,
        "nodeLocator": "vbucket",
        "nodesExt": [
            {
                "hostname": HOSTILE,
                "services": {"kv": 11210},
                "alternateAddresses": {"external": {"hostname": HOSTILE}},
                "serverGroup": HOSTILE,
            },
        ],
        "vBucketServerMap": {"serverList": [f"{HOSTILE}:1", f"{HOSTILE}:2"], "vBucketMap": [[0]]},
    }
    # As it comes from the network, where JSON escapes what is no UTF-8.
    found = ClusterMap.parse(json.dumps(config), "localhost")
    for text in (found.name, *map(str, found.nodes), str(found.nodes[0].external), found.nodes[0].server_group):
        assert text.isprintable()


def test_the_names_of_collections_are_printable() -> None:
    root = JsonReader.parse(json.dumps({"name": HOSTILE}), "collections manifest", dcp.RemoteProtocolError)
    assert root["name"].name().isprintable()


@pytest.mark.parametrize("host", ["a..b", "a" * 64, ".localhost"])
@pytest.mark.parametrize("scheme", ["couchbase", "couchbases"])
def test_a_host_that_is_no_name_is_a_documented_error(scheme: str, host: str) -> None:
    with pytest.raises(TransportError, match=r"check the name in the URL|TLS handshake failed"):
        dcp.connect(f"{scheme}://{host}:11210/default")
