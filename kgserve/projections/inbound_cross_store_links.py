"""Index of the links into each store from all stores of a pool, updated when it is read."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Protocol

from typing_extensions import override

from kgserve.errors import Conflict, JournalDamaged, NotFound, ReplicatedLogCorrupt, ServedElsewhere
from kgserve.projections.base import Projection, StoreFollowedByProjections
from kgserve.projections.cross_store_links.cross_store_link_index import (
    CrossStoreLinkReader,
    CrossStoreLinksVersion,
    InboundLinkTable,
    open_cross_store_links_of_closed_store,
)
from kgserve.projections.on_demand_projection import DerivedSqliteFile, Found
from kgserve.storage.changefeed import ChangeFeedLookup
from kgserve.storage.data_folder_store_index import ClosedStoreIndexEntry
from kgserve.storage.journal.journal_reader import CommitLinkChanges, read_cross_store_link_changes
from kgserve.storage.model.node_edge_rows import CrossStoreLinkRow
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.storage.store_folder_layout import StoreLayout

INBOUND_LINKS_FILE = "links.sqlite"
_NO_POSITION = CrossStoreLinksVersion(0, 0)


class _Pool(Protocol):
    data_dir: Path

    @property
    def feeds(self) -> ChangeFeedLookup: ...

    def local_store_names(self) -> list[str]: ...

    def layout(self, name: str) -> StoreLayout: ...

    def open_stores(self) -> Mapping[str, StoreFollowedByProjections]: ...

    def find_closed(self, name: str) -> ClosedStoreIndexEntry | None: ...

    def lease(self, name: str) -> AbstractContextManager[StoreFollowedByProjections]: ...


class InboundLinkLookup(Protocol):
    """Lookup of links between stores by their targets."""

    def to(self, store: str, targets: Collection[str]) -> list[tuple[str, CrossStoreLinkRow]]:
        """Return the links to the nodes ``targets`` of a store, each with the name of its own store. May block."""
        ...

    def counts(self, store: str, *, may_open: bool = True) -> list[tuple[str, int]]:
        """Return the stores that link into a store, by name, with the number of links. May block.

        With ``may_open`` false, no store is opened; only what is known without that is counted.
        """
        ...

    def position(self, stores: Collection[str]) -> dict[str, int]:
        """Return, by store, the last commit that changed links and is included in the most recent response."""
        ...


class InboundCrossStoreLinkIndex(DerivedSqliteFile, InboundLinkLookup):
    """Links of all stores of a pool, indexed by target store and node.

    A store is checked when its links may have changed: after it is created or dropped, when one of its commits changes
    links, and once after the start. The closing mark of a closed store records its last change of links.
    """

    damage_event = "inbound_links_damaged"
    rebuilding_message = "the index of links between stores is being rebuilt; try again shortly"

    def __init__(self, pool: _Pool) -> None:
        super().__init__(pool.data_dir / INBOUND_LINKS_FILE)
        self._pool = pool
        self._file: InboundLinkTable | None = None
        self._seen: dict[str, CrossStoreLinksVersion] = {}
        # Written by writers and by threads that create stores; read by callers.
        self._stale: set[str] = set()
        self._unlisten: Callable[[], None] | None = None

    @override
    def to(self, store: str, targets: Collection[str]) -> list[tuple[str, CrossStoreLinkRow]]:
        return self._ask(lambda file: [*file.to(store, targets)])

    @override
    def counts(self, store: str, *, may_open: bool = True) -> list[tuple[str, int]]:
        return self._ask(lambda file: file.counts(store), may_open=may_open)

    @override
    def position(self, stores: Collection[str]) -> dict[str, int]:
        return {name: self._seen.get(name, _NO_POSITION).changed for name in stores}

    def record_changed_links(self, store: str) -> None:
        """Record that links of a store have changed. Thread-safe."""
        self._stale.add(store)

    def erase(self) -> None:
        """Physically erase deleted links from the file. Blocks. Raises Unavailable."""
        self._ask(lambda file: [file.erase()])

    @override
    def close(self) -> None:
        with self._lock:
            if self._unlisten is not None:
                self._unlisten()
            self._release()

    def _ask(self, question: Callable[[InboundLinkTable], list[Found]], *, may_open: bool = True) -> list[Found]:
        return self._answer(lambda: self._ask_locked(question, may_open=may_open))

    # Caller holds the lock

    def _ask_locked(self, question: Callable[[InboundLinkTable], list[Found]], *, may_open: bool) -> list[Found]:
        """Return the result of a question once the file covers all stores; an empty list if no store has links."""
        if self._unlisten is None:
            # Before the names are read, so that no creation or deletion is missed from now on.
            self._unlisten = self._pool.feeds.listen_by_name(self._stale.add)
            if self._path.exists():
                self._seen = self._open_file().seen()
            self._stale |= {*self._pool.local_store_names(), *self._seen}
        left: set[str] = set()
        try:
            while self._stale:
                name = self._stale.pop()
                try:
                    is_updated = self._update_store(name, may_open=may_open)
                except (JournalDamaged, ReplicatedLogCorrupt, Conflict):
                    # Reported once: an unusable store must not hide the links of all others.
                    raise
                except BaseException:
                    left.add(name)
                    raise
                if not is_updated:
                    left.add(name)
        finally:
            self._stale |= left
        return question(self._open_file()) if self._seen else []

    def _open_file(self) -> InboundLinkTable:
        if self._file is None:
            self._file = InboundLinkTable(self._path)
        return self._file

    @override
    def _release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    @override
    def _discard(self) -> None:
        super()._discard()
        self._seen.clear()
        self._stale |= {*self._pool.local_store_names()}

    def _update_store(self, name: str, *, may_open: bool) -> bool:
        """Update the links of a store. Return whether the file is up to date for it."""
        before, entry = self._seen.get(name), self._pool.find_closed(name)
        if entry is not None and _is_followed(before, CrossStoreLinksVersion(entry.created_at, entry.links_changed)):
            return True
        layout = self._pool.layout(name)
        if not layout.exists:
            if before is not None:
                self._open_file().forget(name)
                del self._seen[name]
            return True
        created, mark = layout.created_at(), layout.close_mark()
        if mark is not None and _is_followed(before, CrossStoreLinksVersion(created, mark.links_changed)):
            return True
        if name not in self._pool.open_stores():
            if mark is not None and self._read_closed(
                layout, CrossStoreLinksVersion(created, mark.links_changed), mark.sequence
            ):
                return True
            if not may_open:
                return False
        with suppress(NotFound, ServedElsewhere), self._pool.lease(name) as store:
            self._read(store, created, before)
        return True

    def _read_closed(self, layout: StoreLayout, seen: CrossStoreLinksVersion, sequence: int) -> bool:
        """Read the links of a store closed at a commit. Return False unless its files are as of that commit."""
        try:
            with open_cross_store_links_of_closed_store(layout.links) as (links, at):
                if at != sequence or links.last_change_sequence != seen.changed:
                    return False
                self._open_file().replace(layout.name, links.iterate_links(), seen)
        except sqlite3.Error:
            return False
        self._seen[layout.name] = seen
        return True

    def _read(self, store: StoreFollowedByProjections, created: int, before: CrossStoreLinksVersion | None) -> None:
        """Read the links of an open store."""
        with store.reading_links() as (rows, links):
            seen = CrossStoreLinksVersion(created, 0 if links is None else links.last_change_sequence)
            if seen == before or (before is None and not seen.changed):
                return
            begin = before.changed if before is not None and before.born == created else -1
            _StoreLinkProjection(self._open_file(), store, links, begin, seen).catch_up(rows.at)
            self._seen[store.name] = seen


def _is_followed(before: CrossStoreLinksVersion | None, closed: CrossStoreLinksVersion) -> bool:
    """Return whether the file, at ``before``, has the links of a closed store, or the store never had any."""
    return before == closed or (before is None and closed.changed == 0)


class _StoreLinkProjection(Projection):
    """Projection of the links of one open store, up to a commit of that store."""

    name = "inbound"

    def __init__(
        self,
        file: InboundLinkTable,
        store: StoreFollowedByProjections,
        links: CrossStoreLinkReader | None,
        begin: int,
        seen: CrossStoreLinksVersion,
    ) -> None:
        """Initialize at ``begin``, the last commit whose links the file has, -1 if none are valid."""
        super().__init__(store.layout, store.journal, store)
        self._file = file
        self._links = links
        self._begin = begin
        self._seen = seen

    def catch_up(self, last: int) -> None:
        """Apply all commits up to one."""
        while self._step(last):
            pass

    @override
    def close(self) -> None:
        pass  # `InboundCrossStoreLinkIndex.close` releases the file

    @override
    def _open(self) -> int:
        return self._begin

    @override
    def _read(self, after: int, last: int) -> tuple[Iterable[CommitLinkChanges], int]:
        return read_cross_store_link_changes(self._journal.frames(after), after, last), last

    @override
    def _apply(self, changes: Iterable[CommitLinkChanges], sequence: int) -> None:
        for change in changes:
            seen = CrossStoreLinksVersion(self._seen.born, change.sequence)
            self._file.follow(self._layout.name, change.links_put(), change.links_deleted, seen)

    @override
    def _apply_all(self, rows: RowsSnapshot) -> int:
        self._file.replace(self._layout.name, self._links.iterate_links() if self._links else (), self._seen)
        return rows.at
