"""Hooks of the docs site: its address, the pages that stand elsewhere in the tree, mermaid, and llms.txt."""

from __future__ import annotations

import hashlib
import io
import re
import sys
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from mkdocs.structure.files import File
from mkdocs.structure.nav import Section
from mkdocs.structure.pages import Page

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure import StructureItem
    from mkdocs.structure.files import Files
    from mkdocs.structure.nav import Navigation

ROOT = Path(__file__).parents[2]

# Pages that stand where a repository has them.
ELSEWHERE = {
    "changelog.md": "CHANGELOG.md",
    "contributing.md": ".github/CONTRIBUTING.md",
    "security.md": ".github/SECURITY.md",
}

# Draws the diagrams. The theme would load it from another site in each reader's browser.
MERMAID = "https://registry.npmjs.org/mermaid/-/mermaid-11.17.2.tgz"
MERMAID_SHA512 = (
    "57a2b70bc101744b0f1595d228c25eea9a50384371b87011afd1af1d7e21878e"
    "e501b84c443f6a7f8a042bb2e869143150b31af34feab798073bbdda0a578106"
)


def on_config(config: MkDocsConfig) -> None:
    """Take the addresses from pyproject.toml."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]
    config.site_url, config.repo_url = urls["Documentation"], urls["Source"]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages that stand elsewhere, and mermaid."""
    for name, source in ELSEWHERE.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    files.append(File.generated(config, "site/mermaid.min.js", content=mermaid()))


def mermaid() -> bytes:
    """Return mermaid from the package registry, or from a former build."""
    kept = ROOT / "build" / "docs" / f"mermaid-{MERMAID_SHA512[:16]}.js"
    if not kept.exists():
        with urllib.request.urlopen(MERMAID, timeout=60) as answer:
            package = answer.read()
        if hashlib.sha512(package).hexdigest() != MERMAID_SHA512:
            raise ValueError(f"{MERMAID}: expected SHA-512 {MERMAID_SHA512}")
        with tarfile.open(fileobj=io.BytesIO(package)) as archive:
            script = archive.extractfile("package/dist/mermaid.min.js")
            assert script is not None
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(script.read())
    return kept.read_bytes()


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    for name, source in ELSEWHERE.items():
        markdown = re.sub(rf"\]\((?:\.\./)+{re.escape(source)}(#[\w-]+)?\)", rf"]({name}\1)", markdown)
    if page.file.src_uri in ELSEWHERE:
        markdown = re.sub(r"\]\((?:\.\./)?docs/", "](", markdown)
    return markdown


# llms.txt: https://llmstxt.org


_toc: list[str] = []
_pages: dict[str, str] = {}


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> None:
    """Keep the navigation for llms.txt."""
    _toc[:] = []
    _pages.clear()
    for item in nav.items:
        _toc.append(f"\n## {item.title}\n")
        _toc.extend(page.file.src_uri for page in pages_of(item))


def pages_of(item: StructureItem) -> Iterator[Page]:
    """Yield the pages of an entry of the navigation."""
    if isinstance(item, Page):
        yield item
    elif isinstance(item, Section):
        for child in item.children:
            yield from pages_of(child)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> None:
    """Keep the title and the first sentence of a page for llms.txt."""
    first = re.search(r"<p>(.*?)</p>", html, re.DOTALL)
    text = re.sub(r"<[^>]+>", "", first.group(1)).replace("\n", " ") if first else ""
    _pages[page.file.src_uri] = f"- [{page.title}]({page.canonical_url}): {text.partition('. ')[0].rstrip('.:')}."


def on_post_build(config: MkDocsConfig) -> None:
    """Write llms.txt: the pages by section, for programs that read documentation."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", *(_pages.get(one, one) for one in _toc)]
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines) + "\n", "utf-8")
