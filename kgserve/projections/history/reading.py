"""A history's file read beside its owner: what it says of the present, and the states of nodes that are over.

The present is read for want of a journal, each row only if it is whole; states that are over in the order in which they
ended.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from kgserve.projections.history import packing
from kgserve.projections.history.history import RowState, state
from kgserve.projections.history.statements import (
    EDGE_KEY_COLUMNS,
    HISTORY_VERSION,
    IS_SAME_EDGE,
    IS_SAME_LINK,
    LINK_KEY_COLUMNS,
    NODE_KEY_COLUMNS,
    SELECT_ENDED_NODES,
    SELECT_EXTENT,
)
from kgserve.storage.model.rows import EdgeKey, EdgeRow, LinkKey, LinkRow, NodeRow

_SELECT_HISTORY_CURSOR = "SELECT sequence, time FROM cursor JOIN moment USING (sequence)"
_SELECT_PRESENT_NODES = f"SELECT CAST(row AS BLOB), hash, {NODE_KEY_COLUMNS} FROM node WHERE last IS NULL"  # noqa: S608 - constants
_SELECT_PRESENT_EDGES = f"SELECT CAST(row AS BLOB), hash, {EDGE_KEY_COLUMNS} FROM edge WHERE last IS NULL"  # noqa: S608
_SELECT_PRESENT_LINKS = f"SELECT CAST(row AS BLOB), hash, {LINK_KEY_COLUMNS} FROM link WHERE last IS NULL"  # noqa: S608
_SELECT_HAS_LINK_TABLE = "SELECT count(*) FROM sqlite_schema WHERE name = 'link'"


class CurrentRows:
    """The rows that hold as of ``sequence``, the last commit that a history has seen; ``time`` is in microseconds.

    ``lost_nodes``, ``lost_edges`` and ``lost_links`` are the keys of rows that were met and did not fit their
    checksums.
    """

    def __init__(self, path: Path) -> None:
        """Open it for reading alone. Raises sqlite3.Error, also when SQLite finds the file damaged: it reads all."""
        self.lost_nodes: set[str] = set()
        self.lost_edges: set[EdgeKey] = set()
        self.lost_links: set[LinkKey] = set()
        self._connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            self._require_whole()
            # One that was last written before there were links has no table of them.
            [(self._has_links,)] = self._connection.execute(_SELECT_HAS_LINK_TABLE)
            self.sequence, self.time = self._connection.execute(_SELECT_HISTORY_CURSOR).fetchone() or (0, 0)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the file."""
        self._connection.close()

    def node(self, row: NodeRow) -> NodeRow | None:
        """How a node stands now, None when it is gone; as it is given when that is not whole."""
        found = self._connection.execute(
            f"{_SELECT_PRESENT_NODES} AND id = ? ORDER BY first DESC", (row.id,)
        ).fetchone()
        return self._node(*found) or row if found else None

    def edge(self, row: EdgeRow) -> EdgeRow | None:
        """The same for an edge."""
        source, target, relation_type = row.key
        key = {"source": source, "target": target, "relation_type": relation_type}
        found = self._connection.execute(
            f"{_SELECT_PRESENT_EDGES} AND {IS_SAME_EDGE} ORDER BY first DESC", key
        ).fetchone()
        return self._edge(*found) or row if found else None

    def link(self, row: LinkRow) -> LinkRow | None:
        """The same for a link."""
        if not self._has_links:
            return row
        source, target, relation_type = row.edge.key
        key = {"store": row.store, "source": source, "target": target, "relation_type": relation_type}
        found = self._connection.execute(
            f"{_SELECT_PRESENT_LINKS} AND {IS_SAME_LINK} ORDER BY first DESC", key
        ).fetchone()
        return self._link(*found) or row if found else None

    def nodes_after(self, sequence: int) -> Iterator[NodeRow]:
        """The nodes whose present state began after a commit."""
        states = self._connection.execute(f"{_SELECT_PRESENT_NODES} AND first > ?", (sequence,))
        return (row for state in states if (row := self._node(*state)) is not None)

    def edges_after(self, sequence: int) -> Iterator[EdgeRow]:
        """The edges whose present state began after a commit."""
        states = self._connection.execute(f"{_SELECT_PRESENT_EDGES} AND first > ?", (sequence,))
        return (row for state in states if (row := self._edge(*state)) is not None)

    def links_after(self, sequence: int) -> Iterator[LinkRow]:
        """The links whose present state began after a commit."""
        states = (
            self._connection.execute(f"{_SELECT_PRESENT_LINKS} AND first > ?", (sequence,)) if self._has_links else ()
        )
        return (row for state in states if (row := self._link(*state)) is not None)

    def _node(self, content: bytes | None, checksum: int, *key: Any) -> NodeRow | None:
        if (row := packing.node(content, checksum, *key)) is None:
            self.lost_nodes.add(key[0])
        return row

    def _edge(self, content: bytes | None, checksum: int, *key: Any) -> EdgeRow | None:
        if (row := packing.edge(content, checksum, *key)) is None:
            self.lost_edges.add((key[0], key[1], key[2]))
        return row

    def _link(self, content: bytes | None, checksum: int, *key: Any) -> LinkRow | None:
        if (row := packing.link(content, checksum, *key)) is None:
            self.lost_links.add(LinkKey(key[4], (key[0], key[1], key[2])))
        return row

    def _require_whole(self) -> None:
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version != HISTORY_VERSION:
            raise sqlite3.DatabaseError("the file is of another kind")
        (found,) = self._connection.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(found)


_OWNER_LOCK_TIMEOUT_SECONDS = 1.0  # seconds to wait for the owner, who writes
ENDED_STATES_BATCH_BYTES = 16 << 20
"""Rows that are read at once, about."""


class HistoryPosition(msgspec.Struct, frozen=True, order=True):
    """How far somebody has read: past the state of this node that ended with this commit."""

    last: int
    id: str = ""


class EndedStates(msgspec.Struct, frozen=True):
    """Some states that are over, up to a place; ``sequence`` is the last commit all of whose states have been read.

    ``seen`` is the commit that the history itself has seen, ``oldest`` the first as of which it answers; there may be
    ``more``.
    """

    states: list[RowState[NodeRow]]
    place: HistoryPosition
    sequence: int
    seen: int
    oldest: int
    more: bool


def read_ended(path: Path, place: HistoryPosition, limit: int) -> EndedStates | None:
    """The next states that are over, at most ``limit`` and about 16 MiB; None while there is no history to be read.

    Raises sqlite3.DatabaseError when the file is damaged or held by its owner for long.
    """
    # Its owner makes the index before the cursor, and then puts the row into that.
    if not {"node", "node_by_end", "cursor"} <= _tables(path):
        return None
    with closing(_connect(path)) as connection:
        connection.execute("BEGIN")
        if (found := connection.execute(SELECT_EXTENT).fetchone()) is None:
            return None
        seen, oldest = found
        values = {"last": place.last, "id": place.id, "until": seen, "limit": limit}
        states, more = _taken(connection.execute(SELECT_ENDED_NODES, values), limit)
    if not more:
        place = max(place, HistoryPosition(seen + 1))
        return EndedStates(states, place, place.last - 1, seen, oldest, more)
    # The commit of the last one may have ended more.
    place = HistoryPosition(states[-1].last or 0, states[-1].row.id)
    return EndedStates(states, place, place.last - 1, seen, oldest, more)


def _taken(rows: Iterable[tuple[Any, ...]], limit: int) -> tuple[list[RowState[NodeRow]], bool]:
    """The first of some states, and whether there may be more."""
    states: list[RowState[NodeRow]] = []
    size = 0
    for row in rows:
        states.append(state(packing.node, *row))
        size += len(states[-1].row.content)
        if size >= ENDED_STATES_BATCH_BYTES:
            return states, True
    return states, len(states) == limit


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_OWNER_LOCK_TIMEOUT_SECONDS)


def _tables(path: Path) -> set[str]:
    # Without its owner the file may not be readable for who may only read, and it may just be about to be made.
    try:
        with closing(_connect(path)) as connection:
            return {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    except sqlite3.OperationalError:
        return set()
