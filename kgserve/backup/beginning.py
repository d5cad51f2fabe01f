"""The beginning of a backup: rows to start from, the journal since, and the history if the journal does not tell it."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec
import structlog

from kgserve.backup.copying import copy_database, copy_range, sum_of
from kgserve.backup.manifest import Base, FileEntry, HistoryCopy, Run, SnapshotCopy
from kgserve.backup.pieces import copy_chunks
from kgserve.backup.source import (
    Chunk,
    Cursor,
    Hole,
    Moved,
    chunks,
    cursor_of,
    history_path,
    newest_snapshot,
    oldest_sequence,
    opened_from,
)
from kgserve.errors import JournalDamaged
from kgserve.journal import snapshot
from kgserve.journal.files import named, sync_file, sync_folder
from kgserve.model.change import StoreState
from kgserve.store.layout import Layout, StoreFile

log = structlog.get_logger()

HISTORY = "history.sqlite"
PATIENCE_SECONDS = 5.0
"""How long a history that was just turned on is waited for."""


class Begun(msgspec.Struct, frozen=True):
    """A new base without a mark, and the state at its end."""

    base: Base
    state: StoreState


def begin(layout: Layout, described: StoreFile, folder: Path, mark: int, *, live: bool) -> Begun:
    """Copy what a new base needs into the folder of its run. Raises Moved, JournalDamaged, StorageFull.

    ``live``: a server is there that keeps the history in step.
    """
    folder.mkdir(parents=True)
    history, made = _history(layout, described, folder, mark, live=live)
    mark = max(mark, history.sequence if history else 0)
    taken = newest_snapshot(layout, mark)
    rows = _copy_snapshot(layout, taken, folder) if taken else None
    rows_from, copied, state = _journal(layout, taken, history, folder, mark)
    sync_folder(folder)
    first = max(rows_from, history.sequence if history else 0)
    base = Base(
        created_at=described.created_at,
        rows_from=rows_from,
        first=first,
        since=described.created_at if first == 0 else max(made, taken.time if taken and first == taken.sequence else 0),
        history_from=described.history_from,
        keeps_history=described.history != "none",
        snapshot=rows,
        history=history,
        runs=[copied],
        marks=[],
    )
    return Begun(base, state)


def _journal(
    layout: Layout, taken: snapshot.Manifest | None, history: HistoryCopy | None, folder: Path, mark: int
) -> tuple[int, Run, StoreState]:
    """From where rows are made, the journal from there on, and the state at its end."""
    starts = [*([0] if oldest_sequence(layout) == 1 else []), *([taken.sequence] if taken else [])]
    failed: JournalDamaged | None = None
    for rows_from in starts:
        needed = 1 + min(rows_from, history.sequence if history else rows_from)
        try:
            with opened_from(layout, needed) as opened:
                found = chunks(opened, 0, opened[0][0].first, mark)
                run = Run(int(folder.name.rpartition("-")[2]), copy_chunks(found, folder))
                return rows_from, run, _state(taken, found)
        except Hole:
            continue
        except JournalDamaged as error:
            # What a snapshot holds is not needed from the journal.
            log.warning("backup_begins_later", store=layout.name, after=rows_from, reason=str(error))
            failed = failed or error
    raise failed or JournalDamaged(f"{named(layout.journal)}: no whole snapshot reaches back as far as it begins")


def _state(taken: snapshot.Manifest | None, found: list[Chunk]) -> StoreState:
    states = [StoreState(), *([taken.state] if taken else []), *(chunk.extent.state for chunk in found[-1:])]
    return max(states, key=lambda state: state.sequence)


def _copy_snapshot(layout: Layout, taken: snapshot.Manifest, folder: Path) -> SnapshotCopy:
    source = layout.journal / f"{snapshot.PREFIX}{taken.sequence}"
    target = folder / source.name
    target.mkdir()
    names = (snapshot.NODES, snapshot.EDGES, snapshot.MANIFEST)
    with ExitStack() as stack:
        try:
            opened = {name: stack.enter_context((source / name).open("rb")) for name in names}
        except FileNotFoundError as error:
            raise Moved from error
        files = [
            copy_range(file, 0, file.seek(0, os.SEEK_END), target / name, f"{folder.name}/{source.name}/{name}")
            for name, file in opened.items()
        ]
    sync_folder(target)
    try:
        snapshot.verify(target)
    except JournalDamaged as error:  # replaced by a compaction while it was copied
        raise Moved from error
    return SnapshotCopy(taken.sequence, files)


def _history(
    layout: Layout, described: StoreFile, folder: Path, mark: int, *, live: bool
) -> tuple[HistoryCopy | None, int]:
    """A copy of the history and the time of the last commit in it; None when there is none, or the journal has all."""
    if described.history == "none":
        return None, 0
    deadline = time.monotonic() + (PATIENCE_SECONDS if live else 0.0)
    while True:
        cursor = cursor_of(history_path(layout))
        if _told_by_journal(layout, described, cursor):
            return None, 0
        if cursor is not None and _usable(layout, described, cursor, mark):
            break
        if time.monotonic() >= deadline:
            log.warning("backup_without_history", store=layout.name)
            return None, 0
        time.sleep(0.05)
    return _copy_history(layout, folder)


def _told_by_journal(layout: Layout, described: StoreFile, cursor: Cursor | None) -> bool:
    from_start = oldest_sequence(layout) == 1 and described.history_from == 0
    return from_start and (cursor is None or cursor.oldest == 0)


def _usable(layout: Layout, described: StoreFile, cursor: Cursor, mark: int) -> bool:
    current = cursor.oldest >= min(described.history_from, mark)
    return current and cursor.sequence + 1 >= oldest_sequence(layout)


def _copy_history(layout: Layout, folder: Path) -> tuple[HistoryCopy, int]:
    path = folder / HISTORY
    try:
        copy_database(history_path(layout), path)
    except sqlite3.Error as error:
        raise Moved from error
    cursor = cursor_of(path)
    if cursor is None:
        raise Moved
    sync_file(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        entry = FileEntry(f"{folder.name}/{HISTORY}", size, sum_of(file, 0, size))
    return HistoryCopy(cursor.sequence, cursor.oldest, entry), cursor.time
