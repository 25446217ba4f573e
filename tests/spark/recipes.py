"""The examples of docs/spark-sinks.md as functions, for tests and for the drivers that they start."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

GUIDE = Path(__file__).parents[2] / "docs" / "spark-sinks.md"


def recipes(url: str, lake: Path) -> SimpleNamespace:
    """Return the functions that the guide defines, for another cluster and another directory."""
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    for block in blocks:
        # A pipeline runs in a process of its own.
        if "pipelines" not in block:
            exec(compile(block, GUIDE, "exec"), names)
    # The functions use these names as globals, so replacing them afterwards is enough.
    names |= {"url": url, "lake": str(lake)}
    return SimpleNamespace(**names)
