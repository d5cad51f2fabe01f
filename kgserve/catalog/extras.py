"""Tags of nodes, and their bounds in the world's time, kept for those nodes alone that have any."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable

from kgserve.catalog import statements as sql
from kgserve.model.change import NetChange
from kgserve.model.rows import NodeRow


def any_kept(connection: sqlite3.Connection) -> bool:
    """Whether any node has tags or bounds."""
    return bool(connection.execute(sql.ANY_EXTRAS).fetchone()[0])


def extended(rows: Iterable[NodeRow]) -> list[NodeRow]:
    """The rows that may have tags or bounds."""
    return [row for row in rows if row.extras is not None]


def follow(transaction: sqlite3.Connection, net: NetChange, rows: list[NodeRow]) -> Counter[str]:
    """Take in what a group of writes changed, and by how much that changes the number of nodes with each tag.

    ``rows`` are its `extended` rows.
    """
    replaced = (*net.nodes_deleted, *net.nodes_updated)
    transaction.executemany(sql.UNBOUND, [(node_id,) for node_id in replaced])
    _bound(transaction, rows)
    before = {node_id: {tag for (tag,) in transaction.execute(sql.TAGS_OF, (node_id,))} for node_id in replaced}
    return _retag(transaction, before, _tags(rows))


def fill(transaction: sqlite3.Connection, rows: list[NodeRow]) -> Counter[str]:
    """Take in `extended` rows of new nodes, and the number of them with each tag."""
    _bound(transaction, rows)
    return _retag(transaction, {}, _tags(rows))


def clear(transaction: sqlite3.Connection) -> None:
    """Forget everything."""
    transaction.execute("DELETE FROM tagged")
    transaction.execute("DELETE FROM valid")


def _bound(transaction: sqlite3.Connection, rows: list[NodeRow]) -> None:
    bounds = [(row.id, row.extras.valid_from, row.extras.valid_to) for row in rows if row.extras is not None]
    transaction.executemany(sql.BOUND, [each for each in bounds if each[1:] != (None, None)])


def _tags(rows: list[NodeRow]) -> dict[str, set[str]]:
    return {row.id: set(row.extras.tags) for row in rows if row.extras is not None and row.extras.tags}


def _retag(transaction: sqlite3.Connection, before: dict[str, set[str]], after: dict[str, set[str]]) -> Counter[str]:
    lost = [(tag, node_id) for node_id, tags in before.items() for tag in tags - after.get(node_id, set())]
    won = [(tag, node_id) for node_id, tags in after.items() for tag in tags - before.get(node_id, set())]
    transaction.executemany(sql.UNTAG, lost)
    transaction.executemany(sql.TAG, won)
    changes = Counter(tag for tag, _ in won)
    changes.subtract(tag for tag, _ in lost)
    return changes
