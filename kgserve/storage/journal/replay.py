"""Read accesses, links and last versions from a snapshot and the journal after it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from itertools import islice
from pathlib import Path

import structlog

from kgserve.errors import JournalDamaged
from kgserve.platform.allocator import give_back
from kgserve.platform.durable_files import named
from kgserve.storage.journal import snapshot
from kgserve.storage.journal.fold import Folded, fold
from kgserve.storage.journal.journal import Journal
from kgserve.storage.journal.tail import changed_accesses, last_versions, link_changes
from kgserve.storage.layout import Layout
from kgserve.storage.model.change import Access
from kgserve.storage.model.rows import LinkKey, LinkRow

log = structlog.get_logger()


def all_accesses(layout: Layout, journal: Journal, last: int) -> Iterator[list[Access]]:
    """Yield batches of the accesses of all nodes as of a commit, each once.

    Holds only the accesses after the snapshot in memory. Raises JournalDamaged.
    """
    base = _find_accesses_base(layout, journal, last)
    after = snapshot.sequence_of(base) if base else journal.oldest - 1
    changed = changed_accesses(journal.frames(after), after, last)
    for batch in snapshot.read_accesses(base) if base else ():
        if kept := [access for access in batch if access.id not in changed]:
            yield kept
    coming = (access for access in changed.values() if access is not None)
    while batch := list(islice(coming, snapshot.SNAPSHOT_BATCH_ROWS)):
        yield batch


def _find_accesses_base(layout: Layout, journal: Journal, last: int) -> Path | None:
    """Return the newest snapshot up to a commit with whole accesses; None to read the journal alone."""
    try:
        return _find_base_with(snapshot.ACCESSES_FILE, layout, journal, last)
    except JournalDamaged:
        # Rows can be whole even if no snapshot is. A count that is too low beats never having a snapshot.
        log.error("accesses_lost", store=layout.name, before=journal.oldest)
        return None


def all_links(layout: Layout, journal: Journal, last: int) -> Iterator[list[LinkRow]]:
    """Yield batches of the links of a store as of a commit, each once.

    Holds only the links changed since the snapshot in memory. Raises JournalDamaged.
    """
    base = _find_base_with(snapshot.LINKS_FILE, layout, journal, last)
    after = snapshot.sequence_of(base) if base else journal.oldest - 1
    changed: dict[LinkKey, LinkRow | None] = {}
    for change in link_changes(journal.frames(after), after, last):
        changed.update(dict.fromkeys(change.links_deleted))
        changed.update((row.key, row) for row in change.links_put())
    for batch in snapshot.read_links(base) if base else ():
        if kept := [row for row in batch if row.key not in changed]:
            yield kept
    coming = (row for row in changed.values() if row is not None)
    while batch := list(islice(coming, snapshot.SNAPSHOT_BATCH_ROWS)):
        yield batch


def all_ended(
    layout: Layout, journal: Journal, last: int, forgotten: Container[str] = ()
) -> Iterator[list[tuple[str, int]]]:
    """Yield batches of the last versions of nodes deleted up to a commit, except ``forgotten`` ones.

    Raises JournalDamaged.
    """
    base = _find_base_with(snapshot.ENDED_FILE, layout, journal, last)
    after = snapshot.sequence_of(base) if base else journal.oldest - 1
    changed = last_versions(journal.frames(after), after, last)
    for batch in snapshot.read_ended(base) if base else ():
        if kept := [each for each in batch if each[0] not in changed and each[0] not in forgotten]:
            yield kept
    coming = (each for each in changed.items() if each[1] and each[0] not in forgotten)
    while batch := list(islice(coming, snapshot.SNAPSHOT_BATCH_ROWS)):
        yield batch


def _find_base_with(name: str, layout: Layout, journal: Journal, last: int) -> Path | None:
    """Return the newest snapshot up to a commit whose named file is whole; None to read the journal alone.

    Raises JournalDamaged if neither exists.
    """
    for base in usable_snapshots(layout, journal):
        if base is None:
            return None
        try:
            if snapshot.sequence_of(base) <= last:
                snapshot.part_file(base, name)
                return base
        except JournalDamaged:
            log.exception("snapshot_unusable", store=layout.name)
    raise no_snapshot_left(layout, journal)


def no_snapshot_left(layout: Layout, journal: Journal) -> JournalDamaged:
    """Return the error for a journal whose beginning was removed and that no snapshot replaces."""
    return JournalDamaged(f"{named(layout.journal)}: it starts at {journal.oldest} and no snapshot reaches that far")


def fold_journal(layout: Layout, journal: Journal, rows: Path, *, drop_loose: bool = False) -> Folded:
    """Write all rows as of the journal's end to a folder. Raises JournalDamaged if no snapshot leads there."""
    failed = no_snapshot_left(layout, journal)
    for base in usable_snapshots(layout, journal):
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


def usable_snapshots(layout: Layout, journal: Journal) -> Iterable[Path | None]:
    """Return the bases for folding: each snapshot, newest first, then None if the journal begins at 1."""
    usable = [s for s in snapshot.list_snapshots(layout.journal) if snapshot.sequence_of(s) + 1 >= journal.oldest]
    return [*usable, None] if journal.oldest == 1 else usable


def unsnapshotted_bytes(layout: Layout, journal: Journal) -> tuple[int, int]:
    """Return the approximate unpacked journal bytes after the newest snapshot, and that snapshot's bytes."""
    snapshots = snapshot.list_snapshots(layout.journal)
    if not snapshots:
        return journal.bytes + journal.spared_after(0), 0
    after = snapshot.sequence_of(snapshots[0])
    size = sum(path.stat().st_size for path in snapshots[0].iterdir())
    held = sum(segment.size for segment in journal.segments if segment.first > after)
    return held + journal.spared_after(after), size
