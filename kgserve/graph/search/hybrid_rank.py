"""Ranking of the hits of a hybrid search: turns of conversations by `turn_scores`, other nodes by `score_fusion`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Literal, NamedTuple, Protocol

from kgserve.graph.graph_reader import GraphReader
from kgserve.graph.search import score_fusion
from kgserve.graph.search.conversation_turn_scores import (
    ConversationTurnPool,
    ScoredConversationTurns,
    TurnTokenMaxSimScores,
    blend_late_interaction_scores,
    score_conversation_turns,
)
from kgserve.graph.search.score_fusion import (
    MATCHED_SECOND_HOP_SHARE,
    EntityMatchScores,
    GraphProximityBoost,
    NeighbourWeights,
    RankedHit,
)
from kgserve.graph.search.search_index_interface import SearchIndex
from kgserve.storage.model.node_edge_rows import NodeRow

GainsById = Mapping[str, tuple[GraphProximityBoost, ...]]

MAX_TURN_SEEDS = 30
"""Best hits of each list whose conversations are looked up: with the turns around them, about 200 turns are scored."""
NO_TURNS = ScoredConversationTurns({}, {}, 0.0)


class HybridSearchOptions(Protocol):
    """Options of a request that decide how hits are combined."""

    query: str
    alpha: float
    fusion: Literal["weighted", "rrf"]
    neighbours: bool
    late: bool | None
    syntax: bool


class KeywordAndSemanticHits(NamedTuple):
    """Hits of both indexes, best first, with BM25 scores and cosines; ``meaning`` grows by those of other nodes."""

    words: Mapping[str, float]
    meaning: dict[str, float]


class HybridRankingCallbacks(NamedTuple):
    """Functions of one search, for nodes by id: their neighbours, filters, cosines, and MaxSim if they have tokens."""

    neighbours: Callable[[Sequence[str]], NeighbourWeights]
    passes: Callable[[NodeRow], bool]
    similarities: Callable[[Sequence[str]], Mapping[str, float]]
    token_scores: Callable[[Sequence[str]], TurnTokenMaxSimScores | None]


def select_conversation_turn_seed_ids(*lists: Mapping[str, float]) -> dict[str, None]:
    """Return the ids of the first hits of each list; around these, turns of the same conversation are looked up."""
    return dict.fromkeys(key for found in lists for key in islice(found, MAX_TURN_SEEDS))


class HybridRanking:
    """Hybrid ranking of the hits of one search; ``top`` is the best keyword score, by which scores are scaled."""

    def __init__(
        self,
        reader: GraphReader,
        index: SearchIndex,
        options: HybridSearchOptions,
        functions: HybridRankingCallbacks,
        top: float,
    ) -> None:
        self.top = top
        self._reader = reader
        self._index = index
        self._options = options
        self._functions = functions

    def rank(self, lists: KeywordAndSemanticHits) -> list[RankedHit]:
        """Return all hits and the nodes near them, best first."""
        options = self._options
        self.top = max(self.top, max(lists.words.values(), default=0.0))
        if options.fusion == "rrf":
            matches = score_fusion.fuse_scores_by_reciprocal_rank(lists.words, lists.meaning)
            return score_fusion.rank_matches_with_proximity_boosts(matches, self._propagate(matches, {}, {}))
        around = self._turns_around(lists)
        turns = self._score_turns(around, lists) if around else NO_TURNS
        self.top = max(self.top, turns.top)
        matches = score_fusion.fuse_scores_by_weighted_sum(lists.words, lists.meaning, options.alpha, self.top)
        if options.late:
            matches |= self._score_by_tokens(matches, turns.matches)
        matches |= turns.matches
        return score_fusion.rank_matches_with_proximity_boosts(matches, self._propagate(matches, turns.gains, around))

    def _turns_around(self, lists: KeywordAndSemanticHits) -> NeighbourWeights:
        """Return the turns among the first hits and up to two steps away, each with those next to it."""
        around = self._reader.turns_around(select_conversation_turn_seed_ids(*lists))
        if self._options.neighbours:
            return around
        return {key: near for key, near in around.items() if key in lists.words or key in lists.meaning}

    def _score_turns(self, around: NeighbourWeights, lists: KeywordAndSemanticHits) -> ScoredConversationTurns:
        options = self._options
        rows = self._reader.valid_nodes(around.keys())
        passes = self._functions.passes
        texts = {key: row.content for key in around if (row := rows.get(key)) is not None and passes(row)}
        if not texts:
            return NO_TURNS
        ids = list(texts)
        lists.meaning.update(self._functions.similarities([key for key in ids if key not in lists.meaning]))
        word_scores = {} if options.syntax else self._index.bm25_scores(options.query, texts)
        turns = around if options.neighbours else {}
        tokens = self._functions.token_scores(ids)
        pool = ConversationTurnPool(texts, turns, word_scores, lists.words, lists.meaning, tokens, self.top)
        return score_conversation_turns(pool, options.alpha)

    def _score_by_tokens(
        self, matches: Mapping[str, EntityMatchScores], turns: Mapping[str, EntityMatchScores]
    ) -> dict[str, EntityMatchScores]:
        """Return the scores of nodes that are no turns, with late interaction, if they have tokens."""
        ids = [key for key in matches if key not in turns]
        tokens = self._functions.token_scores(ids)
        return {} if tokens is None else blend_late_interaction_scores(matches, ids, tokens, self._options.alpha)

    def _propagate(
        self,
        matches: Mapping[str, EntityMatchScores],
        gains: Mapping[str, tuple[GraphProximityBoost, ...]],
        turns: NeighbourWeights,
    ) -> Mapping[str, tuple[GraphProximityBoost, ...]]:
        """Return what nodes gain from related ones: turns from turns near them, and all over other relations."""
        if not self._options.neighbours:
            return {}
        scores = {key: match.score for key, match in matches.items()}
        for key in gains.keys() & scores.keys():
            scores[key] += sum(gain.amount for gain in gains[key])
        adjacent = {key: {end for end, _ in near} for key, near in turns.items()}

        def look_up(keys: Sequence[str]) -> NeighbourWeights:
            found = self._functions.neighbours(keys)
            if not adjacent:
                return found
            return {
                key: [end for end in ends if end[0] not in adjacent.get(key, ())] if key in adjacent else ends
                for key, ends in found.items()
            }

        neighbourhood = score_fusion.fetch_neighbours_of_best_matches(scores, look_up)
        more = score_fusion.propagate_scores(scores, neighbourhood, matched_share=MATCHED_SECOND_HOP_SHARE)
        if not gains:
            return more
        return {key: (*gains.get(key, ()), *more.get(key, ())) for key in dict.fromkeys((*gains, *more))}
