"""A soak runs for a few seconds, and its judgement sees what grows and what is missing."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import dcp
from dcp.embedded import Cluster
from tests.client.consumer import PATIENCE, truth
from tests.soak.chart import draw
from tests.soak.following import COLUMNS, BoundedLog, TooDeepError
from tests.soak.running import Soak
from tests.soak.samples import RESOURCES, Sample, growth, write_csv

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="samples are read from /proc")


@on_linux
def test_a_short_soak_ends_with_what_the_cluster_has(tmp_path: Path) -> None:
    soak = Soak(1)
    assert soak.run(3, 0.2) == []
    assert soak.done["writes"] > 100
    write_csv(soak.samples, tmp_path / "soak.csv")
    header, *lines = (tmp_path / "soak.csv").read_text().splitlines()
    assert header == "seconds,rss,threads,descriptors,lag,cluster_rss"
    assert len(lines) == len(soak.samples) > 5
    chart = ElementTree.fromstring(draw("a short soak", soak.samples))
    assert len(chart.findall(".//{*}polyline")) >= len(RESOURCES)


FLAT = Sample(0.0, 100.0, 10, 20, None, 100.0)


@pytest.mark.parametrize("name", RESOURCES)
def test_what_grows_over_the_last_half_is_named(name: str) -> None:
    bound = RESOURCES[name].bound
    before, within, beyond = FLAT, *(FLAT._replace(**{name: getattr(FLAT, name) + more}) for more in (bound, bound + 1))
    assert growth([before] * 60 + [within] * 20) == []
    (line,) = growth([before] * 60 + [beyond] * 20)
    assert line.startswith(RESOURCES[name].title)
    # The first half is the time in which caches fill up.
    assert growth([before] * 40 + [beyond] * 40) == []
    # A spike is no growth.
    assert growth([before] * 79 + [beyond]) == []


def test_too_few_samples_prove_nothing() -> None:
    assert growth([FLAT] * 2)


@pytest.mark.parametrize(("undone", "enough"), [(1000, True), (2, False)])
def test_a_bounded_log_undoes_late_rows_or_says_that_it_cannot(undone: int, enough: bool) -> None:
    log = BoundedLog(undone)
    with Cluster(vbuckets=1, nodes=2, replicas=1) as cluster, dcp.connect(cluster.url) as client:
        cluster.load(5000)
        with client.stream(columns=COLUMNS) as stream:
            follow(log, stream, cluster)
            for n in range(9):
                cluster.delete(f"key-{n:010}")
            follow(log, stream, cluster)
            cluster.crash(0)
            cluster.recover(0, lose=7)
            if enough:
                follow(log, stream, cluster)
                assert log.rollbacks == 1
            else:
                with pytest.raises(TooDeepError):
                    follow(log, stream, cluster)


def follow(log: BoundedLog, stream: dcp.ChangeStream, cluster: Cluster) -> None:
    while log.state() != truth(cluster):
        batch = stream.next(PATIENCE)
        assert batch is not None
        log.take(batch)
