"""The client of a read, kept for the next one, which need not hash the password and fetch the cluster map again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dcp.client import Client

# The client of the last read in this process, by process and login. It has no connections.
_kept: dict[tuple[int, str], Client] = {}


@contextmanager
def kept_client(login_url: str, connect: Callable[[], Client], is_usable: Callable[[Client], bool]) -> Iterator[Client]:
    """Yield a connected client: that of the read before if it has the same login and is usable, else a new one.

    It is kept for the next read if this one ends well.
    """
    known = os.getpid(), login_url
    client = _kept.pop(known, None)
    if client is not None and not is_usable(client):
        client.close()
        client = None
    if client is None:
        client = connect()
    try:
        yield client
    except BaseException:
        client.close()
        raise
    client.close_idle()
    _kept.clear()
    _kept[known] = client
