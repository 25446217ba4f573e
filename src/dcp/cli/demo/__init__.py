"""`dcp demo`: copies a million documents into Parquet, through a failover, and compares the copy with the cluster.

`scenario` runs the steps. `workload` fills the cluster and keeps writing to it. `spark_copier` and `python_copier` are
two ways to copy, both into the batches of `parquet_batches`, which computes the documents that result. `monitor`
measures, `screen` and `chart` show the measurements, and `command` is the command.
"""

from dcp.cli.demo.command import demo

__all__ = ["demo"]
