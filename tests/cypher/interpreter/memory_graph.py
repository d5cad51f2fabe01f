"""Small graph in memory, for tests of the interpreter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Self

from typing_extensions import override

from kgserve.cypher.interpreter.graph_view_interface import NO_LABEL, RelationshipKey, StatementGraphView
from kgserve.errors import InvalidInput

GENERATED_ID_PREFIX = "_:"


class MemoryGraph(StatementGraphView):
    """Nodes and relationships in dictionaries; properties in ``indexed`` can be looked up by value.

    Ids that begin with ``_:`` count as generated: they are no property of the node.
    """

    def __init__(self, indexed: Iterable[str] = ()) -> None:
        self.indexed = frozenset(indexed)
        self.lookups: list[tuple[str | None, str, Any]] = []
        self.nodes: dict[str, tuple[str, dict[str, Any]]] = {}
        self.edges: dict[RelationshipKey, dict[str, Any]] = {}
        self._ids_by_label: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._outgoing: defaultdict[str, dict[RelationshipKey, None]] = defaultdict(dict)
        self._incoming: defaultdict[str, dict[RelationshipKey, None]] = defaultdict(dict)

    def add_node(self, node_id: str, label: str = NO_LABEL, /, **properties: Any) -> Self:
        """Add or replace a node."""
        if node_id in self.nodes:
            del self._ids_by_label[self.nodes[node_id][0]][node_id]
        self.nodes[node_id] = (label, {key: value for key, value in properties.items() if value is not None})
        self._ids_by_label[label][node_id] = None
        return self

    def add_relationship(self, source: str, type_: str, target: str, /, **properties: Any) -> Self:
        """Add or replace a relationship between two nodes that exist."""
        assert source in self.nodes
        assert target in self.nodes
        key = (source, target, type_)
        self.edges[key] = {name: value for name, value in properties.items() if value is not None}
        self._outgoing[source][key] = None
        self._incoming[target][key] = None
        return self

    def remove_relationship(self, key: RelationshipKey) -> None:
        """Remove a relationship."""
        del self.edges[key]
        del self._outgoing[key[0]][key]
        del self._incoming[key[1]][key]

    def remove_node(self, node_id: str) -> None:
        """Remove a node, and its relationships."""
        for key in {**self._outgoing[node_id], **self._incoming[node_id]}:
            self.remove_relationship(key)
        label, _ = self.nodes.pop(node_id)
        del self._ids_by_label[label][node_id]

    @override
    def node_ids(self) -> Iterator[str]:
        yield from self.nodes

    @override
    def node_ids_by_label(self, label: str) -> Iterator[str]:
        if label != NO_LABEL:
            yield from self._ids_by_label.get(label, ())

    @override
    def node_ids_by_property(self, label: str | None, name: str, value: Any) -> Iterable[str] | None:
        if name not in self.indexed:
            return None
        self.lookups.append((label, name, value))
        return [
            node_id
            for node_id, (node_label, properties) in self.nodes.items()
            if label in {None, node_label} and properties.get(name) == value
        ]

    @override
    def has_node(self, node_id: str) -> bool:
        return node_id in self.nodes

    @override
    def node_label(self, node_id: str) -> str | None:
        found = self.nodes.get(node_id)
        return found and found[0]

    @override
    def node_property(self, node_id: str, name: str) -> Any:
        label, properties = self._node(node_id)
        if name == "id":
            return node_id
        if name == "type":
            return None if label == NO_LABEL else label
        return properties.get(name)

    @override
    def node_properties(self, node_id: str) -> dict[str, Any]:
        _, properties = self._node(node_id)
        return {**properties} if node_id.startswith(GENERATED_ID_PREFIX) else {"id": node_id, **properties}

    @override
    def node_columns(self, node_id: str) -> dict[str, Any]:
        label, properties = self._node(node_id)
        return {"_label": "Entity", "id": node_id, "type": label, "attributes": {**properties}}

    @override
    def relationships(
        self, node_id: str, *, is_outgoing: bool, types: tuple[str, ...] = ()
    ) -> Iterable[RelationshipKey]:
        keys = (self._outgoing if is_outgoing else self._incoming).get(node_id)
        if not keys:
            return ()
        return [key for key in keys if key[2] in types] if types else list(keys)

    @override
    def has_relationship(self, key: RelationshipKey) -> bool:
        return key in self.edges

    @override
    def relationship_property(self, key: RelationshipKey, name: str) -> Any:
        return self._relationship(key).get(name)

    @override
    def relationship_properties(self, key: RelationshipKey) -> dict[str, Any]:
        return {**self._relationship(key)}

    @override
    def relationship_columns(self, key: RelationshipKey) -> dict[str, Any]:
        properties = self._relationship(key)
        return {
            "_label": "RELATES_TO",
            "_from": key[0],
            "_to": key[1],
            "relation_type": key[2],
            "attributes": {**properties},
        }

    @override
    def node_count(self, label: str | None = None) -> int:
        return len(self.nodes) if label is None else len(self._ids_by_label.get(label, ()))

    @override
    def labels(self) -> list[str]:
        return sorted(label for label, ids in self._ids_by_label.items() if ids and label != NO_LABEL)

    @override
    def relationship_types(self) -> list[str]:
        return sorted({key[2] for key in self.edges})

    @override
    def property_keys(self) -> list[str]:
        of_nodes = {name for node_id in self.nodes for name in self.node_properties(node_id)}
        return sorted(of_nodes | {name for properties in self.edges.values() for name in properties})

    def _node(self, node_id: str) -> tuple[str, dict[str, Any]]:
        found = self.nodes.get(node_id)
        if found is None:
            raise InvalidInput(f"node {node_id!r} was deleted")
        return found

    def _relationship(self, key: RelationshipKey) -> dict[str, Any]:
        found = self.edges.get(key)
        if found is None:
            raise InvalidInput(f"the relationship {key[2]} from {key[0]!r} to {key[1]!r} was deleted")
        return found
