"""Who may connect, and what each of them may do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Privilege(Enum):
    """What servers call the right to do something, as their refusals spell it."""

    READ = "Read"
    WRITE = "Upsert"
    DCP = "DcpProducer"


EVERYTHING = frozenset(Privilege)


@dataclass(frozen=True, slots=True)
class User:
    """A name, what proves it, and what it may do. The password is in no text."""

    name: str
    password: str = field(repr=False)
    privileges: frozenset[Privilege] = EVERYTHING


Users = Mapping[str, User]
# Who talks to a node that asks nobody for a name.
ANYBODY = User("", "")
