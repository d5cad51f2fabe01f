"""Links of a store (edges into other stores) as a projection.

Links are applied together with each commit, so that readers see both at once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress

import msgspec
from typing_extensions import override

from kgserve.projections.base import ProjectionEraseRequest
from kgserve.projections.cross_store_links.cross_store_link_index import CrossStoreLinkIndex, CrossStoreLinkReader
from kgserve.projections.on_demand_projection import OnDemandProjection
from kgserve.storage.journal.journal import Journal
from kgserve.storage.journal.journal_reader import CommitLinkChanges, read_cross_store_link_changes
from kgserve.storage.journal.replay import read_cross_store_links_as_of
from kgserve.storage.model.change_set import ChangeSet, CrossStoreLinksCountAndDigest
from kgserve.storage.model.node_edge_rows import CrossStoreLinkKey, CrossStoreLinkRow
from kgserve.storage.model.store_rows_digest import update_digest_for_link_changes
from kgserve.storage.model.write_batch import WriteBatch
from kgserve.storage.rows.current_rows import CurrentRowsProjection
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.storage.store_folder_layout import StoreLayout
from kgserve.storage.write_planner import WritePlanningWorkspace


class CrossStoreLinkProjection(OnDemandProjection[CrossStoreLinkIndex]):
    """Links of one store, in a file that is opened by the first reader or write that needs it.

    A store that never had a link (`RowsSnapshot.linked`) has no such file.
    """

    name = "links"
    damage_event = "links_damaged"
    rebuilding_message = "the links of this store are being rebuilt"

    def __init__(self, layout: StoreLayout, journal: Journal, rows: CurrentRowsProjection) -> None:
        super().__init__(layout.links, layout, journal, rows)
        # Called in the writing thread when links have changed; callbacks must only wake other threads.
        self.after_change: list[Callable[[], None]] = []
        # Called when deleted links must be erased for good.
        self.after_erasing: list[Callable[[], None]] = []

    @contextmanager
    def reading(self) -> Generator[tuple[CrossStoreLinkReader | None, RowsSnapshot]]:
        """Yield the links and the rows of one commit; writes continue meanwhile.

        The reader is None if the store has no links. Raises Unavailable.
        """
        with ExitStack() as held:
            with self._lock:
                rows = held.enter_context(self._rows.reading())
                links = self._answer(lambda: held.enter_context(self._reader(rows))) if rows.linked else None
            yield links, rows

    @override
    def erase(self, erasure: ProjectionEraseRequest) -> None:
        if self._rows.rows().linked:
            self._answer(lambda: self._erase_now(erasure))
            for erase in self.after_erasing:
                erase()

    # Methods for the writing thread

    @contextmanager
    def apply_with_commit(self, changes: Sequence[ChangeSet]) -> Generator[None]:
        """Apply commits while the block publishes their rows to readers."""
        with self._lock:
            self.take(changes)
            yield
        if any(change.links is not None for change in changes):
            for wake in self.after_change:
                wake()

    def load_touched_links(self, workspace: WritePlanningWorkspace, batches: Sequence[WriteBatch]) -> None:
        """Load the links that batches touch into a workspace; their sources must be loaded. Raises Unavailable."""
        keys = {put.key for batch in batches for put in batch.links}
        keys |= {workspace.redirect_link(put).key for batch in batches for put in batch.links}
        keys.update(key for batch in batches for key in batch.delete_links)
        gone = {node_id for batch in batches for node_id in batch.delete_nodes}
        if keys or gone:
            found, workspace.links_state = self._find_links(keys, gone)
            for row in found:
                workspace.put_link(row.key, row)

    def add_link_deletions(self, change: ChangeSet) -> ChangeSet:
        """Add the deletion of the deleted nodes' links to a change set that was made without links."""
        cut, state = self._find_links((), change.nodes_deleted)
        if not cut:
            return change
        links = update_digest_for_link_changes(state, (), cut)
        return msgspec.structs.replace(change, links_deleted=sorted(row.key for row in cut), links=links)

    def _find_links(
        self, keys: Collection[CrossStoreLinkKey], sources: Collection[str]
    ) -> tuple[list[CrossStoreLinkRow], CrossStoreLinksCountAndDigest]:
        """Return the links with the given keys or sources, and the state of all links."""

        def ask(
            links: CrossStoreLinkReader, _: RowsSnapshot
        ) -> tuple[list[CrossStoreLinkRow], CrossStoreLinksCountAndDigest]:
            state = links.state
            found = [*links.of(keys), *links.find_by_sources(sources)] if state.count else []
            return found, state

        return self.ask(ask)

    @override
    def _find_fault(self) -> str | None:
        with self.reading() as (links, _):
            if links is None:
                return None
            try:
                found, stated = CrossStoreLinksCountAndDigest(), links.state
                for some in links.iterate_links():
                    found = update_digest_for_link_changes(found, some, ())
            except sqlite3.Error as error:
                return str(error)
        return None if found == stated else str(stated)

    # Methods below require the lock

    def _reader(self, rows: RowsSnapshot) -> AbstractContextManager[CrossStoreLinkReader]:
        return self._caught_up(rows).open_snapshot()

    @override
    def _open(self) -> int:
        self._file = CrossStoreLinkIndex(self._path)
        return self._file.sequence

    @override
    def _read(self, after: int, last: int) -> tuple[Iterable[CommitLinkChanges], int]:
        return read_cross_store_link_changes(self._journal.frames(after), after, last), last

    @override
    def _advance(self, last: int) -> None:
        if self.sequence < last:
            super()._advance(last)
            self._opened.advance_to(self.sequence)

    @override
    def _apply(self, changes: Iterable[CommitLinkChanges | ChangeSet], sequence: int) -> None:
        for change in changes:
            if change.links is not None:
                self._opened.apply(change.links_put(), change.links_deleted, change.sequence, change.links)

    @override
    def _apply_all(self, rows: RowsSnapshot) -> int:
        self._opened.rebuild(read_cross_store_links_as_of(self._layout, self._journal, rows.at), rows.at)
        return rows.at

    @override
    def _erase(self, erasure: ProjectionEraseRequest) -> None:
        self._opened.erase()

    @override
    def _release(self) -> None:
        if self._file is not None and self.sequence >= 0:
            with suppress(sqlite3.Error):
                self._file.advance_to(self.sequence)
        super()._release()
