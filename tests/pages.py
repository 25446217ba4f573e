"""The pages that people read, and what stands in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [
    README,
    ROOT / "CHANGELOG.md",
    ROOT / "tests/fuzz/README.md",
    *(page for folder in (".github", "docs") for page in sorted((ROOT / folder).glob("*.md"))),
]


class Example(NamedTuple):
    """A program that a page shows, and what it prints."""

    code: str
    prints: str


def examples(page: Path) -> dict[str, Example]:
    """By the heading that each stands under."""
    found = {}
    for section in re.split(r"^##+ ", page.read_text("utf-8"), flags=re.MULTILINE):
        shown = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", section, re.DOTALL)
        if shown:
            found[section.partition("\n")[0]] = Example(*shown.groups())
    return found
