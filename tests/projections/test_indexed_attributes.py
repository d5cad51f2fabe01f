"""Indexed attributes of a store: current, as of a commit, in conflict, and after a change of the setting."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kgserve.embedding.embedder import HashingEmbedder
from kgserve.projections.indexed_text import IndexedEntityText, extract_attribute_words
from kgserve.projections.keyword_query import KeywordQuery
from kgserve.storage.model.node_edge_fields import NodeExtras
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.storage.model.store_settings import StoreSettings
from kgserve.storage.model.write_batch import NodeUpsert, WriteBatch
from kgserve.stores.open_store import OpenStore
from tests.projections.indexing import FailingEmbedder
from tests.projections.looking_back import ModelCheckedStore, ModelNodeState, watched
from tests.stores.writing import until, write


@pytest.mark.parametrize(
    ("attributes", "indexed", "words"),
    [
        ('{"a":"red fox","b":"hen"}', ["a"], "red fox"),
        ('{"a":"red fox","b":"hen"}', ["b", "a"], "hen red fox"),
        ('{"b":"hen","a":"fox"}', ["*"], "fox hen"),
        ('{"a":["fox",{"deep":["hen",null]},7,1.5,true]}', ["a"], "fox hen 7 1.5 true"),
        ('{"a":null}', ["a"], ""),
        ('{"b":"hen"}', ["a"], ""),
    ],
)
def test_words_of_attributes_include_nested_values(attributes: str, indexed: list[str], words: str) -> None:
    assert extract_attribute_words(attributes, indexed) == words


def choose(store: OpenStore, *names: str) -> None:
    def change(settings: StoreSettings) -> StoreSettings:
        return msgspec.structs.replace(settings, indexed_attributes=names)

    assert store.change_settings(change)


def wait_for_rebuild(there: ModelCheckedStore) -> None:
    until(lambda: not any(view.is_rebuilding for view in there.indexes.index_projections))
    there.settle()


def found(there: ModelCheckedStore, query: str) -> list[set[str]]:
    """Return the hits of the current indexes by words, and by vector above a minimum similarity."""
    there.settle()
    near = there.indexes.vector.search(there.embedder.embed([query])[0], 100)
    words = {hit.id for hit in there.indexes.keyword.search(KeywordQuery(query), 100)}
    return [words, {hit.id for hit in near if hit.similarity > 0.3}]


def crying(content: str, cry: str) -> ModelNodeState:
    return ModelNodeState("beast", content, attributes=f'{{"cry":"{cry}"}}')


def test_changing_indexed_attributes_rebuilds_the_indexes(tmp_path: Path) -> None:
    with watched(tmp_path) as there:
        there.put(a=crying("hen", "cluck"), b=crying("", "hoot"))
        assert found(there, "cluck") == found(there, "hoot") == [set(), set()]
        choose(there.store, "cry")
        wait_for_rebuild(there)
        assert found(there, "cluck") == [{"a"}, {"a"}]
        assert found(there, "hoot") == [{"b"}, {"b"}]
        there.put(c=crying("owl", "hoot"), b=ModelNodeState("beast", ""))
        assert found(there, "hoot") == [{"c"}, {"c"}]
        choose(there.store)
        wait_for_rebuild(there)
        assert found(there, "cluck") == found(there, "hoot") == [set(), set()]
        assert found(there, "owl") == [{"c"}, {"c"}]


def test_attributes_are_searched_as_of_a_commit(tmp_path: Path) -> None:
    with watched(tmp_path) as there:
        there.put(a=crying("hen", "cluck"))
        there.put(a=crying("hen", "crow"))
        there.delete("a")
        assert there.found("cluck", 1) == []
        choose(there.store, "*")
        wait_for_rebuild(there)
        for mode in ("keyword", "hybrid"):
            assert there.found("cluck", 1, mode=mode) == there.found("crow", 2, mode=mode) == ["a"]
        assert there.found("crow", 1) == there.found("cluck", 2) == there.found("cluck", 3) == []


def test_an_index_of_other_attributes_is_rebuilt_when_opened(tmp_path: Path) -> None:
    with watched(tmp_path) as there:
        there.put(a=crying("hen", "cluck"))
        there.put(a=crying("owl", "hoot"))
        there.settle()
    with watched(tmp_path) as there:
        there.settle()
        there.store.after_change.clear()  # as after a kill before the indexes are notified
        choose(there.store, "cry")
    with watched(tmp_path) as there:
        assert found(there, "hoot") == [{"a"}, {"a"}]
        assert there.found("cluck", 1) == ["a"]


def test_unchanged_attributes_need_no_rebuild(tmp_path: Path) -> None:
    with watched(tmp_path) as there:
        choose(there.store, "cry")
        there.put(a=crying("hen", "cluck"))
        assert found(there, "cluck") == [{"a"}, {"a"}]
    embedder = FailingEmbedder()
    embedder.model_id = HashingEmbedder.model_id
    with watched(tmp_path, embedder) as there:
        there.settle()
        assert there.found("cluck") == ["a"]
        assert there.indexes.vector.vectors_of(["a"])
        assert embedder.asked == 0


def test_conflicting_versions_are_found_by_attributes(tmp_path: Path) -> None:
    with watched(tmp_path) as there:
        there.store.change_settings(lambda chosen: msgspec.structs.replace(chosen, conflict_policy="manual"))
        there.put(a=crying("hen", "cluck"))
        there.put(a=crying("hen", "crow"))
        write(there.store, WriteBatch(nodes=[NodeUpsert(0, "a", attributes='{"cry":"peep"}', based_on=1)]))
        there.settle()
        assert there.found("peep") == []
        choose(there.store, "cry")
        wait_for_rebuild(there)
        assert there.found("peep") == there.found("crow") == ["a"]


def test_memory_embeddings_omit_attributes() -> None:
    node = NodeRow("m", "fact", "the hen clucks", '{"cry":"hoot"}', 1, 1, 0, 0, NodeExtras(confidence=0.5))
    text = IndexedEntityText.of(node, ["cry"])
    assert text.meaning == "the hen clucks"
    assert "hoot" in text.words
