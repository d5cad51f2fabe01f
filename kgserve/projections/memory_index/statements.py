"""What the memory view asks SQLite: texts made of constants, values as parameters."""
# ruff: noqa: S608 - nothing of a caller's is put into them

from __future__ import annotations

from kgserve.projections.memory_index import closure

FORMAT = 5
MOST_PINNED = 1_000
"""So many pinned memories are looked at, the newest."""
# A power loss may take the end of what was taken in, but nothing out of the middle.
SETUP = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
PRAGMA wal_autocheckpoint = 4000;
PRAGMA cache_size = -8000;
"""
# "stated" is the confidence in the row, "confidence" what counts since "since", after any access; "half" is 0 for what
# does not fade. Relations are counted by triggers, for a put that changes one looks like a put that adds one.
SCHEMA = f"""
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
{closure.SCHEMA}
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
PRAGMA user_version = {FORMAT};
"""
INDEXES = {
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
    **closure.INDEXES,
}
INDEX = [f"CREATE INDEX IF NOT EXISTS {name} ON {columns}" for name, columns in INDEXES.items()]
NO_INDEX = [f"DROP INDEX IF EXISTS {name}" for name in INDEXES]
TABLES = ("memory", "tagged", "access", "about", "entity", "named", "relation", "tally", "fading", *closure.TABLES)
EMPTY = [f"DELETE FROM {table}" for table in TABLES]

SEQUENCE = "SELECT sequence FROM cursor"
MOVE = "UPDATE cursor SET sequence = ?"
HALF_LIVES = "SELECT half_lives FROM cursor"
HALVE = "UPDATE cursor SET half_lives = ?"

COLUMNS = (
    "id, type, created, updated, stated, stated_at, confidence, since, half, key, accessed, hash, print, "
    "layer, source, importance, ended, belongs_to, active, start, stop"
)
_NAMES = COLUMNS.split(", ")
_CHANGES = ", ".join(f"{name} = excluded.{name}" for name in _NAMES[1:])
PUT = f"""
INSERT INTO memory ({COLUMNS}) VALUES ({", ".join("?" * len(_NAMES))}) ON CONFLICT (id) DO UPDATE SET {_CHANGES}
"""
ENTRY = f"SELECT {COLUMNS} FROM memory WHERE id = ?"
ENTRIES = f"SELECT number, {COLUMNS} FROM memory WHERE number > ? ORDER BY number LIMIT ?"
ENTRIES_OF = f"SELECT number, {COLUMNS} FROM memory WHERE id IN"
LAST_NUMBER = "SELECT coalesce(max(number), 0) FROM memory"
ADD = f"INSERT INTO memory (number, {COLUMNS}) VALUES (?, {', '.join('?' * len(_NAMES))})"
NUMBER = "SELECT number FROM memory WHERE id = ?"
DROP = "DELETE FROM memory WHERE number = ?"
REKEY = "UPDATE memory SET half = ?, key = ? WHERE id = ?"

TAGS_OF = "SELECT tag FROM tagged WHERE memory = ?"
TAGS_OF_SOME = "SELECT memory, tag FROM tagged WHERE memory IN"
TAG = "INSERT INTO tagged VALUES (?, ?)"
UNTAG = "DELETE FROM tagged WHERE tag = ? AND memory = ?"

ACCESS = "INSERT INTO access VALUES (?, ?, ?, ?)"
ACCESS_AGAIN = f"""{ACCESS} ON CONFLICT (id) DO UPDATE SET
count = excluded.count, last = excluded.last, confidence = excluded.confidence"""
ACCESS_OF = "SELECT id, count, last, confidence FROM access WHERE id = ?"
ACCESSES_OF = "SELECT id, count, last, confidence FROM access WHERE id IN"
UNACCESS = "DELETE FROM access WHERE id = ?"

ABOUT = """
INSERT INTO about SELECT ?, number, ?, ?, ? FROM memory WHERE id = ? ON CONFLICT (entity, memory) DO UPDATE SET
relevance = excluded.relevance, start = excluded.start, stop = excluded.stop
"""
NOT_ABOUT = "DELETE FROM about WHERE entity = ? AND memory = (SELECT number FROM memory WHERE id = ?)"
ABOUT_NOTHING = "DELETE FROM about WHERE memory = ?"

ENTITY = "INSERT OR REPLACE INTO entity VALUES (?, ?, ?, ?, ?)"
ENTITY_OF = "SELECT type, name, fold, standing FROM entity WHERE id = ?"
ENTITY_ROWS = "SELECT id, type, name, fold, standing FROM entity WHERE id IN"
STANDING = "SELECT id FROM entity WHERE standing AND id IN"
ACTIVE = "SELECT id FROM memory WHERE active AND id IN"
NO_ENTITY = "DELETE FROM entity WHERE id = ?"
NAME = "INSERT OR IGNORE INTO named VALUES (?, ?, ?, ?)"
UNNAME = "DELETE FROM named WHERE id = ?"

RELATION = """
INSERT INTO relation VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (source, type, target) DO UPDATE SET
weight = excluded.weight, start = excluded.start, stop = excluded.stop
"""
NO_RELATION = "DELETE FROM relation WHERE source = ? AND target = ? AND type = ?"
NO_RELATIONS_FROM = "DELETE FROM relation WHERE source = ?"
NO_RELATIONS_TO = "DELETE FROM relation WHERE target = ?"

TALLY = "INSERT INTO tally VALUES (?, ?, ?) ON CONFLICT (kind, name) DO UPDATE SET count = count + excluded.count"
TALLY_END = "DELETE FROM tally WHERE kind = ? AND name = ? AND count <= 0"
COUNT = "SELECT count FROM tally WHERE kind = ? AND name = ?"
TALLIES = "SELECT name, count FROM tally WHERE kind = ? ORDER BY count DESC, name LIMIT ?"
BY_NAME = "SELECT name, count FROM tally WHERE kind = ? ORDER BY name"
SUM_OF = "SELECT coalesce(sum(count), 0) FROM tally WHERE kind = ?"

FADE = """
INSERT INTO fading VALUES (?, ?, ?, ?) ON CONFLICT (half, epoch) DO UPDATE SET
sum = sum + excluded.sum, count = count + excluded.count
"""
FADED = "DELETE FROM fading WHERE half = ? AND epoch = ? AND count <= 0"
SUMS = "SELECT epoch, sum FROM fading WHERE half = ? AND epoch BETWEEN ? AND ?"
FUTURE = "SELECT half, key, confidence FROM memory WHERE since > ? AND active AND half > 0 AND confidence > 0"
FIRST_CREATED = "SELECT created FROM memory WHERE active = 1 ORDER BY created LIMIT 1"
LAST_CREATED = "SELECT created FROM memory WHERE active = 1 ORDER BY created DESC LIMIT 1"
BELOW = "SELECT count(*) FROM memory WHERE active = 1 AND half = ? AND key >= ? AND key < ?"
EPOCHS_BELOW = "SELECT coalesce(sum(count), 0) FROM fading WHERE half = ? AND epoch < ?"
EPOCHS_FROM = "SELECT coalesce(sum(count), 0) FROM fading WHERE half = ? AND epoch >= ?"
ANY_FUTURE = "SELECT EXISTS (SELECT 1 FROM memory WHERE since > ?)"

LIVE = """
m.id, m.type, m.created, m.updated, m.confidence, m.since, m.half, coalesce(access.count, 0), access.last,
m.layer, m.source, m.importance, m.ended, m.belongs_to, m.active, m.start, m.stop
"""
_LIVE_FROM = f"SELECT {LIVE} FROM memory AS m LEFT JOIN access USING (id) WHERE"
LIVE_OF = f"{_LIVE_FROM} m.id IN"
_HOLDS = "(m.start IS NULL OR m.start <= :now) AND (m.stop IS NULL OR m.stop > :now)"
BY_HASH = f"{_LIVE_FROM} m.active AND m.hash = :value AND {_HOLDS} ORDER BY m.created, m.id LIMIT :limit"
BY_PRINT = f"{_LIVE_FROM} m.active AND m.print = :value AND {_HOLDS} ORDER BY m.created, m.id LIMIT :limit"
_SAYING = (
    f"SELECT m.id FROM memory AS m WHERE m.active AND m.{{}} = :{{}} AND {_HOLDS} ORDER BY m.created, m.id LIMIT :limit"
)
SAYING = (
    f"SELECT id FROM ({_SAYING.format('hash', 'hash')}) UNION ALL SELECT id FROM ({_SAYING.format('print', 'print')})"
)
PINNED = f"""
SELECT m.id FROM (
    SELECT * FROM memory WHERE active AND importance >= 1 ORDER BY created DESC, id LIMIT {MOST_PINNED}
) AS m WHERE {_HOLDS} LIMIT :limit
"""
HASHES = "SELECT hash FROM memory WHERE active AND hash IN"
PRINTS = "SELECT print FROM memory WHERE active AND print IN"
VERSIONS = f"{_LIVE_FROM} m.belongs_to = ? AND m.belongs_to != '' ORDER BY m.start, m.id LIMIT ?"
ANY_AHEAD = "SELECT 1 FROM memory INDEXED BY memory_until WHERE ended = 'superseded' AND stop > ? LIMIT 1"
FADED_BELOW = f"""
{_LIVE_FROM} m.active = 1 AND m.half = :half AND m.key < :bound AND (m.key, m.id) > (:key, :id)
ORDER BY m.key, m.id LIMIT :limit
"""

NAMED = """
SELECT named.id, entity.type, entity.name, named.alias, named.name, entity.standing
FROM named JOIN entity USING (id) WHERE named.fold = ? ORDER BY named.alias, named.id LIMIT ?
"""
KNOWN_NAMES = "SELECT DISTINCT fold FROM named WHERE fold IN"
_EDGE_HOLDS = "(about.start IS NULL OR about.start <= :now) AND (about.stop IS NULL OR about.stop > :now)"
ENTITIES_OF = f"""
SELECT about.entity, about.relevance FROM about
WHERE about.memory = (SELECT number FROM memory WHERE id = :id) AND {_EDGE_HOLDS}
ORDER BY about.relevance DESC, about.entity LIMIT :limit
"""
