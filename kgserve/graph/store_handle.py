"""Handles to stores, filtered by what the caller may access. Shared by REST, MCP, the CLI and the library.

A use case is a function of a `StoreHandle` (or of `CallerStoreHandles`) and a request. Each interface finds the graph,
decodes the request and renders the answer in its own format.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from typing_extensions import override

from kgserve.errors import Conflict, NoStore
from kgserve.graph.as_of_graph import PastMoment
from kgserve.platform.access.authentication import LOCAL_CALLER, AuthenticatedCaller
from kgserve.platform.codecs import json_decoder
from kgserve.platform.settings import Settings
from kgserve.storage.model.write_batch import WriteBatch
from kgserve.storage.write_planner import WriteReport
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pool import StoreNotOpen, StorePool
from kgserve.stores.scoped_stores import ReplicaReadPermission, scope_stores_to_caller

if TYPE_CHECKING:
    from kgserve.memory.extraction.background_llm_extractor import BackgroundLlmExtractor
    from kgserve.projections.connectors.sink_delivery import SinkDeliveryObserver
    from kgserve.projections.history_follower import HistoryWorker
    from kgserve.projections.text_index_worker import TextIndexWorker


M = TypeVar("M", bound="Callable[..., Any]")
A = TypeVar("A")
R = TypeVar("R")

OPENING_TIMEOUT_SECONDS = 20.0
"""Time that a request waits while another request opens the same store."""
MIN_OPENING_POLL_SECONDS = 0.02
MAX_OPENING_POLL_SECONDS = 0.5


MAX_NONBLOCKING_READ_EDGES = 2_000
"""Edges that a non-blocking read may visit, which takes about a millisecond."""


class JsonEncodedAnswer(bytes, Generic[A]):
    """An answer that is already encoded as JSON."""

    __slots__ = ()


def cast_json_bytes_to_answer(text: bytes) -> JsonEncodedAnswer[Any]:
    """Return JSON bytes typed as an answer. The bytes are not copied, because they may be megabytes."""
    return cast("JsonEncodedAnswer[Any]", text)


class CallerStoreHandles:
    """Access to all stores that one caller may see.

    Search requires ``indexer``, reads of the past require ``historian``, language model calls require ``extractor`` and
    change notifications to connectors require ``syncers``. With ``confined``, folders named in a request must lie below
    those of the server, because the request may come from another machine.
    """

    def __init__(
        self,
        pool: StorePool,
        indexer: TextIndexWorker | None = None,
        historian: HistoryWorker | None = None,
        caller: AuthenticatedCaller = LOCAL_CALLER,
        *,
        confined: bool = True,
        extractor: BackgroundLlmExtractor | None = None,
        syncers: SinkDeliveryObserver | None = None,
    ) -> None:
        self.whole_pool = pool
        """All stores, without access control; used for the server's own metrics and shutdown."""
        self.pool = scope_stores_to_caller(pool, caller)
        self.indexer = indexer
        self.historian = historian
        self.caller = caller
        self.confined = confined
        self.extractor = extractor
        self.syncers = syncers
        self.max_nonblocking_edges = MAX_NONBLOCKING_READ_EDGES
        """Edges that a non-blocking read may visit."""

    @property
    def settings(self) -> Settings:
        """Settings of the server, or of the library user that opened the data folder."""
        return self.pool.settings

    def for_caller(self, caller: AuthenticatedCaller) -> CallerStoreHandles:
        """Return a copy limited to the stores that ``caller`` may access."""
        return self if caller is self.caller else self._restricted_to(caller, None)

    def reading(self, copies: ReplicaReadPermission) -> CallerStoreHandles:
        """Return a copy for reads that may also be served from ``copies``."""
        return self._restricted_to(self.caller, copies)

    def allowing_stale_reads(self) -> CallerStoreHandles:
        """Return a copy for reads that may lag by a second for stores that another cluster node owns."""
        return self.reading(ReplicaReadPermission()) if self.pool.placement.is_shared else self

    def _restricted_to(self, caller: AuthenticatedCaller, copies: ReplicaReadPermission | None) -> CallerStoreHandles:
        restricted = copy(self)
        restricted.caller = caller
        restricted.pool = scope_stores_to_caller(self.whole_pool, caller, copies)
        return restricted

    def graph(self, name: str, *, is_default: bool = False) -> StoreHandle:
        """Return a handle to a store, which need not exist; the first use that needs it raises NotFound.

        is_default: the request named no store, so the default store may still have to be created.
        """
        return StoreHandle(self, name, is_default=is_default)


class StoreHandle:
    """Handle to one store for one caller. Methods raise NotFound if it does not exist or the caller may not see it."""

    __slots__ = ("graphs", "is_default", "most_edges", "name", "pool")

    def __init__(self, graphs: CallerStoreHandles, name: str, *, is_default: bool = False) -> None:
        self.graphs = graphs
        self.name = name
        self.is_default = is_default
        self.pool = graphs.pool
        self.most_edges: int | None = None

    def nonblocking_handle(self) -> StoreHandle:
        """Return a handle whose reads never block.

        They raise WouldBlock where they would have to wait, or visit more than `max_nonblocking_edges`.
        """
        short = StoreHandle(self.graphs, self.name, is_default=self.is_default)
        short.most_edges = self.graphs.max_nonblocking_edges
        return short

    def lease(self, *, create: bool = False) -> AbstractContextManager[OpenStore]:
        """Hold the store open for the duration of a block. May block; with ``create``, creates a missing store."""
        return self.pool.lease(self.name, create=create) if self.most_edges is None else self._lease_open()

    @contextmanager
    def _lease_open(self) -> Generator[OpenStore]:
        store = self.pool.acquire_open(self.name)
        try:
            yield store
        finally:
            self.pool.release(store)

    def handles_including(self, also: Sequence[str]) -> list[StoreHandle]:
        """Return this store and others by name, without duplicates. Raises NoStore if any is missing or not visible.

        All names are checked before a store is opened. A default store that does not exist yet is skipped.
        """
        graphs: list[StoreHandle] = []
        for name in dict.fromkeys((self.name, *also)):
            try:
                self.pool.require(name)
                graphs.append(self if name == self.name else self.graphs.graph(name))
            except NoStore:
                if name != self.name or not self.is_default:
                    raise
        if not graphs:
            raise NoStore(self.name)
        self._require_one_node(graphs)
        return graphs

    def _require_one_node(self, graphs: Sequence[StoreHandle]) -> None:
        """Raise Conflict if the stores are served by different nodes of the cluster."""
        places = (
            {graph.name: self.pool.placement.find_remote_store(graph.name) for graph in graphs}
            if len(graphs) > 1
            else {}
        )
        if len({away and away.node for away in places.values()}) > 1:
            owners = ", ".join(f"{name} by {away.node if away else 'this one'}" for name, away in places.items())
            raise Conflict(
                f"these stores are served by different nodes of the cluster; query each separately: {owners}"
            )

    def resolve_as_of(self, as_of: int | str | None) -> PastMoment | None:
        """Return the moment to read as of; None for the current state."""
        if as_of is None:
            return None
        if self.most_edges is not None:
            raise StoreNotOpen
        return PastMoment(self.graphs.historian, as_of)

    def submit(self, batch: WriteBatch, answer: Callable[[WriteReport], A], *, create: bool = False) -> Future[A]:
        """Queue a batch; ``answer`` converts its report."""
        store = self.pool.acquire(self.name, create=create)
        answered = _LeasedAnswerFuture(partial(self.pool.release, store), answer)
        try:
            store.submit(batch, future=answered, call_later=self._call_later)
        except BaseException:
            self.pool.release(store)
            raise
        return answered

    @property
    def _call_later(self) -> Callable[[Callable[[], None]], object] | None:
        """Scheduler of calls after the requests that have arrived were read; None outside the event loop."""
        return None if self.most_edges is None else asyncio.get_running_loop().call_soon

    def write(
        self, begin: Callable[[OpenStore], Future[R]], answer: Callable[[R], A], *, create: bool = False
    ) -> Future[A]:
        """Begin a write; the store stays leased until its report is available."""
        store = self.pool.acquire(self.name, create=create)
        try:
            begun = begin(store)
        except BaseException:
            self.pool.release(store)
            raise
        begun.add_done_callback(lambda _: self.pool.release(store))
        return map_future(begun, answer)

    def submit_prepared_batch(
        self,
        look: Callable[[OpenStore], R],
        batch: Callable[[OpenStore, R], WriteBatch],
        answer: Callable[[R, int], A],
        *,
        dry_run: bool,
    ) -> Future[A]:
        """Write the batch built from what ``look`` finds while it holds the write lock.

        ``answer`` converts what was found, and a sequence. With ``dry_run``, nothing is written.
        """
        if dry_run:
            with self.lease() as store:
                return completed_future(answer(look(store), store.state.sequence))
        found: list[R] = []

        def prepare(store: OpenStore) -> WriteBatch:
            found.append(look(store))
            return batch(store, found[0])

        return self.write(
            lambda store: store.submit_prepared(lambda: prepare(store)),
            lambda report: answer(found[0], report.sequence),
        )


class _LeasedAnswerFuture(Future[Any]):
    """Future that a write's report completes: ends the lease of its store, and holds the converted report.

    A single future, because each costs a lock; `map_future` makes a second one.
    """

    def __init__(self, end_lease: Callable[[], None], answer: Callable[[Any], Any]) -> None:
        super().__init__()
        self._end_lease, self._answer = end_lease, answer

    @override
    def set_result(self, result: Any) -> None:
        self._end_lease()
        try:
            answer = self._answer(result)
        except BaseException as error:  # noqa: BLE001  # raised where the answer is awaited
            super().set_exception(error)
        else:
            super().set_result(answer)

    @override
    def set_exception(self, exception: BaseException | None) -> None:
        self._end_lease()
        super().set_exception(exception)

    @override
    def cancel(self) -> bool:
        """Refuse: the write is queued, and the store must stay open for it."""
        return False


def completed_future(answer: A) -> Future[A]:
    """Return a completed future."""
    done: Future[A] = Future()
    done.set_result(answer)
    return done


def map_future(found: Future[R], answer: Callable[[R], A]) -> Future[A]:
    """Return a future with the converted result of another future, or with its exception."""
    result: Future[A] = Future()

    def settle(report: Future[R]) -> None:
        if not result.set_running_or_notify_cancel():
            return
        try:
            result.set_result(answer(report.result()))
        except BaseException as error:  # noqa: BLE001  # raised where the answer is awaited
            result.set_exception(error)

    found.add_done_callback(settle)
    return result


def decode_answer_struct(answer: Any, kind: type[A]) -> A:
    """Return an answer as a Struct, decoding it if it is JSON."""
    return json_decoder(kind).decode(answer) if isinstance(answer, bytes) else answer
