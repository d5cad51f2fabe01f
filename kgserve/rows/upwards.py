"""What memories stand below, as their rows say."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kgserve.model.hierarchy import CHILD_OF, is_upward, newest
from kgserve.model.rows import EdgeRow
from kgserve.model.withdrawing import stands
from kgserve.rows.edge_page import of_kinds
from kgserve.rows.snapshot import Rows


def upward(rows: Rows, ids: Iterable[str]) -> dict[str, list[EdgeRow]]:
    """The relations of some memories that may say what they stand below, by memory."""
    numbers = np.array([number for node_id in ids if (number := rows.number(node_id)) >= 0], np.int64)
    found: dict[str, list[EdgeRow]] = {}
    if len(numbers):
        for edge in rows.rows_of(of_kinds(rows, rows.around(numbers, outgoing=True), (CHILD_OF,))):
            if is_upward(edge):
                found.setdefault(edge.source, []).append(edge)
    return found


def parents(rows: Rows, ids: Iterable[str]) -> dict[str, str]:
    """What some memories stand below, of those that stand below anything."""
    found = upward(rows, ids)
    there = rows.nodes({edge.target for edges in found.values() for edge in edges})
    counting = {child: [each for each in edges if stands(there.get(each.target))] for child, edges in found.items()}
    return {child: edge.target for child, edges in counting.items() if (edge := newest(edges)) is not None}
