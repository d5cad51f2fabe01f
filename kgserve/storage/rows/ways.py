"""Hierarchies of memories and merge redirects, read from the current rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from kgserve.storage.model.parents import CHILD_OF, is_upward, newest
from kgserve.storage.model.redirects import MERGED_INTO, is_withdrawn, survivor_of
from kgserve.storage.model.rows import EdgeRow
from kgserve.storage.model.soft_delete import is_live
from kgserve.storage.rows.edge_page import of_kinds
from kgserve.storage.rows.snapshot import Rows


def upward(rows: Rows, ids: Iterable[str]) -> dict[str, list[EdgeRow]]:
    """Return the possible parent relations of memories, by memory."""
    return _group_by_source(outgoing_of(rows, ids, (CHILD_OF,)))


def outgoing_of(rows: Rows, ids: Iterable[str], kinds: Collection[str]) -> list[EdgeRow]:
    """Return the relations of some types that start at nodes."""
    numbers = np.array([number for node_id in ids if (number := rows.number(node_id)) >= 0], np.int64)
    return [*rows.rows_of(of_kinds(rows, rows.around(numbers, outgoing=True), kinds))] if len(numbers) else []


def parents(rows: Rows, ids: Iterable[str]) -> dict[str, str]:
    """Return the parents of those memories that have one."""
    return parents_among(rows, outgoing_of(rows, ids, (CHILD_OF,)))


def parents_among(rows: Rows, edges: Iterable[EdgeRow]) -> dict[str, str]:
    """Return the parents of memories, given their relations."""
    found = _group_by_source(edges)
    there = rows.nodes({edge.target for edges in found.values() for edge in edges})
    counting = {child: [each for each in edges if is_live(there.get(each.target))] for child, edges in found.items()}
    return {child: edge.target for child, edges in counting.items() if (edge := newest(edges)) is not None}


def _group_by_source(edges: Iterable[EdgeRow]) -> dict[str, list[EdgeRow]]:
    found: dict[str, list[EdgeRow]] = {}
    for edge in edges:
        if is_upward(edge):
            found.setdefault(edge.source, []).append(edge)
    return found


def redirects_of(rows: Rows, ids: Iterable[str]) -> dict[str, str]:
    """Return the redirects of merged nodes among ``ids``, including the following steps."""
    found: dict[str, str] = {}
    some = set(ids) if rows.know_merges else set()
    while some:
        steps = {node_id: into for node_id in some if (into := _merged_into(rows, node_id)) is not None}
        found |= steps
        some = set(steps.values()) - found.keys()
    return found


def resolve_redirect(rows: Rows, node_id: str) -> str:
    """Return the node's id after following merge redirects."""
    return survivor_of(redirects_of(rows, (node_id,)), node_id)


def aliases(rows: Rows, node_id: str) -> list[str]:
    """Return the nodes that were merged into a node directly."""
    number = rows.number(node_id)
    into = of_kinds(rows, rows.around(np.array([number]), outgoing=False), (MERGED_INTO,)) if number >= 0 else None
    sources = [row.source for row in rows.rows_of(into)] if into is not None else []
    return [source for source in sources if _merged_into(rows, source) == node_id]


def merged_ids(rows: Rows, node_id: str) -> list[str]:
    """Return the nodes that were merged into a node, directly or through others."""
    found: dict[str, None] = {}
    waiting = [node_id] if rows.know_merges else []
    while waiting:
        new = [each for each in aliases(rows, waiting.pop()) if each not in found]
        found.update(dict.fromkeys(new))
        waiting += new
    return [*found]


def _merged_into(rows: Rows, node_id: str) -> str | None:
    number = rows.number(node_id)
    # A merged node is never valid, so any moment will do.
    if number < 0 or rows.node_holds(number, rows.state.time):
        return None
    row = rows.node_row(number)
    if row is None or not is_withdrawn(row.extras):
        return None
    into = of_kinds(rows, rows.around(np.array([number]), outgoing=True), (MERGED_INTO,))
    return max(((edge.sequence, edge.target) for edge in rows.rows_of(into)), default=(0, None))[1]
