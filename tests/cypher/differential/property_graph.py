"""Graph with labels, relationship types and attributes, in a store of the product and for the reference interpreter."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from kgserve.platform.settings import EngineName
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch
from tests.cypher.differential.product import StatementStore
from tests.cypher.reference.patterns import Graph
from tests.cypher.reference.values import Node, Relationship

LABELS = ("person", "task", "note")
TYPES = ("KNOWS", "LIKES", "OWNS")
NODE_COUNT = 13
NODE_PROPERTIES = (
    ("id", "s"), ("content", "s"), ("status", "s"), ("name", "s"), ("age", "i"), ("score", "f"), ("active", "b"),
    ("words", "S"), ("numbers", "I"), ("info", "m"), ("odd", "o"), ("none", "i"),
)  # fmt: skip
"""Properties with kinds as `Generator` has them; `o` is of any type."""
RELATIONSHIP_PROPERTIES = (("since", "i"), ("strength", "f"), ("note", "s"), ("sure", "b"))
_VALUES: dict[str, tuple[Any, ...]] = {
    "status": ("open", "done", "blocked", "", None),
    "name": ("Ann", "Bob", "ann", "É ü", "it's", None),
    "age": (0, 1, 7, -3, 40, 1 << 40, None),
    "score": (0.5, -1.5, 2.5, 0.1, 1e18, None),
    "active": (True, False, None),
    "words": ([], ["a"], ["b", "a", "Ab"], None),
    "numbers": ([], [3], [1, 2, 1], [7, -7], None),
    "info": ({}, {"a": 1, "b": "x"}, {"a": 2, "c": [1, "z", None]}, {"b": {"a": True}}, None),
    "odd": (1, "one", True, 0.25, [1, "a", 0.5], ["a", None], {"a": None, "b": 1}, None),
    "since": (1999, 2010, 2024, None),
    "strength": (0.5, 0.75, None),
    "note": ("a", "b", "two words", None),
    "sure": (True, False, None),
}


def build_nodes() -> list[Node]:
    """Return the nodes; one of them has no label, and missing properties are absent or null."""
    choice = random.Random(3)
    nodes: list[Node] = []
    for number in range(NODE_COUNT):
        label = "_" if number == NODE_COUNT - 1 else choice.choice(LABELS)
        names = [name for name, _kind in NODE_PROPERTIES[2:-1] if choice.random() < 0.75]
        attributes = {name: choice.choice(_VALUES[name]) for name in names}
        nodes.append(Node(f"n{number}", {"id": f"n{number}", "type": label, "content": f"text {number}", **attributes}))
    return nodes


def build_relationships() -> list[Relationship]:
    """Return the relationships, with loops and with parallel ones of different types."""
    choice = random.Random(4)
    ends = [f"n{number}" for number in range(NODE_COUNT - 3)]
    keys = {(choice.choice(ends), choice.choice(ends), choice.choice(TYPES)) for _ in range(15)}
    keys |= {("n1", "n2", each) for each in TYPES} | {
        ("n2", "n1", "KNOWS"),
        ("n3", "n3", "LIKES"),
        ("n3", "n3", "OWNS"),
    }
    found: list[Relationship] = []
    for source, target, type_ in sorted(keys):
        names = [name for name, _kind in RELATIONSHIP_PROPERTIES if choice.random() < 0.7]
        attributes = {name: choice.choice(_VALUES[name]) for name in names}
        found.append(Relationship(source, target, {"relation_type": type_, **attributes}))
    return found


class PropertyGraphStore(StatementStore):
    """Store of the graph."""

    def __init__(self, folder: Path, engine: EngineName) -> None:
        """Create the store."""
        self._reference = Graph(build_nodes(), build_relationships())
        super().__init__(folder, engine, _to_batch(self._reference))

    def graph(self) -> Graph:
        """Return the graph as it was stored."""
        return self._reference.copy()


def _to_batch(graph: Graph) -> WriteBatch:
    nodes = [
        NodeUpsert(at, each.id, each.properties["type"], each.properties["content"], _attributes(each.properties))
        for at, each in enumerate(graph.nodes.values())
    ]
    edges = [EdgeUpsert(at, each.key, own=_attributes(each.properties)) for at, each in enumerate(graph.relationships)]
    return WriteBatch(nodes=nodes, edges=edges)


def _attributes(properties: dict[str, Any]) -> str:
    columns = {"id", "type", "content", "relation_type"}
    return json.dumps({name: value for name, value in properties.items() if name not in columns})
