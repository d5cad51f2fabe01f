"""Salvage of a store with a damaged journal.

The damaged end of the journal is cut off, and rows that only the history still has are restored. They are restored in
one commit, with the number of the last commit that the history has seen; missing commits before it become empty. No
sequence number is used twice, and the history stays valid.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from kgserve.platform.durable_files import translate_storage_errors
from kgserve.platform.settings import MEBIBYTE, Settings
from kgserve.platform.sqlite_files import remove_sqlite_files
from kgserve.projections.history.reader import HistoryCurrentRows
from kgserve.storage.current_rows_rebuild import recreate_empty_folder
from kgserve.storage.journal import snapshot
from kgserve.storage.journal.journal import Journal, ProjectionWatermark
from kgserve.storage.journal.journal import truncate_damaged_journal as salvage_journal
from kgserve.storage.journal.replay import materialize_journal, read_cross_store_links_as_of
from kgserve.storage.model.change_set import ChangeSet, CrossStoreLinksCountAndDigest, StoreState
from kgserve.storage.model.node_edge_rows import CrossStoreLinkRow, EdgeRow, NodeRow, format_cross_store_link_id
from kgserve.storage.model.store_rows_digest import update_digest_for_link_changes, update_digest_for_row_changes
from kgserve.storage.store_folder_layout import StoreLayout, read_projection_sequences

MAX_EMPTY_COMMITS = 1_000_000
"""Maximum number of empty filler commits. A projection that claims more has a damaged sequence number."""
_RECOVERY_BATCH_CHANGES = 10_000
_MAX_LISTED_LOSSES = 20

RecoveredRow = TypeVar("RecoveredRow", NodeRow, EdgeRow, CrossStoreLinkRow)


def salvage_damaged_store(layout: StoreLayout, settings: Settings) -> Iterator[str]:
    """Repair a closed store, and yield messages about what was done; nothing if the store is intact.

    Raises StorageFull, and JournalDamaged if no state can be recovered from the journal.
    """
    with translate_storage_errors(f"salvaging store {layout.name!r}"):
        yield from _salvage(layout, settings.journal_segment_mb * MEBIBYTE)


def _salvage(layout: StoreLayout, segment_bytes: int) -> Iterator[str]:
    seen = max(read_projection_sequences(layout), key=lambda each: each.sequence)
    layout.journal.mkdir(exist_ok=True)
    layout.mark_open()
    cut = list(salvage_journal(layout.journal))
    yield from cut
    after = snapshot.newest_snapshot_sequence(layout.journal)
    with closing(Journal.open(layout.journal, segment_bytes, after)) as journal:
        if not cut and seen.sequence <= journal.last:
            return
        # Projections may hold lost rows. Remove them before new commits reuse the sequence numbers that they have seen.
        layout.remove_indexes()
        layout.invalidate_projections()
        remove_sqlite_files(layout.catalog)
        remove_sqlite_files(layout.memories)
        remove_sqlite_files(layout.links)
        remove_sqlite_files(layout.ended)
        if seen.sequence > journal.last:
            yield from _continue(layout, journal, seen)


def _continue(layout: StoreLayout, journal: Journal, seen: ProjectionWatermark) -> Iterator[str]:
    """Append the recovered commits to a truncated journal."""
    rows = recreate_empty_folder(layout.scratch / "salvage")
    try:
        state = materialize_journal(layout, journal, rows).state
        found = yield from _recover_from_history(
            layout, rows, state, read_cross_store_links_as_of(layout, journal, state.sequence)
        )
    finally:
        shutil.rmtree(rows, ignore_errors=True)
    known = max(found, default=state.sequence)
    end = max(known, seen.sequence if seen.sequence - known <= MAX_EMPTY_COMMITS else 0)
    changes = _fill_gaps(found, state, end)
    while some := list(islice(changes, _RECOVERY_BATCH_CHANGES)):
        journal.append(some)
    if seen.sequence > known:
        reuse_note = "" if end > known else f"; sequence numbers from {known + 1} on are reused"
        yield f"sequences {known + 1} to {seen.sequence}, which {seen.name} had seen, are lost{reuse_note}"


def _fill_gaps(found: dict[int, ChangeSet], state: StoreState, end: int) -> Iterator[ChangeSet]:
    """Yield the commits up to ``end``: recovered ones, and empty ones in the gaps."""
    for sequence in range(state.sequence + 1, end + 1):
        change = found.get(sequence) or _empty_change_set(msgspec.structs.replace(state, sequence=sequence))
        state = change.state
        yield change


def _recover_from_history(
    layout: StoreLayout, rows: Path, state: StoreState, linked: Iterable[list[CrossStoreLinkRow]]
) -> Generator[str, None, dict[int, ChangeSet]]:
    """Return the commit that restores the history's rows, by its number. Yields messages about it."""
    try:
        with closing(HistoryCurrentRows(layout.history)) as present:
            if present.sequence <= state.sequence:
                return {}
            change = _difference(present, rows, state, linked)
            yield from _describe_recovery(change, present, state.sequence)
            return {change.sequence: change}
    except sqlite3.Error as error:
        if layout.history.exists():
            yield _set_aside(layout.history, error)
        return {}


class _RowDifference(msgspec.Struct, Generic[RecoveredRow]):
    """Difference between the rows of a journal and of a history."""

    created: list[RecoveredRow] = []
    updated: list[RecoveredRow] = []
    before: list[RecoveredRow] = []
    deleted: list[RecoveredRow] = []

    def add(self, row: RecoveredRow, now: RecoveredRow | None) -> None:
        if now is None:
            self.deleted.append(row)
        elif now != row:
            self.updated.append(now)
            self.before.append(row)

    @property
    def added(self) -> list[RecoveredRow]:
        return [*self.created, *self.updated]

    @property
    def removed(self) -> list[RecoveredRow]:
        return [*self.before, *self.deleted]


def _difference(
    present: HistoryCurrentRows, rows: Path, state: StoreState, linked: Iterable[list[CrossStoreLinkRow]]
) -> ChangeSet:
    nodes, edges = _RowDifference[NodeRow](), _RowDifference[EdgeRow]()
    for node in snapshot.read_snapshot_nodes(rows):
        nodes.add(node, present.node(node))
    for edge in snapshot.read_snapshot_edges(rows):
        edges.add(edge, present.edge(edge))
    kept = set(present.lost_nodes)
    others = {row.id for row in nodes.updated}
    nodes.created = [row for row in present.nodes_after(state.sequence) if row.id not in others]
    unrecoverable = present.lost_nodes - kept
    other_edges = {row.key for row in edges.updated}
    for edge in present.edges_after(state.sequence):
        if not unrecoverable.isdisjoint((edge.source, edge.target)):
            present.lost_edges.add(edge.key)
        elif edge.key not in other_edges:
            edges.created.append(edge)
    after = StoreState(
        present.sequence,
        max(present.time, state.time + 1),
        update_digest_for_row_changes(state.digest, (*nodes.added, *edges.added), (*nodes.removed, *edges.removed)),
        state.nodes + len(nodes.created) - len(nodes.deleted),
        state.edges + len(edges.created) - len(edges.deleted),
    )
    change = msgspec.structs.replace(
        _empty_change_set(after),
        nodes_created=nodes.created,
        nodes_updated=nodes.updated,
        nodes_deleted=[row.id for row in nodes.deleted],
        last_versions=[row.version for row in nodes.deleted],
        edges_created=edges.created,
        edges_updated=edges.updated,
        edges_deleted=[row.key for row in edges.deleted],
    )
    return _with_links(change, present, linked, state.sequence, unrecoverable)


def _with_links(
    change: ChangeSet,
    present: HistoryCurrentRows,
    linked: Iterable[list[CrossStoreLinkRow]],
    last: int,
    unrecoverable: set[str],
) -> ChangeSet:
    """Add the link changes to a change set, except for links of lost nodes."""
    compared, before = _RowDifference[CrossStoreLinkRow](), CrossStoreLinksCountAndDigest()
    for some in linked:
        before = update_digest_for_link_changes(before, some, ())
        for link in some:
            compared.add(link, present.link(link))
    others = {row.key for row in compared.updated}
    for link in present.links_after(last):
        if link.edge.source in unrecoverable:
            present.lost_links.add(link.key)
        elif link.key not in others:
            compared.created.append(link)
    if not (compared.created or compared.updated or compared.deleted):
        return change
    return msgspec.structs.replace(
        change,
        links_created=compared.created,
        links_updated=compared.updated,
        links_deleted=[row.key for row in compared.deleted],
        links=update_digest_for_link_changes(before, compared.added, compared.removed),
    )


def _empty_change_set(state: StoreState) -> ChangeSet:
    """Return an empty change set that leads to ``state``."""
    digest = state.digest.to_bytes(16)
    return ChangeSet(sequence=state.sequence, time=state.time, digest=digest, nodes=state.nodes, edges=state.edges)


def _describe_recovery(change: ChangeSet, present: HistoryCurrentRows, last: int) -> Iterator[str]:
    nodes = len(change.nodes_created) + len(change.nodes_updated)
    edges = len(change.edges_created) + len(change.edges_updated) + len([*change.links_put()])
    edges_gone = len(change.edges_deleted) + len(change.links_deleted)
    deleted = f"{len(change.nodes_deleted)} nodes and {edges_gone} edges deleted"
    yield (
        f"sequences {last + 1} to {change.sequence} were restored from the history as one commit: "
        f"{nodes} nodes and {edges} edges new or changed, {deleted}"
    )
    lost = [f"node {each!r}" for each in sorted(present.lost_nodes)]
    lost += [f"edge {' '.join(map(repr, each))}" for each in sorted(present.lost_edges)]
    lost += [f"link {format_cross_store_link_id(each)!r}" for each in sorted(present.lost_links)]
    for each in lost[:_MAX_LISTED_LOSSES]:
        yield f"{each} is damaged in the history: its changes after sequence {last} are lost"
    if len(lost) > _MAX_LISTED_LOSSES:
        yield f"{len(lost) - _MAX_LISTED_LOSSES} more rows are damaged in the same way"


def _set_aside(path: Path, error: sqlite3.Error) -> str:
    for each in list(path.parent.glob(f"{path.name}*")):
        each.rename(each.with_name(f"damaged-{each.name}"))
    return f"the history cannot be used ({error}) and was set aside as damaged-{path.name}"
