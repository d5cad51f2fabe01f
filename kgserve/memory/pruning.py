"""Memories that have faded: withdrawn, or deleted, as the store's settings want it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Literal, NamedTuple

from kgserve.memory.api import CONCEPT_LAYER
from kgserve.memory.consolidation.candidates import MEMORY_JOB_TIMEOUT_SECONDS, Pause, members_of
from kgserve.memory.consolidation.plan import is_pinned
from kgserve.platform.times import DAY_MICROSECONDS
from kgserve.projections.memory_index.decay import stated_at
from kgserve.projections.memory_index.memories import Fading
from kgserve.storage.model.batch import NodePut, WriteBatch
from kgserve.storage.model.change import Access
from kgserve.storage.model.fields import NO_EXTRAS
from kgserve.storage.model.parents import CHILD_OF
from kgserve.storage.model.rows import NodeRow
from kgserve.storage.model.soft_delete import PRUNED, is_active, soft_delete
from kgserve.storage.model.store_settings import MemorySettings
from kgserve.storage.rows.edge_page import with_versions
from kgserve.storage.rows.snapshot import Rows
from kgserve.stores.store import OpenStore

Mode = Literal["archive", "delete"]
_PRUNE_BATCH_SIZE = 100
"""Memories of one commit: whoever writes meanwhile waits for it."""


class Faded(NamedTuple):
    """Memories that have faded, and how many others have that stay, by why."""

    ids: list[str]
    kept: Counter[str]


def mode_of(settings: MemorySettings) -> Mode:
    """What becomes of memories that have faded; where nothing is done by itself, they are withdrawn when asked for."""
    return "delete" if settings.prune == "delete" else "archive"


def faded(store: OpenStore, now: int, pause: Pause) -> Faded:
    """The memories worth less than the store's threshold at a moment, in microseconds, that nothing protects. Blocks.

    Protected are those that are pinned, domains and concepts, those that have children, and those that were written or
    accessed within a day.
    """
    found, place, below = Faded([], Counter()), Fading(), store.description.memory.prune_threshold
    while True:
        started = time.perf_counter()
        some = store.memories.ask(lambda memories, _, at=place: memories.faded(below, now, at, _PRUNE_BATCH_SIZE))
        with store.reading() as rows:
            _add(found, store, rows, [*rows.nodes([memory.id for memory in some]).values()], now)
        pause(time.perf_counter() - started)
        if len(some) < _PRUNE_BATCH_SIZE:
            found.ids.sort()
            return found
        place = Fading.of(some[-1])


def prune(store: OpenStore, ids: Sequence[str], mode: Mode, now: int, pause: Pause) -> tuple[list[str], int]:
    """Withdraw or delete memories, as far as they are still faded when their turn comes: which, and the last commit."""
    done, sequence = Faded([], Counter()), store.state.sequence
    for first in range(0, len(ids), _PRUNE_BATCH_SIZE):
        started, some = time.perf_counter(), ids[first : first + _PRUNE_BATCH_SIZE]
        write = store.submit_prepared(partial(_batch, store, some, mode, now, done), MEMORY_JOB_TIMEOUT_SECONDS)
        sequence = write.result().sequence
        pause(time.perf_counter() - started)
    return done.ids, sequence


def _batch(store: OpenStore, some: Sequence[str], mode: Mode, now: int, done: Faded) -> WriteBatch:
    with store.reading() as rows:
        found, gone = rows.nodes(some), Faded([], Counter())
        _add(gone, store, rows, [*found.values()], now)
        done.ids.extend(gone.ids)
        ids = with_versions(rows, gone.ids)
        if mode == "delete":
            return WriteBatch(delete_nodes=ids)
        return WriteBatch(nodes=[_pruned(row) for row in rows.nodes(ids).values()])


def _pruned(row: NodeRow) -> NodePut:
    return soft_delete(row, PRUNED, (row.extras or NO_EXTRAS).belongs_to)


def _add(found: Faded, store: OpenStore, rows: Rows, some: Sequence[NodeRow], now: int) -> None:
    """Sort out those of some nodes that are memories and have faded."""
    threshold, candidates = store.description.memory.prune_threshold, [row for row in some if is_active(row, now)]
    accesses = store.accesses.of([row.id for row in candidates])
    for node_id, member in members_of(store, candidates, now).items():
        if member.effective < threshold:
            if reason := _protection(rows, member.row, accesses.get(node_id), now):
                found.kept[reason] += 1
            else:
                found.ids.append(node_id)


def _protection(rows: Rows, row: NodeRow, access: Access | None, now: int) -> str:
    """What keeps a memory that has faded; "" if nothing does."""
    layer = (row.extras or NO_EXTRAS).layer
    if is_pinned(row):
        return "pinned"
    if layer is not None and layer <= CONCEPT_LAYER:
        return "layer"
    if _is_recent(row, access, now):
        return "recent"
    return "parent" if any(edge.relation_type == CHILD_OF for edge in rows.incoming(row.id)) else ""


def _is_recent(row: NodeRow, access: Access | None, now: int) -> bool:
    """Whether it was written or accessed within a day; what was never changed was written when it says."""
    written = stated_at(row) if row.version == 1 else row.updated_at
    return max(written, access.last if access else written) > now - DAY_MICROSECONDS
