"""Scores of turns of conversations, without indexes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from kgserve.graph.search.conversation_turn_scores import (
    ConversationTurnPool,
    ScoredConversationTurns,
    TurnTokenMaxSimScores,
    blend_late_interaction_scores,
    score_conversation_turns,
)
from kgserve.graph.search.late_interaction import max_token_similarities
from kgserve.graph.search.score_fusion import EntityMatchScores

TEXTS = dict.fromkeys("abcde", "five words in every turn")
CHAIN = {"a": [("b", 1.0)], "b": [("c", 1.0)], "c": [("d", 1.0)], "d": [("e", 1.0)]}


def scored(alpha: float = 0.4, **given: Any) -> ScoredConversationTurns:
    fields: dict[str, Any] = {
        "texts": TEXTS,
        "turns": CHAIN,
        "word_scores": {},
        "keyword": {},
        "semantic": {},
        "tokens": None,
    }
    return score_conversation_turns(ConversationTurnPool(**{**fields, **given}), alpha)


def scores_of(found: ScoredConversationTurns) -> Mapping[str, float]:
    return {
        key: round(match.score + sum(gain.amount for gain in found.gains.get(key, ())), 3)
        for key, match in found.matches.items()
    }


def test_words_are_carried_one_and_two_steps() -> None:
    found = scored(1.0, word_scores={"a": {"tap": 4.0}, "b": {"drip": 2.0}})
    assert found.top == 4.0 + 1.0
    words = {key: match.keyword for key, match in found.matches.items()}
    assert words == {"a": 1.0, "b": 0.8, "c": 0.4, "d": 0.1, "e": None}


def test_turn_keeps_its_score_in_the_index() -> None:
    found = scored(1.0, word_scores={"a": {"tap": 1.0}}, keyword={"a": 3.0}, turns={}, top=6.0)
    assert (found.matches["a"].score, found.top) == (0.5, 6.0)


def test_turns_gain_from_the_best_turns_around_them() -> None:
    found = scored(0.0, semantic={"a": 0.8, "e": 0.4})
    assert scores_of(found) == {"a": 0.8, "b": 0.24, "c": 0.32, "d": 0.12, "e": 0.4}
    assert [(gain.via, gain.hops) for gain in found.gains["c"]] == [("a", 2)]
    assert scored(0.0, semantic={"a": 0.8}, turns={}).gains == {}


@pytest.mark.parametrize(
    ("better", "worse"), [("It is in the hall.", "It is in the hall?"), ("The key is in the hall", "In the hall")]
)
def test_questions_and_short_turns_count_less(better: str, worse: str) -> None:
    matches = scored(texts={"a": better, "b": worse}, turns={}, semantic={"a": 0.5, "b": 0.5}).matches
    assert matches["a"].score > matches["b"].score


def test_tokens_raise_the_turn_that_has_them_and_those_around_it() -> None:
    best = np.array([[0.9, 0.2], [0.2, 0.2], [0.2, 0.2], [0.2, 0.2], [0.2, 0.8]])
    found = scored(0.0, tokens=TurnTokenMaxSimScores(best, np.array([0.75, 0.25])))
    assert {key: round(match.tokens or 0.0, 3) for key, match in found.matches.items()} == {
        "a": 0.75,
        "b": 0.0,
        "c": 0.0,
        "d": 0.0,
        "e": 0.25,
    }
    assert [key for key, _ in sorted(scores_of(found).items(), key=lambda item: -item[1])][:2] == ["a", "c"]
    assert all(0.0 <= match.score <= 1.0 for match in found.matches.values())


def test_other_nodes_are_scored_by_tokens_on_request() -> None:
    matches = {"a": EntityMatchScores(0.4 + 0.6 * 0.5, 1.0, 0.5), "b": EntityMatchScores(0.6 * 0.5, None, 0.5)}
    found = blend_late_interaction_scores(
        matches, ["a", "b"], TurnTokenMaxSimScores(np.array([[0.1], [0.9]]), np.ones(1)), 0.4
    )
    assert found["b"].tokens == 1.0
    assert found["b"].score == pytest.approx(0.6 * (0.89 * 0.5 + 1.11) / 1.6)
    assert found["a"].score == pytest.approx((0.4 + 0.6 * 0.89 * 0.5) / 1.6)


def test_max_similarity_of_texts_without_tokens_is_the_mean() -> None:
    query = np.eye(2, 3, dtype=np.float32)
    tokens = np.array([[1, 0, 0], [0, 0.5, 0], [0.5, 0, 0]], np.float32)
    assert max_token_similarities(tokens @ query.T, [2, 0, 1, 0]).tolist() == [
        [1, 0.5],
        [0.75, 0.25],
        [0.5, 0],
        [0.75, 0.25],
    ]
    assert max_token_similarities(tokens[:0] @ query.T, [0]).tolist() == [[0, 0]]
