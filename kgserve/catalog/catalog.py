"""The catalog: nodes in the order of their ids, and counts by type and tag, in SQLite, so that listing never scans.

It holds whole rows: twenty of them cost 0.2 ms here and 2 to 3 ms as look-ups in the engine.

A view like any other: it carries the sequence that it has seen, is fed after every commit, and is built anew whenever
it does not fit. It is not synced to disk for that reason, and every row has a checksum.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from kgserve.catalog import extras, tallies
from kgserve.catalog import statements as sql
from kgserve.catalog.listing import list_ids
from kgserve.decoding import msgpack_decoder
from kgserve.model.change import NetChange
from kgserve.model.listing import Listed, NodeFilter, Place
from kgserve.model.rows import NodeRow
from kgserve.model.schema import (
    MAX_EXAMPLE,
    MAX_EXAMPLES,
    MAX_KINDS,
    MAX_PREFIXES,
    MAX_TAGS_LISTED,
    MAX_VALUES,
    KindFreq,
    TagFreq,
    TagPrefixFreq,
)

_ROWS_AT_ONCE = 5_000
_MAX_EXAMPLE_BYTES = 1 << 16

_encode = msgspec.msgpack.Encoder().encode
_decode = msgpack_decoder(NodeRow).decode


class Vocabulary(msgspec.Struct, frozen=True):
    """The types and tags in use at one commit, the most frequent first, with the number of nodes."""

    nodes: int
    kinds: list[KindFreq]
    tag_prefixes: list[TagPrefixFreq]
    tags: list[TagFreq]


class Catalog:
    """One connection that writes and one that reads, each used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Open or make the file. One that SQLite will not have, or of another format, is replaced by an empty one."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._writing = threading.Lock()
        self._reading = threading.Lock()
        try:
            self._writer = _connect(path)
        except sqlite3.DatabaseError:
            remove(path)
            self._writer = _connect(path)
        self._reader = sqlite3.connect(path, check_same_thread=False)
        self._any_extras = True

    @property
    def sequence(self) -> int:
        """The last commit that it has seen; -1 when it has seen nothing or failed."""
        try:
            return self._read(sql.SEQUENCE, {})[0][0]
        except sqlite3.DatabaseError:
            return -1

    def apply(self, net: NetChange, sequence: int) -> None:
        """Take in what a group of writes changed."""
        with self._writing, self._writer as transaction:
            types = _type_changes(transaction, net)
            transaction.executemany(sql.DROP, ((node_id,) for node_id in net.nodes_deleted))
            transaction.executemany(sql.PUT, map(_stored, (*net.nodes_created.values(), *net.nodes_updated.values())))
            relations = Counter(key[2] for key in net.edges_created)
            relations.subtract(key[2] for key in net.edges_deleted)
            counts = tallies.by_kind(tallies.TYPES, types) + tallies.by_kind(tallies.RELATION_TYPES, relations)
            tallies.add(transaction, counts + self._tags(transaction, net))
            transaction.execute(sql.MOVE, (sequence, types.total()))

    def rebuild(self, nodes: Iterable[NodeRow], relations: Iterable[tuple[str, int]], sequence: int) -> None:
        """Forget everything; take rows, and relation types with their counts."""
        with self._writing, self._writer as transaction:
            transaction.execute("DELETE FROM node")
            transaction.execute("DELETE FROM tally")
            extras.clear(transaction)
            self._any_extras = True
            tags: Counter[str] = Counter()
            source = iter(nodes)
            while rows := list(islice(source, _ROWS_AT_ONCE)):
                transaction.executemany(sql.ADD, map(_stored, rows))
                if extended := extras.extended(rows):
                    tags.update(extras.fill(transaction, extended))
            transaction.execute(sql.TALLY_TYPES, (tallies.TYPES,))
            counted = [(tallies.RELATION_TYPES, name, count) for name, count in relations]
            transaction.executemany(sql.TALLY_ADD, counted + tallies.of_tags(tags))
            transaction.execute(sql.RESET, (sequence,))

    def page(self, type_: str | None, after: str | None, limit: int, skip: int = 0) -> list[NodeRow]:
        """The next nodes in the order of their ids, of one type or of all. Raises sqlite3.Error for a damaged file."""
        values = {"type": type_, "after": after or "", "limit": limit, "skip": skip}
        found = self._read(sql.PAGE if type_ is None else sql.PAGE_TYPE, values)
        return [_intact(row, checksum) for row, checksum in found]

    def listed(self, wanted: NodeFilter, place: Place, limit: int) -> Listed[NodeRow]:
        """A page of the nodes that fit, in the order of their ids. Raises sqlite3.Error for a damaged file."""
        if wanted.tags or wanted.valid_at is not None or len(wanted.types) > 1:
            with self._at_once() as reader:
                ids, next_ = list_ids(reader, wanted, place, limit)
                found = [_fitting(reader.execute(sql.ROW, (node_id,)).fetchone(), wanted) for node_id in ids]
            return Listed(found, next_)
        (type_,) = wanted.types or (None,)
        rows = self.page(type_, place.after, limit + 1, place.skip)
        return Listed(rows[:limit], Place(rows[limit - 1].id) if len(rows) > limit else None)

    def rows(self, ids: Collection[str]) -> dict[str, NodeRow]:
        """The nodes among ``ids`` that exist, by id. Raises sqlite3.Error when the file is damaged."""
        with self._reading:
            found = [self._reader.execute(sql.ROW, (node_id,)).fetchone() for node_id in ids]
        return {node_id: _intact(*row) for node_id, row in zip(ids, found, strict=True) if row is not None}

    def types(self, limit: int) -> dict[str, int]:
        """The most frequent node types with their counts."""
        return self._most(tallies.TYPES, limit)

    def relation_types(self, limit: int) -> dict[str, int]:
        """The most frequent relation types with their counts."""
        return self._most(tallies.RELATION_TYPES, limit)

    def tags(self, start: str, limit: int) -> list[TagFreq]:
        """The most frequent tags that start so, by count and then by name."""
        with self._at_once() as reader:
            return [TagFreq(tag=tag, count=count) for tag, count in tallies.most_tags(reader, start, limit)]

    def vocabulary(self) -> Vocabulary:
        """What types and tags there are. Raises sqlite3.Error for a damaged file."""
        with self._at_once() as reader:
            kinds = tallies.most(reader, tallies.TYPES, MAX_KINDS)
            prefixes = tallies.most(reader, tallies.PREFIXES, MAX_PREFIXES)
            tags = tallies.most(reader, tallies.TAGS, MAX_TAGS_LISTED)
            return Vocabulary(
                nodes=reader.execute(sql.NODES).fetchone()[0],
                kinds=[KindFreq(kind=kind, count=count, examples=_examples(reader, kind)) for kind, count in kinds],
                tag_prefixes=[
                    TagPrefixFreq(prefix=prefix, count=count, values=_values(reader, prefix))
                    for prefix, count in prefixes
                ],
                tags=[TagFreq(tag=tag, count=count) for tag, count in tags],
            )

    def close(self) -> None:
        """Release the file."""
        with self._reading:
            self._reader.close()
        with self._writing:
            self._writer.close()

    def _tags(self, transaction: sqlite3.Connection, net: NetChange) -> list[tallies.Count]:
        """What a change comes to for tags and bounds; most stores have none and pay nothing for that."""
        rows = extras.extended((*net.nodes_created.values(), *net.nodes_updated.values()))
        if not rows and not self._any_extras:
            return []
        counts = tallies.of_tags(extras.follow(transaction, net, rows))
        self._any_extras = extras.any_kept(transaction)
        return counts

    def _most(self, kind: str, limit: int) -> dict[str, int]:
        with self._reading:
            return dict(tallies.most(self._reader, kind, limit))

    @contextmanager
    def _at_once(self) -> Generator[sqlite3.Connection]:
        """The reading connection, on which all statements see the same commit."""
        with self._reading:
            self._reader.execute("BEGIN")
            try:
                yield self._reader
            finally:
                self._reader.rollback()

    def _read(self, query: str, values: dict[str, str | int | None]) -> list[tuple[Any, Any]]:
        with self._reading:
            return self._reader.execute(query, values).fetchall()


def remove(path: Path) -> None:
    """Delete the file and what SQLite keeps beside it."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, check_same_thread=False)
    try:
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (format_,) = connection.execute("PRAGMA user_version").fetchone()
        if tables and format_ != sql.FORMAT:
            raise sqlite3.DatabaseError("another format")
        connection.executescript(sql.SETUP + sql.SCHEMA)
    except BaseException:
        connection.close()
        raise
    return connection


def _stored(row: NodeRow) -> tuple[str, str, bytes, int]:
    content = _encode(row)
    return row.id, row.type, content, _checksum(content)


def _intact(content: bytes, checksum: int) -> NodeRow:
    if _checksum(content) != checksum:
        raise sqlite3.DatabaseError("a row does not fit its checksum")
    return _decode(content)


def _fitting(found: tuple[bytes, int] | None, wanted: NodeFilter) -> NodeRow:
    row = None if found is None else _intact(*found)
    if row is None or not wanted.matches(row):
        raise sqlite3.DatabaseError("an index names a row that it should not")
    return row


def _checksum(content: bytes) -> int:
    # SQLite's integers are signed.
    return xxhash.xxh3_64_intdigest(content) >> 1


def _type_changes(connection: sqlite3.Connection, net: NetChange) -> Counter[str]:
    types = Counter(row.type for row in net.nodes_created.values())
    types.update(row.type for row in net.nodes_updated.values())
    for node_id in (*net.nodes_deleted, *net.nodes_updated):
        for (old,) in connection.execute(sql.TYPE_OF, (node_id,)):
            types[old] -= 1
    return types


def _values(reader: sqlite3.Connection, prefix: str) -> list[str]:
    return [value for value, _ in tallies.most(reader, tallies.values_of(prefix), MAX_VALUES)]


def _examples(reader: sqlite3.Connection, type_: str) -> list[str]:
    """Short texts of the first nodes of a type; long rows are passed over, because reading them takes long."""
    values = {"type": type_, "bytes": _MAX_EXAMPLE_BYTES, "limit": MAX_EXAMPLES}
    found = reader.execute(sql.EXAMPLES, values).fetchall()
    texts = (_short(_intact(row, checksum)) for row, checksum in found if row is not None)
    return [text for text in texts if text]


def _short(row: NodeRow) -> str:
    text = (row.extras.summary if row.extras else "") or row.content
    # Four times, for the blanks that go.
    words = " ".join(text[: 4 * MAX_EXAMPLE].split())
    return words if len(words) <= MAX_EXAMPLE else words[: MAX_EXAMPLE - 1].rstrip() + "…"
