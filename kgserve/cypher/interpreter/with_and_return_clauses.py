"""WITH and RETURN clauses: columns, grouping, DISTINCT, ORDER BY, SKIP and LIMIT."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeAlias

import msgspec

from kgserve.cypher.interpreter.aggregates import (
    AggregateAccumulator,
    check_aggregate_argument_count,
    create_aggregate_accumulator,
    find_outermost_aggregates,
)
from kgserve.cypher.interpreter.expression_compiler import ExpressionCompiler
from kgserve.cypher.interpreter.graph_view_interface import MATCH_COUNT, CompiledExpression, ExecutionLimits, Row
from kgserve.cypher.interpreter.opencypher_syntax_tree import (
    CountStar,
    FunctionInvocation,
    LiteralValue,
    ProjectionClauseNode,
    QueryExpression,
    ReturnOrWithColumn,
    VariableReference,
)
from kgserve.cypher.interpreter.pattern_model import find_variable_names
from kgserve.cypher.interpreter.subexpression_replacement import replace_subexpressions, strip_source_positions
from kgserve.cypher.interpreter.value_comparison import build_order_by_sort_key, describe_value, value_equivalence_key
from kgserve.errors import InvalidInput

RowStage: TypeAlias = Callable[[Iterator[Row]], Iterator[Row]]
ProjectedRow: TypeAlias = tuple[Row, Row]
"""A new row, and the row in whose scope ORDER BY and WHERE are."""
SortOrder: TypeAlias = tuple[tuple[CompiledExpression, bool], ...]
"""Keys of ORDER BY, and whether they are descending."""
_CONSTANT_SPACE_AGGREGATES = frozenset({"count", "sum", "min", "max"})
_MIN_SORTED_ROWS = 1_000


def find_counting_group_variables(stage: ProjectionClauseNode, matched: frozenset[str]) -> frozenset[str] | None:
    """Find the variables by which a projection groups, if it otherwise only counts the matches of a MATCH.

    ``matched`` are the variables of the MATCH, which are never null. Returns None if the projection does more.
    """
    aggregates = [
        *find_outermost_aggregates((tuple(column.value for column in stage.columns), stage.order, stage.where))
    ]
    if stage.is_all or not aggregates or not all(_is_count(tree, matched) for tree in aggregates):
        return None
    counts: dict[QueryExpression, QueryExpression] = {
        strip_source_positions(tree): VariableReference(name="") for tree in aggregates
    }
    values = [column.value for column in stage.columns] + [key.value for key in stage.order]
    trees = [replace_subexpressions(tree, counts) for tree in values]
    where = () if stage.where is None else (replace_subexpressions(stage.where, counts),)
    return find_variable_names((*trees, *where))


def _is_count(tree: FunctionInvocation | CountStar, matched: frozenset[str]) -> bool:
    """Return whether an aggregate is the number of matches."""
    if isinstance(tree, CountStar):
        return True
    if tree.name != "count" or tree.is_distinct or len(tree.arguments) != 1:
        return False
    argument = tree.arguments[0]
    return isinstance(argument, VariableReference) and argument.name in matched


class AggregateCall(msgspec.Struct, frozen=True):
    """Call of an aggregate in WITH or RETURN; its result is the hidden variable ``name`` of a group."""

    name: str
    function: str
    tree: FunctionInvocation | CountStar
    is_distinct: bool = False
    arguments: tuple[CompiledExpression, ...] = ()
    holds_values: bool = True


class WithReturnClauseCompiler:
    """Compiles one WITH or RETURN clause."""

    def __init__(self, stage: ProjectionClauseNode, compiler: ExpressionCompiler, limits: ExecutionLimits) -> None:
        self.stage = stage
        self.compiler = compiler
        self.limits = limits
        self.names = {column.name for column in stage.columns}
        self.is_grouped = any(True for column in stage.columns for _ in find_outermost_aggregates(column.value))
        self.hidden: dict[QueryExpression, VariableReference] = {}
        self.aggregates: list[AggregateCall] = []
        self._needs_source = False

    def compile(self) -> RowStage:
        """Compile the projection. Raises InvalidInput."""
        stage = self.stage
        if self.is_grouped:
            project = self._compile_groups()
            order, where = self._compile_scoped()
        else:
            if stage.order or stage.where is not None:
                self._hide_columns()
            order, where = self._compile_scoped()
            project = self._compile_columns()
        skip, limit = self._compile_bound(stage.skip, "SKIP"), self._compile_bound(stage.limit, "LIMIT")

        def run(rows: Iterator[Row]) -> Iterator[Row]:
            skipped, length = skip() or 0, limit()
            most = None if length is None else min(skipped + length, sys.maxsize)
            projected = project(rows)
            if stage.is_distinct:
                projected = self._drop_duplicates(projected)
            if order:
                projected = self._sort(projected, order, most)
            if skipped or most is not None:
                projected = islice(projected, min(skipped, sys.maxsize), most)
            for new, scope in projected:
                if where is None or where(scope) is True:
                    yield new

        return run

    # Columns

    def _compile_columns(self) -> Callable[[Iterable[Row]], Iterator[ProjectedRow]]:
        columns = [(column.name, self.compiler.compile(column.value)) for column in self.stage.columns]
        is_all, needs_source = self.stage.is_all, self._needs_source

        def project(rows: Iterable[Row]) -> Iterator[ProjectedRow]:
            for row in rows:
                new = {name: value(row) for name, value in columns}
                if is_all:
                    new = {**row, **new}
                yield new, ({**row, **new} if needs_source else new)

        return project

    def _hide_columns(self) -> None:
        """Let ORDER BY and WHERE use the values of columns whose expressions they repeat."""
        for column in self.stage.columns:
            if not isinstance(column.value, VariableReference | LiteralValue):
                self.hidden[strip_source_positions(column.value)] = VariableReference(name=column.name)

    def _compile_scoped(self) -> tuple[SortOrder, CompiledExpression | None]:
        """Compile ORDER BY and WHERE."""
        stage = self.stage
        trees = [replace_subexpressions(key.value, self.hidden) for key in stage.order]
        order = tuple(
            (self.compiler.compile(tree), key.is_descending) for tree, key in zip(trees, stage.order, strict=True)
        )
        where = None if stage.where is None else replace_subexpressions(stage.where, self.hidden)
        names = find_variable_names((*trees, where))
        self._needs_source = not (stage.is_all or stage.is_distinct or names <= self.names)
        return order, None if where is None else self.compiler.compile_condition(where)

    # Groups

    def _compile_groups(self) -> Callable[[Iterable[Row]], Iterator[ProjectedRow]]:
        stage = self.stage
        grouping = [
            column for column in stage.columns if not any(True for _ in find_outermost_aggregates(column.value))
        ]
        keys = [self._compile_grouping_key(column, index) for index, column in enumerate(grouping)]
        for tree in find_outermost_aggregates(
            (tuple(column.value for column in stage.columns), stage.order, stage.where)
        ):
            self._add_aggregate(tree)
        columns = [
            (column.name, self.compiler.compile(replace_subexpressions(column.value, self.hidden)))
            for column in stage.columns
        ]
        is_all, has_keys = stage.is_all, bool(keys) or stage.is_all
        needs_scope = bool(stage.order) or stage.where is not None

        def project(rows: Iterable[Row]) -> Iterator[ProjectedRow]:
            for group, source in self._group(rows, keys, has_keys=has_keys):
                new = {name: value(group) for name, value in columns}
                if is_all:
                    new = {**source, **new}
                yield new, ({**group, **new} if needs_scope else new)

        return project

    def _compile_grouping_key(self, column: ReturnOrWithColumn, index: int) -> tuple[str, CompiledExpression]:
        """Return the variable of a group for a key: the same one, or a hidden one for other expressions."""
        name = column.value.name if isinstance(column.value, VariableReference) else f" key {index}"
        if not isinstance(column.value, VariableReference):
            self.hidden[strip_source_positions(column.value)] = VariableReference(name=name)
        return name, self.compiler.compile(column.value)

    def _add_aggregate(self, tree: FunctionInvocation | CountStar) -> None:
        place = strip_source_positions(tree)
        if place in self.hidden:
            return
        name = f" aggregate {len(self.aggregates)}"
        self.hidden[place] = VariableReference(name=name)
        if isinstance(tree, CountStar):
            self.aggregates.append(AggregateCall(name, "count", tree, holds_values=False))
        else:
            check_aggregate_argument_count(tree)
            arguments = tuple(self.compiler.compile(each) for each in tree.arguments)
            holds_values = tree.is_distinct or tree.name not in _CONSTANT_SPACE_AGGREGATES
            self.aggregates.append(AggregateCall(name, tree.name, tree, tree.is_distinct, arguments, holds_values))

    def _group(
        self, rows: Iterable[Row], keys: list[tuple[str, CompiledExpression]], *, has_keys: bool
    ) -> Iterator[tuple[Row, Row]]:
        """Yield the variables of each group; with its first row, if all variables of rows are wanted."""
        groups: dict[Hashable, tuple[Row, Row, list[AggregateAccumulator]]] = {}
        is_all, variables = self.stage.is_all, list[str]()
        names = [name for name, _ in keys]
        if not has_keys:
            groups[()] = ({}, {}, self._new_accumulators())
        for row in rows:
            self.limits.step()
            values = [value(row) for _, value in keys]
            place: Hashable = (
                value_equivalence_key(values[0]) if len(values) == 1 else tuple(map(value_equivalence_key, values))
            )
            if is_all:
                variables = variables or list(row)
                place = (place, *(value_equivalence_key(row[name]) for name in variables))
            group = groups.get(place)
            if group is None:
                self.limits.hold(len(values) + 1)
                named, accumulators = dict(zip(names, values, strict=True)), self._new_accumulators()
                if is_all:
                    named = {**row, **named}
                group = groups[place] = (named, row if is_all else named, accumulators)
            self._accumulate(group[2], row)
        for named, source, accumulators in groups.values():
            for call, accumulator in zip(self.aggregates, accumulators, strict=True):
                named[call.name] = accumulator.result()
            yield named, source

    def _accumulate(self, accumulators: list[AggregateAccumulator], row: Row) -> None:
        if MATCH_COUNT in row:
            for accumulator in accumulators:
                accumulator.add_count(row[MATCH_COUNT])
            return
        for call, accumulator in zip(self.aggregates, accumulators, strict=True):
            try:
                accumulator.add([value(row) for value in call.arguments])
            except InvalidInput as error:
                raise self.compiler.locate(error, call.tree) from None
            if call.holds_values:
                self.limits.hold(1)

    def _new_accumulators(self) -> list[AggregateAccumulator]:
        return [create_aggregate_accumulator(call.function, is_distinct=call.is_distinct) for call in self.aggregates]

    # Order and bounds

    def _drop_duplicates(self, rows: Iterator[ProjectedRow]) -> Iterator[ProjectedRow]:
        seen: set[Hashable] = set()
        names: list[str] = []
        for row in rows:
            self.limits.step()
            names = names or list(row[0])
            key = tuple(value_equivalence_key(row[0][name]) for name in names)
            if key not in seen:
                self.limits.hold(len(key))
                seen.add(key)
                yield row

    def _sort(self, rows: Iterator[ProjectedRow], order: SortOrder, most: int | None) -> Iterator[ProjectedRow]:
        """Sort rows, of which only the first ``most`` are needed."""
        capacity = None if most is None else max(2 * most, _MIN_SORTED_ROWS)
        held: list[tuple[list[Any], ProjectedRow]] = []
        peak = 0
        for row in rows:
            self.limits.step()
            held.append(([build_order_by_sort_key(value(row[1])) for value, _ in order], row))
            if len(held) > peak:
                peak += 1
                self.limits.hold(1)
            if capacity is not None and len(held) > capacity:
                _sort_held(held, order)
                del held[most:]
        _sort_held(held, order)
        for _, row in held:
            yield row

    def _compile_bound(self, tree: QueryExpression | None, keyword: str) -> Callable[[], int | None]:
        if tree is None:
            return lambda: None
        value = self.compiler.compile(tree)

        def evaluate() -> int:
            found = value({})
            if type(found) is not int or found < 0:
                shown = describe_value(found)
                raise self.compiler.locate(
                    InvalidInput(f"{keyword} expects an integer that is not negative, not {shown}"), tree
                )
            return found

        return evaluate


def _sort_held(held: list[tuple[list[Any], ProjectedRow]], order: SortOrder) -> None:
    for index in range(len(order) - 1, -1, -1):
        held.sort(key=lambda each, index=index: each[0][index], reverse=order[index][1])
