"""A cluster in memory that speaks the protocol on real sockets."""

from dcp.embedded.cluster import Cluster, Truth

__all__ = ["Cluster", "Truth"]
