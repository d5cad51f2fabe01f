"""The catalog: nodes in the order of their ids, and counts by type and tag, in SQLite, so that listing never scans.

A view like any other: it carries the sequence that it has seen, is brought up to date before it is asked, and is built
anew whenever it does not fit. For that reason commits do not wait for the disk. What it names is compared with the row.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import msgspec

from kgserve.catalog import extras, tallies
from kgserve.catalog import statements as sql
from kgserve.catalog.listing import list_ids
from kgserve.model.answers import (
    MAX_EXAMPLES,
    MAX_KINDS,
    MAX_PREFIXES,
    MAX_TAGS_LISTED,
    MAX_VALUES,
    KindFreq,
    TagFreq,
    TagPrefixFreq,
)
from kgserve.model.change import NetChange
from kgserve.model.listing import Listed, NodeFilter, Place
from kgserve.model.rows import NodeRow

_ROWS_AT_ONCE = 5_000

TextOf = Callable[[str], str]
"""A short text of a node."""


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
            with self._reading:
                return self._reader.execute(sql.SEQUENCE).fetchone()[0]
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

    def listed(self, wanted: NodeFilter, place: Place, limit: int) -> Listed[str]:
        """A page of the ids of nodes that fit, in order. Raises sqlite3.Error for a damaged file."""
        with self._at_once() as reader:
            return list_ids(reader, wanted, place, limit)

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

    def vocabulary(self, text_of: TextOf) -> Vocabulary:
        """What types and tags there are; ``text_of`` a node is its example. Raises sqlite3.Error for a damaged file."""
        with self._at_once() as reader:
            kinds = tallies.most(reader, tallies.TYPES, MAX_KINDS)
            prefixes = tallies.most(reader, tallies.PREFIXES, MAX_PREFIXES)
            tags = tallies.most(reader, tallies.TAGS, MAX_TAGS_LISTED)
            return Vocabulary(
                nodes=reader.execute(sql.NODES).fetchone()[0],
                kinds=[
                    KindFreq(kind=kind, count=count, examples=_examples(reader, kind, text_of)) for kind, count in kinds
                ],
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


def _stored(row: NodeRow) -> tuple[str, str]:
    return row.id, row.type


def _type_changes(connection: sqlite3.Connection, net: NetChange) -> Counter[str]:
    types = Counter(row.type for row in net.nodes_created.values())
    types.update(row.type for row in net.nodes_updated.values())
    for node_id in (*net.nodes_deleted, *net.nodes_updated):
        for (old,) in connection.execute(sql.TYPE_OF, (node_id,)):
            types[old] -= 1
    return types


def _values(reader: sqlite3.Connection, prefix: str) -> list[str]:
    return [value for value, _ in tallies.most(reader, tallies.values_of(prefix), MAX_VALUES)]


def _examples(reader: sqlite3.Connection, type_: str, text_of: TextOf) -> list[str]:
    """Short texts of the first nodes of a type."""
    found = reader.execute(sql.EXAMPLES, {"type": type_, "limit": MAX_EXAMPLES}).fetchall()
    return [text for (node_id,) in found if (text := text_of(node_id))]
