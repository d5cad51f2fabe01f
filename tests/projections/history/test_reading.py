from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from kgserve.projections.history.history_sql import HISTORY_SCHEMA
from kgserve.projections.history.reader import EndedStateReadPosition, read_ended_node_states
from kgserve.storage.model.write_batch import WriteBatch
from tests.projections.history.following import StoreWithHistory, kept, node
from tests.stores.writing import batch, layout, write


def fill(of: StoreWithHistory) -> None:
    """Write five nodes, update all in the second commit; the third deletes one and changes another."""
    ids = [f"n{number}" for number in range(5)]
    write(of.store, batch(*ids, content="old"), batch(*ids, content="new"))
    write(of.store, WriteBatch(delete_nodes=["n1"]), node("n3", "newer"), node("m", "alone"))
    of.caught_up()


def test_ended_states_are_ordered_by_end_for_any_page_size(tmp_path: Path) -> None:
    path = layout(tmp_path).root / "history.sqlite"
    with kept(tmp_path) as of:
        fill(of)
        for limit in (1, 2, 3, 5, 100):
            place, states, reached = EndedStateReadPosition(1), list[tuple[int, str]](), 0
            while reached < 5:
                found = read_ended_node_states(path, place, limit)
                assert found is not None
                assert (found.seen, found.oldest) == (5, 0)
                place, reached = found.place, found.sequence
                states += [(state.last or 0, state.row.id) for state in found.states]
                # No state that ended by then is still to be returned.
                assert len([last for last, _ in states if last <= reached]) == sum(
                    count for last, count in ((2, 5), (3, 1), (4, 1)) if last <= reached
                )
            assert states == [*((2, f"n{number}") for number in range(5)), (3, "n1"), (4, "n3")]


def test_reading_continues_at_its_position(tmp_path: Path) -> None:
    path = layout(tmp_path).root / "history.sqlite"
    with kept(tmp_path) as of:
        fill(of)
        found = read_ended_node_states(path, EndedStateReadPosition(4), 100)
        assert found is not None
        assert [state.row.id for state in found.states] == ["n3"]
        write(of.store, node("m", "no longer alone"))
        of.caught_up()
        again = read_ended_node_states(path, found.place, 100)
        assert again is not None
        assert [(state.row.content, state.first, state.last) for state in again.states] == [("alone", 5, 6)]


def test_reading_without_a_history_returns_none(tmp_path: Path) -> None:
    assert read_ended_node_states(tmp_path / "none.sqlite", EndedStateReadPosition(1), 10) is None
    (tmp_path / "empty.sqlite").touch()
    assert read_ended_node_states(tmp_path / "empty.sqlite", EndedStateReadPosition(1), 10) is None


def test_reading_during_creation_returns_none(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    making, row, rest = HISTORY_SCHEMA.partition("INSERT")
    with closing(sqlite3.connect(path)) as connection:
        for statement in making.split(";"):
            assert read_ended_node_states(path, EndedStateReadPosition(1), 10) is None
            connection.execute(statement)
        connection.executescript(row + rest)
    found = read_ended_node_states(path, EndedStateReadPosition(1), 10)
    assert found is not None
    assert (found.states, found.seen) == ([], 0)
