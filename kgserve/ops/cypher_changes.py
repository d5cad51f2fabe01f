"""From the rows that a Cypher statement left to a batch that the writer takes: checked as if they had been injected."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from kgserve.decoding import decode_json
from kgserve.engine.protocol import Changed, Difference
from kgserve.errors import FieldError, InvalidInput, TooLarge
from kgserve.model.batch import EdgePut, NodePut, WriteBatch
from kgserve.model.fields import (
    EDGE,
    MAX_ORDINAL,
    MAX_TAGS,
    NODE,
    TEXT,
    TEXTS,
    TIME,
    EdgeExtrasPut,
    Fields,
    Moment,
    NodeExtrasPut,
)
from kgserve.model.requests import EdgeInput, NodeInput
from kgserve.model.rows import EDGE_EXTRAS, NODE_EXTRAS
from kgserve.model.times import is_within
from kgserve.ops.inject import cost
from kgserve.ops.validate import Fault, edge_put, node_put

MAX_CHANGED = 200_000
_KEPT_OF_NODES = ("version", "sequence", "created_at", "updated_at", "conflicts")
_KEPT_OF_EDGES = ("version", "sequence")


def batch_of(difference: Difference) -> WriteBatch:
    """The write that comes to the same. Raises InvalidInput for rows that no store takes, TooLarge for too many."""
    count = sum(map(len, (difference.nodes, difference.edges, difference.nodes_gone, difference.edges_gone)))
    if count > MAX_CHANGED:
        raise TooLarge(f"the statement changes {count} rows; {MAX_CHANGED} are the most, so change them in parts")
    if difference.doubled:
        source, target, relation_type = difference.doubled[0]
        raise fault(
            f"it makes a second edge from {source!r} to {target!r} of type {relation_type!r};"
            " there is one edge per source, target and type: use MERGE"
        )
    nodes = [_node(index, row) for index, row in enumerate(difference.nodes)]
    edges = [_edge(index, row) for index, row in enumerate(difference.edges)]
    return WriteBatch(
        nodes=nodes,
        edges=edges,
        delete_nodes=difference.nodes_gone,
        delete_edges=difference.edges_gone,
        cost=cost(nodes, edges),
    )


def _node(index: int, row: Changed) -> NodePut:
    name = f"node {row.now['id']!r}"
    _check_kept(row, _KEPT_OF_NODES, name)
    node_type = _given(row, "type", "")
    if node_type == "" or (row.before is None and node_type is None):
        raise fault(f"{name} has no type; every node needs one")
    node = NodeInput(
        id=row.now["id"],
        type=node_type,
        content=_given(row, "content", ""),
        attributes=_object(_given(row, "attributes", "{}"), name),
    )
    put = node_put(index, node, _faults(name))
    return msgspec.structs.replace(put, extras=_node_extras(row, name))


def _edge(index: int, row: Changed) -> EdgePut:
    source, target, relation_type = row.now["source"], row.now["target"], row.now["relation_type"]
    name = f"the edge from {source!r} to {target!r}"
    if not relation_type:
        raise fault(f"{name} has no relation_type; every edge needs one")
    if row.before is None and row.now["version"] is not None:
        raise fault(
            f"{name} is new and has a version, which is kept by kgserve;"
            " to give an edge another relation_type, delete it and create another"
        )
    _check_kept(row, _KEPT_OF_EDGES, name)
    weight = _given(row, "weight", 1.0)
    if weight is not None and not math.isfinite(weight):
        raise fault(f"{name}: its weight is no finite number")
    attributes = _object(_given(row, "attributes", "{}"), name)
    edge = EdgeInput(source=source, target=target, relation_type=relation_type, weight=weight, attributes=attributes)
    put = edge_put(index, edge, _faults(name))
    return msgspec.structs.replace(put, extras=_edge_extras(row, name))


def _node_extras(row: Changed, name: str) -> NodeExtrasPut | None:
    if all(_same(row, field) for field in NODE_EXTRAS):
        return None
    _check_author(row, name)
    checked = NodeInput(id="-", **_texts(row, NODE, name))
    put = node_put(0, checked, _faults(name)).extras or NodeExtrasPut()
    return msgspec.structs.replace(put, **_moments(row, NODE, name))


def _edge_extras(row: Changed, name: str) -> EdgeExtrasPut | None:
    if all(_same(row, field) for field in EDGE_EXTRAS):
        return None
    _check_author(row, name)
    ordinal = row.now["ordinal"]
    if ordinal is None and row.before is not None and row.before["ordinal"] is not None:
        raise fault(f"{name}: its ordinal cannot be taken away; delete the edge and create it again")
    if ordinal is not None and abs(ordinal) > MAX_ORDINAL:
        raise fault(f"{name}: ordinal is outside -{MAX_ORDINAL} to {MAX_ORDINAL}")
    checked = EdgeInput(source="-", target="-", relation_type="-", **_texts(row, EDGE, name))
    put = edge_put(0, checked, _faults(name)).extras or EdgeExtrasPut()
    return msgspec.structs.replace(put, ordinal=ordinal, **_moments(row, EDGE, name))


def _texts(row: Changed, fields: Fields, name: str) -> dict[str, Any]:
    """The texts and tags among the extras that the statement gave."""
    texts = {field.name: _given(row, field.name, "") for field in fields.extras if field.type is TEXT}
    lists = (field.name for field in fields.extras if field.type is TEXTS)
    return texts | {field: _tags(_given(row, field, "[]"), name) for field in lists}


def _moments(row: Changed, fields: Fields, name: str) -> dict[str, Moment]:
    return {field.name: _moment(row, field.name, name) for field in fields.extras if field.type is TIME}


def _check_author(row: Changed, name: str) -> None:
    if row.before is not None and all(_same(row, field) for field in row.now if field != "created_by"):
        raise fault(f"{name}: created_by says who wrote a state and cannot be set alone; change what it is about, too")


def _same(row: Changed, field: str) -> bool:
    return row.now[field] == (row.before[field] if row.before else None)


def _tags(text: str | None, name: str) -> list[str] | None:
    tags = None if text is None else decode_json(text, list[str | None])
    if tags is None:
        return None
    found = [tag for tag in tags if tag is not None]
    if len(found) != len(tags) or len(found) > MAX_TAGS:
        raise fault(f"{name}: tags are at most {MAX_TAGS} texts, none of them null")
    return found


def _moment(row: Changed, field: str, name: str) -> Moment:
    now = row.now[field]
    if row.before is not None and now == row.before[field]:
        return msgspec.UNSET
    if now is not None and not is_within(now):
        raise fault(f"{name}: {field} is outside the years 1 to 9999")
    return now


def _given(row: Changed, field: str, empty: Any) -> Any:
    """The value that the statement gave a field, ``empty`` for null; None when it is as it was."""
    now = row.now[field]
    if row.before is None:
        return now
    return None if now == row.before[field] else (empty if now is None else now)


def _check_kept(row: Changed, fields: tuple[str, ...], name: str) -> None:
    if all(row.now[field] is None for field in fields):
        return  # new, or deleted and made again
    for field in fields:
        if row.now[field] != (row.before[field] if row.before else None):
            raise fault(f"{name}: {field} is kept by kgserve and cannot be set")


def _object(text: str | None, name: str) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        return decode_json(text, dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise fault(f"{name}: its attributes are not the text of a JSON object") from None


def _faults(name: str) -> Fault:
    def raise_it(path: str, message: str) -> None:
        raise fault(f"{name}: {path} {message}")

    return raise_it


def fault(message: str) -> InvalidInput:
    """What is wrong with what a statement wants to change."""
    return InvalidInput(f"query: {message}", (FieldError("query", message),))
