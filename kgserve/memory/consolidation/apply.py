"""Carrying out and undoing consolidations: merges of memories that say the same.

Each cluster is decided in the writer thread, from the versions that it was computed from, and is merged entirely or not
at all.
"""

from __future__ import annotations

import os
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import NamedTuple, TypeVar

import msgspec

from kgserve.errors import Conflict, NotFound, Unavailable
from kgserve.memory.consolidation.candidates import MEMORY_JOB_TIMEOUT_SECONDS, PauseFunction
from kgserve.memory.consolidation.plan import (
    AbsorbedMemoryUndoRecord,
    ConsolidationRunRecord,
    MemoryClusterMergePlan,
    PrimaryMemoryUndoRecord,
    TooManyAbsorbedMemoryEdges,
    build_rejected_memory_cluster,
    decode_absorbed_record,
    decode_primary_record,
    decode_run_record,
    encode_consolidation_undo_record,
    is_edge_type_left_on_absorbed_memory,
    move_absorbed_edges_to_primary,
)
from kgserve.memory.memory_models import MemoryMergeCluster
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.projections.memory_index.built_in_relation_types import RELATION_CONSOLIDATED
from kgserve.storage.model.memory_parents import CHILD_OF_RELATION, MAX_HIERARCHY_DEPTH
from kgserve.storage.model.merge_redirects import MERGED_INTO_RELATION
from kgserve.storage.model.node_and_memory_filters import NodeFilter
from kgserve.storage.model.node_edge_fields import NO_EXTRAS, EdgeExtrasUpsert, NodeExtrasUpsert
from kgserve.storage.model.node_edge_rows import (
    EMPTY_ATTRIBUTES_JSON,
    EdgeKey,
    EdgeRow,
    NodeRow,
    split_edge_times_from_attributes,
)
from kgserve.storage.model.soft_delete import (
    REASON_MERGED,
    build_memory_restore_upsert,
    build_memory_soft_delete_upsert,
    build_memory_withdrawal_extras,
)
from kgserve.storage.model.write_batch import (
    KIND_CONSOLIDATION,
    EdgeUpsert,
    NodeUpsert,
    WriteBatch,
    build_node_restore_upsert,
    copy_edge_row_as_upsert,
)
from kgserve.storage.rows.edge_pages import incoming_edges_of_type
from kgserve.storage.rows.memory_hierarchy_and_redirects import find_parents_of_memories
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.storage.write_planner import WriteReport
from kgserve.stores.open_store import OpenStore

_MERGE_BATCH_ROWS = 200
_MAX_RECORDED_EDGES = 50_000
_TOO_MANY_RELATIONS_REASON = "they have too many relations to record, so the merge could not be undone"
_NESTED_REASON = "one of them is below another through a third memory, so the merge would create a cycle"
_Item = TypeVar("_Item")
_MAX_LISTED_RUNS = 10_000
_MAX_RECORDED_RESTORED = 2_000
_MAX_QUOTED_IDS = 20


class RunningConsolidation(NamedTuple):
    """A run in progress: the id of its node, and its record so far."""

    id: str
    record: ConsolidationRunRecord
    author: str = ""


class OutdatedConsolidationPlan(Conflict):
    """Error: memories changed since a consolidation plan was made."""

    def __init__(self, ids: Sequence[str]) -> None:
        named = ", ".join(map(repr, ids[:_MAX_QUOTED_IDS])) + (" and more" if len(ids) > _MAX_QUOTED_IDS else "")
        super().__init__(f"changed since the plan was made: {named}; make a new plan")
        self.ids = [*ids]


class MergeClusterContainsDescendant(Exception):
    """One memory of a cluster is an indirect descendant of another."""


def generate_consolidation_run_id(now: int) -> str:
    """Return the id of a run's node; ids sort by time. `now` is in microseconds."""
    return f"consolidation-{now // 1000:012x}-{os.urandom(4).hex()}"


def merge_memory_clusters(
    store: OpenStore, run: RunningConsolidation, clusters: Sequence[MemoryClusterMergePlan], pause: PauseFunction
) -> tuple[list[MemoryMergeCluster], WriteReport]:
    """Merge clusters, record the run, and return the clusters not merged and the last report. Blocks.

    Clusters whose memories changed meanwhile are not merged.
    """
    store.runs.add(run.id)
    try:
        _write_run(store, run)
        left: list[MemoryMergeCluster] = []

        def write(rows: RowsSnapshot, cluster: MemoryClusterMergePlan) -> WriteBatch:
            try:
                return _build_merge(rows, run, cluster)
            except OutdatedConsolidationPlan:
                left.append(build_rejected_memory_cluster(cluster.ids, cluster.similarity, "changed meanwhile"))
            except MergeClusterContainsDescendant:
                left.append(build_rejected_memory_cluster(cluster.ids, cluster.similarity, _NESTED_REASON))
            except TooManyAbsorbedMemoryEdges:
                left.append(build_rejected_memory_cluster(cluster.ids, cluster.similarity, _TOO_MANY_RELATIONS_REASON))
            return WriteBatch()

        _write_all(store, clusters, write, pause)
        skipped = {each.primary for each in left}
        merged = sum(len(each.absorbed) for each in clusters if each.primary not in skipped)
        return left, _write_run(store, _as_done(run, len(clusters) - len(left), merged))
    finally:
        store.runs.discard(run.id)


def _as_done(run: RunningConsolidation, clusters: int, merged: int) -> RunningConsolidation:
    now = format_rfc3339_timestamp(time.time_ns() // 1000)
    done = {"status": "done", "ended_at": now, "clusters": clusters, "merged": merged, "deleted": merged}
    return run._replace(record=msgspec.structs.replace(run.record, **done))


def list_memories_changed_since_plan(store: OpenStore, clusters: Iterable[MemoryClusterMergePlan]) -> list[str]:
    """Return the memories of a plan that changed since."""
    with store.reading() as rows:
        return [each for cluster in clusters for each in _changed_members(rows, cluster)]


def _write_run(store: OpenStore, run: RunningConsolidation) -> WriteReport:
    extras = NodeExtrasUpsert(created_by=run.author)
    put = NodeUpsert(0, run.id, KIND_CONSOLIDATION, "", run.record.text, extras=extras)
    return store.submit(WriteBatch(nodes=[put], cost=len(put.attributes or ""))).result()


def _write_all(
    store: OpenStore, items: Sequence[_Item], write: Callable[[RowsSnapshot, _Item], WriteBatch], pause: PauseFunction
) -> None:
    """Write each item as `write` decides in the writer thread; several items share a commit.

    An item that touches what another one changes waits for the next commit.
    """
    waiting = deque(items)
    while waiting:
        started = time.perf_counter()
        store.submit_prepared(partial(_next_commit, store, waiting, write), MEMORY_JOB_TIMEOUT_SECONDS).result()
        pause(time.perf_counter() - started)


def _next_commit(
    store: OpenStore, waiting: deque[_Item], write: Callable[[RowsSnapshot, _Item], WriteBatch]
) -> WriteBatch:
    """Return the write of the next items, and remove them from the queue."""
    together, changed, touched = WriteBatch(), set[str](), set[str]()
    with store.reading() as rows:
        while waiting and together.size < _MERGE_BATCH_ROWS:
            batch = write(rows, waiting[0])
            nodes = {*(put.id for put in batch.nodes), *batch.delete_nodes}
            ends = {end for put in batch.edges for end in put.key[:2]} | {
                end for key in batch.delete_edges for end in key[:2]
            }
            if not (nodes.isdisjoint(touched) and ends.isdisjoint(changed)):
                break
            changed |= nodes
            touched |= ends
            together = _combine(together, batch)
            waiting.popleft()
    return together


def _combine(one: WriteBatch, other: WriteBatch) -> WriteBatch:
    return WriteBatch(
        nodes=one.nodes + other.nodes,
        edges=one.edges + other.edges,
        delete_nodes=one.delete_nodes + other.delete_nodes,
        delete_edges=one.delete_edges + other.delete_edges,
        touch=False,
        cost=one.cost + other.cost,
    )


def _changed_members(rows: RowsSnapshot, cluster: MemoryClusterMergePlan) -> list[str]:
    found = rows.nodes(cluster.ids)
    return [each for each in cluster.ids if each not in found or found[each].version != cluster.versions[each]]


def _build_merge(rows: RowsSnapshot, run: RunningConsolidation, cluster: MemoryClusterMergePlan) -> WriteBatch:
    """Return the write that merges a cluster.

    Raises OutdatedConsolidationPlan, MergeClusterContainsDescendant, TooManyAbsorbedMemoryEdges.
    """
    if changed := _changed_members(rows, cluster):
        raise OutdatedConsolidationPlan(changed)
    if _is_nested(rows, cluster.ids):
        raise MergeClusterContainsDescendant
    found = rows.nodes(cluster.ids)
    cluster = _with_possible_layer(rows, cluster, found[cluster.primary])
    edges = {each: list(_edges(rows, each)) for each in cluster.absorbed}
    if sum(map(len, edges.values())) > _MAX_RECORDED_EDGES:
        raise TooManyAbsorbedMemoryEdges
    primary, says_more = found[cluster.primary], cluster.changes_primary(found[cluster.primary])
    had, parented = _existing_edges(rows, cluster.primary, edges), _has_parent(rows, cluster.primary, but=cluster.ids)
    former = f"{run.id}-{primary.version}-{uuid.uuid4().hex[:8]}" if says_more else ""
    grown = PrimaryMemoryUndoRecord(_author(primary), primary.version + says_more, former, parented, list(had.values()))
    marks = [_absorbed_mark(run, found[each], cluster.primary, edges[each]) for each in cluster.absorbed]
    nodes = [
        build_memory_soft_delete_upsert(found[each], REASON_MERGED, cluster.primary, run.author)
        for each in cluster.absorbed
    ]
    if says_more:
        nodes += [_primary_put(cluster, run.author), _former_state(primary, former, run.author)]
        marks.append(
            EdgeUpsert(
                0, (former, cluster.primary, MERGED_INTO_RELATION), extras=EdgeExtrasUpsert(created_by=run.author)
            )
        )
    marks.append(
        _edge((run.id, cluster.primary, RELATION_CONSOLIDATED), encode_consolidation_undo_record(grown), run.author)
    )
    puts = [*move_absorbed_edges_to_primary(cluster.primary, edges, had, parented=parented).values()]
    deleted = [*{row.key for rows_ in edges.values() for row in rows_}]
    cost = sum(len(put.own or "") + 300 for put in [*marks, *puts]) + len(cluster.content) + 1000
    return WriteBatch(nodes=nodes, edges=[*puts, *marks], delete_edges=deleted, touch=False, cost=cost)


def _with_possible_layer(
    rows: RowsSnapshot, cluster: MemoryClusterMergePlan, primary: NodeRow
) -> MemoryClusterMergePlan:
    """Keep the primary's layer if it has a place in the hierarchy, which another layer might contradict."""
    own = (primary.extras or NO_EXTRAS).layer
    if cluster.layer == own or not any(edge.relation_type == CHILD_OF_RELATION for edge in _edges(rows, primary.id)):
        return cluster
    return msgspec.structs.replace(cluster, layer=own)


def _primary_put(cluster: MemoryClusterMergePlan, author: str) -> NodeUpsert:
    importance = msgspec.UNSET if cluster.importance is None else cluster.importance
    extras = NodeExtrasUpsert(created_by=author, tags=cluster.tags, importance=importance, layer=cluster.layer)
    return NodeUpsert(0, cluster.primary, content=cluster.content, attributes=cluster.attributes, extras=extras)


def _former_state(row: NodeRow, node_id: str, author: str) -> NodeUpsert:
    """Return the previous state of a primary as a withdrawn node."""
    again = build_node_restore_upsert(row)
    extras = build_memory_withdrawal_extras(row, REASON_MERGED, row.id, author).over(again.extras)
    return msgspec.structs.replace(again, id=node_id, extras=extras, created_at=row.created_at, version=row.version)


def _absorbed_mark(run: RunningConsolidation, row: NodeRow, primary: str, edges: list[EdgeRow]) -> EdgeUpsert:
    note = encode_consolidation_undo_record(AbsorbedMemoryUndoRecord(run.id, _author(row), row.version + 1, edges))
    return _edge((row.id, primary, MERGED_INTO_RELATION), note, run.author)


def _edge(key: EdgeKey, own: str, author: str) -> EdgeUpsert:
    return EdgeUpsert(0, key, own=own, extras=EdgeExtrasUpsert(created_by=author))


def _author(row: NodeRow) -> str:
    return (row.extras or NO_EXTRAS).created_by


def _edges(rows: RowsSnapshot, node_id: str) -> Iterator[EdgeRow]:
    """Return the edges of a memory that move with it."""
    into = (row for row in rows.incoming(node_id) if row.source != node_id)
    return (
        row
        for row in chain(rows.outgoing(node_id), into)
        if not is_edge_type_left_on_absorbed_memory(row.relation_type)
    )


def _existing_edges(rows: RowsSnapshot, primary: str, edges: Mapping[str, Sequence[EdgeRow]]) -> dict[EdgeKey, EdgeRow]:
    """Return the existing edges of a primary with the keys of edges to be moved."""
    return rows.edges([*move_absorbed_edges_to_primary(primary, edges, {}, parented=False)])


def _has_parent(rows: RowsSnapshot, node_id: str, but: Collection[str]) -> bool:
    """Return whether a memory has a parent outside a set."""
    return any(row.relation_type == CHILD_OF_RELATION and row.target not in but for row in rows.outgoing(node_id))


def _is_nested(rows: RowsSnapshot, ids: Collection[str]) -> bool:
    """Return whether one memory of a set is an indirect descendant of another."""
    return any(_is_below_any(rows, each, ids) for each in ids)


def _is_below_any(rows: RowsSnapshot, start: str, ids: Collection[str]) -> bool:
    at = start
    for level in range(MAX_HIERARCHY_DEPTH):
        above = find_parents_of_memories(rows, (at,)).get(at)
        if above is None or above in ids:
            return above is not None and level > 0
        at = above
    return False


# Undo


class UndoConsolidationResult(NamedTuple):
    """Result of undoing a run."""

    restored: dict[str, None]
    """Restored ids in order, without duplicates: a deferred cluster is decided more than once."""
    skipped: dict[str, None]


def list_consolidation_runs(store: OpenStore) -> list[tuple[NodeRow, ConsolidationRunRecord]]:
    """Return all runs of a store, newest first."""
    return list_nodes_of_type_newest_first(store, KIND_CONSOLIDATION, decode_run_record)


def list_nodes_of_type_newest_first(
    store: OpenStore, node_type: str, read: Callable[[str], _Item]
) -> list[tuple[NodeRow, _Item]]:
    """Return the nodes of a type, newest first by id, with their decoded attributes."""

    def look(rows: RowsSnapshot, ids: Sequence[str]) -> Iterator[tuple[NodeRow, _Item]]:
        for row in rows.nodes(ids).values():
            # Nodes of this type that a caller wrote may not decode.
            with suppress(msgspec.MsgspecError):
                yield row, read(row.attributes)

    wanted = NodeFilter(types=(node_type,))
    found = store.query_catalog(
        lambda catalog, rows: [*look(rows, catalog.find_matching_ids(wanted, _MAX_LISTED_RUNS))]
    )
    return sorted(found, key=lambda run: run[0].id, reverse=True)


def is_consolidation_run_interrupted(store: OpenStore, row: NodeRow, record_: ConsolidationRunRecord) -> bool:
    """Return whether a run is recorded as running but is not being carried out."""
    return record_.status == "running" and row.id not in store.runs


def mark_interrupted_consolidation_runs(store: OpenStore) -> None:
    """Record interrupted runs as such, with the merges that they completed."""
    for row, record_ in list_consolidation_runs(store):
        if is_consolidation_run_interrupted(store, row, record_):
            with store.reading() as rows:
                done = [edge.target for edge in rows.outgoing(row.id) if edge.relation_type == RELATION_CONSOLIDATED]
                merged = sum(len(_absorbed(rows, row.id, each)) for each in done)
            found = {"status": "interrupted", "clusters": len(done), "merged": merged, "deleted": merged}
            _write_run(store, RunningConsolidation(row.id, msgspec.structs.replace(record_, **found), _author(row)))


def undo_consolidation_run(
    store: OpenStore, run_id: str, author: str, pause: PauseFunction, *, force: bool
) -> UndoConsolidationResult:
    """Restore the memories that a run absorbed. Raises NotFound, Unavailable, and Conflict for later changes."""
    with store.reading() as rows:
        row = rows.node(run_id)
        if row is None or row.type != KIND_CONSOLIDATION:
            raise NotFound(f"there is no consolidation {run_id!r}")
        record_ = _read(row)
        if record_.status == "running" and run_id in store.runs:
            raise Unavailable("this consolidation is still running; try again when it is done")
        notes = [edge for edge in rows.outgoing(run_id) if edge.relation_type == RELATION_CONSOLIDATED]
        changed = [] if force else [each for note in notes for each in _changed(rows, run_id, note)]
        message = _conflict_message(rows, changed)
    if changed:
        raise Conflict(message)
    undone = UndoConsolidationResult({}, {})
    # Last first: a relation between two clusters moved with the first, then with the second.
    keys = [note.key for note in sorted(notes, key=lambda note: -note.sequence)]
    _write_all(store, keys, lambda rows, key: _build_undo(rows, key, undone), pause)
    _close_run(store, row, record_, undone.restored, author)
    return undone


def _read(row: NodeRow) -> ConsolidationRunRecord:
    """Return the record of a run. Raises NotFound for any other node."""
    try:
        return decode_run_record(row.attributes)
    except msgspec.MsgspecError:
        raise NotFound(f"node {row.id!r} is not a consolidation run") from None


def _absorbed(rows: RowsSnapshot, run_id: str, primary: str) -> dict[str, AbsorbedMemoryUndoRecord]:
    """Return the records of the memories that a primary absorbed in a run."""
    found: dict[str, AbsorbedMemoryUndoRecord] = {}
    for edge in rows.incoming(primary):
        if (
            edge.relation_type == MERGED_INTO_RELATION
            and (own := split_edge_times_from_attributes(edge.attributes).own) != EMPTY_ATTRIBUTES_JSON
        ):
            taken = decode_absorbed_record(own)
            if taken.run == run_id:
                found[edge.source] = taken
    return found


def _changed(rows: RowsSnapshot, run_id: str, note: EdgeRow) -> Iterator[str]:
    """Yield the memories of a cluster that changed since the run."""
    versions = {note.target: decode_primary_record(split_edge_times_from_attributes(note.attributes).own).left}
    versions |= {each: taken.left for each, taken in _absorbed(rows, run_id, note.target).items()}
    found = rows.nodes([*versions])
    yield from (each for each, left in versions.items() if each not in found or found[each].version != left)


def _conflict_message(rows: RowsSnapshot, changed: Sequence[str]) -> str:
    """Return why a run cannot be undone, and what to do."""
    for memory in changed:
        for into in (row for row in rows.outgoing(memory) if row.relation_type == MERGED_INTO_RELATION):
            own = split_edge_times_from_attributes(into.attributes).own
            by = (
                f"the consolidation {decode_absorbed_record(own).run!r}"
                if own != EMPTY_ATTRIBUTES_JSON
                else "a manual merge"
            )
            first = "undo that first, and then this one" if own != EMPTY_ATTRIBUTES_JSON else "undo it with force"
            return f"{memory!r} was absorbed by {into.target!r} since, in {by}; {first}"
    named = ", ".join(map(repr, changed[:_MAX_QUOTED_IDS])) + (" and more" if len(changed) > _MAX_QUOTED_IDS else "")
    return f"changed since the consolidation: {named}; undo it with force to keep what they say now"


def _build_undo(rows: RowsSnapshot, key: EdgeKey, undone: UndoConsolidationResult) -> WriteBatch:
    """Return the write that undoes one cluster."""
    run_id, primary_id, _ = key
    note = rows.edge(key)
    if note is None:
        return WriteBatch()
    grown, taken = (
        decode_primary_record(split_edge_times_from_attributes(note.attributes).own),
        _absorbed(rows, run_id, primary_id),
    )
    found = rows.nodes([primary_id, grown.former, *taken])
    restored, deleted = _edges_to_restore(rows, primary_id, {each: noted.edges for each, noted in taken.items()}, grown)
    again = [each for each in taken if each in found and (found[each].extras or NO_EXTRAS).ended == REASON_MERGED]
    nodes = [build_memory_restore_upsert(found[each], taken[each].author) for each in again]
    primary, former = found.get(primary_id), found.get(grown.former)
    untouched = primary is not None and primary.version == grown.left
    if former is not None and untouched:
        nodes.append(_restored_primary(primary_id, former, grown.author))
    as_before = {each: taken[each].left for each in again if found[each].version == taken[each].left}
    if former is not None and untouched:
        as_before[primary_id] = grown.left
    restored += [put for each, left in as_before.items() for put in _earlier_notes(rows, each, left)]
    undone.restored.update(dict.fromkeys(again))
    if not untouched:
        undone.skipped[primary_id] = None
    deleted += [key, *((each, primary_id, MERGED_INTO_RELATION) for each in taken)]
    delete = [] if former is None else [former.id]
    return WriteBatch(nodes=nodes, edges=restored, delete_edges=deleted, delete_nodes=delete, cost=1000)


def _earlier_notes(rows: RowsSnapshot, memory: str, left: int) -> Iterator[EdgeUpsert]:
    """Yield updates of earlier runs' records, so that they expect the restored version of a memory."""
    for edge in incoming_edges_of_type(rows, memory, RELATION_CONSOLIDATED):
        grown = decode_primary_record(split_edge_times_from_attributes(edge.attributes).own)
        if grown.left == left - 1:
            yield EdgeUpsert(
                0, edge.key, own=encode_consolidation_undo_record(msgspec.structs.replace(grown, left=left + 1))
            )


def _restored_primary(primary: str, former: NodeRow, author: str) -> NodeUpsert:
    old = former.extras or NO_EXTRAS
    extras = NodeExtrasUpsert(created_by=author, tags=old.tags, importance=old.importance, layer=old.layer)
    return NodeUpsert(0, primary, content=former.content, attributes=former.attributes, extras=extras)


def _edges_to_restore(
    rows: RowsSnapshot, primary: str, edges: Mapping[str, Sequence[EdgeRow]], grown: PrimaryMemoryUndoRecord
) -> tuple[list[EdgeUpsert], list[EdgeKey]]:
    """Return the edges to restore, and the keys of edges that the primary loses.

    Edges that another caller changed at the primary since stay.
    """
    had = {row.key: row for row in grown.had}
    made = move_absorbed_edges_to_primary(primary, edges, had, parented=grown.parented)
    now = rows.edges([*made])
    untouched = [key for key, put in made.items() if key in now and _is_unchanged(now[key], put, had.get(key))]
    again = {row.key: copy_edge_row_as_upsert(row, row.key) for each in edges.values() for row in each}
    again |= {key: copy_edge_row_as_upsert(had[key], key) for key in untouched if key in had}
    return [*again.values()], [key for key in untouched if key not in had]


def _is_unchanged(row: EdgeRow, put: EdgeUpsert, had: EdgeRow | None) -> bool:
    """Return whether an edge is unchanged since a run."""
    if row.weight != put.weight:
        return False
    own = split_edge_times_from_attributes(row.attributes).own
    if had is not None:
        return own == split_edge_times_from_attributes(had.attributes).own and row.extras == had.extras
    return own == put.own


def _close_run(
    store: OpenStore, row: NodeRow, run: ConsolidationRunRecord, restored: Iterable[str], author: str
) -> None:
    """Delete the node of a manual run; mark an automatic one as undone, so that it is not repeated."""
    if run.trigger == "manual":
        store.submit(WriteBatch(delete_nodes=[row.id])).result()
        return
    undone = msgspec.structs.replace(
        run, status="undone", apart=[*restored][:_MAX_RECORDED_RESTORED], clusters=0, merged=0, deleted=0
    )
    _write_run(store, RunningConsolidation(row.id, undone, author))
