"""Analysis of a whole statement: variables of each clause, and the rewritten text for the engine.

A statement accepted here gets the answer that openCypher defines, as far as types are known. All others are rejected
with their position and an alternative.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import Any

import msgspec

from kgserve.cypher.analysis_context import CypherAnalysisContext, CypherVariableType, VariableScope, strip_parentheses
from kgserve.cypher.column_assumptions import LABEL_PROPERTY, note_label_comparisons
from kgserve.cypher.lexer import AGGREGATE_FUNCTIONS, BracketMatchedTokens
from kgserve.cypher.operator_rewrites import can_types_share_list, describe_static_value_type
from kgserve.cypher.parser import parse_cypher_statement_tokens
from kgserve.cypher.pattern_analysis import GraphPatternAnalyzer, reject_non_boolean_condition
from kgserve.cypher.statement_edits import StatementEdits
from kgserve.cypher.syntax_tree import (
    CallClause,
    Clause,
    CreateOrMergeClause,
    DeleteClause,
    Expression,
    Literal,
    MatchClause,
    PatternPredicate,
    PostfixExpression,
    ProjectionClause,
    ProjectionItem,
    PropertyAccess,
    SetClause,
    UnwindClause,
    Variable,
    iterate_syntax_nodes,
)
from kgserve.cypher.types import CypherStaticType
from kgserve.cypher.write_order_checks import check_write_order

_UNLIMITED_ROWS = 1_000_000_000


class CypherStatementAnalysis(msgspec.Struct, frozen=True):
    """Result of the analysis of a Cypher statement: rewrites, and the assumptions about a store (`context`).

    ``depends_on_values``: the value of a parameter affected the analysis, not only its type.
    """

    edits: StatementEdits
    assumptions: frozenset[str]
    depends_on_values: bool


_SEVERAL_NANS = "may be NaN, and the engine treats each NaN as a distinct value; found"


def analyze_and_rewrite_cypher_statement(
    outline: BracketMatchedTokens, parameters: Mapping[str, Any], edits: StatementEdits
) -> CypherStatementAnalysis:
    """Analyze a Cypher statement, and add the rewrites for the engine to ``edits``.

    Raises InvalidInput if the engine would answer it incorrectly.
    """
    query = parse_cypher_statement_tokens(outline)
    context = CypherAnalysisContext(outline, parameters, edits)
    first: dict[str, CypherStaticType] | None = None
    for part in query.parts:
        columns = _UnionPart(context, part).read()
        first = columns if first is None else first
        if first is not None and columns is not None:
            _check_union(context, part[-1].start, first, columns)
            if query.is_distinct and any(kind.is_nan_possible for kind in columns.values()):
                raise context.refuse(part[-1].start, f"a column of this {_SEVERAL_NANS}")
    return CypherStatementAnalysis(context.edits, frozenset(context.assumptions), context.depends_on_values)


def _check_union(
    context: CypherAnalysisContext, index: int, first: dict[str, CypherStaticType], others: dict[str, CypherStaticType]
) -> None:
    if [*others] != [*first]:
        what = f"the columns of a UNION need the same names, but are {', '.join(first)} and {', '.join(others)};"
        raise context.refuse(index, f"{what} the second RETURN is")
    for name, kind in first.items():
        if not can_types_share_list(kind, others[name]):
            kinds = f"{describe_static_value_type(kind)} and {describe_static_value_type(others[name])}"
            raise context.refuse(
                index, f"the columns of a UNION need the same types, but {name} is {kinds}; the second is"
            )


class _UnionPart:
    """Analysis of one query of a UNION."""

    def __init__(self, context: CypherAnalysisContext, clauses: tuple[Clause, ...]) -> None:
        self._context = context
        self._clauses = clauses
        self._patterns = GraphPatternAnalyzer(context)
        self._typer = self._patterns.typer
        self._scope = VariableScope()
        self._hidden = len(context.hidden)
        # Start tokens of columns that were given a name.
        self._named = set[int]()
        self._kinds = dict[int, CypherStaticType]()
        # Types of all variables, also of those that have left the scope.
        self._types = dict[str, CypherStaticType]()

    def read(self) -> dict[str, CypherStaticType] | None:
        """Analyse all clauses; return the names and types of the columns, or None if only the engine knows them."""
        columns: dict[str, CypherStaticType] | None = {}
        self._add_row_source()
        for number, clause in enumerate(self._clauses):
            if isinstance(clause, ProjectionClause):
                columns = self._read_projection(clause, self._clauses[number + 1 :])
            else:
                self._read(clause)
            self._types |= {name: found.type for name, found in self._scope.bindings.items()}
        check_write_order(self._context, self._clauses, self._types)
        return columns

    def _add_row_source(self) -> None:
        """Add a row source for a WHERE after literals; Kùzu crashes on a filter without a source."""
        leading = list(takewhile(lambda clause: isinstance(clause, ProjectionClause), self._clauses))
        if any(isinstance(clause, ProjectionClause) and clause.where is not None for clause in leading):
            self._context.edits.before(leading[0].start, f"UNWIND [1] AS {self._context.create_hidden_variable('u')} ")
            self._hidden = len(self._context.hidden)

    def _read(self, clause: Clause) -> None:
        match clause:
            case MatchClause():
                self._patterns.start(self._scope)
                self._patterns.read_match(clause, self._scope, counts_rows=self._counts_rows(clause))
            case UnwindClause():
                self._read_unwind(clause)
            case CallClause():
                self._read_procedure(clause)
            case CreateOrMergeClause():
                self._patterns.read_creation(clause.paths, clause.word, self._scope)
            case SetClause():
                self._read_set(clause)
            case DeleteClause():
                for item in clause.items:
                    self._typer.type_of(item, self._scope)
            case ProjectionClause():
                pass

    def _counts_rows(self, clause: MatchClause) -> bool:
        """Return whether duplicate rows of a pattern affect the answer."""
        later = self._clauses[self._clauses.index(clause) :]
        first = next((each for each in later if isinstance(each, ProjectionClause | CreateOrMergeClause)), None)
        if not isinstance(first, ProjectionClause):
            return first is not None
        outline, places = self._context.outline, range(first.start, first.items_end)
        found = [at for at in places if outline.calls(at) in AGGREGATE_FUNCTIONS]
        each = (outline.calls(at) in {"min", "max"} or outline.word(at + 1) == "DISTINCT" for at in found)
        return not all(each) if found else not first.is_distinct

    def _read_unwind(self, clause: UnwindClause) -> None:
        kind = self._typer.type_of(clause.source, self._scope)
        if kind.kind not in {"list", "engine", "null"}:
            raise self._context.refuse(clause.source.start, f"UNWIND needs a list, not {kind.name}; found")
        self._bind_variable(
            clause.name, kind.element if kind.kind == "list" else CypherStaticType("engine"), clause.start
        )

    def _bind_variable(self, name: str, kind: CypherStaticType, index: int) -> None:
        if other := self._scope.similar(name):
            what = f"{name} and {other} differ only in case, which the engine ignores; rename one. Found"
            raise self._context.refuse(index, what)
        self._scope.bindings[name] = CypherVariableType(kind.without_column())

    def _read_procedure(self, clause: CallClause) -> None:
        for argument in clause.arguments:
            self._typer.type_of(argument, self._scope)
        self._scope.is_open = True
        for name in clause.yields:
            self._scope.bindings[name] = CypherVariableType(CypherStaticType("engine", is_nullable=True))
        if clause.where is not None:
            self._typer.type_of(clause.where, self._scope)

    def _read_set(self, clause: SetClause) -> None:
        for item in clause.items:
            target = item.target
            if isinstance(target, PostfixExpression) and isinstance(step := target.steps[-1], PropertyAccess):
                self._context.label_comparisons.add(step.start)
                if step.name == LABEL_PROPERTY and self._typer.type_of(target.subject, self._scope).kind == "node":
                    self._patterns.check_assigned_label(item.start, item.value)
            column = self._typer.type_of(item.target, self._scope)
            kind = self._typer.type_of(item.value, self._scope)
            known = column if column.is_column else None
            self._patterns.check_assignment(item.start, self._context.typed(item.target), known, kind)

    def _read_projection(
        self, clause: ProjectionClause, later: tuple[Clause, ...]
    ) -> dict[str, CypherStaticType] | None:
        before = self._scope
        bindings: dict[str, CypherVariableType] = {}
        is_open = before.is_open and clause.star >= 0
        names = self._expand_star(clause, bindings)
        kinds = [bindings[name].type for name in names]
        for item in clause.items:
            names.append(self._read_item(clause, item, bindings))
            kinds.append(self._kinds[item.start])
        self._check_names(clause, names)
        after = VariableScope(bindings, is_open=is_open)
        groups_rows = clause.is_distinct or self._has_aggregate(clause.start, clause.items_end)
        if groups_rows:
            self._check_keys(clause)
        self._rewrite_order(clause, before, after, keeps_rows=not groups_rows)
        self._scope = after
        if clause.where is not None:
            self._read_filter(clause, clause.where, before, after, keeps_rows=not groups_rows)
        self._keep_order(clause, later)
        self._hidden = len(self._context.hidden)
        return None if is_open else dict(zip(names, kinds, strict=True))

    def _expand_star(self, clause: ProjectionClause, bindings: dict[str, CypherVariableType]) -> list[str]:
        if clause.star < 0:
            return []
        hidden = set(self._context.hidden)
        visible = [name for name in self._scope.bindings if name not in hidden]
        if len(self._context.hidden) > self._hidden:
            if not visible or self._scope.is_open:
                raise self._context.refuse(clause.star, "list the variables by name instead of *; found")
            written = ", ".join(f"`{name}`" for name in visible)
            self._context.edits.replace(clause.star, clause.star + 1, written)
        bindings |= {name: self._scope.bindings[name] for name in visible}
        return visible

    def _read_item(
        self, clause: ProjectionClause, item: ProjectionItem, bindings: dict[str, CypherVariableType]
    ) -> str:
        value, edits = strip_parentheses(item.value), self._context.edits
        if isinstance(value, PatternPredicate):
            what = "a pattern cannot be used as a value; write EXISTS { MATCH … } or COUNT { MATCH … }. Found"
            raise self._context.refuse(item.start, what)
        kind = self._kinds[item.start] = self._typer.type_of(value, self._scope)
        if isinstance(value, Literal) and value.kind == "null":
            edits.replace(value.start, value.end, "CAST(NULL AS STRING)")
        name = item.alias or (value.name if isinstance(value, Variable) else self._context.typed(item))
        if clause.word == "WITH" and not (item.alias or isinstance(value, Variable) or _ends_in_star(value)):
            raise self._context.refuse(item.start, "an expression in WITH needs an alias, as in WITH … AS x; found")
        if not item.alias and edits.is_rewritten(item.start, item.end):
            self._keep_typed_name(item)
        if item.alias or isinstance(value, Variable):
            self._check_alias(item, name, bindings)
            bindings[name] = CypherVariableType(kind.without_column())
        return name

    def _keep_typed_name(self, item: ProjectionItem) -> str:
        """Add an alias so that the column keeps the name that was typed; return that name."""
        name = self._context.typed(item).replace("`", "")
        if item.start not in self._named:
            self._named.add(item.start)
            self._context.edits.behind(item.end - 1, f" AS `{name}`")
        return name

    def _check_alias(self, item: ProjectionItem, name: str, bindings: dict[str, CypherVariableType]) -> None:
        if other := VariableScope(bindings).similar(name):
            what = f"{name} and {other} differ only in case, which the engine ignores; rename one. Found"
            raise self._context.refuse(item.start, what)

    def _check_names(self, clause: ProjectionClause, names: list[str]) -> None:
        for number, name in enumerate(names):
            if name in names[:number]:
                raise self._context.refuse(clause.start, f"two columns have the name {name}; rename one with AS. Found")

    def _check_keys(self, clause: ProjectionClause) -> None:
        """Reject grouping keys that the engine splits: NaN, and relationships matched from both ends."""
        for item in clause.items:
            kind = self._kinds.get(item.start)
            is_undirected = kind is not None and kind.is_undirected and clause.word == "WITH"
            if is_undirected and not self._has_aggregate(item.start, item.end):
                what = "the engine counts a relationship matched in both directions twice; use its id(…) instead. Found"
                raise self._context.refuse(item.start, what)
            is_nan = kind is not None and kind.is_nan_possible
            if is_nan and not self._has_aggregate(item.start, item.end):
                raise self._context.refuse(item.start, f"this {_SEVERAL_NANS}")

    def _has_aggregate(self, start: int, end: int) -> bool:
        return any(self._context.outline.calls(at) in AGGREGATE_FUNCTIONS for at in range(start, end))

    def _rewrite_order(
        self, clause: ProjectionClause, before: VariableScope, after: VariableScope, *, keeps_rows: bool
    ) -> None:
        both = VariableScope(before.bindings | after.bindings, is_open=before.is_open)
        for item in clause.order[:-1]:
            # Kùzu's grammar allows no space before these commas.
            self._context.edits.join(item.end)
        for item in clause.order:
            alias = self._alias_of(clause, item.value)
            if alias is not None and not keeps_rows:
                self._context.edits.replace(item.value.start, item.value.end, f"`{alias}`")
                continue
            kind = self._typer.type_of(item.value, both)
            if keeps_rows:
                self._resolve_shadowed_variables(clause, item.value, before)
            if kind.kind == "float" and (keeps_rows or isinstance(item.value, Variable)):
                # The engines sort -0.0 before all smaller numbers.
                self._context.edits.around(item.value.start, item.value.end, "(", " + 0.0)")
            if kind.kind == "float" and kind.may_be_nan:
                text = self._context.text(item.value)
                self._context.edits.before(item.start, f"({text}) <> ({text}){item.alias and ' '}{item.alias}, ")
        if clause.order and clause.word == "WITH" and not clause.bounds:
            self._context.edits.behind(clause.order_end - 1, f" LIMIT {_UNLIMITED_ROWS}")

    def _alias_of(self, clause: ProjectionClause, value: Expression) -> str | None:
        """Return the column with the same expression, unless that is just a name."""
        if isinstance(value, Variable):
            return None
        typed = self._context.typed(value)
        for item in clause.items:
            if self._context.typed(item.value) == typed and not self._is_plain(item):
                return item.alias or self._keep_typed_name(item)
        return None

    def _is_plain(self, item: ProjectionItem) -> bool:
        return not item.alias and isinstance(item.value, Variable | PostfixExpression)

    def _resolve_shadowed_variables(self, clause: ProjectionClause, value: Expression, before: VariableScope) -> None:
        """Replace shadowed variables by the column's expression, because Kùzu sorts by the old variable."""
        made = {item.alias: item.value for item in clause.items if item.alias in before.bindings}
        for part in list(iterate_syntax_nodes(value)):
            shadowing = made.get(part.name) if isinstance(part, Variable) else None
            if shadowing is not None and not (isinstance(shadowing, Variable) and shadowing.name == part.name):  # pyright: ignore[reportAttributeAccessIssue]
                self._context.edits.replace(part.start, part.end, f"({self._text_of(shadowing)})")

    def _text_of(self, expression: Expression) -> str:
        text = self._context.text(expression)
        return text.partition(" AS `")[0] if text.endswith("`") else text

    def _read_filter(
        self,
        clause: ProjectionClause,
        where: Expression,
        before: VariableScope,
        after: VariableScope,
        *,
        keeps_rows: bool,
    ) -> None:
        names = {part.name for part in iterate_syntax_nodes(where) if isinstance(part, Variable)}
        dropped = [name for name in before.bindings if name in names and name not in after.bindings]
        if dropped and not keeps_rows:
            what = f"{dropped[0]} is not in this WITH, so its WHERE cannot use it; add it to the WITH. The WHERE is"
            raise self._context.refuse(clause.where_start, what)
        scope = VariableScope({name: before.bindings[name] for name in dropped} | after.bindings, is_open=after.is_open)
        note_label_comparisons(self._context, where)
        kind = self._typer.type_of(where, scope)
        reject_non_boolean_condition(self._context, where, kind)
        if dropped:
            self._context.edits.behind(clause.items_end - 1, "".join(f", `{name}`" for name in dropped))
            kept = ", ".join(f"`{name}`" for name in after.bindings)
            self._context.edits.behind(clause.end - 1, f" WITH {kept}")

    def _keep_order(self, clause: ProjectionClause, later: tuple[Clause, ...]) -> None:
        """Preserve the order before an aggregate, which Ladybug loses, by adding an UNWIND."""
        if clause.word == "WITH" and clause.order and later and self._has_aggregate(clause.end, later[-1].end):
            self._context.edits.behind(clause.end - 1, f" UNWIND [1] AS {self._context.create_hidden_variable('u')}")
            # The hidden variable stays in scope.


def _ends_in_star(value: Expression) -> bool:
    last = value.steps[-1] if isinstance(value, PostfixExpression) else None
    return isinstance(last, PropertyAccess) and last.name == "*"
