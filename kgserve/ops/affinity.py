"""Where memories belong that nobody has placed: below which concept, and which of them make a concept of their own.

A name says little: of 240 sentences on 20 topics none had a cosine of 0.6 with the name of its topic, and their mean
was 0.27. So each memory is first drawn towards those nearest to it, which say together what one alone does not; what
everything has in common with a concept counts for nothing; and what stands below a concept speaks for it beside its
name, as does what was placed there for certain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgserve.model.clusters import complete_linkage

Vectors = NDArray[np.float32]
"""Shape (count, dimensions), each of length 1."""
Numbers = NDArray[np.floating]

NEIGHBOURS = 5
FEWEST = 3
"""So many memories make a concept."""
_COMMON = 0.1
"""At most so much of a cosine is taken for what a concept has in common with everything."""
_STEEP = 4.0
_CERTAIN = 0.63
_NAME = 0.6
"""Weight of a concept's own text, beside what stands below it."""
_SHARED = 0.1
_AT_ONCE = 1_000
_MOST_PAIRS = 500_000


class Place(NamedTuple):
    """The best concept of a memory and the next best, by their numbers, -1 where there is none; scores are 0 to 1."""

    best: int
    score: float
    second: int
    second_score: float


def places(memories: Vectors, concepts: Vectors, below: Sequence[Vectors], shared: Numbers) -> list[Place]:
    """The best concept of each memory, of at least one.

    ``below`` are some that stand below each concept already; ``shared`` is which part of the entities that a memory is
    about are met below each concept, shape (memories, concepts).
    """
    drawn = _drawn(memories, 1.0, 2)
    own = drawn @ concepts.T
    own = own - np.clip(np.median(own, axis=0), 0, _COMMON) + _SHARED * shared
    found = _ranked(_NAME * own + (1 - _NAME) * drawn @ _centres(concepts, below).T if any(map(len, below)) else own)
    certain = np.array([place.best if place.score >= _CERTAIN else -1 for place in found])
    with_certain = [np.concatenate([some, memories[certain == at]]) for at, some in enumerate(below)]
    return _ranked(_NAME * own + (1 - _NAME) * drawn @ _centres(concepts, with_certain).T)


def groups(memories: Vectors, threshold: float) -> list[list[int]]:
    """Memories that are near each other, by their numbers: at least three, each two nearer than the threshold."""
    drawn = _drawn(memories, 2.0, 3)
    pairs: dict[tuple[str, str], float] = {}
    for first, near in _blocks(drawn):
        near[near < threshold] = -1
        for one, other in np.argwhere(near >= threshold).tolist():
            if first + one < other:
                pairs[_key(first + one), _key(other)] = float(near[one, other])
        if len(pairs) > _MOST_PAIRS:
            break
    return [[int(each) for each in group] for group in complete_linkage(pairs) if len(group) >= FEWEST]


def _key(number: int) -> str:
    return f"{number:09}"


def _drawn(memories: Vectors, pull: float, times: int) -> Vectors:
    """Memories drawn towards those nearest to them, several times over."""
    drawn = memories
    count = min(NEIGHBOURS, len(memories) - 1)
    for _ in range(times if count > 0 else 0):
        towards = np.empty_like(memories)
        for first, near in _blocks(drawn):
            rows = np.arange(len(near))[:, None]
            near[rows[:, 0], rows[:, 0] + first] = -1
            nearest = np.argpartition(-near, count - 1, axis=1)[:, :count]
            weights = np.clip(near[rows, nearest], 0, None)
            weights /= weights.sum(axis=1, keepdims=True) + 1e-9
            towards[first : first + len(near)] = np.einsum("ij,ijk->ik", weights, drawn[nearest])
        drawn = _of_length_one((memories + pull * towards).astype(np.float32))
    return drawn


def _blocks(vectors: Vectors) -> Iterator[tuple[int, Numbers]]:
    """Cosines of some vectors with all: the number of the first of them, and the cosines."""
    for first, end in pairwise([*range(0, len(vectors), _AT_ONCE), len(vectors)]):
        yield first, vectors[first:end] @ vectors.T


def _centres(concepts: Vectors, below: Sequence[Vectors]) -> Vectors:
    """What stands below each concept, as one; where that is fewer than two, the concept itself."""
    return np.stack(
        [
            concept if len(some) <= 1 else _of_length_one(some.mean(axis=0, keepdims=True))[0]
            for concept, some in zip(concepts, below, strict=True)
        ]
    )


def _ranked(evidence: Numbers) -> list[Place]:
    """A place is good when there is much for it, and more than for any other."""
    rows = np.arange(len(evidence))
    best = evidence.argmax(axis=1)
    most = evidence[rows, best]
    if evidence.shape[1] == 1:
        return [Place(0, score, -1, 0.0) for score in _scores(most)]
    others = evidence.copy()
    others[rows, best] = -np.inf
    second = others.argmax(axis=1)
    ahead = np.minimum(most - others[rows, second], most)
    scores = zip(_scores((most + ahead) / 2), _scores(others[rows, second] / 2), strict=True)
    return [Place(int(one), a, int(two), b) for one, two, (a, b) in zip(best, second, scores, strict=True)]


def _scores(evidence: Numbers) -> list[float]:
    return [round(float(score), 4) for score in 1 - np.exp(-_STEEP * np.clip(evidence, 0, None))]


def _of_length_one(vectors: Vectors) -> Vectors:
    return vectors / (np.linalg.norm(vectors, axis=-1, keepdims=True).astype(np.float32) + np.float32(1e-9))
