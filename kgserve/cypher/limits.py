"""How large a statement may be, so that the engine parses and plans it within its stack and in reasonable time.

It recurses over brackets, operators, CASE and functions given to functions, joins in exponential time, and looks at no
clock while it does. DESIGN.md has the measurements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kgserve.cypher.functions import LAMBDAS
from kgserve.cypher.outline import Outline
from kgserve.cypher.words import CLAUSES, KEYWORDS, OPERATORS

MAX_OPERATORS = 600
MAX_CASES = 8
MAX_FUNCTIONS = 3
MAX_CLAUSES = 100
MAX_UNIONS = 20
MAX_OPTIONAL = 20
MAX_SUBQUERIES = 8
MAX_RELATIONS = 10
MAX_ALL_RELATIONS = 30
MAX_PATTERNS = 100
MAX_GROWTH = 64

_OPERATOR_SYMBOLS = frozenset({"+", "-", "*", "/", "%", "^", "|", "&", "<<", ">>", ".", "=", "<", ">", "!", "=~"})


def check(outline: Outline) -> None:
    """Raises InvalidInput for a statement that is over a limit."""
    _check_count(outline, _operators(outline), MAX_OPERATORS, "operators")
    _check_count(outline, _words(outline, CLAUSES), MAX_CLAUSES, "clauses")
    _check_count(outline, _words(outline, frozenset({"UNION"})), MAX_UNIONS, "UNIONs")
    _check_count(outline, _words(outline, frozenset({"OPTIONAL"})), MAX_OPTIONAL, "OPTIONAL MATCHes")
    _check_count(outline, _subqueries(outline), MAX_SUBQUERIES, "subqueries")
    _check_count(outline, _relations(outline), MAX_ALL_RELATIONS, "relations in its patterns")
    _check_count(outline, _patterns(outline), MAX_PATTERNS, "patterns; give many rows as a parameter and UNWIND it")
    _check_relations(outline)
    _check_cases(outline)
    _check_functions(outline)


def growth(outline: Outline) -> int:
    """How many times a value can come to hold itself, by the end: ``WITH [a, a] AS b`` doubles it.

    Raises InvalidInput above 64: the engine takes the memory of lists without asking anybody.
    """
    total = 1
    mentions: Counter[str] = Counter()
    for index in range(len(outline)):
        if outline.word(index) == "WITH" and outline.opener[index] < 0:
            total *= max(mentions.values(), default=1)
            mentions.clear()
        elif _is_copied(outline, index):
            mentions[outline.tokens[index].text.strip("`").lower()] += 1
        if total * max(mentions.values(), default=1) > MAX_GROWTH:
            raise outline.at(index, f"values are put together from themselves more than {MAX_GROWTH} times")
    return total * max(mentions.values(), default=1)


def is_lambda(outline: Outline, index: int) -> bool:
    """Whether the token is the arrow's dash of ``x -> …``, and not of a pattern."""
    return (
        outline.symbol(index) == "-"
        and outline.symbol(index + 1) == ">"
        and outline.symbol(index - 1) not in {"-", "]"}
    )


def is_subscript(outline: Outline, index: int) -> bool:
    """Whether a bracket comes right after an expression: an element or a slice of it."""
    if outline.symbol(index) != "[" or index == 0:
        return False
    before = outline.tokens[index - 1]
    return before.kind in {"word", "quoted", "parameter", "string"} or before.text in {")", "]", "}"}


def is_relation(outline: Outline, index: int) -> bool:
    """Whether a relation of a pattern begins with this token: ``[`` after a dash, or the first of two dashes."""
    symbol = outline.symbol(index)
    return (symbol == "[" and outline.symbol(index - 1) == "-") or (symbol == "-" and outline.symbol(index + 1) == "-")


def _check_count(outline: Outline, found: Iterator[int], most: int, what: str) -> None:
    for count, index in enumerate(found):
        if count >= most:
            raise outline.at(index, f"a statement may have {most} {what}; one too many stands")


def _operators(outline: Outline) -> Iterator[int]:
    for index, token in enumerate(outline.tokens):
        is_symbol = token.kind == "symbol" and (token.text in _OPERATOR_SYMBOLS or is_subscript(outline, index))
        if is_symbol or outline.words[index] in OPERATORS:
            yield index


def _words(outline: Outline, words: frozenset[str]) -> Iterator[int]:
    return (index for index, word in enumerate(outline.words) if word in words)


def _subqueries(outline: Outline) -> Iterator[int]:
    return (i for i in range(len(outline)) if outline.symbol(i) == "{" and outline.word(i - 1) in {"EXISTS", "COUNT"})


def _relations(outline: Outline) -> Iterator[int]:
    return (index for index in range(len(outline)) if is_relation(outline, index))


def _patterns(outline: Outline) -> Iterator[int]:
    for index in range(len(outline)):
        if outline.symbol(index) == "(" and outline.opener[index] < 0 and outline.symbol(index - 1) in {",", "="}:
            yield index


def _check_relations(outline: Outline) -> None:
    """Patterns are joined together until the next WITH or UNION."""
    count = 0
    for index in range(len(outline)):
        if outline.word(index) in {"WITH", "UNION"} and outline.word(index - 1) not in {"STARTS", "ENDS"}:
            count = 0
        elif is_relation(outline, index):
            count += 1
            if count > MAX_RELATIONS:
                raise outline.at(index, f"{MAX_RELATIONS} relations may be joined at once; put a WITH before the one")


def _check_cases(outline: Outline) -> None:
    depth = 0
    for index, word in enumerate(outline.words):
        depth = depth + 1 if word == "CASE" else max(0, depth - (word == "END"))
        if depth > MAX_CASES:
            raise outline.at(index, f"CASE may be nested {MAX_CASES} deep; this is deeper:")


def _check_functions(outline: Outline) -> None:
    """Each nested lambda costs the parser a factor."""
    depths: dict[int, int] = {-1: 0}
    for index in range(len(outline)):
        if outline.symbol(index) not in {"(", "[", "{"}:
            continue
        nests = outline.calls(index) in LAMBDAS
        depths[index] = depths[outline.opener[index]] + nests
        if depths[index] > MAX_FUNCTIONS:
            raise outline.at(index, f"functions of list elements may be nested {MAX_FUNCTIONS} deep; this is deeper:")


def _is_copied(outline: Outline, index: int) -> bool:
    """Whether a variable as a whole becomes a part of a list, a map, a text or a call's result here."""
    token = outline.tokens[index]
    if token.kind not in {"word", "quoted"} or outline.words[index] in KEYWORDS or outline.symbol(index - 1) == ".":
        return False
    if outline.symbol(index + 1) in {".", "(", ":"}:
        return False
    opener = outline.opener[index]
    inside = outline.bracket(index)
    if (inside == "[" and not is_relation(outline, opener)) or inside == "{":
        return True
    return "+" in {outline.symbol(index - 1), outline.symbol(index + 1)} or _is_built(outline, opener)


def _is_built(outline: Outline, opener: int) -> bool:
    called = outline.calls(opener) if opener >= 0 else ""
    return called.startswith(("list_", "struct_", "map", "concat", "coalesce"))
