"""Guard that validates every Cypher text before it reaches the engine.

Kùzu statements can read files, change settings and leave transactions, and hostile text can crash the engine. The guard
accepts a single statement, made of listed clauses and functions, within limits that the engine tolerates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from math import isfinite
from typing import Any

import msgspec

from kgserve.cypher import limits
from kgserve.cypher.analysis import analyze_and_rewrite_cypher_statement
from kgserve.cypher.column_assumptions import drop_column_assumptions
from kgserve.cypher.interpreter.graph_view_interface import NO_LABEL
from kgserve.cypher.lexer import (
    BUILDER_FUNCTIONS,
    CLAUSE_ENDS,
    FIRST_READING_WORDS,
    FORBIDDEN_WORDS,
    KEYWORDS,
    WRITE_CLAUSES,
    BracketMatchedTokens,
    CypherToken,
    build_cypher_syntax_error,
    scan_cypher_tokens,
)
from kgserve.cypher.limits import FunctionCallChecker
from kgserve.cypher.statement_edits import SourceMapAnchor, StatementEdits, map_rendered_to_original_position
from kgserve.cypher.string_escapes import decode_string_literal, encode_string_literal
from kgserve.cypher.types import MAX_EXACT_FLOAT
from kgserve.errors import FieldError, InvalidInput

MAX_STATEMENT_BYTES = 64 << 10
MAX_STATEMENT_TOKENS = 5_000
MAX_COLLECTED_VALUES = 50_000
"""Maximum scalar values in ranges and parameters if functions may multiply them."""
COMMIT_TABLE_NAME = "STORECOMMIT"
DEFAULT_NODE_LABEL = ":Entity"
DEFAULT_RELATION_LABEL = ":RELATES_TO"
LINK_TARGET_LABEL, LINK_RELATION_TYPE = "Elsewhere", "LINKS_TO"
MAX_PARAMETER_BYTES = 1 << 20
MAX_PARAMETER_DEPTH = 32
MAX_CACHED_STATEMENTS = 256
MAX_CACHED_STATEMENT_CHARS = 4 << 10
"""Limits of the cache of accepted statements, because validation takes longer than many statements."""
_SCALAR_CLASSES = frozenset({bool, int, float, str})
_INT64_LIMIT = 1 << 63


class GuardedCypherStatement(msgspec.Struct, frozen=True):
    """Statement that the guard accepted: ``text`` for the engine, and the values of the parameters that it names.

    ``text`` is rewritten by `analyze_and_rewrite_cypher_statement`, without comments and final ``;``; ``anchors`` map
    it to the original. ``updates``: it writes. ``explains``: it asks for a plan. ``names_links``: it reads links.
    ``assumptions`` must hold for the store, or the answer would be incorrect.
    """

    text: str
    updates: bool
    explains: bool
    parameters: dict[str, Any]
    anchors: tuple[SourceMapAnchor, ...] = ()
    names_links: bool = False
    assumptions: frozenset[str] = frozenset()

    @property
    def words(self) -> frozenset[str]:
        """Names of properties, variables and functions, in lower case; includes texts, which may be names too."""
        return _words(self.text) if len(self.text) <= MAX_CACHED_STATEMENT_CHARS else _words.__wrapped__(self.text)

    @property
    def properties(self) -> frozenset[str]:
        """Names after a dot, or before a colon as in a map, in lower case."""
        return (
            _properties(self.text)
            if len(self.text) <= MAX_CACHED_STATEMENT_CHARS
            else _properties.__wrapped__(self.text)
        )

    @property
    def shape(self) -> str:
        """Clauses and operators without names, values or texts of the caller; safe to log."""
        return " ".join(word for each in scan_cypher_tokens(self.text) if (word := each.text.upper()) in KEYWORDS)

    def without_column_assumptions(self) -> GuardedCypherStatement:
        """Return the statement for a store whose properties only the interpreter would show as Cypher defines them."""
        return msgspec.structs.replace(self, assumptions=drop_column_assumptions(self.assumptions))

    def place(self, offset: int) -> tuple[int, int]:
        """Return line and column, from 1, in the caller's text for an offset in ``text``."""
        return map_rendered_to_original_position(self.text, self.anchors, offset)


_Key = tuple[str, bool, tuple[tuple[str, object], ...]]
_statement_cache: dict[_Key, GuardedCypherStatement] = {}


def validate_cypher_statement_for_engine(
    text: str, parameters: Mapping[str, Any], *, writable: bool
) -> GuardedCypherStatement:
    """Validate a statement and prepare it for the engine; parameters that it does not name are dropped.

    Raises InvalidInput if it cannot be run. Raises Forbidden for files, settings, transactions, data definition, and
    for writes unless ``writable``.
    """
    key = _cache_key(text, parameters, writable=writable)
    known = _statement_cache.get(key) if key is not None else None
    if known is not None:
        given = prepare_cypher_parameters({name: parameters[name] for name in known.parameters})
        return msgspec.structs.replace(known, parameters=given)
    statement, by_value = _validate(text, parameters, writable=writable)
    if key is not None and not by_value:
        _statement_cache[key] = msgspec.structs.replace(statement, parameters=dict.fromkeys(statement.parameters))
        while len(_statement_cache) > MAX_CACHED_STATEMENTS:
            _statement_cache.pop(next(iter(_statement_cache)), None)
    return statement


def _cache_key(text: str, parameters: Mapping[str, Any], *, writable: bool) -> _Key | None:
    """Return the cache key of a statement, with the types of scalar parameters; None if it is not cacheable."""
    kinds = tuple((name, _value_signature(parameters[name])) for name in sorted(parameters))
    small = len(text) <= MAX_CACHED_STATEMENT_CHARS and len(kinds) <= MAX_CACHED_STATEMENTS
    return (text, writable, kinds) if small and all(kind is not None for _, kind in kinds) else None


def _value_signature(value: Any) -> object:
    """Return the cacheable properties of a scalar value; None for other values."""
    kind = type(value)
    if kind is str:
        return (kind, value == "", value == NO_LABEL)
    if kind is int:
        return (kind, -MAX_EXACT_FLOAT <= value <= MAX_EXACT_FLOAT)
    return kind if kind in _SCALAR_CLASSES else None


def _validate(text: str, parameters: Mapping[str, Any], *, writable: bool) -> tuple[GuardedCypherStatement, bool]:
    """Validate a statement; return it, and whether parameter values (not only types) affected the result."""
    _check_size(text)
    gathered = list(islice(scan_cypher_tokens(text), 2 * MAX_STATEMENT_TOKENS + 1))
    found = [token for token in gathered if token.kind not in {"space", "comment"}]
    if len(found) > MAX_STATEMENT_TOKENS or len(gathered) > 2 * MAX_STATEMENT_TOKENS:
        raise build_cypher_syntax_error(
            text,
            gathered[-1].start,
            f"a statement may have at most {MAX_STATEMENT_TOKENS} words and symbols; the first one too many is",
        )
    outline = BracketMatchedTokens(text, _one_statement(text, found))
    updates, explains = _check_words(outline, writable=writable)
    limits.check_statement_size_limits(outline)
    limits.check_wrong_result_constructs(outline)
    given = prepare_cypher_parameters(_collect_parameters(outline, parameters))
    calls = FunctionCallChecker(outline, given)
    calls.check()
    limits.check_untyped_nulls(outline, given)
    _check_growth(outline, given, calls.range_values)
    analysed = analyze_and_rewrite_cypher_statement(outline, given, _prepare_edits(outline, given))
    rendered = analysed.edits.render()
    kept = {name: value for name, value in given.items() if value != []}
    links = bool(_labels(outline, LINK_TARGET_LABEL, LINK_RELATION_TYPE))
    statement = GuardedCypherStatement(
        rendered.text, updates, explains, kept, rendered.anchors, links, analysed.assumptions
    )
    return statement, calls.met_values or analysed.depends_on_values


@lru_cache(MAX_CACHED_STATEMENTS)
def _words(text: str) -> frozenset[str]:
    kinds = ("word", "quoted", "string")
    return frozenset(each.text.strip("`'\"").lower() for each in scan_cypher_tokens(text) if each.kind in kinds)


@lru_cache(MAX_CACHED_STATEMENTS)
def _properties(text: str) -> frozenset[str]:
    found = list(scan_cypher_tokens(text))
    texts = ["", *(each.text for each in found), ""]
    places = (at for at, each in enumerate(found) if each.kind in {"word", "quoted"})
    named = (at for at in places if texts[at] == "." or texts[at + 2] == ":")
    return frozenset(found[at].text.strip("`").lower() for at in named)


def _check_size(text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise build_cypher_syntax_error(text, error.start, "the statement has half of a surrogate pair") from None
    if size > MAX_STATEMENT_BYTES:
        message = f"the statement has {size} bytes; the maximum is {MAX_STATEMENT_BYTES}"
        raise InvalidInput(message, (FieldError("query", message),))
    if "\0" in text:
        raise build_cypher_syntax_error(text, text.index("\0"), "the statement has a NUL character")


def _one_statement(text: str, found: list[CypherToken]) -> list[CypherToken]:
    ends = [index for index, token in enumerate(found) if token.kind == "symbol" and token.text == ";"]
    if ends and ends[0] < len(found) - 1:
        after = found[ends[0] + 1]
        raise build_cypher_syntax_error(text, after.start, "only one statement may be sent at a time; another begins")
    kept = found[: ends[0]] if ends else found
    if not kept:
        raise build_cypher_syntax_error(text, 0, "the statement is empty")
    return kept


def _check_words(outline: BracketMatchedTokens, *, writable: bool) -> tuple[bool, bool]:
    """Check the words of a statement; return whether it writes, and whether it is an EXPLAIN."""
    for index, word in enumerate(outline.words):
        if word in FORBIDDEN_WORDS:
            name = outline.tokens[index].text
            raise outline.not_allowed(index, f"{name} is not allowed; if it is a name, write `{name}` in backticks,")
    explains = outline.word(0) == "EXPLAIN"
    start = 1 + (outline.word(1) == "LOGICAL") if explains else 0
    if outline.word(start) not in FIRST_READING_WORDS | WRITE_CLAUSES:
        raise outline.at(
            start,
            f"a statement must begin with one of {', '.join(sorted(FIRST_READING_WORDS))}; this one begins otherwise",
        )
    updates = False
    for index, word in enumerate(outline.words):
        if word in WRITE_CLAUSES:
            updates = True
            _check_write(outline, index, word, writable=writable)
    if updates and explains:
        raise outline.not_allowed(0, "only read statements can be explained; EXPLAIN is")
    if updates:
        _check_own_table(outline)
        _check_no_limit(outline)
    return updates, explains


def _check_write(outline: BracketMatchedTokens, index: int, word: str, *, writable: bool) -> None:
    if word == "DETACH" and outline.word(index + 1) != "DELETE":
        raise outline.not_allowed(index, "DETACH must be followed by DELETE; found")
    if word in {"CREATE", "MERGE"} and outline.word(index - 1) != "ON":
        is_path = outline.symbol(index + 2) == "=" and outline.name(index + 1)
        if outline.symbol(index + 1) != "(" and not is_path:
            raise outline.not_allowed(index, f"{word} must be followed by a pattern; found")
    if not writable:
        raise outline.not_allowed(index, f"{word} writes data, but this statement may only read;")


def _check_no_limit(outline: BracketMatchedTokens) -> None:
    """Reject LIMIT and SKIP after a write, where the engine may limit what is written."""
    last = max(index for index, word in enumerate(outline.words) if word in WRITE_CLAUSES)
    for index, word in enumerate(outline.words[last:], last):
        if word in {"LIMIT", "SKIP"}:
            raise outline.at(
                index, f"{word} may not follow a write; put it before the write, as in WITH … {word}; found"
            )


def _check_own_table(outline: BracketMatchedTokens) -> None:
    for index, token in enumerate(outline.tokens):
        if outline.name(index).upper() == COMMIT_TABLE_NAME:
            raise outline.not_allowed(
                index, f"{token.text} is reserved by kgserve and may not be named in a statement that writes;"
            )
    for index in _labels(outline, LINK_TARGET_LABEL, LINK_RELATION_TYPE):
        raise outline.not_allowed(
            index,
            "links into other stores are read in Cypher; they are written as edges with to_graph, by inject or"
            f" put_subgraph, and deleted by their ids. A statement that writes names {outline.tokens[index].text}",
        )


def _collect_parameters(outline: BracketMatchedTokens, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that the statement names. Raises InvalidInput if one has no value."""
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


def _check_growth(outline: BracketMatchedTokens, given: Mapping[str, Any], range_values: int) -> None:
    growth = limits.compute_value_duplication_factor(outline)
    builds = any(outline.calls(index) in BUILDER_FUNCTIONS for index in range(len(outline)))
    held = range_values + sum(count_scalars(value) for value in given.values())
    if held * growth > MAX_COLLECTED_VALUES and (builds or growth > 1):
        message = f"{held} values in ranges and parameters are too many for what this statement builds from them"
        raise InvalidInput(message, (FieldError("query", message),))


def _labels(outline: BracketMatchedTokens, *wanted: str) -> list[int]:
    """Return the token indexes of the given node labels and relation types."""
    found: set[int] = set()
    for index in range(len(outline)):
        before, bracket = outline.symbol(index - 1), outline.bracket(index)
        if not outline.name(index) or bracket not in {"(", "["} or outline.is_subscript(outline.opener[index]):
            continue
        if before == ":" or (before == "|" and index - 2 in found):
            found.add(index)
    return sorted(index for index in found if outline.tokens[index].text.strip("`") in wanted)


def _prepare_edits(outline: BracketMatchedTokens, given: Mapping[str, Any]) -> StatementEdits:
    """Return edits that add missing labels, encode texts for the engine, and inline empty lists."""
    edits = StatementEdits(outline)
    for index, label in find_labels_to_insert_in_patterns(outline).items():
        edits.behind(index, label)
    for index, token in enumerate(outline.tokens):
        if token.kind == "string" and "\\" in token.text:
            edits.replace(
                index, index + 1, encode_string_literal(decode_string_literal(outline.text, token), token.text[0])
            )
        elif token.kind == "parameter" and given.get(token.text[1:]) == []:
            edits.replace(index, index + 1, "[]".ljust(len(token.text)))
    return edits


def find_labels_to_insert_in_patterns(outline: BracketMatchedTokens) -> dict[int, str]:
    """Find the labels that patterns lack, by the token index after which they belong.

    Without a label, a pattern would match kgserve's internal tables, and nodes would have all their columns. Paths of
    any relation type get a type so that they do not cross links. Raises InvalidInput for a link without the label of
    its target.
    """
    elsewhere = _link_target_names(outline)
    nodes = {place for index in _matches(outline) for place in _unlabelled_in(outline, index)}
    chains: list[int] = []
    for relation in _relations(outline):
        ends = _ends(outline, relation)
        nodes.update(place for end in ends if (place := _missing_label_position(outline, end)) is not None)
        if outline.symbol(relation) == "[":
            _check_link(outline, relation, ends, elsewhere)
            last = relation + bool(outline.name(relation + 1))
            chains += [last] if outline.symbol(last + 1) == "*" else []
    missing = {place: DEFAULT_NODE_LABEL for place in nodes if outline.name(place) not in elsewhere}
    return missing | dict.fromkeys(chains, DEFAULT_RELATION_LABEL)


def _link_target_names(outline: BracketMatchedTokens) -> set[str]:
    """Return the names of nodes labelled as being in another store."""
    labels = (index for index in _labels(outline, LINK_TARGET_LABEL) if outline.bracket(index) == "(")
    return {outline.name(outline.opener[index] + 1) for index in labels} - {""}


def _matches(outline: BracketMatchedTokens) -> Iterator[int]:
    return (index for index, word in enumerate(outline.words) if word == "MATCH")


def _relations(outline: BracketMatchedTokens) -> Iterator[int]:
    """Yield the token indexes at which matched (not created) relations begin."""
    for index in range(len(outline)):
        if outline.is_relation(index) and all(_is_node(outline, end) for end in _ends(outline, index)):
            yield from () if limits.find_enclosing_clause_keyword(outline, index) in {"CREATE", "MERGE"} else (index,)


def _ends(outline: BracketMatchedTokens, relation: int) -> tuple[int, int]:
    """Return the opening parentheses of the nodes on both sides of a relation; -1 if there is no node."""
    is_bracket = outline.symbol(relation) == "["
    left = relation - 1 - is_bracket
    left -= outline.symbol(left) == "<"
    right = (outline.partner[relation] + 1 if is_bracket else relation + 1) + 1
    right += outline.symbol(right) == ">"
    opening = outline.partner.get(left, -1) if outline.symbol(left) == ")" else -1
    return opening, right if outline.symbol(right) == "(" else -1


def _is_node(outline: BracketMatchedTokens, parenthesis: int) -> bool:
    after = parenthesis + 1 + bool(outline.name(parenthesis + 1))
    return parenthesis >= 0 and outline.symbol(after) in {")", "{", ":"}


def _check_link(outline: BracketMatchedTokens, relation: int, ends: tuple[int, int], elsewhere: set[str]) -> None:
    links = (index for index in _labels(outline, LINK_RELATION_TYPE) if outline.opener[index] == relation)
    if (link := next(links, None)) is None:
        return
    labelled = {outline.opener[index] for index in _labels(outline, LINK_TARGET_LABEL)}
    if not any(end in labelled or outline.name(end + 1) in elsewhere for end in ends):
        name = outline.tokens[link].text
        raise outline.at(link, f"{name} leads to (:Elsewhere), but neither end has that label; found")


def _unlabelled_in(outline: BracketMatchedTokens, match: int) -> Iterator[int]:
    index = match + 1
    while index < len(outline) and not _is_end(outline, match, index):
        symbol = outline.symbol(index)
        if symbol in {"[", "{"}:
            index = outline.partner[index]
        elif symbol == "(" and (place := _missing_label_position(outline, index)) is not None:
            yield place
        index += 1


def _is_end(outline: BracketMatchedTokens, match: int, index: int) -> bool:
    leaves = outline.symbol(index) in {")", "}", "]"} and outline.partner[index] < match
    return leaves or (outline.opener[index] == outline.opener[match] and outline.word(index) in CLAUSE_ENDS)


def _missing_label_position(outline: BracketMatchedTokens, parenthesis: int) -> int | None:
    """Return the token index after which a label is missing; None if there is one or this is not a node."""
    last = parenthesis
    if outline.name(last + 1):
        last += 1
    return last if outline.symbol(last + 1) in {")", "{"} else None


def prepare_cypher_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameter values in the form that the engine accepts.

    Raises InvalidInput with the path of the fault, such as ``params.rows[3].age``.

    Kùzu infers types from values: an empty list fails, a map and a null in one list crash the process, and maps with
    different key order have different types. Within a list, numbers become all integers or all floats, and maps get the
    same keys in the same order, with null for missing ones. Empty lists are kept and inlined into the text by
    `guard.examine`.
    """
    ready = {name: _value(value, f"params.{name}", 0) for name, value in parameters.items()}
    if len(msgspec.json.encode(ready)) > MAX_PARAMETER_BYTES:
        raise InvalidInput.at("params", f"the values are larger than {MAX_PARAMETER_BYTES >> 20} MiB together")
    return ready


def count_scalars(value: Any) -> int:
    """Return the number of scalar values within a value."""
    if isinstance(value, dict):
        return sum(count_scalars(part) for part in value.values())
    if isinstance(value, list):
        return sum(count_scalars(part) for part in value)
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
        raise InvalidInput.at(path, "an empty map is not supported because its type is unknown")
    if set(value) == {"key", "value"}:
        raise InvalidInput.at(path, 'the engine misinterprets a map with only the keys "key" and "value"; rename one')
    ready: dict[str, Any] = {}
    for name, part in value.items():
        _text(name, path)
        if not name or "\0" in name:
            raise InvalidInput.at(path, "a key must not be empty or contain a NUL character")
        ready[name] = _value(part, f"{path}.{name}", depth + 1)
        if depth == 0 and not _is_typed(ready[name]):
            raise InvalidInput.at(f"{path}.{name}", "null and empty lists are not supported here; omit the key")
    if len({name.lower() for name in ready}) < len(ready):
        raise InvalidInput.at(path, "two keys differ only in case, which the engine ignores")
    return ready


def _list(items: list[Any], path: str, depth: int) -> list[Any]:
    ready = [_value(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(items)]
    kinds = {_kind(item) for item in ready} - {"null"}
    if kinds == {"whole number", "fractional number"}:
        return [_decimal(item, f"{path}[{index}]") for index, item in enumerate(ready)]
    if len(kinds) > 1:
        raise InvalidInput.at(path, f"a list must hold values of one type; this one holds: {', '.join(sorted(kinds))}")
    if ready and not kinds:
        raise InvalidInput.at(path, "a list of nulls is not supported because its type is unknown")
    if kinds == {"map"}:
        return _maps(ready, path)
    if kinds == {"list"}:
        return _lists(ready, path)
    return ready


def _decimal(number: float | None, path: str) -> float | None:
    if isinstance(number, int) and abs(number) > MAX_EXACT_FLOAT:
        what = (
            "the integer is too large to be exact as a decimal number, which the list needs because of its other values"
        )
        raise InvalidInput.at(path, what)
    return None if number is None else float(number)


def _maps(items: list[dict[str, Any] | None], path: str) -> list[dict[str, Any]]:
    names: dict[str, list[Any]] = {}
    for index, item in enumerate(items):
        if item is None:
            raise InvalidInput.at(f"{path}[{index}]", "a list of maps must not contain null")
        for name in item:
            names.setdefault(name, [])
    for name, column in names.items():
        column.extend((item or {}).get(name) for item in items)
        names[name] = _list(column, f"{path}[].{name}", 0)
        if not any(_is_typed(part) for part in names[name]):
            raise InvalidInput.at(
                f"{path}[].{name}", "the type of this key is unknown because all its values are null or empty"
            )
    return [{name: column[row] for name, column in names.items()} for row in range(len(items))]


def _lists(items: list[list[Any] | None], path: str) -> list[list[Any]]:
    """Unify inner lists to one element type; null lists are rejected."""
    if None in items:
        what = "the engine treats null among lists as an empty list; send an empty list instead, or leave it out"
        raise InvalidInput.at(f"{path}[{items.index(None)}]", what)
    flat = _list([part for item in items if item for part in item], f"{path}[]", 0)
    if not flat:
        raise InvalidInput.at(path, "a list of empty lists is not supported because its type is unknown")
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
