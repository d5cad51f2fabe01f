"""SQL statements of the history: constant texts, values as parameters."""
# ruff: noqa: S608 - built from constants only

from __future__ import annotations

HISTORY_VERSION = 1
HISTORY_PAGE_BYTES = 4096
MAX_KEPT_LOG_BYTES = 4 << 20
HISTORY_TABLES = ("node", "edge", "link")
SELECT_IS_FOREIGN = "SELECT user_version <> :version AND EXISTS (SELECT * FROM sqlite_schema) FROM pragma_user_version"
# SQLite's own checkpoints are turned off first: a write before that could move a long log without sealing the pages.
HISTORY_SCHEMA = f"""
PRAGMA wal_autocheckpoint = 0;
PRAGMA page_size = {HISTORY_PAGE_BYTES};
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA journal_mode = WAL;
PRAGMA secure_delete = FAST;
PRAGMA journal_size_limit = {MAX_KEPT_LOG_BYTES};
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS node (
    id TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER, version INTEGER NOT NULL, type TEXT NOT NULL,
    started INTEGER NOT NULL, ended INTEGER, row BLOB NOT NULL, hash INTEGER NOT NULL,
    PRIMARY KEY (id, first)
);
CREATE INDEX IF NOT EXISTS node_by_end ON node (last, id) WHERE last IS NOT NULL;
CREATE TABLE IF NOT EXISTS edge (
    source TEXT NOT NULL, target TEXT NOT NULL, relation_type TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER,
    version INTEGER NOT NULL, started INTEGER NOT NULL, ended INTEGER, row BLOB NOT NULL, hash INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS edge_by_target ON edge (target, first);
CREATE TABLE IF NOT EXISTS link (
    source TEXT NOT NULL, store TEXT NOT NULL, target TEXT NOT NULL, relation_type TEXT NOT NULL,
    first INTEGER NOT NULL, last INTEGER, version INTEGER NOT NULL, started INTEGER NOT NULL, ended INTEGER,
    row BLOB NOT NULL, hash INTEGER NOT NULL, PRIMARY KEY (source, store, target, relation_type, first)
);
CREATE TABLE IF NOT EXISTS head (id TEXT NOT NULL, version INTEGER NOT NULL, PRIMARY KEY (id, version)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS said (
    id TEXT NOT NULL, version INTEGER NOT NULL, created_by TEXT NOT NULL, sequence INTEGER NOT NULL,
    time INTEGER NOT NULL, hash INTEGER NOT NULL, PRIMARY KEY (id, version, created_by)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS moment (sequence INTEGER PRIMARY KEY, time INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS moment_by_time ON moment (time, sequence);
CREATE TABLE IF NOT EXISTS cursor (
    one INTEGER PRIMARY KEY CHECK (one = 1), sequence INTEGER NOT NULL, oldest INTEGER NOT NULL
);
INSERT OR IGNORE INTO cursor VALUES (1, 0, 0);
CREATE TABLE IF NOT EXISTS gap (first INTEGER NOT NULL, last INTEGER, part TEXT NOT NULL, id TEXT);
PRAGMA user_version = {HISTORY_VERSION};
"""
# Omitting relation types makes it a third smaller than the full edge key of files from older versions.
SELECT_HAS_EDGE_KEY = "SELECT count(*) FROM sqlite_schema WHERE name = 'sqlite_autoindex_edge_1'"
CREATE_EDGE_SOURCE_INDEX = "CREATE INDEX IF NOT EXISTS edge_by_source ON edge (source, target, first)"
# The cast guards against a damaged header that turns the row into text.
SELECT_STATE = "SELECT CAST(row AS BLOB), hash, first, last, started, ended"
# Columns that a packed row needs.
NODE_KEY_COLUMNS = "id, type, version"
EDGE_KEY_COLUMNS = "source, target, relation_type, version"
LINK_KEY_COLUMNS = f"{EDGE_KEY_COLUMNS}, store"
SELECT_NODE_STATES = f"{SELECT_STATE}, {NODE_KEY_COLUMNS} FROM node"
SELECT_EDGE_STATES = f"{SELECT_STATE}, {EDGE_KEY_COLUMNS} FROM edge"
SELECT_LINK_STATES = f"{SELECT_STATE}, {LINK_KEY_COLUMNS} FROM link"
IS_STATE_AT = "first <= :at AND (last IS NULL OR last > :at)"
SELECT_EDGE_NUMBERS = "SELECT rowid, target FROM edge WHERE source = :id LIMIT :limit"
SELECT_EDGES_BY_NUMBER_AT = f"{SELECT_EDGE_STATES} WHERE first <= ? AND (last IS NULL OR last > ?) AND rowid IN"
SELECT_EDGES_BY_NUMBER = f"{SELECT_EDGE_STATES} WHERE rowid IN"
SELECT_EDGE_LIFETIMES = "SELECT rowid, source, target, relation_type, first, last FROM edge WHERE rowid IN"
SELECT_HAS_LINKS = "SELECT EXISTS (SELECT * FROM link)"
SELECT_LINK_STATES_OF_SOURCE = f"{SELECT_LINK_STATES} WHERE source = :id ORDER BY first DESC LIMIT :limit"
SELECT_NODE_LIFETIMES = "SELECT first, last FROM node WHERE id = :id ORDER BY first DESC LIMIT :limit"
SELECT_DEGREE = f"""
SELECT coalesce(sum(held), 0), count(*) FROM (
    SELECT * FROM (SELECT {IS_STATE_AT} AS held FROM edge WHERE source = :id LIMIT :limit)
    UNION ALL SELECT * FROM (SELECT {IS_STATE_AT} AS held FROM edge WHERE target = :id LIMIT :limit)
)
"""
# Two queries: for both aggregates in one, SQLite scans every entry.
SELECT_TIME_RANGE = "SELECT (SELECT min(time) FROM moment), (SELECT max(time) FROM moment)"
SELECT_LAST_COMMIT_AT_TIME = "SELECT max(sequence) FROM moment WHERE time <= :time"
# The unary plus disables the index by time: in commit order, the first row usually matches.
SELECT_NEXT_COMMIT_BEFORE_TIME = (
    "SELECT sequence FROM moment WHERE sequence > :after AND +time <= :now ORDER BY sequence LIMIT 1"
)
SELECT_COMMIT_TIMES_AFTER = "SELECT time FROM moment WHERE time > :time"
SELECT_COMMIT_BEFORE = "SELECT max(sequence) FROM moment WHERE sequence < :until"
SELECT_NODE_AT = f"{SELECT_NODE_STATES} WHERE id = :id AND first <= :at ORDER BY first DESC LIMIT 1"
SELECT_NODE_STATES_BEFORE = f"{SELECT_NODE_STATES} WHERE id = :id AND first < :before ORDER BY first DESC LIMIT :limit"
SELECT_NODE_STATES_AFTER = f"{SELECT_NODE_STATES} WHERE id = :id AND first > :after ORDER BY first LIMIT :limit"
SELECT_NODE_VERSION = f"{SELECT_NODE_STATES} WHERE id = :id AND version = :version ORDER BY first DESC LIMIT 1"
SELECT_NODES_AT = f"{SELECT_NODE_STATES} WHERE id > :after AND {IS_STATE_AT} ORDER BY id LIMIT :limit"
SELECT_NODES_OF_TYPE_AT = (
    f"{SELECT_NODE_STATES} WHERE id > :after AND type = :type AND {IS_STATE_AT} ORDER BY id LIMIT :limit"
)
SELECT_OUT_EDGES_AT = f"{SELECT_EDGE_STATES} WHERE source = :id AND {IS_STATE_AT} LIMIT :limit"
SELECT_OUT_LINKS_AT = f"{SELECT_LINK_STATES} WHERE source = :id AND {IS_STATE_AT} LIMIT :limit"
SELECT_IN_EDGES_AT = f"{SELECT_EDGE_STATES} WHERE target = :id AND {IS_STATE_AT} LIMIT :limit"
SELECT_EDGES_AT = (
    f"{SELECT_EDGE_STATES} WHERE (source, target, relation_type) > (:source, :target, :relation_type) AND "
    f"{IS_STATE_AT} "
    "ORDER BY source, target, relation_type LIMIT :limit"
)
SELECT_LINKS_AT = (
    f"{SELECT_LINK_STATES} WHERE "
    f"(source, store, target, relation_type) > (:source, :store, :target, :relation_type) AND "
    f"{IS_STATE_AT} "
    "ORDER BY source, store, target, relation_type LIMIT :limit"
)
UPDATE_NODE_END = """
UPDATE node SET last = :at, ended = :time
WHERE id = :id AND last IS NULL AND first = (SELECT max(first) FROM node WHERE id = :id)
"""
IS_SAME_EDGE = "source = :source AND target = :target AND relation_type = :relation_type"
IS_SAME_LINK = f"{IS_SAME_EDGE} AND store = :store"
IS_LATEST_EDGE = f"{IS_SAME_EDGE} AND last IS NULL AND first = (SELECT max(first) FROM edge WHERE {IS_SAME_EDGE})"
IS_LATEST_LINK = f"{IS_SAME_LINK} AND last IS NULL AND first = (SELECT max(first) FROM link WHERE {IS_SAME_LINK})"
UPDATE_EDGE_END = f"UPDATE edge SET last = :at, ended = :time WHERE {IS_LATEST_EDGE}"
UPDATE_LINK_END = f"UPDATE link SET last = :at, ended = :time WHERE {IS_LATEST_LINK}"
UPDATE_EDGE_ROW = f"UPDATE edge SET row = :row, hash = :hash WHERE {IS_LATEST_EDGE}"
UPDATE_LINK_ROW = f"UPDATE link SET row = :row, hash = :hash WHERE {IS_LATEST_LINK}"
INSERT_NODE_STATE = "INSERT OR REPLACE INTO node VALUES (?, ?, NULL, ?, ?, ?, NULL, ?, ?)"
INSERT_EDGE_STATE = "INSERT OR REPLACE INTO edge VALUES (?, ?, ?, ?, NULL, ?, ?, NULL, ?, ?)"
INSERT_LINK_STATE = "INSERT OR REPLACE INTO link VALUES (?, ?, ?, ?, ?, NULL, ?, ?, NULL, ?, ?)"
# The past indexes read states in the order of their ends.
SELECT_ENDED_NODES = (
    f"{SELECT_NODE_STATES} WHERE (last, id) > (:last, :id) AND last <= :until ORDER BY last, id LIMIT :limit"
)
# Pruning scans a table in row order, so edge states need no index by end.
SELECT_PRUNABLE_STATES = {
    table: f"SELECT rowid, last, length(row) FROM {table} WHERE rowid > :after ORDER BY rowid LIMIT :limit"
    for table in HISTORY_TABLES
}
# A version is kept while a node lists it as a conflicting head.
IS_NOT_CONFLICT_HEAD = "NOT EXISTS (SELECT * FROM head WHERE head.id = node.id AND head.version = node.version)"
DELETE_STATE = {table: f"DELETE FROM {table} WHERE rowid = ?" for table in HISTORY_TABLES} | {
    "node": f"DELETE FROM node WHERE rowid = ? AND {IS_NOT_CONFLICT_HEAD}"
}
# Additional authors are kept as long as their state.
INSERT_CO_AUTHOR = "INSERT OR IGNORE INTO said VALUES (?, ?, ?, ?, ?, ?)"
SELECT_CO_AUTHORS = (
    "SELECT version, created_by, sequence, time, hash FROM said "
    "WHERE id = :id AND version BETWEEN :least AND :most ORDER BY sequence LIMIT :limit"
)
DELETE_CO_AUTHORS = (
    f"DELETE FROM said WHERE (id, version) IN (SELECT id, version FROM node WHERE rowid = ? AND {IS_NOT_CONFLICT_HEAD})"
)
# Files of older versions without this table are scanned once.
SELECT_HAS_GAP_TABLE = "SELECT count(*) FROM sqlite_schema WHERE name = 'gap'"
SELECT_HAS_HEAD_TABLE = "SELECT count(*) FROM sqlite_schema WHERE name = 'head'"
SELECT_POSSIBLE_HEADS = (
    f"SELECT CAST(row AS BLOB), hash, {NODE_KEY_COLUMNS} FROM node WHERE last IS NULL AND version > 1"
)
INSERT_HEAD = "INSERT OR IGNORE INTO head VALUES (?, ?)"
DELETE_HEADS = "DELETE FROM head WHERE id = ?"
# The cross join makes SQLite start with the heads, which are few.
SELECT_HEADS = (
    f"{SELECT_STATE}, {NODE_KEY_COLUMNS} FROM head CROSS JOIN node USING (id, version) "
    "ORDER BY id, version LIMIT :limit"
)
# An erased node loses its states that began by a commit, and its relations up to then.
DELETE_NODE_THROUGH = (
    "DELETE FROM node WHERE id = :id AND first <= :through",
    "DELETE FROM edge WHERE source = :id AND first <= :through",
    "DELETE FROM edge WHERE target = :id AND first <= :through",
    "DELETE FROM link WHERE source = :id AND first <= :through",
    "DELETE FROM said WHERE id = :id AND sequence <= :through",
    "DELETE FROM head WHERE id = :id AND NOT EXISTS (SELECT * FROM node WHERE node.id = :id AND first > :through)",
)
DELETE_ENDED_NODE_STATES = "DELETE FROM node WHERE id = :id AND last <= :through"
# All states in slices of row numbers, for searches that no index can answer.
SELECT_SLICE_END = "SELECT max(rowid) FROM (SELECT rowid FROM node WHERE rowid > :after ORDER BY rowid LIMIT :limit)"
SELECT_NODE_SLICE = f"{SELECT_NODE_STATES} WHERE rowid > :after AND rowid <= :last"
SELECT_NODE_STATES_THROUGH = f"{SELECT_NODE_STATES} WHERE id = :id AND first <= :through"
# Deleted nodes that were targets of relations until then. Only the latest states are examined, at two lookups each.
SELECT_DELETED_TARGETS = f"""
{SELECT_NODE_STATES} WHERE rowid IN (
    SELECT number FROM (
        SELECT rowid AS number, id, first, last FROM node WHERE last IS NOT NULL ORDER BY last DESC LIMIT :limit
    ) AS past
    WHERE (:has_later
        OR NOT EXISTS (SELECT * FROM node AS later WHERE later.id = past.id AND later.first > past.first))
    AND EXISTS (
        SELECT * FROM edge WHERE edge.target = past.id AND edge.relation_type = :relation_type AND edge.last = past.last
    )
) ORDER BY last DESC
"""
SELECT_NODES_ENDED_AT = f"{SELECT_NODE_STATES} WHERE last = :last ORDER BY id LIMIT :limit"
SELECT_EDGES_ENDED_AT = (
    f"{SELECT_EDGE_STATES} WHERE target = :id AND relation_type = :relation_type AND last = :last LIMIT :limit"
)
SELECT_SOURCES = "SELECT DISTINCT source FROM edge WHERE target = :id AND relation_type = :relation_type"
# Pages freed by pruning are returned to the file system; files without incremental vacuum need VACUUM.
SELECT_CAN_VACUUM = "SELECT auto_vacuum > 0 FROM pragma_auto_vacuum"
SELECT_EMPTY_PAGES = "SELECT freelist_count, page_count FROM pragma_freelist_count, pragma_page_count"
VACUUM_PAGES = "PRAGMA incremental_vacuum(1024)"
CHECKPOINT_LOG = "PRAGMA wal_checkpoint(PASSIVE)"
TRUNCATE_LOG = "PRAGMA wal_checkpoint(TRUNCATE)"
CHECKPOINT_PAGES = 1000
"""Number of log pages that triggers a checkpoint, as in SQLite's default."""
SELECT_EXTENT = "SELECT sequence, oldest FROM cursor"
SELECT_ROOT_PAGES = "SELECT name, rootpage FROM sqlite_schema WHERE rootpage > 0"
# Ranges of commits with states lost in damaged pages; the end is NULL while repair is pending.
INSERT_GAP = "INSERT INTO gap VALUES (?, ?, ?, ?)"
SELECT_GAPS = "SELECT first, last, part, id FROM gap ORDER BY first"
UPDATE_GAPS_END = "UPDATE gap SET last = max(first + 1, ?) WHERE last IS NULL"
# Of several edges or links that a node lost at one commit, each added one ends one gap.
DELETE_GAP = """
DELETE FROM gap WHERE rowid = (
    SELECT rowid FROM gap WHERE part = ? AND id = ? AND first = ? AND last IS NULL LIMIT 1
)
"""
DELETE_GAPS_UNTIL = "DELETE FROM gap WHERE last <= ?"
SELECT_NODE_GAP = """
SELECT min(first), max(coalesce(last, :before)) FROM gap
WHERE part = 'node' AND (id = :id OR id IS NULL) AND first < :before AND (last IS NULL OR last > :low)
"""
# Current states, used to repair a history.
SELECT_PRESENT_STATE = {
    "node": "SELECT rowid, hash FROM node WHERE id = ? AND last IS NULL ORDER BY first DESC LIMIT 1",
    "edge": (
        "SELECT rowid, hash FROM edge WHERE source = ? AND target = ? AND relation_type = ? AND last IS NULL "
        "ORDER BY first DESC LIMIT 1"
    ),
    "link": (
        "SELECT rowid, hash FROM link WHERE source = ? AND target = ? AND relation_type = ? AND store = ? "
        "AND last IS NULL ORDER BY first DESC LIMIT 1"
    ),
}
SELECT_STATE_BY_NUMBER = {
    table: f"SELECT CAST(row AS BLOB), hash, {key} FROM {table} WHERE rowid = ?"
    for table, key in (("node", NODE_KEY_COLUMNS), ("edge", EDGE_KEY_COLUMNS), ("link", LINK_KEY_COLUMNS))
}
# Commits and their times are stored both in states and in moments, so each verifies the other.
HAS_NO_GAPS = "AND NOT EXISTS (SELECT * FROM gap)"
SELECT_INCONSISTENT_STATES = {
    table: f"""
    SELECT rowid FROM {table}
    WHERE last <= first
    OR (SELECT time FROM moment WHERE sequence = last) <> ended
    OR (first > (SELECT oldest FROM cursor) AND (SELECT time FROM moment WHERE sequence = first) <> started)
    OR (last > (SELECT oldest FROM cursor) AND NOT EXISTS (SELECT * FROM moment WHERE sequence = last) {HAS_NO_GAPS})
    LIMIT 1
    """
    for table in HISTORY_TABLES
}
SELECT_NEXT_MOMENT = "SELECT min(sequence) FROM moment WHERE sequence > :at"
SELECT_COMMIT_TIME = "SELECT time FROM moment WHERE sequence = ?"
CREATE_PRESENT_TABLE = "CREATE TEMP TABLE IF NOT EXISTS present (number INTEGER PRIMARY KEY)"
INSERT_PRESENT = "INSERT OR IGNORE INTO temp.present VALUES (?)"
DELETE_PRESENT = "DELETE FROM temp.present"
UPDATE_ABSENT_END = {
    table: (
        f"UPDATE {table} SET last = max(first + 1, :at), ended = :time WHERE last IS NULL AND rowid NOT IN temp.present"
    )
    for table in HISTORY_TABLES
}
# The start of the next version is the end of the previous one.
UPDATE_STATE_ENDS = """
UPDATE node SET last = later.first, ended = later.started
FROM node AS later
WHERE node.last = :at AND node.ended = :time AND later.id = node.id AND later.version = node.version + 1
AND later.first > node.first
"""
DELETE_MOMENTS = """
DELETE FROM moment WHERE sequence IN
(SELECT sequence FROM moment WHERE sequence < :before ORDER BY sequence LIMIT :limit)
"""
