"""Making one of memories that say the same, taking that back, and withdrawing those that have faded.

Runs of the keeper and those that somebody asks for are the same; these block for as long as they take.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from weakref import WeakKeyDictionary

from kgserve.errors import Conflict, Unavailable
from kgserve.model.consolidation import (
    MAX_TOLD,
    Cluster,
    ConsolidateAnswer,
    ConsolidateRequest,
    ConsolidationsQuery,
    LeftCluster,
    Plan,
    PruneMemories,
    PruneMemoriesAnswer,
    RunAnswer,
    RunList,
    RunRecord,
    UndoAnswer,
    UndoConsolidation,
    some,
)
from kgserve.model.rows import NodeRow
from kgserve.model.times import format_time
from kgserve.ops.graph import Graph
from kgserve.ops.validate import Faults, check_author, check_label
from kgserve.store.store import Store
from kgserve.views import consolidating, pruning
from kgserve.views.consolidating import Changed, Run, Wanted, changed_since, plan_of
from kgserve.views.indexes import Indexes

LONGEST_REST = 0.1
KEPT_PLANS = 4
"""Plans of dry runs that are known for each open store; a plan beyond that has to be made again."""


def consolidate(graph: Graph, request: ConsolidateRequest) -> ConsolidateAnswer:
    """Makes one of memories that say the same, where each two of them are more similar than the threshold.

    Only memories of the same type and layer, and never episodes. The one of the highest effective confidence stays, and
    takes over what the others say, their tags, metadata and relations; the others are withdrawn. `guard` keeps apart
    what differs in numbers, negation, names or opposites, and tells it as `contradictions`. `dry_run` tells what would
    be done, `apply` does exactly that, or is refused if one of the memories has changed since. `undo` takes it back.

    Raises Conflict for a plan that is no longer true, or that nobody knows any more.
    """
    faults = Faults()
    author = check_author(request.created_by, faults)
    faults.raise_any()
    with graph.lease() as store:
        now = _now()
        plan = _plan(graph, store, request, now)
        if request.dry_run:
            _plans_of(store).keep(request, plan)
            return _told(request, plan, plan.clusters, None, store.state.sequence)
        if not plan.clusters:
            return _told(request, plan, [], None, store.state.sequence)
        record = RunRecord(
            status="running",
            trigger="manual",
            similarity_threshold=request.similarity_threshold,
            guard=request.guard,
            through=plan.sequence,
            started_at=format_time(now),
        )
        run = Run(consolidating.new_run(now), record, author)
        return _carried_out(store, request, plan, run)


def consolidations(graph: Graph, request: ConsolidationsQuery) -> RunList:
    """The runs of consolidation, the newest first: those that somebody asked for, and those of the store itself."""
    with graph.lease() as store:
        found = consolidating.runs(store)
        listed = [_run(store, *each) for each in found[: request.limit]]
    return RunList(consolidations=listed, count=len(found))


def undo_consolidation(graph: Graph, request: UndoConsolidation) -> UndoAnswer:
    """Takes a run back: what it has absorbed is there again, with its relations, and those that stayed are what they were.

    No history is needed. A run that was broken off can be taken back as well, and so can the rest of one that was
    partly taken back. What somebody has written since is refused, or with `force` stays.

    Raises NotFound, and Conflict, which names the memories that were changed since.
    """
    faults = Faults()
    check_label(request.run_id, "id", faults)
    author = check_author(request.created_by, faults)
    faults.raise_any()
    with graph.lease() as store:
        if request.run_id in store.runs:
            raise Unavailable("this consolidation is still going on; try again when it is done")
        undone = consolidating.undo(store, request.run_id, author, _Pace(store), force=request.force)
        sequence = store.state.sequence
    return UndoAnswer(
        id=request.run_id,
        clusters=undone.clusters,
        memories_restored=undone.restored,
        kept=undone.kept,
        sequence=sequence,
    )


def prune_memories(graph: Graph, request: PruneMemories) -> PruneMemoriesAnswer:
    """Withdraws the memories that have faded below the store's threshold, or deletes them, as its settings say.

    Never those that are pinned (importance 1), domains and concepts, those that have children, and those written or
    accessed within a day. The store does it by itself now and then, too; where that is off, they are withdrawn.
    """
    faults = Faults()
    author = check_author(request.created_by, faults)
    faults.raise_any()
    with graph.lease() as store:
        settings, now, pause = store.description.memory, _now(), _Pace(store)
        ids, sequence = pruning.faded(store, now, pause), store.state.sequence
        if not request.dry_run:
            mode = "archive" if settings.prune == "off" else settings.prune
            ids, sequence = pruning.prune(store, ids, mode, now, author, pause)
    return PruneMemoriesAnswer(
        dry_run=request.dry_run,
        mode=settings.prune,
        threshold=settings.prune_threshold,
        pruned=len(ids),
        ids=ids[:MAX_TOLD],
        sequence=sequence,
    )


class _Pace:
    """Gives way to writers after each slice of work."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __call__(self, worked: float) -> None:
        time.sleep(min(2 * worked, LONGEST_REST) if self._store.writing else 0)


class _Plans:
    """The plans of a store's last dry runs, by what they were asked with."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plans: OrderedDict[tuple[object, ...], Plan] = OrderedDict()

    def keep(self, request: ConsolidateRequest, plan: Plan) -> None:
        """Know a plan from now on, and forget the oldest for it."""
        with self._lock:
            self._plans[_asked(request, plan.sequence)] = plan
            while len(self._plans) > KEPT_PLANS:
                self._plans.popitem(last=False)

    def find(self, request: ConsolidateRequest, sequence: int) -> Plan | None:
        """The plan of a commit that was asked for in the same way."""
        with self._lock:
            return self._plans.get(_asked(request, sequence))


_plans: WeakKeyDictionary[Store, _Plans] = WeakKeyDictionary()


def _plans_of(store: Store) -> _Plans:
    return _plans.setdefault(store, _Plans())


def _asked(request: ConsolidateRequest, sequence: int) -> tuple[object, ...]:
    types = None if request.types is None else tuple(sorted(request.types))
    return sequence, request.similarity_threshold, request.guard, types


def _plan(graph: Graph, store: Store, request: ConsolidateRequest, now: int) -> Plan:
    """A new plan, or the one to be applied. Raises Conflict for one that no longer holds."""
    if request.apply is None:
        types = None if request.types is None else frozenset(request.types)
        wanted = Wanted(request.similarity_threshold, request.guard, types)
        return plan_of(store, _indexes(graph, store), wanted, now, _Pace(store))
    plan = _plans_of(store).find(request, request.apply.plan)
    if plan is None:
        raise Conflict(
            f"plan {request.apply.plan} is not known with this threshold, guard and types, or no longer; "
            "make a new dry run"
        )
    if changed := changed_since(store, plan.clusters):
        raise Changed(changed)
    return plan


def _carried_out(store: Store, request: ConsolidateRequest, plan: Plan, run: Run) -> ConsolidateAnswer:
    consolidating.begin(store, run)
    run, left = consolidating.carry_out(store, run, plan.clusters, _Pace(store))
    report = consolidating.end(store, run, format_time(_now()))
    skipped = {each.ids[0] for each in left}
    done = [each for each in plan.clusters if each.primary not in skipped]
    return _told(request, plan, done, run.id, report.sequence, left)


def _told(
    request: ConsolidateRequest,
    plan: Plan,
    clusters: list[Cluster],
    run: str | None,
    sequence: int,
    left: list[LeftCluster] | None = None,
) -> ConsolidateAnswer:
    merged = sum(len(each.absorbed) for each in clusters)
    return ConsolidateAnswer(
        dry_run=request.dry_run,
        run=run,
        plan=plan.sequence,
        similarity_threshold=request.similarity_threshold,
        guard=request.guard,
        clusters_found=len(clusters),
        memories_merged=merged,
        memories_deleted=merged,
        clusters=[*some(clusters[:MAX_TOLD])],
        contradictions=plan.contradictions,
        contradictions_count=plan.contradictions_count,
        suggestions=[*some(plan.suggestions)],
        left=[*plan.left, *(left or [])][:MAX_TOLD],
        near_checked=plan.near_checked,
        sequence=sequence,
    )


def _run(store: Store, row: NodeRow, record: RunRecord) -> RunAnswer:
    broken_off = record.status == "running" and row.id not in store.runs
    return RunAnswer(
        id=row.id,
        status="interrupted" if broken_off else record.status,
        trigger=record.trigger,
        similarity_threshold=record.similarity_threshold,
        guard=record.guard,
        clusters=record.clusters,
        merged=record.merged,
        suggestions=len(record.suggestions),
        started_at=record.started_at,
        ended_at=record.ended_at,
        created_by=row.extras.created_by if row.extras else "",
    )


def _indexes(graph: Graph, store: Store) -> Indexes | None:
    """The indexes of a store; None where there are none, and only wording counts."""
    indexer = graph.graphs.indexer
    try:
        return None if indexer is None else indexer.of(store)
    except Unavailable:
        return None


def _now() -> int:
    return time.time_ns() // 1000
