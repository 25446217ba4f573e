"""SASL mechanisms of servers, by their names on the wire."""

from __future__ import annotations

PLAIN = "PLAIN"
# Strongest first, with the hash of each for hashlib. The names of the standards have another dash: SCRAM-SHA-256.
SCRAM = {"SCRAM-SHA512": "sha512", "SCRAM-SHA256": "sha256", "SCRAM-SHA1": "sha1"}
# Mechanisms for passwords, strongest first.
MECHANISMS = (*SCRAM, PLAIN)
# Mechanism for tokens (RFC 7628). Nodes offer it over TLS alone.
OAUTHBEARER = "OAUTHBEARER"


def standard_name(mechanism: str) -> str:
    """Return the name of a mechanism in RFC 5802 and its successors: SCRAM-SHA-256."""
    return mechanism.replace("SHA", "SHA-")
