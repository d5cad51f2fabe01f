"""The links of a store, its edges into others, in SQLite: found by what they lead from and by what they lead to.

A view like any other: it carries the sequence that it has seen, and is made anew whenever it does not fit. For that
reason commits do not wait for the disk. Links are few beside edges: each commit that changes any is taken in at once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kgserve.platform.codecs import msgpack_decoder
from kgserve.platform.sqlite_files import of_rows, of_some, opened, seal, write_anew
from kgserve.projections.links import statements as sql
from kgserve.storage.model.change import LinksState
from kgserve.storage.model.digest import checksum, shift_links
from kgserve.storage.model.rows import LinkKey, LinkRow

_LINK_PAGE_ROWS = 5_000
NO_LINK_LIMIT = (1 << 63) - 1
"""A limit for all there are."""


class Outbound(NamedTuple):
    """A store that links lead into, and how many."""

    store: str
    links: int


class LinkReader:
    """Asks a store's links. For one thread at a time. Raises sqlite3.Error when the file is damaged."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @property
    def state(self) -> LinksState:
        """What all of them come to."""
        [found] = self._connection.execute("SELECT count, digest FROM cursor")
        return LinksState(*found)

    @property
    def changed(self) -> int:
        """The last commit that changed any."""
        [(found,)] = self._connection.execute("SELECT changed FROM cursor")
        return found

    def of(self, keys: Iterable[LinkKey]) -> Iterator[LinkRow]:
        """Those of some keys that are there."""
        wanted = [(source, kind, store, target) for store, (source, target, kind) in keys]
        return _intact(of_rows(self._connection.execute, sql.SELECT_LINKS_BY_KEY, wanted, sql.JOIN_LINK_KEYS))

    def from_any(self, ids: Collection[str]) -> Iterator[LinkRow]:
        """Those that lead from any of some nodes."""
        return _intact(of_some(self._connection.execute, sql.SELECT_LINKS_FROM_SOURCES, [*ids]))

    def outgoing(self, node_id: str, limit: int) -> list[LinkRow]:
        """Those that lead from a node, at most so many."""
        return [*self._rows(sql.SELECT_LINKS_OF_SOURCE, {"source": node_id, "limit": limit})]

    def to(self, store: str, target: str, limit: int) -> list[LinkRow]:
        """Those that lead to a node of another store, at most so many."""
        return [*self._rows(sql.SELECT_LINKS_TO_TARGET, {"store": store, "target": target, "limit": limit})]

    def all(self) -> Iterator[list[LinkRow]]:
        """All of them in the order of their keys, some at a time."""
        after = LinkKey("", ("", "", ""))
        while rows := [*self._rows(sql.SELECT_LINKS_AFTER, {**values(after), "limit": _LINK_PAGE_ROWS})]:
            yield rows
            after = rows[-1].key

    def outbound(self, after: str, limit: int) -> list[Outbound]:
        """The next stores that any lead into, by name."""
        return [Outbound(*row) for row in self._connection.execute(sql.SELECT_OUTBOUND_COUNTS, (after, limit))]

    def _rows(self, query: str, values: dict[str, Any]) -> Iterator[LinkRow]:
        return _intact(self._connection.execute(query, values))


def _intact(found: Iterable[tuple[bytes, int]]) -> Iterator[LinkRow]:
    return (intact(*each) for each in found)


@contextmanager
def left(path: Path) -> Generator[tuple[LinkReader, int]]:
    """The links of a store that is closed, and the last commit that they are known to have seen.

    The file is left as it is. Raises sqlite3.Error for one that is not there, or cannot be read.
    """
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None)
    try:
        [(found,)] = connection.execute("PRAGMA user_version")
        if found != sql.LINKS_FORMAT:
            raise sqlite3.DatabaseError("another format")
        connection.execute("BEGIN")
        [(sequence,)] = connection.execute("SELECT sequence FROM cursor")
        yield LinkReader(connection), sequence
    finally:
        connection.close()


class Links(LinkReader):
    """The file of one store's links. A file that cannot be read, or has another format, is replaced by an empty one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(opened(path, sql.LINKS_SCHEMA, sql.LINKS_FORMAT))

    @property
    def sequence(self) -> int:
        """The last commit that it is known to have seen; -1 for none."""
        [(found,)] = self._connection.execute("SELECT sequence FROM cursor")
        return found

    def apply(self, put: Iterable[LinkRow], deleted: Iterable[LinkKey], sequence: int, state: LinksState) -> None:
        """Take in what a commit changes, after which all links come to a state; others see it at once."""
        with self._connection as transaction:
            transaction.executemany(sql.DELETE_LINK, map(values, deleted))
            transaction.executemany(sql.UPSERT_LINK, map(stored, put))
            transaction.execute(sql.UPDATE_LINKS_CURSOR, (sequence, state.count, state.digest))

    def moved(self, sequence: int) -> None:
        """It has seen all commits up to one, and none after the last that it took in changes links."""
        with self._connection as transaction:
            transaction.execute("UPDATE cursor SET sequence = ?", (sequence,))

    def rebuild(self, links: Iterable[Sequence[LinkRow]], sequence: int) -> None:
        """Forget everything, and take these."""
        state = LinksState()
        with self._connection as transaction:
            transaction.execute("DELETE FROM link")
            for some in links:
                transaction.executemany(sql.UPSERT_LINK, map(stored, some))
                state = shift_links(state, some, ())
            transaction.execute(sql.UPDATE_LINKS_CURSOR, (sequence, state.count, state.digest))

    def erase(self) -> None:
        """Leave nothing of rows that are gone. Raises as `write_anew` does."""
        write_anew(self._connection)

    @contextmanager
    def beside(self) -> Generator[LinkReader]:
        """The links as they are now, for as long as they are read, in any thread; commits go on meanwhile."""
        connection = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)
        try:
            connection.execute("BEGIN")
            connection.execute("SELECT sequence FROM cursor").fetchone()
            yield LinkReader(connection)
        finally:
            connection.close()

    def close(self) -> None:
        """Release the file, sealed."""
        with suppress(sqlite3.Error):
            self._connection.close()
            seal(self.path)


class LinksPosition(NamedTuple):
    """How far a store was read: when it was made, and its last commit that changed links."""

    born: int
    changed: int


class Inbound:
    """The file. For one thread at a time. Raises sqlite3.Error when it is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = opened(path, sql.INBOUND_SCHEMA, sql.INBOUND_FORMAT)

    def seen(self) -> dict[str, LinksPosition]:
        """The stores that were read, each with how far."""
        found = self._connection.execute("SELECT origin, born, changed FROM seen")
        return {origin: LinksPosition(born, changed) for origin, born, changed in found}

    def follow(self, origin: str, put: Iterable[LinkRow], deleted: Iterable[LinkKey], seen: LinksPosition) -> None:
        """Take in what has changed of the links of a store."""
        with self._connection as transaction:
            transaction.executemany(sql.DELETE_INBOUND_LINK, ({"origin": origin, **values(key)} for key in deleted))
            transaction.executemany(sql.UPSERT_INBOUND_LINK, ({"origin": origin, **stored(row)} for row in put))
            transaction.execute(sql.UPSERT_INBOUND_POSITION, (origin, *seen))

    def replace(self, origin: str, links: Iterable[Iterable[LinkRow]], seen: LinksPosition) -> None:
        """Forget the links of a store, and take these."""
        with self._connection as transaction:
            transaction.execute(sql.DELETE_INBOUND_OF_ORIGIN, (origin,))
            for some in links:
                transaction.executemany(sql.UPSERT_INBOUND_LINK, ({"origin": origin, **stored(row)} for row in some))
            transaction.execute(sql.UPSERT_INBOUND_POSITION, (origin, *seen))

    def forget(self, origin: str) -> None:
        """A store is gone."""
        with self._connection as transaction:
            transaction.execute(sql.DELETE_INBOUND_OF_ORIGIN, (origin,))
            transaction.execute("DELETE FROM seen WHERE origin = ?", (origin,))

    def to(self, store: str, targets: Collection[str]) -> Iterator[tuple[str, LinkRow]]:
        """The links that lead to any of some nodes of a store, each behind the store that it is of."""
        run, wanted = self._connection.execute, sorted(targets)
        found = of_some(run, sql.SELECT_INBOUND_TO_TARGETS, wanted, before=(store,), end=sql.INBOUND_ORDER)
        return ((origin, intact(content, expected)) for content, expected, origin in found)

    def counts(self, store: str) -> list[tuple[str, int]]:
        """The stores that any links lead into one from, by name, and how many of each."""
        return self._connection.execute(sql.SELECT_INBOUND_COUNTS, (store,)).fetchall()

    def erase(self) -> None:
        """Leave nothing of rows that are gone. Raises as `write_anew` does."""
        write_anew(self._connection)

    def close(self) -> None:
        """Release the file, sealed."""
        with suppress(sqlite3.Error):
            self._connection.close()
            seal(self.path)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgpack_decoder(LinkRow).decode


def values(key: LinkKey) -> dict[str, Any]:
    """A key as the values of columns, by name."""
    source, target, relation_type = key.edge
    return {"source": source, "relation_type": relation_type, "store": key.store, "target": target}


def stored(row: LinkRow) -> dict[str, Any]:
    """A row as the values of columns, by name."""
    content = _encode(row)
    return {**values(row.key), "row": content, "hash": checksum(content)}


def intact(content: bytes, expected: int) -> LinkRow:
    """The inverse of `stored`. Raises sqlite3.DatabaseError for what does not fit its checksum."""
    if checksum(content) != expected:
        raise sqlite3.DatabaseError("a link does not fit its checksum")
    return _decode(content)
