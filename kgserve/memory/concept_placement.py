"""Placement of memories below concepts, and clusters of memories that form new concepts.

The name of a concept alone is weak evidence. Each memory is first smoothed with its nearest neighbours. A score then
measures how far a memory exceeds the usual similarity of all memories to a concept, and its lead over other concepts.
The children of a concept represent it together with its own text (docs/adr/0024).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgserve.platform.text.text_equality import cluster_complete_linkage

UnitVectors = NDArray[np.float32]
"""Shape (count, dimensions), each of length 1."""
FloatArray = NDArray[np.floating]

CLUSTER_NEIGHBOURS = 5
MIN_CONCEPT_MEMORIES = 3
"""Minimum number of memories of a new concept."""
MIN_SCORE_LEAD = 0.05
"""Minimum lead of a score over the next best concept for a certain placement."""
_CERTAIN_SCORE = 0.7
_OWN_TEXT_WEIGHT = 0.6
"""Weight of a concept's own text against its children."""
_SHARED_WEIGHT = 0.1
_PRIOR_MEAN, _PRIOR_SPREAD, _PRIOR_COUNT = 0.05, 0.1, 10
"""Prior of the cosine between a concept and memories of other topics: mean, spread, and weight in observations."""
_MAX_CONCEPT_SHARE = 0.08
"""Assumed maximum fraction of memories that belong to one concept, in the estimate of usual similarity."""
_EVIDENCE_COEFFICIENT, _LEAD_COEFFICIENT, _INTERCEPT = 0.9, 0.75, 2.5
"""Logistic coefficients: the score is the probability of a correct placement (docs/adr/0024)."""
_PLACED_VECTORS_BATCH_SIZE = 1_000
_CONCEPTS_BATCH_SIZE = 100
_MAX_SIMILAR_PAIRS = 500_000


class TopTwoConceptScores(NamedTuple):
    """Indices of the best and second best concept of a memory, -1 if none exists; scores are 0 to 1."""

    best: int
    score: float
    second: int
    second_score: float

    def is_certain(self, least: float) -> bool:
        """Return whether the score reaches a minimum and has the minimum lead."""
        return self.score >= least and self.score - self.second_score >= MIN_SCORE_LEAD


def find_best_concepts_for_memories(
    memories: UnitVectors, concepts: UnitVectors, below: Sequence[UnitVectors], shared: FloatArray
) -> list[TopTwoConceptScores]:
    """Return the best concepts of each memory; at least one concept is required.

    `below` are vectors of some children of each concept; `shared` is the fraction of a memory's entities that occur
    below each concept, shape (memories, concepts).
    """
    drawn = np.mean([memories, *_smooth(memories, 1.0, 3)], axis=0)
    own = _standardize(drawn @ concepts.T + _SHARED_WEIGHT * shared)

    def score_with(some: Sequence[UnitVectors]) -> list[TopTwoConceptScores]:
        return _rank_concepts(
            _OWN_TEXT_WEIGHT * own + (1 - _OWN_TEXT_WEIGHT) * _standardize(drawn @ _child_centroids(concepts, some).T)
        )

    found = score_with(below) if any(map(len, below)) else _rank_concepts(own)
    certain = np.array([place.best if place.is_certain(_CERTAIN_SCORE) else -1 for place in found])
    return score_with([np.concatenate([some, memories[certain == at]]) for at, some in enumerate(below)])


def cluster_memories(memories: UnitVectors, threshold: float) -> list[list[int]]:
    """Return clusters of at least three memories, as indices, in which each pair exceeds the threshold."""
    *_, drawn = _smooth(memories, 2.0, 3)
    pairs: dict[tuple[str, str], float] = {}
    for first, near in _iterate_cosines(drawn):
        near[near < threshold] = -1
        for one, other in np.argwhere(near >= threshold).tolist():
            if first + one < other:
                pairs[_key(first + one), _key(other)] = float(near[one, other])
        if len(pairs) > _MAX_SIMILAR_PAIRS:
            break
    return [
        [int(each) for each in group] for group in cluster_complete_linkage(pairs) if len(group) >= MIN_CONCEPT_MEMORIES
    ]


def _key(number: int) -> str:
    return f"{number:09}"


def _smooth(memories: UnitVectors, pull: float, times: int) -> Iterator[UnitVectors]:
    """Yield the memories after each of `times` smoothing steps towards their nearest neighbours."""
    drawn = memories
    count = min(CLUSTER_NEIGHBOURS, len(memories) - 1)
    for _ in range(times):
        towards = np.empty_like(memories)
        for first, near in _iterate_cosines(drawn):
            rows = np.arange(len(near))[:, None]
            near[rows[:, 0], rows[:, 0] + first] = -1
            nearest = np.argpartition(-near, count - 1, axis=1)[:, :count]
            weights = np.clip(near[rows, nearest], 0, None)
            weights /= weights.sum(axis=1, keepdims=True) + 1e-9
            towards[first : first + len(near)] = np.einsum("ij,ijk->ik", weights, drawn[nearest])
        drawn = _normalize((memories + pull * towards).astype(np.float32))
        yield drawn


def _iterate_cosines(vectors: UnitVectors) -> Iterator[tuple[int, FloatArray]]:
    """Yield cosines of batches of vectors with all vectors, with the index of the first of each batch."""
    for first, end in pairwise([*range(0, len(vectors), _PLACED_VECTORS_BATCH_SIZE), len(vectors)]):
        yield first, vectors[first:end] @ vectors.T


def _child_centroids(concepts: UnitVectors, below: Sequence[UnitVectors]) -> UnitVectors:
    """Return the mean vector of each concept's children; the concept's own vector if it has fewer than two."""
    return np.stack(
        [
            concept if len(some) <= 1 else _normalize(some.mean(axis=0, keepdims=True))[0]
            for concept, some in zip(concepts, below, strict=True)
        ]
    )


def _standardize(evidence: FloatArray) -> FloatArray:
    """Standardize the evidence for each concept over all memories, in place."""
    for first in range(0, evidence.shape[1], _CONCEPTS_BATCH_SIZE):
        some = evidence[:, first : first + _CONCEPTS_BATCH_SIZE]
        weights = _weights(some)
        total = weights.sum(axis=0) + _PRIOR_COUNT
        usual = ((weights * some).sum(axis=0) + _PRIOR_COUNT * _PRIOR_MEAN) / total
        squares = ((weights * (some - usual) ** 2).sum(axis=0) + _PRIOR_COUNT * _PRIOR_SPREAD**2) / total
        some -= usual
        some /= np.sqrt((squares + _PRIOR_SPREAD**2) / 2)
    return evidence


def _weights(evidence: FloatArray) -> FloatArray:
    """Return the weight of each memory in the usual similarity; likely members of a small topic count less."""
    few = min(len(evidence), max(MIN_CONCEPT_MEMORIES, len(evidence) // 50))
    most = np.partition(evidence, -few, axis=0)[-few:].mean(axis=0)
    seems = evidence >= (np.median(evidence, axis=0) + most) / 2
    part = seems.mean(axis=0)
    return np.where(seems, np.minimum(1, _MAX_CONCEPT_SHARE / (1 - _MAX_CONCEPT_SHARE) * (1 - part) / part), 1)


def _rank_concepts(evidence: FloatArray) -> list[TopTwoConceptScores]:
    """Return the two best concepts of each memory; a high score needs strong evidence and a lead."""
    rows = np.arange(len(evidence))
    best = evidence.argmax(axis=1)
    most = evidence[rows, best]
    if evidence.shape[1] == 1:
        return [TopTwoConceptScores(0, score, -1, 0.0) for score in _scores(most, most)]
    others = evidence.copy()
    others[rows, best] = -np.inf
    second = others.argmax(axis=1)
    next_most = others[rows, second]
    scores = zip(_scores(most, np.minimum(most - next_most, most)), _scores(next_most, next_most - most), strict=True)
    return [
        TopTwoConceptScores(int(one), a, int(two), b) for one, two, (a, b) in zip(best, second, scores, strict=True)
    ]


def _scores(evidence: FloatArray, ahead: FloatArray) -> list[float]:
    chances = 1 / (1 + np.exp(_INTERCEPT - _EVIDENCE_COEFFICIENT * evidence - _LEAD_COEFFICIENT * ahead))
    return [round(float(chance), 4) for chance in chances]


def _normalize(vectors: UnitVectors) -> UnitVectors:
    return vectors / (np.linalg.norm(vectors, axis=-1, keepdims=True).astype(np.float32) + np.float32(1e-9))
