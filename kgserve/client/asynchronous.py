"""Asynchronous client: methods generated from request builders, and the connection over httpx."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, cast

import anyio
import anyio.to_thread
import httpx
from typing_extensions import override

from kgserve.client.custom_request_builders import PagedNodes
from kgserve.client.errors import Retries, RetryState, Unreachable, build_error_from_response, translate_httpx_errors
from kgserve.client.event_stream import Event, ResumableSseListenerState
from kgserve.client.json_lines_stream import SEQUENCE_RESPONSE_HEADER, ImportUpload, write_atomically
from kgserve.client.wire import (
    CONNECTION_LIMITS,
    MAX_OWNER_REDIRECTS,
    ClientRequest,
    ServerTarget,
    StreamedAnswerRequest,
    bind_client_method,
    httpx_timeout,
)
from kgserve.errors import KgserveError, TimedOut, Unavailable
from kgserve.graph.answers import Node
from kgserve.platform.server_discovery import DiscoveredServer

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")


class AsyncConnection:
    """Asynchronous connection to one server, shared by the tasks of one event loop."""

    def __init__(self, target: ServerTarget, timeout: float | None, retries: Retries) -> None:
        self.target = target
        self.retries = retries
        self._timeout = timeout
        self._http = httpx.AsyncClient(
            verify=target.authorities, trust_env=not target.is_local, limits=CONNECTION_LIMITS, headers=target.headers
        )

    async def answer(self, call: ClientRequest[T]) -> T:
        """Send a request and return the decoded answer, with retries. Raises the errors of `kgserve.client`."""

        async def whole(call: ClientRequest[T]) -> bytes:
            async with self.open(call) as response:
                return await response.aread()

        answer = call.decode(await self._with_retries(call, whole))
        self.target.record_sequence(call, answer)
        return answer

    @asynccontextmanager
    async def begun(self, call: ClientRequest[Any]) -> AsyncGenerator[httpx.Response]:
        """Open a streamed answer. Retries apply until the answer begins."""
        async with AsyncExitStack() as stack:
            yield await self._with_retries(call, lambda call: stack.enter_async_context(self.open(call)))

    @asynccontextmanager
    async def open(self, call: ClientRequest[Any]) -> AsyncGenerator[httpx.Response]:
        """Open a streamed answer without retries, following redirects to the store's owner.

        Raises errors of the server.
        """
        try:
            to = self.target.server_for_call(call)
            for left in reversed(range(MAX_OWNER_REDIRECTS)):
                async with self._send(call, to) as response:
                    if response.is_success:
                        yield response
                        return
                    if not left or (found := self.target.follow_redirect(call, response)) is None:
                        raise build_error_from_response(response.status_code, response.headers, await response.aread())
                    to = found
        except (Unreachable, TimedOut, Unavailable):
            self.target.forget(call)
            raise

    @asynccontextmanager
    async def _send(self, call: ClientRequest[Any], to: DiscoveredServer) -> AsyncGenerator[httpx.Response]:
        body = call.body.blocks_async() if isinstance(call.body, ImportUpload) else call.body
        with translate_httpx_errors(to.url):
            async with self._http.stream(
                call.route.method,
                to.url + call.path,
                content=body,
                headers=call.headers | self.target.reading(call) | to.headers,
                timeout=httpx_timeout(call, self._timeout),
            ) as response:
                yield response

    async def save(self, call: ClientRequest[bytes], path: str | os.PathLike[str]) -> int:
        """Write an answer to a file, which appears when complete. Return the sequence of the snapshot."""
        async with self.begun(call) as response:
            with write_atomically(path) as file:
                async for block in response.aiter_bytes():
                    await anyio.to_thread.run_sync(file.write, block)
                return int(response.headers[SEQUENCE_RESPONSE_HEADER])

    async def rest(self, pause: float) -> None:
        """Wait ``pause`` seconds before a retry, and locate the server again."""
        await anyio.sleep(pause)
        await anyio.to_thread.run_sync(self.target.relocate)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _with_retries(
        self, call: ClientRequest[T], send: Callable[[ClientRequest[T]], Coroutine[Any, Any, U]]
    ) -> U:
        """Call ``send``, with retries as configured by `retries`."""
        attempts = RetryState(self.retries)
        while True:
            try:
                return await send(call)
            except KgserveError as error:
                if call.spent:
                    raise
                await self.rest(attempts.pause_after(error, idempotent=call.idempotent, nodes=self.target.nodes))


class HasAsyncConnection(Protocol):
    """Object with an asynchronous connection to a server."""

    connection: AsyncConnection


class HasAsyncStoreConnection(HasAsyncConnection, Protocol):
    """Object with an asynchronous connection, bound to one store."""

    name: str


class AsyncStream(Generic[T]):
    """Asynchronous iterator of streamed items. Close it, or use it in an `async with` block, unless it is exhausted."""

    def __init__(self, items: AsyncGenerator[T], about: dict[str, Any]) -> None:
        self.about = about
        """Metadata of the answer: for rows, the columns and types, and counts at the end."""
        self._items = items

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        return await anext(self._items)

    async def close(self) -> None:
        """End the stream and its connection."""
        await self._items.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncEventStream(AsyncStream[Event]):
    """Stream of events. It connects when its `async with` block is entered, otherwise at the first item."""

    def __init__(self, connection: AsyncConnection, listener: ResumableSseListenerState) -> None:
        self._followed = _follow(connection, listener)
        super().__init__(cast("AsyncGenerator[Event]", self._followed), {})  # `_connect` consumes its only None
        self._is_begun = False

    @override
    async def __anext__(self) -> Event:
        await self._connect()
        return await super().__anext__()

    @override
    async def __aenter__(self) -> Self:
        await self._connect()
        return self

    async def _connect(self) -> None:
        if not self._is_begun:
            self._is_begun = True
            await anext(self._followed, None)


async def _pages(connection: AsyncConnection, paged: PagedNodes) -> AsyncGenerator[Node]:
    page = await connection.answer(paged.page())
    for node in page.nodes:
        yield node
    while page.next_cursor is not None:
        page = await connection.answer(paged.page(page.next_cursor))
        for node in page.nodes:
            yield node


def _stream(connection: AsyncConnection, streamed: StreamedAnswerRequest[T]) -> AsyncStream[T]:
    decoder = streamed.decoder()

    async def items() -> AsyncGenerator[T]:
        async with connection.begun(streamed.call) as response:
            async for block in response.aiter_bytes():
                for item in decoder.feed(block):
                    yield item
            for item in decoder.finish():
                yield item

    return AsyncStream(items(), decoder.about)


async def _follow(connection: AsyncConnection, listener: ResumableSseListenerState) -> AsyncGenerator[Event | None]:
    """Yield None when first connected, then events."""
    is_connected = False
    while not listener.ended:
        trouble: KgserveError | None = None
        try:
            async with connection.open(listener.call()) as response:
                if not is_connected:
                    is_connected = True
                    yield None
                async for chunk in response.aiter_bytes():
                    for event in listener.take(chunk):
                        yield event
        except KgserveError as error:
            trouble = error
        pause = listener.pause_after(trouble, connection.retries)
        if not listener.ended:
            await connection.rest(pause)


def make_request_method(
    build: Callable[P, ClientRequest[T]],
) -> Callable[Concatenate[HasAsyncConnection, P], Coroutine[Any, Any, T]]:
    """Return a method that sends a request about the server or all stores."""
    return bind_client_method(build, AsyncConnection.answer, of_store=False)


def make_events_method(
    build: Callable[P, ResumableSseListenerState],
) -> Callable[Concatenate[HasAsyncConnection, P], AsyncStream[Event]]:
    """Return a method that streams events."""
    return bind_client_method(build, AsyncEventStream, "AsyncStream[Event]", of_store=False)


def make_store_request_method(
    build: Callable[Concatenate[str, P], ClientRequest[T]],
) -> Callable[Concatenate[HasAsyncStoreConnection, P], Coroutine[Any, Any, T]]:
    """Return a method that sends a request about one store."""
    return bind_client_method(build, AsyncConnection.answer, of_store=True)


def make_store_pages_method(
    build: Callable[Concatenate[str, P], PagedNodes],
) -> Callable[Concatenate[HasAsyncStoreConnection, P], AsyncStream[Node]]:
    """Return a method that iterates over the nodes of all pages."""
    return bind_client_method(
        build, lambda connection, paged: AsyncStream(_pages(connection, paged), {}), "AsyncStream[Node]", of_store=True
    )


def make_store_stream_method(
    build: Callable[Concatenate[str, P], StreamedAnswerRequest[T]],
) -> Callable[Concatenate[HasAsyncStoreConnection, P], AsyncStream[T]]:
    """Return a method that streams items of one store."""
    return bind_client_method(build, _stream, "AsyncStream[{}]", of_store=True)


def make_store_events_method(
    build: Callable[Concatenate[str, P], ResumableSseListenerState],
) -> Callable[Concatenate[HasAsyncStoreConnection, P], AsyncStream[Event]]:
    """Return a method that streams events of one store."""
    return bind_client_method(build, AsyncEventStream, "AsyncStream[Event]", of_store=True)
