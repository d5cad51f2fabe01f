"""Replay of the journal from a snapshot: rows, accesses, links, and last versions of deleted nodes."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from itertools import islice
from pathlib import Path

import structlog

from kgserve.errors import JournalDamaged
from kgserve.platform.durable_files import shorten_journal_path
from kgserve.platform.malloc_control import release_free_memory
from kgserve.storage.journal import snapshot
from kgserve.storage.journal.journal import Journal
from kgserve.storage.journal.journal_reader import (
    collect_deleted_node_last_versions,
    read_cross_store_link_changes,
    read_last_node_accesses_from_journal,
)
from kgserve.storage.journal.row_materialization import RowMaterializationResult, materialize_rows_to_parquet
from kgserve.storage.model.change_set import MemoryAccessRecord
from kgserve.storage.model.node_edge_rows import CrossStoreLinkKey, CrossStoreLinkRow
from kgserve.storage.store_folder_layout import StoreLayout

log = structlog.get_logger()


def read_node_accesses_as_of(layout: StoreLayout, journal: Journal, last: int) -> Iterator[list[MemoryAccessRecord]]:
    """Yield batches of the accesses of all nodes as of a commit, each once.

    Holds only the accesses after the snapshot in memory. Raises JournalDamaged.
    """
    base = _find_accesses_base(layout, journal, last)
    after = snapshot.parse_snapshot_sequence(base) if base else journal.oldest - 1
    changed = read_last_node_accesses_from_journal(journal.frames(after), after, last)
    for batch in snapshot.read_snapshot_access_records(base) if base else ():
        if kept := [access for access in batch if access.id not in changed]:
            yield kept
    coming = (access for access in changed.values() if access is not None)
    while batch := list(islice(coming, snapshot.MAX_SNAPSHOT_BATCH_ROWS)):
        yield batch


def _find_accesses_base(layout: StoreLayout, journal: Journal, last: int) -> Path | None:
    """Return the newest snapshot up to a commit with whole accesses; None to read the journal alone."""
    try:
        return _find_base_with(snapshot.ACCESSES_FILE, layout, journal, last)
    except JournalDamaged:
        # Rows can be whole even if no snapshot is. A count that is too low beats never having a snapshot.
        log.error("accesses_lost", store=layout.name, before=journal.oldest)
        return None


def read_cross_store_links_as_of(layout: StoreLayout, journal: Journal, last: int) -> Iterator[list[CrossStoreLinkRow]]:
    """Yield batches of the links of a store as of a commit, each once.

    Holds only the links changed since the snapshot in memory. Raises JournalDamaged.
    """
    base = _find_base_with(snapshot.LINKS_FILE, layout, journal, last)
    after = snapshot.parse_snapshot_sequence(base) if base else journal.oldest - 1
    changed: dict[CrossStoreLinkKey, CrossStoreLinkRow | None] = {}
    for change in read_cross_store_link_changes(journal.frames(after), after, last):
        changed.update(dict.fromkeys(change.links_deleted))
        changed.update((row.key, row) for row in change.links_put())
    for batch in snapshot.read_snapshot_cross_store_links(base) if base else ():
        if kept := [row for row in batch if row.key not in changed]:
            yield kept
    coming = (row for row in changed.values() if row is not None)
    while batch := list(islice(coming, snapshot.MAX_SNAPSHOT_BATCH_ROWS)):
        yield batch


def replay_deleted_node_last_versions(
    layout: StoreLayout, journal: Journal, last: int, forgotten: Container[str] = ()
) -> Iterator[list[tuple[str, int]]]:
    """Yield batches of the last versions of nodes deleted up to a commit, except ``forgotten`` ones.

    Raises JournalDamaged.
    """
    base = _find_base_with(snapshot.LAST_VERSIONS_FILE, layout, journal, last)
    after = snapshot.parse_snapshot_sequence(base) if base else journal.oldest - 1
    changed = collect_deleted_node_last_versions(journal.frames(after), after, last)
    for batch in snapshot.read_deleted_node_last_versions(base) if base else ():
        if kept := [each for each in batch if each[0] not in changed and each[0] not in forgotten]:
            yield kept
    coming = (each for each in changed.items() if each[1] and each[0] not in forgotten)
    while batch := list(islice(coming, snapshot.MAX_SNAPSHOT_BATCH_ROWS)):
        yield batch


def _find_base_with(name: str, layout: StoreLayout, journal: Journal, last: int) -> Path | None:
    """Return the newest snapshot up to a commit whose named file is whole; None to read the journal alone.

    Raises JournalDamaged if neither exists.
    """
    for base in list_replay_base_snapshots(layout, journal):
        if base is None:
            return None
        try:
            if snapshot.parse_snapshot_sequence(base) <= last:
                snapshot.find_optional_snapshot_file(base, name)
                return base
        except JournalDamaged:
            log.exception("snapshot_unusable", store=layout.name)
    raise missing_snapshot_error(layout, journal)


def missing_snapshot_error(layout: StoreLayout, journal: Journal) -> JournalDamaged:
    """Return the error for a journal whose beginning was removed and that no snapshot replaces."""
    return JournalDamaged(
        f"{shorten_journal_path(layout.journal)}: it starts at {journal.oldest} and no snapshot reaches that far"
    )


def materialize_journal(
    layout: StoreLayout, journal: Journal, rows: Path, *, drop_loose: bool = False
) -> RowMaterializationResult:
    """Write all rows as of the journal's end to a folder. Raises JournalDamaged if no snapshot leads there."""
    failed = missing_snapshot_error(layout, journal)
    for base in list_replay_base_snapshots(layout, journal):
        try:
            if base is not None:
                snapshot.verify_snapshot(base)
            changes = journal.read(snapshot.parse_snapshot_sequence(base) if base else 0)
            folded = materialize_rows_to_parquet(base, changes, rows, drop_loose=drop_loose)
        except JournalDamaged as error:
            log.exception("snapshot_unusable" if base else "journal_unusable", store=layout.name)
            failed = error
        else:
            release_free_memory()
            return folded
    raise failed


def list_replay_base_snapshots(layout: StoreLayout, journal: Journal) -> Iterable[Path | None]:
    """Return the bases for folding: each snapshot, newest first, then None if the journal begins at 1."""
    usable = [
        s
        for s in snapshot.list_journal_snapshots(layout.journal)
        if snapshot.parse_snapshot_sequence(s) + 1 >= journal.oldest
    ]
    return [*usable, None] if journal.oldest == 1 else usable


def measure_unsnapshotted_bytes(layout: StoreLayout, journal: Journal) -> tuple[int, int]:
    """Return the approximate unpacked journal bytes after the newest snapshot, and that snapshot's bytes."""
    snapshots = snapshot.list_journal_snapshots(layout.journal)
    if not snapshots:
        return journal.bytes + journal.compression_savings_after(0), 0
    after = snapshot.parse_snapshot_sequence(snapshots[0])
    size = sum(path.stat().st_size for path in snapshots[0].iterdir())
    held = sum(segment.size for segment in journal.segments if segment.first > after)
    return held + journal.compression_savings_after(after), size
