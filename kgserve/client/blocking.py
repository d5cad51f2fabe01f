"""The methods that wait: made from descriptions, for whatever connection answers them; and the one over httpx."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

import httpx

from kgserve.client.address import MOST_MOVES, Target
from kgserve.client.connection import LIMITS, limit, present
from kgserve.client.failures import Unreachable, refusal, translated
from kgserve.client.files import SEQUENCE, complete
from kgserve.client.following import Event, Following
from kgserve.client.lines import Upload
from kgserve.client.retries import Attempts, Retries
from kgserve.client.streams import Paged
from kgserve.client.wire import Call, Streamed
from kgserve.errors import KgserveError, TimedOut, Unavailable
from kgserve.model.answers import Node
from kgserve.reach import Server

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")


class Stream(Generic[T]):
    """Things that come one after another; close it, or use it in a `with` block, when not all are wanted."""

    def __init__(self, items: Generator[T], about: dict[str, Any]) -> None:
        self.about = about
        """What the answer says of itself: of rows the columns and types, and counts in the end."""
        self._items = items

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        return next(self._items)

    def close(self) -> None:
        """End it, and the connection with it."""
        self._items.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Answering(Protocol):
    """What answers: a server, or the stores that are open in this process."""

    def answer(self, call: Call[T]) -> T:
        """The whole answer, asked for again where that is harmless."""
        ...

    def stream(self, streamed: Streamed[T]) -> Stream[T]:
        """The parts of an answer as they come."""
        ...

    def events(self, listener: Following) -> Stream[Event]:
        """What happens, as it happens."""
        ...

    def save(self, call: Call[bytes], path: str | os.PathLike[str]) -> int:
        """Write an answer to a file that appears when it is complete; the sequence that it shows."""
        ...


class Asker(Protocol):
    """Who has a connection."""

    connection: Answering


class StoreAsker(Asker, Protocol):
    """Who asks about one store."""

    name: str


def asks(build: Callable[P, Call[T]]) -> Callable[Concatenate[Asker, P], T]:
    """A method about all stores, or about none."""

    def method(self: Asker, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.connection.answer(build(*args, **kwargs))

    present(method, build, "{}", of_store=False)
    return method


def listens(build: Callable[P, Following]) -> Callable[Concatenate[Asker, P], Stream[Event]]:
    """A method that gives events."""

    def method(self: Asker, /, *args: P.args, **kwargs: P.kwargs) -> Stream[Event]:
        return self.connection.events(build(*args, **kwargs))

    present(method, build, "Stream[Event]", of_store=False)
    return method


def store_asks(build: Callable[Concatenate[str, P], Call[T]]) -> Callable[Concatenate[StoreAsker, P], T]:
    """A method of a store."""

    def method(self: StoreAsker, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.connection.answer(build(self.name, *args, **kwargs))

    present(method, build, "{}", of_store=True)
    return method


def store_pages(build: Callable[Concatenate[str, P], Paged]) -> Callable[Concatenate[StoreAsker, P], Stream[Node]]:
    """A method of a store that gives nodes from all pages."""

    def method(self: StoreAsker, /, *args: P.args, **kwargs: P.kwargs) -> Stream[Node]:
        return Stream(_pages(self.connection, build(self.name, *args, **kwargs)), {})

    present(method, build, "Stream[Node]", of_store=True)
    return method


def store_streams(build: Callable[Concatenate[str, P], Streamed[T]]) -> Callable[Concatenate[StoreAsker, P], Stream[T]]:
    """A method of a store that gives things one after another."""

    def method(self: StoreAsker, /, *args: P.args, **kwargs: P.kwargs) -> Stream[T]:
        return self.connection.stream(build(self.name, *args, **kwargs))

    present(method, build, "Stream[{}]", of_store=True)
    return method


def store_listens(
    build: Callable[Concatenate[str, P], Following],
) -> Callable[Concatenate[StoreAsker, P], Stream[Event]]:
    """A method of a store that gives events."""

    def method(self: StoreAsker, /, *args: P.args, **kwargs: P.kwargs) -> Stream[Event]:
        return self.connection.events(build(self.name, *args, **kwargs))

    present(method, build, "Stream[Event]", of_store=True)
    return method


def _pages(connection: Answering, paged: Paged) -> Generator[Node]:
    page = connection.answer(paged.page())
    yield from page.nodes
    while page.next_cursor is not None:
        page = connection.answer(paged.page(page.next_cursor))
        yield from page.nodes


class Connection:
    """The way to one server, for any number of threads."""

    def __init__(self, target: Target, timeout: float | None, retries: Retries) -> None:
        self.target = target
        self.retries = retries
        self._timeout = timeout
        self._http = httpx.Client(
            verify=target.authorities, trust_env=not target.nearby, limits=LIMITS, headers=target.headers
        )

    def __repr__(self) -> str:
        return f"at {self.target.address.url}"

    def answer(self, call: Call[T]) -> T:
        """The whole answer, asked for again where that is harmless. Raises the errors of `kgserve.client`."""

        def whole(call: Call[T]) -> bytes:
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

    def save(self, call: Call[bytes], path: str | os.PathLike[str]) -> int:
        """Write an answer to a file that appears when it is complete; the sequence that it shows."""
        with self.begun(call) as response, complete(path) as file:
            for block in response.iter_bytes():
                file.write(block)
            return int(response.headers[SEQUENCE])

    @contextmanager
    def begun(self, call: Call[Any]) -> Generator[httpx.Response]:
        """An answer that has begun; what keeps it from beginning is overcome as for a whole one."""
        with ExitStack() as stack:
            yield self._patiently(call, lambda call: stack.enter_context(self.open(call)))

    @contextmanager
    def open(self, call: Call[Any]) -> Generator[httpx.Response]:
        """An answer that is about to come, from whichever node gives it. Raises what the server refuses."""
        try:
            to = self.target.serving(call)
            for left in reversed(range(MOST_MOVES)):
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
    def _sent(self, call: Call[Any], to: Server) -> Generator[httpx.Response]:
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

    def _patiently(self, call: Call[T], send: Callable[[Call[T]], U]) -> U:
        """What ``send`` gives, repeated as `retries` says."""
        attempts = Attempts(self.retries, self.target.addresses)
        while True:
            try:
                return send(call)
            except KgserveError as error:
                if call.spent:
                    raise
                self.rest(attempts.pause_after(error, idempotent=call.idempotent))
