"""A data folder opened within one process, with the methods of the client and no server.

Calls are answered by the use cases, where they are. A call says which operation it is of, of which store, and what is
asked; so nothing goes over a wire. A request is read as the server would read it, so that the same is refused with the
same words.

This process has a data folder open once, however often it is asked for. In a notebook a cell that opens a folder is run
again: the second `Handle` then shares what the first has opened. A folder closes with its last handle, and at the
latest when the interpreter exits. Handles that were forgotten do not count, and close nothing: closing blocks, which a
garbage collection must not.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast
from weakref import WeakSet

import msgspec
import structlog
from typing_extensions import override

from kgserve.admin.composition import open_all
from kgserve.api.table import USE_CASES
from kgserve.client.blocking import Answering, Stream
from kgserve.client.clients import Store
from kgserve.client.failures import Attempts, Retries
from kgserve.client.following import Event, Following
from kgserve.client.lines import Upload, complete, json_body
from kgserve.client.methods import StoresMethods
from kgserve.client.wire import ClientRequest, Streamed
from kgserve.errors import Conflict, InvalidInput, KgserveError, Opening
from kgserve.graph import answers, history
from kgserve.graph.cypher import write_transaction
from kgserve.graph.cypher.read import RowStream, stream
from kgserve.graph.events import Delivery, EventReader, EventSubscription
from kgserve.graph.handle import (
    FIRST_OPENING_PAUSE_SECONDS,
    MAX_OPENING_PAUSE_SECONDS,
    OPENING_TIMEOUT_SECONDS,
    Graph,
    Graphs,
)
from kgserve.graph.queries import EntityHistoryRequest
from kgserve.graph.requests import CypherRequest
from kgserve.graph.transfer import transfer
from kgserve.graph.transfer.transfer import Importer
from kgserve.memory import hierarchy
from kgserve.memory.hierarchy_api import AncestorsRequest, BelowRequest
from kgserve.platform.closing import Closing
from kgserve.platform.codecs import decode_json, json_decoder, place_of
from kgserve.platform.lock import DataFolderLock
from kgserve.platform.server_discovery import find, holder
from kgserve.platform.settings import Indexed, Settings, load
from kgserve.storage.model.events import (
    EVERY_OTHER_STORE,
    Position,
    Selection,
    parse_kinds,
    parse_position,
    parse_positions,
)
from kgserve.storage.model.store_names import check_store_name
from kgserve.syncing import BatchSyncer, VectorSyncer

if TYPE_CHECKING:
    from kgserve.projections.connectors.plugs import Syncer

__all__ = ["Library", "Store"]


T = TypeVar("T")
R = TypeVar("R", bound=msgspec.Struct)

_RETRIES = Retries()
_HIERARCHY_READS = {"children": hierarchy.children, "descendants": hierarchy.descendants}
_USE_CASES_BY_NAME = {case.name: case for case in USE_CASES}


OPEN_CALLS_TIMEOUT_SECONDS = 15.0
"""So long calls of other threads are waited for when a folder closes: no read takes longer."""


class _Folder:
    """An open data folder, and the calls that are at work on it."""

    def __init__(self, settings: Settings, syncers: Mapping[str, Syncer] | None) -> None:
        self.settings = settings
        self.syncers = syncers
        self.handles: WeakSet[Handle] = WeakSet()
        self.closed = False
        self._changed = threading.Condition()
        self._calls = 0
        with ExitStack() as undo:
            _take(settings.data_dir, undo)
            self._graphs = open_all(settings, undo, syncers).graphs(confined=False)
            self._stack = undo.pop_all()

    @contextmanager
    def use(self) -> Generator[Graphs]:
        with self._changed:
            if self.closed:
                raise _closed(self.settings.data_dir)
            self._calls += 1
        try:
            yield self._graphs
        finally:
            with self._changed:
                self._calls -= 1
                self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.wait_for(lambda: self._calls == 0, OPEN_CALLS_TIMEOUT_SECONDS)
        self._stack.close()


class Handle:
    """One use of an open data folder; for any number of threads, but not for a process forked from this one."""

    def __init__(self, settings: Settings, syncers: Mapping[str, Syncer] | None = None) -> None:
        """Open the folder, or share it. Raises Conflict when another process has it, or this one in another way."""
        self.path = settings.data_dir
        self._process = os.getpid()
        self._closed = False
        self._folder = _folders.join(self, settings, syncers)

    @property
    def closed(self) -> bool:
        """Whether it can no longer be used."""
        return self._closed or self._folder.closed

    @contextmanager
    def use(self) -> Generator[Graphs]:
        """What is open, for a call that ends with the block. Raises Conflict when it is closed."""
        if self._process != os.getpid():
            raise Conflict(
                f"{self.path} was opened by process {self._process}, from which this one was forked; "
                "serve the folder with `kgserve serve` to use it from several processes, with kgserve.client"
            )
        if self._closed:
            raise _closed(self.path)
        with self._folder.use() as graphs:
            yield graphs

    def close(self) -> None:
        """Use it no more; the last one closes the folder, which blocks until everything is saved."""
        if self._process == os.getpid() and not self._closed:
            self._closed = True
            _folders.leave(self, self._folder)


class _Folders:
    """The open folders of this process, by path."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[Path, _Folder] = {}
        self._of_others: list[dict[Path, _Folder]] = []

    def join(self, handle: Handle, settings: Settings, syncers: Mapping[str, Syncer] | None) -> _Folder:
        with self._lock:
            folder = self._open.get(settings.data_dir)
            if folder is None:
                folder = self._open[settings.data_dir] = _Folder(settings, syncers)
            elif (folder.settings, folder.syncers) != (settings, syncers):
                raise Conflict(f"{settings.data_dir} is open in this process with other options; close it first")
            folder.handles.add(handle)
            return folder

    def leave(self, handle: Handle, folder: _Folder) -> None:
        with self._lock:
            folder.handles.discard(handle)
            if not folder.handles and not folder.closed:
                del self._open[folder.settings.data_dir]
                folder.close()

    def close_all(self) -> None:
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()

    def forget(self) -> None:
        """In a process that was just forked: what is open belongs to the other one, and must not be let go here."""
        self._of_others.append(self._open)
        self._lock, self._open = threading.Lock(), {}


def _take(data_dir: Path, stack: ExitStack) -> None:
    try:
        stack.enter_context(DataFolderLock(data_dir))
    except Conflict:
        raise Conflict(_held(data_dir)) from None
    except OSError as error:
        raise InvalidInput(f"{data_dir} cannot be a data folder: {error.strerror or error}") from error


def _held(data_dir: Path) -> str:
    server = find(data_dir)
    if server is not None:
        return (
            f"{data_dir} is served by process {server.pid} at {server.url}; "
            f"use kgserve.client.Client(data={str(data_dir)!r}) instead, or stop that server"
        )
    return (
        f"{data_dir} is in use by process {holder(data_dir) or 'unknown'}; close it there, or serve the folder "
        f"with `kgserve serve` and use kgserve.client.Client(data={str(data_dir)!r}) in both"
    )


def _closed(data_dir: Path) -> Conflict:
    return Conflict(f"{data_dir} was closed; open it again with kgserve.open({str(data_dir)!r})")


_folders = _Folders()
atexit.register(_folders.close_all)
os.register_at_fork(after_in_child=_folders.forget)


class LocalConnection:
    """The way to the stores of a folder that is open in this process."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    @override
    def __repr__(self) -> str:
        return f"of kgserve.open({str(self._handle.path)!r})"

    def answer(self, call: ClientRequest[T]) -> T:
        """The whole answer. Raises what the use case raises."""
        found = _patiently(self._handle, call, lambda graphs: _settled(_done(graphs, call)))
        return _as_answer(found, call.route.answer)

    def stream(self, streamed: Streamed[T]) -> Stream[T]:
        """The parts of an answer as they come."""
        decoder = streamed.decoder()

        def items() -> Generator[T]:
            with self.begun(streamed.call) as (_, blocks):
                for block in blocks:
                    yield from decoder.feed(block)
                yield from decoder.finish()

        return Stream(items(), decoder.about)

    def events(self, listener: Following) -> Stream[Event]:
        """What happens, as it happens."""
        return Stream(listen(self._handle, listener), {})

    def save(self, call: ClientRequest[bytes], path: str | os.PathLike[str]) -> int:
        """Write an export to a file that appears when it is complete; the sequence that it shows."""
        with self.begun(call) as (sequence, blocks), complete(path) as file:
            file.writelines(blocks)
            return sequence

    @contextmanager
    def begun(self, call: ClientRequest[Any]) -> Generator[tuple[int, Iterator[bytes]]]:
        """The sequence that an export shows, or 0, and the blocks of a stream; between them the library may close."""
        with closing(_patiently(self._handle, call, lambda graphs: _begun(graphs, call))) as blocks:
            yield getattr(blocks, "sequence", 0), _each(self._handle, blocks)


def _patiently(handle: Handle, call: ClientRequest[Any], do: Callable[[Graphs], T]) -> T:
    """What ``do`` answers, repeated as the client repeats what a server refuses for the moment."""
    attempts = Attempts(_RETRIES)
    while True:
        try:
            return _once_open(handle, do)
        except KgserveError as error:
            if call.spent:
                raise
            time.sleep(attempts.pause_after(error, idempotent=call.idempotent))


def _each(handle: Handle, blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Block after block; between them nothing keeps the library from closing."""
    rest = iter(blocks)
    while True:
        with handle.use():
            block = next(rest, b"")
        if not block:
            return
        yield block


def _once_open(handle: Handle, do: Callable[[Graphs], T]) -> T:
    """Waits for a store that somebody else is opening, as a server does."""
    deadline = time.monotonic() + OPENING_TIMEOUT_SECONDS
    pause = FIRST_OPENING_PAUSE_SECONDS
    while True:
        try:
            with handle.use() as graphs:
                return do(graphs)
        except Opening:
            if time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)
        pause = min(2 * pause, MAX_OPENING_PAUSE_SECONDS)


def _done(graphs: Graphs, call: ClientRequest[Any]) -> Any:
    """What the operation of a call answers: a Struct, JSON, or a Future."""
    name = call.route.name
    if isinstance(call.body, Upload):
        return _imported(graphs.graph(call.store or ""), call.body)
    if name == "cypher":
        return write_transaction.run(graphs.graph(call.store or ""), _read(call.asked, CypherRequest))
    if name == "entity_history":
        return history.entity_history(graphs.graph(call.store or ""), _read(call.asked, EntityHistoryRequest)).versions
    if name in _HIERARCHY_READS:
        return _HIERARCHY_READS[name](graphs.graph(call.store or ""), _read(call.asked, BelowRequest)).memories
    if name == "ancestors":
        return hierarchy.ancestors(graphs.graph(call.store or ""), _read(call.asked, AncestorsRequest))
    case = _USE_CASES_BY_NAME[name]
    target = graphs if call.store is None else graphs.graph(call.store)
    return case.ask(target, None if case.request is None else _read(call.asked, case.request))


def _begun(graphs: Graphs, call: ClientRequest[Any]) -> RowStream | transfer.ExportStream:
    graph = graphs.graph(call.store or "")
    if call.route.name == "export":
        return transfer.export(graph, call.asked["valid_at"], graph.past(call.asked["as_of"]))
    return stream(graph, _read(call.asked, CypherRequest), "ndjson")


def _imported(graph: Graph, upload: Upload) -> answers.ImportAnswer:
    importer = Importer(graph)
    try:
        for block in upload.blocks():
            if importer.feed(block):
                importer.flush()
        return importer.finish()
    finally:
        importer.abort()


def _read(asked: Any, kind: type[R]) -> R:
    """A request as the server would read it."""
    try:
        return decode_json(json_body({} if asked is None else asked), kind)
    except msgspec.ValidationError as error:
        fault = place_of(error, kind)
        raise InvalidInput(f"{fault.path}: {fault.message}" if fault.path else fault.message, (fault,)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"this cannot be read as JSON again: {error}") from None


def _settled(answer: Any) -> Any:
    return answer.result() if isinstance(answer, Future) else answer


def _as_answer(found: Any, kind: type[T]) -> T:
    """An answer as the client gives it: some of the client's can do more than the use case's."""
    if isinstance(found, bytes):
        return decode_json(found, kind)
    if isinstance(found, msgspec.Struct) and not isinstance(found, kind):
        return kind(**msgspec.structs.asdict(found))
    return cast("T", found)


LISTENER_POLL_SECONDS = 0.5
"""A listener that waits looks so often whether its library was closed, or it is to end."""

_decode = json_decoder(dict[str, Any]).decode


def listen(handle: Handle, listener: Following) -> Generator[Event]:
    """The events of one store, of several, or of all that there are and will be."""
    query, last = listener.query, listener.last_id
    selection = _selection(_names(query["kinds"]), _names(query["types"]))
    if listener.store is not None:
        store = check_store_name(listener.store)
        at = {store: parse_position(last, "last_event_id")} if last else _after(listener.since)
        return _listening(handle, EventSubscription((store,), at, selection, prefixed=False), listener)
    names = tuple(check_store_name(name) for name in _names(query["store"])) or None
    at = parse_positions(last, "last_event_id") if last else _after(listener.since)
    return _listening(handle, EventSubscription(names, at, selection), listener)


def _listening(handle: Handle, wanted: EventSubscription, listener: Following) -> Generator[Event]:
    """A listener that hears of what happens from now on, not only from when it is first asked."""
    news = threading.Event()
    with handle.use() as graphs:
        reader = EventReader(graphs, wanted, news.set)
        try:
            reader.open()
        except BaseException:
            reader.close()
            raise
    listening = _listen(handle, reader, news, listener)
    next(listening)
    return listening  # pyright: ignore[reportReturnType] - the one None has been taken


def _listen(handle: Handle, reader: EventReader, news: threading.Event, listener: Following) -> Generator[Event | None]:
    try:
        yield None
        last = ""
        while not (handle.closed or listener.ended):
            news.clear()
            with handle.use():
                page = reader.read()
            for each in page.deliveries:
                last = each.id or last
                yield _event(each, last)
            if page.ended:
                return
            while page.idle and not (handle.closed or listener.ended or news.wait(LISTENER_POLL_SECONDS)):
                pass
    finally:
        reader.close()


def _event(delivery: Delivery, place: str) -> Event:
    data = _decode(delivery.data)
    return Event(
        id=place,
        kind=delivery.kind,
        store=data["store"],
        sequence=data["sequence"],
        time=data["time"],
        data=data,
    )


def _selection(kinds: list[str], types: list[str]) -> Selection:
    return Selection(parse_kinds(kinds) if kinds else None, frozenset(types) if types else None)


def _names(given: str | None) -> list[str]:
    """Names with commas between them, each once."""
    return [part for part in dict.fromkeys((given or "").split(",")) if part]


def _after(since: int | None) -> dict[str, Position]:
    return {} if since is None else {EVERY_OTHER_STORE: Position.after(since)}


class Library(StoresMethods, Closing):
    """The stores of a data folder, opened in this process: the methods of `kgserve.client.Client` without a server.

    May be shared by threads. `close` it, or use it in a `with` block; what a method has answered to is on disk anyway.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        history: bool = True,
        indexes: Indexed | bool = True,
        models_dir: str | os.PathLike[str] | None = None,
        embedding_provider: Literal["local", "openai", "hashing"] | None = None,
        syncers: Mapping[str, VectorSyncer | BatchSyncer] | None = None,
    ) -> None:
        """See `kgserve.open`."""
        defer_to_host()
        options: dict[str, Any] = {
            "data_dir": Path(path).resolve(),
            "history": history,
            "indexes": indexes,
            "models_dir": models_dir,
            "embedding_provider": embedding_provider,
        }
        self.handle = Handle(load(options), syncers)
        self.local = LocalConnection(self.handle)
        self.connection: Answering = self.local

    def store(self, name: str) -> Store:
        """One store, whether it exists or not: the first inject makes it."""
        return Store(self.connection, name)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self.handle.closed

    @override
    def close(self) -> None:
        """Save what is open and give the folder back; waits for calls of other threads. Does nothing a second time."""
        self.handle.close()

    @override
    def __repr__(self) -> str:
        return f"kgserve.open({str(self.handle.path)!r})"


def defer_to_host() -> None:
    """Hand log lines to `logging`, under their modules' names, unless the program has configured structlog itself.

    As structlog comes it would write all of them to standard output. `logging` shows warnings on standard error, and
    nothing below them, until the program says otherwise. What was slow interests those who look after a server: of that
    it shows nothing either.
    """
    if structlog.is_configured():
        return
    _show_only_when_asked("kgserve.platform.metrics.slow")
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def _show_only_when_asked(name: str) -> None:
    """`logging` prints a warning that finds no handler, so it finds one that does nothing."""
    logger = logging.getLogger(name)
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
