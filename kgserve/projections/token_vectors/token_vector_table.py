"""Table of the token vectors of nodes, as codes, in a sealed folder.

The saved part is memory-mapped; what was added since is in memory. The tokens of a node are sorted by word piece, so
that counting the nodes with a word piece takes one pass.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgserve.embedding.token_embeddings import (
    FloatMatrix,
    TokenCodes,
    TokenEmbeddingProjection,
    TokenVectors,
    WordPieces,
)
from kgserve.platform.codecs import msgpack_decoder
from kgserve.projections import folder_manifest

TABLE_KIND = "token vectors 2"
_ENTITIES_FILE, _ROWS_FILE = "entities.msgpack", "tokens.npy"
_PIECES = 1 << 16

_PIECE_BYTES = 2

TokenRows = NDArray[np.uint8]
"""A row per token: its word piece in two bytes, the lower one first, and its code."""


class _TokenEntities(msgspec.Struct, frozen=True):
    """Ids and numbers of tokens, in the order of the file.

    ``complete`` is the setting by which no node is missing; empty if some are.
    """

    ids: list[str]
    counts: list[int]
    complete: str


class EncodedTokenVectors(NamedTuple):
    """Tokens of nodes one after the other: the number of tokens per node, and their codes."""

    counts: NDArray[np.int64]
    codes: TokenCodes


class TokenVectorTable:
    """Token vectors by node id. Any thread may read; one thread writes."""

    def __init__(self, folder: Path, projection: TokenEmbeddingProjection) -> None:
        """Load the table saved for the same projection, or start empty; ``sequence`` is the commit it was saved at."""
        self.folder = folder
        self._projection = projection
        self._row_bytes = _PIECE_BYTES + projection.code_bytes
        self._lock = threading.Lock()
        self._reset()
        self.sequence, self.complete, self.has_changed = -1, "", False
        self._load()

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, node_id: str) -> bool:
        return node_id in self._places

    def encode(self, tokens: TokenVectors) -> TokenRows:
        """Return the tokens of a node in the form that the table holds."""
        order = np.argsort(tokens.pieces, kind="stable")
        rows = np.empty((len(order), self._row_bytes), np.uint8)
        rows[:, :_PIECE_BYTES] = tokens.pieces[order].astype("<u2")[:, None].view(np.uint8)
        rows[:, _PIECE_BYTES:] = self._projection.encode(tokens.vectors[order])
        return rows

    def similarities(self, query: FloatMatrix, codes: TokenCodes) -> FloatMatrix:
        """Return the cosines of the tokens of a query with codes, of shape (tokens, query tokens)."""
        return self._projection.similarities(query, codes)

    def put(self, node_id: str, rows: TokenRows) -> None:
        """Add a node or replace its tokens."""
        with self._lock:
            self._drop(node_id)
            self._added[node_id] = rows
            self._places[node_id] = (-1, len(rows))
            self._holding[_distinct_pieces(rows)] += 1
            self.has_changed = True

    def remove(self, ids: Iterable[str]) -> None:
        """Remove nodes; unknown ids are ignored."""
        with self._lock:
            for node_id in ids:
                self._drop(node_id)

    def clear(self) -> None:
        """Delete all tokens, on disk too."""
        with self._lock:
            self._reset()
        self.delete_files(self.folder)
        self.sequence, self.complete, self.has_changed = -1, "", False

    @staticmethod
    def delete_files(folder: Path) -> None:
        """Delete the folder of a table that is not open, and what an interrupted `save` has left."""
        for each in (folder, _folder_aside(folder)):
            shutil.rmtree(each, ignore_errors=True)

    def ids(self) -> list[str]:
        """Return the ids of all nodes."""
        with self._lock:
            return [*self._places]

    def read(self, ids: Sequence[str]) -> EncodedTokenVectors:
        """Return the tokens of some nodes; the number is 0 for nodes without any."""
        with self._lock:
            parts = [self._rows(node_id) for node_id in ids]
        counts = np.fromiter(map(len, parts), np.int64, len(parts))
        rows = np.concatenate(parts) if parts else self._no_rows
        return EncodedTokenVectors(counts, rows[:, _PIECE_BYTES:])

    def rarity(self, pieces: WordPieces) -> NDArray[np.float64]:
        """Return the inverse document frequency of word pieces, as BM25 defines it."""
        with self._lock:
            holding, total = self._holding[pieces].astype(np.float64), len(self._places)
        return np.log1p((total - holding + 0.5) / (holding + 0.5))

    def save(self, sequence: int, *, complete: str) -> None:
        """Write the table to its folder atomically, without tokens of removed nodes. Only the writing thread may."""
        if not self._places:
            self.delete_files(self.folder)
            self.sequence, self.complete, self.has_changed = sequence, complete, False
            return
        aside = _folder_aside(self.folder)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        # No lock: only this thread changes the table.
        ids, counts = [*self._places], [count for _, count in self._places.values()]
        np.save(aside / _ROWS_FILE, np.concatenate([self._rows(node_id) for node_id in ids]), allow_pickle=False)
        entities = _TokenEntities(ids, counts, complete)
        (aside / _ENTITIES_FILE).write_bytes(msgspec.msgpack.encode(entities))
        folder_manifest.write_index_folder_manifest(aside, TABLE_KIND, sequence, self._projection.format)
        shutil.rmtree(self.folder, ignore_errors=True)
        aside.rename(self.folder)
        self._map(entities)
        self.sequence, self.complete, self.has_changed = sequence, complete, False

    def _load(self) -> None:
        sealed = folder_manifest.verify_index_folder_manifest(self.folder, self._projection.format, TABLE_KIND)
        if sealed is None:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        entities = msgpack_decoder(_TokenEntities).decode((self.folder / _ENTITIES_FILE).read_bytes())
        self._map(entities)
        self._count_pieces(np.array(entities.counts, np.int64))
        self.sequence, self.complete = sealed.sequence, entities.complete

    def _map(self, entities: _TokenEntities) -> None:
        """Read the saved tokens from the file from now on."""
        saved: TokenRows = np.load(self.folder / _ROWS_FILE, mmap_mode="r", allow_pickle=False)
        ends = np.cumsum(np.array(entities.counts, np.int64)).tolist()
        places = {
            node_id: (end - count, count)
            for node_id, end, count in zip(entities.ids, ends, entities.counts, strict=True)
        }
        with self._lock:
            self._saved, self._places, self._added = saved, places, {}

    def _count_pieces(self, counts: NDArray[np.int64]) -> None:
        """Count the nodes with each word piece in the saved tokens."""
        pieces = np.ascontiguousarray(self._saved[:, :_PIECE_BYTES]).view("<u2")[:, 0]
        is_first = np.concatenate(([True], pieces[1:] != pieces[:-1])) if len(pieces) else np.empty(0, np.bool_)
        is_first[(np.cumsum(counts) - counts)[counts > 0]] = True
        self._holding = np.bincount(pieces[is_first], minlength=_PIECES).astype(np.uint32)

    @property
    def _no_rows(self) -> TokenRows:
        return np.empty((0, self._row_bytes), np.uint8)

    # Methods below require the lock, or the writing thread

    def _reset(self) -> None:
        self._places: dict[str, tuple[int, int]] = {}
        self._added: dict[str, TokenRows] = {}
        self._saved = self._no_rows
        self._holding = np.zeros(_PIECES, np.uint32)

    def _rows(self, node_id: str) -> TokenRows:
        first, count = self._places.get(node_id, (0, 0))
        return self._added[node_id] if first < 0 else self._saved[first : first + count]

    def _drop(self, node_id: str) -> None:
        if node_id in self._places:
            self._holding[_distinct_pieces(self._rows(node_id))] -= 1
            del self._places[node_id]
            self.has_changed = True
            self._added.pop(node_id, None)


def _folder_aside(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.new")


def _distinct_pieces(rows: TokenRows) -> WordPieces:
    """Return each word piece of a node once; its rows are sorted by them."""
    pieces = np.ascontiguousarray(rows[:, :_PIECE_BYTES]).view("<u2")[:, 0]
    return pieces[np.concatenate(([True], pieces[1:] != pieces[:-1]))] if len(pieces) else pieces
