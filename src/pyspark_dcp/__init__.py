"""Spark looks for modules of such names, and finds `format("dcp")` here, so that nobody has to register it."""

from dcp.spark.source import DcpDataSource as DefaultSource

__all__ = ["DefaultSource"]
