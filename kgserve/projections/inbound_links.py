"""Which links lead into a store, whatever store they are of: brought up to date when somebody asks."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Protocol, TypeVar

import structlog

from kgserve.errors import NotFound, ServedElsewhere
from kgserve.platform.sqlite_files import asked, remove_files
from kgserve.projections.base import FollowedStore
from kgserve.projections.links.links import Inbound, LinksPosition, left
from kgserve.storage.changefeed import Feeds
from kgserve.storage.journal.tail import link_changes
from kgserve.storage.layout import Layout
from kgserve.storage.model.rows import LinkRow

log = structlog.get_logger()

_Found = TypeVar("_Found")
FILE = "links.sqlite"
_NONE = LinksPosition(0, 0)


class _Pool(Protocol):
    data_dir: Path
    feeds: Feeds

    def here(self) -> list[str]: ...

    def layout(self, name: str) -> Layout: ...

    def open_stores(self) -> Mapping[str, FollowedStore]: ...

    def lease(self, name: str) -> AbstractContextManager[FollowedStore]: ...


class InboundView:
    """The links of all stores of a pool by what they lead to.

    A store is looked at when its links may have changed: after it was made or dropped, when one of its commits says so,
    and all of them once after the start. One that was closed says in its mark up to where.
    """

    def __init__(self, pool: _Pool) -> None:
        self._pool = pool
        self._path: Path = pool.data_dir / FILE
        self._lock = threading.Lock()
        self._file: Inbound | None = None
        self._seen: dict[str, LinksPosition] = {}
        # Written by writers and by who makes stores; read by who asks.
        self._stale: set[str] = set()
        self._unlisten: Callable[[], None] | None = None

    def to(self, store: str, targets: Collection[str]) -> list[tuple[str, LinkRow]]:
        """The links that lead to any of some nodes of a store, each behind the store that it is of. May block."""
        return self._ask(lambda file: [*file.to(store, targets)])

    def counts(self, store: str, *, may_open: bool = True) -> list[tuple[str, int]]:
        """The stores that any links lead into one from, by name, and how many of each. May block.

        Where no store ``may_open`` for that, as far as it is known without.
        """
        return self._ask(lambda file: file.counts(store), may_open=may_open)

    def position(self, stores: Collection[str]) -> dict[str, int]:
        """The last commits of some stores that changed links and that the last answer had seen."""
        return {name: self._seen.get(name, _NONE).changed for name in stores}

    def changed(self, store: str) -> None:
        """Links of a store have changed. Any thread may say so."""
        self._stale.add(store)

    def erase(self) -> None:
        """Leave nothing of links that are gone. Blocks. Raises Unavailable."""
        self._ask(lambda file: [file.erase()])

    def close(self) -> None:
        """Release the file."""
        with self._lock:
            if self._unlisten is not None:
                self._unlisten()
            if self._file is not None:
                self._file.close()
                self._file = None

    def _ask(self, question: Callable[[Inbound], list[_Found]], *, may_open: bool = True) -> list[_Found]:
        told = "the links between stores are being collected anew"
        with self._lock:
            return asked(lambda: self._asked(question, may_open=may_open), self._forget, "inbound_links_damaged", told)

    # With the lock held

    def _asked(self, question: Callable[[Inbound], list[_Found]], *, may_open: bool) -> list[_Found]:
        """What a question finds in the file, once that knows all stores; nothing where no store has links."""
        if self._unlisten is None:
            # Before names are read: what is made or dropped from now on is told.
            self._unlisten = self._pool.feeds.listen_by_name(self._stale.add)
            if self._path.exists():
                self._seen = self._made().seen()
            self._stale |= {*self._pool.here(), *self._seen}
        left: set[str] = set()
        while self._stale:
            name = self._stale.pop()
            if not self._look_at(name, may_open=may_open):
                left.add(name)
        self._stale |= left
        return [] if self._file is None else question(self._file)

    def _made(self) -> Inbound:
        if self._file is None:
            self._file = Inbound(self._path)
        return self._file

    def _forget(self) -> None:
        """Begin anew."""
        if self._file is not None:
            self._file.close()
            self._file = None
        remove_files(self._path)
        self._seen.clear()
        self._stale |= {*self._pool.here()}

    def _look_at(self, name: str, *, may_open: bool) -> bool:
        """Have the file know the links of a store; whether it does."""
        layout = self._pool.layout(name)
        before = self._seen.get(name)
        if not layout.exists:
            if before is not None:
                self._made().forget(name)
                del self._seen[name]
            return True
        born, mark = layout.created_at(), layout.close_mark()
        is_known = mark is not None and before == LinksPosition(born, mark.links_changed)
        if is_known or (mark is not None and mark.links_changed == 0 and before is None):
            return True
        if name not in self._pool.open_stores():
            if mark is not None and self._read_closed(layout, LinksPosition(born, mark.links_changed), mark.sequence):
                return True
            if not may_open:
                return False
        with suppress(NotFound, ServedElsewhere), self._pool.lease(name) as store:
            self._read(store, born, before)
        return True

    def _read_closed(self, layout: Layout, seen: LinksPosition, sequence: int) -> bool:
        """Have the file know the links of a store that was closed at a commit, if what is left of it is as of that."""
        try:
            with left(layout.links) as (links, at):
                if at != sequence or links.changed != seen.changed:
                    return False
                self._made().replace(layout.name, links.all(), seen)
        except sqlite3.Error:
            return False
        self._seen[layout.name] = seen
        return True

    def _read(self, store: FollowedStore, born: int, before: LinksPosition | None) -> None:
        """Have the file know the links of an open store."""
        with store.reading_links() as (rows, links):
            seen = LinksPosition(born, 0 if links is None else links.changed)
            if seen == before or (before is None and not seen.changed):
                return
            if before is not None and before.born == born and before.changed >= store.journal.oldest - 1:
                for change in link_changes(store.journal.frames(before.changed), before.changed, rows.at):
                    self._made().follow(
                        store.name, change.links_put(), change.links_deleted, LinksPosition(born, change.sequence)
                    )
            else:
                self._made().replace(store.name, links.all() if links else (), seen)
            self._seen[store.name] = seen
