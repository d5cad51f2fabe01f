"""What the engine cannot take: statements that are too large, nulls without a type, and what it answers wrongly.

It recurses over brackets, operators, CASE and functions given to functions, joins in exponential time, and looks at no
clock while it does. DESIGN.md has the measurements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from kgserve.cypher.lexer import Outline
from kgserve.cypher.words import AGGREGATES, CLAUSES, ENDS, KEYWORDS, LAMBDAS, OPERATORS

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

_BUILT = ("list_", "struct_", "map", "concat", "coalesce")
_COMPARISONS = frozenset({"=", "<>", "<", ">", "<=", ">="})
_AFTER_NULL = KEYWORDS - {"IN", "STARTS", "ENDS", "CONTAINS", "IS"}
_BEFORE_NULL = frozenset({"WHERE", "AND", "OR", "XOR", "NOT", "WHEN", "RETURN", "WITH", "CASE"})
# Known before a row is looked at, where a pattern names one label.
_FOLDED = frozenset({"label", "labels"})
_OPERATOR_SYMBOLS = frozenset({"+", "-", "*", "/", "%", "^", "|", "&", "<<", ">>", ".", "=", "<", ">", "!", "=~"})


def check(outline: Outline) -> None:
    """Raises InvalidInput for a statement that is over a limit."""
    _check_count(outline, _operators(outline), MAX_OPERATORS, "operators")
    _check_count(outline, _words(outline, CLAUSES), MAX_CLAUSES, "clauses")
    _check_count(outline, _words(outline, frozenset({"UNION"})), MAX_UNIONS, "UNIONs")
    _check_count(outline, _words(outline, frozenset({"OPTIONAL"})), MAX_OPTIONAL, "OPTIONAL MATCHes")
    _check_count(outline, _subqueries(outline), MAX_SUBQUERIES, "subqueries")
    relations = filter(outline.is_relation, range(len(outline)))
    _check_count(outline, relations, MAX_ALL_RELATIONS, "relations in its patterns")
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
            mentions[outline.name(index)] += 1
        if total * max(mentions.values(), default=1) > MAX_GROWTH:
            raise outline.at(index, f"values are put together from themselves more than {MAX_GROWTH} times")
    return total * max(mentions.values(), default=1)


def _check_count(outline: Outline, found: Iterator[int], most: int, what: str) -> None:
    for count, index in enumerate(found):
        if count >= most:
            raise outline.at(index, f"a statement may have {most} {what}; one too many stands")


def _operators(outline: Outline) -> Iterator[int]:
    for index, token in enumerate(outline.tokens):
        is_symbol = token.kind == "symbol" and (token.text in _OPERATOR_SYMBOLS or outline.is_subscript(index))
        if is_symbol or outline.words[index] in OPERATORS:
            yield index


def _words(outline: Outline, words: frozenset[str]) -> Iterator[int]:
    return (index for index, word in enumerate(outline.words) if word in words)


def _subqueries(outline: Outline) -> Iterator[int]:
    return (i for i in range(len(outline)) if outline.symbol(i) == "{" and outline.word(i - 1) in {"EXISTS", "COUNT"})


def _patterns(outline: Outline) -> Iterator[int]:
    for index in range(len(outline)):
        if outline.symbol(index) == "(" and outline.opener[index] < 0 and outline.symbol(index - 1) in {",", "="}:
            yield index


def _check_relations(outline: Outline) -> None:
    """Patterns are joined together until the next WITH or UNION."""
    count = 0
    for index in range(len(outline)):
        if outline.word(index) in {"WITH", "UNION"} and outline.is_clause(index):
            count = 0
        elif outline.is_relation(index):
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
    if not outline.is_variable(index):
        return False
    before, after = outline.symbol(index - 1), outline.symbol(index + 1)
    if before == "." or after in {".", ":"}:
        return False
    opener = outline.opener[index]
    inside = outline.bracket(index)
    if (inside == "[" and not outline.is_relation(opener)) or inside == "{":
        return True
    return "+" in {before, after} or outline.calls(opener).startswith(_BUILT)


def check_nulls(outline: Outline, parameters: Mapping[str, Any]) -> None:
    """Raises InvalidInput for a null, written or the value of a parameter, that has no type: it crashes the engine."""
    for index in range(len(outline)):
        if _is_null(outline, index, parameters) and not _is_safe(outline, index):
            name = outline.tokens[index].text
            raise outline.at(index, f"{name} has no type: write CAST(NULL AS STRING), or compare with it; it stands")
    _check_branches(outline, parameters)


def _is_null(outline: Outline, index: int, parameters: Mapping[str, Any]) -> bool:
    token = outline.tokens[index]
    if token.kind == "parameter":
        return parameters.get(token.text[1:], False) is None
    return outline.words[index] == "NULL"


def _is_safe(outline: Outline, index: int) -> bool:
    before, after = outline.word(index - 1), outline.word(index + 1)
    if before == "IS" or (before == "NOT" and outline.word(index - 2) == "IS"):
        return True
    if outline.calls(outline.opener[index]) == "cast" and outline.tokens[index + 1].text.upper() in {"AS", ","}:
        return outline.symbol(index - 1) == "("
    if before in {"THEN", "ELSE"}:
        return after in {"WHEN", "ELSE", "END"}
    if outline.symbol(index - 1) in _COMPARISONS:
        return _ends(outline, index + 1)
    begins = before in _BEFORE_NULL or (outline.symbol(index - 1) == "(" and not outline.calls(index - 1))
    return begins and (after == "IS" or (outline.symbol(index + 1) in _COMPARISONS and before != "CASE"))


def _ends(outline: Outline, index: int) -> bool:
    """Whether an expression ends before this token."""
    ends = outline.symbol(index) in {")", ",", "]", "}", "|"} or outline.word(index) in _AFTER_NULL
    return ends or index >= len(outline)


def _check_branches(outline: Outline, parameters: Mapping[str, Any]) -> None:
    """A CASE whose every branch is null has no type either."""
    typed: list[bool] = []
    for index, word in enumerate(outline.words):
        if word == "CASE":
            typed.append(False)
        elif word in {"THEN", "ELSE"} and typed:
            typed[-1] = typed[-1] or not (index + 1 < len(outline) and _is_null(outline, index + 1, parameters))
        elif word == "END" and typed and not typed.pop():
            raise outline.at(index, "a CASE of nulls alone has no type: it ends")


def check_answers(outline: Outline) -> None:
    """Raises InvalidInput for what would be answered wrongly without a word, with the form that is answered rightly."""
    for index, word in enumerate(outline.words):
        if word == "WHERE" and clause_of(outline, index) == "MATCH":
            _check_conditions(outline, index + 1, _end(outline, index))
        elif word in {"RETURN", "WITH"} and outline.is_clause(index):
            _check_aggregates(outline, index + 1, _end(outline, index))
        elif word == "IN":
            _check_slice(outline, index)


def clause_of(outline: Outline, where: int) -> str:
    """The word that begins the clause around a token, empty when there is none."""
    opener = outline.opener[where]
    before = (at for at in range(where - 1, opener, -1) if outline.opener[at] == opener and outline.is_clause(at))
    return next((outline.word(at) for at in before if outline.word(at) in CLAUSES), "")


def _end(outline: Outline, start: int) -> int:
    """The token before which a clause ends."""
    opener = outline.opener[start]
    limit = outline.partner[opener] if opener >= 0 else len(outline)
    own = (at for at in range(start + 1, limit) if outline.opener[at] == opener and outline.is_clause(at))
    return next((at for at in own if outline.word(at) in ENDS), limit)


def _check_conditions(outline: Outline, start: int, end: int) -> None:
    """The engine takes for true what is made of parameters alone, in a WHERE of MATCH."""
    for span in _joined(outline, start, end):
        start, last = span.start, span.stop - 1
        if outline.symbol(start) == "(" and outline.partner[start] == last:
            _check_conditions(outline, start + 1, last)
        elif any(outline.tokens[at].kind == "parameter" for at in span) and not any(
            _depends_on(outline, at) for at in span
        ):
            raise outline.at(
                start,
                "the engine leaves out a condition that depends on parameters alone; put it behind a WITH, as in"
                " MATCH (n) WITH n WHERE $wanted. It stands",
            )


def _joined(outline: Outline, start: int, end: int) -> Iterator[range]:
    """What stands between ANDs."""
    opener, cases = outline.opener[start] if start < end else -1, 0
    for index in range(start, end):
        word = outline.word(index)
        cases += (word == "CASE") - (word == "END")
        if word == "AND" and outline.opener[index] == opener and not cases:
            yield range(start, index)
            start = index + 1
    if start < end:
        yield range(start, end)


def _depends_on(outline: Outline, index: int) -> bool:
    """Whether a variable stands there that the engine has to look at a row for."""
    is_key = outline.symbol(index + 1) == ":" and outline.bracket(index) == "{"
    return outline.is_variable(index) and not is_key and outline.calls(outline.opener[index]) not in _FOLDED


def _check_aggregates(outline: Outline, start: int, end: int) -> None:
    """Beside a key, the engine loses the values of what follows an aggregate with DISTINCT and has none itself."""
    calls = [at for at in range(start, end) if outline.calls(at) in AGGREGATES]
    distinct = [at for at in calls if outline.word(at + 1) == "DISTINCT"]
    lost = [at for at in calls if distinct and at > distinct[0] and at not in distinct]
    has_key = any(item.isdisjoint(calls) for item in map(set, outline.items(start, end)))
    if lost and has_key:
        raise outline.at(
            lost[0] - 1,
            "the engine loses what is counted after an aggregate with DISTINCT; write those with DISTINCT last,"
            " or each kind in a WITH of its own. It stands",
        )


def _check_slice(outline: Outline, index: int) -> None:
    """The engine takes it for a slice of the answer to IN."""
    at = index + 1
    while at + 1 < len(outline) and outline.symbol(at + 1) == ".":
        at += 2
    at = outline.partner.get(at, at) + 1
    if outline.symbol(at) == "[" and outline.has_own(at, ":"):
        raise outline.at(index, "a slice behind IN wants parentheses, as in IN (list[1:2]); the IN stands")
