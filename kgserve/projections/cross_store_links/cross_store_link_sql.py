"""SQL of the links files: texts built from constants only, with values as parameters."""
# ruff: noqa: S608 - no user input enters the text

from __future__ import annotations

LINKS_FORMAT = 1
LINKS_SCHEMA = f"""
PRAGMA journal_mode = WAL;
PRAGMA synchronous = OFF;
PRAGMA cache_size = -4000;
CREATE TABLE IF NOT EXISTS link (
    source TEXT NOT NULL, relation_type TEXT NOT NULL, store TEXT NOT NULL, target TEXT NOT NULL,
    row BLOB NOT NULL, hash INTEGER NOT NULL, PRIMARY KEY (source, relation_type, store, target)
);
CREATE INDEX IF NOT EXISTS link_by_target ON link (store, target, source, relation_type);
CREATE TABLE IF NOT EXISTS outbound (store TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS link_added AFTER INSERT ON link BEGIN
    INSERT INTO outbound VALUES (NEW.store, 1) ON CONFLICT (store) DO UPDATE SET count = count + 1;
END;
CREATE TRIGGER IF NOT EXISTS link_removed AFTER DELETE ON link BEGIN
    UPDATE outbound SET count = count - 1 WHERE store = OLD.store;
    DELETE FROM outbound WHERE store = OLD.store AND count <= 0;
END;
CREATE TABLE IF NOT EXISTS cursor (
    one INTEGER PRIMARY KEY CHECK (one = 1), sequence INTEGER NOT NULL, changed INTEGER NOT NULL,
    count INTEGER NOT NULL, digest BLOB NOT NULL
);
INSERT OR IGNORE INTO cursor VALUES (1, -1, 0, 0, zeroblob(16));
PRAGMA user_version = {LINKS_FORMAT};
"""
SELECT_LINKS_BY_KEY = "SELECT CAST(link.row AS BLOB), link.hash FROM"
JOIN_LINK_KEYS = """
AS wanted CROSS JOIN link ON source = wanted.column1 AND relation_type = wanted.column2 AND store = wanted.column3
AND target = wanted.column4
"""
SELECT_LINKS = f"{SELECT_LINKS_BY_KEY} link"
SELECT_LINKS_FROM_SOURCES = f"{SELECT_LINKS} WHERE source IN"
SELECT_LINKS_OF_SOURCE = f"{SELECT_LINKS} WHERE source = :source ORDER BY relation_type, store, target LIMIT :limit"
SELECT_LINKS_TO_TARGET = (
    f"{SELECT_LINKS} WHERE store = :store AND target = :target ORDER BY source, relation_type LIMIT :limit"
)
SELECT_LINKS_AFTER = f"""
{SELECT_LINKS} WHERE (source, relation_type, store, target) > (:source, :relation_type, :store, :target)
ORDER BY source, relation_type, store, target LIMIT :limit
"""
# Triggers count inserted rows; replacing a row in an upsert would count it twice.
UPSERT_LINK = """
INSERT INTO link VALUES (:source, :relation_type, :store, :target, :row, :hash)
ON CONFLICT (source, relation_type, store, target) DO UPDATE SET row = :row, hash = :hash
"""
DELETE_LINK = """
DELETE FROM link WHERE source = :source AND relation_type = :relation_type AND store = :store AND target = :target
"""
SELECT_OUTBOUND_COUNTS = "SELECT store, count FROM outbound WHERE store > ? ORDER BY store LIMIT ?"
UPDATE_LINKS_CURSOR = "UPDATE cursor SET sequence = ?1, changed = ?1, count = ?2, digest = ?3"

INBOUND_FORMAT = 1
INBOUND_SCHEMA = f"""
PRAGMA journal_mode = WAL;
PRAGMA synchronous = OFF;
PRAGMA cache_size = -4000;
CREATE TABLE IF NOT EXISTS inbound (
    origin TEXT NOT NULL, source TEXT NOT NULL, relation_type TEXT NOT NULL, store TEXT NOT NULL, target TEXT NOT NULL,
    row BLOB NOT NULL, hash INTEGER NOT NULL, PRIMARY KEY (origin, source, relation_type, store, target)
);
CREATE INDEX IF NOT EXISTS inbound_by_target ON inbound (store, target, origin, source, relation_type);
CREATE TABLE IF NOT EXISTS tally (store TEXT, origin TEXT, count INTEGER NOT NULL, PRIMARY KEY (store, origin))
WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS seen (origin TEXT PRIMARY KEY, born INTEGER NOT NULL, changed INTEGER NOT NULL)
WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS inbound_added AFTER INSERT ON inbound BEGIN
    INSERT INTO tally VALUES (NEW.store, NEW.origin, 1) ON CONFLICT (store, origin) DO UPDATE SET count = count + 1;
END;
CREATE TRIGGER IF NOT EXISTS inbound_removed AFTER DELETE ON inbound BEGIN
    UPDATE tally SET count = count - 1 WHERE store = OLD.store AND origin = OLD.origin;
    DELETE FROM tally WHERE store = OLD.store AND origin = OLD.origin AND count <= 0;
END;
PRAGMA user_version = {INBOUND_FORMAT};
"""
UPSERT_INBOUND_LINK = """
INSERT INTO inbound VALUES (:origin, :source, :relation_type, :store, :target, :row, :hash)
ON CONFLICT (origin, source, relation_type, store, target) DO UPDATE SET row = :row, hash = :hash
"""
DELETE_INBOUND_LINK = """
DELETE FROM inbound WHERE origin = :origin AND source = :source AND relation_type = :relation_type AND store = :store
AND target = :target
"""
DELETE_INBOUND_OF_ORIGIN = "DELETE FROM inbound WHERE origin = ?"
SELECT_INBOUND_TO_TARGETS = "SELECT CAST(row AS BLOB), hash, origin FROM inbound WHERE store = ? AND target IN"
INBOUND_ORDER = "ORDER BY target, origin, source, relation_type"
UPSERT_INBOUND_POSITION = "INSERT OR REPLACE INTO seen VALUES (?, ?, ?)"
SELECT_INBOUND_COUNTS = "SELECT origin, count FROM tally WHERE store = ? ORDER BY origin"
