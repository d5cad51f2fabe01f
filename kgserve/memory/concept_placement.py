"""Where memories belong that nobody has placed: below which concept, and which of them make a concept of their own.

A name says little: of 240 sentences on 20 topics none had a cosine of 0.6 with the name of its topic, and their mean
was 0.27. So each memory is first drawn towards those nearest to it, which say together what one alone does not; what
counts is how far it stands out from all other memories of the same concept, and how far that is ahead of any other
concept; and what stands below a concept speaks for it beside its name, as does what was placed there for certain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgserve.platform.text.similarity import complete_linkage

Vectors = NDArray[np.float32]
"""Shape (count, dimensions), each of length 1."""
Numbers = NDArray[np.floating]

CLUSTER_NEIGHBOURS = 5
MIN_CONCEPT_MEMORIES = 3
"""So many memories make a concept."""
MIN_SCORE_LEAD = 0.05
"""A memory is put below a concept if that is so much better than any other."""
_CERTAIN_SCORE = 0.7
_OWN_TEXT_WEIGHT = 0.6
"""Weight of a concept's own text, beside what stands below it."""
_SHARED_WEIGHT = 0.1
_USUAL, _SPREAD, _WORTH = 0.05, 0.1, 10
"""The cosines that a concept is taken to have with memories of other topics, as if that had been seen of ten."""
_MAX_CONCEPT_SHARE = 0.08
"""What seems to belong to a concept is at most such a part of the memories that say what is usual."""
_STANDS_OUT, _IS_AHEAD, _LEAST = 0.9, 0.75, 2.5
"""The score is the chance that a place is right, fitted to sentences of many topics (docs/adr/0024)."""
_PLACED_VECTORS_BATCH_SIZE = 1_000
_CONCEPTS_BATCH_SIZE = 100
_MAX_SIMILAR_PAIRS = 500_000


class ConceptScores(NamedTuple):
    """The best concept of a memory and the next best, by their numbers, -1 where there is none; scores are 0 to 1."""

    best: int
    score: float
    second: int
    second_score: float

    def is_certain(self, least: float) -> bool:
        """Whether the score is at least this, and so much better than any other."""
        return self.score >= least and self.score - self.second_score >= MIN_SCORE_LEAD


def places(memories: Vectors, concepts: Vectors, below: Sequence[Vectors], shared: Numbers) -> list[ConceptScores]:
    """The best concept of each memory, of at least one.

    ``below`` are some that stand below each concept already; ``shared`` is which part of the entities that a memory is
    about are met below each concept, shape (memories, concepts).
    """
    drawn = np.mean([memories, *_drawn(memories, 1.0, 3)], axis=0)
    own = _outstanding(drawn @ concepts.T + _SHARED_WEIGHT * shared)

    def beside(some: Sequence[Vectors]) -> list[ConceptScores]:
        return _ranked(
            _OWN_TEXT_WEIGHT * own + (1 - _OWN_TEXT_WEIGHT) * _outstanding(drawn @ _centres(concepts, some).T)
        )

    found = beside(below) if any(map(len, below)) else _ranked(own)
    certain = np.array([place.best if place.is_certain(_CERTAIN_SCORE) else -1 for place in found])
    return beside([np.concatenate([some, memories[certain == at]]) for at, some in enumerate(below)])


def groups(memories: Vectors, threshold: float) -> list[list[int]]:
    """Memories that are near each other, by their numbers: at least three, each two nearer than the threshold."""
    *_, drawn = _drawn(memories, 2.0, 3)
    pairs: dict[tuple[str, str], float] = {}
    for first, near in _blocks(drawn):
        near[near < threshold] = -1
        for one, other in np.argwhere(near >= threshold).tolist():
            if first + one < other:
                pairs[_key(first + one), _key(other)] = float(near[one, other])
        if len(pairs) > _MAX_SIMILAR_PAIRS:
            break
    return [[int(each) for each in group] for group in complete_linkage(pairs) if len(group) >= MIN_CONCEPT_MEMORIES]


def _key(number: int) -> str:
    return f"{number:09}"


def _drawn(memories: Vectors, pull: float, times: int) -> Iterator[Vectors]:
    """Memories drawn towards those nearest to them, several times over: what becomes of them each time."""
    drawn = memories
    count = min(CLUSTER_NEIGHBOURS, len(memories) - 1)
    for _ in range(times):
        towards = np.empty_like(memories)
        for first, near in _blocks(drawn):
            rows = np.arange(len(near))[:, None]
            near[rows[:, 0], rows[:, 0] + first] = -1
            nearest = np.argpartition(-near, count - 1, axis=1)[:, :count]
            weights = np.clip(near[rows, nearest], 0, None)
            weights /= weights.sum(axis=1, keepdims=True) + 1e-9
            towards[first : first + len(near)] = np.einsum("ij,ijk->ik", weights, drawn[nearest])
        drawn = _of_length_one((memories + pull * towards).astype(np.float32))
        yield drawn


def _blocks(vectors: Vectors) -> Iterator[tuple[int, Numbers]]:
    """Cosines of some vectors with all: the number of the first of them, and the cosines."""
    for first, end in pairwise([*range(0, len(vectors), _PLACED_VECTORS_BATCH_SIZE), len(vectors)]):
        yield first, vectors[first:end] @ vectors.T


def _centres(concepts: Vectors, below: Sequence[Vectors]) -> Vectors:
    """What stands below each concept, as one; where that is fewer than two, the concept itself."""
    return np.stack(
        [
            concept if len(some) <= 1 else _of_length_one(some.mean(axis=0, keepdims=True))[0]
            for concept, some in zip(concepts, below, strict=True)
        ]
    )


def _outstanding(evidence: Numbers) -> Numbers:
    """By how much the evidence for each concept stands out from that for the same concept of all memories, in place."""
    for first in range(0, evidence.shape[1], _CONCEPTS_BATCH_SIZE):
        some = evidence[:, first : first + _CONCEPTS_BATCH_SIZE]
        weights = _weights(some)
        total = weights.sum(axis=0) + _WORTH
        usual = ((weights * some).sum(axis=0) + _WORTH * _USUAL) / total
        squares = ((weights * (some - usual) ** 2).sum(axis=0) + _WORTH * _SPREAD**2) / total
        some -= usual
        some /= np.sqrt((squares + _SPREAD**2) / 2)
    return evidence


def _weights(evidence: Numbers) -> Numbers:
    """What each memory counts for in what is usual: where topics are few, what belongs to one is not usual for it."""
    few = min(len(evidence), max(MIN_CONCEPT_MEMORIES, len(evidence) // 50))
    most = np.partition(evidence, -few, axis=0)[-few:].mean(axis=0)
    seems = evidence >= (np.median(evidence, axis=0) + most) / 2
    part = seems.mean(axis=0)
    return np.where(seems, np.minimum(1, _MAX_CONCEPT_SHARE / (1 - _MAX_CONCEPT_SHARE) * (1 - part) / part), 1)


def _ranked(evidence: Numbers) -> list[ConceptScores]:
    """A place is good when there is much for it, and more than for any other."""
    rows = np.arange(len(evidence))
    best = evidence.argmax(axis=1)
    most = evidence[rows, best]
    if evidence.shape[1] == 1:
        return [ConceptScores(0, score, -1, 0.0) for score in _scores(most, most)]
    others = evidence.copy()
    others[rows, best] = -np.inf
    second = others.argmax(axis=1)
    next_most = others[rows, second]
    scores = zip(_scores(most, np.minimum(most - next_most, most)), _scores(next_most, next_most - most), strict=True)
    return [ConceptScores(int(one), a, int(two), b) for one, two, (a, b) in zip(best, second, scores, strict=True)]


def _scores(evidence: Numbers, ahead: Numbers) -> list[float]:
    chances = 1 / (1 + np.exp(_LEAST - _STANDS_OUT * evidence - _IS_AHEAD * ahead))
    return [round(float(chance), 4) for chance in chances]


def _of_length_one(vectors: Vectors) -> Vectors:
    return vectors / (np.linalg.norm(vectors, axis=-1, keepdims=True).astype(np.float32) + np.float32(1e-9))
