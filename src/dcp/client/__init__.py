"""The client of a cluster, and the only room besides the embedded cluster that opens sockets."""

from __future__ import annotations

import logging

from dcp.client.client import Client, connect
from dcp.client.stream import ChangeStream

# A library must not print: applications that want the log add a handler.
logging.getLogger("dcp").addHandler(logging.NullHandler())

__all__ = ["ChangeStream", "Client", "connect"]
