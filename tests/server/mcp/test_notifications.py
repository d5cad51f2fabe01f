from __future__ import annotations

import asyncio
from typing import Any

import httpx
from mcp import Client

from tests.cli.running import SERVER_TIMEOUT_SECONDS, ServerProcessHandle


def test_other_settings_are_announced_to_listeners(server: ServerProcessHandle, store: str) -> None:
    api = f"{server.url}/api/memory/{store}"
    httpx.put(api).raise_for_status()

    async def run() -> None:
        async with Client(f"{server.url}/mcp") as client, client.listen(resources_list_changed=True) as events:
            coming = aiter(events)
            async with httpx.AsyncClient() as http:
                (await http.patch(api, json={"history": "all"})).raise_for_status()
                assert await heard_nothing(asyncio.ensure_future(anext(coming)))
                (await http.patch(api, json={"name": "The shop"})).raise_for_status()
            event = await asyncio.wait_for(anext(coming), SERVER_TIMEOUT_SECONDS)
            assert type(event).__name__ == "ResourcesListChanged"

    asyncio.run(run())


async def heard_nothing(news: asyncio.Future[Any]) -> bool:
    done, _ = await asyncio.wait({news}, timeout=0.3)
    news.cancel()
    return not done
