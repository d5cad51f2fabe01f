"""Exact index of the vectors of past texts: a flat file of vectors, and SQLite for the entities that had them.

Each distinct text has one vector. Vectors are written before SQLite commits the rows that refer to them, so a crash
leaves at most unreferenced vectors. Checksums are verified on opening. Damaged data is discarded, because everything
can be rebuilt from the history and the embedding cache.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from kgserve.platform.codecs import msgpack_decoder
from kgserve.platform.sqlite_files import ConcurrentSqliteDatabase, remove_path, select_rows_by_in_list, vacuum_database
from kgserve.projections.base import ProjectionEraseRequest
from kgserve.projections.filter_columns import EntityFilterColumns, GrowableColumn
from kgserve.projections.indexed_text import EntityFilterableFields, EntitySearchFilter, IndexedEntityText
from kgserve.projections.vector.vector_index import VectorHit
from kgserve.projections.vector.vector_rows import FloatMatrix, VectorFile, dot_products

# Number of unreferenced rows that even a small file may keep.
UNUSED_ROWS_ALLOWANCE = 1024
_UNUSED_SCAN_BATCH_ROWS = 4_096
_SELECT_RUN_IDS = "SELECT number, id FROM run WHERE number IN (SELECT value FROM json_each(?))"
_SELECT_RUN_NUMBERS_BY_ID = "SELECT number FROM run WHERE id IN"
_SELECT_RUNS_AT = "SELECT id, number FROM run WHERE id = ? AND first <= ? AND last > ?"
_SELECT_RUNS_FROM_ID = "SELECT id, number FROM run WHERE id >= ? ORDER BY id"

_PAST_VECTORS_FORMAT = 1
_PAST_VECTORS_SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS vector (place INTEGER PRIMARY KEY, text BLOB NOT NULL UNIQUE, hash INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS run (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    type TEXT NOT NULL, vector INTEGER NOT NULL, marks BLOB, hash INTEGER NOT NULL, UNIQUE (id, first)
);
CREATE INDEX IF NOT EXISTS run_by_vector ON run (vector);
CREATE TABLE IF NOT EXISTS cursor (
    one INTEGER PRIMARY KEY CHECK (one = 1), sequence INTEGER NOT NULL, model TEXT NOT NULL,
    dimensions INTEGER NOT NULL, file INTEGER NOT NULL
);
INSERT OR IGNORE INTO cursor VALUES (1, 0, '', 0, 0);
"""
_SELECT_IS_FOREIGN_FILE = "SELECT user_version <> ? AND EXISTS (SELECT * FROM sqlite_schema) FROM pragma_user_version"
_SELECT_RUNS = "SELECT number, id, first, last, type, vector, marks, hash FROM run"
_SELECT_LAST_BEGUN_RUN = f"{_SELECT_RUNS} WHERE id = ? AND first <= ? ORDER BY first DESC LIMIT 1"
_UPSERT_RUN = "INSERT OR REPLACE INTO run VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_DELETE_UNUSED_VECTORS = "DELETE FROM vector WHERE NOT EXISTS (SELECT * FROM run WHERE run.vector = vector.place)"

_TRANSIENT_ERROR_CODES = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM}

Numbers = NDArray[np.int64]

_encode = msgspec.msgpack.Encoder().encode
_facets = msgpack_decoder(EntityFilterableFields).decode


class PastTextVectorIndex(ConcurrentSqliteDatabase):
    """Vectors of past texts. Any thread may search; one thread writes."""

    def __init__(self, folder: Path, dimensions: int, model: str) -> None:
        """Open the existing data if it is intact and of the same model; otherwise start empty with ``sequence`` 0."""
        self._folder = folder
        self._dimensions = dimensions
        self._model = model
        writer, self._current = self._open_or_reset()
        super().__init__(writer, folder / "texts.sqlite")
        self._ended_by = 0  # no remaining text had ended by this commit
        self._used: int = self._writer.execute("SELECT coalesce(max(place) + 1, 0) FROM vector").fetchone()[0]
        self.sequence: int = self._writer.execute("SELECT sequence FROM cursor").fetchone()[0]

    def __len__(self) -> int:
        return len(self._current[0])

    def known(self, texts: Sequence[IndexedEntityText]) -> set[str]:
        """Return the meanings of the given texts that have a vector."""
        return {
            meaning
            for meaning in {text.meaning for text in texts}
            if self._read("SELECT 1 FROM vector WHERE text = ?", (_text_key(meaning),))
        }

    def write(
        self, texts: Sequence[IndexedEntityText], vectors: dict[str, FloatMatrix], sequence: int, ended: int
    ) -> None:
        """Add past texts with the vectors of their meanings, and delete those that ended by commit ``ended``.

        Atomic and idempotent. Raises OSError if the disk is full.
        """
        is_any_over = ended > self._ended_by or any((text.until or 0) <= ended for text in texts)
        with self._writing:
            with self._writer as transaction:
                added = self._add_vectors(transaction, vectors)
                put = [past for text in texts if (past := _put_text(transaction, text)) is not None]
                forgotten = _forget_ended(transaction, ended) if is_any_over else 0
                values = (sequence, self._model, self._dimensions)
                transaction.execute("UPDATE cursor SET sequence = ?, model = ?, dimensions = ?", values)
            self._used += added
            if forgotten:
                self._read_current(self._current[1])
                self._compact(self._current[1])
            else:
                for past in put:
                    self._current[0].put(past)
        self.sequence, self._ended_by = sequence, max(ended, self._ended_by)

    def erase(self, erasure: ProjectionEraseRequest) -> None:
        """Delete the texts of some entities, and the vectors that no other text has, without a trace."""
        with self._writing:
            with self._writer as transaction:
                transaction.executemany("DELETE FROM run WHERE id = ?", ((each,) for each in erasure.ids))
                ended = ((each, erasure.through) for each in erasure.former)
                transaction.executemany("DELETE FROM run WHERE id = ? AND last <= ?", ended)
                transaction.execute(_DELETE_UNUSED_VECTORS)
            self._read_current(self._current[1])
            vacuum_database(self._writer)
            self._blank_unused(self._current[1])

    def search(self, query: FloatMatrix, limit: int, only: EntitySearchFilter) -> list[VectorHit]:
        """Return the nearest texts as of ``only.as_of``, nearest first; among equals those that ended first.

        Raises sqlite3.DatabaseError.
        """
        texts, file = self._current
        numbers, rows = texts.passing(only)
        if only.id_prefix:
            named = np.isin(numbers, self._numbers_with_prefix(only.id_prefix))
            numbers, rows = numbers[named], rows[named]
        if only.ids is not None:
            named = np.isin(numbers, self._numbers_of(only.ids))
            numbers, rows = numbers[named], rows[named]
        limit = min(limit, len(numbers))
        if limit <= 0:
            return []
        scores = dot_products(file.rows, rows, query)
        threshold = np.partition(scores, -limit)[-limit]
        best = np.flatnonzero(scores >= threshold)
        best = best[np.lexsort((best, -scores[best]))][:limit]
        chosen: list[int] = numbers[best].tolist()
        ids = dict(self._read(_SELECT_RUN_IDS, (json.dumps(chosen),)))
        # Missing ids were deleted in the meantime.
        found = zip(chosen, scores[best].tolist(), strict=True)
        return [VectorHit(ids[number], score) for number, score in found if number in ids]

    def vectors_of(self, ids: Sequence[str], as_of: int) -> dict[str, FloatMatrix]:
        """Return the vectors of entities whose text as of commit ``as_of`` differs from the current one.

        Raises sqlite3.DatabaseError.
        """
        texts, file = self._current
        found = [row for node_id in ids for row in self._read(_SELECT_RUNS_AT, (node_id, as_of, as_of))]
        return {
            node_id: file.rows[row].copy() for node_id, number in found if (row := texts.row_of(number)) is not None
        }

    def _numbers_of(self, ids: Collection[str]) -> Numbers:
        with self._reading:
            found = select_rows_by_in_list(self._reader.execute, _SELECT_RUN_NUMBERS_BY_ID, [*ids])
            return np.array([number for (number,) in found], np.int64)

    def _numbers_with_prefix(self, prefix: str) -> Numbers:
        # Ids are sorted by bytes, so those with the prefix are adjacent.
        with self._reading:
            found = takewhile(
                lambda row: row[0].startswith(prefix), self._reader.execute(_SELECT_RUNS_FROM_ID, (prefix,))
            )
            return np.array([number for _, number in found], np.int64)

    # Opening

    def _open_or_reset(self) -> tuple[sqlite3.Connection, tuple[PastTextColumns, VectorFile]]:
        if any(path.is_dir() or path.is_symlink() for path in self._folder.glob("*")):
            remove_path(self._folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            return self._open_verified()
        except sqlite3.DatabaseError as error:
            if type(error) is not sqlite3.DatabaseError:
                raise
        remove_path(self._folder)
        self._folder.mkdir()
        return self._open_verified()

    def _open_verified(self) -> tuple[sqlite3.Connection, tuple[PastTextColumns, VectorFile]]:
        """Open and verify the data. Raises sqlite3.DatabaseError if it is damaged or of another model."""
        connection = _connect(self._folder / "texts.sqlite")
        try:
            model, dimensions, number = connection.execute("SELECT model, dimensions, file FROM cursor").fetchone()
            if model and (model, dimensions) != (self._model, self._dimensions):
                raise sqlite3.DatabaseError("the vectors belong to another model")
            path = self._file(number)
            for each in self._folder.glob("vectors-*"):
                if each != path:
                    remove_path(each)
            file = VectorFile(path, self._dimensions)
            _check_vectors(connection, file.rows)
            return connection, (PastTextColumns(_read_texts(connection)), file)
        except BaseException:
            connection.close()
            raise

    def _file(self, number: int) -> Path:
        return self._folder / f"vectors-{number}"

    # Writing; requires the lock

    def _add_vectors(self, transaction: sqlite3.Connection, vectors: dict[str, FloatMatrix]) -> int:
        """Write new vectors, and return their number."""
        known = "SELECT 1 FROM vector WHERE text = ?"
        new = {
            key: vectors[text]
            for text in vectors
            if not transaction.execute(known, (key := _text_key(text),)).fetchone()
        }
        if new:
            rows = np.stack([*new.values()]).astype("<f4")
            self._current[1].write(self._used, rows)
            values = [
                (place, key, _vector_checksum(key, row))
                for place, (key, row) in enumerate(zip(new, rows, strict=True), self._used)
            ]
            transaction.executemany("INSERT INTO vector VALUES (?, ?, ?)", values)
        return len(new)

    def _blank_unused(self, file: VectorFile) -> None:
        used = np.fromiter((place for (place,) in self._writer.execute("SELECT place FROM vector")), np.int64)
        for first in range(0, len(file.rows), _UNUSED_SCAN_BATCH_ROWS):
            places = np.setdiff1d(np.arange(first, min(first + _UNUSED_SCAN_BATCH_ROWS, len(file.rows))), used)
            for place in places[file.rows[places].any(axis=1)].tolist():
                file.write(place, np.zeros((1, self._dimensions), np.float32))

    def _read_current(self, file: VectorFile) -> None:
        """Have searches read the committed texts, with their vectors in ``file``."""
        self._current = PastTextColumns(_read_texts(self._writer)), file

    def _compact(self, file: VectorFile) -> None:
        """Replace the file by a compacted copy if more than half of its rows are unreferenced."""
        places: list[int] = [place for (place,) in self._writer.execute("SELECT place FROM vector ORDER BY place")]
        if self._used <= max(2 * len(places), len(places) + UNUSED_ROWS_ALLOWANCE):
            return
        number = int(self._writer.execute("SELECT file + 1 FROM cursor").fetchone()[0])
        copied = file.copy(places, self._file(number))
        moved = dict(zip(places, range(len(places)), strict=True))
        with self._writer as transaction:
            # No conflicts: all rows move towards the front, in order.
            transaction.executemany(
                "UPDATE vector SET place = ? WHERE place = ?", [(new, old) for old, new in moved.items()]
            )
            runs = [msgspec.structs.replace(past, vector=moved[past.vector]) for past in _read_texts(transaction)]
            transaction.executemany(_UPSERT_RUN, [_values(past) for past in runs])
            transaction.execute("UPDATE cursor SET file = ?", (number,))
        self._used = len(places)
        self._read_current(copied)
        remove_path(file.path)


# In-memory columns


class PastTextRow(msgspec.Struct, frozen=True):
    """Row of the table: text that an entity had from commit ``first`` up to, but excluding, ``last``.

    ``vector`` is the row of its vector.
    """

    number: int
    id: str
    first: int
    last: int
    type: str
    vector: int
    facets: EntityFilterableFields | None


class PastTextColumns:
    """In-memory columns of past texts for filtering: period, vector row, and facets.

    Sorted by number. One thread writes; any thread may read.
    """

    def __init__(self, texts: Iterable[PastTextRow] = ()) -> None:
        self._lock = threading.Lock()
        self._columns = EntityFilterColumns()
        self._number, self._until, self._vector = (
            GrowableColumn(np.int64),
            GrowableColumn(np.int64),
            GrowableColumn(np.int64),
        )
        self._add(list(texts))

    def __len__(self) -> int:
        return len(self._number.values)

    def put(self, text: PastTextRow) -> None:
        """Add a text, or update the end of the one with the same number."""
        with self._lock:
            place = self._place(text.number)
            if place is None:
                self._add([text])
            else:
                self._until.values[place], self._vector.values[place] = text.last, text.vector

    def passing(self, only: EntitySearchFilter) -> tuple[Numbers, Numbers]:
        """Return the numbers and vector rows of texts that held as of ``only.as_of`` and match the filter.

        Id conditions are ignored.
        """
        at = only.as_of or 0
        with self._lock:
            passes = self._columns.passing(msgspec.structs.replace(only, id_prefix="", as_of=at), ())
            passes &= self._until.values > at
            return self._number.values[passes], self._vector.values[passes]

    def row_of(self, number: int) -> int | None:
        """Return the row of a text's vector; None for an unknown text."""
        with self._lock:
            place = self._place(number)
            return None if place is None else int(self._vector.values[place])

    def _place(self, number: int) -> int | None:
        numbers = self._number.values
        place = int(np.searchsorted(numbers, number))
        return place if place < len(numbers) and numbers[place] == number else None

    def _add(self, texts: Sequence[PastTextRow]) -> None:
        facets = {place: text.facets for place, text in enumerate(texts, len(self)) if text.facets is not None}
        self._columns.add([text.type for text in texts], [text.first for text in texts], facets)
        self._number.extend([text.number for text in texts])
        self._until.extend([text.last for text in texts])
        self._vector.extend([text.vector for text in texts])


# SQLite


def _connect(path: Path) -> sqlite3.Connection:
    """Open or create the file. Raises sqlite3.DatabaseError for a file of another kind."""
    connection = sqlite3.connect(path, check_same_thread=False)
    # Texts damaged by bit flips must still decode, so that the checksum can reject them.
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    try:
        if connection.execute(_SELECT_IS_FOREIGN_FILE, (_PAST_VECTORS_FORMAT,)).fetchone()[0]:
            raise sqlite3.DatabaseError("the file is of another kind")
        connection.executescript(_PAST_VECTORS_SCHEMA)
        connection.execute(f"PRAGMA user_version = {_PAST_VECTORS_FORMAT}")
    except BaseException:
        connection.close()
        raise
    return connection


def _check_vectors(connection: sqlite3.Connection, rows: FloatMatrix) -> None:
    """Raise sqlite3.DatabaseError unless every referenced vector is present and matches its checksum."""
    for place, key, checksum in connection.execute("SELECT place, text, hash FROM vector"):
        if place >= len(rows) or _vector_checksum(key, rows[place]) != checksum:
            raise sqlite3.DatabaseError("a vector does not match its checksum")


def _read_texts(connection: sqlite3.Connection) -> Iterator[PastTextRow]:
    """Yield all texts by number. Raises sqlite3.DatabaseError if one is damaged."""
    return (_past_text(row) for row in connection.execute(f"{_SELECT_RUNS} ORDER BY number"))


def _past_text(row: tuple[Any, ...]) -> PastTextRow:
    *values, facets, checksum = row
    if _text_checksum((*values, facets)) != checksum:
        raise sqlite3.DatabaseError("a text does not match its checksum")
    number, node_id, first, last, type_, vector = values
    return PastTextRow(number, node_id, first, last, type_, vector, None if facets is None else _facets(facets))


def _values(past: PastTextRow) -> tuple[Any, ...]:
    """Return the column values for `_UPSERT_RUN`."""
    facets = _packed(past.facets)
    values = (past.number, past.id, past.first, past.last, past.type, past.vector, facets)
    return *values, _text_checksum(values)


def _put_text(transaction: sqlite3.Connection, text: IndexedEntityText) -> PastTextRow | None:
    """Add a past text, or extend the preceding identical one; return None if it is already stored."""
    key = _text_key(text.meaning)
    place = int(transaction.execute("SELECT place FROM vector WHERE text = ?", (key,)).fetchone()[0])
    past = PastTextRow(0, text.id, text.since, text.until or 0, text.type, place, text.facets)
    begun = transaction.execute(_SELECT_LAST_BEGUN_RUN, (past.id, past.first)).fetchone()
    before = None if begun is None else _past_text(begun)
    if before is not None and before.last >= past.last:
        return None
    if before is not None and before.last == past.first and _is_same_content(before, past):
        past = msgspec.structs.replace(before, last=past.last)
    elif before is not None and before.first == past.first:
        past = msgspec.structs.replace(past, number=before.number)
    else:
        next_number = "SELECT coalesce(max(seq), 0) + 1 FROM sqlite_sequence WHERE name = 'run'"
        past = msgspec.structs.replace(past, number=transaction.execute(next_number).fetchone()[0])
    transaction.execute(_UPSERT_RUN, _values(past))
    return past


def _forget_ended(transaction: sqlite3.Connection, by: int) -> int:
    """Delete texts that ended by a commit, and vectors no longer used; return the number of texts.

    Scans all texts.
    """
    if forgotten := transaction.execute("DELETE FROM run WHERE last <= ?", (by,)).rowcount:
        transaction.execute(_DELETE_UNUSED_VECTORS)
    return forgotten


def _is_same_content(one: PastTextRow, other: PastTextRow) -> bool:
    def content(past: PastTextRow) -> tuple[Any, ...]:
        return past.type, past.vector, _packed(past.facets)

    return content(one) == content(other)


def _packed(facets: EntityFilterableFields | None) -> bytes | None:
    return None if facets is None else _encode(facets.packed)


def _text_key(meaning: str) -> bytes:
    """Return the key of a text's vector."""
    return blake2b(meaning.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _text_checksum(values: tuple[Any, ...]) -> int:
    return xxhash.xxh3_64_intdigest(_encode(values)) >> 1


def _vector_checksum(key: bytes, row: FloatMatrix) -> int:
    """Return the checksum of a vector and its key."""
    # SQLite's integers are signed.
    return xxhash.xxh3_64_intdigest(key + row.tobytes()) >> 1


def is_past_vectors_damage_error(error: sqlite3.DatabaseError) -> bool:
    """Return False for a locked or just closed file, and for a full disk or memory: the data is intact then."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    return not isinstance(error, sqlite3.ProgrammingError) and code & 0xFF not in _TRANSIENT_ERROR_CODES


def delete_past_vectors_folder(folder: Path) -> None:
    """Delete a folder of past vectors."""
    shutil.rmtree(folder, ignore_errors=True)
