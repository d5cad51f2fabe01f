"""Ranking of memories, and paths between entities."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgserve.graph.search.score_fusion import EntityMatchScores, GraphProximityBoost, fuse_scores_by_weighted_sum
from kgserve.memory.recall_scoring import (
    MAX_SPREAD_ENTITIES,
    MemoryConfidenceAndImportance,
    ReachedEntity,
    ScoredMemory,
    count_withheld_memories,
    find_known_name_ids,
    fuse_keyword_and_vector_scores,
    iterate_entities_by_path_strength,
    list_query_name_candidates,
    rank_memories,
    to_scored_memories,
)
from tests.fuzzing import examples

FULL = MemoryConfidenceAndImportance(1.0, 0.5)


def test_hybrid_score_is_multiplied_by_confidence() -> None:
    words, meaning = {"a": 8.0, "b": 4.0}, {"a": 0.5, "b": 0.75, "c": 1.0}
    standing = {"a": MemoryConfidenceAndImportance(0.5, 0.5), "b": FULL, "c": FULL}
    found = fuse_keyword_and_vector_scores(
        fuse_scores_by_weighted_sum(words, meaning, 0.4), words, meaning, standing, {}
    )
    scores = [(each.id, each.score) for each in found]
    assert scores == [("b", pytest.approx(0.65)), ("c", pytest.approx(0.6)), ("a", pytest.approx(0.35))]
    assert (found[2].match, found[2].keyword, found[2].semantic) == (pytest.approx(0.7), 8.0, 0.5)
    assert found[2].why == "words 1.00, meaning 0.50, times confidence 0.50"


def test_gain_from_a_turn_is_multiplied_by_the_confidence_of_the_receiver() -> None:
    matches, standing = (
        {"a": EntityMatchScores(0.8), "b": EntityMatchScores(0.4)},
        {"a": FULL, "b": MemoryConfidenceAndImportance(0.25, 0.5)},
    )
    found = fuse_keyword_and_vector_scores(matches, {}, {}, standing, {"b": (GraphProximityBoost(0.2, "a", 2),)})
    assert [each.id for each in found] == ["a", "b"]
    assert (found[1].score, found[1].match) == (pytest.approx(0.15), pytest.approx(0.6))
    assert (found[1].via, found[1].relation, found[1].hops) == ("a", "next", 2)
    assert found[1].why == "2 turns from a, times confidence 0.25"


def test_single_index_keeps_order_and_scores() -> None:
    found = to_scored_memories({"a": 7.5, "b": 2.0}, by_words=True)
    assert [(each.id, each.score, each.keyword, each.semantic) for each in found] == [
        ("a", 7.5, 7.5, None),
        ("b", 2.0, 2.0, None),
    ]
    assert to_scored_memories({"a": 0.25}, by_words=False)[0].why == "meaning 0.25"


def test_importance_breaks_ties() -> None:
    found = [ScoredMemory(key, 0.5, 0.5) for key in "abc"]
    order = rank_memories(found, {"a": FULL, "b": MemoryConfidenceAndImportance(1.0, 1.0), "c": FULL})
    assert [each.id for each in order] == ["b", "a", "c"]


def test_withheld_counts_only_equal_or_better_matches() -> None:
    shown = [ScoredMemory("a", 0.4, 0.8), ScoredMemory("b", 0.3, 0.5)]
    left_out = {"x": 0.6, "y": 0.5, "z": 0.4}
    why = {"x": "superseded", "y": "below_confidence", "z": "below_confidence"}
    assert count_withheld_memories(shown, 2, left_out, why) == {"below_confidence": 1, "superseded": 1}
    assert count_withheld_memories(shown, 3, left_out, why) == {"below_confidence": 2, "superseded": 1}
    assert count_withheld_memories([], 1, {}, {}) == {}


ENTITIES = "abcdefg"
WORTH = st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0])
EDGES = st.lists(st.tuples(st.sampled_from(ENTITIES), st.sampled_from(ENTITIES), WORTH), max_size=14)
STARTS = st.dictionaries(st.sampled_from(ENTITIES), WORTH, max_size=2)


def all_walks(starts: dict[str, float], edges: list[tuple[str, str, float]], depth: int) -> dict[str, float]:
    """Return the best product of any walk of limited length."""
    best = {entity: strength for entity, strength in starts.items() if strength > 0}
    level = dict(best)
    for _ in range(depth):
        further: dict[str, float] = {}
        for one, other, worth in [*edges, *((b, a, worth) for a, b, worth in edges)]:
            if level.get(one, 0.0) * worth > further.get(other, 0.0):
                further[other] = level[one] * worth
        for entity, strength in further.items():
            best[entity] = max(best.get(entity, 0.0), strength)
        level = further
    return best


@given(starts=STARTS, edges=EDGES, depth=st.integers(0, 4))
@examples(200)
def test_paths_have_maximum_strength(starts: dict[str, float], edges: list[tuple[str, str, float]], depth: int) -> None:
    around: dict[str, list[tuple[str, float]]] = {}
    for one, other, worth in edges:
        around.setdefault(one, []).append((other, worth))
        around.setdefault(other, []).append((one, worth))
    found = list(iterate_entities_by_path_strength(starts, lambda entity: around.get(entity, ()), depth))
    assert {way.entity: way.strength for way in found} == all_walks(starts, edges, depth)
    assert len({way.entity for way in found}) == len(found)
    assert [way.strength for way in found] == sorted((way.strength for way in found), reverse=True)
    assert all(way.hops <= depth for way in found)


def test_short_weak_path_reaches_further_than_long_strong_one() -> None:
    around = {"a": [("b", 1.0), ("c", 0.1)], "b": [("c", 1.0)], "c": [("d", 1.0)]}
    found = {
        way.entity: way
        for way in iterate_entities_by_path_strength({"a": 1.0}, lambda entity: around.get(entity, ()), 2)
    }
    assert found["c"] == ReachedEntity("c", 1.0, 2)
    assert found["d"] == ReachedEntity("d", 0.1, 2)


def test_visited_entities_are_limited() -> None:
    chance = random.Random(3)
    found = iterate_entities_by_path_strength(
        {"0": 1.0}, lambda _: ((str(chance.randrange(10**9)), chance.random()) for _ in range(50)), 9
    )
    assert sum(1 for _ in found) <= MAX_SPREAD_ENTITIES + 1


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("Where does Alice Smith work?", ["alice smith"]),
        ("what did ALICE  say", ["alice"]),
        ("is it Bob's?", ["bob"]),
        ("and the (web shop)", ["web shop"]),
        ("nobody", []),
        ("what is it", []),
        ("ab", []),
    ],
)
def test_longest_known_name_in_query_wins(query: str, named: list[str]) -> None:
    known = {name: [name] for name in ("alice smith", "alice", "smith", "bob", "web shop", "what", "ab", "is")}
    assert find_known_name_ids(list_query_name_candidates(query), known) == named


def test_name_search_in_long_query_is_limited() -> None:
    assert len(list_query_name_candidates("word0 " + " ".join(f"word{number}" for number in range(5_000)))) < 400
