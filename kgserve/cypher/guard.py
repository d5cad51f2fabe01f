"""The guard that every Cypher text passes before the engine sees a byte of it.

Kùzu reads files, changes settings and leaves transactions when its text says so, and hostile text crashes it. What
passes here is one statement, of clauses and functions that are listed, of a size that the engine is known to bear.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from math import isfinite
from typing import Any

import msgspec

from kgserve.cypher import limits
from kgserve.cypher.analysis import analyse
from kgserve.cypher.edits import Anchor, Edits, place
from kgserve.cypher.lexer import (
    BUILDER_FUNCTIONS,
    CLAUSE_ENDS,
    FIRST_READING_WORDS,
    FORBIDDEN_WORDS,
    KEYWORDS,
    WRITE_CLAUSES,
    Outline,
    Token,
    invalid,
    scan,
)
from kgserve.cypher.limits import CallChecker
from kgserve.cypher.strings import decode_string, encode_string
from kgserve.cypher.types import MAX_EXACT_FLOAT
from kgserve.errors import FieldError, InvalidInput

MAX_STATEMENT_BYTES = 64 << 10
MAX_STATEMENT_TOKENS = 5_000
MAX_COLLECTED_VALUES = 50_000
"""Single values in ranges and parameters, where functions may multiply them."""
COMMIT_TABLE = "STORECOMMIT"
DEFAULT_NODE_LABEL = ":Entity"
DEFAULT_RELATION_LABEL = ":RELATES_TO"
ELSEWHERE, LINKS = "elsewhere", "links_to"
"""What links lead to, and links, as the engine takes names."""
MAX_PARAMETER_BYTES = 1 << 20
MAX_PARAMETER_DEPTH = 32
MAX_CACHED_STATEMENTS = 256
MAX_CACHED_STATEMENT_CHARS = 4 << 10
"""Examining takes longer than many a statement: so many texts that were let through are remembered, and how long."""
_SCALAR_CLASSES = frozenset({bool, int, float, str})
_INT64_LIMIT = 1 << 63


class Statement(msgspec.Struct, frozen=True):
    """A statement that may be run: ``text`` for the engine, and the values of just the parameters that it names.

    ``text`` has no comments and no final ``;``, and says what `analysis.analyse` makes of what was typed; ``anchors``
    lead back to that. ``updates`` says whether it writes, ``explains`` whether it only asks for a plan,
    ``names_links`` whether it asks for links. ``assumptions`` must hold of the store for the answer to be right.
    """

    text: str
    updates: bool
    explains: bool
    parameters: dict[str, Any]
    anchors: tuple[Anchor, ...] = ()
    names_links: bool = False
    assumptions: frozenset[str] = frozenset()

    @property
    def words(self) -> frozenset[str]:
        """The names in it, of properties, variables and functions alike, in lower case; texts may be names, too."""
        return _words(self.text) if len(self.text) <= MAX_CACHED_STATEMENT_CHARS else _words.__wrapped__(self.text)

    @property
    def properties(self) -> frozenset[str]:
        """The names that stand behind a dot, or in front of a colon as in a map, in lower case."""
        return (
            _properties(self.text)
            if len(self.text) <= MAX_CACHED_STATEMENT_CHARS
            else _properties.__wrapped__(self.text)
        )

    @property
    def shape(self) -> str:
        """Its clauses and operators, without a name, value or text of the caller's: what a log may hold."""
        return " ".join(word for each in scan(self.text) if (word := each.text.upper()) in KEYWORDS)

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column, from 1, in the caller's text, of a character of ``text``."""
        return place(self.text, self.anchors, offset)


_Key = tuple[str, bool, tuple[tuple[str, object], ...]]
_remembered: dict[_Key, Statement] = {}


def examine(text: str, parameters: Mapping[str, Any], *, writable: bool) -> Statement:
    """Let a statement through, or say what is wrong with it and where.

    Parameters that it does not name are left out. Raises InvalidInput for what cannot be run, and Forbidden for what
    may not be: files, settings, transactions, data definition, and writes unless ``writable``.
    """
    key = _key(text, parameters, writable=writable)
    known = _remembered.get(key) if key is not None else None
    if known is not None:
        given = values({name: parameters[name] for name in known.parameters})
        return msgspec.structs.replace(known, parameters=given)
    statement, by_value = _examined(text, parameters, writable=writable)
    if key is not None and not by_value:
        _remembered[key] = msgspec.structs.replace(statement, parameters=dict.fromkeys(statement.parameters))
        while len(_remembered) > MAX_CACHED_STATEMENTS:
            _remembered.pop(next(iter(_remembered)), None)
    return statement


def _key(text: str, parameters: Mapping[str, Any], *, writable: bool) -> _Key | None:
    """By what a text may be remembered: a single value counts for its type alone. None for what is not remembered."""
    kinds = tuple((name, _shape(parameters[name])) for name in sorted(parameters))
    small = len(text) <= MAX_CACHED_STATEMENT_CHARS and len(kinds) <= MAX_CACHED_STATEMENTS
    return (text, writable, kinds) if small and all(kind is not None for _, kind in kinds) else None


def _shape(value: Any) -> object:
    """What of a single value matters to the analysis; None for what may not be remembered."""
    kind = type(value)
    if kind is str:
        return (kind, value == "")
    if kind is int:
        return (kind, -MAX_EXACT_FLOAT <= value <= MAX_EXACT_FLOAT)
    return kind if kind in _SCALAR_CLASSES else None


def _examined(text: str, parameters: Mapping[str, Any], *, writable: bool) -> tuple[Statement, bool]:
    """As `examine`, and whether it was the value of a parameter, not just its type, that mattered."""
    _check_size(text)
    gathered = list(islice(scan(text), 2 * MAX_STATEMENT_TOKENS + 1))
    found = [token for token in gathered if token.kind not in {"space", "comment"}]
    if len(found) > MAX_STATEMENT_TOKENS or len(gathered) > 2 * MAX_STATEMENT_TOKENS:
        raise invalid(
            text,
            gathered[-1].start,
            f"a statement may have {MAX_STATEMENT_TOKENS} words and symbols; one too many stands",
        )
    outline = Outline(text, _one_statement(text, found))
    updates, explains = _check_words(outline, writable=writable)
    limits.check(outline)
    limits.check_answers(outline)
    given = values(_named(outline, parameters))
    calls = CallChecker(outline, given)
    calls.check()
    limits.check_nulls(outline, given)
    _check_growth(outline, given, calls.range_values)
    analysed = analyse(outline, given, _prepared(outline, given))
    rendered = analysed.edits.render()
    kept = {name: value for name, value in given.items() if value != []}
    links = bool(_labels(outline, ELSEWHERE, LINKS))
    statement = Statement(rendered.text, updates, explains, kept, rendered.anchors, links, analysed.assumptions)
    return statement, calls.met_values or analysed.depends_on_values


@lru_cache(MAX_CACHED_STATEMENTS)
def _words(text: str) -> frozenset[str]:
    kinds = ("word", "quoted", "string")
    return frozenset(each.text.strip("`'\"").lower() for each in scan(text) if each.kind in kinds)


@lru_cache(MAX_CACHED_STATEMENTS)
def _properties(text: str) -> frozenset[str]:
    found = list(scan(text))
    texts = ["", *(each.text for each in found), ""]
    places = (at for at, each in enumerate(found) if each.kind in {"word", "quoted"})
    named = (at for at in places if texts[at] == "." or texts[at + 2] == ":")
    return frozenset(found[at].text.strip("`").lower() for at in named)


def _check_size(text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise invalid(text, error.start, "half of a surrogate pair") from None
    if size > MAX_STATEMENT_BYTES:
        message = f"the statement has {size} bytes; {MAX_STATEMENT_BYTES} are the most"
        raise InvalidInput(message, (FieldError("query", message),))
    if "\0" in text:
        raise invalid(text, text.index("\0"), "a NUL character")


def _one_statement(text: str, found: list[Token]) -> list[Token]:
    ends = [index for index, token in enumerate(found) if token.kind == "symbol" and token.text == ";"]
    if ends and ends[0] < len(found) - 1:
        after = found[ends[0] + 1]
        raise invalid(text, after.start, "one statement at a time may be sent; another begins")
    kept = found[: ends[0]] if ends else found
    if not kept:
        raise invalid(text, 0, "a statement is missing")
    return kept


def _check_words(outline: Outline, *, writable: bool) -> tuple[bool, bool]:
    """Whether it updates, and whether it is to be explained."""
    for index, word in enumerate(outline.words):
        if word in FORBIDDEN_WORDS:
            name = outline.tokens[index].text
            raise outline.not_allowed(index, f"{name} may not be used; if it is a name, write `{name}` in back-ticks,")
    explains = outline.word(0) == "EXPLAIN"
    start = 1 + (outline.word(1) == "LOGICAL") if explains else 0
    if outline.word(start) not in FIRST_READING_WORDS | WRITE_CLAUSES:
        raise outline.at(
            start, f"a statement begins with one of {', '.join(sorted(FIRST_READING_WORDS))}; this one begins otherwise"
        )
    updates = False
    for index, word in enumerate(outline.words):
        if word in WRITE_CLAUSES:
            updates = True
            _check_write(outline, index, word, writable=writable)
    if updates and explains:
        raise outline.not_allowed(0, "only what reads can be explained; EXPLAIN stands")
    if updates:
        _check_own_table(outline)
        _check_no_limit(outline)
    return updates, explains


def _check_write(outline: Outline, index: int, word: str, *, writable: bool) -> None:
    if word == "DETACH" and outline.word(index + 1) != "DELETE":
        raise outline.not_allowed(index, "DETACH may only be followed by DELETE; something else follows")
    if word in {"CREATE", "MERGE"} and outline.word(index - 1) != "ON":
        is_path = outline.symbol(index + 2) == "=" and outline.name(index + 1)
        if outline.symbol(index + 1) != "(" and not is_path:
            raise outline.not_allowed(index, f"{word} may only be followed by a pattern; something else follows")
    if not writable:
        raise outline.not_allowed(index, f"{word} writes, and this statement may only read;")


def _check_no_limit(outline: Outline) -> None:
    """After a write the engine may take LIMIT and SKIP for a limit of what is written."""
    last = max(index for index, word in enumerate(outline.words) if word in WRITE_CLAUSES)
    for index, word in enumerate(outline.words[last:], last):
        if word in {"LIMIT", "SKIP"}:
            raise outline.at(index, f"{word} may not follow what writes; put it before, as WITH … {word}; it stands")


def _check_own_table(outline: Outline) -> None:
    for index, token in enumerate(outline.tokens):
        if outline.name(index).upper() == COMMIT_TABLE:
            raise outline.not_allowed(index, f"{token.text} is kgserve's own and may not be named in what writes;")
    for index in _labels(outline, ELSEWHERE, LINKS):
        raise outline.not_allowed(
            index,
            "links into other stores are read in Cypher; they are written as edges with to_graph, by inject or"
            f" put_subgraph, and deleted by their ids. In a statement that writes, {outline.tokens[index].text} stands",
        )


def _named(outline: Outline, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that the statement names. Raises InvalidInput when one has no value."""
    named: dict[str, Any] = {}
    missing: list[FieldError] = []
    for index, token in enumerate(outline.tokens):
        if token.kind != "parameter":
            continue
        name = token.text[1:]
        if name in parameters:
            named[name] = parameters[name]
        elif all(error.path != f"params.{name}" for error in missing):
            missing.append(
                FieldError(f"params.{name}", outline.at(index, f"no value is given for ${name}, used").message)
            )
    if missing:
        raise InvalidInput(missing[0].message, tuple(missing))
    return named


def _check_growth(outline: Outline, given: Mapping[str, Any], range_values: int) -> None:
    growth = limits.growth(outline)
    builds = any(outline.calls(index) in BUILDER_FUNCTIONS for index in range(len(outline)))
    held = range_values + sum(count(value) for value in given.values())
    if held * growth > MAX_COLLECTED_VALUES and (builds or growth > 1):
        message = f"{held} values in ranges and parameters are too many for what this statement puts together from them"
        raise InvalidInput(message, (FieldError("query", message),))


def _labels(outline: Outline, *wanted: str) -> list[int]:
    """Where labels of nodes and types of relations stand that are any of those wanted."""
    found: set[int] = set()
    for index in range(len(outline)):
        before, bracket = outline.symbol(index - 1), outline.bracket(index)
        if not outline.name(index) or bracket not in {"(", "["} or outline.is_subscript(outline.opener[index]):
            continue
        if before == ":" or (before == "|" and index - 2 in found):
            found.add(index)
    return sorted(index for index in found if outline.name(index) in wanted)


def _prepared(outline: Outline, given: Mapping[str, Any]) -> Edits:
    """Labels added, texts written as the engine takes them, and empty lists written out."""
    edits = Edits(outline)
    for index, label in unlabelled(outline).items():
        edits.behind(index, label)
    for index, token in enumerate(outline.tokens):
        if token.kind == "string" and "\\" in token.text:
            edits.replace(index, index + 1, encode_string(decode_string(outline.text, token), token.text[0]))
        elif token.kind == "parameter" and given.get(token.text[1:]) == []:
            edits.replace(index, index + 1, "[]".ljust(len(token.text)))
    return edits


def unlabelled(outline: Outline) -> dict[int, str]:
    """Indexes of the tokens after which a label is missing, each with it: every node that is asked for gets one.

    Left open, a pattern would match the rows of kgserve's own tables, and every node would come with their columns. A
    chain of any relations would lead over what is elsewhere, so those get a type. Raises InvalidInput for a link
    without the label that it leads to.
    """
    elsewhere = _elsewhere(outline)
    nodes = {place for index in _matches(outline) for place in _unlabelled_in(outline, index)}
    chains: list[int] = []
    for relation in _relations(outline):
        ends = _ends(outline, relation)
        nodes.update(place for end in ends if (place := _open_place(outline, end)) is not None)
        if outline.symbol(relation) == "[":
            _check_link(outline, relation, ends, elsewhere)
            last = relation + bool(outline.name(relation + 1))
            chains += [last] if outline.symbol(last + 1) == "*" else []
    missing = {place: DEFAULT_NODE_LABEL for place in nodes if outline.name(place) not in elsewhere}
    return missing | dict.fromkeys(chains, DEFAULT_RELATION_LABEL)


def _elsewhere(outline: Outline) -> set[str]:
    """The names of what is anywhere said to be in another store."""
    labels = (index for index in _labels(outline, ELSEWHERE) if outline.bracket(index) == "(")
    return {outline.name(outline.opener[index] + 1) for index in labels} - {""}


def _matches(outline: Outline) -> Iterator[int]:
    return (index for index, word in enumerate(outline.words) if word == "MATCH")


def _relations(outline: Outline) -> Iterator[int]:
    """Where the relations of patterns begin that are asked for, and not made."""
    for index in range(len(outline)):
        if outline.is_relation(index) and all(_is_node(outline, end) for end in _ends(outline, index)):
            yield from () if limits.clause_of(outline, index) in {"CREATE", "MERGE"} else (index,)


def _ends(outline: Outline, relation: int) -> tuple[int, int]:
    """Where the nodes on both sides of a relation open; -1 where none does."""
    is_bracket = outline.symbol(relation) == "["
    left = relation - 1 - is_bracket
    left -= outline.symbol(left) == "<"
    right = (outline.partner[relation] + 1 if is_bracket else relation + 1) + 1
    right += outline.symbol(right) == ">"
    opening = outline.partner.get(left, -1) if outline.symbol(left) == ")" else -1
    return opening, right if outline.symbol(right) == "(" else -1


def _is_node(outline: Outline, parenthesis: int) -> bool:
    after = parenthesis + 1 + bool(outline.name(parenthesis + 1))
    return parenthesis >= 0 and outline.symbol(after) in {")", "{", ":"}


def _check_link(outline: Outline, relation: int, ends: tuple[int, int], elsewhere: set[str]) -> None:
    links = (index for index in _labels(outline, LINKS) if outline.opener[index] == relation)
    if (link := next(links, None)) is None:
        return
    labelled = {outline.opener[index] for index in _labels(outline, ELSEWHERE)}
    if not any(end in labelled or outline.name(end + 1) in elsewhere for end in ends):
        name = outline.tokens[link].text
        raise outline.at(link, f"{name} leads to (:Elsewhere), and nothing at its ends has that label; it stands")


def _unlabelled_in(outline: Outline, match: int) -> Iterator[int]:
    index = match + 1
    while index < len(outline) and not _is_end(outline, match, index):
        symbol = outline.symbol(index)
        if symbol in {"[", "{"}:
            index = outline.partner[index]
        elif symbol == "(" and (place := _open_place(outline, index)) is not None:
            yield place
        index += 1


def _is_end(outline: Outline, match: int, index: int) -> bool:
    leaves = outline.symbol(index) in {")", "}", "]"} and outline.partner[index] < match
    return leaves or (outline.opener[index] == outline.opener[match] and outline.word(index) in CLAUSE_ENDS)


def _open_place(outline: Outline, parenthesis: int) -> int | None:
    """The token after which the label belongs; None when there is one, or when this is no node."""
    last = parenthesis
    if outline.name(last + 1):
        last += 1
    return last if outline.symbol(last + 1) in {")", "{"} else None


def values(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """What may be given to the engine. Raises InvalidInput that names the place, such as ``params.rows[3].age``.

    Kùzu's binding finds a type for each value by looking at it: a list without elements has none and fails, a map and a
    null in one list crash the process, and maps with their keys in different orders count as different types.
    In a list, numbers become all whole or all fractional, and maps get the same keys in the same order, with null for
    what is missing. An empty list stays one: the engine takes none, so `guard.examine` writes it into the text.
    """
    ready = {name: _value(value, f"params.{name}", 0) for name, value in parameters.items()}
    if len(msgspec.json.encode(ready)) > MAX_PARAMETER_BYTES:
        raise InvalidInput.at("params", f"the values are larger than {MAX_PARAMETER_BYTES >> 20} MiB together")
    return ready


def count(value: Any) -> int:
    """How many single values a value holds."""
    if isinstance(value, dict):
        return sum(count(part) for part in value.values())
    if isinstance(value, list):
        return sum(count(part) for part in value)
    return 1


def _value(value: Any, path: str, depth: int) -> Any:
    if depth > MAX_PARAMETER_DEPTH:
        raise InvalidInput.at(path, f"nested more than {MAX_PARAMETER_DEPTH} deep")
    match value:
        case None | bool():
            return value
        case int() if not -_INT64_LIMIT <= value < _INT64_LIMIT:
            raise InvalidInput.at(path, "the integer does not fit into 64 bits")
        case float() if not isfinite(value):
            raise InvalidInput.at(path, "not a finite number")
        case int() | float():
            return value
        case str():
            return _text(value, path)
        case list():
            return _list(value, path, depth)
        case dict():
            return _map(value, path, depth)
        case _:
            raise InvalidInput.at(path, "not a JSON value")


def _text(value: str, path: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidInput.at(path, "the text has half of a surrogate pair") from None
    return value


def _map(value: dict[str, Any], path: str, depth: int) -> dict[str, Any]:
    if not value:
        raise InvalidInput.at(path, "an empty map has no type")
    if set(value) == {"key", "value"}:
        raise InvalidInput.at(
            path, 'a map of just "key" and "value" is taken for something else by the engine; rename one'
        )
    ready: dict[str, Any] = {}
    for name, part in value.items():
        _text(name, path)
        if not name or "\0" in name:
            raise InvalidInput.at(path, "a key is empty or has a NUL")
        ready[name] = _value(part, f"{path}.{name}", depth + 1)
        if depth == 0 and not _is_typed(ready[name]):
            raise InvalidInput.at(f"{path}.{name}", "null and empty lists have no type here; leave the key out")
    if len({name.lower() for name in ready}) < len(ready):
        raise InvalidInput.at(path, "two keys differ only in case")
    return ready


def _list(items: list[Any], path: str, depth: int) -> list[Any]:
    ready = [_value(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(items)]
    kinds = {_kind(item) for item in ready} - {"null"}
    if kinds == {"whole number", "fractional number"}:
        return [_decimal(item, f"{path}[{index}]") for index, item in enumerate(ready)]
    if len(kinds) > 1:
        raise InvalidInput.at(path, f"the engine's lists hold one kind of values; here are: {', '.join(sorted(kinds))}")
    if ready and not kinds:
        raise InvalidInput.at(path, "a list of nulls has no type")
    if kinds == {"map"}:
        return _maps(ready, path)
    if kinds == {"list"}:
        return _lists(ready, path)
    return ready


def _decimal(number: float | None, path: str) -> float | None:
    if isinstance(number, int) and abs(number) > MAX_EXACT_FLOAT:
        what = "is too large to be exact as a decimal number, as the whole list is for the sake of the others"
        raise InvalidInput.at(path, what)
    return None if number is None else float(number)


def _maps(items: list[dict[str, Any] | None], path: str) -> list[dict[str, Any]]:
    names: dict[str, list[Any]] = {}
    for index, item in enumerate(items):
        if item is None:
            raise InvalidInput.at(f"{path}[{index}]", "null among maps crashes the engine")
        for name in item:
            names.setdefault(name, [])
    for name, column in names.items():
        column.extend((item or {}).get(name) for item in items)
        names[name] = _list(column, f"{path}[].{name}", 0)
        if not any(_is_typed(part) for part in names[name]):
            raise InvalidInput.at(f"{path}[].{name}", "no value says what type this key has")
    return [{name: column[row] for name, column in names.items()} for row in range(len(items))]


def _lists(items: list[list[Any] | None], path: str) -> list[list[Any]]:
    """Inner lists are of one type: that of all their elements together. None may be null."""
    if None in items:
        what = "the engine takes null among lists for an empty list; send an empty list in its place, or leave it out"
        raise InvalidInput.at(f"{path}[{items.index(None)}]", what)
    flat = _list([part for item in items if item for part in item], f"{path}[]", 0)
    if not flat:
        raise InvalidInput.at(path, "a list of empty lists has no type")
    parts = iter(flat)
    return [[next(parts) for _ in item or ()] for item in items]


_KIND_NAMES = {
    type(None): "null",
    bool: "boolean",
    int: "whole number",
    float: "fractional number",
    str: "text",
    list: "list",
    dict: "map",
}


def _kind(value: Any) -> str:
    return _KIND_NAMES[type(value)]


def _is_typed(value: Any) -> bool:
    return value is not None and value != []
