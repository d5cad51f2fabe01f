"""Hooks of mkdocs, and the links between pages.

``<!-- file: CHANGELOG.md -->`` in a page is replaced by that file. Links between files of the repository are rewritten
for the site: to the page of a file, or to the repository for files without one.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent
DOCS = TOP / "docs"
PAPERS = tuple(TOP / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"))
BACKGROUND_PAGES = frozenset({"changelog.md", "contributing.md", "design.md", "benches.md", "conformance.md"})
BACKGROUND_SEARCH_BOOST = 0.1
FILE_MARK = re.compile(r"<!-- file: (\S+) -->")
MARK = re.compile(r"^<!-- [^>]* -->\n", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Return a page for mkdocs with included files. The search ranks lists of changes and decision records lower."""
    source = page.file.src_uri
    if source.startswith("adr/") or source in BACKGROUND_PAGES:
        page.meta.setdefault("search", {"boost": BACKGROUND_SEARCH_BOOST})
    return expand_page(markdown, (DOCS / source).parent)


def expand_page(markdown: str, folder: Path = DOCS) -> str:
    """Return a page of ``folder`` with included files, and without marks for tests."""
    text = FILE_MARK.sub(
        lambda mark: rewrite_links((TOP / mark[1]).read_text().strip(), (TOP / mark[1]).parent, folder),
        rewrite_links(markdown, folder, folder),
    )
    return MARK.sub("", text)


def rewrite_links(text: str, folder: Path, page_folder: Path) -> str:
    """Return ``text`` of a file in ``folder`` with links rewritten for a page in ``page_folder`` of the site."""
    places = file_pages()

    def link(found: re.Match[str]) -> str:
        path, fragment = found[1], found[2] or ""
        if not path or "://" in path:
            return found[0]
        target = Path(os.path.normpath(folder / path))
        if target.is_relative_to(DOCS):
            return f"]({relative(target, page_folder)}{fragment})"
        name = target.relative_to(TOP).as_posix()
        if name in places:
            return f"]({relative(DOCS / places[name], page_folder)}{fragment})"
        return f"]({repository()}/blob/main/{name}{fragment})"

    return LINK.sub(link, text)


def relative(target: Path, folder: Path) -> str:
    """Return the link to ``target`` from a page in ``folder``."""
    return Path(os.path.relpath(target, folder)).as_posix()


def file_pages() -> dict[str, str]:
    """Return the page that includes each file."""
    return {name: page.name for page in sorted(DOCS.glob("*.md")) for name in FILE_MARK.findall(page.read_text())}


def anchor(heading: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings."""
    return {anchor(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


def repository() -> str:
    """Return the address of the source code."""
    return str(tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["urls"]["Source"])
