from __future__ import annotations

import asyncio
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp.types import Completion, PromptReference, ResourceTemplateReference

from kgserve.server.mcp.resource_handlers import ENTITY_TEMPLATE, STORE_TEMPLATE
from tests.cli.running import ServerProcessHandle
from tests.server.mcp.talking import Mode, call, talk

PROMPT = PromptReference(name="tidy_up")
ENTITY = ResourceTemplateReference(uri=ENTITY_TEMPLATE)
STORE = ResourceTemplateReference(uri=STORE_TEMPLATE)
Reference = PromptReference | ResourceTemplateReference


async def completed(client: Client, ref: Reference, name: str, start: str, store: str | None = None) -> Completion:
    chosen = {"store": store} if store else None
    return (await client.complete(ref, {"name": name, "value": start}, chosen)).completion


def fill(server: ServerProcessHandle, store: str) -> None:
    nodes: list[dict[str, Any]] = [
        {"id": "req-login", "type": "requirement", "tags": ["area:web", "done"]},
        {"id": "req-logout", "type": "requirement", "tags": ["area:web"]},
        {"id": "req", "type": "resource"},
        {"id": "réq ü", "type": "decision", "tags": ["area:phone"]},
    ]
    call(server.url, "auto", "inject_knowledge_graph", index=store, nodes=nodes)


def test_completion_by_prefix(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    fill(server, store)

    async def look(client: Client) -> None:
        async def values(ref: Reference, name: str, start: str, at: str | None = store) -> list[str]:
            return (await completed(client, ref, name, start, at)).values

        assert store in await values(STORE, "store", store[:4], None)
        assert await values(ENTITY, "store", f"{store}-not") == []
        assert await values(ENTITY, "id", "req") == ["req", "req-login", "req-logout"]
        assert await values(ENTITY, "id", "req-logi") == ["req-login"]
        assert await values(ENTITY, "id", "r\u00e9") == ["r\u00e9q \u00fc"]
        assert await values(ENTITY, "id", "login") == []
        assert await values(PROMPT, "type", "re") == ["requirement", "resource"]
        assert await values(PROMPT, "tag", "area:") == ["area:web", "area:phone"]
        assert await values(PROMPT, "tag", "") == ["area:web", "area:phone", "done"]
        for nowhere in (None, "there-is-none", "no name"):
            assert await values(ENTITY, "id", "req", nowhere) == []
        assert await values(ENTITY, "id", "x" * 10_000) == []
        begun = PromptReference(name="begin_session")
        assert await values(begun, "topic", "do") == ["done"]

    talk(server.url, mode, look)


def test_completion_reports_further_values(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    nodes = [{"id": f"n{number:03}", "type": "t"} for number in range(150)]
    call(server.url, "auto", "inject_knowledge_graph", index=store, nodes=nodes)

    async def look(client: Client) -> None:
        many, few = (
            await completed(client, ENTITY, "id", "n", store),
            await completed(client, ENTITY, "id", "n14", store),
        )
        assert many.values == [f"n{number:03}" for number in range(100)]
        assert (many.has_more, many.total) == (True, None)
        assert (few.has_more, few.total) == (False, 10)

    talk(server.url, mode, look)


def test_completion_of_unknown_arguments_is_refused(server: ServerProcessHandle, mode: Mode) -> None:
    async def look(client: Client) -> None:
        assert client.server_capabilities.completions is not None
        unknown: list[tuple[Reference, str, str]] = [
            (PromptReference(name="other"), "store", "record_and_recall"),
            (ResourceTemplateReference(uri="kgserve://{other}"), "store", ENTITY_TEMPLATE),
            (ENTITY, "type", "store, id"),
        ]
        for ref, name, known in unknown:
            with pytest.raises(MCPError, match=known):
                await completed(client, ref, name, "")

    talk(server.url, mode, look)


def test_completion_uses_the_default_store_of_the_connection(server: ServerProcessHandle, store: str) -> None:
    fill(server, store)

    async def look() -> list[str]:
        async with Client(f"{server.url}/mcp?store={store}") as client:
            return (await completed(client, ENTITY, "id", "req-logi")).values

    assert asyncio.run(look()) == ["req-login"]
