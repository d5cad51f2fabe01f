"""Delta of rows changed since a base segment was made, in memory, with the commits at which they changed.

One thread applies commits. Other threads read concurrently, each as of one commit, without locks: all rows of a commit
are added before it becomes visible, and a replaced row stays linked while a reader may need it. Numbers of nodes and
edges continue after those of the base.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from kgserve.storage.model.change_set import ChangeSet
from kgserve.storage.model.conversation_turns import NEXT_TURN_RELATION
from kgserve.storage.model.merge_redirects import MERGED_INTO_RELATION
from kgserve.storage.model.node_edge_fields import NodeEdgeColumnSet
from kgserve.storage.model.node_edge_rows import EdgeKey, EdgeRow, NodeRow
from kgserve.storage.rows.base_segment import MappedRowBaseSegment
from kgserve.storage.rows.base_segment_file_format import NumberArray
from kgserve.storage.rows.row_json_encoder import encode_edge_as_json, encode_node_as_unclosed_json


class RowVersion(msgspec.Struct, gc=False):
    """Version of a row since a commit, None if deleted, linked to the previous version if a reader may need it."""

    sequence: int
    row: NodeRow | EdgeRow | None
    before: RowVersion | None
    data: bytes | None = None

    def at(self, sequence: int) -> RowVersion | None:
        """Return the version as of a commit; None if the row is newer."""
        found: RowVersion | None = self
        while found is not None and found.sequence > sequence:
            found = found.before
        return found


class BaseAndDeltaEdges(msgspec.Struct):
    """Edges from a base segment and its delta: row numbers of the former; numbers and versions of the latter."""

    base: NumberArray
    changed: list[tuple[int, RowVersion]]

    def __len__(self) -> int:
        return len(self.base) + len(self.changed)

    def first(self, count: int) -> BaseAndDeltaEdges:
        """Return at most ``count`` of the edges."""
        own = self.base[:count]
        return BaseAndDeltaEdges(own, self.changed[: count - len(own)])


class AdjacentEdges(NamedTuple):
    """Edges of one node: numbers and other ends of those in the base; number, other end and version of the others."""

    numbers: Sequence[int]
    ends: Sequence[int]
    changed: Sequence[tuple[int, int, RowVersion]]


class InMemoryRowsDelta:
    """In-memory delta: rows changed since a base segment."""

    def __init__(self, base: MappedRowBaseSegment) -> None:
        self.base = base
        self.sequence = base.state.sequence
        self.versions = 0
        self.bytes = 0
        self.has_validity_bounds = base.has_validity_bounds
        self.linked = base.linked
        self.width = base.width
        self.merges = base.code(MERGED_INTO_RELATION) >= 0
        self.turns = base.code(NEXT_TURN_RELATION) >= 0
        self.node_numbers: dict[str, int] = {}
        self.node_ids: list[str] = []
        self.nodes: dict[int, RowVersion] = {}
        self.edge_numbers: dict[EdgeKey, int] = {}
        self.edges: dict[int, RowVersion] = {}
        self.sources, self.targets = array("q"), array("q")
        self.out: dict[int, array[int]] = {}
        self.into: dict[int, array[int]] = {}
        # The system allocates pages of these arrays only when they are written to.
        self.touched_nodes = np.zeros(base.nodes, np.bool_)
        self.touched_edges = np.zeros(base.edges, np.bool_)
        self._sorted: tuple[int, list[str]] = (0, [])

    @property
    def is_empty(self) -> bool:
        """True if no commit has changed a row since the base."""
        return not self.versions and self.linked == self.base.linked

    # Row numbers

    def number(self, node_id: str) -> int:
        """Return the number of a node that exists or existed; -1 otherwise."""
        found = self.node_numbers.get(node_id)
        return self.base.number(node_id) if found is None else found

    def edge_number(self, key: EdgeKey) -> int:
        """Return the number of an edge that exists or existed; -1 otherwise."""
        found = self.edge_numbers.get(key)
        if found is not None:
            return found
        return self._base_edge_number(self.base.number(key[0]), self.base.number(key[1]), key[2])

    def _base_edge_number(self, source: int, target: int, relation: str) -> int:
        """Return the number of an edge of the base between two numbered nodes; -1 if it has none."""
        nodes = self.base.nodes
        return self.base.edge_number(source, target, relation) if 0 <= source < nodes and 0 <= target < nodes else -1

    def id(self, number: int) -> str:
        """Return the id of a node."""
        new = number - self.base.nodes
        return self.base.id(number) if new < 0 else self.node_ids[new]

    def ids(self, numbers: Sequence[int]) -> list[str]:
        """Return the ids of nodes."""
        return self.base.ids(numbers) if not self.node_ids else [self.id(number) for number in numbers]

    def edge_endpoints(self, number: int) -> tuple[int, int]:
        """Return source and target of an edge."""
        new = number - self.base.edges
        if new < 0:
            return self.base.sources[number], self.base.targets[number]
        return self.sources[new], self.targets[new]

    def new_ids(self) -> list[str]:
        """Return the sorted ids of nodes that the base lacks; some may be deleted."""
        count, found = self._sorted
        if count != len(self.node_ids):
            count = len(self.node_ids)
            # Sorted ids followed by new ones: the sort merges them in linear time.
            found = sorted(found + self.node_ids[len(found) : count])
            self._sorted = count, found
        return found

    # Writing

    def apply(self, change: ChangeSet, floor: int) -> None:
        """Apply the next commit. No reader needs a commit before ``floor`` anymore."""
        at = change.sequence
        self.linked = self.linked or change.links is not None
        for key in change.edges_deleted:
            self._put_edge(at, key, None, floor)
        for node_id in change.nodes_deleted:
            self._put_node(at, node_id, None, floor)
        for node in change.nodes_created:
            self._put_node(at, node.id, node, floor)
        for node in change.nodes_updated:
            self._put_node(at, node.id, node, floor)
        for edges in (change.edges_created, change.edges_updated, change.edges_touched):
            for edge in edges:
                self._put_edge(at, edge.key, edge, floor)
        self.sequence = at

    def _put_node(self, at: int, node_id: str, row: NodeRow | None, floor: int) -> None:
        number = self.number(node_id)
        if number < 0:
            number = self.base.nodes + len(self.node_ids)
            self.node_ids.append(node_id)
            self.node_numbers[node_id] = number
        before = self.nodes.get(number)
        self.nodes[number] = RowVersion(at, row, _prune_versions(before, floor) if before else None)
        if number < self.base.nodes:
            self.touched_nodes[number] = True
        self.versions += 1
        if row is not None:
            self.bytes += len(row.content) + len(row.attributes)
            self._note_extras(row)

    def _put_edge(self, at: int, key: EdgeKey, row: EdgeRow | None, floor: int) -> None:
        known = self.edge_numbers.get(key)
        if known is None:
            source, target = self.number(key[0]), self.number(key[1])
            number = self._base_edge_number(source, target, key[2])
            if number < 0:
                number = self._add_edge(key, source, target)
        else:
            number, source, target = known, -1, -1  # it was indexed when it was added
        before = self.edges.get(number)
        self.edges[number] = RowVersion(at, row, _prune_versions(before, floor) if before else None)
        if before is None:
            # Order matters: readers must find it among the changes before it is hidden in the base.
            self._index_edge(number, source, target)
            if number < self.base.edges:
                self.touched_edges[number] = True
        self.versions += 1
        if row is not None:
            self.bytes += len(row.attributes)
            self._note_extras(row)

    def _add_edge(self, key: EdgeKey, source: int, target: int) -> int:
        number = self.base.edges + len(self.sources)
        self.merges = self.merges or key[2] == MERGED_INTO_RELATION
        self.turns = self.turns or key[2] == NEXT_TURN_RELATION
        self.sources.append(source)
        self.targets.append(target)
        self.edge_numbers[key] = number
        return number

    def _note_extras(self, row: NodeRow | EdgeRow) -> None:
        if row.extras is not None:
            self.has_validity_bounds = (
                self.has_validity_bounds or row.extras.valid_from is not None or row.extras.valid_to is not None
            )
            if self.width is not NodeEdgeColumnSet.MEMORY:
                self.width = max(self.width, row.extras.width)

    def _index_edge(self, number: int, source: int, target: int) -> None:
        for lists, node in ((self.out, source), (self.into, target)):
            found = lists.get(node)
            if found is None:
                lists[node] = array("q", (number,))
            else:
                found.append(number)


def encode_node_version(version: RowVersion) -> bytes:
    """Return the JSON of a node's version, without closing brace; encoded at the first call, then cached."""
    if version.data is None:
        assert isinstance(version.row, NodeRow)  # noqa: S101
        version.data = encode_node_as_unclosed_json(version.row)
    return version.data


def encode_edge_version(version: RowVersion) -> bytes:
    """Return the JSON of an edge's version; encoded at the first call, then cached."""
    if version.data is None:
        assert isinstance(version.row, EdgeRow)  # noqa: S101
        version.data = encode_edge_as_json(version.row)
    return version.data


def _prune_versions(version: RowVersion, floor: int) -> RowVersion:
    """Cut the chain of versions after the oldest one that a reader may need; return the chain."""
    last = version
    while last.sequence > floor and last.before is not None:
        last = last.before
    last.before = None
    return version
