"""Which nodes writes have touched, for those who show single nodes and want to know when to look again."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from kgserve.errors import KgserveError
from kgserve.journal.tail import Tail
from kgserve.model.change import ChangeSet
from kgserve.model.events import Event, Position
from kgserve.model.remembered import Told
from kgserve.model.rows import EdgeKey, EdgeRow, LinkKey, LinkRow, NodeRow
from kgserve.store.feed import Feed, Wake


class Touched:
    """One listener's way through the commits of a store, from now on. For one thread at a time.

    A node is touched by what makes, changes or takes away the node itself or an edge at it.
    """

    def __init__(self, feed: Feed, wake: Wake) -> None:
        """``wake`` is called by any thread when there may be news. Blocks a little. Raises NotFound, JournalDamaged."""
        self.feed = feed
        self._tail = Tail(feed.layout.journal)
        self._unlisten = feed.listen(wake)
        try:
            self._seen = feed.latest
        except BaseException:
            self._unlisten()
            raise

    def since(self, wanted: AbstractSet[str]) -> set[str] | None:
        """Those of the ``wanted`` nodes that were touched since the last look; None when no node was.

        All of them when the commits can no longer be read: who looks again needlessly misses nothing. Blocks. Raises
        NotFound when the store is gone.
        """
        latest, seen = self.feed.latest, self._seen
        if latest <= seen:
            return None
        try:
            return self._read_to(latest, wanted)
        except (KgserveError, FileNotFoundError):
            return set(wanted)
        finally:
            self._seen = latest

    def close(self) -> None:
        """Listen no longer."""
        self._unlisten()

    def _read_to(self, latest: int, wanted: AbstractSet[str]) -> set[str] | None:
        found: set[str] = set()
        is_any = False
        while self._seen < latest and (len(found) < len(wanted) or not is_any):
            for sequence, touched in self._commits(latest):
                found.update(wanted & touched)
                is_any = is_any or bool(touched)
                self._seen = sequence
        return found if is_any else None

    def _commits(self, latest: int) -> Iterator[tuple[int, set[str]]]:
        """The next commits, with the nodes that each touched."""
        commits = self.feed.recent(Position.after(self._seen))
        if not commits:
            for change in self._tail.page(self._seen, latest):
                yield change.sequence, _of_change(change)
            return
        for commit in commits:
            ids = [_of_event(event) for event in commit.events]
            if None in ids:  # too many rows for an event each
                [change] = self._tail.read(commit.sequence, commit.sequence)
                yield commit.sequence, _of_change(change)
            else:
                yield commit.sequence, {node_id for some in ids for node_id in some or ()}


def _of_event(event: Event) -> tuple[str, ...] | None:
    found: tuple[str, ...] | None = None
    match event.subject:
        case NodeRow() as row:
            found = (row.id,)
        case EdgeRow() as row:
            found = _ends(row.key)
        case LinkRow() as row:
            found = (row.edge.source,)
        case LinkKey() as key:
            found = (key.edge[0],)
        case str() as node_id:
            found = (node_id,)
        case Told():
            found = ()  # its row is told of, too
        case tuple() as key:
            found = _ends(key)
        case _:
            pass
    return found


def _of_change(change: ChangeSet) -> set[str]:
    touched = set(change.node_ids())
    for key in (*(row.key for row in (*change.edges_created, *change.edges_updated)), *change.edges_deleted):
        touched.update(_ends(key))
    touched.update(row.edge.source for row in (*change.links_created, *change.links_updated))
    touched.update(key.edge[0] for key in change.links_deleted)
    return touched


def _ends(key: EdgeKey) -> tuple[str, str]:
    return key[0], key[1]
