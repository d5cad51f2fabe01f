"""A statement that the guard refuses would show nothing about the engine's processes."""

from __future__ import annotations

import pytest

from bench.engine_bombs import BOMBS
from kgserve.cypher.guard import examine

LEAST = 42


@pytest.mark.parametrize("kind", BOMBS)
def test_bombs_reach_the_engine(kind: str) -> None:
    for bomb in BOMBS[kind]:
        examine(bomb, {}, writable=False)


def test_there_are_many_of_them_and_no_two_the_same() -> None:
    every = [bomb for kind in BOMBS.values() for bomb in kind]
    assert len(set(every)) == len(every) >= LEAST
