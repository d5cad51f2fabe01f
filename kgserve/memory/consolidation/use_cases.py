"""Making one of memories that say the same, taking that back, and withdrawing those that have faded.

Runs of the keeper and those that somebody asks for are the same; these block for as long as they take.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from weakref import WeakKeyDictionary

from kgserve.errors import Conflict, Unavailable
from kgserve.graph.answers import MAX_REPORTED_ITEMS
from kgserve.graph.handle import Graph
from kgserve.graph.validate import checked_label
from kgserve.memory import pruning
from kgserve.memory.api import (
    Cluster,
    ConsolidateRequest,
    ConsolidationReport,
    ConsolidationRun,
    ConsolidationRuns,
    ConsolidationsQuery,
    ConsolidationUndone,
    PruneMemoriesRequest,
    PruneReport,
    UndoConsolidationRequest,
)
from kgserve.memory.consolidation import apply
from kgserve.memory.consolidation.apply import PlanOutdated, RunInProgress, changed_since
from kgserve.memory.consolidation.candidates import CandidateQuery, plan_of
from kgserve.memory.consolidation.plan import ClusterPlan, Plan, RunRecord, told
from kgserve.platform.times import format_time
from kgserve.projections.indexes import Indexes
from kgserve.storage.commit_clock import RETENTION_CLOCK
from kgserve.storage.model.rows import NodeRow
from kgserve.stores.store import OpenStore

LONGEST_REST, MOMENT_SECONDS = 0.5, 1.0
CONSOLIDATION_RETRY_AFTER_SECONDS = 5
MAX_CACHED_PLANS = 4
"""Plans of dry runs that are known for each open store; a plan beyond that has to be made again."""


def consolidate(graph: Graph, request: ConsolidateRequest) -> ConsolidationReport:
    """Makes one of memories that say the same, where each two of them are more similar than the threshold.

    Only memories of the same type and layer, and never episodes. The one of the highest effective confidence stays, and
    takes over what the others say, their tags, metadata and relations; the others are withdrawn. `guard` keeps apart
    what differs in numbers, negation, names or opposites, and tells it as `kept_apart`. `dry_run` tells what would
    be done, `apply` does exactly that, or is refused if one of the memories has changed since. An undo takes it back.

    Raises Conflict for a plan that is outdated or unknown, and Unavailable while vectors of
    memories are yet to be made: nothing is merged then. Where no embedding model answers only the wording counts, and
    `near_checked` is false.
    """
    started = time.perf_counter()
    with graph.lease() as store:
        now, threshold = _now(), _threshold(store, request)
        plan = _plan(graph, store, request, now)
        if request.dry_run:
            _plans_of(store).keep(_asked(store, request, plan.sequence), plan)
        run, clusters, left, sequence = None, plan.clusters, list[Cluster](), store.state.sequence
        if plan.clusters and not request.dry_run:
            record = _record(plan, threshold, now, guard=_guard(store, request))
            run = RunInProgress(apply.new_run(now), record, graph.graphs.caller.name)
            clusters, left, sequence = _carried_out(store, plan, run)
    merged = sum(len(each.absorbed) for each in clusters)
    return ConsolidationReport(
        dry_run=request.dry_run,
        run=run and run.id,
        plan=plan.sequence,
        threshold=threshold,
        clusters_found=len(clusters),
        memories_merged=merged,
        memories_deleted=merged,
        clusters=[*map(told, clusters[:MAX_REPORTED_ITEMS])],
        kept_apart=plan.kept_apart,
        kept_apart_count=plan.kept_apart_count,
        left=[*plan.left, *left][:MAX_REPORTED_ITEMS],
        near_checked=plan.near_checked,
        sequence=sequence,
        took_ms=round((time.perf_counter() - started) * 1000, 3),
    )


def consolidations(graph: Graph, request: ConsolidationsQuery) -> ConsolidationRuns:
    """The runs of consolidation, the newest first: those that somebody asked for, and those of the store itself."""
    with graph.lease() as store:
        found = apply.runs(store)[: request.limit]
        return ConsolidationRuns(runs=[_run(store, *each) for each in found])


def undo_consolidation(graph: Graph, request: UndoConsolidationRequest) -> ConsolidationUndone:
    """Takes a run back: what it absorbed is there again, with its relations, and those that stayed are what they were.

    No history is needed. A run that was broken off can be taken back as well, and so can the rest of one that was
    partly taken back. What somebody has written since is refused, or with `force` stays.

    Raises NotFound, and Conflict, which names the memories that were changed since.
    """
    checked_label(request.run_id)
    with graph.lease() as store:
        caller = graph.graphs.caller.name
        undone = apply.undo(store, request.run_id, caller, Pace(store), force=request.force)
        sequence = store.state.sequence
    return ConsolidationUndone(
        run=request.run_id,
        restored=[*undone.restored][:MAX_REPORTED_ITEMS],
        restored_count=len(undone.restored),
        skipped=[*undone.skipped][:MAX_REPORTED_ITEMS],
        sequence=sequence,
    )


def prune_memories(graph: Graph, request: PruneMemoriesRequest) -> PruneReport:
    """Withdraws the memories that have faded below the store's threshold, or deletes them, as its settings say.

    Never those that are pinned (importance 1), domains and concepts, those that have children, and those written or
    accessed within a day. The store does it by itself now and then, too, unless that is off. Raises Conflict once the
    clock was set forward since the server started.
    """
    with graph.lease() as store:
        settings, now, pause = store.description.memory, RETENTION_CLOCK.require(), Pace(store)
        found, sequence = pruning.faded(store, now, pause), store.state.sequence
        ids, mode = found.ids, pruning.mode_of(settings)
        if not request.dry_run:
            ids, sequence = pruning.prune(store, ids, mode, now, pause)
    return PruneReport(
        dry_run=request.dry_run,
        mode=mode,
        threshold=settings.prune_threshold,
        count=len(ids),
        ids=ids[:MAX_REPORTED_ITEMS],
        kept=dict(found.kept),
        sequence=sequence,
    )


class Pace:
    """Gives way after each slice of work: to writers, and in what takes longer than a moment to readers as well."""

    def __init__(self, store: OpenStore) -> None:
        self._store = store
        self._long_from = time.monotonic() + MOMENT_SECONDS

    def __call__(self, worked: float) -> None:
        """Wait, after so many seconds of work, twice as long while anybody writes, else as long."""
        if self._store.writing:
            time.sleep(min(2 * worked, LONGEST_REST))
        else:
            time.sleep(min(worked, LONGEST_REST) if time.monotonic() > self._long_from else 0)


_Asked = tuple[object, ...]
"""What a plan was asked for with, and the commit that it is of."""


class _Plans:
    """The plans of a store's last dry runs, by what they were asked for with."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plans: OrderedDict[_Asked, Plan] = OrderedDict()

    def keep(self, asked: _Asked, plan: Plan) -> None:
        """Know a plan from now on, and forget the oldest for it."""
        with self._lock:
            self._plans[asked] = plan
            while len(self._plans) > MAX_CACHED_PLANS:
                self._plans.popitem(last=False)

    def find(self, asked: _Asked) -> Plan | None:
        """The plan of a commit that was asked for in the same way."""
        with self._lock:
            return self._plans.get(asked)


_plans: WeakKeyDictionary[OpenStore, _Plans] = WeakKeyDictionary()


def _plans_of(store: OpenStore) -> _Plans:
    return _plans.setdefault(store, _Plans())


def _asked(store: OpenStore, request: ConsolidateRequest, sequence: int) -> _Asked:
    types = None if request.types is None else tuple(sorted(request.types))
    return sequence, _threshold(store, request), _guard(store, request), types


def _threshold(store: OpenStore, request: ConsolidateRequest) -> float:
    asked = request.similarity_threshold
    return store.description.memory.consolidation_threshold if asked is None else asked


def _is_still_embedding(indexes: Indexes) -> bool:
    """Whether vectors that are missing will be there soon: there is a model, and it has not failed."""
    return indexes.understands and indexes.vector.error is None


def _guard(store: OpenStore, request: ConsolidateRequest) -> bool:
    return store.description.memory.consolidation_guard if request.guard is None else request.guard


def _plan(graph: Graph, store: OpenStore, request: ConsolidateRequest, now: int) -> Plan:
    """A new plan, or the one to be applied. Raises Conflict for one that no longer holds."""
    if request.apply is None:
        types = None if request.types is None else frozenset(request.types)
        wanted = CandidateQuery(_threshold(store, request), _guard(store, request), types)
        indexes = _indexes(graph, store)
        found = plan_of(store, indexes, wanted, now, Pace(store))
        if indexes is not None and not found.near_checked and _is_still_embedding(indexes):
            raise Unavailable(
                "the memories were not compared and nothing was merged, because the server is still embedding new "
                f"memories; try again in {CONSOLIDATION_RETRY_AFTER_SECONDS} seconds",
                retry_after=CONSOLIDATION_RETRY_AFTER_SECONDS,
            )
        return found
    plan = _plans_of(store).find(_asked(store, request, request.apply.plan))
    if plan is None:
        raise Conflict(
            f"plan {request.apply.plan} is not known with this threshold, guard and types, or no longer; "
            "make a new dry run"
        )
    if changed := changed_since(store, plan.clusters):
        raise PlanOutdated(changed)
    return plan


def _record(plan: Plan, threshold: float, now: int, *, guard: bool) -> RunRecord:
    return RunRecord(
        status="running",
        trigger="manual",
        similarity_threshold=threshold,
        guard=guard,
        through=plan.sequence,
        started_at=format_time(now),
    )


def _carried_out(store: OpenStore, plan: Plan, run: RunInProgress) -> tuple[list[ClusterPlan], list[Cluster], int]:
    """The clusters that were merged, those that were left, and the last commit."""
    left, report = apply.carry_out(store, run, plan.clusters, Pace(store))
    skipped = {each.primary for each in left}
    return [each for each in plan.clusters if each.primary not in skipped], left, report.sequence


def _run(store: OpenStore, row: NodeRow, record: RunRecord) -> ConsolidationRun:
    return ConsolidationRun(
        id=row.id,
        started_at=record.started_at,
        trigger=record.trigger,
        state="interrupted" if apply.broken_off(store, row, record) else record.status,
        threshold=record.similarity_threshold,
        guard=record.guard,
        clusters=record.clusters,
        merged=record.merged,
        deleted=record.deleted,
        suggestions=record.suggestions,
    )


def _indexes(graph: Graph, store: OpenStore) -> Indexes | None:
    """The indexes of a store; None where there are none, and only wording counts. Raises Unavailable."""
    indexer = graph.graphs.indexer
    return None if indexer is None else indexer.of(store)


def _now() -> int:
    return time.time_ns() // 1000
