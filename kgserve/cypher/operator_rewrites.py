"""Operators: result types, and rewrites of operations that the engine evaluates differently from openCypher.

The engine casts a text to the type of the other operand, sorts NaN before all numbers, and treats nulls within lists
differently. Each rule leaves the text as it is, rewrites it, or rejects it.
"""

from __future__ import annotations

import msgspec

from kgserve.cypher.analysis_context import CypherAnalysisContext, strip_parentheses
from kgserve.cypher.expression_parser import BITS_OR, POWER, SHIFT
from kgserve.cypher.syntax_tree import (
    CypherParameter,
    Expression,
    ListLiteral,
    Literal,
    Negation,
    OperatorChain,
    ParenthesizedExpression,
    PostfixExpression,
    Variable,
)
from kgserve.cypher.types import ANY_TYPE, BOOLEAN_TYPE, NUMBER_KINDS, CypherStaticType, compute_common_cypher_type

_MOMENT_KINDS = frozenset({"date", "time"})
_SORTABLE_KINDS = NUMBER_KINDS | _MOMENT_KINDS | {"text", "boolean", "duration", "uuid", "json", "list"}
_UNCHECKED_KINDS = frozenset({"engine", "null", "id"})
"""Kinds that are not checked: null is always valid, and the engine checks its own values."""
_TEXT_KINDS = frozenset({"text", "json"})


def can_engine_compare_types(left: CypherStaticType, right: CypherStaticType) -> bool:
    """Return whether the engine compares these types without a cast that changes the result."""
    if left.kind in _UNCHECKED_KINDS or right.kind in _UNCHECKED_KINDS:
        return True
    if "any" in {left.kind, right.kind}:
        return False
    if left.kind == right.kind == "list":
        return left.of is None or right.of is None or can_engine_compare_types(left.of, right.of)
    if left.kind == right.kind == "map":
        return all(
            (other := right.field(name)) is None or can_engine_compare_types(part, other) for name, part in left.fields
        )
    together = ({left.kind, right.kind} <= group for group in (NUMBER_KINDS, _MOMENT_KINDS, _TEXT_KINDS))
    return left.kind == right.kind or any(together)


def can_types_share_list(left: CypherStaticType, right: CypherStaticType) -> bool:
    """Return whether one list can hold values of both types unchanged."""
    if "any" in {left.kind, right.kind} or left.kind in _UNCHECKED_KINDS or right.kind in _UNCHECKED_KINDS:
        return True
    if left.kind == right.kind == "list":
        return left.of is None or right.of is None or can_types_share_list(left.of, right.of)
    if left.kind == right.kind == "map":
        names = [name for name, _ in left.fields]
        has_same = names == [name for name, _ in right.fields]
        return has_same and all(can_types_share_list(part, right.field(name) or part) for name, part in left.fields)
    return can_engine_compare_types(left, right) and {left.kind, right.kind} != {"integer", "float"}


def describe_static_value_type(kind: CypherStaticType) -> str:
    """Return a readable type name, listing the keys of maps in order, because the engine matches them by position."""
    if kind.kind == "list" and kind.of is not None:
        return f"a list of {describe_static_value_type(kind.of)}"
    return f"a map of {', '.join(name for name, _ in kind.fields)}" if kind.kind == "map" else kind.name


def can_collection_contain_nulls(kind: CypherStaticType) -> bool:
    """Return whether a list or map may contain nulls."""
    parts = ([] if kind.of is None else [kind.of]) + [part for _, part in kind.fields]
    return any((part.is_nullable and part.kind != "engine") or can_collection_contain_nulls(part) for part in parts)


class OperatorChecksAndRewrites:
    """Checks and rewrites for operators; ``index`` is always the operator's token."""

    def __init__(self, context: CypherAnalysisContext) -> None:
        self._context = context

    def compare(
        self,
        operator: str,
        index: int,
        left: Expression,
        left_type: CypherStaticType,
        right: Expression,
        right_type: CypherStaticType,
    ) -> CypherStaticType:
        """Check ``=``, ``<>`` and ordering comparisons."""
        self.check_comparable(operator, index, left_type, right_type)
        if operator in {"<", ">", "<=", ">="}:
            self._check_sorted(operator, index, left_type, right_type)
            self._check_nan(left, left_type, right, right_type)
        self._bypass_statistics(left, left_type, right_type)
        self._bypass_statistics(right, right_type, left_type)
        if operator == "=" and self._context.in_pattern and is_variable_or_property(left):
            self.prevent_join(left_type, right, right_type)
        return CypherStaticType("boolean", is_nullable=left_type.is_nullable or right_type.is_nullable)

    def prevent_join(self, left: CypherStaticType, right: Expression, right_type: CypherStaticType) -> None:
        """Prevent a join on nullable values, in which Kùzu loses rows; it then compares row by row."""
        if (left.is_nullable or right_type.is_nullable) and is_variable_or_property(right):
            self._context.edits.around(right.start, right.end, "coalesce(", ")")

    def check_comparable(self, operator: str, index: int, left: CypherStaticType, right: CypherStaticType) -> None:
        """Raise InvalidInput for types compared through a cast, and for nulls within lists and maps."""
        if not can_engine_compare_types(left, right):
            raise self._context.refuse(index, self._describe_incomparable(operator, left, right))
        if (can_collection_contain_nulls(left) or can_collection_contain_nulls(right)) and not {
            left.kind,
            right.kind,
        } & _UNCHECKED_KINDS:
            what = f"{operator} would treat a null within a list or map as a value; compare the parts. Found"
            raise self._context.refuse(index, what)
        if {left.kind, right.kind} == {"integer", "float"} and (left if left.kind == "integer" else right).may_be_large:
            what = f"{operator} cannot compare a decimal number with an integer this large; found"
            raise self._context.refuse(index, what)

    def check_alike(self, what: str, index: int, left: CypherStaticType, right: CypherStaticType) -> None:
        """Raise InvalidInput if the engine would convert one value to the type or keys of the other."""
        if not can_types_share_list(left, right):
            kinds = f"{describe_static_value_type(left)} and {describe_static_value_type(right)}"
            raise self._context.refuse(index, f"{what} needs values of one type, not {kinds}; convert one. Found")

    def _describe_incomparable(self, operator: str, left: CypherStaticType, right: CypherStaticType) -> str:
        if "any" in {left.kind, right.kind}:
            return (
                f"{operator} needs operands of known types; wrap the one of unknown type, for example in CAST(… AS"
                f" STRING). Found"
            )
        kinds = [each.name if each.kind != "list" else f"a list of {each.element.name}" for each in (left, right)]
        return (
            f"{operator} compares {kinds[0]} with {kinds[1]}, which are never equal; convert one side, as in string(…),"
            f" to_int64(…) or timestamp(…). Found"
        )

    def _check_sorted(self, operator: str, index: int, left: CypherStaticType, right: CypherStaticType) -> None:
        for each in (left, right):
            if each.kind not in _SORTABLE_KINDS | _UNCHECKED_KINDS:
                raise self._context.refuse(index, f"{operator} cannot order {each.name}; found")

    def _check_nan(
        self, left: Expression, left_type: CypherStaticType, right: Expression, right_type: CypherStaticType
    ) -> None:
        """Make comparisons with NaN false, as in openCypher; the engines sort NaN before all numbers."""
        suspects = [each for each, kind in ((left, left_type), (right, right_type)) if kind.may_be_nan]
        texts = [self._context.text(each) for each in suspects]
        if texts:
            tests = "".join(f" AND ({text}) = ({text})" for text in texts)
            self._context.edits.around(left.start, right.end, "(", f"{tests})")

    def _bypass_statistics(self, side: Expression, kind: CypherStaticType, other: CypherStaticType) -> None:
        """Hide an integer column from Kùzu's statistics, which exclude all rows for a decimal number."""
        if (
            self._context.in_pattern
            and kind.kind == "integer"
            and kind.is_column
            and other.kind in {"float", "decimal"}
        ):
            self._context.edits.around(side.start, side.end, "(", " + 0)")

    def contains(
        self,
        index: int,
        left: Expression,
        left_type: CypherStaticType,
        right: Expression,
        right_type: CypherStaticType,
        word: str,
    ) -> CypherStaticType:
        """Check STARTS WITH, ENDS WITH and CONTAINS, and make CONTAINS true for an empty text."""
        self._check_texts(word, index, left_type, right_type)
        if word == "CONTAINS" and not right_type.is_filled and right_type.kind == "text":
            found, wanted = self._context.text(left), self._context.text(right)
            closing = f" OR (({wanted}) = '' AND ({found}) IS NOT NULL))"
            self._context.edits.around(left.start, right.end, "(", closing)
        return CypherStaticType("boolean", is_nullable=left_type.is_nullable or right_type.is_nullable)

    def _check_texts(self, word: str, index: int, left: CypherStaticType, right: CypherStaticType) -> None:
        for each in (left, right):
            if each.kind not in _TEXT_KINDS | _UNCHECKED_KINDS:
                what = f"{word} needs texts, not {each.name}; wrap it in string(…). Found"
                raise self._context.refuse(index, what)

    def is_in(
        self, index: int, left: Expression, left_type: CypherStaticType, right: Expression, right_type: CypherStaticType
    ) -> CypherStaticType:
        """Check IN, which the engine evaluates incorrectly for nulls in a list and null in an empty list."""
        if right_type.kind in _UNCHECKED_KINDS:
            return BOOLEAN_TYPE.nullable()
        if right_type.kind != "list":
            raise self._context.refuse(index, f"IN needs a list, not {right_type.name}; found")
        element = right_type.of
        if element is not None and element.kind != "null" and (element.kind, left_type.kind) != ("any", "null"):
            self._check_member(index, left_type, element)
        if left_type.is_nullable and not self._is_filled(right) and element is not None:
            found = self._context.text(right)
            self._context.edits.around(left.start, right.end, f"(size({found}) > 0 AND ", ")")
        elif element is None and left_type.is_nullable:
            self._context.edits.replace(left.start, right.end, "false")
        return BOOLEAN_TYPE.nullable() if left_type.is_nullable or right_type.is_nullable else BOOLEAN_TYPE

    def _check_member(self, index: int, left: CypherStaticType, element: CypherStaticType) -> None:
        self.check_comparable("IN", index, left, element)
        if element.is_nullable and element.kind != "engine":
            what = "IN returns false if the list contains a null but not the value; remove the nulls. Found"
            raise self._context.refuse(index, what)

    def _is_filled(self, expression: Expression) -> bool:
        inner = strip_parentheses(expression)
        if isinstance(inner, ListLiteral):
            return bool(inner.items)
        return isinstance(inner, CypherParameter) and bool(self._context.parameters.get(inner.name))

    def add_parentheses(self, operation: OperatorChain) -> None:
        """Add parentheses where the engine's grammar groups operands differently."""
        for number, operand in enumerate(operation.operands):
            if operand is None:
                continue
            is_list = number > 0 and operation.operators[number - 1][0] == "IN" and operand.end - operand.start > 1
            if isinstance(operand, OperatorChain | Negation) or (
                is_list and not isinstance(operand, ListLiteral | ParenthesizedExpression)
            ):
                self._context.edits.around(operand.start, operand.end, "(", ")")

    def arithmetic(
        self,
        operator: str,
        index: int,
        level: int,
        left: CypherStaticType,
        right: CypherStaticType,
        divisor: Expression | None,
    ) -> CypherStaticType:
        """Return the type of a sum, product, power or bit operation."""
        is_nullable = left.is_nullable or right.is_nullable
        if BITS_OR <= level <= SHIFT:
            return CypherStaticType("integer", is_nullable=is_nullable)
        if left.kind in NUMBER_KINDS and right.kind in NUMBER_KINDS:
            found = self._numeric_result(operator, level, left, right, is_nullable=is_nullable)
            if operator in {"/", "%"} and _is_nonzero_literal(divisor) and found.kind == "float":
                may_be_nan = left.may_be_nan or (operator == "%" and left.may_be_large and left.kind == "float")
                return msgspec.structs.replace(found, may_be_nan=may_be_nan)
            return found
        if operator == "+" and {left.kind, right.kind} == {"text", "null"}:
            return CypherStaticType("text", is_nullable=True)
        if {left.kind, right.kind} & {"any", "engine", "null"}:
            self._check_sum_of_texts(operator, index, left, right)
            return CypherStaticType("engine", is_nullable=True) if "any" not in {left.kind, right.kind} else ANY_TYPE
        return self._sum_result(operator, index, left, right, is_nullable=is_nullable)

    def _numeric_result(
        self, operator: str, level: int, left: CypherStaticType, right: CypherStaticType, *, is_nullable: bool
    ) -> CypherStaticType:
        kinds = {left.kind, right.kind}
        if kinds == {"integer"} and level != POWER:
            return CypherStaticType("integer", is_nullable=is_nullable)
        if kinds in ({"decimal"}, {"decimal", "integer"}):
            return CypherStaticType("decimal", is_nullable=is_nullable)
        may_be_large = any(each.may_be_large and each.kind == "float" for each in (left, right))
        may_be_nan = left.may_be_nan or right.may_be_nan or operator in {"/", "%", "^"} or may_be_large
        return CypherStaticType("float", is_nullable=is_nullable, may_be_nan=may_be_nan, may_be_large=operator != "%")

    def _check_sum_of_texts(self, operator: str, index: int, left: CypherStaticType, right: CypherStaticType) -> None:
        if operator == "+" and "text" in {left.kind, right.kind} and "any" in {left.kind, right.kind}:
            what = "+ needs operands of known types to concatenate texts; wrap the other side in string(…). Found"
            raise self._context.refuse(index, what)

    def _sum_result(
        self, operator: str, index: int, left: CypherStaticType, right: CypherStaticType, *, is_nullable: bool
    ) -> CypherStaticType:
        kinds = {left.kind, right.kind}
        if operator == "+" and kinds <= _TEXT_KINDS:
            return CypherStaticType("text", is_nullable=is_nullable, is_filled=left.is_filled or right.is_filled)
        if operator == "+" and left.kind == right.kind == "list":
            self.check_alike("+", index, left, right)
            return compute_common_cypher_type(left, right)
        if operator == "+" and "text" in kinds and kinds & (NUMBER_KINDS | {"boolean"}):
            what = "+ concatenates a text only with texts; wrap the other side in string(…). Found"
            raise self._context.refuse(index, what)
        if kinds & _MOMENT_KINDS and kinds <= _MOMENT_KINDS | {"duration", "integer"}:
            return self._time_result(operator, left, right)
        if "duration" in kinds and kinds <= {"duration", "integer"}:
            return CypherStaticType("duration", is_nullable=is_nullable)
        return CypherStaticType("engine", is_nullable=True)

    def _time_result(self, operator: str, left: CypherStaticType, right: CypherStaticType) -> CypherStaticType:
        if operator == "-" and {left.kind, right.kind} <= _MOMENT_KINDS:
            return CypherStaticType("engine", is_nullable=True)
        return (
            CypherStaticType("engine", is_nullable=True)
            if "date" in {left.kind, right.kind}
            else CypherStaticType("time", is_nullable=True)
        )

    def keep_nulls(self, operation: OperatorChain, types: list[CypherStaticType]) -> None:
        """Make a concatenation with null return null; the engine returns the text."""
        parts = zip(operation.operands, types, strict=True)
        nullable = [part for part, kind in parts if part is not None and kind.is_nullable and not _is_null(part)]
        if nullable:
            tests = " OR ".join(f"({self._context.text(part)}) IS NULL" for part in nullable)
            opening = f"(CASE WHEN {tests} THEN CAST(NULL AS STRING) ELSE "
            self._context.edits.around(operation.start, operation.end, opening, " END)")

    def truth(self, word: str, index: int, kind: CypherStaticType) -> None:
        """Check an operand of AND, OR, XOR or NOT; the engine itself rejects known non-booleans."""
        if kind.kind == "any":
            raise self._context.refuse(index, f"{word} needs a boolean, but the type of its operand is unknown; found")


def is_variable_or_property(expression: Expression) -> bool:
    """Return whether an expression is a variable or a property of one, on which Kùzu may join."""
    inner = strip_parentheses(expression)
    return isinstance(inner, Variable | PostfixExpression)


def _is_nonzero_literal(expression: Expression | None) -> bool:
    value = expression.value if isinstance(expression, Literal) else None
    return isinstance(value, int | float) and value != 0


def _is_null(expression: Expression) -> bool:
    return isinstance(expression, Literal) and expression.kind == "null"
