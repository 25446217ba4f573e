"""Every command that a node answers, from the modules that know them."""

from __future__ import annotations

from dcp.embedded import producer
from dcp.embedded.conversation import Handler

HANDLERS: dict[str, Handler] = {**producer.HANDLERS}
