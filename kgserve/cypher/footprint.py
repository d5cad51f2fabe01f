"""Which rows a statement may meet, by its words alone: what others write is checked against it, not against the store.

A node can be met only where a pattern of the statement takes it, so one that fails what the pattern asks of a text
property cannot have been met, nor can it be if it is new. What is not understood here counts as meeting everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import msgspec

from kgserve.cypher.guard import Statement
from kgserve.cypher.lexer import tokens
from kgserve.cypher.outline import Outline

_TEXTS = frozenset({"id", "type", "content"})
_OPAQUE = frozenset({"OPTIONAL", "UNION", "CALL", "EXISTS", "SHORTEST", "WSHORTEST", "TRAIL", "ACYCLIC"})
_PATTERNS = frozenset({"MATCH", "MERGE", "CREATE"})
_ENDS = frozenset(
    {"MATCH", "MERGE", "CREATE", "WITH", "RETURN", "UNWIND", "SET", "DELETE", "DETACH", "ON", "ORDER", "SKIP", "LIMIT"}
)
_COMPARED: dict[str, Callable[[str, Any], bool]] = {
    "=": lambda own, value: own == value,
    "<": lambda own, value: own < value,
    ">": lambda own, value: own > value,
    "<=": lambda own, value: own <= value,
    ">=": lambda own, value: own >= value,
    "STARTS": lambda own, value: own.startswith(value),
    "ENDS": lambda own, value: own.endswith(value),
    "CONTAINS": lambda own, value: value in own,
}


EdgeKey = tuple[str, str, str]


class Node(Protocol):
    """A node, by the properties that are looked at."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    @property
    def type(self) -> str:
        """Its type."""
        ...

    @property
    def content(self) -> str:
        """Its content."""
        ...


class Condition(msgspec.Struct, frozen=True):
    """What a pattern asks of a property that is a text."""

    property: str
    sign: str
    value: str

    def holds(self, row: Node) -> bool:
        """Whether a node fulfils it."""
        return _COMPARED[self.sign](getattr(row, self.property), self.value)


class Footprint:
    """What a statement's patterns ask of nodes: by name or, where they have none, by place.

    What it makes is not in here: whoever writes it has to see whether others have made the same.
    """

    def __init__(self, statement: Statement) -> None:
        self._outline = Outline(statement.text, tokens(statement.text))
        self._parameters = statement.parameters
        self._conditions: dict[str, list[Condition]] = {}
        # Nodes that stand alone in a pattern, and the ends of each relation.
        self._lonely: set[str] = set()
        self._pairs: set[tuple[str, str]] = set()
        self._paired: set[str] = set()
        self.meets_all = not _OPAQUE.isdisjoint(self._outline.words)
        # What has passed a WITH may be something else by that name, and has been counted or written as it was.
        self._settled: set[str] = set()
        clause = ""
        for index, word in enumerate(self._outline.words):
            if word == "WHERE" or (word in _ENDS and self._is_clause(index, word)):
                clause = word
            if word in {"MATCH", "MERGE"}:
                self._read(index)
            elif clause == "WITH":
                self._settled |= self._conditions.keys()
            if word == "AS" and self._outline.tokens[index + 1].text in self._conditions:
                self.meets_all = True
            self.meets_all |= clause not in _PATTERNS and self._links(index)

    def meets_node(self, row: Node, *, new: bool) -> bool:
        """Whether a state of a node may be met. One that is ``new`` has a relation only by an edge that is new, too."""
        names = self._lonely if new else self._conditions
        return self.meets_all or any(self._takes(name, row) for name in names)

    def meets_edge(self, key: EdgeKey, node: Callable[[str], Node | None]) -> bool:
        """Whether an edge may be met; ``node`` looks its ends up."""
        if self.meets_all or not self._pairs:
            return self.meets_all
        ends = node(key[0]), node(key[1])
        return any(self._may_be(ends, pair) or self._may_be(ends[::-1], pair) for pair in self._pairs)

    def _may_be(self, ends: tuple[Node | None, ...], pair: tuple[str, str]) -> bool:
        return all(row is None or self._takes(name, row) for row, name in zip(ends, pair, strict=True))

    def _takes(self, name: str, row: Node) -> bool:
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
        while index < len(outline) and outline.word(index) not in _ENDS | {"WHERE"}:
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
        named = outline.tokens[opening + 1].kind in {"word", "quoted"} and closing > opening + 1
        name = outline.tokens[opening + 1].text if named else f"({opening}"
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
            if sign in _COMPARED:
                self._add(conditions, outline.tokens[at + 2].text, sign, value, {"AND"})

    def _ends(self, index: int) -> bool:
        return self._outline.opener[index] == -1 and any(self._is_clause(index, word) for word in _ENDS)

    def _is_clause(self, index: int, word: str) -> bool:
        """Whether a word begins a clause, and is none of STARTS WITH."""
        found = self._outline.word(index) == word
        return found and not (word == "WITH" and self._outline.word(index - 1) in {"STARTS", "ENDS"})

    def _add(self, conditions: list[Condition], name: str, sign: str, place: int, ends: set[str]) -> None:
        """Take in a condition whose value is one text, alone."""
        outline = self._outline
        after = outline.symbol(place + 1) or outline.word(place + 1)
        if name not in _TEXTS or place >= len(outline) or (place + 1 < len(outline) and after not in ends | _ENDS):
            return
        value = _text(outline, place, self._parameters)
        if value is not None:
            conditions.append(Condition(name, sign, value))


def _text(outline: Outline, index: int, parameters: Mapping[str, Any]) -> str | None:
    token = outline.tokens[index]
    if token.kind == "parameter":
        value = parameters.get(token.text[1:])
        return value if isinstance(value, str) else None
    return token.text[1:-1] if token.kind == "string" and "\\" not in token.text else None


def meets_any(
    footprint: Footprint,
    before: Callable[[str], Node | None],
    new: Iterable[Node],
    changed: Iterable[Node | str],
    edges: Iterable[EdgeKey],
) -> bool:
    """Whether a statement may meet any of these: ``new`` nodes, others that are other now or gone, and edges.

    ``before`` looks a node up as it was when the statement looked.
    """
    made = {row.id: row for row in new}
    if footprint.meets_all:
        return True
    if any(footprint.meets_node(row, new=True) for row in made.values()):
        return True
    if any(footprint.meets_node(row, new=False) for row in _states(changed, before)):
        return True
    return any(footprint.meets_edge(key, lambda node_id: made.get(node_id) or before(node_id)) for key in edges)


def _states(changed: Iterable[Node | str], before: Callable[[str], Node | None]) -> Iterator[Node]:
    for each in changed:
        if not isinstance(each, str):
            yield each
        former = before(each if isinstance(each, str) else each.id)
        if former is not None:
            yield former
