"""What has changed since a base was made: rows with the commits from which they hold, in memory.

One thread applies commits; any number of threads read beside it, each as of one commit, and none takes a lock: whatever
a reader can meet is added before the commit is shown, and a row that is replaced stays behind the new one for as long
as somebody may look for it. Numbers of nodes and edges go on where those of the base end.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from kgserve.storage.model.change import ChangeSet
from kgserve.storage.model.fields import ColumnSet
from kgserve.storage.model.redirects import MERGED_INTO
from kgserve.storage.model.rows import EdgeKey, EdgeRow, NodeRow
from kgserve.storage.rows.base import BaseSegment
from kgserve.storage.rows.encoding import encode_edge, encode_node
from kgserve.storage.rows.format import Numbers


class Version(msgspec.Struct, gc=False):
    """A row from a commit on, None where it is gone, and what it was before if anybody may still ask."""

    sequence: int
    row: NodeRow | EdgeRow | None
    before: Version | None
    data: bytes | None = None

    def at(self, sequence: int) -> Version | None:
        """The version as of a commit; None when it came later."""
        found: Version | None = self
        while found is not None and found.sequence > sequence:
            found = found.before
        return found


class Gathered(msgspec.Struct):
    """Edges around some nodes: numbers of those in the base, and numbers with versions of those that have changed."""

    base: Numbers
    changed: list[tuple[int, Version]]

    def __len__(self) -> int:
        return len(self.base) + len(self.changed)

    def first(self, count: int) -> Gathered:
        """At most so many of them."""
        own = self.base[:count]
        return Gathered(own, self.changed[: count - len(own)])


class Around(NamedTuple):
    """Edges of one node: numbers of those in the base and their other ends; number, other end and version of others."""

    numbers: Sequence[int]
    ends: Sequence[int]
    changed: Sequence[tuple[int, int, Version]]


class Delta:
    """The changes since a base."""

    def __init__(self, base: BaseSegment) -> None:
        self.base = base
        self.sequence = base.state.sequence
        self.versions = 0
        self.bytes = 0
        self.dated = base.dated
        self.linked = base.linked
        self.width = base.width
        self.merges = base.code(MERGED_INTO) >= 0
        self.node_numbers: dict[str, int] = {}
        self.node_ids: list[str] = []
        self.nodes: dict[int, Version] = {}
        self.edge_numbers: dict[EdgeKey, int] = {}
        self.edges: dict[int, Version] = {}
        self.sources, self.targets = array("q"), array("q")
        self.out: dict[int, array[int]] = {}
        self.into: dict[int, array[int]] = {}
        # Pages of these that nobody writes to take no memory.
        self.touched_nodes = np.zeros(base.nodes, np.bool_)
        self.touched_edges = np.zeros(base.edges, np.bool_)
        self._sorted: tuple[int, list[str]] = (0, [])

    # Numbers

    def number(self, node_id: str) -> int:
        """The number of a node that is, or was once, there; -1 when there is none."""
        found = self.node_numbers.get(node_id)
        return self.base.number(node_id) if found is None else found

    def edge_number(self, key: EdgeKey) -> int:
        """As `number`, of an edge."""
        found = self.edge_numbers.get(key)
        if found is not None:
            return found
        base = self.base
        source, target = base.number(key[0]), base.number(key[1])
        return base.edge_number(source, target, key[2]) if source >= 0 and target >= 0 else -1

    def id(self, number: int) -> str:
        """The id of a node."""
        new = number - self.base.nodes
        return self.base.id(number) if new < 0 else self.node_ids[new]

    def ids(self, numbers: Sequence[int]) -> list[str]:
        """The ids of nodes."""
        return self.base.ids(numbers) if not self.node_ids else [self.id(number) for number in numbers]

    def ends(self, number: int) -> tuple[int, int]:
        """Source and target of an edge."""
        new = number - self.base.edges
        if new < 0:
            return self.base.sources[number], self.base.targets[number]
        return self.sources[new], self.targets[new]

    def new_ids(self) -> list[str]:
        """The ids of nodes that the base has not, in order; some of them may be gone."""
        count, found = self._sorted
        if count != len(self.node_ids):
            count = len(self.node_ids)
            found = sorted(self.node_ids[:count])
            self._sorted = count, found
        return found

    # Writing

    def apply(self, change: ChangeSet, floor: int) -> None:
        """Take in the next commit. Nobody asks for a commit before ``floor`` any more."""
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
        self.nodes[number] = Version(at, row, _kept(before, floor) if before else None)
        if number < self.base.nodes:
            self.touched_nodes[number] = True
        self.versions += 1
        if row is not None:
            self.bytes += len(row.content) + len(row.attributes)
            self._note_extras(row)

    def _put_edge(self, at: int, key: EdgeKey, row: EdgeRow | None, floor: int) -> None:
        number = self.edge_number(key)
        if number < 0:
            number = self._add_edge(key)
        before = self.edges.get(number)
        self.edges[number] = Version(at, row, _kept(before, floor) if before else None)
        if before is None:
            # Known before it is found, and found among the changes before it is no longer found in the base.
            self._note(number, *self.ends(number))
            if number < self.base.edges:
                self.touched_edges[number] = True
        self.versions += 1
        if row is not None:
            self.bytes += len(row.attributes)
            self._note_extras(row)

    def _add_edge(self, key: EdgeKey) -> int:
        number = self.base.edges + len(self.sources)
        self.merges = self.merges or key[2] == MERGED_INTO
        source, target = self.number(key[0]), self.number(key[1])
        self.sources.append(source)
        self.targets.append(target)
        self.edge_numbers[key] = number
        return number

    def _note_extras(self, row: NodeRow | EdgeRow) -> None:
        if row.extras is not None:
            self.dated = self.dated or row.extras.valid_from is not None or row.extras.valid_to is not None
            if self.width is not ColumnSet.MEMORY:
                self.width = max(self.width, row.extras.width)

    def _note(self, number: int, source: int, target: int) -> None:
        for lists, node in ((self.out, source), (self.into, target)):
            found = lists.get(node)
            if found is None:
                lists[node] = array("q", (number,))
            else:
                found.append(number)


def node_data(version: Version) -> bytes:
    """The open JSON of a version of a node, made once."""
    if version.data is None:
        assert isinstance(version.row, NodeRow)  # noqa: S101
        version.data = encode_node(version.row)
    return version.data


def edge_data(version: Version) -> bytes:
    """The JSON of a version of an edge, made once."""
    if version.data is None:
        assert isinstance(version.row, EdgeRow)  # noqa: S101
        version.data = encode_edge(version.row)
    return version.data


def _kept(version: Version, floor: int) -> Version:
    """A version and those before it that somebody may still ask for."""
    last = version
    while last.sequence > floor and last.before is not None:
        last = last.before
    last.before = None
    return version
