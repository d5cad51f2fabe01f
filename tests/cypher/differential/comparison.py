"""Comparison of an engine's answers with the reference, and minimization of differing statements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from tests.cypher.differential.generator import GeneratedStatement
from tests.cypher.differential.product import Outcome, ProductStore
from tests.cypher.reference import tree as t
from tests.cypher.reference.interpreter import Answer, Interpreter, same_rows
from tests.cypher.reference.patterns import Graph
from tests.cypher.reference.text import render
from tests.cypher.reference.values import CypherError, UnmodelledFeature

Verdict = Literal["agreed", "agreed on an error", "refused", "lost", "values differ", "no error", "not modelled"]
DIFFERENT: frozenset[Verdict] = frozenset({"values differ", "no error"})
MAX_ATTEMPTS = 400


class Result(msgspec.Struct):
    """Verdict on a statement."""

    verdict: Verdict
    text: str
    outcome: Outcome
    expected: Answer | str


class Comparison:
    """Runs statements on a store and in the reference."""

    def __init__(self, store: ProductStore, graph: Graph) -> None:
        self._store = store
        self._graph = graph

    def compare(self, generated: GeneratedStatement) -> Result:
        """Return the verdict on a statement."""
        text = render(generated.statement)
        outcome = self._store.ask(text, generated.parameters)
        try:
            expected: Answer | str = Interpreter(self._graph, generated.parameters).run(generated.statement)
        except CypherError as error:
            expected = f"an error: {error}"
        except UnmodelledFeature as reason:
            return Result("not modelled", text, outcome, str(reason))
        return Result(_verdict(outcome, expected), text, outcome, expected)

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
                if its.verdict == verdict:
                    best, result, found = tried, its, True
                    break
        used = {part.name for part in t.parts(best.statement) if isinstance(part, t.Parameter)}
        kept = {name: value for name, value in best.parameters.items() if name in used}
        return msgspec.structs.replace(best, parameters=kept), result


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
