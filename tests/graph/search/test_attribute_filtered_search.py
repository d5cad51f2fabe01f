"""Attribute filters find exactly the hits that remain after filtering all hits, with every search strategy."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from typing import Any

import pytest

from kgserve.graph.as_of_graph import PastMoment
from kgserve.graph.search.attribute_filtered_search import AttributeFilteredIndex, NodeAttributeMatcher
from kgserve.graph.search.node_search import StoreSearchSnapshot, open_store_search_snapshot
from kgserve.projections.indexed_text import NO_TEXT_FILTER
from kgserve.projections.keyword_query import KeywordQuery
from kgserve.storage.model.attribute_filters import build_attribute_filter_conditions, matches_attribute_conditions
from tests.projections.looking_back import WORDS, ModelCheckedStore, ModelNodeState, watched

COUNT = 300
EVERY = 1_000


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelCheckedStore]:
    """Yield a store in which most nodes are open and contain "fox" among many words; the others are done."""
    source = random.Random(7)
    with watched(tmp_path_factory.mktemp("among") / "data") as store:
        far = {f"far{n}": f"fox {' '.join(source.choices(WORDS, k=30))}" for n in range(COUNT)}
        near = {f"near{n}": "fox fox" for n in range(COUNT // 3)}
        store.put(**{key: ModelNodeState("beast", text, attributes='{"status":"open"}') for key, text in far.items()})
        store.put(**{key: ModelNodeState("beast", text, attributes='{"status":"done"}') for key, text in near.items()})
        store.settle()
        # From here on, past and current state differ, in attributes only and in texts.
        turned = {
            f"far{n}": ModelNodeState("beast", far[f"far{n}"], attributes='{"status":"done"}')
            for n in range(0, COUNT, 9)
        }
        store.put(**turned, far1=ModelNodeState("beast", "hen", attributes='{"status":"open"}'))
        store.delete("far2")
        store.settle()
        yield store


def among(
    searched: StoreSearchSnapshot, sample: ModelCheckedStore, wanted: dict[str, Any], tried: int
) -> AttributeFilteredIndex:
    """Return the index limited to nodes with some attributes; ``tried`` hits are examined before all ids are passed."""
    asked = build_attribute_filter_conditions(wanted)
    reader = searched.reader

    def passing(ids: Collection[str]) -> set[str]:
        return {
            row.id for row in reader.valid_nodes(ids).values() if matches_attribute_conditions(row.attributes, asked)
        }

    return AttributeFilteredIndex(searched.index, NodeAttributeMatcher(sample.store, asked, reader), passing, tried)


@pytest.mark.parametrize("tried", [0, 60, 3_200])
@pytest.mark.parametrize("as_of", [None, 2])
@pytest.mark.parametrize("wanted", [{"status": "open"}, {"status": "done"}, {"status": None}])
def test_attribute_filter_equals_filtering_all_hits(
    sample: ModelCheckedStore, wanted: dict[str, Any], as_of: int | None, tried: int
) -> None:
    past = None if as_of is None else PastMoment(sample.historian, as_of)
    with open_store_search_snapshot(sample.store, sample.indexer, past, "any") as searched:
        narrowed = among(searched, sample, wanted, tried)
        vector = searched.queries.of("fox")
        words = searched.index.search_keywords(KeywordQuery("fox"), EVERY, NO_TEXT_FILTER)
        meaning = searched.index.search_vectors(vector, EVERY, NO_TEXT_FILTER)
        asked = build_attribute_filter_conditions(wanted)
        left = {
            key
            for key, row in searched.reader.valid_nodes({*words, *meaning}).items()
            if matches_attribute_conditions(row.attributes, asked)
        }
        for limit in (1, 7, 40, EVERY):
            kept = [score for key, score in words.items() if key in left][:limit]
            found = narrowed.search_keywords(KeywordQuery("fox"), limit, NO_TEXT_FILTER)
            assert [*found.values()] == pytest.approx(kept)
            assert found.keys() <= left
            kept = [score for key, score in meaning.items() if key in left][:limit]
            found = narrowed.search_vectors(vector, limit, NO_TEXT_FILTER)
            assert [*found.values()] == pytest.approx(kept, abs=1e-5)
            assert found.keys() <= left
