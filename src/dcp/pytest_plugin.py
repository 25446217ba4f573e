"""Fixtures for those who test against a cluster in memory; pytest finds them where this package is installed.

@pytest.mark.dcp_cluster(nodes=3, replicas=1)
def test_something(dcp_cluster):
    dcp_cluster.upsert("key", b"value")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from dcp.embedded import Cluster


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "dcp_cluster(**options): the options of the cluster that the fixture `dcp_cluster` starts"
    )


@pytest.fixture
def dcp_cluster_factory() -> Iterator[Callable[..., Cluster]]:
    """Starts clusters, with the options of `dcp.embedded.Cluster`; they are closed when the test is over."""
    from dcp.embedded import Cluster

    with ExitStack() as stack:

        def start(**options: Any) -> Cluster:
            return stack.enter_context(Cluster(**options))

        yield start


@pytest.fixture
def dcp_cluster(request: pytest.FixtureRequest, dcp_cluster_factory: Callable[..., Cluster]) -> Cluster:
    """A cluster of the test's own, with the options of its marker `dcp_cluster`."""
    marker = request.node.get_closest_marker("dcp_cluster")
    if marker and marker.args:
        raise pytest.UsageError(f"dcp_cluster: expected options by name, such as nodes=3, found {marker.args[0]!r}")
    return dcp_cluster_factory(**(marker.kwargs if marker else {}))
