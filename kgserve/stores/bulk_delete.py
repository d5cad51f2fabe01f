"""Bulk deletes, prepared concurrently with other writes.

Preparing a delete of 100,000 rows takes seconds: reading the rows, updating the digest, building a base without them.
All of that happens outside the writer thread. A concurrent write to one of the rows invalidates the preparation, and
the caller has to repeat it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np

from kgserve.errors import TooLarge
from kgserve.storage.model.change_feed_events import classify_node_for_memory_events
from kgserve.storage.model.change_set import ChangeSet, NodeBeforeImage, StoreState
from kgserve.storage.model.node_edge_rows import EdgeKey, EdgeRow, NodeRow
from kgserve.storage.model.store_rows_digest import update_digest_for_row_changes
from kgserve.storage.rows.current_rows import BaseSegmentStagedBeforeDelete
from kgserve.storage.rows.memory_predecessors import add_memory_predecessors
from kgserve.storage.rows.row_delta import BaseAndDeltaEdges
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.storage.write_planner import WriteReport, choose_commit_time

MAX_BULK_DELETE_ROWS = 2_000_000
"""Maximum number of rows in one delete, including the edges of deleted nodes."""
MIN_BULK_DELETE_ROWS = 5_000
_BULK_DELETE_BATCH_ROWS = 10_000
_KEY_OVERHEAD_BYTES = 8
"""Size of a key without its texts, in bytes."""


class BulkDelete:
    """A prepared delete of nodes and edges, including all edges of the nodes and the former versions of memories."""

    def __init__(self, foreseen: BaseSegmentStagedBeforeDelete, nodes: Sequence[str], edges: Sequence[EdgeKey]) -> None:
        """Prepare the delete. Raises TooLarge, StorageFull, Unavailable and RowsDamaged."""
        self._foreseen = foreseen
        rows = foreseen.rows
        nodes = add_memory_predecessors(rows, nodes)
        node_numbers = {number for node_id in nodes if (number := rows.number(node_id)) >= 0}
        edge_numbers = find_edge_numbers_to_delete(rows, nodes, edges)
        self._nodes = dict[str, int]()
        self._edges = set[EdgeKey]()
        self._former: list[NodeBeforeImage] = []
        digest = 0
        for node in _nodes(rows, sorted(node_numbers)):
            self._nodes[node.id] = node.version
            if kind := classify_node_for_memory_events(node):
                self._former.append(NodeBeforeImage(node.id, kind))
            digest = update_digest_for_row_changes(digest, (), (node,))
        for edge in _edges(rows, sorted(edge_numbers)):
            self._edges.add(edge.key)
            digest = update_digest_for_row_changes(digest, (), (edge,))
        self._digest = digest
        self._gone = sorted(self._nodes), sorted(self._edges)
        foreseen.leave_out(node_numbers, edge_numbers)

    @property
    def cost(self) -> int:
        """Approximate size of the journal entry in bytes."""
        nodes, edges = self._gone
        texts = sum(map(len, nodes)) + sum(len(part) for key in edges for part in key)
        former = sum(len(each.id) for each in self._former)
        return texts + former + _KEY_OVERHEAD_BYTES * (len(nodes) + len(edges) + len(self._former))

    def unconflicting_changes(self) -> list[ChangeSet] | None:
        """Return the changes committed since the last call, or None if any of them conflicts with this delete."""
        if not self._foreseen.is_current:
            return None
        taken = self._foreseen.catch_up()
        return (
            None if any(each.touches(self._nodes.keys(), self._edges, self._nodes.keys()) for each in taken) else taken
        )

    def change(self, state: StoreState, now: int) -> tuple[ChangeSet, WriteReport]:
        """Return the change set that follows ``state``, and its report."""
        change = ChangeSet(
            sequence=state.sequence + 1,
            time=choose_commit_time(now, state.time),
            nodes_deleted=self._gone[0],
            last_versions=[self._nodes[node_id] for node_id in self._gone[0]],
            edges_deleted=self._gone[1],
            former=self._former,
            digest=update_digest_for_row_changes(state.digest + self._digest, (), ()).to_bytes(16),
            nodes=state.nodes - len(self._nodes),
            edges=state.edges - len(self._edges),
        )
        report = WriteReport(nodes_deleted=len(self._nodes), edges_deleted=len(self._edges), sequence=change.sequence)
        return change, report

    def show(self, change: ChangeSet) -> None:
        """Make readers see the remaining rows. Must run in the writer thread."""
        self._foreseen.show(change)


def is_bulk_delete(rows: RowsSnapshot, nodes: Sequence[str], edges: Sequence[EdgeKey]) -> bool:
    """Return whether a delete is large enough to prepare outside the writer thread."""
    return (
        len(nodes) + len(edges) >= MIN_BULK_DELETE_ROWS
        or len(nodes) + len(find_edge_numbers_to_delete(rows, nodes, edges)) >= MIN_BULK_DELETE_ROWS
    )


def find_edge_numbers_to_delete(rows: RowsSnapshot, nodes: Sequence[str], edges: Sequence[EdgeKey]) -> set[int]:
    """Return the row numbers of the edges that a bulk delete removes: the given ones, and all of the given nodes.

    Raises TooLarge above `MAX_BULK_DELETE_ROWS`.
    """
    numbers = np.array([number for node_id in nodes if (number := rows.number(node_id)) >= 0], np.int64)
    found = {number for number in rows.edge_numbers(edges).values() if rows.edge_row(number) is not None}
    for outgoing in (True, False):
        around = rows.edges_around(numbers, outgoing=outgoing)
        found.update(around.base.tolist())
        found.update(number for number, _ in around.changed)
        if len(found) + len(nodes) > MAX_BULK_DELETE_ROWS:
            raise TooLarge(f"this would delete more than {MAX_BULK_DELETE_ROWS:,} rows; split it into smaller deletes")
    return found


def _nodes(rows: RowsSnapshot, numbers: list[int]) -> Iterator[NodeRow]:
    for start in range(0, len(numbers), _BULK_DELETE_BATCH_ROWS):
        ids = rows.delta.ids(numbers[start : start + _BULK_DELETE_BATCH_ROWS])
        yield from rows.nodes(ids).values()


def _edges(rows: RowsSnapshot, numbers: list[int]) -> Iterator[EdgeRow]:
    """Yield the current edge rows in batches, to bound memory."""
    changed = rows.delta.edges
    is_own = [number < rows.base.edges and number not in changed for number in numbers]
    own = np.array([number for number, is_there in zip(numbers, is_own, strict=True) if is_there], np.int64)
    yield from rows.rows_of(BaseAndDeltaEdges(own, []))
    for number, is_there in zip(numbers, is_own, strict=True):
        if not is_there:
            yield cast("EdgeRow", rows.edge_row(number))
