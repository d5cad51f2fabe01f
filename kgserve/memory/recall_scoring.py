"""Pure functions of recall: ranking, counts of withheld memories, and paths between entities.

Keyword or vector search alone ranks by BM25 or cosine. Hybrid search adds both. Graph search multiplies the strengths
of the relations on a path. Both are multiplied by the effective confidence of the memory.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from kgserve.graph.search.score_fusion import EntityMatchScores, GraphProximityBoost
from kgserve.platform.text.function_and_content_words import FUNCTION_WORDS
from kgserve.projections.memory_index.built_in_relation_types import RELATION_NEXT
from kgserve.storage.model.entity_names import normalize_entity_name

MAX_SPREAD_ENTITIES = 300
"""Maximum number of entities that are visited, nearest first."""
MAX_QUERY_WORDS = 64
"""Number of leading words of a query in which names are searched."""
_MAX_NAME_WORDS = 6
_MIN_NAME_CHARS = 3
_PUNCTUATION = ".,;:!?()[]{}\"'\u00ab\u00bb\u201c\u201d\u2018\u2019"


class ScoredMemory(msgspec.Struct, frozen=True):
    """A memory that matches: `score` is the sort key, `match` the score without its confidence.

    `keyword` and `semantic` are the scores of the two indexes. `hops` is the distance of the entity that led to it, or
    of the memory `via` that boosted it; `relation` is its relation to that memory.
    """

    id: str
    score: float
    match: float
    keyword: float | None = None
    semantic: float | None = None
    hops: int | None = None
    why: str = ""
    via: str | None = None
    relation: str | None = None


MIN_TOP_KEYWORD_SCORE = 4.0
"""Minimum scale of keyword scores: in a store of a dozen memories every word is rare."""
SUPERSEDED_WEIGHT = 0.7
"""Weight of the score of superseded memories."""


class MemoryConfidenceAndImportance(NamedTuple):
    """Effective confidence of a memory, and its importance, which breaks ties."""

    confidence: float
    importance: float


def rank_memories(
    found: Iterable[ScoredMemory], passed: Mapping[str, MemoryConfidenceAndImportance]
) -> list[ScoredMemory]:
    """Return the hits best first; ties are broken by importance, match and id."""
    return sorted(found, key=lambda each: (-each.score, -passed[each.id].importance, -each.match, each.id))


def to_scored_memories(scores: Mapping[str, float], *, by_words: bool) -> list[ScoredMemory]:
    """Convert one index's scores by memory id to scored memories, in the same order."""
    label = "words" if by_words else "meaning"
    return [
        ScoredMemory(
            key, score, score, score if by_words else None, None if by_words else score, why=f"{label} {score:.2f}"
        )
        for key, score in scores.items()
    ]


def downrank_superseded_memories(found: Sequence[ScoredMemory], superseded: Collection[str]) -> list[ScoredMemory]:
    """Return the hits ordered by score, with lower scores for superseded memories."""
    return sorted(
        (
            msgspec.structs.replace(each, score=each.score * SUPERSEDED_WEIGHT) if each.id in superseded else each
            for each in found
        ),
        key=lambda each: -each.score,
    )


def fuse_keyword_and_vector_scores(
    matches: Mapping[str, EntityMatchScores],
    words: Mapping[str, float],
    meaning: Mapping[str, float],
    passed: Mapping[str, MemoryConfidenceAndImportance],
    gains: Mapping[str, tuple[GraphProximityBoost, ...]],
) -> list[ScoredMemory]:
    """Return the combined hits of both indexes, best first. ``gains`` are those of turns from turns near them."""
    found: list[ScoredMemory] = []
    for key, match in matches.items():
        near, confidence = gains.get(key, ()), passed[key].confidence
        score = match.score + sum(gain.amount for gain in near)
        hit = ScoredMemory(key, score * confidence, score, words.get(key), meaning.get(key), why=_why(match, near))
        if near:
            hit = msgspec.structs.replace(hit, via=near[0].via, relation=RELATION_NEXT, hops=near[0].hops)
        found.append(msgspec.structs.replace(hit, why=f"{hit.why}, times confidence {confidence:.2f}"))
    return rank_memories(found, passed)


def _why(match: EntityMatchScores, near: Sequence[GraphProximityBoost]) -> str:
    parts = [f"words {match.keyword:.2f}"] if match.keyword else []
    parts += [f"meaning {match.semantic:.2f}"] if match.semantic else []
    parts += [f"tokens {match.tokens:.2f}"] if match.tokens else []
    parts += [f"{gain.hops} turn{'s'[: gain.hops - 1]} from {gain.via}" for gain in near]
    return ", ".join(parts) or "nothing in common"


def count_withheld_memories(
    shown: Sequence[ScoredMemory], wanted: int, left_out: Mapping[str, float], why: Mapping[str, str]
) -> dict[str, int]:
    """Return the number of withheld memories by reason that match at least as well as the last hit shown.

    `left_out` maps ids to match scores. If fewer hits are shown than wanted, all withheld memories count.
    """
    least = min((each.match for each in shown), default=0.0) if len(shown) >= wanted else -1.0
    counts = Counter(why[key] for key, match in left_out.items() if match >= least)
    return dict(sorted(counts.items()))


# Paths between entities


class ReachedEntity(NamedTuple):
    """A reachable entity, the product of the strengths of the relations on the path, and their number."""

    entity: str
    strength: float
    hops: int


def score_memory_by_entity_path(memory: str, way: ReachedEntity, relevance: float, confidence: float) -> ScoredMemory:
    """Score a memory of a reached entity by the path to the entity, the memory's relevance and its confidence."""
    match = way.strength * relevance
    why = f"{way.hops} hop{'s'[: way.hops != 1]} to {way.entity}: path {way.strength:.2f}, relevance {relevance:.2f}"
    return ScoredMemory(
        memory, match * confidence, match, hops=way.hops, why=f"{why}, times confidence {confidence:.2f}"
    )


RelatedFunction = Callable[[str], Iterable[tuple[str, float]]]
"""Function that returns the related entities of an entity, with the strength of each relation, 0 to 1."""


def iterate_entities_by_path_strength(
    starts: Mapping[str, float], related: RelatedFunction, depth: int
) -> Iterator[ReachedEntity]:
    """Yield the entities within `depth` relations of the starts, each by its strongest path, strongest first."""
    queue = [(-strength, 0, entity) for entity, strength in starts.items() if strength > 0.0]
    heapq.heapify(queue)
    fewest: dict[str, int] = {}
    while queue and len(fewest) <= MAX_SPREAD_ENTITIES:
        negative, hops, entity = heapq.heappop(queue)
        # A weaker path reaches further if it has fewer relations.
        if hops >= fewest.get(entity, depth + 1):
            continue
        if entity not in fewest:
            yield ReachedEntity(entity, -negative, hops)
        fewest[entity] = hops
        if hops < depth:
            for other, worth in related(entity):
                if worth > 0.0 and hops + 1 < fewest.get(other, depth + 1):
                    heapq.heappush(queue, (negative * worth, hops + 1, other))


def list_query_name_candidates(query: str) -> list[str]:
    """Return the word sequences of a query that may be names: up to six words, folded, longest first.

    Function words alone and names of fewer than three letters are omitted.
    """
    words = [word.strip(_PUNCTUATION) for word in query.split()[:MAX_QUERY_WORDS]]
    words = [normalize_entity_name(word.removesuffix("'s").removesuffix("\u2019s")) for word in words]
    rows = (
        " ".join(filter(None, words[first : first + length]))
        for length in range(_MAX_NAME_WORDS, 0, -1)
        for first in range(len(words) - length + 1)
    )
    return [row for row in dict.fromkeys(rows) if len(row) >= _MIN_NAME_CHARS and row not in FUNCTION_WORDS]


def find_known_name_ids(possible: Sequence[str], known: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the ids of the known names in a text; a name inside a longer known name does not count."""
    found: dict[str, None] = {}
    matched: list[str] = []
    for name in possible:
        if known.get(name) and not any(f" {name} " in f" {longer} " for longer in matched):
            matched.append(name)
            found.update(dict.fromkeys(known[name]))
    return [*found]


MAX_TEXT_WORDS = 2_000
"""Number of leading words of a text in which names are searched."""
_WINDOW_OVERLAP_WORDS = 5
"""Overlap of two windows of a text, so that no name of up to six words is split."""


def list_text_name_candidates(text: str) -> list[str]:
    """Return the word sequences of a text that may be names, folded, longest first."""
    words = text.split(None, MAX_TEXT_WORDS)[:MAX_TEXT_WORDS]
    step = MAX_QUERY_WORDS - _WINDOW_OVERLAP_WORDS
    parts = (" ".join(words[first : first + MAX_QUERY_WORDS]) for first in range(0, max(len(words), 1), step))
    found = dict.fromkeys(name for part in parts for name in list_query_name_candidates(part))
    return sorted(found, key=lambda name: -name.count(" "))


def is_any_name_in_text(text: str, names: Iterable[str]) -> bool:
    """Return whether a text contains any of some names as whole words."""
    possible = frozenset(list_text_name_candidates(text))
    return any(normalize_entity_name(name) in possible for name in names)


MAX_BOOSTING_HITS = 10
"""Number of best memories that boost their neighbours."""
MAX_BOOSTED_PER_SOURCE = 8
"""Maximum number of children, and of memories of one entity, that are boosted: those nearest to the query."""
MAX_BOOSTING_ENTITIES = 20
"""Maximum number of entities that are looked up, of the best memories first."""
MAX_BOOSTING_RELATIONS = 32
"""Maximum number of relations of a memory that boosts its neighbours; more relations carry little information."""
PARENT_BOOST, CHILD_BOOST, SIBLING_BOOST, RELATION_BOOST = 0.5, 0.4, 0.3, 0.5

NeighbourKind = Literal["parent", "child", "sibling", "relation", "entity"]


_RELATION_PHRASES: dict[NeighbourKind, str] = {
    "parent": "parent of",
    "child": "child of",
    "sibling": "sibling of",
    "relation": "related to",
    "entity": "about the same as",
}


class NeighbourBoost(NamedTuple):
    """A boost from one memory to a neighbour: a share of the difference of their scores.

    A memory boosts its parent, children, siblings, related memories and those about the same entities. A neighbour
    takes only the largest boost and never ranks above the memory that gives it.
    """

    giver: str
    taker: str
    share: float
    kind: NeighbourKind
    hops: int
    type: str = ""

    @property
    def relation(self) -> str:
        """Relation of the receiver to the giver: the type of a relationship, or else the kind."""
        return self.type or self.kind


def compute_shared_entity_boost(memories: int) -> float:
    """Return the boost between memories about one entity, given the number of memories about it."""
    return 0.3 / math.log2(2 + memories)


def apply_neighbour_boosts(
    ranked: Sequence[ScoredMemory],
    gifts: Iterable[NeighbourBoost],
    own: Mapping[str, float],
    passed: Mapping[str, MemoryConfidenceAndImportance],
) -> list[ScoredMemory]:
    """Return the hits and boosted neighbours, best first; unboosted hits keep their order.

    `own` are the scores of neighbours that were not found. Neighbours that do not pass are omitted.
    """
    found = {each.id: each for each in ranked}
    boosted: dict[str, ScoredMemory] = {}
    for gift in gifts:
        if gift.taker not in passed or gift.taker == gift.giver or gift.giver not in found:
            continue
        self_ = found.get(gift.taker) or ScoredMemory(gift.taker, own.get(gift.taker, 0.0), 0.0)
        gain = gift.share * passed[gift.taker].confidence * (found[gift.giver].score - self_.score)
        score = self_.score + gain
        if gain > 0.0 and (gift.taker not in boosted or score > boosted[gift.taker].score):
            boosted[gift.taker] = _apply_boost(self_, gift, score)
    return _merge_ranked([each for each in ranked if each.id not in boosted], list(boosted.values()))


def _apply_boost(before: ScoredMemory, gift: NeighbourBoost, score: float) -> ScoredMemory:
    reason = f"{_RELATION_PHRASES[gift.kind]} {gift.giver}: {score - before.score:+.2f}"
    why = f"{before.why}, {reason}" if before.why else reason
    match = before.match or score
    return msgspec.structs.replace(
        before, score=score, match=match, via=gift.giver, hops=gift.hops, why=why, relation=gift.relation
    )


def _merge_ranked(kept: Sequence[ScoredMemory], boosted: Sequence[ScoredMemory]) -> list[ScoredMemory]:
    """Insert each boosted hit before the first unboosted one with a lower score."""
    waiting = sorted(boosted, key=lambda each: (each.score, each.id))
    order: list[ScoredMemory] = []
    for each in kept:
        while waiting and waiting[-1].score > each.score:
            order.append(waiting.pop())
        order.append(each)
    return order + waiting[::-1]
