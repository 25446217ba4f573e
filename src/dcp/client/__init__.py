"""The client of a cluster: connections, streams, statistics."""

from __future__ import annotations

import logging

from dcp.client.client import Client, connect
from dcp.client.stream import ChangeStream

# A library must not print: applications that want the log add a handler.
logging.getLogger("dcp").addHandler(logging.NullHandler())

__all__ = ["ChangeStream", "Client", "connect"]
