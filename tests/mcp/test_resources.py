from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from mcp import Client, MCPError
from mcp.types import ResourceListChangedNotification, TextContent, TextResourceContents

from tests.cli.running import Running
from tests.mcp.talking import Mode, call, talk

PATIENCE = 10


async def read(client: Client, uri: str) -> Any:
    [contents] = (await client.read_resource(uri)).contents
    assert isinstance(contents, TextResourceContents)
    assert (contents.uri, contents.mime_type) == (uri, "application/json")
    return msgspec.json.decode(contents.text)


def test_stores_and_nodes_are_resources(server: Running, mode: Mode, store: str) -> None:
    odd = "a/b ü%?#"
    call(server.url, mode, "inject_knowledge_graph", index=store, nodes=[{"id": odd, "type": "t", "content": "x"}])

    async def look(client: Client) -> None:
        templates = (await client.list_resource_templates()).resource_templates
        assert [each.uri_template for each in templates] == ["kgserve://{store}", "kgserve://{store}/{id}"]
        uris = {str(each.uri) for each in (await client.list_resources()).resources}
        assert {"kgserve://stores", f"kgserve://{store}"} <= uris
        assert store in {each["name"] for each in (await read(client, "kgserve://stores"))["stores"]}
        assert (await read(client, f"kgserve://{store}"))["nodes"] == 1
        node = await read(client, f"kgserve://{store}/a%2Fb%20%C3%BC%25%3F%23")
        assert node["node"]["id"] == odd

    talk(server.url, mode, look)


@pytest.mark.parametrize("uri", ["kgserve://not-there", "kgserve://..%2Fx", "kgserve://", "other:///etc/passwd"])
def test_what_is_not_there(server: Running, mode: Mode, uri: str) -> None:
    async def look(client: Client) -> MCPError:
        with pytest.raises(MCPError) as refused:
            await client.read_resource(uri)
        return refused.value

    error = talk(server.url, mode, look).error
    assert error.code == (-32602 if mode == "auto" else -32002)
    assert error.message


def test_a_store_may_be_called_stores(server: Running) -> None:
    call(server.url, "auto", "inject_knowledge_graph", index="stores", nodes=[{"id": "a", "type": "t"}])

    async def look(client: Client) -> None:
        uris = {str(each.uri) for each in (await client.list_resources()).resources}
        assert "kgserve://%73tores" in uris
        assert (await read(client, "kgserve://%73tores"))["name"] == "stores"

    talk(server.url, "auto", look)
    call(server.url, "auto", "drop_store", index="stores", confirm="stores")


def test_many_stores_come_in_pages(server: Running, mode: Mode) -> None:
    names = [f"page-{number:03}" for number in range(101)]
    for name in names:
        # Only folders are looked at: this is what a store that is closed looks like to a list.
        (server.data / f"{name}_memory" / "journal").mkdir(parents=True, exist_ok=True)
        (server.data / f"{name}_memory" / "journal" / "0.log").touch()

    async def look(client: Client) -> list[str]:
        found: list[str] = []
        page = await client.list_resources()
        while True:
            found += [str(each.uri) for each in page.resources]
            if page.next_cursor is None:
                return found
            page = await client.list_resources(cursor=page.next_cursor)

    found = talk(server.url, mode, look)
    for name in names:
        (server.data / f"{name}_memory" / "journal" / "0.log").unlink(missing_ok=True)
    assert len(found) == len(set(found))
    assert {f"kgserve://{name}" for name in names} <= set(found)


def test_a_new_store_is_announced_to_sessions(server: Running, store: str) -> None:
    async def run() -> None:
        changed = asyncio.Event()

        async def listen(message: object) -> None:
            if isinstance(message, ResourceListChangedNotification):
                changed.set()

        async with Client(f"{server.url}/mcp", mode="legacy", message_handler=listen) as client:
            resources = client.server_capabilities.resources
            assert resources is not None
            assert resources.list_changed
            for number in range(20):  # the client opens its stream a moment after the handshake
                await client.call_tool("inject_knowledge_graph", {"index": f"{store}-{number}", "nodes": []})
                try:
                    await asyncio.wait_for(changed.wait(), 0.5)
                except TimeoutError:
                    continue
                return
        raise AssertionError("nothing was announced")

    asyncio.run(run())


def test_a_new_store_is_announced_to_listeners(server: Running, store: str) -> None:
    async def run() -> None:
        async with Client(f"{server.url}/mcp") as client, client.listen(resources_list_changed=True) as events:
            await client.call_tool("inject_knowledge_graph", {"index": store, "nodes": []})
            event = await asyncio.wait_for(anext(aiter(events)), PATIENCE)
            assert type(event).__name__ == "ResourcesListChanged"

    asyncio.run(run())


def test_the_prompt_teaches(server: Running, mode: Mode) -> None:
    async def look(client: Client) -> None:
        assert client.instructions
        for word in ("describe_store", "retire_entity", "based_on_version", "as_of", "valid_at"):
            assert word in client.instructions
        [prompt] = (await client.list_prompts()).prompts
        assert prompt.name == "record_and_recall"
        [said] = (await client.get_prompt("record_and_recall", {"store": "project", "topic": "login"})).messages
        assert isinstance(said.content, TextContent)
        for word in ("project", "login", "get_context", "describe_store", "retire_relation", "put_node", "valid_at"):
            assert word in said.content.text
        with pytest.raises(MCPError):
            await client.get_prompt("other")

    talk(server.url, mode, look)
