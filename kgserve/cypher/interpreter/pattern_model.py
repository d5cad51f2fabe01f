"""Model of a graph pattern: its slots and conditions, before the order of matching is planned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, TypeAlias, cast

import msgspec

from kgserve.cypher.interpreter.expression_compiler import ExpressionCompiler
from kgserve.cypher.interpreter.graph_view_interface import (
    NO_LABEL,
    CompiledExpression,
    NodeReference,
    PathValue,
    RelationshipKey,
    RelationshipReference,
    Row,
    StatementGraphView,
)
from kgserve.cypher.interpreter.marker_labels import is_marker_label
from kgserve.cypher.interpreter.opencypher_syntax_tree import (
    BinaryExpression,
    ComparisonChain,
    FunctionInvocation,
    LabelPredicate,
    MapExpression,
    NodePatternElement,
    ParameterReference,
    PathPatternElement,
    PropertyAccessNode,
    QueryExpression,
    RelationshipPatternElement,
    SubqueryExpressionNode,
    VariableReference,
    iterate_syntax_tree,
)
from kgserve.cypher.interpreter.value_comparison import are_values_equal, describe_value_type
from kgserve.errors import InvalidInput

_VOLATILE_FUNCTIONS = frozenset({"rand", "randomuuid", "realtime"})


class PartialPatternMatch:
    """Partial match of a pattern: the row with the variables bound so far, and nodes and relationships by slot.

    A relationship of variable length is a tuple of keys in the order of the pattern. ``used`` has the relationships
    that cannot be matched again.
    """

    __slots__ = ("links", "nodes", "row", "used")

    def __init__(self, row: Row, node_count: int, relationship_count: int) -> None:
        self.row = row
        self.nodes: list[str] = [""] * node_count
        self.links: list[RelationshipKey | tuple[RelationshipKey, ...]] = [()] * relationship_count
        self.used: set[RelationshipKey] = set()


StateTest: TypeAlias = Callable[[PartialPatternMatch], bool]
RelationshipTest: TypeAlias = Callable[[PartialPatternMatch, RelationshipKey], bool]


class PartialPatternMatchCondition(msgspec.Struct, frozen=True):
    """Condition on a partial match that binds all ``required`` names."""

    required: frozenset[str]
    test: StateTest


class NodePropertyEquality(msgspec.Struct, frozen=True):
    """Condition that a property of a node equals an expression, or an element of it if ``is_list``.

    ``key`` replaces the property: an expression over nothing but the node.
    """

    name: str
    value: CompiledExpression
    required: frozenset[str]
    is_list: bool = False
    key: CompiledExpression | None = None


class PatternNodeSlot(msgspec.Struct):
    """Node of a pattern; elements with the same variable share a slot.

    ``labels`` are the allowed labels, None for any.
    """

    name: str
    index: int
    is_named: bool
    labels: frozenset[str] | None = None
    lookups: list[NodePropertyEquality] = msgspec.field(default_factory=list[NodePropertyEquality])

    def restrict_labels(self, allowed: frozenset[str] | None) -> None:
        """Allow only some labels; None for any."""
        if allowed is not None:
            self.labels = allowed if self.labels is None else self.labels & allowed


class PatternRelationshipSlot(msgspec.Struct):
    """Relationship of a pattern between the node slots ``left`` and ``right``.

    ``tests`` hold for every relationship of a variable length, and need the ``required`` names.
    """

    name: str
    index: int
    is_named: bool
    element: RelationshipPatternElement
    left: int
    right: int
    types: tuple[str, ...]
    shortest: str = ""
    path_name: str = ""
    tests: list[RelationshipTest] = msgspec.field(default_factory=list[RelationshipTest])
    required: frozenset[str] = frozenset()

    @property
    def is_variable(self) -> bool:
        """True if the relationship matches a sequence of relationships."""
        return self.element.lengths is not None

    @property
    def bounds(self) -> tuple[int, int | None]:
        """Least and greatest number of relationships; the latter is None if open."""
        if self.element.lengths is None:
            return 1, 1
        least, most = self.element.lengths
        return 1 if least is None else least, most


class PatternPathSlot(msgspec.Struct, frozen=True):
    """Named path and the slots that it consists of."""

    name: str
    nodes: tuple[int, ...]
    relationships: tuple[int, ...]
    required: frozenset[str]


class GraphPatternModel:
    """Model of the graph patterns of one clause: the slots and conditions of their paths."""

    def __init__(
        self,
        graph: StatementGraphView,
        compiler: ExpressionCompiler,
        paths: tuple[PathPatternElement, ...],
        where: QueryExpression | None,
    ) -> None:
        self.graph = graph
        self.nodes: list[PatternNodeSlot] = []
        self.relationships: list[PatternRelationshipSlot] = []
        self.paths: list[PatternPathSlot] = []
        self.checks: list[PartialPatternMatchCondition] = []
        self._compiler = compiler
        self._slots: dict[str, PatternNodeSlot] = {}
        self.names = find_pattern_variables(paths)
        for path in paths:
            self._add_path(path)
        if where is not None:
            self._add_conditions(where)

    def _add_path(self, path: PathPatternElement) -> None:
        slots = [self._add_node(element) for element in path.nodes]
        first = len(self.relationships)
        for position, element in enumerate(path.relationships):
            self._add_relationship(element, slots[position], slots[position + 1], path)
        if path.name and not path.shortest:
            added = self.relationships[first:]
            self.paths.append(
                PatternPathSlot(
                    path.name,
                    tuple(slot.index for slot in slots),
                    tuple(slot.index for slot in added),
                    frozenset(slot.name for slot in (*slots, *added)),
                )
            )

    def _add_node(self, element: NodePatternElement) -> PatternNodeSlot:
        slot = self._slots.get(element.name) if element.name else None
        if slot is None:
            index = len(self.nodes)
            slot = PatternNodeSlot(element.name or f" node {index}", index, bool(element.name))
            self.nodes.append(slot)
            if element.name:
                self._slots[element.name] = slot
        slot.restrict_labels(find_labels_allowed_by_node_pattern(element.labels, is_any=element.is_any))
        self._add_node_properties(slot, element.properties)
        if element.where is not None:
            self._add_conditions(element.where)
        return slot

    def _add_node_properties(
        self, slot: PatternNodeSlot, properties: MapExpression | ParameterReference | None
    ) -> None:
        graph, index = self.graph, slot.index
        if isinstance(properties, ParameterReference):
            entries = self._compiler.compile(properties)

            def test_all(state: PartialPatternMatch) -> bool:
                found = require_pattern_parameter_map(entries(state.row))
                return all(
                    are_values_equal(graph.node_property(state.nodes[index], name), value) is True
                    for name, value in found.items()
                )

            self.checks.append(PartialPatternMatchCondition(frozenset((slot.name,)), test_all))
        elif properties is not None:
            for name, tree in properties.entries:
                value = self._compiler.compile(tree)
                required = self._find_required(tree)
                slot.lookups.append(NodePropertyEquality(name, value, required))
                self.checks.append(
                    PartialPatternMatchCondition(required | {slot.name}, _build_node_test(graph, index, name, value)),
                )

    def _add_relationship(
        self,
        element: RelationshipPatternElement,
        left: PatternNodeSlot,
        right: PatternNodeSlot,
        path: PathPatternElement,
    ) -> None:
        index = len(self.relationships)
        name = element.name or f" relationship {index}"
        slot = PatternRelationshipSlot(
            name=name,
            index=index,
            is_named=bool(element.name),
            element=element,
            left=left.index,
            right=right.index,
            types=tuple(dict.fromkeys(element.types)),
            shortest=path.shortest,
            path_name=path.name if path.shortest else "",
        )
        self.relationships.append(slot)
        for test, required in self._build_relationship_tests(element):
            slot.tests.append(test)
            slot.required |= required

    def _build_relationship_tests(
        self, element: RelationshipPatternElement
    ) -> Iterator[tuple[RelationshipTest, frozenset[str]]]:
        graph, properties = self.graph, element.properties
        if isinstance(properties, ParameterReference):
            entries = self._compiler.compile(properties)

            def test_all(state: PartialPatternMatch, key: RelationshipKey) -> bool:
                found = require_pattern_parameter_map(entries(state.row))
                return all(
                    are_values_equal(graph.relationship_property(key, name), value) is True
                    for name, value in found.items()
                )

            yield test_all, frozenset()
        elif properties is not None:
            for name, tree in properties.entries:
                yield (
                    _build_relationship_test(graph, name, self._compiler.compile(tree)),
                    self._find_required(tree) - {element.name},
                )
        if element.where is not None:
            condition = self._compiler.compile_condition(element.where)
            variable = element.name

            def test_where(state: PartialPatternMatch, key: RelationshipKey) -> bool:
                row = {**state.row, variable: RelationshipReference(graph, key)} if variable else state.row
                return condition(row) is True

            yield test_where, self._find_required(element.where) - {element.name}

    def _add_conditions(self, where: QueryExpression) -> None:
        for tree in split_conjunction(where):
            condition = self._compiler.compile_condition(tree)
            self.checks.append(PartialPatternMatchCondition(self._find_required(tree), _build_row_test(condition)))
            self._add_lookups(tree)
            found = _find_labels(tree)
            if found is not None and found[0] in self._slots:
                self._slots[found[0]].restrict_labels(found[1])

    def _add_lookups(self, tree: QueryExpression) -> None:
        """Use ``n.name = value`` and ``n.name IN list`` to find nodes."""
        if isinstance(tree, ComparisonChain) and len(tree.rest) == 1 and tree.rest[0][0] == "=":
            other = tree.rest[0][1]
            self._add_lookup(tree.first, other, is_list=False)
            self._add_lookup(other, tree.first, is_list=False)
        elif isinstance(tree, BinaryExpression) and tree.operator == "IN":
            self._add_lookup(tree.left, tree.right, is_list=True)

    def _add_lookup(self, subject: QueryExpression, value: QueryExpression, *, is_list: bool) -> None:
        variables = find_variable_names(subject)
        slot = self._slots.get(next(iter(variables))) if len(variables) == 1 else None
        required = self._find_required(value)
        if slot is None or slot.name in required:
            return
        name = _find_property(subject)
        if name is not None:
            slot.lookups.append(NodePropertyEquality(name, self._compiler.compile(value), required, is_list))
        elif required and _is_pure(subject):
            key = self._compiler.compile(subject)
            slot.lookups.append(NodePropertyEquality("", self._compiler.compile(value), required, is_list, key))

    def _find_required(self, tree: object) -> frozenset[str]:
        return find_variable_names(tree) & self.names


def find_variable_names(tree: object) -> frozenset[str]:
    """Find the names of all variables in a syntax tree, including those that it binds itself."""
    return frozenset(_iterate_names(tree))


def _iterate_names(tree: object) -> Iterator[str]:
    for node in iterate_syntax_tree(tree):
        if (
            isinstance(node, VariableReference | NodePatternElement | RelationshipPatternElement | PathPatternElement)
            and node.name
        ):
            yield node.name


def find_pattern_variables(paths: tuple[PathPatternElement, ...]) -> frozenset[str]:
    """Return the variables of the nodes, relationships and paths of a pattern."""
    elements = ((path, *path.nodes, *path.relationships) for path in paths)
    return frozenset(each.name for some in elements for each in some if each.name)


def split_conjunction(tree: QueryExpression) -> Iterator[QueryExpression]:
    """Split a condition into the parts that AND connects at its top."""
    if isinstance(tree, BinaryExpression) and tree.operator == "AND":
        yield from split_conjunction(tree.left)
        yield from split_conjunction(tree.right)
    else:
        yield tree


def find_labels_allowed_by_node_pattern(labels: tuple[str, ...], *, is_any: bool) -> frozenset[str] | None:
    """Find the labels that a node of a pattern may have; None for any. Two required labels leave none."""
    if not labels:
        return None
    found = frozenset(labels) - {NO_LABEL}
    return found if is_any or len(set(labels)) == 1 else frozenset()


def require_pattern_parameter_map(value: Any) -> dict[str, Any]:
    """Return the properties parameter of a pattern. Raises InvalidInput unless it is a map."""
    if not isinstance(value, dict):
        raise InvalidInput(f"the properties of a pattern must be a map, not {describe_value_type(value)}")
    return cast("dict[str, Any]", value)


def build_graph_path(
    graph: StatementGraphView, start: str, links: Iterable[RelationshipKey | tuple[RelationshipKey, ...]]
) -> PathValue:
    """Build a path from its first node and its relationships in order."""
    current = start
    nodes = [NodeReference(graph, start)]
    relationships: list[RelationshipReference] = []
    for link in links:
        keys: Any = (link,) if link and isinstance(link[0], str) else link
        for key in keys:
            current = key[1] if key[0] == current else key[0]
            nodes.append(NodeReference(graph, current))
            relationships.append(RelationshipReference(graph, key))
    return PathValue(tuple(nodes), tuple(relationships))


def raise_variable_type_error(name: str, expected: str, value: Any) -> NoReturn:
    """Raise InvalidInput for a variable in a pattern whose value has the wrong type."""
    raise InvalidInput(f"variable {name} in a pattern must be {expected}, not {describe_value_type(value)}")


def _find_labels(tree: QueryExpression) -> tuple[str, frozenset[str]] | None:
    """Return the variable and the labels of ``n:A`` and ``n:A OR n:B``."""
    if isinstance(tree, LabelPredicate) and isinstance(tree.subject, VariableReference):
        if any(map(is_marker_label, tree.labels)):
            return None
        return tree.subject.name, find_labels_allowed_by_node_pattern(tree.labels, is_any=tree.is_any) or frozenset()
    if not isinstance(tree, BinaryExpression) or tree.operator != "OR":
        return None
    left, right = _find_labels(tree.left), _find_labels(tree.right)
    if left is None or right is None or left[0] != right[0]:
        return None
    return left[0], left[1] | right[1]


def _find_property(tree: QueryExpression) -> str | None:
    """Return the name of ``n.name``; ``elementId(n)`` is ``n.id``."""
    if isinstance(tree, PropertyAccessNode):
        return tree.name if isinstance(tree.subject, VariableReference) else None
    if isinstance(tree, FunctionInvocation) and tree.name == "elementid" and len(tree.arguments) == 1:
        return "id" if isinstance(tree.arguments[0], VariableReference) else None
    return None


def _is_pure(tree: QueryExpression) -> bool:
    """Return whether an expression depends on nothing but properties, and is not a variable itself."""
    return not isinstance(tree, VariableReference) and not any(
        isinstance(node, PathPatternElement | SubqueryExpressionNode)
        or (isinstance(node, FunctionInvocation) and node.name.rpartition(".")[2] in _VOLATILE_FUNCTIONS)
        for node in iterate_syntax_tree(tree)
    )


def _build_node_test(graph: StatementGraphView, index: int, name: str, value: CompiledExpression) -> StateTest:
    def test(state: PartialPatternMatch) -> bool:
        return are_values_equal(graph.node_property(state.nodes[index], name), value(state.row)) is True

    return test


def _build_relationship_test(graph: StatementGraphView, name: str, value: CompiledExpression) -> RelationshipTest:
    def test(state: PartialPatternMatch, key: RelationshipKey) -> bool:
        return are_values_equal(graph.relationship_property(key, name), value(state.row)) is True

    return test


def _build_row_test(condition: CompiledExpression) -> StateTest:
    def test(state: PartialPatternMatch) -> bool:
        return condition(state.row) is True

    return test
