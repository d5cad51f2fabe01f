"""README.md's tables say what the program does."""

from __future__ import annotations

import re

import httpx

from scripts.readme import written
from tests.cli.running import Running
from tests.project.reading import README, TOP


def test_tables_of_commands_settings_and_targets_are_up_to_date() -> None:
    assert written(README) == README, "run: make docs"


def test_every_route_is_documented(server: Running) -> None:
    described = {
        (method.upper(), path)
        for path, operations in httpx.get(f"{server.url}/openapi.json").json()["paths"].items()
        for method in operations
    }
    rows = set(re.findall(r"^\| (GET|PUT|PATCH|POST|DELETE) \| `([^`]+)` \|", README, re.MULTILINE))
    assert rows == described


def test_every_status_is_documented(server: Running) -> None:
    responses = {
        status
        for operations in httpx.get(f"{server.url}/openapi.json").json()["paths"].values()
        for operation in operations.values()
        for status in operation["responses"]
        if status >= "400"
    }
    rows = set(re.findall(r"^\| (\d{3}) \|", README, re.MULTILINE))
    assert responses <= rows


def test_links_lead_somewhere() -> None:
    headings = {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", README, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)]+)\)", README):
        if target.startswith("#"):
            assert target[1:] in headings
        elif "://" not in target:
            assert (TOP / target).exists(), target
