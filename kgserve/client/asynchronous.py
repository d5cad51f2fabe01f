"""The client for `async` code: what `kgserve.client.operations` describes, sent over httpx."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

import anyio
import anyio.to_thread
import httpx

import kgserve.client.backups as backups_of
import kgserve.client.operations as ask
import kgserve.client.past as past_of
import kgserve.client.settings as settings_of
import kgserve.client.versions as versions_of
from kgserve.client.address import Target
from kgserve.client.connection import LIMITS, TIMEOUT, limit, present
from kgserve.client.failures import refusal, translated
from kgserve.client.files import SEQUENCE, complete
from kgserve.client.following import Event, Following
from kgserve.client.lines import Upload
from kgserve.client.operations import Paged
from kgserve.client.retries import Attempts, Retries
from kgserve.client.wire import Call, Streamed
from kgserve.errors import KgserveError
from kgserve.model.answers import Node

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")


class AsyncConnection:
    """The way to one server, for any number of tasks of one event loop."""

    def __init__(self, target: Target, timeout: float | None, retries: Retries) -> None:
        self.target = target
        self.retries = retries
        self._timeout = timeout
        self._http = httpx.AsyncClient(verify=target.authorities, trust_env=not target.nearby, limits=LIMITS)

    async def answer(self, call: Call[T]) -> T:
        """The whole answer, asked for again where that is harmless. Raises the errors of `kgserve.client`."""

        async def whole(call: Call[T]) -> bytes:
            async with self.open(call) as response:
                return await response.aread()

        return call.decode(await self._patiently(call, whole))

    @asynccontextmanager
    async def begun(self, call: Call[Any]) -> AsyncGenerator[httpx.Response]:
        """An answer that has begun; what keeps it from beginning is overcome as for a whole one."""
        async with AsyncExitStack() as stack:
            yield await self._patiently(call, lambda call: stack.enter_async_context(self.open(call)))

    @asynccontextmanager
    async def open(self, call: Call[Any]) -> AsyncGenerator[httpx.Response]:
        """An answer that is about to come. Raises what the server refuses."""
        address = self.target.address
        body = call.body.blocks_async() if isinstance(call.body, Upload) else call.body
        with translated(address.url):
            async with self._http.stream(
                call.route.method,
                address.url + call.path,
                content=body,
                headers=call.headers | address.headers,
                timeout=limit(call, self._timeout),
            ) as response:
                if not response.is_success:
                    raise refusal(response.status_code, response.headers, await response.aread())
                yield response

    async def rest(self, pause: float) -> None:
        """Wait before asking again, and look where the server is by then."""
        await anyio.sleep(pause)
        await anyio.to_thread.run_sync(self.target.look_again)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _patiently(self, call: Call[T], send: Callable[[Call[T]], Coroutine[Any, Any, U]]) -> U:
        """What ``send`` gives, repeated as `retries` says."""
        attempts = Attempts(self.retries)
        while True:
            try:
                return await send(call)
            except KgserveError as error:
                if call.spent:
                    raise
                await self.rest(attempts.pause_after(error, idempotent=call.idempotent))


class AsyncStream(Generic[T]):
    """Things that come one after another; close it, or use it in an `async with` block, when not all are wanted."""

    def __init__(self, items: AsyncGenerator[T], about: dict[str, Any]) -> None:
        self.about = about
        """What the answer says of itself: of rows the columns and types, and counts in the end."""
        self._items = items

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        return await anext(self._items)

    async def close(self) -> None:
        """End it, and the connection with it."""
        await self._items.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def _pages(connection: AsyncConnection, paged: Paged) -> AsyncGenerator[Node]:
    page = await connection.answer(paged.page())
    for node in page.nodes:
        yield node
    while page.next_cursor is not None:
        page = await connection.answer(paged.page(page.next_cursor))
        for node in page.nodes:
            yield node


def _stream(connection: AsyncConnection, streamed: Streamed[T]) -> AsyncStream[T]:
    decoder = streamed.decoder()

    async def items() -> AsyncGenerator[T]:
        async with connection.begun(streamed.call) as response:
            async for block in response.aiter_bytes():
                for item in decoder.feed(block):
                    yield item
            for item in decoder.finish():
                yield item

    return AsyncStream(items(), decoder.about)


async def _follow(connection: AsyncConnection, listener: Following) -> AsyncGenerator[Event]:
    while not listener.ended:
        trouble: KgserveError | None = None
        try:
            async with connection.open(listener.call()) as response:
                async for chunk in response.aiter_bytes():
                    for event in listener.take(chunk):
                        yield event
        except KgserveError as error:
            trouble = error
        pause = listener.pause_after(trouble, connection.retries)
        if not listener.ended:
            await connection.rest(pause)


def _asks(build: Callable[P, Call[T]]) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.connection.answer(build(*args, **kwargs))

    present(method, build, "{}", of_store=False)
    return method


def _listens(build: Callable[P, Following]) -> Callable[Concatenate[AsyncClient, P], AsyncStream[Event]]:
    def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncStream[Event]:
        return AsyncStream(_follow(self.connection, build(*args, **kwargs)), {})

    present(method, build, "AsyncStream[Event]", of_store=False)
    return method


def _store_asks(
    build: Callable[Concatenate[str, P], Call[T]],
) -> Callable[Concatenate[AsyncStore, P], Coroutine[Any, Any, T]]:
    async def method(self: AsyncStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.connection.answer(build(self.name, *args, **kwargs))

    present(method, build, "{}", of_store=True)
    return method


def _store_pages(
    build: Callable[Concatenate[str, P], Paged],
) -> Callable[Concatenate[AsyncStore, P], AsyncStream[Node]]:
    def method(self: AsyncStore, /, *args: P.args, **kwargs: P.kwargs) -> AsyncStream[Node]:
        return AsyncStream(_pages(self.connection, build(self.name, *args, **kwargs)), {})

    present(method, build, "AsyncStream[Node]", of_store=True)
    return method


def _store_streams(
    build: Callable[Concatenate[str, P], Streamed[T]],
) -> Callable[Concatenate[AsyncStore, P], AsyncStream[T]]:
    def method(self: AsyncStore, /, *args: P.args, **kwargs: P.kwargs) -> AsyncStream[T]:
        return _stream(self.connection, build(self.name, *args, **kwargs))

    present(method, build, "AsyncStream[{}]", of_store=True)
    return method


def _store_listens(
    build: Callable[Concatenate[str, P], Following],
) -> Callable[Concatenate[AsyncStore, P], AsyncStream[Event]]:
    def method(self: AsyncStore, /, *args: P.args, **kwargs: P.kwargs) -> AsyncStream[Event]:
        return AsyncStream(_follow(self.connection, build(self.name, *args, **kwargs)), {})

    present(method, build, "AsyncStream[Event]", of_store=True)
    return method


class AsyncClient:
    """A server: the one named by ``url``, else the one that serves the folder ``data``, else the configured address.

    ``key`` is sent along; by default KGSERVE_KEY, else the token that the data folder names. ``timeout`` is how many
    seconds an answer may take; None is for ever. ``retries`` says how often and how long to try again; 0 turns that
    off. It belongs to one event loop.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        data: str | os.PathLike[str] | None = None,
        key: str | None = None,
        timeout: float | None = TIMEOUT,
        retries: Retries | int = Retries(),  # noqa: B008 - it is frozen
    ) -> None:
        patience = Retries(times=retries) if isinstance(retries, int) else retries
        self.connection = AsyncConnection(Target(url, data, key), timeout, patience)

    health = _asks(ask.health)
    ready = _asks(ask.ready)
    openapi = _asks(ask.openapi)
    stores = _asks(ask.stores)
    create = _asks(settings_of.create)
    drop = _asks(ask.drop)
    backup_stores = _asks(backups_of.backup_stores)
    restore_backup = _asks(backups_of.restore_backup)
    events = _listens(ask.events)

    def store(self, name: str) -> AsyncStore:
        """One store, whether it exists or not: the first inject makes it."""
        return AsyncStore(self.connection, name)

    async def close(self) -> None:
        """Close the connections."""
        await self.connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncClient({self.connection.target.address.url!r})"


class AsyncStore:
    """One store of a server."""

    def __init__(self, connection: AsyncConnection, name: str) -> None:
        self.connection = connection
        self.name = name

    inject = _store_asks(ask.inject)
    delete_node = _store_asks(ask.delete_node)
    delete_edge = _store_asks(ask.delete_edge)
    traverse = _store_asks(ask.traverse)
    node = _store_asks(ask.node)
    nodes = _store_pages(ask.nodes)
    put_node = _store_asks(versions_of.put_node)
    put_subgraph = _store_asks(versions_of.put_subgraph)
    retire = _store_asks(versions_of.retire)
    retire_edge = _store_asks(versions_of.retire_edge)
    outgoing = _store_asks(versions_of.outgoing)
    incoming = _store_asks(versions_of.incoming)
    edge = _store_asks(versions_of.edge)
    delete_edge_by_id = _store_asks(versions_of.delete_edge_by_id)
    describe_schema = _store_asks(versions_of.describe_schema)
    list_tags = _store_asks(versions_of.list_tags)
    history = _store_asks(past_of.history)
    revert = _store_asks(past_of.revert)
    changes = _store_asks(past_of.changes)
    restore = _store_asks(past_of.restore)
    prune_history = _store_asks(past_of.prune_history)
    backup = _store_asks(backups_of.backup)
    entity_history = _store_asks(past_of.entity_history)
    settings = _store_asks(settings_of.settings)
    update_settings = _store_asks(settings_of.update_settings)
    search = _store_asks(ask.search)
    search_batch = _store_asks(ask.search_batch)
    context = _store_asks(ask.context)
    cypher = _store_asks(ask.cypher)
    cypher_rows = _store_streams(ask.cypher_rows)
    stats = _store_asks(ask.stats)
    reindex = _store_asks(ask.reindex)
    import_ = _store_asks(ask.import_)
    export = _store_streams(ask.export)
    events = _store_listens(ask.store_events)

    async def export_to(self, path: str | os.PathLike[str]) -> int:
        """Write an export to a file that appears when it is complete; the sequence that it shows."""
        async with self.connection.begun(ask.export(self.name).call) as response:
            with complete(path) as file:
                async for block in response.aiter_bytes():
                    await anyio.to_thread.run_sync(file.write, block)
                return int(response.headers[SEQUENCE])

    def __repr__(self) -> str:
        return f"<AsyncStore {self.name!r} at {self.connection.target.address.url}>"
