"""Couchbase changes as Spark DataFrames: the driver plans which seqnos to read, tasks on the executors stream them.

The driver runs planner, ranges, offsets, driver_view, admission and stream_reader. Executors run task, projection and
worker. Partitions and options are pickled from one to the other.
"""

from typing import TYPE_CHECKING, Any

from dcp.spark.java import session_options
from dcp.spark.map_in_arrow import read
from dcp.spark.planner import Partition, Plan, plan
from dcp.spark.ranges import Range
from dcp.spark.tables import append, mirror

if TYPE_CHECKING:
    from dcp.spark.source import DcpDataSource

__all__ = ["DcpDataSource", "Partition", "Plan", "Range", "append", "mirror", "plan", "read", "session_options"]


def __getattr__(name: str) -> Any:
    """Import the data source on first use: it derives from a class of pyspark, which plans do not need."""
    if name == "DcpDataSource":
        from dcp.spark.source import registered

        return registered()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
