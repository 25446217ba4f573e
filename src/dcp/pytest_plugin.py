"""Fixtures for tests against an embedded cluster. pytest loads them where this package is installed.

@pytest.mark.dcp_cluster(nodes=3, replicas=1)
def test_something(dcp_cluster):
    dcp_cluster.upsert("key", b"value")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from inspect import signature
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from dcp.embedded import Cluster


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker `dcp_cluster`."""
    config.addinivalue_line(
        "markers", "dcp_cluster(**options): arguments of the cluster that the fixture `dcp_cluster` starts"
    )


@pytest.fixture
def dcp_cluster_factory() -> Iterator[Callable[..., Cluster]]:
    """Function that starts clusters, which are closed at the end of the test.

    It takes the arguments of `dcp.embedded.Cluster`, raises what that raises, and may be called several times.
    """
    # Imported here: pytest loads this plugin in every project where the package is installed.
    from dcp.embedded import Cluster

    with ExitStack() as stack:

        def start(**options: Any) -> Cluster:
            return stack.enter_context(Cluster(**options))

        yield start


@pytest.fixture
def dcp_cluster(request: pytest.FixtureRequest, dcp_cluster_factory: Callable[..., Cluster]) -> Cluster:
    """Embedded cluster for one test: `dcp.embedded.Cluster` with the keyword arguments of the marker `dcp_cluster`.

    Without the marker all arguments have their defaults: one node, 64 vbuckets, no replicas, release 8.0. The cluster
    is closed at the end of the test. Raises pytest.UsageError if the marker has positional arguments, or a name that is
    no argument of it. Its attributes `url` and `management_url` are the addresses for clients,
    `control_url` that for programs in other languages that steer it, and `page_url` shows it to a browser.
    """
    marker = request.node.get_closest_marker("dcp_cluster")
    if marker and marker.args:
        raise pytest.UsageError(f"dcp_cluster: expected options by name, such as nodes=3, found {marker.args[0]!r}")
    options = marker.kwargs if marker else {}
    accepted = _arguments_of_clusters()
    for name in options:
        if name not in accepted:
            raise pytest.UsageError(f"dcp_cluster: expected some of {', '.join(accepted)}, found {name}")
    return dcp_cluster_factory(**options)


def _arguments_of_clusters() -> list[str]:
    from dcp.embedded import Cluster

    return list(signature(Cluster).parameters)
