"""Recalling memories, what is pure in it: their order, what was left out, and the ways from entity to entity.

By words or by meaning alone, memories come in the order of BM25 or cosine. Both together give a sum, and what is found
from entity to entity a product of what the relations on the way are worth; these two are multiplied with what is left
of the memory's confidence.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from kgserve.graph.search.fusion import DEFAULT_DECAY, Match, Neighbours, both_ways, spread
from kgserve.platform.text.words import FUNCTION_WORDS
from kgserve.projections.memory_index.relation_types import RELATION_NEXT
from kgserve.storage.model.names import folded

MAX_SPREAD_ENTITIES = 300
"""So many entities are gone through, at most, the nearest first."""
MAX_QUERY_WORDS = 64
"""So far into a query names are looked for."""
_MAX_NAME_WORDS = 6
_MIN_NAME_CHARS = 3
_PUNCTUATION = ".,;:!?()[]{}\"'\u00ab\u00bb\u201c\u201d\u2018\u2019"


class Recalled(msgspec.Struct, frozen=True):
    """A memory that fits: ``score`` is what it is sorted by, ``match`` what it is without its confidence.

    ``keyword`` and ``semantic`` are the scores of the two indexes, ``hops`` how far away the entity is that led to it,
    or the memory ``via`` which it has a part of its score, and ``relation`` what it is to that memory.
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
"""A best score of words below this is taken for this: among a dozen memories any word is rare."""
SUPERSEDED_WEIGHT = 0.7
"""What counts of a memory that was superseded, where such are shown."""


class MemoryScoreInputs(NamedTuple):
    """What else decides: what is left of a memory's confidence, and its importance, which tells equals apart."""

    confidence: float
    importance: float


def in_order(found: Iterable[Recalled], standing: Mapping[str, MemoryScoreInputs]) -> list[Recalled]:
    """Best first; of equals the more important, then the better match, then by id."""
    return sorted(found, key=lambda each: (-each.score, -standing[each.id].importance, -each.match, each.id))


def plain(scores: Mapping[str, float], *, by_words: bool) -> list[Recalled]:
    """What one index has found, in its order."""
    said = "words" if by_words else "meaning"
    return [
        Recalled(key, score, score, score if by_words else None, None if by_words else score, why=f"{said} {score:.2f}")
        for key, score in scores.items()
    ]


def with_past(found: Sequence[Recalled], superseded: Collection[str]) -> list[Recalled]:
    """The same with less of the scores of those that were superseded, in the order of scores."""
    return sorted(
        (
            msgspec.structs.replace(each, score=each.score * SUPERSEDED_WEIGHT) if each.id in superseded else each
            for each in found
        ),
        key=lambda each: -each.score,
    )


def joined(
    matches: Mapping[str, Match],
    words: Mapping[str, float],
    meaning: Mapping[str, float],
    standing: Mapping[str, MemoryScoreInputs],
) -> list[Recalled]:
    """What both indexes have found together, best first."""
    found = [
        Recalled(
            key,
            match.score * standing[key].confidence,
            match.score,
            words.get(key),
            meaning.get(key),
            why=_why(match, standing[key].confidence),
        )
        for key, match in matches.items()
    ]
    return in_order(found, standing)


def _why(match: Match, confidence: float) -> str:
    parts = [f"words {match.keyword:.2f}"] if match.keyword else []
    parts += [f"meaning {match.semantic:.2f}"] if match.semantic else []
    return f"{', '.join(parts) or 'nothing in common'}, times confidence {confidence:.2f}"


def withheld(
    shown: Sequence[Recalled], wanted: int, left_out: Mapping[str, float], why: Mapping[str, str]
) -> dict[str, int]:
    """How many memories were left out, by why, that match no worse than the last of those that are shown.

    ``left_out`` is how well they match. Where fewer are shown than are wanted, all of them count.
    """
    least = min((each.match for each in shown), default=0.0) if len(shown) >= wanted else -1.0
    counts = Counter(why[key] for key, match in left_out.items() if match >= least)
    return dict(sorted(counts.items()))


# From entity to entity


class RecallPath(NamedTuple):
    """An entity that can be reached: the product of what the relations on the way are worth, and how many they are."""

    entity: str
    strength: float
    hops: int


def by_way(memory: str, way: RecallPath, relevance: float, confidence: float) -> Recalled:
    """A memory of an entity that was reached."""
    match = way.strength * relevance
    why = f"{way.hops} hop{'s'[: way.hops != 1]} to {way.entity}: way {way.strength:.2f}, relevance {relevance:.2f}"
    return Recalled(memory, match * confidence, match, hops=way.hops, why=f"{why}, times confidence {confidence:.2f}")


Related = Callable[[str], Iterable[tuple[str, float]]]
"""The entities that an entity is related to, and what each relation is worth, 0 to 1."""


def ways(starts: Mapping[str, float], related: Related, depth: int) -> Iterator[RecallPath]:
    """The entities within so many relations of the starts, each by its strongest way, the strongest first."""
    queue = [(-strength, 0, entity) for entity, strength in starts.items() if strength > 0.0]
    heapq.heapify(queue)
    fewest: dict[str, int] = {}
    while queue and len(fewest) <= MAX_SPREAD_ENTITIES:
        negative, hops, entity = heapq.heappop(queue)
        # A weaker way leads further where it has fewer relations.
        if hops >= fewest.get(entity, depth + 1):
            continue
        if entity not in fewest:
            yield RecallPath(entity, -negative, hops)
        fewest[entity] = hops
        if hops < depth:
            for other, worth in related(entity):
                if worth > 0.0 and hops + 1 < fewest.get(other, depth + 1):
                    heapq.heappush(queue, (negative * worth, hops + 1, other))


def possible_names(query: str) -> list[str]:
    """What in a query may be a name: up to six words in a row as they are compared, the longest first.

    No function words alone, and nothing of fewer than three letters.
    """
    words = [word.strip(_PUNCTUATION) for word in query.split()[:MAX_QUERY_WORDS]]
    words = [folded(word.removesuffix("'s").removesuffix("\u2019s")) for word in words]
    rows = (
        " ".join(filter(None, words[first : first + length]))
        for length in range(_MAX_NAME_WORDS, 0, -1)
        for first in range(len(words) - length + 1)
    )
    return [row for row in dict.fromkeys(rows) if len(row) >= _MIN_NAME_CHARS and row not in FUNCTION_WORDS]


def named_in(possible: Sequence[str], known: Mapping[str, Sequence[str]]) -> list[str]:
    """The ids of what is named: of names within longer ones the longer count."""
    found: dict[str, None] = {}
    taken: list[str] = []
    for name in possible:
        if known.get(name) and not any(f" {name} " in f" {longer} " for longer in taken):
            taken.append(name)
            found.update(dict.fromkeys(known[name]))
    return [*found]


MAX_TEXT_WORDS = 2_000
"""So far into a text names are looked for."""
_WINDOW_OVERLAP_WORDS = 5
"""A name has six words at most, so none is lost between two parts of a text."""


def possible_names_of(text: str) -> list[str]:
    """What in a text may be a name, as names are compared, the longest first."""
    words = text.split(None, MAX_TEXT_WORDS)[:MAX_TEXT_WORDS]
    step = MAX_QUERY_WORDS - _WINDOW_OVERLAP_WORDS
    parts = (" ".join(words[first : first + MAX_QUERY_WORDS]) for first in range(0, max(len(words), 1), step))
    found = dict.fromkeys(name for part in parts for name in possible_names(part))
    return sorted(found, key=lambda name: -name.count(" "))


def names_any(text: str, names: Iterable[str]) -> bool:
    """Whether a text has any of some names, as whole words."""
    possible = frozenset(possible_names_of(text))
    return any(folded(name) in possible for name in names)


SEEDS, REACHED = 15, 30
"""So many of the best memories, and of the turns beside them, are asked what is said before and behind them."""
QUESTION_WEIGHT = 0.9
"""What counts of a turn that asks: what is wanted is the answer."""

Worths = Mapping[str, Mapping[str, float]]
"""For each of some turns what the words of the query that it says are worth."""


def carried(words: Mapping[str, float], worths: Worths, turns: Neighbours) -> dict[str, float]:
    """BM25 scores in which a turn has of each word the most of what it says itself and what those around it say.

    What is said one turn away counts half, two turns away a quarter.
    """
    links, found = both_ways(turns), dict(words)
    for turn, own in worths.items():
        heard = dict(own)
        for other, share in _around(links, turn):
            for word, worth in worths.get(other, {}).items():
                heard[word] = max(heard.get(word, 0.0), share * worth)
        said = sum(own.values())
        score = words.get(turn, said) + sum(heard.values()) - said
        if score > 0.0:
            found[turn] = score
    return found


def _around(links: Mapping[str, Mapping[str, float]], turn: str) -> Iterator[tuple[str, float]]:
    """Those one and two turns away, and how much of their words counts."""
    for near, weight in links.get(turn, {}).items():
        yield near, DEFAULT_DECAY * weight
        yield from (
            (far, DEFAULT_DECAY * weight * DEFAULT_DECAY * more)
            for far, more in links.get(near, {}).items()
            if far != turn
        )


def in_conversation(
    found: Sequence[Recalled],
    turns: Neighbours,
    standing: Mapping[str, MemoryScoreInputs],
    asking: Collection[str] = (),
) -> list[Recalled]:
    """What was found, best first, each turn with what it gains from better ones around it; those that ask count less.

    Nothing comes above the turn from which it gains.
    """
    nearby = spread({each.id: each.score for each in found}, turns)
    made: list[Recalled] = []
    for each in found:
        near = nearby.get(each.id, ())
        share = QUESTION_WEIGHT if each.id in asking else 1.0
        if near or share < 1.0:
            gain = sum(one.amount for one in near)
            told = (f"{one.hops} turn{'s'[: one.hops - 1]} from {one.via}" for one in near)
            made.append(
                msgspec.structs.replace(
                    each,
                    score=share * (each.score + gain * standing[each.id].confidence),
                    match=share * (each.match + gain),
                    via=near[0].via if near else None,
                    relation=RELATION_NEXT if near else None,
                    hops=near[0].hops if near else None,
                    why=", ".join((each.why, *told, *(("asks",) if share < 1.0 else ()))),
                )
            )
        else:
            made.append(each)
    return in_order(made, standing)


MAX_GIVERS = 10
"""So many of the best memories give."""
MAX_NEAREST_RECEIVERS = 8
"""Of the children of one memory, and of those about one entity, so many take: the nearest to the query."""
MAX_GIVING_ENTITIES = 20
"""So many entities are looked up, of the best memories first."""
MAX_GIVER_RELATIONS = 32
"""A memory with more relations gives nothing by them: none of so many says much."""
PARENT, CHILD, SIBLING, RELATION = 0.5, 0.4, 0.3, 0.5

Kind = Literal["parent", "child", "sibling", "relation", "entity"]


_RELATION_PHRASES: dict[Kind, str] = {
    "parent": "parent of",
    "child": "child of",
    "sibling": "sibling of",
    "relation": "related to",
    "entity": "about the same as",
}


class Boost(NamedTuple):
    """What one memory gives to another: which part of what that lacks.

    What stands beside the best memories is worth a part of what they are. A giver gives to its parent, its children,
    its siblings, what it is related to, and what is about the same. A memory takes from one giver alone, the one that
    gives most, and never comes above it.
    """

    giver: str
    taker: str
    share: float
    kind: Kind
    hops: int
    type: str = ""

    @property
    def relation(self) -> str:
        """How the taker is related to the giver: the type of a relationship, else the kind."""
        return self.type or self.kind


def by_entity(memories: int) -> float:
    """What memories give that are about the same, by how many are about it."""
    return 0.3 / math.log2(2 + memories)


def expanded(
    ranked: Sequence[Recalled],
    gifts: Iterable[Boost],
    own: Mapping[str, float],
    standing: Mapping[str, MemoryScoreInputs],
) -> list[Recalled]:
    """What was found, best first, with what else takes from it; what takes nothing keeps its order.

    ``own`` is what those are worth by themselves that were not found. Those that do not stand are left out.
    """
    found = {each.id: each for each in ranked}
    taken: dict[str, Recalled] = {}
    for gift in gifts:
        if gift.taker not in standing or gift.taker == gift.giver or gift.giver not in found:
            continue
        self_ = found.get(gift.taker) or Recalled(gift.taker, own.get(gift.taker, 0.0), 0.0)
        gain = gift.share * standing[gift.taker].confidence * (found[gift.giver].score - self_.score)
        score = self_.score + gain
        if gain > 0.0 and (gift.taker not in taken or score > taken[gift.taker].score):
            taken[gift.taker] = _taken(self_, gift, score)
    return _among([each for each in ranked if each.id not in taken], list(taken.values()))


def _taken(before: Recalled, gift: Boost, score: float) -> Recalled:
    reason = f"{_RELATION_PHRASES[gift.kind]} {gift.giver}: {score - before.score:+.2f}"
    why = f"{before.why}, {reason}" if before.why else reason
    match = before.match or score
    return msgspec.structs.replace(
        before, score=score, match=match, via=gift.giver, hops=gift.hops, why=why, relation=gift.relation
    )


def _among(kept: Sequence[Recalled], taken: Sequence[Recalled]) -> list[Recalled]:
    """Each that has taken comes before the first of those that have not and are worth less."""
    waiting = sorted(taken, key=lambda each: (each.score, each.id))
    order: list[Recalled] = []
    for each in kept:
        while waiting and waiting[-1].score > each.score:
            order.append(waiting.pop())
        order.append(each)
    return order + waiting[::-1]
