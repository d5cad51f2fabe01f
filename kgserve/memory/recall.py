"""One recall from one store: which of its memories pass every filter, and which of them are best.

The indexes filter by what they know. What they do not know, confidence above all, is judged by the rows of what they
find, a little more of which is asked for than is wanted. Where that gives too few, because just what is near the query
has faded, the memory view names those that pass, and the indexes search among them alone: so what is found is exact.
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
from kgserve.graph.context import count_tokens
from kgserve.graph.search import fusion
from kgserve.graph.search.fusion import POOL_SIZES
from kgserve.graph.search.search import StoreSearch
from kgserve.graph.validate import asked_attributes
from kgserve.graph.weighted_nodes import Intersection, NodeWeights, WeightedNodes
from kgserve.memory.api import (
    DEFAULT_IMPORTANCE,
    MAX_RECALL_LIMIT,
    DeletedEntity,
    Memory,
    MemoryEntity,
    RecalledMemory,
    RecallRequest,
)
from kgserve.memory.associations import EntityAssociations
from kgserve.memory.hierarchy import find_memory
from kgserve.memory.neighbours import NeighbourBoosts
from kgserve.memory.presentation import fields_of, record_use
from kgserve.memory.recall_scoring import (
    MAX_GIVERS,
    MIN_TOP_KEYWORD_SCORE,
    REACHED,
    SEEDS,
    MemoryScoreInputs,
    Recalled,
    RecallPath,
    by_way,
    carried,
    expanded,
    in_conversation,
    in_order,
    joined,
    named_in,
    plain,
    possible_names,
    ways,
    with_past,
    withheld,
)
from kgserve.platform.text import words
from kgserve.platform.text.similarity import fingerprint
from kgserve.platform.times import complete_time, format_time, parse_time
from kgserve.projections.history_follower import Historian
from kgserve.projections.keyword import Reading
from kgserve.projections.memory_index import decay
from kgserve.projections.memory_index.decay import Confidence, half_lives_of
from kgserve.projections.memory_index.entries import LiveMemory
from kgserve.projections.memory_index.relation_types import RELATION_NEXT
from kgserve.projections.text import Facets, Filter, Marks
from kgserve.storage.model.attributes import Condition, has_all
from kgserve.storage.model.change import Access
from kgserve.storage.model.filters import MemoryFilter
from kgserve.storage.model.rows import NodeRow
from kgserve.storage.model.store_settings import MemorySettings

MAX_NAMED_MEMORIES = 10_000
"""More memories than this are not named to the indexes, unless nothing else helps."""
MAX_JUDGED_HITS = 3_200
"""So many hits are judged, at most, before the memory view is asked."""
MAX_MEMORIES_PER_ENTITY = 2_000
"""Of the memories of one entity that pass so many are taken, at most, the most relevant."""
MAX_RECALL_STARTS = 5
MIN_LETTERS_SIMILARITY = 0.5
"""Least cosine of hits without a common word where no model is: vectors of letters are alike by function words."""
_JUDGE_BATCH_SIZE = 250
_RECALL_OVERFETCH_FACTOR, _RECALL_OVERFETCH_HITS = 1.3, 10
_MIN_PASSING_SHARE = 0.2
_EARLIEST, _LATEST = -(1 << 63), (1 << 63) - 1
_UNLIMITED_MEMORIES = 1 << 62

Hits = dict[str, float]
Search = Callable[[int, Filter], Hits]
Vector = NDArray[np.float32]


def created(request: RecallRequest) -> tuple[int, int] | None:
    """From when to before when, in microseconds; None where neither is asked for. Raises InvalidInput."""
    if request.after_date is None and request.before_date is None:
        return None
    first = _EARLIEST if request.after_date is None else _moment(request.after_date, "after_date")
    return first, _LATEST if request.before_date is None else _moment(request.before_date, "before_date")


def _moment(text: str, field: str) -> int:
    try:
        return parse_time(complete_time(text) or text)
    except (ValueError, OverflowError):
        message = "is neither a day such as 2025-07-15 nor an RFC 3339 time such as 2025-07-15T12:00:00Z"
        raise InvalidInput.at(field, message) from None


def affordable(contents: Iterable[str], budget: int) -> int:
    """How many of the first contents are within a number of tokens; one in any case."""
    spent = count = 0
    for content in contents:
        spent += count_tokens(content)
        if spent > budget and count:
            break
        count += 1
    return count


class CandidateFilter:
    """What the indexes do not know of memories: which pass, what they are worth, and why others do not.

    The current ones are looked up in the memory index, for a tenth of what their rows would cost.
    """

    def __init__(self, searched: StoreSearch, only: Filter, attributes: tuple[Condition, ...], least: float) -> None:
        self._reader = searched.reader
        self._only = msgspec.structs.replace(only, valid_at=None, ids=None, past_ids=None)
        self._but_tags = msgspec.structs.replace(self._only, tags=frozenset())
        self._attributes = attributes
        self._least = least
        self._now = searched.reader.now
        self._settings = searched.store.description.memory
        self.among: WeightedNodes | None = None
        self.unfiltered = False
        """Whether what is judged comes from no index, so that tags and attributes are yet to be looked at."""
        self.shows_past = False
        """Whether what was superseded passes."""
        self.superseded: set[str] = set()
        self.standing: dict[str, MemoryScoreInputs] = {}
        self.why: dict[str, str] = {}
        self._seen: set[str] = set()
        self._half_lives: dict[str, int | None] = {}

    @property
    def share(self) -> float:
        """Which part of what was looked at has passed; all, while that is little."""
        return len(self.standing) / len(self._seen) if len(self._seen) >= _RECALL_OVERFETCH_HITS else 1.0

    def passing(self, ids: Collection[str]) -> list[str]:
        """Those of some memories that pass, in their order."""
        if new := [node_id for node_id in ids if node_id not in self._seen]:
            self._seen.update(new)
            self._look_at(new if self.among is None else [*self.among.among(new)])
        return [node_id for node_id in ids if node_id in self.standing]

    def rows(self, ids: Collection[str]) -> dict[str, NodeRow]:
        """The rows of those that have all that the filters ask of rows."""
        return {key: row for key, row in self._reader.nodes(ids).items() if self._fits(row)}

    def _fits(self, row: NodeRow) -> bool:
        return self._only.passes_row(row) and (not self._attributes or has_all(row.attributes, self._attributes))

    def _look_at(self, ids: Sequence[str]) -> None:
        found = self._reader.memory_states(ids)
        if self.unfiltered and (self._only.tags or self._attributes):
            found = {key: found[key] for key in self.rows(found) if key in found}
        moment = self._reader.valid_at
        for key, memory in found.items():
            if not self.unfiltered or self._is_of_filter(memory):
                worth = Confidence(memory.confidence, memory.since)
                confidence = decay.effective(worth, self._now, self._half_life(memory.type))
                holds = moment is None or memory.holds_at(moment)
                self._judge(key, confidence, memory.importance, "" if holds else memory.ended or "not_valid")

    def _is_of_filter(self, memory: LiveMemory) -> bool:
        marks = Facets(marks=Marks(memory.created, memory.layer, memory.source))
        return self._but_tags.passes(memory.id, memory.type, marks)

    def _half_life(self, memory_type: str) -> int | None:
        if memory_type not in self._half_lives:
            self._half_lives[memory_type] = half_lives_of(self._settings).of(memory_type)
        return self._half_lives[memory_type]

    def _judge(self, key: str, confidence: float, importance: float | None, ended: str) -> None:
        former = self.shows_past and ended == "superseded"
        if ended and not former:
            self.why[key] = ended
        elif confidence < self._least:
            self.why[key] = "below_confidence"
        else:
            if former:
                self.superseded.add(key)
            self.standing[key] = MemoryScoreInputs(confidence, DEFAULT_IMPORTANCE if importance is None else importance)


class RecallPage(NamedTuple):
    """The hits of a page, the rows of these and of others, and how often each is said, where that was counted."""

    hits: list[Recalled]
    rows: dict[str, NodeRow]
    said: dict[str, int]


class MemoryRecall:
    """One recall from one store."""

    def __init__(
        self,
        searched: StoreSearch,
        request: RecallRequest,
        created: tuple[int, int] | None,
        top: float = 0.0,
        historian: Historian | None = None,
    ) -> None:
        """``top``: the best score that words have in other stores, by which those of this one are measured."""
        self.searched = searched
        self.now = searched.reader.now
        self._top = max(top, MIN_TOP_KEYWORD_SCORE)
        self._request = request
        self._historian = historian
        self._store = searched.store
        self._settings: MemorySettings = self._store.description.memory
        conditions = asked_attributes(request.metadata, "metadata") if request.metadata else ()
        self._index = searched.among(conditions) if conditions else searched.index
        self._only = Filter(
            None if request.types is None else frozenset(request.types),
            tags=frozenset(request.tags or ()),
            valid_at=searched.reader.valid_at if request.past == "hide" else None,
            memories=True,
            layers=None if request.layer is None else frozenset({request.layer}),
            sources=None if request.source is None else frozenset({request.source}),
            created=created,
        )
        self._least = self._settings.min_confidence if request.min_confidence is None else request.min_confidence
        self._judge = CandidateFilter(searched, self._only, conditions, self._least)
        self._judge.shows_past = request.past == "show"
        self._by_words: Hits = {}
        self._by_meaning: Hits = {}
        self._by_ways: Hits = {}
        self.withheld: dict[str, int] = {}
        self._entity = None if request.entity is None else self._about.entity(request.entity)
        if self._entity is not None and request.mode != "graph":
            self._keep_to(self._about.memories(self._entity))
        self._under = "" if request.under is None else self._below(request.under)

    def hits(self, *, touch: bool) -> list[RecalledMemory]:
        """The memories of the page that is asked for, as callers see them; with ``touch`` they count as used."""
        limit = self.limit
        page = self.page(self._request.offset, limit)
        self.withheld = withheld(page.hits, limit, *self.left_out)
        hits = page.hits
        if self._request.budget is not None:
            hits = hits[: affordable((page.rows[each.id].content for each in hits), self._request.budget)]
            if len(hits) < len(page.hits):
                self.withheld["over_budget"] = len(page.hits) - len(hits)
        shown = self.shown(hits, page)
        if touch and hits:
            used = record_use(self._store, [page.rows[each.id] for each in hits], self.now)
            for memory in shown:
                count_use(memory, used.get(memory.id))
        return shown

    @property
    def limit(self) -> int:
        """How many hits are wanted."""
        limit = self._settings.default_limit if self._request.limit is None else self._request.limit
        return max(1, min(limit, MAX_RECALL_LIMIT))

    @property
    def top(self) -> float:
        """The best score that words have."""
        return max(self._words(1).values(), default=0.0)

    @property
    def left_out(self) -> tuple[Hits, dict[str, str]]:
        """What was found and does not pass, with how well it matches, and why."""
        return self._left_out, self._judge.why

    def page(self, offset: int, limit: int) -> RecallPage:
        """The best that pass, but for the first ones."""
        ranked = self._ranked(offset + limit + _RECALL_OVERFETCH_HITS)
        if self._judge.superseded:
            ranked = with_past(ranked, self._judge.superseded)
        if self._request.expand:
            ranked = self._expanded(ranked)
        return self._page(ranked, offset, limit)

    def _page(self, ranked: Sequence[Recalled], offset: int, limit: int) -> RecallPage:
        # What has changed since the indexes saw it may not fit any more.
        if not self._request.expand:
            some = ranked[offset : offset + limit + _RECALL_OVERFETCH_HITS]
            rows = self._judge.rows([each.id for each in some])
            return RecallPage([each for each in some if each.id in rows][:limit], rows, {})
        some = ranked[: 2 * (offset + limit) + _RECALL_OVERFETCH_HITS]
        rows = self._judge.rows([each.id for each in some])
        prints = {key: fingerprint(row.content) for key, row in rows.items()}
        first: dict[bytes, Recalled] = {}
        for each in some:
            if each.id in rows:
                first.setdefault(prints[each.id], each)
        said = Counter(prints.values())
        hits = [*first.values()][offset : offset + limit]
        return RecallPage(hits, rows, {each.id: said[prints[each.id]] for each in hits})

    def _expanded(self, ranked: Sequence[Recalled]) -> list[Recalled]:
        """What was found, and what stands beside the best of it, as far as it passes the filters."""
        near = self._similarities if self._request.mode != "keyword" else lambda _: Hits()
        beside = NeighbourBoosts(self.searched.reader, self._about, near)
        # What turns of a conversation have of each other they have already.
        apart = (RELATION_NEXT,) if self._request.mode == "hybrid" else ()
        gifts = [*beside.gifts([each.id for each in ranked[:MAX_GIVERS]], apart)]
        takers = self._passing_unfiltered(gift.taker for gift in gifts)
        found = {each.id for each in ranked}
        own = self._own([key for key in takers if key not in found])
        return expanded(ranked, gifts, own, self._judge.standing)

    def _own(self, ids: Sequence[str]) -> Hits:
        """What memories that no index has found are worth by themselves."""
        if self._request.mode not in ("hybrid", "semantic"):
            return {}
        near = self._similarities(ids)
        if self._request.mode == "semantic":
            return near
        matches = fusion.weighted({}, near, self._alpha)
        return {key: match.score * self._judge.standing[key].confidence for key, match in matches.items()}

    @cached_property
    def _about(self) -> EntityAssociations:
        return EntityAssociations(
            self._store, self.searched.reader, half_lives_of(self._settings).of(), self._historian
        )

    @property
    def deleted_entity(self) -> DeletedEntity | msgspec.UnsetType:
        """The entity that was asked for, if it was deleted."""
        return msgspec.UNSET if self._about.deleted is None else self._about.deleted.entity

    def _keep_to(self, memories: WeightedNodes) -> None:
        """Let only these pass: by name while they are few, else by a look at each."""
        before = self._judge.among
        self._judge.among = memories if before is None else Intersection(before, memories)
        if len(memories) <= MAX_NAMED_MEMORIES:
            ids = frozenset(memories.first(MAX_NAMED_MEMORIES))
            ids = ids if self._only.ids is None else ids & self._only.ids
            self._only = msgspec.structs.replace(self._only, ids=ids, past_ids=ids)

    def _below(self, memory_id: str) -> str:
        """Let only what stands below a memory pass; the id of that. Raises NotFound."""
        found = find_memory(self.searched.reader, memory_id, self._store.name).id
        self._keep_to(self.searched.reader.below(found))
        return found

    def _ranked(self, wanted: int) -> list[Recalled]:
        match self._request.mode:
            case "keyword":
                return plain(self._words(wanted), by_words=True)
            case "semantic":
                self.searched.indexes.require(meaning=True)
                return plain(self._meaning(wanted), by_words=False)
            case "hybrid":
                return self._deep_enough(wanted)
            case "graph":
                return self._from_entities(wanted)

    # By words and meaning

    def _words(self, pool: int) -> Hits:
        query = self._request.query
        # Who asks for words alone wants these.
        reading: Reading = "plain" if self._request.mode == "keyword" else "forms"

        def search(count: int, only: Filter) -> Hits:
            found = self._index.words(query, count, only, reading)
            self._by_words |= found
            return found

        return self._best(search, pool)

    def _meaning(self, pool: int) -> Hits:
        if not self.searched.indexes.has_meaning:
            return {}
        vector, least = self._vector, self._least_similarity

        def search(count: int, only: Filter) -> Hits:
            found = self._index.meaning(vector, count, only)
            if least is not None:
                # What follows the first that is too far away is farther away; so fewer than were asked for is all.
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
    def _vector(self) -> Vector:
        return self.searched.queries.of(self._request.query)

    def _deep_enough(self, wanted: int) -> list[Recalled]:
        # What a deeper look finds goes behind, so that each hit is on one page.
        found: dict[str, Recalled] = {}
        for pool in POOL_SIZES:
            words, meaning = self._words(pool), self._meaning(pool)
            for each in self._in_context(words, meaning):
                found.setdefault(each.id, each)
            # Function words count little: a hit by these alone comes behind those that share other words.
            is_all = max(len(words), len(meaning)) < pool or any(key not in found for key in words)
            if len(found) >= wanted or is_all:
                break
        return list(found.values())

    def _joined(self, words: Hits, meaning: Hits) -> list[Recalled]:
        meaning |= self._similarities(key for key in words if key not in meaning)
        matches = fusion.weighted(words, meaning, self._alpha, self._top)
        return joined(matches, words, meaning, self._judge.standing)

    def _in_context(self, words: Hits, meaning: Hits) -> list[Recalled]:
        """Both together, and turns of conversations with what is said around them; its words only with `expand`."""
        found = self._joined(words, meaning)
        depths = (SEEDS, REACHED) if self._request.expand else (fusion.MAX_SEEDS, fusion.MAX_REACHED)
        turns = fusion.look_around({each.id: each.score for each in found}, self._turns, *depths)
        if not turns:
            return self._relevant(found, words, {})
        ids = {*turns, *(other for around in turns.values() for other, _ in around)}
        meaning |= self._similarities(key for key in ids if key not in meaning)
        texts = {key: row.content for key, row in self._judge.rows(ids).items()} if self._request.expand else {}
        heard = carried(words, self._index.worths(self._request.query, texts), turns) if texts else words
        matches = fusion.weighted(heard, meaning, self._alpha, self._top)
        asking = {key for key, text in texts.items() if text.rstrip().endswith("?")}
        standing = self._judge.standing
        found = in_conversation(joined(matches, words, meaning, standing), turns, standing, asking)
        return self._relevant(found, words, fusion.both_ways(turns))

    def _relevant(
        self, found: Sequence[Recalled], words: Hits, turns: Mapping[str, Mapping[str, float]]
    ) -> list[Recalled]:
        """Keep what is near enough to the query, shares a content word with it, or is a turn next to such a one."""
        floor = self._floor
        if floor is None:
            return [*found]
        near = {each.id for each in found if each.semantic is not None and each.semantic >= floor}
        near |= self._sharing_words([each.id for each in found if each.id in words and each.id not in near])
        for _ in range(fusion.DEFAULT_HOPS):
            near |= {other for key in near for other in turns.get(key, ())}
        return [each for each in found if each.id in near]

    @property
    def _floor(self) -> float | None:
        """The least cosine of hits that share no word with the query; None where an entity says what is relevant."""
        if self._request.entity is not None:
            return None
        if self._request.min_similarity is not None:
            return self._request.min_similarity
        floor = self._settings.min_relevance
        return max(floor, MIN_LETTERS_SIMILARITY) if self.searched.degraded else floor

    @cached_property
    def _has_content_words(self) -> bool:
        return bool(words.content_words(self._request.query))

    def _sharing_words(self, ids: Iterable[str]) -> set[str]:
        """Those of some memories that share a word with the query that is no function word."""
        among = frozenset(ids)
        if not among:
            return set()
        if not self._has_content_words:
            return set() if self.searched.indexes.understands else {*among}
        only = msgspec.structs.replace(self._only, valid_at=None, ids=among, past_ids=among)
        return {*self._index.words(self._request.query, len(among), only, "content")}

    def _turns(self, ids: Sequence[str]) -> fusion.Neighbours:
        """What is said before and behind some memories, as far as it passes."""
        turns = self._about.turns(ids)
        passing = {*self._passing_unfiltered(other for around in turns.values() for other, _ in around)}
        return {
            turn: kept for turn, around in turns.items() if (kept := [each for each in around if each[0] in passing])
        }

    def _passing_unfiltered(self, ids: Iterable[str]) -> list[str]:
        """Those that pass of some that no index has found."""
        before, self._judge.unfiltered = self._judge.unfiltered, True
        passing = self._judge.passing(dict.fromkeys(ids))
        self._judge.unfiltered = before
        return passing

    @property
    def _alpha(self) -> float:
        return self._settings.alpha if self._request.alpha is None else self._request.alpha

    def _similarities(self, ids: Iterable[str]) -> Hits:
        if not self.searched.indexes.has_meaning:
            return {}
        vectors = self._index.vectors_of(list(ids))
        if not vectors:
            return {}
        near = np.stack(list(vectors.values())) @ self._vector
        return dict(zip(vectors, near.tolist(), strict=True))

    def _best(self, search: Search, limit: int) -> Hits:
        """The best that pass everything. What is not true at the moment is looked for as well, to be counted."""
        pool = (
            int(_RECALL_OVERFETCH_FACTOR * limit / max(self._judge.share, _MIN_PASSING_SHARE)) + _RECALL_OVERFETCH_HITS
        )
        found = search(pool, msgspec.structs.replace(self._only, valid_at=None))
        passing = self._judge.passing(found)
        if len(passing) < limit and len(found) == pool:
            found = self._deeper(search, limit, pool, found)
            passing = self._judge.passing(found)
        return {key: found[key] for key in passing[:limit]}

    def _deeper(self, search: Search, limit: int, pool: int, found: Hits) -> Hits:
        """As `_best` where some more were too few: many more, as long as those that pass are not few among them.

        No view knows what was worth how much as of a moment, so that then all are judged that may be.
        """
        then, passing = not self.searched.reader.has_memory_index, len(self._judge.passing(found))
        while pool < MAX_JUDGED_HITS and (then or passing >= _MIN_PASSING_SHARE * pool):
            pool = max(int(_RECALL_OVERFETCH_FACTOR * limit * pool / max(passing, 1)), 2 * pool)
            pool = min(pool, MAX_JUDGED_HITS) if then else pool
            found = search(pool, self._only)
            passing = len(self._judge.passing(found))
            if passing >= limit or len(found) < pool:
                return found
        if then:
            return found
        named = self._named
        return search(limit, self._among(named if len(named) <= MAX_NAMED_MEMORIES else self._all_named))

    def _among(self, ids: frozenset[str]) -> Filter:
        own = self._only.ids
        return msgspec.structs.replace(self._only, ids=ids if own is None else ids & own)

    @cached_property
    def _named(self) -> frozenset[str]:
        """Those that pass now, or more than are named where there are more."""
        return self._names(MAX_NAMED_MEMORIES + 1)

    @cached_property
    def _all_named(self) -> frozenset[str]:
        return self._names(_UNLIMITED_MEMORIES)

    def _names(self, limit: int) -> frozenset[str]:
        # What waits to be journaled is not in the view, and raises confidence.
        self._store.accesses.settle()
        wanted = self._wanted
        return frozenset(self._store.memories.ask(lambda memories, _: memories.ids(wanted, limit)))

    @property
    def _wanted(self) -> MemoryFilter:
        """The same filters as the memory view takes them, whatever is true at the moment."""
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
    def _left_out(self) -> Hits:
        """What was found and does not pass, with how well it matches."""
        match self._request.mode:
            case "keyword":
                found = self._by_words
            case "semantic":
                found = self._by_meaning
            case "graph":
                found = self._by_ways
            case "hybrid":
                near = self._similarities(key for key in self._by_words if key in self._judge.why)
                matches = fusion.weighted(self._by_words, self._by_meaning | near, self._alpha, self._top)
                found = {key: match.score for key, match in matches.items()}
        return {key: score for key, score in found.items() if key in self._judge.why}

    # From entity to entity

    def _from_entities(self, wanted: int) -> list[Recalled]:
        starts, fitting = self._starts(), self._fitting
        self._judge.unfiltered = fitting is None
        enough = (
            len(self._judge.passing(fitting))
            if fitting is not None and len(fitting) <= MAX_MEMORIES_PER_ENTITY
            else MAX_NAMED_MEMORIES
        )
        best: dict[str, Recalled] = {}
        least = 0.0
        for way in ways(starts, self._about.related, max(1, self._request.depth)):
            # No memory is worth more than the way to its entity.
            if least > way.strength or len(best) >= enough:
                break
            for reached in self._reached(way, fitting):
                for each in reached:
                    if each.id not in best or each.score > best[each.id].score:
                        best[each.id] = each
                if len(best) >= wanted:
                    least = heapq.nlargest(wanted, (each.score for each in best.values()))[-1]
                if reached and least > reached[-1].match:
                    break
        near = self._similarities(best)
        found = in_order(best.values(), self._judge.standing)
        found.sort(key=lambda each: (-each.score, -near.get(each.id, -1.0)))
        return [msgspec.structs.replace(each, semantic=near.get(each.id)) for each in found]

    def _starts(self) -> dict[str, float]:
        if self._entity is not None:
            return {self._entity: 1.0}
        possible = possible_names(self._request.query)
        if named := named_in(possible, self._about.known(possible)):
            return dict.fromkeys(named, 1.0)
        words = self._words(fusion.POOL_SIZE)
        best = self._relevant(self._joined(words, self._meaning(fusion.POOL_SIZE)), words, {})[:MAX_RECALL_STARTS]
        starts: dict[str, float] = {}
        entities = self._about.entities([each.id for each in best])
        for each in best:
            for entity in entities.get(each.id, ()):
                starts[entity.id] = max(starts.get(entity.id, 0.0), each.score * min(max(entity.relevance, 0.0), 1.0))
        return starts

    @cached_property
    def _fitting(self) -> frozenset[str] | None:
        """Those that pass, where the memory view can tell and they are not too many; else None."""
        only = msgspec.structs.replace(self._only, valid_at=None)
        filtered = bool(only.tags) or only.names_some or only.created is not None
        filtered = filtered or only.layers is not None or only.sources is not None or bool(self._under)
        if not self.searched.reader.has_memory_index or self._request.metadata or not filtered:
            return None
        fitting = self.searched.indexes.passing(only, MAX_NAMED_MEMORIES)
        return None if fitting is None else frozenset(fitting)

    def _reached(self, way: RecallPath, fitting: frozenset[str] | None) -> Iterator[list[Recalled]]:
        """The memories of an entity that pass, some at a time: those first that may be worth the most."""
        memories = self._about.memories(way.entity)
        if fitting is not None:
            memories = NodeWeights(memories.among(fitting))
        passed = 0
        for relevances in islice(memories.slices(_JUDGE_BATCH_SIZE), self._most_slices):
            for key, relevance in relevances.items():
                self._by_ways[key] = max(self._by_ways.get(key, 0.0), way.strength * relevance)
            passing = self._judge.passing(relevances)
            passed += len(passing)
            yield [by_way(key, way, relevances[key], self._judge.standing[key].confidence) for key in passing]
            if passed >= MAX_MEMORIES_PER_ENTITY:
                break

    @property
    def _most_slices(self) -> int:
        most = MAX_NAMED_MEMORIES if self.searched.reader.has_memory_index else MAX_MEMORIES_PER_ENTITY
        return -(-most // _JUDGE_BATCH_SIZE)

    # Answers

    def shown(self, hits: Sequence[Recalled], page: RecallPage) -> list[RecalledMemory]:
        """Hits of a page as callers see them."""
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
        found: Recalled,
        row: NodeRow,
        access: Access | None,
        entities: Sequence[MemoryEntity],
        parent: str | None,
    ) -> RecalledMemory:
        memory = Memory(**fields_of(half_lives_of(self._settings), row, access, entities, self.now, parent))
        values = {name: getattr(memory, name) for name in Memory.__struct_fields__}
        scores: dict[str, Any] = {
            "keyword_score": found.keyword,
            "semantic_score": found.semantic,
            "hops": found.hops,
            "via": found.via,
            "relation": found.relation,
            "why": found.why if self._request.explain else None,
        }
        told = {name: score for name, score in scores.items() if score is not None}
        return RecalledMemory(**values, score=found.score, **told)


def count_use(memory: RecalledMemory, used: Access | None) -> None:
    """Say what a use has made of a memory."""
    if used is not None:
        memory.confidence, memory.access_count = used.confidence, used.count
        memory.last_accessed_at = format_time(used.last)
