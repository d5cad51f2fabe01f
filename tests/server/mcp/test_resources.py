from __future__ import annotations

import asyncio
from typing import Any

import httpx
import msgspec
import pytest
from mcp import Client, MCPError
from mcp.types import ResourceListChangedNotification, TextContent, TextResourceContents

from kgserve.graph.llm_context_text import estimate_llm_token_count
from tests.cli.running import SERVER_TIMEOUT_SECONDS, ServerProcessHandle
from tests.server.mcp.talking import Mode, call, talk


async def read(client: Client, uri: str) -> Any:
    [contents] = (await client.read_resource(uri)).contents
    assert isinstance(contents, TextResourceContents)
    assert (contents.uri, contents.mime_type) == (uri, "application/json")
    return msgspec.json.decode(contents.text)


def test_stores_and_nodes_are_resources(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    odd = "a/b ü%?#"
    call(server.url, mode, "inject_knowledge_graph", index=store, nodes=[{"id": odd, "type": "t", "content": "x"}])

    async def look(client: Client) -> None:
        templates = (await client.list_resource_templates()).resource_templates
        assert [each.uri_template for each in templates] == [
            *("kgserve://{store}", "kgserve://{store}/memory", "kgserve://{store}/{id}", "kgserve://_tools/{tool}")
        ]
        uris = await every_uri(client)
        assert {"kgserve://stores", "kgserve://_tools", f"kgserve://{store}"} <= {*uris}
        assert store in {each["name"] for each in (await read(client, "kgserve://stores"))["stores"]}
        assert (await read(client, f"kgserve://{store}"))["nodes"] == 1
        node = await read(client, f"kgserve://{store}/a%2Fb%20%C3%BC%25%3F%23")
        assert node["node"]["id"] == odd

    talk(server.url, mode, look)


@pytest.mark.parametrize("uri", ["kgserve://not-there", "kgserve://..%2Fx", "kgserve://", "other:///etc/passwd"])
def test_what_is_not_there(server: ServerProcessHandle, mode: Mode, uri: str) -> None:
    async def look(client: Client) -> MCPError:
        with pytest.raises(MCPError) as refused:
            await client.read_resource(uri)
        return refused.value

    error = talk(server.url, mode, look).error
    assert error.code == (-32602 if mode == "auto" else -32002)
    assert error.message


def test_store_named_stores_has_its_own_uri(server: ServerProcessHandle) -> None:
    call(server.url, "auto", "inject_knowledge_graph", index="stores", nodes=[{"id": "a", "type": "t"}])

    async def look(client: Client) -> None:
        assert "kgserve://%73tores" in await every_uri(client)
        assert (await read(client, "kgserve://%73tores"))["name"] == "stores"

    talk(server.url, "auto", look)
    call(server.url, "auto", "drop_store", index="stores", confirm="stores")


async def every_uri(client: Client) -> list[str]:
    """Return the URIs on all pages of the list of resources."""
    page = await client.list_resources()
    found = [str(each.uri) for each in page.resources]
    while page.next_cursor is not None:
        page = await client.list_resources(cursor=page.next_cursor)
        found += [str(each.uri) for each in page.resources]
    return found


def test_list_resources_pagination(server: ServerProcessHandle, mode: Mode) -> None:
    names = [f"page-{number:03}" for number in range(101)]
    for name in names:
        # Only folders are listed: this is what a closed store looks like.
        (server.data / f"{name}_memory" / "journal").mkdir(parents=True, exist_ok=True)
        (server.data / f"{name}_memory" / "journal" / "0.log").touch()

    found = talk(server.url, mode, every_uri)
    for name in names:
        (server.data / f"{name}_memory" / "journal" / "0.log").unlink(missing_ok=True)
    assert len(found) == len(set(found))
    assert {f"kgserve://{name}" for name in names} <= set(found)


def test_a_new_store_is_announced_to_sessions(server: ServerProcessHandle, store: str) -> None:
    async def run() -> None:
        changed = asyncio.Event()

        async def listen(message: object) -> None:
            if isinstance(message, ResourceListChangedNotification):
                changed.set()

        async with Client(f"{server.url}/mcp", mode="legacy", message_handler=listen) as client:
            resources = client.server_capabilities.resources
            assert resources is not None
            assert resources.list_changed
            for number in range(20):  # The client opens its stream shortly after the handshake.
                await client.call_tool("inject_knowledge_graph", {"index": f"{store}-{number}", "nodes": []})
                try:
                    await asyncio.wait_for(changed.wait(), 0.5)
                except TimeoutError:
                    continue
                return
        raise AssertionError("nothing was announced")

    asyncio.run(run())


def test_a_new_store_is_announced_to_listeners(server: ServerProcessHandle, store: str) -> None:
    async def run() -> None:
        async with Client(f"{server.url}/mcp") as client, client.listen(resources_list_changed=True) as events:
            await client.call_tool("inject_knowledge_graph", {"index": store, "nodes": []})
            event = await asyncio.wait_for(anext(aiter(events)), SERVER_TIMEOUT_SECONDS)
            assert type(event).__name__ == "ResourcesListChanged"

    asyncio.run(run())


async def whole(client: Client, uri: str, part: str, at: str) -> str:
    """Return a text that comes in parts, following the URIs in each part."""
    text, following = "", uri
    while following:
        found = await read(client, following)
        assert len(str(found)) < 200_000
        text += found["node"]["content"] if "node" in found else found[part]
        following = next((more["uri"] for more in found["more"] if at in more["uri"]), "")
    return text


def test_large_entity_is_read_in_parts(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    content = "".join(f"line {number} of ünïcode “{number}”\n" for number in range(30_000))[: 1 << 19]
    attributes = {f"key{number}": "value" * 20 for number in range(1_500)}
    node = {"id": "a/b", "type": "t", "content": content, "attributes": attributes}
    url = f"{server.url}/api/memory/{store}"
    httpx.post(f"{url}/inject", json={"nodes": [node], "edges": []}).raise_for_status()
    uri = f"kgserve://{store}/a%2Fb"

    async def look(client: Client) -> None:
        found = await read(client, uri)
        assert found["content_length"] == len(content)
        assert found["node"]["attributes"] == {}
        assert await whole(client, uri, "text", "content_offset") == content
        given = await whole(client, f"{uri}?attributes_offset=0", "text", "attributes_offset")
        assert msgspec.json.decode(given) == attributes

    talk(server.url, mode, look)


def test_many_edges_are_read_in_parts(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    names = [f"n{number}" for number in range(450)]
    nodes = [{"id": name, "type": "t"} for name in ("hub", *names)]
    edges = [{"from": "hub", "to": name, "relation_type": "HAS"} for name in names]
    edges += [{"from": name, "to": "hub", "relation_type": "OF", "attributes": {"note": "x" * 400}} for name in names]
    url = f"{server.url}/api/memory/{store}"
    httpx.post(f"{url}/inject", json={"nodes": nodes, "edges": edges}).raise_for_status()
    uri = f"kgserve://{store}/hub"

    async def look(client: Client) -> None:
        for way, end in (("outgoing", "to"), ("incoming", "from")):
            found, seen = await read(client, uri), list[str]()
            assert found["edges_truncated"]
            while True:
                assert len(msgspec.json.encode(found)) < 50_000
                seen += [edge[end] for edge in found.get(way, found.get("edges"))]
                following = [more["uri"] for more in found["more"] if f"{way}_offset" in more["uri"]]
                if not following:
                    break
                found = await read(client, following[0])
            assert sorted(seen) == sorted(names)
        assert not (await read(client, f"kgserve://{store}/n0"))["more"]

    talk(server.url, mode, look)


@pytest.mark.parametrize(
    "part", ["x", "after=a", "content_offset", "content_offset=-1", "outgoing_offset=9999999", "content_offset=1&x=2"]
)
def test_unknown_resource_part_is_refused(server: ServerProcessHandle, mode: Mode, store: str, part: str) -> None:
    call(server.url, "auto", "inject_knowledge_graph", index=store, nodes=[{"id": "a", "type": "t"}])

    async def look(client: Client) -> None:
        with pytest.raises(MCPError) as refused:
            await client.read_resource(f"kgserve://{store}/a?{part}")
        assert refused.value.error.code == (-32602 if mode == "auto" else -32002)

    talk(server.url, mode, look)


MAX_INSTRUCTIONS_CHARS = 620
"""About 120 tokens: `python -m bench memory --only tokens` counts them."""
TEACHES = {
    "record_and_recall": ("get_context", "describe_store", "retire", "put_node", "valid_at"),
    "begin_session": ("get_context", "describe_store", "traverse_knowledge_graph", "Write nothing yet"),
    "what_is_known": ("recall", "traverse_knowledge_graph", "get_memory", "Write nothing"),
    "end_session": ("recall", "retain", "supersedes", "wait for my answer"),
    "tidy_up": ("describe_store", "list_entities", "merge_entities", "wait until I agree"),
}


def test_prompts_and_instructions_name_the_tools(server: ServerProcessHandle, mode: Mode) -> None:
    async def look(client: Client) -> None:
        assert client.instructions
        for word in ("recall", "retain", "supersedes", "forget", "describe_store", "kgserve://_tools"):
            assert word in client.instructions
        assert len(client.instructions) <= MAX_INSTRUCTIONS_CHARS
        prompts = (await client.list_prompts()).prompts
        assert [prompt.name for prompt in prompts] == list(TEACHES)
        for prompt in prompts:
            given = {argument.name: f"the {argument.name}" for argument in prompt.arguments or ()}
            [said] = (await client.get_prompt(prompt.name, given)).messages
            assert isinstance(said.content, TextContent)
            for word in (*TEACHES[prompt.name], *given.values()):
                assert word in said.content.text
            [said] = (await client.get_prompt(prompt.name)).messages
            assert isinstance(said.content, TextContent)
            assert "None" not in said.content.text
        with pytest.raises(MCPError, match="tidy_up"):
            await client.get_prompt("other")

    talk(server.url, mode, look)


def test_memory_digest_resource(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    def retain(content: str, **more: Any) -> None:
        call(server.url, mode, "retain", index=store, content=content, **more)

    retain("The heron keeps the invoices.", importance=1)
    retain("Answers are short.", memory_type="preference")
    retain("We ship on Mondays.", memory_type="decision")
    for number in range(60):
        retain(f"Fact number {number} of many, " + "which goes on for a while " * 8)
    retain("Was never true.", memory_type="decision", valid_to="2020-01-01T00:00:00Z")
    call(server.url, mode, "inject_knowledge_graph", index=store, nodes=[{"id": "memory", "type": "t"}])

    async def look(client: Client) -> str:
        uri = f"kgserve://{store}/memory"
        assert uri in await every_uri(client)
        [contents] = (await client.read_resource(uri)).contents
        assert isinstance(contents, TextResourceContents)
        assert contents.mime_type == "text/plain"
        assert (await read(client, f"kgserve://{store}/%6Demory"))["node"]["id"] == "memory"
        return contents.text

    text = talk(server.url, mode, look)
    order = ("Pinned:", "heron", "Preferences:", "short", "decisions:", "Mondays", "Also known:")
    places = [text.index(each) for each in order]
    assert places == sorted(places)
    assert "Was never true" not in text
    assert text.count("heron") == 1
    assert 1_000 < estimate_llm_token_count(text) <= 1_500


def test_memory_digest_of_an_empty_store(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    call(server.url, mode, "inject_knowledge_graph", index=store, nodes=[{"id": "a", "type": "t"}])

    async def look(client: Client) -> str:
        [contents] = (await client.read_resource(f"kgserve://{store}/memory")).contents
        assert isinstance(contents, TextResourceContents)
        return contents.text

    assert "remembers nothing yet" in talk(server.url, mode, look)
