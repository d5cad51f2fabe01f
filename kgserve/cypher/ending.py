"""A statement that changes rows only at its end, as a question and what is then done to each row of its answer.

Such a statement needs no file that it may write to: what comes before its end is asked like any other question, and its
DELETE or SET is carried out by kgserve. A statement of another kind has no ending here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from kgserve.cypher.functions import AGGREGATES
from kgserve.cypher.guard import Statement
from kgserve.cypher.lexer import tokens
from kgserve.cypher.outline import Outline
from kgserve.cypher.words import CLAUSES, KEYWORDS, WRITES

_LATER = CLAUSES | WRITES | {"ORDER", "SKIP", "LIMIT", "WHERE", "ON"}
_ALIAS = 2
_TEXT = "STRING"
SETTABLE = {
    "type": _TEXT,
    "content": _TEXT,
    "attributes": _TEXT,
    "summary": _TEXT,
    "created_by": _TEXT,
    "weight": "DOUBLE",
}
"""Properties that are set to values of one type, which JSON carries as they are."""
_OF_NODES = SETTABLE.keys() - {"weight"}
_OF_EDGES = frozenset({"attributes", "created_by", "weight"})


class Element(msgspec.Struct, frozen=True):
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
        return ("REL",) if self.told == (self.name,) else (_TEXT,) * len(self.told)


class Assignment(msgspec.Struct, frozen=True):
    """A property of an element, and the column of the answer that has the value it is given."""

    element: Element
    property: str
    column: int


class Returned(msgspec.Struct, frozen=True):
    """A column that the caller gets, and the one of the answer that it is; an ``element`` as it was before the end."""

    name: str
    column: int
    element: Element | None = None


class Ending(msgspec.Struct, frozen=True):
    """What is done in the end: the ``elements`` are deleted, with all their edges if ``detach`` is said, or set."""

    question: Statement
    elements: tuple[Element, ...]
    assignments: tuple[Assignment, ...] = ()
    returned: tuple[Returned, ...] = ()
    detach: bool = False


def ending(statement: Statement) -> Ending | None:
    """The ending of a statement that writes, if it has one that is understood."""
    outline = Outline(statement.text, tokens(statement.text))
    writes = [index for index, word in enumerate(outline.words) if word in WRITES]
    first = writes[0]
    if outline.opener[first] != -1 or "UNION" in outline.words or first == 0:
        return None
    words = [outline.word(index) for index in writes]
    if words in (["DELETE"], ["DETACH", "DELETE"]):
        return _deletion(statement, outline, writes)
    return _setting(statement, outline, first) if words == ["SET"] else None


def _deletion(statement: Statement, outline: Outline, writes: list[int]) -> Ending | None:
    names: list[str] = []
    for item in _items(outline, writes[-1] + 1, len(outline)):
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
    items = [*_items(outline, place + 1, end)]
    for item in items:
        if not _assigns(outline, item, statement):
            return None
        found[outline.tokens[item[0]].text, outline.tokens[item[2]].text] = f"({_text(outline, item[4:])})"
    assigned = {property_ for _, property_ in found}
    # One after the other: a later one would see what an earlier one has set.
    if (
        not assigned <= SETTABLE.keys()
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
    for item in _items(outline, end + 1, len(outline)) if end < len(outline) else ():
        rendered = _rendered(outline, item, found, by_name)
        if rendered is None:
            return None
        name, text, element = rendered
        returned.append(Returned(name, len(columns), element))
        columns.append(text)
    question = _question(statement, outline, place, "", columns)
    return Ending(question, elements, assignments=assignments, returned=tuple(returned))


def _rendered(
    outline: Outline, item: range, values: dict[tuple[str, str], str], elements: dict[str, Element]
) -> tuple[str, str, Element | None] | None:
    """Name and text of what is returned, as it is before the end; None for what cannot be told then."""
    is_named = len(item) > _ALIAS and outline.word(item[-_ALIAS]) == "AS"
    body = item[:-_ALIAS] if is_named else item
    calls = any(outline.calls(index) in AGGREGATES for index in body)
    if not body or calls or any(outline.word(index) in _LATER | {"AS", "DISTINCT", "COUNT"} for index in body):
        return None
    text = _text(outline, body)
    name = outline.tokens[item[-1]].text if is_named else text
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
        elif token.kind in {"word", "quoted"} and not (outline.words[index] in KEYWORDS or outline.calls(index + 1)):
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
    aggregates = any(outline.calls(index) in AGGREGATES for index in value)
    named = (outline.tokens[index].text[1:] for index in value if outline.tokens[index].kind == "parameter")
    # Nulls of no type are told apart by the engine alone.
    untyped = any(statement.parameters.get(name) is None for name in named)
    return not (aggregates or untyped) and all(outline.word(index) not in _LATER | {"NULL"} for index in value)


def _has(element: Element, property_: str) -> bool:
    return property_ in (_OF_NODES if element.is_node else _OF_EDGES)


def _reads_any(outline: Outline, items: list[range], properties: set[str]) -> bool:
    """Whether a value could depend on one of these: read it, or be made of a whole node, edge or path."""
    values = (index for item in items for index in item[4:])
    return any(_reads(outline, index, properties) for index in values)


def _reads(outline: Outline, index: int, properties: set[str]) -> bool:
    token = outline.tokens[index]
    if token.kind not in {"word", "quoted"} or outline.word(index) in KEYWORDS:
        return False
    if outline.symbol(index - 1) == ".":
        return token.text.strip("`").lower() in properties
    is_type = outline.word(index - 1) == "AS" and outline.bracket(index) == "("
    return outline.symbol(index + 1) not in {".", "("} and not is_type


def _items(outline: Outline, start: int, end: int) -> Iterator[range]:
    """What stands between commas, from a token to before another."""
    for index in range(start, end + 1):
        if index == end or (outline.symbol(index) == "," and outline.opener[index] == -1):
            yield range(start, index)
            start = index + 1


def _elements(outline: Outline, names: dict[str, None], end: int) -> tuple[Element, ...]:
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
        elif outline.symbol(index - 1) == "[" and outline.symbol(index + 1) in {":", "]", "{"}:
            # One that is met twice is told by itself, and one whose ends may be others after a WITH.
            by_ends = name not in edges and not _is_passed_on(outline, index, end)
            edges[name] = (by_ends and _ends(outline, index - 1)) or (name,)
    if any((name in nodes) == (name in edges) or name.lower() in others for name in names):
        return ()
    found: list[Element] = []
    for name in names:
        told = edges.get(name, (f"{name}.id",))
        told = told if others.isdisjoint(each.partition(".")[0].lower() for each in told) else (name,)
        found.append(Element(name, name in nodes, told, sum(len(each.told) for each in found)))
    return tuple(found)


def _is_passed_on(outline: Outline, start: int, end: int) -> bool:
    """Whether a WITH follows, other than that of STARTS WITH."""
    places = (index for index in range(start, end) if outline.word(index) == "WITH")
    return any(outline.word(index - 1) not in {"STARTS", "ENDS"} for index in places)


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


def _told(elements: Iterable[Element]) -> list[str]:
    return [told for element in elements for told in element.told]


def _question(statement: Statement, outline: Outline, end: int, how: str, columns: Iterable[str]) -> Statement:
    named = (f"{column} AS column_{at}" for at, column in enumerate(columns))
    text = f"{statement.text[: outline.tokens[end].start]}RETURN {how} {', '.join(named)}"
    return msgspec.structs.replace(statement, text=text, updates=False)
