"""Names and memories in current and past indexes, across a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kgserve.embedding.cache import round_to_half_precision
from kgserve.graph.search.search_index_interface import SearchIndex
from kgserve.projections.indexed_text import EntitySearchFilter, extract_node_filterable_fields
from kgserve.projections.keyword_query import KeywordQuery
from kgserve.projections.text_indexes import TextIndexesAsOf
from kgserve.storage.model.node_edge_fields import NodeExtrasUpsert
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.storage.model.write_batch import NodeUpsert, WriteBatch
from tests.projections.looking_back import ModelCheckedStore, watched
from tests.stores.writing import write

EVERY = (-(1 << 63), (1 << 63) - 1)
FILTERS = (
    EntitySearchFilter(memories=True),
    EntitySearchFilter(layers=frozenset({2})),
    EntitySearchFilter(layers=frozenset({1, 3})),
    EntitySearchFilter(sources=frozenset({"chat"})),
    EntitySearchFilter(sources=frozenset({"", "mail"})),
    EntitySearchFilter(created=EVERY),
    EntitySearchFilter(created=(EVERY[0], 0)),
    EntitySearchFilter(memories=True, layers=frozenset({2}), sources=frozenset({"chat"}), created=EVERY),
)
MEMORIES = {
    "m1": NodeExtrasUpsert(confidence=1.0, layer=2, source="chat"),
    "m2": NodeExtrasUpsert(confidence=0.0, layer=3),
    "m3": NodeExtrasUpsert(confidence=0.5, source="mail"),
    "no memory": NodeExtrasUpsert(layer=2, source="chat"),
}


def put(of: ModelCheckedStore, content: str) -> dict[str, NodeRow]:
    nodes = [NodeUpsert(0, key, "fact", content, extras=extras) for key, extras in MEMORIES.items()]
    write(of.store, WriteBatch(nodes=[*nodes, NodeUpsert(0, "plain", "fact", content)]))
    with of.store.reading() as rows:
        return rows.nodes([*MEMORIES, "plain"])


def found(of: ModelCheckedStore, index: SearchIndex, word: str, only: EntitySearchFilter) -> tuple[set[str], set[str]]:
    vector = of.indexes.queries.of(word)
    return {*index.search_keywords(KeywordQuery(word), 9, only)}, {*index.search_vectors(vector, 9, only)}


def test_memory_filters_on_current_and_past_indexes(tmp_path: Path) -> None:
    with watched(tmp_path) as of:
        rows = put(of, "fox")
        then = put(of, "hen")
        of.restart()
        of.settle()
        assert of.historian is not None
        past = TextIndexesAsOf(of.indexes, of.historian.of(of.store), 1)
        for only in FILTERS:
            wanted = {key for key, row in then.items() if only.passes_row(row)}
            assert wanted <= {"m1", "m2", "m3"}
            assert found(of, of.indexes, "hen", only) == (wanted, wanted)
            assert found(of, past, "fox", only) == (wanted, wanted)
        assert extract_node_filterable_fields(rows["plain"]) is None


@pytest.mark.parametrize("fields", [{"name": "Vixen"}, {"name": "Vixen", "confidence": 1.0}])
def test_a_name_is_searchable_by_word_and_vector(tmp_path: Path, fields: dict[str, Any]) -> None:
    with watched(tmp_path) as of:
        nodes = [
            NodeUpsert(0, "n1", "beast", "red fur", extras=NodeExtrasUpsert(**fields)),
            NodeUpsert(0, "n2", "beast", "red fur"),
            NodeUpsert(0, "n3", "beast", "", extras=NodeExtrasUpsert(name="Vixen")),
            NodeUpsert(0, "Vixen", "beast", "red fur", extras=NodeExtrasUpsert(name="Vixen")),
        ]
        write(of.store, WriteBatch(nodes=nodes))
        of.settle()
        assert set(of.indexes.search_keywords(KeywordQuery("vixen"), 9, EntitySearchFilter())) == {"n1", "n3", "Vixen"}
        near = of.indexes.vectors_of(["n1", "n2", "n3", "Vixen"])
        embedded = round_to_half_precision(of.embedder.embed(["Vixen red fur", "red fur", "Vixen"]))
        for node_id, place in (("n1", 0), ("n2", 1), ("n3", 2), ("Vixen", 1)):
            assert near[node_id] == pytest.approx(embedded[place], abs=1e-6)
