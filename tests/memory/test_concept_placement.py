"""Placement of synthetic vectors: topics are directions, and memories scatter around them."""

from __future__ import annotations

import numpy as np
import pytest

from kgserve.memory.concept_placement import (
    TopTwoConceptScores,
    UnitVectors,
    cluster_memories,
    find_best_concepts_for_memories,
)

DIMENSIONS = 64
EACH = 12


def normalize(vectors: UnitVectors) -> UnitVectors:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def make_topics(topics: int, seed: int = 0) -> tuple[UnitVectors, UnitVectors]:
    """Return topic names and twelve memories each, with a cosine of about 0.4 to the name."""
    chance = np.random.default_rng(seed)
    names = normalize(chance.standard_normal((topics, DIMENSIONS)).astype(np.float32))
    noise = chance.standard_normal((topics * EACH, DIMENSIONS)) / np.sqrt(DIMENSIONS)
    return names, normalize((0.4 * np.repeat(names, EACH, axis=0) + 0.9 * noise).astype(np.float32))


def placements(
    memories: UnitVectors, concepts: UnitVectors, below: list[UnitVectors] | None = None
) -> list[TopTwoConceptScores]:
    shared = np.zeros((len(memories), len(concepts)), np.float32)
    return find_best_concepts_for_memories(memories, concepts, below or [memories[:0]] * len(concepts), shared)


@pytest.mark.parametrize(("topics", "given"), [(20, 12), (20, 4), (5, 2), (3, 3), (4, 1)])
def test_placement_precision_and_coverage(topics: int, given: int) -> None:
    names, memories = make_topics(topics)
    certain = [
        (at // EACH, place.best) for at, place in enumerate(placements(memories, names[:given])) if place.score > 0.6
    ]
    right = sum(topic == best for topic, best in certain)
    assert right > 0.7 * given * EACH
    assert len(certain) - right < 0.15 * len(memories)


def test_unused_concept_receives_few_memories() -> None:
    names, memories = make_topics(20)
    _, others = make_topics(10, seed=1)
    certain = [place for place in placements(others, names) if place.score > 0.6]
    assert len(certain) < 0.25 * len(others)
    both = [place for place in placements(memories[: 5 * EACH], names) if place.score > 0.6]
    assert sum(place.best >= 5 for place in both) < 0.05 * len(both)


def test_placement_does_not_depend_on_memory_order() -> None:
    names, memories = make_topics(8)
    order = np.random.default_rng(2).permutation(len(memories))
    straight, shuffled = placements(memories, names[:5]), placements(memories[order], names[:5])
    for at, place in zip(order, shuffled, strict=True):
        assert place.best == straight[at].best
        assert place.score == pytest.approx(straight[at].score, abs=0.001)


def test_equal_concepts_have_no_lead() -> None:
    names, memories = make_topics(4)
    twice = np.concatenate([names[:2], names[:1]])
    for place in placements(memories, twice)[:EACH]:
        assert {place.best, place.second} == {0, 2}
        assert place.score == pytest.approx(place.second_score, abs=0.001)
        assert not place.is_certain(0.1)


def test_children_represent_concept() -> None:
    _, memories = make_topics(6)
    strangers, _ = make_topics(6, seed=5)
    below = [memories[topic * EACH : topic * EACH + 6] for topic in range(6)]
    rest = np.concatenate([memories[topic * EACH + 6 : (topic + 1) * EACH] for topic in range(6)])
    by_name = sum(place.best == at // 6 for at, place in enumerate(placements(rest, strangers)))
    by_both = sum(place.best == at // 6 for at, place in enumerate(placements(rest, strangers, below)))
    assert by_both > by_name + 10


def test_shared_entities_raise_score() -> None:
    names, memories = make_topics(4)
    without = placements(memories, names)[0]
    shared = np.zeros((len(memories), len(names)), np.float32)
    shared[0, 0] = 1.0
    assert find_best_concepts_for_memories(memories, names, [memories[:0]] * 4, shared)[0].score > without.score


@pytest.mark.parametrize("count", [1, 2, 3])
def test_placement_of_few_memories(count: int) -> None:
    names, memories = make_topics(2)
    for concepts in (names, names[:1]):
        some = placements(memories[:count], concepts)
        assert [place.best for place in some] == [0] * count
        assert all(0 <= place.second_score <= place.score <= 1 for place in some)
    assert all(len(group) >= 3 for group in cluster_memories(memories[:count], 0.7))
