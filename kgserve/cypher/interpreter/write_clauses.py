"""Write clauses: CREATE, MERGE, SET, REMOVE and DELETE."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeAlias

from kgserve.cypher.interpreter.expression_compiler import EvaluationEnvironment, ExpressionCompiler
from kgserve.cypher.interpreter.graph_view_interface import (
    NO_LABEL,
    CompiledExpression,
    NodeReference,
    PathValue,
    RelationshipKey,
    RelationshipReference,
    Row,
    WritableGraphView,
)
from kgserve.cypher.interpreter.marker_labels import is_marker_label
from kgserve.cypher.interpreter.opencypher_syntax_tree import (
    ComputedLabelAssignment,
    CreateClauseNode,
    DeleteClauseNode,
    ElementUpdate,
    LabelAssignment,
    LabelRemoval,
    MapExpression,
    MergeClauseNode,
    NodePatternElement,
    ParameterReference,
    PathPatternElement,
    PropertyRemoval,
    QuerySyntaxNode,
    RelationshipPatternElement,
    SetOrRemoveClauseNode,
    SetPropertiesFromMap,
    SetSingleProperty,
)
from kgserve.cypher.interpreter.pattern_matcher import GraphPatternCompiler
from kgserve.cypher.interpreter.pattern_model import build_graph_path, require_pattern_parameter_map
from kgserve.cypher.interpreter.value_comparison import describe_value, describe_value_type, get_cypher_value_properties
from kgserve.errors import InvalidInput

RowUpdate: TypeAlias = Callable[[Row], None]
RowCreator: TypeAlias = Callable[[Row], Row]
PropertyReader: TypeAlias = Callable[[Row], dict[str, Any]]


class WriteClauseCompiler:
    """Compiles clauses that write to functions over rows."""

    def __init__(
        self, environment: EvaluationEnvironment, compiler: ExpressionCompiler, matcher: GraphPatternCompiler
    ) -> None:
        """Raise InvalidInput if the graph cannot be written."""
        if not isinstance(environment.graph, WritableGraphView):
            raise InvalidInput("this statement writes, and writing is not possible here")
        self.graph: WritableGraphView = environment.graph
        self.limits = environment.limits
        self.compiler = compiler
        self.matcher = matcher

    # CREATE and MERGE

    def compile_create(self, stage: CreateClauseNode) -> RowCreator:
        """Compile CREATE to a function that returns the row with the new elements."""
        creators = [self._compile_path(path) for path in stage.paths]

        def create(row: Row) -> Row:
            new = {**row}
            for each in creators:
                each(new)
            return new

        return create

    def compile_merge(self, stage: MergeClauseNode) -> Callable[[Row], Iterator[Row]]:
        """Compile MERGE to a function that yields the rows of all matches, or of the created path."""
        match = self.matcher.compile_pattern((stage.path,), None)
        create = self._compile_path(stage.path)
        check = self._compile_null_check(stage.path)
        on_create = [self.compile_update(update) for update in stage.on_create]
        on_match = [self.compile_update(update) for update in stage.on_match]

        def merge(row: Row) -> Iterator[Row]:
            check(row)
            found = list(match(row))
            updates = on_match
            if not found:
                new = {**row}
                create(new)
                found, updates = [new], on_create
            for each in found:
                for update in updates:
                    update(each)
            yield from found

        return merge

    def _compile_null_check(self, path: PathPatternElement) -> RowUpdate:
        """Return a function that raises InvalidInput if a property to merge is null."""
        elements = [*path.nodes, *path.relationships]
        readers = [
            (each, self._compile_properties(each.properties)) for each in elements if each.properties is not None
        ]

        def check(row: Row) -> None:
            for element, read in readers:
                for name, value in read(row).items():
                    if value is None:
                        raise self._fault(f"MERGE cannot use null for property {name!r}; it would never match", element)

        return check

    def _compile_path(self, path: PathPatternElement) -> RowUpdate:
        nodes = [self._compile_node(element) for element in path.nodes]
        relationships = [self._compile_relationship(element) for element in path.relationships]
        name, graph = path.name, self.graph

        def create(row: Row) -> None:
            ids = [node(row) for node in nodes]
            keys = [relationship(row, ids[index], ids[index + 1]) for index, relationship in enumerate(relationships)]
            if name:
                row[name] = build_graph_path(graph, ids[0], keys)

        return create

    def _compile_node(self, element: NodePatternElement) -> Callable[[Row], str]:
        """Return a function that creates a node unless the row has it, and returns its id."""
        name, graph = element.name, self.graph
        label = self._read_label(element.labels, element) if not element.is_any else self._refuse_alternatives(element)
        read = self._compile_properties(element.properties)

        def create(row: Row) -> str:
            if name and name in row:
                value = row[name]
                if type(value) is NodeReference:
                    return value.id
                raise self._fault(f"no relationship can be created at {name}: it is {_describe_end(value)}", element)
            properties = read(row)
            self.limits.hold(1 + len(properties))
            try:
                node_id = graph.create_node(label, properties)
            except InvalidInput as error:
                raise self.compiler.locate(error, element) from None
            if name:
                row[name] = NodeReference(graph, node_id)
            return node_id

        return create

    def _compile_relationship(self, element: RelationshipPatternElement) -> Callable[[Row, str, str], RelationshipKey]:
        if len(set(element.types)) != 1 or element.lengths is not None:
            raise self._fault("a relationship to create has exactly one type and no length: -[:TYPE]->", element)
        name, type_, graph, is_reverse = element.name, element.types[0], self.graph, element.direction == "<"
        read = self._compile_properties(element.properties)

        def create(row: Row, left: str, right: str) -> RelationshipKey:
            source, target = (right, left) if is_reverse else (left, right)
            properties = read(row)
            self.limits.hold(1 + len(properties))
            try:
                key = graph.create_relationship(source, target, type_, properties)
            except InvalidInput as error:
                raise self.compiler.locate(error, element) from None
            if name:
                row[name] = RelationshipReference(graph, key)
            return key

        return create

    def _compile_properties(self, properties: MapExpression | ParameterReference | None) -> PropertyReader:
        if properties is None:
            return lambda _: {}
        if isinstance(properties, ParameterReference):
            value = self.compiler.compile(properties)
            return lambda row: require_pattern_parameter_map(value(row))
        entries = [(name, self.compiler.compile(tree)) for name, tree in properties.entries]
        return lambda row: {name: value(row) for name, value in entries}

    def _read_label(self, labels: tuple[str, ...], element: QuerySyntaxNode) -> str:
        names = list(dict.fromkeys(labels))
        if len(names) > 1:
            others = " and ".join(map(repr, names[1:]))
            raise self._fault(
                f"a node has one label: keep {names[0]!r} and put {others} into a property, or omit it", element
            )
        if NO_LABEL in names:
            raise self._fault(f"the label {NO_LABEL!r} is reserved for nodes without a label", element)
        return names[0] if names else NO_LABEL

    def _refuse_alternatives(self, element: NodePatternElement) -> NoReturn:
        raise self._fault("a node to create has one label: write :A instead of :A|B", element)

    # SET and REMOVE

    def compile_updates(self, stage: SetOrRemoveClauseNode) -> RowUpdate:
        """Compile SET or REMOVE."""
        updates = [self.compile_update(update) for update in stage.updates]

        def run(row: Row) -> None:
            for update in updates:
                update(row)

        return run

    def compile_update(self, update: ElementUpdate) -> RowUpdate:
        """Compile one update of a node or relationship; null is ignored."""
        run = self._compile_element_update(update)

        def located(row: Row) -> None:
            try:
                run(row)
            except InvalidInput as error:
                raise self.compiler.locate(error, update) from None

        return located

    def _compile_element_update(self, update: ElementUpdate) -> RowUpdate:
        match update:
            case SetSingleProperty() | PropertyRemoval():
                return self._compile_property_update(update)
            case SetPropertiesFromMap():
                return self._compile_map_assignment(update)
            case LabelAssignment():
                label = self._read_label(update.labels, update)
                return lambda row: self._add_label(row[update.name], update.name, label)
            case ComputedLabelAssignment():
                return self._compile_computed_labels(update)
            case LabelRemoval():
                return lambda row: self._remove_labels(row[update.name], update.name, update.labels)

    def _compile_property_update(self, update: SetSingleProperty | PropertyRemoval) -> RowUpdate:
        subject, name = self.compiler.compile(update.subject), self.compiler.compile(update.name)
        value: CompiledExpression = (
            self.compiler.compile(update.value) if isinstance(update, SetSingleProperty) else lambda _: None
        )

        def run(row: Row) -> None:
            element = subject(row)
            if element is None:
                return
            key = name(row)
            if not isinstance(key, str):
                raise InvalidInput(f"the name of a property must be a string, not {describe_value_type(key)}")
            self._set_property(element, key, value(row))

        return run

    def _set_property(self, element: Any, name: str, value: Any) -> None:
        if type(element) is NodeReference:
            self.graph.set_node_property(element.id, name, value)
        elif type(element) is RelationshipReference:
            self.graph.set_relationship_property(element.key, name, value)
        else:
            raise InvalidInput(
                f"only nodes and relationships have properties to change, not {describe_value_type(element)}"
            )

    def _compile_map_assignment(self, update: SetPropertiesFromMap) -> RowUpdate:
        value, name, keeps_others = self.compiler.compile(update.value), update.name, update.keeps_others

        def run(row: Row) -> None:
            element = row[name]
            if element is None:
                return
            source = value(row)
            if type(element) not in (NodeReference, RelationshipReference):
                raise InvalidInput(f"{name} must be a node or relationship, not {describe_value_type(element)}")
            if source is None or not isinstance(source, dict | NodeReference | RelationshipReference):
                raise InvalidInput(f"SET {name} expects a map, node or relationship, not {describe_value_type(source)}")
            self._set_properties(element, source, keeps_others=keeps_others)

        return run

    def _set_properties(
        self, element: NodeReference | RelationshipReference, source: Any, *, keeps_others: bool
    ) -> None:
        new = get_cypher_value_properties(source) or {}
        if isinstance(source, NodeReference) and isinstance(element, NodeReference):
            new = {name: value for name, value in new.items() if name != "id"}
        if not keeps_others:
            old = get_cypher_value_properties(element) or {}
            kept: set[str] = {"id", "type"} if isinstance(element, NodeReference) else set()
            new = {**{name: None for name in old if name not in kept}, **new}
        for name, value in new.items():
            self._set_property(element, name, value)

    def _compile_computed_labels(self, update: ComputedLabelAssignment) -> RowUpdate:
        value, name = self.compiler.compile(update.value), update.name

        def run(row: Row) -> None:
            found = value(row)
            node_id = self._check_node(row[name], name)
            for label in found if isinstance(found, list) else [found]:
                if not isinstance(label, str) or label in {"", NO_LABEL}:
                    raise InvalidInput(f"a label must be a string that is not empty, not {describe_value(label)}")
                if is_marker_label(label) and node_id is not None:
                    self.graph.set_node_property(node_id, label, value=True)
                elif not is_marker_label(label):
                    self._add_label(row[name], name, label)

        return run

    def _add_label(self, element: Any, name: str, label: str) -> None:
        node_id = self._check_node(element, name)
        if node_id is None:
            return
        present = self._get_label(node_id)
        if present == NO_LABEL:
            self.graph.set_node_label(node_id, label)
        elif present != label:
            raise InvalidInput(
                f"node {node_id!r} has the label {present!r} already, and a node has one label; "
                f"REMOVE {name}:{present} first, or SET {name}.type = {label!r} to change it"
            )

    def _remove_labels(self, element: Any, name: str, labels: tuple[str, ...]) -> None:
        node_id = self._check_node(element, name)
        if node_id is not None and self._get_label(node_id) in labels:
            self.graph.set_node_label(node_id, NO_LABEL)

    def _get_label(self, node_id: str) -> str:
        label = self.graph.node_label(node_id)
        if label is None:
            raise InvalidInput(f"node {node_id!r} was deleted by this statement; its labels cannot change")
        return label

    def _check_node(self, element: Any, name: str) -> str | None:
        if element is None:
            return None
        if type(element) is not NodeReference:
            raise InvalidInput(f"only nodes have labels, and {name} is {describe_value_type(element)}")
        return element.id

    # DELETE

    def compile_delete(self, stage: DeleteClauseNode) -> Callable[[list[Row]], None]:
        """Compile DELETE to a function over all rows: it evaluates all of them before it deletes anything."""
        values = [(tree, self.compiler.compile(tree)) for tree in stage.values]

        def run(rows: list[Row]) -> None:
            found = [(tree, value(row)) for row in rows for tree, value in values]
            for tree, element in found:
                self._delete(element, tree, is_detaching=stage.is_detaching)

        return run

    def _delete(self, element: Any, tree: QuerySyntaxNode, *, is_detaching: bool) -> None:
        match element:
            case None:
                return
            case NodeReference():
                if is_detaching:
                    self.graph.detach_node(element.id)
                self.graph.delete_node(element.id)
            case RelationshipReference():
                self.graph.delete_relationship(element.key)
            case PathValue():
                for each in (*element.relationships, *element.nodes):
                    self._delete(each, tree, is_detaching=is_detaching)
            case _:
                raise self._fault(
                    f"DELETE expects nodes, relationships and paths, not {describe_value_type(element)}; "
                    "for the elements of a list, use UNWIND or FOREACH",
                    tree,
                )

    def _fault(self, message: str, tree: QuerySyntaxNode) -> InvalidInput:
        return self.compiler.locate(InvalidInput(message), tree)


def _describe_end(value: Any) -> str:
    return "null" if value is None else describe_value_type(value)
