"""The same rows in an SQLite file of this process: two indexes over the edges, and every commit on the disk."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from bench.baseline import NOW, Rows, compact

_SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
PRAGMA cache_size = -262144;
CREATE TABLE IF NOT EXISTS node (
  key INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, type TEXT NOT NULL, content TEXT NOT NULL, attributes TEXT NOT NULL,
  version INTEGER NOT NULL, sequence INTEGER NOT NULL, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS edge (
  source INTEGER NOT NULL, relation_type TEXT NOT NULL, target INTEGER NOT NULL, weight REAL NOT NULL,
  attributes TEXT NOT NULL, version INTEGER NOT NULL, sequence INTEGER NOT NULL,
  created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL, PRIMARY KEY (source, relation_type, target)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS edge_by_target ON edge (target);
"""
_NODES = "SELECT key, id, type, content, attributes, version, sequence, created_at, updated_at FROM node WHERE "
_EDGES = (
    "SELECT source, relation_type, target, weight, attributes, version, sequence, created_at, updated_at"
    " FROM edge WHERE source"
)
_ANY = " IN (SELECT value FROM json_each(?))"
_FEW = 8
"""Up to so many nodes a statement for each is faster than one for all."""
_ADD_NODE = (
    "INSERT INTO node (id, type, content, attributes, version, sequence, created_at, updated_at)"
    " VALUES (?, ?, ?, ?, 1, ?, ?, ?)"
)
_PUT_NODE = (
    f"{_ADD_NODE} ON CONFLICT (id) DO UPDATE SET type = excluded.type,"
    " content = excluded.content, attributes = excluded.attributes, version = version + 1,"
    " sequence = excluded.sequence, updated_at = excluded.updated_at"
)
_ADD_EDGE = "INSERT INTO edge VALUES (?, ?, ?, ?, '{}', 1, ?, ?, ?)"
_PUT_EDGE = (
    f"{_ADD_EDGE} ON CONFLICT (source, relation_type, target) DO UPDATE SET"
    " weight = excluded.weight, version = version + 1, sequence = excluded.sequence, updated_at = excluded.updated_at"
)
_WEIGHT = "SELECT weight FROM edge WHERE source = ? AND relation_type = ? AND target = ?"
_TOUCH = "UPDATE edge SET sequence = ?, updated_at = ? WHERE source = ? AND relation_type = ? AND target = ?"
_DELETE_EDGE = "DELETE FROM edge WHERE source = ? AND relation_type = ? AND target = ?"
_Row = tuple[Any, ...]


class Database:
    """One file, one connection; made when it is not there."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, cached_statements=256)
        self._connection.executescript(_SCHEMA)
        self._execute = self._connection.execute
        self._encode = msgspec.json.Encoder().encode
        self._sequence = 1

    def load(self, rows: Rows) -> float:
        """All rows into an empty file in one transaction; seconds."""
        start = time.perf_counter()
        keys = {node["id"]: key for key, node in enumerate(rows.nodes, 1)}
        nodes = ((n["id"], n["type"], n["content"], compact(n["attributes"]), 1, NOW, NOW) for n in rows.nodes)
        edges = (
            (keys[e["from"]], e["relation_type"], keys[e["to"]], e.get("weight", 1.0), 1, NOW, NOW) for e in rows.edges
        )
        with self._transaction():
            self._connection.executemany(_ADD_NODE, nodes)
            self._connection.executemany(_ADD_EDGE, edges)
        return time.perf_counter() - start

    def walk(self, start: str, depth: int, max_nodes: int = 10_000) -> bytes:
        """Nodes reached with their depths and the edges between them, as JSON."""
        level = [self._key(start)]
        depths, edges = {level[0]: 0}, list[_Row]()
        for hop in range(depth + 1):
            found = self._outgoing(level)
            edges += found
            if hop == depth:
                break
            level = [target for target in dict.fromkeys(edge[2] for edge in found) if target not in depths]
            del level[max(0, max_nodes - len(depths)) :]
            depths.update(dict.fromkeys(level, hop + 1))
        found = self._execute(f"{_NODES} key{_ANY}", (json.dumps(list(depths)),)).fetchall()
        ids = {row[0]: row[1] for row in found}
        kept = [_edge(edge, ids) for edge in edges if edge[2] in depths]
        return self._encode(
            {"nodes": [_node(row, depths[row[0]]) for row in found], "edges": kept, "count": len(found)}
        )

    def _outgoing(self, level: list[int]) -> list[_Row]:
        if len(level) <= _FEW:
            return [row for source in level for row in self._execute(f"{_EDGES} = ?", (source,))]
        return self._execute(f"{_EDGES}{_ANY}", (json.dumps(level),)).fetchall()

    def _key(self, id_: str) -> int:
        found = self._execute("SELECT key FROM node WHERE id = ?", (id_,)).fetchone()
        return found[0] if found else 0

    def get(self, id_: str) -> bytes:
        """One node with its edges, as JSON."""
        return self.walk(id_, 0)

    def inject(self, batch: dict[str, Any], *, touch: bool = True) -> bytes:
        """Create and update what differs, and with `touch` stamp what does not; counts as JSON."""
        now = time.time_ns() // 1000
        with self._transaction():
            self._sequence += 1
            nodes = sum([self._put_node(node, now, touch=touch) for node in batch["nodes"]])
            edges = sum([self._put_edge(edge, now, touch=touch) for edge in batch["edges"]])
        return self._encode({"ok": True, "nodes": nodes, "edges": edges, "sequence": self._sequence})

    def _put_node(self, node: dict[str, Any], now: int, *, touch: bool) -> bool:
        asked = "SELECT type, content, attributes FROM node WHERE id = ?"
        found = self._execute(asked, (node["id"],)).fetchone()
        attributes = compact(node["attributes"]) if "attributes" in node else found[2] if found else "{}"
        values = (node["type"], node["content"], attributes)
        if found != values:
            self._execute(_PUT_NODE, (node["id"], *values, self._sequence, now, now))
        elif touch:
            stamp = "UPDATE node SET sequence = ?, updated_at = ? WHERE id = ?"
            self._execute(stamp, (self._sequence, now, node["id"]))
        return found != values

    def _put_edge(self, edge: dict[str, Any], now: int, *, touch: bool) -> bool:
        key = (self._key(edge["from"]), edge["relation_type"], self._key(edge["to"]))
        found = self._execute(_WEIGHT, key).fetchone()
        if found != (edge["weight"],):
            if key[0] and key[2]:
                self._execute(_PUT_EDGE, (*key, edge["weight"], self._sequence, now, now))
            return True
        if touch:
            self._execute(_TOUCH, (self._sequence, now, *key))
        return False

    def delete_edge(self, edge: dict[str, Any]) -> None:
        """Delete one edge."""
        with self._transaction():
            key = (self._key(edge["from"]), edge["relation_type"], self._key(edge["to"]))
            self._execute(_DELETE_EDGE, key)

    def delete_node(self, id_: str) -> None:
        """Delete a node with its edges."""
        with self._transaction():
            key = self._key(id_)
            self._execute("DELETE FROM edge WHERE source = ?", (key,))
            self._execute("DELETE FROM edge WHERE target = ?", (key,))
            self._execute("DELETE FROM node WHERE key = ?", (key,))

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @contextmanager
    def _transaction(self) -> Generator[None]:
        self._execute("BEGIN IMMEDIATE")
        yield
        self._execute("COMMIT")


def _node(row: _Row, depth: int) -> dict[str, Any]:
    return {
        "id": row[1],
        "type": row[2],
        "content": row[3],
        "attributes": msgspec.Raw(row[4].encode()),
        "version": row[5],
        "sequence": row[6],
        "created_at": row[7],
        "updated_at": row[8],
        "depth": depth,
    }


def _edge(row: _Row, ids: dict[int, str]) -> dict[str, Any]:
    return {
        "from": ids[row[0]],
        "to": ids[row[2]],
        "relation_type": row[1],
        "weight": row[3],
        "attributes": msgspec.Raw(row[4].encode()),
        "version": row[5],
        "sequence": row[6],
        "created_at": row[7],
        "updated_at": row[8],
    }
