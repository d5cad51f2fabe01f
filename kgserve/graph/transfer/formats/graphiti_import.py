"""Graphiti's data in Kùzu, as nodes and edges.

Graphiti has entities, episodes, communities, sagas, and facts with their times. It stores each fact as a node with an
edge on either side; here a fact is an edge again. Embeddings are not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, LiteralString

from kgserve.errors import InvalidInput
from kgserve.graph.transfer.formats.ndjson_exchange_lines import (
    ImportRecord,
    ImportSourceTable,
    InvalidCell,
    RejectedImportRow,
    encode_edge_ndjson_line,
    encode_node_ndjson_line,
    parse_json_cell,
)
from kgserve.storage.model.node_edge_fields import MAX_SUMMARY_BYTES

TableColumns = Mapping[str, frozenset[str]]
"""Columns of each table of a file, by table name."""
RowQuery = Callable[[LiteralString], Iterator[dict[str, Any]]]
"""Runs a statement on the file and yields its rows as dicts."""

_Columns = tuple[LiteralString, ...]
_COMMON_COLUMNS: _Columns = ("uuid", "name", "group_id", "created_at")
_ENTITY_COLUMNS: _Columns = (*_COMMON_COLUMNS, "summary", "labels", "attributes")
_EPISODE_COLUMNS: _Columns = (*_COMMON_COLUMNS, "content", "source", "source_description", "valid_at", "entity_edges")
_GROUP_COLUMNS: _Columns = (*_COMMON_COLUMNS, "summary")
_FACT_COLUMNS: _Columns = (
    *(*_COMMON_COLUMNS, "fact", "episodes", "attributes"),
    *("valid_at", "invalid_at", "expired_at", "reference_time"),
)
_TIME_COLUMNS = frozenset({"created_at", "valid_at", "invalid_at", "expired_at", "reference_time"})
_LINK_PATTERNS: tuple[tuple[LiteralString, LiteralString], ...] = (
    ("MENTIONS", "(a:Episodic)-[r:MENTIONS]->(b:Entity)"),
    ("HAS_MEMBER", "(a:Community)-[r:HAS_MEMBER]->(b)"),
    ("HAS_EPISODE", "(a:Saga)-[r:HAS_EPISODE]->(b:Episodic)"),
    ("NEXT_EPISODE", "(a:Episodic)-[r:NEXT_EPISODE]->(b:Episodic)"),
)


def read_graphiti(name: str, tables: TableColumns, rows: RowQuery) -> list[ImportSourceTable]:
    """Return the tables of a file, nodes first. Raises InvalidInput if it is not Graphiti's."""
    if not {"Entity", "Episodic", "RelatesToNode_"} <= tables.keys():
        found = ", ".join(sorted(tables)) or "none"
        raise InvalidInput(f"{name} is a Kùzu file, but not Graphiti's: it has the tables {found}")
    parts = [
        _nodes("Entity", rows, _select("MATCH (n:Entity)", "n", _ENTITY_COLUMNS, tables["Entity"]), _entity),
        _nodes("Episodic", rows, _select("MATCH (n:Episodic)", "n", _EPISODE_COLUMNS, tables["Episodic"]), _episode),
    ]
    if "Community" in tables:
        community = _select("MATCH (n:Community)", "n", _GROUP_COLUMNS, tables["Community"])
        parts.append(_nodes("Community", rows, community, _community))
    if "Saga" in tables:
        parts.append(_nodes("Saga", rows, _select("MATCH (n:Saga)", "n", _GROUP_COLUMNS, tables["Saga"]), _saga))
    parts.append(ImportSourceTable("RelatesToNode_", "row", _facts(rows, tables["RelatesToNode_"])))
    for table, pattern in _LINK_PATTERNS:
        if table in tables:
            parts.append(ImportSourceTable(table, "row", _links(table, pattern, rows, tables[table])))
    return parts


def _select(match: LiteralString, name: LiteralString, columns: _Columns, existing: frozenset[str]) -> LiteralString:
    # Times are read as text: converting years before 1 or after 9999 to Python values crashes the engine.
    chosen: list[LiteralString] = [
        f"CAST({name}.{column} AS STRING) AS {column}" if column in _TIME_COLUMNS else f"{name}.{column} AS {column}"
        for column in columns
        if column in existing
    ]
    return f"{match} RETURN {', '.join(chosen)}"


def _nodes(
    table: str, rows: RowQuery, query: LiteralString, convert: Callable[[dict[str, Any]], dict[str, Any]]
) -> ImportSourceTable:
    def records() -> Iterator[ImportRecord]:
        for number, row in enumerate(rows(query), 1):
            try:
                yield encode_node_ndjson_line(number, convert(row))
            except InvalidCell as error:
                yield RejectedImportRow(number, str(error))

    return ImportSourceTable(table, "row", records())


def _entity(row: dict[str, Any]) -> dict[str, Any]:
    labels = [label for label in row.get("labels") or [] if label != "Entity"]
    return {
        **_node(row, labels[0] if labels else "Entity"),
        **_content_and_summary(row),
        "tags": labels[1:] or None,
        "attributes": _present_values(row, "group_id") | _stored_attributes(row),
    }


def _episode(row: dict[str, Any]) -> dict[str, Any]:
    return {
        **_node(row, "Episode"),
        "content": row.get("content") or row.get("name") or "",
        "valid_from": convert_kuzu_time_to_rfc3339(row.get("valid_at")),
        "attributes": _present_values(row, "name", "group_id", "source", "source_description", "entity_edges"),
    }


def _community(row: dict[str, Any]) -> dict[str, Any]:
    return {**_node(row, "Community"), **_content_and_summary(row), "attributes": _present_values(row, "group_id")}


def _saga(row: dict[str, Any]) -> dict[str, Any]:
    return {**_node(row, "Saga"), **_content_and_summary(row), "attributes": _present_values(row, "group_id")}


def _node(row: dict[str, Any], kind: str) -> dict[str, Any]:
    return {"id": row["uuid"], "type": kind, "created_at": convert_kuzu_time_to_rfc3339(row.get("created_at"))}


def _content_and_summary(row: dict[str, Any]) -> dict[str, Any]:
    """Return content and summary; a summary over the limit goes into the content, below the name."""
    name, summary = row.get("name") or "", row.get("summary") or ""
    if len(summary.encode()) > MAX_SUMMARY_BYTES:
        return {"content": f"{name}\n{summary}"}
    return {"content": name, "summary": summary or None}


def _facts(rows: RowQuery, there: frozenset[str]) -> Iterator[ImportRecord]:
    """Yield facts as edges.

    If several have the same ends and name, the newest keeps the name, older ones get a number.
    """
    match: LiteralString = "MATCH (a:Entity)-[:RELATES_TO]->(r:RelatesToNode_)-[:RELATES_TO]->(b:Entity)"
    query = _select(match, "r", _FACT_COLUMNS, there) + ", a.uuid AS source, b.uuid AS target"
    query += " ORDER BY source, target, name, valid_at DESC, created_at DESC, uuid"
    before, count = None, 0
    for number, row in enumerate(rows(query), 1):
        key = (row["source"], row["target"], row["name"])
        count = count + 1 if key == before else 1
        before = key
        try:
            yield encode_edge_ndjson_line(number, _fact(row, count))
        except InvalidCell as error:
            yield RejectedImportRow(number, str(error))


def _fact(row: dict[str, Any], count: int) -> dict[str, Any]:
    name = row.get("name") or "RELATES_TO"
    attributes = _present_values(row, "uuid", "fact", "group_id", "episodes") | _stored_attributes(row)
    attributes |= {
        field: convert_kuzu_time_to_rfc3339(row[field])
        for field in ("created_at", "expired_at", "reference_time")
        if row.get(field)
    }
    if count > 1:
        attributes["name"] = name
    return {
        "from": row["source"],
        "to": row["target"],
        "relation_type": name if count == 1 else f"{name} ({count})",
        "valid_from": convert_kuzu_time_to_rfc3339(row.get("valid_at")),
        "valid_to": convert_kuzu_time_to_rfc3339(row.get("invalid_at") or row.get("expired_at")),
        "attributes": attributes,
    }


def _links(table: str, pattern: LiteralString, rows: RowQuery, there: frozenset[str]) -> Iterator[ImportRecord]:
    query = _select(f"MATCH {pattern}", "r", ("uuid", "group_id", "created_at"), there)
    query += ", a.uuid AS source, b.uuid AS target"
    for number, row in enumerate(rows(query), 1):
        attributes = _present_values(row, "uuid", "group_id")
        if created := convert_kuzu_time_to_rfc3339(row.get("created_at")):
            attributes["created_at"] = created
        values = {"from": row["source"], "to": row["target"], "relation_type": table, "attributes": attributes}
        yield encode_edge_ndjson_line(number, values)


def _present_values(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: row[name] for name in names if row.get(name)}


def _stored_attributes(row: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes that Graphiti stores as JSON text. Raises InvalidCell."""
    text = row.get("attributes")
    return parse_json_cell("attributes", text, dict) if text else {}


def convert_kuzu_time_to_rfc3339(text: str | None) -> str | None:
    """Convert the engine's ``2025-07-15 12:00:00[.000000]``, which is in UTC, to RFC 3339."""
    return text.replace(" ", "T", 1) + "Z" if text else None
