"""The project's pages, and the examples in them."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [
    README,
    ROOT / "CHANGELOG.md",
    ROOT / "tests/fuzz/README.md",
    *(page for folder in (".github", "docs", "docs/reference") for page in sorted((ROOT / folder).glob("*.md"))),
]


class Example(NamedTuple):
    """A program on a page, and the output that the page shows."""

    code: str
    prints: str

    @property
    def needs_spark(self) -> bool:
        return "pyspark" in self.code

    @property
    def is_test(self) -> bool:
        """True for a module of tests, which pytest runs."""
        return "\ndef test_" in self.code


# Pages for a first look, whose examples are complete.
FIRST = [README, *sorted((ROOT / "docs").glob("start-*.md"))]


def examples(page: Path) -> dict[str, Example]:
    """Return the examples of a page by their headings."""
    found = {}
    for section in re.split(r"^##+ ", page.read_text("utf-8"), flags=re.MULTILINE):
        shown = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", section, re.DOTALL)
        if shown:
            found[section.partition("\n")[0]] = Example(*shown.groups())
    return found


def output(code: str) -> str:
    """Run a program in this process. Return what it prints."""
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
    return printed.getvalue()
