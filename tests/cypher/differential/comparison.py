"""Comparison of an engine's answers with the reference, and minimization of differing statements."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import msgspec
from typing_extensions import override

from tests.cypher.differential.generator import GeneratedStatement
from tests.cypher.differential.product import Outcome, StatementStore, read_value
from tests.cypher.reference import tree as t
from tests.cypher.reference.expressions import Evaluator
from tests.cypher.reference.functions import as_text
from tests.cypher.reference.interpreter import Answer, Interpreter, same_rows
from tests.cypher.reference.patterns import Graph
from tests.cypher.reference.text import render
from tests.cypher.reference.values import Bag, CypherError, UnmodelledFeature, read_parameter

Verdict = Literal[
    "agreed", "agreed on an error", "refused", "lost", "values differ", "no error", "an error alone", "not modelled"
]  # fmt: skip
DIFFERENT: frozenset[Verdict] = frozenset({"values differ", "no error", "an error alone"})
MAX_ATTEMPTS = 400


class Result(msgspec.Struct):
    """Verdict on a statement."""

    verdict: Verdict
    text: str
    outcome: Outcome
    expected: Answer | str


class Comparison:
    """Runs statements on a store and in the reference."""

    def __init__(self, store: StatementStore, graph: Graph) -> None:
        self._store = store
        self._graph = graph

    def compare(self, generated: GeneratedStatement) -> Result:
        """Return the verdict on a statement."""
        text = render(generated.statement)
        outcome = self._store.ask(text, generated.parameters)
        expected = self._run_reference(generated, read_parameter)
        if isinstance(expected, UnmodelledFeature):
            return Result("not modelled", text, outcome, str(expected))
        return Result(_verdict(outcome, expected), text, outcome, expected)

    def _run_reference(
        self, generated: GeneratedStatement, read: Callable[[Any], Any]
    ) -> Answer | str | UnmodelledFeature:
        parameters = {name: read(value) for name, value in generated.parameters.items()}
        try:
            return Interpreter(self._graph, parameters).run(generated.statement)
        except CypherError as error:
            return f"an error: {error}"
        except UnmodelledFeature as reason:
            return reason

    def minimise(self, generated: GeneratedStatement, verdict: Verdict) -> tuple[GeneratedStatement, Result]:
        """Return a smaller statement with the same difference."""
        best, result, attempts = generated, self.compare(generated), 0
        found = True
        while found:
            found = False
            for candidate in smaller(best.statement):
                attempts += 1
                if attempts > MAX_ATTEMPTS:
                    return best, result
                tried = msgspec.structs.replace(best, statement=candidate)
                its = self.compare(tried)
                if its.verdict == verdict and not _MISSING_PART.search(its.outcome.error):
                    best, result, found = tried, its, True
                    break
        used = {part.name for part in t.parts(best.statement) if isinstance(part, t.Parameter)}
        kept = {name: value for name, value in best.parameters.items() if name in used}
        return msgspec.structs.replace(best, parameters=kept), result


class InterpreterComparison(Comparison):
    """Runs statements as the product routes them, and in its interpreter if the engine runs them.

    An error of the interpreter alone is a difference, unless it is one of its documented limits.
    """

    def __init__(self, store: StatementStore, graph: Graph, *, is_engine_dialect: bool = False) -> None:
        """Compare only the interpreter for statements with functions of the engine."""
        super().__init__(store, graph)
        self._is_engine_dialect = is_engine_dialect

    @override
    def compare(self, generated: GeneratedStatement) -> Result:
        text, parameters = render(generated.statement), generated.parameters
        expected = self._run_reference(generated, lambda value: value)
        outcome = self._store.interpret(text, parameters)
        if isinstance(expected, UnmodelledFeature):
            return Result("not modelled", text, outcome, str(expected))
        if isinstance(expected, Answer):
            expected.rows = _normalize(expected.rows)
        outcome.rows = _normalize(outcome.rows)
        verdict = _verdict(outcome, expected)
        if verdict == "refused":
            verdict = self._judge_refusal(generated, outcome)
        if verdict == "no error" and _is_lazy(generated, str(expected)):
            verdict = "not modelled"
        if verdict in DIFFERENT or self._is_engine_dialect:
            return Result(verdict, text, outcome, expected)
        routed = self._store.ask(text, parameters)
        routed.rows = _normalize(routed.rows)
        again = _verdict(routed, expected)
        if again == "no error" and _is_lazy(generated, str(expected)):
            again = "not modelled"
        return Result(verdict if again == "refused" else again, text, routed, expected)

    def _judge_refusal(self, generated: GeneratedStatement, outcome: Outcome) -> Verdict:
        """Return whether an error of the interpreter is due at compile time, or for functions with a null argument."""
        error = outcome.error
        if _NOT_IN_JSON in error or (self._is_engine_dialect and _ENGINE_FORMS.search(error)):
            return "refused"
        is_due = (
            _NULL_LENGTH.search(error)
            or _ARGUMENT_TYPE.search(error)
            or (outcome.is_static and _STATIC_TYPE.search(error))
        )
        return "agreed on an error" if is_due or has_constant_fault(generated) else "an error alone"


_ENGINE_FORMS = re.compile(
    r"unknown function|is a function of the engine|timestamp\(\) takes 0 arguments|expected an expression|needs a name"
)
"""Errors of the interpreter for forms that only the engine knows."""
_NOT_IN_JSON = "JSON would not tell it from a text"
_NULL_LENGTH = re.compile(r"of (left|right|substring)\(\) must be zero or more")
_ARGUMENT_TYPE = re.compile(
    r"argument \d of \w+\(\) must be|a condition must be a boolean|toInteger\(\) cannot convert"
)
"""Errors for arguments next to null, for conditions on a part of a pattern that has no match, and for infinity."""
_STATIC_TYPE = re.compile(r"(must be|takes) (a|an) .*, not |has no properties")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?Z")
_MISSING_PART = re.compile(r"is not defined|cannot conclude with|needs a name")
"""Errors of statements that lost a part that others need."""


def has_constant_fault(generated: GeneratedStatement) -> bool:
    """Return whether any part without variables is an error; this is one at compile time, even if it is not needed."""
    evaluator = Evaluator(generated.parameters, _find_nothing)
    parts = [part for part in t.parts(generated.statement) if isinstance(part, t.Expression)]
    return any(
        not any(isinstance(each, _WITH_NAMES) for each in t.parts(part)) and _fails(evaluator, part) for part in parts
    )


def _find_nothing(
    pattern: t.PathPattern,
    where: t.Expression | None,
    row: Mapping[str, Any],
) -> list[dict[str, Any]]:
    return []


_WITH_NAMES = (t.Variable, t.PathPattern, t.CountRows, t.MapProjection)


def _fails(evaluator: Evaluator, part: t.Expression) -> bool:
    try:
        evaluator.evaluate(part, {})
    except CypherError:
        return True
    except UnmodelledFeature:
        return False
    return False


def _is_lazy(generated: GeneratedStatement, error: str) -> bool:
    """Return whether an error may be in a condition that others decide, or in a row that a limit cuts off."""
    parts = t.parts(generated.statement)
    return "a truth value is needed" in error or any(isinstance(each, t.Projection) and each.limit for each in parts)


def _normalize(value: Any) -> Any:
    """Return a copy in which floats that JSON lacks are texts, and times in lists and maps are `Timestamp`."""
    if isinstance(value, list):
        items = [_normalize(each) for each in value]
        return Bag(items) if isinstance(value, Bag) else items
    if isinstance(value, dict):
        return {name: _normalize(each) for name, each in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return as_text(value)
    if isinstance(value, str) and _TIME.fullmatch(value):
        return read_value(value, "TIMESTAMP")
    return value


def _verdict(outcome: Outcome, expected: Answer | str) -> Verdict:
    if outcome.is_lost:
        return "lost"
    if outcome.error:
        return "refused" if isinstance(expected, Answer) else "agreed on an error"
    if not isinstance(expected, Answer):
        return "no error"
    return "agreed" if same_rows(expected, outcome.rows) else "values differ"


def smaller(statement: t.Statement) -> Iterator[t.Statement]:
    """Yield statements with one part removed or simplified, the largest reductions first."""
    if isinstance(statement, t.Union):
        yield from statement.queries
    yield from _smaller(statement)


def _smaller(value: Any) -> Iterator[Any]:
    """Yield copies of a tree with one change."""
    if isinstance(value, t.Expression):
        yield from _simpler(value)
    if isinstance(value, tuple):
        yield from _shorter(value)
        return
    if not isinstance(value, t.Tree):
        return
    yield from _without_options(value)
    if isinstance(value, t.PathPattern):
        yield from _shorter_path(value)
        return
    for field in value.__struct_fields__:
        part = getattr(value, field)
        least = _LEAST.get((type(value), field), 0)
        for changed in _smaller(part):
            if not isinstance(part, tuple) or len(changed) >= least:
                yield msgspec.structs.replace(value, **{field: changed})


_LEAST: dict[tuple[type, str], int] = {
    (t.Query, "clauses"): 1,
    (t.Projection, "items"): 1,
    (t.Union, "queries"): 2,
    (t.Match, "patterns"): 1,
    (t.Case, "branches"): 1,
    (t.Chain, "rest"): 1,
    (t.Call, "arguments"): 99,
}


def _shorter_path(path: t.PathPattern) -> Iterator[t.PathPattern]:
    elements = path.elements
    if len(elements) > 1:
        yield msgspec.structs.replace(path, elements=elements[:-2])
        yield msgspec.structs.replace(path, elements=elements[2:])
    if path.name:
        yield msgspec.structs.replace(path, name="")
    for at, each in enumerate(elements):
        for field, empty in (("lengths", None), ("labels", ()), ("types", ()), ("entries", ()), ("name", "")):
            if getattr(each, field, empty) != empty:
                changed = msgspec.structs.replace(each, **{field: empty})
                yield msgspec.structs.replace(path, elements=(*elements[:at], changed, *elements[at + 1 :]))


def _without_options(value: t.Tree) -> Iterator[t.Tree]:
    for field in value.__struct_fields__:
        part = getattr(value, field)
        is_option = (type(value), field) in _OPTIONS and part is not None and part is not False
        if is_option:
            yield msgspec.structs.replace(value, **{field: False if part is True else None})
        if field == "text" and isinstance(value, t.Literal) and part:
            yield t.Literal(value.value)


_OPTIONS = {
    (t.Match, "where"), (t.Match, "is_optional"), (t.Projection, "where"), (t.Projection, "skip"),
    (t.Projection, "limit"), (t.Projection, "is_distinct"), (t.Order, "is_descending"), (t.Call, "is_distinct"),
    (t.Case, "default"), (t.Case, "subject"), (t.Slice, "start"), (t.Slice, "end"), (t.Comprehension, "condition"),
    (t.Comprehension, "result"), (t.PatternCount, "where"),
}  # fmt: skip


def _shorter(value: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield a tuple without one of its parts, or with a smaller one; paired parts stay paired."""
    is_entry = bool(value) and isinstance(value[0], str)
    for at in range(0 if not is_entry else len(value), len(value)):
        yield value[:at] + value[at + 1 :]
    for at, each in enumerate(value):
        for changed in _smaller_pair(each) if isinstance(each, tuple) else _smaller(each):
            yield (*value[:at], changed, *value[at + 1 :])


def _smaller_pair(pair: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    for at, each in enumerate(pair):
        for changed in _smaller(each):
            yield (*pair[:at], changed, *pair[at + 1 :])


def _simpler(value: t.Expression) -> Iterator[t.Expression]:
    if isinstance(value, t.Parameter):
        return
    if isinstance(value, t.Variable):
        yield t.Literal(1)
        return
    if isinstance(value, t.Literal):
        yield from (t.Literal(each) for each in _SIMPLE.get(type(value.value), ()) if _is_simpler(each, value.value))
        return
    children = [part for part in _children(value) if isinstance(part, t.Expression)]
    yield from children
    if not isinstance(value, (t.Property, t.ListOf)) or children:
        yield from (t.Literal(each) for each in (1, "a", True))


_SIMPLE: dict[type, tuple[Any, ...]] = {int: (0, 1, 2), str: ("", "a"), float: (0.0, 1.0, 0.5)}


def _is_simpler(one: Any, other: Any) -> bool:
    order = _SIMPLE[type(other)]
    return one != other and (other not in order or order.index(one) < order.index(other))


def _children(value: Any) -> Iterator[Any]:
    fields = (getattr(value, field) for field in value.__struct_fields__)
    pending: list[Any] = list(fields)
    while pending:
        each = pending.pop(0)
        if isinstance(each, t.Lambda):
            continue
        if isinstance(each, t.Tree):
            yield each
        elif isinstance(each, tuple):
            pending[:0] = list(each)
