"""Fusion of keyword and semantic scores with graph proximity into one ranking.

A hybrid search is ranked in three pure steps:

1. `fuse_scores_by_weighted_sum` (or `reciprocal_rank_fusion`) combines both lists.
2. `propagate_scores` propagates scores: a match raises related nodes part of the way towards its own score. In a graph
   of turns, events or notes, the answer is often one relation away from the text that shares the words of the question.
3. `rank_matches_with_proximity_boosts` sorts the result and keeps the parts of each score, to explain it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

KEYWORD_WEIGHT = 0.4
RRF_K = 60.0
MIN_FUSION_POOL_HITS = 100
"""Minimum number of hits read from each list.

It is much larger than a page, so that nodes that are good in both lists, but first in neither, are found.
"""
FUSION_POOL_HITS = (MIN_FUSION_POOL_HITS, 10 * MIN_FUSION_POOL_HITS, 110 * MIN_FUSION_POOL_HITS)
"""Numbers of hits read: later pages use longer lists, and earlier pages keep their order."""
MAX_PROPAGATION_SEEDS = 10
"""Matches whose relations are looked up."""
MAX_PROPAGATION_REACHED = 20
"""Entities one relation away whose own relations are looked up."""
MAX_PROPAGATION_DEGREE = 32
"""Entities with more relations are hubs, which do not propagate scores."""
DEFAULT_PROPAGATION_DECAY = 0.5
MAX_PROPAGATION_DECAY = 0.6
DEFAULT_PROPAGATION_HOPS = 2
MATCHED_SECOND_HOP_SHARE = 0.5
"""Share that a match gains from a better one two relations away, such as a text about the same entity."""

NeighbourWeights = Mapping[str, Collection[tuple[str, float]]]
"""Other ends of the relations of looked-up entities, in both directions, with weights."""


class EntityMatchScores(msgspec.Struct, frozen=True):
    """Scores of an entity found by keyword or semantic search, from 0 to 1; None where a list does not contain it."""

    score: float
    keyword: float | None = None
    semantic: float | None = None
    tokens: float | None = None
    """Late interaction: weighted mean over the tokens of the query, each 1 in the text that matches it best."""


class GraphProximityBoost(msgspec.Struct, frozen=True):
    """The amount that a related match adds to a score, the id of that match, and its distance in relations."""

    amount: float
    via: str
    hops: int


class RankedHit(msgspec.Struct, frozen=True):
    """An entity in a ranking: ``score`` is the match's score plus that propagated from related matches."""

    id: str
    score: float
    match: EntityMatchScores | None
    nearby: tuple[GraphProximityBoost, ...] = ()
    is_title: bool = False
    """True if the query is the entity's whole name, summary or id."""

    @property
    def hops(self) -> int:
        """Relations to the nearest match; 0 for an entity that matched directly."""
        return 0 if self.match and self.match.score > 0.0 else min((near.hops for near in self.nearby), default=0)

    @property
    def why(self) -> str:
        """The parts of the score as text, such as "words 0.87, meaning 0.52, 1 hop from D1:3 (+0.31)"."""
        parts = ["title"] if self.is_title else []
        if self.match and self.match.keyword:
            parts.append(f"words {self.match.keyword:.2f}")
        if self.match and self.match.semantic is not None and self.match.semantic > 0.0:
            parts.append(f"meaning {self.match.semantic:.2f}")
        if self.match and self.match.tokens:
            parts.append(f"tokens {self.match.tokens:.2f}")
        parts += (f"{near.hops} hop{'s'[: near.hops - 1]} from {near.via} (+{near.amount:.2f})" for near in self.nearby)
        return ", ".join(parts)


def fuse_scores_by_weighted_sum(
    keyword: Mapping[str, float], semantic: Mapping[str, float], alpha: float = KEYWORD_WEIGHT, top: float = 0.0
) -> dict[str, EntityMatchScores]:
    """Return alpha times the keyword score plus (1 - alpha) times the similarity, for each entity in either list.

    BM25 scores are normalized to 0..1 by their maximum, with 0 for entities that contain none of the words. The minimum
    of the list is not used as 0: its last entry would then count as little as no match. ``top`` is a maximum from
    elsewhere, used if it is higher. Similarities are cosines; negative ones count as 0.
    """
    top = max(top, max(keyword.values(), default=0.0))
    factor = 1.0 / top if top > 0.0 else 0.0
    rest = 1.0 - alpha
    matches: dict[str, EntityMatchScores] = {}
    for key in dict.fromkeys((*keyword, *semantic)):
        words, similarity = keyword.get(key), semantic.get(key)
        if words is not None:
            words *= factor
        if similarity is not None:
            similarity = 0.0 if similarity < 0.0 else min(similarity, 1.0)
        matches[key] = EntityMatchScores(alpha * (words or 0.0) + rest * (similarity or 0.0), words, similarity)
    return matches


def reciprocal_rank_fusion(rankings: Iterable[Sequence[str]], k: float = RRF_K) -> dict[str, float]:
    """Return reciprocal rank fusion scores: the sum of 1 / (k + rank) over the rankings that hold an id, ranks from 1.

    In descending order; ties keep the order of first appearance. A repeated id counts at its first rank.
    """
    scores: dict[str, float] = {}
    for ranking in rankings:
        for place, key in enumerate(dict.fromkeys(ranking), 1):
            scores[key] = scores.get(key, 0.0) + 1.0 / (k + place)
    return dict(sorted(scores.items(), key=lambda item: -item[1]))


def fuse_scores_by_reciprocal_rank(
    keyword: Mapping[str, float], semantic: Mapping[str, float]
) -> dict[str, EntityMatchScores]:
    """Combine both lists by `reciprocal_rank_fusion`, scaled so that first place in both is 1.

    The parts of a score are as in `fuse_scores_by_weighted_sum`.
    """
    parts = fuse_scores_by_weighted_sum(keyword, semantic)
    scores = reciprocal_rank_fusion((top_ids(keyword, len(keyword)), top_ids(semantic, len(semantic))))
    scale = (RRF_K + 1.0) / 2.0
    return {
        key: EntityMatchScores(score * scale, parts[key].keyword, parts[key].semantic) for key, score in scores.items()
    }


def top_ids(scores: Mapping[str, float], count: int) -> list[str]:
    """Return the ids with the highest scores, highest first; ties keep the mapping's order."""
    return sorted(scores, key=scores.__getitem__, reverse=True)[:count]


def propagate_scores(
    scores: Mapping[str, float],
    neighbours: NeighbourWeights,
    decay: float = DEFAULT_PROPAGATION_DECAY,
    hops: int = DEFAULT_PROPAGATION_HOPS,
    matched_share: float | None = None,
) -> dict[str, tuple[GraphProximityBoost, ...]]:
    """Return what each entity gains from its best match exactly one, and exactly two, relations away.

    The gain is ``decay`` per hop times the difference between the match's weighted score and the entity's own score.
    The weight is the product of the relation weights on the path, each clipped to 0..1. So no entity rises above the
    match that raises it, and the best match stays first. Only the best match counts, not the sum: many relations are no
    advantage. Entities with more than `MAX_PROPAGATION_DEGREE` relations neither give nor receive nor pass on scores.
    ``decay`` is at most 0.6; above that, two gains could exceed both givers. ``matched_share`` is the share of the
    second hop for entities with a score of their own, in place of that by ``decay``. Raises ValueError for values out
    of range.
    """
    if not 0.0 <= decay <= MAX_PROPAGATION_DECAY or hops not in (0, 1, 2):
        raise ValueError(f"decay must be within 0..{MAX_PROPAGATION_DECAY} and hops 0, 1 or 2, not {decay} and {hops}")
    links = symmetrize_neighbour_weights(neighbours) if hops else {}
    givers = {key: _list_givers(scores, around) for key, around in links.items()}
    second = _second_hop(links, givers) if hops > 1 else {}
    found: dict[str, tuple[GraphProximityBoost, ...]] = {}
    for key, offers in givers.items():
        own, near = scores.get(key, 0.0), ()
        if offers and (amount := decay * (offers[0][1] - own)) > 0.0:
            near = (GraphProximityBoost(amount, offers[0][0], 1),)
        if (best := second.get(key)) is not None:
            share = decay**2 if matched_share is None or own <= 0.0 else matched_share
            if (amount := share * (best[1] - own)) > 0.0:
                near = (*near, GraphProximityBoost(amount, best[0], 2))
        if near:
            found[key] = near
    return found


_Giver = tuple[str, float]


def symmetrize_neighbour_weights(neighbours: NeighbourWeights) -> dict[str, dict[str, float]]:
    """Return relations in both directions, each pair with its strongest weight; hubs and loops are left out."""
    hubs = {
        key
        for key, around in neighbours.items()
        if len(around) > MAX_PROPAGATION_DEGREE and len({other for other, _ in around}) > MAX_PROPAGATION_DEGREE
    }
    links: dict[str, dict[str, float]] = {}
    for key in neighbours.keys() - hubs:
        own = links.setdefault(key, {})
        for other, weight in neighbours[key]:
            near = min(weight, 1.0)
            if near > own.get(other, 0.0) and key != other and other not in hubs:
                own[other] = near
                if (theirs := links.get(other)) is None:
                    links[other] = {key: near}
                else:
                    theirs[key] = near
    return links


def _list_givers(scores: Mapping[str, float], around: Mapping[str, float]) -> list[_Giver]:
    """Return the neighbours that give anything, and what: the best one first, ties by id. Most give nothing."""
    givers = [(other, value) for other in around if other in scores and (value := around[other] * scores[other]) > 0.0]
    if len(givers) > 1:
        givers.sort(key=_falling)
    return givers


def _second_hop(links: Mapping[str, Mapping[str, float]], givers: Mapping[str, Sequence[_Giver]]) -> dict[str, _Giver]:
    """Return the best giver exactly two relations away from each entity.

    Each middle node offers its ends, best first, to its other ends. The first one that is neither the receiver nor
    related to it is the best of this middle node, so hardly more than one is examined.
    """
    best: dict[str, _Giver] = {}
    for middle, offers in givers.items():
        around = links[middle]
        # A middle node with one end connects no other.
        for receiver, weight in around.items() if offers and len(around) > 1 else ():
            near = links[receiver]
            for giver, value in offers:
                if giver != receiver and giver not in near:
                    amount, known = value * weight, best.get(receiver)
                    if known is None or amount > known[1] or (amount == known[1] and giver < known[0]):
                        best[receiver] = (giver, amount)
                    break
    return best


def _falling(giver: _Giver) -> tuple[float, str]:
    return -giver[1], giver[0]


def rank_matches_with_proximity_boosts(
    matches: Mapping[str, EntityMatchScores], nearby: Mapping[str, tuple[GraphProximityBoost, ...]] | None = None
) -> list[RankedHit]:
    """Return all matches and entities near them, best first; ties by their own match score, then by id."""
    near = nearby or {}
    ranked = [
        RankedHit(key, match.score, match) if key not in near else _ranked(key, match, near[key])
        for key, match in matches.items()
    ]
    ranked += [_ranked(key, None, gains) for key, gains in near.items() if key not in matches]
    return sorted(ranked, key=_rank_order)


def _ranked(key: str, match: EntityMatchScores | None, nearby: tuple[GraphProximityBoost, ...]) -> RankedHit:
    own = match.score if match else 0.0
    return RankedHit(key, own + sum(near.amount for near in nearby) if nearby else own, match, nearby)


def _rank_order(hit: RankedHit) -> tuple[float, float, str]:
    return -hit.score, -hit.match.score if hit.match else 0.0, hit.id


def fetch_neighbours_of_best_matches(
    scores: Mapping[str, float],
    look_up: Callable[[Sequence[str]], NeighbourWeights],
    most_seeds: int = MAX_PROPAGATION_SEEDS,
    most_reached: int = MAX_PROPAGATION_REACHED,
) -> dict[str, list[_Giver]]:
    """Return the relations that `propagate_scores` needs: of the best matches, then of the entities these reach.

    ``look_up`` returns the neighbours of some entities, at most `MAX_PROPAGATION_DEGREE` + 1 each; it is called at most
    twice.
    """
    found: dict[str, list[_Giver]] = {}
    seeds = top_ids(scores, most_seeds)
    found.update((key, list(around)) for key, around in look_up(seeds).items())
    # Round robin over the seeds, so that a seed with many relations does not use up the limit.
    reached = (other for around in _round_robin([found.get(seed, []) for seed in seeds]) for other, _ in around)
    new: dict[str, None] = {}
    for key in reached:
        if len(new) == most_reached:
            break
        if key not in found:
            new[key] = None
    if new:
        found.update((key, list(around)) for key, around in look_up([*new]).items())
    return found


def _round_robin(lists: Sequence[Sequence[_Giver]]) -> Iterable[Sequence[_Giver]]:
    """Yield the first two entries of every list that is not from a hub, then the next two of every list, and so on."""
    usable = [entries for entries in lists if len(entries) <= MAX_PROPAGATION_DEGREE]
    longest = max(map(len, usable), default=0)
    return (entries[at : at + 2] for at in range(0, longest, 2) for entries in usable)


def compute_best_path_strengths(
    starts: Mapping[str, float], neighbours: NeighbourWeights, decay: float = DEFAULT_PROPAGATION_DECAY
) -> dict[str, tuple[float, int]]:
    """Return strength and length of the paths from the starts to each entity within ``neighbours``, starts included.

    The strength is that of the best path: the start's score times, per relation, ``decay`` and the weight clipped to
    0..1. The length is that of the shortest path, which may be another one.
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
