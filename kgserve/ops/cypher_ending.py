"""What a statement with an ending changes: its question is asked, and its end looked up in the present rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from kgserve.cypher.writes import SETTABLE, Assignment, Element, Ending, Returned
from kgserve.decoding import decode_json
from kgserve.engine.engine import Cursor
from kgserve.engine.protocol import Changed, Difference
from kgserve.model.answers import CypherAnswer
from kgserve.model.rows import EDGE_EXTRAS, NODE_EXTRAS, EdgeKey, EdgeRow, NodeRow, edge_values, node_values
from kgserve.ops.cypher_changes import fault
from kgserve.ops.cypher_read import MAX_ANSWER_BYTES
from kgserve.rows.snapshot import Rows

MAX_ANSWERS = 1_000_000
_WHOLE = {f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)}
_TAKEN = {"STRING": {"STRING"}, "DOUBLE": {"DOUBLE"} | _WHOLE}
"""Types of values that a column takes as the engine would."""

_NODE_FIELDS = (*NodeRow.__struct_fields__[:-1], *NODE_EXTRAS)
_EDGE_FIELDS = (*EdgeRow.__struct_fields__[:-1], *EDGE_EXTRAS)
_Key = str | EdgeKey


class NotUnderstood(Exception):
    """The answer is not of a kind that the ending can be carried out on: the statement is to be tried on a copy."""


class Moved(Exception):
    """The question was answered from rows that came later than those at hand."""


def carried_out(ending: Ending, cursor: Cursor, rows: Rows, most: int) -> tuple[Difference, CypherAnswer]:
    """What the statement comes to, by the answer to its question, and at most so many rows that it returns.

    Raises InvalidInput, NotUnderstood and Moved.
    """
    _check_types(ending, cursor)
    returned = list[list[Any]]()
    answers = _answers(cursor, ending, returned, most if ending.returned else 0)
    found = _set(ending, answers, rows) if ending.assignments else _deleted(ending, answers, rows)
    answer = CypherAnswer(
        columns=[each.name for each in ending.returned],
        types=[cursor.types[each.column] for each in ending.returned],
        rows=returned,
        row_count=len(returned),
        truncated=bool(ending.returned) and cursor.total > len(returned),
        took_ms=0.0,
    )
    return found, answer


def _check_types(ending: Ending, cursor: Cursor) -> None:
    due = {each.column + at: kind for each in ending.elements for at, kind in enumerate(each.types)}
    values = {each.column: _TAKEN[SETTABLE[each.property]] for each in ending.assignments}
    wrong = any(cursor.types[column] != kind for column, kind in due.items())
    if wrong or cursor.total > MAX_ANSWERS or any(cursor.types[at] not in kinds for at, kinds in values.items()):
        raise NotUnderstood


def _answers(cursor: Cursor, ending: Ending, returned: list[list[Any]], most: int) -> Iterator[list[Any]]:
    """The answers, of which the first are noted as what is ``returned``."""
    size = 0
    for line in cursor.lines():
        answer = decode_json(line, list[Any])
        if len(returned) < most:
            size += len(line)
            if size >= MAX_ANSWER_BYTES:
                raise NotUnderstood
            returned.append([_as_set(each, ending, answer) for each in ending.returned])
        yield answer


def _as_set(returned: Returned, ending: Ending, answer: list[Any]) -> Any:
    value = answer[returned.column]
    if returned.element is None or value is None:
        return value
    given = (each for each in ending.assignments if each.element == returned.element)
    return value | {each.property: answer[each.column] for each in given if each.property in value}


def _key(element: Element, answer: list[Any]) -> _Key | None:
    found = answer[element.column]
    if found is None or element.is_node:
        return found
    if len(element.told) > 1:
        source, target, relation_type = answer[element.column : element.column + len(element.told)]
        # The ends may be there where OPTIONAL MATCH has found no edge.
        return (source, target, relation_type) if relation_type is not None else None
    return found["_from"], found["_to"], found["relation_type"]


def _deleted(ending: Ending, answers: Iterable[list[Any]], rows: Rows) -> Difference:
    nodes, edges = dict[str, None](), dict[EdgeKey, None]()
    for answer in answers:
        for element in ending.elements:
            key = _key(element, answer)
            if isinstance(key, str):
                nodes[key] = None
            elif key is not None:
                edges[key] = None
    if not ending.detach:
        _check_free(nodes, edges, rows)
    return Difference(nodes=[], edges=[], nodes_gone=[*nodes], edges_gone=[*edges], doubled=[])


def _check_free(nodes: Iterable[str], edges: dict[EdgeKey, None], rows: Rows) -> None:
    """Raise InvalidInput for a node that would leave an edge behind."""
    for node_id in nodes:
        for found in (rows.outgoing(node_id), rows.incoming(node_id)):
            left = next((row for row in found if row.key not in edges), None)
            if left is not None:
                raise fault(
                    f"node {node_id!r} has connected edges, such as {left.relation_type!r} from {left.source!r} to"
                    f" {left.target!r}: delete them first, or use DETACH DELETE"
                )


def _set(ending: Ending, answers: Iterable[list[Any]], rows: Rows) -> Difference:
    given: dict[Element, dict[_Key, dict[str, Any]]] = {element: {} for element in ending.elements}
    for answer in answers:
        for assignment in ending.assignments:
            key = _key(assignment.element, answer)
            if key is not None:
                value = _value(assignment, answer)
                # Of several rows for one element the engine takes one, and only it knows which.
                if given[assignment.element].setdefault(key, {}).setdefault(assignment.property, value) != value:
                    raise NotUnderstood
    nodes, edges = dict[str, dict[str, Any]](), dict[EdgeKey, dict[str, Any]]()
    for values in given.values():
        for key, properties in values.items():
            found = nodes.setdefault(key, {}) if isinstance(key, str) else edges.setdefault(key, {})
            if found:  # the same row by two names
                raise NotUnderstood
            found.update(properties)
    return Difference(
        nodes=[*_changed_nodes(nodes, rows)],
        edges=[*_changed_edges(edges, rows)],
        nodes_gone=[],
        edges_gone=[],
        doubled=[],
    )


def _value(assignment: Assignment, answer: list[Any]) -> str | float | None:
    value = answer[assignment.column]
    if value is None or SETTABLE[assignment.property] == "STRING":
        return value
    if isinstance(value, str):  # not finite
        raise NotUnderstood
    return float(value)


def _changed_nodes(given: dict[str, dict[str, Any]], rows: Rows) -> Iterator[Changed]:
    found = rows.nodes(given)
    if len(found) < len(given):
        raise Moved
    for node_id, properties in given.items():
        before = dict(zip(_NODE_FIELDS, node_values(msgspec.structs.astuple(found[node_id])), strict=True))
        yield Changed(before | properties, before)


def _changed_edges(given: dict[EdgeKey, dict[str, Any]], rows: Rows) -> Iterator[Changed]:
    found = rows.edges([*given])
    if len(found) < len(given):
        raise Moved
    for key, properties in given.items():
        before = dict(zip(_EDGE_FIELDS, edge_values(msgspec.structs.astuple(found[key])), strict=True))
        yield Changed(before | properties, before)
