"""A client of a cluster: the only room that talks to the network."""

from __future__ import annotations

import logging
from typing import Any

from dcp.client.client import Client
from dcp.client.stream import ChangeStream

# Who wants to read what happens says where it goes to.
logging.getLogger("dcp").addHandler(logging.NullHandler())

__all__ = ["ChangeStream", "Client", "connect"]


def connect(url: str, **options: Any) -> Client:
    """A client of the bucket that a connection string names: `couchbase://user:password@host/bucket`.

    The options are those of the string, and go before them.
    """
    return Client(url, **options)
