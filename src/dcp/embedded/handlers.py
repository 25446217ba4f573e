"""Every command that a node answers, from the modules that know them."""

from __future__ import annotations

from dcp.embedded.access import guarded
from dcp.embedded.commands import bootstrap, collections, config, counters, reads, sasl, seqnos, stat, writes
from dcp.embedded.commands import dcp as producer
from dcp.embedded.connection import Handler
from dcp.embedded.legacy import tap, upr
from dcp.wire.frame import UNKNOWN

HANDLERS: dict[str, Handler] = {
    name: guarded(name, handler)
    for module in (producer, bootstrap, sasl, config, collections, reads, writes, counters, seqnos, stat, tap)
    for name, handler in module.HANDLERS.items()
} | {UNKNOWN: tap.unknown}
_UPR: dict[str, Handler] = HANDLERS | {name: guarded(name, handler) for name, handler in upr.HANDLERS.items()}
# By the dialect that a node speaks first.
HANDLERS_OF = {"dcp": HANDLERS, "tap": HANDLERS, "upr1": _UPR, "upr2": _UPR}
