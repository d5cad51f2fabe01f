"""Checks of WITH and RETURN before a statement runs: columns, grouping, and what ORDER BY may use."""

from __future__ import annotations

from typing import Any, cast

from kgserve.cypher.interpreter.aggregates import AGGREGATE_NAMES, find_outermost_aggregates
from kgserve.cypher.interpreter.expression_checks import ExpressionScope
from kgserve.cypher.interpreter.opencypher_syntax_tree import (
    CountStar,
    FunctionInvocation,
    ListComprehension,
    LiteralValue,
    NodePatternElement,
    PathPatternElement,
    ProjectionClauseNode,
    PropertyAccessNode,
    QuantifiedPredicate,
    QueryExpression,
    QuerySyntaxNode,
    ReduceExpression,
    RelationshipPatternElement,
    ReturnOrWithColumn,
    SubqueryExpressionNode,
    VariableReference,
    iterate_syntax_tree,
)
from kgserve.cypher.interpreter.pattern_checks import GraphPatternChecker, Names
from kgserve.cypher.interpreter.static_value_types import ANY_KIND
from kgserve.cypher.interpreter.subexpression_replacement import replace_subexpressions, strip_source_positions

_NO_AGGREGATES_IN_ORDER = "an aggregate in ORDER BY or WHERE must also be a column of its WITH or RETURN"
_HIDDEN_FAULT = "after an aggregate or DISTINCT, ORDER BY and WHERE can only use columns"


class WithReturnClauseChecker(GraphPatternChecker):
    """Checks WITH and RETURN clauses, with their patterns and expressions."""

    def check_projection(self, stage: ProjectionClauseNode, names: Names) -> Names:
        """Check a projection; return the kinds of its columns. Raises InvalidInput."""
        if stage.is_all and not names and stage.keyword == "RETURN":
            raise self.fail(stage.position, "RETURN * needs at least one variable")
        columns: Names = {name: names[name] for name in sorted(names)} if stage.is_all else {}
        own: set[str] = set()
        for column in stage.columns:
            kind = self.check(column.value, ExpressionScope(names, ""))
            self._check_name(stage, column, own, columns)
            own.add(column.name)
            columns[column.name] = kind
        is_grouped = any(True for column in stage.columns for _ in find_outermost_aggregates(column.value))
        if is_grouped:
            self._check_grouping(stage, names)
        if is_grouped or stage.is_distinct:
            self._check_reduced_scope(stage, names, columns, is_grouped=is_grouped)
        else:
            scope = ExpressionScope({**names, **columns}, _NO_AGGREGATES_IN_ORDER)
            for key in stage.order:
                self.check(key.value, scope)
            if stage.where is not None:
                self.check_condition(stage.where, scope, "WHERE")
        self._check_bound(stage.skip, "SKIP", names)
        self._check_bound(stage.limit, "LIMIT", names)
        return columns

    def _check_name(
        self, stage: ProjectionClauseNode, column: ReturnOrWithColumn, own: set[str], columns: Names
    ) -> None:
        is_variable = isinstance(column.value, VariableReference)
        if stage.keyword == "WITH" and not column.is_aliased and not is_variable:
            raise self.fail(column.position, f"an expression in WITH needs a name; write {column.name} AS name")
        is_same = isinstance(column.value, VariableReference) and column.value.name == column.name
        if column.name in own or (column.name in columns and not is_same):
            raise self.fail(column.position, f"two columns have the name {column.name}; rename one with AS")

    # Grouping

    def _check_grouping(self, stage: ProjectionClauseNode, names: Names) -> None:
        """Check that columns with aggregates use nothing else but keys of the groups outside the aggregates."""
        keys = {
            strip_source_positions(column.value)
            for column in stage.columns
            if _is_simple(column.value) and not any(True for _ in find_outermost_aggregates(column.value))
        }
        free = names.keys() - {key.name for key in keys if isinstance(key, VariableReference)}
        if stage.is_all:
            free = set[str]()
        for column in stage.columns:
            if any(True for _ in find_outermost_aggregates(column.value)):
                self._check_grouped(column.value, frozenset(free), keys)

    def _check_grouped(self, part: Any, free: frozenset[str], keys: set[QueryExpression]) -> None:
        """Raise InvalidInput if a part uses one of the free variables outside aggregates and keys."""
        if isinstance(part, tuple):
            for each in cast("tuple[Any, ...]", part):
                self._check_grouped(each, free, keys)
            return
        if not isinstance(part, QuerySyntaxNode) or _is_aggregate(part):
            return
        name = _find_name(part)
        if isinstance(part, PropertyAccessNode | VariableReference) and strip_source_positions(part) in keys:
            return
        if name in free:
            message = (
                f"{name} is used next to an aggregate, but is no column of its own; add it as a column,"
                " or compute the aggregate in a WITH before"
            )
            raise self.fail(part.position, message)
        inner = free - _find_own_names(part)
        for field in part.__struct_fields__:
            self._check_grouped(getattr(part, field), inner, keys)

    # ORDER BY and WHERE after aggregates or DISTINCT

    def _check_reduced_scope(
        self, stage: ProjectionClauseNode, names: Names, columns: Names, *, is_grouped: bool
    ) -> None:
        """Check ORDER BY and WHERE where only columns, and expressions that are columns, can be used."""
        replacements: dict[QueryExpression, QueryExpression] = {}
        columns = dict(columns)
        for index, column in enumerate(stage.columns):
            if is_grouped or not isinstance(column.value, VariableReference):
                trees = [column.value, *(find_outermost_aggregates(column.value) if is_grouped else ())]
                for number, tree in enumerate(trees):
                    name = f"  column {index} {number}"
                    columns[name] = ANY_KIND if number else columns[column.name]
                    replacements[strip_source_positions(tree)] = VariableReference(position=tree.position, name=name)
        simple = {key: value for key, value in replacements.items() if _is_simple(key) or _is_aggregate(key)}
        scope = ExpressionScope(columns, _NO_AGGREGATES_IN_ORDER, frozenset(names), _HIDDEN_FAULT)
        for tree in (*(key.value for key in stage.order), *(() if stage.where is None else (stage.where,))):
            if strip_source_positions(tree) in replacements:
                continue
            has_aggregate = any(True for _ in find_outermost_aggregates(tree))
            replaced = replace_subexpressions(tree, simple if has_aggregate else replacements)
            if tree is stage.where:
                self.check_condition(replaced, scope, "WHERE")
            else:
                self.check(replaced, scope)

    def _check_bound(self, tree: QueryExpression | None, keyword: str, names: Names) -> None:
        """Check SKIP or LIMIT, which do not depend on rows."""
        if tree is None:
            return
        if any(isinstance(node, PathPatternElement | SubqueryExpressionNode) for node in iterate_syntax_tree(tree)):
            raise self.fail(tree.position, f"{keyword} cannot use a pattern or a subquery")
        scope = ExpressionScope(
            {}, hidden=frozenset(names), hidden_fault=f"{keyword} cannot use variables, because it applies to all rows"
        )
        kind = self.check(tree, scope)
        if kind.name not in {"integer", "any"}:
            raise self.fail(tree.position, f"{keyword} must be an integer, not {kind.describe()}")
        if isinstance(tree, LiteralValue) and isinstance(tree.value, int) and tree.value < 0:
            raise self.fail(tree.position, f"{keyword} must not be negative")


def _is_simple(tree: QueryExpression) -> bool:
    """Return whether an expression is a variable, or a property of one."""
    while isinstance(tree, PropertyAccessNode):
        tree = tree.subject
    return isinstance(tree, VariableReference)


def _is_aggregate(part: QuerySyntaxNode) -> bool:
    return isinstance(part, CountStar) or (isinstance(part, FunctionInvocation) and part.name in AGGREGATE_NAMES)


def _find_name(part: QuerySyntaxNode) -> str:
    """Return the variable that a node of a tree uses; empty if it uses none."""
    return part.name if isinstance(part, VariableReference | NodePatternElement | RelationshipPatternElement) else ""


def _find_own_names(part: QuerySyntaxNode) -> frozenset[str]:
    """Return the variables that a form binds for its parts."""
    match part:
        case ListComprehension() | QuantifiedPredicate():
            return frozenset((part.name,))
        case ReduceExpression():
            return frozenset((part.name, part.accumulator))
        case _:
            return frozenset()
