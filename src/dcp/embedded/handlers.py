"""Every command that a node answers, from the modules that know them."""

from __future__ import annotations

from dcp.embedded import producer
from dcp.embedded.access import guarded
from dcp.embedded.commands import bootstrap, collections, config, counters, reads, sasl, seqnos, stat, writes
from dcp.embedded.conversation import Handler

HANDLERS: dict[str, Handler] = {
    name: guarded(name, handler)
    for module in (producer, bootstrap, sasl, config, collections, reads, writes, counters, seqnos, stat)
    for name, handler in module.HANDLERS.items()
}
