from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kgserve.embedding.cache import round_to_half_precision
from kgserve.errors import Conflict, Gone, InvalidInput, Unavailable
from kgserve.graph.request_bodies import LlmContextRequest, MultiQuerySearchRequest, SearchQueryVariant, SearchRequest
from kgserve.graph.search.node_search import build_llm_context, search_query_variants
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.projections.indexed_text import IndexedEntityText, parse_past_text_index_key
from tests.graphs import graph_of
from tests.projections.indexing import FailingEmbedder, OtherEmbedder
from tests.projections.looking_back import ModelCheckedStore, ModelNodeState, some_node, watched
from tests.stores.writing import NAME, copy_in_use, flip, layout, until


def fill(of: ModelCheckedStore) -> None:
    """Write five commits: a fox that becomes a hen, is deleted and restored; an owl from the second commit on."""
    of.say(a="fox")
    of.say(a="hen", b="owl")
    of.delete("a")
    of.say(a="fox")
    of.say(b="owl owl")


def check(of: ModelCheckedStore) -> None:
    assert [of.found("fox", at) for at in range(6)] == [[], ["a"], [], [], ["a"], ["a"]]
    assert [of.found("hen", at) for at in range(6)] == [[], [], ["a"], [], [], []]
    assert [of.found("owl", at) for at in range(6)] == [[], [], ["b"], ["b"], ["b"], ["b"]]
    for mode in ("semantic", "hybrid"):
        found = [sorted(of.found("fox", at, mode=mode)) for at in range(6)]
        assert found == [[], ["a"], ["a", "b"], ["b"], ["a", "b"], ["a", "b"]], mode


def asked(query: str, at: object, **more: Any) -> SearchRequest:
    options: dict[str, Any] = {"mode": "keyword", **more}
    return SearchRequest(query=query, as_of=str(at), **options)


def test_replaced_and_deleted_texts_are_found_as_of_a_commit(tmp_path: Path) -> None:
    with watched(tmp_path) as of:
        fill(of)
        check(of)
        [hit] = of.search(asked("hen", 2)).hits
        assert (hit.node.content, hit.node.version, hit.node.sequence) == ("hen", 2, 2)
        assert of.found("hen") == []
        assert of.found("fox", format_rfc3339_timestamp(of.times[3])) == []
        assert of.found("fox", format_rfc3339_timestamp(of.times[4])) == ["a"]
        assert of.search(asked("fox", 4)).index_sequence == 4
        assert of.found('"owl owl"', 5, syntax=True) == ["b"]
        assert of.found('"owl owl"', 4, syntax=True) == []
        with pytest.raises(InvalidInput, match="query"):
            of.found("(((", 4, syntax=True)


def counts(of: ModelCheckedStore) -> tuple[int, int]:
    """Return the numbers of past texts in the keyword and the vector index."""
    of.settle()
    return of.indexes.past_keyword.count(), of.indexes.past_vector.count()


def test_past_indexes_continue_after_a_restart(tmp_path: Path) -> None:
    with watched(tmp_path) as of:
        fill(of)
        assert counts(of) == (3, 3)
        of.restart()
        check(of)
        of.say(a="elk")
        assert counts(of) == (4, 4)
        assert of.found("fox", 5) == ["a"]


def test_past_indexes_follow_the_history_without_a_search(tmp_path: Path) -> None:
    with watched(tmp_path) as of:
        fill(of)
        until(lambda: of.indexes.past_keyword.sequence == of.indexes.past_vector.sequence == of.store.state.sequence)
        check(of)


def test_past_indexes_are_complete_after_the_embedding_service_failed(tmp_path: Path) -> None:
    embedder = FailingEmbedder()
    with watched(tmp_path, embedder) as of:
        fill(of)
        until(lambda: of.indexes.past_vector.error is not None)
        embedder.broken = False
        assert counts(of) == (3, 3)
        check(of)


@pytest.mark.parametrize("harm", ["killed", "gone", "words flipped", "vectors flipped", "vectors cut"])
def test_damaged_past_indexes_are_rebuilt_from_the_history(tmp_path: Path, harm: str) -> None:
    data = tmp_path / "data"
    with watched(data) as of:
        fill(of)
        of.settle()
        if harm == "killed":
            copy_in_use(data, tmp_path / "copied")
            data = tmp_path / "copied"
    views = layout(data).views
    match harm:
        case "killed":
            (views / "past-keyword" / "manifest.json").unlink()
        case "gone":
            layout(data).remove_indexes()
            assert {path.name for path in views.iterdir() if path.is_dir()} == {"rows"}
        case "words flipped":
            largest = max((views / "past-keyword").iterdir(), key=lambda path: path.stat().st_size)
            flip(largest, largest.stat().st_size // 2)
        case "vectors flipped":
            flip(views / "past-vector" / "texts.sqlite", 3)
        case _:
            path = views / "past-vector" / "vectors-0"
            path.write_bytes(path.read_bytes()[:1000])
    with watched(data) as of:
        check(of)


def test_consecutive_states_with_equal_texts_are_one_text(tmp_path: Path) -> None:
    with watched(tmp_path) as of:
        of.say(a="fox")
        for number in range(20):
            of.annotate("a", number)
            if number % 3 == 0:
                of.settle()
        of.say(a="hen")
        assert counts(of) == (1, 1)
        of.say(a="fox")
        of.settle()
        of.say(a="hen")
        assert counts(of) == (3, 3)
        assert [of.found("fox", at) for at in (0, 1, 12, 21, 22, 23)] == [[], ["a"], ["a"], ["a"], [], ["a"]]
        assert [of.found("hen", at) for at in (12, 21, 22, 23, 24)] == [[], [], ["a"], [], ["a"]]


def test_pruned_states_leave_the_past_indexes(tmp_path: Path) -> None:
    with watched(tmp_path) as of:
        fill(of)
        assert counts(of) == (3, 3)
        assert of.historian is not None
        of.historian.of(of.store).look(lambda history: history.prune(3))
        of.say(c="cat")
        assert counts(of) == (1, 1), "only that of the owl ended after the third commit"
        with pytest.raises(Gone):
            of.found("fox", 2)
        assert of.found("owl", 4) == ["b"]


def test_mostly_pruned_indexes_are_compacted(tmp_path: Path) -> None:
    with watched(tmp_path) as of:
        of.say(a="0 hen")
        for number in range(1, 12):
            of.say(a=f"{number} fox")
        of.settle()
        assert counts(of)[0] == 11
        assert of.historian is not None
        of.historian.of(of.store).look(lambda history: history.prune(10))
        of.say(c="cat")
        assert counts(of)[0] == 2
        [folder] = of.store.layout.views.glob("past-keyword*")
        meta = msgspec.json.decode((folder / "meta.json").read_bytes())
        held = sum(segment["max_doc"] for segment in meta["segments"])
        assert held <= 4, "no more that was removed than is left: tantivy may have merged some of it away before"
        assert [of.found("fox", at) for at in (10, 11, 12)] == [["a"], ["a"], ["a"]]


def test_a_store_without_history_has_no_past_indexes(tmp_path: Path) -> None:
    with watched(tmp_path) as of:
        fill(of)
        words = [SearchQueryVariant(query="fox")]
        for work in (
            lambda: of.search(asked("fox", 1)),
            lambda: search_query_variants(
                graph_of(of.pool, NAME, of.indexer), MultiQuerySearchRequest(queries=words, as_of="1")
            ),
            lambda: build_llm_context(graph_of(of.pool, NAME, of.indexer), LlmContextRequest(query="fox", as_of="1")),
        ):
            of.historian, kept = None, of.historian
            with pytest.raises(Conflict, match="histories are turned off"):
                work()
            of.historian = kept


def test_a_corrupted_vector_is_detected_and_rebuilt(tmp_path: Path) -> None:
    with watched(tmp_path) as of:
        fill(of)
        of.settle()
        vector = round_to_half_precision(of.embedder.embed(["hen"]))[0].astype("<f4").tobytes()
    path = layout(tmp_path).views / "past-vector" / "vectors-0"
    flip(path, path.read_bytes().index(vector) + 40)
    assert vector not in path.read_bytes()
    with watched(tmp_path) as of:
        check(of)
    assert vector in path.read_bytes()


def test_a_full_disk_or_a_closed_file_is_no_damage_to_past_vectors(tmp_path: Path) -> None:
    with watched(tmp_path) as of:
        fill(of)
        of.settle()
        view = of.indexes.past_vector
        index = view._index
        assert index is not None
        index._writer.execute("PRAGMA max_page_count = 1")
        for word in ("cat", "elk"):
            of.say(**{f"n{number}": f"{word} {number}" for number in range(400)})
        until(lambda: view.error is not None)
        index._writer.execute("PRAGMA max_page_count = 1000000")
        of.settle()
        check(of)
        assert view._index is index
        index.close()
        with pytest.raises(Unavailable):
            of.found("fox", 1, mode="semantic")
        assert not view.rebuild_wanted


def test_an_invalid_as_of_is_rejected(tmp_path: Path) -> None:
    with watched(tmp_path) as of:
        of.say(a="fox")
        for field in ("as_of", "valid_at"):
            with pytest.raises(InvalidInput, match=field):
                of.found("fox", **{field: "yesterday"})
        assert of.found("fox", 99) == ["a"], "what is yet to come is now"


def test_pagination_of_search_as_of_returns_all_matches(tmp_path: Path) -> None:
    with watched(tmp_path) as of:
        of.say(**{f"n{number}": "fox" for number in range(300)})
        of.say(**{f"n{number}": "fox hen" for number in range(290)})
        of.say(**{f"m{number}": "fox" for number in range(100)})
        for mode in ("keyword", "semantic"):
            assert of.found("fox", mode=mode, at_least=3)  # pagination continues while the indexes do not advance
            pages = [of.found("fox", 1, mode=mode, offset=offset, limit=100) for offset in (0, 100, 200, 300)]
            assert [len(page) for page in pages] == [100, 100, 100, 0]
            assert set().union(*pages) == {f"n{number}" for number in range(300)}


def test_term_rarity_covers_past_and_current_texts(tmp_path: Path) -> None:
    with watched(tmp_path) as of:
        of.say(a="fox", b="hen", **{f"n{number}": "owl" for number in range(50)})
        of.say(a="cat")
        found = of.search(asked("fox owl", 1)).hits
        assert found[0].node.id == "a"
        assert found[0].score > 2, "in an index of one text the word would be worth 0.3"
        assert found[1].score < 0.1


def test_neighbours_and_paths_as_of_a_commit(tmp_path: Path) -> None:
    with watched(tmp_path) as of:
        of.say(a="fox", b="owl", c="elk")
        of.relate(("a", "b", "R"))
        of.delete("b")
        of.say(b="owl")
        of.relate(("a", "c", "R"))
        hops = [{hit.node.id: hit.hops for hit in of.search(asked("fox", at, mode="graph")).hits} for at in (2, 3, 5)]
        assert hops == [{"a": 0, "b": 0, "c": 0}, {"a": 0, "c": 0}, {"a": 0, "b": 0, "c": 0}]
        start: dict[str, Any] = {"mode": "graph", "start_id": "a"}
        assert [sorted(of.found("fox", at, **start)) for at in range(1, 6)] == [
            ["a"],
            ["a", "b"],
            ["a"],
            ["a"],
            ["a", "c"],
        ]
        with pytest.raises(InvalidInput, match="start_id"):
            of.found("fox", 3, mode="graph", start_id="b")


def test_batch_search_and_context_as_of_a_commit(tmp_path: Path) -> None:
    with watched(tmp_path) as of:
        of.say(a="fox", b="hen")
        of.relate(("a", "b", "EATS"))
        of.delete("b")
        variants = [SearchQueryVariant(query=word, mode="keyword") for word in ("fox", "hen")]
        request = MultiQuerySearchRequest(queries=variants, as_of="2")
        found = search_query_variants(graph_of(of.pool, NAME, of.indexer, of.historian), request)
        assert (sorted(hit.node.id for hit in found.hits), found.index_sequence) == (["a", "b"], 2)
        for at, edge in ((1, False), (2, True), (3, False)):
            text = build_llm_context(
                graph_of(of.pool, NAME, of.indexer, of.historian), LlmContextRequest(query="fox", as_of=str(at))
            ).text
            assert ("EATS" in text, "hen" in text) == (edge, at < 3)


def test_validity_tags_and_summaries_as_of_a_commit(tmp_path: Path) -> None:
    with watched(tmp_path) as of:
        of.put(
            a=ModelNodeState("bird", "owl", valid_from=5_000_000),
            b=ModelNodeState("bird", "owl", valid_to=5_000_000),
            c=ModelNodeState("bird", "", "owl", ("red", "deep blue")),
        )
        of.put(b=ModelNodeState("bird", "owl", valid_to=9_000_000))
        of.settle()
        at_five = format_rfc3339_timestamp(5_000_000)
        assert sorted(of.found("owl", valid_at=at_five)) == ["a", "b", "c"]
        assert sorted(of.found("owl", 1, valid_at=at_five)) == ["a", "c"]
        assert sorted(of.found("owl", valid_at=format_rfc3339_timestamp(4_999_999))) == ["b", "c"]
        assert sorted(of.found("owl", mode="semantic", valid_at=format_rfc3339_timestamp(4_999_999))) == ["b"]
        assert of.found("owl", 1, tags=["deep blue"]) == ["c"]
        assert of.found("owl", tags=["deep"]) == []
        assert of.found("blue") == ["c"]
        assert of.found("summary:owl", syntax=True) == ["c"]


def test_relations_not_valid_then_are_not_followed(tmp_path: Path) -> None:
    with watched(tmp_path) as of:
        of.put(
            a=ModelNodeState("bird", "owl"),
            b=ModelNodeState("bird", "hen"),
            c=ModelNodeState("bird", "cat", valid_to=3_000_000),
        )
        of.relate(("a", "b", "R"), ("b", "c", "R"), valid_to=5_000_000)
        start: dict[str, Any] = {"mode": "graph", "start_id": "a"}
        of.settle()
        for as_of in (None, 2):
            ends = [
                of.found("owl", as_of, valid_at=format_rfc3339_timestamp(second * 1_000_000), **start)
                for second in (2, 4, 6)
            ]
            assert [sorted(found) for found in ends] == [["a", "b", "c"], ["a", "b"], ["a"]]
            lifted = of.search(
                asked("owl", 2, mode="hybrid", valid_at=format_rfc3339_timestamp(6_000_000), explain=True)
            ).hits
            assert "hop" not in "".join(str(hit.why) for hit in lifted)


def test_keyword_search_of_the_past_works_with_another_model(tmp_path: Path) -> None:
    with watched(tmp_path) as of:
        fill(of)
        of.settle()
    with watched(tmp_path, OtherEmbedder()) as of:
        assert of.found("hen", 2) == ["a"]
        with pytest.raises(Conflict, match="kgserve reindex"):
            of.found("hen", 2, mode="semantic")
        of.indexer.reindex(of.store)
        for view in (of.indexes.vector, of.indexes.past_vector):
            until(lambda view=view: not view.rebuild_wanted and view.sequence == of.store.state.sequence)
        until(lambda: not of.indexes.vector.is_rebuilding)
        assert sorted(of.found("hen", 2, mode="semantic")) == ["a", "b"]


def test_past_keys_support_any_id() -> None:
    for node_id in ("a", "nul\0end", "\0", "a\x001\0b"):
        text = IndexedEntityText(node_id, "t", "fox", 3, until=7)
        assert parse_past_text_index_key(text.key) == (node_id, 3, text.digest.hex())


def test_random_searches_as_of_a_commit_match_the_model(tmp_path: Path) -> None:
    source = random.Random(7)
    with watched(tmp_path) as of:
        for _ in range(30):
            of.put(**{f"n{source.randrange(40)}": some_node(source) for _ in range(6)})
            of.delete(*source.sample(sorted(of.nodes), 2))
        for _ in range(40):
            of.compare_words(source)
            of.compare_meaning(source)
