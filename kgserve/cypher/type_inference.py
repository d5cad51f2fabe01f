"""Type inference for expressions, bottom-up, with the checks and rewrites for each kind of expression."""

from __future__ import annotations

from abc import ABC, abstractmethod

from kgserve.cypher.analysis_context import (
    CypherAnalysisContext,
    CypherVariableType,
    VariableScope,
    is_constant_expression,
    rewrite_first_slice_bound,
    strip_parentheses,
)
from kgserve.cypher.column_assumptions import assume_column_is_property
from kgserve.cypher.expression_parser import AND, COMPARISON, OR, PREDICATE, SUM, XOR
from kgserve.cypher.function_calls import FunctionCallChecksAndRewrites
from kgserve.cypher.operator_rewrites import OperatorChecksAndRewrites, can_types_share_list, describe_static_value_type
from kgserve.cypher.syntax_tree import (
    CaseExpression,
    CastExpression,
    CypherParameter,
    Expression,
    FunctionCall,
    LabelTest,
    LambdaExpression,
    ListLiteral,
    Literal,
    MapLiteral,
    Negation,
    OperatorChain,
    ParenthesizedExpression,
    PatternPredicate,
    PostfixExpression,
    PropertyAccess,
    Slice,
    SubqueryExpression,
    Subscript,
    Variable,
    iterate_syntax_nodes,
)
from kgserve.cypher.types import (
    ANY_TYPE,
    BOOLEAN_TYPE,
    EDGE_COLUMN_TYPES,
    ELSEWHERE_COLUMN_TYPES,
    ENGINE_TYPE,
    MAX_INTEGER,
    NODE_COLUMN_TYPES,
    NULL_TYPE,
    NUMBER_KINDS,
    CypherStaticType,
    compute_common_cypher_type,
    contains_integer_type,
    infer_parameter_value_type,
    make_list_type,
    to_engine_type_name,
    type_of_literal,
)

_RELATION_LIST_TYPE = CypherStaticType("list", of=CypherStaticType("relation"), is_nullable=True)
_PATH_FUNCTION_TYPES = {
    "length": CypherStaticType("integer", is_nullable=True),
    "nodes": CypherStaticType("list", of=CypherStaticType("node"), is_nullable=True),
    "relationships": _RELATION_LIST_TYPE,
    "rels": _RELATION_LIST_TYPE,
}
"""Result types of functions of a path that may be missing."""
_COLUMN_TYPES_BY_KIND = {"node": NODE_COLUMN_TYPES | ELSEWHERE_COLUMN_TYPES, "relation": EDGE_COLUMN_TYPES}


class TypeInference:
    """Type inference for expressions in a scope; ``patterns`` analyses the patterns within them."""

    def __init__(self, context: CypherAnalysisContext, patterns: PatternExpressionAnalyzer) -> None:
        self._context = context
        self._patterns = patterns
        self.operators = OperatorChecksAndRewrites(context)
        self._calls = FunctionCallChecksAndRewrites(context, self.operators)

    def type_of(self, expression: Expression, scope: VariableScope) -> CypherStaticType:
        """Return the type of an expression. Raises InvalidInput if the engine would evaluate it incorrectly."""
        match expression:
            case Literal():
                return self._literal(expression)
            case CypherParameter():
                return self._parameter(expression)
            case Variable():
                return self._variable(expression, scope)
            case ParenthesizedExpression():
                return self.type_of(expression.inner, scope)
            case OperatorChain():
                return self._operation(expression, scope)
            case _:
                return self._type_of_composed(expression, scope)

    def _type_of_composed(self, expression: Expression, scope: VariableScope) -> CypherStaticType:  # noqa: PLR0911 - one for each part
        match expression:
            case PostfixExpression():
                return self._access(expression, scope)
            case ListLiteral():
                return self._list(expression, scope)
            case MapLiteral():
                return self._map(expression, scope)
            case Negation():
                return self._negation(expression, scope)
            case FunctionCall():
                return self._call(expression, scope)
            case CaseExpression():
                return self._case(expression, scope)
            case _:
                return self._type_of_special(expression, scope)

    def _type_of_special(self, expression: Expression, scope: VariableScope) -> CypherStaticType:
        match expression:
            case CastExpression():
                return self._calls.cast(expression, self.type_of(expression.operand, scope))
            case PatternPredicate():
                self._patterns.read_test(expression, scope)
                return BOOLEAN_TYPE
            case SubqueryExpression():
                self._patterns.read_subquery(expression, scope)
                return BOOLEAN_TYPE if expression.word == "EXISTS" else CypherStaticType("integer")
            case _:
                raise self._context.refuse(expression.start, "a function is not allowed here,")

    def _parameter(self, parameter: CypherParameter) -> CypherStaticType:
        """Cast integer parameters to 64 bits; the engines use the smallest type that fits the value."""
        kind = infer_parameter_value_type(self._context.parameters.get(parameter.name))
        declared = to_engine_type_name(kind) if contains_integer_type(kind) else None
        if declared is not None:
            written = f"CAST({self._context.outline.tokens[parameter.start].text} AS {declared})"
            self._context.edits.replace(parameter.start, parameter.end, written)
        return kind

    def _literal(self, literal: Literal) -> CypherStaticType:
        value = literal.value
        if literal.kind == "integer" and isinstance(value, int) and value > MAX_INTEGER:
            is_least = value == MAX_INTEGER + 1 and self._context.outline.symbol(literal.start - 1) == "-"
            if not is_least:
                raise self._context.refuse(literal.start, "this integer does not fit into 64 bits; found")
        if literal.kind == "float" and value == float("inf"):
            raise self._context.refuse(literal.start, "this number is too large; found")
        return type_of_literal(literal)

    def _variable(self, variable: Variable, scope: VariableScope) -> CypherStaticType:
        binding = scope.bindings.get(variable.name)
        if binding is None:
            self._check_similar(variable, scope)
            if scope.is_open:
                return ENGINE_TYPE
            raise self._context.refuse(variable.start, f"query: Variable {variable.name} is not in scope,")
        if binding.anchor:
            self._guard_missing_path(variable, binding.anchor)
        return binding.type

    def _guard_missing_path(self, variable: Variable, anchor: str) -> None:
        """Make a path of an unmatched OPTIONAL MATCH null; the engines return a path of nulls."""
        if anchor == "?":
            what = f"{variable.name} may be missing, which the engine does not report; name a node in its pattern."
            raise self._context.refuse(variable.start, f"{what} Found")
        opening = f"(CASE WHEN `{anchor}` IS NULL THEN NULL ELSE "
        self._context.edits.around(variable.start, variable.end, opening, " END)")

    def _check_similar(self, variable: Variable, scope: VariableScope) -> None:
        if other := scope.similar(variable.name):
            what = f"there is no variable {variable.name}; did you mean {other} (case matters)? Found"
            raise self._context.refuse(variable.start, what)

    def _list(self, literal: ListLiteral, scope: VariableScope) -> CypherStaticType:
        if len(literal.items) == 1 and _is_comprehension(literal.items[0]):
            what = "this is a list comprehension; write only the list, or put x IN list in parentheses;"
            raise self._context.refuse(literal.start, f"{what} found")
        kinds = [self.type_of(item, scope) for item in literal.items]
        self._check_mixed(literal.start, "a list", kinds)
        self._check_elements(literal, kinds)
        element = kinds[0] if kinds else None
        for kind in kinds[1:]:
            element = kind if element is None else compute_common_cypher_type(element, kind)
        return make_list_type(element) if element is not None else CypherStaticType("list")

    def _check_elements(self, literal: ListLiteral, kinds: list[CypherStaticType]) -> None:
        """Reject elements of different types, which an engine may convert to text."""
        seen: list[CypherStaticType] = []
        for item, kind in zip(literal.items, kinds, strict=True):
            if kind in seen:
                continue
            other = next((each for each in seen if not can_types_share_list(each, kind)), None)
            if other is not None:
                names = other.name, kind.name if kind.name != other.name else f"another kind of {kind.name[2:]}"
                what = f"a list must hold values of one type; this one has {names[0]}, and {names[1]} is"
                raise self._context.refuse(item.start, what)
            seen.append(kind)

    def _check_mixed(self, index: int, what: str, kinds: list[CypherStaticType]) -> None:
        found = {kind.kind for kind in kinds if kind.kind in NUMBER_KINDS}
        if {"integer", "float"} <= found:
            message = (
                f"the engine converts or truncates mixed numbers of {what}; write whole numbers with .0, as in 1.0."
            )
            raise self._context.refuse(index, f"{message} Found")

    def _map(self, literal: MapLiteral, scope: VariableScope) -> CypherStaticType:
        fields: dict[str, CypherStaticType] = {}
        lowered: set[str] = set()
        for key, name, value in literal.entries:
            if name.lower() in lowered:
                raise self._context.refuse(key, "the engine ignores case in keys, so these collide; the second is")
            lowered.add(name.lower())
            fields[name] = self.type_of(value, scope).without_column()
        return CypherStaticType("map", fields=tuple(fields.items()))

    def _negation(self, negation: Negation, scope: VariableScope) -> CypherStaticType:
        kind = self.type_of(negation.operand, scope)
        if negation.operator == "NOT":
            self.operators.truth("NOT", negation.start, kind)
            return CypherStaticType("boolean", is_nullable=kind.is_nullable)
        operand = negation.operand
        if isinstance(operand, Literal) and operand.value == MAX_INTEGER + 1 and negation.count > 1:
            raise self._context.refuse(operand.start, "this integer does not fit into 64 bits; found")
        if isinstance(operand, PostfixExpression):
            self._context.edits.around(operand.start, operand.end, "(", ")")
        return kind.without_column()

    def _operation(self, operation: OperatorChain, scope: VariableScope) -> CypherStaticType:
        if operation.level == PREDICATE:
            return self._predicates(operation, scope)
        kinds = [self.type_of(each, scope) for each in operation.operands if each is not None]
        if operation.level in {OR, XOR, AND}:
            return self._truth(operation, kinds)
        if operation.level == COMPARISON:
            return self._comparison(operation, kinds)
        return self._arithmetic(operation, kinds)

    def _truth(self, operation: OperatorChain, kinds: list[CypherStaticType]) -> CypherStaticType:
        word, index = operation.operators[0]
        for kind in kinds:
            self.operators.truth(word, index, kind)
        return CypherStaticType("boolean", is_nullable=any(kind.is_nullable for kind in kinds))

    def _comparison(self, operation: OperatorChain, kinds: list[CypherStaticType]) -> CypherStaticType:
        word, index = operation.operators[0]
        for _, another in operation.operators[1:]:
            raise self._context.refuse(
                another, "compare two values at a time, as in a < b AND b < c; another comparison is"
            )
        left, right = operation.operands[0], operation.operands[1]
        assert left is not None  # noqa: S101 - only IS NULL has one operand
        assert right is not None  # noqa: S101
        return self.operators.compare(word, index, left, kinds[0], right, kinds[1])

    def _arithmetic(self, operation: OperatorChain, kinds: list[CypherStaticType]) -> CypherStaticType:
        kind = kinds[0].without_column()
        for (word, index), following, operand in zip(
            operation.operators, kinds[1:], operation.operands[1:], strict=True
        ):
            kind = self.operators.arithmetic(word, index, operation.level, kind, following, operand)
        if operation.level == SUM and kind.kind == "text" and kind.is_nullable:
            self.operators.keep_nulls(operation, kinds)
        return kind.without_column()

    def _predicates(self, operation: OperatorChain, scope: VariableScope) -> CypherStaticType:
        first = operation.operands[0]
        assert first is not None  # noqa: S101 - the parser reads an operand first
        words = [word for word, _ in operation.operators]
        if len(words) > 1:
            raise self._context.refuse(operation.operators[1][1], "put the preceding expression in parentheses; found")
        word, index = operation.operators[0]
        right = operation.operands[1]
        if right is None:
            return self._is_null(first, scope)
        left_type, right_type = self.type_of(first, scope), self.type_of(right, scope)
        self.operators.add_parentheses(operation)
        if word == "IN":
            return self.operators.is_in(index, first, left_type, right, right_type)
        return self.operators.contains(index, first, left_type, right, right_type, word)

    def _is_null(self, operand: Expression, scope: VariableScope) -> CypherStaticType:
        inner = strip_parentheses(operand)
        binding = scope.bindings.get(inner.name) if isinstance(inner, Variable) else None
        if binding is not None and binding.anchor not in {"", "?"}:
            self._context.edits.replace(operand.start, operand.end, f"`{binding.anchor}`")
            return BOOLEAN_TYPE
        self.type_of(operand, scope)
        if isinstance(operand, OperatorChain | Negation):
            self._context.edits.around(operand.start, operand.end, "(", ")")
        return BOOLEAN_TYPE

    def _call(self, call: FunctionCall, scope: VariableScope) -> CypherStaticType:
        if call.name == "size" and len(call.arguments) == 1 and isinstance(call.arguments[0], PatternPredicate):
            self._patterns.read_count(call, call.arguments[0], scope)
            return CypherStaticType("integer")
        if call.name in _PATH_FUNCTION_TYPES and self._path_may_be_missing(call, scope):
            return _PATH_FUNCTION_TYPES[call.name]
        kinds: list[CypherStaticType] = []
        for argument in call.arguments:
            if isinstance(argument, LambdaExpression):
                self._check_used(call, argument)
                kinds.append(self._lambda(argument, kinds[0] if kinds else ANY_TYPE, scope))
            else:
                kinds.append(self.type_of(argument, scope))
        return self._calls.check(call, kinds)

    def _path_may_be_missing(self, call: FunctionCall, scope: VariableScope) -> bool:
        argument = call.arguments[0] if len(call.arguments) == 1 else None
        binding = scope.bindings.get(argument.name) if isinstance(argument, Variable) else None
        if binding is None or binding.anchor in {"", "?"}:
            return False
        none = "CAST(NULL AS INT64)" if call.name == "length" else "NULL"
        opening = f"(CASE WHEN `{binding.anchor}` IS NULL THEN {none} ELSE "
        self._context.edits.around(call.start, call.end, opening, " END)")
        return True

    def _check_used(self, call: FunctionCall, function: LambdaExpression) -> None:
        """Reject list filters that are the same for all elements, which return null for some lists."""
        used = {part.name for part in iterate_syntax_nodes(function.body) if isinstance(part, Variable)}
        if call.name == "list_filter" and used.isdisjoint(function.parameters):
            what = f"this does not depend on {' or '.join(function.parameters)}; use CASE WHEN … instead. Found"
            raise self._context.refuse(function.body.start, what)

    def _lambda(self, function: LambdaExpression, subject: CypherStaticType, scope: VariableScope) -> CypherStaticType:
        inner = scope.copy()
        for name in function.parameters:
            inner.bindings[name] = CypherVariableType(subject.element)
        return self.type_of(function.body, inner)

    def _case(self, case: CaseExpression, scope: VariableScope) -> CypherStaticType:
        subject = None if case.subject is None else self.type_of(case.subject, scope)
        kinds: list[CypherStaticType] = []
        may_be_null = False
        for condition, value in case.branches:
            wanted = self.type_of(condition, scope)
            may_be_null = may_be_null or wanted.is_nullable
            if subject is not None:
                self._check_compared(condition, subject, wanted)
            elif isinstance(strip_parentheses(condition), PostfixExpression | CaseExpression | Variable):
                # Engines treat such a bare condition as false for some or all rows.
                self._context.edits.around(condition.start, condition.end, "(", ") = true")
            kinds.append(self.type_of(value, scope))
        if may_be_null:
            self._compare_subject(case)
        kinds.append(NULL_TYPE if case.otherwise is None else self.type_of(case.otherwise, scope))
        self._check_mixed(case.start, "a CASE", kinds)
        self._check_branches(case, kinds)
        joined = kinds[0]
        for kind in kinds[1:]:
            joined = compute_common_cypher_type(joined, kind)
        return joined.without_column()

    def _check_compared(self, condition: Expression, subject: CypherStaticType, wanted: CypherStaticType) -> None:
        self.operators.check_comparable("CASE", condition.start, subject, wanted)
        if {subject.kind, wanted.kind} == {"integer", "float"}:
            what = "CASE would convert decimal numbers to integers; write CASE WHEN x = 1.5 THEN …. Found"
            raise self._context.refuse(condition.start, what)

    def _compare_subject(self, case: CaseExpression) -> None:
        """Rewrite ``CASE x WHEN y`` to ``CASE WHEN x = y``, because the engine matches null among constants."""
        if case.subject is None:
            return
        subject = self._context.text(case.subject)
        self._context.edits.replace(case.subject.start, case.subject.end, "")
        for condition, _ in case.branches:
            self._context.edits.around(condition.start, condition.end, f"({subject}) = (", ")")

    def _check_branches(self, case: CaseExpression, kinds: list[CypherStaticType]) -> None:
        known = [kind for kind in kinds if kind.kind not in {"null", "any"}]
        if any(not can_types_share_list(known[0], kind) for kind in known[1:]):
            names = " and ".join(dict.fromkeys(map(describe_static_value_type, known)))
            what = f"all branches of a CASE need the same type, but these are {names}; found"
            raise self._context.refuse(case.start, what)

    def _access(self, access: PostfixExpression, scope: VariableScope) -> CypherStaticType:
        kind = self.type_of(access.subject, scope)
        bounds = [(step.first, step.last) for step in access.steps if isinstance(step, Slice)]
        self._context.check_one_source(access, tuple(each for pair in bounds for each in pair if each is not None))
        for step in access.steps:
            if isinstance(step, Subscript | Slice):
                # Kùzu's grammar allows no space before these brackets.
                self._context.edits.join(step.start)
                self._context.edits.join(step.end - 1)
            match step:
                case PropertyAccess():
                    kind = self._property(step, kind)
                case Subscript():
                    kind = self._element(step, kind, scope)
                case Slice():
                    kind = self._slice(step, kind, scope)
                case LabelTest():
                    what = (
                        "with the engine's own functions and forms, compare n.type = 'task' instead of a label; found"
                    )
                    raise self._context.refuse(step.start, what)
        return kind

    def _property(self, step: PropertyAccess, kind: CypherStaticType) -> CypherStaticType:
        columns = _COLUMN_TYPES_BY_KIND.get(kind.kind)
        if columns is not None:
            found = columns.get(step.name)
            self._check_case(step, columns)
            assume_column_is_property(self._context, kind.kind, step.start, step.name)
            return ENGINE_TYPE if found is None else (found.nullable() if kind.is_nullable else found)
        if kind.kind == "map":
            self._check_case(step, dict(kind.fields))
            found = kind.field(step.name)
            return ENGINE_TYPE if found is None else (found.nullable() if kind.is_nullable else found)
        if kind.kind in {"engine", "any", "null"}:
            assume_column_is_property(self._context, kind.kind, step.start, step.name)
            return ANY_TYPE if kind.kind == "any" else ENGINE_TYPE
        raise self._context.refuse(step.start, f"{kind.name} has no properties; one is used")

    def _check_case(self, step: PropertyAccess, known: dict[str, CypherStaticType]) -> None:
        lowered = step.name.lower()
        other = None if step.name in known else next((name for name in known if name.lower() == lowered), None)
        if other is not None:
            what = f"there is no property {step.name}; did you mean {other} (case matters)? Found"
            raise self._context.refuse(step.end - 1, what)

    def _element(self, step: Subscript, kind: CypherStaticType, scope: VariableScope) -> CypherStaticType:
        index_type = self.type_of(step.index, scope)
        if kind.kind in {"map", "node", "relation"}:
            return self._keyed_access(step, kind)
        self._check_list(step.start, kind)
        self._check_index(step.start, index_type)
        if kind.kind == "list":
            self._count_from_one(step.index, is_last=False)
        return kind.element.nullable()

    def _keyed_access(self, step: Subscript, kind: CypherStaticType) -> CypherStaticType:
        key = strip_parentheses(step.index)
        value = key.value if isinstance(key, Literal) else None
        if not isinstance(value, str) or not value.isidentifier():
            raise self._context.refuse(step.start, f"the key of {kind.name} must be a literal, as in n.name; found")
        self._context.edits.replace(step.start, step.end, f".`{value}`")
        return self._property(PropertyAccess(start=step.start, end=step.end, name=value), kind)

    def _check_list(self, index: int, kind: CypherStaticType) -> None:
        if kind.kind not in {"list", "engine", "null"}:
            what = f"[…] needs a list, not {kind.name}; use substring for texts. Found"
            raise self._context.refuse(index, what)

    def _check_index(self, index: int, kind: CypherStaticType) -> None:
        if kind.kind not in {"integer", "engine", "null"}:
            raise self._context.refuse(index, f"a list index must be an integer, not {kind.name}; found")

    def _slice(self, step: Slice, kind: CypherStaticType, scope: VariableScope) -> CypherStaticType:
        for bound in (step.first, step.last):
            if bound is not None:
                self._check_index(bound.start, self.type_of(bound, scope))
        if step.is_native:
            return kind
        self._check_list(step.start, kind)
        dots = step.start + 1 if step.first is None else step.first.end
        last = "" if step.last is None or is_constant_expression(step.last) else self._context.text(step.last)
        self._context.edits.replace(
            dots, dots + 1, ":" if step.first or not last else f"{rewrite_first_slice_bound('1', last)}:"
        )
        if step.first is not None:
            self._count_from_one(step.first, is_last=False)
            if last:
                self._context.edits.around(step.first.start, step.first.end, "(", f") + 0 * ({last})")
        if step.last is not None:
            self._count_from_one(step.last, is_last=True)
        return kind.without_column()

    def _count_from_one(self, index: Expression, *, is_last: bool) -> None:
        """Convert an index to the engine's: from 1, with -1 as the last, and inclusive slice ends."""
        number = _integer_value(index)
        if number is not None:
            moved = (number - 1 if number < 0 else number) if is_last else (number if number < 0 else number + 1)
            self._context.edits.replace(index.start, index.end, str(moved))
            return
        text = self._context.text(index)
        condition, moved_text = (f"({text}) < 0", f"({text}) - 1" if is_last else f"({text}) + 1")
        yes, no = (moved_text, f"({text})") if is_last else (f"({text})", moved_text)
        self._context.edits.replace(index.start, index.end, f"CASE WHEN {condition} THEN {yes} ELSE {no} END")


def _integer_value(expression: Expression) -> int | None:
    inner = strip_parentheses(expression)
    if isinstance(inner, Negation) and inner.operator == "-" and inner.count == 1:
        number = _integer_value(inner.operand)
        return None if number is None else -number
    value = inner.value if isinstance(inner, Literal) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class PatternExpressionAnalyzer(ABC):
    """Interface of pattern analysis for the type inference."""

    @abstractmethod
    def read_test(self, test: PatternPredicate, scope: VariableScope) -> None:
        """Analyse a pattern used as an expression."""

    @abstractmethod
    def read_count(self, call: FunctionCall, test: PatternPredicate, scope: VariableScope) -> None:
        """Analyse a pattern inside size(), and rewrite it as a count."""

    @abstractmethod
    def read_subquery(self, subquery: SubqueryExpression, scope: VariableScope) -> None:
        """Analyse the patterns of EXISTS and COUNT."""


def _is_comprehension(item: Expression) -> bool:
    """Return whether ``[item]`` reads as the comprehension ``[x IN list]`` in openCypher."""
    if not isinstance(item, OperatorChain) or item.operators[0][0] != "IN":
        return False
    return isinstance(item.operands[0], Variable)
