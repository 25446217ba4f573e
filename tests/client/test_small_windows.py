"""Flow-control windows that are smaller than a batch."""

from __future__ import annotations

import pytest

import dcp
from dcp.client.follow.settings import BatchLimits
from dcp.embedded import Cluster


@pytest.mark.parametrize("window", ["4k", "64k", "256k"])
def test_rows_are_delivered_before_they_fill_half_of_the_window(window: str) -> None:
    """While rows wait for `linger`, the node waits for the acknowledgement of what fills its window."""
    # `linger` is long: only full batches, and the end of the stream, are delivered in time.
    with Cluster(vbuckets=1) as cluster, dcp.connect(cluster.url, dcp_buffer_size=window) as client:
        cluster.load(2000, value_size=500)
        with client.stream(end="now", linger="1h", columns=["key"]) as stream:
            assert sum(map(len, stream)) == 2000
            assert stream.counters.batches > stream.counters.bytes // client._agent.options.dcp_buffer_size


def test_a_batch_takes_half_of_the_window_and_a_connection_holds_what_a_node_that_keeps_to_it_sends() -> None:
    def limits(window: int, size: int = 1 << 20) -> BatchLimits:
        return BatchLimits.within(window, 50, rows=9, bytes=size, linger=1.0)

    assert limits(1000) == BatchLimits(9, 500, 1.0, held=2050)
    assert limits(1000, size=100) == BatchLimits(9, 100, 1.0, held=2050)
    assert limits(1) == BatchLimits(9, 1, 1.0, held=52)
    assert limits(0) == BatchLimits(9, 1 << 20, 1.0, held=0)
