"""Notices of a search, and searches while an index is being rebuilt."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kgserve.errors import InvalidInput, Unavailable
from kgserve.graph.request_bodies import (
    LlmContextRequest,
    MultiQuerySearchRequest,
    SearchMode,
    SearchQueryVariant,
    SearchRequest,
)
from kgserve.graph.search.node_search import build_llm_context, search_query_variants, search_store_nodes
from kgserve.graph.search.search_notices import NEAREST_BY_LETTERS, NEAREST_BY_MEANING, SearchNotices
from kgserve.graph.store_handle import StoreHandle
from kgserve.memory.memory_models import RecallRequest
from kgserve.memory.multi_store_recall import recall_best_memories
from kgserve.platform.text.languages import LanguageSetting
from kgserve.projections.indexed_text import IndexedEntityText
from kgserve.projections.text_indexes import CurrentKeywordIndexProjection
from kgserve.storage.changefeed import ChangeFeed
from kgserve.storage.model.change_feed_events import EventKind
from kgserve.storage.model.node_edge_fields import NodeExtrasUpsert
from kgserve.storage.model.write_batch import NodeUpsert, WriteBatch
from kgserve.stores.open_store import OpenStore
from tests.graphs import graph_of
from tests.projections.indexing import caught_up, followed, indexed
from tests.stores.writing import NAME, PATIENCE, layout, until, write

MODES: tuple[SearchMode, ...] = ("keyword", "hybrid")
TEXTS = {"a": "a red fox", "b": "the orrery of brass"}


def fill(data: Path, texts: dict[str, str] = TEXTS) -> None:
    memory = NodeExtrasUpsert(confidence=1.0)
    with followed(data) as (store, indexes):
        write(store, WriteBatch(nodes=[NodeUpsert(0, key, "note", text, extras=memory) for key, text in texts.items()]))
        caught_up(store, indexes)


@contextmanager
def opened_graph(data: Path) -> Generator[tuple[StoreHandle, OpenStore, CurrentKeywordIndexProjection]]:
    with indexed(data) as (pool, indexer), pool.lease(NAME) as store:
        yield graph_of(pool, NAME, indexer), store, indexer.of(store).keyword


def ids(found: Any) -> list[str]:
    return [hit.node.id for hit in found.hits]


@pytest.mark.parametrize(
    ("searched", "found", "has_hits", "degraded", "notice"),
    [
        (False, False, True, False, None),
        (True, True, True, False, None),
        (True, False, False, False, None),
        (True, False, True, False, NEAREST_BY_MEANING),
        (True, False, True, True, NEAREST_BY_LETTERS),
    ],
)
def test_notice_of_hits_without_a_word(
    searched: bool, found: bool, has_hits: bool, degraded: bool, notice: str | None
) -> None:
    notices = SearchNotices()
    if searched:
        notices.record_words(found=found)
    assert notices.text(has_hits=has_hits, degraded=degraded) == notice


@pytest.mark.parametrize(
    ("query", "mode", "notice"),
    [
        ("fox", "hybrid", None),
        ("狐狸", "hybrid", NEAREST_BY_LETTERS),
        ("zebra", "hybrid", NEAREST_BY_LETTERS),
        ("zebra fox", "hybrid", None),
        ("狐狸", "semantic", None),
        ("狐狸", "keyword", None),
    ],
)
def test_search_says_that_no_word_was_found(tmp_path: Path, query: str, mode: Any, notice: str | None) -> None:
    fill(tmp_path)
    with opened_graph(tmp_path) as (graph, _, _):
        assert search_store_nodes(graph, SearchRequest(query=query, mode=mode)).notice == notice
        variants = [SearchQueryVariant(query=query, mode=mode)]
        assert search_query_variants(graph, MultiQuerySearchRequest(queries=variants)).notice == notice
        variants.append(SearchQueryVariant(query="fox"))
        assert search_query_variants(graph, MultiQuerySearchRequest(queries=variants)).notice is None
        if mode == "hybrid":
            assert build_llm_context(graph, LlmContextRequest(query=query)).notice == notice
            assert recall_best_memories(graph, RecallRequest(query=query, min_similarity=-1)).notice == notice


def test_the_last_word_may_be_a_prefix(tmp_path: Path) -> None:
    fill(tmp_path)
    with opened_graph(tmp_path) as (graph, _, _):
        for prefix, found in ((True, ["b"]), (False, [])):
            assert ids(search_store_nodes(graph, SearchRequest(query="brass orr", mode="keyword", prefix=prefix))) == [
                "b"
            ]
            assert ids(search_store_nodes(graph, SearchRequest(query="orr", mode="keyword", prefix=prefix))) == found
            variant = SearchQueryVariant(query="orr", mode="keyword", prefix=prefix)
            assert ids(search_query_variants(graph, MultiQuerySearchRequest(queries=[variant]))) == found
        assert build_llm_context(graph, LlmContextRequest(query="orr", prefix=True)).notice is None
        assert build_llm_context(graph, LlmContextRequest(query="orr")).notice == NEAREST_BY_LETTERS
        with pytest.raises(InvalidInput, match="cannot be combined with `syntax`"):
            search_store_nodes(graph, SearchRequest(query="orr*", syntax=True, prefix=True))


@contextmanager
def paused_build(monkeypatch: pytest.MonkeyPatch) -> Generator[threading.Event]:
    """Pause the next builds of keyword indexes before their last text, until the event is set or the block ends."""
    go_on, build = threading.Event(), CurrentKeywordIndexProjection._with_progress

    def paused(self: CurrentKeywordIndexProjection, texts: Iterable[IndexedEntityText]) -> Iterator[IndexedEntityText]:
        last = None
        for text in build(self, texts):
            if last is not None:
                yield last
            last = text
        assert go_on.wait(PATIENCE)
        if last is not None:
            yield last

    with monkeypatch.context() as patched:
        patched.setattr(CurrentKeywordIndexProjection, "_with_progress", paused)
        try:
            yield go_on
        finally:
            go_on.set()


def set_language(store: OpenStore, language: LanguageSetting) -> None:
    assert store.change_settings(lambda chosen: msgspec.structs.replace(chosen, language=language))


def test_search_uses_the_old_keyword_index_while_it_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, {"a": "die Entscheidungen", "b": "der Fuchs"})
    with opened_graph(tmp_path) as (graph, store, keyword):
        set_language(store, "en")
        until(lambda: keyword.build_progress is None and not keyword.is_rebuilding)
        wanted = SearchRequest(query="Entscheidung", mode="keyword", at_least=1)
        assert ids(search_store_nodes(graph, wanted)) == []
        with paused_build(monkeypatch) as go_on:
            set_language(store, "de")
            until(lambda: (keyword.build_progress or 0.0) > 0.9)
            for mode in MODES:
                found = search_store_nodes(graph, SearchRequest(query="Fuchs", mode=mode, at_least=1))
                assert (ids(found)[0], found.notice) == ("b", None)
            state = keyword.state()
            assert (state.entities, state.sequence) == (2, 0)
            assert state.progress is not None
            assert 0.9 < state.progress < 1
            go_on.set()
        until(lambda: not keyword.is_rebuilding)
        assert ids(search_store_nodes(graph, wanted)) == ["a"]
        assert keyword.state().progress is None
    with opened_graph(tmp_path) as (graph, _, keyword):
        assert ids(search_store_nodes(graph, wanted)) == ["a"]
        assert not keyword.is_rebuilding, "the files are of this language"


@pytest.mark.parametrize("indexes", ["words", "words+meaning"])
def test_search_says_that_the_keyword_index_is_being_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indexes: Any
) -> None:
    fill(tmp_path)
    shutil.rmtree(layout(tmp_path).views / "keyword")
    # As if the store were large: searches wait for few texts.
    monkeypatch.setattr("kgserve.projections.text_indexes.MAX_AWAITED_BUILD_NODES", 0)
    monkeypatch.setattr("kgserve.projections.text_indexes.EMBEDDING_BATCH_SIZE", -1)
    with paused_build(monkeypatch) as go_on, opened_graph(tmp_path) as (graph, store, keyword):
        store.change_settings(lambda chosen: msgspec.structs.replace(chosen, indexes=indexes))
        hybrid = SearchRequest(query="fox")
        for wanted in (SearchRequest(query="fox", mode="keyword"), *([hybrid] if indexes == "words" else [])):
            with pytest.raises(Unavailable, match="the keyword index is being built") as refused:
                search_store_nodes(graph, wanted)
            assert 1 <= refused.value.retry_after <= 60
        if indexes == "words+meaning":
            answers = [
                search_store_nodes(graph, hybrid),
                search_query_variants(graph, MultiQuerySearchRequest(queries=[SearchQueryVariant(query="fox")])),
                recall_best_memories(graph, RecallRequest(query="fox", min_similarity=-1)),
            ]
            for answer in answers:
                assert answer.hits
                assert answer.notice is not None
                assert "hits by words are missing" in answer.notice
            assert "is being built" in (build_llm_context(graph, LlmContextRequest(query="fox")).notice or "")
        assert keyword.state().progress is not None
        go_on.set()
        until(lambda: keyword.state().progress is None)
        answer = search_store_nodes(graph, SearchRequest(query="fox", mode="keyword"))
        assert (ids(answer), answer.notice) == (["a"], None)


def test_search_waits_for_the_keyword_index_of_a_small_store(tmp_path: Path) -> None:
    fill(tmp_path)
    shutil.rmtree(layout(tmp_path).views / "keyword")
    with opened_graph(tmp_path) as (graph, _, _):
        for mode in MODES:
            answer = search_store_nodes(graph, SearchRequest(query="fox", mode=mode))
            assert (ids(answer)[0], answer.notice) == ("a", None)


def test_search_does_not_wait_for_the_announcement_of_a_built_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    shutil.rmtree(layout(tmp_path).views / "keyword")
    published = threading.Event()
    publish = ChangeFeed.publish_marker

    def publish_late(feed: ChangeFeed, kind: EventKind, fields: Mapping[str, Any]) -> None:
        assert kind != "index_ready" or published.wait(PATIENCE)
        publish(feed, kind, fields)

    monkeypatch.setattr(ChangeFeed, "publish_marker", publish_late)
    with opened_graph(tmp_path) as (graph, _, _):
        answer = search_store_nodes(graph, SearchRequest(query="fox", mode="keyword"))
        published.set()
    assert ids(answer) == ["a"]


def test_a_new_store_is_not_reported_as_being_built(tmp_path: Path) -> None:
    with indexed(tmp_path) as (pool, indexer):
        pool.create(NAME)
        graph = graph_of(pool, NAME, indexer)
        assert search_store_nodes(graph, SearchRequest(query="fox")).notice is None
        with pool.lease(NAME) as store:
            write(store, WriteBatch(nodes=[NodeUpsert(0, "a", "note", "fox")]))
            assert search_store_nodes(graph, SearchRequest(query="fox", at_least=1)).notice is None
            assert indexer.of(store).keyword.state().progress is None
