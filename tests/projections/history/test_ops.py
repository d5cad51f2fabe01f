from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from kgserve.errors import Conflict, Gone, InvalidInput, NotFound, Unavailable
from kgserve.graph.answers import NodeHistoryState
from kgserve.graph.as_of_graph import PastMoment
from kgserve.graph.history_queries import get_node_history, get_node_version, list_changes, revert_node
from kgserve.graph.request_bodies import PointInTimeRestoreRequest, TraverseRequest
from kgserve.graph.transfer.import_export import open_store_export_stream, restore_past_state_to_new_store
from kgserve.graph.url_parameters import (
    NodeHistoryRequest,
    NodeListParameters,
    RevertNodeRequest,
    StoreChangesParameters,
)
from kgserve.storage.model.write_batch import WriteBatch
from tests.graphs import graph_of, node_of, nodes_of, walked
from tests.projections.history.following import SMALL_JOURNAL, StoreWithHistory, kept, node
from tests.stores.writing import NAME, PATIENCE, batch, opened, write


def history_of(
    of: StoreWithHistory, node_id: str, limit: int = 100, before: int | None = None
) -> list[NodeHistoryState]:
    return get_node_history(
        graph_of(of.pool, NAME, historian=of.historian), NodeHistoryRequest(node_id=node_id, limit=limit, before=before)
    ).states


def lines(of: StoreWithHistory, store: str, as_of: str) -> list[bytes]:
    with open_store_export_stream(graph_of(of.pool, store), past=PastMoment(of.historian, as_of)) as stream:
        return sorted(line for block in stream for line in block.splitlines())


def test_each_state_lists_its_changed_fields(tmp_path: Path) -> None:
    with kept(tmp_path) as of:
        write(
            of.store,
            node("a", "one", attributes='{"kept":[1],"removed":null,"turned":{"x":1}}'),
            node("a", "two", "other", '{"added":2.5,"kept":[1],"turned":{"x":2}}'),
            node("a", "two", None, '{"added":2.5,"kept":[1],"turned":{"x":2}}'),
            node("a", "three", None),
        )
        newest, second, first = history_of(of, "a")
        assert [(change.path, change.before, change.after) for change in newest.diff] == [("content", "two", "three")]
        found = {change.path: (change.before, change.after) for change in second.diff}
        assert found.pop("attributes.turned") == ({"x": 1}, {"x": 2})
        assert found.pop("attributes.added") == (None, 2.5)
        assert found.pop("content") == ("one", "two")
        assert found.pop("type") == ("t", "other")
        assert found == {"attributes.removed": (None, None)}
        assert first.diff == []
        assert [state.node.version for state in (newest, second, first)] == [3, 2, 1]
        assert (second.recorded_to, newest.recorded_to) == (newest.recorded_from, None)


@pytest.mark.parametrize(("before", "after"), [('{"x":null}', "{}"), ('{"x":1}', '{"x":true}'), ("{}", '{"x":null}')])
def test_values_equal_in_python_but_not_in_json_are_changes(tmp_path: Path, before: str, after: str) -> None:
    with kept(tmp_path) as of:
        write(of.store, node("a", "", attributes=before), node("a", "", attributes=after))
        (newest, _) = history_of(of, "a")
        assert [change.path for change in newest.diff] == ["attributes.x"]


def test_a_node_deleted_and_created_again(tmp_path: Path) -> None:
    with kept(tmp_path) as of:
        write(of.store, node("a", "1"), node("a", "2"), WriteBatch(delete_nodes=["a"]), node("b", ""), node("a", "3"))
        states = history_of(of, "a")
        assert [(s.from_sequence, s.to_sequence, s.deleted, len(s.diff)) for s in states] == [
            (5, None, False, 0),
            (2, 3, True, 1),
            (1, 2, False, 0),
        ]
        for limit in (1, 2):
            assert paged(of, "a", limit) == states
        write(of.store, WriteBatch(delete_nodes=["a"]))
        assert history_of(of, "a")[0].deleted
        with pytest.raises(NotFound):
            node_of(graph_of(of.pool, NAME), "a")


def test_a_node_deleted_and_created_again_in_one_write(tmp_path: Path) -> None:
    with kept(tmp_path) as of:
        once = WriteBatch(delete_nodes=["a"], nodes=node("a", "2").nodes)
        write(of.store, node("a", "1"), once)
        newest, oldest = history_of(of, "a")
        assert (newest.node.content, newest.node.version, newest.from_sequence) == ("2", 2, 2)
        assert (oldest.node.content, oldest.to_sequence) == ("1", 2)


def paged(of: StoreWithHistory, node_id: str, limit: int) -> list[NodeHistoryState]:
    found: list[NodeHistoryState] = []
    before = None
    while True:
        page = get_node_history(
            graph_of(of.pool, NAME, historian=of.historian),
            NodeHistoryRequest(node_id=node_id, limit=limit, before=before),
        )
        assert len(page.states) <= limit
        found += page.states
        if page.next_before is None:
            return found
        before = page.next_before


def test_pagination_returns_every_state_once(tmp_path: Path) -> None:
    with kept(tmp_path) as of:
        write(of.store, *(node("a", f"{number}") for number in range(25)))
        whole = history_of(of, "a")
        assert [state.node.version for state in whole] == list(range(25, 0, -1))
        for limit in (1, 4, 5, 24, 25, 200):
            assert paged(of, "a", limit) == whole


def test_history_rejects_invalid_requests(tmp_path: Path) -> None:
    with kept(tmp_path) as of:
        write(of.store, node("a", "1"))
        with pytest.raises(NotFound, match="'never'"):
            history_of(of, "never")
        with pytest.raises(NotFound, match="version 2"):
            get_node_version(graph_of(of.pool, NAME, historian=of.historian), "a", 2)
        with pytest.raises(NotFound, match="version 2"):
            revert_node(graph_of(of.pool, NAME, historian=of.historian), RevertNodeRequest(node_id="a", version=2))


def test_a_version_is_a_state_of_the_node(tmp_path: Path) -> None:
    with kept(tmp_path) as of:
        write(of.store, *(node("a", f"{number}") for number in range(3)), WriteBatch(delete_nodes=["a"]))
        for version in (1, 2, 3):
            found = get_node_version(graph_of(of.pool, NAME, historian=of.historian), "a", version)
            assert (found.node.content, found.node.version) == (f"{version - 1}", version)
            assert (found.outgoing, found.incoming) == ([], [])


def test_revert_creates_a_new_state(tmp_path: Path) -> None:
    with kept(tmp_path) as of:
        write(of.store, node("a", "one", "x", '{"n":1}'), node("a", "", "y", "{}"))
        answer = revert_node(
            graph_of(of.pool, NAME, historian=of.historian), RevertNodeRequest(node_id="a", version=1)
        ).result(PATIENCE)
        assert (answer.nodes_updated, answer.sequence) == (1, 3)
        found = node_of(graph_of(of.pool, NAME), "a").node
        assert (found.type, found.content, found.attributes, found.version) == ("x", "one", {"n": 1}, 3)
        revert_node(graph_of(of.pool, NAME, historian=of.historian), RevertNodeRequest(node_id="a", version=2)).result(
            PATIENCE
        )
        found = node_of(graph_of(of.pool, NAME), "a").node
        assert (found.type, found.content, found.attributes, found.version) == ("y", "", {}, 4)
        again = revert_node(
            graph_of(of.pool, NAME, historian=of.historian), RevertNodeRequest(node_id="a", version=4)
        ).result(PATIENCE)
        assert (again.nodes_unchanged, again.sequence) == (1, 4)


def test_revert_restores_a_deleted_node(tmp_path: Path) -> None:
    with kept(tmp_path) as of:
        write(of.store, node("a", "one"), node("a", "two"), WriteBatch(delete_nodes=["a"]))
        answer = revert_node(
            graph_of(of.pool, NAME, historian=of.historian), RevertNodeRequest(node_id="a", version=2)
        ).result(PATIENCE)
        assert answer.nodes_created == 1
        assert node_of(graph_of(of.pool, NAME), "a").node.content == "two"


def test_a_future_as_of_is_the_current_state(tmp_path: Path) -> None:
    with kept(tmp_path) as of:
        write(of.store, node("a", "1"), node("a", "2"))
        for as_of in ("2", "3", "999999999999999999", "9999-12-31T23:59:59Z"):
            assert node_of(graph_of(of.pool, NAME, historian=of.historian), "a", as_of=as_of).node.content == "2"


def test_as_of_a_time_preceding_the_first_commit_is_empty(tmp_path: Path) -> None:
    with kept(tmp_path) as of:
        write(of.store, batch("a", "b", edges=[("a", "b", "R")]))
        for as_of in ("0", "1970-01-01T00:00:00Z", "0001-01-01T00:00:00Z"):
            assert (
                nodes_of(
                    graph_of(of.pool, NAME, historian=of.historian), NodeListParameters(limit=10, as_of=as_of)
                ).nodes
                == []
            )
            assert lines(of, NAME, as_of) == []
            with pytest.raises(NotFound, match="as of"):
                node_of(graph_of(of.pool, NAME, historian=of.historian), "a", as_of=as_of)
            found = walked(graph_of(of.pool, NAME, historian=of.historian), TraverseRequest(start_id="a", as_of=as_of))
            assert (found.nodes, found.sequence) == ([], 0)


@pytest.mark.parametrize("as_of", ["", " 1", "-1", "1.0", "1e3", "²", "yesterday", "2025-07-15", "1" * 19])
def test_an_invalid_as_of_is_rejected(tmp_path: Path, as_of: str) -> None:
    with kept(tmp_path) as of:
        write(of.store, node("a", "1"))
        with pytest.raises(InvalidInput, match="as_of: must be a sequence or a time"):
            node_of(graph_of(of.pool, NAME, historian=of.historian), "a", as_of=as_of)


def test_without_a_history_only_the_current_state_is_readable(tmp_path: Path) -> None:
    with opened(tmp_path), kept(tmp_path / "other") as of:
        write(of.store, node("a", "1"))
        for ask in (
            lambda: node_of(graph_of(of.pool, NAME, historian=None), "a", as_of="1"),
            lambda: open_store_export_stream(graph_of(of.pool, NAME), past=PastMoment(None, "1")),
            lambda: get_node_history(
                graph_of(of.pool, NAME, historian=None), NodeHistoryRequest(node_id="a", limit=10, before=None)
            ),
            lambda: get_node_version(graph_of(of.pool, NAME, historian=None), "a", 1),
            lambda: revert_node(graph_of(of.pool, NAME, historian=None), RevertNodeRequest(node_id="a", version=1)),
            lambda: restore_past_state_to_new_store(
                graph_of(of.pool, NAME, historian=None), PointInTimeRestoreRequest(as_of="1", into="other")
            ),
            lambda: walked(graph_of(of.pool, NAME, historian=None), TraverseRequest(start_id="a", as_of="1")),
        ):
            with pytest.raises(Conflict, match="turned off"):
                ask()
        assert len(list_changes(graph_of(of.pool, NAME), StoreChangesParameters(since=0, limit=10)).changes) == 1, (
            "the journal has these"
        )


def test_pagination_of_changes(tmp_path: Path) -> None:
    with kept(tmp_path) as of:
        write(of.store, *(node("a", f"{number}") for number in range(7)))
        write(of.store, batch("b", edges=[("a", "b", "R")]), WriteBatch(delete_nodes=["b"]))
        since: int | None = 0
        seen: list[int] = []
        while since is not None:
            page = list_changes(graph_of(of.pool, NAME), StoreChangesParameters(since=since, limit=4))
            assert page.sequence == 9
            seen += [entry.sequence for entry in page.changes]
            since = page.next_since
        assert seen == list(range(1, 10))
        created, deleted = list_changes(graph_of(of.pool, NAME), StoreChangesParameters(since=7, limit=10)).changes
        assert ([n.id for n in created.nodes_created], [e.target for e in created.edges_created]) == (["b"], ["b"])
        assert (deleted.nodes_deleted, [e.source for e in deleted.edges_deleted], deleted.rows) == (["b"], ["a"], 2)
        assert list_changes(graph_of(of.pool, NAME), StoreChangesParameters(since=9, limit=10)).changes == []
        with pytest.raises(Gone, match="ends at sequence 9"):
            list_changes(graph_of(of.pool, NAME), StoreChangesParameters(since=10_000, limit=10))


def test_a_large_change_reports_only_its_size(tmp_path: Path) -> None:
    with kept(tmp_path) as of:
        write(of.store, batch(*(f"n{number}" for number in range(1001))))
        (entry,) = list_changes(graph_of(of.pool, NAME), StoreChangesParameters(since=0, limit=10)).changes
        assert (entry.rows, entry.truncated, entry.nodes_created) == (1001, True, [])


def test_changes_beyond_the_journal(tmp_path: Path) -> None:
    with kept(tmp_path, **SMALL_JOURNAL) as of:
        for number in range(12):
            write(of.store, node("a", f"{number} {'x' * 250_000}"))
            of.caught_up()
            if number % 4 == 3:
                of.store.compactor.run()
        oldest = of.store.journal.oldest
        assert oldest > 2
        with pytest.raises(Gone) as caught:
            list_changes(graph_of(of.pool, NAME), StoreChangesParameters(since=0, limit=10))
        assert caught.value.oldest == oldest
        assert (
            list_changes(graph_of(of.pool, NAME), StoreChangesParameters(since=oldest - 1, limit=1)).changes[0].sequence
            == oldest
        )
        assert len(history_of(of, "a")) == 12, "the history has them all the same"


def test_restore_creates_an_equal_store(tmp_path: Path) -> None:
    with kept(tmp_path) as of:
        write(of.store, node("a", "1"), node("a", "2", attributes='{"x":[1,"ü"]}'))
        write(of.store, batch("b", "ü/\n", edges=[("a", "b", "R"), ("b", "b", "self")]), node("b", "text"))
        as_it_was = lines(of, NAME, "4")
        write(of.store, WriteBatch(delete_nodes=["a"]), node("c", "new"))
        answer = restore_past_state_to_new_store(
            graph_of(of.pool, NAME, historian=of.historian), PointInTimeRestoreRequest(as_of="4", into="then")
        )
        assert (answer.name, answer.nodes, answer.edges, answer.from_sequence) == ("then", 3, 2, 4)
        assert lines(of, "then", f"{answer.sequence}") == as_it_was
        assert msgspec.json.decode(as_it_was[-1])["version"] >= 1
        with of.pool.lease("then") as then:
            found = node_of(graph_of(of.pool, "then"), "a").node
            assert (found.version, found.content) == (2, "2")
            assert then.state.sequence == answer.sequence
        assert of.store.state.sequence == 6


def test_restore_of_a_complete_store_has_the_same_content_digest(tmp_path: Path) -> None:
    with kept(tmp_path) as of:
        nodes = [f"n{number}" for number in range(6000)]
        write(of.store, batch(*nodes, edges=[(a, b, "R") for a, b in pairwise(nodes)]))
        answer = restore_past_state_to_new_store(
            graph_of(of.pool, NAME, historian=of.historian), PointInTimeRestoreRequest(as_of="1", into="then")
        )
        assert (answer.nodes, answer.edges) == (6000, 5999)
        assert lines(of, "then", f"{answer.sequence}") == lines(of, NAME, "1")


def test_restore_never_writes_into_an_existing_store(tmp_path: Path) -> None:
    with kept(tmp_path) as of:
        write(of.store, node("a", "1"))
        for into in (NAME, "other"):
            of.pool.create(into)
            with pytest.raises(Conflict, match=into):
                restore_past_state_to_new_store(
                    graph_of(of.pool, NAME, historian=of.historian), PointInTimeRestoreRequest(as_of="1", into=into)
                )
        with pytest.raises(NotFound):
            restore_past_state_to_new_store(
                graph_of(of.pool, "never-there", historian=of.historian),
                PointInTimeRestoreRequest(as_of="1", into="new"),
            )
        for request in (
            PointInTimeRestoreRequest(as_of="1", into="../x"),
            PointInTimeRestoreRequest(as_of="then", into="new"),
        ):
            with pytest.raises(InvalidInput):
                restore_past_state_to_new_store(graph_of(of.pool, NAME, historian=of.historian), request)
        with pytest.raises(NotFound):
            node_of(graph_of(of.pool, "new"), "a")


def test_a_failed_restore_leaves_no_store(tmp_path: Path) -> None:
    with kept(tmp_path) as of:
        write(of.store, batch("a", "b", edges=[("a", "b", "R")]))
        of.caught_up()
        with closing(sqlite3.connect(of.store.layout.root / "history.sqlite")) as other, other:
            other.execute("UPDATE edge SET hash = hash + 1")
        with pytest.raises(Unavailable, match="damaged"):
            restore_past_state_to_new_store(
                graph_of(of.pool, NAME, historian=of.historian), PointInTimeRestoreRequest(as_of="1", into="then")
            )
        with pytest.raises(NotFound):
            node_of(graph_of(of.pool, "then"), "a")
