"""Couchbase's changes as Spark DataFrames: a plan made on the driver, streamed by the tasks."""

from typing import TYPE_CHECKING, Any

from dcp.spark.java import session_options
from dcp.spark.map_in_arrow import read
from dcp.spark.planner import Partition, Plan, Range, plan

if TYPE_CHECKING:
    from dcp.spark.source import DcpDataSource

__all__ = ["DcpDataSource", "Partition", "Plan", "Range", "plan", "read", "session_options"]


def __getattr__(name: str) -> Any:
    """The data source is a class of Spark's: what does not use it need not load Spark."""
    if name == "DcpDataSource":
        from dcp.spark.source import DcpDataSource

        return DcpDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
