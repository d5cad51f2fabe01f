"""The tables of docs/ cover what the program does, and links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import msgspec
import pytest

from kgserve import errors
from kgserve.cli.options import setting_option_names
from kgserve.client import Client, Store
from kgserve.platform.settings import Settings
from kgserve.server.http.error_responses import ERROR_RESPONSE_KINDS
from kgserve.server.mcp.toolsets import TOOLSETS
from scripts.pages import DOCS, PAPERS, TOP, anchors
from scripts.reference import documented_operations
from tests.cli.running import ServerProcessHandle
from tests.project.pages import pages

REST = "\n".join((DOCS / name).read_text() for name in ("rest.md", "memory-reference.md"))
PROSE = [*sorted(DOCS.glob("*.md")), *PAPERS]
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
COUNTS = {
    "tools": {len(names) for names in TOOLSETS.values()},
    "settings": {len(Settings.__struct_fields__)},
    "operations": {len(list(documented_operations()))},
}
DEFAULTS = {
    option: getattr(Settings(), name) for name in Settings.__struct_fields__ for option in setting_option_names(name)
}
LINKED = [*pages(), *PAPERS, TOP / "DESIGN.md", TOP / "CHANGELOG.md", *sorted((TOP / "kgserve").rglob("DESIGN.md"))]


def test_every_route_is_documented(server: ServerProcessHandle) -> None:
    described = {
        (method.upper(), path)
        for path, operations in httpx.get(f"{server.url}/openapi.json").json()["paths"].items()
        for method in operations
    }
    assert set(re.findall(r"^\| (GET|PUT|PATCH|POST|DELETE) \| `([^`]+)` \|", REST, re.MULTILINE)) == described


def test_every_error_code_is_documented_with_its_status_and_class(server: ServerProcessHandle) -> None:
    found = re.findall(r"^\| `(\w+)` \| (\d{3}) \| `?(\w*)`? *\|", (DOCS / "errors.md").read_text(), re.MULTILINE)
    classes = {kind.code: kind.__name__ for kind in reversed(errors_of_kgserve())}
    expected = {(code, str(kind.status), classes.get(code, "")) for code, kind in ERROR_RESPONSE_KINDS.items()}
    assert set(found) == expected
    assert set(classes) <= set(ERROR_RESPONSE_KINDS)
    described = {
        status
        for operations in httpx.get(f"{server.url}/openapi.json").json()["paths"].values()
        for operation in operations.values()
        for status in operation["responses"]
        if status >= "400"
    }
    assert described <= {status for _, status, _ in found}


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.name)
def test_numbers_in_sentences_are_those_of_the_program(page: Path) -> None:
    text = page.read_text()
    for number, things in re.findall(rf"\b(\d+|{'|'.join(NUMBERS)}) (?:MCP )?({'|'.join(COUNTS)})\b", text):
        assert (int(number) if number.isdigit() else NUMBERS.index(number)) in COUNTS[things], f"{number} {things}"
    for option, number, gib in re.findall(r"`(--[a-z-]+)`(?:, | \()(\d[\d,]*(?:\.\d+)?)\b( GiB)?", text):
        if option in DEFAULTS:
            assert float(number.replace(",", "")) * (1024 if gib else 1) == DEFAULTS[option], option


def errors_of_kgserve() -> list[type[errors.KgserveError]]:
    """Return the error classes of `kgserve.errors`, each after the class that it extends."""
    kinds: list[type[errors.KgserveError]] = [errors.KgserveError]
    for kind in kinds:
        kinds += [each for each in kind.__subclasses__() if each.__module__ == errors.__name__]
    return kinds[1:]


@pytest.mark.parametrize("kind", [Client, Store])
def test_every_method_of_the_client_is_documented(kind: type[Client | Store]) -> None:
    methods = {name for name in dir(kind) if callable(getattr(kind, name)) and not name.startswith("_")}
    rows = re.findall(r"^\| .*$", (DOCS / "client.md").read_text(), re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`(\w+)\(", row)}
    assert methods - {"close"} <= documented


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.relative_to(TOP).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in target:
            path, _, fragment = target.partition("#")
            linked = page.parent / path if path else page
            assert linked.exists(), target
            assert not fragment or fragment in anchors(linked.read_text()), target


@pytest.mark.parametrize("page", [*PAPERS, TOP / "DESIGN.md"], ids=lambda page: page.name)
def test_files_named_in_sentences_exist(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    named = re.findall(r"`((?:kgserve|tests|docs|scripts|bench|deploy|schema)/[\w./*-]+)`", text)
    assert [name for name in named if not any(TOP.glob(name))] == []


def test_the_variables_of_an_entity_memory_lead_to_settings_with_these_defaults() -> None:
    table = (DOCS / "settings.md").read_text().partition("## Variables of an entity memory")[2]
    rows = re.findall(r"^\| `\w+` \| [^|]* \| ([^|]*) \| `?([^|`]*)`? \|$", table, re.MULTILINE)
    settings = msgspec.structs.asdict(Settings())
    found = {name: default for cell, default in rows for name in re.findall(r"KGSERVE_(\w+)", cell)}
    defaults = {name: settings[name.lower()] for name in found if not name.startswith("EMBEDDING_KEY")}
    assert len(rows) == 15  # all but the key, which has no default
    for name, default in defaults.items():
        said = found[name]
        assert said.strip() in {str(default), f"{default:g}" if isinstance(default, float) else ""}, name


def test_the_classes_that_the_glossary_names_exist() -> None:
    defined = {
        found
        for module in (TOP / "kgserve").rglob("*.py")
        for found in re.findall(r"^class (\w+)", module.read_text(), re.MULTILINE)
    }
    named = set(re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)*)`", (DOCS / "glossary.md").read_text()))
    assert named
    assert named <= defined
