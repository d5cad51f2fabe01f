"""Graph and pattern matching: a MATCH uses no relationship twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tests.cypher.reference import tree as t
from tests.cypher.reference.values import CypherError, Node, Path, Relationship, equals

Bindings = dict[str, Any]
_Used = frozenset[tuple[str, str, str]]
_Evaluate = Callable[[t.Expression, Bindings], Any]
_Way = tuple[Bindings, _Used, tuple[Node, ...], tuple[Relationship, ...]]


class Graph:
    """Nodes and relationships."""

    def __init__(self, nodes: Iterable[Node], relationships: Iterable[Relationship]) -> None:
        self.nodes = {node.id: node for node in nodes}
        self.relationships = list(relationships)
        self._at: dict[str, list[Relationship]] = {}
        for each in self.relationships:
            self._index(each)

    def _index(self, each: Relationship) -> None:
        for end in {each.source, each.target}:
            self._at.setdefault(end, []).append(each)

    def copy(self) -> Graph:
        """Return a graph with the same elements, which changes do not affect."""
        return Graph(
            [Node(each.id, {**each.properties}) for each in self.nodes.values()],
            [Relationship(each.source, each.target, {**each.properties}) for each in self.relationships],
        )

    def add_node(self, node: Node) -> None:
        """Add a node. Raises CypherError if its id exists."""
        if node.id in self.nodes:
            raise CypherError(f"node {node.id} exists")
        self.nodes[node.id] = node

    def add_relationship(self, relationship: Relationship) -> None:
        """Add a relationship. Raises CypherError if the same one exists."""
        if any(each.key == relationship.key for each in self.relationships):
            raise CypherError(f"relationship {relationship.key} exists")
        self.relationships.append(relationship)
        self._index(relationship)

    def delete(self, nodes: set[str], relationships: set[tuple[str, str, str]]) -> None:
        """Delete nodes and relationships. Raises CypherError if a relationship of a deleted node remains."""
        self.relationships = [each for each in self.relationships if each.key not in relationships]
        if any(nodes & {each.source, each.target} for each in self.relationships):
            raise CypherError("a deleted node has relationships")
        self.nodes = {id_: node for id_, node in self.nodes.items() if id_ not in nodes}
        self._at = {}
        for each in self.relationships:
            self._index(each)

    def steps(self, node: Node, direction: str) -> Iterator[tuple[Relationship, Node]]:
        """Yield the relationships from a node with their other ends; a loop only once."""
        for each in self._at.get(node.id, ()):
            if each.source == node.id and direction != "<-":
                yield each, self.nodes[each.target]
            elif each.target == node.id and direction != "->":
                yield each, self.nodes[each.source]


class Matcher:
    """Finds matches of patterns in a graph."""

    def __init__(self, graph: Graph, evaluate: _Evaluate) -> None:
        self._graph = graph
        self._evaluate = evaluate

    def match(self, patterns: tuple[t.PathPattern, ...], row: Bindings) -> Iterator[Bindings]:
        """Yield the row extended by the pattern's variables, once for each match."""
        yield from (found for found, _used in self._match_all(patterns, row, frozenset()))

    def _match_all(
        self, patterns: tuple[t.PathPattern, ...], row: Bindings, used: _Used
    ) -> Iterator[tuple[Bindings, _Used]]:
        if not patterns:
            yield row, used
            return
        for found, now_used in self._match_path(patterns[0], row, used):
            yield from self._match_all(patterns[1:], found, now_used)

    def _match_path(self, pattern: t.PathPattern, row: Bindings, used: _Used) -> Iterator[tuple[Bindings, _Used]]:
        first = pattern.elements[0]
        assert isinstance(first, t.NodePattern)
        starts = [row[first.name]] if first.name in row else list(self._graph.nodes.values())
        for node in starts:
            bound = self._bind_node(first, node, row)
            if bound is None:
                continue
            for found, now_used, nodes, relationships in self._extend(pattern.elements[1:], (bound, used, (node,), ())):
                path = {pattern.name: Path(nodes, relationships)} if pattern.name else {}
                yield {**found, **path}, now_used

    def _extend(self, elements: tuple[Any, ...], way: _Way) -> Iterator[_Way]:
        """Yield the partial paths that match the rest of a path."""
        if not elements:
            yield way
            return
        relationship, node, *rest = elements
        for bound, used, nodes, relationships in self._follow(relationship, way):
            with_end = self._bind_node(node, nodes[-1], bound)
            if with_end is not None:
                yield from self._extend(tuple(rest), (with_end, used, nodes, relationships))

    def _follow(self, pattern: t.RelationshipPattern, way: _Way) -> Iterator[_Way]:
        """Yield the partial paths extended by one relationship, or by a variable number."""
        least, most = (1, 1) if pattern.lengths is None else pattern.lengths
        for taken, used, nodes, relationships in self._walk(pattern, way, least if least is not None else 1, most):
            bound = way[0]
            value: Any = list(taken) if pattern.lengths is not None else taken[0]
            if pattern.name in bound and equals(bound[pattern.name], value) is not True:
                continue
            named = {**bound, pattern.name: value} if pattern.name else bound
            yield named, used, nodes, relationships

    def _walk(
        self,
        pattern: t.RelationshipPattern,
        way: _Way,
        least: int,
        most: int | None,
        taken: tuple[Relationship, ...] = (),
    ) -> Iterator[tuple[tuple[Relationship, ...], _Used, tuple[Node, ...], tuple[Relationship, ...]]]:
        bound, used, nodes, relationships = way
        if len(taken) >= least:
            yield taken, used, nodes, relationships
        if most is not None and len(taken) >= most:
            return
        for each, end in self._graph.steps(nodes[-1], pattern.direction):
            if each.key not in used and self._fits(pattern, each, bound):
                further = (bound, used | {each.key}, (*nodes, end), (*relationships, each))
                yield from self._walk(pattern, further, least, most, (*taken, each))

    def _fits(self, pattern: t.RelationshipPattern, each: Relationship, row: Bindings) -> bool:
        relation_type = each.properties["relation_type"]
        has_type = not pattern.types or "RELATES_TO" in pattern.types or relation_type in pattern.types
        return has_type and self._has(each.properties, pattern.entries, row)

    def _bind_node(self, pattern: t.NodePattern, node: Any, row: Bindings) -> Bindings | None:
        """Return the row with the node bound, or None if it does not match."""
        if node is None or (pattern.name in row and equals(row[pattern.name], node) is not True):
            return None
        fits = any if pattern.is_any and pattern.labels else all
        has_labels = fits(label in {"Entity", node.properties["type"]} for label in pattern.labels)
        if not has_labels or not self._has(node.properties, pattern.entries, row):
            return None
        return {**row, pattern.name: node} if pattern.name else row

    def _has(self, properties: dict[str, Any], entries: tuple[tuple[str, t.Expression], ...], row: Bindings) -> bool:
        return all(equals(properties.get(name), self._evaluate(value, row)) is True for name, value in entries)
