"""The checker of a cluster's history finds each kind of fault, and no fault in a correct history."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bench.cluster_history import Operation, find_violations, first_write_gap

FIRST = Operation("s", "write", 1, 0.0, 1.0, sequence=1)
SECOND = Operation("s", "write", 2, 2.0, 3.0, sequence=2)
LOOK = Operation("s", "read", 2, 4.0, 5.0, sequence=2)
END = {1: 1, 2: 2}


def found(history: list[Operation], *ends: dict[int, int]) -> list[str]:
    nodes = {f"k{number}": {"s": end} for number, end in enumerate(ends or (END, END))}
    return [each.kind for each in find_violations(history, nodes)]


def test_a_correct_history_passes() -> None:
    unknown = Operation("s", "write", 3, 3.5, 6.0, "unknown")
    refused = Operation("s", "write", 4, 6.5, 7.0, "fail")
    assert found([FIRST, SECOND, LOOK]) == []
    assert found([FIRST, SECOND, unknown, LOOK, refused]) == []
    assert found([FIRST, SECOND, unknown, LOOK], END | {3: 3}) == []


def test_overlapping_writes_may_commit_in_any_order() -> None:
    assert found([replace(FIRST, ended=9.0, sequence=2), replace(SECOND, sequence=1)], {1: 2, 2: 1}) == []
    assert found([replace(FIRST, ended=9.0), replace(SECOND, sequence=2), replace(LOOK, value=1, sequence=2)]) == []


def test_an_unanswered_write_may_take_effect_late() -> None:
    assert found([replace(FIRST, outcome="unknown"), replace(SECOND, sequence=1)], {1: 2, 2: 1}) == []


def test_a_retrying_client_may_write_twice() -> None:
    assert found([FIRST, replace(SECOND, sequence=3, repeated=True)]) == []


@pytest.mark.parametrize(
    ("kind", "history", "end"),
    [
        ("lost", [FIRST, SECOND], {1: 1}),
        ("lost", [FIRST, replace(LOOK, value=7)], {1: 1}),
        ("doubled", [FIRST, SECOND], {1: 1, 2: 3}),
        ("doubled", [FIRST, replace(SECOND, began=0.5, sequence=1, repeated=True)], END),
        ("doubled", [FIRST, replace(SECOND, outcome="unknown", began=0.5)], {1: 1, 2: 1}),
        ("reordered", [replace(FIRST, sequence=2), replace(SECOND, sequence=1)], {1: 2, 2: 1}),
        ("reordered", [replace(FIRST, sequence=5), replace(SECOND, outcome="unknown")], {1: 5, 2: 4}),
        ("stale", [FIRST, SECOND, replace(LOOK, value=1, sequence=1)], END),
        (
            "non_monotonic",
            [FIRST, replace(SECOND, outcome="unknown"), LOOK, replace(LOOK, began=6, ended=7, sequence=1)],
            END,
        ),
        ("rejected", [FIRST, replace(SECOND, outcome="fail")], END),
    ],
)
def test_each_kind_of_fault_is_found(kind: str, history: list[Operation], end: dict[int, int]) -> None:
    assert found(history, end) == [kind]


def test_differing_nodes_are_found() -> None:
    assert found([FIRST, SECOND], END, {1: 1}) == ["differing"]


def test_stores_are_checked_separately() -> None:
    elsewhere = replace(SECOND, store="t", sequence=1)
    assert find_violations([FIRST, elsewhere], {"k0": {"s": {1: 1}, "t": {2: 1}}}) == []


def test_a_gap_ends_with_the_first_acknowledged_write_that_began_in_it() -> None:
    refused = Operation("s", "write", 3, 1.5, 1.6, "fail")
    assert first_write_gap([FIRST, refused, SECOND, LOOK], 0.5) == 2.5
    assert first_write_gap([FIRST, refused], 0.5) is None
