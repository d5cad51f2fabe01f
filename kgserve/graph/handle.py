"""What every mouth holds: the stores of a data folder, and one of them, as one caller sees them.

A use case is a function of a `Graph`, or of `Graphs`, and a request. REST, MCP, the command line and `kgserve.open`
find the graph, read the request, and say the answer in their own way.

At the end what callers share, and how much of it one of them may have: threads, waits for indexes, imports and exports.
Callers are told apart by key, or else by address. REST and MCP share the same threads. What is beyond a share waits its
turn without a thread; what is beyond what may wait is refused, with when to come again.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from copy import copy
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, cast

import anyio.to_thread
from anyio import CapacityLimiter

from kgserve.errors import Conflict, Limited, NoStore, Opening
from kgserve.graph.as_of_graph import AsOfMoment
from kgserve.platform.access.authentication import LOCAL, Caller
from kgserve.platform.codecs import json_decoder
from kgserve.platform.settings import Settings
from kgserve.projections.cypher_engine.engine.turns import asker
from kgserve.projections.inbound_links import InboundView
from kgserve.projections.read_your_writes import NotYet, patience
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
        self.inbound: InboundView = ScopedInbound(whole.inbound, caller.sees)
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


class ScopedInbound(InboundView):
    """The links that lead into stores, of the stores that one caller ``sees``."""

    def __init__(self, whole: InboundView, sees: Callable[[str], bool]) -> None:
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
        caller: Caller = LOCAL,
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


T = TypeVar("T")

PATIENCE_SECONDS = 20.0
FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.5

THREADS = 16
TRANSFER_THREADS = 4
"""Threads for reads, for writes, and for statements of either kind; and for what moves much."""
STATEMENTS = 6
"""Threads that the statements of one caller may have."""
STATEMENTS_OPEN = 70
"""Statements of one caller, those that wait for a thread included."""
RETRY_AFTER = 2
"""Seconds after which to come again."""

Kind: TypeAlias = Literal["reads", "writes", "transfers", "statements", "writing_statements"]


class Quota:
    """What each caller may have so much of at once."""

    def __init__(self, name: str, most: int, refusal: str) -> None:
        """``refusal`` is what is said to who has that many, after the number."""
        self.name = name
        self.refused = 0
        self._most = most
        self._refusal = refusal
        self._taken: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        """How much is taken by all callers."""
        return self._taken.total()

    @contextmanager
    def one(self, caller: str) -> Generator[None]:
        """One more of a caller's, until the end of the block. Raises Limited."""
        if self._taken[caller] >= self._most:
            self.refused += 1
            raise Limited(f"{self._most} {self._refusal}", RETRY_AFTER)
        self._taken[caller] += 1
        try:
            yield
        finally:
            self._taken[caller] -= 1
            if not self._taken[caller]:
                del self._taken[caller]


LATELY_SECONDS = 1.0
"""So long after a request has begun more of its kind are expected."""
LONGEST_REST_SECONDS = 1.0


def rest_seconds(worked: float, others: int) -> float:
    """For how long who does much leaves the server to so many others after each part: to each as long as it worked."""
    return min(worked * others, LONGEST_REST_SECONDS)


class Callers:
    """Who has asked lately. Any thread may call."""

    def __init__(self) -> None:
        self._asked: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def asks(self, caller: str) -> None:
        """A request of a caller has been let in."""
        now = time.monotonic()
        with self._lock:
            self._asked[caller] = now
            self._asked.move_to_end(caller)
            while now - next(iter(self._asked.values())) > LATELY_SECONDS:
                self._asked.popitem(last=False)

    def others(self, own: str) -> int:
        """How many have asked lately beside a caller."""
        oldest = time.monotonic() - LATELY_SECONDS
        with self._lock:
            return sum(each != own and at >= oldest for each, at in self._asked.items())

    def has_others(self, own: str) -> bool:
        """Whether any has."""
        return self._are_lately(1, own)

    def are_several(self) -> bool:
        """Whether more than one has asked lately."""
        return self._are_lately(2)

    def _are_lately(self, many: int, but: str | None = None) -> bool:
        """Whether so many have asked lately, not counting one."""
        with self._lock:
            newest = (at for each, at in reversed(self._asked.items()) if each != but)
            at = next(islice(newest, many - 1, None), None)
        return at is not None and time.monotonic() - at <= LATELY_SECONDS


WRITES_AT_ONCE = 2
"""Writes of one caller that are worked on while others ask."""
LONGEST_TURN_SECONDS = 1.0
"""For which a write waits for its turn at most: those before it may wait for a store that cannot be reached."""


class WriteThrottle:
    """Has a caller that writes much at once do so a few at a time, for as long as others ask; of the event loop.

    What is beyond waits here, first come, first served, for a second at most. After each write whose place another one
    waits for, the place rests, as `rest_seconds` says: many who write with one key have the share of a few. Who has
    fewer under way never waits.
    """

    def __init__(self, callers: Callers, queue: Quota) -> None:
        """``queue``: the requests of a caller, among which those that wait here count."""
        self._callers = callers
        self._queue = queue
        self._taken: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def one(self, caller: str) -> AsyncGenerator[None]:
        """One write of a caller, begun in its turn. Raises Limited when too many of its requests wait."""
        if self._must_wait(caller):
            await self._wait(caller)
        else:
            self._taken[caller] += 1
        began = time.perf_counter()
        try:
            yield
        finally:
            self._end(caller, time.perf_counter() - began)

    def _must_wait(self, caller: str) -> bool:
        is_full = self._taken[caller] >= WRITES_AT_ONCE or caller in self._waiting
        return is_full and self._callers.has_others(caller)

    async def _wait(self, caller: str) -> None:
        with self._queue.one(caller):
            loop = asyncio.get_running_loop()
            place = loop.create_future()
            self._waiting.setdefault(caller, deque()).append(place)
            late = loop.call_later(LONGEST_TURN_SECONDS, self._let_in, caller, place)
            try:
                await place
            except asyncio.CancelledError:
                if place.done() and not place.cancelled():
                    self._end(caller, 0.0)
                raise
            finally:
                late.cancel()

    def _let_in(self, caller: str, place: asyncio.Future[None]) -> None:
        """Give one that waits no longer a place beside those that there are."""
        if not place.done():
            self._taken[caller] += 1
            place.set_result(None)

    def _end(self, caller: str, worked: float) -> None:
        if caller in self._waiting and self._taken[caller] <= WRITES_AT_ONCE:
            rest = rest_seconds(worked, self._callers.others(caller))
            asyncio.get_running_loop().call_later(rest, self._pass_on, caller)
        else:
            self._let_go(caller)

    def _pass_on(self, caller: str) -> None:
        """Give a place to who has waited for longest, and more to the others once nobody else asks."""
        waiting = self._waiting.get(caller, deque())
        has_own = True
        while waiting and (has_own or not self._callers.has_others(caller)):
            place = waiting.popleft()
            if not has_own:
                self._let_in(caller, place)
            elif not place.done():
                has_own = False
                place.set_result(None)
        if not waiting:
            self._waiting.pop(caller, None)
        if has_own:
            self._let_go(caller)

    def _let_go(self, caller: str) -> None:
        self._taken[caller] -= 1
        if not self._taken[caller]:
            del self._taken[caller]


class Shares:
    """The threads for one kind of work."""

    def __init__(self, threads: int, each: int, queue: Quota | None = None, waits: Quota | None = None) -> None:
        """``each``: threads that one caller may have; ``queue``: its requests, those that wait for one included.

        ``waits``: those that wait for an index instead, where work may be done over again.
        """
        self._threads = CapacityLimiter(threads)
        self._most = min(each, threads)
        self._each: dict[str, CapacityLimiter] = {}
        self._queue = queue
        self._waits = waits

    async def run(self, work: Callable[[], T], caller: str | None = None) -> T:
        """The result of ``work`` for a caller, the one who asks. Raises Limited when too many of its requests wait."""
        if caller is None:
            caller = asker.get()
        else:
            asker.set(caller)
        with self._share(caller) as share:

            async def in_turn() -> T:
                with self._queue.one(caller) if self._queue is not None else nullcontext():
                    async with share:
                        return await anyio.to_thread.run_sync(work, limiter=self._threads)

            if self._waits is None:
                return await patiently(in_turn)
            return await _put_off(in_turn, self._waits, caller)

    @contextmanager
    def _share(self, caller: str) -> Generator[CapacityLimiter]:
        share = self._each.setdefault(caller, CapacityLimiter(self._most))
        try:
            yield share
        finally:
            found = share.statistics()
            if not found.borrowed_tokens and not found.tasks_waiting:
                self._each.pop(caller, None)


async def _put_off(attempt: Callable[[], Awaitable[T]], waits: Quota, caller: str) -> T:
    """The result of ``attempt``, made again when what it waits for may have come. Raises Limited."""
    token = patience.set({})
    try:
        while True:
            try:
                return await patiently(attempt)
            except NotYet as missing:
                with waits.one(caller):
                    await missing.over()
    finally:
        patience.reset(token)


class Threads:
    """The threads in which requests may block, each kind by itself, so that none takes the places of another.

    What moves much is not refused here: it must come to its end in order, and `transfers` says how much of it may be.
    """

    def __init__(self, settings: Settings) -> None:
        each, waits = settings.max_threads_per_key, settings.max_waits_per_key
        own = settings.max_requests_per_key
        queue = Quota("requests", own, "requests of yours are being worked on, or wait for that; come again shortly")
        waited = Quota("index_waits", waits, "requests of yours wait for an index already; come again shortly")
        stated = Quota("statements", STATEMENTS_OPEN, "statements of yours run already, or wait; come again shortly")
        self.transfers = Quota(
            "transfers", settings.max_transfers_per_key, "imports and exports of yours are open already; end one first"
        )
        self.places = (queue, waited, stated, self.transfers)
        self.callers = Callers()
        self.turns = WriteThrottle(self.callers, queue)
        self.kinds: dict[Kind, Shares] = {
            "reads": Shares(THREADS, each, queue, waited),
            "writes": Shares(THREADS, each, queue),
            "transfers": Shares(TRANSFER_THREADS, TRANSFER_THREADS // 2),
            "statements": Shares(THREADS, STATEMENTS, stated),
            "writing_statements": Shares(THREADS, STATEMENTS, stated),
        }

    async def read(self, work: Callable[[], T]) -> T:
        """The result of ``work``, which may be done over again while it waits for an index."""
        return await self.kinds["reads"].run(work)


async def patiently(attempt: Callable[[], Awaitable[T]]) -> T:
    """The result of ``attempt``, made again while somebody else is opening the store; raises Opening after 20 s."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            return await attempt()
        except Opening:
            if time.monotonic() + pause > deadline:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
