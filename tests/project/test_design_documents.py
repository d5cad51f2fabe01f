"""Every DESIGN.md is short, begins with its purpose, and names files and modules that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from scripts.pages import LINK
from tests.project.reading import TOP

MAX_WORDS = 799
DOCUMENTS = [TOP / "DESIGN.md", *sorted((TOP / "kgserve").rglob("DESIGN.md"))]
CODE_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"[\w.-]+\.(?:py|md)")
PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)*/?")


def name(document: Path) -> str:
    return document.relative_to(TOP).as_posix()


def roots(document: Path) -> list[Path]:
    """The folders that a path in a document may start from."""
    return [document.parent, TOP / "kgserve", TOP]


def code_spans(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", CODE_BLOCK.sub("", text))


def named_paths(document: Path) -> Iterator[str]:
    """The code spans that are file names, or paths that start in a folder of the repository."""
    for span in code_spans(document.read_text()):
        starts_in_folder = any((root / span.partition("/")[0]).is_dir() for root in roots(document))
        if FILE_NAME.fullmatch(span) or (PATH.fullmatch(span) and "/" in span and starts_in_folder):
            yield span


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_design_document_is_short(document: Path) -> None:
    assert len(document.read_text().split()) <= MAX_WORDS


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_design_document_begins_with_a_purpose(document: Path) -> None:
    heading, purpose, _ = document.read_text().split("\n\n", 2)
    assert re.fullmatch(r"# .+", heading)
    assert re.match(r"[A-Z`]", purpose), "the first paragraph is text: no list, table or diagram"
    assert re.search(r"\w+.*\.$", purpose), "the first paragraph ends a sentence"


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_paths_in_design_document_exist(document: Path) -> None:
    missing = [path for path in named_paths(document) if not any((root / path).exists() for root in roots(document))]
    links = [link for link, _ in LINK.findall(document.read_text()) if link and "://" not in link]
    missing += [link for link in links if not (document.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_modules_run_in_design_document_exist(document: Path) -> None:
    modules = [module for span in code_spans(document.read_text()) for module in re.findall(r"python -m (\S+)", span)]
    assert [module for module in modules if find_spec(module) is None] == []


def test_architecture_page_covers_every_folder() -> None:
    page = (TOP / "docs" / "architecture.md").read_text()
    assert "```mermaid" in page
    folders = re.findall(r"^\| [^|]*\| `(\w+)/` \|", page, re.MULTILINE)
    packages = [init.parent.name for init in (TOP / "kgserve").glob("*/__init__.py")]
    assert sorted(folders) == sorted(packages)
