"""All commands that a node answers, by the dialect that it speaks."""

from __future__ import annotations

from dcp.embedded.commands import (
    bootstrap,
    collections,
    config,
    counters,
    dcp,
    locks,
    range_scans,
    reads,
    replicas,
    sasl,
    seqnos,
    stat,
    subdoc,
    writes,
)
from dcp.embedded.connection import Handler
from dcp.embedded.legacy import tap, upr
from dcp.embedded.users import authorized
from dcp.wire.frame import UNKNOWN

_MODULES = (
    *(dcp, bootstrap, sasl, config, collections, reads, replicas, writes, locks, subdoc, counters, seqnos, stat),
    *(range_scans, tap),
)
HANDLERS: dict[str, Handler] = {
    name: authorized(name, handler) for module in _MODULES for name, handler in module.HANDLERS.items()
} | {UNKNOWN: tap.unknown}
_UPR: dict[str, Handler] = HANDLERS | {name: authorized(name, handler) for name, handler in upr.HANDLERS.items()}
# By the dialect that a connection begins with.
HANDLERS_OF = {"dcp": HANDLERS, "tap": HANDLERS, "upr1": _UPR, "upr2": _UPR}
