"""Checks of patterns before a statement runs: which variables they bind, use and must not repeat."""

from __future__ import annotations

from typing import Literal

from typing_extensions import override

from kgserve.cypher.interpreter.expression_checks import ExpressionChecker, ExpressionScope
from kgserve.cypher.interpreter.opencypher_syntax_tree import (
    LiteralValue,
    MapExpression,
    NodePatternElement,
    ParameterReference,
    PathPatternElement,
    RelationshipPatternElement,
)
from kgserve.cypher.interpreter.static_value_types import (
    NODE_KIND,
    PATH_KIND,
    RELATIONSHIP_KIND,
    RELATIONSHIP_LIST_KIND,
    StaticValueType,
)

MAX_PATTERN_ELEMENTS = 200
MAX_MATCHED_ELEMENTS = 1_000

Names = dict[str, StaticValueType]
"""Kinds of variables by name."""


class GraphPatternChecker(ExpressionChecker):
    """Checks the graph patterns of a statement before it runs, and declares the variables that they bind."""

    _matched_count = 0

    # Patterns to match

    @override
    def declare_match(self, paths: tuple[PathPatternElement, ...], names: Names) -> None:
        self._count_elements(paths)
        relationships: set[str] = set()
        for path in paths:
            self._declare_path_name(path, names)
            for node in path.nodes:
                self._use_node(node, names)
            for relationship in path.relationships:
                if relationship.name and relationship.name in relationships:
                    message = f"the relationship variable {relationship.name} occurs twice in one pattern"
                    raise self.fail(relationship.position, message)
                relationships.add(relationship.name)
                self._use_relationship(relationship, names)
        for path in paths:
            self._check_matched_elements(path, ExpressionScope(names))

    def _count_elements(self, paths: tuple[PathPatternElement, ...]) -> None:
        """Limit the size of patterns; the time to plan one grows with its square."""
        count = sum(len(path.nodes) + len(path.relationships) for path in paths)
        self._matched_count += count
        if count > MAX_PATTERN_ELEMENTS:
            message = (
                f"a pattern to match may have at most {MAX_PATTERN_ELEMENTS} nodes and relationships; this one has"
            )
            raise self.fail(paths[0].position, f"{message} {count}")
        if self._matched_count > MAX_MATCHED_ELEMENTS:
            message = f"all patterns to match may have at most {MAX_MATCHED_ELEMENTS} nodes and relationships together"
            raise self.fail(paths[0].position, f"{message}; exceeded")

    @override
    def check_bound_path(self, path: PathPatternElement, scope: ExpressionScope) -> None:
        for element in (*path.nodes, *path.relationships):
            if element.name and element.name not in scope.names:
                what = f"variable {element.name} is not defined; a pattern in an expression cannot introduce it"
                raise self.fail(element.position, f"{what}, but EXISTS {{ }} can")
        self.declare_match((path,), dict(scope.names))

    def _declare_path_name(self, path: PathPatternElement, names: Names) -> None:
        if path.name:
            self.declare(path.name, PATH_KIND, path.position, names)

    def declare(self, name: str, kind: StaticValueType, position: int, names: Names) -> None:
        """Add a variable. Raises InvalidInput if it exists already."""
        if name in names:
            raise self.fail(position, f"variable {name} is already defined; choose another name")
        names[name] = kind

    def _use_node(self, node: NodePatternElement, names: Names) -> None:
        if node.name:
            self._use(node.name, NODE_KIND, node.position, names)

    def _use_relationship(self, relationship: RelationshipPatternElement, names: Names) -> None:
        if relationship.name:
            kind = RELATIONSHIP_KIND if relationship.lengths is None else RELATIONSHIP_LIST_KIND
            self._use(relationship.name, kind, relationship.position, names)

    def _use(self, name: str, kind: StaticValueType, position: int, names: Names) -> None:
        """Bind a variable to a kind of element, or use one that is bound. Raises InvalidInput for another kind."""
        known = names.setdefault(name, kind)
        if known == kind:
            return
        element_fits = known.element is None or known.element.is_one_of("relationship")
        if known.is_one_of(kind.name) and (kind.element is None or element_fits):
            names[name] = kind
            return
        described = "a list of relationships" if kind.element else kind.describe()
        raise self.fail(position, f"variable {name} is {known.describe()}; it cannot also be {described}")

    def _check_matched_elements(self, path: PathPatternElement, scope: ExpressionScope) -> None:
        for element in (*path.nodes, *path.relationships):
            if isinstance(element.properties, ParameterReference):
                raise self.fail(
                    element.properties.position,
                    "a parameter cannot be the properties of a pattern to match; name them, as in {id: $id}",
                )
            self._check_properties(element, scope)
            if element.where is not None:
                self.check_condition(element.where, scope, "a condition in a pattern")

    def _check_properties(
        self, element: NodePatternElement | RelationshipPatternElement, scope: ExpressionScope
    ) -> None:
        if isinstance(element.properties, MapExpression):
            self.check(element.properties, scope)

    # Patterns to create

    def declare_create(self, paths: tuple[PathPatternElement, ...], names: Names) -> None:
        """Add the variables of CREATE, and check its patterns. Raises InvalidInput."""
        for path in paths:
            for element in (*path.nodes, *path.relationships):
                self._check_properties(element, ExpressionScope(names))
            self._declare_written_path(path, names, "CREATE")
            for relationship in path.relationships:
                if not relationship.direction:
                    message = "CREATE needs the direction of a relationship, as in (a)-[:TYPE]->(b)"
                    raise self.fail(relationship.position, message)

    def declare_merge(self, path: PathPatternElement, names: Names) -> None:
        """Add the variables of MERGE, and check its pattern. Raises InvalidInput."""
        for element in (*path.nodes, *path.relationships):
            if isinstance(element.properties, ParameterReference):
                raise self.fail(
                    element.properties.position,
                    "a parameter cannot be the properties of MERGE; name them, as in MERGE (n {id: $id})",
                )
            self._check_properties(element, ExpressionScope(names))
            self._check_merged_properties(element)
        self._declare_written_path(path, names, "MERGE")

    def _check_merged_properties(self, element: NodePatternElement | RelationshipPatternElement) -> None:
        for key, value in element.properties.entries if isinstance(element.properties, MapExpression) else ():
            if isinstance(value, LiteralValue) and value.value is None:
                raise self.fail(value.position, f"MERGE cannot find the property {key} with the value null")

    def _declare_written_path(self, path: PathPatternElement, names: Names, clause: Literal["CREATE", "MERGE"]) -> None:
        if path.shortest:
            raise self.fail(path.position, f"{clause} cannot create a shortest path")
        self._declare_path_name(path, names)
        for node in path.nodes:
            self._declare_written_node(node, path, names, clause)
        for relationship in path.relationships:
            self._check_written_relationship(relationship, clause)
            if relationship.name:
                self.declare(relationship.name, RELATIONSHIP_KIND, relationship.position, names)

    def _declare_written_node(
        self, node: NodePatternElement, path: PathPatternElement, names: Names, clause: str
    ) -> None:
        if node.where is not None:
            raise self.fail(node.position, f"WHERE is not allowed in a pattern of {clause}")
        if node.is_any:
            raise self.fail(node.position, f"{clause} needs one label, not alternatives")
        if node.name in names:
            if not path.relationships:
                raise self.fail(node.position, f"variable {node.name} is already defined; {clause} cannot create it")
            if node.labels or node.properties is not None:
                message = f"variable {node.name} is already defined; {clause} cannot give it labels or properties"
                raise self.fail(node.position, message)
        self._use_node(node, names)

    def _check_written_relationship(self, relationship: RelationshipPatternElement, clause: str) -> None:
        if relationship.lengths is not None:
            raise self.fail(relationship.position, f"{clause} cannot create relationships of variable length")
        if len(relationship.types) != 1:
            message = f"{clause} needs exactly one type for a relationship, as in (a)-[:TYPE]->(b)"
            raise self.fail(relationship.position, message)
        if relationship.where is not None:
            raise self.fail(relationship.position, f"WHERE is not allowed in a pattern of {clause}")
