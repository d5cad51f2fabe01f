"""The catalog: nodes in the order of their ids, and counts by type and tag, in SQLite, so that listing never scans.

A view like any other: it carries the sequence that it has seen, is brought up to date before it is asked, and is built
anew whenever it does not fit. For that reason commits do not wait for the disk. What it names is compared with the row.

A tag `prefix:value` counts three times: as a tag, for its prefix, and as a value of that prefix, so that each of them
is found by frequency in one index. Tags of nodes, and their bounds in the world's time, are kept for those nodes alone
that have any.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from typing_extensions import override

from kgserve.platform.sqlite_files import WrittenBesideReading, opened, seal, write_anew
from kgserve.projections.catalog import attributes
from kgserve.projections.catalog import statements as sql
from kgserve.projections.catalog.attributes import EndedState, PastPlace
from kgserve.storage.model.attributes import Condition
from kgserve.storage.model.change import NetChange
from kgserve.storage.model.filters import (
    MAX_COUNTED_NODES,
    MAX_SCANNED_NODES,
    Counted,
    Listed,
    NodeFilter,
    PagePosition,
    page_of,
)
from kgserve.storage.model.kinds import (
    MAX_LISTED_EXAMPLES,
    MAX_LISTED_KINDS,
    MAX_LISTED_PREFIXES,
    MAX_LISTED_TAG_VALUES,
    MAX_LISTED_TAGS,
    KindFreq,
    TagFreq,
    TagPrefixFreq,
)
from kgserve.storage.model.rows import NodeRow

TALLY_NODE_TYPE = "type"
TALLY_RELATION_TYPE = "relation_type"
TALLY_TAG = "tag"
TALLY_TAG_PREFIX = "prefix"
_TALLY_TAG_VALUE_PREFIX = "value:"
# Sorting fewer than these is faster than to pass over the rest, the most frequent first.
_MAX_SORTED_TALLIES = 5_000
_LAST_CHARACTER = chr(0x10FFFF)
_FIRST_SURROGATE, _END_OF_SURROGATES = 0xD800, 0xE000

Count = tuple[str, str, int]


def _values_of(prefix: str) -> str:
    """The kind of tally that holds the values of a prefix."""
    return _TALLY_TAG_VALUE_PREFIX + prefix


def split_tag(tag: str) -> tuple[str, str] | None:
    """The prefix of a tag, and its value; None when nothing is in front of a colon."""
    prefix, colon, value = tag.partition(":")
    return (prefix, value) if prefix and colon else None


def _counts(kind: str, counts: Counter[str]) -> list[Count]:
    """Counts of one kind that are not zero."""
    return [(kind, name, count) for name, count in counts.items() if count]


def _counts_of_tags(tags: Counter[str]) -> list[Count]:
    """What a change of counts by tag comes to in all."""
    prefixes: Counter[str] = Counter()
    values: list[Count] = []
    for tag, count in tags.items():
        if count and (parts := split_tag(tag)):
            prefixes[parts[0]] += count
            values.append((_values_of(parts[0]), parts[1], count))
    return [*_counts(TALLY_TAG, tags), *_counts(TALLY_TAG_PREFIX, prefixes), *values]


def _add(connection: sqlite3.Connection, counts: Iterable[Count]) -> None:
    """Change counts; what comes to nothing is no longer there."""
    changes = list(counts)
    connection.executemany(sql.UPSERT_CATALOG_TALLY, changes)
    if less := [(kind, name) for kind, name, count in changes if count < 0]:
        connection.executemany(sql.DELETE_EMPTY_CATALOG_TALLY, less)


def _count_of(connection: sqlite3.Connection, kind: str, name: str) -> int:
    """One count; 0 when it is not there."""
    found = connection.execute(sql.SELECT_CATALOG_TALLY, (kind, name)).fetchone()
    return found[0] if found else 0


def _most(connection: sqlite3.Connection, kind: str, limit: int) -> list[tuple[str, int]]:
    """The most frequent of a kind, by count and then by name."""
    return connection.execute(sql.SELECT_MOST_FREQUENT, {"kind": kind, "limit": limit}).fetchall()


def _most_tags(connection: sqlite3.Connection, start: str, limit: int) -> Iterator[tuple[str, int]]:
    """The most frequent tags that start so."""
    parts = split_tag(start)
    kind, first = (_values_of(parts[0]), parts[1]) if parts else (TALLY_TAG, start)
    before = start.removesuffix(first)
    found = _most_between(connection, kind, first, limit) if first else _most(connection, kind, limit)
    return ((before + name, count) for name, count in found)


def _most_between(connection: sqlite3.Connection, kind: str, first: str, limit: int) -> list[tuple[str, int]]:
    values = {"kind": kind, "first": first, "behind": behind(first), "limit": _MAX_SORTED_TALLIES}
    (number,) = connection.execute(sql.COUNT_TALLIES_BETWEEN, values).fetchone()
    query = (
        sql.SELECT_MOST_FREQUENT_BETWEEN_BY_NAME
        if number < _MAX_SORTED_TALLIES
        else sql.SELECT_MOST_FREQUENT_BETWEEN_BY_COUNT
    )
    return connection.execute(query, {**values, "limit": limit}).fetchall()


def behind(start: str) -> str | bytes:
    """What SQLite puts behind all texts that start so, and before what follows them. Halves of pairs are no text."""
    kept = start.rstrip(_LAST_CHARACTER)
    if not kept:
        return b""  # behind all texts
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(_END_OF_SURROGATES if following == _FIRST_SURROGATE else following)


def _any_extras(connection: sqlite3.Connection) -> bool:
    """Whether any node has tags or bounds."""
    return bool(connection.execute(sql.SELECT_HAS_TAGS_OR_VALIDITY).fetchone()[0])


def _extended(rows: Iterable[NodeRow]) -> list[NodeRow]:
    """The rows that may have tags or bounds."""
    return [row for row in rows if row.extras is not None]


def _follow_extras(transaction: sqlite3.Connection, net: NetChange, rows: list[NodeRow]) -> Counter[str]:
    """Take in what a group of writes changed, and by how much that changes the number of nodes with each tag.

    ``rows`` are its `extended` rows.
    """
    replaced = (*net.nodes_deleted, *net.nodes_updated)
    transaction.executemany(sql.DELETE_VALIDITY, [(node_id,) for node_id in replaced])
    _bound(transaction, rows)
    before = {
        node_id: {tag for (tag,) in transaction.execute(sql.SELECT_NODE_TAGS, (node_id,))} for node_id in replaced
    }
    return _retag(transaction, before, _tags(rows))


def _fill_extras(transaction: sqlite3.Connection, rows: list[NodeRow]) -> Counter[str]:
    """Take in `extended` rows of new nodes, and the number of them with each tag."""
    _bound(transaction, rows)
    return _retag(transaction, {}, _tags(rows))


def _clear_extras(transaction: sqlite3.Connection) -> None:
    """Forget everything."""
    transaction.execute("DELETE FROM tagged")
    transaction.execute("DELETE FROM valid")


def _bound(transaction: sqlite3.Connection, rows: list[NodeRow]) -> None:
    bounds = [(row.id, row.extras.valid_from, row.extras.valid_to) for row in rows if row.extras is not None]
    transaction.executemany(sql.INSERT_VALIDITY, [each for each in bounds if each[1:] != (None, None)])


def _tags(rows: list[NodeRow]) -> dict[str, set[str]]:
    return {row.id: set(row.extras.tags) for row in rows if row.extras is not None and row.extras.tags}


def _retag(transaction: sqlite3.Connection, before: dict[str, set[str]], after: dict[str, set[str]]) -> Counter[str]:
    lost = [(tag, node_id) for node_id, tags in before.items() for tag in tags - after.get(node_id, set())]
    won = [(tag, node_id) for node_id, tags in after.items() for tag in tags - before.get(node_id, set())]
    transaction.executemany(sql.DELETE_NODE_TAG, lost)
    transaction.executemany(sql.INSERT_NODE_TAG, won)
    changes = Counter(tag for tag, _ in won)
    changes.subtract(tag for tag, _ in lost)
    return changes


def _list_ids(reader: sqlite3.Connection, wanted: NodeFilter, place: PagePosition, limit: int) -> Listed[str]:
    """The next ids that fit, in order; it looks at `MAX_SCANNED_NODES` at most."""
    values = {"after": place.after, "limit": MAX_SCANNED_NODES + 1}
    return page_of(heapq.merge(*_along(reader, wanted, sql.passing, values)), place, limit)


def _along(
    reader: sqlite3.Connection, wanted: NodeFilter, query: Callable[[str, NodeFilter], str], values: dict[str, Any]
) -> Iterator[sqlite3.Cursor]:
    """What a query finds along the index with the fewest entries: one answer for each type, else one."""
    values |= {"valid_at": wanted.valid_at}
    values |= {f"tag{number}": tag for number, tag in enumerate(wanted.tags)}
    values |= {f"type{number}": type_ for number, type_ in enumerate(wanted.types)}
    values |= {f"value{number}": each.digest for number, each in enumerate(wanted.attributes)}
    source, names, _ = _fewest(reader, wanted)
    text = query(source, wanted)
    for name in names:
        yield reader.execute(text, {**values, "source": name})


_Way = tuple[str, Iterable[str | bytes], int]
"""An index, the entries of it to go along, and how many nodes those have, or at least."""


def _fewest(reader: sqlite3.Connection, wanted: NodeFilter) -> _Way:
    """The index to go along: by types, or by the rarest tag or attribute."""
    types = set(wanted.types)
    ways: list[_Way] = [("tag", (tag,), _count_of(reader, TALLY_TAG, tag)) for tag in wanted.tags]
    ways += [("attribute", (each.digest,), attributes.how_many(reader, each.digest)) for each in wanted.attributes]
    if types:
        ways.append(("type", types, sum(_count_of(reader, TALLY_NODE_TYPE, type_) for type_ in types)))
    if not ways:
        return "all", ("",), reader.execute(sql.SELECT_NODE_COUNT).fetchone()[0]
    return min(ways, key=lambda way: way[2])


def _counted(reader: sqlite3.Connection, wanted: NodeFilter) -> Counted:
    if wanted.valid_at is None and not wanted.attributes and len(wanted.tags) + bool(wanted.types) <= 1:
        return Counted(_fewest(reader, wanted)[2], exact=True)
    fitting, looked_at = 0, 0
    for each in _along(reader, wanted, sql.counting, {"limit": MAX_COUNTED_NODES + 1}):
        fit, looked = each.fetchone()
        fitting, looked_at = fitting + fit, looked_at + looked
        if looked_at > MAX_COUNTED_NODES:
            return Counted(fitting, exact=False)
    return Counted(fitting, exact=True)


_CATALOG_REBUILD_BATCH_ROWS = 5_000

TextOf = Callable[[str], str]
"""A short text of a node."""


class Vocabulary(msgspec.Struct, frozen=True):
    """The types and tags in use at one commit, the most frequent first, with the number of nodes."""

    nodes: int
    kinds: list[KindFreq]
    tag_prefixes: list[TagPrefixFreq]
    tags: list[TagFreq]


class Catalog(WrittenBesideReading):
    """The file of one store."""

    def __init__(self, path: Path) -> None:
        """Open or make the file. One that SQLite will not have, or of another format, is replaced by an empty one."""
        self.path = path
        super().__init__(opened(path, sql.CATALOG_PRAGMAS + sql.CATALOG_SCHEMA, sql.CATALOG_FORMAT), path)
        self._any_extras = True
        self.has_attributes = attributes.kept(self._writer)

    @override
    def close(self) -> None:
        """Release the file, sealed."""
        super().close()
        seal(self.path)

    @property
    def sequence(self) -> int:
        """The last commit that it has seen; -1 when it has seen nothing or failed."""
        try:
            with self._reading:
                return self._reader.execute(sql.SELECT_CATALOG_SEQUENCE).fetchone()[0]
        except sqlite3.DatabaseError:
            return -1

    def apply(self, net: NetChange, sequence: int) -> None:
        """Take in what a group of writes changed."""
        with self._writing, self._writer as transaction:
            types = _type_changes(transaction, net)
            transaction.executemany(sql.DELETE_CATALOG_NODE, ((node_id,) for node_id in net.nodes_deleted))
            transaction.executemany(
                sql.UPSERT_CATALOG_NODE, map(_stored, (*net.nodes_created.values(), *net.nodes_updated.values()))
            )
            relations = Counter(key[2] for key in net.edges_created)
            relations.subtract(key[2] for key in net.edges_deleted)
            counts = _counts(TALLY_NODE_TYPE, types) + _counts(TALLY_RELATION_TYPE, relations)
            _add(transaction, counts + self._tags(transaction, net))
            if self.has_attributes:
                attributes.follow(transaction, net, sequence)
            transaction.execute(sql.UPDATE_CATALOG_CURSOR, (sequence, types.total()))

    def rebuild(self, nodes: Iterable[NodeRow], relations: Iterable[tuple[str, int]], sequence: int) -> None:
        """Forget everything; take rows, and relation types with their counts."""
        with self._writing, self._writer as transaction:
            transaction.execute("DELETE FROM node")
            transaction.execute("DELETE FROM tally")
            _clear_extras(transaction)
            attributes.forget(transaction)
            self._any_extras, self.has_attributes = True, False
            tags: Counter[str] = Counter()
            source = iter(nodes)
            while rows := list(islice(source, _CATALOG_REBUILD_BATCH_ROWS)):
                transaction.executemany(sql.INSERT_CATALOG_NODE, map(_stored, rows))
                if some := _extended(rows):
                    tags.update(_fill_extras(transaction, some))
            transaction.execute(sql.INSERT_NODE_TYPE_TALLIES, (TALLY_NODE_TYPE,))
            counted = [(TALLY_RELATION_TYPE, name, count) for name, count in relations]
            transaction.executemany(sql.INSERT_CATALOG_TALLY, counted + _counts_of_tags(tags))
            transaction.execute(sql.RESET_CATALOG_CURSOR, (sequence,))

    def write_anew(self) -> None:
        """Leave nothing in the file of what it holds no more, and begin anew with what was."""
        with self._writing, self._reading:
            with self._writer as transaction:
                attributes.forget_past(transaction)
            write_anew(self._writer)

    def listed(self, wanted: NodeFilter, place: PagePosition, limit: int) -> Listed[str]:
        """A page of the ids of nodes that fit, in order. Raises sqlite3.Error for a damaged file."""
        with self._at_once() as reader:
            return _list_ids(reader, wanted, place, limit)

    def having(self, wanted: NodeFilter, limit: int) -> list[str]:
        """The ids of at most so many nodes that fit. Raises sqlite3.Error for a damaged file."""
        with self._at_once() as reader:
            found = _along(reader, wanted, sql.having, {"limit": limit})
            return [node_id for each in found for (node_id,) in islice(each, limit)][:limit]

    def count(self, wanted: NodeFilter) -> Counted:
        """How many nodes fit; it looks at 500,000 at most. Raises sqlite3.Error for a damaged file."""
        with self._at_once() as reader:
            return _counted(reader, wanted)

    def how_many(self, wanted: Iterable[Condition]) -> list[int]:
        """How many nodes have each of some attributes; see `attributes.how_many`."""
        with self._at_once() as reader:
            return [attributes.how_many(reader, each.digest) for each in wanted]

    def index_attributes(self, rows: Iterable[NodeRow]) -> None:
        """Have nodes found by their attributes from now on; ``rows`` are all of the commit that it has seen."""
        with self._writing, self._writer as transaction:
            attributes.begin(transaction, rows)
        self.has_attributes = True

    def past_place(self) -> PastPlace:
        """How far `take_past` has come."""
        with self._writing, self._writer as transaction:
            return attributes.past_place(transaction)

    def take_past(self, states: Iterable[EndedState], place: PastPlace) -> None:
        """Take in the attributes of states that are over, up to a place."""
        with self._writing, self._writer as transaction:
            attributes.take_past(transaction, states, place)

    def having_had(self, wanted: Sequence[Condition], at: int) -> list[str]:
        """The nodes whose state as of a commit is over and had some attributes, as far as `take_past` has come."""
        with self._at_once() as reader:
            return attributes.having_had(reader, wanted, at)

    def types(self, limit: int) -> dict[str, int]:
        """The most frequent node types with their counts."""
        return self._most(TALLY_NODE_TYPE, limit)

    def relation_types(self, limit: int) -> dict[str, int]:
        """The most frequent relation types with their counts."""
        return self._most(TALLY_RELATION_TYPE, limit)

    def tags(self, start: str, limit: int) -> list[TagFreq]:
        """The most frequent tags that start so, by count and then by name."""
        with self._at_once() as reader:
            return [TagFreq(tag=tag, count=count) for tag, count in _most_tags(reader, start, limit)]

    def types_like(self, start: str, limit: int) -> list[str]:
        """The most frequent node types that start so."""
        with self._at_once() as reader:
            found = (
                _most_between(reader, TALLY_NODE_TYPE, start, limit) if start else _most(reader, TALLY_NODE_TYPE, limit)
            )
            return [name for name, _ in found]

    def vocabulary(self, text_of: TextOf) -> Vocabulary:
        """What types and tags there are; ``text_of`` a node is its example. Raises sqlite3.Error for a damaged file."""
        with self._at_once() as reader:
            kinds = _most(reader, TALLY_NODE_TYPE, MAX_LISTED_KINDS)
            prefixes = _most(reader, TALLY_TAG_PREFIX, MAX_LISTED_PREFIXES)
            tags = _most(reader, TALLY_TAG, MAX_LISTED_TAGS)
            return Vocabulary(
                nodes=reader.execute(sql.SELECT_NODE_COUNT).fetchone()[0],
                kinds=[
                    KindFreq(kind=kind, count=count, examples=_examples(reader, kind, text_of)) for kind, count in kinds
                ],
                tag_prefixes=[
                    TagPrefixFreq(prefix=prefix, count=count, values=_values(reader, prefix))
                    for prefix, count in prefixes
                ],
                tags=[TagFreq(tag=tag, count=count) for tag, count in tags],
            )

    def _tags(self, transaction: sqlite3.Connection, net: NetChange) -> list[Count]:
        """What a change comes to for tags and bounds; most stores have none and pay nothing for that."""
        rows = _extended((*net.nodes_created.values(), *net.nodes_updated.values()))
        if not rows and not self._any_extras:
            return []
        counts = _counts_of_tags(_follow_extras(transaction, net, rows))
        self._any_extras = _any_extras(transaction)
        return counts

    def _most(self, kind: str, limit: int) -> dict[str, int]:
        with self._reading:
            return dict(_most(self._reader, kind, limit))

    @contextmanager
    def _at_once(self) -> Generator[sqlite3.Connection]:
        """The reading connection, on which all statements see the same commit."""
        with self._reading:
            self._reader.execute("BEGIN")
            try:
                yield self._reader
            finally:
                self._reader.rollback()


def _stored(row: NodeRow) -> tuple[str, str]:
    return row.id, row.type


def _type_changes(connection: sqlite3.Connection, net: NetChange) -> Counter[str]:
    types = Counter(row.type for row in net.nodes_created.values())
    types.update(row.type for row in net.nodes_updated.values())
    for node_id in (*net.nodes_deleted, *net.nodes_updated):
        for (old,) in connection.execute(sql.SELECT_NODE_TYPE, (node_id,)):
            types[old] -= 1
    return types


def _values(reader: sqlite3.Connection, prefix: str) -> list[str]:
    return [value for value, _ in _most(reader, _values_of(prefix), MAX_LISTED_TAG_VALUES)]


def _examples(reader: sqlite3.Connection, type_: str, text_of: TextOf) -> list[str]:
    """Short texts of the first nodes of a type."""
    found = reader.execute(sql.SELECT_EXAMPLES_OF_TYPE, {"type": type_, "limit": MAX_LISTED_EXAMPLES}).fetchall()
    return [text for (node_id,) in found if (text := text_of(node_id))]
