"""Queries of the driver that are repeated while the cluster changes."""

from __future__ import annotations

import dcp
from dcp.embedded import Cluster
from dcp.spark.retry import retry


def test_a_query_is_repeated_with_a_newer_map() -> None:
    with Cluster(nodes=2, vbuckets=2) as cluster, dcp.connect(cluster.url) as client:
        before = client.map.revision

        def query() -> int:
            if client.map.revision == before:
                raise dcp.TransportError("the vbucket has moved")
            return 7

        cluster.move(0, 1)
        cluster.move(0, 0)
        assert retry(client, query, 10.0) == 7
