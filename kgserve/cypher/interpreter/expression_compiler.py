"""Compilation of expressions to Python closures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

from kgserve.cypher.interpreter import arithmetic, operator_closures, value_comparison
from kgserve.cypher.interpreter.aggregates import AGGREGATE_NAMES
from kgserve.cypher.interpreter.graph_view_interface import CompiledExpression, ExecutionLimits, Row, StatementGraphView
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
    QuerySyntaxNode,
    QueryUnion,
    ReduceExpression,
    SubqueryExpressionNode,
    SubscriptNode,
    UnaryExpression,
    VariableReference,
)
from kgserve.cypher.interpreter.operator_closures import ConstantExpression, ErrorLocator
from kgserve.cypher.interpreter.regex_match import matches_whole_string_regex
from kgserve.cypher.interpreter.scalar_function_table import find_scalar_function
from kgserve.cypher.interpreter.statement_profile import StatementProfile
from kgserve.cypher.interpreter.value_size_limits import (
    check_cypher_parameter,
    count_large_value_work,
    count_nested_elements,
    is_list_map_or_long_string,
    require_value_within_element_limit,
)
from kgserve.cypher.lexer import describe_text_position
from kgserve.errors import FieldError, InvalidInput

RowExpander = Callable[[Row], Iterator[Row]]


def _refuse_pattern(path: PathPatternElement, where: QueryExpression | None) -> NoReturn:  # noqa: ARG001
    raise InvalidInput("patterns cannot be used here")


def _refuse_subquery(query: QueryUnion) -> NoReturn:  # noqa: ARG001
    raise InvalidInput("subqueries cannot be used here")


@dataclass(slots=True, kw_only=True)
class EvaluationEnvironment:
    """Graph, parameters, limits and time with which the expressions of one execution are evaluated.

    ``text`` is the statement, by which errors name their place. ``profile`` counts the rows of its clauses.
    ``match_pattern`` compiles a pattern with its WHERE to a function that yields the rows that extend a row;
    ``run_subquery`` compiles a query to a function that yields its rows for an outer row.
    """

    graph: StatementGraphView
    parameters: Mapping[str, Any]
    limits: ExecutionLimits
    now: datetime
    text: str = ""
    profile: StatementProfile | None = None
    match_pattern: Callable[[PathPatternElement, QueryExpression | None], RowExpander] = _refuse_pattern
    run_subquery: Callable[[QueryUnion], RowExpander] = _refuse_subquery


class ExpressionCompiler:
    """Compiles expressions of a statement to functions from a row to a value."""

    def __init__(self, environment: EvaluationEnvironment) -> None:
        self.environment = environment
        self._parameters: dict[str, ConstantExpression] = {}
        self._compilers: dict[type, Callable[[Any], CompiledExpression]] = {
            LiteralValue: self._compile_literal,
            ParameterReference: self._compile_parameter,
            VariableReference: self._compile_variable,
            PropertyAccessNode: self._compile_property,
            SubscriptNode: self._compile_index,
            ListSlice: self._compile_slice,
            LabelPredicate: self._compile_label,
            ListExpression: self._compile_list,
            MapExpression: self._compile_map,
            MapProjection: self._compile_projection,
            FunctionInvocation: self._compile_function,
            CountStar: self._compile_count,
            UnaryExpression: self._compile_unary,
            BinaryExpression: self._compile_binary,
            ComparisonChain: self._compile_comparison,
            NullPredicate: self._compile_null_test,
            CaseExpressionNode: self._compile_case,
            ListComprehension: self._compile_comprehension,
            PatternComprehension: self._compile_pattern,
            QuantifiedPredicate: self._compile_quantifier,
            ReduceExpression: self._compile_reduce,
            PatternExistence: self._compile_existence,
            SubqueryExpressionNode: self._compile_subquery,
        }

    def compile(self, tree: QueryExpression) -> CompiledExpression:
        """Compile an expression. Raises InvalidInput for unknown functions, missing parameters and wrong constants."""
        try:
            return self._compilers[type(tree)](tree)
        except InvalidInput as error:
            raise self.locate(error, tree) from None

    def compile_condition(self, tree: QueryExpression) -> CompiledExpression:
        """Compile an expression of WHERE: its results are true, false and null. Raises InvalidInput."""
        compiled = self.compile(tree)
        if isinstance(tree, ComparisonChain | NullPredicate | PatternExistence | LabelPredicate):
            return compiled
        return operator_closures.compile_boolean_check(compiled, self._locator(tree))

    def locate(self, error: InvalidInput, tree: QuerySyntaxNode) -> InvalidInput:
        """Add the place of an expression to an error that has none; return the error."""
        text = self.environment.text
        if text and not error.errors:
            message = f"{error.message}, at {describe_text_position(text, tree.position)}"
            error.reword(message)
            error.errors = (FieldError("query", message),)
        return error

    def _locator(self, tree: QuerySyntaxNode) -> ErrorLocator:
        return lambda error: self.locate(error, tree)

    def _fold(self, compiled: CompiledExpression, *operands: CompiledExpression) -> CompiledExpression:
        """Compute an expression whose operands are constants; if that fails, it fails when it is evaluated."""
        if not all(isinstance(each, ConstantExpression) for each in operands):
            return compiled
        try:
            return ConstantExpression(compiled({}))
        except InvalidInput:
            return compiled

    # Values

    def _compile_literal(self, tree: LiteralValue) -> CompiledExpression:
        return ConstantExpression(tree.value)

    def _compile_parameter(self, tree: ParameterReference) -> CompiledExpression:
        name = tree.name
        if name not in self._parameters:
            if name not in self.environment.parameters:
                raise InvalidInput(f"parameter ${name} is missing")
            self._parameters[name] = ConstantExpression(check_cypher_parameter(name, self.environment.parameters[name]))
        return self._parameters[name]

    def _compile_variable(self, tree: VariableReference) -> CompiledExpression:
        name = tree.name
        return lambda row: row[name]

    def _compile_list(self, tree: ListExpression) -> CompiledExpression:
        items = [self.compile(each) for each in tree.items]
        return self._bound(lambda row: [item(row) for item in items], items)

    def _compile_map(self, tree: MapExpression) -> CompiledExpression:
        entries = [(name, self.compile(value)) for name, value in tree.entries]
        return self._bound(lambda row: {name: value(row) for name, value in entries}, [value for _, value in entries])

    def _bound(self, compiled: CompiledExpression, operands: list[CompiledExpression]) -> CompiledExpression:
        """Bound the size of a list or map, some of whose elements are not constants."""
        if all(
            isinstance(each, ConstantExpression) and not is_list_map_or_long_string(each.value) for each in operands
        ):
            return self._fold(compiled, *operands)
        return self._fold(operator_closures.compile_size_checked_container(compiled), *operands)

    def _compile_projection(self, tree: MapProjection) -> CompiledExpression:
        subject = self.compile(tree.subject)
        entries = [(name, None if value is None else self.compile(value)) for name, value in tree.entries]
        locate = self._locator(tree)

        def run(row: Row) -> dict[str, Any] | None:
            found = subject(row)
            if found is None:
                return None
            result: dict[str, Any] = {}
            try:
                properties = value_comparison.get_cypher_value_properties(found) or {}
            except InvalidInput as error:
                raise locate(error) from None
            for name, value in entries:
                if value is None:
                    result.update(properties)
                else:
                    result[name] = value(row)
            count_nested_elements(result)
            return result

        return run

    # Lookups

    def _compile_property(self, tree: PropertyAccessNode) -> CompiledExpression:
        if isinstance(tree.subject, VariableReference):
            return operator_closures.compile_property_access(tree.subject.name, tree.name, self._locator(tree))
        subject, name = self.compile(tree.subject), tree.name
        return self._fold(
            operator_closures.compile_unary_operation(
                lambda value: value_comparison.get_cypher_value_property(value, name), subject, self._locator(tree)
            ),
            subject,
        )

    def _compile_index(self, tree: SubscriptNode) -> CompiledExpression:
        return self._compile_call(value_comparison.get_subscript_value, tree, tree.subject, tree.index)

    def _compile_slice(self, tree: ListSlice) -> CompiledExpression:
        subject = self.compile(tree.subject)
        first = ConstantExpression(0) if tree.first is None else self.compile(tree.first)
        last = ConstantExpression(sys.maxsize) if tree.last is None else self.compile(tree.last)
        locate = self._locator(tree)

        def run(row: Row) -> list[Any] | None:
            try:
                return value_comparison.get_list_slice(subject(row), first(row), last(row))
            except InvalidInput as error:
                raise locate(error) from None

        return self._fold(run, subject, first, last)

    def _compile_label(self, tree: LabelPredicate) -> CompiledExpression:
        labels, is_any = frozenset(tree.labels), tree.is_any
        subject = self.compile(tree.subject)
        return operator_closures.compile_unary_operation(
            lambda value: value_comparison.has_labels(value, labels, is_any=is_any), subject, self._locator(tree)
        )

    # Operators

    def _compile_call(
        self, function: Callable[[Any, Any], Any], tree: QuerySyntaxNode, left: QueryExpression, right: QueryExpression
    ) -> CompiledExpression:
        first, second = self.compile(left), self.compile(right)
        return self._fold(
            operator_closures.compile_binary_operation(function, first, second, self._locator(tree)), first, second
        )

    def _compile_unary(self, tree: UnaryExpression) -> CompiledExpression:
        operand = self.compile(tree.operand)
        if tree.operator == "NOT":
            _check_condition("NOT", operand)
            return self._fold(operator_closures.compile_not_operator(operand, self._locator(tree)), operand)
        function = arithmetic.negate_cypher_value if tree.operator == "-" else arithmetic.apply_unary_plus
        return self._fold(operator_closures.compile_unary_operation(function, operand, self._locator(tree)), operand)

    def _compile_binary(self, tree: BinaryExpression) -> CompiledExpression:
        if function := _BINARY_FUNCTIONS.get(tree.operator):
            return self._compile_call(function, tree, tree.left, tree.right)
        left, right = self.compile(tree.left), self.compile(tree.right)
        locate = self._locator(tree)
        if builder := operator_closures.LOGIC_BUILDERS.get(tree.operator):
            _check_condition(tree.operator, left, right)
            return self._fold(builder(left, right, locate), left, right)
        return self._fold(
            operator_closures.compile_list_membership(left, right, locate, self.environment.limits), left, right
        )

    def _compile_comparison(self, tree: ComparisonChain) -> CompiledExpression:
        operands = [self.compile(tree.first), *(self.compile(operand) for _, operand in tree.rest)]
        operators = [operator for operator, _ in tree.rest]
        if len(operators) == 1:
            return self._fold(operator_closures.compile_comparison(operands[0], operators[0], operands[1]), *operands)
        return self._fold(operator_closures.compile_comparison_chain(operands, operators), *operands)

    def _compile_null_test(self, tree: NullPredicate) -> CompiledExpression:
        operand = self.compile(tree.operand)
        return self._fold(operator_closures.compile_null_test(operand, is_negated=tree.is_negated), operand)

    def _compile_case(self, tree: CaseExpressionNode) -> CompiledExpression:
        otherwise: CompiledExpression = ConstantExpression(None)
        if tree.otherwise is not None:
            otherwise = self.compile(tree.otherwise)
        results = [self.compile(result) for _, result in tree.branches]
        if tree.subject is None:
            conditions = [self.compile_condition(condition) for condition, _ in tree.branches]
            return operator_closures.compile_case_expression(list(zip(conditions, results, strict=True)), otherwise)
        subject = self.compile(tree.subject)
        alternatives = [self.compile(alternative) for alternative, _ in tree.branches]
        return operator_closures.compile_simple_case_expression(
            subject, list(zip(alternatives, results, strict=True)), otherwise
        )

    # Functions

    def _compile_function(self, tree: FunctionInvocation) -> CompiledExpression:
        if tree.name in AGGREGATE_NAMES:
            raise InvalidInput(f"the aggregate {tree.name}() is not allowed here; compute it in WITH or RETURN first")
        if tree.is_distinct:
            raise InvalidInput(f"DISTINCT is for aggregates, and {tree.name}() is none")
        arguments = [self.compile(each) for each in tree.arguments]
        if tree.name == "coalesce":
            return self._fold(operator_closures.compile_coalesce(arguments), *arguments)
        function = find_scalar_function(tree.name, self.environment.now)
        call = function.bind(arguments)
        locate, limits = self._locator(tree), self.environment.limits

        def run(row: Row) -> Any:
            try:
                value = call(row)
            except InvalidInput as error:
                raise locate(error) from None
            if is_list_map_or_long_string(value):
                count_large_value_work(value, limits)
            return value

        return run if function.is_volatile else self._fold(run, *arguments)

    def _compile_count(self, tree: CountStar) -> NoReturn:  # noqa: ARG002
        raise InvalidInput("the aggregate count(*) is not allowed here; compute it in WITH or RETURN first")

    # Lists

    def _compile_source(self, tree: QueryExpression, user: QuerySyntaxNode) -> Callable[[Row], list[Any] | None]:
        """Compile a list over whose elements an expression iterates."""
        source, locate = self.compile(tree), self._locator(user)

        def run(row: Row) -> list[Any] | None:
            items = source(row)
            if items is None or type(items) is list:
                return items
            raise locate(InvalidInput(f"IN expects a list, not {value_comparison.describe_value(items)}"))

        return run

    def _compile_comprehension(self, tree: ListComprehension) -> CompiledExpression:
        source = self._compile_source(tree.source, tree)
        where = None if tree.where is None else self.compile_condition(tree.where)
        result = None if tree.result is None else self.compile(tree.result)
        return operator_closures.compile_list_comprehension(source, tree.name, where, result, self.environment.limits)

    def _compile_quantifier(self, tree: QuantifiedPredicate) -> CompiledExpression:
        source = self._compile_source(tree.source, tree)
        where = self.compile_condition(tree.where)
        return operator_closures.compile_list_quantifier(tree.kind, source, tree.name, where, self.environment.limits)

    def _compile_reduce(self, tree: ReduceExpression) -> CompiledExpression:
        source = self._compile_source(tree.source, tree)
        initial, body = self.compile(tree.initial), self.compile(tree.body)
        names = tree.accumulator, tree.name
        return operator_closures.compile_list_reduction(source, names, initial, body, self.environment.limits)

    # Patterns and subqueries

    def _compile_pattern(self, tree: PatternComprehension) -> CompiledExpression:
        match = self.environment.match_pattern(tree.path, tree.where)
        result = self.compile(tree.result)
        return _build_list(match, result)

    def _compile_existence(self, tree: PatternExistence) -> CompiledExpression:
        match = self.environment.match_pattern(tree.path, None)
        return _build_count(match) if tree.is_count else _build_existence(match)

    def _compile_subquery(self, tree: SubqueryExpressionNode) -> CompiledExpression:
        expand = self.environment.run_subquery(tree.query)
        if tree.kind == "EXISTS":
            return _build_existence(expand)
        if tree.kind == "COUNT":
            return _build_count(expand)
        return _build_list(expand, lambda row: next(iter(row.values())))


def _build_list(expand: RowExpander, result: CompiledExpression) -> CompiledExpression:
    def run(row: Row) -> list[Any]:
        found: list[Any] = []
        weight = 0
        for each in expand(row):
            value = result(each)
            found.append(value)
            weight += count_nested_elements(value) if is_list_map_or_long_string(value) else 1
            require_value_within_element_limit(weight)
        return found

    return run


def _build_existence(expand: RowExpander) -> CompiledExpression:
    return lambda row: next(expand(row), None) is not None


def _build_count(expand: RowExpander) -> CompiledExpression:
    return lambda row: sum(1 for _ in expand(row))


def _check_condition(operator: str, *operands: CompiledExpression) -> None:
    """Raise InvalidInput for a constant that cannot be a condition."""
    for each in operands:
        if isinstance(each, ConstantExpression) and each.value is not None and type(each.value) is not bool:
            raise InvalidInput(f"{operator} expects booleans, not {value_comparison.describe_value(each.value)}")


_BINARY_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": arithmetic.add_or_concatenate,
    "-": arithmetic.subtract_cypher_values,
    "*": arithmetic.multiply_cypher_values,
    "/": arithmetic.divide_cypher_values,
    "%": arithmetic.take_remainder,
    "^": arithmetic.raise_to_power,
    "STARTS WITH": value_comparison.evaluate_starts_with_operator,
    "ENDS WITH": value_comparison.evaluate_ends_with_operator,
    "CONTAINS": value_comparison.evaluate_contains_operator,
    "=~": matches_whole_string_regex,
}
