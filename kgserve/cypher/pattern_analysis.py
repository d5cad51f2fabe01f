"""Pattern analysis: variable binding, and rewrites so that the engine matches patterns as openCypher defines.

openCypher uses no relationship twice within one MATCH. The engines do, so conditions on relationship ids are added, and
paths of variable length are matched as trails.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import msgspec
from typing_extensions import override

from kgserve.cypher.analysis_context import (
    ASSUMES_FEW_RELATIONS,
    ASSUMES_NO_SELF_LOOPS,
    CypherAnalysisContext,
    CypherVariableType,
    VariableScope,
    strip_parentheses,
)
from kgserve.cypher.column_assumptions import (
    LABEL_PROPERTY,
    assume_column_is_property,
    is_label,
    is_no_label,
    note_label_comparisons,
)
from kgserve.cypher.expression_parser import AND
from kgserve.cypher.lexer import KEYWORDS
from kgserve.cypher.operator_rewrites import OperatorChecksAndRewrites, can_engine_compare_types
from kgserve.cypher.syntax_tree import (
    Expression,
    FunctionCall,
    Literal,
    MapLiteral,
    MatchClause,
    NodePattern,
    OperatorChain,
    PatternPath,
    PatternPredicate,
    PostfixExpression,
    PropertyAccess,
    RelationPattern,
    StatementTokenRange,
    SubqueryExpression,
    Variable,
    iterate_syntax_nodes,
)
from kgserve.cypher.type_inference import PatternExpressionAnalyzer, TypeInference
from kgserve.cypher.types import EDGE_COLUMN_TYPES, ELSEWHERE_COLUMN_TYPES, NODE_COLUMN_TYPES, CypherStaticType

_NODE_TABLES = frozenset({"Entity", "Elsewhere"})
_RELATION_TABLES = frozenset({"RELATES_TO", "LINKS_TO"})
_TABLES_IN_LOWER_CASE = frozenset({"storecommit", *map(str.lower, _NODE_TABLES | _RELATION_TABLES)})
_UNKNOWN_ANCHOR = "?"
"""Anchor of an optional path for which no variable indicates a missing match."""

_ENGINE_LABELS = "the engine's own functions and forms work with :Entity and :RELATES_TO only"


class _MatchedRelation(msgspec.Struct):
    """Relationship of a pattern, and the variable used to compare it with others, once needed."""

    pattern: RelationPattern
    name: str
    kind: str | None


class GraphPatternAnalyzer(PatternExpressionAnalyzer):
    """Analysis of patterns, which binds their variables in a scope."""

    def __init__(self, context: CypherAnalysisContext) -> None:
        self._context = context
        self.typer = TypeInference(context, self)
        self._bound_before = frozenset[str]()

    def start(self, scope: VariableScope) -> None:
        """Record the variables bound before a MATCH."""
        self._bound_before = frozenset(scope.bindings)

    def read_match(self, match: MatchClause, scope: VariableScope, *, counts_rows: bool = True) -> None:
        """Analyse a MATCH with its WHERE; ``counts_rows`` is false if only existence matters."""
        followed = self._read_paths(match.paths, scope, is_optional=match.is_optional)
        if counts_rows:
            self._assume_no_loops(match)
        conditions = list(self._conditions(followed, scope))
        for each in followed:
            self._bind_relation(each, scope, match)
        for path in match.paths:
            self._bind_path(path, scope, followed, is_optional=match.is_optional)
        self._where(match, conditions, scope)

    def _where(self, match: MatchClause, conditions: list[str], scope: VariableScope) -> None:
        if match.where is not None:
            note_label_comparisons(self._context, match.where)
            self._in_pattern(match.where, scope)
            if conditions:
                self._context.edits.around(match.where.start, match.where.end, "(", ")")
                self._context.edits.behind(match.end - 1, "".join(f" AND {each}" for each in conditions))
        elif conditions:
            self._context.edits.behind(match.pattern_end - 1, f" WHERE {' AND '.join(conditions)}")

    def read_creation(self, paths: tuple[PatternPath, ...], word: str, scope: VariableScope) -> None:
        """Analyse the patterns of CREATE and MERGE."""
        for path in paths:
            for node in path.nodes:
                self._node(node, scope, is_optional=False)
                self._check_assigned_properties(node.properties, word, NODE_COLUMN_TYPES, scope)
            for relation in path.relations:
                self._read_created_relation(relation, word, scope)
            if path.name:
                scope.bindings[path.name] = CypherVariableType(CypherStaticType("path"))

    @override
    def read_test(self, test: PatternPredicate, scope: VariableScope) -> None:
        self._check_known(test.path, scope)
        inner = scope.copy()
        followed = self._read_paths((test.path,), inner, is_optional=False)
        if conditions := list(self._conditions(followed, inner)):
            self._context.edits.around(test.start, test.end, "EXISTS { MATCH ", f" WHERE {' AND '.join(conditions)} }}")

    @override
    def read_count(self, call: FunctionCall, test: PatternPredicate, scope: VariableScope) -> None:
        self._check_known(test.path, scope)
        inner = scope.copy()
        followed = self._read_paths((test.path,), inner, is_optional=False)
        self._assume_no_loops(test)
        conditions = list(self._conditions(followed, inner))
        closing = f" WHERE {' AND '.join(conditions)} }}" if conditions else " }"
        edits = self._context.edits
        edits.replace(call.start, call.start + 1, "COUNT")
        edits.replace(call.start + 1, call.start + 2, " { MATCH ")
        edits.replace(call.end - 1, call.end, closing)
        self._keep_zero_counts(call, (test.path,), scope)

    @override
    def read_subquery(self, subquery: SubqueryExpression, scope: VariableScope) -> None:
        inner = scope.copy()
        for match in subquery.matches:
            self.read_match(match, inner, counts_rows=subquery.word == "COUNT")
        if subquery.word == "COUNT":
            self._keep_zero_counts(subquery, subquery.matches, scope)

    def _keep_zero_counts(
        self, counted: StatementTokenRange, patterns: tuple[StatementTokenRange, ...], scope: VariableScope
    ) -> None:
        """Use each outer variable; otherwise the engines drop the rows whose count is 0."""
        kinds = {"node": "id", "relation": "relation_type"}
        names = dict.fromkeys(
            part.name
            for part in iterate_syntax_nodes(patterns)
            if isinstance(part, NodePattern | RelationPattern | Variable)
        )
        bound = [(name, scope.bindings[name].type.kind) for name in names if name in scope.bindings]
        tests = " OR ".join(f"`{name}`.{kinds[kind]} = ''" for name, kind in bound if kind in kinds)
        if tests:
            self._context.edits.around(counted.start, counted.end, "(", f" + CASE WHEN {tests} THEN 0 ELSE 0 END)")

    def _in_pattern(self, condition: Expression, scope: VariableScope) -> None:
        before, self._context.in_pattern = self._context.in_pattern, True
        kind = self.typer.type_of(condition, scope)
        self._context.in_pattern = before
        reject_non_boolean_condition(self._context, condition, kind)

    def _check_known(self, path: PatternPath, scope: VariableScope) -> None:
        for each in (*path.nodes, *path.relations):
            if each.name and each.name not in scope.bindings and not scope.is_open:
                what = f"{each.name} is not bound here, and a condition cannot bind it; write EXISTS {{ … }}. Found"
                raise self._context.refuse(each.start, what)

    def _read_paths(
        self, paths: tuple[PatternPath, ...], scope: VariableScope, *, is_optional: bool
    ) -> list[_MatchedRelation]:
        followed: list[_MatchedRelation] = []
        names: set[str] = set()
        self._check_kinds(paths)
        for path in paths:
            for node in path.nodes:
                self._node(node, scope, is_optional=is_optional)
            self._properties_of_nodes(path, scope)
            for relation in path.relations:
                if relation.name and relation.name in names:
                    what = f"{relation.name} occurs twice in one pattern, but a relationship is matched only once;"
                    raise self._context.refuse(relation.start, f"{what} the second is")
                names.add(relation.name)
                followed.append(self._relation(relation, scope))
        return followed

    def _check_kinds(self, paths: tuple[PatternPath, ...]) -> None:
        """Check that each name is used for only one of nodes, relationships and paths."""
        kinds: dict[str, str] = {}
        for path in paths:
            for span, kind in ((path, "a path"), *((each, "a node") for each in path.nodes)):
                self._check_kind(span, kind, kinds)
            for relation in path.relations:
                self._check_kind(relation, "a relationship", kinds)

    def _check_kind(self, span: PatternPath | NodePattern | RelationPattern, kind: str, kinds: dict[str, str]) -> None:
        if span.name and kinds.setdefault(span.name, kind) != kind:
            what = f"{span.name} names both {kinds[span.name]} and {kind} in one pattern; rename one. Found"
            raise self._context.refuse(span.start, what)

    def _node(self, node: NodePattern, scope: VariableScope, *, is_optional: bool) -> None:
        self._check_labels(node)
        if not node.name:
            return
        bound = scope.bindings.get(node.name)
        if bound is None:
            self._check_case(node.name, node.start, scope)
            scope.bindings[node.name] = CypherVariableType(CypherStaticType("node", is_nullable=is_optional))
        elif bound.type.kind not in {"node", "engine", "any"}:
            raise self._context.refuse(node.start, f"{node.name} is already {bound.type.name}, not a node; found")

    def _properties_of_nodes(self, path: PatternPath, scope: VariableScope) -> None:
        for node in path.nodes:
            columns = (
                ELSEWHERE_COLUMN_TYPES if any(name == "Elsewhere" for _, name in node.labels) else NODE_COLUMN_TYPES
            )
            self._check_compared_properties(node.properties, columns, scope)

    def _check_labels(self, node: NodePattern) -> None:
        for index, label in node.labels:
            if self._context.outline.tokens[index].text.upper() in KEYWORDS:
                what = f"replace :{label} by :Entity and the condition type = '{label}'"
                raise self._context.refuse(index, f"{_ENGINE_LABELS}: {what}; found")
            self._check_table(index, label, _NODE_TABLES)

    def _check_table(self, index: int, name: str, tables: frozenset[str]) -> None:
        """Refuse a name by which only the engine, which ignores case, would find a table."""
        if name not in tables and name.lower() in _TABLES_IN_LOWER_CASE:
            raise self._context.refuse(index, f"{_ENGINE_LABELS}, and case matters; found")

    def _check_case(self, name: str, index: int, scope: VariableScope) -> None:
        if other := scope.similar(name):
            what = f"{name} and {other} differ only in case, which the engine ignores; rename one. Found"
            raise self._context.refuse(index, what)

    def _relation(self, relation: RelationPattern, scope: VariableScope) -> _MatchedRelation:
        for index, name in relation.types:
            if self._context.outline.tokens[index].text.upper() in KEYWORDS:
                what = f"replace :{name} by :RELATES_TO and relation_type = '{name}'"
                raise self._context.refuse(index, f"{_ENGINE_LABELS}: {what}; found")
            self._check_table(index, name, _RELATION_TABLES)
        self._check_compared_properties(relation.properties, EDGE_COLUMN_TYPES, scope)
        if relation.length is not None:
            self._length(relation, scope)
        bound = scope.bindings.get(relation.name) if relation.name else None
        if bound is not None and (bound.type.kind not in {"relation", "engine"} or relation.length is not None):
            what = f"{relation.name} is already {bound.type.name} and cannot be matched again; found"
            raise self._context.refuse(relation.start, what)
        if bound is None and relation.name:
            self._check_case(relation.name, relation.start, scope)
        return _MatchedRelation(relation, relation.name, _relation_type(relation))

    def _length(self, relation: RelationPattern, scope: VariableScope) -> None:
        length = relation.length
        assert length is not None  # noqa: S101 - the caller has looked
        if not length.mode:
            self._context.edits.behind(length.start, " TRAIL ")
        if length.least == 0:
            self._check_zero_length(relation)
        if length.most is None and "SHORTEST" not in length.mode:
            self._context.assumptions.add(ASSUMES_FEW_RELATIONS)
        if length.where is not None:
            inner = scope.copy()
            kinds = (CypherStaticType("relation"), CypherStaticType("node"))
            inner.bindings |= {name: CypherVariableType(kind) for name, kind in zip(length.inner, kinds, strict=True)}
            self._in_pattern(length.where, inner)

    def _check_zero_length(self, relation: RelationPattern) -> None:
        """Check paths that may have no relationship: on cycles the engine finds their start twice, or never."""
        length = relation.length
        if length is not None and length.most not in {0, 1}:
            what = "the engine loses or repeats paths of length 0; write *1.. and add the node itself with a UNION."
            raise self._context.refuse(length.start, f"{what} Found")
        self._context.assumptions.add(ASSUMES_NO_SELF_LOOPS)

    def _conditions(self, followed: list[_MatchedRelation], scope: VariableScope) -> Iterator[str]:
        for each in followed:
            if each.name in scope.bindings and each.name:
                hidden = self._context.create_hidden_variable("r")
                self._context.edits.replace(each.pattern.bracket + 1, each.pattern.bracket + 2, hidden)
                yield f"id({hidden}) = id(`{each.name}`)"
                each.name = hidden
        for one, other in combinations(followed, 2):
            if _can_be_same_relation(one, other):
                yield _distinctness_condition(self._ensure_named(one), self._ensure_named(other), one, other)

    def _ensure_named(self, followed: _MatchedRelation) -> str:
        if not followed.name:
            pattern = followed.pattern
            followed.name = self._context.create_hidden_variable("r")
            if pattern.bracket >= 0:
                self._context.edits.insert_directly_after(pattern.bracket, followed.name)
            else:
                dash = pattern.start + (self._context.outline.symbol(pattern.start) == "<")
                self._context.edits.behind(dash, f"[{followed.name}]")
        return f"`{followed.name}`"

    def _bind_relation(self, followed: _MatchedRelation, scope: VariableScope, match: MatchClause) -> None:
        name = followed.pattern.name
        if name and name not in scope.bindings:
            is_long = followed.pattern.length is not None
            anchor = self._anchor(match.paths, scope) if is_long and match.is_optional else ""
            kind = "relations" if is_long else "relation"
            scope.bindings[name] = CypherVariableType(
                CypherStaticType(kind, is_nullable=match.is_optional, is_undirected=not followed.pattern.direction),
                anchor,
            )

    def _anchor(self, paths: tuple[PatternPath, ...], scope: VariableScope) -> str:
        """Return a node that is null exactly if an OPTIONAL MATCH found nothing."""
        names = (node.name for path in paths for node in path.nodes)
        return next(
            (name for name in names if name in scope.bindings and name not in self._bound_before), _UNKNOWN_ANCHOR
        )

    def _bind_path(
        self, path: PatternPath, scope: VariableScope, followed: list[_MatchedRelation], *, is_optional: bool
    ) -> None:
        if not path.name:
            return
        if path.name in scope.bindings:
            what = f"{path.name} is already {scope.bindings[path.name].type.name} and cannot also be a path; found"
            raise self._context.refuse(path.start, what)
        self._check_case(path.name, path.start, scope)
        anchor = ""
        if is_optional:
            fixed = (each for each in followed if each.pattern in path.relations and each.pattern.length is None)
            first = next(fixed, None)
            anchor = self._ensure_named(first).strip("`") if first else self._anchor((path,), scope)
        scope.bindings[path.name] = CypherVariableType(CypherStaticType("path", is_nullable=is_optional), anchor)

    def _assume_no_loops(self, match: MatchClause | PatternPredicate) -> None:
        """Require a store without self-loops, which the engines match twice if no direction is given."""
        paths = match.paths if isinstance(match, MatchClause) else (match.path,)
        where = match.where if isinstance(match, MatchClause) else None
        for path in paths:
            for number, relation in enumerate(path.relations):
                is_shortest = relation.length is not None and "SHORTEST" in relation.length.mode
                ends = {path.nodes[number].name, path.nodes[number + 1].name}
                if (
                    not relation.direction
                    and not is_shortest
                    and not (relation.length is None and _requires_distinct_nodes(where, ends))
                ):
                    self._context.assumptions.add(ASSUMES_NO_SELF_LOOPS)

    def _read_created_relation(self, relation: RelationPattern, word: str, scope: VariableScope) -> None:
        if not relation.types:
            what = f"a relationship in {word} needs a type, as in -[:RELATES_TO {{relation_type: 'KNOWS'}}]->;"
            raise self._context.refuse(relation.start, f"{what} it is missing")
        for index, name in relation.types:
            self._check_table(index, name, _RELATION_TABLES)
        self._check_assigned_properties(relation.properties, word, EDGE_COLUMN_TYPES, scope)
        if relation.name:
            if relation.name in scope.bindings:
                raise self._context.refuse(relation.start, f"{relation.name} is already bound; found")
            scope.bindings[relation.name] = CypherVariableType(CypherStaticType("relation"))

    def _check_compared_properties(
        self, properties: MapLiteral | None, columns: dict[str, CypherStaticType], scope: VariableScope
    ) -> None:
        """Check the properties of a matched pattern; each is a comparison."""
        rules: OperatorChecksAndRewrites = self.typer.operators
        for key, name, value in () if properties is None else properties.entries:
            column = self._column(key, name, columns)
            kind = self.typer.type_of(value, scope)
            if column is None:
                continue
            rules.check_comparable("=", key + 1, column, kind)
            rules.prevent_join(column, value, kind)
            self._assume_property(key, name, value, columns)
            if column.kind == "integer" and kind.kind in {"float", "decimal"}:
                what = f"{name} is an integer, and the engine would round this number; compare it in WHERE. Found"
                raise self._context.refuse(key, what)

    def _column(self, key: int, name: str, columns: dict[str, CypherStaticType]) -> CypherStaticType | None:
        lowered = name.lower()
        other = None if name in columns else next((each for each in columns if each.lower() == lowered), None)
        if other is not None:
            what = f"there is no property {name}; did you mean {other} (case matters)? Found"
            raise self._context.refuse(key, what)
        return columns.get(name)

    def _check_assigned_properties(
        self, properties: MapLiteral | None, word: str, columns: dict[str, CypherStaticType], scope: VariableScope
    ) -> None:
        for key, name, value in () if properties is None else properties.entries:
            column = self._column(key, name, columns)
            if word == "MERGE":
                self._assume_property(key, name, value, columns)
            if columns is NODE_COLUMN_TYPES and name == LABEL_PROPERTY:
                self.check_assigned_label(key, value)
            self.check_assignment(key, name, column, self.typer.type_of(value, scope))

    def _assume_property(self, key: int, name: str, value: Expression, columns: dict[str, CypherStaticType]) -> None:
        if is_label(self._context, value):
            self._context.label_comparisons.add(key)
        kind = "node" if columns is NODE_COLUMN_TYPES else "relation"
        assume_column_is_property(self._context, kind, key, name)

    def check_assigned_label(self, index: int, value: Expression) -> None:
        """Raise InvalidInput for a node without label, which the engine does not know."""
        if is_no_label(self._context, value):
            raise self._context.refuse(index, f"the engine has no nodes without {LABEL_PROPERTY}; found")

    def check_assignment(self, index: int, name: str, column: CypherStaticType | None, kind: CypherStaticType) -> None:
        """Raise InvalidInput for a value that the engine would cast to the type of the property."""
        if column is None or kind.kind in {"null", "engine"}:
            return
        is_right = can_engine_compare_types(column, kind) and not (column.kind == "integer" and kind.kind != "integer")
        if column.kind == "time":
            is_right = kind.kind in {"time", "date", "text"}
        elif column.kind in {"float", "list"} and kind.kind == "any":
            is_right = True
        if not is_right:
            what = f"{name} needs {column.name}, not {kind.name}; convert it, as in string(…). Found"
            raise self._context.refuse(index, what)


def reject_non_boolean_condition(context: CypherAnalysisContext, condition: Expression, kind: CypherStaticType) -> None:
    """Raise InvalidInput for a condition that is certainly not a boolean."""
    if kind.kind not in {"boolean", "null", "engine", "any"}:
        raise context.refuse(condition.start, f"WHERE needs a boolean, not {kind.name}; found")


def _relation_type(relation: RelationPattern) -> str | None:
    entries = () if relation.properties is None else relation.properties.entries
    for _, name, value in entries:
        literal = strip_parentheses(value)
        if name == "relation_type" and isinstance(literal, Literal) and isinstance(literal.value, str):
            return literal.value
    return None


def _can_be_same_relation(one: _MatchedRelation, other: _MatchedRelation) -> bool:
    if any(each.pattern.length is not None and "SHORTEST" in each.pattern.length.mode for each in (one, other)):
        return False
    if one.kind is not None and other.kind is not None and one.kind != other.kind:
        return False
    tables = [{name for _, name in each.pattern.types} or _RELATION_TABLES for each in (one, other)]
    return bool(tables[0] & tables[1])


def _distinctness_condition(first: str, second: str, one: _MatchedRelation, other: _MatchedRelation) -> str:
    long = [name for name, each in ((first, one), (second, other)) if each.pattern.length is not None]
    if not long:
        return f"id({first}) <> id({second})"
    if len(long) == 1:
        single = second if long[0] == first else first
        return f"(length({long[0]}) = 0 OR NOT list_contains(properties(rels({long[0]}), '_ID'), id({single})))"
    ids = ", ".join(f"properties(rels({name}), '_ID')" for name in long)
    none = " OR ".join(f"length({name}) = 0" for name in long)
    return f"({none} OR size(list_distinct(list_concat({ids}))) = length({first}) + length({second}))"


def _requires_distinct_nodes(where: Expression | None, ends: set[str]) -> bool:
    """Return whether a condition requires two nodes to have different ids."""
    if where is None:
        return False
    inner = strip_parentheses(where)
    if isinstance(inner, OperatorChain) and inner.level == AND:
        return any(_requires_distinct_nodes(part, ends) for part in inner.operands if part is not None)
    if not isinstance(inner, OperatorChain) or inner.operators[0][0] not in {"<>", "!="}:
        return False
    return {_id_operand(part) for part in inner.operands} == ends


def _id_operand(expression: Expression | None) -> str:
    inner = None if expression is None else strip_parentheses(expression)
    match inner:
        case FunctionCall(name="id", arguments=(Variable(name=name),)):
            return name
        case PostfixExpression(subject=Variable(name=name), steps=(PropertyAccess(name="id"),)):
            return name
        case _:
            return ""
