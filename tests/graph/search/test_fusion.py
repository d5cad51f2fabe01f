"""Fusion of keyword and semantic scores, and score propagation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgserve.graph.search import score_fusion
from kgserve.graph.search.score_fusion import EntityMatchScores, GraphProximityBoost
from kgserve.platform.text import function_and_content_words as words
from kgserve.platform.text.function_and_content_words import (
    FUNCTION_WORD_WEIGHT,
    MAX_WEIGHTED_WORDS,
    compute_query_word_weights,
)

_ids = st.sampled_from("abcdefgh")
_scores = st.dictionaries(_ids, st.floats(0.0, 1.0))
_graphs = st.dictionaries(_ids, st.lists(st.tuples(_ids, st.floats(-1.0, 2.0)), max_size=5))


def chain(*ids: str, weight: float = 1.0) -> dict[str, list[tuple[str, float]]]:
    links: dict[str, list[tuple[str, float]]] = {key: [] for key in ids}
    for one, two in pairwise(ids):
        links[one].append((two, weight))
        links[two].append((one, weight))
    return links


# --- Weighted fusion


def test_weighted_fusion_is_union_with_missing_scores_as_zero() -> None:
    found = score_fusion.fuse_scores_by_weighted_sum({"a": 8.0, "b": 2.0}, {"a": 0.5, "c": 0.75}, alpha=0.25)
    assert found == {
        "a": EntityMatchScores(0.625, 1.0, 0.5),
        "b": EntityMatchScores(0.0625, 0.25, None),
        "c": EntityMatchScores(0.5625, None, 0.75),
    }


def test_alpha_is_the_weight_of_keyword_scores() -> None:
    assert score_fusion.fuse_scores_by_weighted_sum({"a": 8.0}, {"b": 1.0})["a"].score == pytest.approx(0.4)
    assert score_fusion.fuse_scores_by_weighted_sum({"a": 8.0}, {"b": 1.0})["b"].score == pytest.approx(0.6)


def test_equal_keyword_hits_are_normalized_to_one() -> None:
    assert score_fusion.fuse_scores_by_weighted_sum({"a": 0.3}, {})["a"].score == pytest.approx(0.4)
    found = score_fusion.fuse_scores_by_weighted_sum({"a": 3.0, "b": 3.0}, {})
    assert found["a"].score == found["b"].score == pytest.approx(0.4)


def test_similarities_are_clipped_to_0_and_1() -> None:
    found = score_fusion.fuse_scores_by_weighted_sum({}, {"a": -0.2, "b": 1.0000002})
    assert (found["a"].score, found["b"].semantic) == (0.0, 1.0)


def test_external_top_score_lowers_normalized_keyword_score() -> None:
    words, meaning = {"filler": 1.0}, {"filler": 0.1, "sense": 0.4}
    assert (
        max(score_fusion.fuse_scores_by_weighted_sum(words, meaning).items(), key=lambda each: each[1].score)[0]
        == "filler"
    )
    found = score_fusion.fuse_scores_by_weighted_sum(words, meaning, top=4.0)
    assert found["filler"].keyword == 0.25
    assert found["sense"].score > found["filler"].score
    assert score_fusion.fuse_scores_by_weighted_sum(
        {"a": 8.0}, {}, top=4.0
    ) == score_fusion.fuse_scores_by_weighted_sum({"a": 8.0}, {})


def test_irregular_word_forms_have_lower_weight() -> None:
    found = words.add_irregular_word_forms(words.compute_query_word_weights("When did the children go away"))
    assert {"went", "gone", "child"} < found.keys()
    assert found["went"] == found["child"] == words.FORM_WEIGHT
    assert found["go"] == found["children"] == 1.0
    assert not {"do", "does", "done"} & found.keys()
    assert words.add_irregular_word_forms({"go": 1.0, "went": 1.0})["went"] == 1.0


@pytest.mark.parametrize(("alpha", "first"), [(1.0, "word"), (0.0, "sense")])
def test_alpha_of_0_or_1_uses_one_list_only(alpha: float, first: str) -> None:
    found = score_fusion.fuse_scores_by_weighted_sum({"word": 5.0}, {"sense": 0.4}, alpha)
    assert score_fusion.rank_matches_with_proximity_boosts(found)[0].id == first
    assert min(match.score for match in found.values()) == 0.0


def test_fusion_of_empty_lists_is_empty() -> None:
    assert score_fusion.fuse_scores_by_weighted_sum({}, {}) == {}
    assert score_fusion.rank_matches_with_proximity_boosts({}) == []


# --- Reciprocal rank fusion


def test_reciprocal_rank_fusion_sums_ranks_from_1() -> None:
    found = score_fusion.reciprocal_rank_fusion([["a", "b"], ["b"]])
    assert found == {"b": pytest.approx(1 / 62 + 1 / 61), "a": pytest.approx(1 / 61)}
    assert list(found) == ["b", "a"]


def test_reciprocal_rank_fusion_keeps_order_of_ties() -> None:
    assert list(score_fusion.reciprocal_rank_fusion([["z", "m"], ["a", "n"]])) == ["z", "a", "m", "n"]


def test_reciprocal_rank_fusion_ignores_repeated_ids() -> None:
    assert score_fusion.reciprocal_rank_fusion([["a", "a", "b"]]) == {
        "a": pytest.approx(1 / 61),
        "b": pytest.approx(1 / 62),
    }


def test_reciprocal_score_is_1_for_first_in_both_lists() -> None:
    found = score_fusion.fuse_scores_by_reciprocal_rank({"a": 3.0, "b": 2.0}, {"a": 0.8, "c": 0.7})
    assert found["a"] == EntityMatchScores(1.0, 1.0, 0.8)
    assert found["b"].score == found["c"].score == pytest.approx(61 / 62 / 2)


# --- Score propagation


def test_score_propagation_decays_per_hop() -> None:
    found = score_fusion.propagate_scores({"a": 0.75}, chain("a", "b", "c", "d"))
    assert found == {"b": (GraphProximityBoost(0.375, "a", 1),), "c": (GraphProximityBoost(0.1875, "a", 2),)}


def test_better_match_gains_nothing_from_neighbours() -> None:
    found = score_fusion.propagate_scores({"a": 0.75, "b": 0.5}, chain("a", "b"))
    assert found == {"b": (GraphProximityBoost(0.125, "a", 1),)}


def test_match_gains_half_over_a_shared_neighbour() -> None:
    scores = {"a": 0.8, "c": 0.2}
    links = {"a": [("b", 1.0)], "b": [("c", 1.0), ("d", 1.0)]}
    found = score_fusion.propagate_scores(scores, links, matched_share=0.5)
    assert {key: [(gain.via, round(gain.amount, 3)) for gain in found[key]] for key in "bcd"} == {
        "b": [("a", 0.4)],
        "c": [("a", 0.3)],
        "d": [("a", 0.2)],
    }


def test_score_propagation_uses_best_neighbour_only() -> None:
    links = {"x": [(other, 1.0) for other in "abcde"]}
    assert score_fusion.propagate_scores(dict.fromkeys("abcde", 0.75), links)["x"] == (
        GraphProximityBoost(0.375, "a", 1),
    )


def test_relation_weights_are_clipped_to_0_and_1() -> None:
    assert score_fusion.propagate_scores({"a": 0.8}, chain("a", "b", weight=0.5))["b"][0].amount == pytest.approx(0.2)
    assert score_fusion.propagate_scores({"a": 0.8}, chain("a", "b", weight=7.0))["b"][0].amount == pytest.approx(0.4)
    assert score_fusion.propagate_scores({"a": 0.8}, chain("a", "b", weight=-1.0)) == {}
    assert score_fusion.propagate_scores({"a": 0.8}, chain("a", "b", "c", weight=0.5))["c"][0].amount == pytest.approx(
        0.05
    )


def test_score_propagation_is_bidirectional() -> None:
    assert "b" in score_fusion.propagate_scores({"a": 0.8}, {"a": [("b", 1.0)]})
    assert "a" in score_fusion.propagate_scores({"b": 0.8}, {"a": [("b", 1.0)]})


def test_triangle_propagates_over_one_hop_only() -> None:
    links = chain("a", "b", "c") | {"c": [("a", 1.0), ("b", 1.0)]}
    assert [near.hops for near in score_fusion.propagate_scores({"a": 0.8}, links)["c"]] == [1]


def test_hubs_and_loops_propagate_no_scores() -> None:
    hub = {
        "hub": [(f"n{number}", 1.0) for number in range(score_fusion.MAX_PROPAGATION_DEGREE + 1)],
        "n0": [("hub", 1.0)],
    }
    assert score_fusion.propagate_scores({"hub": 0.9, "n1": 0.5}, hub) == {}
    assert score_fusion.propagate_scores({"a": 0.9}, {"a": [("a", 1.0)]}) == {}


def test_no_propagation_with_zero_hops_or_decay() -> None:
    assert score_fusion.propagate_scores({"a": 0.8}, chain("a", "b"), hops=0) == {}
    assert score_fusion.propagate_scores({"a": 0.8}, chain("a", "b"), decay=0.0) == {}
    assert set(score_fusion.propagate_scores({"a": 0.8}, chain("a", "b", "c"), hops=1)) == {"b"}


@pytest.mark.parametrize(("decay", "hops"), [(-0.1, 2), (0.7, 2), (0.5, 3)])
def test_propagation_rejects_invalid_parameters(decay: float, hops: int) -> None:
    with pytest.raises(ValueError, match="hops"):
        score_fusion.propagate_scores({}, {}, decay, hops)


@given(_scores, _graphs, st.floats(0.0, score_fusion.MAX_PROPAGATION_DECAY))
def test_propagation_keeps_best_match_first(
    scores: dict[str, float], graph: dict[str, list[tuple[str, float]]], decay: float
) -> None:
    best = max(scores.values(), default=0.0)
    matches = {key: EntityMatchScores(score) for key, score in scores.items()}
    ranked = score_fusion.rank_matches_with_proximity_boosts(
        matches, score_fusion.propagate_scores(scores, graph, decay)
    )
    assert all(hit.score <= best + 1e-12 for hit in ranked)
    assert all(hit.score >= scores.get(hit.id, 0.0) for hit in ranked)


@given(_scores, _graphs)
def test_second_hop_equals_brute_force_maximum(
    scores: dict[str, float], graph: dict[str, list[tuple[str, float]]]
) -> None:
    links: dict[str, dict[str, float]] = {}
    for one, two, weight in ((one, two, weight) for one, ends in graph.items() for two, weight in ends):
        if one != two and weight > 0:
            for start, end in ((one, two), (two, one)):
                links.setdefault(start, {})[end] = max(min(weight, 1.0), links.get(start, {}).get(end, 0.0))
    found = score_fusion.propagate_scores(scores, graph)
    for key, around in links.items():
        ways = [
            near * far * scores.get(end, 0.0)
            for middle, near in around.items()
            for end, far in links[middle].items()
            if end != key and end not in around
        ]
        gain = 0.25 * (max(ways, default=0.0) - scores.get(key, 0.0))
        gained = sum(near.amount for near in found.get(key, ()) if near.hops == 2)
        assert gained == pytest.approx(max(gain, 0.0))


# --- Neighbour lookup


def test_neighbour_lookup_reads_seeds_then_reached_nodes() -> None:
    links = chain(*"abcdef")
    asked: list[list[str]] = []

    def look_up(ids: Sequence[str]) -> dict[str, list[tuple[str, float]]]:
        asked.append(list(ids))
        return {key: links[key] for key in ids}

    found = score_fusion.fetch_neighbours_of_best_matches(
        {"c": 0.9, "x": 0.0} | dict.fromkeys("a", 0.5), lambda ids: look_up([*ids][:2])
    )
    assert asked == [["c", "a"], ["b", "d"]]
    assert set(found) == {"a", "b", "c", "d"}


def test_neighbour_lookup_is_bounded_and_round_robin() -> None:
    def look_up(ids: Sequence[str]) -> dict[str, list[tuple[str, float]]]:
        asked.append(list(ids))
        return {key: [(f"{key}.{number}", 1.0) for number in range(20)] for key in ids}

    asked: list[list[str]] = []
    score_fusion.fetch_neighbours_of_best_matches(
        {f"s{number:02}": 1.0 - number / 100 for number in range(50)}, look_up
    )
    assert [len(ids) for ids in asked] == [score_fusion.MAX_PROPAGATION_SEEDS, score_fusion.MAX_PROPAGATION_REACHED]
    assert len({key.split(".")[0] for key in asked[1]}) == score_fusion.MAX_PROPAGATION_REACHED // 2


def test_neighbour_lookup_without_relations_calls_once() -> None:
    assert score_fusion.fetch_neighbours_of_best_matches({"a": 1.0}, lambda ids: {key: [] for key in ids}) == {"a": []}


# --- Ranking and explanations


def test_hit_explains_its_score() -> None:
    matches = score_fusion.fuse_scores_by_weighted_sum({"a": 4.0, "b": 1.0}, {"a": 0.5})
    ranked = score_fusion.rank_matches_with_proximity_boosts(
        matches, score_fusion.propagate_scores({"a": 0.7, "b": 0.1}, chain("a", "b", "c"))
    )
    assert [hit.id for hit in ranked] == ["a", "b", "c"]
    assert ranked[0].why == "words 1.00, meaning 0.50"
    assert ranked[1].why == "words 0.25, 1 hop from a (+0.30)"
    assert ranked[2].why == "1 hop from b (+0.05), 2 hops from a (+0.17)"
    assert [hit.hops for hit in ranked] == [0, 0, 1]


def test_ranking_ties_by_match_then_by_id() -> None:
    matches = {"b": EntityMatchScores(0.4), "a": EntityMatchScores(0.4), "c": EntityMatchScores(0.2)}
    nearby = {"c": (GraphProximityBoost(0.2, "z", 1),)}
    assert [hit.id for hit in score_fusion.rank_matches_with_proximity_boosts(matches, nearby)] == ["a", "b", "c"]


# --- Paths


def test_path_strength_decays_per_hop_and_weight() -> None:
    links = {"s": [("a", 1.0), ("b", 0.5)], "a": [("c", 0.8)]}
    assert score_fusion.compute_best_path_strengths({"s": 1.0}, links) == {
        "s": (1.0, 0),
        "a": (pytest.approx(0.5), 1),
        "b": (pytest.approx(0.25), 1),
        "c": (pytest.approx(0.2), 2),
    }


def test_path_has_best_strength_and_shortest_distance() -> None:
    links = {"s": [("far", 0.1), ("a", 1.0)], "a": [("far", 1.0)], "far": [("s", 1.0)]}
    assert score_fusion.compute_best_path_strengths({"s": 1.0}, links)["far"] == (pytest.approx(0.25), 1)


# --- Word weights


def test_function_words_have_a_tenth_of_the_weight() -> None:
    weights = compute_query_word_weights("What did Caroline research?")
    assert weights == {"what": FUNCTION_WORD_WEIGHT, "did": FUNCTION_WORD_WEIGHT, "caroline": 1.0, "research": 1.0}


def test_query_of_function_words_only_has_full_weight() -> None:
    assert compute_query_word_weights("To be or not to be") == {"to": 1.0, "be": 1.0, "or": 1.0, "not": 1.0}


def test_names_and_months_are_not_function_words() -> None:
    weights = compute_query_word_weights("Did Will go to the US in May?")
    assert weights["will"] == weights["us"] == weights["may"] == 1.0
    assert weights["did"] == weights["the"] == FUNCTION_WORD_WEIGHT


@pytest.mark.parametrize("query", ["Nate's turtles don't swim", "Nate\u2019s turtles don\u2019t swim"])
def test_contractions_are_function_words(query: str) -> None:
    light = {word for word, weight in compute_query_word_weights(query).items() if weight < 1.0}
    assert light == {"s", "don", "t"}
    assert compute_query_word_weights("vitamin D and Don")["d"] == 1.0
    assert compute_query_word_weights("vitamin D and Don")["don"] == 1.0


def test_words_of_other_scripts_have_full_weight() -> None:
    assert compute_query_word_weights("где Пётр 東京") == {"где": 1.0, "пётр": 1.0, "東京": 1.0}
    assert len(compute_query_word_weights(" ".join(map(str, range(5000))))) == MAX_WEIGHTED_WORDS
    assert compute_query_word_weights(" ?! ") == {}


@given(st.text(max_size=200))
def test_word_weights_are_bounded_for_any_text(query: str) -> None:
    assert all(
        word == word.lower() and 0.0 < weight <= 1.0 for word, weight in compute_query_word_weights(query).items()
    )
