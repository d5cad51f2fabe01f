"""Backing up one store: adding to its backup what is new, or beginning another base."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import BinaryIO

import msgspec
import structlog

from kgserve.backup.beginning import begin
from kgserve.backup.copying import sum_of
from kgserve.backup.folder import StoreBackup
from kgserve.backup.manifest import Base, Manifest, Mark, Run
from kgserve.backup.pieces import copy_chunks
from kgserve.backup.source import Hole, Moved, chunks, cursor_of, history_path, newest_snapshot, opened_from
from kgserve.errors import BackupDamaged, NotFound, Unavailable
from kgserve.journal.files import storage_error, sync_folder
from kgserve.journal.journal import Segment
from kgserve.model.change import StoreState
from kgserve.model.digest import to_text
from kgserve.permissions import private_folder
from kgserve.store.layout import Layout, StoreFile

log = structlog.get_logger()

MAX_RUNS = 1_000
"""So many runs stand on one base; after that another one is made, so that a manifest stays small."""
TRIES = 5


class Taken(msgspec.Struct, frozen=True):
    """One backup: the base it belongs to, why that one is new (empty when it is not), and bytes copied and in all."""

    base: Base
    new_base: str
    bytes_copied: int
    bytes_total: int
    bases: int


class _Discontinued(Exception):
    """A base cannot be gone on with; the reason is for people."""


class Taker:
    """Backs one store up. Who uses it holds the lock of the backup's folder."""

    def __init__(self, layout: Layout, backup: StoreBackup, mark: Callable[[], int], *, live: bool) -> None:
        """``mark`` tells what the store has acknowledged by now; ``live``: a server keeps its history in step."""
        self._layout = layout
        self._backup = backup
        # Before the mark: what is committed while files are copied is after the moment that this backup covers.
        self._asked = time.time_ns() // 1000
        self._mark = mark()
        self._live = live

    def take(self, *, full: bool = False, keep: int | None = None) -> Taken:
        """Copy what is new; everything, with ``full`` or when the former backup cannot be gone on with.

        Of the bases the newest ``keep`` stay. Raises NotFound when the store is gone, JournalDamaged for a damaged
        journal, BackupDamaged when the former backup is not as it was written, StorageFull.
        """
        try:
            return self._take(full=full, keep=keep)
        except FileNotFoundError as error:
            raise NotFound(f"there is no store {self._layout.name!r} any more") from error
        except OSError as error:
            raise storage_error(error, f"backing up store {self._layout.name!r}") from error

    def _take(self, *, full: bool, keep: int | None) -> Taken:
        before = self._backup.read()
        self._backup.clear_leftovers(before)
        private_folder(self._backup.folder)
        try:
            base, reason = self._next_base(before, full=full)
        except BaseException:
            self._backup.clear_leftovers(before)
            raise
        kept = before.bases if reason else before.bases[:-1]
        bases = [*kept, base]
        after = msgspec.structs.replace(before, bases=bases[-keep:] if keep else bases)
        sync_folder(self._backup.folder)
        self._backup.write(after)
        self._backup.clear_leftovers(after)
        old = {file.path for each in before.bases for file in each.files}
        copied = sum(file.bytes for file in base.files if file.path not in old)
        return Taken(base, reason, copied, after.bytes, len(after.bases))

    def _next_base(self, before: Manifest, *, full: bool) -> tuple[Base, str]:
        for _ in range(TRIES):
            described = self._described()
            try:
                reason = "it was asked for" if full else self._why_new(before, described)
                if not reason:
                    try:
                        return self._continued(before, described), ""
                    except _Discontinued as error:
                        reason = str(error)
                begun = begin(
                    self._layout, described, self._backup.run_folder(before.runs.stop), self._mark, live=self._live
                )
                mark = self._marked(begun.state, described)
                return msgspec.structs.replace(begun.base, marks=[mark]), reason
            except Moved:
                self._backup.clear_leftovers(before)
        name = self._layout.name
        raise Unavailable(f"the files of store {name!r} are replaced all the time; try again", retry_after=30)

    def _described(self) -> StoreFile:
        if not self._layout.exists:
            raise NotFound(f"there is no store {self._layout.name!r}")
        found = self._layout.description()
        if found is None:
            raise Unavailable(f"the settings of store {self._layout.name!r} cannot be read; start its server once")
        return found

    def _why_new(self, before: Manifest, described: StoreFile) -> str:
        if not before.bases:
            return "it is the first"
        base = before.bases[-1]
        if described.created_at != base.created_at:
            return "the store was made anew"
        keeps = described.history != "none"
        if described.history_from != base.history_from or (keeps and not base.keeps_history):
            return "the history of the store was turned on"
        if len(base.runs) >= MAX_RUNS:
            return f"the former one has {MAX_RUNS:,} runs"
        return ""

    def _continued(self, before: Manifest, described: StoreFile) -> Base:
        base = before.bases[-1]
        self._require_files(base)
        mark = max(self._mark, base.last.sequence)
        newest = base.pieces[-1] if base.pieces else None
        number = before.runs.stop
        try:
            with opened_from(self._layout, newest.segment if newest else base.needed) as opened:
                _require_same(self._layout, opened[0], base)
                offset, due = (newest.end, newest.last + 1) if newest else (0, opened[0][0].first)
                found = chunks(opened, offset, due, mark)
                pieces = copy_chunks(found, self._backup.run_folder(number))
        except Hole:
            raise _Discontinued("the journal no longer reaches back to the former backup") from None
        state = found[-1].extent.state if found else base.last.state
        runs = [*base.runs, Run(number, pieces)] if pieces else base.runs
        return msgspec.structs.replace(base, runs=runs, marks=_joined(base.marks, self._marked(state, described)))

    def _require_files(self, base: Base) -> None:
        for file in base.files:
            path = self._backup.folder / file.path
            if not path.is_file() or path.stat().st_size != file.bytes:
                raise BackupDamaged(
                    f"{path}: it is missing or has another size; `kgserve verify` says more, and --full begins anew"
                )

    def _marked(self, state: StoreState, described: StoreFile) -> Mark:
        cursor = cursor_of(history_path(self._layout)) if described.history != "none" else None
        return Mark(
            sequence=state.sequence,
            time=state.time,
            taken=max(self._asked, state.time),
            digest=to_text(state.digest),
            nodes=state.nodes,
            edges=state.edges,
            settings=described,
            history_oldest=min(cursor.oldest, state.sequence) if cursor else 0,
        )


def _require_same(layout: Layout, opened: tuple[Segment, BinaryIO], base: Base) -> None:
    """Whether the store's journal goes on from the last piece, or has become another one since."""
    segment, file = opened
    if not base.pieces:
        _require_same_snapshot(layout, segment, base)
        return
    newest = base.pieces[-1]
    if segment.first != newest.segment:
        raise _Discontinued("the journal no longer reaches back to the former backup")
    if sum_of(file, newest.offset, newest.file.bytes) != newest.file.sha256:
        raise _Discontinued("the journal was changed before the end of the former backup, as by a restore")


def _require_same_snapshot(layout: Layout, segment: Segment, base: Base) -> None:
    """The same for a base without any journal: the store's snapshot must be the one that was copied."""
    state = base.last.state
    taken = newest_snapshot(layout, state.sequence) if state.sequence else None
    if state.sequence and (segment.first <= state.sequence or taken is None or taken.state != state):
        raise _Discontinued("the store has no journal in common with the former backup")


def _joined(marks: list[Mark], mark: Mark) -> list[Mark]:
    """The marks with another one; it takes the place of the last when only the time differs."""
    last = marks[-1]
    same = msgspec.structs.replace(mark, taken=last.taken) == last
    return [*(marks[:-1] if same else marks), mark]
