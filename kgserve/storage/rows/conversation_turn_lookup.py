"""Look-up of which nodes are turns of conversations: the ends of relations `next`."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from kgserve.storage.model.conversation_turns import NEXT_TURN_RELATION
from kgserve.storage.rows.edge_pages import filter_edges_by_type
from kgserve.storage.rows.rows_snapshot import RowsSnapshot


def find_conversation_turns_among(rows: RowsSnapshot, ids: Collection[str]) -> set[str]:
    """Return which of the given nodes are turns of conversations."""
    if not rows.has_turns:
        return set()
    ids_by_number = {number: node_id for node_id in ids if (number := rows.number(node_id)) >= 0}
    found: set[int] = set()
    for outgoing in (True, False) if ids_by_number else ():
        numbers = np.array([*ids_by_number], np.int64)
        edges = filter_edges_by_type(rows, rows.edges_around(numbers, outgoing=outgoing), (NEXT_TURN_RELATION,))
        found.update(rows.edge_endpoints(edges)[0 if outgoing else 1].tolist())
    return {ids_by_number[number] for number in found if number in ids_by_number}


def iterate_conversation_turn_ids(rows: RowsSnapshot) -> Iterator[list[str]]:
    """Yield the ids of all turns of conversations in batches, some of them repeatedly."""
    for some in rows.edge_slices() if rows.has_turns else ():
        edges = filter_edges_by_type(rows, some, (NEXT_TURN_RELATION,))
        numbers = {*(number for ends in rows.edge_endpoints(edges) for number in ends.tolist())}
        yield rows.delta.ids([*numbers])
