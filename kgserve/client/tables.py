"""Answers as Arrow tables. The only module of the client that imports pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from kgserve.client.import_rows import TRAVERSAL_EDGE_FIELDS, TRAVERSAL_NODE_FIELDS
from kgserve.graph.answers import BatchSearchHit, Edge, Node, ReachedNode, SearchHit
from kgserve.storage.model.node_edge_fields import (
    DOUBLE_TYPE,
    EDGE,
    INT64_TYPE,
    NODE,
    STRING_LIST_TYPE,
    STRING_TYPE,
    TIMESTAMP_TYPE,
    RowField,
)

_TIMESTAMP_TYPE = pa.timestamp("us", tz="UTC")
_OPTIONAL_NODE_FIELDS = [field for field in NODE.optional if field.wire not in TRAVERSAL_NODE_FIELDS]
_OPTIONAL_EDGE_FIELDS = [field for field in EDGE.optional if field.wire not in TRAVERSAL_EDGE_FIELDS]
_FIELD_TYPES = {
    STRING_TYPE: pa.string(),
    STRING_LIST_TYPE: pa.list_(pa.string()),
    INT64_TYPE: pa.int64(),
    DOUBLE_TYPE: pa.float64(),
    TIMESTAMP_TYPE: _TIMESTAMP_TYPE,
}
_ARROW_TYPES: dict[str, pa.DataType] = {
    "BOOL": pa.bool_(),
    "INT8": pa.int8(),
    "INT16": pa.int16(),
    "INT32": pa.int32(),
    "INT64": pa.int64(),
    "SERIAL": pa.int64(),
    "UINT8": pa.uint8(),
    "UINT16": pa.uint16(),
    "UINT32": pa.uint32(),
    "UINT64": pa.uint64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
}


def build_nodes_arrow_table(nodes: Sequence[ReachedNode]) -> pa.Table:
    """Return a table with one row per node.

    ``store`` is set if the traversal spans stores; missing nodes have no other data.
    """
    times = {name: [getattr(node, name) for node in nodes] for name in ("created_at", "updated_at")}
    return pa.table(
        {
            **_node_columns(nodes),
            **_columns(nodes, depth=pa.int32(), version=pa.int64(), sequence=pa.int64()),
            **{name: _optional_array(texts, _TIMESTAMP_TYPE) for name, texts in times.items()},
            "store": pa.array([node.store or None for node in nodes], pa.string()),
            "missing": pa.array([bool(node.missing) for node in nodes], pa.bool_()),
        }
    )


def build_hits_arrow_table(hits: Sequence[SearchHit]) -> pa.Table:
    """Return an Arrow table with one row per hit of a search, best first."""
    real = pa.float64()
    scores = _columns(hits, score=real, keyword_score=real, semantic_score=real, hops=pa.int32())
    return pa.table(_node_columns([hit.node for hit in hits]) | scores)


def build_batch_hits_arrow_table(hits: Sequence[BatchSearchHit]) -> pa.Table:
    """Return an Arrow table with one row per hit of a batch search, best first."""
    scores = _columns(hits, score=pa.float64(), queries_matched=pa.list_(pa.int32()))
    return pa.table(_node_columns([hit.node for hit in hits]) | scores)


def _node_columns(nodes: Sequence[Node]) -> dict[str, pa.Array]:
    """Return the first columns of tables of nodes and of hits."""
    attributes = pa.array([_text(node.attributes) for node in nodes], pa.string())
    columns = _columns(nodes, id=pa.string(), type=pa.string(), content=pa.string()) | {"attributes": attributes}
    return columns | _optional_columns(nodes, _OPTIONAL_NODE_FIELDS)


def _optional_columns(things: Sequence[Node | Edge], fields: Sequence[RowField]) -> dict[str, pa.Array]:
    """Return the optional fields that at least one of ``things`` has."""
    found = ((field, [getattr(each, field.wire, msgspec.UNSET) for each in things]) for field in fields)
    return {
        field.wire: _optional_array(values, _FIELD_TYPES[field.type])
        for field, values in found
        if any(value is not msgspec.UNSET for value in values)
    }


def _optional_array(values: list[Any], kind: pa.DataType) -> pa.Array:
    present = [None if value is msgspec.UNSET or value == "" else value for value in values]
    return pa.array(present, pa.string() if kind is _TIMESTAMP_TYPE else kind).cast(kind)


def _columns(things: Sequence[Any], **types: pa.DataType) -> dict[str, pa.Array]:
    """Return attributes of ``things`` as columns of the given types."""
    return {name: pa.array([getattr(each, name) for each in things], kind) for name, kind in types.items()}


def build_edges_arrow_table(edges: Sequence[Edge]) -> pa.Table:
    """Return a table with one row per edge, with the JSON's names as column names."""
    return pa.table(
        {
            "from": pa.array([edge.source for edge in edges], pa.string()),
            "to": pa.array([edge.target for edge in edges], pa.string()),
            **_columns(edges, relation_type=pa.string(), weight=pa.float64()),
            "attributes": pa.array([_text(edge.attributes) for edge in edges], pa.string()),
            **_optional_columns(edges, _OPTIONAL_EDGE_FIELDS),
            **_columns(edges, version=pa.int64(), sequence=pa.int64()),
            "store": pa.array([edge.store or None for edge in edges], pa.string()),
            "to_graph": pa.array([edge.to_graph or None for edge in edges], pa.string()),
        }
    )


def build_cypher_rows_arrow_table(
    columns: Sequence[str], types: Sequence[str], rows: Sequence[Sequence[Any]]
) -> pa.Table:
    """Return a table of the rows; ``types`` are the engine's type names, mapped to Arrow types where possible."""
    arrays = [_array([row[place] for row in rows], kind) for place, kind in enumerate(types)]
    return pa.Table.from_arrays(arrays, names=list(columns))


def _array(values: list[Any], kind: str) -> pa.Array:
    try:
        return pa.array(values, _ARROW_TYPES.get(kind))
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        return pa.array([None if value is None else _text(value) for value in values], pa.string())


def convert_arrow_table_to_frame(table: pa.Table) -> Any:
    """Return a table as a pandas DataFrame. Integer columns with nulls are nullable, so they stay exact."""
    frame = table.to_pandas(integer_object_nulls=True)
    for place, column in enumerate(table.columns):
        if pa.types.is_integer(column.type) and column.null_count:
            name = str(column.type).replace("int", "Int").replace("u", "U")
            frame.isetitem(place, frame.iloc[:, place].astype(name))
    return frame


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
