"""Base classes of the indexes of a store's texts, each in a folder of its own."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sized
from pathlib import Path
from typing import Generic, Literal, TypeVar

import msgspec
from typing_extensions import override

from kgserve.errors import Conflict, Unavailable
from kgserve.platform.settings import IndexedContent
from kgserve.projections.background_projection import BackgroundProjection, ReadinessAnnouncingProjection
from kgserve.projections.base import StoreFollowedByProjections
from kgserve.projections.indexed_text import IndexedEntityText
from kgserve.storage.model.change_set import ChangeSet
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.storage.rows.rows_snapshot import RowsSnapshot

IndexName = Literal["keyword", "vector", "past-keyword", "past-vector"]
Index = TypeVar("Index", bound=Sized)

MAX_BUILD_PROGRESS = 0.99
"""Largest share of a build in progress: the files are still to be saved at its end."""
MAX_BUILD_RETRY_SECONDS = 60.0
"""Longest `retry_after` while an index is being built, in seconds."""
_EXPECTED_BUILD_NODES_PER_SECOND = 3_000.0


class TextIndexState(msgspec.Struct, frozen=True):
    """State of an index: the last applied commit, and the work that remains of the current step.

    ``entities`` is the number of indexed entities, ``pending`` that of entities still to be indexed, ``bytes`` the size
    on disk, ``error`` the last failure until a step succeeds, ``progress`` the share that a rebuild has done, 0 to 1,
    ``note`` why searches are slow.
    """

    name: IndexName
    sequence: int
    entities: int
    pending: int
    bytes: int
    model: str
    error: str | None
    progress: float | None = None
    note: str | None = None


def get_indexed_content_setting(store: StoreFollowedByProjections) -> IndexedContent:
    """Return what is indexed of a store: its own setting, or else the server's."""
    chosen = store.description.indexes
    return store.settings.indexes if chosen == "default" else chosen


def explain_why_not_indexed(store: StoreFollowedByProjections) -> str:
    """Return a message that explains why something is not indexed."""
    kept = get_indexed_content_setting(store)
    what = "nothing" if kept == "none" else "only words"
    change = f"kgserve settings {store.name} indexes=words+meaning"
    return f"store {store.name!r} indexes {what} (setting `indexes`: {kept}); to change that, run `{change}`"


class TextIndexProjectionBase(BackgroundProjection, Generic[Index]):
    """Index of the texts of one store, in a folder of its own."""

    folder: IndexName
    needs: frozenset[IndexedContent] = frozenset({"words", "words+meaning"})
    """Values of the `indexes` setting with which the store has this index."""
    being_opened: str
    """Message for searches while the index is being opened."""
    _index: Index | None = None
    _indexed: tuple[str, ...] | None = None
    """Attributes whose values the texts include; None until the index is opened."""

    def __init__(self, store: StoreFollowedByProjections) -> None:
        super().__init__(store)
        self._folder = store.layout.views / self.folder

    @property
    def is_enabled(self) -> bool:
        """True if the settings of the store include this index; otherwise the next step deletes its files."""
        return get_indexed_content_setting(self.store) in self.needs

    @override
    def step(self) -> bool:
        if self.is_enabled:
            return super().step()
        self._remove_files()
        return False

    @override
    def wait(self, sequence: int, seconds: float) -> bool:
        return self.is_enabled and super().wait(sequence, seconds)

    def discard(self) -> None:
        """Delete the index with all files, in the caller's thread. The next step opens and rebuilds it."""
        with self._step_lock:
            self._remove_files()
            self.rebuild_wanted = True

    def _remove_files(self) -> None:
        """Delete the index with all files until the settings include it again."""
        self.rebuild_wanted = True  # prevents `close` from saving
        self.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self.rebuild_wanted, self.pending, self.error = False, 0, None
        self._move(-1)

    @property
    @abstractmethod
    def model(self) -> str:
        """Name of the tokenizer or embedding model that the index is built with."""

    def state(self) -> TextIndexState:
        """Return the state of the index."""
        index = self._index
        entities = 0 if index is None else len(index)
        size = folder_bytes(self._folder)
        return TextIndexState(
            self.folder, self.reached, entities, self.pending, size, self.model, self.error, self.build_progress
        )

    @property
    def build_progress(self) -> float | None:
        """Share of the store that a rebuild has indexed so far, 0 to 1; None while no rebuild is due."""
        return None

    def check_model(self) -> None:
        """Raise Conflict if the index was built with another model than the server's."""

    def apply_settings(self) -> None:
        """Create, delete or rebuild the index if changed settings require it."""
        if self.is_enabled != (self.sequence >= 0):
            self.wake()
        if self._indexed is not None and self._indexed != self.store.description.indexed_attributes:
            self.rebuild_wanted = True
            self.wake()

    def _opened(self) -> Index:
        index = self._index  # once, because another thread may close it
        if index is None:
            if not self.is_enabled:
                raise Conflict(explain_why_not_indexed(self.store))
            self.check_model()
            raise Unavailable(self.being_opened, retry_after=1)
        return index

    def _made_of(self, *parts: str) -> str:
        """Return a string that identifies the content of the index: its model and the indexed attributes."""
        self._indexed = self.store.description.indexed_attributes
        return " ".join([*parts, *([msgspec.json.encode(self._indexed).decode()] if self._indexed else ())])

    def _text(self, row: NodeRow, since: int | None = None, until: int | None = None) -> IndexedEntityText:
        """Return the texts of a state."""
        return IndexedEntityText.of(row, self._indexed or (), since, until)

    def _texts_of(self, rows: RowsSnapshot) -> Iterator[IndexedEntityText]:
        """Return the texts of all entities that have words."""
        return (text for row in rows.all_nodes() if (text := self._text(row)).has_words)


class TextIndexUpdate(msgspec.Struct, frozen=True):
    """Net effect of change sets up to ``sequence``; entities without any words are removed."""

    put: list[IndexedEntityText]
    removed: list[str]
    sequence: int


class CurrentTextIndexProjection(ReadinessAnnouncingProjection, TextIndexProjectionBase[Index]):
    """Projection of a store's journal to an index of its current texts."""

    def __init__(self, store: StoreFollowedByProjections) -> None:
        super().__init__(store)
        self._opening = threading.Lock()
        self._begun_sequence = 0
        self._build_started_at = time.monotonic()
        self._began_empty = False

    @property
    def is_incomplete(self) -> bool:
        """True while searches miss entities, because the index began empty and has not caught up yet."""
        return self._began_empty and 0 <= self.sequence < self._ready_at

    @property
    def visible_up_to(self) -> int:
        """Last commit that a search may have seen parts of; `sequence` advances only at the end of a step."""
        return max(self.sequence, self._begun_sequence)

    @property
    @override
    def build_progress(self) -> float | None:
        if self.is_rebuilding:
            nodes = self.store.state.nodes if self._is_rebuilding else 0
            return min(max(1 - self.pending / nodes, 0.0), MAX_BUILD_PROGRESS) if nodes else 0.0
        if self.is_incomplete:
            return min(max(self.sequence, 0) / max(self.awaited_sequence, 1), MAX_BUILD_PROGRESS)
        return None

    @property
    def awaited_sequence(self) -> int:
        """The commit that completes an index that began empty; 0 for a complete index."""
        return self._ready_at if self.is_incomplete else 0

    def explain_build(self) -> str:
        """Return a message about a build in progress: which index, and how much of it is done."""
        return f"the {self.name} index is being built ({self.build_progress or 0.0:.0%} of the store so far)"

    @property
    def build_seconds_left(self) -> float:
        """Estimate of the seconds until a build in progress ends."""
        done, elapsed = self.build_progress or 0.0, time.monotonic() - self._build_started_at
        return elapsed * (1 - done) / done if done > 0 else self.store.state.nodes / _EXPECTED_BUILD_NODES_PER_SECOND

    @override
    def _begin_at(self, sequence: int) -> None:
        super()._begin_at(sequence)
        self._build_started_at = time.monotonic()
        self._began_empty = sequence == 0

    def _begin_empty(self, ready_at: int) -> None:
        """Begin again without entries; the index is complete once it has reached a commit."""
        self._ready_at = max(self._ready_at, ready_at)
        self._began_empty = True
        self._move(0)

    @override
    def _rebuild(self) -> None:
        self._build_started_at = time.monotonic()
        super()._rebuild()

    @override
    def wait(self, sequence: int, seconds: float) -> bool:
        if not self.is_enabled:
            return False
        deadline = time.monotonic() + seconds
        # A failed opening is left to the follower thread, which retries it with backoff and reports the reason.
        if self.sequence < 0 and self.error is None and self._opening.acquire(timeout=seconds):
            try:
                with contextlib.suppress(Exception):
                    super()._open_if_closed()
            finally:
                self._opening.release()
        return super().wait(sequence, max(deadline - time.monotonic(), 0))

    @override
    def _remove_files(self) -> None:
        with self._opening:
            super()._remove_files()
            self._ready_at = self.store.state.sequence  # what a later opening has to catch up with

    @abstractmethod
    def _follow(self, step: TextIndexUpdate) -> None:
        """Apply a step. Must be idempotent."""

    @property
    @abstractmethod
    def _saved(self) -> int:
        """Last commit that the files contain."""

    @abstractmethod
    def _save(self, sequence: int) -> None:
        """Save the files as of a commit; nothing that they hold has changed since the commit they contain."""

    @override
    def _open_if_closed(self) -> None:
        with self._opening:
            super()._open_if_closed()

    @override
    def _apply(self, changes: Iterable[ChangeSet], sequence: int) -> None:
        step = self._net_effect(changes)
        self._begun_sequence = sequence
        if step.put or step.removed:
            self._follow(step)
        elif self._saved < self.store.journal.oldest - 1:
            # The files could otherwise no longer be continued from the journal.
            self._save(sequence)

    def _net_effect(self, changes: Iterable[ChangeSet]) -> TextIndexUpdate:
        """Return the net effect of consecutive change sets."""
        rows, sequence = collapse_change_sets_to_final_rows(changes)
        texts = (self._text(row) for row in rows.values() if row is not None)
        put = {text.id: text for text in texts if text.has_words}
        return TextIndexUpdate(list(put.values()), [node_id for node_id in rows if node_id not in put], sequence)


def collapse_change_sets_to_final_rows(changes: Iterable[ChangeSet]) -> tuple[dict[str, NodeRow | None], int]:
    """Return the final row of each node that consecutive change sets name, and their last sequence.

    The row of a deleted node is None.
    """
    rows: dict[str, NodeRow | None] = {}
    sequence = 0
    for change in changes:
        rows.update(dict.fromkeys(change.nodes_deleted))
        rows.update((row.id, row) for row in change.nodes_created)
        rows.update((row.id, row) for row in change.nodes_updated)
        sequence = change.sequence
    return rows, sequence


def folder_bytes(folder: Path) -> int:
    """Return the total size of a folder's files in bytes. Files may appear and disappear concurrently."""
    size = 0
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            with contextlib.suppress(OSError):
                size += path.stat().st_size if path.is_file() else 0
    return size
