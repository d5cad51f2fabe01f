"""Recall from one store: filtering and ranking of its memories.

The indexes apply the filters that they know. The remaining ones, above all confidence, are applied to the hits, of
which more are requested than are wanted. If too few pass, for example because confidence near the query has decayed,
the memory index lists those that pass. The search indexes then search among them only, so the result is exact.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgserve.errors import InvalidInput
from kgserve.graph.llm_context_text import estimate_llm_token_count
from kgserve.graph.request_validation import convert_attribute_filter_to_conditions
from kgserve.graph.search import score_fusion
from kgserve.graph.search.conversation_turn_scores import (
    ConversationTurnPool,
    ScoredConversationTurns,
    score_conversation_turns,
)
from kgserve.graph.search.hybrid_rank import NO_TURNS, select_conversation_turn_seed_ids
from kgserve.graph.search.node_search import StoreSearchSnapshot
from kgserve.graph.search.score_fusion import FUSION_POOL_HITS, NeighbourWeights
from kgserve.graph.search.search_notices import SearchNotices
from kgserve.graph.weighted_nodes import WeightedNodes, WeightedNodesIntersection, WeightsByNodeId
from kgserve.memory.entity_associations import EntityMemoryLookup
from kgserve.memory.hierarchy import resolve_active_memory_in_graph_reader
from kgserve.memory.memory_models import (
    DEFAULT_IMPORTANCE,
    MAX_RECALL_LIMIT,
    EntityWithRelevance,
    Memory,
    RecalledMemory,
    RecallRequest,
    StillReferencedDeletedEntity,
)
from kgserve.memory.neighbour_boosts import NeighbourBoosts
from kgserve.memory.recall_scoring import (
    MAX_BOOSTING_HITS,
    MIN_TOP_KEYWORD_SCORE,
    MemoryConfidenceAndImportance,
    ReachedEntity,
    ScoredMemory,
    apply_neighbour_boosts,
    count_withheld_memories,
    downrank_superseded_memories,
    find_known_name_ids,
    fuse_keyword_and_vector_scores,
    iterate_entities_by_path_strength,
    list_query_name_candidates,
    rank_memories,
    score_memory_by_entity_path,
    to_scored_memories,
)
from kgserve.memory.serialization import build_memory_answer_fields, record_memory_uses
from kgserve.platform.text import function_and_content_words as words
from kgserve.platform.text.query_analyzer import compute_query_word_coverage
from kgserve.platform.text.text_equality import fingerprint_wording
from kgserve.platform.timestamps import complete_time_to_rfc3339, format_rfc3339_timestamp, parse_rfc3339_timestamp
from kgserve.projections.history_follower import HistoryWorker
from kgserve.projections.indexed_text import EntityFilterableFields, EntitySearchFilter, MemoryFilterableFields
from kgserve.projections.keyword_query import KeywordQuery
from kgserve.projections.memory_index import confidence_decay
from kgserve.projections.memory_index.built_in_relation_types import RELATION_NEXT
from kgserve.projections.memory_index.confidence_decay import ConfidenceAtTime, memory_half_lives_from_settings
from kgserve.projections.memory_index.entries import MemoryMetadata
from kgserve.storage.model.attribute_filters import AttributeCondition, matches_attribute_conditions
from kgserve.storage.model.change_set import MemoryAccessRecord
from kgserve.storage.model.node_and_memory_filters import MemoryFilter
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.storage.model.store_settings import MemorySettings

MAX_NAMED_MEMORIES = 10_000
"""Maximum number of memory ids passed to the search indexes as a filter, unless nothing else finds enough."""
MAX_POSTFILTERED_HITS = 3_200
"""Maximum number of hits that are filtered before the memory index is queried."""
MAX_MEMORIES_PER_ENTITY = 2_000
"""Maximum number of memories of one entity that are used, the most relevant first."""
MAX_RECALL_STARTS = 5
MIN_LETTER_VECTOR_SIMILARITY = 0.5
"""Minimum cosine of hits without a shared word if no model is set; vectors of letters match on function words."""
MIN_COVERED_SHARE, MIN_WORD_HIT_SIMILARITY = 0.4, 0.15
"""Of a hit that shares a word with the query: minimum share of the query's content words, or else minimum cosine.

Of the evidence for questions about conversations 0.4 % has neither, of the words shared by irrelevant queries 95 %.
"""
_JUDGE_BATCH_SIZE = 250
_RECALL_OVERFETCH_FACTOR, _RECALL_OVERFETCH_HITS = 1.3, 10
_MIN_PASSING_SHARE = 0.2
_EARLIEST, _LATEST = -(1 << 63), (1 << 63) - 1
_UNLIMITED_MEMORIES = 1 << 62

ScoresById = dict[str, float]
SearchFunction = Callable[[int, EntitySearchFilter], ScoresById]
QueryVector = NDArray[np.float32]


def parse_creation_time_range(request: RecallRequest) -> tuple[int, int] | None:
    """Return the requested range of creation times, `[start, end)` in microseconds, or None. Raises InvalidInput."""
    if request.after_date is None and request.before_date is None:
        return None
    first = _EARLIEST if request.after_date is None else _moment(request.after_date, "after_date")
    return first, _LATEST if request.before_date is None else _moment(request.before_date, "before_date")


def _moment(text: str, field: str) -> int:
    try:
        return parse_rfc3339_timestamp(complete_time_to_rfc3339(text) or text)
    except (ValueError, OverflowError):
        message = "is neither a day such as 2025-07-15 nor an RFC 3339 time such as 2025-07-15T12:00:00Z"
        raise InvalidInput.at(field, message) from None


def count_contents_in_token_budget(contents: Iterable[str], budget: int) -> int:
    """Return the number of leading contents within a budget of tokens; at least one."""
    spent = count = 0
    for content in contents:
        spent += estimate_llm_token_count(content)
        if spent > budget and count:
            break
        count += 1
    return count


class PostIndexMemoryFilter:
    """Filters that the indexes cannot apply: records which memories pass, their scores, and why others do not.

    Current memories are looked up in the memory index, at a tenth of the cost of their rows.
    """

    def __init__(
        self,
        searched: StoreSearchSnapshot,
        only: EntitySearchFilter,
        attributes: tuple[AttributeCondition, ...],
        least: float,
    ) -> None:
        self._reader = searched.reader
        self._only = msgspec.structs.replace(only, valid_at=None, ids=None, past_ids=None)
        self._but_tags = msgspec.structs.replace(self._only, tags=frozenset())
        self._attributes = attributes
        self._least = least
        self._now = searched.reader.now
        self._settings = searched.store.description.memory
        self.among: WeightedNodes | None = None
        self.unfiltered = False
        """True if the candidates come from no index, so that tags and attributes must still be checked."""
        self.shows_past = False
        """True if superseded memories pass."""
        self.superseded: set[str] = set()
        self.passed: dict[str, MemoryConfidenceAndImportance] = {}
        self.why: dict[str, str] = {}
        self._seen: set[str] = set()
        self._half_lives: dict[str, int | None] = {}

    @property
    def share(self) -> float:
        """Fraction of the examined memories that passed; 1 while few were examined."""
        return len(self.passed) / len(self._seen) if len(self._seen) >= _RECALL_OVERFETCH_HITS else 1.0

    def classify_memories(self, ids: Collection[str]) -> list[str]:
        """Return the memories that pass, in the given order."""
        if new := [node_id for node_id in ids if node_id not in self._seen]:
            self._seen.update(new)
            self._examine(new if self.among is None else [*self.among.weights_of(new)])
        return [node_id for node_id in ids if node_id in self.passed]

    def rows(self, ids: Collection[str]) -> dict[str, NodeRow]:
        """Return the rows that match the filters on rows."""
        return {key: row for key, row in self._reader.nodes(ids).items() if self._fits(row)}

    def _fits(self, row: NodeRow) -> bool:
        return self._only.passes_row(row) and (
            not self._attributes or matches_attribute_conditions(row.attributes, self._attributes)
        )

    def _examine(self, ids: Sequence[str]) -> None:
        found = self._reader.memory_states(ids)
        if self.unfiltered and (self._only.tags or self._attributes):
            found = {key: found[key] for key in self.rows(found) if key in found}
        moment = self._reader.valid_at
        for key, memory in found.items():
            if not self.unfiltered or self._matches_filter(memory):
                stored = ConfidenceAtTime(memory.confidence, memory.since)
                confidence = confidence_decay.decayed_confidence(stored, self._now, self._half_life(memory.type))
                holds = moment is None or memory.is_valid_at(moment)
                self._record(key, confidence, memory.importance, "" if holds else memory.ended or "not_valid")

    def _matches_filter(self, memory: MemoryMetadata) -> bool:
        marks = EntityFilterableFields(marks=MemoryFilterableFields(memory.created, memory.layer, memory.source))
        return self._but_tags.passes(memory.id, memory.type, marks)

    def _half_life(self, memory_type: str) -> int | None:
        if memory_type not in self._half_lives:
            self._half_lives[memory_type] = memory_half_lives_from_settings(self._settings).of(memory_type)
        return self._half_lives[memory_type]

    def _record(self, key: str, confidence: float, importance: float | None, ended: str) -> None:
        former = self.shows_past and ended == "superseded"
        if ended and not former:
            self.why[key] = ended
        elif confidence < self._least:
            self.why[key] = "below_confidence"
        else:
            if former:
                self.superseded.add(key)
            self.passed[key] = MemoryConfidenceAndImportance(
                confidence, DEFAULT_IMPORTANCE if importance is None else importance
            )


class RecallPage(NamedTuple):
    """Hits of a page, their rows and some others, and the number of memories that say the same, if counted."""

    hits: list[ScoredMemory]
    rows: dict[str, NodeRow]
    said: dict[str, int]


class MemoryRecall:
    """One recall of memories from one store, which filters and ranks them for a request."""

    def __init__(
        self,
        searched: StoreSearchSnapshot,
        request: RecallRequest,
        created: tuple[int, int] | None,
        top: float = 0.0,
        historian: HistoryWorker | None = None,
        notices: SearchNotices | None = None,
    ) -> None:
        """Prepare a recall; `top` is the best keyword score in other stores, by which scores are scaled.

        `notices` collects those of all recalls of one answer.
        """
        self.notices = SearchNotices() if notices is None else notices
        if request.mode != "keyword":
            self.notices.record_builds(searched.indexes)
        self.searched = searched
        self.now = searched.reader.now
        self._top = max(top, MIN_TOP_KEYWORD_SCORE)
        self._request = request
        self._historian = historian
        self._store = searched.store
        self._settings: MemorySettings = self._store.description.memory
        conditions = convert_attribute_filter_to_conditions(request.metadata, "metadata") if request.metadata else ()
        self._index = searched.among(conditions) if conditions else searched.index
        self._only = EntitySearchFilter(
            frozenset(request.types or ()) or None,
            tags=frozenset(request.tags or ()),
            valid_at=searched.reader.valid_at if request.past == "hide" else None,
            memories=True,
            layers=None if request.layer is None else frozenset({request.layer}),
            sources=None if request.source is None else frozenset({request.source}),
            created=created,
        )
        self._least = self._settings.min_confidence if request.min_confidence is None else request.min_confidence
        self._filter = PostIndexMemoryFilter(searched, self._only, conditions, self._least)
        self._filter.shows_past = request.past == "show"
        self._by_words: ScoresById = {}
        self._by_meaning: ScoresById = {}
        self._by_paths: ScoresById = {}
        self.withheld: dict[str, int] = {}
        self._entity = None if request.entity is None else self._about.resolve_entity_id(request.entity)
        if self._entity is not None and request.mode != "graph":
            self._restrict_to(self._about.memories(self._entity))
        self._under = "" if request.under is None else self._restrict_below(request.under)

    def hits(self, *, touch: bool) -> list[RecalledMemory]:
        """Return the memories of the requested page; with `touch`, they count as used."""
        limit = self.limit
        page = self.page(self._request.offset, limit)
        self.withheld = count_withheld_memories(page.hits, limit, *self.left_out)
        hits = page.hits
        if self._request.budget is not None:
            hits = hits[
                : count_contents_in_token_budget((page.rows[each.id].content for each in hits), self._request.budget)
            ]
            if len(hits) < len(page.hits):
                self.withheld["over_budget"] = len(page.hits) - len(hits)
        shown = self.shown(hits, page)
        if touch and hits:
            used = record_memory_uses(self._store, [page.rows[each.id] for each in hits], self.now)
            for memory in shown:
                update_memory_use_fields(memory, used.get(memory.id))
        return shown

    @property
    def limit(self) -> int:
        """Maximum number of hits."""
        limit = self._settings.default_limit if self._request.limit is None else self._request.limit
        return max(1, min(limit, MAX_RECALL_LIMIT))

    @property
    def top(self) -> float:
        """Best keyword score of the store."""
        return max(self._search_keywords(1).values(), default=0.0)

    @property
    def left_out(self) -> tuple[ScoresById, dict[str, str]]:
        """Memories that match but do not pass: their scores, and the reasons."""
        return self._left_out, self._filter.why

    def page(self, offset: int, limit: int) -> RecallPage:
        """Return a page of the best memories that pass."""
        ranked = self._ranked(offset + limit + _RECALL_OVERFETCH_HITS)
        if self._filter.superseded:
            ranked = downrank_superseded_memories(ranked, self._filter.superseded)
        if self._request.expand:
            ranked = self._expanded(ranked)
        return self._page(ranked, offset, limit)

    def _page(self, ranked: Sequence[ScoredMemory], offset: int, limit: int) -> RecallPage:
        # Rows may have changed since they were indexed.
        if not self._request.expand:
            some = ranked[offset : offset + limit + _RECALL_OVERFETCH_HITS]
            rows = self._filter.rows([each.id for each in some])
            return RecallPage([each for each in some if each.id in rows][:limit], rows, {})
        some = ranked[: 2 * (offset + limit) + _RECALL_OVERFETCH_HITS]
        rows = self._filter.rows([each.id for each in some])
        prints = {key: fingerprint_wording(row.content) for key, row in rows.items()}
        first: dict[bytes, ScoredMemory] = {}
        for each in some:
            if each.id in rows:
                first.setdefault(prints[each.id], each)
        said = Counter(prints.values())
        hits = [*first.values()][offset : offset + limit]
        return RecallPage(hits, rows, {each.id: said[prints[each.id]] for each in hits})

    def _expanded(self, ranked: Sequence[ScoredMemory]) -> list[ScoredMemory]:
        """Return the hits and their neighbours that pass the filters."""
        near = self._similarities if self._request.mode != "keyword" else lambda _: ScoresById()
        neighbours = NeighbourBoosts(self.searched.reader, self._about, near)
        # Turns of a conversation already share scores in hybrid mode.
        apart = (RELATION_NEXT,) if self._request.mode == "hybrid" else ()
        gifts = [*neighbours.iterate_boosts([each.id for each in ranked[:MAX_BOOSTING_HITS]], apart)]
        takers = self._passing_unfiltered(gift.taker for gift in gifts)
        found = {each.id for each in ranked}
        own = self._own_scores([key for key in takers if key not in found])
        return apply_neighbour_boosts(ranked, gifts, own, self._filter.passed)

    def _own_scores(self, ids: Sequence[str]) -> ScoresById:
        """Return the scores of memories that no index returned."""
        if self._request.mode not in ("hybrid", "semantic"):
            return {}
        near = self._similarities(ids)
        if self._request.mode == "semantic":
            return near
        matches = score_fusion.fuse_scores_by_weighted_sum({}, near, self._alpha)
        return {key: match.score * self._filter.passed[key].confidence for key, match in matches.items()}

    @cached_property
    def _about(self) -> EntityMemoryLookup:
        return EntityMemoryLookup(
            self._store, self.searched.reader, memory_half_lives_from_settings(self._settings).of(), self._historian
        )

    @property
    def deleted_entity(self) -> StillReferencedDeletedEntity | msgspec.UnsetType:
        """The requested entity, if it was deleted."""
        return msgspec.UNSET if self._about.deleted is None else self._about.deleted.entity

    def _restrict_to(self, memories: WeightedNodes) -> None:
        """Restrict the results to some memories: by an id filter if they are few, else by a check of each."""
        before = self._filter.among
        self._filter.among = memories if before is None else WeightedNodesIntersection(before, memories)
        if len(memories) <= MAX_NAMED_MEMORIES:
            ids = frozenset(memories.first(MAX_NAMED_MEMORIES))
            ids = ids if self._only.ids is None else ids & self._only.ids
            self._only = msgspec.structs.replace(self._only, ids=ids, past_ids=ids)

    def _restrict_below(self, memory_id: str) -> str:
        """Restrict the results to descendants of a memory; return its id. Raises NotFound."""
        found = resolve_active_memory_in_graph_reader(self.searched.reader, memory_id, self._store.name).id
        self._restrict_to(self.searched.reader.weighted_descendants(found))
        return found

    def _ranked(self, wanted: int) -> list[ScoredMemory]:
        match self._request.mode:
            case "keyword":
                return to_scored_memories(self._search_keywords(wanted), by_words=True)
            case "semantic":
                self.searched.indexes.require(meaning=True)
                return to_scored_memories(self._search_vectors(wanted), by_words=False)
            case "hybrid":
                return self._fuse(wanted)
            case "graph":
                return self._search_from_entities(wanted)

    # Keywords and vectors

    def _search_keywords(self, pool: int) -> ScoresById:
        # Word forms are not expanded if the caller requested keyword search.
        query = KeywordQuery(self._request.query, "plain" if self._request.mode == "keyword" else "forms")

        def search(count: int, only: EntitySearchFilter) -> ScoresById:
            found = self._index.search_keywords(query, count, only)
            self._by_words |= found
            return found

        return self._best(search, pool)

    def _search_vectors(self, pool: int) -> ScoresById:
        if not self.searched.indexes.has_vectors:
            return {}
        vector, least = self._vector, self._least_similarity

        def search(count: int, only: EntitySearchFilter) -> ScoresById:
            found = self._index.search_vectors(vector, count, only)
            if least is not None:
                # Hits are ordered by distance: fewer hits than requested means that none further qualifies.
                found = {key: near for key, near in found.items() if near >= least}
            self._by_meaning |= found
            return found

        return self._best(search, pool)

    @property
    def _least_similarity(self) -> float | None:
        given = self._request.min_similarity
        if given is None:
            return self._settings.min_similarity if self._request.mode == "semantic" else self._floor
        return given

    @cached_property
    def _vector(self) -> QueryVector:
        return self.searched.queries.of(self._request.query)

    def _fuse(self, wanted: int) -> list[ScoredMemory]:
        # Hits of a deeper search are appended, so that each hit appears on one page only.
        found: dict[str, ScoredMemory] = {}
        for pool in FUSION_POOL_HITS:
            words, meaning = self._search_keywords(pool), self._search_vectors(pool)
            self.notices.record_words(found=bool(words))
            for each in self._with_turns(words, meaning):
                found.setdefault(each.id, each)
            # Hits by function words alone rank behind those that share other words.
            is_all = max(len(words), len(meaning)) < pool or any(key not in found for key in words)
            if len(found) >= wanted or is_all:
                break
        return list(found.values())

    def _with_turns(self, words: ScoresById, meaning: ScoresById) -> list[ScoredMemory]:
        """Combine both scores; turns of conversations are scored with the turns around them, as in a search."""
        meaning |= self._similarities(key for key in words if key not in meaning)
        around = self.searched.reader.turns_around(select_conversation_turn_seed_ids(words, meaning))
        turns = self._score_turns(around, words, meaning) if around else NO_TURNS
        matches = (
            score_fusion.fuse_scores_by_weighted_sum(words, meaning, self._alpha, max(self._top, turns.top))
            | turns.matches
        )
        found = fuse_keyword_and_vector_scores(matches, words, meaning, self._filter.passed, turns.gains)
        return self._relevant(found, words, score_fusion.symmetrize_neighbour_weights(around))

    def _score_turns(self, around: NeighbourWeights, words: ScoresById, meaning: ScoresById) -> ScoredConversationTurns:
        rows = self._filter.rows(self._passing_unfiltered(around))
        texts = {key: row.content for key, row in rows.items()}
        if not texts:
            return NO_TURNS
        meaning |= self._similarities(key for key in texts if key not in meaning)
        word_scores = self._index.bm25_scores(self._request.query, texts)
        tokens = self.searched.token_scores(self._request.query, [*texts])
        return score_conversation_turns(
            ConversationTurnPool(texts, around, word_scores, words, meaning, tokens, self._top), self._alpha
        )

    def _relevant(
        self, found: Sequence[ScoredMemory], words: ScoresById, turns: Mapping[str, Mapping[str, float]]
    ) -> list[ScoredMemory]:
        """Keep memories that are near the query, share a content word with it, or are next to such a turn."""
        floor = self._floor
        if floor is None:
            return [*found]
        near = {each.id for each in found if each.semantic is not None and each.semantic >= floor}
        near |= self._sharing_words({each.id: each for each in found if each.id in words and each.id not in near})
        for _ in range(score_fusion.DEFAULT_PROPAGATION_HOPS):
            near |= {other for key in near for other in turns.get(key, ())}
        return [each for each in found if each.id in near]

    @property
    def _floor(self) -> float | None:
        """Minimum cosine of hits that share no word with the query; None if an entity defines relevance."""
        if self._request.entity is not None:
            return None
        if self._request.min_similarity is not None:
            return self._request.min_similarity
        floor = self._settings.min_relevance
        return max(floor, MIN_LETTER_VECTOR_SIMILARITY) if self.searched.degraded else floor

    @cached_property
    def _has_content_words(self) -> bool:
        return bool(words.find_content_words(self._request.query))

    def _sharing_words(self, hits: Mapping[str, ScoredMemory]) -> set[str]:
        """Return the hits that share content words with the query: many of them, or few with a similar meaning."""
        if not hits:
            return set()
        if not self._has_content_words:
            return set() if self.searched.indexes.can_embed_queries else {*hits}
        among = frozenset(hits)
        only = msgspec.structs.replace(self._only, valid_at=None, ids=among, past_ids=among)
        query = KeywordQuery(self._request.query, "content")
        sharing = {*self._index.search_keywords(query, len(among), only)}
        unlike = [key for key in sharing if (hits[key].semantic or 0.0) < MIN_WORD_HIT_SIMILARITY]
        rows = self._filter.rows(unlike).values() if self.searched.indexes.can_embed_queries else ()
        return sharing - {
            row.id for row in rows if compute_query_word_coverage(self._request.query, row.content) < MIN_COVERED_SHARE
        }

    def _passing_unfiltered(self, ids: Iterable[str]) -> list[str]:
        """Return which of some memories, not found by an index, pass."""
        before, self._filter.unfiltered = self._filter.unfiltered, True
        passing = self._filter.classify_memories(dict.fromkeys(ids))
        self._filter.unfiltered = before
        return passing

    @property
    def _alpha(self) -> float:
        return self._settings.alpha if self._request.alpha is None else self._request.alpha

    def _similarities(self, ids: Iterable[str]) -> ScoresById:
        if not self.searched.indexes.has_vectors:
            return {}
        vectors = self._index.vectors_of(list(ids))
        if not vectors:
            return {}
        near = np.stack(list(vectors.values())) @ self._vector
        return dict(zip(vectors, near.tolist(), strict=True))

    def _best(self, search: SearchFunction, limit: int) -> ScoresById:
        """Return the best that pass all filters; memories that are not valid are included in the search and counted."""
        pool = (
            int(_RECALL_OVERFETCH_FACTOR * limit / max(self._filter.share, _MIN_PASSING_SHARE)) + _RECALL_OVERFETCH_HITS
        )
        found = search(pool, msgspec.structs.replace(self._only, valid_at=None))
        passing = self._filter.classify_memories(found)
        if len(passing) < limit and len(found) == pool:
            found = self._search_deeper(search, limit, pool, found)
            passing = self._filter.classify_memories(found)
        return {key: found[key] for key in passing[:limit]}

    def _search_deeper(self, search: SearchFunction, limit: int, pool: int, found: ScoresById) -> ScoresById:
        """Return the hits of a larger search for when `_best` found too few that pass.

        Past confidence is in no index, so all candidates are filtered for `as_of`.
        """
        is_past, passing = not self.searched.reader.is_current, len(self._filter.classify_memories(found))
        while pool < MAX_POSTFILTERED_HITS and (is_past or passing >= _MIN_PASSING_SHARE * pool):
            pool = max(int(_RECALL_OVERFETCH_FACTOR * limit * pool / max(passing, 1)), 2 * pool)
            pool = min(pool, MAX_POSTFILTERED_HITS) if is_past else pool
            found = search(pool, self._only)
            passing = len(self._filter.classify_memories(found))
            if passing >= limit or len(found) < pool:
                return found
        if is_past:
            return found
        named = self._passing_ids
        return search(
            limit, self._restrict_filter(named if len(named) <= MAX_NAMED_MEMORIES else self._all_passing_ids)
        )

    def _restrict_filter(self, ids: frozenset[str]) -> EntitySearchFilter:
        own = self._only.ids
        return msgspec.structs.replace(self._only, ids=ids if own is None else ids & own)

    @cached_property
    def _passing_ids(self) -> frozenset[str]:
        """Memories that pass now, or one more than the limit if there are more."""
        return self._list_passing_ids(MAX_NAMED_MEMORIES + 1)

    @cached_property
    def _all_passing_ids(self) -> frozenset[str]:
        return self._list_passing_ids(_UNLIMITED_MEMORIES)

    def _list_passing_ids(self, limit: int) -> frozenset[str]:
        # Buffered uses raise confidence and are not in the memory index yet.
        self._store.accesses.flush_and_wait()
        wanted = self._index_filter
        return frozenset(self._store.memories.ask(lambda memories, _: memories.ids(wanted, limit)))

    @property
    def _index_filter(self) -> MemoryFilter:
        """The same filters for the memory index, regardless of validity."""
        request, (first, end) = self._request, self._only.created or (None, None)
        return MemoryFilter(
            self.now,
            types=tuple(request.types or ()),
            tags=tuple(request.tags or ()),
            min_confidence=self._least,
            created_from=first,
            created_to=None if end is None else end - 1,
            source=request.source or "",
            layer=request.layer,
            entity="" if request.mode == "graph" else self._entity or "",
            under=self._under,
            ended="any",
        )

    @property
    def _left_out(self) -> ScoresById:
        """Scores of the memories that match and do not pass."""
        match self._request.mode:
            case "keyword":
                found = self._by_words
            case "semantic":
                found = self._by_meaning
            case "graph":
                found = self._by_paths
            case "hybrid":
                near = self._similarities(key for key in self._by_words if key in self._filter.why)
                matches = score_fusion.fuse_scores_by_weighted_sum(
                    self._by_words, self._by_meaning | near, self._alpha, self._top
                )
                found = {key: match.score for key, match in matches.items()}
        return {key: score for key, score in found.items() if key in self._filter.why}

    # Entity graph

    def _search_from_entities(self, wanted: int) -> list[ScoredMemory]:
        starts, fitting = self._starts(), self._matching_ids
        self._filter.unfiltered = fitting is None
        enough = (
            len(self._filter.classify_memories(fitting))
            if fitting is not None and len(fitting) <= MAX_MEMORIES_PER_ENTITY
            else MAX_NAMED_MEMORIES
        )
        best: dict[str, ScoredMemory] = {}
        least = 0.0
        for way in iterate_entities_by_path_strength(starts, self._about.related_entities, max(1, self._request.depth)):
            # The path strength is an upper bound for memories of its entity.
            if least > way.strength or len(best) >= enough:
                break
            for reached in self._memories_of_path(way, fitting):
                for each in reached:
                    if each.id not in best or each.score > best[each.id].score:
                        best[each.id] = each
                if len(best) >= wanted:
                    least = heapq.nlargest(wanted, (each.score for each in best.values()))[-1]
                if reached and least > reached[-1].match:
                    break
        near = self._similarities(best)
        found = rank_memories(best.values(), self._filter.passed)
        found.sort(key=lambda each: (-each.score, -near.get(each.id, -1.0)))
        return [msgspec.structs.replace(each, semantic=near.get(each.id)) for each in found]

    def _starts(self) -> dict[str, float]:
        if self._entity is not None:
            return {self._entity: 1.0}
        possible = list_query_name_candidates(self._request.query)
        if named := find_known_name_ids(possible, self._about.valid_entities_named(possible)):
            return dict.fromkeys(named, 1.0)
        words = self._search_keywords(score_fusion.MIN_FUSION_POOL_HITS)
        best = self._with_turns(words, self._search_vectors(score_fusion.MIN_FUSION_POOL_HITS))[:MAX_RECALL_STARTS]
        starts: dict[str, float] = {}
        entities = self._about.entities([each.id for each in best])
        for each in best:
            for entity in entities.get(each.id, ()):
                starts[entity.id] = max(starts.get(entity.id, 0.0), each.score * min(max(entity.relevance, 0.0), 1.0))
        return starts

    @cached_property
    def _matching_ids(self) -> frozenset[str] | None:
        """Return the ids that pass the filters, or None if the memory index does not know or they are too many."""
        only = msgspec.structs.replace(self._only, valid_at=None)
        filtered = bool(only.tags) or only.restricts_ids_or_types or only.created is not None
        filtered = filtered or only.layers is not None or only.sources is not None or bool(self._under)
        if not self.searched.reader.is_current or self._request.metadata or not filtered:
            return None
        fitting = self.searched.indexes.passing(only, MAX_NAMED_MEMORIES)
        return None if fitting is None else frozenset(fitting)

    def _memories_of_path(self, way: ReachedEntity, fitting: frozenset[str] | None) -> Iterator[list[ScoredMemory]]:
        """Yield the memories of an entity that pass, in batches, the most relevant first."""
        memories = self._about.memories(way.entity)
        if fitting is not None:
            memories = WeightsByNodeId(memories.weights_of(fitting))
        passed = 0
        for relevances in islice(memories.slices(_JUDGE_BATCH_SIZE), self._max_slices):
            for key, relevance in relevances.items():
                self._by_paths[key] = max(self._by_paths.get(key, 0.0), way.strength * relevance)
            passing = self._filter.classify_memories(relevances)
            passed += len(passing)
            yield [
                score_memory_by_entity_path(key, way, relevances[key], self._filter.passed[key].confidence)
                for key in passing
            ]
            if passed >= MAX_MEMORIES_PER_ENTITY:
                break

    @property
    def _max_slices(self) -> int:
        most = MAX_NAMED_MEMORIES if self.searched.reader.is_current else MAX_MEMORIES_PER_ENTITY
        return -(-most // _JUDGE_BATCH_SIZE)

    # Answers

    def shown(self, hits: Sequence[ScoredMemory], page: RecallPage) -> list[RecalledMemory]:
        """Return hits of a page in the form of the answer."""
        ids = [each.id for each in hits]
        entities = self._about.entities(ids)
        accesses = self.searched.reader.accesses(ids)
        above = self.searched.reader.parents(ids)
        shown = [
            self._as_hit(each, page.rows[each.id], accesses.get(each.id), entities.get(each.id, []), above.get(each.id))
            for each in hits
        ]
        for hit in shown:
            if page.said.get(hit.id, 1) > 1:
                hit.said = page.said[hit.id]
        return shown

    def _as_hit(
        self,
        found: ScoredMemory,
        row: NodeRow,
        access: MemoryAccessRecord | None,
        entities: Sequence[EntityWithRelevance],
        parent: str | None,
    ) -> RecalledMemory:
        memory = Memory(
            **build_memory_answer_fields(
                memory_half_lives_from_settings(self._settings), row, access, entities, self.now, parent
            )
        )
        values = {name: getattr(memory, name) for name in Memory.__struct_fields__}
        scores: dict[str, Any] = {
            "keyword_score": found.keyword,
            "semantic_score": found.semantic,
            "hops": found.hops,
            "via": found.via,
            "relation": found.relation,
            "why": found.why if self._request.explain else None,
        }
        known = {name: score for name, score in scores.items() if score is not None}
        return RecalledMemory(**values, score=found.score, **known)


def update_memory_use_fields(memory: RecalledMemory, used: MemoryAccessRecord | None) -> None:
    """Update the fields of a memory after a use."""
    if used is not None:
        memory.confidence, memory.access_count = used.confidence, used.count
        memory.last_accessed_at = format_rfc3339_timestamp(used.last)
