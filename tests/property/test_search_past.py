"""Searches as of random moments, compared with a model of every state."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from typing_extensions import override

from tests.fuzzing import examples
from tests.projections.looking_back import ModelCheckedStore, some_node

SEEDS = st.integers(0, 1 << 32)
IDS = tuple("abcdefgh")
MOMENTS = 4


class SearchMachine(RuleBasedStateMachine):
    """Rules are chosen by Hypothesis; nodes and moments are generated from a seed."""

    @initialize()
    def begin(self) -> None:
        self.watched = ModelCheckedStore(Path(tempfile.mkdtemp(prefix="kgserve-search-")))

    @override
    def teardown(self) -> None:
        if hasattr(self, "watched"):
            try:
                self.look(1)
            finally:
                self.watched.close()

    @rule(seed=SEEDS, count=st.integers(1, 8))
    def write(self, seed: int, count: int) -> None:
        source = random.Random(seed)
        self.watched.put(**{node_id: some_node(source) for node_id in source.sample(IDS, count)})

    @rule(seed=SEEDS)
    def repeat(self, seed: int) -> None:
        """Write another node's text, so that texts occur twice and reappear."""
        if self.watched.nodes:
            source = random.Random(seed)
            self.watched.put(**{source.choice(IDS): source.choice([*self.watched.nodes.values()])})

    @rule(seed=SEEDS, count=st.integers(1, 4))
    def delete(self, seed: int, count: int) -> None:
        there = sorted(self.watched.nodes)
        if there:
            self.watched.delete(*random.Random(seed).sample(there, min(count, len(there))))

    @rule(seed=SEEDS)
    def look(self, seed: int) -> None:
        source = random.Random(seed)
        for _ in range(MOMENTS):
            self.watched.compare_words(source)
        self.watched.compare_meaning(source)

    @rule()
    def restart(self) -> None:
        self.watched.restart()


TestSearchPast = SearchMachine.TestCase
TestSearchPast.settings = examples(2, 14)
