"""Catalog of a store in SQLite: node ids in order, and counts by type and tag, so that listing needs no scan.

A projection: it stores the sequence it has applied, catches up before each query, and is rebuilt if it does not fit.
Commits therefore need no fsync. Ids it returns are verified against the rows.

A tag `prefix:value` is counted three times: as a tag, for its prefix, and as a value of the prefix. Each can then be
listed by frequency from one index. Tags and validity bounds are stored only for nodes that have them.
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

from kgserve.platform.sqlite_files import (
    ConcurrentSqliteDatabase,
    open_sqlite_database,
    store_sqlite_checksum,
    vacuum_database,
)
from kgserve.projections.catalog import attribute_index
from kgserve.projections.catalog import node_catalog_sql as sql
from kgserve.projections.catalog.attribute_index import EndedNodeState, LastIndexedEndedState
from kgserve.storage.model.attribute_filters import AttributeCondition
from kgserve.storage.model.change_set import NetChange
from kgserve.storage.model.node_and_memory_filters import (
    MAX_COUNTED_NODES,
    MAX_SCANNED_NODES,
    MatchCount,
    NodeFilter,
    PagePosition,
    ResultPage,
    limit_nonblocking_scan,
    take_page_of_matching_items,
)
from kgserve.storage.model.node_edge_rows import NodeRow
from kgserve.storage.model.type_and_tag_frequency_models import (
    MAX_LISTED_EXAMPLES,
    MAX_LISTED_KINDS,
    MAX_LISTED_PREFIXES,
    MAX_LISTED_TAG_VALUES,
    MAX_LISTED_TAGS,
    NodeTypeFrequency,
    TagFrequency,
    TagPrefixFrequency,
)

TALLY_NODE_TYPE = "type"
TALLY_RELATION_TYPE = "relation_type"
TALLY_TAG = "tag"
TALLY_TAG_PREFIX = "prefix"
_TALLY_TAG_VALUE_PREFIX = "value:"
# Below this number, sorting is faster than filtering the list that is ordered by frequency.
_MAX_SORTED_TALLIES = 5_000
_LAST_CHARACTER = chr(0x10FFFF)
_FIRST_SURROGATE, _END_OF_SURROGATES = 0xD800, 0xE000

TallyRow = tuple[str, str, int]


def _value_tally_kind(prefix: str) -> str:
    """Return the tally kind for the values of a prefix."""
    return _TALLY_TAG_VALUE_PREFIX + prefix


def split_tag(tag: str) -> tuple[str, str] | None:
    """Split a tag at its first colon into prefix and value; None without a prefix."""
    prefix, colon, value = tag.partition(":")
    return (prefix, value) if prefix and colon else None


def _counts(kind: str, counts: Counter[str]) -> list[TallyRow]:
    """Return the nonzero counts as tally rows of one kind."""
    return [(kind, name, count) for name, count in counts.items() if count]


def _counts_of_tags(tags: Counter[str]) -> list[TallyRow]:
    """Return the tally changes for tags, prefixes and values that result from a change of counts by tag."""
    prefixes: Counter[str] = Counter()
    values: list[TallyRow] = []
    for tag, count in tags.items():
        if count and (parts := split_tag(tag)):
            prefixes[parts[0]] += count
            values.append((_value_tally_kind(parts[0]), parts[1], count))
    return [*_counts(TALLY_TAG, tags), *_counts(TALLY_TAG_PREFIX, prefixes), *values]


def _add_to_tallies(connection: sqlite3.Connection, counts: Iterable[TallyRow]) -> None:
    """Add to the tallies, and delete those that reach zero."""
    changes = list(counts)
    connection.executemany(sql.UPSERT_CATALOG_TALLY, changes)
    if less := [(kind, name) for kind, name, count in changes if count < 0]:
        connection.executemany(sql.DELETE_EMPTY_CATALOG_TALLY, less)


def _count_of(connection: sqlite3.Connection, kind: str, name: str) -> int:
    """Return one tally; 0 if it does not exist."""
    found = connection.execute(sql.SELECT_CATALOG_TALLY, (kind, name)).fetchone()
    return found[0] if found else 0


def _most_frequent(connection: sqlite3.Connection, kind: str, limit: int) -> list[tuple[str, int]]:
    """Return the most frequent names of a kind, by count and then by name."""
    return connection.execute(sql.SELECT_MOST_FREQUENT, {"kind": kind, "limit": limit}).fetchall()


def _most_frequent_tags(connection: sqlite3.Connection, start: str, limit: int) -> Iterator[tuple[str, int]]:
    """Return the most frequent tags that start with ``start``."""
    parts = split_tag(start)
    kind, first = (_value_tally_kind(parts[0]), parts[1]) if parts else (TALLY_TAG, start)
    before = start.removesuffix(first)
    found = _most_frequent_between(connection, kind, first, limit) if first else _most_frequent(connection, kind, limit)
    return ((before + name, count) for name, count in found)


def _most_frequent_between(connection: sqlite3.Connection, kind: str, first: str, limit: int) -> list[tuple[str, int]]:
    values = {"kind": kind, "first": first, "behind": prefix_upper_bound(first), "limit": _MAX_SORTED_TALLIES}
    (number,) = connection.execute(sql.COUNT_TALLIES_BETWEEN, values).fetchone()
    query = (
        sql.SELECT_MOST_FREQUENT_BETWEEN_BY_NAME
        if number < _MAX_SORTED_TALLIES
        else sql.SELECT_MOST_FREQUENT_BETWEEN_BY_COUNT
    )
    return connection.execute(query, {**values, "limit": limit}).fetchall()


def prefix_upper_bound(start: str) -> str | bytes:
    """Return a value that SQLite sorts after all texts starting with ``start`` and before the following ones.

    Surrogates are skipped, because they are not valid text.
    """
    kept = start.rstrip(_LAST_CHARACTER)
    if not kept:
        return b""  # a blob sorts after all texts
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(_END_OF_SURROGATES if following == _FIRST_SURROGATE else following)


def _has_any_extras(connection: sqlite3.Connection) -> bool:
    """Return whether any node has tags or validity bounds."""
    return bool(connection.execute(sql.SELECT_HAS_TAGS_OR_VALIDITY).fetchone()[0])


def _with_extras(rows: Iterable[NodeRow]) -> list[NodeRow]:
    """Return the rows that may have tags or validity bounds."""
    return [row for row in rows if row.extras is not None]


def _follow_extras(transaction: sqlite3.Connection, net: NetChange, rows: list[NodeRow]) -> Counter[str]:
    """Apply a group of writes, and return the changes in the number of nodes per tag.

    ``rows`` are the changed rows with extras.
    """
    replaced = (*net.nodes_deleted, *net.nodes_updated)
    transaction.executemany(sql.DELETE_VALIDITY, [(node_id,) for node_id in replaced])
    _insert_validity(transaction, rows)
    before = {
        node_id: {tag for (tag,) in transaction.execute(sql.SELECT_NODE_TAGS, (node_id,))} for node_id in replaced
    }
    return _retag(transaction, before, _tags(rows))


def _fill_extras(transaction: sqlite3.Connection, rows: list[NodeRow]) -> Counter[str]:
    """Add the extras of new nodes, and return the number of nodes per tag."""
    _insert_validity(transaction, rows)
    return _retag(transaction, {}, _tags(rows))


def _clear_extras(transaction: sqlite3.Connection) -> None:
    """Delete all tags and validity bounds."""
    transaction.execute("DELETE FROM tagged")
    transaction.execute("DELETE FROM valid")


def _insert_validity(transaction: sqlite3.Connection, rows: list[NodeRow]) -> None:
    bounds = [(row.id, row.extras.valid_from, row.extras.valid_to) for row in rows if row.extras is not None]
    transaction.executemany(sql.INSERT_VALIDITY, [each for each in bounds if each[1:] != (None, None)])


def _tags(rows: list[NodeRow]) -> dict[str, set[str]]:
    return {row.id: set(row.extras.tags) for row in rows if row.extras is not None and row.extras.tags}


def _retag(transaction: sqlite3.Connection, before: dict[str, set[str]], after: dict[str, set[str]]) -> Counter[str]:
    lost = [(tag, node_id) for node_id, tags in before.items() for tag in tags - after.get(node_id, set())]
    gained = [(tag, node_id) for node_id, tags in after.items() for tag in tags - before.get(node_id, set())]
    transaction.executemany(sql.DELETE_NODE_TAG, lost)
    transaction.executemany(sql.INSERT_NODE_TAG, gained)
    changes = Counter(tag for tag, _ in gained)
    changes.subtract(tag for tag, _ in lost)
    return changes


def _scan_in_order(
    reader: sqlite3.Connection, wanted: NodeFilter, place: PagePosition
) -> Iterator[tuple[str, str, object]]:
    """Yield the ids of a list in order, each twice and with a flag that says if it matches."""
    values = {"after": place.after, "limit": MAX_SCANNED_NODES + 1}
    found = [*_scan_best_index(reader, wanted, sql.build_node_id_page_query, values)]
    return heapq.merge(*found) if len(found) != 1 else iter(found[0])


def _scan_best_index(
    reader: sqlite3.Connection, wanted: NodeFilter, query: Callable[[str, NodeFilter], str], values: dict[str, Any]
) -> Iterator[sqlite3.Cursor]:
    """Yield the results of a query on the most selective index; several for types, one otherwise."""
    values |= {"valid_at": wanted.valid_at}
    values |= {f"tag{number}": tag for number, tag in enumerate(wanted.tags)}
    values |= {f"type{number}": type_ for number, type_ in enumerate(wanted.types)}
    values |= {f"value{number}": each.digest for number, each in enumerate(wanted.attributes)}
    source, names, _ = _choose_access_path(reader, wanted)
    text = query(source, wanted)
    for name in names:
        yield reader.execute(text, {**values, "source": name})


_AccessPath = tuple[str, Iterable[str | bytes], int]
"""Access path: an index, the entries to scan, and the number of nodes they have (possibly a lower bound)."""


def _choose_access_path(reader: sqlite3.Connection, wanted: NodeFilter) -> _AccessPath:
    """Return the most selective access path: the types, or the rarest tag or attribute."""
    types = set(wanted.types)
    access_paths: list[_AccessPath] = [("tag", (tag,), _count_of(reader, TALLY_TAG, tag)) for tag in wanted.tags]
    access_paths += [
        ("attribute", (each.digest,), attribute_index.count_nodes_with_attribute(reader, each.digest))
        for each in wanted.attributes
    ]
    if types:
        access_paths.append(("type", types, sum(_count_of(reader, TALLY_NODE_TYPE, type_) for type_ in types)))
    if not access_paths:
        return "all", ("",), reader.execute(sql.SELECT_NODE_COUNT).fetchone()[0]
    return min(access_paths, key=lambda way: way[2])


def _counted(reader: sqlite3.Connection, wanted: NodeFilter, max_scanned: int) -> MatchCount:
    if wanted.valid_at is None and not wanted.attributes and len(wanted.tags) + bool(wanted.types) <= 1:
        return MatchCount(_choose_access_path(reader, wanted)[2], exact=True)
    fitting, looked_at = 0, 0
    for each in _scan_best_index(reader, wanted, sql.build_matching_node_count_sql, {"limit": max_scanned + 1}):
        fit, looked = each.fetchone()
        fitting, looked_at = fitting + fit, looked_at + looked
        if looked_at > max_scanned:
            return MatchCount(fitting, exact=False)
    return MatchCount(fitting, exact=True)


_CATALOG_REBUILD_BATCH_ROWS = 5_000

NodeTextLookup = Callable[[str], str]
"""Function that returns a short text of a node."""


class NodeTypeAndTagCounts(msgspec.Struct, frozen=True):
    """Types and tags in use at one commit with their node counts, most frequent first."""

    nodes: int
    kinds: list[NodeTypeFrequency]
    tag_prefixes: list[TagPrefixFrequency]
    tags: list[TagFrequency]


class NodeCatalog(ConcurrentSqliteDatabase):
    """SQLite catalog of one store's nodes: ids in order, and counts by type and tag."""

    def __init__(self, path: Path) -> None:
        """Open or create the file. A damaged file or one of another format is replaced by an empty one."""
        self.path = path
        super().__init__(open_sqlite_database(path, sql.CATALOG_PRAGMAS + sql.CATALOG_SCHEMA, sql.CATALOG_FORMAT), path)
        self._has_any_extras = True
        self.has_attributes = attribute_index.has_current_attribute_index(self._writer)

    @override
    def close(self) -> None:
        super().close()
        store_sqlite_checksum(self.path)

    @property
    def sequence(self) -> int:
        """Last applied commit; -1 if the file is empty or damaged."""
        try:
            with self._reading:
                return self._reader.execute(sql.SELECT_CATALOG_SEQUENCE).fetchone()[0]
        except sqlite3.DatabaseError:
            return -1

    def apply(self, net: NetChange, sequence: int) -> None:
        """Apply the changes of a group of writes."""
        with self._writing, self._writer as transaction:
            types = _type_changes(transaction, net)
            transaction.executemany(sql.DELETE_CATALOG_NODE, ((node_id,) for node_id in net.nodes_deleted))
            transaction.executemany(
                sql.UPSERT_CATALOG_NODE, map(_node_values, (*net.nodes_created.values(), *net.nodes_updated.values()))
            )
            relations = Counter(key[2] for key in net.edges_created)
            relations.subtract(key[2] for key in net.edges_deleted)
            counts = _counts(TALLY_NODE_TYPE, types) + _counts(TALLY_RELATION_TYPE, relations)
            _add_to_tallies(transaction, counts + self._tags(transaction, net))
            if self.has_attributes:
                attribute_index.update_attribute_index(transaction, net, sequence)
            transaction.execute(sql.UPDATE_CATALOG_CURSOR, (sequence, types.total()))

    def rebuild(self, nodes: Iterable[NodeRow], relations: Iterable[tuple[str, int]], sequence: int) -> None:
        """Replace the content by ``nodes`` and by relation types with their counts."""
        with self._writing, self._writer as transaction:
            transaction.execute("DELETE FROM node")
            transaction.execute("DELETE FROM tally")
            _clear_extras(transaction)
            attribute_index.drop_attribute_index_tables(transaction)
            self._has_any_extras, self.has_attributes = True, False
            tags: Counter[str] = Counter()
            source = iter(nodes)
            while rows := list(islice(source, _CATALOG_REBUILD_BATCH_ROWS)):
                transaction.executemany(sql.INSERT_CATALOG_NODE, map(_node_values, rows))
                if some := _with_extras(rows):
                    tags.update(_fill_extras(transaction, some))
            transaction.execute(sql.INSERT_NODE_TYPE_TALLIES, (TALLY_NODE_TYPE,))
            counted = [(TALLY_RELATION_TYPE, name, count) for name, count in relations]
            transaction.executemany(sql.INSERT_CATALOG_TALLY, counted + _counts_of_tags(tags))
            transaction.execute(sql.RESET_CATALOG_CURSOR, (sequence,))

    def rewrite_without_deleted_rows(self) -> None:
        """Rewrite the file so that no deleted data remains in it; the index of ended states is dropped."""
        with self._writing, self._reading:
            with self._writer as transaction:
                attribute_index.drop_past_attribute_index(transaction)
            vacuum_database(self._writer)

    def list_matching_ids(
        self, wanted: NodeFilter, place: PagePosition, limit: int, max_scanned: int | None = None
    ) -> ResultPage[str]:
        """Return a page of the ids of matching nodes, in order, scanning at most `MAX_SCANNED_NODES`.

        Raises sqlite3.Error for a damaged file, and WouldBlock after scanning ``max_scanned`` nodes.
        """
        with self._consistent_reader() as reader:
            found = _scan_in_order(reader, wanted, place)
            return take_page_of_matching_items(
                found if max_scanned is None else limit_nonblocking_scan(found, max_scanned), place, limit
            )

    def find_matching_ids(self, wanted: NodeFilter, limit: int) -> list[str]:
        """Return the ids of at most ``limit`` matching nodes. Raises sqlite3.Error for a damaged file."""
        with self._consistent_reader() as reader:
            found = _scan_best_index(reader, wanted, sql.build_matching_node_ids_query, {"limit": limit})
            return [node_id for each in found for (node_id,) in islice(each, limit)][:limit]

    def count(self, wanted: NodeFilter, max_scanned: int | None = None) -> MatchCount:
        """Return the number of matching nodes, scanning at most ``max_scanned``, by default 500,000.

        Raises sqlite3.Error for a damaged file.
        """
        with self._consistent_reader() as reader:
            return _counted(reader, wanted, MAX_COUNTED_NODES if max_scanned is None else max_scanned)

    def count_by_attribute(self, wanted: Iterable[AttributeCondition]) -> list[int]:
        """Return the number of nodes with each of the given attributes, up to `MAX_COUNTED_ATTRIBUTE_NODES`."""
        with self._consistent_reader() as reader:
            return [attribute_index.count_nodes_with_attribute(reader, each.digest) for each in wanted]

    def index_attributes(self, rows: Iterable[NodeRow]) -> None:
        """Build the attribute index from ``rows``, all rows of the last applied commit."""
        with self._writing, self._writer as transaction:
            attribute_index.build_attribute_index(transaction, rows)
        self.has_attributes = True

    def read_ended_position(self) -> LastIndexedEndedState:
        """Return the history position up to which ended states are indexed."""
        with self._writing, self._writer as transaction:
            return attribute_index.read_ended_states_position(transaction)

    def index_ended_states(self, states: Iterable[EndedNodeState], place: LastIndexedEndedState) -> None:
        """Index the attributes of ended states up to ``place``."""
        with self._writing, self._writer as transaction:
            attribute_index.index_ended_node_state_attributes(transaction, states, place)

    def find_ended_nodes_with(self, wanted: Sequence[AttributeCondition], at: int) -> list[str]:
        """Return the nodes whose state as of commit ``at`` has ended and had all the given attributes.

        Covers only the states that `take_past` has indexed.
        """
        with self._consistent_reader() as reader:
            return attribute_index.find_ended_nodes_by_attributes(reader, wanted, at)

    def types(self, limit: int) -> dict[str, int]:
        """Return the most frequent node types with their counts."""
        return self._most_frequent(TALLY_NODE_TYPE, limit)

    def relation_types(self, limit: int) -> dict[str, int]:
        """Return the most frequent relation types with their counts."""
        return self._most_frequent(TALLY_RELATION_TYPE, limit)

    def tags(self, start: str, limit: int) -> list[TagFrequency]:
        """Return the most frequent tags that start with ``start``, by count and then by name."""
        with self._consistent_reader() as reader:
            return [TagFrequency(tag=tag, count=count) for tag, count in _most_frequent_tags(reader, start, limit)]

    def complete_types(self, start: str, limit: int) -> list[str]:
        """Return the most frequent node types that start with ``start``."""
        with self._consistent_reader() as reader:
            found = (
                _most_frequent_between(reader, TALLY_NODE_TYPE, start, limit)
                if start
                else _most_frequent(reader, TALLY_NODE_TYPE, limit)
            )
            return [name for name, _ in found]

    def vocabulary(self, text_of: NodeTextLookup, now: int) -> NodeTypeAndTagCounts:
        """Return the types and tags in use; ``text_of`` provides example texts, of nodes valid ``now`` only.

        Raises sqlite3.Error for a damaged file.
        """
        with self._consistent_reader() as reader:
            kinds = _most_frequent(reader, TALLY_NODE_TYPE, MAX_LISTED_KINDS)
            prefixes = _most_frequent(reader, TALLY_TAG_PREFIX, MAX_LISTED_PREFIXES)
            tags = _most_frequent(reader, TALLY_TAG, MAX_LISTED_TAGS)
            return NodeTypeAndTagCounts(
                nodes=reader.execute(sql.SELECT_NODE_COUNT).fetchone()[0],
                kinds=[
                    NodeTypeFrequency(kind=kind, count=count, examples=_examples(reader, kind, text_of, now))
                    for kind, count in kinds
                ],
                tag_prefixes=[
                    TagPrefixFrequency(prefix=prefix, count=count, values=_values(reader, prefix))
                    for prefix, count in prefixes
                ],
                tags=[TagFrequency(tag=tag, count=count) for tag, count in tags],
            )

    def _tags(self, transaction: sqlite3.Connection, net: NetChange) -> list[TallyRow]:
        """Return the tally changes for tags; skipped if no node has tags or bounds."""
        rows = _with_extras((*net.nodes_created.values(), *net.nodes_updated.values()))
        if not rows and not self._has_any_extras:
            return []
        counts = _counts_of_tags(_follow_extras(transaction, net, rows))
        self._has_any_extras = _has_any_extras(transaction)
        return counts

    def _most_frequent(self, kind: str, limit: int) -> dict[str, int]:
        with self._reading:
            return dict(_most_frequent(self._reader, kind, limit))

    @contextmanager
    def _consistent_reader(self) -> Generator[sqlite3.Connection]:
        """Yield the reading connection inside a transaction, so that all statements see the same commit."""
        with self._reading:
            self._reader.execute("BEGIN")
            try:
                yield self._reader
            finally:
                self._reader.rollback()


def _node_values(row: NodeRow) -> tuple[str, str]:
    return row.id, row.type


def _type_changes(connection: sqlite3.Connection, net: NetChange) -> Counter[str]:
    types = Counter(row.type for row in net.nodes_created.values())
    types.update(row.type for row in net.nodes_updated.values())
    for node_id in (*net.nodes_deleted, *net.nodes_updated):
        for (old,) in connection.execute(sql.SELECT_NODE_TYPE, (node_id,)):
            types[old] -= 1
    return types


def _values(reader: sqlite3.Connection, prefix: str) -> list[str]:
    return [value for value, _ in _most_frequent(reader, _value_tally_kind(prefix), MAX_LISTED_TAG_VALUES)]


def _examples(reader: sqlite3.Connection, type_: str, text_of: NodeTextLookup, now: int) -> list[str]:
    """Return short texts of the first valid nodes of a type."""
    found = reader.execute(sql.SELECT_EXAMPLES_OF_TYPE, {"type": type_, "valid_at": now})
    ids = islice((node_id for node_id, is_valid in found if is_valid), MAX_LISTED_EXAMPLES)
    return [text for node_id in ids if (text := text_of(node_id))]
