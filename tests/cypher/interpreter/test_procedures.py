"""Procedures with arguments, marker labels, and functions that clients of Neo4j call."""

from __future__ import annotations

from typing import Any

import pytest

from kgserve.errors import InvalidInput
from tests.cypher.interpreter.memory_graph import MemoryGraph
from tests.cypher.interpreter.statements import run_statement


def machines() -> MemoryGraph:
    return (
        MemoryGraph()
        .add_node("ada", "person", born=1815, name="Ada")
        .add_node("engine", "machine", weight=2.5, parts=["mill"], __Entity__=True)
        .add_node("note", "_", text="x")
        .add_relationship("ada", "DESCRIBED", "engine", year=1843)
        .add_relationship("ada", "WROTE", "note")
    )


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        # Procedures that write
        (
            "UNWIND [1, 2] AS i CALL apoc.merge.node(['person'], {id: 'bob'}, {n: i}, {m: i}) YIELD node RETURN node",
            [["(bob:person {'m': 2, 'n': 1})"]] * 2,
        ),
        ("CALL apoc.merge.node(['person'], {name: 'Ada'}) YIELD node RETURN node.id", [["ada"]]),
        ("CALL apoc.create.node(['a'], {v: 1}) YIELD node RETURN node", [["(:a {'v': 1})"]]),
        (
            (
                "MATCH (a {id: 'ada'}), (b {id: 'engine'}) "
                "CALL apoc.merge.relationship(a, 'DESCRIBED', {}, {x: 1}, b, {y: 2}) YIELD rel RETURN rel"
            ),
            [["[:DESCRIBED {'y': 2, 'year': 1843}]"]],
        ),
        (
            (
                "MATCH (a {id: 'ada'}), (b {id: 'engine'}) "
                "CALL apoc.create.relationship(a, 'KN`OWS', {x: 1}, b) YIELD rel RETURN type(rel), rel.x"
            ),
            [["KN`OWS", 1]],
        ),
        ("MATCH (n {id: 'note'}) CALL apoc.create.addLabels([n], ['page']) YIELD node RETURN node:page", [[True]]),
        ("MATCH (n:person) CALL apoc.create.removeLabels(n, ['person']) YIELD node RETURN labels(node)", [[[]]]),
        (
            "MATCH (n:person) CALL db.create.setNodeVectorProperty(n, 'v', [1, 0.5]) RETURN n.v",
            [[[1.0, 0.5]]],
        ),
        ("MATCH (n:person) CALL db.create.setNodeVectorProperty(n, 'v', [1]) WITH n RETURN n.v", [[[1.0]]]),
        # Markers
        (
            "MATCH (n:__Entity__) RETURN n.id, labels(n), keys(n)",
            [["engine", ["machine", "__Entity__"], ["id", "weight", "parts"]]],
        ),
        ("MATCH (n:machine:__Entity__) RETURN n.id", [["engine"]]),
        ("MATCH (n) WHERE n:__Entity__ OR n:person RETURN n.id ORDER BY n.id", [["ada"], ["engine"]]),
        ("MATCH (n) WHERE NOT n:__Entity__ RETURN n.id ORDER BY n.id", [["ada"], ["note"]]),
        (
            "MATCH (n:machine) RETURN n:machine:__Entity__, n:machine:__Other__, n:other|__Entity__",
            [[True, False, True]],
        ),
        ("MATCH (n:person) SET n:__Entity__:__Node__ RETURN labels(n)", [[["person", "__Entity__", "__Node__"]]]),
        ("MATCH (n:machine) REMOVE n:__Entity__ RETURN labels(n), n:__Entity__", [[["machine"], False]]),
        ("CREATE (n:__Node__:page {id: 'p'}) RETURN labels(n)", [[["page", "__Node__"]]]),
        (
            "MERGE (n:__Node__ {id: 'p'}) ON CREATE SET n:page RETURN labels(n), properties(n)",
            [[["page", "__Node__"], {"id": "p"}]],
        ),
        ("MATCH (n:machine) SET n = {a: 1} RETURN labels(n), n.weight", [[["machine", "__Entity__"], None]]),
        ("MATCH (n:person) SET n:$('__Entity__') RETURN labels(n)", [[["person", "__Entity__"]]]),
        ("MATCH (n {id: 'note'}) SET n:$(['page']) RETURN labels(n)", [[["page"]]]),
        # Schema
        (
            "CALL apoc.meta.data() YIELD label, property, type, elementType, other RETURN * ORDER BY label, property",
            [
                ["relationship", "DESCRIBED", [], "year", "INTEGER"],
                ["node", "machine", [], "id", "STRING"],
                ["node", "machine", [], "parts", "LIST"],
                ["node", "machine", [], "weight", "FLOAT"],
                ["node", "person", ["machine"], "DESCRIBED", "RELATIONSHIP"],
                ["node", "person", [], "born", "INTEGER"],
                ["node", "person", [], "id", "STRING"],
                ["node", "person", [], "name", "STRING"],
            ],
        ),
        (
            (
                "CALL apoc.meta.graph({sample: 5}) YIELD nodes, relationships "
                "RETURN [n IN nodes | n.name + n.count] AS n, "
                "[r IN relationships | apoc.any.property(r, 'type') + apoc.any.property(r, 'count')] AS r"
            ),
            [[["machine1", "person1"], ["DESCRIBED1"]]],
        ),
        ("CALL apoc.schema.nodes() YIELD label RETURN count(label)", [[0]]),
        # Functions
        ("RETURN apoc.map.clean({a: 1, b: null, c: '', d: 2}, ['d'], ['']) AS m", [[{"a": 1}]]),
        ("RETURN vector.similarity.cosine([1, 0], [0, 2.0]), vector.similarity.cosine([1, 1], [2, 2])", [[0.5, 1.0]]),
        ("RETURN vector.similarity.euclidean([0.0, 0.0], [3.0, 4.0]) * 26", [[1.0]]),
    ],
)
def test_procedures_and_marker_labels(statement: str, expected: list[list[Any]]) -> None:
    found = run_statement(machines(), statement)
    assert [[pytest.approx(each) if isinstance(each, float) else each for each in row] for row in found] == expected


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("CALL apoc.merge.node(['a', 'b'], {id: 'x'}) YIELD node RETURN node", "one label"),
        ("CALL apoc.merge.node(['a'], {}) YIELD node RETURN node", "at least one property"),
        ("CALL apoc.merge.node('a', {id: 'x'}) YIELD node RETURN node", "labels of apoc.merge.node.. must be a list"),
        ("CALL apoc.merge.node(['a']) YIELD node RETURN node", "takes the arguments .labels, identProps, onCreate"),
        (
            "MATCH (n:person) CALL apoc.create.addLabels(n, ['x']) YIELD node RETURN node",
            "has the label 'person' already",
        ),
        ("MATCH (n:person) CALL db.create.setNodeVectorProperty(n, 'v', ['x']) RETURN n", "list of numbers"),
        ("CALL db.labels(1)", "takes no arguments"),
        ("CALL apoc.meta.data({sample: 'all'}) YIELD label RETURN label", "integer"),
        ("MATCH (n:person|__Entity__) RETURN n", "cannot be one of several labels"),
        ("CREATE (n:__Entity__ $map)", "one by one"),
        ("CREATE (n {type: '__Entity__'})", "is a marker"),
        ("MATCH (n:person) SET n:$(1)", "string"),
        ("MATCH (n:person) SET n:$('')", "not empty"),
        ("RETURN vector.similarity.cosine([1], [1, 2])", "equally many"),
        ("RETURN vector.similarity.cosine([0], [0])", "not 0"),
        ("CALL apoc.create.node(['']) YIELD node RETURN node", "must not be empty"),
    ],
)
def test_refused_calls_and_markers(statement: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        run_statement(machines(), statement, map={})
