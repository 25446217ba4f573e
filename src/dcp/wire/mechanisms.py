"""SASL mechanisms of servers, by their names on the wire."""

from __future__ import annotations

PLAIN = "PLAIN"
# Strongest first, with the hash of each for hashlib. The names of the standards have another dash: SCRAM-SHA-256.
SCRAM = {"SCRAM-SHA512": "sha512", "SCRAM-SHA256": "sha256", "SCRAM-SHA1": "sha1"}
MECHANISMS = (*SCRAM, PLAIN)


def standard_name(mechanism: str) -> str:
    """Return the name of a mechanism in RFC 5802 and its successors: SCRAM-SHA-256."""
    return mechanism.replace("SHA", "SHA-")
