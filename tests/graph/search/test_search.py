from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kgserve.errors import Conflict, InvalidInput, Unavailable
from kgserve.graph.graph_reader import CurrentGraph
from kgserve.graph.request_bodies import LlmContextRequest, MultiQuerySearchRequest, SearchQueryVariant, SearchRequest
from kgserve.graph.search import node_search as searches
from kgserve.graph.search.node_search import build_llm_context, search_query_variants, search_store_nodes
from kgserve.storage.model.node_edge_fields import EdgeExtrasUpsert, NodeExtrasUpsert
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch
from kgserve.stores.pool import StorePool
from tests.graphs import graph_of
from tests.projections.indexing import FailingEmbedder, OtherEmbedder, StuckEmbedder, caught_up, followed, indexed
from tests.stores.writing import NAME, PATIENCE, batch, settings, until, write


def fill(data: Path) -> None:
    with followed(data) as (store, indexes):
        write(store, batch("a", "b", content="fox"))
        caught_up(store, indexes)


def test_search_without_indexes_is_unavailable(tmp_path: Path) -> None:
    with StorePool(settings(tmp_path)) as pool:
        pool.create(NAME)
        for work in (
            lambda: search_store_nodes(graph_of(pool, NAME, None), SearchRequest(query="x")),
            lambda: search_query_variants(
                graph_of(pool, NAME, None), MultiQuerySearchRequest(queries=[SearchQueryVariant(query="x")])
            ),
            lambda: build_llm_context(graph_of(pool, NAME, None), LlmContextRequest(query="x")),
        ):
            with pytest.raises(Unavailable, match="turned off"):
                work()


def test_keyword_search_works_with_vectors_of_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searches, "AT_LEAST_TIMEOUT_SECONDS", 20 * PATIENCE)
    fill(tmp_path)
    with indexed(tmp_path, OtherEmbedder()) as (pool, indexer):
        started = time.monotonic()
        for at_least in (None, 1):
            found = search_store_nodes(
                graph_of(pool, NAME, indexer), SearchRequest(query="fox", mode="keyword", at_least=at_least)
            )
            assert [hit.node.id for hit in found.hits] == ["a", "b"]
            assert found.index_sequence == 1
            for mode in ("semantic", "hybrid"):
                with pytest.raises(Conflict, match=f"kgserve reindex {NAME}"):
                    search_store_nodes(
                        graph_of(pool, NAME, indexer), SearchRequest(query="fox", mode=mode, at_least=at_least)
                    )
        words = [SearchQueryVariant(query="fox", mode="keyword")]
        assert search_query_variants(
            graph_of(pool, NAME, indexer), MultiQuerySearchRequest(queries=words, at_least=1)
        ).per_query_hits == [2]
        with pytest.raises(Conflict):
            search_query_variants(
                graph_of(pool, NAME, indexer),
                MultiQuerySearchRequest(queries=[*words, SearchQueryVariant(query="fox")]),
            )
        assert time.monotonic() - started < 10 * PATIENCE, "nobody waits for an index that cannot be opened"


def test_keyword_search_works_while_embedding_fails(tmp_path: Path) -> None:
    with followed(tmp_path, FailingEmbedder()) as (store, indexes):
        write(store, batch("a", content="fox"))
        assert indexes.keyword.wait(1, 30)
    with indexed(tmp_path, FailingEmbedder()) as (pool, indexer):
        found = search_store_nodes(
            graph_of(pool, NAME, indexer), SearchRequest(query="fox", mode="keyword", at_least=1)
        )
        assert [hit.node.id for hit in found.hits] == ["a"]
        with pytest.raises(Unavailable, match="does not answer"):
            search_store_nodes(graph_of(pool, NAME, indexer), SearchRequest(query="fox", mode="semantic"))


def test_search_reports_waiting_for_model_loading(tmp_path: Path) -> None:
    embedder = StuckEmbedder()
    with followed(tmp_path, embedder) as (store, indexes):
        write(store, batch("a", content="fox"))
        assert embedder.started.wait(PATIENCE)
        assert "have not seen sequence 1 yet, only 0" in str(indexes.not_caught_up_error(1))
        embedder.is_loading = True
        assert "the embedding model is loading" in str(indexes.not_caught_up_error(1))
        assert "have not seen sequence 1" in str(indexes.not_caught_up_error(1, words_alone=True))
        embedder.let_go.set()


def test_at_least_is_not_answered_by_index_being_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)
    with indexed(tmp_path) as (pool, indexer), pool.lease(NAME) as store:
        graph, vector = graph_of(pool, NAME, indexer), indexer.of(store).vector
        wanted = SearchRequest(query="fox", mode="semantic", at_least=1)
        assert len(search_store_nodes(graph, wanted).hits) == 2
        look_up, clear, go_on, cleared_at = vector.search, vector._opened().clear, threading.Event(), list[int]()

        def refilled_behind_it(*args: Any, **more: Any) -> Any:
            hits = look_up(*args, **more)
            vector.rebuild_wanted = True
            vector.wake()
            until(lambda: bool(cleared_at))
            return hits

        def cleared_slowly(made_of: str) -> None:
            cleared_at.append(vector.sequence)
            assert go_on.wait(PATIENCE)
            clear(made_of)

        monkeypatch.setattr(vector._opened(), "clear", cleared_slowly)
        with monkeypatch.context() as patched:
            patched.setattr(vector, "search", refilled_behind_it)
            patched.setattr(searches, "AT_LEAST_TIMEOUT_SECONDS", 0.1)
            with pytest.raises(Unavailable, match="have not seen sequence 1 yet, only 0"):
                search_store_nodes(graph, wanted)
        assert cleared_at == [0]
        go_on.set()
        assert len(search_store_nodes(graph, wanted).hits) == 2


def test_at_least_rejects_future_sequence(tmp_path: Path) -> None:
    fill(tmp_path)
    with indexed(tmp_path) as (pool, indexer), pytest.raises(InvalidInput, match="at_least"):
        search_store_nodes(graph_of(pool, NAME, indexer), SearchRequest(query="fox", at_least=2))


def test_batched_neighbours_equal_single_ones_with_invalid_nodes(tmp_path: Path) -> None:
    chance = random.Random(3)
    names = [f"n{number}" for number in range(12)]
    bounds = [(None, None), (None, None), (None, 5), (9, None), (1, 9)]
    with StorePool(settings(tmp_path)) as pool, pool.lease(NAME, create=True) as store:
        for part in range(3):
            extras = [NodeExtrasUpsert(valid_from=first, valid_to=last) for first, last in chance.choices(bounds, k=12)]
            keys = [(chance.choice(names), chance.choice(names), f"r{part}") for _ in range(30)]
            nodes = [NodeUpsert(0, name, "t", "", extras=each) for name, each in zip(names, extras, strict=True)]
            edges = [
                EdgeUpsert(0, key, chance.random(), extras=EdgeExtrasUpsert(valid_from=first, valid_to=last))
                for key, (first, last) in zip(keys, chance.choices(bounds, k=30), strict=True)
            ]
            write(store, WriteBatch(nodes=nodes, edges=edges))
            with store.reading() as rows:
                for moment in (None, 3, 7, 20):
                    reader = CurrentGraph(store, rows, moment)
                    found, there = reader.neighbours([*names, "none"]), reader.valid_nodes(names)
                    assert found["none"] == []
                    for name in there:
                        edges = [
                            edge for edge in reader.valid_edges(name) if {edge.source, edge.target} <= there.keys()
                        ]
                        ends = [(edge.target if edge.source == name else edge.source, edge.weight) for edge in edges]
                        assert sorted(found[name]) == sorted(ends)


def test_pages_of_a_filtered_hybrid_search_return_all_matches(tmp_path: Path) -> None:
    with indexed(tmp_path) as (pool, indexer), pool.lease(NAME, create=True) as store:
        graph = graph_of(pool, NAME, indexer)
        docs = [NodeUpsert(place, f"d{place}", "doc", f"fox in hall {place}") for place in range(150)]
        others = [NodeUpsert(place, f"p{place}", "person", f"unrelated {place}") for place in range(300)]
        write(store, WriteBatch(nodes=[*docs, *others]))

        def page(offset: int, limit: int = 50) -> list[str]:
            at_least = store.state.sequence
            asked = SearchRequest(query="fox hall", types=["doc"], limit=limit, offset=offset, at_least=at_least)
            return [hit.node.id for hit in search_store_nodes(graph, asked).hits]

        # The best matches lead to many nodes that fail the filter.
        edges = zip(page(0, 10) * 30, others, strict=True)
        write(store, WriteBatch(edges=[EdgeUpsert(0, (best, other.id, "knows")) for best, other in edges]))
        assert sorted(page(0) + page(50) + page(100)) == sorted(doc.id for doc in docs)
