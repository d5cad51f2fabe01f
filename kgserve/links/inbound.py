"""The links of all stores of a pool, found by what they lead to; in SQLite, made of what each store says itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kgserve.asking import of_some
from kgserve.links import files
from kgserve.links import statements as sql
from kgserve.model.rows import LinkKey, LinkRow
from kgserve.vacuum import write_anew


class Seen(NamedTuple):
    """How far a store was read: when it was made, and its last commit that changed links."""

    born: int
    changed: int


class Inbound:
    """The file. For one thread at a time. Raises sqlite3.Error when it is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = files.opened(path, sql.INBOUND_SCHEMA, sql.INBOUND_FORMAT)

    def seen(self) -> dict[str, Seen]:
        """The stores that were read, each with how far."""
        found = self._connection.execute("SELECT origin, born, changed FROM seen")
        return {origin: Seen(born, changed) for origin, born, changed in found}

    def follow(self, origin: str, put: Iterable[LinkRow], deleted: Iterable[LinkKey], seen: Seen) -> None:
        """Take in what has changed of the links of a store."""
        with self._connection as transaction:
            transaction.executemany(sql.INBOUND_DELETE, ({"origin": origin, **files.values(key)} for key in deleted))
            transaction.executemany(sql.INBOUND_PUT, ({"origin": origin, **files.stored(row)} for row in put))
            transaction.execute(sql.SEEN, (origin, *seen))

    def replace(self, origin: str, links: Iterable[Iterable[LinkRow]], seen: Seen) -> None:
        """Forget the links of a store, and take these."""
        with self._connection as transaction:
            transaction.execute(sql.INBOUND_FORGET, (origin,))
            for some in links:
                transaction.executemany(sql.INBOUND_PUT, ({"origin": origin, **files.stored(row)} for row in some))
            transaction.execute(sql.SEEN, (origin, *seen))

    def forget(self, origin: str) -> None:
        """A store is gone."""
        with self._connection as transaction:
            transaction.execute(sql.INBOUND_FORGET, (origin,))
            transaction.execute("DELETE FROM seen WHERE origin = ?", (origin,))

    def to(self, store: str, targets: Collection[str]) -> Iterator[tuple[str, LinkRow]]:
        """The links that lead to any of some nodes of a store, each behind the store that it is of."""
        run, wanted = self._connection.execute, sorted(targets)
        found = of_some(run, sql.INBOUND_TO, wanted, before=(store,), end=sql.INBOUND_ORDER)
        return ((origin, files.intact(content, expected)) for content, expected, origin in found)

    def counts(self, store: str) -> list[tuple[str, int]]:
        """The stores that any links lead into one from, by name, and how many of each."""
        return self._connection.execute(sql.INBOUND_COUNTS, (store,)).fetchall()

    def erase(self) -> None:
        """Leave nothing of rows that are gone. Raises as `write_anew` does."""
        write_anew(self._connection)

    def close(self) -> None:
        """Release the file."""
        with suppress(sqlite3.Error):
            self._connection.close()
