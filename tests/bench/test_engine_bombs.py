"""The guard must accept these statements; rejected ones would prove nothing about engine processes."""

from __future__ import annotations

import pytest

from bench.engine_bombs import BOMBS
from kgserve.cypher.guard import validate_cypher_statement_for_engine

MIN_BOMBS = 42


@pytest.mark.parametrize("kind", BOMBS)
def test_bombs_reach_the_engine(kind: str) -> None:
    for bomb in BOMBS[kind]:
        validate_cypher_statement_for_engine(bomb, {}, writable=False)


def test_bombs_are_numerous_and_distinct() -> None:
    every = [bomb for kind in BOMBS.values() for bomb in kind]
    assert len(set(every)) == len(every) >= MIN_BOMBS
