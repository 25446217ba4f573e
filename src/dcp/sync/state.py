"""State of a synchronized table, which every transaction replaces: the checkpoint of its rows, and what they are."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from dcp.checkpoint import Checkpoint
from dcp.errors import CheckpointError
from dcp.json_reader import JsonReader

_FORMAT, _VERSION = "dcp sync", 1


@dataclass(frozen=True, slots=True)
class TableContent:
    """Selection and schema of a table, which stay the same for its life.

    scope: name of the scope; None for all. collections: names as `scope.collection`; empty for all.
    schema: DDL of the documents; None for their JSON text.
    """

    scope: str | None = None
    collections: tuple[str, ...] = ()
    schema: str | None = None


@dataclass(frozen=True, slots=True)
class SyncState:
    """State after a transaction.

    number: 1 for the first transaction of the table, then one more for each.
    checkpoint: position of the rows. collection_ids: ids of the collections that may have rows.
    """

    number: int
    checkpoint: Checkpoint
    content: TableContent = field(default_factory=TableContent)
    collection_ids: tuple[int, ...] = ()

    def to_json(self) -> str:
        """Return the state as JSON for `from_json`. It contains no credentials."""
        return json.dumps(
            {
                "format": _FORMAT,
                "version": _VERSION,
                "number": self.number,
                "scope": self.content.scope,
                "collections": self.content.collections,
                "schema": self.content.schema,
                "collection_ids": self.collection_ids,
                "checkpoint": json.loads(self.checkpoint.to_json()),
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> SyncState:
        """Return the state that `to_json` wrote. Raises CheckpointError if the text is anything else."""
        root = JsonReader.parse(text, "state", CheckpointError)
        for name, expected in (("format", _FORMAT), ("version", _VERSION)):
            if root[name].value != expected:
                root[name].refuse(repr(expected))
        scope, schema = root.get("scope"), root.get("schema")
        return cls(
            root["number"].number(),
            Checkpoint.from_json(json.dumps(root["checkpoint"].value)),
            TableContent(
                None if scope is None else scope.text(),
                tuple(name.text() for name in root["collections"]),
                None if schema is None else schema.text(),
            ),
            tuple(number.number() for number in root["collection_ids"]),
        )
