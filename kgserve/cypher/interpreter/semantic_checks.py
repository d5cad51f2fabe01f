"""Checks of statements before they run: errors that openCypher demands at compile time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

import msgspec
from typing_extensions import override

from kgserve.cypher.interpreter.expression_checks import (
    NO_AGGREGATES_IN_WHERE,
    ExpressionScope,
)
from kgserve.cypher.interpreter.opencypher_syntax_tree import (
    CallProcedureClauseNode,
    CallSubqueryClauseNode,
    ComputedLabelAssignment,
    CreateClauseNode,
    DeleteClauseNode,
    ElementUpdate,
    ForeachClauseNode,
    LabelAssignment,
    LabelPredicate,
    LabelRemoval,
    MatchClauseNode,
    MergeClauseNode,
    ProjectionClauseNode,
    PropertyRemoval,
    QueryStage,
    QuerySyntaxNode,
    QueryUnion,
    SetOrRemoveClauseNode,
    SetPropertiesFromMap,
    SetSingleProperty,
    SubqueryExpressionNode,
    UnwindClauseNode,
    VariableReference,
    iterate_syntax_tree,
)
from kgserve.cypher.interpreter.opencypher_tokenizer import build_query_syntax_error
from kgserve.cypher.interpreter.pattern_checks import Names
from kgserve.cypher.interpreter.procedures import is_updating_procedure, is_void_procedure
from kgserve.cypher.interpreter.static_value_types import (
    ANY_KIND,
    BOOLEAN_KIND,
    INTEGER_KIND,
    StaticValueType,
    join_static_types,
)
from kgserve.cypher.interpreter.with_and_return_checks import WithReturnClauseChecker

_UPDATING_STAGES = (CreateClauseNode, MergeClauseNode, SetOrRemoveClauseNode, DeleteClauseNode, ForeachClauseNode)
_STAGE_WORDS: dict[type, str] = {
    MatchClauseNode: "MATCH",
    UnwindClauseNode: "UNWIND",
    CreateClauseNode: "CREATE",
    MergeClauseNode: "MERGE",
    SetOrRemoveClauseNode: "SET or REMOVE",
    DeleteClauseNode: "DELETE",
    ForeachClauseNode: "FOREACH",
    CallProcedureClauseNode: "CALL",
    CallSubqueryClauseNode: "CALL",
}


class CheckedQuerySummary(msgspec.Struct, frozen=True):
    """Summary of a query that passed the checks: its columns, procedures, and whether it updates.

    ``columns`` are those of the final RETURN; empty without one, as for a statement that is nothing but CALL.
    """

    columns: tuple[str, ...]
    is_updating: bool
    procedures: tuple[str, ...]


def check_query_semantics(query: QueryUnion, text: str) -> CheckedQuerySummary:
    """Check the semantics of a query. Raises InvalidInput with the position of the first fault."""
    try:
        columns = QuerySemanticChecker(text, query).check_union(query, {})
    except RecursionError:
        raise build_query_syntax_error(text, 0, "the statement is nested too deeply; it begins") from None
    procedures = [node.name for node in iterate_syntax_tree(query) if isinstance(node, CallProcedureClauseNode)]
    return CheckedQuerySummary(tuple(columns), is_updating_query(query), tuple(dict.fromkeys(procedures)))


def is_updating_query(part: QuerySyntaxNode) -> bool:
    """Return whether any clause of a query changes the graph."""
    return any(map(_is_updating, iterate_syntax_tree(part)))


def _is_updating(node: QuerySyntaxNode) -> bool:
    is_call = isinstance(node, CallProcedureClauseNode)
    return is_updating_procedure(node.name) if is_call else isinstance(node, _UPDATING_STAGES)


class QuerySemanticChecker(WithReturnClauseChecker):
    """Checks the semantics of the clauses of statements and subqueries."""

    def __init__(self, text: str, query: QueryUnion) -> None:
        super().__init__(text)
        stages = query.queries[0]
        is_call = len(query.queries) == len(stages) == 1 and isinstance(stages[0], CallProcedureClauseNode)
        self._call = stages if is_call else None
        """The clauses of a statement that is nothing but CALL, which may lack YIELD and RETURN."""
        self._stages: dict[type, Callable[[Any, Names], None]] = {
            MatchClauseNode: self._check_match,
            UnwindClauseNode: self._check_unwind,
            CreateClauseNode: lambda stage, names: self.declare_create(stage.paths, names),
            MergeClauseNode: self._check_merge,
            SetOrRemoveClauseNode: lambda stage, names: self._check_updates(stage.updates, names),
            DeleteClauseNode: self._check_delete,
            ForeachClauseNode: self._check_foreach,
            CallProcedureClauseNode: self._check_procedure,
            CallSubqueryClauseNode: self._check_call_subquery,
        }

    def check_union(self, query: QueryUnion, names: Names, *, may_lack_return: bool = False) -> Names:
        """Check a query that may use variables; return the kinds of its columns. Raises InvalidInput."""
        return self._check_parts(query, [dict(names) for _ in query.queries], may_lack_return=may_lack_return)

    def _check_parts(self, query: QueryUnion, scopes: list[Names], *, may_lack_return: bool = False) -> Names:
        """Check the queries of a UNION, each with its own variables."""
        found: list[Names] = []
        for stages, names in zip(query.queries, scopes, strict=True):
            found.append(self._check_stages(stages, names, may_lack_return=may_lack_return))
            if found[-1].keys() != found[0].keys():
                raise self.fail(stages[0].position, "all queries of a UNION need the same columns; this one differs")
        if len(found) == 1:
            return found[0]
        return {name: join_static_types([columns[name] for columns in found]) for name in found[0]}

    def _check_stages(self, stages: tuple[QueryStage, ...], names: Names, *, may_lack_return: bool) -> Names:
        self._check_order(stages, may_lack_return=may_lack_return)
        last = stages[-1]
        for stage in stages:
            if isinstance(stage, ProjectionClauseNode):
                names = self.check_projection(stage, names)
            elif isinstance(stage, CallProcedureClauseNode) and stages is not self._call:
                self._check_inner_procedure(stage)
                self._check_procedure(stage, names)
            else:
                self._stages[type(stage)](stage, names)
        return names if _is_return(last) else {}

    def _check_order(self, stages: tuple[QueryStage, ...], *, may_lack_return: bool) -> None:
        is_updated, last = False, stages[-1]
        for index, stage in enumerate(stages):
            if index and _is_return(stages[index - 1]):
                raise self.fail(stages[index - 1].position, "RETURN must be the last clause; put a WITH here instead")
            if isinstance(stage, ProjectionClauseNode):
                is_updated = False
            elif isinstance(stage, _UPDATING_STAGES):
                is_updated = True
            elif is_updated:
                message = f"a WITH is required between a clause that writes and {_STAGE_WORDS[type(stage)]}"
                raise self.fail(stage.position, message)
        if not (may_lack_return or stages is self._call or _can_conclude(last)):
            word = last.keyword if isinstance(last, ProjectionClauseNode) else _STAGE_WORDS[type(last)]
            message = f"Query cannot conclude with {word} (must be RETURN or an updating clause)"
            raise self.fail(last.position, message)

    # Reading clauses

    def _check_match(self, stage: MatchClauseNode, names: Names) -> None:
        self.declare_match(stage.paths, names)
        if stage.where is not None:
            self.check_condition(stage.where, ExpressionScope(names, NO_AGGREGATES_IN_WHERE), "WHERE")

    def _check_unwind(self, stage: UnwindClauseNode, names: Names) -> None:
        kind = self.check(stage.source, ExpressionScope(names))
        if kind.is_one_of("list"):
            kind = kind.element or ANY_KIND
        self.declare(stage.name, kind, stage.position, names)

    def _check_inner_procedure(self, stage: CallProcedureClauseNode) -> None:
        if stage.arguments is not None and is_void_procedure(stage.name):
            return
        if stage.arguments is None or stage.yields is None:
            message = "in a longer statement, CALL needs parentheses and YIELD with the columns, as in"
            raise self.fail(stage.position, f"{message} CALL db.labels() YIELD label; this CALL is")
        if stage.yields == ():
            raise self.fail(stage.position, "YIELD * is only allowed if CALL is the only clause; name the columns")

    def _check_procedure(self, stage: CallProcedureClauseNode, names: Names) -> None:
        for argument in stage.arguments or ():
            self.check(argument, ExpressionScope(names))
        for _, alias in stage.yields or ():
            self.declare(alias, ANY_KIND, stage.position, names)
        if stage.where is not None:
            self.check_condition(stage.where, ExpressionScope(names, NO_AGGREGATES_IN_WHERE), "WHERE")

    # Subqueries

    def _check_call_subquery(self, stage: CallSubqueryClauseNode, names: Names) -> None:
        if stage.imports is None:
            scopes = [self._find_imports(stages, names) for stages in stage.query.queries]
        else:
            for name in stage.imports:
                if name != "*":
                    self.find_variable(name, stage.position, names)
            imports = names if "*" in stage.imports else {name: names[name] for name in stage.imports}
            scopes = [dict(imports) for _ in stage.query.queries]
        for name, kind in self._check_parts(stage.query, scopes).items():
            self.declare(name, kind, stage.position, names)

    def _find_imports(self, stages: tuple[QueryStage, ...], names: Names) -> Names:
        """Return the variables that a subquery may use: all if it begins with a WITH of nothing but variables."""
        first = stages[0]
        if not is_importing_with(first):
            if isinstance(first, ProjectionClauseNode) and first.is_all:
                raise self.fail(first.position, "the WITH that imports variables into a subquery cannot define others")
            return {}
        if first.is_distinct or first.order or (first.skip, first.limit, first.where) != (None, None, None):
            message = "the WITH that imports variables into a subquery only names them; put the rest into another WITH"
            raise self.fail(first.position, message)
        return dict(names)

    @override
    def check_subquery(self, tree: SubqueryExpressionNode, names: Names) -> StaticValueType:
        if is_updating_query(tree):
            raise self.fail(tree.position, f"a subquery of {tree.kind} cannot write")
        columns = self.check_union(tree.query, names, may_lack_return=tree.kind != "COLLECT")
        if tree.kind != "COLLECT":
            return BOOLEAN_KIND if tree.kind == "EXISTS" else INTEGER_KIND
        if len(columns) != 1:
            raise self.fail(tree.position, "the subquery of COLLECT must return exactly one column")
        return StaticValueType("list", next(iter(columns.values())))

    # Updating clauses

    def _check_merge(self, stage: MergeClauseNode, names: Names) -> None:
        self.declare_merge(stage.path, names)
        self._check_updates(stage.on_create + stage.on_match, names)

    def _check_updates(self, updates: tuple[ElementUpdate, ...], names: Names) -> None:
        scope = ExpressionScope(names)
        for update in updates:
            if isinstance(update, SetSingleProperty | PropertyRemoval):
                kind = self.check(update.subject, scope)
                self.require(kind, update.subject, "a value whose property changes", "node", "relationship")
                self.require(self.check(update.name, scope), update.name, "the name of a property", "string")
            else:
                self._check_updated_variable(update, names)
            if isinstance(update, SetSingleProperty):
                self.check(update.value, scope)
            elif isinstance(update, ComputedLabelAssignment):
                self.require(self.check(update.value, scope), update.value, "the labels", "string", "list")
            elif isinstance(update, SetPropertiesFromMap):
                kind = self.check(update.value, scope)
                self.require(kind, update.value, "the new properties", "map", "node", "relationship")

    def _check_updated_variable(
        self, update: SetPropertiesFromMap | LabelAssignment | ComputedLabelAssignment | LabelRemoval, names: Names
    ) -> None:
        self.find_variable(update.name, update.position, names)
        kind = names[update.name]
        if isinstance(update, SetPropertiesFromMap) and kind.is_one_of("node", "relationship"):
            return
        if not kind.is_one_of("node"):
            what = "properties" if isinstance(update, SetPropertiesFromMap) else "labels"
            raise self.fail(update.position, f"{what} of {kind.describe()} cannot be changed")

    def _check_delete(self, stage: DeleteClauseNode, names: Names) -> None:
        for value in stage.values:
            if isinstance(value, LabelPredicate):
                raise self.fail(value.position, "DELETE cannot delete labels; use REMOVE")
            kind = self.check(value, ExpressionScope(names))
            self.require(kind, value, "a value to delete", "node", "relationship", "path")

    def _check_foreach(self, stage: ForeachClauseNode, names: Names) -> None:
        kind = self.check(stage.source, ExpressionScope(names))
        self.require(kind, stage.source, "the source of FOREACH", "list")
        inner = dict(names)
        self.declare(stage.name, kind.element or ANY_KIND, stage.position, inner)
        for each in stage.stages:
            if not isinstance(each, _UPDATING_STAGES):
                word = each.keyword if isinstance(each, ProjectionClauseNode) else _STAGE_WORDS[type(each)]
                raise self.fail(each.position, f"FOREACH takes clauses that write, not {word}")
            self._stages[type(each)](each, inner)


def is_importing_with(stage: QueryStage) -> TypeGuard[ProjectionClauseNode]:
    """Return whether the first clause of a subquery imports variables: a WITH that names nothing but variables."""
    return (
        isinstance(stage, ProjectionClauseNode)
        and stage.keyword == "WITH"
        and not any(column.is_aliased or not isinstance(column.value, VariableReference) for column in stage.columns)
    )


def _is_return(stage: QueryStage) -> bool:
    return isinstance(stage, ProjectionClauseNode) and stage.keyword == "RETURN"


def _can_conclude(last: QueryStage) -> bool:
    if isinstance(last, CallProcedureClauseNode):
        return is_void_procedure(last.name)
    if isinstance(last, CallSubqueryClauseNode):
        return not any(_is_return(stage) for stage in last.query.queries[0])
    return _is_return(last) or isinstance(last, _UPDATING_STAGES)
