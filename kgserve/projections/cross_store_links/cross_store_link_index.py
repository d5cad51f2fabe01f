"""Links of a store (edges into other stores) in SQLite, indexed by source and by target.

A projection: it stores the sequence it has applied and is rebuilt if it does not fit, so commits need no fsync. Links
are few compared with edges, so each commit that changes links is applied immediately.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kgserve.platform.codecs import msgpack_decoder
from kgserve.platform.sqlite_files import (
    open_sqlite_database,
    select_rows_by_in_list,
    select_rows_by_values_join,
    store_sqlite_checksum,
    vacuum_database,
)
from kgserve.projections.cross_store_links import cross_store_link_sql as sql
from kgserve.storage.model.change_set import CrossStoreLinksCountAndDigest
from kgserve.storage.model.node_edge_rows import CrossStoreLinkKey, CrossStoreLinkRow
from kgserve.storage.model.store_rows_digest import checksum_63bit, update_digest_for_link_changes

_LINK_PAGE_ROWS = 5_000
NO_LINK_LIMIT = (1 << 63) - 1
"""Limit that includes all links."""


class OutboundLinkCount(NamedTuple):
    """Number of links from a store into one other store."""

    store: str
    links: int


class CrossStoreLinkReader:
    """Queries on a store's links. Not thread-safe. Raises sqlite3.Error if the file is damaged."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @property
    def state(self) -> CrossStoreLinksCountAndDigest:
        """Count and digest of all links."""
        [found] = self._connection.execute("SELECT count, digest FROM cursor")
        return CrossStoreLinksCountAndDigest(*found)

    @property
    def last_change_sequence(self) -> int:
        """Last commit that changed links."""
        [(found,)] = self._connection.execute("SELECT changed FROM cursor")
        return found

    def of(self, keys: Iterable[CrossStoreLinkKey]) -> Iterator[CrossStoreLinkRow]:
        """Yield the links with the given keys that exist."""
        wanted = [(source, kind, store, target) for store, (source, target, kind) in keys]
        return _intact(
            select_rows_by_values_join(self._connection.execute, sql.SELECT_LINKS_BY_KEY, wanted, sql.JOIN_LINK_KEYS)
        )

    def find_by_sources(self, ids: Collection[str]) -> Iterator[CrossStoreLinkRow]:
        """Yield the links from any of the given nodes."""
        return _intact(select_rows_by_in_list(self._connection.execute, sql.SELECT_LINKS_FROM_SOURCES, [*ids]))

    def outgoing(self, node_id: str, limit: int) -> list[CrossStoreLinkRow]:
        """Return at most ``limit`` links from a node."""
        return [*self._rows(sql.SELECT_LINKS_OF_SOURCE, {"source": node_id, "limit": limit})]

    def to(self, store: str, target: str, limit: int) -> list[CrossStoreLinkRow]:
        """Return at most ``limit`` links to a node of another store."""
        return [*self._rows(sql.SELECT_LINKS_TO_TARGET, {"store": store, "target": target, "limit": limit})]

    def iterate_links(self) -> Iterator[list[CrossStoreLinkRow]]:
        """Yield all links in key order, in batches."""
        after = CrossStoreLinkKey("", ("", "", ""))
        while rows := [
            *self._rows(sql.SELECT_LINKS_AFTER, {**convert_link_key_to_columns(after), "limit": _LINK_PAGE_ROWS})
        ]:
            yield rows
            after = rows[-1].key

    def outbound(self, after: str, limit: int) -> list[OutboundLinkCount]:
        """Return the next stores that links lead into, by name."""
        return [OutboundLinkCount(*row) for row in self._connection.execute(sql.SELECT_OUTBOUND_COUNTS, (after, limit))]

    def _rows(self, query: str, values: dict[str, Any]) -> Iterator[CrossStoreLinkRow]:
        return _intact(self._connection.execute(query, values))


def _intact(found: Iterable[tuple[bytes, int]]) -> Iterator[CrossStoreLinkRow]:
    return (decode_cross_store_link_row(*each) for each in found)


@contextmanager
def open_cross_store_links_of_closed_store(path: Path) -> Generator[tuple[CrossStoreLinkReader, int]]:
    """Yield the links of a closed store, and the last commit they are known to include.

    The file is not changed. Raises sqlite3.Error if it does not exist or cannot be read.
    """
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None)
    try:
        [(found,)] = connection.execute("PRAGMA user_version")
        if found != sql.LINKS_FORMAT:
            raise sqlite3.DatabaseError("another format")
        connection.execute("BEGIN")
        [(sequence,)] = connection.execute("SELECT sequence FROM cursor")
        yield CrossStoreLinkReader(connection), sequence
    finally:
        connection.close()


class CrossStoreLinkIndex(CrossStoreLinkReader):
    """SQLite index of one store's links; an unreadable file, or one of another format, is replaced by an empty one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(open_sqlite_database(path, sql.LINKS_SCHEMA, sql.LINKS_FORMAT))

    @property
    def sequence(self) -> int:
        """Last commit known to be applied; -1 for none."""
        [(found,)] = self._connection.execute("SELECT sequence FROM cursor")
        return found

    def apply(
        self,
        put: Iterable[CrossStoreLinkRow],
        deleted: Iterable[CrossStoreLinkKey],
        sequence: int,
        state: CrossStoreLinksCountAndDigest,
    ) -> None:
        """Apply the link changes of a commit and store the resulting state; readers see it immediately."""
        with self._connection as transaction:
            transaction.executemany(sql.DELETE_LINK, map(convert_link_key_to_columns, deleted))
            transaction.executemany(sql.UPSERT_LINK, map(encode_cross_store_link_row_columns, put))
            transaction.execute(sql.UPDATE_LINKS_CURSOR, (sequence, state.count, state.digest))

    def advance_to(self, sequence: int) -> None:
        """Record that all commits up to ``sequence`` are applied; later ones than the last applied changed no links."""
        with self._connection as transaction:
            transaction.execute("UPDATE cursor SET sequence = ?", (sequence,))

    def rebuild(self, links: Iterable[Sequence[CrossStoreLinkRow]], sequence: int) -> None:
        """Replace all links."""
        state = CrossStoreLinksCountAndDigest()
        with self._connection as transaction:
            transaction.execute("DELETE FROM link")
            for some in links:
                transaction.executemany(sql.UPSERT_LINK, map(encode_cross_store_link_row_columns, some))
                state = update_digest_for_link_changes(state, some, ())
            transaction.execute(sql.UPDATE_LINKS_CURSOR, (sequence, state.count, state.digest))

    def erase(self) -> None:
        """Rewrite the file so that no deleted rows remain in it. Raises what `vacuum_database` raises."""
        vacuum_database(self._connection)

    @contextmanager
    def open_snapshot(self) -> Generator[CrossStoreLinkReader]:
        """Yield a reader with a snapshot of the links, usable in any thread while commits continue."""
        connection = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)
        try:
            connection.execute("BEGIN")
            connection.execute("SELECT sequence FROM cursor").fetchone()
            yield CrossStoreLinkReader(connection)
        finally:
            connection.close()

    def close(self) -> None:
        """Close and seal the file."""
        with suppress(sqlite3.Error):
            self._connection.close()
            store_sqlite_checksum(self.path)


class CrossStoreLinksVersion(NamedTuple):
    """Position in a store's links: creation time of the store, and its last commit that changed links."""

    born: int
    changed: int


class InboundLinkTable:
    """Links of other stores by target, in one file. Not thread-safe. Raises sqlite3.Error if it is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = open_sqlite_database(path, sql.INBOUND_SCHEMA, sql.INBOUND_FORMAT)

    def seen(self) -> dict[str, CrossStoreLinksVersion]:
        """Return the indexed stores with their positions."""
        found = self._connection.execute("SELECT origin, born, changed FROM seen")
        return {origin: CrossStoreLinksVersion(born, changed) for origin, born, changed in found}

    def follow(
        self,
        origin: str,
        put: Iterable[CrossStoreLinkRow],
        deleted: Iterable[CrossStoreLinkKey],
        seen: CrossStoreLinksVersion,
    ) -> None:
        """Apply link changes of a store."""
        with self._connection as transaction:
            transaction.executemany(
                sql.DELETE_INBOUND_LINK, ({"origin": origin, **convert_link_key_to_columns(key)} for key in deleted)
            )
            transaction.executemany(
                sql.UPSERT_INBOUND_LINK, ({"origin": origin, **encode_cross_store_link_row_columns(row)} for row in put)
            )
            transaction.execute(sql.UPSERT_INBOUND_POSITION, (origin, *seen))

    def replace(self, origin: str, links: Iterable[Iterable[CrossStoreLinkRow]], seen: CrossStoreLinksVersion) -> None:
        """Replace the links of a store."""
        with self._connection as transaction:
            transaction.execute(sql.DELETE_INBOUND_OF_ORIGIN, (origin,))
            for some in links:
                transaction.executemany(
                    sql.UPSERT_INBOUND_LINK,
                    ({"origin": origin, **encode_cross_store_link_row_columns(row)} for row in some),
                )
            transaction.execute(sql.UPSERT_INBOUND_POSITION, (origin, *seen))

    def forget(self, origin: str) -> None:
        """Delete the links of a deleted store."""
        with self._connection as transaction:
            transaction.execute(sql.DELETE_INBOUND_OF_ORIGIN, (origin,))
            transaction.execute("DELETE FROM seen WHERE origin = ?", (origin,))

    def to(self, store: str, targets: Collection[str]) -> Iterator[tuple[str, CrossStoreLinkRow]]:
        """Yield the links to any of the given nodes of a store, each with its store of origin."""
        run, wanted = self._connection.execute, sorted(targets)
        found = select_rows_by_in_list(
            run, sql.SELECT_INBOUND_TO_TARGETS, wanted, before=(store,), end=sql.INBOUND_ORDER
        )
        return ((origin, decode_cross_store_link_row(content, expected)) for content, expected, origin in found)

    def counts(self, store: str) -> list[tuple[str, int]]:
        """Return the stores with links into ``store``, by name, with the number of links."""
        return self._connection.execute(sql.SELECT_INBOUND_COUNTS, (store,)).fetchall()

    def erase(self) -> None:
        """Rewrite the file so that no deleted rows remain in it. Raises what `vacuum_database` raises."""
        vacuum_database(self._connection)

    def close(self) -> None:
        """Close and seal the file."""
        with suppress(sqlite3.Error):
            self._connection.close()
            store_sqlite_checksum(self.path)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgpack_decoder(CrossStoreLinkRow).decode


def convert_link_key_to_columns(key: CrossStoreLinkKey) -> dict[str, Any]:
    """Return a key as column values by name."""
    source, target, relation_type = key.edge
    return {"source": source, "relation_type": relation_type, "store": key.store, "target": target}


def encode_cross_store_link_row_columns(row: CrossStoreLinkRow) -> dict[str, Any]:
    """Return a link row as column values by name, with its checksum."""
    content = _encode(row)
    return {**convert_link_key_to_columns(row.key), "row": content, "hash": checksum_63bit(content)}


def decode_cross_store_link_row(content: bytes, expected: int) -> CrossStoreLinkRow:
    """Decode a row written by `encode_cross_store_link_row_columns`. Raises sqlite3.DatabaseError if its checksum does not match."""
    if checksum_63bit(content) != expected:
        raise sqlite3.DatabaseError("a link does not match its checksum")
    return _decode(content)
