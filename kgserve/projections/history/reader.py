"""Reads of a history file by readers other than its owner: current rows, and ended states of nodes.

Current rows are read where the journal is missing, each only if it is intact. Ended states are read in the order in
which they ended.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from kgserve.projections.history import row_format
from kgserve.projections.history.history_sql import (
    EDGE_KEY_COLUMNS,
    HISTORY_VERSION,
    IS_SAME_EDGE,
    IS_SAME_LINK,
    LINK_KEY_COLUMNS,
    NODE_KEY_COLUMNS,
    SELECT_ENDED_NODES,
    SELECT_EXTENT,
)
from kgserve.projections.history.row_state_history import RowStateInterval, decode_history_row_state
from kgserve.storage.model.node_edge_rows import CrossStoreLinkKey, CrossStoreLinkRow, EdgeKey, EdgeRow, NodeRow

_SELECT_HISTORY_CURSOR = "SELECT sequence, time FROM cursor JOIN moment USING (sequence)"
_SELECT_PRESENT_NODES = f"SELECT CAST(row AS BLOB), hash, {NODE_KEY_COLUMNS} FROM node WHERE last IS NULL"  # noqa: S608 - constants
_SELECT_PRESENT_EDGES = f"SELECT CAST(row AS BLOB), hash, {EDGE_KEY_COLUMNS} FROM edge WHERE last IS NULL"  # noqa: S608
_SELECT_PRESENT_LINKS = f"SELECT CAST(row AS BLOB), hash, {LINK_KEY_COLUMNS} FROM link WHERE last IS NULL"  # noqa: S608
_SELECT_HAS_LINK_TABLE = "SELECT count(*) FROM sqlite_schema WHERE name = 'link'"


class HistoryCurrentRows:
    """Current rows as of ``sequence``, the last commit that a history has applied; ``time`` is in microseconds.

    ``lost_nodes``, ``lost_edges`` and ``lost_links`` collect the keys of rows read with a checksum mismatch.
    """

    def __init__(self, path: Path) -> None:
        """Open a history read-only and verify it completely. Raises sqlite3.Error, also for a damaged file."""
        self.lost_nodes: set[str] = set()
        self.lost_edges: set[EdgeKey] = set()
        self.lost_links: set[CrossStoreLinkKey] = set()
        self._connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            self._verify()
            # A file of an older version may lack the table of links.
            [(self._has_links,)] = self._connection.execute(_SELECT_HAS_LINK_TABLE)
            self.sequence, self.time = self._connection.execute(_SELECT_HISTORY_CURSOR).fetchone() or (0, 0)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the file."""
        self._connection.close()

    def node(self, row: NodeRow) -> NodeRow | None:
        """Return the current row of a node, None if it is deleted, or the given row on a checksum mismatch."""
        found = self._connection.execute(
            f"{_SELECT_PRESENT_NODES} AND id = ? ORDER BY first DESC", (row.id,)
        ).fetchone()
        return self._node(*found) or row if found else None

    def edge(self, row: EdgeRow) -> EdgeRow | None:
        """Return the current row of an edge, None if it is deleted, or the given row on a checksum mismatch."""
        source, target, relation_type = row.key
        key = {"source": source, "target": target, "relation_type": relation_type}
        found = self._connection.execute(
            f"{_SELECT_PRESENT_EDGES} AND {IS_SAME_EDGE} ORDER BY first DESC", key
        ).fetchone()
        return self._edge(*found) or row if found else None

    def link(self, row: CrossStoreLinkRow) -> CrossStoreLinkRow | None:
        """Return the current row of a link, None if it is deleted, or the given row on a checksum mismatch."""
        if not self._has_links:
            return row
        source, target, relation_type = row.edge.key
        key = {"store": row.store, "source": source, "target": target, "relation_type": relation_type}
        found = self._connection.execute(
            f"{_SELECT_PRESENT_LINKS} AND {IS_SAME_LINK} ORDER BY first DESC", key
        ).fetchone()
        return self._link(*found) or row if found else None

    def nodes_after(self, sequence: int) -> Iterator[NodeRow]:
        """Yield the nodes whose current state began after a commit."""
        states = self._connection.execute(f"{_SELECT_PRESENT_NODES} AND first > ?", (sequence,))
        return (row for state in states if (row := self._node(*state)) is not None)

    def edges_after(self, sequence: int) -> Iterator[EdgeRow]:
        """Yield the edges whose current state began after a commit."""
        states = self._connection.execute(f"{_SELECT_PRESENT_EDGES} AND first > ?", (sequence,))
        return (row for state in states if (row := self._edge(*state)) is not None)

    def links_after(self, sequence: int) -> Iterator[CrossStoreLinkRow]:
        """Yield the links whose current state began after a commit."""
        states = (
            self._connection.execute(f"{_SELECT_PRESENT_LINKS} AND first > ?", (sequence,)) if self._has_links else ()
        )
        return (row for state in states if (row := self._link(*state)) is not None)

    def _node(self, content: bytes | None, checksum: int, *key: Any) -> NodeRow | None:
        if (row := row_format.unpack_history_node(content, checksum, *key)) is None:
            self.lost_nodes.add(key[0])
        return row

    def _edge(self, content: bytes | None, checksum: int, *key: Any) -> EdgeRow | None:
        if (row := row_format.unpack_history_edge(content, checksum, *key)) is None:
            self.lost_edges.add((key[0], key[1], key[2]))
        return row

    def _link(self, content: bytes | None, checksum: int, *key: Any) -> CrossStoreLinkRow | None:
        if (row := row_format.unpack_history_cross_store_link(content, checksum, *key)) is None:
            self.lost_links.add(CrossStoreLinkKey(key[4], (key[0], key[1], key[2])))
        return row

    def _verify(self) -> None:
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version != HISTORY_VERSION:
            raise sqlite3.DatabaseError("the file is not a history file")
        (found,) = self._connection.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(found)


_OWNER_LOCK_TIMEOUT_SECONDS = 1.0  # the owner may be writing
ENDED_STATES_BATCH_BYTES = 16 << 20
"""Approximate size of a batch of rows."""


class EndedStateReadPosition(msgspec.Struct, frozen=True, order=True):
    """Position of a reader: after the state of node ``id`` that ended with the commit ``last``."""

    last: int
    id: str = ""


class EndedNodeStateBatch(msgspec.Struct, frozen=True):
    """Batch of ended states, up to a position.

    ``sequence`` is the last commit whose ended states have all been read, and ``seen`` the last commit in the history.
    The history can be read from the commit ``oldest`` on. If ``more`` is true, further states may follow.
    """

    states: list[RowStateInterval[NodeRow]]
    place: EndedStateReadPosition
    sequence: int
    seen: int
    oldest: int
    more: bool


def read_ended_node_states(path: Path, place: EndedStateReadPosition, limit: int) -> EndedNodeStateBatch | None:
    """Return the next ended states, at most ``limit`` and about 16 MiB; None if there is no history to read.

    Raises sqlite3.DatabaseError if the file is damaged, or locked by its owner for too long.
    """
    # The owner creates the index before the cursor, and inserts the cursor's row last.
    if not {"node", "node_by_end", "cursor"} <= _tables(path):
        return None
    with closing(_connect(path)) as connection:
        connection.execute("BEGIN")
        if (found := connection.execute(SELECT_EXTENT).fetchone()) is None:
            return None
        seen, oldest = found
        values = {"last": place.last, "id": place.id, "until": seen, "limit": limit}
        states, more = _read_batch(connection.execute(SELECT_ENDED_NODES, values), limit)
    if not more:
        place = max(place, EndedStateReadPosition(seen + 1))
        return EndedNodeStateBatch(states, place, place.last - 1, seen, oldest, more)
    # The commit of the last state may have ended more states.
    place = EndedStateReadPosition(states[-1].last or 0, states[-1].row.id)
    return EndedNodeStateBatch(states, place, place.last - 1, seen, oldest, more)


def _read_batch(rows: Iterable[tuple[Any, ...]], limit: int) -> tuple[list[RowStateInterval[NodeRow]], bool]:
    """Return the first states of a result, and whether more may follow."""
    states: list[RowStateInterval[NodeRow]] = []
    size = 0
    for row in rows:
        states.append(decode_history_row_state(row_format.unpack_history_node, *row))
        size += len(states[-1].row.content)
        if size >= ENDED_STATES_BATCH_BYTES:
            return states, True
    return states, len(states) == limit


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_OWNER_LOCK_TIMEOUT_SECONDS)


def _tables(path: Path) -> set[str]:
    # If its owner does not have it open, a read-only process may be unable to read it, or it may not exist yet.
    try:
        with closing(_connect(path)) as connection:
            return {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    except sqlite3.OperationalError:
        return set()
