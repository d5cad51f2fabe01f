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
from tests.cli.running import SERVER_TIMEOUT_SECONDS, ServerProcessHandle
from tests.server.mcp.talking import Mode, call

AGAIN = 1.0
OPENED, UP_TO_NOW = "kgserve://probe/opened", "kgserve://probe/now"


class ReceivedUpdates:
    """URIs of updates that a client receives, without those of the marker node."""

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
        return await asyncio.wait_for(self.uris.get(), SERVER_TIMEOUT_SECONDS)

    async def all(self) -> set[str]:
        """Return the updates for all earlier writes, at least one; related changes produce one update."""
        found = {await self.next()}
        await self._told_again()
        while not self.uris.empty():
            found.add(self.uris.get_nowait())
        return found

    async def up_to_now(self) -> None:
        """Wait until all updates for earlier writes have arrived, by changing a marker node."""
        await self._told_again()
        await self._told_again()

    async def forget_earlier(self) -> None:
        """Drop the updates for earlier writes, which may arrive after the subscription."""
        await self.up_to_now()
        while not self.uris.empty():
            self.uris.get_nowait()

    async def _told_again(self) -> None:
        self._seen[UP_TO_NOW].clear()
        await touch(self._client, "now")
        await asyncio.wait_for(self._seen[UP_TO_NOW].wait(), SERVER_TIMEOUT_SECONDS)

    async def opened(self) -> None:
        """Wait until updates arrive; clients of session-based revisions open their stream late."""
        async with asyncio.timeout(SERVER_TIMEOUT_SECONDS):
            while not self._seen[OPENED].is_set():
                await touch(self._client, "opened")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._seen[OPENED].wait(), AGAIN)


async def touch(client: Client, name: str) -> None:
    """Change the marker node."""
    await inject(client, "probe", [node(name, str(uuid.uuid4()))])


async def subscribe(client: Client, uri: str) -> None:
    """Subscribe as session-based clients do; the SDK's method warns that the newest revision removed it."""
    await client.session.send_request(SubscribeRequest(params=SubscribeRequestParams(uri=uri)), EmptyResult)


async def unsubscribe(client: Client, uri: str) -> None:
    """Unsubscribe."""
    await client.session.send_request(UnsubscribeRequest(params=UnsubscribeRequestParams(uri=uri)), EmptyResult)


@contextlib.asynccontextmanager
async def subscribed(
    server: ServerProcessHandle, mode: Mode, *uris: str
) -> AsyncGenerator[tuple[Client, ReceivedUpdates]]:
    """Client that subscribes to resources, in the way of its protocol revision."""

    async def listen(message: object) -> None:
        # Stream notifications arrive here as well, where they would be counted twice.
        if mode == "legacy" and isinstance(message, ResourceUpdatedNotification):
            heard.take(message.params.uri)

    async with Client(f"{server.url}/mcp", mode=mode, message_handler=listen) as client:
        assert client.server_capabilities.resources is not None
        assert client.server_capabilities.resources.subscribe
        heard = ReceivedUpdates(client)
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


def test_entity_update_on_changes_of_node_or_edges(server: ServerProcessHandle, mode: Mode, store: str) -> None:
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


def test_memory_digest_update_on_writes(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    call(server.url, "auto", "retain", index=store, content="Herons fish.")
    here = f"kgserve://{store}/memory"

    async def look() -> None:
        async with subscribed(server, mode, here) as (client, heard):
            assert not (await client.call_tool("retain", {"index": store, "content": "Owls hunt."})).is_error
            assert await heard.all() == {here}

    run(look)


def test_bulk_write_updates_only_touched_entities(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    """Too many rows for one event each."""
    call(server.url, "auto", "inject_knowledge_graph", index=store, nodes=[node("a"), node("n7")])
    here, there = f"kgserve://{store}/a", f"kgserve://{store}/n7"

    async def look() -> None:
        async with subscribed(server, mode, here, there) as (_, heard), httpx.AsyncClient(base_url=server.url) as http:
            await heard.forget_earlier()
            batch = {"nodes": [node(f"n{number}", "x") for number in range(1_100)]}
            (await http.post(f"/api/memory/{store}/inject", json=batch)).raise_for_status()
            assert await heard.all() == {there}

    run(look)


def test_store_updates_are_debounced(server: ServerProcessHandle, mode: Mode, store: str) -> None:
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
            await client.call_tool("inject_knowledge_graph", {"index": store, "nodes": [node("a")]})  # No change.
            await heard.up_to_now()
            assert heard.uris.empty()

    run(look)


def test_store_update_on_drop_and_recreation(server: ServerProcessHandle, mode: Mode, store: str) -> None:
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


def test_settings_change_updates_the_store_only(server: ServerProcessHandle, mode: Mode, store: str) -> None:
    call(server.url, "auto", "inject_knowledge_graph", index=store, nodes=[node("a")])
    uri = f"kgserve://{store}"

    async def look() -> None:
        async with subscribed(server, mode, uri, f"{uri}/a") as (_, heard):
            url = f"{server.url}/api/memory/{store}"
            (await asyncio.to_thread(httpx.patch, url, json={"name": "The shop"})).raise_for_status()
            assert await heard.all() == {uri}

    run(look)


def test_unsubscribed_clients_get_no_updates(server: ServerProcessHandle, store: str) -> None:
    call(server.url, "auto", "inject_knowledge_graph", index=store, nodes=[node("a")])
    gone, kept = f"kgserve://{store}/a", f"kgserve://{store}?after="

    async def look() -> None:
        async with subscribed(server, "legacy", gone, f"kgserve://{store}") as (client, heard):
            await unsubscribe(client, gone)
            await unsubscribe(client, kept)  # Never subscribed: no effect.
            await heard.forget_earlier()
            await inject(client, store, [node("a", "new")])
            assert await heard.all() == {f"kgserve://{store}"}

    run(look)


def test_invalid_subscriptions_are_refused(server: ServerProcessHandle, store: str) -> None:
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
