"""What the catalog asks SQLite: texts made of constants, values as parameters."""
# ruff: noqa: S608 - nothing of a caller's is put into them

from __future__ import annotations

from kgserve.model.listing import NodeFilter

FORMAT = 4
# Readers go on while a large write is taken in. A power loss may take its end, but nothing out of the middle.
SETUP = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
"""
# "tagged" and "valid" have rows for those nodes alone that have tags, or a bound in the world's time.
SCHEMA = f"""
CREATE TABLE IF NOT EXISTS node (id TEXT PRIMARY KEY, type TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS node_type ON node (type, id);
CREATE TABLE IF NOT EXISTS tagged (tag TEXT, id TEXT, PRIMARY KEY (tag, id)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS tagged_node ON tagged (id, tag);
CREATE TABLE IF NOT EXISTS valid (id TEXT PRIMARY KEY, start INTEGER, stop INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tally (kind TEXT, name TEXT, count INTEGER NOT NULL, PRIMARY KEY (kind, name)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS tally_count ON tally (kind, count DESC, name);
CREATE TABLE IF NOT EXISTS cursor (
    one INTEGER PRIMARY KEY CHECK (one = 1), sequence INTEGER NOT NULL, nodes INTEGER NOT NULL
);
INSERT OR IGNORE INTO cursor VALUES (1, -1, 0);
PRAGMA user_version = {FORMAT};
"""
SEQUENCE = "SELECT sequence FROM cursor"
NODES = "SELECT nodes FROM cursor"
MOVE = "UPDATE cursor SET sequence = ?, nodes = nodes + ?"
RESET = "UPDATE cursor SET sequence = ?, nodes = (SELECT count(*) FROM node)"

EXAMPLES = "SELECT id FROM node WHERE type = :type ORDER BY id LIMIT :limit"
TYPE_OF = "SELECT type FROM node WHERE id = ?"
ADD = "INSERT INTO node VALUES (?, ?)"
PUT = f"{ADD} ON CONFLICT (id) DO UPDATE SET type = excluded.type"
DROP = "DELETE FROM node WHERE id = ?"

TAGS_OF = "SELECT tag FROM tagged WHERE id = ?"
TAG = "INSERT INTO tagged VALUES (?, ?)"
UNTAG = "DELETE FROM tagged WHERE tag = ? AND id = ?"
ANY_EXTRAS = "SELECT EXISTS (SELECT 1 FROM tagged) OR EXISTS (SELECT 1 FROM valid)"
BOUND = "INSERT INTO valid VALUES (?, ?, ?)"
UNBOUND = "DELETE FROM valid WHERE id = ?"

TALLY_ADD = "INSERT INTO tally VALUES (?, ?, ?)"
TALLY = f"{TALLY_ADD} ON CONFLICT (kind, name) DO UPDATE SET count = count + excluded.count"
TALLY_END = "DELETE FROM tally WHERE kind = ? AND name = ? AND count <= 0"
TALLY_TYPES = "INSERT INTO tally SELECT ?, type, count(*) FROM node GROUP BY type"
COUNT = "SELECT count FROM tally WHERE kind = ? AND name = ?"
MOST = "SELECT name, count FROM tally WHERE kind = :kind ORDER BY count DESC, name LIMIT :limit"
# A plus keeps SQLite off an index: off that by name in the first, off that by count in the second.
MOST_BETWEEN = """
SELECT name, count FROM tally WHERE kind = :kind AND +name >= :first AND +name < :behind
ORDER BY count DESC, name LIMIT :limit
"""
FEW_BETWEEN = """
SELECT name, count FROM tally WHERE kind = :kind AND name >= :first AND name < :behind
ORDER BY +count DESC, name LIMIT :limit
"""
HOW_MANY = """
SELECT count(*) FROM (SELECT 1 FROM tally WHERE kind = :kind AND name >= :first AND name < :behind LIMIT :limit)
"""


def passing(source: str, wanted: NodeFilter) -> str:
    """Ids behind ``:after`` in order, each twice, with whether it fits: of one type, of those with one tag, or of all.

    ``source`` is "type", "tag" or "all"; ``:source`` is the type or the tag.
    """
    table, first = {
        "type": ("node", "type = :source AND "),
        "tag": ("tagged", "tag = :source AND "),
        "all": ("node", ""),
    }[source]
    conditions = [
        f"EXISTS (SELECT 1 FROM tagged WHERE tag = :tag{place} AND id = here.id)" for place in range(len(wanted.tags))
    ]
    if wanted.types and source == "tag":
        names = ", ".join(f":type{place}" for place in range(len(wanted.types)))
        conditions.append(f"(SELECT type FROM node WHERE id = here.id) IN ({names})")
    if wanted.valid_at is not None:
        outside = "start > :valid_at OR stop <= :valid_at"
        conditions.append(f"NOT EXISTS (SELECT 1 FROM valid WHERE id = here.id AND ({outside}))")
    fits = " AND ".join(conditions) or "1"
    return f"SELECT id, id, {fits} FROM {table} AS here WHERE {first}id > :after ORDER BY id LIMIT :limit"
