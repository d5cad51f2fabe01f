"""Resumption of broken streams in session-based protocol revisions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import httpx
import msgspec
from mcp.server.streamable_http import GET_STREAM_KEY, EventMessage
from mcp.types import JSONRPCNotification, JSONRPCResponse

from kgserve.server.mcp.server import MAX_SESSION_EVENTS, RECONNECT_DELAY_MS, EventReplayStore, SessionEventStore
from tests.cli.running import ServerProcessHandle
from tests.server.mcp.talking import Session

OLDER = "2025-06-18"
ANSWER = JSONRPCResponse(jsonrpc="2.0", id=1, result={})


class Event(msgspec.Struct):
    """Event of a stream."""

    id: str = ""
    retry: str = ""
    data: str = ""


def events(lines: Iterable[str]) -> Iterator[Event]:
    """Yield the events of a stream."""
    event: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        if line and name in Event.__struct_fields__:
            event[name] = value
        elif not line and event:
            yield Event(**event)
            event = {}


def asked(number: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": "list_stores"}}


def begun(bare: httpx.Client) -> Session:
    session = Session(bare)
    session.begin()
    return session


def test_stream_begins_with_an_id_and_a_retry_delay(bare: httpx.Client) -> None:
    session = begun(bare)
    first, second = events(bare.post("/mcp", json=asked(7), headers=session.headers).text.splitlines())
    assert (first.retry, first.data) == (str(RECONNECT_DELAY_MS), "")
    assert first.id
    assert second.id > first.id
    assert msgspec.json.decode(second.data)["id"] == 7
    session.end()


def test_older_clients_get_a_stream_without_priming_event(bare: httpx.Client) -> None:
    params = {"protocolVersion": OLDER, "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    answer = bare.post("/mcp", json=body, headers={"accept": "application/json, text/event-stream"})
    [event] = events(answer.text.splitlines())
    assert msgspec.json.decode(event.data)["result"]["protocolVersion"] == OLDER


def test_broken_answer_stream_is_resumed(server: ServerProcessHandle, bare: httpx.Client) -> None:
    session = begun(bare)
    with httpx.Client(base_url=server.url) as other:
        with other.stream("POST", "/mcp", json=asked(8), headers=session.headers) as stream:
            seen = next(events(stream.iter_lines())).id
        found = gone_on(other, session, seen)
        assert msgspec.json.decode(found.data)["id"] == 8
    session.end()


def gone_on(http: httpx.Client, session: Session, seen: str) -> Event:
    headers = session.headers | {"last-event-id": seen}
    with http.stream("GET", "/mcp", headers=headers) as stream:
        return next(event for event in events(stream.iter_lines()) if event.data)


def test_resumption_replays_own_session_only(server: ServerProcessHandle, bare: httpx.Client, store: str) -> None:
    bare.put(f"/api/memory/{store}").raise_for_status()
    one, other = begun(bare), begun(bare)
    uri = f"kgserve://{store}"
    one.post("resources/subscribe", {"uri": uri})
    with httpx.Client(base_url=server.url) as http, http.stream("GET", "/mcp", headers=one.headers) as stream:
        change(bare, store, "a")
        first = next(event for event in events(stream.iter_lines()) if "updated" in event.data)
    change(bare, store, "b")
    with httpx.Client(base_url=server.url, timeout=30) as http:
        again = gone_on(http, one, first.id)
        assert msgspec.json.decode(again.data)["params"]["uri"] == uri
        assert again.id > first.id
    with httpx.Client(base_url=server.url, timeout=1) as http, contextlib.suppress(httpx.ReadTimeout):
        raise AssertionError(f"another session received {gone_on(http, other, first.id)}")
    one.end()
    other.end()


def change(http: httpx.Client, store: str, node: str) -> None:
    http.post(f"/api/memory/{store}/inject", json={"nodes": [{"id": node, "type": "t"}], "edges": []})


def test_resumption_with_an_unknown_id_ends_immediately(bare: httpx.Client) -> None:
    session = begun(bare)
    for seen in ("x", "1", "99-a", "-1-a", "9" * 40 + "-s"):
        answer = bare.get("/mcp", headers=session.headers | {"last-event-id": seen})
        assert (answer.status_code, answer.text) == (200, "")
    session.end()


async def fill(session: SessionEventStore, count: int, size: int) -> list[str]:
    """Store ``count`` events of a stream, the last of which is the answer; return their ids."""
    news = JSONRPCNotification(jsonrpc="2.0", method="notifications/message", params={"data": "x" * size})
    ids = [await session.store_event("1", news) for _ in range(count - 1)]
    return [*ids, await session.store_event("1", ANSWER)]


async def gone_on_to_the_end(session: SessionEventStore, seen: str) -> list[str | None]:
    """Return the ids of the events that a client receives when it resumes after one."""
    found: list[str | None] = []

    async def take(event: EventMessage) -> None:
        found.append(event.event_id)

    assert await session.replay_events_after(seen, take) is None
    return found


def test_stored_events_are_bounded() -> None:
    sent = EventReplayStore(100_000)
    one, other = sent.create_session_store(), sent.create_session_store()

    async def run() -> None:
        ids = await fill(one, MAX_SESSION_EVENTS + 10, 10)
        assert len(one.events) == MAX_SESSION_EVENTS
        assert await gone_on_to_the_end(one, ids[9]) == []
        assert await gone_on_to_the_end(one, ids[10]) == ids[11:]
        await fill(other, 20, 10_000)
        assert not one.events
        assert 5 < len(other.events) < 11
        other.end()
        assert not other.events

    asyncio.run(run())


def test_resumed_stream_sends_new_events_and_later_client_takes_over() -> None:
    session = EventReplayStore().create_session_store()
    news = JSONRPCNotification(jsonrpc="2.0", method="notifications/message")

    async def run() -> None:
        own = await session.store_event(GET_STREAM_KEY, None)
        begun = await session.store_event("1", None)
        waiting = [asyncio.create_task(gone_on_to_the_end(session, each)) for each in (own, own, begun)]
        await asyncio.sleep(0)
        told = await session.store_event(GET_STREAM_KEY, news)
        answered = await session.store_event("1", ANSWER)
        first, last, answer = waiting
        assert (await first, await answer) == ([], [answered])
        session.end()
        assert await last == [told]

    asyncio.run(run())


def test_resumed_stream_ends_when_events_were_evicted() -> None:
    session = EventReplayStore().create_session_store()

    async def run() -> None:
        begun = await session.store_event("1", None)
        waiting = asyncio.create_task(gone_on_to_the_end(session, begun))
        await asyncio.sleep(0)
        await fill(session, MAX_SESSION_EVENTS + 2, 1)
        assert await waiting == []

    asyncio.run(run())
