"""Static analysis of write statements: write scope, footprint and final write.

The write scope is the most that a statement can change, so only that much is compared afterwards. The footprint is the
rows it may match: concurrent writes conflict only if they touch it. The final write is a DELETE or SET in the last
clause: the preceding part runs as a read, and kgserve applies the write.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from kgserve.cypher.guard import GuardedCypherStatement
from kgserve.cypher.lexer import (
    AGGREGATE_FUNCTIONS,
    CLAUSE_ENDS,
    KEYWORDS,
    WRITE_CLAUSES,
    BracketMatchedTokens,
    scan_significant_tokens,
)
from kgserve.storage.model.node_edge_rows import EdgeKey, NodeRow

_TEXT_COLUMNS = frozenset({"id", "type", "content"})
_UNTRACKED_WORDS = frozenset({"OPTIONAL", "UNION", "CALL", "EXISTS", "SHORTEST", "WSHORTEST", "TRAIL", "ACYCLIC"})
_PATTERN_CLAUSES = frozenset({"MATCH", "MERGE", "CREATE"})
_COMPARISON_FUNCTIONS: dict[str, Callable[[str, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
    "STARTS": str.startswith,
    "ENDS": str.endswith,
    "CONTAINS": operator.contains,
}
_ALIAS_TOKENS = 2
_STRING_TYPE = "STRING"
SETTABLE_PROPERTIES = {
    "type": _STRING_TYPE,
    "content": _STRING_TYPE,
    "attributes": _STRING_TYPE,
    "summary": _STRING_TYPE,
    "created_by": _STRING_TYPE,
    "weight": "DOUBLE",
}
"""Properties with a single type whose values JSON represents exactly."""
_SETTABLE_NODE_PROPERTIES = SETTABLE_PROPERTIES.keys() - {"weight"}
_SETTABLE_EDGE_PROPERTIES = frozenset({"attributes", "created_by", "weight"})


class StatementWriteBounds(msgspec.Struct, frozen=True):
    """Upper bound on the changes of a statement.

    It may create, delete and set rows, and assign the ``assigned`` of the ``names`` in it; None means any. Without
    ``relations`` it neither matches nor changes any.
    """

    creates: bool = True
    deletes: bool = True
    sets: bool = True
    relations: bool = True
    names: frozenset[str] | None = None
    assigned: frozenset[str] | None = None

    def may_name(self, name: str) -> bool:
        """Return whether the statement may name a property."""
        return self.names is None or name in self.names

    def may_set(self, name: str) -> bool:
        """Return whether the statement may change a property of remaining rows."""
        return self.sets and self.may_name(name) and (self.assigned is None or name in self.assigned)


def analyze_statement_write_bounds(statement: GuardedCypherStatement) -> StatementWriteBounds:
    """Return the bounds of what a statement may write, judged by its tokens.

    The engine sets properties only by name, and creates rows without a version.
    """
    found = scan_significant_tokens(statement.text)
    words = {token.text.upper() for token in found if token.kind in {"word", "symbol"}}
    # Assignments in SET; comparisons match as well.
    dotted = zip(found, found[1:], found[2:], strict=False)
    assigned = frozenset(
        name.text.strip("`").lower() for dot, name, sign in dotted if dot.text == "." and sign.text == "="
    )
    return StatementWriteBounds(
        creates=not words.isdisjoint({"CREATE", "MERGE"}),
        deletes="DELETE" in words,
        sets="SET" in words,
        relations=not words.isdisjoint({"-", "DETACH"}),
        names=statement.words,
        assigned=assigned,
    )


class TextPropertyCondition(msgspec.Struct, frozen=True):
    """Condition of a pattern on a text property; a node that fails it cannot have been matched."""

    property: str
    sign: str
    value: str

    def holds(self, row: NodeRow) -> bool:
        """Return whether a node satisfies the condition."""
        return _COMPARISON_FUNCTIONS[self.sign](getattr(row, self.property), self.value)


class ReadFootprint:
    """Nodes that a statement may read: the conditions of its patterns, by variable name or position.

    Constructs that are not analysed count as matching everything. Created rows are not included: the writer must check
    for concurrent creation of the same rows.
    """

    def __init__(self, statement: GuardedCypherStatement) -> None:
        self._outline = BracketMatchedTokens(statement.text, scan_significant_tokens(statement.text))
        self._parameters = statement.parameters
        self._conditions: dict[str, list[TextPropertyCondition]] = {}
        # Isolated nodes of patterns, and the endpoints of each relation.
        self._isolated: set[str] = set()
        self._pairs: set[tuple[str, str]] = set()
        self._paired: set[str] = set()
        self.matches_all = not _UNTRACKED_WORDS.isdisjoint(self._outline.words)
        # Variables that passed a WITH: the name may be rebound, or its rows already aggregated or written.
        self._passed_with: set[str] = set()
        clause = ""
        for index, word in enumerate(self._outline.words):
            if word in CLAUSE_ENDS and self._outline.is_clause(index):
                clause = word
            if word in {"MATCH", "MERGE"}:
                self._read(index)
            elif clause == "WITH":
                self._passed_with |= self._conditions.keys()
            if word == "AS" and self._outline.tokens[index + 1].text in self._conditions:
                self.matches_all = True
            self.matches_all |= clause not in _PATTERN_CLAUSES and self._continues_pattern(index)

    def can_match_node(self, row: NodeRow, *, new: bool) -> bool:
        """Return whether a node may be matched; a ``new`` one has relations only through new edges."""
        names = self._isolated if new else self._conditions
        return self.matches_all or any(self._matches_conditions(name, row) for name in names)

    def can_match_edge(self, key: EdgeKey, node: Callable[[str], NodeRow | None]) -> bool:
        """Return whether an edge may be matched; ``node`` looks up its endpoints."""
        if self.matches_all or not self._pairs:
            return self.matches_all
        ends = node(key[0]), node(key[1])
        return any(self._can_match(ends, pair) or self._can_match(ends[::-1], pair) for pair in self._pairs)

    def _can_match(self, ends: tuple[NodeRow | None, ...], pair: tuple[str, str]) -> bool:
        return all(row is None or self._matches_conditions(name, row) for row, name in zip(ends, pair, strict=True))

    def _matches_conditions(self, name: str, row: NodeRow) -> bool:
        return all(condition.holds(row) for condition in self._conditions[name])

    def _continues_pattern(self, index: int) -> bool:
        """Return whether a pattern continues from a node here; pattern conditions may occur in any expression."""
        outline = self._outline
        begins = outline.symbol(index) == ")" and outline.symbol(index + 1) in {"-", "<"}
        return begins and (outline.symbol(index + 2) in {"-", "["})

    def _read(self, match: int) -> None:
        """Analyse one MATCH or MERGE with its WHERE."""
        outline = self._outline
        self.matches_all |= outline.opener[match] != -1
        if self.matches_all:
            return
        before: str | None = None
        linked, is_match = False, outline.word(match) == "MATCH"
        index = match + 1
        while index < len(outline) and outline.word(index) not in CLAUSE_ENDS:
            symbol = outline.symbol(index)
            if symbol == "(":
                name = self._node(index)
                if before is not None and linked:
                    self._pairs.add((before, name))
                    # A MERGE also matches nodes without an edge.
                    self._paired.update((before, name) if is_match else ())
                before, linked = name, False
                index = outline.partner[index]
            elif symbol == "[":
                self.matches_all |= any(outline.symbol(at) == "*" for at in range(index, outline.partner[index]))
                index = outline.partner[index]
            elif symbol == ",":
                before = None
            linked |= symbol in {"-", "[", "<", ">"}
            index += 1
        self._isolated = self._conditions.keys() - self._paired
        if outline.word(index) == "WHERE":
            self._where(index + 1)

    def _node(self, opening: int) -> str:
        """Return the name of a node, after recording its conditions."""
        outline, closing = self._outline, self._outline.partner[opening]
        name = outline.tokens[opening + 1].text if outline.name(opening + 1) else f"({opening}"
        self.matches_all |= name in self._passed_with
        conditions = self._conditions.setdefault(name, [])
        for index in range(opening + 1, closing):
            braces = outline.opener[index]
            if outline.symbol(index) == ":" and outline.symbol(braces) == "{" and outline.opener[braces] == opening:
                self._add(conditions, outline.tokens[index - 1].text, "=", index + 1, {",", "}"})
        return name

    def _where(self, start: int) -> None:
        """Record the conditions that are joined by AND alone."""
        outline = self._outline
        end = next((at for at in range(start, len(outline)) if self._ends(at)), len(outline))
        own = [at for at in range(start, end) if outline.opener[at] == -1]
        if any(outline.word(at) in {"OR", "XOR", "CASE"} for at in own):
            return
        begins = [start, *(at + 1 for at in own if outline.word(at) == "AND")]
        for at in begins:
            name = outline.tokens[at].text if at + 2 < len(outline) else ""
            conditions = self._conditions.get(name)
            if conditions is None or name in self._passed_with or outline.symbol(at + 1) != ".":
                continue
            sign = outline.symbol(at + 3) or outline.word(at + 3)
            value = at + 4 + (sign in {"STARTS", "ENDS"})
            if sign in _COMPARISON_FUNCTIONS:
                self._add(conditions, outline.tokens[at + 2].text, sign, value, {"AND"})

    def _ends(self, index: int) -> bool:
        outline = self._outline
        return outline.opener[index] == -1 and outline.word(index) in CLAUSE_ENDS and outline.is_clause(index)

    def _add(self, conditions: list[TextPropertyCondition], name: str, sign: str, place: int, ends: set[str]) -> None:
        """Record a condition whose value is a single text."""
        outline = self._outline
        after = outline.symbol(place + 1) or outline.word(place + 1)
        if (
            name not in _TEXT_COLUMNS
            or place >= len(outline)
            or (place + 1 < len(outline) and after not in ends | CLAUSE_ENDS)
        ):
            return
        value = _text_value(outline, place, self._parameters)
        if value is not None:
            conditions.append(TextPropertyCondition(name, sign, value))


def _text_value(outline: BracketMatchedTokens, index: int, parameters: Mapping[str, Any]) -> str | None:
    token = outline.tokens[index]
    if token.kind == "parameter":
        value = parameters.get(token.text[1:])
        return value if isinstance(value, str) else None
    return token.text[1:-1] if token.kind == "string" and "\\" not in token.text else None


def can_statement_match_changes(
    footprint: ReadFootprint,
    before: Callable[[str], NodeRow | None],
    new: Iterable[NodeRow],
    changed: Iterable[NodeRow | str],
    edges: Iterable[EdgeKey],
) -> bool:
    """Return whether a statement may match any of the ``new`` nodes, ``changed`` or deleted nodes, or ``edges``.

    ``before`` looks up a node as it was when the statement ran.
    """
    made = {row.id: row for row in new}
    return (
        footprint.matches_all
        or any(footprint.can_match_node(row, new=True) for row in made.values())
        or any(footprint.can_match_node(row, new=False) for row in _states_before_and_after(changed, before))
        or any(footprint.can_match_edge(key, lambda node_id: made.get(node_id) or before(node_id)) for key in edges)
    )


def _states_before_and_after(
    changed: Iterable[NodeRow | str], before: Callable[[str], NodeRow | None]
) -> Iterator[NodeRow]:
    for each in changed:
        if not isinstance(each, str):
            yield each
        former = before(each if isinstance(each, str) else each.id)
        if former is not None:
            yield former


class WrittenNodeOrEdge(msgspec.Struct, frozen=True):
    """Node or edge that is changed, and the columns of the answer that identify it.

    The identifying expressions are the id of a node; for an edge its endpoints' ids and relation type, or the edge
    itself if a pattern does not name both ends. ``column`` is the first column.
    """

    name: str
    is_node: bool
    key_columns: tuple[str, ...]
    column: int = 0

    @property
    def types(self) -> tuple[str, ...]:
        """Required types of the columns."""
        return ("REL",) if self.key_columns == (self.name,) else (_STRING_TYPE,) * len(self.key_columns)


class AssignedPropertyColumn(msgspec.Struct, frozen=True):
    """Property of an element, and the answer column with its new value."""

    element: WrittenNodeOrEdge
    property: str
    column: int


class ReturnedColumn(msgspec.Struct, frozen=True):
    """Column returned to the caller, and its source column; ``element`` if it is the element before the write."""

    name: str
    column: int
    element: WrittenNodeOrEdge | None = None


class FinalWriteClause(msgspec.Struct, frozen=True):
    """Final write: the ``elements`` are deleted, with all their edges if ``detach``, or set.

    ``question`` is the read part.
    """

    question: GuardedCypherStatement
    elements: tuple[WrittenNodeOrEdge, ...]
    assignments: tuple[AssignedPropertyColumn, ...] = ()
    returned: tuple[ReturnedColumn, ...] = ()
    detach: bool = False


def extract_final_write_clause(statement: GuardedCypherStatement) -> FinalWriteClause | None:
    """Return the final write of a write statement; None if its form is not supported."""
    outline = BracketMatchedTokens(statement.text, scan_significant_tokens(statement.text))
    writes = [index for index, word in enumerate(outline.words) if word in WRITE_CLAUSES]
    first = writes[0]
    if outline.opener[first] != -1 or "UNION" in outline.words or first == 0:
        return None
    words = [outline.word(index) for index in writes]
    if words in (["DELETE"], ["DETACH", "DELETE"]):
        return _deletion(statement, outline, writes)
    return _setting(statement, outline, first) if words == ["SET"] else None


def _deletion(
    statement: GuardedCypherStatement, outline: BracketMatchedTokens, writes: list[int]
) -> FinalWriteClause | None:
    names: list[str] = []
    for item in outline.items(writes[-1] + 1, len(outline)):
        if len(item) != 1 or outline.tokens[item[0]].kind != "word":
            return None
        names.append(outline.tokens[item[0]].text)
    elements = _elements(outline, dict.fromkeys(names), writes[0])
    if not elements:
        return None
    question = _read_statement(statement, outline, writes[0], "DISTINCT", _identifying_columns(elements))
    return FinalWriteClause(question, elements, detach=len(writes) > 1)


def _setting(statement: GuardedCypherStatement, outline: BracketMatchedTokens, place: int) -> FinalWriteClause | None:
    end = next((at for at in range(place, len(outline)) if outline.word(at) == "RETURN"), len(outline))
    found: dict[tuple[str, str], str] = {}
    items = outline.items(place + 1, end)
    for item in items:
        if not _is_simple_assignment(outline, item, statement):
            return None
        found[outline.tokens[item[0]].text, outline.tokens[item[2]].text] = f"({_text(outline, item[4:])})"
    assigned = {property_ for _, property_ in found}
    # Assignments run in sequence: a later one would see the result of an earlier one.
    if (
        not assigned <= SETTABLE_PROPERTIES.keys()
        or len(found) < len(items)
        or (len(found) > 1 and _reads_any(outline, items, assigned))
    ):
        return None
    elements = _elements(outline, dict.fromkeys(name for name, _ in found), place)
    by_name = {element.name: element for element in elements}
    if not all(name in by_name and _has_settable_property(by_name[name], property_) for name, property_ in found):
        return None
    keys = _identifying_columns(elements)
    assignments = tuple(
        AssignedPropertyColumn(by_name[name], property_, len(keys) + at) for at, (name, property_) in enumerate(found)
    )
    if end < len(outline) and "OPTIONAL" in outline.words:
        return None  # setting a property of null is a no-op
    columns, returned = [*keys, *found.values()], list[ReturnedColumn]()
    for item in outline.items(end + 1, len(outline)) if end < len(outline) else ():
        rendered = _render_returned_item(outline, item, found, by_name)
        if rendered is None:
            return None
        name, text, element = rendered
        returned.append(ReturnedColumn(name, len(columns), element))
        columns.append(text)
    question = _read_statement(statement, outline, place, "", columns)
    return FinalWriteClause(question, elements, assignments=assignments, returned=tuple(returned))


def _render_returned_item(
    outline: BracketMatchedTokens,
    item: range,
    values: dict[tuple[str, str], str],
    elements: dict[str, WrittenNodeOrEdge],
) -> tuple[str, str, WrittenNodeOrEdge | None] | None:
    """Return name and text of a returned item as it was before the write; None if it depends on the write."""
    is_named = len(item) > _ALIAS_TOKENS and outline.word(item[-_ALIAS_TOKENS]) == "AS"
    body = item[:-_ALIAS_TOKENS] if is_named else item
    if not body or not _is_value(outline, body, {"AS", "DISTINCT", "COUNT"}):
        return None
    text = _text(outline, body)
    name = outline.tokens[item[-1]].text.strip("`") if is_named else text
    if len(body) == 1 and text in elements:
        return name, text, elements[text]
    is_property = [outline.symbol(index) for index in body] == ["", ".", ""]
    if not (is_named or is_property):
        return None
    parts: list[str] = []
    for index in body:
        token = outline.tokens[index]
        if token.kind == "word" and outline.symbol(index + 1) == "." and index + 2 in body:
            property_ = outline.tokens[index + 2].text
            parts.append(values.get((token.text, property_), f"{token.text}.{property_}"))
        elif outline.symbol(index) == "." or outline.symbol(index - 1) == ".":
            continue
        elif outline.is_variable(index):
            return None
        else:
            parts.append(token.text)
    return name, " ".join(parts), None


def _text(outline: BracketMatchedTokens, item: range) -> str:
    return outline.text[outline.tokens[item[0]].start : outline.tokens[item[-1]].end]


def _is_simple_assignment(outline: BracketMatchedTokens, item: range, statement: GuardedCypherStatement) -> bool:
    """Return whether this is ``name.property = value`` with a value that means the same in a RETURN."""
    shape = [outline.symbol(index) for index in item[:4]]
    if len(item) <= len(shape) or shape != ["", ".", "", "="] or outline.tokens[item[0]].kind != "word":
        return False
    value = item[4:]
    named = (outline.tokens[index].text[1:] for index in value if outline.tokens[index].kind == "parameter")
    # Only the engine can handle nulls without a type.
    untyped = any(statement.parameters.get(name) is None for name in named)
    return not untyped and _is_value(outline, value, {"NULL"})


def _is_value(outline: BracketMatchedTokens, item: range, words: set[str]) -> bool:
    """Return whether a range has no clause, no aggregate and none of ``words``."""
    aggregates = any(outline.calls(index) in AGGREGATE_FUNCTIONS for index in item)
    return not aggregates and all(outline.word(index) not in CLAUSE_ENDS | words for index in item)


def _has_settable_property(element: WrittenNodeOrEdge, property_: str) -> bool:
    return property_ in (_SETTABLE_NODE_PROPERTIES if element.is_node else _SETTABLE_EDGE_PROPERTIES)


def _reads_any(outline: BracketMatchedTokens, items: list[range], properties: set[str]) -> bool:
    """Return whether a value may depend on these properties, or on a whole node, edge or path."""
    values = (index for item in items for index in item[4:])
    return any(_reads_property(outline, index, properties) for index in values)


def _reads_property(outline: BracketMatchedTokens, index: int, properties: set[str]) -> bool:
    if not outline.name(index) or outline.word(index) in KEYWORDS:
        return False
    if outline.symbol(index - 1) == ".":
        return outline.name(index) in properties
    is_type = outline.word(index - 1) == "AS" and outline.bracket(index) == "("
    return outline.symbol(index + 1) not in {".", "("} and not is_type


def _elements(outline: BracketMatchedTokens, names: dict[str, None], end: int) -> tuple[WrittenNodeOrEdge, ...]:
    """Return the nodes and edges with these names in patterns before a token; empty if a name is anything else.

    Names that are also bound otherwise, or to a node of another table, do not qualify.
    """
    nodes, others = set[str](), set[str]()
    edges: dict[str, tuple[str, ...]] = {}
    for index in range(1, end):
        name = outline.tokens[index].text
        if outline.word(index - 1) == "AS":
            others.add(name.strip("`").lower())
        elif outline.symbol(index - 1) == "(" and outline.symbol(index + 1) == ":":
            nodes.add(name) if _is_entity(outline, index + 2) else others.add(name.strip("`").lower())
        elif outline.symbol(index - 1) == "[" and outline.has_own(index - 1, "*"):
            others.add(name.strip("`").lower())
        elif outline.symbol(index - 1) == "[" and outline.symbol(index + 1) in {":", "]", "{"}:
            # Matched twice, or with endpoints rebound by a WITH: identified by the edge itself.
            is_passed_on = any(outline.word(at) == "WITH" and outline.is_clause(at) for at in range(index, end))
            by_ends = name not in edges and not is_passed_on
            edges[name] = (by_ends and _ends(outline, index - 1)) or (name,)
    if any((name in nodes) == (name in edges) or name.lower() in others for name in names):
        return ()
    found: list[WrittenNodeOrEdge] = []
    for name in names:
        columns = edges.get(name, (f"{name}.id",))
        columns = columns if others.isdisjoint(each.partition(".")[0].lower() for each in columns) else (name,)
        found.append(WrittenNodeOrEdge(name, name in nodes, columns, sum(len(each.key_columns) for each in found)))
    return tuple(found)


def _ends(outline: BracketMatchedTokens, bracket: int) -> tuple[str, ...]:
    """Return the expressions that identify a relation by its endpoints, in its direction; empty if one is unnamed."""
    after = outline.partner[bracket] + 1
    leaves, comes = outline.symbol(after + 1) == ">", outline.symbol(bracket - 2) == "<"
    opening = outline.partner.get(bracket - 2 - comes, -1)
    sides = [_name(outline, opening), _name(outline, after + 1 + leaves)]
    if leaves == comes or "" in sides:
        return ()
    source, target = sides if leaves else sides[::-1]
    return f"{source}.id", f"{target}.id", f"{outline.tokens[bracket + 1].text}.relation_type"


def _name(outline: BracketMatchedTokens, opening: int) -> str:
    """Return the name of the node that opens here; empty if it has none."""
    is_named = outline.symbol(opening) == "(" and outline.symbol(opening + 2) == ":"
    return outline.tokens[opening + 1].text if is_named else ""


def _is_entity(outline: BracketMatchedTokens, index: int) -> bool:
    return outline.tokens[index].text == "Entity" and outline.symbol(index + 1) in {")", "{"}


def _identifying_columns(elements: Iterable[WrittenNodeOrEdge]) -> list[str]:
    return [column for element in elements for column in element.key_columns]


def _read_statement(
    statement: GuardedCypherStatement, outline: BracketMatchedTokens, end: int, how: str, columns: Iterable[str]
) -> GuardedCypherStatement:
    named = (f"{column} AS column_{at}" for at, column in enumerate(columns))
    text = f"{statement.text[: outline.tokens[end].start]}RETURN {how} {', '.join(named)}"
    return msgspec.structs.replace(statement, text=text, updates=False)
