"""Making an engine file from the journal alone."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

import structlog

from kgserve.allocator import give_back
from kgserve.engine.database import EngineOptions, build, remove
from kgserve.errors import EngineFailed, JournalDamaged
from kgserve.journal import snapshot
from kgserve.journal.files import named
from kgserve.journal.fold import Folded, fold
from kgserve.journal.journal import Journal
from kgserve.model.change import StoreState
from kgserve.store.layout import Layout

log = structlog.get_logger()

SNAPSHOTS_KEPT = 2
# A rebuild that had this much journal to read leaves a snapshot, so that the next one has less.
SNAPSHOT_AFTER_BYTES = 16 << 20


def rebuild(
    layout: Layout, journal: Journal, options: EngineOptions, path: Path, reason: str, *, whole: bool = False
) -> StoreState:
    """Build an engine file at ``path`` from the newest snapshot that is whole and the journal after it.

    With ``whole`` it has columns for extras even if no row has any yet, and there is nothing to worry about.

    Raises JournalDamaged when neither a snapshot nor the whole journal is left, StorageFull when the disk is full.
    """
    started = time.perf_counter()
    # The first engine file of a new store is made in the same way, and nobody needs to hear of it.
    level = logging.WARNING if journal.last and not whole else logging.DEBUG
    log.log(level, "rebuild_started", store=layout.name, reason=reason)
    rows = fresh_folder(layout.scratch / "rebuild")
    folded = _fold(layout, journal, rows)
    try:
        build(path, rows, folded.state, options, whole=whole)
    except EngineFailed:
        # An edge that the engine had lost was not named when its node was deleted.
        log.exception("edges_without_nodes", store=layout.name)
        remove(path)
        folded = _fold(layout, journal, rows, drop_loose=True)
        build(path, rows, folded.state, options, whole=whole)
    state = folded.state
    if folded.rebased:
        log.error("digest_rebased", store=layout.name, sequence=state.sequence, nodes=state.nodes, edges=state.edges)
    if folded.rebased or _unsnapshotted_bytes(layout, journal) >= SNAPSHOT_AFTER_BYTES:
        snapshot.install(rows, layout.journal, state)
        snapshot.remove_but_newest(layout.journal, SNAPSHOTS_KEPT)
    else:
        shutil.rmtree(rows)
    seconds = round(time.perf_counter() - started, 3)
    log.log(level, "rebuild_done", store=layout.name, sequence=state.sequence, seconds=seconds)
    return state


def fresh_folder(path: Path) -> Path:
    """An empty folder at a path."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def _fold(layout: Layout, journal: Journal, rows: Path, *, drop_loose: bool = False) -> Folded:
    failed = JournalDamaged(f"{named(layout.journal)}: it starts at {journal.oldest} and no snapshot reaches that far")
    for base in _bases(layout, journal):
        try:
            if base is not None:
                snapshot.verify(base)
            changes = journal.read(snapshot.sequence_of(base) if base else 0)
            folded = fold(base, changes, rows, drop_loose=drop_loose)
        except JournalDamaged as error:
            log.exception("snapshot_unusable" if base else "journal_unusable", store=layout.name)
            failed = error
        else:
            give_back()
            return folded
    raise failed


def _bases(layout: Layout, journal: Journal) -> Iterable[Path | None]:
    """Where folding may start: each snapshot, newest first, then nothing at all if the journal goes back that far."""
    usable = [s for s in snapshot.list_snapshots(layout.journal) if snapshot.sequence_of(s) + 1 >= journal.oldest]
    return [*usable, None] if journal.oldest == 1 else usable


def _unsnapshotted_bytes(layout: Layout, journal: Journal) -> int:
    snapshots = snapshot.list_snapshots(layout.journal)
    after = snapshot.sequence_of(snapshots[0]) if snapshots else 0
    return sum(segment.size for segment in journal.segments if segment.first > after) if after else journal.bytes
