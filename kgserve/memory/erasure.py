"""Erasure of deleted memories from every file of a store, while other callers read and write.

The intention is durable before anything is deleted. Each step is idempotent, so an erasure interrupted by a crash
resumes when its store opens; rows that were not deleted yet are deleted first.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import closing

import msgspec
import structlog

from kgserve.embedding.cache import EmbeddingCache, embedding_cache_key
from kgserve.errors import KgserveError, Unavailable
from kgserve.memory.consolidation.apply import list_nodes_of_type_newest_first
from kgserve.memory.consolidation.plan import ConsolidationRunRecord, decode_run_record
from kgserve.memory.reflect_models import ReflectionRunAttributes, decode_reflection_record
from kgserve.platform.durable_files import translate_storage_errors
from kgserve.projections.background_projection import BackgroundProjection
from kgserve.projections.base import ProjectionEraseRequest
from kgserve.projections.history.row_state_history import HistoryFile
from kgserve.projections.history_follower import HistoryProjection, HistoryWorker
from kgserve.projections.indexed_text import IndexedEntityText
from kgserve.projections.text_index_base import TextIndexProjectionBase
from kgserve.projections.text_index_worker import TextIndexWorker
from kgserve.projections.text_indexes import CurrentAndPastTextIndexes
from kgserve.projections.update_scheduler import ProjectionStepAbandoned
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.storage.model.write_batch import KIND_CONSOLIDATION, KIND_REFLECTION, NodeUpsert, WriteBatch
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.stores.open_store import OpenStore
from kgserve.stores.purge_record import (
    PurgedCommitRange,
    PurgeRecord,
    PurgeTargets,
    delete_purge_record,
    read_purge_record,
    write_purge_record,
)

log = structlog.get_logger()

PURGE_INDEX_TIMEOUT_SECONDS = 60.0
"""Time limit for an index to apply the deletion; after that it is rebuilt from the rows."""
PURGE_RETRY_SECONDS = 10.0
_PURGE_PENDING_MESSAGE = (
    "the memories are deleted from every read, and the erasure is recorded: it completes in the background, or when "
    "the store opens again"
)


class StoreErasureManager:
    """Companion of the pool, registered last: erases data in every open store."""

    of_copies = False

    def __init__(self, indexer: TextIndexWorker | None, historian: HistoryWorker | None) -> None:
        self._indexer = indexer
        self._historian = historian
        self._open: dict[str, StoreDataEraser] = {}
        self._lock = threading.Lock()

    def on_store_opened(self, store: OpenStore) -> None:
        """Resume an interrupted erasure, and accept new ones."""
        indexes = None if self._indexer is None else self._indexer.of(store)
        history = None if self._historian is None else self._historian.state_of_store(store)
        eraser = store.eraser = StoreDataEraser(store, indexes, history)
        with self._lock:
            self._open[store.name] = eraser
        eraser.resume()

    def on_store_closing(self, store: OpenStore) -> None:
        """Stop the erasures of a store, to be resumed later; block until they have ended."""
        with self._lock:
            eraser = self._open.pop(store.name, None)
        if eraser is not None:
            eraser.stop()
            eraser.wait()

    def halt(self) -> None:
        """Start no new erasures, because all stores are about to close."""
        with self._lock:
            for eraser in self._open.values():
                eraser.stop()


class StoreDataEraser:
    """Erasures in one open store, one at a time, each in its own thread."""

    def __init__(
        self, store: OpenStore, indexes: CurrentAndPastTextIndexes | None, history: HistoryProjection | None
    ) -> None:
        self._store = store
        self._indexes = indexes
        self._history = history
        self._exclusive = threading.Lock()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def erase(self, find: Callable[[RowsSnapshot], PurgeTargets]) -> Future[PurgedCommitRange]:
        """Erase the nodes that `find` returns; the future raises its errors, StorageFull and Unavailable."""
        done: Future[PurgedCommitRange] = Future()
        self._start(lambda: self._erase(find, done))
        return done

    def resume(self) -> None:
        """Resume an interrupted erasure: delete its rows now, and the rest in the background."""
        if (intention := read_purge_record(self._store.layout)) is None:
            return
        log.info("erasing_resumed", store=self._store.name, nodes=len(intention.ids))
        intention = self._without_rows(intention)
        self._start(lambda: self._complete_exclusively(intention))

    def stop(self) -> None:
        """Request the running erasure to stop."""
        self._stopping.set()

    def wait(self) -> None:
        """Block until no erasure is running."""
        for thread in self._threads:
            thread.join()

    def _start(self, work: Callable[[], None]) -> None:
        self._threads = [each for each in self._threads if each.is_alive()]
        thread = threading.Thread(target=work, name=f"eraser-{self._store.name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _complete_exclusively(self, intention: PurgeRecord) -> None:
        with self._exclusive:
            self._complete(intention, Future())

    def _erase(self, find: Callable[[RowsSnapshot], PurgeTargets], done: Future[PurgedCommitRange]) -> None:
        with self._exclusive:
            try:
                self._check()
                targets, intention = self._prepare(find)
            except BaseException as error:  # noqa: BLE001  # passed on to the caller
                done.set_exception(
                    Unavailable("this store is closing") if isinstance(error, ProjectionStepAbandoned) else error
                )
                return
            if intention is not None:
                self._complete(intention, done)
            if not done.done():
                through = self._store.state.sequence if intention is None else intention.through
                done.set_result(PurgedCommitRange(targets.first, through))

    # Preparation

    def _prepare(self, find: Callable[[RowsSnapshot], PurgeTargets]) -> tuple[PurgeTargets, PurgeRecord | None]:
        """Record the intention and delete the rows in one slot of the writer thread; None if nothing matches."""
        store, begun = self._store, list[tuple[PurgeTargets, PurgeRecord | None]]()
        if self._history is not None:
            # Nodes that were deleted earlier are found in the history, which may be minutes behind.
            self._catch_up(self._history, store.state.sequence)
        with store.reading() as rows:
            # Search files here, so that the writer does not wait for it.
            if not ((targets := find(rows)).ids or targets.former):
                return targets, None

        def prepare() -> WriteBatch:
            with store.reading() as rows:
                targets = find(rows)
            puts = remove_memories_from_run_records(store, targets.ids)
            intention = self._intention(targets, puts) if targets.ids or targets.former else None
            begun.append((targets, intention))
            if intention is None:
                return WriteBatch()
            with translate_storage_errors(f"noting what is to be erased of store {store.name!r}"):
                write_purge_record(store.layout, intention)
            # Subscribers must still receive the deletion, so it starts a new segment; older segments are rewritten.
            store.journal.begin_segment()
            return _deletion([row.id for row in targets.rows], puts)

        try:
            store.submit_prepared(prepare).result()
        except BaseException:
            if begun and begun[0][1] is not None:
                delete_purge_record(store.layout)
            raise
        return begun[0]

    def _intention(self, targets: PurgeTargets, puts: Sequence[NodeUpsert]) -> PurgeRecord:
        before = self._store.state.sequence
        through = before + bool(targets.rows or puts)
        former = [*targets.former, *(put.id for put in puts)]
        texts = self._embedding_keys(targets.rows)
        return PurgeRecord(targets.ids, former, before, through, texts, targets.drops_deletion)

    def _embedding_keys(self, rows: Iterable[NodeRow]) -> list[str]:
        """Return the keys of the cached embeddings of some rows."""
        if self._indexes is None:
            return []
        model, indexed = self._indexes.vector.model, self._store.description.indexed_attributes
        texts = (text for row in rows for text in (IndexedEntityText.of(row), IndexedEntityText.of(row, indexed)))
        meanings = {text.meaning for text in texts if text.meaning}
        return sorted(embedding_cache_key(model, meaning).hex() for meaning in meanings)

    def _without_rows(self, intention: PurgeRecord) -> PurgeRecord:
        """Delete rows that a crash left behind; rows written since then are unrelated."""
        store = self._store
        with store.reading() as rows:
            left = [row.id for row in rows.nodes(intention.ids).values() if row.sequence <= intention.through]
        if not left:
            return intention
        puts = remove_memories_from_run_records(store, intention.ids)
        before = store.end_segment()
        report = store.submit(_deletion(left, puts)).result()
        former = [*{*intention.former, *(put.id for put in puts)}]
        intention = msgspec.structs.replace(intention, former=former, before=before, through=report.sequence)
        write_purge_record(store.layout, intention)
        return intention

    # Completion

    def _complete(self, intention: PurgeRecord, done: Future[PurgedCommitRange]) -> None:
        """Complete an erasure, retrying as needed; the caller receives an error after the first failure."""
        started = time.perf_counter()
        while not self._stopping.is_set():
            try:
                self._clean(intention)
            except ProjectionStepAbandoned:
                break
            except (KgserveError, OSError, sqlite3.Error) as error:
                log.warning("erasing_failed", store=self._store.name, retry_in=PURGE_RETRY_SECONDS, error=str(error))
                _fail(done, f"{_PURGE_PENDING_MESSAGE}; latest error: {error}")
                self._stopping.wait(PURGE_RETRY_SECONDS)
            else:
                seconds = round(time.perf_counter() - started, 3)
                log.info("erased", store=self._store.name, nodes=len(intention.ids), seconds=seconds)
                return
        _fail(done, _PURGE_PENDING_MESSAGE)

    def _clean(self, intention: PurgeRecord) -> None:
        store, before = self._store, intention.before
        if intention.drops_deletion or store.journal.end.segment <= before:
            # The latter means that it was interrupted before the segment ended.
            before = store.end_segment()
        for view in self._views:
            self._catch_up(view, max(intention.through, before))
        intention = self._with_former_texts(intention)
        self._erase_from_projections(intention)
        with store.commits.replicate_snapshot(alone=True):
            store.erase(before, intention.ids)
            self._check()
            # Embeddings go last: an index that was behind may have cached one again.
            if self._indexes is not None:
                with closing(EmbeddingCache(store.layout.embeddings)) as cache:
                    cache.forget([bytes.fromhex(text) for text in intention.texts])
        delete_purge_record(store.layout)

    @property
    def _views(self) -> list[BackgroundProjection]:
        """Projections that follow the journal."""
        both = () if self._indexes is None else (self._indexes.keyword, self._indexes.vector)
        indexes = [view for view in both if view.is_enabled]
        return [view for view in (self._history, *indexes) if view is not None]

    def _with_former_texts(self, intention: PurgeRecord) -> PurgeRecord:
        """Add the embeddings of former texts, as far as the history contains them."""
        history = self._history
        if self._indexes is None or history is None or history.is_disabled:
            return intention
        through = intention.through
        states = [
            state
            for node_id in (*intention.ids, *intention.former)
            for state in history.look(lambda known, each=node_id: known.node_states_through(each, through))
        ]
        texts = sorted({*intention.texts, *self._embedding_keys(state.row for state in states)})
        intention = msgspec.structs.replace(intention, texts=texts)
        write_purge_record(self._store.layout, intention)
        return intention

    def _erase_from_projections(self, intention: PurgeRecord) -> None:
        """Erase the nodes from history and indexes; history first, since indexes of the past are built from it."""
        layout = self._store.layout
        erasure = ProjectionEraseRequest(tuple(intention.ids), tuple(intention.former), intention.through)
        if self._history is not None:
            self._history.erase(erasure)
        elif layout.history.exists():
            with closing(HistoryFile(layout.history)) as history:
                history.erase(*erasure)
        if self._indexes is None:
            layout.remove_indexes()
            layout.remove_embeddings()
            return
        self._indexes.heads.clear()
        for view in self._indexes.index_projections:
            self._check()
            if not view.is_enabled:
                view.serve()  # removes its files
                continue
            try:
                while view.rebuild_wanted:
                    view.serve()
                view.erase(erasure)
            except KgserveError as error:
                # For example an index of another model: it is unused, and is rebuilt when it is opened again.
                log.warning("index_removed", store=self._store.name, index=view.name, error=str(error))
                view.discard()

    def _catch_up(self, view: BackgroundProjection, sequence: int) -> None:
        """Apply commits to a view in this thread until it reaches a sequence.

        The wait for an index is bounded, because its files can be rebuilt; the history must reach the sequence.
        """
        until = time.monotonic() + PURGE_INDEX_TIMEOUT_SECONDS
        view.wait(sequence, 0)
        while view.reached < sequence:
            self._check()
            try:
                view.serve()
            except KgserveError as error:
                if not isinstance(view, TextIndexProjectionBase):
                    raise
                log.warning("index_not_awaited", store=self._store.name, index=view.name, error=str(error))
                return
            if isinstance(view, HistoryProjection) and view.is_disabled:
                return
            if isinstance(view, TextIndexProjectionBase) and time.monotonic() > until:
                return

    def _check(self) -> None:
        """Raise ProjectionStepAbandoned if the store is closing."""
        if self._stopping.is_set():
            raise ProjectionStepAbandoned


def _deletion(ids: Sequence[str], puts: Sequence[NodeUpsert]) -> WriteBatch:
    cost = sum(map(len, ids)) + sum(len(put.attributes or "") for put in puts)
    return WriteBatch(nodes=[*puts], delete_nodes=[*ids], touch=False, forgets=True, cost=cost)


def _fail(done: Future[PurgedCommitRange], message: str) -> None:
    if not done.done():
        done.set_exception(Unavailable(message, retry_after=int(PURGE_RETRY_SECONDS)))


def remove_memories_from_run_records(store: OpenStore, ids: Iterable[str]) -> list[NodeUpsert]:
    """Return the puts that remove some memories from the records of runs."""
    removed = {*ids}
    runs = [
        _consolidation_without(row, record, removed)
        for row, record in list_nodes_of_type_newest_first(store, KIND_CONSOLIDATION, decode_run_record)
    ]
    runs += [
        _reflection_without(row, record, removed)
        for row, record in list_nodes_of_type_newest_first(store, KIND_REFLECTION, decode_reflection_record)
    ]
    return [put for put in runs if put is not None]


def _consolidation_without(row: NodeRow, record: ConsolidationRunRecord, ids: set[str]) -> NodeUpsert | None:
    suggestions = [each for each in record.suggestions if ids.isdisjoint(each.ids)]
    apart = [each for each in record.apart if each not in ids]
    if (len(suggestions), len(apart)) == (len(record.suggestions), len(record.apart)):
        return None
    return _rewritten(row, msgspec.structs.replace(record, suggestions=suggestions, apart=apart).text)


def _reflection_without(row: NodeRow, record: ReflectionRunAttributes, ids: set[str]) -> NodeUpsert | None:
    proposals = [
        each
        for each in record.proposals
        if ids.isdisjoint((*each.ids, *(candidate.id for candidate in each.candidates)))
    ]
    if len(proposals) == len(record.proposals):
        return None
    return _rewritten(row, msgspec.structs.replace(record, proposals=proposals).text)


def _rewritten(row: NodeRow, attributes: str) -> NodeUpsert:
    # Former versions of the run are erased too, including conflicting heads.
    return NodeUpsert(0, row.id, attributes=attributes, resolves=True)
