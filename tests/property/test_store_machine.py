"""A store under random changes against two dicts: writes, crashes, restarts, compactions, damage."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from typing_extensions import override

from kgserve.storage.model.write_batch import WriteBatch
from tests.fuzzing import examples
from tests.property.batches import KINDS, SIZES, Batches, Kind
from tests.property.driver import DAMAGES, Damage, Driver

SEEDS = st.integers(0, 1 << 32)


class StoreMachine(RuleBasedStateMachine):
    """Rules are chosen by Hypothesis; rows are generated from a seed, which keeps failing examples short."""

    @initialize(ids=st.sampled_from((6, 25, 60)), extended=st.sampled_from((0.0, 0.05, 0.5)))
    def begin(self, ids: int, extended: float) -> None:
        self.driver = Driver(Path(tempfile.mkdtemp(prefix="kgserve-machine-")))
        self.ids, self.extended = ids, extended

    @override
    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.end()

    def batches(self, seed: int, count: int) -> list[WriteBatch]:
        source = Batches(seed, self.ids, self.extended)
        return [source.any_batch(self.driver.graph) for _ in range(count)]

    @rule(seed=SEEDS, kind=st.sampled_from(KINDS), size=st.sampled_from(SIZES))
    def write(self, seed: int, kind: Kind, size: int) -> None:
        self.driver.write(Batches(seed, self.ids, self.extended).batch(self.driver.graph, kind, size))

    @rule(seed=SEEDS, count=st.integers(2, 6))
    def write_group(self, seed: int, count: int) -> None:
        self.driver.write_group(*self.batches(seed, count))

    @rule(seed=SEEDS)
    def look(self, seed: int) -> None:
        source = Batches(seed, self.ids)
        for _ in range(3):
            self.driver.look(source.walk(), source.wanted(source.moment()))

    @rule(keeps_both=st.booleans(), kinds=st.sampled_from(((), (), ("person", "place", "t"))))
    def change_rules(self, *, keeps_both: bool, kinds: tuple[str, ...]) -> None:
        self.driver.change_rules(keeps_both=keeps_both, kinds=kinds)

    @rule()
    def restart(self) -> None:
        self.driver.restart()

    @rule(damage=st.sampled_from(DAMAGES))
    def restart_damaged(self, damage: Damage) -> None:
        self.driver.restart(damage)

    @rule(seed=SEEDS, count=st.integers(0, 4), torn=st.integers(0, 3000))
    def crash(self, seed: int, count: int, torn: int) -> None:
        self.driver.crash(*self.batches(seed, count), torn=torn)

    @rule(seed=SEEDS, count=st.integers(0, 4))
    def compact(self, seed: int, count: int) -> None:
        self.driver.compact(*self.batches(seed, count))

    @rule(seed=SEEDS, count=st.integers(0, 4))
    def fold(self, seed: int, count: int) -> None:
        self.driver.fold(*self.batches(seed, count))

    @rule()
    def check(self) -> None:
        self.driver.check()
        self.driver.compare()


TestStore = StoreMachine.TestCase
TestStore.settings = examples(3, 15)
