"""Backups at random moments of a randomly changed store, restored at random sequences and times."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from typing_extensions import override

from kgserve.storage.model.store_settings import HistoryRetention
from kgserve.storage.model.write_batch import WriteBatch
from tests.fuzzing import examples
from tests.property.batches import KINDS, Batches, Kind
from tests.stores.backup.keeping import KeepingDriver

SEEDS = st.integers(0, 1 << 32)


class BackupMachine(RuleBasedStateMachine):
    """Rules are chosen by Hypothesis; rows and moments are generated from a seed."""

    @initialize(ids=st.sampled_from((4, 15, 40)), retained=st.sampled_from((0, 256)))
    def begin(self, ids: int, retained: int) -> None:
        root = Path(tempfile.mkdtemp(prefix="kgserve-backup-"))
        self.driver = KeepingDriver(root, journal_retention_mb=retained)
        self.ids = ids

    @override
    def teardown(self) -> None:
        if hasattr(self, "driver"):
            try:
                self.driver.back_up()
                self.driver.restore(random.Random(1))
                self.driver.verify()
            finally:
                self.driver.end()

    def batches(self, seed: int, count: int) -> list[WriteBatch]:
        source = Batches(seed, self.ids, 0.3)
        return [source.any_batch(self.driver.graph) for _ in range(count)]

    @rule(seed=SEEDS, kind=st.sampled_from(KINDS), size=st.sampled_from((1, 3, 12, 45)))
    def write(self, seed: int, kind: Kind, size: int) -> None:
        self.driver.write(Batches(seed, self.ids, 0.3).batch(self.driver.graph, kind, size))

    @rule(seed=SEEDS, count=st.integers(2, 6))
    def write_group(self, seed: int, count: int) -> None:
        self.driver.write_group(*self.batches(seed, count))

    @rule(full=st.sampled_from((False, False, False, True)), keep=st.sampled_from((None, None, 1)))
    def back_up(self, *, full: bool, keep: int | None) -> None:
        self.driver.back_up(full=full, keep=keep)

    @precondition(lambda self: self.driver.covered)
    @rule(seed=SEEDS)
    def restore(self, seed: int) -> None:
        self.driver.restore(random.Random(seed))

    @rule()
    def verify(self) -> None:
        self.driver.verify()

    @rule(keeps_both=st.booleans())
    def change_rules(self, *, keeps_both: bool) -> None:
        self.driver.change_rules(keeps_both=keeps_both, kinds=())

    @rule(keeping=st.sampled_from(("all", "none", 30)))
    def keep_history(self, keeping: HistoryRetention) -> None:
        self.driver.keep_history(keeping)

    @rule(seed=SEEDS)
    def forget(self, seed: int) -> None:
        if self.driver.store.description.history != "none":
            self.driver.forget(random.Random(seed).randint(0, self.driver.graph.sequence))

    @rule()
    def restart(self) -> None:
        self.driver.restart()

    @rule(seed=SEEDS, count=st.integers(0, 2))
    def compact(self, seed: int, count: int) -> None:
        self.driver.compact(*self.batches(seed, count))


TestBackups = BackupMachine.TestCase
TestBackups.settings = examples(2, 14)
