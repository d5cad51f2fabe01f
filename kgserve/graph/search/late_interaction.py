"""Late interaction, as in ColBERT: each token of a query is compared with each token of a text (MaxSim)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kgserve.embedding.token_embeddings import FloatMatrix, TokenVectors
from kgserve.graph.search.conversation_turn_scores import TurnTokenMaxSimScores
from kgserve.projections.token_vectors.conversation_turn_vectors import LateInteractionTokenVectors

MIN_COVERED_SHARE = 0.9
"""Share of the nodes that must have tokens: those without would otherwise rank too low."""


def max_token_similarities(similarities: FloatMatrix, counts: Sequence[int] | NDArray[np.int64]) -> FloatMatrix:
    """Return the highest cosine of each token of a query with any token of each text, of shape (texts, query tokens).

    ``similarities`` are those of the tokens of all texts, of shape (tokens, query tokens), one text after the other,
    ``counts`` the numbers of tokens. Rows of texts without any token hold the mean of the others.
    """
    held = np.asarray(counts, np.int64)
    best = np.zeros((len(held), similarities.shape[1]), np.float32)
    some = np.flatnonzero(held)
    if len(some):
        starts = np.cumsum(held) - held
        best[some] = np.maximum.reduceat(similarities, starts[some], axis=0)
        best[held == 0] = best[some].mean(axis=0)
    return best


def compute_query_token_maxsim(
    query: TokenVectors | None, found: LateInteractionTokenVectors, ids: Sequence[str]
) -> TurnTokenMaxSimScores | None:
    """Return MaxSim and weights of the tokens of a query for some nodes; None if too few of them have tokens."""
    table = found.table
    if query is None or table is None or not ids:
        return None
    encoded = table.read(ids)
    if np.count_nonzero(encoded.counts) < MIN_COVERED_SHARE * len(ids):
        return None
    best = max_token_similarities(table.similarities(query.vectors, encoded.codes), encoded.counts)
    weights = table.rarity(query.pieces)
    return TurnTokenMaxSimScores(best.astype(np.float64), weights / max(float(weights.sum()), 1e-9))
