"""Vectors of the tokens of a text, for late interaction, from the run of the model that embeds the text.

The last hidden states of the tokens are multiplied by a fixed matrix of principal components and normalized. Tokens of
punctuation are left out. The vectors are stored as codes of a product quantizer: each code names, for each of eight
parts of a vector, the nearest of 256 centroids. Matrix and centroids are part of the package, for the default model.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fastembed.common.onnx_model import OnnxOutputContext

FloatMatrix = NDArray[np.float32]
WordPieces = NDArray[np.uint16]
TokenCodes = NDArray[np.uint8]

_FILES = {"sentence-transformers/all-MiniLM-L6-v2@53aa51172d14": "all-MiniLM-L6-v2.tokens.npz"}
"""File of the matrix and the centroids by model id."""
_MIN_LENGTH = np.float32(1e-9)


class TokenVectors(NamedTuple):
    """The tokens of a text: ids of word pieces, and unit vectors of shape (tokens, dimensions)."""

    pieces: WordPieces
    vectors: FloatMatrix


class TextAndTokenEmbeddings(NamedTuple):
    """Unit vectors of texts, of shape (texts, dimensions), and the tokens of each text.

    ``tokens`` is empty if the embedder has no token vectors.
    """

    vectors: FloatMatrix
    tokens: list[TokenVectors]


class TokenEmbeddingProjection:
    """Projection of the hidden states of a model to short vectors of tokens, and their codes."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], format_id: str) -> None:
        """Project by the ``matrix`` of shape (hidden size, dimensions), and encode by the ``codebook``.

        The codebook has the shape (parts, centroids, dimensions of a part). ``skipped`` are word pieces of punctuation.
        ``format_id`` names model, matrix and codebook.
        """
        self.format = format_id
        self._matrix = np.ascontiguousarray(arrays["matrix"], np.float32)
        self._codebook = np.ascontiguousarray(arrays["codebook"], np.float32)
        self._half_squares = (self._codebook**2).sum(axis=2) / 2
        self._is_skipped = np.zeros(1 << 16, np.bool_)
        self._is_skipped[arrays["skipped"]] = True
        self.code_bytes = len(self._codebook)

    @property
    def no_tokens(self) -> TokenVectors:
        """The tokens of an empty text."""
        return TokenVectors(np.empty(0, np.uint16), np.empty((0, self._matrix.shape[1]), np.float32))

    def project(self, output: OnnxOutputContext, place: int) -> TokenVectors:
        """Return the tokens of one text of a batch, without those that mark its beginning and its end."""
        if output.attention_mask is None or output.input_ids is None:
            return self.no_tokens
        end = max(int(output.attention_mask[place].sum()) - 1, 1)
        pieces = output.input_ids[place, 1:end].astype(np.uint16)
        kept = ~self._is_skipped[pieces]
        return TokenVectors(pieces[kept], _normalize(output.model_output[place, 1:end][kept] @ self._matrix))

    def encode(self, vectors: FloatMatrix) -> TokenCodes:
        """Return the codes of vectors, of shape (tokens, `code_bytes`)."""
        parts, _, width = self._codebook.shape
        codes = np.empty((len(vectors), parts), np.uint8)
        for part in range(parts):
            some = vectors[:, part * width : (part + 1) * width]
            codes[:, part] = (some @ self._codebook[part].T - self._half_squares[part]).argmax(axis=1)
        return codes

    def similarities(self, query: FloatMatrix, codes: TokenCodes) -> FloatMatrix:
        """Return the cosines of unit vectors with the vectors of codes, of shape (tokens, query tokens).

        Nothing is decoded: the products of the query with all centroids are computed once, and looked up by code.
        """
        parts, _, width = self._codebook.shape
        products = np.zeros((len(codes), len(query)), np.float32)
        half_squares = np.zeros(len(codes), np.float32)
        for part in range(parts):
            table = self._codebook[part] @ query[:, part * width : (part + 1) * width].T
            products += table[codes[:, part]]
            half_squares += self._half_squares[part][codes[:, part]]
        lengths: NDArray[np.float32] = np.sqrt(half_squares + half_squares)
        products /= np.maximum(lengths, _MIN_LENGTH)[:, None]
        return products


def _normalize(vectors: FloatMatrix) -> FloatMatrix:
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    return vectors / np.maximum(lengths, _MIN_LENGTH)[:, None]


@lru_cache
def load_token_embedding_projection(model_id: str) -> TokenEmbeddingProjection | None:
    """Return the projection for the tokens of a model; None if the package has none for it."""
    name = _FILES.get(model_id)
    if name is None:
        return None
    data = (resources.files("kgserve.embedding") / name).read_bytes()
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return TokenEmbeddingProjection(arrays, f"{model_id} {xxhash.xxh3_64_hexdigest(data)}")
