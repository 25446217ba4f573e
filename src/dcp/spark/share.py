"""A partition of a plan as Spark hands it to a task of a data source."""

from __future__ import annotations

from pyspark.sql.datasource import InputPartition

from dcp.spark.planner import Partition


class Share(InputPartition):  # type: ignore[misc]
    """What one task reads."""

    def __init__(self, partition: Partition) -> None:
        super().__init__(None)
        self.partition = partition
