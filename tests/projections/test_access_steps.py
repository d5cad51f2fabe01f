"""Projections that meet commits with only accesses: they advance and change nothing else."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from kgserve.embedding.embedder import HashingEmbedder
from kgserve.graph.answers import ChangesPage
from kgserve.graph.history_queries import list_changes
from kgserve.graph.url_parameters import StoreChangesParameters
from kgserve.projections.history_follower import HistoryWorker
from kgserve.projections.text_indexes import CurrentAndPastTextIndexes
from kgserve.server.mcp.notifications import NewCommitReader
from kgserve.storage.changefeed import ChangeFeedReader
from kgserve.storage.model.change_feed_events import ChangeFeedEventFilter, FeedPosition
from kgserve.stores.open_store import OpenStore
from tests.graphs import graph_of
from tests.projections.history.following import SMALL_JOURNAL
from tests.projections.indexing import caught_up, contents, followed, indexed
from tests.stores.test_access_commits import accessed
from tests.stores.writing import NAME, PATIENCE, ask, batch, write


def nothing() -> None:
    """Do nothing when woken."""


def sealed(store: OpenStore) -> dict[str, int]:
    """Return the modification time of each index file."""
    files = [path for name in ("keyword", "vector") for path in (store.layout.views / name).rglob("*")]
    return {str(path): path.stat().st_mtime_ns for path in files if path.suffix != ".lock"}


def test_accesses_write_no_index_files(tmp_path: Path) -> None:
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


def test_indexes_survive_a_journal_truncated_after_the_last_row(tmp_path: Path) -> None:
    """Their position must have advanced past the last row once the journal no longer contains it."""
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


def _index_sequence(indexes: CurrentAndPastTextIndexes, name: str) -> int:
    """Return the commit that the files of an index contain."""
    follower = indexes.keyword if name == "keyword" else indexes.vector
    assert follower._index is not None
    return follower._index.sequence


def test_the_history_records_nothing_for_accesses(tmp_path: Path) -> None:
    with indexed(tmp_path) as (pool, indexer), closing(HistoryWorker()) as historian:
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
            page = list_changes(graph_of(pool, NAME, indexer, historian), StoreChangesParameters())
            assert _sequences_and_next(page) == ([1, 4], None)


def _rows_of(store: OpenStore) -> list[int]:
    with closing(sqlite3.connect(store.layout.root / "history.sqlite")) as connection:
        return [*connection.execute("SELECT (SELECT count(*) FROM node), (SELECT count(*) FROM moment)").fetchone()]


def _sequences_and_next(page: ChangesPage) -> tuple[list[int], int | None]:
    return [entry.sequence for entry in page.changes], page.next_since


def test_change_pages_skip_accesses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with indexed(tmp_path) as (pool, _):
        with pool.lease(NAME, create=True) as store:
            write(store, batch("a"), *(accessed("a", count=count) for count in range(1, 8)), batch("b"), accessed("b"))
        of = graph_of(pool, NAME)
        assert _sequences_and_next(list_changes(of, StoreChangesParameters(limit=1))) == ([1], 1)
        assert _sequences_and_next(list_changes(of, StoreChangesParameters(since=1, limit=1))) == ([9], 9)
        assert _sequences_and_next(list_changes(of, StoreChangesParameters(since=9, limit=1))) == ([], None)
        monkeypatch.setattr("kgserve.graph.history_queries.MAX_SCANNED_COMMITS", 4)
        assert _sequences_and_next(list_changes(of, StoreChangesParameters(since=1))) == ([], 5)
        assert _sequences_and_next(list_changes(of, StoreChangesParameters(since=5))) == ([9], 9)


def test_event_listeners_skip_accesses_and_keep_their_positions(tmp_path: Path) -> None:
    with followed(tmp_path) as (store, _):
        write(store, batch("a"))
        live = ChangeFeedReader(store.feed, None, nothing)
        touched = NewCommitReader(store.feed, nothing)
        write(store, accessed("a"), batch("b", "c"), accessed("b"))
        replayed = ChangeFeedReader(store.feed, FeedPosition.after(0), nothing)
        for reader, expected in ((live, ["3-0", "3-1"]), (replayed, ["1-0", "3-0", "3-1"])):
            entries = reader.take(ChangeFeedEventFilter()) or []
            assert [f"{entry.event.sequence}-{entry.event.index}" for entry in entries] == expected
            assert reader.is_caught_up()
            assert reader.position == FeedPosition.after(4)
        assert touched.touched_nodes({"a", "b"}) == {"b"}
        write(store, accessed("a"))
        assert touched.touched_nodes({"a", "b"}) is None
        assert touched.touched_nodes(set()) is None
        write(store, batch("d"))
        assert touched.touched_nodes({"a"}) == set()
        write(store, batch("e"))
        assert touched.touched_nodes(set()) == set()
        for each in (live, replayed, touched):
            each.close()


def test_the_engine_advances_past_accesses_without_changes(tmp_path: Path) -> None:
    with followed(tmp_path) as (store, _):
        write(store, batch(*(f"n{number}" for number in range(3_000))))
        ask(store)
        kept, before = store.engine.retained_bytes, store.engine.bytes()[1]
        for count in range(1, 51):
            write(store, accessed(*(f"n{number}" for number in range(100)), count=count))
            ask(store)
        assert store.engine.state == store.state
        assert store.engine.retained_bytes == kept
        assert store.engine.bytes()[1] - before < 50 * 2_000
        assert store.query_catalog(lambda catalog, rows: (catalog.sequence, rows.at)) == (51, 51)
