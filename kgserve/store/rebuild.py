"""Making views from the journal alone: an engine file, the present rows, and snapshots, from which both begin."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec
import structlog

from kgserve.allocator import give_back
from kgserve.engine.engine import Engine, EngineOptions, build
from kgserve.engine.files import remove
from kgserve.engine.protocol import Change
from kgserve.errors import EngineFailed, JournalDamaged, Unavailable
from kgserve.journal import snapshot
from kgserve.journal.files import named
from kgserve.journal.fold import Folded, fold, write_rows
from kgserve.journal.journal import Journal
from kgserve.journal.tail import changed_accesses, last_versions, link_changes
from kgserve.model.change import Access, NetChange, StoreState
from kgserve.model.digest import measure
from kgserve.model.fields import Width
from kgserve.model.rows import LinkKey, LinkRow
from kgserve.rows.encoding import RowsDamaged
from kgserve.rows.view import RowsView
from kgserve.store.layout import Layout

log = structlog.get_logger()

_Slice = TypeVar("_Slice")

SNAPSHOTS_KEPT = 2
Few: TypeAlias = tuple[Change, StoreState]
FEW_ROWS = 2_000
FEW_BYTES = 4 << 20
"""Rows that an engine's file is made of without files of rows: that takes milliseconds."""
RESTS = 9
"""So many times as long as a part of a snapshot took, the next one waits while writes come."""
# A rebuild that had this much journal to read leaves a snapshot, so that the next one has less.
SNAPSHOT_AFTER_BYTES = 16 << 20


def rebuild(
    layout: Layout,
    journal: Journal,
    present: RowsView,
    options: EngineOptions,
    path: Path,
    reason: str,
    *,
    width: Width = Width.PLAIN,
) -> Engine:
    """Build an engine file at ``path`` of the present rows, or if they are not whole of snapshot and journal; open it.

    It has the columns of a ``width`` even if no row needs them yet. Without a ``reason`` it is the first one.

    Raises JournalDamaged when neither a snapshot nor the whole journal is left, StorageFull when the disk is full, and
    Unavailable once the store is closing.
    """
    started = time.perf_counter()
    # The first engine file of a store is made in the same way, and nobody needs to hear of it.
    level = logging.WARNING if reason and not width else logging.DEBUG
    log.log(level, "rebuild_started", store=layout.name, reason=reason)
    few = few_rows(present) if unsnapshotted_bytes(layout, journal)[0] < SNAPSHOT_AFTER_BYTES else None
    if few is not None:
        engine = build(path, *few, options, width)
    else:
        engine = _rebuild_of_files(layout, journal, present, options, path, width)
    if width is Width.LINKS and present.rows().linked:
        _add_links(engine, layout, journal)
    log.log(level, "rebuild_done", store=layout.name, sequence=engine.state.sequence, seconds=_since(started))
    return engine


def _add_links(engine: Engine, layout: Layout, journal: Journal) -> None:
    """Give a new engine's file the links as of the commit that it is of."""
    try:
        for some in all_links(layout, journal, engine.state.sequence):
            net = NetChange()
            net.links_created = {row.key: row for row in some}
            engine.apply(net, engine.state, recorded=False)
    except BaseException:
        engine.retire()
        raise


def _rebuild_of_files(
    layout: Layout, journal: Journal, present: RowsView, options: EngineOptions, path: Path, width: Width
) -> Engine:
    rows = layout.scratch / f"of-{path.name}"
    folded = _write_rows(layout, journal, present, rows, options.closing, lambda: True)
    try:
        engine = build(path, rows, folded.state, options, width)
    except EngineFailed:
        # An edge that the engine had lost was not named when its node was deleted.
        log.exception("edges_without_nodes", store=layout.name)
        remove(path)
        folded = fold_journal(layout, journal, rows, drop_loose=True)
        engine = build(path, rows, folded.state, options, width)
    state = folded.state
    if folded.rebased:
        log.error("digest_rebased", store=layout.name, sequence=state.sequence, nodes=state.nodes, edges=state.edges)
    if folded.rebased or unsnapshotted_bytes(layout, journal)[0] >= SNAPSHOT_AFTER_BYTES:
        _install(layout, journal, rows, state)
        snapshot.remove_but_newest(layout.journal, SNAPSHOTS_KEPT)
    else:
        shutil.rmtree(rows)
    return engine


def _since(started: float) -> float:
    return round(time.perf_counter() - started, 3)


def few_rows(present: RowsView) -> Few | None:
    """The present rows and their state, if they are so few that no files of them need be written."""
    try:
        with present.reading() as rows:
            state, size = rows.state, rows.base.size + rows.delta.bytes
            if state.nodes + state.edges > FEW_ROWS or size > FEW_BYTES:
                return None
            nodes, edges = [*rows.all_nodes()], [*rows.all_edges()]
    except (RowsDamaged, msgspec.MsgspecError):
        return None
    if measure(nodes, edges) != (state.digest, state.nodes, state.edges):
        return None
    return Change(None, nodes, [], [], [], edges, [], []), state


def _write_rows(
    layout: Layout,
    journal: Journal,
    present: RowsView,
    target: Path,
    closing: threading.Event | None,
    idle: Callable[[], bool],
) -> Folded:
    """Write the present rows to an empty folder, in half the time that snapshot and journal take, if they are whole.

    It gives way unless all else is ``idle``, and raises Unavailable once the store is ``closing``.
    """
    try:
        with present.reading() as rows:
            nodes = _giving_way(rows.node_rows(), closing, idle)
            edges = _giving_way(rows.edge_rows(), closing, idle)
            found = write_rows(nodes, edges, rows.state, fresh_folder(target), width=rows.width)
    except (RowsDamaged, msgspec.MsgspecError) as error:
        log.error("rows_damaged", store=layout.name, error=str(error))
    else:
        give_back()
        if not found.rebased:
            return found
    return fold_journal(layout, journal, fresh_folder(target))


def _giving_way(
    slices: Iterable[_Slice], closing: threading.Event | None, idle: Callable[[], bool]
) -> Iterator[_Slice]:
    """Some rows at a time; unless all else is ``idle`` with rests in between."""
    started = time.perf_counter()
    for each in slices:
        yield each
        if not idle():
            time.sleep(RESTS * (time.perf_counter() - started))
        if closing is not None and closing.is_set():
            raise Unavailable("this store is closing; try again shortly")
        started = time.perf_counter()


def take_snapshot(
    layout: Layout,
    journal: Journal,
    present: RowsView,
    closing: threading.Event | None,
    idle: Callable[[], bool],
    forgotten: Container[str] = (),
) -> StoreState:
    """Install a snapshot of all rows; the state that it is of. It gives way unless all else is ``idle``.

    The numbers of nodes that are ``forgotten`` are not in it.

    Raises JournalDamaged, OSError for a full disk, and Unavailable once the store is ``closing``.
    """
    snapshots = snapshot.list_snapshots(layout.journal)
    if snapshots and snapshot.sequence_of(snapshots[0]) == journal.last and not forgotten:
        return snapshot.verify(snapshots[0]).state
    rows = layout.scratch / "snapshot"
    try:
        folded = _write_rows(layout, journal, present, rows, closing, idle)
        if folded.rebased:
            log.error("digest_rebased", store=layout.name, sequence=folded.state.sequence)
        _install(layout, journal, rows, folded.state, forgotten)
    finally:
        shutil.rmtree(rows, ignore_errors=True)
    return folded.state


def _install(layout: Layout, journal: Journal, rows: Path, state: StoreState, forgotten: Container[str] = ()) -> None:
    """Make a snapshot of the rows in a folder, and of the accesses, links and numbers that go with them."""
    snapshot.write_ended(all_ended(layout, journal, state.sequence, forgotten), rows)
    snapshot.write_accesses(all_accesses(layout, journal, state.sequence), rows)
    snapshot.write_links(all_links(layout, journal, state.sequence), rows)
    snapshot.install(rows, layout.journal, state)


def all_accesses(layout: Layout, journal: Journal, last: int) -> Iterator[list[Access]]:
    """The accesses of all nodes as of a commit, each once, some at a time: from a snapshot and the journal after it.

    Memory is taken for those alone that came after the snapshot. Raises JournalDamaged.
    """
    base = _base_of_accesses(layout, journal, last)
    after = snapshot.sequence_of(base) if base else journal.oldest - 1
    changed = changed_accesses(journal.frames(after), after, last)
    for some in snapshot.read_accesses(base) if base else ():
        if kept := [access for access in some if access.id not in changed]:
            yield kept
    coming = (access for access in changed.values() if access is not None)
    while some := list(islice(coming, snapshot.BATCH_ROWS)):
        yield some


def _base_of_accesses(layout: Layout, journal: Journal, last: int) -> Path | None:
    """The newest snapshot up to a commit whose accesses are whole; None where the journal is all that there is."""
    try:
        return _base_with(snapshot.ACCESSES, layout, journal, last)
    except JournalDamaged:
        # Rows may be whole where no snapshot is. Better a count that is too low than no snapshot ever.
        log.error("accesses_lost", store=layout.name, before=journal.oldest)
        return None


def all_links(layout: Layout, journal: Journal, last: int) -> Iterator[list[LinkRow]]:
    """The links of a store as of a commit, each once, some at a time: from a snapshot and the journal after it.

    Memory is taken for those alone that have changed since the snapshot. Raises JournalDamaged.
    """
    base = _base_with(snapshot.LINKS, layout, journal, last)
    after = snapshot.sequence_of(base) if base else journal.oldest - 1
    changed: dict[LinkKey, LinkRow | None] = {}
    for change in link_changes(journal.frames(after), after, last):
        changed.update(dict.fromkeys(change.links_deleted))
        changed.update((row.key, row) for row in change.put)
    for some in snapshot.read_links(base) if base else ():
        if kept := [row for row in some if row.key not in changed]:
            yield kept
    coming = (row for row in changed.values() if row is not None)
    while some := list(islice(coming, snapshot.BATCH_ROWS)):
        yield some


def all_ended(
    layout: Layout, journal: Journal, last: int, forgotten: Container[str] = ()
) -> Iterator[list[tuple[str, int]]]:
    """The last versions of nodes that were deleted by a commit, but some, a part at a time, as `all_links` does.

    Raises JournalDamaged.
    """
    base = _base_with(snapshot.ENDED, layout, journal, last)
    after = snapshot.sequence_of(base) if base else journal.oldest - 1
    changed = last_versions(journal.frames(after), after, last)
    for some in snapshot.read_ended(base) if base else ():
        if kept := [each for each in some if each[0] not in changed and each[0] not in forgotten]:
            yield kept
    coming = (each for each in changed.items() if each[1] and each[0] not in forgotten)
    while some := list(islice(coming, snapshot.BATCH_ROWS)):
        yield some


def _base_with(name: str, layout: Layout, journal: Journal, last: int) -> Path | None:
    """The newest snapshot up to a commit whose file of a name is whole; None where the journal is all that there is.

    Raises JournalDamaged where there is neither.
    """
    for base in _bases(layout, journal):
        if base is None:
            return None
        try:
            if snapshot.sequence_of(base) <= last:
                snapshot.part_file(base, name)
                return base
        except JournalDamaged:
            log.exception("snapshot_unusable", store=layout.name)
    raise _out_of_reach(layout, journal)


def open_rows(layout: Layout, journal: Journal) -> RowsView:
    """The present rows, at the journal's last commit: as they were left, or made anew from snapshot and journal.

    Raises JournalDamaged when they have seen more than the journal holds, StorageFull.
    """
    view = RowsView(layout.rows, layout.name)
    if view.base_sequence > journal.last:
        raise JournalDamaged(
            f"{named(layout.journal)} ends at sequence {journal.last}, and the present rows have seen"
            f" {view.base_sequence}; run `kgserve doctor --salvage`"
        )
    if view.base_sequence + 1 < journal.oldest:
        renew_rows(view, layout, journal)
        return view
    try:
        view.catch_up(journal.read)
    except RowsDamaged as error:
        log.error("rows_damaged", store=layout.name, error=str(error))
        renew_rows(view, layout, journal)
    return view


def renew_rows(view: RowsView, layout: Layout, journal: Journal) -> None:
    """Make the present rows anew, from the newest whole snapshot and the journal after it. Raises JournalDamaged."""
    started = time.perf_counter()
    for base in _bases(layout, journal):
        if base is None:
            view.renew((), (), StoreState(), journal.read)
            break
        try:
            state = snapshot.verify(base).state
        except JournalDamaged:
            log.exception("snapshot_unusable", store=layout.name)
            continue
        linked = snapshot.part_file(base, snapshot.LINKS) is not None
        nodes, edges = snapshot.read_nodes(base), snapshot.read_edges(base)
        view.renew(nodes, edges, state, journal.read, linked=linked)
        break
    else:
        raise _out_of_reach(layout, journal)
    log.warning("rows_renewed", store=layout.name, sequence=view.state.sequence, seconds=_since(started))


def _out_of_reach(layout: Layout, journal: Journal) -> JournalDamaged:
    return JournalDamaged(f"{named(layout.journal)}: it starts at {journal.oldest} and no snapshot reaches that far")


def fresh_folder(path: Path) -> Path:
    """An empty folder at a path."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def fold_journal(layout: Layout, journal: Journal, rows: Path, *, drop_loose: bool = False) -> Folded:
    """Write all rows as of the journal's end to a folder. Raises JournalDamaged when it cannot lead there."""
    failed = _out_of_reach(layout, journal)
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


def unsnapshotted_bytes(layout: Layout, journal: Journal) -> tuple[int, int]:
    """How much journal there is that no snapshot has, unpacked, about, and the size of the newest snapshot's files."""
    snapshots = snapshot.list_snapshots(layout.journal)
    if not snapshots:
        return journal.bytes + journal.spared_after(0), 0
    after = snapshot.sequence_of(snapshots[0])
    size = sum(path.stat().st_size for path in snapshots[0].iterdir())
    held = sum(segment.size for segment in journal.segments if segment.first > after)
    return held + journal.spared_after(after), size
