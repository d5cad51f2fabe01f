"""Synchronous client: methods generated from request builders, the connection over httpx, and event handlers.

Event handlers are called after each commit, in their own thread.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast

import httpx
from typing_extensions import override

from kgserve.client.custom_request_builders import PagedNodes, events
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
from kgserve.platform.closable import ClosableContext
from kgserve.platform.server_discovery import DiscoveredServer

if TYPE_CHECKING:
    from kgserve.client.event_stream import Event
    from kgserve.graph.answers import Edge, Node
    from kgserve.storage.model.store_settings import StoreSettings

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")


class Stream(ClosableContext, Generic[T]):
    """Iterator of streamed items. Close it, or use it in a `with` block, unless it is exhausted."""

    def __init__(self, items: Generator[T], about: dict[str, Any]) -> None:
        self.about = about
        """Metadata of the answer: for rows, the columns and types, and counts at the end."""
        self._items = items

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        return next(self._items)

    @override
    def close(self) -> None:
        self._items.close()


class ClientTransport(Protocol):
    """Transport of client requests: to a server, or to the stores that are open in this process."""

    def answer(self, call: ClientRequest[T]) -> T:
        """Send a request and return the decoded answer, with retries."""
        ...

    def stream(self, streamed: StreamedAnswerRequest[T]) -> Stream[T]:
        """Return the items of a streamed answer."""
        ...

    def events(self, listener: ResumableSseListenerState) -> Stream[Event]:
        """Return a stream of events as they happen, once it is connected. Raises its errors."""
        ...

    def save(self, call: ClientRequest[bytes], path: str | os.PathLike[str]) -> int:
        """Write an answer to a file, which appears when complete. Return the sequence of the snapshot."""
        ...


class HasTransport(Protocol):
    """Object with a client transport."""

    connection: ClientTransport


class HasStoreTransport(HasTransport, Protocol):
    """Object with a client transport, bound to one store."""

    name: str


def make_request_method(build: Callable[P, ClientRequest[T]]) -> Callable[Concatenate[HasTransport, P], T]:
    """Return a method that sends a request about the server or all stores."""
    return bind_client_method(build, lambda connection, call: connection.answer(call), of_store=False)


def make_events_method(
    build: Callable[P, ResumableSseListenerState],
) -> Callable[Concatenate[HasTransport, P], Stream[Event]]:
    """Return a method that streams events."""
    return bind_client_method(
        build, lambda connection, listener: connection.events(listener), "Stream[Event]", of_store=False
    )


def make_store_request_method(
    build: Callable[Concatenate[str, P], ClientRequest[T]],
) -> Callable[Concatenate[HasStoreTransport, P], T]:
    """Return a method that sends a request about one store."""
    return bind_client_method(build, lambda connection, call: connection.answer(call), of_store=True)


def make_store_pages_method(
    build: Callable[Concatenate[str, P], PagedNodes],
) -> Callable[Concatenate[HasStoreTransport, P], Stream[Node]]:
    """Return a method that iterates over the nodes of all pages."""
    return bind_client_method(
        build, lambda connection, paged: Stream(_pages(connection, paged), {}), "Stream[Node]", of_store=True
    )


def make_store_stream_method(
    build: Callable[Concatenate[str, P], StreamedAnswerRequest[T]],
) -> Callable[Concatenate[HasStoreTransport, P], Stream[T]]:
    """Return a method that streams items of one store."""
    return bind_client_method(
        build, lambda connection, streamed: connection.stream(streamed), "Stream[{}]", of_store=True
    )


def make_store_events_method(
    build: Callable[Concatenate[str, P], ResumableSseListenerState],
) -> Callable[Concatenate[HasStoreTransport, P], Stream[Event]]:
    """Return a method that streams events of one store."""
    return bind_client_method(
        build, lambda connection, listener: connection.events(listener), "Stream[Event]", of_store=True
    )


def _pages(connection: ClientTransport, paged: PagedNodes) -> Generator[Node]:
    page = connection.answer(paged.page())
    yield from page.nodes
    while page.next_cursor is not None:
        page = connection.answer(paged.page(page.next_cursor))
        yield from page.nodes


class BlockingConnection(ClientTransport):
    """Synchronous connection to one server, shared by threads."""

    def __init__(self, target: ServerTarget, timeout: float | None, retries: Retries) -> None:
        self.target = target
        self.retries = retries
        self._timeout = timeout
        self._http = httpx.Client(
            verify=target.authorities, trust_env=not target.is_local, limits=CONNECTION_LIMITS, headers=target.headers
        )

    @override
    def __repr__(self) -> str:
        return f"at {self.target.address.url}"

    @override
    def answer(self, call: ClientRequest[T]) -> T:
        def whole(call: ClientRequest[T]) -> bytes:
            with self.open(call) as response:
                return response.read()

        answer = call.decode(self._with_retries(call, whole))
        self.target.record_sequence(call, answer)
        return answer

    @override
    def stream(self, streamed: StreamedAnswerRequest[T]) -> Stream[T]:
        decoder = streamed.decoder()

        def items() -> Generator[T]:
            with self.begun(streamed.call) as response:
                for block in response.iter_bytes():
                    yield from decoder.feed(block)
                yield from decoder.finish()

        return Stream(items(), decoder.about)

    @override
    def events(self, listener: ResumableSseListenerState) -> Stream[Event]:
        followed = self._follow(listener)
        next(followed, None)  # connects, so that all writes from now on are delivered
        return Stream(cast("Generator[Event]", followed), {})  # its only None was consumed

    @override
    def save(self, call: ClientRequest[bytes], path: str | os.PathLike[str]) -> int:
        with self.begun(call) as response, write_atomically(path) as file:
            for block in response.iter_bytes():
                file.write(block)
            return int(response.headers[SEQUENCE_RESPONSE_HEADER])

    @contextmanager
    def begun(self, call: ClientRequest[Any]) -> Generator[httpx.Response]:
        """Open a streamed answer. Retries apply until the answer begins."""
        with ExitStack() as stack:
            yield self._with_retries(call, lambda call: stack.enter_context(self.open(call)))

    @contextmanager
    def open(self, call: ClientRequest[Any]) -> Generator[httpx.Response]:
        """Open a streamed answer without retries, following redirects to the store's owner.

        Raises errors of the server.
        """
        try:
            to = self.target.server_for_call(call)
            for left in reversed(range(MAX_OWNER_REDIRECTS)):
                with self._send(call, to) as response:
                    if response.is_success:
                        yield response
                        return
                    if not left or (found := self.target.follow_redirect(call, response)) is None:
                        raise build_error_from_response(response.status_code, response.headers, response.read())
                    to = found
        except (Unreachable, TimedOut, Unavailable):
            self.target.forget(call)
            raise

    @contextmanager
    def _send(self, call: ClientRequest[Any], to: DiscoveredServer) -> Generator[httpx.Response]:
        body = call.body.blocks() if isinstance(call.body, ImportUpload) else call.body
        with (
            translate_httpx_errors(to.url),
            self._http.stream(
                call.route.method,
                to.url + call.path,
                content=body,
                headers=call.headers | self.target.reading(call) | to.headers,
                timeout=httpx_timeout(call, self._timeout),
            ) as response,
        ):
            yield response

    def rest(self, pause: float) -> None:
        """Wait ``pause`` seconds before a retry, and locate the server again."""
        time.sleep(pause)
        self.target.relocate()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _follow(self, listener: ResumableSseListenerState) -> Generator[Event | None]:
        """Yield None when first connected, then events."""
        is_connected = False
        while not listener.ended:
            trouble: KgserveError | None = None
            try:
                with self.open(listener.call()) as response:
                    if not is_connected:
                        is_connected = True
                        yield None
                    for chunk in response.iter_bytes():
                        yield from listener.take(chunk)
                        if listener.ended:
                            return
            except KgserveError as error:
                trouble = error
            pause = listener.pause_after(trouble, self.retries)
            if not listener.ended:
                self.rest(pause)

    def _with_retries(self, call: ClientRequest[T], send: Callable[[ClientRequest[T]], U]) -> U:
        """Call ``send``, with retries as configured by `retries`."""
        attempts = RetryState(self.retries)
        while True:
            try:
                return send(call)
            except KgserveError as error:
                if call.spent:
                    raise
                self.rest(attempts.pause_after(error, idempotent=call.idempotent, nodes=self.target.nodes))


HANDLER_TIMEOUT_SECONDS = 5.0
"""Seconds for which `Subscription.close` waits for a running call of the handler."""

_log = logging.getLogger(__name__)


class WriteHandler:
    """Handler of committed changes, called for each changed row. Override the methods of interest.

    ``event`` names the store. Calls run in the subscription's thread, so they can neither delay nor fail a write.
    """

    def on_node_written(self, node: Node, event: Event) -> None:
        """Handle a node that was created or updated."""

    def on_edge_written(self, edge: Edge, event: Event) -> None:
        """Handle an edge that was created or updated. Edges into another store have ``to_graph``."""

    def on_graph_created(self, settings: StoreSettings, event: Event) -> None:
        """Handle a created store (``event.kind`` is `store_created`) or changed settings (`store_changed`)."""

    def on_event(self, event: Event) -> None:
        """Handle all other events: deletions, counts of very large writes, and dropped stores."""


class Subscription(ClosableContext):
    """Delivery of events to a handler until it is closed or its source ends. Also a context manager.

    An exception of the handler ends the subscription and is kept as ``error``. ``last_event_id`` is the id of the last
    handled event; pass it to another subscription to continue there.
    """

    def __init__(
        self,
        asker: HasTransport,
        handler: WriteHandler,
        stores: Iterable[str] = (),
        *,
        since: int | None = None,
        last_event_id: str | None = None,
    ) -> None:
        self.error: Exception | None = None
        self.last_event_id = last_event_id
        self._handler = handler
        self._calling = threading.RLock()
        self._following = events(stores, since=since, last_event_id=last_event_id)
        # Started here, so that all writes from now on are reported.
        self._events = asker.connection.events(self._following)
        threading.Thread(target=self._deliver, name="kgserve-subscription", daemon=True).start()

    @property
    def active(self) -> bool:
        """True while events are delivered."""
        return not self._following.ended

    @override
    def close(self) -> None:
        """Stop delivery. Waits up to five seconds for a running call of the handler, unless called by the handler."""
        self._following.ended = True
        if self._calling.acquire(timeout=HANDLER_TIMEOUT_SECONDS):
            self._calling.release()

    def _deliver(self) -> None:
        try:
            with self._events as delivered:
                for event in delivered:
                    with self._calling:
                        if self._following.ended:
                            return
                        if not self._handle(event):
                            return
        except Exception as error:  # noqa: BLE001 - any error is kept for the caller
            self._fail(error)
        finally:
            self._following.ended = True

    def _handle(self, event: Event) -> bool:
        try:
            self._dispatch(event)
        except Exception as error:  # noqa: BLE001 - the handler is the caller's code
            self._fail(error)
            return False
        self.last_event_id = event.id
        return True

    def _fail(self, error: Exception) -> None:
        self.error = error
        _log.error("a subscription ended with an error", exc_info=error)

    def _dispatch(self, event: Event) -> None:
        if (node := event.node) is not None:
            self._handler.on_node_written(node, event)
        elif (edge := event.edge) is not None:
            self._handler.on_edge_written(edge, event)
        elif (settings := event.settings) is not None:
            self._handler.on_graph_created(settings, event)
        else:
            self._handler.on_event(event)


def subscribe(
    asker: HasTransport,
    handler: WriteHandler,
    stores: Iterable[str] = (),
    *,
    since: int | None = None,
    last_event_id: str | None = None,
) -> Subscription:
    """Call a handler after the commit of every write to some stores, or to all current and future ones.

    ``asker`` is a `Client`, or the result of `kgserve.open`. Delivery starts now, after the sequence ``since`` (0: from
    the beginning), or after the ``last_event_id`` of another subscription. Raises the same errors as `events`.
    """
    return Subscription(asker, handler, stores, since=since, last_event_id=last_event_id)
