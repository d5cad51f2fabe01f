"""Hierarchies of memories and merge redirects, read from the current rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from kgserve.storage.model.memory_parents import (
    CHILD_OF_RELATION,
    find_newest_memory_parent_edge,
    is_effective_memory_parent_edge,
)
from kgserve.storage.model.merge_redirects import MERGED_INTO_RELATION, follow_merge_redirect_chain, is_node_never_valid
from kgserve.storage.model.node_edge_rows import EdgeRow
from kgserve.storage.model.soft_delete import is_current_unwithdrawn_memory
from kgserve.storage.rows.edge_pages import filter_edges_by_type
from kgserve.storage.rows.rows_snapshot import RowsSnapshot


def find_memory_parent_edges(rows: RowsSnapshot, ids: Iterable[str]) -> dict[str, list[EdgeRow]]:
    """Return the edges from memories to their parents, by memory; those to withdrawn memories are included."""
    return _group_by_source(find_outgoing_edges_of_types(rows, ids, (CHILD_OF_RELATION,)))


def find_outgoing_edges_of_types(rows: RowsSnapshot, ids: Iterable[str], kinds: Collection[str]) -> list[EdgeRow]:
    """Return the relations of some types that start at nodes."""
    numbers = np.array([number for node_id in ids if (number := rows.number(node_id)) >= 0], np.int64)
    return (
        [*rows.rows_of(filter_edges_by_type(rows, rows.edges_around(numbers, outgoing=True), kinds))]
        if len(numbers)
        else []
    )


def find_parents_of_memories(rows: RowsSnapshot, ids: Iterable[str]) -> dict[str, str]:
    """Return the parents of those memories that have one."""
    return find_memory_parents_among_candidates(rows, find_outgoing_edges_of_types(rows, ids, (CHILD_OF_RELATION,)))


def find_memory_parents_among_candidates(rows: RowsSnapshot, edges: Iterable[EdgeRow]) -> dict[str, str]:
    """Return which of several candidates is the parent of each memory, given their relations."""
    found = _group_by_source(edges)
    there = rows.nodes({edge.target for edges in found.values() for edge in edges})
    counting = {
        child: [each for each in edges if is_current_unwithdrawn_memory(there.get(each.target))]
        for child, edges in found.items()
    }
    return {
        child: edge.target
        for child, edges in counting.items()
        if (edge := find_newest_memory_parent_edge(edges)) is not None
    }


def _group_by_source(edges: Iterable[EdgeRow]) -> dict[str, list[EdgeRow]]:
    found: dict[str, list[EdgeRow]] = {}
    for edge in edges:
        if is_effective_memory_parent_edge(edge):
            found.setdefault(edge.source, []).append(edge)
    return found


def find_merge_redirect_chains(rows: RowsSnapshot, ids: Iterable[str]) -> dict[str, str]:
    """Return the merge redirects from merged nodes among ``ids``, with all further steps of each chain."""
    found: dict[str, str] = {}
    some = set(ids) if rows.has_merges else set()
    while some:
        steps = {node_id: into for node_id in some if (into := _merged_into(rows, node_id)) is not None}
        found |= steps
        some = set(steps.values()) - found.keys()
    return found


def resolve_merge_redirect(rows: RowsSnapshot, node_id: str) -> str:
    """Return the node's id after following merge redirects."""
    return follow_merge_redirect_chain(find_merge_redirect_chains(rows, (node_id,)), node_id)


def find_nodes_merged_directly_into(rows: RowsSnapshot, node_id: str) -> list[str]:
    """Return the nodes that were merged into a node directly."""
    number = rows.number(node_id)
    into = (
        filter_edges_by_type(rows, rows.edges_around(np.array([number]), outgoing=False), (MERGED_INTO_RELATION,))
        if number >= 0
        else None
    )
    sources = [row.source for row in rows.rows_of(into)] if into is not None else []
    return [source for source in sources if _merged_into(rows, source) == node_id]


def find_all_nodes_merged_into(rows: RowsSnapshot, node_id: str) -> list[str]:
    """Return the nodes that were merged into a node, directly or through others."""
    found: dict[str, None] = {}
    waiting = [node_id] if rows.has_merges else []
    while waiting:
        new = [each for each in find_nodes_merged_directly_into(rows, waiting.pop()) if each not in found]
        found.update(dict.fromkeys(new))
        waiting += new
    return [*found]


def _merged_into(rows: RowsSnapshot, node_id: str) -> str | None:
    number = rows.number(node_id)
    # A merged node is never valid, so any moment will do.
    if number < 0 or rows.is_node_valid_at(number, rows.state.time):
        return None
    row = rows.node_row(number)
    if row is None or not is_node_never_valid(row.extras):
        return None
    into = filter_edges_by_type(rows, rows.edges_around(np.array([number]), outgoing=True), (MERGED_INTO_RELATION,))
    return max(((edge.sequence, edge.target) for edge in rows.rows_of(into)), default=(0, None))[1]
