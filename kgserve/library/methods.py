"""Methods of the library, made of the client's descriptions and the work that each stands for.

A description (`kgserve.client.operations`) gives a method its name, parameters, answer and words, and says whether it
may be tried again; the work is a function of `kgserve.library.work`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import closing
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

import msgspec

from kgserve.client.blocking import Stream
from kgserve.client.connection import present
from kgserve.client.following import Event, Following
from kgserve.client.lines import Upload
from kgserve.client.operations import Paged
from kgserve.client.retries import Attempts, Retries
from kgserve.client.wire import Call, Streamed
from kgserve.errors import KgserveError, Opening
from kgserve.library.folder import Handle
from kgserve.library.work import page, read
from kgserve.model.answers import Node, NodePage
from kgserve.ops import opening
from kgserve.views.opening import Opened

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", bound=msgspec.Struct)

_RETRIES = Retries()


class OfLibrary(Protocol):
    """What the methods of a library need of it."""

    handle: Handle


class OfStore(Protocol):
    """What the methods of a store need of it."""

    handle: Handle
    name: str


class Blocks(Protocol):
    """Text in pieces, to be closed."""

    def __iter__(self) -> Iterator[bytes]: ...

    def close(self) -> None:
        """Let it go."""


def asks(
    build: Callable[P, Call[T]], do: Callable[Concatenate[Opened, P], Any]
) -> Callable[Concatenate[OfLibrary, P], T]:
    """A method of a library."""

    def method(self: OfLibrary, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return carry_out(self.handle, build(*args, **kwargs), lambda opened: do(opened, *args, **kwargs))

    present(method, build, "{}", of_store=False)
    return method


def store_asks(
    build: Callable[Concatenate[str, P], Call[T]], do: Callable[Concatenate[Opened, str, P], Any]
) -> Callable[Concatenate[OfStore, P], T]:
    """A method of a store whose work takes the method's own parameters."""

    def method(self: OfStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        call = build(self.name, *args, **kwargs)
        return carry_out(self.handle, call, lambda opened: do(opened, self.name, *args, **kwargs))

    present(method, build, "{}", of_store=True)
    return method


def store_sends(
    build: Callable[Concatenate[str, P], Call[T]], kind: type[R], do: Callable[[Opened, str, R], Any]
) -> Callable[Concatenate[OfStore, P], T]:
    """A method of a store whose parameters come to a request."""

    def method(self: OfStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        call = build(self.name, *args, **kwargs)
        request = _request(call, kind)
        return carry_out(self.handle, call, lambda opened: do(opened, self.name, request))

    present(method, build, "{}", of_store=True)
    return method


def store_uploads(
    build: Callable[Concatenate[str, P], Call[T]], do: Callable[[Opened, str, Upload], Any]
) -> Callable[Concatenate[OfStore, P], T]:
    """A method of a store that takes lines."""

    def method(self: OfStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        call = build(self.name, *args, **kwargs)
        upload = cast("Upload", call.body)
        return carry_out(self.handle, call, lambda opened: do(opened, self.name, upload))

    present(method, build, "{}", of_store=True)
    return method


def store_pages(build: Callable[Concatenate[str, P], Paged]) -> Callable[Concatenate[OfStore, P], Stream[Node]]:
    """A method of a store that gives nodes from all pages."""

    def method(self: OfStore, /, *args: P.args, **kwargs: P.kwargs) -> Stream[Node]:
        return Stream(_nodes(self.handle, build(self.name, *args, **kwargs)), {})

    present(method, build, "Stream[Node]", of_store=True)
    return method


def store_streams(
    build: Callable[Concatenate[str, P], Streamed[T]], do: Callable[Concatenate[Opened, str, P], Blocks]
) -> Callable[Concatenate[OfStore, P], Stream[T]]:
    """A method of a store that gives things one after another; its work takes the method's own parameters."""

    def method(self: OfStore, /, *args: P.args, **kwargs: P.kwargs) -> Stream[T]:
        streamed = build(self.name, *args, **kwargs)
        return _stream(self.handle, streamed, lambda opened: do(opened, self.name, *args, **kwargs))

    present(method, build, "Stream[{}]", of_store=True)
    return method


def store_streams_sent(
    build: Callable[Concatenate[str, P], Streamed[T]], kind: type[R], do: Callable[[Opened, str, R], Blocks]
) -> Callable[Concatenate[OfStore, P], Stream[T]]:
    """As `store_streams`, where the parameters come to a request."""

    def method(self: OfStore, /, *args: P.args, **kwargs: P.kwargs) -> Stream[T]:
        streamed = build(self.name, *args, **kwargs)
        request = _request(streamed.call, kind)
        return _stream(self.handle, streamed, lambda opened: do(opened, self.name, request))

    present(method, build, "Stream[{}]", of_store=True)
    return method


def listens(
    build: Callable[P, Following], do: Callable[Concatenate[Handle, P], Generator[Event]]
) -> Callable[Concatenate[OfLibrary, P], Stream[Event]]:
    """A method of a library that gives events."""

    def method(self: OfLibrary, /, *args: P.args, **kwargs: P.kwargs) -> Stream[Event]:
        return Stream(do(self.handle, *args, **kwargs), {})

    present(method, build, "Stream[Event]", of_store=False)
    return method


def store_listens(
    build: Callable[Concatenate[str, P], Following], do: Callable[Concatenate[Handle, str, P], Generator[Event]]
) -> Callable[Concatenate[OfStore, P], Stream[Event]]:
    """A method of a store that gives events."""

    def method(self: OfStore, /, *args: P.args, **kwargs: P.kwargs) -> Stream[Event]:
        return Stream(do(self.handle, self.name, *args, **kwargs), {})

    present(method, build, "Stream[Event]", of_store=True)
    return method


def carry_out(handle: Handle, call: Call[T], do: Callable[[Opened], Any]) -> T:
    """The answer of a call, as the client gives it; what passes by itself is tried again where that is harmless."""
    answer = patiently(handle, call, lambda opened: _settled(do(opened)))
    kind = call.route.answer
    # Some answers of the client are more than the use case's: they can be drawn, and turned into tables.
    return kind(**msgspec.structs.asdict(answer)) if _is_more(kind, type(answer)) else answer


def patiently(handle: Handle, call: Call[Any], do: Callable[[Opened], T]) -> T:
    """What ``do`` gives, repeated as the client would repeat it."""
    attempts = Attempts(_RETRIES)
    while True:
        try:
            return _once_open(handle, do)
        except KgserveError as error:
            if call.spent:
                raise
            time.sleep(attempts.pause_after(error, idempotent=call.idempotent))


def _once_open(handle: Handle, do: Callable[[Opened], T]) -> T:
    """What ``do`` gives, made again while another thread is opening the store. Raises Opening after 20 s."""
    deadline = time.monotonic() + opening.PATIENCE_SECONDS
    pause = opening.FIRST_PAUSE_SECONDS
    while True:
        try:
            with handle.use() as opened:
                return do(opened)
        except Opening:
            if time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)
        pause = min(2 * pause, opening.LONGEST_PAUSE_SECONDS)


def each(handle: Handle, blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Block after block; between them nothing keeps the library from closing."""
    rest = iter(blocks)
    while True:
        with handle.use():
            block = next(rest, b"")
        if not block:
            return
        yield block


def _stream(handle: Handle, streamed: Streamed[T], do: Callable[[Opened], Blocks]) -> Stream[T]:
    decoder = streamed.decoder()

    def items() -> Generator[T]:
        with closing(patiently(handle, streamed.call, do)) as blocks:
            for block in each(handle, blocks):
                yield from decoder.feed(block)
            yield from decoder.finish()

    return Stream(items(), decoder.about)


def _nodes(handle: Handle, paged: Paged) -> Generator[Node]:
    found = _page(handle, paged, None)
    yield from found.nodes
    while found.next_cursor is not None:
        found = _page(handle, paged, found.next_cursor)
        yield from found.nodes


def _page(handle: Handle, paged: Paged, cursor: str | None) -> NodePage:
    return carry_out(handle, paged.page(cursor), lambda opened: page(opened, paged, cursor))


def _request(call: Call[Any], kind: type[R]) -> R:
    return read(cast("bytes", call.body), kind)


def _is_more(kind: Any, than: type) -> bool:
    return isinstance(kind, type) and kind is not than and issubclass(kind, than)


def _settled(answer: Any) -> Any:
    return answer.result() if isinstance(answer, Future) else answer
