"""`dcp demo`: a million documents copied into Parquet and followed through a failover, and held against the cluster.

`story` tells it. `shop` is the cluster's side: documents, and somebody who goes on writing. `on_spark` and `in_python`
are two ways to copy, both into the batches of `lake`, which knows what they come to. `course` watches, `screen` and
`picture` show it, and `command` is the command.
"""

from dcp.cli.demo.command import demo

__all__ = ["demo"]
