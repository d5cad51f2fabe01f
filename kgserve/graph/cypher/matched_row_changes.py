"""Changes of a statement whose ending deletes rows or sets properties, computed from the rows that it matches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from kgserve.cypher.write_analysis import (
    SETTABLE_PROPERTIES,
    AssignedPropertyColumn,
    FinalWriteClause,
    ReturnedColumn,
    WrittenNodeOrEdge,
)
from kgserve.errors import FieldError, InvalidInput
from kgserve.graph.answers import CypherAnswer
from kgserve.graph.cypher.engine_read_statements import (
    MAX_RESULT_BYTES,
)
from kgserve.platform.codecs import decode_json
from kgserve.projections.cypher_engine.engine.engine_handle import EngineResultCursor
from kgserve.projections.cypher_engine.engine.protocol import ChangedRow, StatementRowChanges
from kgserve.storage.model.node_edge_rows import (
    EDGE_EXTRA_NAMES,
    NODE_EXTRA_NAMES,
    EdgeKey,
    EdgeRow,
    NodeRow,
    edge_column_values,
    node_column_values,
)
from kgserve.storage.rows.rows_snapshot import RowsSnapshot

MAX_MATCHED_ROWS = 1_000_000
_INTEGER_TYPES = {f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)}
_ASSIGNABLE_TYPES = {"STRING": {"STRING"}, "DOUBLE": {"DOUBLE"} | _INTEGER_TYPES}
"""Value types that a column accepts, as in the engine."""

_NODE_CHANGE_FIELDS = (*NodeRow.__struct_fields__[:-1], *NODE_EXTRA_NAMES)
_EDGE_CHANGE_FIELDS = (*EdgeRow.__struct_fields__[:-1], *EDGE_EXTRA_NAMES)
_Key = str | EdgeKey


class UnsupportedFinalWriteError(Exception):
    """The final write cannot be computed from the rows of a query; the statement must run on a copy of the store."""


class ConnectedEdgesError(InvalidInput):
    """A node to delete has edges that are not deleted."""


class StaleRowsError(Exception):
    """The query was answered from newer rows than the given ones."""


def compute_row_changes_from_query_result(
    ending: FinalWriteClause, cursor: EngineResultCursor, rows: RowsSnapshot, most: int
) -> tuple[StatementRowChanges, CypherAnswer]:
    """Return the changes of a statement, computed from the result of its query, and at most ``most`` returned rows.

    Raises InvalidInput, UnsupportedFinalWriteError and StaleRowsError.
    """
    _check_types(ending, cursor)
    returned = list[list[Any]]()
    answers = _result_rows(cursor, ending, returned, most if ending.returned else 0)
    found = (
        _assignment_difference(ending, answers, rows)
        if ending.assignments
        else _deletion_difference(ending, answers, rows)
    )
    answer = CypherAnswer(
        columns=[each.name for each in ending.returned],
        types=[cursor.types[each.column] for each in ending.returned],
        rows=returned,
        row_count=len(returned),
        truncated=bool(ending.returned) and cursor.total > len(returned),
        took_ms=0.0,
    )
    return found, answer


def _check_types(ending: FinalWriteClause, cursor: EngineResultCursor) -> None:
    due = {each.column + at: kind for each in ending.elements for at, kind in enumerate(each.types)}
    values = {each.column: _ASSIGNABLE_TYPES[SETTABLE_PROPERTIES[each.property]] for each in ending.assignments}
    wrong = any(cursor.types[column] != kind for column, kind in due.items())
    if wrong or cursor.total > MAX_MATCHED_ROWS or any(cursor.types[at] not in kinds for at, kinds in values.items()):
        raise UnsupportedFinalWriteError


def _result_rows(
    cursor: EngineResultCursor, ending: FinalWriteClause, returned: list[list[Any]], most: int
) -> Iterator[list[Any]]:
    """Yield the result rows; the first ones are also appended to ``returned``."""
    size = 0
    for line in cursor.lines():
        answer = decode_json(line, list[Any])
        if len(returned) < most:
            size += len(line)
            if size >= MAX_RESULT_BYTES:
                raise UnsupportedFinalWriteError
            returned.append([_with_assignments(each, ending, answer) for each in ending.returned])
        yield answer


def _with_assignments(returned: ReturnedColumn, ending: FinalWriteClause, answer: list[Any]) -> Any:
    value = answer[returned.column]
    if returned.element is None or value is None:
        return value
    given = (each for each in ending.assignments if each.element == returned.element)
    return value | {each.property: answer[each.column] for each in given if each.property in value}


def _key(element: WrittenNodeOrEdge, answer: list[Any]) -> _Key | None:
    found = answer[element.column]
    if found is None or element.is_node:
        return found
    if len(element.key_columns) > 1:
        source, target, relation_type = answer[element.column : element.column + len(element.key_columns)]
        # The ends may be set although OPTIONAL MATCH found no edge.
        return (source, target, relation_type) if relation_type is not None else None
    return found["_from"], found["_to"], found["relation_type"]


def _deletion_difference(
    ending: FinalWriteClause, answers: Iterable[list[Any]], rows: RowsSnapshot
) -> StatementRowChanges:
    nodes, edges = dict[str, None](), dict[EdgeKey, None]()
    for answer in answers:
        for element in ending.elements:
            key = _key(element, answer)
            if isinstance(key, str):
                nodes[key] = None
            elif key is not None:
                edges[key] = None
    if not ending.detach:
        _check_no_edges_left(nodes, edges, rows)
    return StatementRowChanges(nodes=[], edges=[], nodes_gone=[*nodes], edges_gone=[*edges], doubled=[])


def _check_no_edges_left(nodes: Iterable[str], edges: dict[EdgeKey, None], rows: RowsSnapshot) -> None:
    """Raise InvalidInput for a node that would leave an edge without an end."""
    for node_id in nodes:
        for found in (rows.outgoing(node_id), rows.incoming(node_id)):
            left = next((row for row in found if row.key not in edges), None)
            if left is not None:
                message = (
                    f"node {node_id!r} has connected edges, such as {left.relation_type!r} from {left.source!r} to"
                    f" {left.target!r}: delete them first, or use DETACH DELETE"
                )
                raise ConnectedEdgesError(f"query: {message}", (FieldError("query", message),))


def _assignment_difference(
    ending: FinalWriteClause, answers: Iterable[list[Any]], rows: RowsSnapshot
) -> StatementRowChanges:
    given: dict[WrittenNodeOrEdge, dict[_Key, dict[str, Any]]] = {element: {} for element in ending.elements}
    for answer in answers:
        for assignment in ending.assignments:
            key = _key(assignment.element, answer)
            if key is not None:
                value = _assigned_value(assignment, answer)
                # The engine uses an unspecified one of several rows for the same element.
                if given[assignment.element].setdefault(key, {}).setdefault(assignment.property, value) != value:
                    raise UnsupportedFinalWriteError
    nodes, edges = dict[str, dict[str, Any]](), dict[EdgeKey, dict[str, Any]]()
    for values in given.values():
        for key, properties in values.items():
            found = nodes.setdefault(key, {}) if isinstance(key, str) else edges.setdefault(key, {})
            if found:  # the same row by two names
                raise UnsupportedFinalWriteError
            found.update(properties)
    return StatementRowChanges(
        nodes=[*_changed_nodes(nodes, rows)],
        edges=[*_changed_edges(edges, rows)],
        nodes_gone=[],
        edges_gone=[],
        doubled=[],
    )


def _assigned_value(assignment: AssignedPropertyColumn, answer: list[Any]) -> str | float | None:
    value = answer[assignment.column]
    if value is None or SETTABLE_PROPERTIES[assignment.property] == "STRING":
        return value
    if isinstance(value, str):  # not finite
        raise UnsupportedFinalWriteError
    return float(value)


def _changed_nodes(given: dict[str, dict[str, Any]], rows: RowsSnapshot) -> Iterator[ChangedRow]:
    found = rows.nodes(given)
    if len(found) < len(given):
        raise StaleRowsError
    for node_id, properties in given.items():
        before = dict(
            zip(_NODE_CHANGE_FIELDS, node_column_values(msgspec.structs.astuple(found[node_id])), strict=True)
        )
        yield ChangedRow(before | properties, before)


def _changed_edges(given: dict[EdgeKey, dict[str, Any]], rows: RowsSnapshot) -> Iterator[ChangedRow]:
    found = rows.edges([*given])
    if len(found) < len(given):
        raise StaleRowsError
    for key, properties in given.items():
        before = dict(zip(_EDGE_CHANGE_FIELDS, edge_column_values(msgspec.structs.astuple(found[key])), strict=True))
        yield ChangedRow(before | properties, before)
