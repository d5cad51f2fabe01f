"""Reflection: places memories without a parent below concepts, and proposes what needs a decision.

It needs no language model and infers nothing. Certain placements are made as one run that can be undone. Everything
else is a numbered proposal that the caller accepts or refuses. A configured model names and comments on proposals, and
answers questions (`kgserve.memory.llm_advice`).
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import msgspec
import numpy as np

from kgserve.errors import Conflict, InvalidInput, NotFound, Unavailable
from kgserve.graph.answers import MAX_REPORTED_ITEMS
from kgserve.graph.store_handle import StoreHandle
from kgserve.memory.concept_placement import (
    TopTwoConceptScores,
    UnitVectors,
    cluster_memories,
    find_best_concepts_for_memories,
)
from kgserve.memory.consolidation import apply
from kgserve.memory.consolidation.candidates import (
    MEMORY_JOB_TIMEOUT_SECONDS,
    ConsolidationCandidateQuery,
    plan_memory_consolidation_run,
)
from kgserve.memory.consolidation.consolidate_undo_prune import WorkThrottle
from kgserve.memory.consolidation.plan import ConsolidationPlan, ConsolidationRunRecord
from kgserve.memory.deduplication import MemoryDeduplicator
from kgserve.memory.hierarchy import resolve_active_memory_in_store
from kgserve.memory.memory_crud import NO_LLM_MESSAGE
from kgserve.memory.memory_models import CONCEPT_LAYER, DOMAIN_LAYER, LAYER_TYPES, UnmergedMemoryPair
from kgserve.memory.reflect_models import (
    CONTRADICTS,
    MAX_CONCEPT_NAME_CHARS,
    MAX_PROPOSALS,
    MAX_PROPOSED_MEMORIES,
    MemoryParentPlacement,
    OrganizeMemoriesAnswer,
    OrganizeMemoriesRequest,
    ParentConceptCandidate,
    ReflectionProposal,
    ReflectionRunAttributes,
    ReflectRunEdgeAttributes,
    decode_reflection_mark,
    decode_reflection_record,
    new_reflection_id,
)
from kgserve.memory.serialization import get_node_name_or_id, now_in_microseconds
from kgserve.platform.idempotency import generate_idempotent_node_id
from kgserve.platform.text.wordlists import read_word_list
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.projections.indexed_text import EntitySearchFilter
from kgserve.projections.memory_index.built_in_relation_types import RELATION_REFLECTED
from kgserve.projections.memory_index.memory_index_file import DecayOrderPosition, MemoryIndexSqliteFile
from kgserve.projections.memory_index.query_planner import MemoryPageStart
from kgserve.projections.recent_vectors import RecentVectorBuffer
from kgserve.projections.text_indexes import CurrentAndPastTextIndexes
from kgserve.storage.model.memory_parents import CHILD_OF_RELATION
from kgserve.storage.model.node_and_memory_filters import MemoryFilter
from kgserve.storage.model.node_edge_fields import EdgeExtrasUpsert, NodeExtrasUpsert
from kgserve.storage.model.node_edge_rows import EdgeKey, NodeRow, split_edge_times_from_attributes
from kgserve.storage.model.soft_delete import is_current_unwithdrawn_memory, is_memory_active_at
from kgserve.storage.model.write_batch import KIND_REFLECTION, EdgeUpsert, NodeUpsert, WriteBatch
from kgserve.storage.rows.memory_hierarchy_and_redirects import find_parents_of_memories
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.storage.write_planner import WriteReport
from kgserve.stores.open_store import OpenStore
from kgserve.stores.pending_state import PendingCommitGroupState

MAX_TARGET_CONCEPTS = 2_000
"""Maximum number of concepts that can receive memories, newest first."""
MAX_CONCEPT_EXAMPLES = 50
"""Maximum number of a concept's children that represent it."""
CONTRADICTION_SIMILARITY = 0.8
"""Minimum cosine of two memories that may contradict each other because a number, name or negation differs."""
_MAX_ENTITIES_PER_MEMORY = 20
_LINK_BATCH_SIZE = 200
_MAX_FREQUENT_WORDS = 40
_STEM_CHARS = 4
_NAME_WORD = re.compile(r"[^\W\d_]{4,}")
_STOP_WORDS = frozenset(read_word_list("small")) | frozenset(read_word_list("negations"))
_REFLECTION_AUTHOR = "reflect"


def place_memories_under_concepts(graph: StoreHandle, request: OrganizeMemoriesRequest) -> OrganizeMemoriesAnswer:
    """Place memories without a parent below matching concepts, and propose uncertain placements.

    Memories that say the same are merged first. A concept is matched by its text, its children and their entities.
    Close memories that fit no concept are proposed as a new concept; close memories that differ, as a contradiction.
    Memories with low confidence are listed. `accept` carries out proposals, `refuse` prevents them from being repeated,
    `undo` reverts a run with its accepted proposals. `dry_run` writes nothing.

    With `answer`, the `query` is a question, which the configured language model answers from memories.

    Raises InvalidInput for an unknown proposal number, NotFound for an unknown run or memory `under`, and Conflict for
    a proposal that was already decided or no longer applies.
    """
    started = time.perf_counter()
    if sum((bool(request.accept or request.refuse), request.undo, request.dry_run, request.answer)) > 1:
        raise InvalidInput("only one of `accept`/`refuse`, `undo`, `dry_run` and `answer` can be sent")
    with graph.lease() as store:
        if request.answer:
            found = _answer_question(graph, store, request)
        elif request.undo:
            found = undo_reflection_run(graph, store, request)
        elif request.accept or request.refuse:
            found = decide_memory_organization_proposals(store, request)
        else:
            found = _ReflectionRun(graph, store, request).reflect()
        found.sequence = store.state.sequence
    found.took_ms = round((time.perf_counter() - started) * 1000, 3)
    return found


def _answer_question(graph: StoreHandle, store: OpenStore, request: OrganizeMemoriesRequest) -> OrganizeMemoriesAnswer:
    """Answer a question. Raises InvalidInput if no language model is configured."""
    if (extractor := graph.graphs.extractor) is None:
        raise InvalidInput.at("answer", NO_LLM_MESSAGE)
    from kgserve.memory.llm_advice import answer_question_from_memories  # noqa: PLC0415 - loads client code only if a model is set

    return answer_question_from_memories(
        graph, extractor.of(store), request, build_empty_organize_memories_answer(None, dry_run=request.dry_run)
    )


class _Concept(NamedTuple):
    """A target concept: its vector, and the vectors and entities of a sample of its children."""

    id: str
    vector: UnitVectors
    below: UnitVectors
    entities: frozenset[str]


class _ReflectionRun:
    """One reflection over a store."""

    def __init__(self, graph: StoreHandle, store: OpenStore, request: OrganizeMemoriesRequest) -> None:
        self._graph = graph
        self._store = store
        self._request = request
        self._now = now_in_microseconds()
        self._under = resolve_active_memory_in_store(store, request.under, graph.name).id if request.under else ""

    def reflect(self) -> OrganizeMemoriesAnswer:
        """Place what is certain, unless it is a dry run, and propose the rest."""
        found = build_empty_organize_memories_answer(None, dry_run=self._request.dry_run)
        found.stale = self._low_confidence_ids()
        found.stale_count = self._store.memories.ask(lambda view, _: view.below(self._min_confidence, self._now))
        indexes = self._indexes
        found.near_checked = indexes is not None
        if indexes is None:
            return found
        orphans = self._orphans(indexes)
        found.looked_at = len(orphans)
        plan = plan_memory_consolidation_run(
            self._store,
            indexes,
            ConsolidationCandidateQuery(CONTRADICTION_SIMILARITY, guard=True, near="suggest", fresh=frozenset(orphans)),
            self._now,
            WorkThrottle(self._store),
        )
        found.near_checked = plan.near_checked
        absorbed = {each for cluster in plan.clusters for each in cluster.absorbed}
        found.merged = len(absorbed)
        known = indexes.vectors_of([each for each in orphans if each not in absorbed])
        links, proposals = self._place_memories(indexes, {each: known[each] for each in sorted(known)})
        proposals += self._find_contradictions(plan.kept_apart)
        decided = list_decided_proposal_keys(self._store)
        fresh = [each for each in proposals if each.key not in decided]
        found.proposals = _numbered(fresh)
        self._name(indexes, [each for each in found.proposals if each.kind == "concept"], known)
        found.proposals = self._with_advice(found.proposals)
        found.proposals_count = len(fresh)
        found.linked, found.linked_count = links[:MAX_REPORTED_ITEMS], len(links)
        if not self._request.dry_run and (links or found.proposals or found.merged):
            found.run = new_reflection_id(self._now, os.urandom(4).hex())
            write_reflection_run(self._store, found.run, self._record(links, found.proposals, self._merge(plan)), links)
        return found

    @property
    def _min_confidence(self) -> float:
        return self._store.description.memory.min_confidence

    @cached_property
    def _indexes(self) -> CurrentAndPastTextIndexes | None:
        """Indexes with embeddings; None without a model or if it cannot be reached."""
        indexer = self._graph.graphs.indexer
        if indexer is None:
            return None
        try:
            indexes = indexer.of(self._store)
            if not indexes.can_embed_queries:
                return None
            indexes.wait(self._store.state.sequence, MEMORY_JOB_TIMEOUT_SECONDS)
        except Unavailable:
            return None
        return indexes

    def _low_confidence_ids(self) -> list[str]:
        faded = self._store.memories.ask(
            lambda view, _: view.list_faded(self._min_confidence, self._now, DecayOrderPosition(), MAX_REPORTED_ITEMS)
        )
        return [each.id for each in faded]

    def _orphans(self, indexes: CurrentAndPastTextIndexes) -> list[str]:
        wanted = MemoryFilter(now=self._now, orphans=True)
        if self._request.query is not None:
            vector = indexes.vectors([self._request.query])[0]
            near = indexes.search_vectors(vector, self._request.limit, EntitySearchFilter(memories=True))
            wanted = msgspec.structs.replace(wanted, among=frozenset(near))
        return self._listed(wanted, self._request.limit)

    def _listed(self, wanted: MemoryFilter, most: int) -> list[str]:
        def look(view: MemoryIndexSqliteFile, _: RowsSnapshot) -> list[str]:
            found: list[str] = []
            place: MemoryPageStart | None = MemoryPageStart()
            while place is not None and len(found) < most:
                page = view.list_memory_page(wanted, "created", place, most - len(found))
                found += page.ids
                place = page.next
            return found

        return self._store.memories.ask(look)

    def _with_advice(self, proposals: list[ReflectionProposal]) -> list[ReflectionProposal]:
        """Return the proposals with comments of the language model, if the store's texts may be sent to it."""
        extractor = self._graph.graphs.extractor
        if extractor is None or not self._store.description.memory.extract:
            return proposals
        from kgserve.memory.llm_advice import add_llm_advice_to_proposals  # noqa: PLC0415 - as above

        return add_llm_advice_to_proposals(extractor.of(self._store), self._store, proposals)

    # Duplicates

    def _record(
        self, links: Sequence[MemoryParentPlacement], proposals: list[ReflectionProposal], merging: str
    ) -> ReflectionRunAttributes:
        return ReflectionRunAttributes(
            started_at=format_rfc3339_timestamp(self._now),
            threshold=self._request.threshold,
            cluster_threshold=self._request.cluster_threshold,
            linked=len(links),
            merging=merging,
            proposals=proposals,
        )

    def _merge(self, plan: ConsolidationPlan) -> str:
        """Merge memories that say the same; return the id of the consolidation run, or an empty string."""
        if not plan.clusters:
            return ""
        record = ConsolidationRunRecord(
            status="running",
            trigger="manual",
            similarity_threshold=CONTRADICTION_SIMILARITY,
            guard=True,
            through=plan.sequence,
            started_at=format_rfc3339_timestamp(self._now),
        )
        run = apply.RunningConsolidation(
            apply.generate_consolidation_run_id(self._now), record, self._graph.graphs.caller.name
        )
        apply.merge_memory_clusters(self._store, run, plan.clusters, WorkThrottle(self._store))
        return run.id

    def _find_contradictions(self, apart: Sequence[UnmergedMemoryPair]) -> list[ReflectionProposal]:
        """Return contradictions among close, different memories that share an entity or a parent."""
        ids = [*dict.fromkeys(chain.from_iterable(each.ids for each in apart))]
        with self._store.reading() as rows:
            found, above = rows.nodes(ids), find_parents_of_memories(rows, ids)
            either_way = [(a, b, CONTRADICTS) for each in apart for a, b in (each.ids, each.ids[::-1])]
            known = {frozenset(key[:2]) for key in rows.edges(either_way)}
        about = self._about(ids)
        proposals: list[ReflectionProposal] = []
        for each in apart:
            one, other = each.ids
            joined = about[one] & about[other] or (one in above and above[one] == above.get(other))
            if joined and frozenset(each.ids) not in known and one in found and other in found:
                younger_first = sorted(each.ids, key=lambda node_id: (-found[node_id].created_at, node_id))
                proposals.append(
                    ReflectionProposal(number=0, kind="contradiction", ids=younger_first, differs=each.differs)
                )
        return proposals

    # Placement

    def _place_memories(
        self, indexes: CurrentAndPastTextIndexes, known: Mapping[str, UnitVectors]
    ) -> tuple[list[MemoryParentPlacement], list[ReflectionProposal]]:
        """Return certain placements, and proposals for the others."""
        ids = [*known]
        if not ids:
            return [], []
        vectors = np.stack([*known.values()])
        concepts = self._concepts(indexes)
        found = self._places(ids, vectors, concepts) if concepts else []
        links, rest = list[MemoryParentPlacement](), list[int]()
        for at, node_id in enumerate(ids):
            if found and found[at].is_certain(self._request.threshold):
                links.append(
                    MemoryParentPlacement(id=node_id, parent_id=concepts[found[at].best].id, score=found[at].score)
                )
            else:
                rest.append(at)
        left = _UnplacedMemories([ids[at] for at in rest], [found[at] for at in rest] if found else [], concepts)
        together = cluster_memories(vectors[rest], self._request.cluster_threshold) if rest else []
        return links, [*self._concepts_of(left, together), *left.links(together, self._min_proposal_score)]

    def _places(
        self, ids: Sequence[str], vectors: UnitVectors, concepts: Sequence[_Concept]
    ) -> list[TopTwoConceptScores]:
        about = self._about(ids)
        shared = np.zeros((len(ids), len(concepts)), np.float32)
        for row, node_id in enumerate(ids):
            if own := about[node_id]:
                shared[row] = [len(own & each.entities) / len(own) for each in concepts]
        return find_best_concepts_for_memories(
            vectors, np.stack([each.vector for each in concepts]), [each.below for each in concepts], shared
        )

    def _concepts(self, indexes: CurrentAndPastTextIndexes) -> list[_Concept]:
        """Return the concepts, and domains without concepts, that can receive memories."""
        wanted = MemoryFilter(now=self._now, layer=CONCEPT_LAYER, under=self._under)
        ids = self._listed(wanted, MAX_TARGET_CONCEPTS)
        domains = self._listed(msgspec.structs.replace(wanted, layer=DOMAIN_LAYER), MAX_TARGET_CONCEPTS - len(ids))
        with self._store.reading() as rows:
            filled = {*find_parents_of_memories(rows, ids).values()}
        ids += [each for each in domains if each not in filled]
        below = {each: self._below(each) for each in ids}
        known = indexes.vectors_of([*ids, *dict.fromkeys(chain.from_iterable(below.values()))])
        about = self._about([*chain.from_iterable(below.values())])
        found: list[_Concept] = []
        for each in (each for each in ids if each in known):
            some = [known[child] for child in below[each] if child in known]
            vectors = np.array(some, np.float32).reshape(-1, len(known[each]))
            entities = frozenset(chain.from_iterable(about[child] for child in below[each]))
            found.append(_Concept(each, known[each], vectors, entities))
        return found

    def _below(self, concept: str) -> list[str]:
        page = self._store.memories.ask(
            lambda view, _: view.descendants(concept, self._now, None, "", MAX_CONCEPT_EXAMPLES, near=True)
        )
        return [each.id for each in page.found]

    def _about(self, ids: Sequence[str]) -> dict[str, frozenset[str]]:
        def look(view: MemoryIndexSqliteFile, _: RowsSnapshot) -> dict[str, frozenset[str]]:
            return {
                each: frozenset(entity for entity, _ in view.entities_of(each, self._now, _MAX_ENTITIES_PER_MEMORY))
                for each in dict.fromkeys(ids)
            }

        return self._store.memories.ask(look)

    def _concepts_of(self, left: _UnplacedMemories, together: Sequence[Sequence[int]]) -> list[ReflectionProposal]:
        """Return proposals of new concepts for groups that belong to no existing one."""
        found = [
            [left.ids[at] for at in group]
            for group in together
            if left.place_of(group, self._min_proposal_score) is None
        ]
        return [ReflectionProposal(number=0, kind="concept", ids=members) for members in found]

    def _name(
        self,
        indexes: CurrentAndPastTextIndexes,
        concepts: Sequence[ReflectionProposal],
        known: Mapping[str, UnitVectors],
    ) -> None:
        """Set preliminary names of new concepts: an entity that all members share, or else the nearest words."""
        ids = [*chain.from_iterable(each.ids for each in concepts)]
        with self._store.reading() as rows:
            texts = {node_id: row.content for node_id, row in rows.nodes(ids).items()}
        about = self._about(ids)
        words = [_words_of([texts.get(node_id, "") for node_id in each.ids]) for each in concepts]
        vectors = self._vectors(indexes, sorted({*chain.from_iterable(words)}))
        for concept, some in zip(concepts, words, strict=True):
            centre = np.sum([known[node_id] for node_id in concept.ids], axis=0)
            near = sorted(some, key=lambda word: -float(vectors[word] @ centre) if vectors else 0.0)
            words_name = " ".join(some[word] for word in _two_of(near)) or texts.get(concept.ids[0], concept.ids[0])
            concept.name = (
                self._shared_name([about[node_id] for node_id in concept.ids]) or words_name[:MAX_CONCEPT_NAME_CHARS]
            )

    def _vectors(self, indexes: CurrentAndPastTextIndexes, words: list[str]) -> dict[str, UnitVectors]:
        try:
            return dict(zip(words, indexes.vectors(words), strict=True)) if words else {}
        except Unavailable:
            return {}

    @property
    def _min_proposal_score(self) -> float:
        return self._request.threshold / 2

    def _shared_name(self, about: Sequence[frozenset[str]]) -> str:
        """Return the name of an entity that all memories are about, or an empty string."""
        shared = frozenset[str].intersection(*about)
        with self._store.reading() as rows:
            found = rows.nodes(sorted(shared)[:1])
        return next((get_node_name_or_id(row) for row in found.values()), "")[:MAX_CONCEPT_NAME_CHARS]


class _UnplacedMemories:
    """Memories without a certain place, with the best candidate concepts of each."""

    def __init__(self, ids: Sequence[str], found: Sequence[TopTwoConceptScores], concepts: Sequence[_Concept]) -> None:
        self.ids = ids
        self._found = found
        self._concepts = concepts

    def place_of(self, group: Sequence[int], least: float) -> TopTwoConceptScores | None:
        """Return the concept that fits most of a group, with the mean score, if that reaches `least`."""
        if not self._found:
            return None
        best = Counter(self._found[at].best for at in group).most_common(1)[0][0]
        mine = [self._found[at] for at in group if self._found[at].best == best]
        mean = sum(each.score for each in mine) / len(group)
        return (
            TopTwoConceptScores(best, round(mean, 4), mine[0].second, mine[0].second_score) if mean >= least else None
        )

    def links(self, together: Sequence[Sequence[int]], least: float) -> list[ReflectionProposal]:
        """Return proposals to link groups, and single memories outside groups, to a concept."""
        grouped = {*chain.from_iterable(together)}
        some = [*together, *([at] for at in range(len(self.ids)) if at not in grouped)]
        found = ((group, self.place_of(group, least)) for group in some)
        return [self._link([self.ids[at] for at in group], place) for group, place in found if place is not None]

    def _link(self, ids: Sequence[str], place: TopTwoConceptScores) -> ReflectionProposal:
        best = [(place.best, place.score), (place.second, place.second_score)]
        candidates = [ParentConceptCandidate(id=self._concepts[at].id, score=score) for at, score in best if at >= 0]
        return ReflectionProposal(number=0, kind="link", ids=[*ids], candidates=candidates)


def _numbered(proposals: Sequence[ReflectionProposal]) -> list[ReflectionProposal]:
    """Return numbered proposals, up to the limits of one run."""
    found: list[ReflectionProposal] = []
    room = MAX_PROPOSED_MEMORIES
    for each in proposals:
        room -= len(each.ids)
        if room < 0 or len(found) == MAX_PROPOSALS:
            break
        each.number = len(found) + 1
        found.append(each)
    return found


def _words_of(texts: Sequence[str]) -> dict[str, str]:
    """Return frequent words of some texts, most common first, each in its first spelling."""
    spelled: dict[str, str] = {}
    count = Counter[str]()
    for text in texts:
        here = [found[0] for found in _NAME_WORD.finditer(text) if found[0].lower() not in _STOP_WORDS]
        count.update({word.lower(): 1 for word in here})
        for word in here:
            spelled.setdefault(word.lower(), word)
    return {word: spelled[word] for word, _ in count.most_common(_MAX_FREQUENT_WORDS)}


def _two_of(words: Sequence[str]) -> list[str]:
    """Return the first word and the next one that is not another form of it."""
    return [*words[:1], *[word for word in words[1:] if word[:_STEM_CHARS] != words[0][:_STEM_CHARS]][:1]]


def build_empty_organize_memories_answer(run: str | None, *, dry_run: bool = False) -> OrganizeMemoriesAnswer:
    """Return an empty result."""
    return OrganizeMemoriesAnswer(
        dry_run=dry_run,
        run=run,
        looked_at=0,
        merged=0,
        linked=[],
        linked_count=0,
        proposals=[],
        proposals_count=0,
        stale=[],
        stale_count=0,
        undone=0,
        skipped=[],
        near_checked=True,
        sequence=0,
        took_ms=0.0,
    )


def write_reflection_run(
    store: OpenStore, run: str, record: ReflectionRunAttributes, links: Sequence[MemoryParentPlacement]
) -> None:
    """Write a run: its node and its placements. Blocks."""
    _submit(store, lambda storing: _write_run_node(storing, run, record))
    for first in range(0, len(links), _LINK_BATCH_SIZE):
        some = links[first : first + _LINK_BATCH_SIZE]
        _submit(store, lambda storing, some=some: _link_all(storing, run, some))


def _submit(store: OpenStore, decide: Callable[[MemoryDeduplicator], None], cost: int = 10_000) -> WriteReport:
    """Decide a write in the writer thread, and wait for it."""

    def decided(ahead: PendingCommitGroupState) -> WriteBatch:
        storing = MemoryDeduplicator(ahead, RecentVectorBuffer())
        decide(storing)
        return storing.batch()

    done: Future[WriteReport] = store.submit_decided(decided, cost)
    return done.result()


def _write_run_node(storing: MemoryDeduplicator, run: str, record: ReflectionRunAttributes) -> None:
    storing.put_node(NodeUpsert(0, run, KIND_REFLECTION, "", record.text))


def _write_mark(storing: MemoryDeduplicator, run: str, memory: str, mark: ReflectRunEdgeAttributes) -> None:
    storing.put_edge(EdgeUpsert(0, (run, memory, RELATION_REFLECTED), own=mark.text))


def _link_all(storing: MemoryDeduplicator, run: str, links: Sequence[MemoryParentPlacement]) -> None:
    for link in links:
        _link(storing, run, link)


def _link(storing: MemoryDeduplicator, run: str, link: MemoryParentPlacement) -> bool:
    """Place a memory below a parent if it has none and both are active; return whether it was placed."""
    child, parent = storing.node(link.id), storing.node(link.parent_id)
    if (
        child is None
        or parent is None
        or not (is_current_unwithdrawn_memory(child) and is_current_unwithdrawn_memory(parent))
    ):
        return False
    if storing.places.parent(child.id) is not None:
        return False
    try:
        storing.places.put(child, parent)
    except Conflict:
        return False
    storing.put_edge(
        EdgeUpsert(
            0,
            (child.id, parent.id, CHILD_OF_RELATION),
            link.score,
            extras=EdgeExtrasUpsert(created_by=_REFLECTION_AUTHOR),
        )
    )
    _write_mark(storing, run, child.id, ReflectRunEdgeAttributes(parent=parent.id))
    return True


# Runs


def _run_of(store: OpenStore, request: OrganizeMemoriesRequest) -> tuple[NodeRow, ReflectionRunAttributes]:
    """Return the requested run, or the last one. Raises NotFound."""
    for row, record in apply.list_nodes_of_type_newest_first(store, KIND_REFLECTION, decode_reflection_record):
        if request.run in (None, row.id):
            return row, record
    raise NotFound(f"there is no run {request.run!r}" if request.run else "there is no run yet: reflect first")


def list_decided_proposal_keys(store: OpenStore) -> set[str]:
    """Return the keys of the proposals that were accepted or refused."""
    return {
        each.key
        for _, record in apply.list_nodes_of_type_newest_first(store, KIND_REFLECTION, decode_reflection_record)
        for each in record.proposals
        if each.state != "open"
    }


# Decisions


def decide_memory_organization_proposals(store: OpenStore, request: OrganizeMemoriesRequest) -> OrganizeMemoriesAnswer:
    """Accept and refuse proposals of a run. Raises InvalidInput, NotFound or Conflict without any change."""
    row, record = _run_of(store, request)
    proposals = {each.number: each for each in record.proposals}
    for number in (*request.accept, *request.refuse):
        if number not in proposals:
            raise InvalidInput(f"run {row.id!r} has no proposal {number}; it has {len(proposals)} proposals")
        if proposals[number].state != "open":
            raise Conflict(f"proposal {number} of run {row.id!r} was {proposals[number].state} already")
    if both := {*request.accept} & {*request.refuse}:
        raise InvalidInput(f"proposal {min(both)} is both accepted and refused")
    found = build_empty_organize_memories_answer(row.id)

    def carry_out(storing: MemoryDeduplicator) -> None:
        deciding = _ProposalExecutor(storing, row.id, request.names or {})
        decided = {number: msgspec.structs.replace(each) for number, each in proposals.items()}
        for number in request.accept:
            deciding.accept(decided[number])
            decided[number].state = "accepted"
        for number in request.refuse:
            decided[number].state = "refused"
        found.proposals = [decided[number] for number in sorted(decided)]
        found.linked, found.linked_count = deciding.links[:MAX_REPORTED_ITEMS], len(deciding.links)
        found.skipped = deciding.skipped[:MAX_REPORTED_ITEMS]
        _write_run_node(storing, row.id, msgspec.structs.replace(record, proposals=found.proposals))

    _submit(store, carry_out, 1_000 * (1 + sum(len(proposals[each].ids) for each in request.accept)))
    found.proposals_count = len(found.proposals)
    return found


class _ProposalExecutor:
    """Execution of accepted proposals in one write."""

    def __init__(self, storing: MemoryDeduplicator, run: str, names: Mapping[str, str]) -> None:
        self._storing = storing
        self._run = run
        self._names = names
        self.links: list[MemoryParentPlacement] = []
        self.skipped: list[str] = []

    def accept(self, proposal: ReflectionProposal) -> None:
        """Carry out a proposal. Raises Conflict if it no longer applies."""
        given = self._names.get(str(proposal.number), "")
        match proposal.kind:
            case "link":
                self._put_below(proposal, given or proposal.candidates[0].id)
            case "concept":
                self._put_below(proposal, self._create_concept(given or proposal.name))
            case "contradiction":
                self._put_against(proposal)

    def _put_below(self, proposal: ReflectionProposal, parent: str) -> None:
        parent = self._storing.places.find(parent).id
        scores = {each.id: each.score for each in proposal.candidates}
        links = [
            MemoryParentPlacement(id=each, parent_id=parent, score=scores.get(parent, 1.0)) for each in proposal.ids
        ]
        done = [link for link in links if _link(self._storing, self._run, link)]
        if not done:
            raise Conflict(f"proposal {proposal.number}: all of its memories have a parent by now")
        self.links += done
        self.skipped += [link.id for link in links if link not in done]

    def _create_concept(self, name: str) -> str:
        self._storing.made.append(node_id := generate_idempotent_node_id(len(self._storing.made)))
        extras = NodeExtrasUpsert(created_by=_REFLECTION_AUTHOR, confidence=1.0, layer=CONCEPT_LAYER)
        self._storing.put_node(NodeUpsert(0, node_id, LAYER_TYPES[CONCEPT_LAYER], name, extras=extras))
        _write_mark(self._storing, self._run, node_id, ReflectRunEdgeAttributes(made=True))
        return node_id

    def _put_against(self, proposal: ReflectionProposal) -> None:
        younger, older = proposal.ids
        rows = [self._storing.node(each) for each in proposal.ids]
        if any(row is None or not is_memory_active_at(row, self._storing.ahead.now) for row in rows):
            raise Conflict(f"proposal {proposal.number}: one of its memories is no longer active")
        self._storing.put_edge(
            EdgeUpsert(0, (younger, older, CONTRADICTS), extras=EdgeExtrasUpsert(created_by=_REFLECTION_AUTHOR))
        )
        _write_mark(self._storing, self._run, younger, ReflectRunEdgeAttributes(against=older))


# Undo


def undo_reflection_run(
    graph: StoreHandle, store: OpenStore, request: OrganizeMemoriesRequest
) -> OrganizeMemoriesAnswer:
    """Undo a run, its placements, merges and node."""
    row, record = _run_of(store, request)
    found = build_empty_organize_memories_answer(row.id)
    if record.merging:
        author = graph.graphs.caller.name
        undone = apply.undo_consolidation_run(store, record.merging, author, WorkThrottle(store), force=True)
        found.undone, found.skipped = len(undone.restored), [*undone.skipped]
    with store.reading() as rows:
        marks = [edge.key for edge in rows.outgoing(row.id) if edge.relation_type == RELATION_REFLECTED]
    for first in range(0, len(marks), _LINK_BATCH_SIZE):
        done = _RunUndo(store)
        some = marks[first : first + _LINK_BATCH_SIZE]
        store.submit_prepared(lambda done=done, some=some: done.batch(some)).result()
        found.undone += len(done.undone)
        found.skipped += done.skipped
    store.submit(WriteBatch(delete_nodes=[row.id])).result()
    found.skipped = found.skipped[:MAX_REPORTED_ITEMS]
    return found


class _RunUndo:
    """Undo of some marks of a run, for the writer thread."""

    def __init__(self, store: OpenStore) -> None:
        self._store = store
        self.undone: list[str] = []
        self.skipped: list[str] = []

    def batch(self, marks: Sequence[EdgeKey]) -> WriteBatch:
        """Return the write that undoes some marks."""
        edges, nodes = [*marks], list[str]()
        with self._store.reading() as rows:
            for edge in rows.edges(marks).values():
                mark, memory = (
                    decode_reflection_mark(split_edge_times_from_attributes(edge.attributes).own),
                    edge.target,
                )
                if mark.made:
                    self._delete_concept(rows, memory, nodes)
                    continue
                key = (memory, mark.parent, CHILD_OF_RELATION) if mark.parent else (memory, mark.against, CONTRADICTS)
                existing = rows.edge(key)
                if (
                    existing is not None
                    and existing.extras is not None
                    and existing.extras.created_by == _REFLECTION_AUTHOR
                ):
                    edges.append(key)
                    self.undone.append(memory)
                else:
                    self.skipped.append(memory)
        return WriteBatch(delete_edges=edges, delete_nodes=nodes, touch=False, cost=1_000 * len(marks))

    def _delete_concept(self, rows: RowsSnapshot, concept: str, nodes: list[str]) -> None:
        """Delete a concept unless it was changed or another caller placed a memory below it."""
        row = rows.node(concept)
        others = (edge for edge in rows.incoming(concept) if edge.relation_type == CHILD_OF_RELATION)
        if (
            row is None
            or row.version > 1
            or any((e.extras is None or e.extras.created_by != _REFLECTION_AUTHOR) for e in others)
        ):
            self.skipped.append(concept)
        else:
            nodes.append(concept)
            self.undone.append(concept)
