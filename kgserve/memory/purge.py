"""Erasing: memories that are gone from the rows leave every file of their store, while others read and write.

What is to go is durable before any of it goes. Each step comes to the same when it is done twice, so an erasure that a
crash has broken off begins again when its store opens, and memories that it had not yet deleted are gone by then.
"""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import closing

import msgspec
import structlog

from kgserve.embedding.cache import EmbeddingCache, text_key
from kgserve.errors import KgserveError, Unavailable
from kgserve.memory.consolidation.apply import runs_of
from kgserve.memory.consolidation.plan import RunRecord, run_of
from kgserve.memory.reflect_api import ReflectionRecord, record_of
from kgserve.platform.durable_files import storing
from kgserve.projections.base import Erasure
from kgserve.projections.follower import BackgroundProjection
from kgserve.projections.history.history import History
from kgserve.projections.history_follower import Historian, HistoryFollower
from kgserve.projections.index_base import StoreIndex
from kgserve.projections.indexer import Indexer
from kgserve.projections.indexes import Indexes
from kgserve.projections.schedule import FollowerStopped
from kgserve.projections.text import Text
from kgserve.storage.model.batch import KIND_CONSOLIDATION, KIND_REFLECTION, NodePut, WriteBatch
from kgserve.storage.model.rows import NodeRow
from kgserve.storage.rows.snapshot import Rows
from kgserve.stores.purge_record import Intention, PurgeResult, PurgeTargets, intend, intended, settled
from kgserve.stores.store import OpenStore

log = structlog.get_logger()

PURGE_INDEX_TIMEOUT_SECONDS = 60.0
"""So long an index may take to see what was deleted; what it lacks after that it takes from the rows."""
PURGE_RETRY_SECONDS = 10.0
_PURGE_PENDING_MESSAGE = (
    "the memories are gone from every read, and the erasure is noted: it is completed in the background, and when the "
    "store opens again"
)


class Purger:
    """A companion of the pool, the last one: erases in every store while it is open."""

    of_copies = False

    def __init__(self, indexer: Indexer | None, historian: Historian | None) -> None:
        self._indexer = indexer
        self._historian = historian
        self._open: dict[str, StoreEraser] = {}
        self._lock = threading.Lock()

    def opened(self, store: OpenStore) -> None:
        """Complete what was begun, and be there for more."""
        indexes = None if self._indexer is None else self._indexer.of(store)
        history = None if self._historian is None else self._historian.found(store)
        eraser = store.eraser = StoreEraser(store, indexes, history)
        with self._lock:
            self._open[store.name] = eraser
        eraser.resume()

    def closing(self, store: OpenStore) -> None:
        """Leave what is under way to the next time; blocks until nothing is."""
        with self._lock:
            eraser = self._open.pop(store.name, None)
        if eraser is not None:
            eraser.stop()
            eraser.wait()

    def halt(self) -> None:
        """All stores are about to close: begin nothing new."""
        with self._lock:
            for eraser in self._open.values():
                eraser.stop()


class StoreEraser:
    """Erases in one open store, one erasure after the other, each in a thread of its own."""

    def __init__(self, store: OpenStore, indexes: Indexes | None, history: HistoryFollower | None) -> None:
        self._store = store
        self._indexes = indexes
        self._history = history
        self._turn = threading.Lock()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def erase(self, find: Callable[[Rows], PurgeTargets]) -> Future[PurgeResult]:
        """See `store.Eraser`. The future raises what ``find`` does, StorageFull and Unavailable."""
        done: Future[PurgeResult] = Future()
        self._start(lambda: self._erase(find, done))
        return done

    def resume(self) -> None:
        """Complete what was begun before the store was opened: rows at once, all else in the background."""
        if (intention := intended(self._store.layout)) is None:
            return
        log.info("erasing_resumed", store=self._store.name, nodes=len(intention.ids))
        intention = self._without_rows(intention)
        self._start(lambda: self._complete_in_turn(intention))

    def stop(self) -> None:
        """Let what is under way end soon."""
        self._stopping.set()

    def wait(self) -> None:
        """Block until nothing is under way."""
        for thread in self._threads:
            thread.join()

    def _start(self, work: Callable[[], None]) -> None:
        self._threads = [each for each in self._threads if each.is_alive()]
        thread = threading.Thread(target=work, name=f"eraser-{self._store.name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _complete_in_turn(self, intention: Intention) -> None:
        with self._turn:
            self._complete(intention, Future())

    def _erase(self, find: Callable[[Rows], PurgeTargets], done: Future[PurgeResult]) -> None:
        with self._turn:
            try:
                self._check()
                doomed, intention = self._begin(find)
            except BaseException as error:  # noqa: BLE001  # it is the caller's, whatever it is
                done.set_exception(
                    Unavailable("this store is closing") if isinstance(error, FollowerStopped) else error
                )
                return
            if intention is not None:
                self._complete(intention, done)
            if not done.done():
                through = self._store.state.sequence if intention is None else intention.through
                done.set_result(PurgeResult(doomed.first, through))

    # Beginning

    def _begin(self, find: Callable[[Rows], PurgeTargets]) -> tuple[PurgeTargets, Intention | None]:
        """Note what is to go, and delete it in the same turn of the writer; None where nothing is."""
        store, begun = self._store, list[tuple[PurgeTargets, Intention | None]]()
        if self._history is not None:
            # What was deleted before is found in it, and it may be minutes behind.
            self._await(self._history, store.state.sequence)
        with store.reading() as rows:
            # What is looked for in files is found here, where no writer waits for it.
            if not (doomed := find(rows)).ids:
                return doomed, None

        def prepare() -> WriteBatch:
            with store.reading() as rows:
                doomed = find(rows)
            puts = _runs_without(store, doomed.ids)
            intention = self._intention(doomed, puts) if doomed.ids else None
            begun.append((doomed, intention))
            if intention is None:
                return WriteBatch()
            with storing(f"noting what is to be erased of store {store.name!r}"):
                intend(store.layout, intention)
            # Who listens is still to be told that they are gone: all before that goes.
            store.journal.begin_segment()
            return _deletion([row.id for row in doomed.rows], puts)

        try:
            store.submit_prepared(prepare).result()
        except BaseException:
            if begun and begun[0][1] is not None:
                settled(store.layout)
            raise
        return begun[0]

    def _intention(self, doomed: PurgeTargets, puts: Sequence[NodePut]) -> Intention:
        before = self._store.state.sequence
        through = before + bool(doomed.rows or puts)
        return Intention(doomed.ids, [put.id for put in puts], before, through, self._texts(doomed.rows))

    def _texts(self, rows: Iterable[NodeRow]) -> list[str]:
        """What names the kept vectors of some rows."""
        if self._indexes is None:
            return []
        model, indexed = self._indexes.vector.model, self._store.description.indexed_attributes
        texts = (text for row in rows for text in (Text.of(row), Text.of(row, indexed)))
        meanings = {text.meaning for text in texts if text.meaning}
        return sorted(text_key(model, meaning).hex() for meaning in meanings)

    def _without_rows(self, intention: Intention) -> Intention:
        """Delete what a crash has left of the rows; those that were written since have nothing to do with it."""
        store = self._store
        with store.reading() as rows:
            left = [row.id for row in rows.nodes(intention.ids).values() if row.sequence <= intention.through]
        if not left:
            return intention
        puts = _runs_without(store, intention.ids)
        before = store.end_segment()
        report = store.submit(_deletion(left, puts)).result()
        former = [*{*intention.former, *(put.id for put in puts)}]
        intention = msgspec.structs.replace(intention, former=former, before=before, through=report.sequence)
        intend(store.layout, intention)
        return intention

    # Completing

    def _complete(self, intention: Intention, done: Future[PurgeResult]) -> None:
        """Do all that is left, as often as need be; who waits is told after the first failure."""
        started = time.perf_counter()
        while not self._stopping.is_set():
            try:
                self._clean(intention)
            except FollowerStopped:
                break
            except (KgserveError, OSError, sqlite3.Error) as error:
                log.warning("erasing_failed", store=self._store.name, retry_in=PURGE_RETRY_SECONDS, error=str(error))
                _fail(done, f"{_PURGE_PENDING_MESSAGE}; just now: {error}")
                self._stopping.wait(PURGE_RETRY_SECONDS)
            else:
                seconds = round(time.perf_counter() - started, 3)
                log.info("erased", store=self._store.name, nodes=len(intention.ids), seconds=seconds)
                return
        _fail(done, _PURGE_PENDING_MESSAGE)

    def _clean(self, intention: Intention) -> None:
        store, before = self._store, intention.before
        if store.journal.end.segment <= before:
            # It was broken off before the segment had ended.
            before = store.end_segment()
        for view in self._views:
            self._await(view, max(intention.through, before))
        intention = self._with_former_texts(intention)
        self._let_go(intention)
        with store.commits.keeping(alone=True):
            store.erase(before, intention.ids)
            self._check()
            # Last, for an index that was behind may have kept a vector once more.
            if self._indexes is not None:
                with closing(EmbeddingCache(store.layout.embeddings)) as cache:
                    cache.forget([bytes.fromhex(text) for text in intention.texts])
        settled(store.layout)

    @property
    def _views(self) -> list[BackgroundProjection]:
        """Those who follow the journal."""
        both = () if self._indexes is None else (self._indexes.keyword, self._indexes.vector)
        indexes = [view for view in both if view.is_kept]
        return [view for view in (self._history, *indexes) if view is not None]

    def _with_former_texts(self, intention: Intention) -> Intention:
        """With the vectors of all that they have ever said, as long as the history knows."""
        history = self._history
        if self._indexes is None or history is None or history.turned_off:
            return intention
        through = intention.through
        states = [
            state
            for node_id in intention.ids
            for state in history.look(lambda known, each=node_id: known.node_states_until(each, through))
        ]
        texts = sorted({*intention.texts, *self._texts(state.row for state in states)})
        intention = msgspec.structs.replace(intention, texts=texts)
        intend(self._store.layout, intention)
        return intention

    def _let_go(self, intention: Intention) -> None:
        """Have history and indexes let go of it, the history first: those of the past are made of it."""
        layout = self._store.layout
        erasure = Erasure(tuple(intention.ids), tuple(intention.former), intention.through)
        if self._history is not None:
            self._history.erase(erasure)
        elif layout.history.exists():
            with closing(History(layout.history)) as history:
                history.erase(*erasure)
        if self._indexes is None:
            layout.forget_indexes()
            layout.forget_embeddings()
            return
        self._indexes.heads.clear()
        for view in self._indexes.views:
            self._check()
            if not view.is_kept:
                view.serve()  # its files go
                continue
            try:
                while view.rebuild_wanted:
                    view.serve()
                view.erase(erasure)
            except KgserveError as error:
                # Of another model, for one: nobody asks these files, and who can open them again makes them anew.
                log.warning("index_removed", store=self._store.name, index=view.name, error=str(error))
                view.close()
                shutil.rmtree(view.files, ignore_errors=True)
                view.rebuild_wanted = True

    def _await(self, view: BackgroundProjection, sequence: int) -> None:
        """Have a view see a commit, in this thread: its own gives way to all others. The history has to see it.

        Of an index the files can be made anew, so it is not waited for without end.
        """
        until = time.monotonic() + PURGE_INDEX_TIMEOUT_SECONDS
        view.wait(sequence, 0)
        while view.reached < sequence:
            self._check()
            try:
                view.serve()
            except KgserveError as error:
                if not isinstance(view, StoreIndex):
                    raise
                log.warning("index_not_awaited", store=self._store.name, index=view.name, error=str(error))
                return
            if isinstance(view, HistoryFollower) and view.turned_off:
                return
            if isinstance(view, StoreIndex) and time.monotonic() > until:
                return

    def _check(self) -> None:
        """Raise Stopped when the store is closing."""
        if self._stopping.is_set():
            raise FollowerStopped


def _deletion(ids: Sequence[str], puts: Sequence[NodePut]) -> WriteBatch:
    cost = sum(map(len, ids)) + sum(len(put.attributes or "") for put in puts)
    return WriteBatch(nodes=[*puts], delete_nodes=[*ids], touch=False, forgets=True, cost=cost)


def _fail(done: Future[PurgeResult], message: str) -> None:
    if not done.done():
        done.set_exception(Unavailable(message, retry_after=int(PURGE_RETRY_SECONDS)))


def _runs_without(store: OpenStore, ids: Iterable[str]) -> list[NodePut]:
    """The nodes of runs that name some memories, without what they say of them."""
    gone = {*ids}
    runs = [_consolidation_without(row, said, gone) for row, said in runs_of(store, KIND_CONSOLIDATION, run_of)]
    runs += [_reflection_without(row, said, gone) for row, said in runs_of(store, KIND_REFLECTION, record_of)]
    return [put for put in runs if put is not None]


def _consolidation_without(row: NodeRow, said: RunRecord, ids: set[str]) -> NodePut | None:
    suggestions = [each for each in said.suggestions if ids.isdisjoint(each.ids)]
    apart = [each for each in said.apart if each not in ids]
    if (len(suggestions), len(apart)) == (len(said.suggestions), len(said.apart)):
        return None
    return _rewritten(row, msgspec.structs.replace(said, suggestions=suggestions, apart=apart).text)


def _reflection_without(row: NodeRow, said: ReflectionRecord, ids: set[str]) -> NodePut | None:
    proposals = [
        each for each in said.proposals if ids.isdisjoint((*each.ids, *(candidate.id for candidate in each.candidates)))
    ]
    if len(proposals) == len(said.proposals):
        return None
    return _rewritten(row, msgspec.structs.replace(said, proposals=proposals).text)


def _rewritten(row: NodeRow, attributes: str) -> NodePut:
    # Its former versions are erased, also those that it names as other heads.
    return NodePut(0, row.id, attributes=attributes, resolves=True)
