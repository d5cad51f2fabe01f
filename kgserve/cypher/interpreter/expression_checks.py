"""Checks of expressions before a statement runs: variables, functions, aggregates and kinds of values."""

from __future__ import annotations

import difflib
from abc import abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import msgspec

from kgserve.cypher.interpreter.aggregates import AGGREGATE_NAMES, check_aggregate_argument_count
from kgserve.cypher.interpreter.opencypher_syntax_tree import (
    BinaryExpression,
    CaseExpressionNode,
    ComparisonChain,
    CountStar,
    FunctionInvocation,
    LabelPredicate,
    ListComprehension,
    ListExpression,
    ListSlice,
    LiteralValue,
    MapExpression,
    MapProjection,
    NullPredicate,
    ParameterReference,
    PathPatternElement,
    PatternComprehension,
    PatternExistence,
    PropertyAccessNode,
    QuantifiedPredicate,
    QueryExpression,
    ReduceExpression,
    SubqueryExpressionNode,
    SubscriptNode,
    UnaryExpression,
    VariableReference,
)
from kgserve.cypher.interpreter.opencypher_tokenizer import build_query_syntax_error
from kgserve.cypher.interpreter.scalar_function_definition import describe_accepted_argument_types
from kgserve.cypher.interpreter.scalar_function_table import find_scalar_function
from kgserve.cypher.interpreter.static_value_types import (
    ANY_KIND,
    BOOLEAN_KIND,
    FLOAT_KIND,
    FUNCTION_KINDS,
    INTEGER_KIND,
    LIST_KIND,
    MAP_KIND,
    STRING_KIND,
    StaticValueType,
    find_literal_type,
    join_static_types,
)
from kgserve.errors import InvalidInput

NO_AGGREGATES_IN_WHERE = "aggregates are not allowed in WHERE; compute them in a WITH before it"
NO_AGGREGATES_HERE = "aggregates are only allowed in WITH and RETURN"
_NO_NESTED_AGGREGATES = "aggregates cannot be nested"
_NO_AGGREGATES_PER_ELEMENT = "aggregates are not allowed for each element of a list; compute them in a WITH before it"
_MAX_COMPARED_NAMES = 200
_MAX_COMPARED_CHARS = 64
_ANY_TIME = datetime(2000, 1, 1, tzinfo=UTC)


class ExpressionScope(msgspec.Struct, frozen=True):
    """Types of the variables in scope of an expression.

    ``aggregate_fault`` says why aggregates are not allowed; empty if they are. ``hidden_fault`` says why the ``hidden``
    variables cannot be used.
    """

    names: dict[str, StaticValueType]
    aggregate_fault: str = NO_AGGREGATES_HERE
    hidden: frozenset[str] = frozenset()
    hidden_fault: str = ""

    def extend(self, names: dict[str, StaticValueType]) -> ExpressionScope:
        """Return the scope of an expression that is evaluated for each element of a list."""
        message = self.aggregate_fault or _NO_AGGREGATES_PER_ELEMENT
        return ExpressionScope({**self.names, **names}, message, self.hidden, self.hidden_fault)


class ExpressionChecker:
    """Checks expressions and infers the kinds of their values; patterns and subqueries are those of a subclass."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._checks: dict[type, Callable[[Any, ExpressionScope], StaticValueType]] = {
            LiteralValue: lambda tree, _: find_literal_type(tree.value),
            ParameterReference: lambda _tree, _scope: ANY_KIND,
            VariableReference: self._check_variable,
            PropertyAccessNode: self._check_property,
            SubscriptNode: self._check_index,
            ListSlice: self._check_slice,
            LabelPredicate: self._check_labels,
            ListExpression: self._check_list,
            MapExpression: self._check_map,
            MapProjection: self._check_map_projection,
            FunctionInvocation: self._check_call,
            CountStar: self._check_count_star,
            UnaryExpression: self._check_unary,
            BinaryExpression: self._check_binary,
            ComparisonChain: self._check_comparison,
            NullPredicate: self._check_null_predicate,
            CaseExpressionNode: self._check_case,
            ListComprehension: self._check_comprehension,
            PatternComprehension: self._check_pattern_comprehension,
            QuantifiedPredicate: self._check_quantifier,
            ReduceExpression: self._check_reduce,
            PatternExistence: self._check_pattern,
            SubqueryExpressionNode: self._check_subquery,
        }

    @abstractmethod
    def declare_match(self, paths: tuple[PathPatternElement, ...], names: dict[str, StaticValueType]) -> None:
        """Add the variables of a pattern to match, and check it. Raises InvalidInput."""

    @abstractmethod
    def check_bound_path(self, path: PathPatternElement, scope: ExpressionScope) -> None:
        """Check a pattern that introduces no variables. Raises InvalidInput."""

    @abstractmethod
    def check_subquery(self, tree: SubqueryExpressionNode, names: dict[str, StaticValueType]) -> StaticValueType:
        """Check ``EXISTS``, ``COUNT`` or ``COLLECT``; return the kind of its value. Raises InvalidInput."""

    def fail(self, position: int, message: str) -> InvalidInput:
        """Return an error at a position."""
        return build_query_syntax_error(self.text, position, message)

    def check(self, tree: QueryExpression, scope: ExpressionScope) -> StaticValueType:
        """Check an expression; return the kind of its value. Raises InvalidInput."""
        return self._checks[type(tree)](tree, scope)

    def check_condition(self, tree: QueryExpression, scope: ExpressionScope, what: str) -> None:
        """Check an expression that must be a boolean, or a pattern. Raises InvalidInput."""
        if isinstance(tree, PatternExistence) and not tree.is_count:
            self.check_bound_path(tree.path, scope)
            return
        kind = self.check(tree, scope)
        self.require(kind, tree, what, "boolean")

    def require(self, kind: StaticValueType, tree: QueryExpression, what: str, *names: str) -> None:
        """Raise InvalidInput unless a kind is one of some names, or unknown."""
        if not kind.is_one_of(*names):
            expected = " or ".join(StaticValueType(name).describe() for name in names)
            raise self.fail(tree.position, f"{what} must be {expected}, not {kind.describe()}")

    def find_variable(self, name: str, position: int, names: dict[str, StaticValueType]) -> None:
        """Raise InvalidInput if a variable is not defined."""
        if name in names:
            return
        known = [each for each in islice(names, _MAX_COMPARED_NAMES) if not each.startswith(" ")]
        comparable = [each for each in known if len(each) <= _MAX_COMPARED_CHARS]
        nearest = difflib.get_close_matches(name, comparable, 1) if len(name) <= _MAX_COMPARED_CHARS else []
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        raise self.fail(position, f"variable {name} is not defined{hint}")

    # Parts of values

    def _check_variable(self, tree: VariableReference, scope: ExpressionScope) -> StaticValueType:
        kind = scope.names.get(tree.name)
        if kind is None and tree.name in scope.hidden:
            raise self.fail(tree.position, f"{scope.hidden_fault}; found {tree.name}")
        if kind is None:
            self.find_variable(tree.name, tree.position, scope.names)
        return kind or ANY_KIND

    def _check_property(self, tree: PropertyAccessNode, scope: ExpressionScope) -> StaticValueType:
        kind = self.check(tree.subject, scope)
        if not kind.is_one_of("node", "relationship", "map"):
            raise self.fail(tree.position, f"{kind.describe()} has no properties; found .{tree.name}")
        return ANY_KIND

    def _check_index(self, tree: SubscriptNode, scope: ExpressionScope) -> StaticValueType:
        subject, index = self.check(tree.subject, scope), self.check(tree.index, scope)
        if not subject.is_one_of("list", "map", "node", "relationship"):
            raise self.fail(tree.position, f"{subject.describe()} has no elements that [ ] could select")
        if subject.name == "list":
            self.require(index, tree.index, "the index of a list", "integer")
            return subject.element or ANY_KIND
        if subject.name not in {"any", "null"}:
            self.require(index, tree.index, f"the key of {subject.describe()}", "string")
        return ANY_KIND

    def _check_slice(self, tree: ListSlice, scope: ExpressionScope) -> StaticValueType:
        subject = self.check(tree.subject, scope)
        self.require(subject, tree, "a value that is sliced", "list")
        for bound in (tree.first, tree.last):
            if bound is not None:
                self.require(self.check(bound, scope), bound, "a bound of a slice", "integer")
        return subject if subject.name == "list" else LIST_KIND

    def _check_labels(self, tree: LabelPredicate, scope: ExpressionScope) -> StaticValueType:
        kind = self.check(tree.subject, scope)
        self.require(kind, tree, "a value whose label is tested", "node", "relationship")
        return BOOLEAN_KIND

    # Literals

    def _check_list(self, tree: ListExpression, scope: ExpressionScope) -> StaticValueType:
        if not tree.items:
            return LIST_KIND
        return StaticValueType("list", join_static_types([self.check(item, scope) for item in tree.items]))

    def _check_map(self, tree: MapExpression, scope: ExpressionScope) -> StaticValueType:
        seen: set[str] = set()
        for key, value in tree.entries:
            if key in seen:
                raise self.fail(value.position, f"the key {key} occurs twice in a map")
            seen.add(key)
            self.check(value, scope)
        return MAP_KIND

    def _check_map_projection(self, tree: MapProjection, scope: ExpressionScope) -> StaticValueType:
        kind = self.check(tree.subject, scope)
        self.require(kind, tree, "a value that is projected to a map", "node", "relationship", "map")
        for _, value in tree.entries:
            if value is not None:
                self.check(value, scope)
        return MAP_KIND

    # Calls

    def _check_call(self, tree: FunctionInvocation, scope: ExpressionScope) -> StaticValueType:
        if tree.name in AGGREGATE_NAMES:
            return self._check_aggregate(tree, scope)
        if tree.is_distinct:
            raise self.fail(tree.position, f"DISTINCT is only allowed in aggregates, not in {tree.name}()")
        kinds = [self.check(argument, scope) for argument in tree.arguments]
        if tree.name == "coalesce":
            if not kinds:
                raise self.fail(tree.position, "coalesce() takes at least 1 argument, not 0")
            return join_static_types(kinds)
        if tree.name == "rand" and scope.aggregate_fault == _NO_NESTED_AGGREGATES:
            raise self.fail(tree.position, "rand() is not allowed in an aggregate; compute it in a WITH before")
        self._check_arguments(tree, kinds)
        if tree.name in {"head", "last"}:
            return kinds[0].element or ANY_KIND
        return FUNCTION_KINDS.get(tree.name, ANY_KIND)

    def _check_arguments(self, tree: FunctionInvocation, kinds: list[StaticValueType]) -> None:
        try:
            function = find_scalar_function(tree.name, _ANY_TIME)
            function.check_count(len(kinds))
        except InvalidInput as error:
            raise self.fail(tree.position, error.message) from None
        for index, (kind, argument) in enumerate(zip(kinds, tree.arguments, strict=True)):
            types = function.kinds[min(index, len(function.kinds) - 1)]
            if not kind.accepts_types(types):
                expected = describe_accepted_argument_types(types)
                hint = (
                    "; size() counts its elements" if tree.name == "length" and kind.is_one_of("string", "list") else ""
                )
                raise self.fail(argument.position, f"{function.name}() takes {expected}, not {kind.describe()}{hint}")

    def _check_aggregate(self, tree: FunctionInvocation, scope: ExpressionScope) -> StaticValueType:
        self._check_aggregate_place(tree.position, scope)
        try:
            check_aggregate_argument_count(tree)
        except InvalidInput as error:
            raise self.fail(tree.position, error.message) from None
        inner = msgspec.structs.replace(scope, aggregate_fault=_NO_NESTED_AGGREGATES)
        kinds = [self.check(argument, inner) for argument in tree.arguments]
        if tree.name == "collect":
            return StaticValueType("list", kinds[0])
        if tree.name == "sum":
            self._require_number(kinds[0], tree.arguments[0], "the argument of sum()")
        return kinds[0] if tree.name in {"min", "max"} else FUNCTION_KINDS.get(tree.name, ANY_KIND)

    def _check_count_star(self, tree: CountStar, scope: ExpressionScope) -> StaticValueType:
        self._check_aggregate_place(tree.position, scope)
        return INTEGER_KIND

    def _check_aggregate_place(self, position: int, scope: ExpressionScope) -> None:
        if scope.aggregate_fault:
            raise self.fail(position, scope.aggregate_fault)

    # Operators

    def _require_number(self, kind: StaticValueType, tree: QueryExpression, what: str) -> None:
        if not kind.is_one_of("integer", "float"):
            raise self.fail(tree.position, f"{what} must be a number, not {kind.describe()}")

    def _check_unary(self, tree: UnaryExpression, scope: ExpressionScope) -> StaticValueType:
        if tree.operator == "NOT":
            self.check_condition(tree.operand, scope, "the operand of NOT")
            return BOOLEAN_KIND
        kind = self.check(tree.operand, scope)
        self._require_number(kind, tree.operand, f"the operand of {tree.operator}")
        return kind

    def _check_binary(self, tree: BinaryExpression, scope: ExpressionScope) -> StaticValueType:
        operator = tree.operator
        if operator in {"AND", "OR", "XOR"}:
            self.check_condition(tree.left, scope, f"an operand of {operator}")
            self.check_condition(tree.right, scope, f"an operand of {operator}")
            return BOOLEAN_KIND
        left, right = self.check(tree.left, scope), self.check(tree.right, scope)
        if operator == "IN":
            self.require(right, tree.right, "the right operand of IN", "list")
            return BOOLEAN_KIND
        if operator in {"STARTS WITH", "ENDS WITH", "CONTAINS", "=~"}:
            return BOOLEAN_KIND
        if operator == "+":
            return _add_kinds(left, right)
        self._require_number(left, tree.left, f"the left operand of {operator}")
        self._require_number(right, tree.right, f"the right operand of {operator}")
        return _combine_numbers(left, right, is_float=operator == "^")

    def _check_comparison(self, tree: ComparisonChain, scope: ExpressionScope) -> StaticValueType:
        self.check(tree.first, scope)
        for _, operand in tree.rest:
            self.check(operand, scope)
        return BOOLEAN_KIND

    def _check_null_predicate(self, tree: NullPredicate, scope: ExpressionScope) -> StaticValueType:
        self.check(tree.operand, scope)
        return BOOLEAN_KIND

    def _check_case(self, tree: CaseExpressionNode, scope: ExpressionScope) -> StaticValueType:
        if tree.subject is not None:
            self.check(tree.subject, scope)
        kinds: list[StaticValueType] = []
        for condition, value in tree.branches:
            if tree.subject is None:
                self.check_condition(condition, scope, "the condition of WHEN")
            else:
                self.check(condition, scope)
            kinds.append(self.check(value, scope))
        if tree.otherwise is not None:
            kinds.append(self.check(tree.otherwise, scope))
        return join_static_types(kinds)

    # Forms with their own variables

    def _check_source(self, tree: QueryExpression, scope: ExpressionScope, what: str) -> StaticValueType:
        """Check the list that a form iterates over; return the kind of its elements."""
        kind = self.check(tree, scope)
        self.require(kind, tree, f"the source of {what}", "list")
        return kind.element or ANY_KIND

    def _check_comprehension(self, tree: ListComprehension, scope: ExpressionScope) -> StaticValueType:
        element = self._check_source(tree.source, scope, "a list comprehension")
        inner = scope.extend({tree.name: element})
        if tree.where is not None:
            self.check_condition(tree.where, inner, "the condition of a list comprehension")
        return StaticValueType("list", element if tree.result is None else self.check(tree.result, inner))

    def _check_quantifier(self, tree: QuantifiedPredicate, scope: ExpressionScope) -> StaticValueType:
        element = self._check_source(tree.source, scope, f"{tree.kind}()")
        self.check_condition(tree.where, scope.extend({tree.name: element}), f"the condition of {tree.kind}()")
        return BOOLEAN_KIND

    def _check_reduce(self, tree: ReduceExpression, scope: ExpressionScope) -> StaticValueType:
        self.check(tree.initial, scope)
        element = self._check_source(tree.source, scope, "reduce()")
        self.check(tree.body, scope.extend({tree.accumulator: ANY_KIND, tree.name: element}))
        return ANY_KIND

    def _check_pattern_comprehension(self, tree: PatternComprehension, scope: ExpressionScope) -> StaticValueType:
        inner = scope.extend({})
        self.declare_match((tree.path,), inner.names)
        if tree.where is not None:
            self.check_condition(tree.where, inner, "the condition of a pattern comprehension")
        return StaticValueType("list", self.check(tree.result, inner))

    def _check_pattern(self, tree: PatternExistence, scope: ExpressionScope) -> StaticValueType:
        if self.text.startswith("(", tree.position):
            message = "a pattern is no value; test it with EXISTS { }, count it with COUNT { } or write [pattern | x]"
            raise self.fail(tree.position, message)
        self.check_bound_path(tree.path, scope)
        return INTEGER_KIND if tree.is_count else BOOLEAN_KIND

    def _check_subquery(self, tree: SubqueryExpressionNode, scope: ExpressionScope) -> StaticValueType:
        return self.check_subquery(tree, scope.names)


def _add_kinds(left: StaticValueType, right: StaticValueType) -> StaticValueType:
    names = {left.name, right.name}
    if "any" in names or "null" in names:
        return LIST_KIND if "list" in names else ANY_KIND
    if "list" in names:
        return left if left == right else LIST_KIND
    if "string" in names:
        return STRING_KIND
    return _combine_numbers(left, right)


def _combine_numbers(left: StaticValueType, right: StaticValueType, *, is_float: bool = False) -> StaticValueType:
    if not {left.name, right.name} <= {"integer", "float"}:
        return ANY_KIND
    return FLOAT_KIND if is_float or left != right else left
