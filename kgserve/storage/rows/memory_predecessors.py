"""Former texts of memories in other nodes: former versions, merged memories with theirs, and archived copies.

Whatever withdraws, deletes, erases or restores a memory asks here which nodes belong to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

import numpy as np

from kgserve.storage.model.merge_redirects import follow_merge_redirect_chain
from kgserve.storage.model.node_edge_fields import NO_EXTRAS
from kgserve.storage.model.node_edge_rows import EdgeRow, NodeRow
from kgserve.storage.model.soft_delete import PREDECESSOR_RELATIONS, is_memory_predecessor
from kgserve.storage.rows.edge_pages import filter_edges_by_type
from kgserve.storage.rows.memory_hierarchy_and_redirects import find_merge_redirect_chains
from kgserve.storage.rows.rows_snapshot import RowsSnapshot


class MemoryPredecessorSource(Protocol):
    """Rows in which the predecessors of memories are looked for."""

    def nodes(self, ids: Collection[str], /) -> Mapping[str, NodeRow]:
        """Return the given nodes that exist."""
        ...

    def predecessor_edges(self, ids: Collection[str], /) -> Iterable[EdgeRow]:
        """Return the incoming edges of nodes whose type is one of `PREDECESSOR_RELATIONS`."""
        ...

    def redirects(self, ids: Collection[str], /) -> Mapping[str, str]:
        """Return the merge redirects from nodes, with all further steps of each chain."""
        ...


def find_memory_predecessors(source: MemoryPredecessorSource, ids: Iterable[str]) -> dict[str, NodeRow]:
    """Return the nodes that hold former texts of memories, at any depth, in the order in which they are found."""
    found: dict[str, NodeRow] = {}
    known = dict.fromkeys(ids)
    level: Collection[str] = known
    while level:
        edges = [*source.predecessor_edges(level)]
        rows = source.nodes({edge.source for edge in edges} - known.keys())
        owners = {owner for row in rows.values() if (owner := (row.extras or NO_EXTRAS).belongs_to)}
        steps, there = source.redirects(owners), source.nodes(owners | {edge.target for edge in edges})
        new: dict[str, NodeRow] = {}
        for edge in edges:
            row, target = rows.get(edge.source), there.get(edge.target)
            if row is None or target is None or not target.is_memory:
                continue
            belongs_to = (row.extras or NO_EXTRAS).belongs_to
            owner = follow_merge_redirect_chain(steps, belongs_to) if belongs_to in there else None
            if is_memory_predecessor(row, edge.relation_type, edge.target, owner):
                new[row.id] = row
        found |= new
        known |= dict.fromkeys(new)
        level = new
    return found


def add_memory_predecessors(rows: RowsSnapshot, ids: Iterable[str]) -> list[str]:
    """Return nodes followed by the predecessors of those that are memories."""
    ids = dict.fromkeys(ids)
    return [*dict.fromkeys((*ids, *find_memory_predecessors(CommittedMemoryPredecessorSource(rows), ids)))]


class CommittedMemoryPredecessorSource:
    """Rows of a commit as the source of predecessors."""

    def __init__(self, rows: RowsSnapshot) -> None:
        self._rows = rows

    def nodes(self, ids: Collection[str], /) -> Mapping[str, NodeRow]:
        """Return the given nodes that exist."""
        return self._rows.nodes(ids) if ids else {}

    def predecessor_edges(self, ids: Collection[str], /) -> Iterable[EdgeRow]:
        """Return the incoming edges of nodes whose type is one of `PREDECESSOR_RELATIONS`."""
        rows = self._rows
        numbers = np.array([number for node_id in ids if (number := rows.number(node_id)) >= 0], np.int64)
        if not len(numbers):
            return ()
        edges = filter_edges_by_type(rows, rows.edges_around(numbers, outgoing=False), PREDECESSOR_RELATIONS)
        return rows.rows_of(edges)

    def redirects(self, ids: Collection[str], /) -> Mapping[str, str]:
        """Return the merge redirects from nodes, with all further steps of each chain."""
        return find_merge_redirect_chains(self._rows, ids)
