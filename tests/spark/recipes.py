"""The recipes of docs/spark-sinks.md as code: for the tests, and for the drivers that these start."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

GUIDE = Path(__file__).parents[2] / "docs" / "spark-sinks.md"


def recipes(url: str, lake: Path) -> SimpleNamespace:
    """What the code of the guide defines, with another cluster and another directory in it."""
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, GUIDE, "exec"), names)
    # The functions look them up when they are called.
    names |= {"url": url, "lake": str(lake)}
    return SimpleNamespace(**names)
