"""Making one memory of several that say the same, and taking it back.

Each cluster is decided in the writer's turn, from the versions that it was computed from, and is whole or untouched.
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
from kgserve.memory.api import Cluster
from kgserve.memory.consolidation.candidates import MEMORY_JOB_TIMEOUT_SECONDS, Pause
from kgserve.memory.consolidation.plan import (
    AbsorbedRecord,
    ClusterPlan,
    Grown,
    RunRecord,
    TooManyEdges,
    grown_of,
    left_out,
    moved,
    record,
    run_of,
    stays,
    taken_of,
)
from kgserve.platform.times import format_time
from kgserve.projections.memory_index.relation_types import RELATION_CONSOLIDATED
from kgserve.storage.model.batch import KIND_CONSOLIDATION, EdgePut, NodePut, WriteBatch, edge_again, put_again
from kgserve.storage.model.fields import NO_EXTRAS, EdgeExtrasPut, NodeExtrasPut
from kgserve.storage.model.filters import NodeFilter
from kgserve.storage.model.parents import CHILD_OF, MAX_HIERARCHY_DEPTH
from kgserve.storage.model.redirects import MERGED_INTO
from kgserve.storage.model.rows import NO_ATTRIBUTES, EdgeKey, EdgeRow, NodeRow, edge_stamps
from kgserve.storage.model.soft_delete import MERGED, restore, soft_delete, withdrawal
from kgserve.storage.plan import Report
from kgserve.storage.rows.edge_page import incoming_of
from kgserve.storage.rows.snapshot import Rows
from kgserve.storage.rows.ways import parents
from kgserve.stores.store import OpenStore

_MERGE_BATCH_ROWS = 200
_MAX_RECORDED_EDGES = 50_000
_TOO_MANY_RELATIONS_REASON = "their relations are too many to be noted, so that it could not be undone"
_NESTED_REASON = "one of them stands below another by way of a memory that would then be above and below the same"
_Item = TypeVar("_Item")
_MAX_LISTED_RUNS = 10_000
_MAX_RECORDED_RESTORED = 2_000
_MAX_QUOTED_IDS = 20


class RunInProgress(NamedTuple):
    """A run that is being carried out: its node, and what that says of it so far."""

    id: str
    record: RunRecord
    author: str = ""


class PlanOutdated(Conflict):
    """Memories are no longer as they were when a plan was made."""

    def __init__(self, ids: Sequence[str]) -> None:
        named = ", ".join(map(repr, ids[:_MAX_QUOTED_IDS])) + (" and more" if len(ids) > _MAX_QUOTED_IDS else "")
        super().__init__(f"changed since the plan was made: {named}; make a new plan")
        self.ids = [*ids]


class Nested(Exception):
    """Of memories that are to be one, one stands below another by way of a third."""


def new_run(now: int) -> str:
    """The id of a run's node; ids sort by time."""
    return f"consolidation-{now // 1000:012x}-{os.urandom(4).hex()}"


def carry_out(
    store: OpenStore, run: RunInProgress, clusters: Sequence[ClusterPlan], pause: Pause
) -> tuple[list[Cluster], Report]:
    """Merge clusters, each in one write, between writing the run's node and what it came to. Blocks.

    Those whose memories have changed meanwhile are left, and told.
    """
    store.runs.add(run.id)
    try:
        _write_run(store, run)
        left: list[Cluster] = []

        def write(rows: Rows, cluster: ClusterPlan) -> WriteBatch:
            try:
                return _merging(rows, run, cluster)
            except PlanOutdated:
                left.append(left_out(cluster.ids, cluster.similarity, "changed meanwhile"))
            except Nested:
                left.append(left_out(cluster.ids, cluster.similarity, _NESTED_REASON))
            except TooManyEdges:
                left.append(left_out(cluster.ids, cluster.similarity, _TOO_MANY_RELATIONS_REASON))
            return WriteBatch()

        _written(store, clusters, write, pause)
        skipped = {each.primary for each in left}
        merged = sum(len(each.absorbed) for each in clusters if each.primary not in skipped)
        return left, _write_run(store, _ended(run, len(clusters) - len(left), merged))
    finally:
        store.runs.discard(run.id)


def _ended(run: RunInProgress, clusters: int, merged: int) -> RunInProgress:
    now = format_time(time.time_ns() // 1000)
    done = {"status": "done", "ended_at": now, "clusters": clusters, "merged": merged, "deleted": merged}
    return run._replace(record=msgspec.structs.replace(run.record, **done))


def changed_since(store: OpenStore, clusters: Iterable[ClusterPlan]) -> list[str]:
    """The memories of a plan that are no longer as they were then."""
    with store.reading() as rows:
        return [each for cluster in clusters for each in _moved_on(rows, cluster)]


def _write_run(store: OpenStore, run: RunInProgress) -> Report:
    extras = NodeExtrasPut(created_by=run.author)
    put = NodePut(0, run.id, KIND_CONSOLIDATION, "", run.record.text, extras=extras)
    return store.submit(WriteBatch(nodes=[put], cost=len(put.attributes or ""))).result()


def _written(
    store: OpenStore, items: Sequence[_Item], write: Callable[[Rows, _Item], WriteBatch], pause: Pause
) -> None:
    """Write each of some items as ``write`` decides in the writer's turn, some in one commit to share its sync.

    The turn of one that touches what another changes comes with the next commit.
    """
    waiting = deque(items)
    while waiting:
        started = time.perf_counter()
        store.submit_prepared(partial(_next_commit, store, waiting, write), MEMORY_JOB_TIMEOUT_SECONDS).result()
        pause(time.perf_counter() - started)


def _next_commit(store: OpenStore, waiting: deque[_Item], write: Callable[[Rows, _Item], WriteBatch]) -> WriteBatch:
    """What the next few come to together; they wait no more."""
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
            together = _both(together, batch)
            waiting.popleft()
    return together


def _both(one: WriteBatch, other: WriteBatch) -> WriteBatch:
    return WriteBatch(
        nodes=one.nodes + other.nodes,
        edges=one.edges + other.edges,
        delete_nodes=one.delete_nodes + other.delete_nodes,
        delete_edges=one.delete_edges + other.delete_edges,
        touch=False,
        cost=one.cost + other.cost,
    )


def _moved_on(rows: Rows, cluster: ClusterPlan) -> list[str]:
    found = rows.nodes(cluster.ids)
    return [each for each in cluster.ids if each not in found or found[each].version != cluster.versions[each]]


def _merging(rows: Rows, run: RunInProgress, cluster: ClusterPlan) -> WriteBatch:
    """The write that merges a cluster. Raises Changed, Nested and TooManyEdges."""
    if changed := _moved_on(rows, cluster):
        raise PlanOutdated(changed)
    if _is_nested(rows, cluster.ids):
        raise Nested
    found = rows.nodes(cluster.ids)
    cluster = _with_possible_layer(rows, cluster, found[cluster.primary])
    edges = {each: list(_edges(rows, each)) for each in cluster.absorbed}
    if sum(map(len, edges.values())) > _MAX_RECORDED_EDGES:
        raise TooManyEdges
    primary, says_more = found[cluster.primary], cluster.says_more(found[cluster.primary])
    had, parented = _had(rows, cluster.primary, edges), _has_parent(rows, cluster.primary, but=cluster.ids)
    former = f"{run.id}-{primary.version}-{uuid.uuid4().hex[:8]}" if says_more else ""
    grown = Grown(_author(primary), primary.version + says_more, former, parented, list(had.values()))
    marks = [_mark(run, found[each], cluster.primary, edges[each]) for each in cluster.absorbed]
    nodes = [soft_delete(found[each], MERGED, cluster.primary, run.author) for each in cluster.absorbed]
    if says_more:
        nodes += [_grown(cluster, run.author), _former(primary, former, run.author)]
        marks.append(EdgePut(0, (former, cluster.primary, MERGED_INTO), extras=EdgeExtrasPut(created_by=run.author)))
    marks.append(_edge((run.id, cluster.primary, RELATION_CONSOLIDATED), record(grown), run.author))
    puts = [*moved(cluster.primary, edges, had, parented=parented).values()]
    gone = [*{row.key for rows_ in edges.values() for row in rows_}]
    cost = sum(len(put.own or "") + 300 for put in [*marks, *puts]) + len(cluster.content) + 1000
    return WriteBatch(nodes=nodes, edges=[*puts, *marks], delete_edges=gone, touch=False, cost=cost)


def _with_possible_layer(rows: Rows, cluster: ClusterPlan, primary: NodeRow) -> ClusterPlan:
    """Leave a primary that has a place in the hierarchy without a layer: its own places might contradict it."""
    own = (primary.extras or NO_EXTRAS).layer
    if cluster.layer == own or not any(edge.relation_type == CHILD_OF for edge in _edges(rows, primary.id)):
        return cluster
    return msgspec.structs.replace(cluster, layer=own)


def _grown(cluster: ClusterPlan, author: str) -> NodePut:
    importance = msgspec.UNSET if cluster.importance is None else cluster.importance
    extras = NodeExtrasPut(created_by=author, tags=cluster.tags, importance=importance, layer=cluster.layer)
    return NodePut(0, cluster.primary, content=cluster.content, attributes=cluster.attributes, extras=extras)


def _former(row: NodeRow, node_id: str, author: str) -> NodePut:
    """The state of a primary before, as a withdrawn node of its own."""
    again = put_again(row)
    extras = withdrawal(row, MERGED, row.id, author).over(again.extras)
    return msgspec.structs.replace(again, id=node_id, extras=extras, created_at=row.created_at, version=row.version)


def _mark(run: RunInProgress, row: NodeRow, primary: str, edges: list[EdgeRow]) -> EdgePut:
    note = record(AbsorbedRecord(run.id, _author(row), row.version + 1, edges))
    return _edge((row.id, primary, MERGED_INTO), note, run.author)


def _edge(key: EdgeKey, own: str, author: str) -> EdgePut:
    return EdgePut(0, key, own=own, extras=EdgeExtrasPut(created_by=author))


def _author(row: NodeRow) -> str:
    return (row.extras or NO_EXTRAS).created_by


def _edges(rows: Rows, node_id: str) -> Iterator[EdgeRow]:
    """The edges of a memory that go with it."""
    into = (row for row in rows.incoming(node_id) if row.source != node_id)
    return (row for row in chain(rows.outgoing(node_id), into) if not stays(row.relation_type))


def _had(rows: Rows, primary: str, edges: Mapping[str, Sequence[EdgeRow]]) -> dict[EdgeKey, EdgeRow]:
    """The edges that a primary has at the places of those that are to be moved."""
    return rows.edges([*moved(primary, edges, {}, parented=False)])


def _has_parent(rows: Rows, node_id: str, but: Collection[str]) -> bool:
    """Whether a memory stands below any other but some."""
    return any(row.relation_type == CHILD_OF and row.target not in but for row in rows.outgoing(node_id))


def _is_nested(rows: Rows, ids: Collection[str]) -> bool:
    """Whether one of some memories stands below another of them, with one that is none of them in between."""
    return any(_meets(rows, each, ids) for each in ids)


def _meets(rows: Rows, start: str, ids: Collection[str]) -> bool:
    at = start
    for level in range(MAX_HIERARCHY_DEPTH):
        above = parents(rows, (at,)).get(at)
        if above is None or above in ids:
            return above is not None and level > 0
        at = above
    return False


# Taking it back


class Undone(NamedTuple):
    """What taking a run back has done."""

    restored: dict[str, None]
    """In order. Each once, for a cluster whose turn has not come is decided again."""
    skipped: dict[str, None]


def runs(store: OpenStore) -> list[tuple[NodeRow, RunRecord]]:
    """All runs of a store, the newest first."""
    return runs_of(store, KIND_CONSOLIDATION, run_of)


def runs_of(store: OpenStore, node_type: str, read: Callable[[str], _Item]) -> list[tuple[NodeRow, _Item]]:
    """The nodes of a type of which ids sort by time, the newest first, each with what its attributes say."""

    def look(rows: Rows, ids: Sequence[str]) -> Iterator[tuple[NodeRow, _Item]]:
        for row in rows.nodes(ids).values():
            # Somebody else's node of this type cannot be read.
            with suppress(msgspec.MsgspecError):
                yield row, read(row.attributes)

    wanted = NodeFilter(types=(node_type,))
    found = store.listing(lambda catalog, rows: [*look(rows, catalog.having(wanted, _MAX_LISTED_RUNS))])
    return sorted(found, key=lambda run: run[0].id, reverse=True)


def broken_off(store: OpenStore, row: NodeRow, said: RunRecord) -> bool:
    """Whether a run says that it goes on, while nobody carries it out."""
    return said.status == "running" and row.id not in store.runs


def note_interrupted(store: OpenStore) -> None:
    """Note of runs that were broken off that they were, and what they had done by then."""
    for row, said in runs(store):
        if broken_off(store, row, said):
            with store.reading() as rows:
                done = [edge.target for edge in rows.outgoing(row.id) if edge.relation_type == RELATION_CONSOLIDATED]
                merged = sum(len(_absorbed(rows, row.id, each)) for each in done)
            found = {"status": "interrupted", "clusters": len(done), "merged": merged, "deleted": merged}
            _write_run(store, RunInProgress(row.id, msgspec.structs.replace(said, **found), _author(row)))


def undo(store: OpenStore, run_id: str, author: str, pause: Pause, *, force: bool) -> Undone:
    """Bring back what a run has absorbed. Raises NotFound, Unavailable, Conflict that names what was changed since."""
    with store.reading() as rows:
        row = rows.node(run_id)
        if row is None or row.type != KIND_CONSOLIDATION:
            raise NotFound(f"there is no consolidation {run_id!r}")
        record_ = _read(row)
        if record_.status == "running" and run_id in store.runs:
            raise Unavailable("this consolidation is still going on; try again when it is done")
        notes = [edge for edge in rows.outgoing(run_id) if edge.relation_type == RELATION_CONSOLIDATED]
        changed = [] if force else [each for note in notes for each in _changed(rows, run_id, note)]
        told = _told_of_changed(rows, changed)
    if changed:
        raise Conflict(told)
    undone = Undone({}, {})
    # The last first: a relation between two clusters has moved with the first of them, and then with the other.
    keys = [note.key for note in sorted(notes, key=lambda note: -note.sequence)]
    _written(store, keys, lambda rows, key: _undoing(rows, key, undone), pause)
    _close_run(store, row, record_, undone.restored, author)
    return undone


def _read(row: NodeRow) -> RunRecord:
    """What the node of a run says. Raises NotFound for a node of somebody else's."""
    try:
        return run_of(row.attributes)
    except msgspec.MsgspecError:
        raise NotFound(f"node {row.id!r} is no run of consolidation") from None


def _absorbed(rows: Rows, run_id: str, primary: str) -> dict[str, AbsorbedRecord]:
    """What a run has noted of the memories that a primary has absorbed."""
    found: dict[str, AbsorbedRecord] = {}
    for edge in rows.incoming(primary):
        if edge.relation_type == MERGED_INTO and (own := edge_stamps(edge.attributes).own) != NO_ATTRIBUTES:
            taken = taken_of(own)
            if taken.run == run_id:
                found[edge.source] = taken
    return found


def _changed(rows: Rows, run_id: str, note: EdgeRow) -> Iterator[str]:
    """The memories of a cluster that are no longer as the run left them."""
    versions = {note.target: grown_of(edge_stamps(note.attributes).own).left}
    versions |= {each: taken.left for each, taken in _absorbed(rows, run_id, note.target).items()}
    found = rows.nodes([*versions])
    yield from (each for each, left in versions.items() if each not in found or found[each].version != left)


def _told_of_changed(rows: Rows, changed: Sequence[str]) -> str:
    """Why a run is not taken back, and what to do."""
    for memory in changed:
        for into in (row for row in rows.outgoing(memory) if row.relation_type == MERGED_INTO):
            own = edge_stamps(into.attributes).own
            by = f"the consolidation {taken_of(own).run!r}" if own != NO_ATTRIBUTES else "a merge by hand"
            first = "undo that first, and then this one" if own != NO_ATTRIBUTES else "undo it with force"
            return f"{memory!r} was absorbed by {into.target!r} since, in {by}: {first}"
    named = ", ".join(map(repr, changed[:_MAX_QUOTED_IDS])) + (" and more" if len(changed) > _MAX_QUOTED_IDS else "")
    return f"changed since the consolidation: {named}; undo it with force to keep what they say now"


def _undoing(rows: Rows, key: EdgeKey, undone: Undone) -> WriteBatch:
    """The write that takes one cluster back."""
    run_id, primary_id, _ = key
    note = rows.edge(key)
    if note is None:
        return WriteBatch()
    grown, taken = grown_of(edge_stamps(note.attributes).own), _absorbed(rows, run_id, primary_id)
    found = rows.nodes([primary_id, grown.former, *taken])
    back, gone = _edges_back(rows, primary_id, {each: said.edges for each, said in taken.items()}, grown)
    again = [each for each in taken if each in found and (found[each].extras or NO_EXTRAS).ended == MERGED]
    nodes = [restore(found[each], taken[each].author) for each in again]
    primary, former = found.get(primary_id), found.get(grown.former)
    untouched = primary is not None and primary.version == grown.left
    if former is not None and untouched:
        nodes.append(_shrunk(primary_id, former, grown.author))
    as_before = {each: taken[each].left for each in again if found[each].version == taken[each].left}
    if former is not None and untouched:
        as_before[primary_id] = grown.left
    back += [put for each, left in as_before.items() for put in _earlier_notes(rows, each, left)]
    undone.restored.update(dict.fromkeys(again))
    if not untouched:
        undone.skipped[primary_id] = None
    gone += [key, *((each, primary_id, MERGED_INTO) for each in taken)]
    delete = [] if former is None else [former.id]
    return WriteBatch(nodes=nodes, edges=back, delete_edges=gone, delete_nodes=delete, cost=1000)


def _earlier_notes(rows: Rows, memory: str, left: int) -> Iterator[EdgePut]:
    """What earlier runs note of a memory from now on: as they left it, before a later run, now undone, ``left`` it."""
    for edge in incoming_of(rows, memory, RELATION_CONSOLIDATED):
        grown = grown_of(edge_stamps(edge.attributes).own)
        if grown.left == left - 1:
            yield EdgePut(0, edge.key, own=record(msgspec.structs.replace(grown, left=left + 1)))


def _shrunk(primary: str, former: NodeRow, author: str) -> NodePut:
    old = former.extras or NO_EXTRAS
    extras = NodeExtrasPut(created_by=author, tags=old.tags, importance=old.importance, layer=old.layer)
    return NodePut(0, primary, content=former.content, attributes=former.attributes, extras=extras)


def _edges_back(
    rows: Rows, primary: str, edges: Mapping[str, Sequence[EdgeRow]], grown: Grown
) -> tuple[list[EdgePut], list[EdgeKey]]:
    """The edges that go back to the absorbed or to what they were, and those that the primary has no more.

    What somebody has written at the primary since stays.
    """
    had = {row.key: row for row in grown.had}
    made = moved(primary, edges, had, parented=grown.parented)
    now = rows.edges([*made])
    untouched = [key for key, put in made.items() if key in now and _says(now[key], put, had.get(key))]
    again = {row.key: edge_again(row, row.key) for each in edges.values() for row in each}
    again |= {key: edge_again(had[key], key) for key in untouched if key in had}
    return [*again.values()], [key for key in untouched if key not in had]


def _says(row: EdgeRow, put: EdgePut, had: EdgeRow | None) -> bool:
    """Whether an edge still says what a run made of it."""
    if row.weight != put.weight:
        return False
    own = edge_stamps(row.attributes).own
    if had is not None:
        return own == edge_stamps(had.attributes).own and row.extras == had.extras
    return own == put.own


def _close_run(store: OpenStore, row: NodeRow, run: RunRecord, restored: Iterable[str], author: str) -> None:
    """A run by hand leaves nothing behind; of an automatic one it is known what not to take up again."""
    if run.trigger == "manual":
        store.submit(WriteBatch(delete_nodes=[row.id])).result()
        return
    undone = msgspec.structs.replace(
        run, status="undone", apart=[*restored][:_MAX_RECORDED_RESTORED], clusters=0, merged=0, deleted=0
    )
    _write_run(store, RunInProgress(row.id, undone, author))
