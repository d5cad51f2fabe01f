"""Candidates for consolidation: memories that say the same, compared in slices without blocking other callers."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Literal, NamedTuple

from kgserve.errors import Conflict, Unavailable
from kgserve.graph.answers import MAX_REPORTED_ITEMS
from kgserve.memory.consolidation.plan import (
    MAX_CLUSTER_MEMORIES,
    MAX_SUGGESTIONS,
    ConsolidationCompatibilityKey,
    ConsolidationPlan,
    MemoryClusterMergePlan,
    MemoryWithEffectiveConfidence,
    can_consolidate_memory_kinds,
    get_consolidation_compatibility_key,
    plan_memory_cluster_merge,
)
from kgserve.memory.memory_models import MemoryMergeCluster, UnmergedMemoryPair
from kgserve.platform.text.text_equality import (
    TextDifference,
    cluster_complete_linkage,
    find_consolidation_conflict,
    fingerprint_wording,
)
from kgserve.projections.memory_index.confidence_decay import memory_half_lives_from_settings
from kgserve.projections.memory_index.memory_index_file import MemoryIndexSqliteFile, iterate_row_batches
from kgserve.projections.text_indexes import CurrentAndPastTextIndexes
from kgserve.projections.vector.vector_index import VectorHit
from kgserve.storage.model.entity_names import IS_ABOUT_RELATION, normalize_entity_name
from kgserve.storage.model.node_edge_fields import NO_EXTRAS
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.storage.model.soft_delete import is_memory_active_at
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.stores.open_store import OpenStore

PauseFunction = Callable[[float], None]
"""Called after each slice with the seconds worked, to yield to others; may raise to cancel."""
MAX_CANDIDATE_NEIGHBOURS = 20
"""Maximum number of nearest neighbours per memory; more would not fit into one merged text."""
MEMORY_JOB_TIMEOUT_SECONDS = 10.0
_CANDIDATE_BATCH_ROWS = 200
_NEIGHBOUR_QUERY_BATCH_SIZE = 64
_MAX_CANDIDATE_PAIRS = 500_000


class ConsolidationCandidateQuery(NamedTuple):
    """Options of a search for candidates; near pairs are merged or suggested, as `near` says.

    With `fresh`, only those memories are compared with all others; memories in `apart` are excluded.
    """

    threshold: float
    guard: bool
    types: frozenset[str] | None = None
    near: Literal["merge", "suggest"] = "merge"
    fresh: frozenset[str] | None = None
    apart: frozenset[str] = frozenset()


def attach_effective_confidence(
    store: OpenStore, rows: Iterable[NodeRow], now: int
) -> dict[str, MemoryWithEffectiveConfidence]:
    """Return memories by id with their effective confidence at `now`, from the last access or the row."""
    found = {row.id: row for row in rows}
    half_lives, accesses = memory_half_lives_from_settings(store.description.memory), store.accesses.of(found)
    return {
        key: MemoryWithEffectiveConfidence(row, half_lives.decayed_confidence(row, accesses.get(key), now))
        for key, row in found.items()
    }


class _Candidate(NamedTuple):
    """A memory that can be merged: its kind, fingerprint of the wording, and commit."""

    kind: ConsolidationCompatibilityKey
    wording: bytes
    sequence: int


class _CandidateSet:
    """Candidates of a store as of a commit, grouped by wording; a group is named by its first member.

    With `fresh`, only those memories and their equals are loaded at first; others are added when they are found.
    """

    def __init__(self, store: OpenStore, wanted: ConsolidationCandidateQuery, now: int) -> None:
        self.at = 0
        self.candidates: dict[str, _Candidate] = {}
        self.groups: dict[str, list[str]] = {}
        self.group_of: dict[str, str] = {}
        self._store = store
        self._wanted = wanted
        self._now = now
        self._kinds: dict[str, set[ConsolidationCompatibilityKey]] = {}
        self._firsts: dict[bytes, list[str]] = {}

    def load_candidates(self, pause: PauseFunction) -> list[str]:
        """Load all candidates, or the fresh ones and their equals; return the names of their groups."""
        fresh = self._wanted.fresh
        with self._store.reading() as rows:
            self.at = rows.at
            for some in iterate_row_batches(
                rows.all_nodes() if fresh is None else rows.nodes(fresh).values(), _CANDIDATE_BATCH_ROWS
            ):
                started = time.perf_counter()
                for row in some:
                    self.add(row)
                pause(time.perf_counter() - started)
        if fresh is not None:
            self._add_equal_wordings([*self.candidates], pause)
        return sorted(self.groups)

    def add(self, row: NodeRow) -> None:
        """Add a node if it can be merged with others."""
        kind = _candidate_kind(row, self._wanted, self._now)
        if kind is not None and row.id not in self.candidates:
            found = self.candidates[row.id] = _Candidate(kind, fingerprint_wording(row.content), row.sequence)
            firsts = self._firsts.setdefault(found.wording, [])
            first = next((each for each in firsts if self._is_compatible(kind, each)), None)
            if first is None:
                first = row.id
                firsts.append(first)
            self._kinds.setdefault(first, set()).add(kind)
            self.groups.setdefault(first, []).append(row.id)
            self.group_of[row.id] = first

    def can_be_one(self, one: str, other: str) -> bool:
        """Return whether two groups can be consolidated."""
        return all(self._is_compatible(kind, other) for kind in self._kinds[one])

    def _is_compatible(self, kind: ConsolidationCompatibilityKey, first: str) -> bool:
        return all(can_consolidate_memory_kinds(kind, each) for each in self._kinds[first])

    def load_neighbours(self, ids: Iterable[str]) -> None:
        """Load memories that were found as neighbours."""
        if self._wanted.fresh is not None:
            with self._store.reading() as rows:
                for row in rows.nodes({*ids} - self.candidates.keys()).values():
                    self.add(row)

    def _add_equal_wordings(self, ids: Sequence[str], pause: PauseFunction) -> None:
        for first in range(0, len(ids), _NEIGHBOUR_QUERY_BATCH_SIZE):
            started = time.perf_counter()
            self._store.memories.ask(
                partial(self._load_equal_wordings, ids[first : first + _NEIGHBOUR_QUERY_BATCH_SIZE])
            )
            pause(time.perf_counter() - started)

    def _load_equal_wordings(self, ids: Sequence[str], memories: MemoryIndexSqliteFile, rows: RowsSnapshot) -> None:
        wordings = {self.candidates[each].wording for each in ids}
        matches = {
            found.id for wording in wordings for found in memories.memories_with_equal_text(wording, wording, self._now)
        }
        for row in rows.nodes(matches - self.candidates.keys()).values():
            self.add(row)


def plan_memory_consolidation_run(
    store: OpenStore,
    indexes: CurrentAndPastTextIndexes | None,
    wanted: ConsolidationCandidateQuery,
    now: int,
    pause: PauseFunction,
) -> ConsolidationPlan:
    """Return the plan of a run. Blocks for its duration; `now` in microseconds."""
    survey = _CandidateSet(store, wanted, now)
    fresh = survey.load_candidates(pause)
    near = _find_near_pairs(indexes, survey, fresh, _Pairs(store, wanted), pause)
    pairs = near.passing if near else {}
    linked, left = cluster_complete_linkage(pairs), list[MemoryMergeCluster]()
    suggested = linked if wanted.near == "suggest" else []
    merging = linked if wanted.near == "merge" else []
    alone = {*fresh} - {*chain.from_iterable(merging)}
    groups = [*merging, *([each] for each in sorted(alone) if len(survey.groups[each]) > 1)]
    clusters = list(_plan_clusters(store, survey, groups, pairs, now, left, pause))
    suggestions = list(_plan_clusters(store, survey, suggested[:MAX_SUGGESTIONS], pairs, now, left, pause))
    return ConsolidationPlan(
        sequence=survey.at,
        clusters=clusters,
        suggestions=suggestions,
        kept_apart=near.kept_apart() if near else [],
        kept_apart_count=near.apart_count if near else 0,
        left=left[:MAX_REPORTED_ITEMS],
        near_checked=near is not None and near.complete,
    )


class _Pairs:
    """Pairs of near groups: those that can merge, and the nearest of those that the guard keeps apart.

    `complete` is false if the index lacked some of the memories to compare.
    """

    def __init__(self, store: OpenStore, wanted: ConsolidationCandidateQuery) -> None:
        self.passing: dict[tuple[str, str], float] = {}
        self.apart_count = 0
        self.complete = True
        self._store = store
        self._guard = wanted.guard
        self.threshold = wanted.threshold
        self._seen: set[int] = set()
        self._apart: list[tuple[float, tuple[str, str], TextDifference]] = []

    @property
    def full(self) -> bool:
        """True if the limit is reached and the rest is left to the next run."""
        return len(self.passing) >= _MAX_CANDIDATE_PAIRS

    def add(self, found: Mapping[tuple[str, str], float]) -> None:
        """Add pairs with their similarity; known pairs are ignored."""
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
                self._classify(pair, similarity, find_consolidation_conflict(one.content, other.content))

    def _classify(self, pair: tuple[str, str], similarity: float, differs: TextDifference) -> None:
        if not differs:
            self.passing[pair] = similarity
            return
        self.apart_count += 1
        entry = (similarity, pair, differs)
        (heapq.heappush if len(self._apart) < MAX_REPORTED_ITEMS else heapq.heappushpop)(self._apart, entry)

    def kept_apart(self) -> list[UnmergedMemoryPair]:
        """Return the nearest pairs that the guard keeps apart."""
        ordered = sorted(self._apart, key=lambda entry: (-entry[0], entry[1]))
        return [
            UnmergedMemoryPair(ids=[*pair], similarity=round(near, 4), differs=differs)
            for near, pair, differs in ordered
        ]


def _candidate_kind(
    row: NodeRow, wanted: ConsolidationCandidateQuery, now: int
) -> ConsolidationCompatibilityKey | None:
    if not row.content or not is_memory_active_at(row, now) or row.id in wanted.apart:
        return None
    return get_consolidation_compatibility_key(row) if wanted.types is None or row.type in wanted.types else None


def _find_near_pairs(
    indexes: CurrentAndPastTextIndexes | None,
    survey: _CandidateSet,
    fresh: Sequence[str],
    pairs: _Pairs,
    pause: PauseFunction,
) -> _Pairs | None:
    """Return pairs of near groups; None without usable vectors."""
    if indexes is None or not indexes.can_embed_queries:
        return None
    try:
        indexes.vector.wait(survey.at, MEMORY_JOB_TIMEOUT_SECONDS)
        reached = indexes.vector.reached
        indexed = [each for each in fresh if survey.candidates[each].sequence <= reached]
        pairs.complete = len(indexed) == len(fresh)
        for first in range(0, len(indexed), _NEIGHBOUR_QUERY_BATCH_SIZE):
            started = time.perf_counter()
            some = indexes.vector.find_similar(
                indexed[first : first + _NEIGHBOUR_QUERY_BATCH_SIZE], pairs.threshold, MAX_CANDIDATE_NEIGHBOURS
            )
            survey.load_neighbours(hit.id for hits in some.values() for hit in hits)
            pairs.add(dict(_iterate_pairs(survey, some, reached)))
            if pairs.full:
                break
            pause(time.perf_counter() - started)
        return pairs
    except (Conflict, Unavailable):
        return None


def _iterate_pairs(
    survey: _CandidateSet, found: Mapping[str, Sequence[VectorHit]], reached: int
) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield near groups that can merge; memories that the index has not applied yet are skipped."""
    for asking, hits in found.items():
        for hit in hits:
            other = survey.candidates.get(hit.id)
            if other is None or other.sequence > reached:
                continue
            first = survey.group_of[hit.id]
            if first != asking and survey.can_be_one(asking, first):
                yield (min(asking, first), max(asking, first)), hit.similarity


def _plan_clusters(
    store: OpenStore,
    survey: _CandidateSet,
    groups: Iterable[Sequence[str]],
    pairs: Mapping[tuple[str, str], float],
    now: int,
    left: list[MemoryMergeCluster],
    pause: PauseFunction,
) -> Iterator[MemoryClusterMergePlan]:
    """Yield cluster plans for groups, limited to memories unchanged since they were loaded."""
    for group in groups:
        started = time.perf_counter()
        ids = [member for first in group for member in survey.groups[first]]
        with store.reading() as rows:
            found = rows.nodes(ids)
            same = [row for row in found.values() if row.sequence == survey.candidates[row.id].sequence]
            parts = group_mergeable_memories(rows, attach_effective_confidence(store, same, now).values())
        for members in parts:
            cluster = (
                plan_memory_cluster_merge(members[:MAX_CLUSTER_MEMORIES], _min_similarity(group, pairs))
                if len(members) > 1
                else None
            )
            if isinstance(cluster, MemoryClusterMergePlan):
                yield cluster
            elif cluster is not None:
                left.append(cluster)
        pause(time.perf_counter() - started)


def _min_similarity(group: Sequence[str], pairs: Mapping[tuple[str, str], float]) -> float:
    """Return the similarity of the least similar pair."""
    return min((pairs[one, other] for one in group for other in group if one < other), default=1.0)


def group_mergeable_memories(
    rows: RowsSnapshot, members: Iterable[MemoryWithEffectiveConfidence]
) -> list[list[MemoryWithEffectiveConfidence]]:
    """Return memories in groups that can merge: consistent kinds, and no two entities of one name.

    A memory that fits several groups joins the one with the oldest first member. Groups are ordered by creation.
    """
    groups: list[_CandidateGroup] = []
    for member in sorted(members, key=lambda each: (each.row.created_at, each.row.id)):
        about, kind = _about(rows, member.row.id), get_consolidation_compatibility_key(member.row)
        kinds = set[ConsolidationCompatibilityKey]() if kind is None else {kind}
        for group in groups:
            if _is_consistent(group.names, about) and all(
                can_consolidate_memory_kinds(one, each) for one in kinds for each in group.kinds
            ):
                group.names.update(about)
                group.kinds.update(kinds)
                group.members.append(member)
                break
        else:
            groups.append(_CandidateGroup(about, kinds, [member]))
    return [group.members for group in groups]


class _CandidateGroup(NamedTuple):
    """Group of memories that can merge: their kinds, and the entities that they are about, by name."""

    names: dict[str, str]
    kinds: set[ConsolidationCompatibilityKey]
    members: list[MemoryWithEffectiveConfidence]


def _about(rows: RowsSnapshot, memory: str) -> dict[str, str]:
    """Return the entities that a memory is about, by folded name."""
    ids = [edge.target for edge in rows.outgoing(memory) if edge.relation_type == IS_ABOUT_RELATION]
    return {normalize_entity_name((row.extras or NO_EXTRAS).name or row.id): row.id for row in rows.nodes(ids).values()}


def _is_consistent(names: Mapping[str, str], about: Mapping[str, str]) -> bool:
    return all(names.get(name, node_id) == node_id for name, node_id in about.items())
