from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.projections.history.row_state_history import HistoryFile
from kgserve.storage.model.change_set import ChangeSet, CrossStoreLinksCountAndDigest
from kgserve.storage.model.node_edge_rows import (
    CrossStoreLinkKey,
    CrossStoreLinkRow,
    EdgeRow,
    NodeRow,
    encode_edge_attributes,
)

FIRST_TIME = 1_700_000_000_000_000


def row(node_id: str, version: int, at: int, content: str = "") -> NodeRow:
    return NodeRow(node_id, "t", content, "{}", version, at, FIRST_TIME, FIRST_TIME + at)


def edge(source: str, target: str, version: int, at: int, *, updated: int = 0) -> EdgeRow:
    attributes = encode_edge_attributes(
        format_rfc3339_timestamp(FIRST_TIME), format_rfc3339_timestamp(FIRST_TIME + updated), "{}"
    )
    return EdgeRow(source, target, "R", 1.0, attributes, version, at)


def change(sequence: int, **rows: list[object]) -> ChangeSet:
    fields = {name: list(value) for name, value in rows.items()}
    return ChangeSet(sequence=sequence, time=FIRST_TIME + sequence, digest=b"", nodes=0, edges=0, **fields)  # pyright: ignore[reportArgumentType]


CHANGES = [
    change(1, nodes_created=[row("a", 1, 1), row("b", 1, 1)], edges_created=[edge("a", "b", 1, 1)]),
    change(2, nodes_updated=[row("a", 2, 2, "two")], edges_touched=[edge("a", "b", 1, 1, updated=2)]),
    change(3, edges_updated=[edge("a", "b", 2, 3)]),
    change(4, nodes_deleted=["a"], edges_deleted=[("a", "b", "R")]),
    change(5, nodes_created=[row("a", 1, 5, "again")]),
]


@pytest.fixture
def history(tmp_path: Path) -> Iterator[HistoryFile]:
    with closing(HistoryFile(tmp_path / "history.sqlite")) as opened:
        opened.take(CHANGES)
        yield opened


def states(history: HistoryFile, node_id: str = "a") -> list[tuple[int, int, int | None]]:
    return [(s.row.version, s.first, s.last) for s in history.node_states(node_id, 100, 100)]


def nodes(history: HistoryFile, at: int) -> dict[str, int]:
    return {state.row.id: state.row.version for state in history.nodes_at(at, None, None, 100)}


def edges(history: HistoryFile, at: int) -> list[int]:
    return [state.row.version for state in history.edges_at(at, ("", "", ""), 100)]


def test_every_state_is_stored_with_its_first_and_last_commit(history: HistoryFile) -> None:
    assert states(history) == [(1, 5, None), (2, 2, 4), (1, 1, 2)]
    assert [nodes(history, at) for at in range(6)] == [
        {},
        {"a": 1, "b": 1},
        {"a": 2, "b": 1},
        {"a": 2, "b": 1},
        {"b": 1},
        {"a": 1, "b": 1},
    ]
    assert [edges(history, at) for at in range(6)] == [[], [1], [1], [2], [], []]
    assert (history.sequence, history.oldest) == (5, 0)


@pytest.mark.parametrize("at", range(7))
def test_all_queries_as_of_a_commit_agree(history: HistoryFile, at: int) -> None:
    listed = nodes(history, at)
    for node_id in ("a", "b", "never there"):
        state = history.node_at(node_id, at)
        assert (state.row.version if state else None) == listed.get(node_id)
    for found in (history.outgoing("a", at, 10), history.incoming("b", at, 10)):
        assert [state.row.version for state in found] == edges(history, at)
    assert history.outgoing("b", at, 10) == history.incoming("a", at, 10) == []


def test_a_touch_updates_the_current_state_without_a_new_one(history: HistoryFile) -> None:
    (state,) = history.outgoing("a", 1, 10)
    assert (state.first, state.last) == (1, 3)
    assert state.row == edge("a", "b", 1, 1, updated=2)


def test_states_have_start_and_end_times(history: HistoryFile) -> None:
    newest, second, _ = history.node_states("a", 100, 100)
    assert (newest.started, newest.ended) == (FIRST_TIME + 5, None)
    assert (second.started, second.ended) == (FIRST_TIME + 2, FIRST_TIME + 4)


@pytest.mark.parametrize(("after_first", "sequence"), [(0, 0), (1, 1), (2, 2), (5, 5), (100, 5), (-10_000, 0)])
def test_the_last_commit_up_to_a_time(history: HistoryFile, after_first: int, sequence: int) -> None:
    assert history.sequence_at(FIRST_TIME + after_first) == sequence


def test_a_repeated_version_resolves_to_the_newer_state(history: HistoryFile) -> None:
    found = history.node_version("a", 1)
    assert found is not None
    assert found.row.content == "again"
    assert history.node_version("a", 3) is None


def test_applying_changes_is_idempotent(history: HistoryFile) -> None:
    before = [states(history), *(nodes(history, at) for at in range(6)), *(edges(history, at) for at in range(6))]
    history.take(CHANGES)
    history.take(CHANGES[2:4])
    assert [states(history), *(nodes(history, n) for n in range(6)), *(edges(history, n) for n in range(6))] == before
    assert history.sequence == 5


def test_a_failed_change_set_is_rolled_back(history: HistoryFile) -> None:
    broken = change(7, nodes_created=[row("d", 1, 7), NodeRow("e", None, "", "{}", 1, 7, 0, 0)])  # type: ignore[arg-type]
    with pytest.raises(sqlite3.IntegrityError):
        history.take([change(6, nodes_created=[row("c", 1, 6)]), broken])
    assert (history.sequence, sorted(nodes(history, 7))) == (5, ["a", "b"])


def test_pagination_in_the_order_of_ids(history: HistoryFile) -> None:
    ids = ["", *(f"n{number:02}" for number in range(10)), "é", "日", "😀"][1:]
    history.take([change(6, nodes_created=[row(node_id, 1, 6) for node_id in reversed(ids)])])
    found: list[str] = []
    while page := history.nodes_at(6, None, found[-1] if found else None, 4):
        found += [state.row.id for state in page]
    assert found == ["a", "b", *ids]
    assert history.nodes_at(6, "another type", None, 10) == []


def test_pruning_deletes_ended_states(history: HistoryFile) -> None:
    assert history.prune(4) == 4
    assert states(history) == [(1, 5, None)]
    assert history.oldest == 4
    assert (nodes(history, 4), nodes(history, 5)) == ({"b": 1}, {"a": 1, "b": 1})
    assert (history.sequence_at(FIRST_TIME + 3), history.sequence_at(FIRST_TIME + 4)) == (0, 4)
    assert history.prune(2) == 0
    assert history.oldest == 4, "what is forgotten stays forgotten"


def test_pruning_keeps_states_current_as_of_the_commit(history: HistoryFile) -> None:
    history.prune(3)
    assert (nodes(history, 3), edges(history, 3)) == ({"a": 2, "b": 1}, [2])


def test_a_history_may_begin_at_a_commit(history: HistoryFile) -> None:
    history.reset_to([row("x", 4, 2), row("y", 1, 9)], [edge("x", "y", 3, 9)], 9, FIRST_TIME + 9)
    assert (history.sequence, history.oldest) == (9, 9)
    assert (nodes(history, 9), edges(history, 9)) == ({"x": 4, "y": 1}, [3])
    assert states(history) == []
    assert (history.sequence_at(FIRST_TIME + 8), history.sequence_at(FIRST_TIME + 9)) == (0, 9)
    history.take([change(10, nodes_updated=[row("x", 5, 10)])])
    assert states(history, "x") == [(5, 10, None), (4, 2, 10)]


def link(source: str, store: str, version: int, at: int, *, updated: int = 0) -> CrossStoreLinkRow:
    return CrossStoreLinkRow(store, edge(source, "x", version, at, updated=updated))


def linked(sequence: int, **rows: list[object]) -> ChangeSet:
    return msgspec.structs.replace(change(sequence, **rows), links=CrossStoreLinksCountAndDigest())


def links(history: HistoryFile, at: int, node_id: str = "") -> list[tuple[str, int]]:
    found = (
        history.links_from(node_id, at, 9) if node_id else history.links_at(at, CrossStoreLinkKey("", ("", "", "")), 9)
    )
    return [(state.row.store, state.row.edge.version) for state in found]


def test_links_have_states_like_edges(history: HistoryFile) -> None:
    more = [
        linked(6, links_created=[link("a", "here", 1, 6), link("a", "there", 1, 6), link("b", "here", 1, 6)]),
        linked(7, links_updated=[link("a", "here", 2, 7)], links_touched=[link("a", "there", 1, 6, updated=7)]),
        linked(8, links_deleted=[CrossStoreLinkKey("here", ("a", "x", "R"))]),
    ]
    history.take(more)
    assert [links(history, at, "a") for at in range(5, 9)] == [
        [],
        [("here", 1), ("there", 1)],
        [("here", 2), ("there", 1)],
        [("there", 1)],
    ]
    assert links(history, 7) == [("here", 2), ("there", 1), ("here", 1)]
    [touched] = history.links_from("a", 8, 9)
    assert touched.row.edge.attributes == edge("a", "x", 1, 6, updated=7).attributes
    assert history.prune(8) == 6
    assert links(history, 8) == [("there", 1), ("here", 1)]
    history.reset_to([], [], 9, FIRST_TIME + 9, [link("a", "here", 5, 3)])
    assert links(history, 9) == [("here", 5)]


def test_reopening_continues_the_history(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    for number, each in enumerate(CHANGES):
        with closing(HistoryFile(path)) as history:
            assert history.sequence == number
            history.take([each])
    with closing(HistoryFile(path)) as history:
        assert states(history) == [(1, 5, None), (2, 2, 4), (1, 1, 2)]


def test_a_foreign_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(sqlite3.DatabaseError):
        HistoryFile(path)


def test_another_database_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE node (id TEXT)")
    with pytest.raises(sqlite3.DatabaseError, match="not a history file"):
        HistoryFile(path)


@pytest.mark.parametrize("value", ["CAST(row || x'00' AS BLOB)", "row || x'00'", "12", "x''"])
def test_a_modified_state_is_detected(history: HistoryFile, value: str) -> None:
    with closing(sqlite3.connect(history.path)) as other, other:
        other.execute(f"UPDATE node SET row = {value} WHERE id = 'b'")  # noqa: S608 - one of the four above
    assert history.node_at("a", 5) is not None
    with pytest.raises(sqlite3.DatabaseError, match="checksum"):
        history.node_at("b", 5)
