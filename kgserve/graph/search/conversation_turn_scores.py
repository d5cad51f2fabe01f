"""Scores of turns of conversations: of a question's answer, the turns around it often share the words.

A turn is a node with a relation `next`. Its score has these parts:

1. Words: BM25, where each word of the query counts with its best score in the turn or, weaker, in those around it.
2. Meaning: the cosine of the query and the turn.
3. Tokens, if the turns have token vectors: MaxSim of each token of the query, relative to the other turns of the pool
   and weighted by rarity; once of the turn alone, and once carried from the turns around it as words are.
4. Long turns count a little more, and turns that end with a question mark a little less.

Turns then gain a part of the difference from the best turn one step away, and from the best two steps away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgserve.graph.search.score_fusion import (
    EntityMatchScores,
    GraphProximityBoost,
    NeighbourWeights,
    symmetrize_neighbour_weights,
)

FloatArray = NDArray[np.float64]
PlaceArray = NDArray[np.int64]

CARRY_SHARES = (0.5, 0.25)
"""Share with which the words and tokens of a turn count one and two steps away."""
GAIN_SHARES = (0.3, 0.4)
"""Share of the difference of scores that a turn gains from the best turn one and two steps away."""
COSINE_WEIGHT, CARRIED_TOKENS_WEIGHT, OWN_TOKENS_WEIGHT = 0.5, 1.0, 1.0 / 3.0
"""Weights of the parts of the meaning if there are token vectors, relative to each other."""
NODE_COSINE_WEIGHT, NODE_TOKENS_WEIGHT = 0.89, 1.11
"""The same for nodes that are no turns, if late interaction is requested for them."""
LENGTH_WEIGHT, QUESTION_WEIGHT = 0.067, 0.067
"""Weights of the logarithm of the number of words, and of a question mark at the end, in a score from 0 to 1."""


class TurnTokenMaxSimScores(NamedTuple):
    """MaxSim of the tokens of a query: ``best`` of shape (turns, tokens), and the ``weights`` of the tokens."""

    best: FloatArray
    weights: FloatArray


class ConversationTurnPool(NamedTuple):
    """Turns that are ranked together.

    ``word_scores`` are the BM25 scores of the words in each turn, and ``keyword`` those of the whole turn in the index,
    where it found one. ``semantic`` are cosines. ``top`` is the best keyword score in other stores.
    """

    texts: Mapping[str, str]
    turns: NeighbourWeights
    word_scores: Mapping[str, Mapping[str, float]]
    keyword: Mapping[str, float]
    semantic: Mapping[str, float]
    tokens: TurnTokenMaxSimScores | None
    top: float = 0.0


class ScoredConversationTurns(NamedTuple):
    """Scores of turns, what each gains from turns near it, and the best keyword score."""

    matches: dict[str, EntityMatchScores]
    gains: dict[str, tuple[GraphProximityBoost, ...]]
    top: float


class _Steps(NamedTuple):
    """Pairs of places exactly one, or exactly two, steps apart, in both directions, with the weight of the path."""

    receivers: PlaceArray
    givers: PlaceArray
    weights: FloatArray


def score_conversation_turns(pool: ConversationTurnPool, alpha: float) -> ScoredConversationTurns:
    """Return the scores of the turns, mostly from 0 to 1 as those of other nodes. ``alpha`` is the weight of words."""
    ids = list(pool.texts)
    steps = _find_steps(ids, pool.turns)
    words = _carried_words(ids, pool, steps)
    top = max(pool.top, float(words.max(initial=0.0)))
    words = words / top if top > 0.0 else words
    cosine = np.clip(np.array([pool.semantic.get(key, 0.0) for key in ids]), 0.0, 1.0)
    meaning, own = cosine, None
    if pool.tokens is not None:
        relative = _relative_scores(pool.tokens.best)
        own, carried = relative @ pool.tokens.weights, _carry(relative, steps) @ pool.tokens.weights
        meaning = COSINE_WEIGHT * cosine + CARRIED_TOKENS_WEIGHT * carried + OWN_TOKENS_WEIGHT * own
        # The parts of the meaning weigh more than the cosine alone, relative to the words.
        total = COSINE_WEIGHT + CARRIED_TOKENS_WEIGHT + OWN_TOKENS_WEIGHT
        scores = (alpha * words + (1.0 - alpha) * meaning) / (alpha + (1.0 - alpha) * total)
    else:
        scores = alpha * words + (1.0 - alpha) * meaning
    scores = scores + _form_scores([pool.texts[key] for key in ids])
    matches = {
        key: EntityMatchScores(
            float(scores[place]),
            float(words[place]) or None,
            float(cosine[place]) if key in pool.semantic else None,
            None if own is None else float(own[place]),
        )
        for place, key in enumerate(ids)
    }
    return ScoredConversationTurns(matches, _gains(ids, scores, steps), top)


def blend_late_interaction_scores(
    matches: Mapping[str, EntityMatchScores], ids: Sequence[str], tokens: TurnTokenMaxSimScores, alpha: float
) -> dict[str, EntityMatchScores]:
    """Return the matches of nodes that are not conversation turns, with late interaction blended into the scores."""
    own = (_relative_scores(tokens.best) @ tokens.weights).tolist()
    total = alpha + (1.0 - alpha) * (NODE_COSINE_WEIGHT + NODE_TOKENS_WEIGHT)
    found: dict[str, EntityMatchScores] = {}
    for key, late in zip(ids, own, strict=True):
        match = matches[key]
        meaning = NODE_COSINE_WEIGHT * (match.semantic or 0.0) + NODE_TOKENS_WEIGHT * late
        words = match.score - (1.0 - alpha) * (match.semantic or 0.0)
        found[key] = EntityMatchScores((words + (1.0 - alpha) * meaning) / total, match.keyword, match.semantic, late)
    return found


def _find_steps(ids: Sequence[str], turns: NeighbourWeights) -> tuple[_Steps, _Steps]:
    """Return the pairs of turns one step apart, and those two steps apart and no less."""
    links = symmetrize_neighbour_weights(turns)
    places = {key: place for place, key in enumerate(ids)}
    one: list[tuple[int, int, float]] = []
    two: list[tuple[int, int, float]] = []
    for key, place in places.items():
        near = links.get(key, {})
        far: dict[str, float] = {}
        for middle, weight in near.items():
            if middle in places:
                one.append((place, places[middle], weight))
            for end, more in links.get(middle, {}).items():
                if end != key and end not in near and end in places:
                    far[end] = max(far.get(end, 0.0), weight * more)
        two += ((place, places[end], weight) for end, weight in far.items())
    return _to_steps(one), _to_steps(two)


def _to_steps(pairs: Sequence[tuple[int, int, float]]) -> _Steps:
    receivers, givers, weights = zip(*pairs, strict=True) if pairs else ((), (), ())
    return _Steps(np.array(receivers, np.int64), np.array(givers, np.int64), np.array(weights, np.float64))


def _carry(scores: FloatArray, steps: Sequence[_Steps]) -> FloatArray:
    """Return for each row the maximum of its own values and a share of those of the rows around it."""
    found = scores.copy()
    for (receivers, givers, weights), share in zip(steps, CARRY_SHARES, strict=True):
        np.maximum.at(found, receivers, share * weights[:, None] * scores[givers])
    return found


def _carried_words(ids: Sequence[str], pool: ConversationTurnPool, steps: Sequence[_Steps]) -> FloatArray:
    """Return the keyword score of each turn, raised by the words that only turns around it contain."""
    words = dict.fromkeys(word for key in ids for word in pool.word_scores.get(key, ()))
    columns = {word: place for place, word in enumerate(words)}
    own = np.zeros((len(ids), len(columns)))
    for place, key in enumerate(ids):
        for word, score in pool.word_scores.get(key, {}).items():
            own[place, columns[word]] = score
    total = own.sum(axis=1)
    indexed = np.array([pool.keyword.get(key, score) for key, score in zip(ids, total.tolist(), strict=True)])
    return indexed + _carry(own, steps).sum(axis=1) - total


def _relative_scores(best: FloatArray) -> FloatArray:
    """Return how far each MaxSim is above the mean of its token, from 0 for the mean to 1 for the best turn."""
    mean = best.mean(axis=0, keepdims=True)
    spread = np.maximum(best.max(axis=0, keepdims=True) - mean, 1e-6)
    return np.maximum((best - mean) / spread, 0.0)


def _form_scores(texts: Sequence[str]) -> FloatArray:
    lengths = np.log1p(np.array([len(text.split()) for text in texts], np.float64))
    asking = np.array([text.rstrip().endswith("?") for text in texts], np.float64)
    return LENGTH_WEIGHT * (lengths - lengths.mean()) - QUESTION_WEIGHT * asking


def _gains(
    ids: Sequence[str], scores: FloatArray, steps: Sequence[_Steps]
) -> dict[str, tuple[GraphProximityBoost, ...]]:
    """Return what each turn gains from the best turn one step away, and from the best two steps away."""
    found: dict[str, tuple[GraphProximityBoost, ...]] = {}
    for hops, ((receivers, givers, weights), share) in enumerate(zip(steps, GAIN_SHARES, strict=True), 1):
        offers = share * weights * (scores[givers] - scores[receivers])
        order = np.lexsort((givers, -offers, receivers))
        # Of each receiver, the best offer comes first.
        first = order[np.concatenate(([True], np.diff(receivers[order]) != 0))] if len(order) else order
        for pair in first[offers[first] > 0.0].tolist():
            receiver = ids[int(receivers[pair])]
            gain = GraphProximityBoost(float(offers[pair]), ids[int(givers[pair])], hops)
            found[receiver] = (*found.get(receiver, ()), gain)
    return found
