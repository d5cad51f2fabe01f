"""Clauses that write: they change the graph in place."""

from __future__ import annotations

from typing import Any

from tests.cypher.reference import tree as t
from tests.cypher.reference.expressions import Evaluator
from tests.cypher.reference.patterns import Bindings, Graph, Matcher
from tests.cypher.reference.values import NO_LABEL, CypherError, Node, Relationship, UnmodelledFeature, type_name


class Updater:
    """Runs writing clauses of one statement."""

    def __init__(self, graph: Graph, evaluator: Evaluator, matcher: Matcher) -> None:
        self._graph = graph
        self._evaluator = evaluator
        self._matcher = matcher
        self._nodes: set[str] = set()
        self._relationships: set[tuple[str, str, str]] = set()

    def run(self, clause: t.Clause, rows: list[Bindings]) -> list[Bindings]:
        """Run a clause for all rows. Raises CypherError."""
        match clause:
            case t.Create():
                return [self._create(clause.patterns, row) for row in rows]
            case t.Merge():
                return [found for row in rows for found in self._merge(clause, row)]
            case t.SetProperties():
                for row in rows:
                    self._apply(clause.assignments, row)
            case t.Remove():
                for row in rows:
                    self._remove(clause.targets, row)
            case t.Delete():
                for row in rows:
                    self._delete(clause, row)
            case _:
                raise CypherError(f"{type(clause).__name__} is not interpreted")
        return rows

    def finish(self) -> None:
        """Delete what was to be deleted. Raises CypherError if a relationship of a deleted node remains."""
        if self._nodes or self._relationships:
            self._graph.delete(self._nodes, self._relationships)

    def _create(self, patterns: tuple[t.PathPattern, ...], row: Bindings) -> Bindings:
        for pattern in patterns:
            row = self._create_path(pattern, row)
        return row

    def _create_path(self, pattern: t.PathPattern, row: Bindings) -> Bindings:
        row, ends = dict(row), list[Node]()
        for each in pattern.elements[::2]:
            assert isinstance(each, t.NodePattern)
            node = row[each.name] if each.name in row else self._create_node(each, row)
            if node is None:
                raise CypherError("an end of a relationship is null")
            ends.append(node)
            if each.name:
                row[each.name] = node
        for at, each in enumerate(pattern.elements[1::2]):
            assert isinstance(each, t.RelationshipPattern)
            source, target = (ends[at + 1], ends[at]) if each.direction == "<-" else (ends[at], ends[at + 1])
            made = self._properties(each.entries, row)
            relationship = Relationship(source.id, target.id, {"relation_type": each.types[0], **made})
            self._graph.add_relationship(relationship)
            if each.name:
                row[each.name] = relationship
        return row

    def _create_node(self, pattern: t.NodePattern, row: Bindings) -> Node:
        made = self._properties(pattern.entries, row)
        if "id" not in made:
            raise UnmodelledFeature("a generated id")
        node = Node(made["id"], {"type": pattern.labels[0] if pattern.labels else NO_LABEL, "content": "", **made})
        self._graph.add_node(node)
        return node

    def _properties(self, entries: tuple[tuple[str, t.Expression], ...], row: Bindings) -> dict[str, Any]:
        made = {name: self._evaluator.evaluate(value, row) for name, value in entries}
        return {name: _storable(value) for name, value in made.items() if value is not None}

    def _merge(self, clause: t.Merge, row: Bindings) -> list[Bindings]:
        entries = [entry for each in clause.pattern.elements for entry in each.entries]
        if any(self._evaluator.evaluate(value, row) is None for _name, value in entries):
            raise CypherError("MERGE cannot use null for a property")
        if any(each.name in row and row[each.name] is None for each in clause.pattern.elements):
            raise CypherError("MERGE cannot use null for a node")
        found = list(self._matcher.match((clause.pattern,), row))
        changes = clause.on_match
        if not found:
            found, changes = [self._create_path(clause.pattern, row)], clause.on_create
        for each in found:
            self._apply(changes, each)
        return found

    def _apply(self, changes: tuple[t.Change, ...], row: Bindings) -> None:
        for change in changes:
            match change:
                case t.Assignment():
                    element = self._evaluator.evaluate(change.target.subject, row)
                    value = self._evaluator.evaluate(change.value, row)
                    if element is not None:
                        _assign(element, {change.target.name: value})
                case t.MapAssignment():
                    self._assign_map(change, row)
                case t.LabelChange():
                    _set_label(row[change.name], change.label)

    def _assign_map(self, change: t.MapAssignment, row: Bindings) -> None:
        element, value = row[change.name], self._evaluator.evaluate(change.value, row)
        if element is None:
            return
        if isinstance(value, (Node, Relationship)):
            value = value.own
        if not isinstance(value, dict):
            raise CypherError(f"a map is needed, not {type_name(value)}")
        others = {} if change.keeps_others else dict.fromkeys(name for name in element.own if name != "id")
        _assign(element, {**others, **value})

    def _remove(self, targets: tuple[t.Property | t.LabelChange, ...], row: Bindings) -> None:
        for target in targets:
            if isinstance(target, t.LabelChange):
                node = row[target.name]
                if node is not None and node.properties["type"] == target.label:
                    node.properties["type"] = NO_LABEL
            else:
                element = self._evaluator.evaluate(target.subject, row)
                if element is not None:
                    _assign(element, {target.name: None})

    def _delete(self, clause: t.Delete, row: Bindings) -> None:
        for name in clause.names:
            match row[name]:
                case None:
                    pass
                case Node() as node:
                    self._nodes.add(node.id)
                    if clause.is_detaching:
                        self._relationships |= {each.key for each, _end in self._graph.steps(node, "-")}
                case Relationship() as relationship:
                    self._relationships.add(relationship.key)
                case other:
                    raise CypherError(f"{type_name(other)} cannot be deleted")


def _assign(element: Node | Relationship, changes: dict[str, Any]) -> None:
    for name, value in changes.items():
        if value is None and name == "content" and isinstance(element, Node):
            element.properties[name] = ""
        elif value is None:
            element.properties.pop(name, None)
        else:
            element.properties[name] = _storable(value)


def _set_label(node: Node | None, label: str) -> None:
    if node is None:
        return
    if node.properties["type"] not in {NO_LABEL, label}:
        raise CypherError("a node has one label only")
    node.properties["type"] = label


def _storable(value: Any) -> Any:
    """Return a value that a property may have. Raises CypherError for nodes, relationships and paths."""
    if isinstance(value, list):
        return [_storable(each) for each in value]
    if isinstance(value, dict):
        return {name: _storable(each) for name, each in value.items()}
    if value is not None and not isinstance(value, (bool, int, float, str)):
        raise CypherError(f"{type_name(value)} cannot be stored")
    return value
