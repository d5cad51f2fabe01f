from __future__ import annotations

import random
from pathlib import Path

import pytest

from kgserve.projections.indexed_text import (
    EntityFilterableFields,
    EntitySearchFilter,
    IndexedEntityText,
    MemoryFilterableFields,
)
from kgserve.projections.keyword_index import KeywordIndex
from kgserve.projections.keyword_query import KeywordQuery
from kgserve.storage.model.node_edge_fields import NodeExtras
from kgserve.storage.model.node_edge_rows import NodeRow

WORDS = [f"word{number}" for number in range(40)]
COUNT = 600


def marks_of(chance: random.Random) -> MemoryFilterableFields | None:
    """Return random marks; two in three entities are memories."""
    marks = MemoryFilterableFields(
        chance.randint(-3, 3), chance.choice([None, 1, 2]), chance.choice(["", "chat", "word3 mail"])
    )
    return chance.choice([None, marks, marks])


@pytest.fixture(scope="module")
def texts() -> list[IndexedEntityText]:
    """Return texts with rare and common words, five types, some tags and times; 300 replace an earlier version."""
    chance = random.Random(5)
    return [
        IndexedEntityText(
            f"n{number}",
            f"t{min(number % 7, 4)}",
            " ".join(chance.choices(WORDS, weights=range(1, 41), k=chance.randint(1, 12))),
            facets=EntityFilterableFields(
                tuple(tag for tag, share in (("usual", 0.7), ("odd", 0.05)) if chance.random() < share),
                chance.choice([None, None, 3]),
                chance.choice([None, None, None, 8]),
                chance.choice([None, None, None, 5]),
                marks_of(chance),
            ),
            name=chance.choice(["", "", "word1 named"]),
            context=chance.choice(["", "word2 in passing"]),
        )
        for number in range(COUNT)
    ]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, texts: list[IndexedEntityText]) -> KeywordIndex:
    made = KeywordIndex(tmp_path_factory.mktemp("keyword") / "index")
    made.write((IndexedEntityText(each.id, "t0", "word1 word39 before") for each in texts[:300]), (), 1)
    made.write((*texts, IndexedEntityText("gone", "t4", "word39")), (), 2)
    made.write((), ["gone"], 3)
    return made


def filters(chance: random.Random) -> EntitySearchFilter:
    return EntitySearchFilter(
        chance.choice([None, None, frozenset({"t4"}), frozenset({"t0", "t1", "t4"}), frozenset({"t2", "unknown"})]),
        chance.choice(["", "", "", "n1"]),
        chance.choice([frozenset[str](), frozenset({"usual"}), frozenset({"odd"}), frozenset({"usual", "odd"})]),
        chance.choice([None, 0, 6, 9]),
        chance.choice([None, 2, 4]),
        memories=chance.choice([False, True]),
        layers=chance.choice([None, None, None, frozenset({1}), frozenset({0, 2})]),
        sources=chance.choice([None, None, None, frozenset({""}), frozenset({"chat", "unknown"})]),
        created=chance.choice([None, None, (-2, 1), (0, (1 << 63) - 1), (2, 2)]),
    )


def test_filtered_search_returns_the_best_matches(index: KeywordIndex, texts: list[IndexedEntityText]) -> None:
    chance = random.Random(6)
    known = {each.id: each for each in texts}
    for _ in range(150):
        query, only, limit = " ".join(chance.sample(WORDS, 3)), filters(chance), chance.choice([1, 5, 20, 400])
        every = index.search(KeywordQuery(query), 2 * COUNT)
        passing = [hit for hit in every if only.passes(hit.id, known[hit.id].type, known[hit.id].facets)]
        found = index.search(KeywordQuery(query), limit, only)
        assert [hit.score for hit in found] == pytest.approx([hit.score for hit in passing[:limit]])
        assert {hit.id for hit in found} <= {hit.id for hit in passing}


@pytest.mark.parametrize("word", ["eve", "gossip", "decision", "rumour", "paris"])
def test_a_memory_is_found_by_its_type_source_and_context(tmp_path: Path, word: str) -> None:
    index = KeywordIndex(tmp_path / "index")
    marks = EntityFilterableFields(marks=MemoryFilterableFields(1, 2, "rumour mill"))
    index.write([IndexedEntityText("m1", "decision", "Paris it is", facets=marks, name="Eve", context="gossip")], (), 1)
    assert [hit.id for hit in index.search(KeywordQuery(word), 5)] == ["m1"]


def test_type_and_context_are_indexed_for_memories_only(tmp_path: Path) -> None:
    row = NodeRow("n1", "decision", "Paris", "{}", 1, 1, 0, 0, NodeExtras(name="Eve", source="mail", context="gossip"))
    index = KeywordIndex(tmp_path / "index")
    index.write([IndexedEntityText.of(row)], (), 1)
    found = [index.search(KeywordQuery(word), 5) != [] for word in ("paris", "eve", "decision", "mail", "gossip")]
    assert found == [True, True, False, False, False]
