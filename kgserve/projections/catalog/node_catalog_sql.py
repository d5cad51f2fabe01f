"""SQL of the catalog: texts built from constants only, with values as parameters."""
# ruff: noqa: S608 - no user input enters the text

from __future__ import annotations

from kgserve.storage.model.node_and_memory_filters import NodeFilter

CATALOG_FORMAT = 4
# Readers continue during a large write. A power loss may drop the last commits, but does not corrupt the file.
CATALOG_PRAGMAS = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
"""
# "tagged" and "valid" only have rows for nodes with tags or bounds of valid time.
CATALOG_SCHEMA = f"""
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
PRAGMA user_version = {CATALOG_FORMAT};
"""
SELECT_CATALOG_SEQUENCE = "SELECT sequence FROM cursor"
SELECT_NODE_COUNT = "SELECT nodes FROM cursor"
UPDATE_CATALOG_CURSOR = "UPDATE cursor SET sequence = ?, nodes = nodes + ?"
RESET_CATALOG_CURSOR = "UPDATE cursor SET sequence = ?, nodes = (SELECT count(*) FROM node)"

MAX_EXAMINED_EXAMPLES = 1_000
_IS_VALID_HERE = "NOT EXISTS (SELECT 1 FROM valid WHERE id = here.id AND (start > :valid_at OR stop <= :valid_at))"
SELECT_EXAMPLES_OF_TYPE = (
    f"SELECT id, {_IS_VALID_HERE} FROM node AS here WHERE type = :type ORDER BY id LIMIT {MAX_EXAMINED_EXAMPLES}"
)
SELECT_NODE_TYPE = "SELECT type FROM node WHERE id = ?"
INSERT_CATALOG_NODE = "INSERT INTO node VALUES (?, ?)"
UPSERT_CATALOG_NODE = f"{INSERT_CATALOG_NODE} ON CONFLICT (id) DO UPDATE SET type = excluded.type"
DELETE_CATALOG_NODE = "DELETE FROM node WHERE id = ?"

SELECT_NODE_TAGS = "SELECT tag FROM tagged WHERE id = ?"
INSERT_NODE_TAG = "INSERT INTO tagged VALUES (?, ?)"
DELETE_NODE_TAG = "DELETE FROM tagged WHERE tag = ? AND id = ?"
SELECT_HAS_TAGS_OR_VALIDITY = "SELECT EXISTS (SELECT 1 FROM tagged) OR EXISTS (SELECT 1 FROM valid)"
INSERT_VALIDITY = "INSERT INTO valid VALUES (?, ?, ?)"
DELETE_VALIDITY = "DELETE FROM valid WHERE id = ?"

INSERT_CATALOG_TALLY = "INSERT INTO tally VALUES (?, ?, ?)"
UPSERT_CATALOG_TALLY = f"{INSERT_CATALOG_TALLY} ON CONFLICT (kind, name) DO UPDATE SET count = count + excluded.count"
DELETE_EMPTY_CATALOG_TALLY = "DELETE FROM tally WHERE kind = ? AND name = ? AND count <= 0"
INSERT_NODE_TYPE_TALLIES = "INSERT INTO tally SELECT ?, type, count(*) FROM node GROUP BY type"
SELECT_CATALOG_TALLY = "SELECT count FROM tally WHERE kind = ? AND name = ?"
SELECT_MOST_FREQUENT = "SELECT name, count FROM tally WHERE kind = :kind ORDER BY count DESC, name LIMIT :limit"
# A unary plus disables an index: by name in the first statement, by count in the second.
SELECT_MOST_FREQUENT_BETWEEN_BY_COUNT = """
SELECT name, count FROM tally WHERE kind = :kind AND +name >= :first AND +name < :behind
ORDER BY count DESC, name LIMIT :limit
"""
SELECT_MOST_FREQUENT_BETWEEN_BY_NAME = """
SELECT name, count FROM tally WHERE kind = :kind AND name >= :first AND name < :behind
ORDER BY +count DESC, name LIMIT :limit
"""
COUNT_TALLIES_BETWEEN = """
SELECT count(*) FROM (SELECT 1 FROM tally WHERE kind = :kind AND name >= :first AND name < :behind LIMIT :limit)
"""

# Created by the first query for an attribute and then kept up to date. An older version would not update it, which the
# cursor reveals.
CREATE_ATTRIBUTE_TABLES = """
CREATE TABLE attribute (value BLOB, id TEXT, PRIMARY KEY (value, id)) WITHOUT ROWID;
CREATE TABLE attribute_cursor (sequence INTEGER NOT NULL);
INSERT INTO attribute_cursor SELECT sequence FROM cursor;
"""
CREATE_ATTRIBUTE_NODE_INDEX = "CREATE INDEX attribute_node ON attribute (id, value)"
DROP_ATTRIBUTE_TABLES = """
DROP TABLE IF EXISTS attribute;
DROP TABLE IF EXISTS attribute_cursor;
"""
SELECT_HAS_ATTRIBUTE_TABLES = "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'attribute_cursor')"
SELECT_IS_ATTRIBUTE_CURSOR_CURRENT = "SELECT EXISTS (SELECT 1 FROM attribute_cursor JOIN cursor USING (sequence))"
UPDATE_ATTRIBUTE_CURSOR = "UPDATE attribute_cursor SET sequence = ?"
SELECT_ATTRIBUTE_VALUES = "SELECT value FROM attribute WHERE id = ?"
INSERT_ATTRIBUTE_VALUE = "INSERT INTO attribute VALUES (?, ?)"
DELETE_ATTRIBUTE_VALUE = "DELETE FROM attribute WHERE value = ? AND id = ?"
COUNT_NODES_WITH_ATTRIBUTE = "SELECT count(*) FROM (SELECT 1 FROM attribute WHERE value = ? LIMIT ?)"

# Attributes of ended states, for lists as of a commit; filled on demand.
CREATE_PAST_ATTRIBUTE_TABLES = """
CREATE TABLE IF NOT EXISTS past_attribute (
    value BLOB, last INTEGER, id TEXT, first INTEGER NOT NULL, PRIMARY KEY (value, last, id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS past_place (last INTEGER NOT NULL, id TEXT NOT NULL, oldest INTEGER NOT NULL)
"""
DROP_PAST_ATTRIBUTE_TABLES = """
DROP TABLE IF EXISTS past_attribute;
DROP TABLE IF EXISTS past_place;
"""
SELECT_PAST_POSITION = "SELECT last, id, oldest FROM past_place"
DELETE_PAST_POSITION = "DELETE FROM past_place"
INSERT_PAST_POSITION = "INSERT INTO past_place VALUES (?, ?, ?)"
INSERT_PAST_ATTRIBUTE = "INSERT OR REPLACE INTO past_attribute VALUES (?, ?, ?, ?)"
DELETE_PAST_ATTRIBUTES_UNTIL = "DELETE FROM past_attribute WHERE last <= ?"


def build_past_attribute_nodes_query(conditions: int) -> str:
    """Return a query of nodes that had attributes ``:value0``, ``:value1`` as of ``:at``, in a state now ended."""
    others = "".join(
        f" AND EXISTS (SELECT 1 FROM past_attribute WHERE value = :value{place} AND last = here.last AND id = here.id)"
        for place in range(1, conditions)
    )
    return f"SELECT id FROM past_attribute AS here WHERE value = :value0 AND last > :at AND first <= :at{others}"


def build_node_id_page_query(source: str, wanted: NodeFilter) -> str:
    """Return a query for the ids after ``:after``, in order, each twice and with a flag that says if it matches.

    ``source`` is "type", "tag", "attribute" or "all"; ``:source`` is the type, the tag, or the digest of the attribute.
    """
    table, first = _FILTER_TABLES[source]
    fits = _conditions(wanted, source)
    return f"SELECT id, id, {fits} FROM {table} AS here WHERE {first}id > :after ORDER BY id LIMIT :limit"


def build_matching_node_ids_query(source: str, wanted: NodeFilter) -> str:
    """Return a query for the matching ids; ``source`` as in `build_node_id_page_query`."""
    table, first = _FILTER_TABLES[source]
    return f"SELECT id FROM {table} AS here WHERE {first}{_conditions(wanted, source)} LIMIT :limit"


def build_matching_node_count_sql(source: str, wanted: NodeFilter) -> str:
    """Return a query for the numbers of matching and scanned nodes; ``source`` as in `build_node_id_page_query`."""
    table, first = _FILTER_TABLES[source]
    looked_at = f"SELECT {_conditions(wanted, source)} AS fits FROM {table} AS here WHERE {first}1 LIMIT :limit"
    return f"SELECT coalesce(sum(fits), 0), count(*) FROM ({looked_at})"


_FILTER_TABLES = {
    "type": ("node", "type = :source AND "),
    "tag": ("tagged", "tag = :source AND "),
    "attribute": ("attribute", "value = :source AND "),
    "all": ("node", ""),
}


def _conditions(wanted: NodeFilter, source: str) -> str:
    """Return the condition for a node ``here``, without the type if the index already ensures it."""
    conditions = [
        f"EXISTS (SELECT 1 FROM tagged WHERE tag = :tag{place} AND id = here.id)" for place in range(len(wanted.tags))
    ]
    conditions += [
        f"EXISTS (SELECT 1 FROM attribute WHERE value = :value{place} AND id = here.id)"
        for place in range(len(wanted.attributes))
    ]
    if wanted.types and source != "type":
        names = ", ".join(f":type{place}" for place in range(len(wanted.types)))
        conditions.append(f"(SELECT type FROM node WHERE id = here.id) IN ({names})")
    if wanted.valid_at is not None:
        conditions.append(_IS_VALID_HERE)
    return f"({' AND '.join(conditions) or '1'})"
