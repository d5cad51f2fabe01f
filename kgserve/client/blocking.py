"""The methods that wait: made from descriptions, for whatever connection answers them; and the one over httpx.

And handlers that are told of every write after its commit, in a thread of their own.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

import httpx
from typing_extensions import override

from kgserve.client.failures import Attempts, Retries, Unreachable, refusal, translated
from kgserve.client.following import Event, Following
from kgserve.client.lines import SEQUENCE_RESPONSE_HEADER, Upload, complete
from kgserve.client.streams import Paged, events
from kgserve.client.wire import CONNECTION_LIMITS, MAX_OWNER_REDIRECTS, ClientRequest, Streamed, Target, limit, method
from kgserve.errors import KgserveError, TimedOut, Unavailable
from kgserve.graph.answers import Node
from kgserve.platform.closing import Closing
from kgserve.platform.server_discovery import DiscoveredServer

if TYPE_CHECKING:
    from kgserve.client.following import Event
    from kgserve.graph.answers import Edge, Node
    from kgserve.storage.model.store_settings import StoreSettings

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")


class Stream(Closing, Generic[T]):
    """Things that come one after another; close it, or use it in a `with` block, when not all are wanted."""

    def __init__(self, items: Generator[T], about: dict[str, Any]) -> None:
        self.about = about
        """What the answer says of itself: of rows the columns and types, and counts in the end."""
        self._items = items

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        return next(self._items)

    @override
    def close(self) -> None:
        """End it, and the connection with it."""
        self._items.close()


class Answering(Protocol):
    """What answers: a server, or the stores that are open in this process."""

    def answer(self, call: ClientRequest[T]) -> T:
        """The whole answer, asked for again where that is harmless."""
        ...

    def stream(self, streamed: Streamed[T]) -> Stream[T]:
        """The parts of an answer as they come."""
        ...

    def events(self, listener: Following) -> Stream[Event]:
        """What happens, as it happens."""
        ...

    def save(self, call: ClientRequest[bytes], path: str | os.PathLike[str]) -> int:
        """Write an answer to a file that appears when it is complete; the sequence that it shows."""
        ...


class Asker(Protocol):
    """Who has a connection."""

    connection: Answering


class StoreAsker(Asker, Protocol):
    """Who asks about one store."""

    name: str


def asks(build: Callable[P, ClientRequest[T]]) -> Callable[Concatenate[Asker, P], T]:
    """A method about all stores, or about none."""
    return method(build, lambda connection, call: connection.answer(call), of_store=False)


def listens(build: Callable[P, Following]) -> Callable[Concatenate[Asker, P], Stream[Event]]:
    """A method that gives events."""
    return method(build, lambda connection, listener: connection.events(listener), "Stream[Event]", of_store=False)


def store_asks(build: Callable[Concatenate[str, P], ClientRequest[T]]) -> Callable[Concatenate[StoreAsker, P], T]:
    """A method of a store."""
    return method(build, lambda connection, call: connection.answer(call), of_store=True)


def store_pages(build: Callable[Concatenate[str, P], Paged]) -> Callable[Concatenate[StoreAsker, P], Stream[Node]]:
    """A method of a store that gives nodes from all pages."""
    return method(build, lambda connection, paged: Stream(_pages(connection, paged), {}), "Stream[Node]", of_store=True)


def store_streams(build: Callable[Concatenate[str, P], Streamed[T]]) -> Callable[Concatenate[StoreAsker, P], Stream[T]]:
    """A method of a store that gives things one after another."""
    return method(build, lambda connection, streamed: connection.stream(streamed), "Stream[{}]", of_store=True)


def store_listens(
    build: Callable[Concatenate[str, P], Following],
) -> Callable[Concatenate[StoreAsker, P], Stream[Event]]:
    """A method of a store that gives events."""
    return method(build, lambda connection, listener: connection.events(listener), "Stream[Event]", of_store=True)


def _pages(connection: Answering, paged: Paged) -> Generator[Node]:
    page = connection.answer(paged.page())
    yield from page.nodes
    while page.next_cursor is not None:
        page = connection.answer(paged.page(page.next_cursor))
        yield from page.nodes


class BlockingConnection:
    """The way to one server, for any number of threads."""

    def __init__(self, target: Target, timeout: float | None, retries: Retries) -> None:
        self.target = target
        self.retries = retries
        self._timeout = timeout
        self._http = httpx.Client(
            verify=target.authorities, trust_env=not target.nearby, limits=CONNECTION_LIMITS, headers=target.headers
        )

    @override
    def __repr__(self) -> str:
        return f"at {self.target.address.url}"

    def answer(self, call: ClientRequest[T]) -> T:
        """The whole answer, asked for again where that is harmless. Raises the errors of `kgserve.client`."""

        def whole(call: ClientRequest[T]) -> bytes:
            with self.open(call) as response:
                return response.read()

        answer = call.decode(self._patiently(call, whole))
        self.target.saw(call, answer)
        return answer

    def stream(self, streamed: Streamed[T]) -> Stream[T]:
        """The parts of an answer as they come."""
        decoder = streamed.decoder()

        def items() -> Generator[T]:
            with self.begun(streamed.call) as response:
                for block in response.iter_bytes():
                    yield from decoder.feed(block)
                yield from decoder.finish()

        return Stream(items(), decoder.about)

    def events(self, listener: Following) -> Stream[Event]:
        """What happens, as it happens."""
        return Stream(self._followed(listener), {})

    def save(self, call: ClientRequest[bytes], path: str | os.PathLike[str]) -> int:
        """Write an answer to a file that appears when it is complete; the sequence that it shows."""
        with self.begun(call) as response, complete(path) as file:
            for block in response.iter_bytes():
                file.write(block)
            return int(response.headers[SEQUENCE_RESPONSE_HEADER])

    @contextmanager
    def begun(self, call: ClientRequest[Any]) -> Generator[httpx.Response]:
        """An answer that has begun; what keeps it from beginning is overcome as for a whole one."""
        with ExitStack() as stack:
            yield self._patiently(call, lambda call: stack.enter_context(self.open(call)))

    @contextmanager
    def open(self, call: ClientRequest[Any]) -> Generator[httpx.Response]:
        """An answer that is about to come, from whichever node gives it. Raises what the server refuses."""
        try:
            to = self.target.serving(call)
            for left in reversed(range(MAX_OWNER_REDIRECTS)):
                with self._sent(call, to) as response:
                    if response.is_success:
                        yield response
                        return
                    if not left or (found := self.target.sent_on(call, response)) is None:
                        raise refusal(response.status_code, response.headers, response.read())
                    to = found
        except (Unreachable, TimedOut, Unavailable):
            self.target.forget(call)
            raise

    @contextmanager
    def _sent(self, call: ClientRequest[Any], to: DiscoveredServer) -> Generator[httpx.Response]:
        body = call.body.blocks() if isinstance(call.body, Upload) else call.body
        with (
            translated(to.url),
            self._http.stream(
                call.route.method,
                to.url + call.path,
                content=body,
                headers=call.headers | self.target.reading(call) | to.headers,
                timeout=limit(call, self._timeout),
            ) as response,
        ):
            yield response

    def rest(self, pause: float) -> None:
        """Wait before asking again, and look where the server is by then."""
        time.sleep(pause)
        self.target.look_again()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _followed(self, listener: Following) -> Generator[Event]:
        while not listener.ended:
            trouble: KgserveError | None = None
            try:
                with self.open(listener.call()) as response:
                    for chunk in response.iter_bytes():
                        yield from listener.take(chunk)
                        if listener.ended:
                            return
            except KgserveError as error:
                trouble = error
            pause = listener.pause_after(trouble, self.retries)
            if not listener.ended:
                self.rest(pause)

    def _patiently(self, call: ClientRequest[T], send: Callable[[ClientRequest[T]], U]) -> U:
        """What ``send`` gives, repeated as `retries` says."""
        attempts = Attempts(self.retries, self.target.addresses)
        while True:
            try:
                return send(call)
            except KgserveError as error:
                if call.spent:
                    raise
                self.rest(attempts.pause_after(error, idempotent=call.idempotent))


HANDLER_TIMEOUT_SECONDS = 5.0
"""How long `Subscription.close` waits for the call of a handler that is under way."""

_log = logging.getLogger(__name__)


class WriteHandler:
    """What is called after a commit, for each row that it changed; override what is wanted. ``event`` tells the store.

    It can neither hold a write up nor make one fail: it is called in a thread of the subscription's own.
    """

    def on_node_written(self, node: Node, event: Event) -> None:
        """A node was made or got another version."""

    def on_edge_written(self, edge: Edge, event: Event) -> None:
        """An edge was made or changed, be it one into another store, which has ``to_graph``."""

    def on_graph_created(self, settings: StoreSettings, event: Event) -> None:
        """A store was made (``event.kind`` is `store_created`), or its settings were changed (`store_changed`)."""

    def on_event(self, event: Event) -> None:
        """Anything else: what is deleted, a write of very many rows, which is told of by counts, a store dropped."""


class Subscription(Closing):
    """A handler that is being told, until it is closed, or what tells it ends; use it in a `with` block, or close it.

    An exception of the handler ends it and is kept as ``error``. ``last_event_id`` is the place behind the last event
    that the handler has taken; another subscription goes on there.
    """

    def __init__(
        self,
        asker: Asker,
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
        # Begun here, so that what is written from now on is told.
        self._events = asker.connection.events(self._following)
        threading.Thread(target=self._tell, name="kgserve-subscription", daemon=True).start()

    @property
    def active(self) -> bool:
        """Whether the handler is still being told."""
        return not self._following.ended

    @override
    def close(self) -> None:
        """Tell no more. Waits for a call that is under way, at most five seconds; within a handler it does not wait."""
        self._following.ended = True
        if self._calling.acquire(timeout=HANDLER_TIMEOUT_SECONDS):
            self._calling.release()

    def _tell(self) -> None:
        try:
            with self._events as told:
                for event in told:
                    with self._calling:
                        if self._following.ended:
                            return
                        if not self._taken(event):
                            return
        except Exception as error:  # noqa: BLE001 - of whatever kind, it is kept
            self._fail(error)
        finally:
            self._following.ended = True

    def _taken(self, event: Event) -> bool:
        try:
            self._dispatch(event)
        except Exception as error:  # noqa: BLE001 - the handler is somebody else's
            self._fail(error)
            return False
        self.last_event_id = event.id
        return True

    def _fail(self, error: Exception) -> None:
        self.error = error
        _log.error("a subscription has ended", exc_info=error)

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
    asker: Asker,
    handler: WriteHandler,
    stores: Iterable[str] = (),
    *,
    since: int | None = None,
    last_event_id: str | None = None,
) -> Subscription:
    """Have a handler told of every write of some stores, or of all that there are and will be, after its commit.

    ``asker`` is a `Client`, or what `kgserve.open` gives. From now on, or after a sequence (0: from the beginning), or
    behind the ``last_event_id`` of another subscription. Raises what listening to events does.
    """
    return Subscription(asker, handler, stores, since=since, last_event_id=last_event_id)
