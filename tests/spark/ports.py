"""Clusters whose port another one takes over."""

from __future__ import annotations

import contextlib
import random

import dcp
from dcp.embedded import Cluster


def at_a_port_of_its_own(vbuckets: int = 4) -> tuple[Cluster, int]:
    """Start a cluster at a port that no other program gets when it is closed: none that the system hands out."""
    for port in random.sample(range(10_000, 32_000, 2), 100):
        with contextlib.suppress(dcp.LocalProtocolError):
            return Cluster(vbuckets=vbuckets, port=port), port
    raise AssertionError("all ports are taken")
