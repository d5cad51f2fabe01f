from __future__ import annotations

from typing import Any

from bench.ledger import ABSENT, NODES, ImportStream, Ledger, UnitState, WriteUnit


def exported(unit: WriteUnit, state: UnitState) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for key, value in unit.rows(state).items():
        match key:
            case (id_,):
                lines.append({"kind": "node", "id": id_, "content": value})
            case (source, target, relation_type):
                ends = {"from": source, "to": target, "relation_type": relation_type}
                lines.append({"kind": "edge", "weight": value} | ends)
            case _:
                raise AssertionError(key)
    return lines


def written(generation: int = 1) -> tuple[Ledger, WriteUnit]:
    ledger, unit = Ledger("s"), WriteUnit("a", 50, None)
    ledger.attempt(unit, UnitState(generation))
    return ledger, unit


def test_an_unanswered_batch_may_exist_or_not() -> None:
    for state in (ABSENT, UnitState(1)):
        ledger, unit = written()
        assert ledger.verify(exported(unit, state)) == []
        assert unit.allowed == [state]


def test_an_acknowledged_batch_must_exist() -> None:
    ledger, unit = written()
    ledger.acknowledge(unit, UnitState(1))
    assert len(ledger.verify([])) == 1


def test_a_batch_that_was_found_absent_must_stay_absent() -> None:
    ledger, unit = written()
    assert ledger.verify([]) == []
    assert len(ledger.verify(exported(unit, UnitState(1)))) == 1


def test_a_missing_row_or_one_of_another_generation_is_found() -> None:
    for change in ("missing", "older"):
        ledger, unit = written()
        lines = exported(unit, UnitState(1))
        if change == "missing":
            lines.pop()
        else:
            lines[0]["content"] = unit.content(0, 0)
        assert len(ledger.verify(lines)) == 1


def test_unknown_rows_are_found() -> None:
    ledger, unit = written()
    stranger = {"kind": "node", "id": "b/0", "content": ""}
    assert ledger.verify([*exported(unit, UnitState(1)), stranger]) == ["s: never sent: b"]


def test_deleting_the_first_node_deletes_its_edges() -> None:
    unit = WriteUnit("a", 50, "before")
    assert len(unit.rows(UnitState(1))) == NODES + NODES + 1
    assert len(unit.rows(UnitState(1, first=False))) == NODES - 1 + NODES - 2


def test_an_unanswered_import_may_exist_as_a_prefix() -> None:
    stream = ImportStream("i", 5)
    lines = [record for _, record in stream.lines()]
    assert len(lines) == 9
    for count in range(10):
        ledger, stream = Ledger("s"), ImportStream("i", 5)
        ledger.attempt_stream(stream)
        assert ledger.verify(lines[:count]) == []
        assert stream.at_least == stream.at_most == count


def test_an_import_with_a_gap_or_truncated_after_its_answer_is_found() -> None:
    ledger, stream = Ledger("s"), ImportStream("i", 5)
    ledger.attempt_stream(stream)
    lines = [record for _, record in stream.lines()]
    assert len(ledger.verify(lines[1:])) == 1
    ledger.acknowledge_stream(stream)
    assert len(ledger.verify(lines[:-1])) == 1
    assert ledger.verify(lines) == []
