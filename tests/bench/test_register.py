"""The linearizability checker, on possible and impossible histories."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import permutations
from typing import Any

import pytest

from bench.register import (
    READ,
    LinearizabilityChecker,
    Operation,
    Register,
    RegisterStep,
    State,
    apply_step,
    find_misordered_commits,
)

NEVER = 99.0


def read(start: float, end: float, *shown: int, **more: Any) -> Operation:
    answer = None if not shown else (shown[0], shown[1] if len(shown) > 1 else 1)
    return Operation(step=READ, start=start, end=end, answer=answer, **more)


def inject(start: float, end: float, value: int, **more: Any) -> Operation:
    return Operation(step=RegisterStep(kind="inject", value=value), start=start, end=end, answer=True, **more)


def update(start: float, end: float, value: int, **more: Any) -> Operation:
    """Return an inject that updated an existing key."""
    return Operation(step=RegisterStep(kind="inject", value=value), start=start, end=end, answer=False, **more)


def put(start: float, end: float, value: int, based_on: int | None, *answer: int) -> Operation:
    step = RegisterStep(kind="put", value=value, based_on=based_on)
    return Operation(step=step, start=start, end=end, answer=(answer[0], bool(answer[1])))


def delete(start: float, end: float, *, existed: bool = True) -> Operation:
    return Operation(step=RegisterStep(kind="delete"), start=start, end=end, answer=existed)


def lost(operation: Operation) -> Operation:
    """Return the operation without its answer."""
    operation.unknown, operation.answer, operation.end = True, None, NEVER
    return operation


def lacks(start: float, end: float, value: int, *after: int) -> Operation:
    """Return a search that did not find a value."""
    step = RegisterStep(kind="lacks", value=value)
    return Operation(step=step, start=start, end=end, answer=True, after=frozenset(after))


POSSIBLE = {
    "read of nothing": [read(0, 1)],
    "one after the other": [inject(0, 1, 7), read(2, 3, 7), delete(4, 5), read(6, 7), delete(8, 9, existed=False)],
    "a read concurrent with a write may see it or not": [inject(0, 9, 7), read(1, 2), read(3, 4, 7)],
    "two writes at once, in the other order": [update(0, 9, 7), inject(1, 8, 8), read(10, 11, 7, 2)],
    "an unanswered write may have taken effect": [lost(inject(0, 1, 7)), read(2, 3), read(4, 5, 7)],
    "or may not": [lost(inject(0, 1, 7)), read(2, 3), read(NEVER + 1, NEVER + 2)],
    "a put that conflicts with another": [put(0, 1, 7, None, 1, 0), put(2, 3, 8, 1, 2, 0), put(4, 5, 9, 1, 3, 1)],
    "a put that resolves the conflict": [
        *(put(0, 1, 7, None, 1, 0), put(2, 3, 8, None, 2, 0), put(4, 5, 9, 1, 3, 1)),
        *(update(5, 6, 10), put(7, 8, 11, 2, 5, 0), put(9, 10, 12, 4, 6, 1)),
    ],
    "a search does not find what was replaced": [inject(0, 1, 7), update(2, 3, 8), lacks(0, 4, 7, 0), lacks(0, 4, 9)],
    "a search may show what has been replaced since": [
        *(inject(0, 1, 7), update(2, 3, 8), read(4, 5, 8, 2)),
        read(0, 7, 7, after=frozenset({0})),
    ],
}

IMPOSSIBLE = {
    "a write that was never sent": [read(0, 1, 7)],
    "a write is forgotten": [inject(0, 1, 7), read(2, 3)],
    "an old value": [inject(0, 1, 7), update(2, 3, 8), read(4, 5, 7)],
    "back again": [inject(0, 9, 7), read(1, 2, 7), read(3, 4)],
    "two readers disagree on the order": [
        *(update(0, 9, 7), inject(0, 9, 8), read(1, 2, 8), read(3, 4, 7, 2), read(5, 6, 8)),
    ],
    "both created it": [inject(0, 9, 7), inject(0, 9, 8)],
    "deleted twice": [inject(0, 1, 7), delete(2, 9), delete(2, 9)],
    "a version is left out": [inject(0, 1, 7), update(2, 3, 8), read(4, 5, 8, 3)],
    "an update is lost": [put(0, 1, 7, None, 1, 0), put(2, 9, 8, 1, 2, 0), put(2, 9, 9, 1, 2, 0)],
    "an unanswered write appears, disappears, and appears again": [
        *(lost(inject(0, 1, 7)), read(2, 3, 7), delete(4, 5), read(6, 7, 7)),
    ],
    "a write that died with the server takes effect later": [
        *(lost(inject(0, 1, 7)), read(NEVER + 1, NEVER + 2), read(NEVER + 3, NEVER + 4, 7)),
    ],
    "a search without the commit that it waited for": [
        *(inject(0, 1, 7), update(2, 3, 8)),
        read(2, 7, 7, after=frozenset({0, 1})),
    ],
    "a search misses an existing value": [inject(0, 1, 7), lacks(0, 3, 7, 0), update(4, 5, 8)],
    "a search that shows a later write": [inject(0, 1, 7), read(0, 3, 8, 2), update(4, 5, 8)],
}


@pytest.mark.parametrize("name", POSSIBLE)
def test_possible_histories_pass(name: str) -> None:
    assert LinearizabilityChecker(POSSIBLE[name]).violation() is None


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_histories_are_found(name: str) -> None:
    found = LinearizabilityChecker(IMPOSSIBLE[name]).violation()
    assert found
    assert "the register may have held" in found


def test_the_checker_agrees_with_trying_all_orders() -> None:
    choice = random.Random(3)
    verdicts: list[bool] = []
    for _ in range(1500):
        history = [_made_up(choice, value) for value in range(1, choice.randint(3, 6))]
        verdicts.append(_some_order_fits(history))
        assert (LinearizabilityChecker(history).violation() is None) == verdicts[-1], [str(each) for each in history]
    assert 200 < sum(verdicts) < 1300


def _made_up(choice: random.Random, value: int) -> Operation:
    kind = choice.choice(("read", "lacks", "inject", "put", "set", "delete"))
    start, took = choice.uniform(0, 5), choice.uniform(0, 3)
    value = choice.randint(1, 5) if kind == "lacks" else value
    step = RegisterStep(kind=kind, value=0 if kind in ("read", "delete") else value)
    if kind == "put" and choice.random() < 0.7:
        step = RegisterStep(kind=kind, value=value, based_on=choice.randint(1, 2))
    register = choice.choice((None, Register(choice.randint(1, 5), choice.randint(1, 2))))
    answer = apply_step(register, step)[1]
    unknown = kind not in ("read", "lacks") and choice.random() < 0.3
    return Operation(step=step, start=start, end=start + took, answer=None if unknown else answer, unknown=unknown)


def _some_order_fits(history: Sequence[Operation]) -> bool:
    unknown = [each for each in history if each.unknown]
    for chosen in range(1 << len(unknown)):
        happened = [each for each in history if not each.unknown or chosen >> unknown.index(each) & 1]
        if any(map(_fits, permutations(happened))):
            return True
    return False


def _fits(order: Sequence[Operation]) -> bool:
    register: State = None
    latest = 0.0
    for each in order:
        if each.end < latest:
            return False
        latest = max(latest, each.start)
        register, answer = apply_step(register, each.step)
        if not each.unknown and answer != each.answer:
            return False
    return True


def test_commits_are_in_the_order_of_writes() -> None:
    first, second = inject(0, 1, 7, sequence=4), update(2, 3, 8, sequence=5)
    shown = read(4, 5, 8, 2, sequence=5)
    assert find_misordered_commits([first, second, shown]) == []
    assert len(find_misordered_commits([first, update(2, 3, 8, sequence=4)])) == 1
    assert len(find_misordered_commits([second, update(4, 5, 9, sequence=3)])) == 1
    assert len(find_misordered_commits([first, second, read(4, 5, 8, 2, sequence=4)])) == 1
    assert find_misordered_commits([inject(0, 9, 7, sequence=5), inject(1, 2, 8, sequence=4)]) == []
