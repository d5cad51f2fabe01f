"""A store's history under random changes, compared with every state that it ever had."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from typing_extensions import override

from kgserve.storage.model.write_batch import WriteBatch
from tests.fuzzing import examples
from tests.property.batches import KINDS, Batches, Kind
from tests.property.past import HARMS, Harm, PastDriver

SEEDS = st.integers(0, 1 << 32)
MOMENTS = 12


class HistoryMachine(RuleBasedStateMachine):
    """Rules are chosen by Hypothesis; rows and moments are generated from a seed."""

    @initialize(ids=st.sampled_from((4, 15, 40)), extended=st.sampled_from((0.0, 0.1, 0.6)))
    def begin(self, ids: int, extended: float) -> None:
        self.driver = PastDriver(Path(tempfile.mkdtemp(prefix="kgserve-past-")))
        self.ids, self.extended = ids, extended

    @override
    def teardown(self) -> None:
        if hasattr(self, "driver"):
            try:
                self.look(1)
            finally:
                self.driver.end()

    def source(self, seed: int) -> Batches:
        return Batches(seed, self.ids, self.extended)

    def batches(self, seed: int, count: int) -> list[WriteBatch]:
        source = self.source(seed)
        return [source.any_batch(self.driver.graph) for _ in range(count)]

    @rule(seed=SEEDS, kind=st.sampled_from(KINDS), size=st.sampled_from((1, 3, 12, 45, 200)))
    def write(self, seed: int, kind: Kind, size: int) -> None:
        self.driver.write(self.source(seed).batch(self.driver.graph, kind, size))

    @rule(seed=SEEDS, count=st.integers(2, 6))
    def write_group(self, seed: int, count: int) -> None:
        self.driver.write_group(*self.batches(seed, count))

    @rule(seed=SEEDS)
    def revert(self, seed: int) -> None:
        source = random.Random(seed)
        known = sorted({node_id for graph in self.driver.past for node_id in graph.nodes})
        self.driver.revert(source, source.choice([*known, "never there"]))

    @rule(seed=SEEDS)
    def retire(self, seed: int) -> None:
        source = self.source(seed)
        self.driver.retire(source, source.some_id())
        known = [*self.driver.graph.edges, ("never", "was", "there")]
        self.driver.retire_edge(source, source.random.choice(known))

    @rule(keeps_both=st.booleans(), kinds=st.sampled_from(((), (), ("person", "place", "t"))))
    def change_rules(self, *, keeps_both: bool, kinds: tuple[str, ...]) -> None:
        self.driver.change_rules(keeps_both=keeps_both, kinds=kinds)

    @rule(seed=SEEDS)
    def look(self, seed: int) -> None:
        self.driver.look_back(self.source(seed), MOMENTS)
        self.driver.look_at_heads()

    @rule(seed=SEEDS)
    def prune(self, seed: int) -> None:
        self.driver.prune(random.Random(seed))
        self.driver.look_at_heads()

    @rule()
    def restart(self) -> None:
        self.driver.restart()

    @rule(harm=st.sampled_from(HARMS))
    def restart_harmed(self, harm: Harm) -> None:
        self.driver.restart_harmed(harm)

    @rule(seed=SEEDS, count=st.integers(0, 4), torn=st.integers(0, 3000))
    def crash(self, seed: int, count: int, torn: int) -> None:
        self.driver.crash(*self.batches(seed, count), torn=torn)

    @rule(seed=SEEDS, count=st.integers(0, 3))
    def compact(self, seed: int, count: int) -> None:
        self.driver.compact(*self.batches(seed, count))


TestHistory = HistoryMachine.TestCase
TestHistory.settings = examples(2, 14)
