"""The catalog: ids in order and counts by type, in SQLite, so that listing never scans the engine.

A view like any other: it carries the sequence that it has seen, is fed after every commit, and is built anew whenever
it does not fit. It is not synced to disk for that reason.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from kgserve.model.change import NetChange

_SCHEMA = """
PRAGMA journal_mode = MEMORY;
PRAGMA synchronous = OFF;
CREATE TABLE IF NOT EXISTS node (id TEXT PRIMARY KEY, type TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS node_type ON node (type, id);
CREATE TABLE IF NOT EXISTS tally (kind TEXT, name TEXT, count INTEGER NOT NULL, PRIMARY KEY (kind, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS cursor (one INTEGER PRIMARY KEY CHECK (one = 1), sequence INTEGER NOT NULL);
INSERT OR IGNORE INTO cursor VALUES (1, -1);
"""
_PAGE = {
    (False, False): "SELECT id FROM node ORDER BY id LIMIT :limit",
    (False, True): "SELECT id FROM node WHERE id > :after ORDER BY id LIMIT :limit",
    (True, False): "SELECT id FROM node WHERE type = :type ORDER BY id LIMIT :limit",
    (True, True): "SELECT id FROM node WHERE type = :type AND id > :after ORDER BY id LIMIT :limit",
}
_TALLY = "SELECT name, count FROM tally WHERE kind = :kind ORDER BY count DESC, name LIMIT :limit"
_NODE_TYPES = "type"
_RELATION_TYPES = "relation_type"


class Catalog:
    """One connection, used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Open or make the file. A file that SQLite will not have is replaced by an empty one."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        try:
            self._connection = _connect(path)
        except sqlite3.DatabaseError:
            path.unlink(missing_ok=True)
            self._connection = _connect(path)

    @property
    def sequence(self) -> int:
        """The last commit that it has seen; -1 when it has seen nothing or failed."""
        with self._lock:
            try:
                return self._connection.execute("SELECT sequence FROM cursor").fetchone()[0]
            except sqlite3.DatabaseError:
                return -1

    def apply(self, net: NetChange, sequence: int) -> None:
        """Take in what a group of writes changed."""
        with self._lock, self._connection as transaction:
            types = _type_changes(transaction, net)
            transaction.executemany("DELETE FROM node WHERE id = ?", ((node_id,) for node_id in net.nodes_deleted))
            changed = (*net.nodes_created.values(), *net.nodes_updated.values())
            transaction.executemany(
                "INSERT INTO node VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET type = excluded.type",
                ((row.id, row.type) for row in changed),
            )
            relations = Counter(key[2] for key in net.edges_created)
            relations.subtract(key[2] for key in net.edges_deleted)
            _count(transaction, _NODE_TYPES, types)
            _count(transaction, _RELATION_TYPES, relations)
            transaction.execute("UPDATE cursor SET sequence = ?", (sequence,))

    def rebuild(self, nodes: Iterable[tuple[str, str]], relations: Iterable[tuple[str, int]], sequence: int) -> None:
        """Forget everything; take ids with their types, and relation types with their counts."""
        with self._lock, self._connection as transaction:
            transaction.execute("DELETE FROM node")
            transaction.execute("DELETE FROM tally")
            transaction.executemany("INSERT INTO node VALUES (?, ?)", nodes)
            transaction.execute("INSERT INTO tally SELECT ?, type, count(*) FROM node GROUP BY type", (_NODE_TYPES,))
            rows = ((_RELATION_TYPES, name, count) for name, count in relations)
            transaction.executemany("INSERT INTO tally VALUES (?, ?, ?)", rows)
            transaction.execute("UPDATE cursor SET sequence = ?", (sequence,))

    def page(self, type_: str | None, after: str | None, limit: int) -> list[str]:
        """The next ids in order, of one type or of all. Raises sqlite3.Error when the file is damaged."""
        typed, started = type_ is not None, after is not None
        rows = self._read(_PAGE[typed, started], {"type": type_, "after": after, "limit": limit})
        return [row[0] for row in rows]

    def types(self, limit: int) -> dict[str, int]:
        """The most frequent node types with their counts."""
        return self._tally(_NODE_TYPES, limit)

    def relation_types(self, limit: int) -> dict[str, int]:
        """The most frequent relation types with their counts."""
        return self._tally(_RELATION_TYPES, limit)

    def close(self) -> None:
        """Release the file."""
        with self._lock:
            self._connection.close()

    def _tally(self, kind: str, limit: int) -> dict[str, int]:
        return dict(self._read(_TALLY, {"kind": kind, "limit": limit}))

    def _read(self, query: str, values: dict[str, str | int | None]) -> list[tuple[str, int]]:
        with self._lock:
            return self._connection.execute(query, values).fetchall()


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, check_same_thread=False)
    try:
        connection.executescript(_SCHEMA)
    except BaseException:
        connection.close()
        raise
    return connection


def _type_changes(connection: sqlite3.Connection, net: NetChange) -> Counter[str]:
    types = Counter(row.type for row in net.nodes_created.values())
    types.update(row.type for row in net.nodes_updated.values())
    for node_id in (*net.nodes_deleted, *net.nodes_updated):
        for (old,) in connection.execute("SELECT type FROM node WHERE id = ?", (node_id,)):
            types[old] -= 1
    return types


def _count(connection: sqlite3.Connection, kind: str, changes: Counter[str]) -> None:
    rows = [(kind, name, change) for name, change in changes.items() if change]
    connection.executemany(
        "INSERT INTO tally VALUES (?, ?, ?) ON CONFLICT (kind, name) DO UPDATE SET count = count + excluded.count", rows
    )
    connection.execute("DELETE FROM tally WHERE kind = ? AND count <= 0", (kind,))
