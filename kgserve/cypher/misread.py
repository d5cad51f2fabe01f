"""Statements that the engine answers wrongly without a word: each is refused, with the form that it answers rightly."""

from __future__ import annotations

from collections.abc import Iterator

from kgserve.cypher.functions import AGGREGATES
from kgserve.cypher.outline import Outline
from kgserve.cypher.words import CLAUSES, KEYWORDS

_ENDS = CLAUSES | {"OPTIONAL", "DETACH", "ORDER", "SKIP", "LIMIT", "WHERE", "ON"}
# Known before a row is looked at, where a pattern names one label.
_FOLDED = frozenset({"label", "labels"})


def check(outline: Outline) -> None:
    """Raises InvalidInput for what would be answered wrongly."""
    for index, word in enumerate(outline.words):
        if word == "WHERE" and _clause_of(outline, index) == "MATCH":
            _check_conditions(outline, index + 1, _end(outline, index))
        elif word in {"RETURN", "WITH"} and _is_clause(outline, index):
            _check_aggregates(outline, index + 1, _end(outline, index))
        elif word == "IN":
            _check_slice(outline, index)


def _is_clause(outline: Outline, index: int) -> bool:
    """Whether a word is none of STARTS WITH and ENDS WITH."""
    return outline.word(index) != "WITH" or outline.word(index - 1) not in {"STARTS", "ENDS"}


def _clause_of(outline: Outline, where: int) -> str:
    opener = outline.opener[where]
    before = (at for at in range(where - 1, opener, -1) if outline.opener[at] == opener and _is_clause(outline, at))
    return next((outline.word(at) for at in before if outline.word(at) in CLAUSES), "")


def _end(outline: Outline, start: int) -> int:
    """The token before which a clause ends."""
    opener = outline.opener[start]
    limit = outline.partner[opener] if opener >= 0 else len(outline)
    own = (at for at in range(start + 1, limit) if outline.opener[at] == opener and _is_clause(outline, at))
    return next((at for at in own if outline.word(at) in _ENDS), limit)


def _check_conditions(outline: Outline, start: int, end: int) -> None:
    """The engine takes for true what is made of parameters alone, in a WHERE of MATCH."""
    for first, last in _joined(outline, start, end):
        if outline.symbol(first) == "(" and outline.partner[first] == last - 1:
            _check_conditions(outline, first + 1, last - 1)
        elif any(outline.tokens[at].kind == "parameter" for at in range(first, last)) and not any(
            _is_variable(outline, at) for at in range(first, last)
        ):
            raise outline.at(
                first,
                "the engine leaves out a condition that depends on parameters alone; put it behind a WITH, as in"
                " MATCH (n) WITH n WHERE $wanted. It stands",
            )


def _joined(outline: Outline, start: int, end: int) -> Iterator[tuple[int, int]]:
    """What stands between ANDs, from the first token to before the last."""
    opener, cases = outline.opener[start] if start < end else -1, 0
    for index in range(start, end):
        word = outline.word(index)
        cases += (word == "CASE") - (word == "END")
        if word == "AND" and outline.opener[index] == opener and not cases:
            yield start, index
            start = index + 1
    if start < end:
        yield start, end


def _is_variable(outline: Outline, index: int) -> bool:
    token = outline.tokens[index]
    if token.kind not in {"word", "quoted"} or outline.word(index) in KEYWORDS or outline.calls(index + 1):
        return False
    is_key = outline.symbol(index + 1) == ":" and outline.bracket(index) == "{"
    return not is_key and outline.calls(outline.opener[index]) not in _FOLDED


def _check_aggregates(outline: Outline, start: int, end: int) -> None:
    """Beside a key, the engine loses the values of what follows an aggregate with DISTINCT and has none itself."""
    calls = [at for at in range(start, end) if outline.calls(at) in AGGREGATES]
    distinct = [at for at in calls if outline.word(at + 1) == "DISTINCT"]
    lost = [at for at in calls if distinct and at > distinct[0] and at not in distinct]
    if lost and _has_key(outline, start, end, calls):
        raise outline.at(
            lost[0] - 1,
            "the engine loses what is counted after an aggregate with DISTINCT; write those with DISTINCT last,"
            " or each kind in a WITH of its own. It stands",
        )


def _has_key(outline: Outline, start: int, end: int, calls: list[int]) -> bool:
    opener = outline.opener[start - 1]
    commas = [at for at in range(start, end) if outline.symbol(at) == "," and outline.opener[at] == opener]
    begins = [start, *(at + 1 for at in commas)]
    return any(not any(first <= at < last for at in calls) for first, last in zip(begins, [*commas, end], strict=True))


def _check_slice(outline: Outline, index: int) -> None:
    """The engine takes it for a slice of the answer to IN."""
    at = index + 1
    while at + 1 < len(outline) and outline.symbol(at + 1) == ".":
        at += 2
    at = outline.partner.get(at, at) + 1
    if outline.symbol(at) == "[" and any(
        outline.symbol(each) == ":" and outline.opener[each] == at for each in range(at, outline.partner[at])
    ):
        raise outline.at(index, "a slice behind IN wants parentheses, as in IN (list[1:2]); the IN stands")
