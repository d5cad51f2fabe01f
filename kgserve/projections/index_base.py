"""Indexes of the texts of a store, in a folder each."""

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
from kgserve.platform.settings import Indexed
from kgserve.projections.base import FollowedStore
from kgserve.projections.follower import BackgroundProjection, JournalFollower
from kgserve.projections.text import Text
from kgserve.storage.model.change import ChangeSet
from kgserve.storage.model.rows import NodeRow
from kgserve.storage.rows.snapshot import Rows

IndexName = Literal["keyword", "vector", "past-keyword", "past-vector"]
Index = TypeVar("Index", bound=Sized)


class IndexState(msgspec.Struct, frozen=True):
    """How an index stands: the last commit that it has seen, and what is still to come of the present step.

    ``entities`` are those in it, ``pending`` those to come, ``bytes`` its size on disk, ``error`` the last failure that
    is not overcome yet.
    """

    name: IndexName
    sequence: int
    entities: int
    pending: int
    bytes: int
    model: str
    error: str | None


def indexed(store: FollowedStore) -> Indexed:
    """What is indexed of a store: as it was chosen for it, or else for the server."""
    chosen = store.description.indexes
    return store.settings.indexes if chosen == "default" else chosen


def not_kept(store: FollowedStore) -> str:
    """Why something is not indexed, in words."""
    kept = indexed(store)
    what = "nothing" if kept == "none" else "words alone"
    change = f"kgserve settings {store.name} indexes=words+meaning"
    return f"of store {store.name!r} {what} is indexed, by the setting indexes ({kept}); `{change}` changes that"


class StoreIndex(BackgroundProjection, Generic[Index]):
    """An index of the texts of one store, in a folder of its own."""

    folder: IndexName
    needs: frozenset[Indexed] = frozenset({"words", "words+meaning"})
    """It is there where one of these is indexed of the store."""
    being_opened: str
    """What is answered meanwhile."""
    _index: Index | None = None
    _indexed: tuple[str, ...] | None = None
    """The attributes that its texts have words of; None until it is opened."""

    def __init__(self, store: FollowedStore) -> None:
        super().__init__(store)
        self._folder = store.layout.views / self.folder

    @property
    def is_kept(self) -> bool:
        """Whether the store has it. One that it has no longer goes with the next step."""
        return indexed(self.store) in self.needs

    @override
    def step(self) -> bool:
        if self.is_kept:
            return super().step()
        self._go()
        return False

    @override
    def wait(self, sequence: int, seconds: float) -> bool:
        return self.is_kept and super().wait(sequence, seconds)

    def _go(self) -> None:
        """Be gone, with all files, until it is wanted again."""
        self.rebuild_wanted = True  # so that nothing is saved first
        self.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self.rebuild_wanted, self.pending, self.error = False, 0, None
        self._move(-1)

    @property
    def files(self) -> Path:
        """The folder."""
        return self._folder

    @property
    @abstractmethod
    def model(self) -> str:
        """What it is made with."""

    def state(self) -> IndexState:
        """How it stands."""
        entities = 0 if self._index is None else len(self._index)
        size = folder_bytes(self._folder)
        return IndexState(self.folder, self.reached, entities, self.pending, size, self.model, self.error)

    def check_model(self) -> None:
        """Raise Conflict when it is of another model than the server's."""

    def reconsider(self) -> None:
        """Have it made anew if the store wants other attributes indexed than it has words of; come, or go."""
        if self.is_kept != (self.sequence >= 0):
            self.wake()
        if self._indexed is not None and self._indexed != self.store.description.indexed_attributes:
            self.rebuild_wanted = True
            self.wake()

    def _opened(self) -> Index:
        if self._index is None:
            if not self.is_kept:
                raise Conflict(not_kept(self.store))
            self.check_model()
            raise Unavailable(self.being_opened, retry_after=1)
        return self._index

    def _made_of(self, *parts: str) -> str:
        """What the index is made of from now on, as its files say it: its model, and what the store wants indexed."""
        self._indexed = self.store.description.indexed_attributes
        return " ".join([*parts, *([msgspec.json.encode(self._indexed).decode()] if self._indexed else ())])

    def _text(self, row: NodeRow, since: int | None = None, until: int | None = None) -> Text:
        """The texts of a state."""
        return Text.of(row, self._indexed or (), since, until)

    def _texts_of(self, rows: Rows) -> Iterator[Text]:
        """The texts of all entities that have words."""
        return (text for row in rows.all_nodes() if (text := self._text(row)).has_words)

    @abstractmethod
    def _clear(self) -> None:
        """Forget everything."""


class FollowStep(msgspec.Struct, frozen=True):
    """The net effect of change sets up to ``sequence``. Entities without any words are to be removed."""

    put: list[Text]
    removed: list[str]
    sequence: int


class IndexProjection(JournalFollower, StoreIndex[Index]):
    """An index of what a store holds now."""

    def __init__(self, store: FollowedStore) -> None:
        super().__init__(store)
        self._opening = threading.Lock()
        self._begun = 0

    @property
    def visible_up_to(self) -> int:
        """The last commit of which a search may have seen anything: `sequence` moves when all of a step is in."""
        return max(self.sequence, self._begun)

    @override
    def wait(self, sequence: int, seconds: float) -> bool:
        if not self.is_kept:
            return False
        deadline = time.monotonic() + seconds
        # What has failed is left to that thread, which tries it again, later and later, and says why.
        if self.sequence < 0 and self.error is None and self._opening.acquire(timeout=seconds):
            try:
                with contextlib.suppress(Exception):
                    super()._open_if_closed()
            finally:
                self._opening.release()
        return super().wait(sequence, max(deadline - time.monotonic(), 0))

    @override
    def _go(self) -> None:
        with self._opening:
            super()._go()

    @abstractmethod
    def _fill(self, texts: Iterator[Text], sequence: int) -> None:
        """Take in everything there is, after `_clear`."""

    @abstractmethod
    def _follow(self, step: FollowStep) -> None:
        """Take in some changes. Doing it twice must come to the same."""

    @property
    @abstractmethod
    def _saved(self) -> int:
        """The commit that the files go up to."""

    @abstractmethod
    def _save(self, sequence: int) -> None:
        """Have the files go up to a commit, since the one that they go up to nothing has changed that they hold."""

    @override
    def _open_if_closed(self) -> None:
        with self._opening:
            super()._open_if_closed()

    @override
    def _apply(self, changes: Iterable[ChangeSet], sequence: int) -> None:
        step = self._net_effect(changes)
        self._begun = sequence
        if step.put or step.removed:
            self._follow(step)
        elif self._saved < self.store.journal.oldest - 1:
            # What is on the disk could no longer be gone on with.
            self._save(sequence)

    @override
    def _apply_all(self, rows: Rows) -> int:
        self._begun = rows.at
        # First: who needs a commit is not to look at what is being cleared.
        self._move(0)
        self._clear()
        self._fill(self._texts_of(rows), rows.at)
        return rows.at

    def _net_effect(self, changes: Iterable[ChangeSet]) -> FollowStep:
        """What consecutive change sets come to."""
        rows, sequence = net_rows(changes)
        texts = (self._text(row) for row in rows.values() if row is not None)
        put = {text.id: text for text in texts if text.has_words}
        return FollowStep(list(put.values()), [node_id for node_id in rows if node_id not in put], sequence)


def net_rows(changes: Iterable[ChangeSet]) -> tuple[dict[str, NodeRow | None], int]:
    """What consecutive change sets make of each node that they name, None where it is gone; and the last of them."""
    rows: dict[str, NodeRow | None] = {}
    sequence = 0
    for change in changes:
        rows.update(dict.fromkeys(change.nodes_deleted))
        rows.update((row.id, row) for row in change.nodes_created)
        rows.update((row.id, row) for row in change.nodes_updated)
        sequence = change.sequence
    return rows, sequence


def folder_bytes(folder: Path) -> int:
    """Size of the files of a folder, which may come and go meanwhile."""
    size = 0
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            with contextlib.suppress(OSError):
                size += path.stat().st_size if path.is_file() else 0
    return size
