"""Text from the network for errors, logs and terminals."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return text on one line, with control characters escaped, so that it cannot control a terminal."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
