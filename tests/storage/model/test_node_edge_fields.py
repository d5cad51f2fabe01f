"""Structs and the engine's schema agree with the list of fields."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest

from kgserve.graph.answers import Edge, ListedNode, Node
from kgserve.graph.compat.versioned_nodes_api import SubgraphEdgeInput, SubgraphNodeInput
from kgserve.graph.request_bodies import EdgeInput, EdgeNdjsonLine, NodeInput, NodeNdjsonLine
from kgserve.graph.transfer.formats.ndjson_exchange_lines import ExportedEdgeLine, ExportedNodeLine
from kgserve.storage.model import node_edge_fields
from kgserve.storage.model.node_edge_fields import (
    EDGE,
    EDGE_ENDPOINTS,
    NODE,
    RowField,
    RowFieldGroups,
    get_row_field_names,
)
from kgserve.storage.model.node_edge_rows import EdgeRow, NodeRow
from kgserve.storage.rows.row_json_encoder import (
    EdgeWithRawAttributes,
    ExportedEdge,
    ExportedNode,
    NodeWithRawAttributes,
)

SCHEMA = Path(__file__).parents[3] / "schema"
FOUND_WHEN_READ = {"stale", "superseded_by", "is_current"}
STORED: dict[node_edge_fields.EngineAndArrowFieldType, Any] = {
    node_edge_fields.STRING_TYPE: str,
    node_edge_fields.STRING_LIST_TYPE: tuple[str, ...],
    node_edge_fields.INT64_TYPE: int,
    node_edge_fields.INTEGER_LIST_TYPE: tuple[int, ...],
    node_edge_fields.DOUBLE_TYPE: float,
    node_edge_fields.TIMESTAMP_TYPE: int,
}


@pytest.mark.parametrize(
    ("row", "extras", "known"),
    [(NodeRow, node_edge_fields.NodeExtras, NODE), (EdgeRow, node_edge_fields.EdgeExtras, EDGE)],
)
def test_row_structs_have_fields_in_order(
    row: type[msgspec.Struct], extras: type[msgspec.Struct], known: RowFieldGroups
) -> None:
    assert row.__struct_fields__ == (*get_row_field_names(known.plain), "extras")
    assert extras.__struct_fields__ == get_row_field_names(known.optional)
    for struct, some in ((row, known.plain), (extras, known.optional)):
        hints = get_type_hints(struct)
        for field in some:
            assert hints[field.name] in {STORED[field.type], STORED[field.type] | None}, field


@pytest.mark.parametrize(
    ("struct", "known"),
    [
        (node_edge_fields.NodeExtrasUpsert, NODE),
        (node_edge_fields.NodeExtrasInput, NODE),
        (node_edge_fields.EdgeExtrasUpsert, EDGE),
        (node_edge_fields.EdgeExtrasInput, EDGE),
    ],
)
def test_put_structs_have_all_extras_that_callers_may_write(
    struct: type[msgspec.Struct], known: RowFieldGroups
) -> None:
    by_itself = {
        field.name for field in known.optional if field.is_own or (field.is_kept and "Input" in struct.__name__)
    }
    assert struct.__struct_fields__ == tuple(
        name for name in get_row_field_names(known.optional) if name not in by_itself
    )


def test_answers_have_all_extras() -> None:
    shown = tuple(name for name in node_edge_fields.NodeExtrasAnswer.__struct_fields__ if name not in FOUND_WHEN_READ)
    assert shown == get_row_field_names(NODE.optional)
    assert node_edge_fields.EdgeExtrasAnswer.__struct_fields__ == get_row_field_names(EDGE.optional)


@pytest.mark.parametrize(
    ("struct", "of"),
    [(struct, NODE.whole) for struct in (Node, ListedNode, NodeWithRawAttributes)]
    + [(struct, EDGE.whole) for struct in (Edge, EdgeWithRawAttributes)]
    + [(struct, NODE.exchanged) for struct in (NodeNdjsonLine, ExportedNodeLine, ExportedNode)]
    + [(struct, EDGE.exchanged) for struct in (EdgeNdjsonLine, ExportedEdgeLine, ExportedEdge)],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_public_structs_have_all_fields_under_wire_names(
    struct: type[msgspec.Struct], of: tuple[RowField, ...]
) -> None:
    found = {field.name: field.encode_name for field in msgspec.structs.fields(struct)}
    assert found.items() >= {field.name: field.wire for field in of}.items()


def test_put_of_whole_version_accepts_every_extra() -> None:
    assert set(SubgraphNodeInput.__struct_fields__) >= {field.name for field in NODE.extras if not field.is_own}
    assert set(SubgraphEdgeInput.__struct_fields__) >= set(get_row_field_names(EDGE.extras))


def test_request_rows_default_to_omitted_fields() -> None:
    assert msgspec.structs.astuple(NodeInput(id="a"))[1:] == (None,) * (len(NodeInput.__struct_fields__) - 1)
    edge = EdgeInput(source="a", target="b", relation_type="r")
    assert msgspec.structs.astuple(edge)[3:] == (None,) * (len(EdgeInput.__struct_fields__) - 3)


def test_engine_has_a_column_for_each_field() -> None:
    plain = (SCHEMA / "0001_entity_relates_to.cypher").read_text()
    node, edge = (
        dict(re.findall(r"^ +([a-z_]+) +([A-Z0-9]+),?$", table, re.MULTILINE)) for table in plain.split(";")[:2]
    )
    for table, name, value in re.findall(r"ALTER TABLE (\w+) ADD (\w+) (\S+);", _later()):
        (node if table == "Entity" else edge)[name] = value
    assert node == {field.name: field.type.engine for field in NODE.whole}
    assert edge == {field.name: field.type.engine for field in EDGE.whole[EDGE_ENDPOINTS:]}


def _later() -> str:
    return "".join(path.read_text() for path in sorted(SCHEMA.glob("*.cypher"))[1:])
