"""What memories stand below, as their rows say."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from kgserve.model.hierarchy import CHILD_OF, is_upward, newest
from kgserve.model.rows import EdgeRow
from kgserve.model.withdrawing import stands
from kgserve.rows.edge_page import of_kinds
from kgserve.rows.snapshot import Rows


def upward(rows: Rows, ids: Iterable[str]) -> dict[str, list[EdgeRow]]:
    """The relations of some memories that may say what they stand below, by memory."""
    return _by_memory(outgoing_of(rows, ids, (CHILD_OF,)))


def outgoing_of(rows: Rows, ids: Iterable[str], kinds: Collection[str]) -> list[EdgeRow]:
    """The relations of some kinds that lead from some nodes."""
    numbers = np.array([number for node_id in ids if (number := rows.number(node_id)) >= 0], np.int64)
    return [*rows.rows_of(of_kinds(rows, rows.around(numbers, outgoing=True), kinds))] if len(numbers) else []


def parents(rows: Rows, ids: Iterable[str]) -> dict[str, str]:
    """What some memories stand below, of those that stand below anything."""
    return parents_among(rows, outgoing_of(rows, ids, (CHILD_OF,)))


def parents_among(rows: Rows, edges: Iterable[EdgeRow]) -> dict[str, str]:
    """The same of memories whose relations are among some."""
    found = _by_memory(edges)
    there = rows.nodes({edge.target for edges in found.values() for edge in edges})
    counting = {child: [each for each in edges if stands(there.get(each.target))] for child, edges in found.items()}
    return {child: edge.target for child, edges in counting.items() if (edge := newest(edges)) is not None}


def _by_memory(edges: Iterable[EdgeRow]) -> dict[str, list[EdgeRow]]:
    found: dict[str, list[EdgeRow]] = {}
    for edge in edges:
        if is_upward(edge):
            found.setdefault(edge.source, []).append(edge)
    return found
