"""Every state that the entities and relations of a store have had, in SQLite, from the first that is still known.

A state is a row together with the commits between which it held: from ``first``, up to but not with ``last``, which is
None while it holds. A reader asks for a moment as a sequence; `sequence_at` finds the one for a time. Nothing that was
asked for needs a scan: keys begin with what is looked for, and states of one key are in order.

It is fed from the journal, after the answer, and goes on where the journal no longer reaches: so commits are durable.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import xxhash

from kgserve.history import statements as sql
from kgserve.model.change import ChangeSet
from kgserve.model.rows import EdgeKey, EdgeRow, NodeRow

FOREVER = (1 << 63) - 1

Row = TypeVar("Row", NodeRow, EdgeRow)

_encode = msgspec.msgpack.Encoder().encode
_node = msgspec.msgpack.Decoder(NodeRow).decode
_edge = msgspec.msgpack.Decoder(EdgeRow).decode


class State(msgspec.Struct, Generic[Row], frozen=True):
    """A row, the commits from and until which it held, and their times in microseconds."""

    row: Row
    first: int
    last: int | None
    started: int
    ended: int | None


class History:
    """One connection that writes and one that reads, each used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Open or make the file. Raises sqlite3.DatabaseError for a file that is none of ours."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._writing = threading.Lock()
        self._reading = threading.Lock()
        self._writer = _connect(path)
        self._reader = sqlite3.connect(path, check_same_thread=False)

    @property
    def sequence(self) -> int:
        """The last commit that it has seen; 0 for none."""
        return self._read("SELECT sequence FROM cursor", {})[0][0]

    @property
    def oldest(self) -> int:
        """The first commit as of which it can answer; 0 when it knows everything."""
        return self._read("SELECT oldest FROM cursor", {})[0][0]

    def sequence_at(self, time: int) -> int:
        """The last commit up to a time in microseconds; 0 when there was none yet."""
        found = self._read("SELECT max(sequence) FROM moment WHERE time <= :time", {"time": time})[0][0]
        return found or 0

    # Writing

    def take(self, changes: Sequence[ChangeSet]) -> None:
        """Take in consecutive change sets, all or none of them; those that it has seen are left out."""
        with self._writing, self._writer as transaction:
            seen = transaction.execute("SELECT sequence FROM cursor").fetchone()[0]
            for change in changes:
                if change.sequence > seen:
                    _take(transaction, change)
            transaction.execute("UPDATE cursor SET sequence = max(sequence, ?)", (changes[-1].sequence,))

    def begin_at(self, nodes: Iterable[NodeRow], edges: Iterable[EdgeRow], sequence: int, time: int) -> None:
        """Forget everything and begin with these rows: no earlier moment than ``sequence`` is known then."""
        with self._writing, self._writer as transaction:
            for table in ("node", "edge", "moment"):
                transaction.execute(f"DELETE FROM {table}")  # noqa: S608 - three names
            transaction.executemany(sql.ADD_NODE, (_node_values(row, row.sequence, row.updated_at) for row in nodes))
            transaction.executemany(sql.ADD_EDGE, (_edge_values(row, row.sequence, time) for row in edges))
            transaction.execute("INSERT INTO moment VALUES (?, ?)", (sequence, time))
            transaction.execute("UPDATE cursor SET sequence = ?, oldest = ?", (sequence, sequence))

    def prune(self, before: int) -> int:
        """Forget the states that had ended by a commit; how many those were. Earlier moments are gone then."""
        with self._writing, self._writer as transaction:
            removed = 0
            for table in ("node", "edge"):
                statement = f"DELETE FROM {table} WHERE last IS NOT NULL AND last <= ?"  # noqa: S608 - two names
                removed += transaction.execute(statement, (before,)).rowcount
            transaction.execute("DELETE FROM moment WHERE sequence < ?", (before,))
            transaction.execute("UPDATE cursor SET oldest = max(oldest, ?)", (before,))
        return removed

    def close(self) -> None:
        """Release the file."""
        with self._reading:
            self._reader.close()
        with self._writing:
            self._writer.close()

    # Reading; all raise sqlite3.DatabaseError when the file is damaged

    def node_at(self, node_id: str, at: int) -> State[NodeRow] | None:
        """The state of a node as of a commit."""
        for state in self._nodes(sql.NODE_AT, {"id": node_id, "at": at}):
            if state.last is None or state.last > at:
                return state
        return None

    def node_version(self, node_id: str, version: int) -> State[NodeRow] | None:
        """The state of a node with this version; the newest, should it have been deleted and made again."""
        return next(iter(self._nodes(sql.NODE_VERSION, {"id": node_id, "version": version})), None)

    def node_states(self, node_id: str, before: int, limit: int) -> list[State[NodeRow]]:
        """The states of a node, newest first, that began before a commit."""
        return self._nodes(sql.NODE_STATES, {"id": node_id, "before": before, "limit": limit})

    def nodes_at(self, at: int, type_: str | None, after: str | None, limit: int) -> list[State[NodeRow]]:
        """The next nodes in the order of their ids as of a commit, of one type or of all."""
        values = {"at": at, "type": type_, "after": after or "", "limit": limit}
        return self._nodes(sql.LIST if type_ is None else sql.LIST_TYPE, values)

    def outgoing(self, node_id: str, at: int, limit: int) -> list[State[EdgeRow]]:
        """Edges that started at a node as of a commit."""
        return self._edges(sql.OUT, {"id": node_id, "at": at, "limit": limit})

    def incoming(self, node_id: str, at: int, limit: int) -> list[State[EdgeRow]]:
        """Edges that ended at a node as of a commit."""
        return self._edges(sql.IN, {"id": node_id, "at": at, "limit": limit})

    def edges_at(self, at: int, after: EdgeKey, limit: int) -> list[State[EdgeRow]]:
        """The next edges in the order of their keys as of a commit."""
        source, target, relation_type = after
        values = {"at": at, "source": source, "target": target, "relation_type": relation_type, "limit": limit}
        return self._edges(sql.EDGES, values)

    def _nodes(self, query: str, values: dict[str, Any]) -> list[State[NodeRow]]:
        return [
            State(_node(_intact(content, checksum)), *rest) for content, checksum, *rest in self._read(query, values)
        ]

    def _edges(self, query: str, values: dict[str, Any]) -> list[State[EdgeRow]]:
        return [
            State(_edge(_intact(content, checksum)), *rest) for content, checksum, *rest in self._read(query, values)
        ]

    def _read(self, query: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        with self._reading:
            return self._reader.execute(query, values).fetchall()


def _take(transaction: sqlite3.Connection, change: ChangeSet) -> None:
    at, time = change.sequence, change.time
    gone = (*change.edges_deleted, *(row.key for row in change.edges_updated))
    transaction.executemany(sql.CLOSE_EDGE, [{**_key(key), "at": at, "time": time} for key in gone])
    ended = (*change.nodes_deleted, *(row.id for row in change.nodes_updated))
    transaction.executemany(sql.CLOSE_NODE, [{"id": node_id, "at": at, "time": time} for node_id in ended])
    nodes = (*change.nodes_created, *change.nodes_updated)
    transaction.executemany(sql.ADD_NODE, (_node_values(row, at, time) for row in nodes))
    edges = (*change.edges_created, *change.edges_updated)
    transaction.executemany(sql.ADD_EDGE, (_edge_values(row, at, time) for row in edges))
    transaction.executemany(sql.TOUCH_EDGE, [{**_key(row.key), **_stored(row)} for row in change.edges_touched])
    transaction.execute("INSERT OR REPLACE INTO moment VALUES (?, ?)", (at, time))


def _key(key: EdgeKey) -> dict[str, Any]:
    return {"source": key[0], "target": key[1], "relation_type": key[2]}


def _node_values(row: NodeRow, at: int, time: int) -> tuple[Any, ...]:
    content = _encode(row)
    return row.id, at, row.version, row.type, time, content, _checksum(content)


def _edge_values(row: EdgeRow, at: int, time: int) -> tuple[Any, ...]:
    content = _encode(row)
    return *row.key, at, row.version, time, content, _checksum(content)


def _stored(row: EdgeRow) -> dict[str, Any]:
    content = _encode(row)
    return {"row": content, "hash": _checksum(content)}


def _intact(content: bytes | None, checksum: int) -> bytes:
    if content is None or _checksum(content) != checksum:
        raise sqlite3.DatabaseError("a state does not fit its checksum")
    return content


def _checksum(content: bytes) -> int:
    # SQLite's integers are signed.
    return xxhash.xxh3_64_intdigest(content) >> 1


def tells_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether a file is not what it was, or none of ours; its subclasses are for a full disk, a lock and the like."""
    return type(error) is sqlite3.DatabaseError


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, check_same_thread=False)
    try:
        if connection.execute(sql.IS_FOREIGN, {"version": sql.VERSION}).fetchone()[0]:
            raise sqlite3.DatabaseError("the file is of another kind")
        connection.executescript(sql.SCHEMA)
    except BaseException:
        connection.close()
        raise
    return connection
