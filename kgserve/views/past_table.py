"""The SQLite file of past texts: when each held, and which row of the flat file has its vector."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from kgserve.decoding import msgpack_decoder
from kgserve.views.filters import Marks
from kgserve.views.past_runs import Run
from kgserve.views.text import Text

VERSION = 1
_SCHEMA = """
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
_FOREIGN = "SELECT user_version <> ? AND EXISTS (SELECT * FROM sqlite_schema) FROM pragma_user_version"
_RUN = "SELECT number, id, first, last, type, vector, marks, hash FROM run"
_KNOWN = "SELECT 1 FROM run WHERE id = :id AND first <= :first AND last >= :last"
_LENGTHENED = f"{_RUN} WHERE id = :id AND last = :first AND type = :type AND vector = :vector AND marks IS :marks"
_BEGUN = f"{_RUN} WHERE id = :id AND first = :first"
PUT = "INSERT OR REPLACE INTO run VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
FORGET_UNUSED = "DELETE FROM vector WHERE NOT EXISTS (SELECT * FROM run WHERE run.vector = vector.place)"

Vectors = NDArray[np.float32]

_encode = msgspec.msgpack.Encoder().encode
_marks = msgpack_decoder(Marks).decode


def connect(path: Path) -> sqlite3.Connection:
    """Open or make the file. Raises sqlite3.DatabaseError for a file that is none of ours."""
    connection = sqlite3.connect(path, check_same_thread=False)
    # What a flipped bit has made of a text is to be read, and then not to fit its checksum.
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    try:
        if connection.execute(_FOREIGN, (VERSION,)).fetchone()[0]:
            raise sqlite3.DatabaseError("the file is of another kind")
        connection.executescript(_SCHEMA)
        connection.execute(f"PRAGMA user_version = {VERSION}")
    except BaseException:
        connection.close()
        raise
    return connection


def check_vectors(connection: sqlite3.Connection, rows: Vectors) -> None:
    """Raise sqlite3.DatabaseError unless every vector that the file names is among some rows, as it was written."""
    for place, key, checksum in connection.execute("SELECT place, text, hash FROM vector"):
        if place >= len(rows) or vector_checksum(key, rows[place]) != checksum:
            raise sqlite3.DatabaseError("a vector does not fit its checksum")


def read_runs(connection: sqlite3.Connection) -> Iterator[Run]:
    """All runs in the order of their numbers. Raises sqlite3.DatabaseError when one is damaged."""
    return (_run(row) for row in connection.execute(f"{_RUN} ORDER BY number"))


def _run(row: tuple[Any, ...]) -> Run:
    *values, marks, checksum = row
    if _text_checksum((*values, marks)) != checksum:
        raise sqlite3.DatabaseError("a text does not fit its checksum")
    number, node_id, first, last, type_, vector = values
    return Run(number, node_id, first, last, type_, vector, None if marks is None else _marks(marks))


def run_values(run: Run) -> tuple[Any, ...]:
    """What `PUT` stores of a run."""
    marks = None if run.marks is None else _encode(run.marks)
    values = (run.number, run.id, run.first, run.last, run.type, run.vector, marks)
    return *values, _text_checksum(values)


def put_run(transaction: sqlite3.Connection, text: Text) -> Run | None:
    """Add a past text, or lengthen the one before that said the same; None when it is there."""
    key = text_key(text.content)
    place = int(transaction.execute("SELECT place FROM vector WHERE text = ?", (key,)).fetchone()[0])
    marks = None if text.marks is None else _encode(text.marks)
    run = Run(0, text.id, text.since, text.until or 0, text.type, place, text.marks)
    values = {**msgspec.structs.asdict(run), "marks": marks}
    if transaction.execute(_KNOWN, values).fetchone():
        return None
    if before := transaction.execute(_LENGTHENED, values).fetchone():
        run = msgspec.structs.replace(_run(before), last=run.last)
    elif begun := transaction.execute(_BEGUN, values).fetchone():
        run = msgspec.structs.replace(run, number=begun[0])
    else:
        next_number = "SELECT coalesce(max(seq), 0) + 1 FROM sqlite_sequence WHERE name = 'run'"
        run = msgspec.structs.replace(run, number=transaction.execute(next_number).fetchone()[0])
    transaction.execute(PUT, run_values(run))
    return run


def text_key(content: str) -> bytes:
    """What names the vector of a text."""
    return blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _text_checksum(values: tuple[Any, ...]) -> int:
    return xxhash.xxh3_64_intdigest(_encode(values)) >> 1


def vector_checksum(key: bytes, row: Vectors) -> int:
    """The checksum of a vector and what names it."""
    # SQLite's integers are signed.
    return xxhash.xxh3_64_intdigest(key + row.tobytes()) >> 1
