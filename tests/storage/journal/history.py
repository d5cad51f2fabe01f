"""Change sets to fill journals with, planned as the writer does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from kgserve.storage.journal.journal import Journal
from kgserve.storage.model.change_set import ChangeSet, StoreState
from kgserve.storage.model.write_batch import EdgeUpsert, NodeUpsert, WriteBatch
from kgserve.storage.write_planner import WritePlanningWorkspace, plan_write_batch

SEGMENT = 1 << 20


class History:
    """Sequence of planned batches; ``changes`` holds the resulting change sets."""

    def __init__(self) -> None:
        self.workspace = WritePlanningWorkspace()
        self.state = StoreState()
        self.changes: list[ChangeSet] = []

    def add(self, batch: WriteBatch) -> ChangeSet:
        """Plan a batch and return its change set."""
        known = {key for key, row in self.workspace.edges.items() if row is not None}
        self.workspace.incident = {i: {key for key in known if i in key[:2]} for i in batch.delete_nodes}
        change, _ = plan_write_batch(batch, self.workspace, self.state, 1_000_000 * (self.state.sequence + 1))
        assert change is not None
        self.state = change.state
        self.changes.append(change)
        return change


def nodes(count: int, size: int = 10) -> list[ChangeSet]:
    """Return ``count`` change sets that each create one node."""
    history = History()
    for number in range(count):
        history.add(WriteBatch(nodes=[NodeUpsert(0, f"n{number}", "t", "x" * size)]))
    return history.changes


def mixed() -> History:
    """Return a history with every kind of change, without last versions, as older programs wrote it."""
    history = History()
    history.add(WriteBatch(nodes=[NodeUpsert(i, name, "t", name) for i, name in enumerate("abcd")]))
    history.add(
        WriteBatch(edges=[EdgeUpsert(i, (x, y, "r")) for i, (x, y) in enumerate(("ab", "bc", "cd", "da", "aa"))])
    )
    history.add(WriteBatch(nodes=[NodeUpsert(0, "a", content="new")], edges=[EdgeUpsert(0, ("a", "b", "r"), 0.5)]))
    history.add(WriteBatch(delete_nodes=["c"], nodes=[NodeUpsert(0, "e", "t")]))
    history.add(WriteBatch(edges=[EdgeUpsert(0, ("a", "b", "r"))]))
    history.workspace.ended.clear()
    history.add(WriteBatch(delete_edges=[("a", "a", "r")], nodes=[NodeUpsert(0, "c", "u")]))
    history.changes[:] = [msgspec.structs.replace(change, last_versions=[]) for change in history.changes]
    return history


def journal_of(
    folder: Path,
    changes: list[ChangeSet],
    segment_bytes: int = SEGMENT,
    per_frame: int = 1,
    before_packing: Callable[[], None] | None = None,
) -> Journal:
    """Create a journal with change sets, ``per_frame`` in each frame."""
    journal = Journal.create(folder, segment_bytes)
    journal.before_packing = before_packing
    for start in range(0, len(changes), per_frame):
        journal.append(changes[start : start + per_frame])
    return journal
