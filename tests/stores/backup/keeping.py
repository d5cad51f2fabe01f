"""A store with a model of all its past states, backed up and restored at any of them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec

from kgserve.admin import backup as ops
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.projections.history.row_state_history import HistoryFile
from kgserve.projections.history_follower import HistoryProjection, HistoryWorker
from kgserve.storage.model.store_rows_digest import format_store_rows_digest
from kgserve.storage.model.store_settings import HistoryRetention, StoreSettings
from kgserve.stores.backup.api import StoreBackupAnswer
from kgserve.stores.backup.create import BackupOptions
from kgserve.stores.backup.folder_layout import BackupFolder
from kgserve.stores.backup.restore import verify_backup
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pool import StorePool
from tests.property.driver import CATCH_UP_TIMEOUT_SECONDS, NAME, differ
from tests.property.graph import Graph
from tests.property.past import PastDriver
from tests.stores.writing import settings

RESTORED = "restored"


class KeepingDriver(PastDriver):
    """Driver of random histories that also makes backups; ``taken`` maps their sequences to their times."""

    def __init__(self, root: Path, **options: Any) -> None:
        super().__init__(root, **options)
        self.backups = root / "backups"
        self.covered: set[int] = set()
        self.settings: dict[int, StoreSettings] = {}

    def back_up(self, *, full: bool = False, keep: int | None = None) -> StoreBackupAnswer:
        """Make a backup, and check its answer."""
        if self.store.description.history != "none":
            assert self.historian.of(self.store).wait(self.graph.sequence, CATCH_UP_TIMEOUT_SECONDS)
        made = ops.back_up_single_store(self.pool, self.backups, NAME, BackupOptions(live=True, full=full, keep=keep))
        assert (made.sequence, made.digest) == (self.graph.sequence, format_store_rows_digest(self.graph.digest))
        fresh = set(range(made.first, made.sequence + 1))
        self.covered = fresh if keep == 1 else self.covered | fresh
        self.settings[made.sequence] = self.store.description.settings
        return made

    def keep_history(self, keeping: HistoryRetention) -> None:
        """Change the history setting."""
        self.store.change_settings(lambda now: msgspec.structs.replace(now, history=keeping))

    def forget(self, before: int) -> None:
        """Prune former versions."""
        follower = self.historian.of(self.store)
        assert follower.wait(self.graph.sequence, CATCH_UP_TIMEOUT_SECONDS)
        follower.prune(before)

    def verify(self) -> None:
        """Assert that an untouched backup is intact."""
        if self.covered:
            assert [each.faults for each in verify_backup(BackupFolder(self.backups))] == [[]]

    def restore(self, source: random.Random) -> None:
        """Restore to a covered sequence into a pool of its own, and compare with the state at that time."""
        sequence = source.choice(sorted(self.covered))
        until = str(sequence)
        # By time, where timestamps distinguish the commits.
        told_apart = 0 < sequence < len(self.times) - 1 and self.times[sequence] < self.times[sequence + 1]
        if told_apart and source.random() < 0.4:
            until = format_rfc3339_timestamp(self.times[sequence])
        data = self.root / "restored"
        historian = HistoryWorker()
        with StorePool(settings(data, journal_segment_mb=1)) as pool:
            pool.companions.append(historian)
            done = ops.restore_stores(pool, self.backups, [ops.StoreRestoreSpec(NAME, RESTORED, until)]).stores[0]
            assert done.sequence == sequence, until
            with pool.lease(RESTORED) as store:
                self._compare_with(store, self.past[sequence])
                if sequence in self.settings:
                    assert store.description.settings == self.settings[sequence]
                self._compare_past(historian, store, sequence)
            pool.drop(RESTORED)
        historian.close()

    def _compare_with(self, store: OpenStore, graph: Graph) -> None:
        state = store.state
        assert (state.sequence, state.nodes, state.edges) == (graph.sequence, len(graph.nodes), len(graph.edges))
        assert state.digest == graph.digest
        assert store.check().ok
        with store.reading() as present:
            rows = list(present.all_nodes())
        differ(rows, graph.nodes, [row.id for row in rows])

    def _compare_past(self, historian: HistoryWorker, store: OpenStore, sequence: int) -> None:
        if store.description.history == "none":
            return
        follower = historian.of(store)
        assert follower.wait(sequence, CATCH_UP_TIMEOUT_SECONDS)
        oldest = follower.look(lambda history: history.oldest)
        assert oldest <= sequence
        for at in {oldest, sequence, *range(oldest, sequence, max(1, (sequence - oldest) // 5))}:
            self._compare_moment(follower, at)

    def _compare_moment(self, follower: HistoryProjection, at: int) -> None:
        graph = self.past[at]

        def look(history: HistoryFile) -> None:
            nodes = [state.row for state in history.nodes_at(at, None, None, 1 << 40)]
            differ(nodes, graph.nodes, [row.id for row in nodes])
            edges = [state.row for state in history.edges_at(at, ("", "", ""), 1 << 40)]
            assert {row.key: row.version for row in edges} == {row.key: row.version for row in graph.edges.values()}

        follower.look(look)
