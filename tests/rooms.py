"""Rooms of src/dcp and the order in which they may import each other."""

from __future__ import annotations

from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"

# Each room may import the rooms before it. Those below are not part of the order.
ORDER = [
    *["printable", "errors", "value_grammar", "_codec", "json_reader", "wire", "columns", "position"],
    *["foreign_checkpoints", "checkpoint", "cluster_map", "session", "client", "sync", "polars", "metrics"],
]
EVERYTHING = frozenset([*ORDER, "embedded", "spark", "bench", "cli", "public", "__init__"])
MAY_IMPORT: dict[str, frozenset[str]] = {room: frozenset(ORDER[: i + 1]) for i, room in enumerate(ORDER)} | {
    # The embedded cluster shares the protocol with the client, and nothing else.
    "embedded": frozenset(ORDER[: ORDER.index("position") + 1]) | {"cluster_map", "embedded"},
    "spark": EVERYTHING,
    "bench": EVERYTHING,
    "cli": EVERYTHING,
    "pytest_plugin": EVERYTHING,
    "public": EVERYTHING,
    "__init__": EVERYTHING,
    "__main__": EVERYTHING,
}
