"""What follows a store's journal and meets commits of accesses alone: it moves on, and does nothing else."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from kgserve.embedding.embedder import HashingEmbedder
from kgserve.graph.answers import ChangesPage
from kgserve.graph.history import changes
from kgserve.graph.queries import ChangesQuery
from kgserve.projections.history_follower import Historian
from kgserve.projections.indexes import Indexes
from kgserve.server.mcp.notifications import StoreListener
from kgserve.storage.changefeed import Reader
from kgserve.storage.model.events import Position, Selection
from kgserve.stores.store import OpenStore
from tests.graphs import graph_of
from tests.projections.history.following import SMALL_JOURNAL
from tests.projections.indexing import caught_up, contents, followed, indexed
from tests.stores.test_access_commits import accessed
from tests.stores.writing import NAME, PATIENCE, ask, batch, write


def nothing() -> None:
    """A wake that nobody needs."""


def sealed(store: OpenStore) -> dict[str, int]:
    """When each file of the indexes was last written."""
    files = [path for name in ("keyword", "vector") for path in (store.layout.views / name).rglob("*")]
    return {str(path): path.stat().st_mtime_ns for path in files if path.suffix != ".lock"}


def test_no_index_is_written_for_accesses(tmp_path: Path) -> None:
    with followed(tmp_path) as (store, indexes):
        write(store, batch(*"ab", content="a red fox"))
        caught_up(store, indexes)
        before, found = sealed(store), contents(indexes, HashingEmbedder(), "fox")
        write(store, accessed("a", "b"), accessed("a", count=2))
        caught_up(store, indexes)
        assert indexes.keyword.sequence == indexes.vector.sequence == 3
        assert sealed(store) == before
        assert contents(indexes, HashingEmbedder(), "fox") == found
        write(store, batch("c", content="a fox"), accessed("c"))
        caught_up(store, indexes)
        assert sealed(store) != before
        after = contents(indexes, HashingEmbedder(), "fox")
    with followed(tmp_path) as (store, indexes):
        caught_up(store, indexes)
        assert (contents(indexes, HashingEmbedder(), "fox"), indexes.keyword.sequence) == (after, 5)


def test_indexes_survive_a_journal_that_begins_behind_the_last_row(tmp_path: Path) -> None:
    """Their files go on from the last row; once the journal has let go of that, they must have moved on."""
    with followed(tmp_path, **SMALL_JOURNAL) as (store, indexes):
        many = [f"{number:060d}" for number in range(9_000)]
        write(store, batch(*many), batch("fox", content="a red fox"))
        caught_up(store, indexes)
        for count in range(1, 4):
            write(store, accessed(*many, count=2 * count), accessed(*many, count=2 * count + 1))
            store.compactor.run()
        assert store.journal.oldest > 3
        write(store, accessed("fox"))
        caught_up(store, indexes)
        assert min(_index_sequence(indexes, name) for name in ("keyword", "vector")) >= store.journal.oldest - 1


def _index_sequence(indexes: Indexes, name: str) -> int:
    """The commit that the files of an index go up to."""
    follower = indexes.keyword if name == "keyword" else indexes.vector
    assert follower._index is not None
    return follower._index.sequence


def test_the_history_has_no_state_and_no_moment_for_accesses(tmp_path: Path) -> None:
    with indexed(tmp_path) as (pool, indexer), closing(Historian()) as historian:
        pool.companions.append(historian)
        with pool.lease(NAME, create=True) as store:
            write(store, batch("a"))
            assert historian.of(store).wait(1, PATIENCE)
            before = _rows_of(store)
            write(store, accessed("a"), accessed("a", count=2))
            follower = historian.of(store)
            assert follower.wait(3, PATIENCE)
            assert _rows_of(store) == before
            assert [state.row.id for state in follower.look(lambda of: of.nodes_at(2, None, None, 9))] == ["a"]
            assert follower.look(lambda of: (of.sequence, of.sequence_at(store.state.time))) == (3, 1)
            write(store, batch("b"))
            assert follower.wait(4, PATIENCE)
            assert follower.look(lambda of: of.sequence_at(store.state.time)) == 4
            page = changes(graph_of(pool, NAME, indexer, historian), ChangesQuery())
            assert _told(page) == ([1, 4], None)


def _rows_of(store: OpenStore) -> list[int]:
    with closing(sqlite3.connect(store.layout.root / "history.sqlite")) as connection:
        return [*connection.execute("SELECT (SELECT count(*) FROM node), (SELECT count(*) FROM moment)").fetchone()]


def _told(page: ChangesPage) -> tuple[list[int], int | None]:
    return [entry.sequence for entry in page.changes], page.next_since


def test_changes_pass_over_accesses_page_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with indexed(tmp_path) as (pool, _):
        with pool.lease(NAME, create=True) as store:
            write(store, batch("a"), *(accessed("a", count=count) for count in range(1, 8)), batch("b"), accessed("b"))
        of = graph_of(pool, NAME)
        assert _told(changes(of, ChangesQuery(limit=1))) == ([1], 1)
        assert _told(changes(of, ChangesQuery(since=1, limit=1))) == ([9], 9)
        assert _told(changes(of, ChangesQuery(since=9, limit=1))) == ([], None)
        monkeypatch.setattr("kgserve.graph.history.MAX_SCANNED_COMMITS", 4)
        assert _told(changes(of, ChangesQuery(since=1))) == ([], 5)
        assert _told(changes(of, ChangesQuery(since=5))) == ([9], 9)


def test_listeners_hear_nothing_of_accesses_and_places_stay(tmp_path: Path) -> None:
    with followed(tmp_path) as (store, _):
        write(store, batch("a"))
        live = Reader(store.feed, None, nothing)
        touched = StoreListener(store.feed, nothing)
        write(store, accessed("a"), batch("b", "c"), accessed("b"))
        replayed = Reader(store.feed, Position.after(0), nothing)
        for reader, expected in ((live, ["3-0", "3-1"]), (replayed, ["1-0", "3-0", "3-1"])):
            entries = reader.take(Selection()) or []
            assert [f"{entry.event.sequence}-{entry.event.index}" for entry in entries] == expected
            assert reader.caught_up()
            assert reader.position == Position.after(4)
        assert touched.since({"a", "b"}) == {"b"}
        write(store, accessed("a"))
        assert touched.since({"a", "b"}) is None
        assert touched.since(set()) is None
        write(store, batch("d"))
        assert touched.since({"a"}) == set()
        write(store, batch("e"))
        assert touched.since(set()) == set()
        for each in (live, replayed, touched):
            each.close()


def test_the_engine_gains_a_commit_and_nothing_else(tmp_path: Path) -> None:
    with followed(tmp_path) as (store, _):
        write(store, batch(*(f"n{number}" for number in range(3_000))))
        ask(store)
        kept, before = store.engine.kept_bytes, store.engine.bytes()[1]
        for count in range(1, 51):
            write(store, accessed(*(f"n{number}" for number in range(100)), count=count))
            ask(store)
        assert store.engine.state == store.state
        assert store.engine.kept_bytes == kept
        assert store.engine.bytes()[1] - before < 50 * 2_000
        assert store.listing(lambda catalog, rows: (catalog.sequence, rows.at)) == (51, 51)
