"""Score propagation between turns of a conversation."""

from __future__ import annotations

import pytest

from kgserve.graph.search.score_fusion import MAX_PROPAGATION_DEGREE
from kgserve.memory.recall_scoring import (
    QUESTION_WEIGHT,
    MemoryScoreInputs,
    ScoredMemory,
    boost_turns,
    spread_word_scores,
)

FULL = MemoryScoreInputs(1.0, 0.5)
CHAIN = {"a": [("b", 1.0)], "b": [("a", 1.0), ("c", 1.0)], "c": [("b", 1.0), ("d", 1.0)]}


def test_word_scores_decay_with_turn_distance() -> None:
    found = spread_word_scores({"a": 8.0}, {"a": {"kiln": 8.0}, "b": {}, "c": {}, "d": {}}, CHAIN)
    assert found == {"a": 8.0, "b": 4.0, "c": 2.0}


def test_word_scores_take_maximum_not_sum() -> None:
    worths = {"a": {"kiln": 8.0}, "b": {"kiln": 3.0, "clay": 2.0}, "c": {"kiln": 8.0}}
    found = spread_word_scores({"a": 8.0, "b": 5.0, "c": 8.0}, worths, CHAIN)
    assert found == {"a": 9.0, "b": 6.0, "c": 9.0}


def test_unindexed_turn_scores_its_own_words() -> None:
    assert spread_word_scores({}, {"a": {"kiln": 2.0}, "b": {"clay": 1.0}}, CHAIN) == {"a": 2.5, "b": 2.0}
    assert spread_word_scores({"x": 1.0}, {"a": {}}, CHAIN) == {"x": 1.0}


def test_weak_relation_spreads_less_and_hub_nothing() -> None:
    worths = {"a": {"kiln": 8.0}, "b": {}}
    assert spread_word_scores({"a": 8.0}, worths, {"a": [("b", 0.5)]})["b"] == 2.0
    hub = {"a": [("b", 1.0), *((f"n{number}", 1.0) for number in range(MAX_PROPAGATION_DEGREE))]}
    assert spread_word_scores({"a": 8.0}, worths, hub) == {"a": 8.0}


def test_boosted_turn_stays_below_source() -> None:
    found = [ScoredMemory("a", 0.8, 0.8, why="words 1.00"), ScoredMemory("c", 0.3, 0.3), ScoredMemory("b", 0.2, 0.2)]
    made = boost_turns(found, CHAIN, dict.fromkeys("abc", FULL))
    assert [each.id for each in made] == ["a", "b", "c"]
    assert [each.score for each in made] == pytest.approx([0.8, 0.5, 0.425])
    assert [(each.via, each.hops) for each in made] == [(None, None), ("a", 1), ("a", 2)]
    assert made[0] == found[0]
    assert made[1].why.endswith("1 turn from a")


def test_turn_boost_is_multiplied_by_confidence() -> None:
    found = [ScoredMemory("a", 0.8, 0.8), ScoredMemory("b", 0.1, 0.4)]
    made = boost_turns(found, CHAIN, {"a": FULL, "b": MemoryScoreInputs(0.25, 0.5)})
    assert made[1].score == pytest.approx(0.1 + 0.25 * 0.5 * 0.7)
    assert made[1].match == pytest.approx(0.4 + 0.5 * 0.7)


def test_question_ranks_below_answer() -> None:
    found = [ScoredMemory("a", 0.8, 0.8), ScoredMemory("b", 0.7, 0.7)]
    made = boost_turns(found, CHAIN, dict.fromkeys("ab", FULL), {"a"})
    assert [each.id for each in made] == ["b", "a"]
    assert made[1].score == pytest.approx(QUESTION_WEIGHT * 0.8)
    assert made[1].why.endswith("asks")
