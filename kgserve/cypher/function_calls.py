"""Rules for Cypher function calls: argument types, result types, and names that differ in the engine."""

from __future__ import annotations

import math

import msgspec

from kgserve.cypher.analysis_context import CypherAnalysisContext, strip_parentheses
from kgserve.cypher.engine_function_signatures import FUNCTION_SIGNATURES, KIND_BY_CAST_TYPE, FunctionSignature
from kgserve.cypher.operator_rewrites import (
    OperatorChecksAndRewrites,
    can_collection_contain_nulls,
    can_engine_compare_types,
)
from kgserve.cypher.syntax_tree import CastExpression, CypherParameter, Expression, FunctionCall, Literal, Negation
from kgserve.cypher.text_function_rewrites import StringFunctionRewrites
from kgserve.cypher.types import (
    ANY_TYPE,
    ENGINE_TYPE,
    FLOAT_TYPE,
    INTEGER_TYPE,
    MAX_INTEGER,
    NUMBER_KINDS,
    CypherStaticType,
    compute_common_cypher_type,
    make_list_type,
)

_AGGREGATE_FUNCTIONS = frozenset({"count", "collect", "sum", "avg", "min", "max"})
_CONTAINMENT_FUNCTIONS = frozenset({"list_contains", "list_has"})
_NEVER_NULL_FUNCTIONS = frozenset({"count", "collect", "sum", "id", "label", "labels"})
_NUMBER_MIXING_FUNCTIONS = frozenset({"coalesce", "ifnull"})
_ELEMENT_ADDING_FUNCTIONS = frozenset({"list_append", "list_prepend"})
_LIST_JOINING_FUNCTIONS = frozenset({"list_concat", "list_cat"})
_SINGLE_TYPE_FUNCTIONS = frozenset({"greatest", "least"})
_SUBSTRING_FUNCTIONS = frozenset({"left", "right", "substring"})


class FunctionCallChecksAndRewrites:
    """Type checks and rewrites for Cypher function calls whose arguments have been checked."""

    def __init__(self, context: CypherAnalysisContext, operators: OperatorChecksAndRewrites) -> None:
        self._context = context
        self._operators = operators
        self._texts = StringFunctionRewrites(context)

    def check(self, call: FunctionCall, kinds: list[CypherStaticType]) -> CypherStaticType:
        """Return the type of the result. Raises InvalidInput for arguments that the engine would cast."""
        signature = FUNCTION_SIGNATURES.get(call.name)
        if signature is None:
            return ENGINE_TYPE
        if call.name == "size" and len(kinds) == 1 and kinds[0].kind == "relations":
            self._context.edits.replace(call.start, call.start + 1, "length")
            return INTEGER_TYPE
        if call.name == "reverse" and len(kinds) == 1 and kinds[0].kind == "list":
            self._context.edits.replace(call.start, call.start + 1, "list_reverse")
            return kinds[0]
        self._check_arguments(call, signature, kinds)
        self._check_function_rules(call, kinds)
        self._rewrite(call, kinds)
        return self._result(call, signature, kinds)

    def cast(self, cast: CastExpression, kind: CypherStaticType) -> CypherStaticType:
        """Return the type of CAST(… AS TYPE), an explicit conversion."""
        base = cast.type.partition("(")[0]
        if base.endswith("]"):
            return make_list_type(ANY_TYPE, is_nullable=kind.is_nullable)
        made = KIND_BY_CAST_TYPE.get(base, "engine")
        is_nan = made == "float" and kind.kind not in {"integer", "null"} and (kind.kind != "float" or kind.may_be_nan)
        return CypherStaticType(made, is_nullable=kind.is_nullable, may_be_nan=is_nan, may_be_large="128" in base)

    def _check_arguments(self, call: FunctionCall, signature: FunctionSignature, kinds: list[CypherStaticType]) -> None:
        for number, (argument, kind) in enumerate(zip(call.arguments, kinds, strict=True)):
            accepted = signature.accepts(number)
            if accepted is None or kind.kind in accepted or kind.kind in {"null", "engine"}:
                continue
            raise self._context.refuse(argument.start, self._describe_mismatch(call.name, kind, accepted))

    def _describe_mismatch(self, name: str, kind: CypherStaticType, accepted: frozenset[str]) -> str:
        if kind.kind == "any":
            return f"{name}() needs a value of a known type; wrap it, for example in CAST(… AS STRING). Found"
        instead = "; wrap it in string(…)" if "text" in accepted and name != "size" else ""
        if name == "size":
            return f"size() takes a text or a list, not {kind.name}. Found"
        return f"{name}() does not take {kind.name}{instead}. Found"

    def _check_function_rules(self, call: FunctionCall, kinds: list[CypherStaticType]) -> None:
        name, found = call.name, {kind.kind for kind in kinds if kind.kind in NUMBER_KINDS}
        if name in _NUMBER_MIXING_FUNCTIONS and {"integer", "float"} <= found:
            what = f"{name}() would convert whole numbers to decimal; write them with .0, as in 1.0. Found"
            raise self._context.refuse(call.start, what)
        if name in _NUMBER_MIXING_FUNCTIONS:
            self._check_alike(call, kinds[0], kinds[1:])
        if name == "range":
            self._check_range(call)
        if name in _SINGLE_TYPE_FUNCTIONS:
            self._check_one_type(call, kinds)
        self._check_lists(call, kinds)
        self._check_special_arguments(call, kinds)

    def _check_special_arguments(self, call: FunctionCall, kinds: list[CypherStaticType]) -> None:
        name = call.name
        if name == "nullif" and len(kinds) > 1 and not can_engine_compare_types(kinds[0], kinds[1]):
            what = f"nullif() compares {kinds[0].name} with {kinds[1].name}, which are never equal. Found"
            raise self._context.refuse(call.start, what)
        if name in {"min", "max"} and kinds and kinds[0].may_be_nan and kinds[0].kind == "float":
            what = f"{name}() of values that may be NaN is undefined in the engine; round() them first. Found"
            raise self._context.refuse(call.start, what)
        if name == "list_any_value":
            what = (
                "the engine returns 0 for list_any_value() of an empty list; use list[0], or list_filter() first. Found"
            )
            raise self._context.refuse(call.start, what)
        if name in _SUBSTRING_FUNCTIONS:
            for argument in call.arguments[1:]:
                self._check_not_negative(call, argument)
        if name == "substr":
            what = "substr counts from 1; use substring, which counts from 0 as in openCypher. Found"
            raise self._context.refuse(call.start, what)

    def _check_lists(self, call: FunctionCall, kinds: list[CypherStaticType]) -> None:
        name = call.name
        if name in {"list_contains", "list_has", "list_position", "list_indexof"} and len(kinds) > 1:
            element = kinds[0].of
            if element is not None and not can_engine_compare_types(element, kinds[1]):
                what = f"{name}() cannot find {kinds[1].name} in a list of {element.name}s; found"
                raise self._context.refuse(call.start, what)
            if name in _CONTAINMENT_FUNCTIONS and can_collection_contain_nulls(kinds[0]):
                what = f"{name}() returns false if the list contains a null but not the value; remove the nulls. Found"
                raise self._context.refuse(call.start, what)
        if name in _ELEMENT_ADDING_FUNCTIONS | _LIST_JOINING_FUNCTIONS and len(kinds) > 1 and kinds[0].kind == "list":
            self._check_alike(call, kinds[0].element if name in _ELEMENT_ADDING_FUNCTIONS else kinds[0], kinds[1:2])
        if name in _ELEMENT_ADDING_FUNCTIONS and len(kinds) > 1 and kinds[1].is_nullable:
            what = (
                f"the engine returns null for {name}() of a null instead of a list with a null; leave nulls out. Found"
            )
            raise self._context.refuse(call.start, what)

    def _check_alike(self, call: FunctionCall, first: CypherStaticType, others: list[CypherStaticType]) -> None:
        """Reject mixed types, which the engine converts to text.

        Also reject maps with other keys, which it matches by position.
        """
        for argument, kind in zip(call.arguments[1:], others, strict=True):
            self._operators.check_alike(f"{call.name}()", argument.start, first, kind)

    def _check_one_type(self, call: FunctionCall, kinds: list[CypherStaticType]) -> None:
        """Reject mixed types, which the engine only detects when it calls the function."""
        known = [(argument, kind) for argument, kind in zip(call.arguments, kinds, strict=True) if kind.is_known]
        for argument, kind in known[1:]:
            first = known[0][1]
            if kind.kind != first.kind:
                what = f"{call.name}() takes values of one type, not {first.name} and {kind.name}; convert one"
                raise self._context.refuse(argument.start, f"{what}. Found")

    def _check_range(self, call: FunctionCall) -> None:
        known = [self._integer_value(argument) for argument in call.arguments]
        if len(known) > 2 and abs(known[1]) + abs(known[2]) > MAX_INTEGER:  # noqa: PLR2004 - it has a step
            raise self._context.refuse(call.start, "the last step of range() would exceed 64 bits; found")

    def _integer_value(self, argument: Expression) -> int:
        inner = strip_parentheses(argument)
        if isinstance(inner, Negation):
            return self._integer_value(inner.operand)
        value = inner.value if isinstance(inner, Literal) else None
        if isinstance(inner, CypherParameter):
            value = self._context.parameters.get(inner.name)
        return value if isinstance(value, int) else 0

    def _check_not_negative(self, call: FunctionCall, argument: Expression) -> None:
        """Reject negative literals, and make the engine fail on negative results of expressions."""
        inner = strip_parentheses(argument)
        if isinstance(inner, Negation):
            raise self._context.refuse(argument.start, f"{call.name}() takes no negative number; found")
        is_sure = isinstance(inner, Literal) or (isinstance(inner, FunctionCall) and inner.name in {"size", "length"})
        if not is_sure:
            text = self._context.text(argument)
            failing = f" + 0 / CASE WHEN ({text}) < 0 THEN 0 ELSE 1 END)"
            self._context.edits.around(argument.start, argument.end, "((", f"){failing}")

    def _rewrite(self, call: FunctionCall, kinds: list[CypherStaticType]) -> None:
        edits = self._context.edits
        match call.name:
            case "log":
                edits.replace(call.start, call.start + 1, "ln")
            case "label" | "labels":
                self._rewrite_label(call, kinds)
            case "collect" if not call.is_star:
                edits.around(call.start, call.end, "coalesce(", ", [])")
            case "sum" if kinds and kinds[0].kind in NUMBER_KINDS:
                self._rewrite_sum(call, kinds[0])
            case "list_contains" | "list_has" if len(kinds) > 1 and kinds[1].is_nullable:
                edits.around(call.start, call.end, f"(size({self._context.text(call.arguments[0])}) > 0 AND ", ")")
            case "json_extract":
                edits.around(call.start, call.end, "nullif(", ", '')")
            case _ if kinds:
                self._rewrite_by_kind(call, kinds)
            case _:
                pass

    def _rewrite_by_kind(self, call: FunctionCall, kinds: list[CypherStaticType]) -> None:
        edits, kind = self._context.edits, kinds[0]
        match call.name:
            case "sign" if kind.kind == "float":
                opening = f"(CASE WHEN {self._context.text(call.arguments[0])} = 0 THEN 0 ELSE "
                edits.around(call.start, call.end, opening, " END)")
            case "ceil" | "ceiling" | "floor" if kind.kind == "integer":
                edits.replace(call.start, call.start + 1, "CAST")
                edits.behind(call.end - 2, " AS DOUBLE")
            case "round" if kind.kind == "integer":
                edits.around(call.arguments[0].start, call.arguments[0].end, "CAST(", " AS DOUBLE)")
            case "list_sum" | "list_product" if kind.element.kind == "integer":
                edits.around(call.arguments[0].start, call.arguments[0].end, "CAST(", " AS INT128[])")
                edits.around(call.start, call.end, "CAST(", " AS INT64)")
            case "radians" | "degrees":
                self._rewrite_angle(call)
            case _ if kind.kind in {"text", "json"}:
                self._texts.rewrite(call, kinds)
            case _:
                pass

    def _rewrite_angle(self, call: FunctionCall) -> None:
        """Multiply by a constant instead of radians() and degrees(), which overflow for large numbers."""
        factor = {"radians": math.pi / 180, "degrees": 180 / math.pi}[call.name]
        self._context.edits.replace(call.start, call.start + 1, "")
        self._context.edits.around(call.start, call.end, "(", f" * {factor!r})")

    def _rewrite_sum(self, call: FunctionCall, kind: CypherStaticType) -> None:
        """Make sum() of nothing return 0, and integer sums fail beyond 64 bits."""
        if kind.kind == "integer":
            self._context.edits.around(call.start, call.end, "CAST(coalesce(", ", 0) AS INT64)")
        else:
            self._context.edits.around(call.start, call.end, "coalesce(", ", 0.0)" if kind.kind == "float" else ", 0)")

    def _rewrite_label(self, call: FunctionCall, kinds: list[CypherStaticType]) -> None:
        """Return labels as a list, and null for a missing node, unlike the engine."""
        edits = self._context.edits
        if call.name == "labels":
            edits.replace(call.start, call.start + 1, "label")
            edits.around(call.start, call.end, "[", "]")
        if kinds and kinds[0].is_nullable:
            opening = f"(CASE WHEN {self._context.text(call.arguments[0])} IS NULL THEN NULL ELSE "
            edits.around(call.start, call.end, opening, " END)")

    def _result(
        self, call: FunctionCall, signature: FunctionSignature, kinds: list[CypherStaticType]
    ) -> CypherStaticType:
        is_nullable = any(kind.is_nullable for kind in kinds) if call.name not in _NEVER_NULL_FUNCTIONS else False
        is_nullable = is_nullable or call.name in {"avg", "min", "max", "json_extract", "nullif"}
        base, _, element = signature.result.partition(" ")
        first = kinds[0] if kinds else ENGINE_TYPE
        match base:
            case "first" | "element" | "transformed" | "joined" | "null":
                return self._result_from_arguments(base, call, first, kinds, is_nullable=is_nullable)
            case "list":
                inner = first if element == "first" else CypherStaticType(element)
                inner = msgspec.structs.replace(inner, is_nullable=False) if call.name == "collect" else inner
                return make_list_type(inner, is_nullable=is_nullable)
            case "sum" | "average":
                return self._numeric_result(base, first, is_nullable=is_nullable)
            case "nan":
                return CypherStaticType("float", is_nullable=is_nullable, may_be_nan=True, may_be_large=True)
            case "count":
                return INTEGER_TYPE
            case _:
                return CypherStaticType(
                    base.rstrip("?"), is_nullable=is_nullable or base.endswith("?") or base == "engine"
                )

    def _numeric_result(self, base: str, first: CypherStaticType, *, is_nullable: bool) -> CypherStaticType:
        if base == "average":
            return msgspec.structs.replace(
                FLOAT_TYPE, is_nullable=True, may_be_nan=first.may_be_nan or first.may_be_large
            )
        kind = first.kind if first.kind in NUMBER_KINDS else "engine"
        return CypherStaticType(
            kind, is_nullable=is_nullable, may_be_nan=first.may_be_nan, may_be_large=kind == "float"
        )

    def _result_from_arguments(
        self,
        base: str,
        call: FunctionCall,
        first: CypherStaticType,
        kinds: list[CypherStaticType],
        *,
        is_nullable: bool,
    ) -> CypherStaticType:
        if base == "element":
            return first.element.nullable()
        if base == "transformed":
            return make_list_type(kinds[1], is_nullable=is_nullable)
        if base == "joined":
            joined = first
            for kind in kinds[1:]:
                joined = compute_common_cypher_type(joined, kind)
            never = call.name in _NUMBER_MIXING_FUNCTIONS and any(not kind.is_nullable for kind in kinds)
            return msgspec.structs.replace(joined.without_column(), is_nullable=not never and joined.is_nullable)
        if call.name in {"ceil", "ceiling", "floor"}:
            return msgspec.structs.replace(FLOAT_TYPE, is_nullable=is_nullable, may_be_nan=first.may_be_nan)
        return msgspec.structs.replace(first.without_column(), is_nullable=is_nullable, is_filled=False)


def contains_aggregate_function_name(names: set[str]) -> bool:
    """Return whether any of the functions is an aggregate."""
    return not _AGGREGATE_FUNCTIONS.isdisjoint(names)
