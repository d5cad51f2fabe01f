"""Operations: consolidate, list and undo consolidations, and prune.

Automatic and requested runs are the same. These functions block for the duration of a run.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from weakref import WeakKeyDictionary

from kgserve.errors import Conflict, Unavailable
from kgserve.graph.answers import MAX_REPORTED_ITEMS
from kgserve.graph.request_validation import require_valid_id_or_type_length
from kgserve.graph.store_handle import StoreHandle
from kgserve.memory import pruning
from kgserve.memory.consolidation import apply
from kgserve.memory.consolidation.apply import (
    OutdatedConsolidationPlan,
    RunningConsolidation,
    list_memories_changed_since_plan,
)
from kgserve.memory.consolidation.candidates import ConsolidationCandidateQuery, plan_memory_consolidation_run
from kgserve.memory.consolidation.plan import (
    ConsolidationPlan,
    ConsolidationRunRecord,
    MemoryClusterMergePlan,
    convert_memory_cluster_plan_to_answer,
)
from kgserve.memory.memory_models import (
    ConsolidateRequest,
    ConsolidationReport,
    ConsolidationRun,
    ConsolidationRunListQuery,
    ConsolidationRuns,
    MemoryMergeCluster,
    MemoryPruneReport,
    PruneMemoriesRequest,
    UndoConsolidationAnswer,
    UndoConsolidationRequest,
)
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.projections.text_indexes import CurrentAndPastTextIndexes
from kgserve.storage.commit_clock import RETENTION_CLOCK
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.stores.open_store import OpenStore

MAX_PAUSE_SECONDS, READER_PRIORITY_DELAY_SECONDS = 0.5, 1.0
CONSOLIDATION_RETRY_AFTER_SECONDS = 5
MAX_CACHED_PLANS = 4
"""Maximum number of dry-run plans cached per open store."""


def consolidate_memories(graph: StoreHandle, request: ConsolidateRequest) -> ConsolidationReport:
    """Merge memories that say the same, in clusters in which each pair exceeds the similarity threshold.

    Only memories of the same type and layer are merged, and never episodes. The one with the highest effective
    confidence remains and takes over the content, tags, metadata and relations of the others, which are withdrawn.
    `guard` keeps apart memories that differ in numbers, negation, names or opposites, and reports them as `kept_apart`.
    `dry_run` returns a plan; `apply` carries out exactly that plan, or fails if a memory changed. A run can be undone.

    Raises Conflict for an outdated or unknown plan, and Unavailable while embeddings are being computed; nothing is
    merged then. Without an embedding model only the wording is compared, and `near_checked` is false.
    """
    started = time.perf_counter()
    with graph.lease() as store:
        now, threshold = _now(), _threshold(store, request)
        plan = _plan(graph, store, request, now)
        if request.dry_run:
            _plans_of(store).keep(_plan_key(store, request, plan.sequence), plan)
        run, clusters, left, sequence = None, plan.clusters, list[MemoryMergeCluster](), store.state.sequence
        if plan.clusters and not request.dry_run:
            record = _record(plan, threshold, now, guard=_guard(store, request))
            run = RunningConsolidation(apply.generate_consolidation_run_id(now), record, graph.graphs.caller.name)
            clusters, left, sequence = _carry_out(store, plan, run)
    merged = sum(len(each.absorbed) for each in clusters)
    return ConsolidationReport(
        dry_run=request.dry_run,
        run=run and run.id,
        plan=plan.sequence,
        threshold=threshold,
        clusters_found=len(clusters),
        memories_merged=merged,
        memories_deleted=merged,
        clusters=[*map(convert_memory_cluster_plan_to_answer, clusters[:MAX_REPORTED_ITEMS])],
        kept_apart=plan.kept_apart,
        kept_apart_count=plan.kept_apart_count,
        left=[*plan.left, *left][:MAX_REPORTED_ITEMS],
        near_checked=plan.near_checked,
        sequence=sequence,
        took_ms=round((time.perf_counter() - started) * 1000, 3),
    )


def list_consolidations(graph: StoreHandle, request: ConsolidationRunListQuery) -> ConsolidationRuns:
    """Return the consolidation runs of a store, newest first, both requested and automatic."""
    with graph.lease() as store:
        found = apply.list_consolidation_runs(store)[: request.limit]
        return ConsolidationRuns(runs=[_to_answer(store, *each) for each in found])


def undo_consolidation(graph: StoreHandle, request: UndoConsolidationRequest) -> UndoConsolidationAnswer:
    """Undo a run: restore the absorbed memories with their relations, and the previous state of the others.

    No history is needed. Interrupted and partly undone runs can be undone too. Later changes cause a conflict; with
    `force` they stay.

    Raises NotFound, and Conflict with the ids of the memories that changed since.
    """
    require_valid_id_or_type_length(request.run_id)
    with graph.lease() as store:
        caller = graph.graphs.caller.name
        undone = apply.undo_consolidation_run(store, request.run_id, caller, WorkThrottle(store), force=request.force)
        sequence = store.state.sequence
    return UndoConsolidationAnswer(
        run=request.run_id,
        restored=[*undone.restored][:MAX_REPORTED_ITEMS],
        restored_count=len(undone.restored),
        skipped=[*undone.skipped][:MAX_REPORTED_ITEMS],
        sequence=sequence,
    )


def prune_memories(graph: StoreHandle, request: PruneMemoriesRequest) -> MemoryPruneReport:
    """Withdraw or delete memories whose confidence is below the store's threshold, as its settings say.

    Protected are pinned memories (importance 1), domains and concepts, parents, and memories written or accessed within
    a day. The store also prunes automatically unless that is off. Raises Conflict if the clock was set forward since
    the server started.
    """
    with graph.lease() as store:
        settings, now, pause = store.description.memory, RETENTION_CLOCK.require(), WorkThrottle(store)
        found, sequence = pruning.find_prunable_memories(store, now, pause), store.state.sequence
        ids, mode = found.ids, pruning.get_memory_prune_mode(settings)
        if not request.dry_run:
            ids, sequence = pruning.prune_memories_in_batches(store, ids, mode, now, pause)
    return MemoryPruneReport(
        dry_run=request.dry_run,
        mode=mode,
        threshold=settings.prune_threshold,
        count=len(ids),
        ids=ids[:MAX_REPORTED_ITEMS],
        kept=dict(found.kept),
        sequence=sequence,
    )


class WorkThrottle:
    """Pause after each slice of work: for waiting writers always, for readers during longer work."""

    def __init__(self, store: OpenStore) -> None:
        self._store = store
        self._long_from = time.monotonic() + READER_PRIORITY_DELAY_SECONDS

    def __call__(self, worked: float) -> None:
        """Sleep in proportion to `worked` seconds: twice as long while a write is pending."""
        if self._store.writing:
            time.sleep(min(2 * worked, MAX_PAUSE_SECONDS))
        else:
            time.sleep(min(worked, MAX_PAUSE_SECONDS) if time.monotonic() > self._long_from else 0)


_PlanKey = tuple[object, ...]
"""Commit and options of a plan."""


class _PlanCache:
    """Plans of the last dry runs of a store, by key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plans: OrderedDict[_PlanKey, ConsolidationPlan] = OrderedDict()

    def keep(self, key: _PlanKey, plan: ConsolidationPlan) -> None:
        """Cache a plan, and evict the oldest ones."""
        with self._lock:
            self._plans[key] = plan
            while len(self._plans) > MAX_CACHED_PLANS:
                self._plans.popitem(last=False)

    def find(self, key: _PlanKey) -> ConsolidationPlan | None:
        """Return the cached plan for a key, or None."""
        with self._lock:
            return self._plans.get(key)


_plans: WeakKeyDictionary[OpenStore, _PlanCache] = WeakKeyDictionary()


def _plans_of(store: OpenStore) -> _PlanCache:
    return _plans.setdefault(store, _PlanCache())


def _plan_key(store: OpenStore, request: ConsolidateRequest, sequence: int) -> _PlanKey:
    types = tuple(sorted(request.types or ()))
    return sequence, _threshold(store, request), _guard(store, request), types


def _threshold(store: OpenStore, request: ConsolidateRequest) -> float:
    requested = request.similarity_threshold
    return store.description.memory.consolidation_threshold if requested is None else requested


def _is_still_embedding(indexes: CurrentAndPastTextIndexes) -> bool:
    """Return whether missing vectors will soon exist: a model is set and has not failed."""
    return indexes.can_embed_queries and indexes.vector.error is None


def _guard(store: OpenStore, request: ConsolidateRequest) -> bool:
    return store.description.memory.consolidation_guard if request.guard is None else request.guard


def _plan(graph: StoreHandle, store: OpenStore, request: ConsolidateRequest, now: int) -> ConsolidationPlan:
    """Return a new plan, or the one to apply. Raises Conflict if it is outdated or unknown."""
    if request.apply is None:
        types = frozenset(request.types or ()) or None
        wanted = ConsolidationCandidateQuery(_threshold(store, request), _guard(store, request), types)
        indexes = _indexes(graph, store)
        found = plan_memory_consolidation_run(store, indexes, wanted, now, WorkThrottle(store))
        if indexes is not None and not found.near_checked and _is_still_embedding(indexes):
            raise Unavailable(
                "the memories were not compared and nothing was merged, because the server is still embedding new "
                f"memories; try again in {CONSOLIDATION_RETRY_AFTER_SECONDS} seconds",
                retry_after=CONSOLIDATION_RETRY_AFTER_SECONDS,
            )
        return found
    plan = _plans_of(store).find(_plan_key(store, request, request.apply.plan))
    if plan is None:
        raise Conflict(
            f"plan {request.apply.plan} is unknown for this threshold, guard and types, or was evicted; "
            "make a new dry run"
        )
    if changed := list_memories_changed_since_plan(store, plan.clusters):
        raise OutdatedConsolidationPlan(changed)
    return plan


def _record(plan: ConsolidationPlan, threshold: float, now: int, *, guard: bool) -> ConsolidationRunRecord:
    return ConsolidationRunRecord(
        status="running",
        trigger="manual",
        similarity_threshold=threshold,
        guard=guard,
        through=plan.sequence,
        started_at=format_rfc3339_timestamp(now),
    )


def _carry_out(
    store: OpenStore, plan: ConsolidationPlan, run: RunningConsolidation
) -> tuple[list[MemoryClusterMergePlan], list[MemoryMergeCluster], int]:
    """Return the merged clusters, those not merged, and the last sequence."""
    left, report = apply.merge_memory_clusters(store, run, plan.clusters, WorkThrottle(store))
    skipped = {each.primary for each in left}
    return [each for each in plan.clusters if each.primary not in skipped], left, report.sequence


def _to_answer(store: OpenStore, row: NodeRow, record: ConsolidationRunRecord) -> ConsolidationRun:
    return ConsolidationRun(
        id=row.id,
        started_at=record.started_at,
        trigger=record.trigger,
        state="interrupted" if apply.is_consolidation_run_interrupted(store, row, record) else record.status,
        threshold=record.similarity_threshold,
        guard=record.guard,
        clusters=record.clusters,
        merged=record.merged,
        deleted=record.deleted,
        suggestions=record.suggestions,
    )


def _indexes(graph: StoreHandle, store: OpenStore) -> CurrentAndPastTextIndexes | None:
    """Return the indexes of a store, or None if only wording is compared. Raises Unavailable."""
    indexer = graph.graphs.indexer
    return None if indexer is None else indexer.of(store)


def _now() -> int:
    return time.time_ns() // 1000
