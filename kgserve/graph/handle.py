"""What every mouth holds: the stores of a data folder, and one of them, as one caller sees them.

A use case is a function of a `Graph`, or of `Graphs`, and a request. REST, MCP, the command line and `kgserve.open`
find the graph, read the request, and say the answer in their own way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from copy import copy
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from kgserve.errors import Conflict, NoStore
from kgserve.graph.as_of_graph import AsOfMoment
from kgserve.platform.access.authentication import LOCAL_CALLER, Caller
from kgserve.platform.codecs import json_decoder
from kgserve.platform.settings import Settings
from kgserve.projections.inbound_links import InboundLinks
from kgserve.storage.changefeed import Feed, Feeds, NamedWake
from kgserve.storage.model.batch import WriteBatch
from kgserve.storage.model.rows import LinkRow
from kgserve.storage.model.store_names import check_store_name
from kgserve.storage.model.store_settings import StoreSettings
from kgserve.storage.plan import Report
from kgserve.stores.cluster_api import DrainAnswer
from kgserve.stores.pool import CreateIfMissing, NotOpen, StorePool
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


class CopyReads:
    """That a caller bears with copies of stores which have seen the commit ``at_least``.

    ``sequence`` is the last commit of what was read then.
    """

    def __init__(self, at_least: int = 0) -> None:
        self.at_least = at_least
        self.sequence: int | None = None


def seen_by(pool: StorePool, caller: Caller, copies: CopyReads | None = None) -> StorePool:
    """The pool with the caller's stores alone."""
    return pool if caller.sees_all and copies is None else ScopedPool(pool, caller, copies)


def _for_callers(method: M) -> M:
    """As the pool's. Raises NotFound for a store of others, or a name that would not be the caller's."""

    @wraps(method)
    def checked(self: ScopedPool, name: str, *args: Any, **kwargs: Any) -> Any:
        self.check(name)
        return getattr(self.whole, method.__name__)(name, *args, **kwargs)

    return cast("M", checked)


class ScopedPool(StorePool):
    """A view of ``whole``. It opens and closes nothing of its own, and raises Hidden for names that it hides."""

    def __init__(self, whole: StorePool, caller: Caller, copies: CopyReads | None = None) -> None:
        """With ``copies`` stores are also read where they are not served."""
        # Not super().__init__: that would open a second pool. What is not defined below is not there, and a test looks.
        self.whole = whole
        self._caller = caller
        self._copies = copies
        self.settings = whole.settings
        self.placement = whole.placement
        self.usual = whole.usual
        self.data_dir: Path = whole.data_dir
        self.companions = whole.companions
        self.observation = whole.observation
        self.inbound: InboundLinks = ScopedInbound(whole.inbound, caller.sees)
        self.feeds: Feeds = ScopedFeeds(whole.feeds, self.check, caller.sees)

    def acquire(self, name: str, *, create: CreateIfMissing | bool = False, at_least: int | None = None) -> OpenStore:
        """As the pool's. Raises NotFound for a store of others."""
        self.check(name)
        try:
            return self._read(self.whole.acquire(name, create=create, at_least=self._at_least(at_least)))
        except Conflict:
            self._hide_twin(name)
            raise

    def acquire_open(self, name: str, *, at_least: int | None = None) -> OpenStore:
        """As the pool's. Raises NotFound for a store of others."""
        self.check(name)
        return self._read(self.whole.acquire_open(name, at_least=self._at_least(at_least)))

    def _at_least(self, at_least: int | None) -> int | None:
        return at_least if self._copies is None else self._copies.at_least

    def _read(self, store: OpenStore) -> OpenStore:
        if self._copies is not None:
            self._copies.sequence = store.state.sequence
        return store

    def release(self, store: OpenStore) -> None:
        """As the pool's."""
        self.whole.release(store)

    def create(self, name: str, chosen: StoreSettings | None = None) -> bool:
        """As the pool's. Raises NotFound for a name that would not be the caller's."""
        self.check(name)
        wish = CreateIfMissing(chosen)
        with self.lease(name, create=wish):
            return wish.made

    drop = _for_callers(StorePool.drop)
    move = _for_callers(StorePool.move)
    repair = _for_callers(StorePool.repair)
    held_open = _for_callers(StorePool.held_open)
    unopened = _for_callers(StorePool.unopened)
    require = _for_callers(StorePool.require)
    require_files = _for_callers(StorePool.require_files)
    layout = _for_callers(StorePool.layout)
    staging = _for_callers(StorePool.staging)

    def drain(self, *, undo: bool) -> DrainAnswer:
        """As the pool's. Raises Forbidden for who sees some stores only."""
        self._caller.require_every_store("draining a node")
        return self.whole.drain(undo=undo)

    def names(self) -> list[str]:
        """The caller's stores, in order."""
        return [name for name in self.whole.names() if self._caller.sees(name)]

    def here(self) -> list[str]:
        """Those of the caller's stores that this server serves, in order."""
        return [name for name in self.whole.here() if self._caller.sees(name)]

    def open_stores(self) -> dict[str, OpenStore]:
        """Those of the caller's stores that are open now."""
        return {name: store for name, store in self.whole.open_stores().items() if self._caller.sees(name)}

    def adopt(self, name: str, folder: Path) -> None:
        """As the pool's. Raises NotFound for a name that would not be the caller's."""
        self.check(name)
        try:
            self.whole.adopt(name, folder)
        except Conflict:
            self._hide_twin(name)
            raise

    def close(self) -> None:
        """Nothing: the pool belongs to who opened it."""

    def check(self, name: str) -> None:
        """Raises Hidden for a store of others."""
        check_store_name(name)
        self._caller.require_store(name)

    def _hide_twin(self, name: str) -> None:
        """A name that differs in case alone from that of a store of others cannot be had, and that is all to say."""
        if not self.placement.exists(name) and any(
            other.lower() == name.lower() and not self._caller.sees(other) for other in self.whole.names()
        ):
            raise Conflict(f"a store cannot be called {name!r}; choose another name") from None


class OpenStores(StorePool):
    """Of a pool only the stores that are open at the moment; to be had without blocking, or else NotOpen is raised."""

    def __init__(self, whole: StorePool) -> None:
        # As in ScopedPool.
        self._whole = whole
        self.settings = whole.settings

    def acquire(self, name: str, *, create: CreateIfMissing | bool = False, at_least: int | None = None) -> OpenStore:  # noqa: ARG002 - one that is open is there
        """As `StorePool.acquire_open`."""
        return self._whole.acquire_open(name, at_least=at_least)

    def release(self, store: OpenStore) -> None:
        """As the pool's."""
        self._whole.release(store)


class ScopedInbound(InboundLinks):
    """The links that lead into stores, of the stores that one caller ``sees``."""

    def __init__(self, whole: InboundLinks, sees: Callable[[str], bool]) -> None:
        # As in ScopedPool.
        self._whole = whole
        self._sees = sees

    def to(self, store: str, targets: Collection[str]) -> list[tuple[str, LinkRow]]:
        """As the view's, of the caller's stores alone."""
        return [each for each in self._whole.to(store, targets) if self._sees(each[0])]

    def counts(self, store: str, *, may_open: bool = True) -> list[tuple[str, int]]:
        """As the view's, of the caller's stores alone."""
        return [each for each in self._whole.counts(store, may_open=may_open) if self._sees(each[0])]

    def position(self, stores: Collection[str]) -> dict[str, int]:
        """As the view's."""
        return self._whole.position(stores)


class ScopedFeeds(Feeds):
    """The feeds of a pool for one caller; ``check`` raises for the stores of others, which ``sees`` does not know."""

    def __init__(self, whole: Feeds, check: Callable[[str], None], sees: Callable[[str], bool]) -> None:
        self._whole = whole
        self._check = check
        self._sees = sees

    @property
    def turn(self) -> int:
        """As the feeds'. It moves for the stores of others as well, and shows nothing of them."""
        return self._whole.turn

    def of(self, store: str) -> Feed:
        """As the feeds'. Raises NotFound for a store of others."""
        self._check(store)
        return self._whole.of(store)

    def arrival(self, store: str) -> int | None:
        """As the feeds'. Raises NotFound for a store of others."""
        self._check(store)
        return self._whole.arrival(store)

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """As the feeds'."""
        return self._whole.listen(wake)

    def listen_by_name(self, wake: NamedWake) -> Callable[[], None]:
        """As the feeds', for the caller's stores alone."""

        def choose(store: str) -> None:
            if self._sees(store):
                wake(store)

        return self._whole.listen_by_name(choose)


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
        self.pool = seen_by(pool, caller)
        self.indexer = indexer
        self.historian = historian
        self.caller = caller
        self.confined = confined
        self.extractor = extractor
        self.syncers = syncers
        self._whole = pool

    @property
    def settings(self) -> Settings:
        """Those of the server, or of whoever opened the folder."""
        return self.pool.settings

    def seen_by(self, caller: Caller) -> Graphs:
        """The same, with the caller's stores alone."""
        return self if caller is self.caller else self._seen(caller, None)

    def reading(self, copies: CopyReads) -> Graphs:
        """The same for reading, from ``copies``, too."""
        return self._seen(self.caller, copies)

    def near_enough(self) -> Graphs:
        """The same for reading what may be a second old where another node of a cluster serves a store."""
        return self.reading(CopyReads()) if self.pool.placement.is_shared else self

    def _seen(self, caller: Caller, copies: CopyReads | None) -> Graphs:
        seen = copy(self)
        seen.caller = caller
        seen.pool = seen_by(self._whole, caller, copies)
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
        short.pool = OpenStores(self.pool)
        short.most_edges = SHORT_EDGES
        return short

    def lease(self, *, create: bool = False) -> AbstractContextManager[OpenStore]:
        """The open store until the end of a block; with ``create`` it is made if need be. May block."""
        return self.pool.lease(self.name, create=create)

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
