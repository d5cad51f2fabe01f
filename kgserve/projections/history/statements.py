"""What the history asks SQLite: texts made of constants, values as parameters."""
# ruff: noqa: S608 - nothing of a caller's is put into them

from __future__ import annotations

VERSION = 1
PAGE_BYTES = 4096
TABLES = ("node", "edge", "link")
IS_FOREIGN = "SELECT user_version <> :version AND EXISTS (SELECT * FROM sqlite_schema) FROM pragma_user_version"
SCHEMA = f"""
PRAGMA page_size = {PAGE_BYTES};
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA journal_mode = WAL;
PRAGMA wal_autocheckpoint = 0;
PRAGMA secure_delete = FAST;
PRAGMA journal_size_limit = {4 << 20};
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
PRAGMA user_version = {VERSION};
"""
# Without the relation types it is two thirds of what a key of edges was, which files from before have.
EDGES_HAVE_A_KEY = "SELECT count(*) FROM sqlite_schema WHERE name = 'sqlite_autoindex_edge_1'"
EDGES_BY_SOURCE = "CREATE INDEX IF NOT EXISTS edge_by_source ON edge (source, target, first)"
# The cast: a damaged header may make text of a row.
STATE = "SELECT CAST(row AS BLOB), hash, first, last, started, ended"
# What a packed row needs of its columns.
NODE_KEY = "id, type, version"
EDGE_KEY = "source, target, relation_type, version"
LINK_KEY = f"{EDGE_KEY}, store"
NODE = f"{STATE}, {NODE_KEY} FROM node"
EDGE = f"{STATE}, {EDGE_KEY} FROM edge"
LINK = f"{STATE}, {LINK_KEY} FROM link"
HOLDS = "first <= :at AND (last IS NULL OR last > :at)"
EDGE_NUMBERS = "SELECT rowid, target FROM edge WHERE source = :id LIMIT :limit"
EDGES_NUMBERED = f"{EDGE} WHERE first <= ? AND (last IS NULL OR last > ?) AND rowid IN"
EDGE_STATES = f"{EDGE} WHERE rowid IN"
EDGE_LIVES = "SELECT rowid, source, target, relation_type, first, last FROM edge WHERE rowid IN"
HAS_LINKS = "SELECT EXISTS (SELECT * FROM link)"
LINK_STATES = f"{LINK} WHERE source = :id ORDER BY first DESC LIMIT :limit"
NODE_LIVES = "SELECT first, last FROM node WHERE id = :id ORDER BY first DESC LIMIT :limit"
DEGREE = f"""
SELECT coalesce(sum(held), 0), count(*) FROM (
    SELECT * FROM (SELECT {HOLDS} AS held FROM edge WHERE source = :id LIMIT :limit)
    UNION ALL SELECT * FROM (SELECT {HOLDS} AS held FROM edge WHERE target = :id LIMIT :limit)
)
"""
# One each: of both together SQLite looks at every entry.
TIMES = "SELECT (SELECT min(time) FROM moment), (SELECT max(time) FROM moment)"
LAST_UP_TO = "SELECT max(sequence) FROM moment WHERE time <= :time"
# The unary plus keeps SQLite from the index by time: it reads commits in order, and mostly the first one already fits.
FIRST_BEHIND = "SELECT sequence FROM moment WHERE sequence > :after AND +time <= :now ORDER BY sequence LIMIT 1"
LAST_BEFORE = "SELECT max(sequence) FROM moment WHERE sequence < :until"
NODE_AT = f"{NODE} WHERE id = :id AND first <= :at ORDER BY first DESC LIMIT 1"
NODE_STATES = f"{NODE} WHERE id = :id AND first < :before ORDER BY first DESC LIMIT :limit"
NODE_STATES_AFTER = f"{NODE} WHERE id = :id AND first > :after ORDER BY first LIMIT :limit"
NODE_VERSION = f"{NODE} WHERE id = :id AND version = :version ORDER BY first DESC LIMIT 1"
LIST = f"{NODE} WHERE id > :after AND {HOLDS} ORDER BY id LIMIT :limit"
LIST_TYPE = f"{NODE} WHERE id > :after AND type = :type AND {HOLDS} ORDER BY id LIMIT :limit"
OUT = f"{EDGE} WHERE source = :id AND {HOLDS} LIMIT :limit"
LINKS_OUT = f"{LINK} WHERE source = :id AND {HOLDS} LIMIT :limit"
IN = f"{EDGE} WHERE target = :id AND {HOLDS} LIMIT :limit"
EDGES = (
    f"{EDGE} WHERE (source, target, relation_type) > (:source, :target, :relation_type) AND {HOLDS} "
    "ORDER BY source, target, relation_type LIMIT :limit"
)
LINKS = (
    f"{LINK} WHERE (source, store, target, relation_type) > (:source, :store, :target, :relation_type) AND {HOLDS} "
    "ORDER BY source, store, target, relation_type LIMIT :limit"
)
CLOSE_NODE = """
UPDATE node SET last = :at, ended = :time
WHERE id = :id AND last IS NULL AND first = (SELECT max(first) FROM node WHERE id = :id)
"""
SAME_EDGE = "source = :source AND target = :target AND relation_type = :relation_type"
SAME_LINK = f"{SAME_EDGE} AND store = :store"
LATEST_EDGE = f"{SAME_EDGE} AND last IS NULL AND first = (SELECT max(first) FROM edge WHERE {SAME_EDGE})"
LATEST_LINK = f"{SAME_LINK} AND last IS NULL AND first = (SELECT max(first) FROM link WHERE {SAME_LINK})"
CLOSE_EDGE = f"UPDATE edge SET last = :at, ended = :time WHERE {LATEST_EDGE}"
CLOSE_LINK = f"UPDATE link SET last = :at, ended = :time WHERE {LATEST_LINK}"
TOUCH_EDGE = f"UPDATE edge SET row = :row, hash = :hash WHERE {LATEST_EDGE}"
TOUCH_LINK = f"UPDATE link SET row = :row, hash = :hash WHERE {LATEST_LINK}"
ADD_NODE = "INSERT OR REPLACE INTO node VALUES (?, ?, NULL, ?, ?, ?, NULL, ?, ?)"
ADD_EDGE = "INSERT OR REPLACE INTO edge VALUES (?, ?, ?, ?, NULL, ?, ?, NULL, ?, ?)"
ADD_LINK = "INSERT OR REPLACE INTO link VALUES (?, ?, ?, ?, ?, NULL, ?, ?, NULL, ?, ?)"
# The indexes of the past go from end to end of nodes.
ENDED = f"{NODE} WHERE (last, id) > (:last, :id) AND last <= :until ORDER BY last, id LIMIT :limit"
# Pruning goes through a table in the order of its rows, so that states of edges need no such index.
SLICE = {
    table: f"SELECT rowid, last, length(row) FROM {table} WHERE rowid > :after ORDER BY rowid LIMIT :limit"
    for table in TABLES
}
# A version that a node names among its heads stays for as long as it does.
IS_NO_HEAD = "NOT EXISTS (SELECT * FROM head WHERE head.id = node.id AND head.version = node.version)"
FORGET = {table: f"DELETE FROM {table} WHERE rowid = ?" for table in TABLES} | {
    "node": f"DELETE FROM node WHERE rowid = ? AND {IS_NO_HEAD}"
}
# Whoever has said the same is known for as long as that state is.
ADD_SAID = "INSERT OR IGNORE INTO said VALUES (?, ?, ?, ?, ?, ?)"
SAID = (
    "SELECT version, created_by, sequence, time, hash FROM said "
    "WHERE id = :id AND version BETWEEN :least AND :most ORDER BY sequence LIMIT :limit"
)
FORGET_SAID = f"DELETE FROM said WHERE (id, version) IN (SELECT id, version FROM node WHERE rowid = ? AND {IS_NO_HEAD})"
# Files from before heads were kept apart are looked through once.
KNOWS_GAPS = "SELECT count(*) FROM sqlite_schema WHERE name = 'gap'"
KNOWS_HEADS = "SELECT count(*) FROM sqlite_schema WHERE name = 'head'"
MAY_HAVE_HEADS = f"SELECT CAST(row AS BLOB), hash, {NODE_KEY} FROM node WHERE last IS NULL AND version > 1"
ADD_HEAD = "INSERT OR IGNORE INTO head VALUES (?, ?)"
DROP_HEADS = "DELETE FROM head WHERE id = ?"
# As a cross join SQLite takes the heads first, of which there are few.
HEADS = f"{STATE}, {NODE_KEY} FROM head CROSS JOIN node USING (id, version) ORDER BY id, version LIMIT :limit"
# Of what is erased nothing stays that began by a commit, nor the relations of then.
ERASE = (
    "DELETE FROM node WHERE id = :id AND first <= :through",
    "DELETE FROM edge WHERE source = :id AND first <= :through",
    "DELETE FROM edge WHERE target = :id AND first <= :through",
    "DELETE FROM link WHERE source = :id AND first <= :through",
    "DELETE FROM said WHERE id = :id AND sequence <= :through",
    "DELETE FROM head WHERE id = :id AND NOT EXISTS (SELECT * FROM node WHERE node.id = :id AND first > :through)",
)
ERASE_FORMER = "DELETE FROM node WHERE id = :id AND last <= :through"
STATES_UNTIL = f"{NODE} WHERE id = :id AND first <= :through"
# Deleted nodes to which relations led until then. Only the latest states are looked at: each costs two look-ups.
DELETED_TARGETS = f"""
{NODE} WHERE rowid IN (
    SELECT number FROM (
        SELECT rowid AS number, id, first, last FROM node WHERE last IS NOT NULL ORDER BY last DESC LIMIT :limit
    ) AS past
    WHERE NOT EXISTS (SELECT * FROM node AS later WHERE later.id = past.id AND later.first > past.first)
    AND EXISTS (
        SELECT * FROM edge WHERE edge.target = past.id AND edge.relation_type = :relation_type AND edge.last = past.last
    )
) ORDER BY last DESC
"""
EDGES_ENDED = f"{EDGE} WHERE target = :id AND relation_type = :relation_type AND last = :last LIMIT :limit"
SOURCES_OF = "SELECT DISTINCT source FROM edge WHERE target = :id AND relation_type = :relation_type"
# What pruning leaves empty goes back to the file system; a file from before it could is written anew by VACUUM.
CAN_GIVE_BACK = "SELECT auto_vacuum > 0 FROM pragma_auto_vacuum"
EMPTY_PAGES = "SELECT freelist_count, page_count FROM pragma_freelist_count, pragma_page_count"
GIVE_BACK = "PRAGMA incremental_vacuum(1024)"
CHECKPOINT = "PRAGMA wal_checkpoint(PASSIVE)"
LOG_PAGES = 1000
"""So many pages of the log are moved into the file at once, about: as many as SQLite would."""
SEEN = "SELECT sequence, oldest FROM cursor"
ROOTS = "SELECT name, rootpage FROM sqlite_schema WHERE rootpage > 0"
# What was lost with damaged pages: commits as of which something is missing; without an end while that is to come.
ADD_GAP = "INSERT INTO gap VALUES (?, ?, ?, ?)"
GAPS = "SELECT first, last, part, id FROM gap ORDER BY first"
END_GAPS = "UPDATE gap SET last = max(first + 1, ?) WHERE last IS NULL"
FILL_GAP = "DELETE FROM gap WHERE part = ? AND id = ? AND first = ? AND last IS NULL"
FORGET_GAPS = "DELETE FROM gap WHERE last <= ?"
GAP_OF_NODE = """
SELECT min(first), max(coalesce(last, :before)) FROM gap
WHERE part = 'node' AND (id = :id OR id IS NULL) AND first < :before AND (last IS NULL OR last > :low)
"""
# Of the present, by which a history is put right that has lost some of it.
HELD = {
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
BY_NUMBER = {
    table: f"SELECT CAST(row AS BLOB), hash, {key} FROM {table} WHERE rowid = ?"
    for table, key in (("node", NODE_KEY), ("edge", EDGE_KEY), ("link", LINK_KEY))
}
# Commits and their times are together in each state and among the moments: one tells of the other.
NO_GAPS = "AND NOT EXISTS (SELECT * FROM gap)"
AT_ODDS = {
    table: f"""
    SELECT rowid FROM {table}
    WHERE last <= first
    OR (SELECT time FROM moment WHERE sequence = last) <> ended
    OR (first > (SELECT oldest FROM cursor) AND (SELECT time FROM moment WHERE sequence = first) <> started)
    OR (last > (SELECT oldest FROM cursor) AND NOT EXISTS (SELECT * FROM moment WHERE sequence = last) {NO_GAPS})
    LIMIT 1
    """
    for table in TABLES
}
NEXT_MOMENT = "SELECT min(sequence) FROM moment WHERE sequence > :at"
TIME_OF = "SELECT time FROM moment WHERE sequence = ?"
BEGIN_PRESENT = "CREATE TEMP TABLE IF NOT EXISTS present (number INTEGER PRIMARY KEY)"
ADD_PRESENT = "INSERT OR IGNORE INTO temp.present VALUES (?)"
END_PRESENT = "DELETE FROM temp.present"
END_OTHERS = {
    table: (
        f"UPDATE {table} SET last = max(first + 1, :at), ended = :time WHERE last IS NULL AND rowid NOT IN temp.present"
    )
    for table in TABLES
}
# Where the next version is known, it says when the one before it ended.
JOIN_STATES = """
UPDATE node SET last = later.first, ended = later.started
FROM node AS later
WHERE node.last = :at AND node.ended = :time AND later.id = node.id AND later.version = node.version + 1
AND later.first > node.first
"""
PRUNE_MOMENTS = """
DELETE FROM moment WHERE sequence IN
(SELECT sequence FROM moment WHERE sequence < :before ORDER BY sequence LIMIT :limit)
"""
