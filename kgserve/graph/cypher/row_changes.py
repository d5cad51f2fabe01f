"""Changes of rows as a write batch, with the checks that every write of a statement passes."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from kgserve.errors import InvalidInput, TooLarge
from kgserve.graph.mutations import estimate_batch_bytes
from kgserve.graph.request_bodies import EdgeInput, NodeInput
from kgserve.graph.request_validation import FaultCallback, validate_edge_input, validate_node_input
from kgserve.platform.codecs import decode_json
from kgserve.platform.timestamps import is_representable_time
from kgserve.projections.cypher_engine.engine.protocol import ChangedRow, StatementRowChanges
from kgserve.storage.model.node_edge_fields import (
    EDGE,
    MAX_ORDINAL,
    MAX_TAGS,
    NODE,
    STRING_LIST_TYPE,
    STRING_TYPE,
    TIMESTAMP_TYPE,
    EdgeExtrasUpsert,
    NodeExtrasUpsert,
    NumberPut,
    RowFieldGroups,
    TimestampPut,
)
from kgserve.storage.model.node_edge_rows import (
    EDGE_EXTRA_NAMES,
    NODE_EXTRA_NAMES,
)
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch

MAX_CHANGED_ROWS = 200_000
_MANAGED_MEMORY_FIELDS = tuple(field.name for field in NODE.memory if field.is_kept)
_MANAGED_NODE_FIELDS = ("version", "sequence", "created_at", "updated_at", "conflicts", *_MANAGED_MEMORY_FIELDS)
_MANAGED_EDGE_FIELDS = ("version", "sequence")


def convert_row_changes_to_write_batch(difference: StatementRowChanges) -> WriteBatch:
    """Return row changes as a write batch. Raises InvalidInput for invalid rows, TooLarge for too many."""
    count = sum(map(len, (difference.nodes, difference.edges, difference.nodes_gone, difference.edges_gone)))
    if count > MAX_CHANGED_ROWS:
        raise TooLarge(f"the statement changes {count} rows; the limit is {MAX_CHANGED_ROWS}, so split it")
    if difference.doubled:
        source, target, relation_type = difference.doubled[0]
        raise forbidden_change_error(
            f"it creates a second edge from {source!r} to {target!r} of type {relation_type!r};"
            " only one edge per source, target and type is allowed: use MERGE"
        )
    nodes = [_node(index, row) for index, row in enumerate(difference.nodes)]
    edges = [_edge(index, row) for index, row in enumerate(difference.edges)]
    return WriteBatch(
        nodes=nodes,
        edges=edges,
        delete_nodes=difference.nodes_gone,
        delete_edges=difference.edges_gone,
        cost=estimate_batch_bytes(nodes, edges),
    )


def _node(index: int, row: ChangedRow) -> NodeUpsert:
    name = f"node {row.now['id']!r}"
    _check_managed(row, _MANAGED_NODE_FIELDS, name)
    node_type = _changed_value(row, "type", "")
    if node_type == "" or (row.before is None and node_type is None):
        raise forbidden_change_error(f"{name} has no type; every node needs one")
    node = NodeInput(
        id=row.now["id"],
        type=node_type,
        content=_changed_value(row, "content", ""),
        attributes=_parse_attributes(_changed_value(row, "attributes", "{}"), name),
    )
    put = validate_node_input(index, node, _fault_raiser(name))
    return msgspec.structs.replace(put, extras=_node_extras(row, name))


def _edge(index: int, row: ChangedRow) -> EdgeUpsert:
    source, target, relation_type = row.now["source"], row.now["target"], row.now["relation_type"]
    name = f"the edge from {source!r} to {target!r}"
    if not relation_type:
        raise forbidden_change_error(f"{name} has no relation_type; every edge needs one")
    if row.before is None and row.now["version"] is not None:
        raise forbidden_change_error(
            f"{name} is new and has a version, which kgserve manages;"
            " to give an edge another relation_type, delete it and create another"
        )
    _check_managed(row, _MANAGED_EDGE_FIELDS, name)
    weight = _changed_value(row, "weight", 1.0)
    if weight is not None and not math.isfinite(weight):
        raise forbidden_change_error(f"{name}: weight must be a finite number")
    attributes = _parse_attributes(_changed_value(row, "attributes", "{}"), name)
    edge = EdgeInput(source=source, target=target, relation_type=relation_type, weight=weight, attributes=attributes)
    put = validate_edge_input(index, edge, _fault_raiser(name))
    return msgspec.structs.replace(put, extras=_edge_extras(row, name))


def _node_extras(row: ChangedRow, name: str) -> NodeExtrasUpsert | None:
    if all(_is_unchanged(row, field) for field in NODE_EXTRA_NAMES):
        return None
    _check_author(row, name)
    checked = NodeInput(id="-", **_texts(row, NODE, name))
    put = validate_node_input(0, checked, _fault_raiser(name)).extras or NodeExtrasUpsert()
    return msgspec.structs.replace(put, **_moments(row, NODE, name), **_numbers(row, NODE, name))


def _edge_extras(row: ChangedRow, name: str) -> EdgeExtrasUpsert | None:
    if all(_is_unchanged(row, field) for field in EDGE_EXTRA_NAMES):
        return None
    _check_author(row, name)
    ordinal = row.now["ordinal"]
    if ordinal is None and row.before is not None and row.before["ordinal"] is not None:
        raise forbidden_change_error(f"{name}: ordinal cannot be removed; delete the edge and create it again")
    if ordinal is not None and abs(ordinal) > MAX_ORDINAL:
        raise forbidden_change_error(f"{name}: ordinal is outside -{MAX_ORDINAL} to {MAX_ORDINAL}")
    checked = EdgeInput(source="-", target="-", relation_type="-", **_texts(row, EDGE, name))
    put = validate_edge_input(0, checked, _fault_raiser(name)).extras or EdgeExtrasUpsert()
    return msgspec.structs.replace(put, ordinal=ordinal, **_moments(row, EDGE, name), **_numbers(row, EDGE, name))


def _texts(row: ChangedRow, fields: RowFieldGroups, name: str) -> dict[str, Any]:
    """Return the optional texts and tags that the statement set."""
    sent = [field for field in fields.optional if not field.is_kept]
    texts = {field.name: _changed_value(row, field.name, "") for field in sent if field.type is STRING_TYPE}
    lists = (field.name for field in sent if field.type is STRING_LIST_TYPE)
    return texts | {field: _tags(_changed_value(row, field, "[]"), name) for field in lists}


def _moments(row: ChangedRow, fields: RowFieldGroups, name: str) -> dict[str, TimestampPut]:
    times = (field.name for field in fields.optional if field.type is TIMESTAMP_TYPE and not field.is_kept)
    return {field: _moment(row, field, name) for field in times}


_MAX_MEMORY_VALUES = {"confidence": 1.0, "importance": 1.0, "layer": 3}
"""Upper bounds of the numbers of memories; the lower bound is 0."""


def _numbers(row: ChangedRow, fields: RowFieldGroups, name: str) -> dict[str, NumberPut]:
    found: dict[str, NumberPut] = {}
    for field in (field.name for field in fields.memory if field.name in _MAX_MEMORY_VALUES):
        if not _is_unchanged(row, field):
            value = found[field] = row.now[field]
            if value is not None and not 0 <= value <= _MAX_MEMORY_VALUES[field]:
                raise forbidden_change_error(f"{name}: {field} is outside 0 to {_MAX_MEMORY_VALUES[field]}")
    return found


def _check_author(row: ChangedRow, name: str) -> None:
    if row.before is not None and all(_is_unchanged(row, field) for field in row.now if field != "created_by"):
        raise forbidden_change_error(
            f"{name}: created_by is the author of a state and cannot be set alone; change another field, too"
        )


def _is_unchanged(row: ChangedRow, field: str) -> bool:
    return row.now[field] == (row.before[field] if row.before else None)


def _tags(text: str | None, name: str) -> list[str] | None:
    tags = None if text is None else decode_json(text, list[str | None])
    if tags is None:
        return None
    found = [tag for tag in tags if tag is not None]
    if len(found) != len(tags) or len(found) > MAX_TAGS:
        raise forbidden_change_error(f"{name}: tags must be at most {MAX_TAGS} strings without null")
    return found


def _moment(row: ChangedRow, field: str, name: str) -> TimestampPut:
    now = row.now[field]
    if row.before is not None and now == row.before[field]:
        return msgspec.UNSET
    if now is not None and not is_representable_time(now):
        raise forbidden_change_error(f"{name}: {field} is outside the years 1 to 9999")
    return now


def _changed_value(row: ChangedRow, field: str, empty: Any) -> Any:
    """Return the value that the statement gave a field, ``empty`` for null; None if unchanged."""
    now = row.now[field]
    if row.before is None:
        return now
    return None if now == row.before[field] else (empty if now is None else now)


def _check_managed(row: ChangedRow, fields: tuple[str, ...], name: str) -> None:
    if all(row.now[field] is None for field in fields):
        return  # new, or deleted and created again
    for field in fields:
        if row.now[field] != (row.before[field] if row.before else None):
            raise forbidden_change_error(f"{name}: {field} is managed by kgserve and cannot be set")


def _parse_attributes(text: str | None, name: str) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        return decode_json(text, dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise forbidden_change_error(f"{name}: attributes must be the text of a JSON object") from None


def _fault_raiser(name: str) -> FaultCallback:
    def raise_it(path: str, message: str) -> None:
        raise forbidden_change_error(f"{name}: {path} {message}")

    return raise_it


def forbidden_change_error(message: str) -> InvalidInput:
    """Return the error for a change that is not allowed."""
    return InvalidInput.at("query", message)
