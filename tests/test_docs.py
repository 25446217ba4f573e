"""Links of the pages lead somewhere, and the files that they name exist. Nothing is fetched."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drawn import DRAWN, pages
from tests.pages import PAGES, README, ROOT

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
# Names of files of the project, without a link.
NAMED = re.compile(r"`((?:\.ci|\.github|bench|docs|src|tests)/[\w./*-]*)`")


def prose(page: Path) -> str:
    """Return a page without its code blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of the headings."""
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in HEADING.findall(prose(page))}


def dead(page: Path, root: Path = ROOT) -> Iterator[str]:
    """Yield links and file names of a page whose target does not exist."""
    text = prose(page)
    for link in LINK.findall(re.sub(r"`[^`]*`", "", text)):
        if re.match(r"(https|mailto):", link):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists():
            yield f"{page.name}: {link}: there is no such file"
        elif anchor and anchor not in anchors(target):
            yield f"{page.name}: {link}: there is no such heading"
    for name in NAMED.findall(text):
        if not any(root.glob(name.rstrip("/"))):
            yield f"{page.name}: `{name}`: there is no such file"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert list(dead(page)) == []


def test_links_of_the_readme_on_the_package_index_lead_to_pages_of_the_site() -> None:
    command = [sys.executable, "setup.py", "--quiet", "--long-description"]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=True).stdout
    (site,) = re.findall(r'^Documentation = "(.+/)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    links = LINK.findall(text)
    assert len(links) == len(LINK.findall(README.read_text("utf-8"))) > 20
    elsewhere = {"changelog", "contributing", "security"}
    for link in links:
        page, _, anchor = link.removeprefix(site).partition("#")
        source = ROOT / "docs" / (page if "." in page else f"{page.rstrip('/')}.md")
        assert link.startswith(site), link
        assert page.rstrip("/") in elsewhere or source.exists(), link
        assert not anchor or anchor in anchors(source), link


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2].partition("\ntheme:\n")[0]
    pages = {str(page.relative_to(ROOT / "docs")) for page in PAGES if (ROOT / "docs") in page.parents}
    assert pages <= set(re.findall(r"[\w/-]+\.md$", navigation, re.MULTILINE))


@pytest.mark.parametrize(("page", "text"), list(pages()), ids=[page.name for page in DRAWN])
def test_a_page_shows_the_tables_as_they_are(page: Path, text: str) -> None:
    assert page.read_text("utf-8") == text, "run: python -m tests.drawn"


def test_the_errata_are_as_many_as_there_are() -> None:
    drawings = json.loads((ROOT / "tests/vectors/seeds.json").read_text("utf-8"))
    wrong = [drawing for drawing in drawings if not drawing["consistent"]]
    assert f"{len(wrong)} of {len(drawings)} drawings" in (ROOT / "docs/protocol.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](there.md) [b](there.md#its-heading-2) [c](#here) `src/dcp/` `src/*`\n# Here", []),
        ("[a](https://nobody.invalid/page)", []),
        ("```\n[a](gone.md)\n```\n`[b](gone.md)`", []),
        ("[a](gone.md)", ["page.md: gone.md: there is no such file"]),
        ("![a](gone.svg)", ["page.md: gone.svg: there is no such file"]),
        ("[a](there.md#gone)", ["page.md: there.md#gone: there is no such heading"]),
        ("[a](http://nobody.invalid)", ["page.md: http://nobody.invalid: there is no such file"]),
        ("see `src/gone.py`", ["page.md: `src/gone.py`: there is no such file"]),
    ],
)
def test_a_dead_link_is_found(tmp_path: Path, text: str, expected: list[str]) -> None:
    (tmp_path / "src" / "dcp").mkdir(parents=True)
    (tmp_path / "there.md").write_text("# Its heading, 2", "utf-8")
    (tmp_path / "page.md").write_text(text, "utf-8")
    assert list(dead(tmp_path / "page.md", tmp_path)) == expected
