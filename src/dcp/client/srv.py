"""Seeds from the DNS: the SRV records of a name, as Couchbase's clusters in clouds have them."""

from __future__ import annotations

import logging

import dns.exception
import dns.resolver

from dcp.client.connection_string import Address

log = logging.getLogger("dcp.client")


def lookup(name: str, timeout: float) -> tuple[Address, ...]:
    """The addresses that the records of a name lead to, in the order in which they are to be tried; maybe none."""
    try:
        answer = dns.resolver.resolve(name, "SRV", lifetime=timeout)
    except dns.exception.DNSException as error:
        # Most hosts have no such records: then the name is that of a node.
        log.debug("%s: no SRV records: %s", name, error)
        return ()
    records = sorted(answer, key=lambda record: (record.priority, -record.weight))
    return tuple(Address(record.target.to_text(omit_final_dot=True), record.port) for record in records)
