"""Persistent cache of embeddings, so that rebuilding an index computes no vector twice.

The cache may lose entries at any time; they are computed again. A damaged file is replaced by a new one with the rows
that are still readable, and failed reads or writes are only logged.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import lru_cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import structlog
import xxhash
from numpy.typing import NDArray

from kgserve.embedding.embedder import Embedder
from kgserve.embedding.token_embeddings import TokenVectors
from kgserve.errors import Unavailable
from kgserve.platform.gil_yield import iterate_yielding_gil
from kgserve.platform.sqlite_files import (
    checkpoint_and_truncate_sqlite_wal,
    register_caching_database,
    release_connection_cache,
    remove_sqlite_files,
)

log = structlog.get_logger()

CacheResult = TypeVar("CacheResult")
FloatVector = NDArray[np.float32]

MAX_CACHED_VECTORS = 1_000_000
"""Maximum number of rows; the oldest are dropped first. About 0.9 GB with 384 dimensions."""

_CACHE_BATCH_ROWS = 500  # rows per statement and transaction, which bounds the time the file is locked to milliseconds
_CACHE_LOCK_TIMEOUT_SECONDS = 10.0  # seconds to wait for a writer in another process
_CHECKSUM_BYTES = 8
_HALF_MARKER = b"\x02"
"""First byte of a vector in half precision, whose length is therefore odd."""
_HALF_CHECKSUM_SEED = 1
"""Older programs use another seed. They compute such a vector again instead of misreading it."""
# Vectors with these largest components keep at least 10 bits of every component that matters.
_MIN_HALF_COMPONENT, _MAX_HALF_COMPONENT = 2.0**-8, 2.0**15

_TRANSIENT_SQLITE_ERRORS = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_IOERR,
}
"""Errors that do not indicate a damaged file; after any other error the file is replaced."""

_FILE_ERRORS = (sqlite3.Error, OSError, UnicodeDecodeError)
"""Errors of the file. SQLite's messages quote a damaged schema, which need not be UTF-8."""

_VECTOR_CACHE_SCHEMA = """
CREATE TABLE IF NOT EXISTS vectors (
    number INTEGER PRIMARY KEY,
    key BLOB NOT NULL UNIQUE,   -- of model id and text
    vector BLOB NOT NULL        -- little-endian float32, or a byte and float16, then a checksum
)
"""
_UPSERT_VECTOR = (
    "INSERT INTO vectors (key, vector) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET vector = excluded.vector"
)
_SELECT_ROWS_AFTER = "SELECT number, key, vector FROM vectors WHERE number > ? ORDER BY number LIMIT ?"
_MAX_ROW_NUMBER = 1 << 48
_DELETE_OLDEST_VECTORS = "DELETE FROM vectors WHERE number <= (SELECT max(number) FROM vectors) - ?"


MAX_CACHED_QUERIES = 1000


class QueryVectorCache:
    """Cache of the vectors of the last 1,000 queries, which paging repeats."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        self._embedded = lru_cache(MAX_CACHED_QUERIES)(self._embed)

    def of(self, text: str) -> FloatVector:
        """Return the vector of a query, read-only. Raises Unavailable if the model or service fails."""
        return self._embedded(text)[0]

    def tokens_of(self, text: str) -> TokenVectors | None:
        """Return the tokens of a query; None if the embedder has none, or the query is only punctuation."""
        tokens = self._embedded(text)[1]
        return tokens if tokens is not None and len(tokens.pieces) else None

    def _embed(self, text: str) -> tuple[FloatVector, TokenVectors | None]:
        if self.embedder.token_projection is None:
            vector, tokens = self.embedder.embed([text])[0], None
        else:
            vectors, (tokens,) = self.embedder.embed_tokens([text])
            vector = vectors[0]
        vector.setflags(write=False)
        return vector, tokens


class EmbeddingCache:
    """Cache from (model id, text) to vector in one SQLite file. Safe to share between threads and processes."""

    def __init__(self, path: Path, max_vectors: int = MAX_CACHED_VECTORS) -> None:
        """Use the file ``path``; it and its folder are created on first use."""
        self._path = path
        self._max_vectors = max_vectors
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._closed = False
        register_caching_database(self)

    def get_many(self, model_id: str, texts: Sequence[str]) -> list[FloatVector | None]:
        """Return the vector of each text, or None where it is not cached."""
        keys = [embedding_cache_key(model_id, text) for text in texts]
        found: dict[bytes, FloatVector] = {}
        for batch in _batches(list(dict.fromkeys(keys))):
            found |= self._attempt(partial(_select, keys=batch), {})
        return [found.get(key) for key in keys]

    def put_many(self, model_id: str, texts: Sequence[str], vectors: FloatVector) -> None:
        """Store one row of ``vectors`` per text. A failure is logged and only costs computing them again."""
        rows = [
            (embedding_cache_key(model_id, text), _encode_vector(vector))
            for text, vector in zip(texts, vectors, strict=True)
        ]
        for batch in _batches(rows):
            self._attempt(partial(_insert, rows=batch, most=self._max_vectors), None)

    def forget(self, keys: Sequence[bytes]) -> None:
        """Erase the vectors with the given `embedding_cache_key`s without a trace. Raises Unavailable."""
        if not self._path.exists():
            return
        # A damaged file is replaced by the first attempt, and the new one may hold these vectors.
        erase = partial(_erase, keys=keys)
        if not (self._attempt(erase, otherwise=False) or self._attempt(erase, otherwise=False)):
            raise Unavailable("the cache of embeddings is locked or cannot be written, so nothing was erased from it")

    def release_cache(self) -> None:
        """Release SQLite's page cache, unless the file is in use."""
        if self._lock.acquire(blocking=False):
            try:
                if self._connection is not None:
                    release_connection_cache(self._connection)
            finally:
                self._lock.release()

    def __len__(self) -> int:
        """Return the number of cached vectors."""
        return self._attempt(_count, 0)

    def close(self) -> None:
        """Close the file; later calls raise Unavailable."""
        with self._lock:
            self._closed = True
            self._disconnect()

    def _attempt(self, work: Callable[[sqlite3.Connection], CacheResult], otherwise: CacheResult) -> CacheResult:
        """Run ``work``; return ``otherwise`` if the file fails, and replace the file if it is damaged."""
        with self._lock:
            if self._closed:
                raise Unavailable("the cache of embeddings is closed")
            try:
                return work(self._connect())
            except _FILE_ERRORS as error:
                self._recover(error)
                return otherwise

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(
                self._path, timeout=_CACHE_LOCK_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False
            )
            for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL", _VECTOR_CACHE_SCHEMA):
                self._connection.execute(statement)
        return self._connection

    def _recover(self, error: Exception) -> None:
        self._disconnect()  # also ends an open transaction, and notices a deleted file
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_IOERR)
        damaged = (
            isinstance(error, UnicodeDecodeError)
            or code & 0xFF not in _TRANSIENT_SQLITE_ERRORS
            or code == sqlite3.SQLITE_IOERR_SHORT_READ
        )
        log.warning("embedding_cache_failed", path=str(self._path), reason=str(error), replaced=damaged)
        if damaged:
            self._replace()

    def _replace(self) -> None:
        """Replace the damaged file by a new one with its readable rows; their vectors may have cost money."""
        damaged = self._path.with_name(f"{self._path.name}.damaged")
        remove_sqlite_files(damaged)
        for suffix in ("", "-wal", "-shm"):
            with suppress(OSError):
                self._path.with_name(self._path.name + suffix).rename(damaged.with_name(damaged.name + suffix))
        kept = 0
        try:
            for rows in _readable_rows(damaged):
                _insert(self._connect(), rows, self._max_vectors)
                kept += len(rows)
        except _FILE_ERRORS as error:
            self._disconnect()
            log.warning("embedding_cache_not_salvaged", path=str(self._path), reason=str(error))
        log.info("embedding_cache_salvaged", path=str(self._path), rows=kept)
        remove_sqlite_files(damaged)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def embed_texts_with_cache(embedder: Embedder, cache: EmbeddingCache, texts: Sequence[str]) -> FloatVector:
    """Return the vectors of ``texts``, computing each distinct text only if it is not cached.

    Computed vectors are rounded before they are cached and returned, so that both are the same.
    """
    if not texts:
        return embedder.embed(texts)
    known = {
        text: vector
        for text, vector in zip(texts, cache.get_many(embedder.model_id, texts), strict=True)
        if vector is not None and len(vector) == embedder.dimensions
    }
    missing = [text for text in dict.fromkeys(texts) if text not in known]
    if missing:
        vectors = round_to_half_precision(embedder.embed(missing))
        cache.put_many(embedder.model_id, missing, vectors)
        known |= zip(missing, vectors, strict=True)
    return np.stack([known[text] for text in texts])


def _select(connection: sqlite3.Connection, keys: Sequence[bytes]) -> dict[bytes, FloatVector]:
    """Return the cached vectors of the given keys."""
    places = ",".join("?" * len(keys))
    query = f"SELECT key, vector FROM vectors WHERE key IN ({places})"  # noqa: S608 - nothing but question marks
    unpacked = ((key, _decode_vector(blob)) for key, blob in connection.execute(query, keys))
    return {key: vector for key, vector in unpacked if vector is not None}


def _insert(connection: sqlite3.Connection, rows: Sequence[tuple[bytes, bytes]], most: int) -> None:
    """Insert rows in one transaction, and drop the oldest beyond ``most``."""
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(_UPSERT_VECTOR, iterate_yielding_gil(rows))
    connection.execute(_DELETE_OLDEST_VECTORS, (most,))
    connection.execute("COMMIT")


def _readable_rows(path: Path) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield the intact rows of a damaged file in batches, oldest first, and skip those that SQLite cannot read."""
    after, limit, skipped = 0, _CACHE_BATCH_ROWS, 1
    with closing(sqlite3.connect(path)) as connection:
        while after < _MAX_ROW_NUMBER:
            try:
                rows = connection.execute(_SELECT_ROWS_AFTER, (after, limit)).fetchall()
            except sqlite3.DatabaseError:
                # The page of one of the next rows is damaged: read row by row, then skip ever more rows.
                after, skipped = (after, 1) if limit > 1 else (after + skipped, skipped * 2)
                limit = 1
                continue
            if not rows:
                return
            after, limit, skipped = rows[-1][0], min(limit * 2, _CACHE_BATCH_ROWS), 1
            yield [(key, blob) for _, key, blob in rows if _is_intact(key, blob)]


def _is_intact(key: object, blob: object) -> bool:
    return isinstance(key, bytes) and isinstance(blob, bytes) and _decode_vector(blob) is not None


def _erase(connection: sqlite3.Connection, keys: Sequence[bytes]) -> bool:
    """Overwrite the rows with the given keys, and return True."""
    connection.execute("PRAGMA secure_delete = ON")
    for batch in _batches(keys):
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("DELETE FROM vectors WHERE key = ?", [(key,) for key in batch])
        connection.execute("COMMIT")
    connection.execute("PRAGMA secure_delete = OFF")
    # Older copies may remain in the log.
    checkpoint_and_truncate_sqlite_wal(connection)
    return True


def _count(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM vectors").fetchone()[0])


def embedding_cache_key(model_id: str, text: str) -> bytes:
    """Return the cache key of a text for a model."""
    return blake2b(f"{model_id}\0{text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


def round_to_half_precision(vectors: FloatVector) -> FloatVector:
    """Return vectors with the precision of float16, except those that would lose more than precision."""
    if not vectors.size:
        return vectors
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    fits = (largest >= _MIN_HALF_COMPONENT) & (largest <= _MAX_HALF_COMPONENT)
    return np.where(fits, np.where(fits, vectors, 0).astype(np.float16), vectors).astype(np.float32)


def _encode_vector(vector: FloatVector) -> bytes:
    with np.errstate(over="ignore"):
        half = vector.astype("<f2")
    if (half == vector).all():
        data = _HALF_MARKER + half.tobytes()
        return data + xxhash.xxh3_64_digest(data, _HALF_CHECKSUM_SEED)
    data = vector.astype("<f4").tobytes()
    return data + xxhash.xxh3_64_digest(data)


def _decode_vector(blob: bytes) -> FloatVector | None:
    """Return the vector, or None if its checksum does not match; SQLite does not detect bit flips within values."""
    data = blob[:-_CHECKSUM_BYTES]
    is_half = len(data) % 2 == 1
    if xxhash.xxh3_64_digest(data, _HALF_CHECKSUM_SEED if is_half else 0) != blob[-_CHECKSUM_BYTES:]:
        return None
    if is_half:
        return np.frombuffer(data, "<f2", offset=1).astype(np.float32)
    return np.frombuffer(data, "<f4").astype(np.float32)


def _batches(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (items[start : start + _CACHE_BATCH_ROWS] for start in range(0, len(items), _CACHE_BATCH_ROWS))
