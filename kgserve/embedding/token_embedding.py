"""Vectors of the tokens of a text, for late interaction, from the run of the model that embeds the text.

The last hidden states of the tokens are multiplied by a fixed matrix of principal components, which is part of the
package, and normalized. Only the default model has such a matrix.
"""

from __future__ import annotations

import io
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fastembed.common.onnx_model import OnnxOutputContext

FloatMatrix = NDArray[np.float32]
WordPieces = NDArray[np.uint16]

_MATRIX_FILES = {"sentence-transformers/all-MiniLM-L6-v2@53aa51172d14": "all-MiniLM-L6-v2.tokens.npy"}
"""File of the matrix by model id."""


class TokenVectors(NamedTuple):
    """The tokens of a text: ids of word pieces, and unit vectors of shape (tokens, dimensions)."""

    pieces: WordPieces
    vectors: FloatMatrix


class TextEmbeddings(NamedTuple):
    """Unit vectors of texts, of shape (texts, dimensions), and the tokens of each text.

    ``tokens`` is empty if the embedder has no token vectors.
    """

    vectors: FloatMatrix
    tokens: list[TokenVectors]


class TokenProjection:
    """Projection of the hidden states of a model to short vectors of tokens."""

    def __init__(self, matrix: FloatMatrix, format_id: str) -> None:
        """Project by a matrix of shape (hidden size, dimensions). ``format_id`` names model and matrix."""
        self._matrix = matrix
        self.format = format_id
        self.dimensions = int(matrix.shape[1])

    @property
    def no_tokens(self) -> TokenVectors:
        """The tokens of an empty text."""
        return TokenVectors(np.empty(0, np.uint16), np.empty((0, self.dimensions), np.float32))

    def project(self, output: OnnxOutputContext, place: int) -> TokenVectors:
        """Return the tokens of one text of a batch, without those that mark its beginning and its end."""
        if output.attention_mask is None or output.input_ids is None:
            return self.no_tokens
        end = max(int(output.attention_mask[place].sum()) - 1, 1)
        vectors = output.model_output[place, 1:end] @ self._matrix
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        pieces = output.input_ids[place, 1:end].astype(np.uint16)
        return TokenVectors(pieces, vectors / np.maximum(lengths, np.float32(1e-9)))


@lru_cache
def load_token_projection(model_id: str) -> TokenProjection | None:
    """Return the projection for the tokens of a model; None if the package has no matrix for it."""
    name = _MATRIX_FILES.get(model_id)
    if name is None:
        return None
    data = (resources.files("kgserve.embedding") / name).read_bytes()
    matrix = np.load(io.BytesIO(data), allow_pickle=False)
    return TokenProjection(np.ascontiguousarray(matrix, np.float32), f"{model_id} {xxhash.xxh3_64_hexdigest(data)}")
