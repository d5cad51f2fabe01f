"""What the words of a statement that writes say, before it runs: its reach, its footprint and its ending.

The *reach* is what it can change at most: so little has to be looked at after it has run. The *footprint* is which rows
it may meet: what others write is held against that, not against the store. The *ending* is what it changes, if it does
so only in its last clause: what comes before is then asked like any question, and DELETE or SET is done by kgserve.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from kgserve.cypher.guard import Statement
from kgserve.cypher.lexer import AGGREGATE_FUNCTIONS, CLAUSE_ENDS, KEYWORDS, WRITE_CLAUSES, Outline, tokens
from kgserve.storage.model.rows import EdgeKey, NodeRow

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
"""Properties that are set to values of one type, which JSON carries as they are."""
_SETTABLE_NODE_PROPERTIES = SETTABLE_PROPERTIES.keys() - {"weight"}
_SETTABLE_EDGE_PROPERTIES = frozenset({"attributes", "created_by", "weight"})


class WriteScope(msgspec.Struct, frozen=True):
    """What a statement may do: make rows, take rows away, and set the ``assigned`` of the ``names`` in it; None is any.

    Without ``relations`` it meets none, and changes none.
    """

    creates: bool = True
    deletes: bool = True
    sets: bool = True
    relations: bool = True
    names: frozenset[str] | None = None
    assigned: frozenset[str] | None = None

    def may_name(self, name: str) -> bool:
        """Whether a property is named."""
        return self.names is None or name in self.names

    def may_set(self, name: str) -> bool:
        """Whether rows that stay may have another value of a property."""
        return self.sets and self.may_name(name) and (self.assigned is None or name in self.assigned)


def reach(statement: Statement) -> WriteScope:
    """What a statement may do. The engine sets a property only by its name, and makes rows without a version."""
    found = tokens(statement.text)
    words = {token.text.upper() for token in found if token.kind in {"word", "symbol"}}
    # As SET has it, and comparisons, too.
    dotted = zip(found, found[1:], found[2:], strict=False)
    assigned = frozenset(
        name.text.strip("`").lower() for dot, name, sign in dotted if dot.text == "." and sign.text == "="
    )
    return WriteScope(
        creates=not words.isdisjoint({"CREATE", "MERGE"}),
        deletes="DELETE" in words,
        sets="SET" in words,
        relations=not words.isdisjoint({"-", "DETACH"}),
        names=statement.words,
        assigned=assigned,
    )


class TextCondition(msgspec.Struct, frozen=True):
    """What a pattern asks of a property that is a text: a node that fails it cannot have been met."""

    property: str
    sign: str
    value: str

    def holds(self, row: NodeRow) -> bool:
        """Whether a node fulfils it."""
        return _COMPARISON_FUNCTIONS[self.sign](getattr(row, self.property), self.value)


class Footprint:
    """What a statement's patterns ask of nodes: by name or, where they have none, by place.

    What is not understood counts as meeting everything. What it makes is not in here: whoever writes it has to see
    whether others have made the same.
    """

    def __init__(self, statement: Statement) -> None:
        self._outline = Outline(statement.text, tokens(statement.text))
        self._parameters = statement.parameters
        self._conditions: dict[str, list[TextCondition]] = {}
        # Nodes that stand alone in a pattern, and the ends of each relation.
        self._lonely: set[str] = set()
        self._pairs: set[tuple[str, str]] = set()
        self._paired: set[str] = set()
        self.meets_all = not _UNTRACKED_WORDS.isdisjoint(self._outline.words)
        # What has passed a WITH may be something else by that name, and has been counted or written as it was.
        self._settled: set[str] = set()
        clause = ""
        for index, word in enumerate(self._outline.words):
            if word in CLAUSE_ENDS and self._outline.is_clause(index):
                clause = word
            if word in {"MATCH", "MERGE"}:
                self._read(index)
            elif clause == "WITH":
                self._settled |= self._conditions.keys()
            if word == "AS" and self._outline.tokens[index + 1].text in self._conditions:
                self.meets_all = True
            self.meets_all |= clause not in _PATTERN_CLAUSES and self._links(index)

    def meets_node(self, row: NodeRow, *, new: bool) -> bool:
        """Whether a state of a node may be met. One that is ``new`` has a relation only by an edge that is new, too."""
        names = self._lonely if new else self._conditions
        return self.meets_all or any(self._takes(name, row) for name in names)

    def meets_edge(self, key: EdgeKey, node: Callable[[str], NodeRow | None]) -> bool:
        """Whether an edge may be met; ``node`` looks its ends up."""
        if self.meets_all or not self._pairs:
            return self.meets_all
        ends = node(key[0]), node(key[1])
        return any(self._may_be(ends, pair) or self._may_be(ends[::-1], pair) for pair in self._pairs)

    def _may_be(self, ends: tuple[NodeRow | None, ...], pair: tuple[str, str]) -> bool:
        return all(row is None or self._takes(name, row) for row, name in zip(ends, pair, strict=True))

    def _takes(self, name: str, row: NodeRow) -> bool:
        return all(condition.holds(row) for condition in self._conditions[name])

    def _links(self, index: int) -> bool:
        """Whether a pattern goes on from a node there: one that is asked about may be anywhere in an expression."""
        outline = self._outline
        begins = outline.symbol(index) == ")" and outline.symbol(index + 1) in {"-", "<"}
        return begins and (outline.symbol(index + 2) in {"-", "["})

    def _read(self, match: int) -> None:
        """Take in one MATCH or MERGE, with its WHERE."""
        outline = self._outline
        self.meets_all |= outline.opener[match] != -1
        if self.meets_all:
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
                    # A MERGE does not leave out a node that has no edge.
                    self._paired.update((before, name) if is_match else ())
                before, linked = name, False
                index = outline.partner[index]
            elif symbol == "[":
                self.meets_all |= any(outline.symbol(at) == "*" for at in range(index, outline.partner[index]))
                index = outline.partner[index]
            elif symbol == ",":
                before = None
            linked |= symbol in {"-", "[", "<", ">"}
            index += 1
        self._lonely = self._conditions.keys() - self._paired
        if outline.word(index) == "WHERE":
            self._where(index + 1)

    def _node(self, opening: int) -> str:
        """The name of a node, whose own conditions are taken in."""
        outline, closing = self._outline, self._outline.partner[opening]
        name = outline.tokens[opening + 1].text if outline.name(opening + 1) else f"({opening}"
        self.meets_all |= name in self._settled
        conditions = self._conditions.setdefault(name, [])
        for index in range(opening + 1, closing):
            braces = outline.opener[index]
            if outline.symbol(index) == ":" and outline.symbol(braces) == "{" and outline.opener[braces] == opening:
                self._add(conditions, outline.tokens[index - 1].text, "=", index + 1, {",", "}"})
        return name

    def _where(self, start: int) -> None:
        """Take in what stands between ANDs alone."""
        outline = self._outline
        end = next((at for at in range(start, len(outline)) if self._ends(at)), len(outline))
        own = [at for at in range(start, end) if outline.opener[at] == -1]
        if any(outline.word(at) in {"OR", "XOR", "CASE"} for at in own):
            return
        begins = [start, *(at + 1 for at in own if outline.word(at) == "AND")]
        for at in begins:
            name = outline.tokens[at].text if at + 2 < len(outline) else ""
            conditions = self._conditions.get(name)
            if conditions is None or name in self._settled or outline.symbol(at + 1) != ".":
                continue
            sign = outline.symbol(at + 3) or outline.word(at + 3)
            value = at + 4 + (sign in {"STARTS", "ENDS"})
            if sign in _COMPARISON_FUNCTIONS:
                self._add(conditions, outline.tokens[at + 2].text, sign, value, {"AND"})

    def _ends(self, index: int) -> bool:
        outline = self._outline
        return outline.opener[index] == -1 and outline.word(index) in CLAUSE_ENDS and outline.is_clause(index)

    def _add(self, conditions: list[TextCondition], name: str, sign: str, place: int, ends: set[str]) -> None:
        """Take in a condition whose value is one text, alone."""
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
            conditions.append(TextCondition(name, sign, value))


def _text_value(outline: Outline, index: int, parameters: Mapping[str, Any]) -> str | None:
    token = outline.tokens[index]
    if token.kind == "parameter":
        value = parameters.get(token.text[1:])
        return value if isinstance(value, str) else None
    return token.text[1:-1] if token.kind == "string" and "\\" not in token.text else None


def meets_any(
    footprint: Footprint,
    before: Callable[[str], NodeRow | None],
    new: Iterable[NodeRow],
    changed: Iterable[NodeRow | str],
    edges: Iterable[EdgeKey],
) -> bool:
    """Whether a statement may meet any of these: ``new`` nodes, others that are other now or gone, and edges.

    ``before`` looks a node up as it was when the statement looked.
    """
    made = {row.id: row for row in new}
    return (
        footprint.meets_all
        or any(footprint.meets_node(row, new=True) for row in made.values())
        or any(footprint.meets_node(row, new=False) for row in _states(changed, before))
        or any(footprint.meets_edge(key, lambda node_id: made.get(node_id) or before(node_id)) for key in edges)
    )


def _states(changed: Iterable[NodeRow | str], before: Callable[[str], NodeRow | None]) -> Iterator[NodeRow]:
    for each in changed:
        if not isinstance(each, str):
            yield each
        former = before(each if isinstance(each, str) else each.id)
        if former is not None:
            yield former


class ChangedElement(msgspec.Struct, frozen=True):
    """A node or an edge that is changed, and where the answer tells which.

    For a node ``told`` is its id; for an edge the ids of its ends and its relation type, or where a pattern does not
    name both, the edge itself. ``column`` is the first of them in the answer.
    """

    name: str
    is_node: bool
    told: tuple[str, ...]
    column: int = 0

    @property
    def types(self) -> tuple[str, ...]:
        """The types that its columns have to have."""
        return ("REL",) if self.told == (self.name,) else (_STRING_TYPE,) * len(self.told)


class Assignment(msgspec.Struct, frozen=True):
    """A property of an element, and the column of the answer that has the value it is given."""

    element: ChangedElement
    property: str
    column: int


class Returned(msgspec.Struct, frozen=True):
    """A column that the caller gets, and the one of the answer that it is; an ``element`` as it was before the end."""

    name: str
    column: int
    element: ChangedElement | None = None


class Ending(msgspec.Struct, frozen=True):
    """What is done in the end: the ``elements`` are deleted, with all their edges if ``detach`` is said, or set."""

    question: Statement
    elements: tuple[ChangedElement, ...]
    assignments: tuple[Assignment, ...] = ()
    returned: tuple[Returned, ...] = ()
    detach: bool = False


def ending(statement: Statement) -> Ending | None:
    """The ending of a statement that writes, if it has one that is understood."""
    outline = Outline(statement.text, tokens(statement.text))
    writes = [index for index, word in enumerate(outline.words) if word in WRITE_CLAUSES]
    first = writes[0]
    if outline.opener[first] != -1 or "UNION" in outline.words or first == 0:
        return None
    words = [outline.word(index) for index in writes]
    if words in (["DELETE"], ["DETACH", "DELETE"]):
        return _deletion(statement, outline, writes)
    return _setting(statement, outline, first) if words == ["SET"] else None


def _deletion(statement: Statement, outline: Outline, writes: list[int]) -> Ending | None:
    names: list[str] = []
    for item in outline.items(writes[-1] + 1, len(outline)):
        if len(item) != 1 or outline.tokens[item[0]].kind != "word":
            return None
        names.append(outline.tokens[item[0]].text)
    elements = _elements(outline, dict.fromkeys(names), writes[0])
    if not elements:
        return None
    question = _question(statement, outline, writes[0], "DISTINCT", _told(elements))
    return Ending(question, elements, detach=len(writes) > 1)


def _setting(statement: Statement, outline: Outline, place: int) -> Ending | None:
    end = next((at for at in range(place, len(outline)) if outline.word(at) == "RETURN"), len(outline))
    found: dict[tuple[str, str], str] = {}
    items = outline.items(place + 1, end)
    for item in items:
        if not _assigns(outline, item, statement):
            return None
        found[outline.tokens[item[0]].text, outline.tokens[item[2]].text] = f"({_text(outline, item[4:])})"
    assigned = {property_ for _, property_ in found}
    # One after the other: a later one would see what an earlier one has set.
    if (
        not assigned <= SETTABLE_PROPERTIES.keys()
        or len(found) < len(items)
        or (len(found) > 1 and _reads_any(outline, items, assigned))
    ):
        return None
    elements = _elements(outline, dict.fromkeys(name for name, _ in found), place)
    by_name = {element.name: element for element in elements}
    if not all(name in by_name and _has(by_name[name], property_) for name, property_ in found):
        return None
    told = _told(elements)
    assignments = tuple(
        Assignment(by_name[name], property_, len(told) + at) for at, (name, property_) in enumerate(found)
    )
    if end < len(outline) and "OPTIONAL" in outline.words:
        return None  # what is set of nothing is nothing
    columns, returned = [*told, *found.values()], list[Returned]()
    for item in outline.items(end + 1, len(outline)) if end < len(outline) else ():
        rendered = _rendered(outline, item, found, by_name)
        if rendered is None:
            return None
        name, text, element = rendered
        returned.append(Returned(name, len(columns), element))
        columns.append(text)
    question = _question(statement, outline, place, "", columns)
    return Ending(question, elements, assignments=assignments, returned=tuple(returned))


def _rendered(
    outline: Outline, item: range, values: dict[tuple[str, str], str], elements: dict[str, ChangedElement]
) -> tuple[str, str, ChangedElement | None] | None:
    """Name and text of what is returned, as it is before the end; None for what cannot be told then."""
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
            is_other = (token.text, property_) not in values
            if is_other and property_.strip("`").lower() in {each for _, each in values}:
                return None
            parts.append(values.get((token.text, property_), f"{token.text}.{property_}"))
        elif outline.symbol(index) == "." or outline.symbol(index - 1) == ".":
            continue
        elif outline.is_variable(index):
            return None
        else:
            parts.append(token.text)
    return name, " ".join(parts), None


def _text(outline: Outline, item: range) -> str:
    return outline.text[outline.tokens[item[0]].start : outline.tokens[item[-1]].end]


def _assigns(outline: Outline, item: range, statement: Statement) -> bool:
    """Whether this is ``name.property = value``, with a value that means the same in a RETURN."""
    shape = [outline.symbol(index) for index in item[:4]]
    if len(item) <= len(shape) or shape != ["", ".", "", "="] or outline.tokens[item[0]].kind != "word":
        return False
    value = item[4:]
    named = (outline.tokens[index].text[1:] for index in value if outline.tokens[index].kind == "parameter")
    # Nulls of no type are told apart by the engine alone.
    untyped = any(statement.parameters.get(name) is None for name in named)
    return not untyped and _is_value(outline, value, {"NULL"})


def _is_value(outline: Outline, item: range, words: set[str]) -> bool:
    """Whether no clause follows in it, no aggregate is called, and none of these words stands in it."""
    aggregates = any(outline.calls(index) in AGGREGATE_FUNCTIONS for index in item)
    return not aggregates and all(outline.word(index) not in CLAUSE_ENDS | words for index in item)


def _has(element: ChangedElement, property_: str) -> bool:
    return property_ in (_SETTABLE_NODE_PROPERTIES if element.is_node else _SETTABLE_EDGE_PROPERTIES)


def _reads_any(outline: Outline, items: list[range], properties: set[str]) -> bool:
    """Whether a value could depend on one of these: read it, or be made of a whole node, edge or path."""
    values = (index for item in items for index in item[4:])
    return any(_reads(outline, index, properties) for index in values)


def _reads(outline: Outline, index: int, properties: set[str]) -> bool:
    if not outline.name(index) or outline.word(index) in KEYWORDS:
        return False
    if outline.symbol(index - 1) == ".":
        return outline.name(index) in properties
    is_type = outline.word(index - 1) == "AS" and outline.bracket(index) == "("
    return outline.symbol(index + 1) not in {".", "("} and not is_type


def _elements(outline: Outline, names: dict[str, None], end: int) -> tuple[ChangedElement, ...]:
    """The nodes and edges of the patterns before a token that have these names; none if one of them is something else.

    A name that is given to anything else as well, or to a node of another table, is none of theirs.
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
            # One that is met twice is told by itself, and one whose ends may be others after a WITH.
            is_passed_on = any(outline.word(at) == "WITH" and outline.is_clause(at) for at in range(index, end))
            by_ends = name not in edges and not is_passed_on
            edges[name] = (by_ends and _ends(outline, index - 1)) or (name,)
    if any((name in nodes) == (name in edges) or name.lower() in others for name in names):
        return ()
    found: list[ChangedElement] = []
    for name in names:
        told = edges.get(name, (f"{name}.id",))
        told = told if others.isdisjoint(each.partition(".")[0].lower() for each in told) else (name,)
        found.append(ChangedElement(name, name in nodes, told, sum(len(each.told) for each in found)))
    return tuple(found)


def _ends(outline: Outline, bracket: int) -> tuple[str, ...]:
    """What tells the relation of a bracket by its ends, in its direction; nothing where one has no name."""
    after = outline.partner[bracket] + 1
    leaves, comes = outline.symbol(after + 1) == ">", outline.symbol(bracket - 2) == "<"
    opening = outline.partner.get(bracket - 2 - comes, -1)
    sides = [_name(outline, opening), _name(outline, after + 1 + leaves)]
    if leaves == comes or "" in sides:
        return ()
    source, target = sides if leaves else sides[::-1]
    return f"{source}.id", f"{target}.id", f"{outline.tokens[bracket + 1].text}.relation_type"


def _name(outline: Outline, opening: int) -> str:
    """The name of the node whose parenthesis opens there, empty when it has none."""
    is_named = outline.symbol(opening) == "(" and outline.symbol(opening + 2) == ":"
    return outline.tokens[opening + 1].text if is_named else ""


def _is_entity(outline: Outline, index: int) -> bool:
    return outline.tokens[index].text == "Entity" and outline.symbol(index + 1) in {")", "{"}


def _told(elements: Iterable[ChangedElement]) -> list[str]:
    return [told for element in elements for told in element.told]


def _question(statement: Statement, outline: Outline, end: int, how: str, columns: Iterable[str]) -> Statement:
    named = (f"{column} AS column_{at}" for at, column in enumerate(columns))
    text = f"{statement.text[: outline.tokens[end].start]}RETURN {how} {', '.join(named)}"
    return msgspec.structs.replace(statement, text=text, updates=False)
