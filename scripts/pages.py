"""What mkdocs calls when it builds the documentation: pages take sections of README.md and whole files into themselves.

``<!-- readme: search -->`` in a page stands for the section of README.md whose heading has that anchor, and
``<!-- file: CHANGELOG.md -->`` for a file, so that nothing is written twice. Links are turned to where their targets
are on the site, and to the repository for what is not there.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent
DOCS = TOP / "docs"
README_MARK = re.compile(r"<!-- readme: ([\w-]+) -->")
FILE_MARK = re.compile(r"<!-- file: (\S+) -->")
MARK = re.compile(r"^<!-- [^>]* -->\n", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#]*)(#[^)]*)?\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """What mkdocs calls: a page with everything in it that it stands for."""
    return expanded(markdown)


def expanded(markdown: str) -> str:
    """``markdown`` with its sections and files, without marks for tests. KeyError for a section that is not there."""
    places = anchor_pages()
    found = sections()
    text = README_MARK.sub(lambda mark: turned(found[mark[1]], places).strip(), markdown)
    text = FILE_MARK.sub(lambda mark: turned((TOP / mark[1]).read_text(), places).strip(), text)
    return MARK.sub("", text)


def sections() -> dict[str, str]:
    """The sections of README.md by the anchors of their headings, without the headings."""
    parts = re.split(r"^## (.+)\n", (TOP / "README.md").read_text(), flags=re.MULTILINE)[1:]
    return {anchor(heading): body for heading, body in zip(parts[::2], parts[1::2], strict=True)}


def anchor(heading: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings."""
    return {anchor(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


def anchor_pages() -> dict[str, str]:
    """The page of each section of README.md, and of each file, that some page takes into itself."""
    pages: dict[str, str] = {}
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text()
        pages |= dict.fromkeys(README_MARK.findall(text) + FILE_MARK.findall(text), page.relative_to(DOCS).as_posix())
    return pages


def turned(text: str, places: dict[str, str]) -> str:
    """``text`` of the repository's top with links that lead on from a page at the site's top."""
    own = anchors(text)

    def link(found: re.Match[str]) -> str:
        path, fragment = found[1], found[2] or ""
        if "://" in path:
            return found[0]
        if path.startswith("docs/"):
            return f"]({path.removeprefix('docs/')}{fragment})"
        if path:
            return f"]({places.get(path) or f'{repository()}/blob/main/{path}'}{fragment})"
        name = fragment.removeprefix("#")
        return f"]({fragment if name in own else _section(name, places)})"

    return LINK.sub(link, text)


def _section(name: str, places: dict[str, str]) -> str:
    """Where a section of README.md is: in a page that takes it in, else what has its name, else the repository."""
    if name in places:
        return f"{places[name]}#{name}"
    if (DOCS / f"{name}.md").exists():
        return f"{name}.md"
    found = next((page for page in sorted(DOCS.rglob("*.md")) if name in anchors(page.read_text())), None)
    return f"{repository() if found is None else found.relative_to(DOCS).as_posix()}#{name}"


def repository() -> str:
    """The address of the source code."""
    return str(tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["urls"]["Source"])
