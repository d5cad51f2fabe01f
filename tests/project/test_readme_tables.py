"""README.md's tables say what the program does."""

from __future__ import annotations

import re

import httpx
import pytest

from kgserve.client import Client
from kgserve.client.blocking import Store
from scripts.pages import anchors
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


@pytest.mark.parametrize("kind", [Client, Store])
def test_every_method_of_the_client_is_documented(kind: type[Client | Store]) -> None:
    methods = {name for name, value in vars(kind).items() if callable(value) and not name.startswith("_")}
    rows = re.findall(r"^\| (`\w+\(.*?\)`.*?) \|", README, re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`(\w+)\(", row)}
    assert methods - {"close"} <= documented


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README):
        if "://" not in target:
            path, _, fragment = target.partition("#")
            text = (TOP / (path or "README.md")).read_text()
            assert not fragment or fragment in anchors(text), target
