"""Similarity search in the bounded buffer of recent vectors."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from kgserve.projections.recent_vectors import RecentVectorBuffer


@pytest.mark.parametrize("most", [5, 100])
def test_similar_vectors_among_the_most_recent(most: int) -> None:
    chance, numbers = random.Random(most), np.random.default_rng(most)
    recent, known = RecentVectorBuffer(most), dict[str, NDArray[np.float32]]()
    assert recent.find_similar(np.ones(16, np.float32), 0.5) == {}
    for number in range(3 * most + 7):
        vector, asked = (each / np.linalg.norm(each) for each in numbers.normal(size=(2, 16)).astype(np.float32))
        name = chance.choice([*known]) if known and chance.random() < 0.2 else f"m{number}"
        recent.add(name, vector)
        known[name] = vector
        if len(known) > most:
            del known[next(iter(known))]
        assert recent.find_similar(asked, 0.3).keys() == {
            each for each, own in known.items() if float(own @ asked) > 0.3
        }
        assert recent.find_similar(vector, 0.99)[name] == pytest.approx(1.0)
