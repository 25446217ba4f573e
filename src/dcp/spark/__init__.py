"""Couchbase's changes as Spark DataFrames: a plan made on the driver, streamed by the tasks."""

from dcp.spark.ingest import read
from dcp.spark.java import session_options
from dcp.spark.planner import Partition, Plan, Range, plan
from dcp.spark.source import DcpDataSource

__all__ = ["DcpDataSource", "Partition", "Plan", "Range", "plan", "read", "session_options"]
