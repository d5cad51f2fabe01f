"""Attribute index of the catalog, built on the first query that filters by attributes.

Past states are read from the history in the order in which they ended. An attribute is stored as a digest of its key
and value, so its length does not matter.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from kgserve.projections.catalog import node_catalog_sql as sql
from kgserve.storage.model.attribute_filters import AttributeCondition, compute_node_attribute_digests
from kgserve.storage.model.change_set import NetChange
from kgserve.storage.model.node_edge_rows import NodeRow

ATTRIBUTE_SORT_BATCH_SIZE = 100_000
MAX_COUNTED_ATTRIBUTE_NODES = 100_000
"""Limit for counting the nodes with an attribute (3 ms); more frequent attributes are not selective."""


class EndedNodeState(NamedTuple):
    """Former state of a node, which held from commit ``first`` up to, but excluding, commit ``last``."""

    id: str
    first: int
    last: int
    attributes: str


class LastIndexedEndedState(NamedTuple):
    """Position in the history: the last indexed ended state, by its end and id.

    ``oldest``: the oldest commit that the history covers.
    """

    last: int
    id: str
    oldest: int


def has_current_attribute_index(connection: sqlite3.Connection) -> bool:
    """Return whether the file has a current attribute index; an index of another commit is dropped."""
    if not connection.execute(sql.SELECT_HAS_ATTRIBUTE_TABLES).fetchone()[0]:
        return False
    fits = bool(connection.execute(sql.SELECT_IS_ATTRIBUTE_CURSOR_CURRENT).fetchone()[0])
    if not fits:
        with connection as transaction:
            drop_attribute_index_tables(transaction)
    return fits


def build_attribute_index(transaction: sqlite3.Connection, rows: Iterable[NodeRow]) -> None:
    """Build the index from all rows."""
    drop_attribute_index_tables(transaction)
    _run(transaction, sql.CREATE_ATTRIBUTE_TABLES)
    found = ((digest, row.id) for row in rows for digest in compute_node_attribute_digests(row.attributes))
    # Sorted rows are stored contiguously, and building the index afterwards takes half the time.
    while some := sorted(islice(found, ATTRIBUTE_SORT_BATCH_SIZE)):
        transaction.executemany(sql.INSERT_ATTRIBUTE_VALUE, some)
    transaction.execute(sql.CREATE_ATTRIBUTE_NODE_INDEX)


def drop_attribute_index_tables(transaction: sqlite3.Connection) -> None:
    """Drop the tables of the attribute index."""
    _run(transaction, sql.DROP_ATTRIBUTE_TABLES)


def update_attribute_index(transaction: sqlite3.Connection, net: NetChange, sequence: int) -> None:
    """Apply the changes of a group of writes to the index."""
    put = (*net.nodes_created.values(), *net.nodes_updated.values())
    before = {node_id: _values_of(transaction, node_id) for node_id in (*net.nodes_deleted, *net.nodes_updated)}
    after = {row.id: compute_node_attribute_digests(row.attributes) for row in put}
    transaction.executemany(sql.DELETE_ATTRIBUTE_VALUE, _difference(before, after))
    transaction.executemany(sql.INSERT_ATTRIBUTE_VALUE, _difference(after, before))
    transaction.execute(sql.UPDATE_ATTRIBUTE_CURSOR, (sequence,))


def count_nodes_with_attribute(reader: sqlite3.Connection, digest: bytes) -> int:
    """Return the number of nodes with an attribute, at most `MAX_COUNTED_ATTRIBUTE_NODES`."""
    return reader.execute(sql.COUNT_NODES_WITH_ATTRIBUTE, (digest, MAX_COUNTED_ATTRIBUTE_NODES)).fetchone()[0]


def read_ended_states_position(transaction: sqlite3.Connection) -> LastIndexedEndedState:
    """Return the history position up to which ended states are indexed."""
    _run(transaction, sql.CREATE_PAST_ATTRIBUTE_TABLES)
    found = transaction.execute(sql.SELECT_PAST_POSITION).fetchone()
    return LastIndexedEndedState(*found) if found else LastIndexedEndedState(0, "", 0)


def index_ended_node_state_attributes(
    transaction: sqlite3.Connection, states: Iterable[EndedNodeState], place: LastIndexedEndedState
) -> None:
    """Index ended states, record the new position, and delete states that ended before the oldest commit."""
    found = (
        (digest, each.last, each.id, each.first)
        for each in states
        for digest in compute_node_attribute_digests(each.attributes)
    )
    transaction.executemany(sql.INSERT_PAST_ATTRIBUTE, found)
    if place.oldest > read_ended_states_position(transaction).oldest:
        transaction.execute(sql.DELETE_PAST_ATTRIBUTES_UNTIL, (place.oldest,))
    transaction.execute(sql.DELETE_PAST_POSITION)
    transaction.execute(sql.INSERT_PAST_POSITION, place)


def drop_past_attribute_index(transaction: sqlite3.Connection) -> None:
    """Drop the index of ended states."""
    _run(transaction, sql.DROP_PAST_ATTRIBUTE_TABLES)


def find_ended_nodes_by_attributes(
    reader: sqlite3.Connection, wanted: Sequence[AttributeCondition], at: int
) -> list[str]:
    """Return the nodes whose state as of commit ``at`` has ended and had all the given attributes."""
    values: dict[str, Any] = {f"value{number}": each.digest for number, each in enumerate(wanted)}
    return [
        node_id
        for (node_id,) in reader.execute(sql.build_past_attribute_nodes_query(len(wanted)), {**values, "at": at})
    ]


def _values_of(transaction: sqlite3.Connection, node_id: str) -> set[bytes]:
    return {digest for (digest,) in transaction.execute(sql.SELECT_ATTRIBUTE_VALUES, (node_id,))}


def _difference(these: dict[str, set[bytes]], those: dict[str, set[bytes]]) -> Iterable[tuple[bytes, str]]:
    """Return the (digest, node id) pairs that are in ``these`` but not in ``those``."""
    return ((digest, node_id) for node_id, own in these.items() for digest in own - those.get(node_id, set()))


def _run(transaction: sqlite3.Connection, statements: str) -> None:
    """Run several statements in one transaction; outside one, each would be committed separately."""
    if not transaction.in_transaction:
        transaction.execute("BEGIN")
    for statement in filter(None, map(str.strip, statements.split(";"))):
        transaction.execute(statement)
