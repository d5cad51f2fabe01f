"""Refusal of statements whose writes would change what the engine still reads.

The engine computes all rows before it writes the first, and evaluates columns of a WITH where they are used. A later
row therefore misses what an earlier one has set, and so does another variable for the same node. Only statements in
which neither matters are left to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

from kgserve.cypher.analysis_context import CypherAnalysisContext, is_constant_expression, strip_parentheses
from kgserve.cypher.syntax_tree import (
    Clause,
    CreateOrMergeClause,
    DeleteClause,
    FunctionCall,
    Literal,
    MatchClause,
    PatternPredicate,
    PostfixExpression,
    ProjectionClause,
    ProjectionItem,
    PropertyAccess,
    SetClause,
    SetClauseItem,
    StatementTokenRange,
    SubqueryExpression,
    UnwindClause,
    Variable,
)
from kgserve.cypher.types import CypherStaticType

_ELEMENT_KINDS = frozenset({"node", "relation", "path", "relations", "engine", "any"})
"""Kinds of values that may be or hold a node or relationship, besides lists and maps."""
_INSTEAD = "write it as a second statement. Found"


def check_write_order(
    context: CypherAnalysisContext, clauses: tuple[Clause, ...], kinds: Mapping[str, CypherStaticType]
) -> None:
    """Raise InvalidInput if the engine would read a value as it was before a write.

    ``kinds`` are the types of the variables.
    """
    first_set = _find_first(clauses, SetClause)
    first_deletion = _find_first(clauses, DeleteClause)
    if first_deletion is not None and first_set is not None:
        what = f"the engine cannot set properties and delete in one statement; {_INSTEAD}"
        raise context.refuse(clauses[max(first_set, first_deletion)].start, what)
    if first_deletion is not None:
        _check_reads_of_deleted(context, clauses, first_deletion)
    if first_set is not None:
        _AssignmentOrderCheck(context, clauses, first_set, kinds).check()


def _find_first(clauses: tuple[Clause, ...], kind: type[SetClause | DeleteClause]) -> int | None:
    return next((number for number, clause in enumerate(clauses) if isinstance(clause, kind)), None)


def _check_reads_of_deleted(context: CypherAnalysisContext, clauses: tuple[Clause, ...], first: int) -> None:
    deletions = [clause for clause in clauses if isinstance(clause, DeleteClause)]
    inner = (strip_parentheses(item) for clause in deletions for item in clause.items)
    deleted = {item.name for item in inner if isinstance(item, Variable)}
    later = [clause for clause in clauses[first:] if not isinstance(clause, DeleteClause)]
    for name, part in _list_reads(later):
        if name in deleted:
            raise context.refuse(
                part.start, f"{name} is deleted before it is read here; read it in a WITH before. Found"
            )


class _AssignmentOrderCheck:
    """Check of the statements with SET: what they read against what they assign."""

    def __init__(
        self,
        context: CypherAnalysisContext,
        clauses: tuple[Clause, ...],
        first_set: int,
        kinds: Mapping[str, CypherStaticType],
    ) -> None:
        self._context = context
        self._kinds = kinds
        self._before, self._after = clauses[:first_set], clauses[first_set:]
        self._items = [item for clause in clauses if isinstance(clause, SetClause) for item in clause.items]
        # Variables that are assigned to, by property.
        self._targets: dict[str, set[str]] = {}
        for item in self._items:
            name, property_ = _split_target(item)
            self._targets.setdefault(property_, set()).add(name)
        values = [strip_parentheses(item.value) for item in self._items]
        # Stored as an empty text, or as the default.
        self._sets_null = any(isinstance(each, Literal) and each.kind == "null" for each in values)
        self._is_single = self._sets_each_element_once()
        self._is_constant = all(is_constant_expression(item.value) for item in self._items) and (
            len({_split_target(item) for item in self._items}) == len(self._items)
        )

    def check(self) -> None:
        """Raise InvalidInput with the position of a value that may be too old."""
        if not self._is_single:
            self._require_no_reads(item.value for item in self._items)
        for clause in self._before:
            if isinstance(clause, UnwindClause):
                self._require_no_reads([clause.source])
            elif isinstance(clause, ProjectionClause):
                self._require_no_reads(item.value for item in clause.items if item.alias and not _passes_on(item))
        self._check_later_reads()

    def _sets_each_element_once(self) -> bool:
        """Return whether no node or relationship is set by two rows, or through two variables."""
        if len(self._before) != 1 or not all(isinstance(each, SetClause | ProjectionClause) for each in self._after):
            return False
        clause, names = self._before[0], set[str]().union(*self._targets.values())
        if not isinstance(clause, MatchClause | CreateOrMergeClause) or len(clause.paths) != 1 or len(names) != 1:
            return False
        path = clause.paths[0]
        if not path.relations:
            return True
        only = path.relations[0]
        return len(path.relations) == 1 and only.length is None and only.direction != "" and {only.name} == names

    def _require_no_reads(self, parts: Iterable[StatementTokenRange]) -> None:
        for name, part in _list_reads([*parts]):
            properties = _list_properties(part)
            if self._may_hold_element(name) and (not properties or properties & self._targets.keys()):
                self._refuse(part)

    def _check_later_reads(self) -> None:
        matches = [clause for clause in self._after if isinstance(clause, MatchClause)]
        bound_later = {node.name for clause in matches for path in clause.paths for node in path.nodes}
        later = [clause for clause in self._after if not isinstance(clause, SetClause | MatchClause)]
        for name, part in _list_reads(later):
            if name in bound_later or not self._may_hold_element(name):
                continue
            found = _list_properties(part)
            properties = found & self._targets.keys()
            if (properties or not found) and not self._is_up_to_date(name, properties):
                self._refuse(part)

    def _is_up_to_date(self, name: str, properties: set[str]) -> bool:
        """Return whether a variable shows what the statement has set."""
        if self._sets_null or not (self._is_single or self._is_constant):
            return False
        kind = self._kind(name)
        if kind not in {"node", "relation"}:
            return False
        relevant = properties or self._targets.keys()
        targets = set[str]().union(*(self._targets[each] for each in relevant))
        return {each for each in targets if self._kind(each) == kind} <= {name}

    def _kind(self, name: str) -> str:
        return self._kinds[name].kind if name in self._kinds else "any"

    def _may_hold_element(self, name: str) -> bool:
        return name not in self._kinds or _may_hold_element(self._kinds[name])

    def _refuse(self, part: StatementTokenRange) -> None:
        what = "the engine would read this as it was before SET has changed it by another row or variable;"
        raise self._context.refuse(part.start, f"{what} {_INSTEAD}")


def _may_hold_element(kind: CypherStaticType) -> bool:
    parts = [part for _, part in kind.fields] if kind.of is None else [kind.of]
    return kind.kind in _ELEMENT_KINDS or any(map(_may_hold_element, parts))


def _split_target(item: SetClauseItem) -> tuple[str, str]:
    """Return the variable and the property of an assignment; empty names for any other form."""
    target = strip_parentheses(item.target)
    if isinstance(target, PostfixExpression) and isinstance(target.subject, Variable):
        step = target.steps[-1]
        return target.subject.name, step.name if isinstance(step, PropertyAccess) else ""
    return "", ""


def _list_reads(value: object) -> Iterator[tuple[str, StatementTokenRange]]:
    """Yield the variables, accesses to them, and patterns that are read, with the names of variables or ''."""
    match value:
        case Variable():
            yield value.name, value
        case PostfixExpression():
            subject = strip_parentheses(value.subject)
            yield subject.name if isinstance(subject, Variable) else "", value
            yield from () if isinstance(subject, Variable) else _list_reads(subject)
            yield from _list_reads(value.steps)
        case PatternPredicate() | SubqueryExpression():
            yield "", value
        case FunctionCall(name="count", arguments=(Variable(),)):
            return
        case ProjectionClause():
            if value.star >= 0 and value.word == "RETURN":
                yield "", value
            is_with = value.word == "WITH"
            yield from _list_reads(tuple(item for item in value.items if not (is_with and _passes_on(item))))
            yield from _list_reads((value.order, value.where))
        case tuple() | list():
            for each in cast("Sequence[object]", value):
                yield from _list_reads(each)
        case StatementTokenRange():
            yield from _list_reads(tuple(getattr(value, name) for name in value.__struct_fields__))
        case _:
            return


def _passes_on(item: ProjectionItem) -> bool:
    return isinstance(item.value, Variable) and item.alias in {"", item.value.name}


def _list_properties(part: StatementTokenRange) -> set[str]:
    steps = part.steps if isinstance(part, PostfixExpression) else ()
    return {step.name for step in steps if isinstance(step, PropertyAccess)}
