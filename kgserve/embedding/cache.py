"""Vectors that were computed once are kept, so that rebuilding an index embeds nothing again.

The cache may lose anything at any time: what it does not know is embedded anew. So a damaged file is replaced by an
empty one, and a read or write that fails is only logged.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import structlog
import xxhash
from numpy.typing import NDArray

from kgserve.embedding.embedder import Embedder
from kgserve.errors import Unavailable
from kgserve.platform.gil import cooperative
from kgserve.platform.sqlite_files import empty_log, remove_path

log = structlog.get_logger()

Result = TypeVar("Result")
Vector = NDArray[np.float32]

MAX_CACHED_VECTORS = 1_000_000
"""Rows kept; the oldest go first. With 384 dimensions this is about 1.8 GB."""

_CACHE_BATCH_ROWS = 500  # rows of one statement and of one transaction: the file is held for milliseconds at a time
_CACHE_LOCK_TIMEOUT_SECONDS = 10.0  # seconds to wait for another process that writes
_CHECKSUM_BYTES = 8

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
"""Failures that say nothing against the file; after any other it is replaced."""

_VECTOR_CACHE_SCHEMA = """
CREATE TABLE IF NOT EXISTS vectors (
    number INTEGER PRIMARY KEY,
    key BLOB NOT NULL UNIQUE,   -- of model id and text
    vector BLOB NOT NULL        -- float32, little-endian, then its checksum
)
"""
_UPSERT_VECTOR = (
    "INSERT INTO vectors (key, vector) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET vector = excluded.vector"
)
_DELETE_OLDEST_VECTORS = "DELETE FROM vectors WHERE number <= (SELECT max(number) FROM vectors) - ?"


MAX_CACHED_QUERIES = 1000


class QueryVectors:
    """Vectors of queries. The last 1,000 are kept: who turns a page asks the same again."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        self.of = lru_cache(MAX_CACHED_QUERIES)(self._embedded)

    def _embedded(self, text: str) -> Vector:
        vector = self.embedder.embed([text])[0]
        vector.setflags(write=False)
        return vector


class EmbeddingCache:
    """(model id, text) to vector, in one SQLite file. Safe to share between threads and processes."""

    def __init__(self, path: Path, max_vectors: int = MAX_CACHED_VECTORS) -> None:
        """Keep vectors in ``path``; the file is made, and its folder, when it is first needed."""
        self._path = path
        self._max_vectors = max_vectors
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._closed = False

    def get_many(self, model_id: str, texts: Sequence[str]) -> list[Vector | None]:
        """The vector of each text, None where none is known."""
        keys = [text_key(model_id, text) for text in texts]
        found: dict[bytes, Vector] = {}
        for some in _slices(list(dict.fromkeys(keys))):
            found |= self._attempt(partial(_select, keys=some), {})
        return [found.get(key) for key in keys]

    def put_many(self, model_id: str, texts: Sequence[str], vectors: Vector) -> None:
        """Keep one row of ``vectors`` per text. A failure costs embedding again, nothing else."""
        rows = [(text_key(model_id, text), _packed(vector)) for text, vector in zip(texts, vectors, strict=True)]
        for some in _slices(rows):
            self._attempt(partial(_insert, rows=some, most=self._max_vectors), None)

    def forget(self, keys: Sequence[bytes]) -> None:
        """Leave nothing of the vectors of some texts, which are named by `text_key`. Raises Unavailable."""
        if not self._path.exists():
            return
        for some in _slices(keys):
            self._attempt(partial(_delete, keys=some), None)
        # What was deleted is overwritten; of what was written before there are pages in the log.
        self._attempt(empty_log, None)

    def __len__(self) -> int:
        """Vectors kept."""
        return self._attempt(_count, 0)

    def close(self) -> None:
        """Close the file; every later call raises Unavailable."""
        with self._lock:
            self._closed = True
            self._disconnect()

    def _attempt(self, work: Callable[[sqlite3.Connection], Result], otherwise: Result) -> Result:
        """``work``'s result; ``otherwise`` when the file did not allow it, which is replaced if it is damaged."""
        with self._lock:
            if self._closed:
                raise Unavailable("the cache of embeddings is closed")
            try:
                return work(self._connected())
            except (sqlite3.Error, OSError) as error:
                self._recover(error)
                return otherwise

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(
                self._path, timeout=_CACHE_LOCK_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False
            )
            for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL", _VECTOR_CACHE_SCHEMA):
                self._connection.execute(statement)
        return self._connection

    def _recover(self, error: Exception) -> None:
        self._disconnect()  # ends a transaction that was under way, and finds a file that was taken away
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_IOERR)
        damaged = code & 0xFF not in _TRANSIENT_SQLITE_ERRORS or code == sqlite3.SQLITE_IOERR_SHORT_READ
        log.warning("embedding_cache_failed", path=str(self._path), reason=str(error), replaced=damaged)
        if damaged:
            for suffix in ("", "-wal", "-shm"):
                remove_path(self._path.with_name(self._path.name + suffix))

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def embed_cached(embedder: Embedder, cache: EmbeddingCache, texts: Sequence[str]) -> Vector:
    """What ``embedder.embed(texts)`` gives, each different text computed only if the cache does not know it."""
    if not texts:
        return embedder.embed(texts)
    known = {
        text: vector
        for text, vector in zip(texts, cache.get_many(embedder.model_id, texts), strict=True)
        if vector is not None and len(vector) == embedder.dimensions
    }
    missing = [text for text in dict.fromkeys(texts) if text not in known]
    if missing:
        vectors = embedder.embed(missing)
        cache.put_many(embedder.model_id, missing, vectors)
        known |= zip(missing, vectors, strict=True)
    return np.stack([known[text] for text in texts])


def _select(connection: sqlite3.Connection, keys: Sequence[bytes]) -> dict[bytes, Vector]:
    """The vectors of those keys that are known."""
    places = ",".join("?" * len(keys))
    query = f"SELECT key, vector FROM vectors WHERE key IN ({places})"  # noqa: S608 - nothing but question marks
    unpacked = ((key, _unpacked(blob)) for key, blob in connection.execute(query, keys))
    return {key: vector for key, vector in unpacked if vector is not None}


def _insert(connection: sqlite3.Connection, rows: Sequence[tuple[bytes, bytes]], most: int) -> None:
    """Write some rows in one transaction, and let the oldest go when there are too many."""
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(_UPSERT_VECTOR, cooperative(rows))
    connection.execute(_DELETE_OLDEST_VECTORS, (most,))
    connection.execute("COMMIT")


def _delete(connection: sqlite3.Connection, keys: Sequence[bytes]) -> None:
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany("DELETE FROM vectors WHERE key = ?", [(key,) for key in keys])
    connection.execute("COMMIT")
    connection.execute("PRAGMA secure_delete = OFF")


def _count(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM vectors").fetchone()[0])


def text_key(model_id: str, text: str) -> bytes:
    """What names the vector of a text."""
    return blake2b(f"{model_id}\0{text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _packed(vector: Vector) -> bytes:
    data = vector.astype("<f4").tobytes()
    return data + xxhash.xxh3_64_digest(data)


def _unpacked(blob: bytes) -> Vector | None:
    """The vector, or None when the row is damaged: SQLite itself does not notice a flipped bit inside a value."""
    data = blob[:-_CHECKSUM_BYTES]
    if xxhash.xxh3_64_digest(data) != blob[-_CHECKSUM_BYTES:]:
        return None
    return np.frombuffer(data, dtype="<f4").astype(np.float32)


def _slices(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (items[start : start + _CACHE_BATCH_ROWS] for start in range(0, len(items), _CACHE_BATCH_ROWS))
