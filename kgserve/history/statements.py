"""What the history asks SQLite: texts made of constants, values as parameters."""
# ruff: noqa: S608 - nothing of a caller's is put into them

from __future__ import annotations

VERSION = 1
IS_FOREIGN = "SELECT user_version <> :version AND EXISTS (SELECT * FROM sqlite_schema) FROM pragma_user_version"
SCHEMA = f"""
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS node (
    id TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER, version INTEGER NOT NULL, type TEXT NOT NULL,
    started INTEGER NOT NULL, ended INTEGER, row BLOB NOT NULL, hash INTEGER NOT NULL,
    PRIMARY KEY (id, first)
);
CREATE INDEX IF NOT EXISTS node_by_end ON node (last, id) WHERE last IS NOT NULL;
CREATE TABLE IF NOT EXISTS edge (
    source TEXT NOT NULL, target TEXT NOT NULL, relation_type TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER,
    version INTEGER NOT NULL, started INTEGER NOT NULL, ended INTEGER, row BLOB NOT NULL, hash INTEGER NOT NULL,
    PRIMARY KEY (source, target, relation_type, first)
);
CREATE INDEX IF NOT EXISTS edge_by_target ON edge (target, first);
CREATE TABLE IF NOT EXISTS moment (sequence INTEGER PRIMARY KEY, time INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS moment_by_time ON moment (time, sequence);
CREATE TABLE IF NOT EXISTS cursor (
    one INTEGER PRIMARY KEY CHECK (one = 1), sequence INTEGER NOT NULL, oldest INTEGER NOT NULL
);
INSERT OR IGNORE INTO cursor VALUES (1, 0, 0);
PRAGMA user_version = {VERSION};
"""
# The cast: a damaged header may make text of a row.
STATE = "SELECT CAST(row AS BLOB), hash, first, last, started, ended"
NODE = f"{STATE} FROM node"
EDGE = f"{STATE} FROM edge"
HOLDS = "first <= :at AND (last IS NULL OR last > :at)"
NODE_AT = f"{NODE} WHERE id = :id AND first <= :at ORDER BY first DESC LIMIT 1"
NODE_STATES = f"{NODE} WHERE id = :id AND first < :before ORDER BY first DESC LIMIT :limit"
NODE_STATES_AFTER = f"{NODE} WHERE id = :id AND first > :after ORDER BY first LIMIT :limit"
NODE_VERSION = f"{NODE} WHERE id = :id AND version = :version ORDER BY first DESC LIMIT 1"
LIST = f"{NODE} WHERE id > :after AND {HOLDS} ORDER BY id LIMIT :limit"
LIST_TYPE = f"{NODE} WHERE id > :after AND type = :type AND {HOLDS} ORDER BY id LIMIT :limit"
OUT = f"{EDGE} WHERE source = :id AND {HOLDS} LIMIT :limit"
IN = f"{EDGE} WHERE target = :id AND {HOLDS} LIMIT :limit"
EDGES = (
    f"{EDGE} WHERE (source, target, relation_type) > (:source, :target, :relation_type) AND {HOLDS} "
    "ORDER BY source, target, relation_type LIMIT :limit"
)
CLOSE_NODE = """
UPDATE node SET last = :at, ended = :time
WHERE id = :id AND last IS NULL AND first = (SELECT max(first) FROM node WHERE id = :id)
"""
SAME_EDGE = "source = :source AND target = :target AND relation_type = :relation_type"
LATEST_EDGE = f"{SAME_EDGE} AND last IS NULL AND first = (SELECT max(first) FROM edge WHERE {SAME_EDGE})"
CLOSE_EDGE = f"UPDATE edge SET last = :at, ended = :time WHERE {LATEST_EDGE}"
TOUCH_EDGE = f"UPDATE edge SET row = :row, hash = :hash WHERE {LATEST_EDGE}"
ADD_NODE = "INSERT OR REPLACE INTO node VALUES (?, ?, NULL, ?, ?, ?, NULL, ?, ?)"
ADD_EDGE = "INSERT OR REPLACE INTO edge VALUES (?, ?, ?, ?, NULL, ?, ?, NULL, ?, ?)"
# The indexes of the past go from end to end of nodes.
ENDED = f"{NODE} WHERE (last, id) > (:last, :id) AND last <= :until ORDER BY last, id LIMIT :limit"
# Pruning goes through a table in the order of its rows, so that states of edges need no such index.
SLICE = {
    table: f"SELECT rowid, last, length(row) FROM {table} WHERE rowid > :after ORDER BY rowid LIMIT :limit"
    for table in ("node", "edge")
}
FORGET = {table: f"DELETE FROM {table} WHERE rowid = ?" for table in ("node", "edge")}
PRUNE_MOMENTS = """
DELETE FROM moment WHERE sequence IN
(SELECT sequence FROM moment WHERE sequence < :before ORDER BY sequence LIMIT :limit)
"""
