"""What every mouth holds: the stores of a data folder, and one of them, as one caller sees them.

A use case is a function of a `Graph`, or of `Graphs`, and a request. REST, MCP, the command line and `kgserve.open`
find the graph, read the request, and say the answer in their own way.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from kgserve.errors import Conflict, NoStore
from kgserve.graph.as_of_graph import AsOfMoment
from kgserve.platform.access.authentication import LOCAL_CALLER, Caller
from kgserve.platform.codecs import json_decoder
from kgserve.platform.settings import Settings
from kgserve.storage.model.batch import WriteBatch
from kgserve.storage.plan import Report
from kgserve.stores.access import ReplicaRead, scoped_to
from kgserve.stores.pool import NotOpen, StorePool
from kgserve.stores.store import OpenStore

if TYPE_CHECKING:
    from kgserve.memory.extraction.worker import Extractor
    from kgserve.projections.connectors.syncer import Syncers
    from kgserve.projections.history_follower import Historian
    from kgserve.projections.indexer import Indexer


M = TypeVar("M", bound="Callable[..., Any]")
A = TypeVar("A")
R = TypeVar("R")

OPENING_TIMEOUT_SECONDS = 20.0
"""How long a request waits for a store that is being opened for another."""
FIRST_OPENING_PAUSE_SECONDS = 0.02
MAX_OPENING_PAUSE_SECONDS = 0.5


SHORT_EDGES = 2_000
"""Edges that a read may meet where nothing may wait, which it holds up for about a millisecond."""


class EncodedAnswer(bytes, Generic[A]):
    """An answer that is JSON already, because its rows are."""

    __slots__ = ()


def encoded(text: bytes) -> EncodedAnswer[Any]:
    """A text that is JSON already as the answer that it is. Without a copy: it may be of megabytes."""
    return cast("EncodedAnswer[Any]", text)


class Graphs:
    """The stores that a caller sees. Without ``indexer`` there is no search, without ``historian`` no past.

    Without ``extractor`` no language model is asked, without ``syncers`` nobody is told of contents.
    ``confined``: folders that a request names lie below those of the server, for it is not the caller's machine.
    """

    def __init__(
        self,
        pool: StorePool,
        indexer: Indexer | None = None,
        historian: Historian | None = None,
        caller: Caller = LOCAL_CALLER,
        *,
        confined: bool = True,
        extractor: Extractor | None = None,
        syncers: Syncers | None = None,
    ) -> None:
        self.whole_pool = pool
        """All stores, whoever calls: for the server's own metrics and its stop."""
        self.pool = scoped_to(pool, caller)
        self.indexer = indexer
        self.historian = historian
        self.caller = caller
        self.confined = confined
        self.extractor = extractor
        self.syncers = syncers

    @property
    def settings(self) -> Settings:
        """Those of the server, or of whoever opened the folder."""
        return self.pool.settings

    def seen_by(self, caller: Caller) -> Graphs:
        """The same, with the caller's stores alone."""
        return self if caller is self.caller else self._seen(caller, None)

    def reading(self, copies: ReplicaRead) -> Graphs:
        """The same for reading, from ``copies``, too."""
        return self._seen(self.caller, copies)

    def near_enough(self) -> Graphs:
        """The same for reading what may be a second old where another node of a cluster serves a store."""
        return self.reading(ReplicaRead()) if self.pool.placement.is_shared else self

    def _seen(self, caller: Caller, copies: ReplicaRead | None) -> Graphs:
        seen = copy(self)
        seen.caller = caller
        seen.pool = scoped_to(self.whole_pool, caller, copies)
        return seen

    def graph(self, name: str, *, is_default: bool = False) -> Graph:
        """The store of a name, there or not; the first use that needs it raises NotFound.

        ``is_default``: the request has named none, so that it may be yet to be made.
        """
        return Graph(self, name, is_default=is_default)


class Graph:
    """One store as one caller asks for it. Its methods raise NotFound for one that is not there, or not to be seen."""

    __slots__ = ("graphs", "is_default", "most_edges", "name", "pool")

    def __init__(self, graphs: Graphs, name: str, *, is_default: bool = False) -> None:
        self.graphs = graphs
        self.name = name
        self.is_default = is_default
        self.pool = graphs.pool
        self.most_edges: int | None = None

    def at_once(self) -> Graph:
        """The same where nothing may wait: what would have to raises NotOpen, and TooLong what meets many edges."""
        short = Graph(self.graphs, self.name, is_default=self.is_default)
        short.most_edges = SHORT_EDGES
        return short

    def lease(self, *, create: bool = False) -> AbstractContextManager[OpenStore]:
        """The open store until the end of a block; with ``create`` it is made if need be. May block."""
        return self.pool.lease(self.name, create=create) if self.most_edges is None else self._lease_open()

    @contextmanager
    def _lease_open(self) -> Generator[OpenStore]:
        store = self.pool.acquire_open(self.name)
        try:
            yield store
        finally:
            self.pool.release(store)

    def beside(self, also: Sequence[str]) -> list[Graph]:
        """The store, and others by name, each once. Raises NoStore for one that is not there, or not to be seen.

        All are looked for before one is opened. A default store that is yet to be made is passed over.
        """
        there: list[Graph] = []
        for name in dict.fromkeys((self.name, *also)):
            try:
                self.pool.require(name)
                there.append(self if name == self.name else self.graphs.graph(name))
            except NoStore:
                if name != self.name or not self.is_default:
                    raise
        if not there:
            raise NoStore(self.name)
        self._require_one_node(there)
        return there

    def _require_one_node(self, graphs: Sequence[Graph]) -> None:
        """Raise Conflict when several nodes of a cluster would have to answer together."""
        places = {graph.name: self.pool.placement.away(graph.name) for graph in graphs} if len(graphs) > 1 else {}
        if len({away and away.node for away in places.values()}) > 1:
            named = ", ".join(f"{name} by {away.node if away else 'this one'}" for name, away in places.items())
            raise Conflict(f"these stores are served by different nodes of the cluster, so ask about each: {named}")

    def past(self, as_of: int | str | None) -> AsOfMoment | None:
        """The moment that is named, if one is."""
        if as_of is None:
            return None
        if self.most_edges is not None:
            raise NotOpen
        return AsOfMoment(self.graphs.historian, as_of)

    def submit(self, batch: WriteBatch, answer: Callable[[Report], A], *, create: bool = False) -> Future[A]:
        """Queue a batch; the answer is made of its report."""
        return self.write(lambda store: store.submit(batch), answer, create=create)

    def write(
        self, begin: Callable[[OpenStore], Future[R]], answer: Callable[[R], A], *, create: bool = False
    ) -> Future[A]:
        """Begin a write; the store stays leased until its report is there."""
        store = self.pool.acquire(self.name, create=create)
        try:
            begun = begin(store)
        except BaseException:
            self.pool.release(store)
            raise
        begun.add_done_callback(lambda _: self.pool.release(store))
        return made_of(begun, answer)

    def prepared(
        self,
        look: Callable[[OpenStore], R],
        batch: Callable[[OpenStore, R], WriteBatch],
        told: Callable[[R, int], A],
        *,
        dry_run: bool,
    ) -> Future[A]:
        """Write what ``batch`` makes of what ``look`` finds in the writer's turn; with ``dry_run`` nothing is written.

        ``told`` makes the answer of what was found, and of a sequence.
        """
        if dry_run:
            with self.lease() as store:
                return answered(told(look(store), store.state.sequence))
        found: list[R] = []

        def prepare(store: OpenStore) -> WriteBatch:
            found.append(look(store))
            return batch(store, found[0])

        return self.write(
            lambda store: store.submit_prepared(lambda: prepare(store)), lambda report: told(found[0], report.sequence)
        )


def answered(answer: A) -> Future[A]:
    """The future of an answer that is there already."""
    done: Future[A] = Future()
    done.set_result(answer)
    return done


def made_of(found: Future[R], answer: Callable[[R], A]) -> Future[A]:
    """The future of what is made of what another one leaves; of what that raises, if it does."""
    result: Future[A] = Future()

    def settle(report: Future[R]) -> None:
        if not result.set_running_or_notify_cancel():
            return
        try:
            result.set_result(answer(report.result()))
        except BaseException as error:  # noqa: BLE001  # it belongs to whoever waits for the answer
            result.set_exception(error)

    found.add_done_callback(settle)
    return result


def as_struct(answer: Any, kind: type[A]) -> A:
    """An answer as its Struct, whether it is one or JSON."""
    return json_decoder(kind).decode(answer) if isinstance(answer, bytes) else answer
