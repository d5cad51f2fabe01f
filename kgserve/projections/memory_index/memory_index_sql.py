"""SQL statements of the memory index: constant texts, values as parameters."""
# ruff: noqa: S608 - built from constants only

from __future__ import annotations

from kgserve.projections.memory_index import hierarchy
from kgserve.projections.memory_index.hierarchy import IS_IN_FORCE_NOW

MEMORY_INDEX_FORMAT = 6
MAX_PINNED_MEMORIES = 1_000
"""Number of pinned memories that are considered, newest first."""
# A power loss may lose the last changes, but leaves no hole in the middle.
MEMORY_INDEX_PRAGMAS = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
PRAGMA wal_autocheckpoint = 4000;
PRAGMA cache_size = -8000;
"""
# "stated" is the confidence in the row, "confidence" the effective value as of "since", after accesses. "half" is 0 for
# no decay. Triggers count relations, because an upsert does not reveal whether it inserts or updates.
MEMORY_INDEX_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS memory (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, type TEXT NOT NULL,
    created INTEGER NOT NULL, updated INTEGER NOT NULL, stated REAL NOT NULL, stated_at INTEGER NOT NULL,
    confidence REAL NOT NULL, since INTEGER NOT NULL, half INTEGER NOT NULL, key INTEGER NOT NULL,
    accessed INTEGER NOT NULL, hash BLOB NOT NULL, print BLOB NOT NULL, layer INTEGER, source TEXT NOT NULL,
    importance REAL, ended TEXT NOT NULL, belongs_to TEXT NOT NULL, active INTEGER NOT NULL,
    start INTEGER, stop INTEGER
);
CREATE TABLE IF NOT EXISTS tagged (tag TEXT, memory INTEGER, PRIMARY KEY (tag, memory)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS access (
    id TEXT PRIMARY KEY, count INTEGER NOT NULL, last INTEGER NOT NULL, confidence REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS about (
    entity TEXT, memory INTEGER, relevance REAL NOT NULL, start INTEGER, stop INTEGER, PRIMARY KEY (entity, memory)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS entity (
    id TEXT PRIMARY KEY, type TEXT NOT NULL, name TEXT NOT NULL, fold TEXT NOT NULL, standing INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS named (fold TEXT, id TEXT, name TEXT, alias INTEGER, PRIMARY KEY (fold, id, name, alias))
WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS relation (
    source TEXT, target TEXT, type TEXT, weight REAL NOT NULL, start INTEGER, stop INTEGER,
    PRIMARY KEY (source, type, target)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tally (kind TEXT, name TEXT, count INTEGER NOT NULL, PRIMARY KEY (kind, name)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS tally_count ON tally (kind, count DESC, name);
CREATE TABLE IF NOT EXISTS fading (
    half INTEGER, epoch INTEGER, sum REAL NOT NULL, count INTEGER NOT NULL, PRIMARY KEY (half, epoch)
) WITHOUT ROWID;
{hierarchy.CLOSURE_SCHEMA}
CREATE TABLE IF NOT EXISTS cursor (
    one INTEGER PRIMARY KEY CHECK (one = 1), sequence INTEGER NOT NULL, half_lives TEXT NOT NULL
);
INSERT OR IGNORE INTO cursor VALUES (1, -1, '');
CREATE TRIGGER IF NOT EXISTS relation_added AFTER INSERT ON relation BEGIN
    INSERT INTO tally VALUES ('relation', NEW.type, 1) ON CONFLICT (kind, name) DO UPDATE SET count = count + 1;
END;
CREATE TRIGGER IF NOT EXISTS relation_removed AFTER DELETE ON relation BEGIN
    UPDATE tally SET count = count - 1 WHERE kind = 'relation' AND name = OLD.type;
    DELETE FROM tally WHERE kind = 'relation' AND name = OLD.type AND count <= 0;
END;
PRAGMA user_version = {MEMORY_INDEX_FORMAT};
"""
MEMORY_INDEXES = {
    "memory_created": "memory (active, created, id)",
    "memory_updated": "memory (active, updated, id)",
    "memory_accessed": "memory (active, accessed, id)",
    "memory_key": "memory (active, half, key, id)",
    "memory_type": "memory (active, type, created, id)",
    "memory_pinned": "memory (created) WHERE active AND importance >= 1",
    "memory_source": "memory (source) WHERE active",
    "memory_since": "memory (since)",
    "memory_hash": "memory (hash) WHERE active",
    "memory_print": "memory (print) WHERE active",
    "memory_until": "memory (stop) WHERE ended = 'superseded'",
    "memory_belongs": "memory (belongs_to) WHERE belongs_to != ''",
    "tagged_memory": "tagged (memory)",
    "about_memory": "about (memory)",
    "entity_fold": "entity (standing, fold, id)",
    "entity_type": "entity (standing, type, fold, id)",
    "named_node": "named (id)",
    "relation_target": "relation (target, source, type)",
    "relation_type": "relation (type, source, target)",
    **hierarchy.CLOSURE_INDEXES,
}
CREATE_MEMORY_INDEXES = [f"CREATE INDEX IF NOT EXISTS {name} ON {columns}" for name, columns in MEMORY_INDEXES.items()]
DROP_MEMORY_INDEXES = [f"DROP INDEX IF EXISTS {name}" for name in MEMORY_INDEXES]
MEMORY_TABLES = (
    "memory",
    "tagged",
    "access",
    "about",
    "entity",
    "named",
    "relation",
    "tally",
    "fading",
    *hierarchy.CLOSURE_TABLES,
)
DELETE_ALL_ROWS = [f"DELETE FROM {table}" for table in MEMORY_TABLES]

SELECT_MEMORY_SEQUENCE = "SELECT sequence FROM cursor"
UPDATE_MEMORY_SEQUENCE = "UPDATE cursor SET sequence = ?"
SELECT_HALF_LIVES = "SELECT half_lives FROM cursor"
UPDATE_HALF_LIVES = "UPDATE cursor SET half_lives = ?"

MEMORY_COLUMNS = (
    "id, type, created, updated, stated, stated_at, confidence, since, half, key, accessed, hash, print, "
    "layer, source, importance, ended, belongs_to, active, start, stop"
)
_MEMORY_COLUMN_NAMES = MEMORY_COLUMNS.split(", ")
_MEMORY_COLUMN_UPDATES = ", ".join(f"{name} = excluded.{name}" for name in _MEMORY_COLUMN_NAMES[1:])
UPSERT_MEMORY = f"""
INSERT INTO memory ({MEMORY_COLUMNS}) VALUES ({", ".join("?" * len(_MEMORY_COLUMN_NAMES))})
ON CONFLICT (id) DO UPDATE SET {_MEMORY_COLUMN_UPDATES}
"""
SELECT_ENTRY = f"SELECT {MEMORY_COLUMNS} FROM memory WHERE id = ?"
SELECT_ENTRIES_AFTER = f"SELECT number, {MEMORY_COLUMNS} FROM memory WHERE number > ? ORDER BY number LIMIT ?"
SELECT_ENTRIES_BY_ID = f"SELECT number, {MEMORY_COLUMNS} FROM memory WHERE id IN"
SELECT_LAST_NUMBER = "SELECT coalesce(max(number), 0) FROM memory"
INSERT_MEMORY = (
    f"INSERT INTO memory (number, {MEMORY_COLUMNS}) VALUES (?, {', '.join('?' * len(_MEMORY_COLUMN_NAMES))})"
)
SELECT_NUMBER = "SELECT number FROM memory WHERE id = ?"
DELETE_MEMORY_ROW = "DELETE FROM memory WHERE number = ?"
UPDATE_DECAY_KEY = "UPDATE memory SET half = ?, key = ? WHERE id = ?"

SELECT_MEMORY_TAGS = "SELECT tag FROM tagged WHERE memory = ?"
SELECT_TAGS_OF_MEMORIES = "SELECT memory, tag FROM tagged WHERE memory IN"
INSERT_MEMORY_TAG = "INSERT INTO tagged VALUES (?, ?)"
DELETE_MEMORY_TAG = "DELETE FROM tagged WHERE tag = ? AND memory = ?"

INSERT_ACCESS = "INSERT INTO access VALUES (?, ?, ?, ?)"
UPSERT_ACCESS = f"""{INSERT_ACCESS} ON CONFLICT (id) DO UPDATE SET
count = excluded.count, last = excluded.last, confidence = excluded.confidence"""
SELECT_ACCESS = "SELECT id, count, last, confidence FROM access WHERE id = ?"
SELECT_ACCESSES = "SELECT id, count, last, confidence FROM access WHERE id IN"
DELETE_ACCESS = "DELETE FROM access WHERE id = ?"

UPSERT_ABOUT = """
INSERT INTO about SELECT ?, number, ?, ?, ? FROM memory WHERE id = ? ON CONFLICT (entity, memory) DO UPDATE SET
relevance = excluded.relevance, start = excluded.start, stop = excluded.stop
"""
DELETE_ABOUT = "DELETE FROM about WHERE entity = ? AND memory = (SELECT number FROM memory WHERE id = ?)"
DELETE_ABOUT_OF_MEMORY = "DELETE FROM about WHERE memory = ?"

UPSERT_ENTITY = "INSERT OR REPLACE INTO entity VALUES (?, ?, ?, ?, ?)"
SELECT_ENTITY = "SELECT type, name, fold, standing FROM entity WHERE id = ?"
SELECT_ENTITIES = "SELECT id, type, name, fold, standing FROM entity WHERE id IN"
SELECT_LIVE_ENTITY_IDS = "SELECT id FROM entity WHERE standing AND id IN"
SELECT_ACTIVE_MEMORY_IDS = "SELECT id FROM memory WHERE active AND id IN"
DELETE_ENTITY_ROW = "DELETE FROM entity WHERE id = ?"
INSERT_ENTITY_NAME = "INSERT OR IGNORE INTO named VALUES (?, ?, ?, ?)"
DELETE_ENTITY_NAMES = "DELETE FROM named WHERE id = ?"

UPSERT_RELATION = """
INSERT INTO relation VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (source, type, target) DO UPDATE SET
weight = excluded.weight, start = excluded.start, stop = excluded.stop
"""
DELETE_RELATION_ROW = "DELETE FROM relation WHERE source = ? AND target = ? AND type = ?"
DELETE_RELATIONS_FROM = "DELETE FROM relation WHERE source = ?"
DELETE_RELATIONS_TO = "DELETE FROM relation WHERE target = ?"

UPSERT_MEMORY_TALLY = (
    "INSERT INTO tally VALUES (?, ?, ?) ON CONFLICT (kind, name) DO UPDATE SET count = count + excluded.count"
)
DELETE_EMPTY_MEMORY_TALLY = "DELETE FROM tally WHERE kind = ? AND name = ? AND count <= 0"
SELECT_MEMORY_TALLY = "SELECT count FROM tally WHERE kind = ? AND name = ?"
SELECT_TALLIES_BY_COUNT = "SELECT name, count FROM tally WHERE kind = ? ORDER BY count DESC, name LIMIT ?"
SELECT_TALLIES_BY_NAME = "SELECT name, count FROM tally WHERE kind = ? ORDER BY name"
SELECT_TALLY_SUM = "SELECT coalesce(sum(count), 0) FROM tally WHERE kind = ?"

UPSERT_FADING = """
INSERT INTO fading VALUES (?, ?, ?, ?) ON CONFLICT (half, epoch) DO UPDATE SET
sum = sum + excluded.sum, count = count + excluded.count
"""
DELETE_EMPTY_FADING = "DELETE FROM fading WHERE half = ? AND epoch = ? AND count <= 0"
SELECT_FADING_SUMS = "SELECT epoch, sum FROM fading WHERE half = ? AND epoch BETWEEN ? AND ?"
SELECT_FUTURE_MEMORIES = (
    "SELECT half, key, confidence FROM memory WHERE since > ? AND active AND half > 0 AND confidence > 0"
)
SELECT_FIRST_CREATED = "SELECT created FROM memory WHERE active = 1 ORDER BY created LIMIT 1"
SELECT_LAST_CREATED = "SELECT created FROM memory WHERE active = 1 ORDER BY created DESC LIMIT 1"
COUNT_KEYS_BETWEEN = "SELECT count(*) FROM memory WHERE active = 1 AND half = ? AND key >= ? AND key < ?"
COUNT_FADING_BEFORE_EPOCH = "SELECT coalesce(sum(count), 0) FROM fading WHERE half = ? AND epoch < ?"
COUNT_FADING_FROM_EPOCH = "SELECT coalesce(sum(count), 0) FROM fading WHERE half = ? AND epoch >= ?"
SELECT_HAS_FUTURE = "SELECT EXISTS (SELECT 1 FROM memory WHERE since > ?)"

LIVE_MEMORY_COLUMNS = """
m.id, m.type, m.created, m.updated, m.confidence, m.since, m.half, coalesce(access.count, 0), access.last,
m.layer, m.source, m.importance, m.ended, m.belongs_to, m.active, m.start, m.stop
"""
_SELECT_LIVE_WHERE = f"SELECT {LIVE_MEMORY_COLUMNS} FROM memory AS m LEFT JOIN access USING (id) WHERE"
SELECT_LIVE_BY_ID = f"{_SELECT_LIVE_WHERE} m.id IN"
SELECT_LIVE_BY_HASH = (
    f"{_SELECT_LIVE_WHERE} m.active AND m.hash = :value AND {IS_IN_FORCE_NOW} ORDER BY m.created, m.id LIMIT :limit"
)
SELECT_LIVE_BY_FINGERPRINT = (
    f"{_SELECT_LIVE_WHERE} m.active AND m.print = :value AND {IS_IN_FORCE_NOW} ORDER BY m.created, m.id LIMIT :limit"
)
_SELECT_IDS_BY_DIGEST = (
    f"SELECT m.id FROM memory AS m WHERE m.active AND m.{{}} = :{{}} AND {IS_IN_FORCE_NOW} "
    "ORDER BY m.created, m.id LIMIT :limit"
)
SELECT_IDS_BY_HASH_OR_FINGERPRINT = (
    f"SELECT id FROM ({_SELECT_IDS_BY_DIGEST.format('hash', 'hash')}) UNION ALL "
    f"SELECT id FROM ({_SELECT_IDS_BY_DIGEST.format('print', 'print')})"
)
SELECT_PINNED = f"""
SELECT m.id FROM (
    SELECT * FROM memory WHERE active AND importance >= 1 ORDER BY created DESC, id LIMIT {MAX_PINNED_MEMORIES}
) AS m WHERE {IS_IN_FORCE_NOW} LIMIT :limit
"""
SELECT_KNOWN_HASHES = "SELECT hash FROM memory WHERE active AND hash IN"
SELECT_KNOWN_FINGERPRINTS = "SELECT print FROM memory WHERE active AND print IN"
SELECT_LIVE_VERSIONS = f"{_SELECT_LIVE_WHERE} m.belongs_to = ? AND m.belongs_to != '' ORDER BY m.start, m.id LIMIT ?"
SELECT_SUPERSEDED_AFTER = "SELECT 1 FROM memory INDEXED BY memory_until WHERE ended = 'superseded' AND stop > ? LIMIT 1"
SELECT_LIVE_BELOW_KEY = f"""
{_SELECT_LIVE_WHERE} m.active = 1 AND m.half = :half AND m.key < :bound AND (m.key, m.id) > (:key, :id)
ORDER BY m.key, m.id LIMIT :limit
"""

SELECT_ENTITIES_NAMED = """
SELECT named.id, entity.type, entity.name, named.alias, named.name, entity.standing
FROM named JOIN entity USING (id) WHERE named.fold = ? ORDER BY named.alias, named.id LIMIT ?
"""
SELECT_KNOWN_NAMES = "SELECT DISTINCT fold FROM named WHERE fold IN"
_IS_ABOUT_IN_FORCE_NOW = "(about.start IS NULL OR about.start <= :now) AND (about.stop IS NULL OR about.stop > :now)"
SELECT_ENTITIES_OF_MEMORY = f"""
SELECT about.entity, about.relevance FROM about
WHERE about.memory = (SELECT number FROM memory WHERE id = :id) AND {_IS_ABOUT_IN_FORCE_NOW}
ORDER BY about.relevance DESC, about.entity LIMIT :limit
"""
