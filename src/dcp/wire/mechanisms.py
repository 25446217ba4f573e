"""The SASL mechanisms of servers, by their names on the wire."""

from __future__ import annotations

PLAIN = "PLAIN"
# The strongest first, with the names of their hashes. The standard's names have one dash more.
SCRAM = {"SCRAM-SHA512": "sha512", "SCRAM-SHA256": "sha256", "SCRAM-SHA1": "sha1"}
MECHANISMS = (*SCRAM, PLAIN)


def standard_name(mechanism: str) -> str:
    """As RFC 5802 and its successors call it: SCRAM-SHA-256."""
    return mechanism.replace("SHA", "SHA-")
