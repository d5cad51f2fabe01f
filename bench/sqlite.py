"""The same rows in an SQLite file of this process: two indexes over the edges, every commit synced to disk."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import msgspec

from bench.graphs import Rows

_SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
PRAGMA cache_size = -262144;
CREATE TABLE node (key INTEGER PRIMARY KEY, id TEXT UNIQUE, type TEXT, content TEXT, attributes TEXT);
CREATE TABLE edge (source INTEGER, relation_type TEXT, target INTEGER, weight REAL,
  PRIMARY KEY (source, relation_type, target)) WITHOUT ROWID;
CREATE INDEX edge_by_target ON edge (target);
"""
_ADD_NODE = "INSERT INTO node (id, type, content, attributes) VALUES (?, ?, ?, ?)"
_PUT_NODE = f"{_ADD_NODE} ON CONFLICT (id) DO UPDATE SET type = excluded.type, content = excluded.content"
_ADD_EDGE = "INSERT INTO edge VALUES (?, ?, ?, ?)"
_PUT_EDGE = f"{_ADD_EDGE} ON CONFLICT DO UPDATE SET weight = excluded.weight"
_EDGES = "SELECT source, relation_type, target, weight FROM edge WHERE source IN (SELECT value FROM json_each(?))"
_NODES = "SELECT key, id, type, content, attributes FROM node WHERE key IN (SELECT value FROM json_each(?))"


class Database:
    """A new file with one connection."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, cached_statements=256)
        self._connection.executescript(_SCHEMA)

    def load(self, rows: Rows) -> float:
        """Insert all rows into an empty file in one transaction; return the seconds."""
        start = time.perf_counter()
        keys = {node["id"]: key for key, node in enumerate(rows.nodes, 1)}
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(_ADD_NODE, map(_node_values, rows.nodes))
            edges = ((keys[e["from"]], e["relation_type"], keys[e["to"]], e.get("weight", 1.0)) for e in rows.edges)
            self._connection.executemany(_ADD_EDGE, edges)
        return time.perf_counter() - start

    def walk(self, start: str, depth: int, max_nodes: int = 10_000) -> bytes:
        """Return the nodes reached with their depths, and the edges between them, as JSON."""
        level = [self._key(start)]
        depths, edges = {level[0]: 0}, list[Any]()
        for hop in range(depth + 1):
            found = self._connection.execute(_EDGES, (json.dumps(level),)).fetchall()
            edges += found
            if hop < depth:
                level = [target for target in dict.fromkeys(edge[2] for edge in found) if target not in depths]
                del level[max(0, max_nodes - len(depths)) :]
                depths.update(dict.fromkeys(level, hop + 1))
        nodes = self._connection.execute(_NODES, (json.dumps(list(depths)),)).fetchall()
        ids = {row[0]: row[1] for row in nodes}
        return msgspec.json.encode(
            {
                "nodes": [
                    {"id": id_, "type": kind, "content": content, "attributes": msgspec.Raw(more), "depth": depths[key]}
                    for key, id_, kind, content, more in nodes
                ],
                "edges": [
                    {"from": ids[source], "to": ids[target], "relation_type": kind, "weight": weight}
                    for source, kind, target, weight in edges
                    if target in ids
                ],
            }
        )

    def inject(self, batch: dict[str, Any]) -> None:
        """Create or update nodes, then edges between known nodes, in one synced transaction."""
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(_PUT_NODE, map(_node_values, batch["nodes"]))
            edges = [
                (self._key(e["from"]), e["relation_type"], self._key(e["to"]), e.get("weight", 1.0))
                for e in batch["edges"]
            ]
            self._connection.executemany(_PUT_EDGE, [edge for edge in edges if edge[0] and edge[2]])

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _key(self, id_: str) -> int:
        found = self._connection.execute("SELECT key FROM node WHERE id = ?", (id_,)).fetchone()
        return found[0] if found else 0


def _node_values(node: dict[str, Any]) -> tuple[str, str, str, str]:
    return node["id"], node["type"], node["content"], json.dumps(node.get("attributes", {}))
