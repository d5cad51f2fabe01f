"""The links of a store, its edges into others: taken in with the commit, so that readers see both at once."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TypeVar

import msgspec
import structlog

from kgserve.errors import Unavailable
from kgserve.platform.sqlite_files import asked, remove_files
from kgserve.projections.links.links import LinkReader, Links
from kgserve.storage.journal.journal import Journal
from kgserve.storage.journal.replay import all_links
from kgserve.storage.journal.tail import link_changes
from kgserve.storage.layout import Layout
from kgserve.storage.model.batch import WriteBatch
from kgserve.storage.model.change import ChangeSet, LinksState
from kgserve.storage.model.digest import shift_links
from kgserve.storage.model.rows import LinkKey, LinkRow
from kgserve.storage.plan import Workspace
from kgserve.storage.rows.snapshot import Rows
from kgserve.storage.rows.view import RowsView

log = structlog.get_logger()

_Found = TypeVar("_Found")
_RENEWING = "the links of this store are being made anew"


class LinksView:
    """The links of one store; the file is opened when it is first asked, by a reader or for a write.

    Whether there may be any is known of the rows (`Rows.linked`): a store that never had one has no such file.
    """

    def __init__(self, layout: Layout, journal: Journal, rows: RowsView) -> None:
        self._layout = layout
        self._journal = journal
        self._rows = rows
        self._lock = threading.RLock()
        self._links: Links | None = None
        self._seen = -1
        self.is_asked = False
        # Called in the writing thread when links have changed: for waking, not for work.
        self.after_change: list[Callable[[], None]] = []
        # Called when nothing is to be left of links that are gone.
        self.after_erasing: list[Callable[[], None]] = []

    def ask(self, question: Callable[[LinkReader, Rows], _Found]) -> _Found:
        """What ``question`` finds in the links as of the last commit, and in the rows as of that commit.

        Nothing is written meanwhile, so it must be quick. The file is made anew if it turns out to be damaged. Raises
        Unavailable.
        """
        # Before rows are looked at: commits that it is not told of from now on are among them.
        self.is_asked = True
        with self._lock, self._rows.reading() as rows:
            return asked(
                lambda: question(self._opened(rows.at), rows),
                self._forget,
                "links_damaged",
                _RENEWING,
                store=self._layout.name,
            )

    @contextmanager
    def reading(self) -> Generator[tuple[LinkReader | None, Rows]]:
        """The links and the rows as of one commit, for as long as the block runs; writes go on.

        None for links where there are none. Raises Unavailable.
        """
        with ExitStack() as held:
            beside, rows = self._beside(held)
            yield beside, rows

    def _beside(self, held: ExitStack) -> tuple[LinkReader | None, Rows]:
        with self._lock:
            if self._rows.rows().linked:
                self.ask(lambda _links, _rows: None)
            rows = held.enter_context(self._rows.reading())
            if not rows.linked:
                return None, rows
            try:
                return held.enter_context(self._opened(rows.at).beside()), rows
            except sqlite3.Error as error:
                raise Unavailable(_RENEWING, retry_after=2) from error

    def erase(self) -> None:
        """Leave nothing of links that are gone. Blocks. Raises sqlite3.Error and Unavailable."""
        if not self._rows.rows().linked:
            return
        self.ask(lambda _links, _rows: None)
        with self._lock:
            if self._links is not None:
                self._links.erase()
        for erase in self.after_erasing:
            erase()

    def check(self) -> bool:
        """Whether the links come to what the journal says of them; if not, they are made anew. Blocks."""
        with self.reading() as (links, _rows):
            if links is None:
                return True
            try:
                found, stated = LinksState(), links.state
                for some in links.all():
                    found = shift_links(found, some, ())
            except sqlite3.Error as error:
                found, stated = None, str(error)
        if found == stated:
            return True
        log.error("check_failed", store=self._layout.name, view="links", reason=str(stated))
        with self._lock:
            self._forget()
        return False

    def close(self) -> None:
        """Release the file."""
        with self._lock:
            if self._links is not None:
                with suppress(sqlite3.Error):
                    self._links.moved(self._seen)
                self._links.close()
                self._links = None

    # For the writing thread

    def gather(self, workspace: Workspace, batches: Sequence[WriteBatch]) -> None:
        """Have a workspace know the links that batches meet, their sources being known. Raises Unavailable."""
        keys = {put.key for batch in batches for put in batch.links}
        keys |= {workspace.followed_link(put).key for batch in batches for put in batch.links}
        keys.update(key for batch in batches for key in batch.delete_links)
        gone = {node_id for batch in batches for node_id in batch.delete_nodes}
        if keys or gone:
            found, workspace.links_state = self._found(keys, gone)
            for row in found:
                workspace.put_link(row.key, row)

    def with_cut(self, change: ChangeSet) -> ChangeSet:
        """A change set that was made without regard to links: those of the nodes that it takes away go, too."""
        cut, state = self._found((), change.nodes_deleted)
        if not cut:
            return change
        links = shift_links(state, (), cut)
        return msgspec.structs.replace(change, links_deleted=sorted(row.key for row in cut), links=links)

    @contextmanager
    def taking(self, changes: Sequence[ChangeSet]) -> Generator[None]:
        """Take in commits, after it was first asked, while the block shows readers their rows."""
        with self._lock:
            if self._links is not None:
                self._take(self._links, changes)
            yield
        if any(change.links is not None for change in changes):
            for wake in self.after_change:
                wake()

    def _found(self, keys: Collection[LinkKey], sources: Collection[str]) -> tuple[list[LinkRow], LinksState]:
        """The links of some keys and those that lead from some nodes, and what all come to."""

        def ask(links: LinkReader, _: Rows) -> tuple[list[LinkRow], LinksState]:
            state = links.state
            found = [*links.of(keys), *links.from_any(sources)] if state.count else []
            return found, state

        return self.ask(ask)

    # With the lock held

    def _take(self, links: Links, changes: Sequence[ChangeSet]) -> None:
        try:
            if self._seen < changes[0].sequence - 1:
                self._follow(links, changes[0].sequence - 1)
            for change in changes:
                if change.links is not None:
                    links.apply(change.links_put(), change.links_deleted, change.sequence, change.links)
                self._seen = change.sequence
        except sqlite3.Error:
            log.exception("links_damaged", store=self._layout.name)
            self._forget()

    def _opened(self, at: int) -> Links:
        """The file, which has seen a commit. Raises sqlite3.Error and JournalDamaged."""
        if self._links is None:
            links = Links(self._layout.links)
            try:
                self._seen = links.sequence
                self._follow(links, at)
            except BaseException:
                links.close()
                raise
            self._links = links
        elif self._seen < at:
            self._follow(self._links, at)
        return self._links

    def _follow(self, links: Links, at: int) -> None:
        seen = self._seen
        if not self._journal.oldest - 1 <= seen <= at or seen < 0:
            links.rebuild(all_links(self._layout, self._journal, at), at)
        else:
            for change in link_changes(self._journal.frames(seen), seen, at):
                links.apply(change.put, change.links_deleted, change.sequence, change.links or LinksState())
            links.moved(at)
        self._seen = at

    def _forget(self) -> None:
        """Have the file made anew when it is next asked."""
        if self._links is not None:
            self._links.close()
            self._links = None
        remove_files(self._layout.links)
