"""Invalid arguments are refused with the name of the argument, before anything is started."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import dcp
from dcp.embedded import Cluster
from dcp.embedded.faults import FAULTS
from dcp.embedded.faults.fault import options_of, positive, positive_size

REFUSED: dict[str, tuple[Any, ...]] = {
    "nodes": ("3", 2.5, True, 0, 9, None),
    "vbuckets": ("x", 0, 32_769),
    "replicas": (None, -1, 4),
    "port": (-1, 65_536, "x", None),
    "server_version": (8.0, "8", "2.5", None),
    "bucket": ("", "a b", "a/b", 3, "x" * 101),
    "host": (5, "", "a b"),
    "username": ("", 3, "a\0b"),
    "password": (3, "a\0b"),
    "seed": ([], 1.5),
    "dialect": (3, "dcp2"),
    "users": ([3],),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in REFUSED.items() for value in values])
def test_an_invalid_argument_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(dcp.LocalProtocolError, match=f"^{name}: expected .*, found"):
        Cluster(**{name: value})


def test_every_listener_needs_a_port() -> None:
    with pytest.raises(dcp.LocalProtocolError, match="port: expected 0 to 65530, found 65531"):
        Cluster(nodes=3, port=65_531)
    with pytest.raises(dcp.LocalProtocolError, match="port: expected 0 to 65524, found 65525"):
        Cluster(nodes=3, port=65_525, tls=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda cluster: cluster.upsert("key", b"1"),
        lambda cluster: cluster.delete("key-0000000001"),
        lambda cluster: cluster.load(1),
        lambda cluster: cluster.failover(0),
        lambda cluster: cluster.recover(0),
        lambda cluster: cluster.rebalance_in(),
        lambda cluster: cluster.rebalance_out(0),
        lambda cluster: cluster.purge(),
        lambda cluster: cluster.create_scope("shop"),
        lambda cluster: cluster.fault("silent"),
    ],
)
def test_a_closed_cluster_can_be_read_but_not_changed(change: Callable[[Cluster], object]) -> None:
    with Cluster(nodes=2, vbuckets=4) as cluster:
        cluster.load(10)
    before = cluster.truth()
    with pytest.raises(dcp.LocalProtocolError, match="the cluster is closed"):
        change(cluster)
    assert cluster.truth() == before
    assert len(before) == 10


def test_a_fault_may_outlive_its_cluster() -> None:
    with Cluster(vbuckets=2) as cluster, cluster.fault("silent"):
        cluster.close()


@pytest.mark.parametrize("name", FAULTS)
def test_an_option_with_which_a_fault_never_acts_is_refused(name: str) -> None:
    with Cluster(vbuckets=2) as cluster:
        never: list[tuple[str, object]] = [("times", 0), ("vbuckets", [])]
        for each in options_of(FAULTS[name]):
            never += [(each.name, 0)] if each.metadata["parse"] in (positive, positive_size) else []
            never += [(each.name, None)] if "None" not in str(each.type) else []
            never += [(each.name, math.nan)]
        for option, value in never:
            with pytest.raises(dcp.LocalProtocolError, match=f"fault {name}: {option}: expected"):
                cluster.fault(name, **{option: value})


def test_a_cut_without_options_is_immediate() -> None:
    with Cluster(vbuckets=2) as cluster, cluster.fault("cut") as fault:
        with pytest.raises(dcp.TransportError):
            dcp.connect(cluster.url)
        assert fault.hits == 1
        dcp.connect(cluster.url).close()


@pytest.mark.parametrize("value", [1, None, {"a": 1}, 2.5])
def test_a_value_that_is_neither_text_nor_bytes_is_refused(value: object) -> None:
    with Cluster(vbuckets=1) as cluster, pytest.raises(dcp.UsageError, match=r"value: expected text or bytes, found a"):
        cluster.upsert("key", value)  # type: ignore[arg-type]
