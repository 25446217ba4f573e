"""Fixtures of programs that others wrote."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from dcp.embedded import Cluster
from tests.interop.programs import CONSUMERS, SDKS, Consumer, Process, Sdk, Start, connection


@pytest.fixture(scope="session", params=list(SDKS))
def sdk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sdk]:
    """Program with an SDK, which does one job after the other."""
    errors = tmp_path_factory.mktemp(request.param) / "errors.txt"
    with closing(Sdk(SDKS[request.param], errors)) as process:
        yield process


@pytest.fixture(scope="session", params=list(CONSUMERS))
def consumer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Program that follows one bucket after the other."""
    errors = tmp_path_factory.mktemp(request.param) / "errors.txt"
    with closing(Process(CONSUMERS[request.param], errors)) as process:
        yield process


@pytest.fixture
def start(consumer: Process) -> Start:
    """Function that starts a consumer of a cluster, with the options of its program."""

    def run(cluster: Cluster, *, tls: bool = False, **options: object) -> Consumer:
        return Consumer(consumer, connection(cluster, tls=tls) | options)

    return run
