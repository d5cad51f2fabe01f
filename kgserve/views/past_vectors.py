"""The vectors of texts that entities no longer have, found exactly: a flat file of them, and SQLite for whose they are.

Each different text has one vector, whoever had it and how often. Vectors are written before SQLite commits what names
them, so a kill leaves at most rows that nobody names; checksums of all that is named are compared at opening. What does
not fit is replaced by nothing, for everything can be made again from the history and the cache of embeddings.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgserve.views.filters import Filter
from kgserve.views.past_matrix import VectorFile, products
from kgserve.views.past_runs import Columns, Numbers, Runs
from kgserve.views.past_table import (
    FORGET_UNUSED,
    PUT,
    check_vectors,
    connect,
    put_run,
    read_runs,
    run_values,
    text_key,
    vector_checksum,
)
from kgserve.views.text import Text
from kgserve.views.vector import VectorHit

# A file of so many rows may keep as many that nobody names.
SMALL = 1024
_IDS = "SELECT number, id FROM run WHERE number IN (SELECT value FROM json_each(?))"
_HELD = "SELECT id, number FROM run WHERE id = ? AND first <= ? AND last > ?"
_FROM = "SELECT id, number FROM run WHERE id >= ? ORDER BY id"

Vectors = NDArray[np.float32]


class PastVectors:
    """Vectors of past texts. Any thread may search; one thread writes."""

    def __init__(self, folder: Path, dimensions: int, model: str) -> None:
        """Open what is there for the same model if it is whole, or begin with nothing, ``sequence`` 0."""
        self._folder = folder
        self._dimensions = dimensions
        self._model = model
        self._writing = threading.Lock()
        self._reading = threading.Lock()
        self._writer, self._held = self._opened()
        self._reader = sqlite3.connect(folder / "texts.sqlite", check_same_thread=False)
        self._used: int = self._writer.execute("SELECT coalesce(max(place) + 1, 0) FROM vector").fetchone()[0]
        self.sequence: int = self._writer.execute("SELECT sequence FROM cursor").fetchone()[0]

    def __len__(self) -> int:
        return len(self._held[0])

    def known(self, texts: Sequence[Text]) -> set[str]:
        """The contents among those of some texts whose vectors are there."""
        return {
            text.content
            for text in texts
            if self._read("SELECT 1 FROM vector WHERE text = ?", (text_key(text.content),))
        }

    def write(self, texts: Sequence[Text], vectors: dict[str, Vectors], sequence: int, ended: int) -> None:
        """Take in past texts with the vectors of their contents; forget those that had ``ended`` by a commit.

        All of it or nothing is done, and twice comes to the same. Raises OSError when there is no room.
        """
        with self._writing:
            with self._writer as transaction:
                added = self._add_vectors(transaction, vectors)
                put = [run for text in texts if (run := put_run(transaction, text)) is not None]
                if forgotten := transaction.execute("DELETE FROM run WHERE last <= ?", (ended,)).rowcount:
                    transaction.execute(FORGET_UNUSED)
                values = (sequence, self._model, self._dimensions)
                transaction.execute("UPDATE cursor SET sequence = ?, model = ?, dimensions = ?", values)
            self._used += added
            runs, file = self._held
            if forgotten:
                file = self._shrunk(file)
                self._held = Runs(read_runs(self._writer)), file
            else:
                for run in put:
                    runs.put(run)
        self.sequence = sequence

    def search(self, query: Vectors, limit: int, only: Filter) -> list[VectorHit]:
        """The nearest of the texts that held as of ``only.as_of``, nearest first; of equals those that ended first.

        Raises sqlite3.DatabaseError.
        """
        held, file = self._held
        runs, places = held.passing(only)
        if only.id_prefix:
            places = places[np.isin(runs.number[places], self._beginning_with(only.id_prefix))]
        limit = min(limit, len(places))
        if limit <= 0:
            return []
        scores = products(file.rows, runs.vector[places], query)
        least = np.partition(scores, -limit)[-limit]
        best = np.flatnonzero(scores >= least)
        best = best[np.lexsort((best, -scores[best]))][:limit]
        numbers: list[int] = runs.number[places[best]].tolist()
        ids = dict(self._read(_IDS, (json.dumps(numbers),)))
        # Without an id: forgotten since it was looked for.
        found = zip(numbers, scores[best].tolist(), strict=True)
        return [VectorHit(ids[number], score) for number, score in found if number in ids]

    def vectors_of(self, ids: Sequence[str], as_of: int) -> dict[str, Vectors]:
        """The vectors of those entities that had other texts as of a commit than now. Raises sqlite3.DatabaseError."""
        held, file = self._held
        runs = held.columns
        found = [row for node_id in ids for row in self._read(_HELD, (node_id, as_of, as_of))]
        return {node_id: file.rows[runs.vector[place]].copy() for node_id, place in _places(runs, found)}

    def close(self) -> None:
        """Release the files."""
        with self._reading:
            self._reader.close()
        with self._writing:
            self._writer.close()

    def _read(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with self._reading:
            return self._reader.execute(query, values).fetchall()

    def _beginning_with(self, prefix: str) -> Numbers:
        # Ids are ordered by their bytes, so those with the prefix come in a row.
        with self._reading:
            found = takewhile(lambda row: row[0].startswith(prefix), self._reader.execute(_FROM, (prefix,)))
            return np.array([number for _, number in found], np.int64)

    # Opening

    def _opened(self) -> tuple[sqlite3.Connection, tuple[Runs, VectorFile]]:
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            return self._checked()
        except sqlite3.DatabaseError as error:
            if type(error) is not sqlite3.DatabaseError:
                raise
        shutil.rmtree(self._folder)
        self._folder.mkdir()
        return self._checked()

    def _checked(self) -> tuple[sqlite3.Connection, tuple[Runs, VectorFile]]:
        """What is there. Raises sqlite3.DatabaseError when it is damaged, or of another model."""
        connection = connect(self._folder / "texts.sqlite")
        try:
            model, dimensions, number = connection.execute("SELECT model, dimensions, file FROM cursor").fetchone()
            if model and (model, dimensions) != (self._model, self._dimensions):
                raise sqlite3.DatabaseError("the vectors are of another model")
            path = self._file(number)
            for each in self._folder.glob("vectors-*"):
                if each != path:
                    each.unlink()
            file = VectorFile(path, self._dimensions)
            check_vectors(connection, file.rows)
            return connection, (Runs(read_runs(connection)), file)
        except BaseException:
            connection.close()
            raise

    def _file(self, number: int) -> Path:
        return self._folder / f"vectors-{number}"

    # Writing, with the lock held

    def _add_vectors(self, transaction: sqlite3.Connection, vectors: dict[str, Vectors]) -> int:
        """Write those that are not there yet; how many those were."""
        known = "SELECT 1 FROM vector WHERE text = ?"
        new = {
            key: vectors[text]
            for text in vectors
            if not transaction.execute(known, (key := text_key(text),)).fetchone()
        }
        if new:
            rows = np.stack([*new.values()]).astype("<f4")
            self._held[1].write(self._used, rows)
            values = [
                (place, key, vector_checksum(key, row))
                for place, (key, row) in enumerate(zip(new, rows, strict=True), self._used)
            ]
            transaction.executemany("INSERT INTO vector VALUES (?, ?, ?)", values)
        return len(new)

    def _shrunk(self, file: VectorFile) -> VectorFile:
        """The file, or one without the rows that nobody names when those are more than half."""
        places: list[int] = [place for (place,) in self._writer.execute("SELECT place FROM vector ORDER BY place")]
        if self._used <= max(2 * len(places), len(places) + SMALL):
            return file
        number = int(self._writer.execute("SELECT file + 1 FROM cursor").fetchone()[0])
        copied = file.copy(places, self._file(number))
        moved = dict(zip(places, range(len(places)), strict=True))
        with self._writer as transaction:
            # No place is taken by what is yet to be moved: all move to the front, in their order.
            transaction.executemany(
                "UPDATE vector SET place = ? WHERE place = ?", [(new, old) for old, new in moved.items()]
            )
            runs = [msgspec.structs.replace(run, vector=moved[run.vector]) for run in read_runs(transaction)]
            transaction.executemany(PUT, [run_values(run) for run in runs])
            transaction.execute("UPDATE cursor SET file = ?", (number,))
        self._used = len(places)
        file.path.unlink()
        return copied


def forget(folder: Path) -> None:
    """Remove a folder of past vectors."""
    shutil.rmtree(folder, ignore_errors=True)


def _places(runs: Columns, found: Sequence[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """The places of runs by their numbers, with their ids; what the columns do not have yet is left out."""
    for node_id, number in found:
        place = int(np.searchsorted(runs.number, number))
        if place < len(runs.number) and runs.number[place] == number:
            yield node_id, place
