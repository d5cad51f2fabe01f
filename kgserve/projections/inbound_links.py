"""Which links lead into a store, whatever store they are of: brought up to date when somebody asks."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Protocol

from typing_extensions import override

from kgserve.errors import NotFound, ServedElsewhere
from kgserve.projections.base import FollowedStore, Projection
from kgserve.projections.links.links import Inbound, LinkReader, LinksPosition, left
from kgserve.projections.on_demand import DerivedFile, Found
from kgserve.storage.changefeed import ChangeFeedLookup
from kgserve.storage.journal.tail import LinkChange, link_changes
from kgserve.storage.layout import Layout
from kgserve.storage.model.rows import LinkRow
from kgserve.storage.rows.snapshot import Rows

INBOUND_LINKS_FILE = "links.sqlite"
_NO_POSITION = LinksPosition(0, 0)


class _Pool(Protocol):
    data_dir: Path

    @property
    def feeds(self) -> ChangeFeedLookup: ...

    def here(self) -> list[str]: ...

    def layout(self, name: str) -> Layout: ...

    def open_stores(self) -> Mapping[str, FollowedStore]: ...

    def lease(self, name: str) -> AbstractContextManager[FollowedStore]: ...


class InboundLinkLookup(Protocol):
    """The links between stores by their targets."""

    def to(self, store: str, targets: Collection[str]) -> list[tuple[str, LinkRow]]:
        """Return the links to some nodes of a store, each with the name of its store. May block."""
        ...

    def counts(self, store: str, *, may_open: bool = True) -> list[tuple[str, int]]:
        """Return the stores that link into one, by name, with the number of links. May block.

        Unless stores ``may_open`` for it, count what is known without.
        """
        ...

    def position(self, stores: Collection[str]) -> dict[str, int]:
        """Return the last commits of stores that changed links and that the last answer had seen."""
        ...


class InboundLinks(DerivedFile, InboundLinkLookup):
    """The links of all stores of a pool by what they lead to.

    A store is looked at when its links may have changed: after it was made or dropped, when one of its commits says so,
    and all of them once after the start. One that was closed says in its mark up to where.
    """

    damage_event = "inbound_links_damaged"
    rebuilding_message = "the links between stores are being collected anew"

    def __init__(self, pool: _Pool) -> None:
        super().__init__(pool.data_dir / INBOUND_LINKS_FILE)
        self._pool = pool
        self._file: Inbound | None = None
        self._seen: dict[str, LinksPosition] = {}
        # Written by writers and by who makes stores; read by who asks.
        self._stale: set[str] = set()
        self._unlisten: Callable[[], None] | None = None

    @override
    def to(self, store: str, targets: Collection[str]) -> list[tuple[str, LinkRow]]:
        return self._ask(lambda file: [*file.to(store, targets)])

    @override
    def counts(self, store: str, *, may_open: bool = True) -> list[tuple[str, int]]:
        return self._ask(lambda file: file.counts(store), may_open=may_open)

    @override
    def position(self, stores: Collection[str]) -> dict[str, int]:
        return {name: self._seen.get(name, _NO_POSITION).changed for name in stores}

    def changed(self, store: str) -> None:
        """Links of a store have changed. Any thread may say so."""
        self._stale.add(store)

    def erase(self) -> None:
        """Leave nothing of links that are gone. Blocks. Raises Unavailable."""
        self._ask(lambda file: [file.erase()])

    @override
    def close(self) -> None:
        with self._lock:
            if self._unlisten is not None:
                self._unlisten()
            self._release()

    def _ask(self, question: Callable[[Inbound], list[Found]], *, may_open: bool = True) -> list[Found]:
        return self._answer(lambda: self._asked(question, may_open=may_open))

    # With the lock held

    def _asked(self, question: Callable[[Inbound], list[Found]], *, may_open: bool) -> list[Found]:
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

    @override
    def _release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    @override
    def _discard(self) -> None:
        super()._discard()
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
            begin = before.changed if before is not None and before.born == born else -1
            _LinksOfStore(self._made(), store, links, begin, seen).catch_up(rows.at)
            self._seen[store.name] = seen


class _LinksOfStore(Projection):
    """The part of the file that has the links of one open store, as of a commit of these."""

    name = "inbound"

    def __init__(
        self, file: Inbound, store: FollowedStore, links: LinkReader | None, begin: int, seen: LinksPosition
    ) -> None:
        """``begin`` is the last commit whose links the file has, -1 where it has none that hold."""
        super().__init__(store.layout, store.journal, store)
        self._file = file
        self._links = links
        self._begin = begin
        self._seen = seen

    def catch_up(self, last: int) -> None:
        """Take in all commits up to one."""
        while self._step(last):
            pass

    @override
    def close(self) -> None:
        """`InboundLinks.close` does."""

    @override
    def _open(self) -> int:
        return self._begin

    @override
    def _read(self, after: int, last: int) -> tuple[Iterable[LinkChange], int]:
        return link_changes(self._journal.frames(after), after, last), last

    @override
    def _apply(self, changes: Iterable[LinkChange], sequence: int) -> None:
        for change in changes:
            seen = LinksPosition(self._seen.born, change.sequence)
            self._file.follow(self._layout.name, change.links_put(), change.links_deleted, seen)

    @override
    def _apply_all(self, rows: Rows) -> int:
        self._file.replace(self._layout.name, self._links.all() if self._links else (), self._seen)
        return rows.at
