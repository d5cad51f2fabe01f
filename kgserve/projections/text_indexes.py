"""Keyword and vector indexes of one open store, for current and past texts."""

from __future__ import annotations

import contextlib
import math
import re
import shutil
import sqlite3
import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import structlog
import xxhash
from numpy.typing import NDArray
from typing_extensions import override

from kgserve.embedding.cache import EmbeddingCache, QueryVectorCache, embed_texts_with_cache
from kgserve.embedding.embedder import Embedder
from kgserve.errors import Conflict, Unavailable
from kgserve.platform.durable_files import write_file_atomically
from kgserve.platform.settings import IndexedContent
from kgserve.platform.sqlite_files import remove_path
from kgserve.platform.text.languages import LanguageSetting
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.projections.background_projection import MAX_AWAITED_BUILD_NODES, BackgroundProjection
from kgserve.projections.base import ProjectionEraseRequest, StoreFollowedByProjections
from kgserve.projections.conflicting_versions_index import ConflictingVersionsIndex
from kgserve.projections.history.reader import EndedNodeStateBatch, EndedStateReadPosition, read_ended_node_states
from kgserve.projections.history.row_state_history import RowStateInterval
from kgserve.projections.history_follower import HistoryProjection
from kgserve.projections.indexed_text import (
    NO_TEXT_FILTER,
    EntitySearchFilter,
    IndexedEntityText,
    parse_past_text_index_key,
)
from kgserve.projections.keyword_index import DocumentFrequencies, KeywordHit, KeywordIndex
from kgserve.projections.keyword_query import KeywordQuery
from kgserve.projections.read_your_writes import wait_for_projections_or_raise
from kgserve.projections.recent_vectors import RecentVectorBuffer
from kgserve.projections.text_index_base import (
    MAX_BUILD_RETRY_SECONDS,
    CurrentTextIndexProjection,
    Index,
    TextIndexProjectionBase,
    TextIndexState,
    TextIndexUpdate,
    explain_why_not_indexed,
    folder_bytes,
)
from kgserve.projections.token_vectors.conversation_turn_vectors import LateInteractionTokenVectors
from kgserve.projections.vector.past_vectors import (
    PastTextVectorIndex,
    delete_past_vectors_folder,
    is_past_vectors_damage_error,
)
from kgserve.projections.vector.vector_index import MAX_EXACT_VECTORS, VectorHit, VectorIndex
from kgserve.storage.model.change_set import ChangeSet
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.storage.rows.rows_snapshot import RowsSnapshot

log = structlog.get_logger()

Found = TypeVar("Found")

EMBEDDING_BATCH_SIZE = 128
MAX_WAITED_COMMITS = 16
"""Maximum lag, in commits, for which a search waits: indexes further behind rarely catch up in time."""
PAST_VECTORS_BATCH_STATES = 2_000
BUILD_TIMEOUT_SECONDS = 3.0
INDEX_BATCH_TEXTS = 500
INDEX_SAVE_INTERVAL_SECONDS = 300.0
PAST_INDEX_TIMEOUT_SECONDS = 10.0
_MODEL_WITH_CHECKSUM_PATTERN = re.compile(r"([0-9a-f]{16}) (.+)")
_BARE_MODEL_PATTERN = re.compile(r"(?![0-9a-f]{16}|[0-9a-f]+$)[\w./:@+-]{1,256}")
"""Format of older files, which hold only the name. Text that begins like a checksum is a damaged file."""


VECTOR_INDEX_OPEN_TIMEOUT_SECONDS = 2.0
"""Maximum time that a write waits for the vector index to be opened."""


class KeywordIndexProjectionBase(TextIndexProjectionBase[KeywordIndex]):
    """Base of the keyword indexes, for current or past texts."""

    _language: LanguageSetting | None = None
    """Language setting that the index is built with; None until the index is opened."""

    @property
    @override
    def model(self) -> str:
        return "tantivy"

    def search(
        self,
        query: KeywordQuery,
        limit: int,
        only: EntitySearchFilter = NO_TEXT_FILTER,
        *,
        other: DocumentFrequencies | None = None,
    ) -> list[KeywordHit]:
        """Return the best entities for a query, as `KeywordIndex.search`.

        Raises Unavailable until the index is open.
        """
        return self._opened().search(query, limit, only, other=other)

    def languages(self) -> dict[str, int]:
        """Return text counts by detected language, as `KeywordIndex.languages`; none until the index is open."""
        index = self._index
        return {} if index is None else index.languages()

    def frequencies(self, query: KeywordQuery) -> DocumentFrequencies:
        """Return the document frequencies of the terms of a query."""
        index = self._opened()
        return index.frequencies(index.terms(query))

    def bm25_scores(self, query: str, texts: Mapping[str, str]) -> dict[str, dict[str, float]]:
        """Return term scores by text, as `KeywordIndex.bm25_scores`. Raises Unavailable until the index is open."""
        return self._opened().bm25_scores(query, texts)

    @override
    def close(self) -> None:
        self._index = None

    @contextlib.contextmanager
    def _rewritten(self) -> Generator[KeywordIndex]:
        """Yield an empty index that replaces this one at the end; concurrent searches use the old one."""
        aside = self._folder.with_name(f"{self._folder.name}.new")
        shutil.rmtree(aside, ignore_errors=True)
        contents = self._contents()
        yield self._index_in(aside, *contents)
        shutil.rmtree(self._folder)
        aside.rename(self._folder)
        self._index = self._index_in(self._folder, *contents)

    def _open_index(self) -> KeywordIndex:
        # Left by an unfinished rewrite.
        shutil.rmtree(self._folder.with_name(f"{self._folder.name}.new"), ignore_errors=True)
        return self._index_in(self._folder, *self._contents())

    def _contents(self) -> tuple[str, LanguageSetting]:
        """Return what identifies the texts and terms of the index, as the store's settings are now."""
        self._language = self.store.description.language
        return self._made_of(), self._language

    def _index_in(self, folder: Path, made_of: str, language: LanguageSetting) -> KeywordIndex:
        return KeywordIndex(folder, made_of=made_of, language=language)

    @override
    def apply_settings(self) -> None:
        super().apply_settings()
        if self._language not in {None, self.store.description.language}:
            self.rebuild_wanted = True
            self.wake()


class CurrentKeywordIndexProjection(CurrentTextIndexProjection[KeywordIndex], KeywordIndexProjectionBase):
    """Keyword index of current texts (tantivy)."""

    name = folder = "keyword"
    being_opened = "the keyword index is being opened"

    @override
    def _open(self) -> int:
        self._index = self._open_index()
        if self._index.fresh and self._is_rebuild_shorter():
            self.rebuild_wanted = True
        return self._index.sequence

    @override
    def close(self) -> None:
        if self._index is not None and self.sequence > self._saved and not self.rebuild_wanted:
            self._save(self.sequence)
        super().close()

    @override
    def _erase(self, erasure: ProjectionEraseRequest) -> None:
        # Rewrite the whole index: tantivy keeps deleted texts until it merges segments.
        if not self._opened().holds(erasure.all_ids):
            return
        with self.store.reading() as rows:
            self.pending = rows.state.nodes
            try:
                self._move(self._apply_all(rows))
            finally:
                self.pending = 0

    @property
    @override
    def _saved(self) -> int:
        return self._opened().sequence

    @override
    def _save(self, sequence: int) -> None:
        self._opened().seal(sequence)

    @override
    def _apply_all(self, rows: RowsSnapshot) -> int:
        with self._rewritten() as rewritten:
            rewritten.write(self._with_progress(self._texts_of(rows)), (), rows.at, bulk=True)
            self._begun_sequence = rows.at
        return rows.at

    @override
    def _follow(self, step: TextIndexUpdate) -> None:
        self.pending = len(step.put)
        self._opened().write(
            self._with_progress(step.put), step.removed, step.sequence, bulk=len(step.put) > EMBEDDING_BATCH_SIZE
        )

    def _with_progress(self, texts: Iterable[IndexedEntityText]) -> Iterator[IndexedEntityText]:
        started = time.perf_counter()
        for number, text in enumerate(texts, 1):
            self._continue()
            self.pending -= 1
            yield text
            if number % INDEX_BATCH_TEXTS == 0:
                self._yield_to_requests(time.perf_counter() - started)
                started = time.perf_counter()


_MEANING: frozenset[IndexedContent] = frozenset({"words+meaning"})


class CurrentVectorIndexProjection(CurrentTextIndexProjection[VectorIndex]):
    """Projection of a store's journal to a vector index of its current texts.

    A store records the model of its vectors; switching to another model requires `kgserve reindex`.
    """

    name = folder = "vector"
    needs = _MEANING
    being_opened = "the vector index is being opened"
    _cache: EmbeddingCache | None = None

    def __init__(
        self, store: StoreFollowedByProjections, embedder: Embedder, *, exact_up_to: int = MAX_EXACT_VECTORS
    ) -> None:
        """Compare exactly up to ``exact_up_to`` vectors; beyond that, build a graph for approximate search."""
        super().__init__(store)
        self._embedder = embedder
        self._exact_up_to = exact_up_to
        self._model_file = store.layout.views / "model"
        self._saved_at = time.monotonic()
        self._has_warned = False
        self.tokens = LateInteractionTokenVectors(store, embedder)

    def search(
        self, vector: NDArray[np.float32], limit: int, only: EntitySearchFilter = NO_TEXT_FILTER
    ) -> list[VectorHit]:
        """Return the nearest entities, as `VectorIndex.search`.

        Raises Unavailable until the index is open, and Conflict if its vectors are of another model.
        """
        return self._opened().search(vector, limit, only)

    def release_idle_pages(self) -> None:
        """Return memory of vectors that no search reads, if the index is open."""
        index = self._index
        if index is not None:
            index.release_idle_pages()

    def vectors_of(self, ids: list[str], as_of: int | None = None) -> dict[str, NDArray[np.float32]]:
        """Return the vectors of entities, as `VectorIndex.vectors_of`. Raises what `search` raises."""
        return self._opened().vectors_of(ids, as_of)

    def embed_cached_texts(self, texts: list[str], embedder: Embedder) -> NDArray[np.float32]:
        """Return the vectors of texts, embedded with the same model. They are cached for indexing."""
        cache = self._cache
        return embedder.embed(texts) if cache is None else self.tokens.embed(texts, embedder, cache)

    def passing(self, only: EntitySearchFilter, most: int) -> list[str] | None:
        """Return the ids that pass a filter, as `VectorIndex.passing`. Raises what `search` raises."""
        return self._opened().passing(only, most)

    def find_similar(self, ids: Sequence[str], above: float, most: int) -> dict[str, list[VectorHit]]:
        """Return similar entities for each id, as `VectorIndex.find_similar`. Raises what `search` raises."""
        return self._opened().find_similar(ids, above, most)

    def require(self) -> None:
        """Raise what `search` would raise now, if anything."""
        self._opened()

    @property
    def degraded(self) -> bool:
        """True if texts cannot be embedded, as `Embedder.degraded`."""
        return self._embedder.degraded

    @property
    def is_loading(self) -> bool:
        """True while the embedding model is loading."""
        return self._embedder.is_loading

    @property
    @override
    def model(self) -> str:
        return self._recorded_model() or self._embedder.model_id

    def change_model(self) -> None:
        """Switch to the server's model: the next step rebuilds all vectors."""
        remove_path(self._model_file)
        self.rebuild_wanted = True

    @override
    def state(self) -> TextIndexState:
        found, tokens, index = super().state(), self.tokens, self._index
        return msgspec.structs.replace(
            found,
            pending=found.pending + tokens.waiting,
            bytes=found.bytes + folder_bytes(tokens.folder),
            note=None if index is None else index.note,
        )

    @override
    def apply_settings(self) -> None:
        super().apply_settings()
        if self.tokens.has_other_setting:
            self.wake()

    @override
    def step(self) -> bool:
        more = super().step()
        if not self.is_enabled or self._index is None or self._cache is None:
            return more
        if self.tokens.has_other_setting:
            self._save(self.sequence)
            self.tokens.open(self.sequence)
        if not more and self.tokens.is_behind:
            started = time.perf_counter()
            self.tokens.embed_waiting(self._texts_to_embed, self._cache)
            self._yield_to_requests(time.perf_counter() - started)
        return more or self.tokens.is_behind

    def _texts_to_embed(self, rows: RowsSnapshot, ids: Sequence[str]) -> dict[str, str]:
        texts = {node_id: self._text(row).meaning for node_id, row in rows.nodes(ids).items()}
        return {node_id: text for node_id, text in texts.items() if text}

    @override
    def _remove_files(self) -> None:
        super()._remove_files()
        self.tokens.delete_files()

    @override
    def close(self) -> None:
        if self._index is not None and not self.rebuild_wanted:
            if self.sequence > self._saved:
                self._save(self.sequence)
            elif self.tokens.has_changed:
                self.tokens.save(self.sequence)
        self._index = None
        self.tokens.close()
        if self._cache is not None:
            self._cache.close()
            self._cache = None

    @override
    def _erase(self, erasure: ProjectionEraseRequest) -> None:
        self._opened().remove(erasure.ids)
        self.tokens.erase(erasure.ids)
        self._save(self.sequence)

    @override
    def _open(self) -> int:
        self.check_model()
        # Ask for the dimensions first: an embedding service may not respond, and so far nothing needs to be closed.
        dimensions = self._embedder.dimensions
        self._cache = self._cache or EmbeddingCache(self.store.layout.embeddings)
        made_of = self._made_of(self._embedder.model_id)
        self._index = VectorIndex(
            self._folder, dimensions, made_of, self._exact_up_to, between=self._pause_between_batches
        )
        self._warn_of_slow_searches()
        self.tokens.open(self._index.sequence)
        if self._index.fresh and self._is_rebuild_shorter():
            self.rebuild_wanted = True
        return self._index.sequence

    def _warn_of_slow_searches(self) -> None:
        """Log once for each store that its searches are slow without hnswlib."""
        note = self._opened().note
        if note is not None and not self._has_warned:
            self._has_warned = True
            log.warning("vector_search_slow", store=self.store.name, vectors=len(self._opened()), reason=note)

    @property
    @override
    def _saved(self) -> int:
        return self._opened().sequence

    @override
    def _save(self, sequence: int) -> None:
        # First, because a table of tokens that is older than the vectors is discarded.
        self.tokens.save(sequence)
        self._opened().save(sequence)
        self._saved_at = time.monotonic()
        self._warn_of_slow_searches()

    @override
    def _apply(self, changes: Iterable[ChangeSet], sequence: int) -> None:
        changes = list(changes)
        # First, because the table of tokens is saved as complete while none are queued.
        self.tokens.follow(changes)
        super()._apply(changes, sequence)

    @override
    def _apply_all(self, rows: RowsSnapshot) -> int:
        self._begun_sequence = rows.at
        # First, so that a caller that needs a commit does not read an index that is being cleared.
        self._begin_empty(rows.at)
        self._opened().clear(self._made_of(self._embedder.model_id))
        self.tokens.clear()
        self._record_model()
        self._embed(text for text in self._texts_of(rows) if text.meaning)
        self._save(rows.at)
        return rows.at

    @override
    def _follow(self, step: TextIndexUpdate) -> None:
        self.check_model()
        self._record_model()
        put = [text for text in step.put if text.meaning]
        self.pending = len(put)
        removed = [*step.removed, *(text.id for text in step.put if not text.meaning)]
        self._opened().remove(removed)
        self.tokens.remove(removed)
        self._embed(iter(put))
        self.pending = 0
        if time.monotonic() - self._saved_at > INDEX_SAVE_INTERVAL_SECONDS:
            self._save(step.sequence)

    def _embed(self, texts: Iterator[IndexedEntityText]) -> None:
        worked = 0.0
        while some := list(islice(texts, EMBEDDING_BATCH_SIZE)):
            self._pause_between_batches(worked)
            started = time.perf_counter()
            self._embed_some(some)
            worked = time.perf_counter() - started

    def _pause_between_batches(self, worked: float) -> None:
        """Pause between two parts of long work, the last of which took ``worked`` seconds."""
        self._continue()
        if worked:
            self._yield_to_requests(worked)

    def _embed_some(self, texts: list[IndexedEntityText]) -> None:
        if self._cache is None:
            raise Unavailable("the embedding cache is closed")
        vectors = self.tokens.embed_nodes({text.id: text.meaning for text in texts}, self._cache)
        ids, types = [text.id for text in texts], [text.type for text in texts]
        self._opened().put(ids, types, vectors, [text.since for text in texts], [text.facets for text in texts])
        self.pending = max(self.pending - len(texts), 0)

    @override
    def check_model(self) -> None:
        recorded = self._recorded_model()
        if recorded is not None and recorded != self._embedder.model_id:
            raise Conflict(
                f"store {self.store.name!r} was indexed with model {recorded}, but the server uses "
                f"{self._embedder.model_id}; run `kgserve reindex {self.store.name}` to rebuild its vectors"
            )

    def _recorded_model(self) -> str | None:
        return read_text_index_model_name(self._model_file)

    def _record_model(self) -> None:
        if self._recorded_model() is None:
            write_text_index_model_name(self._model_file, self._embedder.model_id)


class PastTextIndexProjectionBase(TextIndexProjectionBase[Index]):
    """Base of the indexes of past texts; applies ended states as the history advances."""

    def __init__(self, store: StoreFollowedByProjections) -> None:
        super().__init__(store)
        self._history = store.layout.history
        self._place = EndedStateReadPosition(0)
        self._pruned_up_to = 0
        self._more = False

    @property
    def is_wanted(self) -> bool:
        """True if the store keeps a history and its settings include this index."""
        return self.is_enabled and self.store.settings.history and self.store.description.history != "none"

    @property
    @override
    def wake_hooks(self) -> list[Callable[[], None]]:
        return self.store.after_history

    @override
    def wait(self, sequence: int, seconds: float) -> bool:
        if self.sequence < sequence:
            self.wake()
        return super().wait(sequence, seconds)

    def count(self) -> int:
        """Return the number of indexed texts. Raises Unavailable until the index is open."""
        return len(self._opened())

    @abstractmethod
    def _put(self, texts: list[IndexedEntityText], sequence: int, ended: int) -> None:
        """Add texts, record the commit ``sequence``, and delete the texts that had ended by the commit ``ended``."""

    @abstractmethod
    def _clear(self) -> None:
        """Delete all entries."""

    def _compact(self) -> None:
        """Compact the files, if pruning has left them mostly empty."""

    @override
    def _begin_at(self, sequence: int) -> None:
        self._place, self._pruned_up_to = EndedStateReadPosition(sequence + 1), 0
        super()._begin_at(sequence)

    @override
    def _is_out_of_reach(self, last: int) -> bool:
        return self.sequence > (last if self.is_wanted else 0)

    @override
    def _apply_all(self, rows: RowsSnapshot) -> int:
        # First, so that a concurrent search detects that the index was incomplete.
        self._begin_at(0)
        self._more = self.is_wanted
        self._clear()
        return 0

    @override
    def _advance(self, last: int) -> None:
        started = time.perf_counter()
        found = (
            read_ended_node_states(self._history, self._place, PAST_VECTORS_BATCH_STATES) if self.is_wanted else None
        )
        self._more = found is not None and found.more
        if found is None:
            return
        pruned = self._pruned_up_to < found.oldest
        if found.states or pruned:
            self._apply((found,), found.sequence)
        # Last, so that states that could not be applied are read again.
        self._place, self._pruned_up_to = found.place, found.oldest
        self._move(found.sequence)
        if pruned and not found.more:
            self._compact()
        self._yield_to_requests(time.perf_counter() - started)

    @override
    def _apply(self, changes: Iterable[EndedNodeStateBatch], sequence: int) -> None:
        for found in changes:
            texts = self._merge_equal_texts(state for state in found.states if (state.last or 0) > found.oldest)
            self._put(texts, sequence, found.oldest)

    @override
    def _is_behind(self) -> bool:
        return self._more

    def _merge_equal_texts(self, states: Iterable[RowStateInterval[NodeRow]]) -> list[IndexedEntityText]:
        """Return the texts of ended states in the order of their ends. Consecutive equal texts are merged."""
        found: dict[str, list[IndexedEntityText]] = {}
        for state in states:
            text = self._text(state.row, state.first, state.last)
            before = found.setdefault(text.id, [])
            if before and before[-1].until == text.since and before[-1].digest == text.digest:
                text = msgspec.structs.replace(text, since=before.pop().since)
            before.append(text)
        return [text for texts in found.values() for text in texts]


class PastKeywordIndexProjection(PastTextIndexProjectionBase[KeywordIndex], KeywordIndexProjectionBase):
    """Keyword index of past texts (tantivy)."""

    name = "past keyword"
    folder = "past-keyword"
    being_opened = "the keyword index of the past is being opened"

    @override
    def _open(self) -> int:
        self._index = self._open_index()
        return self._index.sequence

    @override
    def _index_in(self, folder: Path, made_of: str, language: LanguageSetting) -> KeywordIndex:
        return KeywordIndex(folder, lambda key: parse_past_text_index_key(key).id, made_of, language)

    @override
    def _erase(self, erasure: ProjectionEraseRequest) -> None:
        # The history no longer contains the erased states.
        if self._opened().holds(erasure.all_ids):
            self._rewrite()

    @override
    def _compact(self) -> None:
        if self._opened().is_mostly_removed:
            self._rewrite()

    def _rewrite(self) -> None:
        place = EndedStateReadPosition(0)
        with self._rewritten() as rewritten:
            while (
                found := read_ended_node_states(self._history, place, PAST_VECTORS_BATCH_STATES)
                if self.is_wanted
                else None
            ):
                self._continue()
                texts = self._merge_equal_texts(state for state in found.states if (state.last or 0) > found.oldest)
                _write_past_texts(rewritten, texts, found.sequence, found.oldest)
                place = found.place
                if not found.more:
                    break
        self._place = place
        self._move(max(self._opened().sequence, 0))

    @override
    def _clear(self) -> None:
        self._index = None
        shutil.rmtree(self._folder, ignore_errors=True)
        self._open()

    @override
    def _put(self, texts: list[IndexedEntityText], sequence: int, ended: int) -> None:
        _write_past_texts(self._opened(), texts, sequence, ended)


def _write_past_texts(index: KeywordIndex, texts: Iterable[IndexedEntityText], sequence: int, ended: int) -> None:
    put = [index.merge_with_predecessor(text) for text in texts if text.has_words]
    index.write(put, (), sequence, bulk=len(put) > EMBEDDING_BATCH_SIZE, ended=ended)


class PastVectorIndexProjection(PastTextIndexProjectionBase[PastTextVectorIndex]):
    """Vector index of past texts. Most vectors are cached, because the texts were current before."""

    name = "past vector"
    folder = "past-vector"
    needs = _MEANING
    being_opened = "the vectors of the past are being opened"
    _cache: EmbeddingCache | None = None

    def __init__(self, store: StoreFollowedByProjections, embedder: Embedder, check_model: Callable[[], None]) -> None:
        """Embed with ``embedder``; ``check_model`` raises Conflict if the store's vectors are of another model."""
        super().__init__(store)
        self._embedder = embedder
        self._check_model = check_model

    def search(self, vector: NDArray[np.float32], limit: int, only: EntitySearchFilter) -> list[VectorHit]:
        """Return the nearest past texts, as `PastTextVectorIndex.search`.

        Raises Unavailable until the index is open.
        """
        return self._query(lambda index: index.search(vector, limit, only))

    def vectors_of(self, ids: Sequence[str], as_of: int) -> dict[str, NDArray[np.float32]]:
        """Return the vectors of entities as of a commit, as `PastTextVectorIndex.vectors_of`.

        Raises what `search` raises.
        """
        return self._query(lambda index: index.vectors_of(ids, as_of))

    @property
    @override
    def model(self) -> str:
        return self._embedder.model_id

    @override
    def check_model(self) -> None:
        self._check_model()

    @override
    def close(self) -> None:
        for each in (self._index, self._cache):
            if each is not None:
                each.close()
        self._index = self._cache = None

    @override
    def step(self) -> bool:
        try:
            return super().step()
        except sqlite3.DatabaseError as error:
            if is_past_vectors_damage_error(error):
                self.rebuild_wanted = True
            raise

    @override
    def _open(self) -> int:
        self.check_model()
        self.close()
        self._cache = EmbeddingCache(self.store.layout.embeddings)
        made_of = self._made_of(self._embedder.model_id)
        self._index = PastTextVectorIndex(self._folder, self._embedder.dimensions, made_of)
        return self._index.sequence

    @override
    def _clear(self) -> None:
        if self._index is not None:
            self._index.close()
            self._index = None
        delete_past_vectors_folder(self._folder)
        self._open()

    @override
    def _put(self, texts: list[IndexedEntityText], sequence: int, ended: int) -> None:
        self.check_model()
        index, cache = self._opened(), self._cache
        if cache is None:
            raise Unavailable("the embedding cache is closed")
        texts = [text for text in texts if text.meaning]
        started = time.perf_counter()
        for first in range(0, len(texts), EMBEDDING_BATCH_SIZE):
            self._continue()
            if first:
                self._yield_to_requests(time.perf_counter() - started)
                started = time.perf_counter()
            some = texts[first : first + EMBEDDING_BATCH_SIZE]
            meanings = sorted({text.meaning for text in some} - index.known(some))
            vectors = embed_texts_with_cache(self._embedder, cache, meanings)
            index.write(some, dict(zip(meanings, vectors, strict=True)), index.sequence, 0)
        index.write((), {}, sequence, ended)

    @override
    def _erase(self, erasure: ProjectionEraseRequest) -> None:
        self._opened().erase(erasure)

    def _query(self, question: Callable[[PastTextVectorIndex], Found]) -> Found:
        try:
            return question(self._opened())
        except sqlite3.DatabaseError as error:
            if not is_past_vectors_damage_error(error):
                raise Unavailable(f"the past vector index cannot be read now: {error}", retry_after=2) from error
            self.rebuild_wanted = True
            self.wake()
            raise Unavailable("the past vector index is damaged and is being rebuilt", retry_after=2) from error


MIN_SYNC_MARKER_INTERVAL_SECONDS = 1.0


class IndexSyncEventPublisher:
    """Publisher of ``sync_complete`` on the change feed.

    It publishes when the current indexes contain all written rows, at most once a second.
    """

    def __init__(self, store: StoreFollowedByProjections, views: Sequence[TextIndexProjectionBase[Any]]) -> None:
        self._store = store
        self._views = views
        # Each index announces its own readiness for the rows that existed when the store was opened.
        self._published = store.rows_sequence
        self._published_at = 0.0

    def look(self) -> None:
        """Publish the marker if the indexes have caught up."""
        written, now = self._store.rows_sequence, time.monotonic()
        if written <= self._published or now - self._published_at < MIN_SYNC_MARKER_INTERVAL_SECONDS:
            return
        kept = [view for view in self._views if view.is_enabled]
        if kept and all(view.reached >= written for view in kept):
            self._published, self._published_at = written, now
            self._store.feed.publish_marker(
                "sync_complete", {"timestamp": format_rfc3339_timestamp(time.time_ns() // 1000)}
            )


class CurrentAndPastTextIndexes:
    """Current and past indexes of a store."""

    is_past: bool = False
    required_sequence: int | None = None

    def __init__(self, store: StoreFollowedByProjections, queries: QueryVectorCache, patient: Embedder) -> None:
        self.store = store
        self.queries = queries
        self.keyword = CurrentKeywordIndexProjection(store)
        self.vector = CurrentVectorIndexProjection(store, patient)
        self.recent = RecentVectorBuffer()
        self.heads = ConflictingVersionsIndex(
            store, lambda texts: self.vector.embed_cached_texts(texts, queries.embedder)
        )
        self.past_keyword = PastKeywordIndexProjection(store)
        self.past_vector = PastVectorIndexProjection(store, patient, self.vector.check_model)
        store.each_second.append(IndexSyncEventPublisher(store, (self.keyword, self.vector)).look)
        store.each_second.append(self.vector.release_idle_pages)
        for view in self.index_projections:
            store.after_change.append(view.apply_settings)

    def states(self) -> list[TextIndexState]:
        """Return the state of each index; past ones only while the store keeps a history."""
        past = [view.state() for view in (self.past_keyword, self.past_vector) if view.is_wanted]
        return [*(view.state() for view in (self.keyword, self.vector) if view.is_enabled), *past]

    @property
    def index_projections(self) -> tuple[TextIndexProjectionBase[Any], ...]:
        """All four indexes, current ones first."""
        return self.keyword, self.vector, self.past_keyword, self.past_vector

    def languages(self) -> dict[str, int]:
        """Return the number of indexed entities by detected language (ISO 639-1 code), most frequent first."""
        counts = self.keyword.languages()
        return dict(sorted(counts.items(), key=lambda each: -each[1]))

    @property
    def has_vectors(self) -> bool:
        """True if texts are indexed by vectors, not only by words."""
        return self.vector.is_enabled

    def require(self, *, meaning: bool = False) -> None:
        """Raise Conflict if no index is kept, or with ``meaning`` no vector index."""
        if not (self.vector if meaning else self.keyword).is_enabled:
            raise Conflict(explain_why_not_indexed(self.store))

    @property
    def degraded(self) -> bool:
        """True if vectors are indexed, but no model is available to embed queries."""
        return self.has_vectors and self.queries.embedder.degraded

    @property
    def can_embed_queries(self) -> bool:
        """True if vectors are indexed and queries can be embedded."""
        return self.has_vectors and not self.queries.embedder.degraded

    def _followers(self, *, words_alone: bool) -> tuple[CurrentTextIndexProjection[Any], ...]:
        return (self.keyword,) if words_alone or not self.has_vectors else (self.keyword, self.vector)

    def applied_sequence(self, *, words_alone: bool = False) -> int:
        """Return the last commit that both current indexes, or only the keyword index, have applied."""
        return max(min(each.sequence for each in self._followers(words_alone=words_alone)), 0)

    def not_caught_up_error(self, sequence: int, *, words_alone: bool = False) -> Unavailable:
        """Return the error for a commit that the indexes have not applied in time."""
        seen = self.applied_sequence(words_alone=words_alone)
        if not words_alone and self.has_vectors and (self.vector.is_loading or self.queries.embedder.is_loading):
            message = f"the embedding model is loading; meaning is indexed only up to sequence {seen} so far"
            return Unavailable(f"{message}. Try again shortly, or search by keyword", retry_after=2)
        return Unavailable(f"the indexes have not seen sequence {sequence} yet, only {seen}", retry_after=2)

    def wait(self, sequence: int, seconds: float, *, words_alone: bool = False) -> bool:
        """Block until the current indexes have applied a commit. Return whether they have.

        With ``words_alone``, only the keyword index is considered.
        """
        deadline = time.monotonic() + seconds
        followers = self._followers(words_alone=words_alone)
        return all(follower.wait(sequence, max(deadline - time.monotonic(), 0)) for follower in followers)

    def wait_or_retry(self, sequence: int, seconds: float, why: str, *, words_alone: bool = False) -> bool:
        """Wait as `wait`, but release the thread where the request can be retried.

        ``why`` distinguishes the waits of one request. Raises ProjectionNotCaughtUp in place of blocking.
        """
        followers = self._followers(words_alone=words_alone)
        return wait_for_projections_or_raise(followers, sequence, seconds, (why, self.store.name))

    def require_built(self, *, words_alone: bool = False) -> None:
        """Wait for a keyword index that was opened empty, if the store is small.

        Raises Unavailable with the progress if words alone are searched and the index is still incomplete: it would
        find nothing.
        """
        keyword = self.keyword
        if keyword.is_incomplete and self.store.state.nodes <= MAX_AWAITED_BUILD_NODES:
            wait_for_projections_or_raise(
                (keyword,), keyword.awaited_sequence, BUILD_TIMEOUT_SECONDS, ("built", self.store.name)
            )
        if keyword.is_incomplete and (words_alone or not self.has_vectors):
            message = f"{keyword.explain_build()}, so words cannot be searched yet in store {self.store.name!r}"
            other = "; a hybrid search answers by meaning meanwhile" if self.has_vectors else ""
            seconds = min(max(keyword.build_seconds_left, 1.0), MAX_BUILD_RETRY_SECONDS)
            raise Unavailable(f"{message}{other}", retry_after=math.ceil(seconds))

    def catch_up(self, seconds: float, *, words_alone: bool = False) -> bool:
        """Wait briefly until the current indexes have applied the last commit. Return whether they have.

        Returns at once if they are far behind or have failed.
        """
        followers = self._followers(words_alone=words_alone)
        present = self.store.state.sequence
        near = present - self.applied_sequence(words_alone=words_alone) <= MAX_WAITED_COMMITS
        if near and all(each.error is None and each.pending <= EMBEDDING_BATCH_SIZE for each in followers):
            return self.wait_or_retry(present, seconds, "present", words_alone=words_alone)
        return False

    def search_keywords(self, query: KeywordQuery, limit: int, only: EntitySearchFilter) -> dict[str, float]:
        """Return the best entities for the words of a query with BM25 scores. Raises what `search` raises."""
        return {hit.id: hit.score for hit in self.keyword.search(query, limit, only)}

    def bm25_scores(self, query: str, texts: Mapping[str, str]) -> dict[str, dict[str, float]]:
        """Return term scores by text, as `KeywordIndex.bm25_scores`. Raises what `search` raises."""
        return self.keyword.bm25_scores(query, texts)

    def search_vectors(self, vector: NDArray[np.float32], limit: int, only: EntitySearchFilter) -> dict[str, float]:
        """Return the nearest entities with cosine similarities, nearest first. Raises what `search` raises."""
        return {hit.id: hit.similarity for hit in self.vector.search(vector, limit, only)}

    def vectors_of(self, ids: list[str]) -> dict[str, NDArray[np.float32]]:
        """Return the vectors of the given entities that have one."""
        return self.vector.vectors_of(ids)

    def passing(self, only: EntitySearchFilter, most: int) -> list[str] | None:
        """Return the ids of the entities that pass, from the vector index; None if more than ``most`` pass."""
        return self.vector.passing(only, most)

    def vectors(self, texts: list[str]) -> NDArray[np.float32]:
        """Return a vector of each text, cached for indexing. Raises Unavailable, and Conflict as `search`.

        The first call opens the vector index but does not wait for pending commits.
        """
        self.vector.wait(0, VECTOR_INDEX_OPEN_TIMEOUT_SECONDS)
        self.vector.require()
        return self.vector.embed_cached_texts(texts, self.queries.embedder)

    def memories_near(self, vector: NDArray[np.float32], limit: int) -> dict[str, float]:
        """Return the nearest indexed memories with cosine similarities. Raises what `search` raises."""
        return self.search_vectors(vector, limit, EntitySearchFilter(memories=True))


class TextIndexesAsOf:
    """Indexes of a store as of a commit, with the interface of `CurrentAndPastTextIndexes`.

    A text leaves the current index when it ends, and enters the past index later. So the current index is searched
    first, then the past index once it has applied everything that the current one may have: no text is missed, some
    occur twice.
    """

    is_past: bool = True

    def __init__(self, indexes: CurrentAndPastTextIndexes, history: HistoryProjection, at: int) -> None:
        self.required_sequence: int | None = at
        self._indexes = indexes
        self._history = history
        self._at = at

    def applied_sequence(self, *, words_alone: bool = False) -> int:  # noqa: ARG002
        """Return the commit that is searched."""
        return self._at

    def search_keywords(self, query: KeywordQuery, limit: int, only: EntitySearchFilter) -> dict[str, float]:
        """Return the best entities for the words of a query with BM25 scores, best first.

        Raises InvalidInput for an invalid query, and Unavailable while an index is behind.
        """
        only = msgspec.structs.replace(only, as_of=self._at)
        now, then = self._indexes.keyword, self._indexes.past_keyword
        # Wait beforehand as well: the weights of words must be the same on the next page.
        self._wait_until_applied(then, now.visible_up_to)
        hits = now.search(query, limit, only, other=then.frequencies(query))
        with self._require_complete(now, then):
            hits += then.search(query, limit, only.for_past_texts, other=now.frequencies(query))
        return _best_hits([(hit.id, hit.score) for hit in hits], limit)

    def bm25_scores(self, query: str, texts: Mapping[str, str]) -> dict[str, dict[str, float]]:
        """Return term scores by text, as `KeywordIndex.bm25_scores`; the rarity of words is the current one."""
        return self._indexes.bm25_scores(query, texts)

    def search_vectors(self, vector: NDArray[np.float32], limit: int, only: EntitySearchFilter) -> dict[str, float]:
        """Return the nearest entities with cosine similarities. Raises Unavailable while an index is behind."""
        only = msgspec.structs.replace(only, as_of=self._at)
        now, then = self._indexes.vector, self._indexes.past_vector
        hits = now.search(vector, limit, only)
        with self._require_complete(now, then):
            hits += then.search(vector, limit, only.for_past_texts)
        return _best_hits([(hit.id, hit.similarity) for hit in hits], limit)

    def vectors_of(self, ids: list[str]) -> dict[str, NDArray[np.float32]]:
        """Return the vectors that the given entities had. Raises Unavailable while an index is behind."""
        now, then = self._indexes.vector, self._indexes.past_vector
        found = now.vectors_of(ids, self._at)
        with self._require_complete(now, then):
            return found | then.vectors_of([node_id for node_id in ids if node_id not in found], self._at)

    @contextlib.contextmanager
    def _require_complete(
        self, now: CurrentTextIndexProjection[Any], then: PastTextIndexProjectionBase[Any]
    ) -> Generator[None]:
        """Wrap the search of the past index, which follows that of the current one.

        Raises Unavailable unless both were complete.
        """
        _check(now, now.reached, self._at)
        seen = now.visible_up_to
        self._wait_until_applied(then, seen)
        yield
        _check(then, then.sequence, seen)

    def _wait_until_applied(self, then: PastTextIndexProjectionBase[Any], sequence: int) -> None:
        for view in (self._history, then):
            view.wait(sequence, PAST_INDEX_TIMEOUT_SECONDS)
            _check(view, view.sequence, sequence)


def _check(view: BackgroundProjection, sequence: int, wanted: int) -> None:
    if sequence < wanted:
        seen = max(sequence, 0)
        raise Unavailable(f"the {view.name} index has not seen sequence {wanted} yet, only {seen}", retry_after=2)


def _best_hits(scored: list[tuple[str, float]], limit: int) -> dict[str, float]:
    # The sort is stable, so the next page, taken from longer lists, continues where this one ends.
    found: dict[str, float] = {}
    for node_id, score in sorted(scored, key=lambda hit: -hit[1]):
        if len(found) == limit:
            break
        found.setdefault(node_id, score)
    return found


def read_text_index_model_name(path: Path) -> str | None:
    """Return the model name in a file; None if the file is missing or damaged."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        text = path.read_text(encoding="utf-8").strip()
        if found := _MODEL_WITH_CHECKSUM_PATTERN.fullmatch(text):
            return found[2] if found[1] == _checksum(found[2]) else None
        return text if _BARE_MODEL_PATTERN.fullmatch(text) else None
    return None


def write_text_index_model_name(path: Path, name: str) -> None:
    """Write the model name with its checksum, atomically."""
    write_file_atomically(path, f"{_checksum(name)} {name}\n".encode())


def _checksum(name: str) -> str:
    return xxhash.xxh3_64_hexdigest(name.encode())
