"""Rebuild current rows and snapshots from the journal."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from kgserve.errors import JournalDamaged, Unavailable
from kgserve.platform.durable_files import shorten_journal_path
from kgserve.platform.malloc_control import release_free_memory
from kgserve.storage.journal import snapshot
from kgserve.storage.journal.journal import Journal
from kgserve.storage.journal.replay import (
    list_replay_base_snapshots,
    materialize_journal,
    missing_snapshot_error,
    read_cross_store_links_as_of,
    read_node_accesses_as_of,
    replay_deleted_node_last_versions,
)
from kgserve.storage.journal.row_materialization import RowMaterializationResult, write_parquet_row_files
from kgserve.storage.model.change_set import StoreState
from kgserve.storage.rows.current_rows import CurrentRowsProjection
from kgserve.storage.rows.row_json_encoder import RowsDamaged
from kgserve.storage.rows.snapshot_row_tuples import iterate_edge_tuples, iterate_node_tuples
from kgserve.storage.store_folder_layout import StoreLayout

log = structlog.get_logger()

_Slice = TypeVar("_Slice")

MAX_KEPT_SNAPSHOTS = 2
SNAPSHOT_PAUSE_FACTOR = 9
"""Pause between parts of a snapshot while writes arrive, as a multiple of the time of the last part."""


def seconds_since_perf_counter(started: float) -> float:
    """Return the seconds since a value of `time.perf_counter`, to the millisecond."""
    return round(time.perf_counter() - started, 3)


def write_current_rows_to_folder(
    layout: StoreLayout,
    journal: Journal,
    present: CurrentRowsProjection,
    target: Path,
    closing: threading.Event | None,
    idle: Callable[[], bool],
) -> RowMaterializationResult:
    """Write the current rows to an empty folder; if they are damaged, write those of snapshot and journal.

    Pauses while other work is not ``idle``. Raises Unavailable once the store is ``closing``.
    """
    try:
        with present.reading() as rows:
            nodes = _throttle(iterate_node_tuples(rows), closing, idle)
            edges = _throttle(iterate_edge_tuples(rows), closing, idle)
            found = write_parquet_row_files(nodes, edges, rows.state, recreate_empty_folder(target), width=rows.width)
    except (RowsDamaged, msgspec.MsgspecError) as error:
        log.error("rows_damaged", store=layout.name, error=str(error))
    else:
        release_free_memory()
        if not found.is_digest_replaced:
            return found
    return materialize_journal(layout, journal, recreate_empty_folder(target))


def link_current_snapshot_rows(
    layout: StoreLayout,
    state: StoreState,
    target: Path,
    is_recent: Callable[[StoreState], bool] = lambda _: False,
) -> RowMaterializationResult | None:
    """Link the row files of the newest snapshot into an empty folder, if it has this state or ``is_recent`` accepts it.

    Returns None if there is no such snapshot, or it is damaged.
    """
    for found in snapshot.list_journal_snapshots(layout.journal)[:1]:
        try:
            saved = snapshot.verify_snapshot(found).state
            if saved != state and not is_recent(saved):
                return None
            folder = recreate_empty_folder(target)
            for name in (snapshot.NODES_FILE, snapshot.EDGES_FILE):
                # A link, because the snapshot may be removed meanwhile. Nothing ever changes these files.
                (folder / name).hardlink_to(found / name)
        except (JournalDamaged, OSError):
            log.warning("snapshot_not_reused", store=layout.name, snapshot=found.name, exc_info=True)
            return None
        return RowMaterializationResult(saved, saved)
    return None


def _throttle(slices: Iterable[_Slice], closing: threading.Event | None, idle: Callable[[], bool]) -> Iterator[_Slice]:
    """Yield the slices, with pauses unless other work is ``idle``."""
    started = time.perf_counter()
    for each in slices:
        yield each
        if not idle():
            time.sleep(SNAPSHOT_PAUSE_FACTOR * (time.perf_counter() - started))
        if closing is not None and closing.is_set():
            raise Unavailable("this store is closing; try again shortly")
        started = time.perf_counter()


def take_snapshot(
    layout: StoreLayout,
    journal: Journal,
    present: CurrentRowsProjection,
    closing: threading.Event | None,
    idle: Callable[[], bool],
    forgotten: Container[str] = (),
) -> StoreState:
    """Write and publish a snapshot of all rows, and return its state. Pauses while other work is not ``idle``.

    The snapshot omits the last versions of ``forgotten`` nodes.

    Raises JournalDamaged, OSError for a full disk, and Unavailable once the store is ``closing``.
    """
    snapshots = snapshot.list_journal_snapshots(layout.journal)
    if snapshots and snapshot.parse_snapshot_sequence(snapshots[0]) == journal.last and not forgotten:
        return snapshot.verify_snapshot(snapshots[0]).state
    rows = layout.scratch / "snapshot"
    try:
        folded = write_current_rows_to_folder(layout, journal, present, rows, closing, idle)
        if folded.is_digest_replaced:
            log.error("digest_rebased", store=layout.name, sequence=folded.state.sequence)
        publish_rows_folder_as_snapshot(layout, journal, rows, folded.state, forgotten)
    finally:
        shutil.rmtree(rows, ignore_errors=True)
    return folded.state


def publish_rows_folder_as_snapshot(
    layout: StoreLayout, journal: Journal, rows: Path, state: StoreState, forgotten: Container[str] = ()
) -> None:
    """Add accesses, links and last versions to a folder of rows, and publish it as a snapshot."""
    snapshot.write_deleted_node_last_versions(
        replay_deleted_node_last_versions(layout, journal, state.sequence, forgotten), rows
    )
    snapshot.write_snapshot_access_records(read_node_accesses_as_of(layout, journal, state.sequence), rows)
    snapshot.write_snapshot_cross_store_links(read_cross_store_links_as_of(layout, journal, state.sequence), rows)
    snapshot.publish_journal_snapshot(rows, layout.journal, state)


def open_or_rebuild_current_rows(layout: StoreLayout, journal: Journal) -> CurrentRowsProjection:
    """Open the current rows at the journal's last commit; rebuild them if they are damaged or too old.

    Raises JournalDamaged when the rows have seen more than the journal holds, StorageFull.
    """
    view = CurrentRowsProjection(layout.rows, layout.name)
    if view.base_sequence > journal.last:
        raise JournalDamaged(
            f"{shorten_journal_path(layout.journal)} ends at sequence {journal.last}, "
            "but the current rows have seen sequence"
            f" {view.base_sequence}; run `kgserve doctor --salvage`"
        )
    if view.base_sequence + 1 < journal.oldest:
        rebuild_current_rows(view, layout, journal)
        return view
    try:
        view.catch_up(journal.read)
    except RowsDamaged as error:
        log.error("rows_damaged", store=layout.name, error=str(error))
        rebuild_current_rows(view, layout, journal)
    return view


def rebuild_current_rows(view: CurrentRowsProjection, layout: StoreLayout, journal: Journal) -> None:
    """Rebuild the current rows from the newest whole snapshot and the journal after it. Raises JournalDamaged."""
    started = time.perf_counter()
    for base in list_replay_base_snapshots(layout, journal):
        if base is None:
            view.renew((), (), StoreState(), journal.read)
            break
        try:
            state = snapshot.verify_snapshot(base).state
        except JournalDamaged:
            log.exception("snapshot_unusable", store=layout.name)
            continue
        linked = snapshot.find_optional_snapshot_file(base, snapshot.LINKS_FILE) is not None
        nodes, edges = snapshot.read_snapshot_nodes(base), snapshot.read_snapshot_edges(base)
        view.renew(nodes, edges, state, journal.read, linked=linked)
        break
    else:
        raise missing_snapshot_error(layout, journal)
    log.warning(
        "rows_renewed", store=layout.name, sequence=view.state.sequence, seconds=seconds_since_perf_counter(started)
    )


def recreate_empty_folder(path: Path) -> Path:
    """Create an empty folder at a path, deleting what was there; return the path."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path
