"""Making one memory of several that say the same: what there is to do, doing it, and taking it back.

What there is to do is computed beside everybody, in slices; each cluster is then one write, decided in the writer's
turn from the versions that it was computed from.
"""

from __future__ import annotations

import os
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Literal, NamedTuple, TypeVar

import msgspec

from kgserve.errors import Conflict, NotFound, Unavailable
from kgserve.model.batch import EdgePut, NodePut, WriteBatch, edge_again, put_again
from kgserve.model.clusters import complete_linkage
from kgserve.model.consolidation import (
    CHILD_OF,
    CONSOLIDATED,
    MAX_MEMBERS,
    MAX_SUGGESTED,
    MAX_TOLD,
    RUN,
    ClusterPlan,
    Grown,
    Kind,
    Member,
    Plan,
    RunRecord,
    Taken,
    TooManyEdges,
    grown_of,
    kind_of,
    left_out,
    moved,
    planned,
    record,
    run_of,
    stays,
    taken_of,
)
from kgserve.model.decay import Worth, effective, half_life_of, live
from kgserve.model.fields import NO_EXTRAS, EdgeExtrasPut, NodeExtrasPut
from kgserve.model.likeness import conflicts, fingerprint
from kgserve.model.listing import NodeFilter
from kgserve.model.memories import Cluster, Contradiction
from kgserve.model.merging import MERGED_INTO
from kgserve.model.plan import Report
from kgserve.model.rows import EMPTY_OBJECT, EdgeKey, EdgeRow, NodeRow, edge_stamps
from kgserve.model.times import format_time
from kgserve.model.withdrawing import MERGED, brought_back, is_active, withdrawal, withdrawn
from kgserve.rows.snapshot import Rows
from kgserve.store.store import Store
from kgserve.views.indexes import Indexes

Pause = Callable[[float], None]
"""Called after so many seconds of work, to give way to others; it may raise to break off."""
NEIGHBOURS = 50
"""So many of the nearest of a memory are looked at."""
WAIT_SECONDS = 10.0
_ROWS_AT_ONCE = 200
_IDS_AT_ONCE = 64
_MAX_EDGES = 50_000
_UNNOTABLE = "their relations are too many to be noted, so that it could not be undone"
_Item = TypeVar("_Item")
_MAX_RUNS = 10_000
_MAX_APART = 2_000
_NAMED = 20


class Wanted(NamedTuple):
    """What a run goes by. ``near`` is "merge" for what is near in meaning, or "suggest", or "ignore".

    Only what has been written after the commit ``since`` is compared, with everything; ``apart`` is left out.
    """

    threshold: float
    guard: bool
    types: frozenset[str] | None = None
    near: Literal["merge", "suggest", "ignore"] = "merge"
    since: int = 0
    apart: frozenset[str] = frozenset()


def worths(store: Store, rows: Iterable[NodeRow], now: int) -> dict[str, Member]:
    """Memories by id, each with what it is worth at a moment, by its last access or by its row."""
    settings, found = store.description.memory, {row.id: row for row in rows}
    accesses = store.accesses.of(found)
    members: dict[str, Member] = {}
    for node_id, row in found.items():
        extras, access = row.extras or NO_EXTRAS, accesses.get(node_id)
        stored = Worth(extras.confidence or 0.0, extras.confidence_at or row.created_at)
        worth = live(stored, Worth(access.confidence, access.last) if access else None)
        half_life = half_life_of(settings.half_life_days, settings.half_life_by_type, row.type)
        members[node_id] = Member(row, effective(worth, now, half_life))
    return members


# What there is to do


class _Candidate(NamedTuple):
    """A memory that may become one with others: what they must have in common, its wording, and its commit."""

    kind: Kind
    wording: bytes
    sequence: int


class _Survey(NamedTuple):
    """All candidates of a store as of a commit; those of one wording are a group, by its first.

    ``fresh`` are the groups that are to be compared with all others.
    """

    at: int
    candidates: dict[str, _Candidate]
    groups: dict[str, list[str]]
    group_of: dict[str, str]
    fresh: list[str]


def plan_of(store: Store, indexes: Indexes | None, wanted: Wanted, now: int, pause: Pause) -> Plan:
    """What a run has to do. Blocks for as long as it takes; ``now`` in microseconds."""
    survey = _surveyed(store, wanted, now, pause)
    near = _near(indexes, survey, wanted, pause) if wanted.near != "ignore" else None
    apart: list[Contradiction] = []
    pairs = _guarded(store, near or {}, wanted, apart, pause)
    linked, left = complete_linkage(pairs), list[Cluster]()
    suggested = linked if wanted.near == "suggest" else []
    merging = linked if wanted.near == "merge" else []
    alone = {*survey.fresh} - {*chain.from_iterable(merging)}
    groups = [*merging, *([each] for each in sorted(alone) if len(survey.groups[each]) > 1)]
    clusters = list(_decided(store, survey, groups, pairs, now, left, pause))
    suggestions = list(_decided(store, survey, suggested[:MAX_SUGGESTED], pairs, now, left, pause))
    apart.sort(key=lambda each: (-each.similarity, each.ids))
    return Plan(
        sequence=survey.at,
        clusters=clusters,
        suggestions=suggestions,
        contradictions=apart[:MAX_TOLD],
        contradictions_count=len(apart),
        left=left[:MAX_TOLD],
        near_checked=near is not None,
    )


def _surveyed(store: Store, wanted: Wanted, now: int, pause: Pause) -> _Survey:
    candidates: dict[str, _Candidate] = {}
    groups: defaultdict[tuple[Kind, bytes], list[str]] = defaultdict(list)
    with store.reading() as rows:
        at = rows.at
        started = time.perf_counter()
        for number, row in enumerate(rows.all_nodes()):
            if number % _ROWS_AT_ONCE == 0:
                pause(time.perf_counter() - started)
                started = time.perf_counter()
            kind = _candidate_kind(row, wanted, now)
            if kind is not None:
                candidates[row.id] = _Candidate(kind, fingerprint(row.content), row.sequence)
                groups[kind, candidates[row.id].wording].append(row.id)
    by_first = {members[0]: members for members in groups.values()}
    group_of = {member: first for first, members in by_first.items() for member in members}
    fresh = {group_of[each] for each, found in candidates.items() if found.sequence > wanted.since}
    return _Survey(at, candidates, by_first, group_of, sorted(fresh))


def _candidate_kind(row: NodeRow, wanted: Wanted, now: int) -> Kind | None:
    if not row.content or not is_active(row, now) or row.id in wanted.apart:
        return None
    return kind_of(row) if wanted.types is None or row.type in wanted.types else None


_Pairs = dict[tuple[str, str], float]


def _near(indexes: Indexes | None, survey: _Survey, wanted: Wanted, pause: Pause) -> _Pairs | None:
    """The groups that are near each other, as pairs of their firsts; None where there are no vectors to go by."""
    if indexes is None or indexes.vector.degraded:
        return None
    try:
        indexes.vector.wait(survey.at, WAIT_SECONDS)
        reached = indexes.vector.reached
        asking = [each for each in survey.fresh if survey.candidates[each].sequence <= reached]
        found: _Pairs = {}
        for first in range(0, len(asking), _IDS_AT_ONCE):
            started = time.perf_counter()
            some = indexes.vector.near(asking[first : first + _IDS_AT_ONCE], wanted.threshold, NEIGHBOURS)
            for each, hits in some.items():
                for hit in hits:
                    _note(found, survey, each, hit.id, hit.similarity, reached)
            pause(time.perf_counter() - started)
        return found
    except (Conflict, Unavailable):
        return None


def _note(found: _Pairs, survey: _Survey, asking: str, hit: str, similarity: float, reached: int) -> None:
    """Note two groups that are near, if both can be one. A memory that the index has yet to see says something else."""
    other, own = survey.candidates.get(hit), survey.candidates[asking]
    if other is None or other.kind != own.kind or other.sequence > reached:
        return
    first = survey.group_of[hit]
    if first != asking:
        pair = (min(asking, first), max(asking, first))
        found[pair] = max(similarity, found.get(pair, 0.0))


def _guarded(store: Store, pairs: _Pairs, wanted: Wanted, apart: list[Contradiction], pause: Pause) -> _Pairs:
    """The pairs that nothing keeps apart; the others are added to ``apart``."""
    if not wanted.guard or not pairs:
        return pairs
    passing: _Pairs = {}
    with store.reading() as rows:
        contents = {each: row.content for each in {*chain.from_iterable(pairs)} if (row := rows.node(each))}
    started = time.perf_counter()
    for number, (pair, similarity) in enumerate(sorted(pairs.items())):
        if number % _ROWS_AT_ONCE == 0:
            pause(time.perf_counter() - started)
            started = time.perf_counter()
        differs = conflicts(contents.get(pair[0], ""), contents.get(pair[1], ""))
        if differs:
            apart.append(Contradiction(ids=[*pair], similarity=round(similarity, 4), differs=differs))
        else:
            passing[pair] = similarity
    return passing


def _decided(
    store: Store,
    survey: _Survey,
    groups: Iterable[Sequence[str]],
    pairs: Mapping[tuple[str, str], float],
    now: int,
    left: list[Cluster],
    pause: Pause,
) -> Iterator[ClusterPlan]:
    """Clusters of groups of one wording, as far as their memories are still as they were surveyed."""
    for group in groups:
        started = time.perf_counter()
        ids = [member for first in group for member in survey.groups[first]]
        with store.reading() as rows:
            found = rows.nodes(ids)
        same = [row for row in found.values() if row.sequence == survey.candidates[row.id].sequence]
        members = list(worths(store, same, now).values())
        cluster = planned(members[:MAX_MEMBERS], _least(group, pairs)) if len(members) > 1 else None
        if isinstance(cluster, ClusterPlan):
            yield cluster
        elif cluster is not None:
            left.append(cluster)
        pause(time.perf_counter() - started)


def _least(group: Sequence[str], pairs: Mapping[tuple[str, str], float]) -> float:
    """The similarity of the least similar two."""
    return min((pairs[one, other] for one in group for other in group if one < other), default=1.0)


# Doing it


class Run(NamedTuple):
    """A run that is being carried out: its node, and what that says of it so far."""

    id: str
    record: RunRecord
    author: str = ""


class Changed(Conflict):
    """Memories are no longer as they were when a plan was made."""

    def __init__(self, ids: Sequence[str]) -> None:
        named = ", ".join(map(repr, ids[:_NAMED])) + (" and more" if len(ids) > _NAMED else "")
        super().__init__(f"changed since the plan was made: {named}; make a new plan")
        self.ids = [*ids]


def new_run(now: int) -> str:
    """The id of a run's node; ids sort by time."""
    return f"consolidation-{now // 1000:012x}-{os.urandom(4).hex()}"


def carry_out(store: Store, run: Run, clusters: Sequence[ClusterPlan], pause: Pause) -> tuple[list[Cluster], Report]:
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
            except Changed:
                left.append(left_out(cluster.ids, cluster.similarity, "changed meanwhile"))
            except TooManyEdges:
                left.append(left_out(cluster.ids, cluster.similarity, _UNNOTABLE))
            return WriteBatch()

        _written(store, clusters, write, pause)
        skipped = {each.primary for each in left}
        merged = sum(len(each.absorbed) for each in clusters if each.primary not in skipped)
        return left, _write_run(store, _ended(run, len(clusters) - len(left), merged))
    finally:
        store.runs.discard(run.id)


def _ended(run: Run, clusters: int, merged: int) -> Run:
    now = format_time(time.time_ns() // 1000)
    done = {"status": "done", "ended_at": now, "clusters": clusters, "merged": merged, "deleted": merged}
    return run._replace(record=msgspec.structs.replace(run.record, **done))


def changed_since(store: Store, clusters: Iterable[ClusterPlan]) -> list[str]:
    """The memories of a plan that are no longer as they were then."""
    with store.reading() as rows:
        return [each for cluster in clusters for each in _moved_on(rows, cluster)]


def _write_run(store: Store, run: Run) -> Report:
    extras = NodeExtrasPut(created_by=run.author)
    put = NodePut(0, run.id, RUN, "", run.record.text, extras=extras)
    return store.submit(WriteBatch(nodes=[put], cost=len(put.attributes or ""))).result()


def _written(store: Store, items: Sequence[_Item], write: Callable[[Rows, _Item], WriteBatch], pause: Pause) -> None:
    """Write each of some items as ``write`` decides in the writer's turn, some in one commit to share its sync.

    The turn of one that touches what another changes comes with the next commit.
    """
    waiting = deque(items)
    while waiting:
        started = time.perf_counter()
        store.submit_prepared(partial(_next_commit, store, waiting, write), WAIT_SECONDS).result()
        pause(time.perf_counter() - started)


def _next_commit(store: Store, waiting: deque[_Item], write: Callable[[Rows, _Item], WriteBatch]) -> WriteBatch:
    """What the next few come to together; they wait no more."""
    together, changed, touched = WriteBatch(), set[str](), set[str]()
    with store.reading() as rows:
        while waiting and together.size < _ROWS_AT_ONCE:
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


def _merging(rows: Rows, run: Run, cluster: ClusterPlan) -> WriteBatch:
    """The write that merges a cluster. Raises Changed and TooManyEdges."""
    if changed := _moved_on(rows, cluster):
        raise Changed(changed)
    found = rows.nodes(cluster.ids)
    edges = {each: list(_edges(rows, each)) for each in cluster.absorbed}
    if sum(map(len, edges.values())) > _MAX_EDGES:
        raise TooManyEdges
    primary, says_more = found[cluster.primary], cluster.says_more(found[cluster.primary])
    had, parented = _had(rows, cluster.primary, edges), _has_parent(rows, cluster.primary)
    former = f"{run.id}-{primary.version}-{uuid.uuid4().hex[:8]}" if says_more else ""
    grown = Grown(_author(primary), primary.version + says_more, former, parented, list(had.values()))
    marks = [_mark(run, found[each], cluster.primary, edges[each]) for each in cluster.absorbed]
    nodes = [withdrawn(found[each], MERGED, cluster.primary, run.author) for each in cluster.absorbed]
    if says_more:
        nodes += [_grown(cluster, run.author), _former(primary, former, run.author)]
        marks.append(EdgePut(0, (former, cluster.primary, MERGED_INTO), extras=EdgeExtrasPut(created_by=run.author)))
    marks.append(_edge((run.id, cluster.primary, CONSOLIDATED), record(grown), run.author))
    puts = [*moved(cluster.primary, edges, had, parented=parented).values()]
    gone = [*{row.key for rows_ in edges.values() for row in rows_}]
    cost = sum(len(put.own or "") + 300 for put in [*marks, *puts]) + len(cluster.content) + 1000
    return WriteBatch(nodes=nodes, edges=[*puts, *marks], delete_edges=gone, touch=False, cost=cost)


def _grown(cluster: ClusterPlan, author: str) -> NodePut:
    importance = msgspec.UNSET if cluster.importance is None else cluster.importance
    extras = NodeExtrasPut(created_by=author, tags=cluster.tags, importance=importance)
    return NodePut(0, cluster.primary, content=cluster.content, attributes=cluster.attributes, extras=extras)


def _former(row: NodeRow, node_id: str, author: str) -> NodePut:
    """The state of a primary before, as a withdrawn node of its own."""
    again = put_again(row)
    extras = withdrawal(row, MERGED, row.id, author).over(again.extras)
    return msgspec.structs.replace(again, id=node_id, extras=extras, created_at=row.created_at, version=row.version)


def _mark(run: Run, row: NodeRow, primary: str, edges: list[EdgeRow]) -> EdgePut:
    note = record(Taken(run.id, _author(row), row.version + 1, edges))
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


def _has_parent(rows: Rows, node_id: str) -> bool:
    return any(row.relation_type == CHILD_OF for row in rows.outgoing(node_id))


# Taking it back


class Undone(NamedTuple):
    """What taking a run back has done."""

    restored: dict[str, None]
    """In order. Each once, for a cluster whose turn has not come is decided again."""
    skipped: dict[str, None]


def runs(store: Store) -> list[tuple[NodeRow, RunRecord]]:
    """All runs of a store, the newest first."""
    found = store.listing(lambda catalog, rows: _runs_in(rows, catalog.having(NodeFilter(types=(RUN,)), _MAX_RUNS)))
    return sorted(found, key=lambda run: run[0].id, reverse=True)


def note_interrupted(store: Store) -> None:
    """Note of runs that were broken off that they were, and what they had done by then."""
    for row, said in runs(store):
        if said.status == "running" and row.id not in store.runs:
            with store.reading() as rows:
                done = [edge.target for edge in rows.outgoing(row.id) if edge.relation_type == CONSOLIDATED]
                merged = sum(len(_absorbed(rows, row.id, each)) for each in done)
            found = {"status": "interrupted", "clusters": len(done), "merged": merged, "deleted": merged}
            _write_run(store, Run(row.id, msgspec.structs.replace(said, **found), _author(row)))


def undo(store: Store, run_id: str, author: str, pause: Pause, *, force: bool) -> Undone:
    """Bring back what a run has absorbed. Raises NotFound, and Conflict that names what was changed since."""
    with store.reading() as rows:
        row = rows.node(run_id)
        if row is None or row.type != RUN:
            raise NotFound(f"there is no consolidation {run_id!r}")
        record_ = _read(row)
        notes = [edge for edge in rows.outgoing(run_id) if edge.relation_type == CONSOLIDATED]
        changed = [] if force else [each for note in notes for each in _changed(rows, run_id, note)]
    if changed:
        named = ", ".join(map(repr, changed[:_NAMED])) + (" and more" if len(changed) > _NAMED else "")
        raise Conflict(f"changed since the consolidation: {named}; undo it with force to keep what they say now")
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


def _runs_in(rows: Rows, ids: Sequence[str]) -> list[tuple[NodeRow, RunRecord]]:
    found: list[tuple[NodeRow, RunRecord]] = []
    for row in rows.nodes(ids).values():
        try:
            found.append((row, run_of(row.attributes)))
        except msgspec.MsgspecError:
            continue  # somebody else's node of this type
    return found


def _absorbed(rows: Rows, run_id: str, primary: str) -> dict[str, Taken]:
    """What a run has noted of the memories that a primary has absorbed."""
    found: dict[str, Taken] = {}
    for edge in rows.incoming(primary):
        if edge.relation_type == MERGED_INTO and (own := edge_stamps(edge.attributes).own) != EMPTY_OBJECT:
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
    nodes = [brought_back(found[each], taken[each].author) for each in again]
    primary, former = found.get(primary_id), found.get(grown.former)
    untouched = primary is not None and primary.version == grown.left
    if former is not None and untouched:
        nodes.append(_shrunk(primary_id, former, grown.author))
    undone.restored.update(dict.fromkeys(again))
    if not untouched:
        undone.skipped[primary_id] = None
    gone += [key, *((each, primary_id, MERGED_INTO) for each in taken)]
    delete = [] if former is None else [former.id]
    return WriteBatch(nodes=nodes, edges=back, delete_edges=gone, delete_nodes=delete, cost=1000)


def _shrunk(primary: str, former: NodeRow, author: str) -> NodePut:
    old = former.extras or NO_EXTRAS
    extras = NodeExtrasPut(created_by=author, tags=old.tags, importance=old.importance)
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


def _close_run(store: Store, row: NodeRow, run: RunRecord, restored: Iterable[str], author: str) -> None:
    """A run by hand leaves nothing behind; of an automatic one it is known what not to take up again."""
    if run.trigger == "manual":
        store.submit(WriteBatch(delete_nodes=[row.id])).result()
        return
    undone = msgspec.structs.replace(
        run, status="undone", apart=[*restored][:_MAX_APART], clusters=0, merged=0, deleted=0
    )
    _write_run(store, Run(row.id, undone, author))
