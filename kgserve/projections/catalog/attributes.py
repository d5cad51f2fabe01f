"""Which nodes have an attribute, or had it: an index made when somebody first asks, so that others do without it.

What was is taken from the history, state by state as they ended. An attribute is a digest of its key and its value, so
that long values take no more than short ones.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from kgserve.projections.catalog import statements as sql
from kgserve.storage.model.attributes import Condition, digests
from kgserve.storage.model.change import NetChange
from kgserve.storage.model.rows import NodeRow

ATTRIBUTE_SORT_BATCH_SIZE = 100_000
MAX_COUNTED_ATTRIBUTE_NODES = 100_000
"""Counting them takes 3 ms; what occurs more often is not rare."""


class EndedState(NamedTuple):
    """A state that held from commit ``first`` to before ``last``."""

    id: str
    first: int
    last: int
    attributes: str


class PastPlace(NamedTuple):
    """The state up to which all that are over are known, by its end and its id; ``oldest``: what the history knows."""

    last: int
    id: str
    oldest: int


def kept(connection: sqlite3.Connection) -> bool:
    """Whether the file has the index. One that is not of the commit of the file is thrown away."""
    if not connection.execute(sql.SELECT_HAS_ATTRIBUTE_TABLES).fetchone()[0]:
        return False
    fits = bool(connection.execute(sql.SELECT_IS_ATTRIBUTE_CURSOR_CURRENT).fetchone()[0])
    if not fits:
        with connection as transaction:
            forget(transaction)
    return fits


def begin(transaction: sqlite3.Connection, rows: Iterable[NodeRow]) -> None:
    """Make the index of all rows."""
    forget(transaction)
    _run(transaction, sql.CREATE_ATTRIBUTE_TABLES)
    found = ((digest, row.id) for row in rows for digest in digests(row.attributes))
    # In order they lie beside each other; and an index is made in half the time once all is there.
    while some := sorted(islice(found, ATTRIBUTE_SORT_BATCH_SIZE)):
        transaction.executemany(sql.INSERT_ATTRIBUTE_VALUE, some)
    transaction.execute(sql.CREATE_ATTRIBUTE_NODE_INDEX)


def forget(transaction: sqlite3.Connection) -> None:
    """Have no index."""
    _run(transaction, sql.DROP_ATTRIBUTE_TABLES)


def follow(transaction: sqlite3.Connection, net: NetChange, sequence: int) -> None:
    """Take in what a group of writes changed."""
    put = (*net.nodes_created.values(), *net.nodes_updated.values())
    before = {node_id: _values_of(transaction, node_id) for node_id in (*net.nodes_deleted, *net.nodes_updated)}
    after = {row.id: digests(row.attributes) for row in put}
    transaction.executemany(sql.DELETE_ATTRIBUTE_VALUE, _missing(before, after))
    transaction.executemany(sql.INSERT_ATTRIBUTE_VALUE, _missing(after, before))
    transaction.execute(sql.UPDATE_ATTRIBUTE_CURSOR, (sequence,))


def how_many(reader: sqlite3.Connection, digest: bytes) -> int:
    """How many nodes have an attribute, or `MAX_COUNTED_ATTRIBUTE_NODES` if more do."""
    return reader.execute(sql.COUNT_NODES_WITH_ATTRIBUTE, (digest, MAX_COUNTED_ATTRIBUTE_NODES)).fetchone()[0]


def past_place(transaction: sqlite3.Connection) -> PastPlace:
    """How far the states that are over have been taken in."""
    _run(transaction, sql.CREATE_PAST_ATTRIBUTE_TABLES)
    found = transaction.execute(sql.SELECT_PAST_POSITION).fetchone()
    return PastPlace(*found) if found else PastPlace(0, "", 0)


def take_past(transaction: sqlite3.Connection, states: Iterable[EndedState], place: PastPlace) -> None:
    """Take in states that are over, note the place that this leads to, and forget what ended before the oldest."""
    found = ((digest, each.last, each.id, each.first) for each in states for digest in digests(each.attributes))
    transaction.executemany(sql.INSERT_PAST_ATTRIBUTE, found)
    if place.oldest > past_place(transaction).oldest:
        transaction.execute(sql.DELETE_PAST_ATTRIBUTES_UNTIL, (place.oldest,))
    transaction.execute(sql.DELETE_PAST_POSITION)
    transaction.execute(sql.INSERT_PAST_POSITION, place)


def forget_past(transaction: sqlite3.Connection) -> None:
    """Begin anew with the states that are over."""
    _run(transaction, sql.DROP_PAST_ATTRIBUTE_TABLES)


def having_had(reader: sqlite3.Connection, wanted: Sequence[Condition], at: int) -> list[str]:
    """The nodes whose state as of a commit is over and had some attributes."""
    values: dict[str, Any] = {f"value{number}": each.digest for number, each in enumerate(wanted)}
    return [node_id for (node_id,) in reader.execute(sql.having_had(len(wanted)), {**values, "at": at})]


def _values_of(transaction: sqlite3.Connection, node_id: str) -> set[bytes]:
    return {digest for (digest,) in transaction.execute(sql.SELECT_ATTRIBUTE_VALUES, (node_id,))}


def _missing(these: dict[str, set[bytes]], those: dict[str, set[bytes]]) -> Iterable[tuple[bytes, str]]:
    """What nodes have here and not there."""
    return ((digest, node_id) for node_id, own in these.items() for digest in own - those.get(node_id, set()))


def _run(transaction: sqlite3.Connection, statements: str) -> None:
    """Several statements at once: alone, each would be committed by itself."""
    if not transaction.in_transaction:
        transaction.execute("BEGIN")
    for statement in filter(None, map(str.strip, statements.split(";"))):
        transaction.execute(statement)
