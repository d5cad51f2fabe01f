from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import httpx
import pytest
from mcp import Client, MCPError
from mcp.client.subscriptions import ResourceUpdated
from mcp.types import (
    EmptyResult,
    ResourceUpdatedNotification,
    SubscribeRequest,
    SubscribeRequestParams,
    UnsubscribeRequest,
    UnsubscribeRequestParams,
)

from kgserve.server.mcp.notifications import MAX_SUBSCRIPTIONS, NOTIFICATION_DEBOUNCE_SECONDS
from tests.cli.running import PATIENCE, Running
from tests.server.mcp.talking import Mode, call

AGAIN = 1.0
OPENED, UP_TO_NOW = "kgserve://probe/opened", "kgserve://probe/now"


class Heard:
    """The URIs that a client is told of, one after the other, but for those that say how far it has been told."""

    def __init__(self, client: Client) -> None:
        self.uris: asyncio.Queue[str] = asyncio.Queue()
        self._client = client
        self._seen = {OPENED: asyncio.Event(), UP_TO_NOW: asyncio.Event()}

    def take(self, uri: str) -> None:
        if uri in self._seen:
            self._seen[uri].set()
        else:
            self.uris.put_nowait(uri)

    async def next(self) -> str:
        return await asyncio.wait_for(self.uris.get(), PATIENCE)

    async def all(self) -> set[str]:
        """What has been told of what was written before; at least one. What belongs together is told together."""
        found = {await self.next()}
        await self._told_again()
        while not self.uris.empty():
            found.add(self.uris.get_nowait())
        return found

    async def up_to_now(self) -> None:
        """Wait until all is told of what was written before: with the first that is written now, at the latest."""
        await self._told_again()
        await self._told_again()

    async def _told_again(self) -> None:
        self._seen[UP_TO_NOW].clear()
        await touch(self._client, "now")
        await asyncio.wait_for(self._seen[UP_TO_NOW].wait(), PATIENCE)

    async def opened(self) -> None:
        """Wait until it is told at all: in the handshake era a client opens its stream a moment late."""
        async with asyncio.timeout(PATIENCE):
            while not self._seen[OPENED].is_set():
                await touch(self._client, "opened")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._seen[OPENED].wait(), AGAIN)


async def touch(client: Client, name: str) -> None:
    """Change a node that says how far a client has been told."""
    await inject(client, "probe", [node(name, str(uuid.uuid4()))])


async def subscribe(client: Client, uri: str) -> None:
    """As clients of the handshake era; the SDK's own method warns that the newest has it no more."""
    await client.session.send_request(SubscribeRequest(params=SubscribeRequestParams(uri=uri)), EmptyResult)


async def unsubscribe(client: Client, uri: str) -> None:
    """The opposite."""
    await client.session.send_request(UnsubscribeRequest(params=UnsubscribeRequestParams(uri=uri)), EmptyResult)


@contextlib.asynccontextmanager
async def subscribed(server: Running, mode: Mode, *uris: str) -> AsyncGenerator[tuple[Client, Heard]]:
    """A client that is told of some resources in the way of its era."""

    async def listen(message: object) -> None:
        # Each notification of a subscription's stream comes here, too, where it would be counted a second time.
        if mode == "legacy" and isinstance(message, ResourceUpdatedNotification):
            heard.take(message.params.uri)

    async with Client(f"{server.url}/mcp", mode=mode, message_handler=listen) as client:
        assert client.server_capabilities.resources is not None
        assert client.server_capabilities.resources.subscribe
        heard = Heard(client)
        await touch(client, "now")
        if mode == "legacy":
            for uri in (*uris, UP_TO_NOW, OPENED):
                await subscribe(client, uri)
            await heard.opened()
            yield client, heard
            return
        async with client.listen(resource_subscriptions=[*uris, UP_TO_NOW]) as events:
            assert sorted(events.honored.resource_subscriptions or ()) == sorted([*uris, UP_TO_NOW])

            async def follow() -> None:
                async for event in events:
                    assert isinstance(event, ResourceUpdated)
                    heard.take(event.uri)

            task = asyncio.create_task(follow())
            yield client, heard
            task.cancel()


def run(conversation: Callable[[], Awaitable[None]]) -> None:
    async def done() -> None:
        await conversation()

    asyncio.run(done())


async def inject(client: Client, store: str, nodes: list[Any], edges: list[Any] | None = None) -> None:
    given = {"index": store, "nodes": nodes, "edges": edges or []}
    assert not (await client.call_tool("inject_knowledge_graph", given)).is_error


def node(name: str, content: str = "") -> dict[str, str]:
    return {"id": name, "type": "t", "content": content}


def test_an_entity_is_told_of_when_it_or_its_edges_change(server: Running, mode: Mode, store: str) -> None:
    call(server.url, "auto", "inject_knowledge_graph", index=store, nodes=[node(each) for each in "abcd"])
    here, there = f"kgserve://{store}/a", f"kgserve://{store}/d"
    edge = {"from": "a", "to": "b", "relation_type": "KNOWS"}

    async def look() -> None:
        async with subscribed(server, mode, here, there) as (client, heard):
            await inject(client, store, [node("b", "another")])
            await inject(client, store, [node("a", "changed")])
            assert await heard.all() == {here}
            await inject(client, store, [], [edge, edge | {"from": "b", "to": "c"}])
            assert await heard.all() == {here}
            await client.call_tool("delete_graph_relation", {"index": store} | edge)
            assert await heard.all() == {here}
            await inject(client, store, [], [edge | {"from": "c", "to": "d"}])
            assert await heard.all() == {there}
            await client.call_tool("delete_graph_entity", {"index": store, "id": "c"})
            assert await heard.all() == {there}

    run(look)


def test_what_a_store_remembers_is_told_of_with_its_writes(server: Running, mode: Mode, store: str) -> None:
    call(server.url, "auto", "retain", index=store, content="Herons fish.")
    here = f"kgserve://{store}/memory"

    async def look() -> None:
        async with subscribed(server, mode, here) as (client, heard):
            assert not (await client.call_tool("retain", {"index": store, "content": "Owls hunt."})).is_error
            assert await heard.all() == {here}

    run(look)


def test_a_write_of_many_rows_tells_of_those_alone_that_it_wrote(server: Running, mode: Mode, store: str) -> None:
    """Too many for an event each."""
    call(server.url, "auto", "inject_knowledge_graph", index=store, nodes=[node("a"), node("n7")])
    here, there = f"kgserve://{store}/a", f"kgserve://{store}/n7"

    async def look() -> None:
        async with subscribed(server, mode, here, there) as (_, heard), httpx.AsyncClient(base_url=server.url) as http:
            batch = {"nodes": [node(f"n{number}", "x") for number in range(1_100)]}
            (await http.post(f"/api/memory/{store}/inject", json=batch)).raise_for_status()
            assert await heard.all() == {there}

    run(look)


def test_a_store_is_told_of_once_for_many_writes(server: Running, mode: Mode, store: str) -> None:
    call(server.url, "auto", "inject_knowledge_graph", index=store, nodes=[node("a")])
    uri = f"kgserve://{store}"

    async def look() -> None:
        async with subscribed(server, mode, uri) as (client, heard):
            begun = time.monotonic()
            await asyncio.gather(*(inject(client, store, [node(f"n{number}")]) for number in range(40)))
            assert await heard.next() == uri
            await heard.up_to_now()
            assert heard.uris.qsize() <= 1 + (time.monotonic() - begun) / NOTIFICATION_DEBOUNCE_SECONDS
            while not heard.uris.empty():
                heard.uris.get_nowait()
            await client.call_tool("inject_knowledge_graph", {"index": store, "nodes": [node("a")]})  # changes nothing
            await heard.up_to_now()
            assert heard.uris.empty()

    run(look)


def test_dropping_a_store_and_making_it_again_is_told(server: Running, mode: Mode, store: str) -> None:
    call(server.url, "auto", "inject_knowledge_graph", index=store, nodes=[node("a")])
    uris = {f"kgserve://{store}", f"kgserve://{store}/a"}

    async def look() -> None:
        async with subscribed(server, mode, *uris, "kgserve://stores") as (client, heard):
            await client.call_tool("drop_store", {"index": store, "confirm": store})
            assert await heard.all() == uris | {"kgserve://stores"}
            await inject(client, store, [node("a")])
            assert await heard.all() == uris | {"kgserve://stores"}
            await inject(client, store, [node("a", "once more")])
            assert await heard.all() == uris

    run(look)


def test_settings_are_the_stores_and_no_entitys(server: Running, mode: Mode, store: str) -> None:
    call(server.url, "auto", "inject_knowledge_graph", index=store, nodes=[node("a")])
    uri = f"kgserve://{store}"

    async def look() -> None:
        async with subscribed(server, mode, uri, f"{uri}/a") as (_, heard):
            url = f"{server.url}/api/memory/{store}"
            (await asyncio.to_thread(httpx.patch, url, json={"name": "The shop"})).raise_for_status()
            assert await heard.all() == {uri}

    run(look)


def test_who_ends_a_subscription_hears_no_more(server: Running, store: str) -> None:
    call(server.url, "auto", "inject_knowledge_graph", index=store, nodes=[node("a")])
    gone, kept = f"kgserve://{store}/a", f"kgserve://{store}?after="

    async def look() -> None:
        async with subscribed(server, "legacy", gone, f"kgserve://{store}") as (client, heard):
            await unsubscribe(client, gone)
            await unsubscribe(client, kept)  # never subscribed to: nothing to do
            await inject(client, store, [node("a", "new")])
            assert await heard.all() == {f"kgserve://{store}"}

    run(look)


def test_what_cannot_be_subscribed_to(server: Running, store: str) -> None:
    call(server.url, "auto", "inject_knowledge_graph", index=store, nodes=[node("a")])

    async def look() -> None:
        async with Client(f"{server.url}/mcp", mode="legacy") as client:
            for uri in ("kgserve://not-there", "kgserve://not-there/a", "other:///x", "kgserve://../x"):
                with pytest.raises(MCPError) as refused:
                    await subscribe(client, uri)
                assert refused.value.error.code == -32002
            for number in range(MAX_SUBSCRIPTIONS):
                await subscribe(client, f"kgserve://{store}/{number}")
            await subscribe(client, f"kgserve://{store}/0")
            with pytest.raises(MCPError, match="end another first"):
                await subscribe(client, f"kgserve://{store}/one-more")
            await unsubscribe(client, f"kgserve://{store}/0")
            await subscribe(client, f"kgserve://{store}/one-more")
        async with Client(f"{server.url}/mcp") as client:
            with pytest.raises(MCPError, match=f"{MAX_SUBSCRIPTIONS} resources"):
                async with client.listen(resource_subscriptions=[f"kgserve://x/{n}" for n in range(101)]):
                    pass
            async with client.listen(resource_subscriptions=["other:///x", "kgserve://not-there"]) as events:
                assert events.honored.resource_subscriptions == ["kgserve://not-there"]

    run(look)
