"""Which memories of a store say the same: compared beside everybody, in slices."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Literal, NamedTuple

from kgserve.errors import Conflict, Unavailable
from kgserve.graph.answers import MAX_REPORTED_ITEMS
from kgserve.memory.api import Cluster, KeptApart
from kgserve.memory.consolidation.plan import (
    MAX_CLUSTER_MEMORIES,
    MAX_SUGGESTIONS,
    ClusterPlan,
    Member,
    MemoryKind,
    Plan,
    can_be_one,
    kind_of,
    planned,
)
from kgserve.platform.text.similarity import Difference, complete_linkage, conflicts, fingerprint
from kgserve.projections.indexes import Indexes
from kgserve.projections.memory_index.decay import half_lives_of
from kgserve.projections.memory_index.memories import Memories, slices
from kgserve.projections.vector.index import VectorHit
from kgserve.storage.model.fields import NO_EXTRAS
from kgserve.storage.model.names import IS_ABOUT, folded
from kgserve.storage.model.rows import NodeRow
from kgserve.storage.model.soft_delete import is_active
from kgserve.storage.rows.snapshot import Rows
from kgserve.stores.store import OpenStore

Pause = Callable[[float], None]
"""Called after so many seconds of work, to give way to others; it may raise to break off."""
MAX_CANDIDATE_NEIGHBOURS = 20
"""So many of the nearest of a memory are looked at: more wordings would not fit into one."""
MEMORY_JOB_TIMEOUT_SECONDS = 10.0
_CANDIDATE_BATCH_ROWS = 200
_NEIGHBOUR_QUERY_BATCH_SIZE = 64
_MAX_CANDIDATE_PAIRS = 500_000


class CandidateQuery(NamedTuple):
    """What a run goes by. ``near`` is "merge" for what is near in meaning, or "suggest".

    With ``fresh`` only those memories are compared with all others; ``apart`` are left out.
    """

    threshold: float
    guard: bool
    types: frozenset[str] | None = None
    near: Literal["merge", "suggest"] = "merge"
    fresh: frozenset[str] | None = None
    apart: frozenset[str] = frozenset()


def members_of(store: OpenStore, rows: Iterable[NodeRow], now: int) -> dict[str, Member]:
    """Memories by id, each with what it is worth at a moment, by its last access or by its row."""
    found = {row.id: row for row in rows}
    half_lives, accesses = half_lives_of(store.description.memory), store.accesses.of(found)
    return {key: Member(row, half_lives.effective(row, accesses.get(key), now)) for key, row in found.items()}


class _Candidate(NamedTuple):
    """A memory that may become one with others: what they must have in common, its wording, and its commit."""

    kind: MemoryKind
    wording: bytes
    sequence: int


class _Survey:
    """Candidates of a store as of a commit; those of one wording are a group, by its first.

    ``fresh`` are the groups that are to be compared with all others, of which some are looked up when they are met.
    """

    def __init__(self, store: OpenStore, wanted: CandidateQuery, now: int) -> None:
        self.at = 0
        self.candidates: dict[str, _Candidate] = {}
        self.groups: dict[str, list[str]] = {}
        self.group_of: dict[str, str] = {}
        self._store = store
        self._wanted = wanted
        self._now = now
        self._kinds: dict[str, set[MemoryKind]] = {}
        self._firsts: dict[bytes, list[str]] = {}

    def fill(self, pause: Pause) -> list[str]:
        """Take in all that are fresh, with those of the same wording; their groups."""
        fresh = self._wanted.fresh
        with self._store.reading() as rows:
            self.at = rows.at
            for some in slices(
                rows.all_nodes() if fresh is None else rows.nodes(fresh).values(), _CANDIDATE_BATCH_ROWS
            ):
                started = time.perf_counter()
                for row in some:
                    self.add(row)
                pause(time.perf_counter() - started)
        if fresh is not None:
            self._add_alike([*self.candidates], pause)
        return sorted(self.groups)

    def add(self, row: NodeRow) -> None:
        """Take in a node, if it may become one with others."""
        kind = _candidate_kind(row, self._wanted, self._now)
        if kind is not None and row.id not in self.candidates:
            found = self.candidates[row.id] = _Candidate(kind, fingerprint(row.content), row.sequence)
            firsts = self._firsts.setdefault(found.wording, [])
            first = next((each for each in firsts if self._goes_with(kind, each)), None)
            if first is None:
                first = row.id
                firsts.append(first)
            self._kinds.setdefault(first, set()).add(kind)
            self.groups.setdefault(first, []).append(row.id)
            self.group_of[row.id] = first

    def can_be_one(self, one: str, other: str) -> bool:
        """Whether two groups, by their firsts, may be consolidated."""
        return all(self._goes_with(kind, other) for kind in self._kinds[one])

    def _goes_with(self, kind: MemoryKind, first: str) -> bool:
        return all(can_be_one(kind, each) for each in self._kinds[first])

    def look_up(self, ids: Iterable[str]) -> None:
        """Take in what was met."""
        if self._wanted.fresh is not None:
            with self._store.reading() as rows:
                for row in rows.nodes({*ids} - self.candidates.keys()).values():
                    self.add(row)

    def _add_alike(self, ids: Sequence[str], pause: Pause) -> None:
        for first in range(0, len(ids), _NEIGHBOUR_QUERY_BATCH_SIZE):
            started = time.perf_counter()
            self._store.memories.ask(partial(self._ask, ids[first : first + _NEIGHBOUR_QUERY_BATCH_SIZE]))
            pause(time.perf_counter() - started)

    def _ask(self, ids: Sequence[str], memories: Memories, rows: Rows) -> None:
        wordings = {self.candidates[each].wording for each in ids}
        met = {found.id for wording in wordings for found in memories.alike(wording, wording, self._now)}
        for row in rows.nodes(met - self.candidates.keys()).values():
            self.add(row)


def plan_of(store: OpenStore, indexes: Indexes | None, wanted: CandidateQuery, now: int, pause: Pause) -> Plan:
    """What a run has to do. Blocks for as long as it takes; ``now`` in microseconds."""
    survey = _Survey(store, wanted, now)
    fresh = survey.fill(pause)
    near = _near(indexes, survey, fresh, _Pairs(store, wanted), pause)
    pairs = near.passing if near else {}
    linked, left = complete_linkage(pairs), list[Cluster]()
    suggested = linked if wanted.near == "suggest" else []
    merging = linked if wanted.near == "merge" else []
    alone = {*fresh} - {*chain.from_iterable(merging)}
    groups = [*merging, *([each] for each in sorted(alone) if len(survey.groups[each]) > 1)]
    clusters = list(_decided(store, survey, groups, pairs, now, left, pause))
    suggestions = list(_decided(store, survey, suggested[:MAX_SUGGESTIONS], pairs, now, left, pause))
    return Plan(
        sequence=survey.at,
        clusters=clusters,
        suggestions=suggestions,
        kept_apart=near.kept_apart() if near else [],
        kept_apart_count=near.apart_count if near else 0,
        left=left[:MAX_REPORTED_ITEMS],
        near_checked=near is not None and near.complete,
    )


class _Pairs:
    """Pairs of groups that are near, by their firsts: those that nothing keeps apart, and the nearest of the others.

    They are ``complete`` if the index knew all that were to be compared.
    """

    def __init__(self, store: OpenStore, wanted: CandidateQuery) -> None:
        self.passing: dict[tuple[str, str], float] = {}
        self.apart_count = 0
        self.complete = True
        self._store = store
        self._guard = wanted.guard
        self.threshold = wanted.threshold
        self._seen: set[int] = set()
        self._apart: list[tuple[float, tuple[str, str], Difference]] = []

    @property
    def full(self) -> bool:
        """Whether there are so many that the rest is left to the next run."""
        return len(self.passing) >= _MAX_CANDIDATE_PAIRS

    def add(self, found: Mapping[tuple[str, str], float]) -> None:
        """Take in some pairs, each in order; those that were met before are as they were."""
        new = {pair: similarity for pair, similarity in found.items() if hash(pair) not in self._seen}
        self._seen.update(map(hash, new))
        if not self._guard:
            self.passing.update(new)
            return
        with self._store.reading() as rows:
            found_rows = rows.nodes({*chain.from_iterable(new)})
        for pair, similarity in new.items():
            one, other = (found_rows.get(each) for each in pair)
            if one is not None and other is not None:
                self._judge(pair, similarity, conflicts(one.content, other.content))

    def _judge(self, pair: tuple[str, str], similarity: float, differs: Difference) -> None:
        if not differs:
            self.passing[pair] = similarity
            return
        self.apart_count += 1
        told = (similarity, pair, differs)
        (heapq.heappush if len(self._apart) < MAX_REPORTED_ITEMS else heapq.heappushpop)(self._apart, told)

    def kept_apart(self) -> list[KeptApart]:
        """The nearest of those that the guard keeps apart."""
        ordered = sorted(self._apart, key=lambda told: (-told[0], told[1]))
        return [KeptApart(ids=[*pair], similarity=round(near, 4), differs=differs) for near, pair, differs in ordered]


def _candidate_kind(row: NodeRow, wanted: CandidateQuery, now: int) -> MemoryKind | None:
    if not row.content or not is_active(row, now) or row.id in wanted.apart:
        return None
    return kind_of(row) if wanted.types is None or row.type in wanted.types else None


def _near(indexes: Indexes | None, survey: _Survey, fresh: Sequence[str], pairs: _Pairs, pause: Pause) -> _Pairs | None:
    """The pairs of groups that are near each other; None where there are no vectors to go by."""
    if indexes is None or not indexes.understands:
        return None
    try:
        indexes.vector.wait(survey.at, MEMORY_JOB_TIMEOUT_SECONDS)
        reached = indexes.vector.reached
        asking = [each for each in fresh if survey.candidates[each].sequence <= reached]
        pairs.complete = len(asking) == len(fresh)
        for first in range(0, len(asking), _NEIGHBOUR_QUERY_BATCH_SIZE):
            started = time.perf_counter()
            some = indexes.vector.near(
                asking[first : first + _NEIGHBOUR_QUERY_BATCH_SIZE], pairs.threshold, MAX_CANDIDATE_NEIGHBOURS
            )
            survey.look_up(hit.id for hits in some.values() for hit in hits)
            pairs.add(dict(_met(survey, some, reached)))
            if pairs.full:
                break
            pause(time.perf_counter() - started)
        return pairs
    except (Conflict, Unavailable):
        return None


def _met(
    survey: _Survey, found: Mapping[str, Sequence[VectorHit]], reached: int
) -> Iterator[tuple[tuple[str, str], float]]:
    """Groups that are near and can be one. A memory that the index has yet to see says something else."""
    for asking, hits in found.items():
        for hit in hits:
            other = survey.candidates.get(hit.id)
            if other is None or other.sequence > reached:
                continue
            first = survey.group_of[hit.id]
            if first != asking and survey.can_be_one(asking, first):
                yield (min(asking, first), max(asking, first)), hit.similarity


def _decided(
    store: OpenStore,
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
            parts = parted(rows, members_of(store, same, now).values())
        for members in parts:
            cluster = planned(members[:MAX_CLUSTER_MEMORIES], _least(group, pairs)) if len(members) > 1 else None
            if isinstance(cluster, ClusterPlan):
                yield cluster
            elif cluster is not None:
                left.append(cluster)
        pause(time.perf_counter() - started)


def _least(group: Sequence[str], pairs: Mapping[tuple[str, str], float]) -> float:
    """The similarity of the least similar two."""
    return min((pairs[one, other] for one in group for other in group if one < other), default=1.0)


def parted(rows: Rows, members: Iterable[Member]) -> list[list[Member]]:
    """Memories in groups that may be one: none is about two nodes of one name, and their kinds go together.

    What fits several groups is with the oldest of them. The first of a group are the oldest of it.
    """
    groups: list[_CandidateGroup] = []
    for member in sorted(members, key=lambda each: (each.row.created_at, each.row.id)):
        about, kind = _about(rows, member.row.id), kind_of(member.row)
        kinds = set[MemoryKind]() if kind is None else {kind}
        for group in groups:
            if _agree(group.names, about) and all(can_be_one(one, each) for one in kinds for each in group.kinds):
                group.names.update(about)
                group.kinds.update(kinds)
                group.members.append(member)
                break
        else:
            groups.append(_CandidateGroup(about, kinds, [member]))
    return [group.members for group in groups]


class _CandidateGroup(NamedTuple):
    """Memories that may be one, the kinds that they are of, and what they are about by name."""

    names: dict[str, str]
    kinds: set[MemoryKind]
    members: list[Member]


def _about(rows: Rows, memory: str) -> dict[str, str]:
    """Whom and what a memory is about, by name."""
    ids = [edge.target for edge in rows.outgoing(memory) if edge.relation_type == IS_ABOUT]
    return {folded((row.extras or NO_EXTRAS).name or row.id): row.id for row in rows.nodes(ids).values()}


def _agree(names: Mapping[str, str], about: Mapping[str, str]) -> bool:
    return all(names.get(name, node_id) == node_id for name, node_id in about.items())
