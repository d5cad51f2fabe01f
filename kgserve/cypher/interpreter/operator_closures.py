"""Closures that evaluate Cypher operators, specialised by the operands known at compile time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias, cast

from kgserve.cypher.interpreter.graph_view_interface import CompiledExpression, ExecutionLimits, NodeReference, Row
from kgserve.cypher.interpreter.value_comparison import (
    ORDER_OPERATORS,
    are_values_equal,
    describe_value,
    evaluate_cypher_ordering_comparison,
    get_cypher_value_property,
    is_in_list,
)
from kgserve.cypher.interpreter.value_size_limits import (
    count_large_value_work,
    count_nested_elements,
    is_list_map_or_long_string,
    require_value_within_element_limit,
)
from kgserve.errors import InvalidInput

ErrorLocator: TypeAlias = Callable[[InvalidInput], InvalidInput]
"""Adds the place of an expression to an error."""
ListSource: TypeAlias = Callable[[Row], list[Any] | None]
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


class ConstantExpression:
    """Compiled expression whose value is constant, known before the statement runs."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, row: Row) -> Any:  # noqa: ARG002, D102
        return self.value


def compile_unary_operation(
    function: Callable[[Any], Any], operand: CompiledExpression, locate: ErrorLocator
) -> CompiledExpression:
    """Compile the application of a function to a value."""

    def run(row: Row) -> Any:
        try:
            return function(operand(row))
        except InvalidInput as error:
            raise locate(error) from None

    return run


def compile_binary_operation(
    function: Callable[[Any, Any], Any], left: CompiledExpression, right: CompiledExpression, locate: ErrorLocator
) -> CompiledExpression:
    """Compile the application of a function to two values."""

    def run(row: Row) -> Any:
        try:
            return function(left(row), right(row))
        except InvalidInput as error:
            raise locate(error) from None

    return run


def compile_property_access(variable: str, name: str, locate: ErrorLocator) -> CompiledExpression:
    """Compile the access to a property of a variable."""

    def run(row: Row) -> Any:
        subject = row[variable]
        try:
            if type(subject) is NodeReference:
                return subject.graph.node_property(subject.id, name)
            return get_cypher_value_property(subject, name)
        except InvalidInput as error:
            raise locate(error) from None

    return run


# Comparisons


def compile_comparison(left: CompiledExpression, operator: str, right: CompiledExpression) -> CompiledExpression:
    """Compile the comparison of two values by ``=``, ``<>``, ``<``, ``<=``, ``>`` or ``>=``."""
    if operator in {"=", "<>"}:
        test = _build_equality(left, right)
        return compile_ternary_negation(test) if operator == "<>" else test

    if isinstance(right, ConstantExpression):
        return _build_order_with(left, operator, right.value)
    if isinstance(left, ConstantExpression):
        return _build_order_with(right, _MIRRORED[operator], left.value)

    def run(row: Row) -> bool | None:
        return evaluate_cypher_ordering_comparison(left(row), right(row), operator)

    return run


def _build_order_with(operand: CompiledExpression, operator: str, bound: Any) -> CompiledExpression:
    """Compare a value with a constant; numbers and strings are comparable with their like only."""
    test = ORDER_OPERATORS[operator]
    if type(bound) is str:

        def run_string(row: Row) -> bool | None:
            value = operand(row)
            return test(value, bound) if type(value) is str else None

        return run_string

    if type(bound) is int or type(bound) is float:

        def run_number(row: Row) -> bool | None:
            value = operand(row)
            return test(value, bound) if type(value) is int or type(value) is float else None

        return run_number

    return lambda row: evaluate_cypher_ordering_comparison(operand(row), bound, operator)


def _build_equality(left: CompiledExpression, right: CompiledExpression) -> CompiledExpression:
    if isinstance(left, ConstantExpression):
        left, right = right, left
    if isinstance(right, ConstantExpression):
        return _build_equality_with(left, right.value)

    def run(row: Row) -> bool | None:
        return are_values_equal(left(row), right(row))

    return run


def _build_equality_with(operand: CompiledExpression, expected: Any) -> CompiledExpression:
    """Compare a value with a constant; of other types than numbers, only a string equals a string."""
    if type(expected) is str:

        def run_string(row: Row) -> bool | None:
            value = operand(row)
            return None if value is None else type(value) is str and value == expected

        return run_string

    if type(expected) is int or type(expected) is float:

        def run_number(row: Row) -> bool | None:
            value = operand(row)
            return None if value is None else (type(value) is int or type(value) is float) and value == expected

        return run_number

    def run(row: Row) -> bool | None:
        return are_values_equal(operand(row), expected)

    return run


def compile_ternary_negation(operand: CompiledExpression) -> CompiledExpression:
    """Compile the negation of a condition whose values are true, false and null, unchecked."""

    def run(row: Row) -> bool | None:
        value = operand(row)
        return None if value is None else not value

    return run


def compile_comparison_chain(operands: list[CompiledExpression], operators: list[str]) -> CompiledExpression:
    """Compile a chain of comparisons, ``a < b <= c``; each value is computed at most once."""
    tests = [
        compile_comparison(_build_item(index), operator, _build_item(index + 1))
        for index, operator in enumerate(operators)
    ]

    def run(row: Row) -> bool | None:
        values: Any = {0: operands[0](row)}
        result: bool | None = True
        for index, test in enumerate(tests, start=1):
            values[index] = operands[index](row)
            passed = test(values)
            if passed is False:
                return False
            if passed is None:
                result = None
        return result

    return run


def _build_item(index: Any) -> CompiledExpression:
    return lambda values: values[index]


def compile_list_membership(
    left: CompiledExpression, right: CompiledExpression, locate: ErrorLocator, limits: ExecutionLimits
) -> CompiledExpression:
    """Compile the test whether a list has a value (``IN``)."""
    items: Any = right.value if isinstance(right, ConstantExpression) else None
    kinds = set(map(type, cast("list[Any]", items))) if type(items) is list else set[type]()
    if kinds in ({str}, {int}):
        return _build_membership_of(left, kinds.pop(), frozenset(items))

    def has_value(value: Any, found: Any) -> bool | None:
        if is_list_map_or_long_string(found):
            count_large_value_work(found, limits)
        return is_in_list(found, value)

    return compile_binary_operation(has_value, left, right, locate)


def _build_membership_of(left: CompiledExpression, kind: type, items: frozenset[Any]) -> CompiledExpression:
    """Test whether constants, all strings or all integers, have a value."""
    other = float if kind is int else kind

    def run(row: Row) -> bool | None:
        value = left(row)
        return None if value is None else (type(value) is kind or type(value) is other) and value in items

    return run


def compile_null_test(operand: CompiledExpression, *, is_negated: bool) -> CompiledExpression:
    """Compile ``IS NULL`` or ``IS NOT NULL``."""
    if is_negated:
        return lambda row: operand(row) is not None
    return lambda row: operand(row) is None


# Logic


def compile_not_operator(operand: CompiledExpression, locate: ErrorLocator) -> CompiledExpression:
    """Compile ``NOT``; it raises InvalidInput if the operand is no boolean."""

    def run(row: Row) -> bool | None:
        value = operand(row)
        if value is True:
            return False
        if value is False:
            return True
        return None if value is None else _refuse_operand("NOT", value, locate)

    return run


def compile_and_operator(
    left: CompiledExpression, right: CompiledExpression, locate: ErrorLocator
) -> CompiledExpression:
    """Compile ``AND``; the right operand is not computed if the left one is false."""

    def run(row: Row) -> bool | None:
        first = left(row)
        if first is False:
            return False
        if first is not None and first is not True:
            _refuse_operand("AND", first, locate)
        second = right(row)
        if second is True:
            return first
        return second if second is False or second is None else _refuse_operand("AND", second, locate)

    return run


def compile_or_operator(
    left: CompiledExpression, right: CompiledExpression, locate: ErrorLocator
) -> CompiledExpression:
    """Compile ``OR``; the right operand is not computed if the left one is true."""

    def run(row: Row) -> bool | None:
        first = left(row)
        if first is True:
            return True
        if first is not None and first is not False:
            _refuse_operand("OR", first, locate)
        second = right(row)
        if second is False:
            return first
        return second if second is True or second is None else _refuse_operand("OR", second, locate)

    return run


def compile_xor_operator(
    left: CompiledExpression, right: CompiledExpression, locate: ErrorLocator
) -> CompiledExpression:
    """Compile ``XOR``: exactly one of two conditions must be true."""

    def run(row: Row) -> bool | None:
        first, second = left(row), right(row)
        for each in (first, second):
            if each is not None and each is not True and each is not False:
                _refuse_operand("XOR", each, locate)
        return None if first is None or second is None else first is not second

    return run


def compile_boolean_check(operand: CompiledExpression, locate: ErrorLocator) -> CompiledExpression:
    """Compile the check that a value is a boolean or null."""

    def run(row: Row) -> bool | None:
        value = operand(row)
        if value is True or value is False or value is None:
            return value
        raise locate(InvalidInput(f"a condition must be a boolean, not {describe_value(value)}"))

    return run


LOGIC_BUILDERS = {"AND": compile_and_operator, "OR": compile_or_operator, "XOR": compile_xor_operator}


def _refuse_operand(operator: str, value: Any, locate: ErrorLocator) -> NoReturn:
    raise locate(InvalidInput(f"{operator} expects booleans, not {describe_value(value)}"))


def compile_list_reduction(
    source: ListSource,
    names: tuple[str, str],
    initial: CompiledExpression,
    body: CompiledExpression,
    limits: ExecutionLimits,
) -> CompiledExpression:
    """Compile ``reduce()`` over a list; ``names`` are the variables of the accumulator and the element."""
    accumulator, name = names

    def run(row: Row) -> Any:
        items = source(row)
        if items is None:
            return None
        inner = {**row, accumulator: initial(row)}
        for count, each in enumerate(items, start=1):
            limits.step()
            inner[name] = each
            value = inner[accumulator] = body(inner)
            if is_list_map_or_long_string(value):
                count_large_value_work(value, limits)
                # Each step may double the number of elements.
                if count % 16 == 0 or count == len(items):
                    count_nested_elements(value)
        return inner[accumulator]

    return run


def compile_size_checked_container(function: CompiledExpression) -> CompiledExpression:
    """Compile a list or map that contains others, with a check of its total size."""

    def run(row: Row) -> Any:
        value = function(row)
        count_nested_elements(value)
        return value

    return run


# Branches


def compile_coalesce(operands: list[CompiledExpression]) -> CompiledExpression:
    """Compile ``coalesce()``, which returns the first value that is not null."""

    def run(row: Row) -> Any:
        for operand in operands:
            value = operand(row)
            if value is not None:
                return value
        return None

    return run


def compile_case_expression(
    branches: list[tuple[CompiledExpression, CompiledExpression]], otherwise: CompiledExpression
) -> CompiledExpression:
    """Compile ``CASE``: the value of the first branch whose condition is true."""

    def run(row: Row) -> Any:
        for condition, result in branches:
            if condition(row) is True:
                return result(row)
        return otherwise(row)

    return run


def compile_simple_case_expression(
    subject: CompiledExpression,
    branches: list[tuple[CompiledExpression, CompiledExpression]],
    otherwise: CompiledExpression,
) -> CompiledExpression:
    """Compile ``CASE subject``: the value of the first branch that equals the subject."""

    def run(row: Row) -> Any:
        value = subject(row)
        for alternative, result in branches:
            if are_values_equal(value, alternative(row)) is True:
                return result(row)
        return otherwise(row)

    return run


# Lists


def compile_list_comprehension(
    source: ListSource,
    name: str,
    where: CompiledExpression | None,
    result: CompiledExpression | None,
    limits: ExecutionLimits,
) -> CompiledExpression:
    """Compile a list comprehension, which filters and converts the elements of a list."""

    def run(row: Row) -> list[Any] | None:
        items = source(row)
        if items is None:
            return None
        inner, found, weight = {**row}, [], 0
        for each in items:
            limits.step()
            inner[name] = each
            if where is None or where(inner) is True:
                value = each if result is None else result(inner)
                found.append(value)
                if is_list_map_or_long_string(value):
                    weight += count_nested_elements(value)
                    require_value_within_element_limit(weight)
        return found

    return run


def compile_list_quantifier(
    kind: str, source: ListSource, name: str, where: CompiledExpression, limits: ExecutionLimits
) -> CompiledExpression:
    """Compile ``all``, ``any``, ``none`` or ``single`` over a list; null if unknown conditions decide it."""
    # ``any`` is decided by the first true condition, ``single`` by the second, ``all`` by the first false one.
    decisive = kind != "all"
    needed = 2 if kind == "single" else 1

    def run(row: Row) -> bool | None:
        items = source(row)
        if items is None:
            return None
        inner, count, has_unknown = {**row}, 0, False
        for each in items:
            limits.step()
            inner[name] = each
            passed = where(inner)
            if passed is None:
                has_unknown = True
            elif passed is decisive:
                count += 1
                if count == needed:
                    return kind == "any"
        if has_unknown:
            return None
        return count == 1 if kind == "single" else kind != "any"

    return run
