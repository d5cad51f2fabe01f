"""The client that waits: what `kgserve.client.operations` describes, sent over httpx."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

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


class Connection:
    """The way to one server, for any number of threads."""

    def __init__(self, target: Target, timeout: float | None, retries: Retries) -> None:
        self.target = target
        self.retries = retries
        self._timeout = timeout
        self._http = httpx.Client(verify=target.authorities, trust_env=not target.nearby, limits=LIMITS)

    def answer(self, call: Call[T]) -> T:
        """The whole answer, asked for again where that is harmless. Raises the errors of `kgserve.client`."""

        def whole(call: Call[T]) -> bytes:
            with self.open(call) as response:
                return response.read()

        return call.decode(self._patiently(call, whole))

    @contextmanager
    def begun(self, call: Call[Any]) -> Generator[httpx.Response]:
        """An answer that has begun; what keeps it from beginning is overcome as for a whole one."""
        with ExitStack() as stack:
            yield self._patiently(call, lambda call: stack.enter_context(self.open(call)))

    @contextmanager
    def open(self, call: Call[Any]) -> Generator[httpx.Response]:
        """An answer that is about to come. Raises what the server refuses."""
        address = self.target.address
        body = call.body.blocks() if isinstance(call.body, Upload) else call.body
        with (
            translated(address.url),
            self._http.stream(
                call.route.method,
                address.url + call.path,
                content=body,
                headers=call.headers | address.headers,
                timeout=limit(call, self._timeout),
            ) as response,
        ):
            if not response.is_success:
                raise refusal(response.status_code, response.headers, response.read())
            yield response

    def rest(self, pause: float) -> None:
        """Wait before asking again, and look where the server is by then."""
        time.sleep(pause)
        self.target.look_again()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _patiently(self, call: Call[T], send: Callable[[Call[T]], U]) -> U:
        """What ``send`` gives, repeated as `retries` says."""
        attempts = Attempts(self.retries)
        while True:
            try:
                return send(call)
            except KgserveError as error:
                if call.spent:
                    raise
                self.rest(attempts.pause_after(error, idempotent=call.idempotent))


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


def _pages(connection: Connection, paged: Paged) -> Generator[Node]:
    page = connection.answer(paged.page())
    yield from page.nodes
    while page.next_cursor is not None:
        page = connection.answer(paged.page(page.next_cursor))
        yield from page.nodes


def _stream(connection: Connection, streamed: Streamed[T]) -> Stream[T]:
    decoder = streamed.decoder()

    def items() -> Generator[T]:
        with connection.begun(streamed.call) as response:
            for block in response.iter_bytes():
                yield from decoder.feed(block)
            yield from decoder.finish()

    return Stream(items(), decoder.about)


def _follow(connection: Connection, listener: Following) -> Generator[Event]:
    while not listener.ended:
        trouble: KgserveError | None = None
        try:
            with connection.open(listener.call()) as response:
                for chunk in response.iter_bytes():
                    yield from listener.take(chunk)
        except KgserveError as error:
            trouble = error
        pause = listener.pause_after(trouble, connection.retries)
        if not listener.ended:
            connection.rest(pause)


def _asks(build: Callable[P, Call[T]]) -> Callable[Concatenate[Client, P], T]:
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.connection.answer(build(*args, **kwargs))

    present(method, build, "{}", of_store=False)
    return method


def _listens(build: Callable[P, Following]) -> Callable[Concatenate[Client, P], Stream[Event]]:
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Stream[Event]:
        return Stream(_follow(self.connection, build(*args, **kwargs)), {})

    present(method, build, "Stream[Event]", of_store=False)
    return method


def _store_asks(build: Callable[Concatenate[str, P], Call[T]]) -> Callable[Concatenate[Store, P], T]:
    def method(self: Store, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.connection.answer(build(self.name, *args, **kwargs))

    present(method, build, "{}", of_store=True)
    return method


def _store_pages(build: Callable[Concatenate[str, P], Paged]) -> Callable[Concatenate[Store, P], Stream[Node]]:
    def method(self: Store, /, *args: P.args, **kwargs: P.kwargs) -> Stream[Node]:
        return Stream(_pages(self.connection, build(self.name, *args, **kwargs)), {})

    present(method, build, "Stream[Node]", of_store=True)
    return method


def _store_streams(build: Callable[Concatenate[str, P], Streamed[T]]) -> Callable[Concatenate[Store, P], Stream[T]]:
    def method(self: Store, /, *args: P.args, **kwargs: P.kwargs) -> Stream[T]:
        return _stream(self.connection, build(self.name, *args, **kwargs))

    present(method, build, "Stream[{}]", of_store=True)
    return method


def _store_listens(build: Callable[Concatenate[str, P], Following]) -> Callable[Concatenate[Store, P], Stream[Event]]:
    def method(self: Store, /, *args: P.args, **kwargs: P.kwargs) -> Stream[Event]:
        return Stream(_follow(self.connection, build(self.name, *args, **kwargs)), {})

    present(method, build, "Stream[Event]", of_store=True)
    return method


class Client:
    """A server: the one named by ``url``, else the one that serves the folder ``data``, else the configured address.

    ``key`` is sent along; by default KGSERVE_KEY, else the token that the data folder names. ``timeout`` is how many
    seconds an answer may take; None is for ever. ``retries`` says how often and how long to try again; 0 turns that
    off. May be shared by threads.
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
        self.connection = Connection(Target(url, data, key), timeout, patience)

    health = _asks(ask.health)
    ready = _asks(ask.ready)
    openapi = _asks(ask.openapi)
    stores = _asks(ask.stores)
    create = _asks(settings_of.create)
    drop = _asks(ask.drop)
    backup_stores = _asks(backups_of.backup_stores)
    restore_backup = _asks(backups_of.restore_backup)
    events = _listens(ask.events)

    def store(self, name: str) -> Store:
        """One store, whether it exists or not: the first inject makes it."""
        return Store(self.connection, name)

    def close(self) -> None:
        """Close the connections."""
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.connection.target.address.url!r})"


class Store:
    """One store of a server."""

    def __init__(self, connection: Connection, name: str) -> None:
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

    def export_to(self, path: str | os.PathLike[str]) -> int:
        """Write an export to a file that appears when it is complete; the sequence that it shows."""
        with self.connection.begun(ask.export(self.name).call) as response, complete(path) as file:
            for block in response.iter_bytes():
                file.write(block)
            return int(response.headers[SEQUENCE])

    def __repr__(self) -> str:
        return f"<Store {self.name!r} at {self.connection.target.address.url}>"
