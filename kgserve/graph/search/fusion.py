"""From the scores of words and the similarities of meanings to one ranking that also knows the graph.

The order of a hybrid search is made in three steps, all pure:

1. `weighted` (or `reciprocal`) puts both lists together.
2. `spread` lets a match lift what is related to it part of the way up to its own score: in a graph of turns, events or
   notes the answer is often one relation away from the text that shares the question's words.
3. `rank` puts everything in order and keeps the parts, so that each hit can say why it is there.

Before that, `word_weights` says what each word of a query is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

KEYWORD_WEIGHT = 0.4
RRF_K = 60.0
POOL_SIZE = 100
"""How deep each of the two lists is read, at least: far below the last hit shown, so that what is good in both is
found although it is first in neither."""
POOL_SIZES = (POOL_SIZE, 10 * POOL_SIZE, 110 * POOL_SIZE)
"""Depths of the two lists: later pages are answered from deeper lists, and earlier pages keep their order."""
MAX_SEEDS = 10
"""Matches whose relations are looked up."""
MAX_REACHED = 10
"""Entities one relation away whose own relations are looked up, at most."""
HUB_DEGREE = 32
"""More relations than this say nothing about any one of them: such an entity is passed over."""
DEFAULT_DECAY = 0.5
MAX_DECAY = 0.6
DEFAULT_HOPS = 2

Neighbours = Mapping[str, Collection[tuple[str, float]]]
"""For entities whose relations were looked up: the other ends, in either direction, with weights."""


class Match(msgspec.Struct, frozen=True):
    """An entity that words or meaning found. Parts are in 0..1, None where that list does not know the entity."""

    score: float
    keyword: float | None = None
    semantic: float | None = None


class Nearby(msgspec.Struct, frozen=True):
    """What a related match adds to an entity's score: how much, which, and how many relations away it is."""

    amount: float
    via: str
    hops: int


class Ranked(msgspec.Struct, frozen=True):
    """An entity at its place in a ranking: ``score`` is the match's plus what was nearby."""

    id: str
    score: float
    match: Match | None
    nearby: tuple[Nearby, ...] = ()

    @property
    def hops(self) -> int:
        """0 for an entity that matched by itself, else how many relations away the match is."""
        return 0 if self.match and self.match.score > 0.0 else min((near.hops for near in self.nearby), default=0)

    @property
    def why(self) -> str:
        """The parts of the score, for people: "words 0.87, meaning 0.52, 1 hop from D1:3 (+0.31)"."""
        parts: list[str] = []
        if self.match and self.match.keyword:
            parts.append(f"words {self.match.keyword:.2f}")
        if self.match and self.match.semantic is not None and self.match.semantic > 0.0:
            parts.append(f"meaning {self.match.semantic:.2f}")
        parts += (f"{near.hops} hop{'s'[: near.hops - 1]} from {near.via} (+{near.amount:.2f})" for near in self.nearby)
        return ", ".join(parts)


def weighted(
    keyword: Mapping[str, float], semantic: Mapping[str, float], alpha: float = KEYWORD_WEIGHT, top: float = 0.0
) -> dict[str, Match]:
    """Alpha times the keyword score plus the rest times the similarity, for every entity in either list.

    BM25 scores are brought to 0..1 by minimum and maximum, where the minimum is that of all entities and not that of
    the list: 0, for who holds none of the words. (With the list's own minimum its last entry would count as little as
    no match, and of two equally good hits one would count nothing.) ``top`` is a maximum from elsewhere, which counts
    if it is higher. Similarities are cosines; negative ones count 0.
    """
    top = max(top, max(keyword.values(), default=0.0))
    factor = 1.0 / top if top > 0.0 else 0.0
    return {
        key: _match(keyword[key] * factor if key in keyword else None, semantic.get(key), alpha)
        for key in dict.fromkeys((*keyword, *semantic))
    }


def _match(keyword: float | None, semantic: float | None, alpha: float) -> Match:
    similarity = None if semantic is None else min(max(semantic, 0.0), 1.0)
    return Match(alpha * (keyword or 0.0) + (1.0 - alpha) * (similarity or 0.0), keyword, similarity)


def reciprocal(rankings: Iterable[Sequence[str]], k: float = RRF_K) -> dict[str, float]:
    """Reciprocal rank fusion: the sum of 1 / (k + rank) over the rankings that hold an id, ranks from 1.

    In falling order; ties in the order of first appearance. An id that a ranking holds twice counts at its first place.
    """
    scores: dict[str, float] = {}
    for ranking in rankings:
        for place, key in enumerate(dict.fromkeys(ranking), 1):
            scores[key] = scores.get(key, 0.0) + 1.0 / (k + place)
    return dict(sorted(scores.items(), key=lambda item: -item[1]))


def reciprocal_matches(keyword: Mapping[str, float], semantic: Mapping[str, float]) -> dict[str, Match]:
    """Both lists put together by `reciprocal`, scaled so that the first place in both is 1; parts as in `weighted`."""
    parts = weighted(keyword, semantic)
    scores = reciprocal((strongest(keyword, len(keyword)), strongest(semantic, len(semantic))))
    scale = (RRF_K + 1.0) / 2.0
    return {key: Match(score * scale, parts[key].keyword, parts[key].semantic) for key, score in scores.items()}


def strongest(scores: Mapping[str, float], count: int) -> list[str]:
    """The ids with the highest scores, highest first; ties in the mapping's order."""
    return sorted(scores, key=lambda key: -scores[key])[:count]


def spread(
    scores: Mapping[str, float], neighbours: Neighbours, decay: float = DEFAULT_DECAY, hops: int = DEFAULT_HOPS
) -> dict[str, tuple[Nearby, ...]]:
    """What each entity gains from the best match exactly one, and exactly two relations away.

    It gains ``decay`` per hop times what the match has more than itself, the match's score first multiplied with the
    weights of the relations on the way, each taken into 0..1. So nothing rises above the match that lifts it, and the
    best match of all stays the best: relations bring answers up, and do not put the better match down. Only the best
    giver counts, not the sum: many relations are no advantage. Entities with more than HUB relations neither give nor
    take nor lead further. ``decay`` is at most 0.6, beyond which two gains could exceed both givers.
    """
    if not 0.0 <= decay <= MAX_DECAY or hops not in (0, 1, 2):
        raise ValueError(f"decay {decay} is not within 0..{MAX_DECAY}, or {hops} hops are not 0, 1 or 2")
    links = both_ways(neighbours) if hops else {}
    first = {key: best for key, around in links.items() if (best := _best_of(scores, around))}
    second = _second_hop(scores, links) if hops > 1 else {}
    found: dict[str, tuple[Nearby, ...]] = {}
    for key in first.keys() | second.keys():
        own, givers = scores.get(key, 0.0), ((first.get(key), 1), (second.get(key), 2))
        gains = ((best[0], decay**hop * (best[1] - own), hop) for best, hop in givers if best)
        near = tuple(Nearby(amount, via, hop) for via, amount, hop in gains if amount > 0.0)
        if near:
            found[key] = near
    return found


_Giver = tuple[str, float]


def both_ways(neighbours: Neighbours) -> dict[str, dict[str, float]]:
    """Relations in both directions, each pair with its strongest weight; hubs and loops are left out."""
    hubs = {key for key, around in neighbours.items() if len({other for other, _ in around}) > HUB_DEGREE}
    links: dict[str, dict[str, float]] = {}
    for key in neighbours.keys() - hubs:
        own = links.setdefault(key, {})
        for other, weight in neighbours[key]:
            near = min(weight, 1.0)
            if near > own.get(other, 0.0) and key != other and other not in hubs:
                own[other] = near
                links.setdefault(other, {})[key] = near
    return links


def _best_of(scores: Mapping[str, float], around: Mapping[str, float]) -> _Giver | None:
    """The neighbour that gives most, if any gives anything; among equals the first by id."""
    best, most = None, 0.0
    for other, weight in around.items():
        value = weight * scores.get(other, 0.0)
        if value > most or (best is not None and value == most and other < best):
            best, most = other, value
    return None if best is None else (best, most)


def _second_hop(scores: Mapping[str, float], links: Mapping[str, Mapping[str, float]]) -> dict[str, _Giver]:
    """For each entity the best giver exactly two relations away.

    Every middle offers its ends, best first, to its ends; the first that is not the receiver or related to it is the
    best that this middle has, so hardly more than one is looked at.
    """
    best: dict[str, _Giver] = {}
    for around in links.values():
        givers = ((other, weight * scores.get(other, 0.0)) for other, weight in around.items())
        # Most ends match nothing, and have nothing to give.
        offers = sorted((giver for giver in givers if giver[1] > 0.0), key=_falling)
        for receiver, weight in around.items() if offers else ():
            near = links[receiver]
            for giver, value in offers:
                if giver != receiver and giver not in near:
                    if (-value * weight, giver) < _falling(best.get(receiver, ("", 0.0))):
                        best[receiver] = (giver, value * weight)
                    break
    return best


def _falling(giver: _Giver) -> tuple[float, str]:
    return -giver[1], giver[0]


def rank(matches: Mapping[str, Match], nearby: Mapping[str, tuple[Nearby, ...]] | None = None) -> list[Ranked]:
    """Everything that matched or lies near, best first; ties: those that matched better by themselves, then by id."""
    near = nearby or {}
    ranked = [_ranked(key, matches.get(key), near.get(key, ())) for key in dict.fromkeys((*matches, *near))]
    return sorted(ranked, key=lambda hit: (-hit.score, -(hit.match.score if hit.match else 0.0), hit.id))


def _ranked(key: str, match: Match | None, nearby: tuple[Nearby, ...]) -> Ranked:
    own = match.score if match else 0.0
    return Ranked(key, own + sum(near.amount for near in nearby) if nearby else own, match, nearby)


def look_around(
    scores: Mapping[str, float],
    look_up: Callable[[Sequence[str]], Neighbours],
    most_seeds: int = MAX_SEEDS,
    most_reached: int = MAX_REACHED,
) -> dict[str, list[_Giver]]:
    """The relations that `spread` needs: of the strongest, then of what they reach, at most so many.

    ``look_up`` answers with the neighbours of some entities, at most HUB + 1 each; it is called twice at the most.
    """
    found: dict[str, list[_Giver]] = {}
    seeds = strongest(scores, most_seeds)
    found.update((key, list(around)) for key, around in look_up(seeds).items())
    # By the rank of the seed that reaches them, in turns, so that no seed with many relations takes all the room.
    reached = [other for around in _in_turns([found.get(seed, []) for seed in seeds]) for other, _ in around]
    new = [key for key in dict.fromkeys(reached) if key not in found][:most_reached]
    if new:
        found.update((key, list(around)) for key, around in look_up(new).items())
    return found


def _in_turns(lists: Sequence[Sequence[_Giver]]) -> Iterable[list[_Giver]]:
    """The first two of every list that is not a hub's, the next two of every list, and so on."""
    usable = [entries for entries in lists if len(entries) <= HUB_DEGREE]
    return ([*entries[at : at + 2]] for at in range(0, HUB_DEGREE, 2) for entries in usable)


def paths(
    starts: Mapping[str, float], neighbours: Neighbours, decay: float = DEFAULT_DECAY
) -> dict[str, tuple[float, int]]:
    """Strength and length of the ways from the starts to each entity within ``neighbours``, starts included.

    The strength is that of the best way: its start's times, per relation, ``decay`` and the weight taken into 0..1. The
    length is that of the shortest, for that is how far away an entity is, whichever way carries most.
    """
    best = {key: (strength, 0) for key, strength in starts.items()}
    level = list(starts)
    hop = 0
    while level:
        hop += 1
        gained: dict[str, None] = {}
        for key in level:
            for other, weight in neighbours.get(key, ()):
                strength = best[key][0] * decay * min(max(weight, 0.0), 1.0)
                known = best.get(other)
                if known is None or strength > known[0]:
                    best[other] = (strength, known[1] if known else hop)
                    gained[other] = None
        level = list(gained)
    return best
