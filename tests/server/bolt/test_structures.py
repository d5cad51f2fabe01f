from __future__ import annotations

from typing import Any

import pytest

from kgserve.cypher.interpreter.graph_element_functions import (
    format_element_id,
    format_relationship_id,
    hash_element_id,
    hash_graph_element,
)
from kgserve.cypher.interpreter.graph_view_interface import NodeReference, PathValue, RelationshipReference
from kgserve.cypher.interpreter.temporal_values import (
    CalendarDate,
    DurationValue,
    LocalDateTime,
    LocalTime,
    OffsetTime,
    ZonedDateTime,
)
from kgserve.errors import InvalidInput
from kgserve.server.bolt.graph_structures import BoltGraphStructures
from kgserve.server.bolt.packstream import PackStreamDecoder, PackStreamStructure, ProtocolViolation
from kgserve.server.bolt.value_codec import BoltValueCodec
from tests.cypher.interpreter.memory_graph import MemoryGraph

GRAPH = (
    MemoryGraph()
    .add_node("a", "person", name="Ada")
    .add_node("b")
    .add_relationship("a", "KNOWS", "b", since=1)
    .add_relationship("b", "LIKES", "b")
)
A, B = NodeReference(GRAPH, "a"), NodeReference(GRAPH, "b")
KNOWS, LIKES = (RelationshipReference(GRAPH, key) for key in GRAPH.edges)


def fields_of(value: Any, version: tuple[int, int] = (5, 0)) -> tuple[int, tuple[Any, ...]]:
    """Return the structure of a value as a client reads it."""
    structure = PackStreamDecoder(BoltValueCodec(version).encoder.encode(value)).read_value()
    return structure.tag, structure.fields


def test_nodes_have_label_properties_and_element_id() -> None:
    assert fields_of(A) == (
        ord("N"),
        (hash_element_id("a"), ["person"], {"id": "a", "name": "Ada"}, "a"),
    )
    assert fields_of(B)[1][1:] == ([], {"id": "b"}, "b")
    assert len(fields_of(A, (4, 4))[1]) == 3


def test_relationships_have_the_ids_of_their_nodes() -> None:
    element_id = '["a","b","KNOWS"]'
    ids = (hash_element_id(element_id), hash_element_id("a"), hash_element_id("b"))
    assert fields_of(KNOWS) == (ord("R"), (*ids, "KNOWS", {"since": 1}, element_id, "a", "b"))
    assert len(fields_of(KNOWS, (4, 4))[1]) == 5


@pytest.mark.parametrize("element", [A, B, KNOWS, LIKES])
def test_ids_are_those_of_the_functions(element: NodeReference | RelationshipReference) -> None:
    structures = BoltGraphStructures((5, 0))
    fields = (
        structures.node(element) if isinstance(element, NodeReference) else structures.relationship(element)
    ).fields
    assert fields[0] == hash_graph_element(element) < 2**53
    assert format_element_id(element) in fields


def test_deleted_elements_have_no_properties() -> None:
    graph = MemoryGraph()
    assert fields_of(NodeReference(graph, "gone"))[1][1:3] == ([], {})
    assert fields_of(RelationshipReference(graph, ("x", "y", "R")))[1][4] == {}


@pytest.mark.parametrize(
    ("nodes", "relationships", "steps"),
    [
        ([A], [], []),
        ([A, B], [KNOWS], [1, 1]),
        ([B, A], [KNOWS], [-1, 1]),
        ([A, B, B], [KNOWS, LIKES], [1, 1, 2, 1]),
        ([A, B, A], [KNOWS, KNOWS], [1, 1, -1, 0]),
    ],
)
def test_paths_list_each_element_once(
    nodes: list[NodeReference], relationships: list[RelationshipReference], steps: list[int]
) -> None:
    tag, fields = fields_of(PathValue(tuple(nodes), tuple(relationships)))
    assert (tag, fields[2]) == (ord("P"), steps)
    assert [node.fields[3] for node in fields[0]] == list(dict.fromkeys(node.id for node in nodes))
    expected = list(dict.fromkeys(format_relationship_id(each.key) for each in relationships))
    assert [relationship.fields[3] for relationship in fields[1]] == expected


DAY = 86_400
TEMPORAL: list[tuple[Any, PackStreamStructure]] = [
    (CalendarDate(-719_162), PackStreamStructure(ord("D"), (-719_162,))),
    (CalendarDate(2_932_896), PackStreamStructure(ord("D"), (2_932_896,))),
    (CalendarDate(-1), PackStreamStructure(ord("D"), (-1,))),
    (LocalTime(5), PackStreamStructure(ord("t"), (5,))),
    (OffsetTime(5, -3600), PackStreamStructure(ord("T"), (5, -3600))),
    (LocalDateTime(1, 2_000_000_003), PackStreamStructure(ord("d"), (DAY + 2, 3))),
    (LocalDateTime(-1, 0), PackStreamStructure(ord("d"), (-DAY, 0))),
    (DurationValue(1, -2, 3, 4), PackStreamStructure(ord("E"), (1, -2, 3, 4))),
    (ZonedDateTime(0, 3_600_000_000_001, 7200), PackStreamStructure(ord("I"), (-3600, 1, 7200))),
    (
        ZonedDateTime(19_700, 0, 3600, "Europe/Stockholm"),
        PackStreamStructure(ord("i"), (19_700 * DAY - 3600, 0, "Europe/Stockholm")),
    ),
]


@pytest.mark.parametrize(("value", "structure"), TEMPORAL, ids=lambda value: str(value)[:30])
def test_temporal_values_survive(value: Any, structure: PackStreamStructure) -> None:
    codec = BoltValueCodec((5, 0))
    data = codec.encoder.encode(value)
    assert PackStreamDecoder(data).read_value() == structure
    assert PackStreamDecoder(data, codec.build_structure).read_value() == value


@pytest.mark.parametrize(
    "value",
    [
        CalendarDate(-719_163),
        CalendarDate(2_932_897),
        LocalDateTime(-719_163, 0),
        ZonedDateTime(2_932_897, 0, 0),
        ZonedDateTime(-719_162, 0, 3600),
    ],
    ids=str,
)
def test_dates_that_drivers_cannot_read_are_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match="years 1 to 9999"):
        BoltValueCodec((5, 0)).encoder.encode([{"at": value}])


@pytest.mark.parametrize(("region", "tag"), [(None, "F"), ("Europe/Stockholm", "f")])
def test_old_clients_get_local_times_unless_they_ask(region: str | None, tag: str) -> None:
    value = ZonedDateTime(19_700, 0, 3600, region)
    codec = BoltValueCodec((4, 4))
    data = codec.encoder.encode(value)
    assert PackStreamDecoder(data).read_value() == PackStreamStructure(ord(tag), (19_700 * DAY, 0, region or 3600))
    assert PackStreamDecoder(data, codec.build_structure).read_value() == value
    assert BoltValueCodec((4, 4), is_utc=True).encoder.encode(value) == BoltValueCodec((5, 0)).encoder.encode(value)


@pytest.mark.parametrize(
    ("tag", "fields", "message"),
    [
        ("N", [1, [], {}, "a"], "node"),
        ("R", [], "relationship"),
        ("P", [], "path"),
        ("X", [1, 2.0, 3.0], "points"),
        ("D", [2**62], "range"),
        ("t", [-1], "24 hours"),
        ("t", [DAY * 10**9], "24 hours"),
        ("T", [0, 100_000], "offset"),
        ("d", [0, 10**9], "nanoseconds"),
        ("d", [2**62, 0], "range"),
        ("I", [2**62, 0, 0], "range"),
        ("i", [0, 0, "Middle/Earth"], "time zone"),
        ("i", [0, 0, "../../etc/passwd"], "time zone"),
        ("E", [2**63 - 1, 0, 0, 0], "long"),
    ],
)
def test_structures_that_are_no_parameters_are_refused(tag: str, fields: list[Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        BoltValueCodec((5, 0)).build_structure(ord(tag), fields)


@pytest.mark.parametrize(
    ("tag", "fields"), [("D", ["x"]), ("D", []), ("E", [1, 2, 3]), ("d", [True, 0]), ("F", [0, 0, 0]), ("?", [])]
)
def test_malformed_structures_are_refused(tag: str, fields: list[Any]) -> None:
    with pytest.raises(ProtocolViolation):
        BoltValueCodec((5, 0)).build_structure(ord(tag), fields)
