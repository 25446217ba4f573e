"""The driver's view of its cluster."""

from __future__ import annotations

from contextlib import closing

import pytest

import dcp
from dcp.embedded import Cluster
from dcp.spark.driver_view import DriverView
from dcp.spark.options import Options


def test_a_collection_that_was_dropped_since_is_an_error_or_leaves_the_end_unknown() -> None:
    with Cluster(vbuckets=1) as cluster:
        cluster.create_collection("_default", "x")
        given = {"url": cluster.url, "collections": "x"}
        strict = DriverView(Options.of(given))
        lenient = DriverView(Options.of({**given, "failOnDataLoss": "false"}))
        with closing(strict), closing(lenient):
            states = strict.current(), lenient.current()
            cluster.drop_collection("_default", "x")
            with pytest.raises(dcp.ServerError, match="was dropped, or is not readable for this user"):
                strict.filtered_highs(states[0])
            assert lenient.filtered_highs(states[1]) == {}
