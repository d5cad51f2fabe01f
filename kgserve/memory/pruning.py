"""Pruning: withdraws or deletes memories whose confidence has decayed, as the store's settings say."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Literal, NamedTuple

from kgserve.memory.consolidation.candidates import (
    MEMORY_JOB_TIMEOUT_SECONDS,
    PauseFunction,
    attach_effective_confidence,
)
from kgserve.memory.consolidation.plan import is_pinned_memory
from kgserve.memory.memory_models import CONCEPT_LAYER
from kgserve.platform.timestamps import DAY_MICROSECONDS
from kgserve.projections.memory_index.confidence_decay import confidence_stated_at
from kgserve.projections.memory_index.memory_index_file import DecayOrderPosition
from kgserve.storage.model.change_set import MemoryAccessRecord
from kgserve.storage.model.memory_parents import CHILD_OF_RELATION
from kgserve.storage.model.merge_redirects import is_node_never_valid
from kgserve.storage.model.node_edge_fields import NO_EXTRAS
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.storage.model.soft_delete import (
    REASON_PRUNED,
    REASON_SUPERSEDED,
    build_memory_soft_delete_upsert,
    is_memory_active_at,
)
from kgserve.storage.model.store_settings import MemorySettings
from kgserve.storage.model.write_batch import NodeUpsert, WriteBatch
from kgserve.storage.rows.memory_predecessors import add_memory_predecessors
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.stores.open_store import OpenStore

PruneMode = Literal["archive", "delete"]
_PRUNE_BATCH_SIZE = 100
"""Memories per commit; other writers wait for each commit."""


class MemoryPruneCandidates(NamedTuple):
    """Memories to prune, and counts of protected ones by reason."""

    ids: list[str]
    kept: Counter[str]


def get_memory_prune_mode(settings: MemorySettings) -> PruneMode:
    """Return the mode of the settings; with pruning off, an explicit request archives."""
    return "delete" if settings.prune == "delete" else "archive"


def find_prunable_memories(store: OpenStore, now: int, pause: PauseFunction) -> MemoryPruneCandidates:
    """Return the unprotected memories whose confidence at `now`, in microseconds, is below the threshold. Blocks.

    Protected are pinned memories, domains and concepts, parents, and memories written or accessed within a day.
    """
    found, place, below = (
        MemoryPruneCandidates([], Counter()),
        DecayOrderPosition(),
        store.description.memory.prune_threshold,
    )
    while True:
        started = time.perf_counter()
        some = store.memories.ask(lambda memories, _, at=place: memories.list_faded(below, now, at, _PRUNE_BATCH_SIZE))
        with store.reading() as rows:
            _classify(found, store, rows, [*rows.nodes([memory.id for memory in some]).values()], now)
        pause(time.perf_counter() - started)
        if len(some) < _PRUNE_BATCH_SIZE:
            found.ids.sort()
            return found
        place = DecayOrderPosition.of(some[-1])


def prune_memories_in_batches(
    store: OpenStore, ids: Sequence[str], mode: PruneMode, now: int, pause: PauseFunction
) -> tuple[list[str], int]:
    """Withdraw or delete memories that still qualify at commit; return their ids and the last sequence."""
    done, sequence = MemoryPruneCandidates([], Counter()), store.state.sequence
    for first in range(0, len(ids), _PRUNE_BATCH_SIZE):
        started, some = time.perf_counter(), ids[first : first + _PRUNE_BATCH_SIZE]
        write = store.submit_prepared(partial(_build_batch, store, some, mode, now, done), MEMORY_JOB_TIMEOUT_SECONDS)
        sequence = write.result().sequence
        pause(time.perf_counter() - started)
    return done.ids, sequence


def _build_batch(
    store: OpenStore, some: Sequence[str], mode: PruneMode, now: int, done: MemoryPruneCandidates
) -> WriteBatch:
    with store.reading() as rows:
        found, prunable = rows.nodes(some), MemoryPruneCandidates([], Counter())
        _classify(prunable, store, rows, [*found.values()], now)
        done.ids.extend(prunable.ids)
        ids = add_memory_predecessors(rows, prunable.ids)
        if mode == "delete":
            return WriteBatch(delete_nodes=ids)
        return WriteBatch(nodes=[_prune_row(row) for row in rows.nodes(ids).values() if _is_prunable(row)])


def _is_prunable(row: NodeRow) -> bool:
    """Return whether a memory or former version is neither withdrawn nor merged."""
    extras = row.extras or NO_EXTRAS
    return extras.ended in {"", REASON_SUPERSEDED} and not is_node_never_valid(extras)


def _prune_row(row: NodeRow) -> NodeUpsert:
    return build_memory_soft_delete_upsert(row, REASON_PRUNED, (row.extras or NO_EXTRAS).belongs_to)


def _classify(
    found: MemoryPruneCandidates, store: OpenStore, rows: RowsSnapshot, some: Sequence[NodeRow], now: int
) -> None:
    """Add the prunable memories among some rows to the result, and count protected ones."""
    threshold, candidates = (
        store.description.memory.prune_threshold,
        [row for row in some if is_memory_active_at(row, now)],
    )
    accesses = store.accesses.of([row.id for row in candidates])
    for node_id, member in attach_effective_confidence(store, candidates, now).items():
        if member.effective < threshold:
            if reason := _protection(rows, member.row, accesses.get(node_id), now):
                found.kept[reason] += 1
            else:
                found.ids.append(node_id)


def _protection(rows: RowsSnapshot, row: NodeRow, access: MemoryAccessRecord | None, now: int) -> str:
    """Return what protects a memory, or an empty string."""
    layer = (row.extras or NO_EXTRAS).layer
    if is_pinned_memory(row):
        return "pinned"
    if layer is not None and layer <= CONCEPT_LAYER:
        return "layer"
    if _is_recent(row, access, now):
        return "recent"
    return "parent" if any(edge.relation_type == CHILD_OF_RELATION for edge in rows.incoming(row.id)) else ""


def _is_recent(row: NodeRow, access: MemoryAccessRecord | None, now: int) -> bool:
    """Return whether a memory was written or accessed within a day; an unchanged one counts from its stated time."""
    written = confidence_stated_at(row) if row.version == 1 else row.updated_at
    return max(written, access.last if access else written) > now - DAY_MICROSECONDS
