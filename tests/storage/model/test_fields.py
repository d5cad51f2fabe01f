"""Structs and the engine's schema agree with the list of fields."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest

from kgserve.graph.answers import Edge, ListedNode, Node
from kgserve.graph.compat.versioned_nodes_api import EdgeSpec, NodeSpec
from kgserve.graph.request_bodies import EdgeInput, EdgeLine, NodeInput, NodeLine
from kgserve.graph.transfer.formats.exchange_lines import EdgeRecord, NodeRecord
from kgserve.storage.model import fields
from kgserve.storage.model.fields import EDGE, EDGE_ENDPOINTS, NODE, RowField, RowFields, field_names_of
from kgserve.storage.model.rows import EdgeRow, NodeRow
from kgserve.storage.rows.encoding import EncodedEdgeFields, EncodedNodeFields, ExportedEdge, ExportedNode

SCHEMA = Path(__file__).parents[3] / "schema"
FOUND_WHEN_READ = {"stale", "superseded_by", "is_current"}
STORED: dict[fields.FieldType, Any] = {
    fields.STRING_TYPE: str,
    fields.STRING_LIST_TYPE: tuple[str, ...],
    fields.INT64_TYPE: int,
    fields.INTEGER_LIST_TYPE: tuple[int, ...],
    fields.DOUBLE_TYPE: float,
    fields.TIMESTAMP_TYPE: int,
}


@pytest.mark.parametrize(
    ("row", "extras", "known"), [(NodeRow, fields.NodeExtras, NODE), (EdgeRow, fields.EdgeExtras, EDGE)]
)
def test_row_structs_have_fields_in_order(
    row: type[msgspec.Struct], extras: type[msgspec.Struct], known: RowFields
) -> None:
    assert row.__struct_fields__ == (*field_names_of(known.plain), "extras")
    assert extras.__struct_fields__ == field_names_of(known.optional)
    for struct, some in ((row, known.plain), (extras, known.optional)):
        hints = get_type_hints(struct)
        for field in some:
            assert hints[field.name] in {STORED[field.type], STORED[field.type] | None}, field


@pytest.mark.parametrize(
    ("struct", "known"),
    [
        (fields.NodeExtrasPut, NODE),
        (fields.NodeExtrasInput, NODE),
        (fields.EdgeExtrasPut, EDGE),
        (fields.EdgeExtrasInput, EDGE),
    ],
)
def test_put_structs_have_all_extras_that_callers_may_write(struct: type[msgspec.Struct], known: RowFields) -> None:
    by_itself = {
        field.name for field in known.optional if field.is_own or (field.is_kept and "Input" in struct.__name__)
    }
    assert struct.__struct_fields__ == tuple(name for name in field_names_of(known.optional) if name not in by_itself)


def test_answers_have_all_extras() -> None:
    shown = tuple(name for name in fields.NodeExtrasAnswer.__struct_fields__ if name not in FOUND_WHEN_READ)
    assert shown == field_names_of(NODE.optional)
    assert fields.EdgeExtrasAnswer.__struct_fields__ == field_names_of(EDGE.optional)


@pytest.mark.parametrize(
    ("struct", "of"),
    [(struct, NODE.whole) for struct in (Node, ListedNode, EncodedNodeFields)]
    + [(struct, EDGE.whole) for struct in (Edge, EncodedEdgeFields)]
    + [(struct, NODE.exchanged) for struct in (NodeLine, NodeRecord, ExportedNode)]
    + [(struct, EDGE.exchanged) for struct in (EdgeLine, EdgeRecord, ExportedEdge)],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_public_structs_have_all_fields_under_wire_names(
    struct: type[msgspec.Struct], of: tuple[RowField, ...]
) -> None:
    found = {field.name: field.encode_name for field in msgspec.structs.fields(struct)}
    assert found.items() >= {field.name: field.wire for field in of}.items()


def test_put_of_whole_version_accepts_every_extra() -> None:
    assert set(NodeSpec.__struct_fields__) >= {field.name for field in NODE.extras if not field.is_own}
    assert set(EdgeSpec.__struct_fields__) >= set(field_names_of(EDGE.extras))


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
