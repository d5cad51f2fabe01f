"""Snapshot of the current rows as of one commit, unaffected by concurrent writes."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import cast

import numpy as np

from kgserve.storage.model.change_set import StoreState
from kgserve.storage.model.node_edge_fields import NodeEdgeColumnSet
from kgserve.storage.model.node_edge_rows import EdgeKey, EdgeRow, NodeRow, get_column_set_for_extras
from kgserve.storage.rows.base_segment import (
    BASE_READ_BATCH_BYTES,
    MAX_BASE_READ_BATCH_ROWS,
    MappedRowBaseSegment,
    split_into_size_bounded_ranges,
)
from kgserve.storage.rows.base_segment_file_format import NumberArray
from kgserve.storage.rows.row_delta import (
    AdjacentEdges,
    BaseAndDeltaEdges,
    InMemoryRowsDelta,
    RowVersion,
    encode_edge_version,
    encode_node_version,
)
from kgserve.storage.rows.row_json_encoder import (
    FRESH,
    MEMORY,
    compute_node_extras_flags,
    decode_edge_row_from_json,
    decode_node_row_from_json,
    set_stale_flag_in_node_json,
)

MAX_SINGLE_READS = 100
"""Maximum number of texts that are read one by one."""
MIN_BATCH_LOOKUPS = 1_000
"""Minimum number of rows that are looked up in one batch."""
MAX_EDGES_PER_LOOKUP = 100
"""Edges of the base per looked-up edge beyond which edges are looked up one by one."""


class RowsSnapshot:
    """Rows as of one commit. Not thread-safe; row numbers are valid for this snapshot only."""

    def __init__(self, base: MappedRowBaseSegment, delta: InMemoryRowsDelta, state: StoreState) -> None:
        self.base = base
        self.delta = delta
        self.state = state
        self.at = state.sequence

    @property
    def has_validity_bounds(self) -> bool:
        """True if any row has validity bounds."""
        return self.delta.has_validity_bounds

    @property
    def linked(self) -> bool:
        """True if any edge leads, or led at some time, into another store."""
        return self.delta.linked

    @property
    def has_merges(self) -> bool:
        """True if any node was merged into another."""
        return self.delta.merges

    @property
    def has_turns(self) -> bool:
        """True if any node is, or was at some time, a turn of a conversation: the end of a relation `next`."""
        return self.delta.turns

    @property
    def width(self) -> NodeEdgeColumnSet:
        """Column set of the widest row, possibly one that was deleted."""
        return self.delta.width

    # Nodes

    def number(self, node_id: str) -> int:
        """Return the number of a node; -1 if it does not exist."""
        number = self.delta.number(node_id)
        return number if number >= 0 and self.has_node_number(number) else -1

    def has_node_number(self, number: int) -> bool:
        """Return True if a numbered node exists."""
        changed = self.delta.nodes.get(number)
        version = changed and changed.at(self.at)
        return number < self.base.nodes if version is None else version.row is not None

    def has(self, node_id: str) -> bool:
        """Return True if a node exists."""
        return self.number(node_id) >= 0

    def node(self, node_id: str) -> NodeRow | None:
        """Return a node, or None."""
        number = self.delta.number(node_id)
        return None if number < 0 else self.node_row(number)

    def nodes(self, ids: Collection[str]) -> dict[str, NodeRow]:
        """Return the existing nodes among ids, by id and in the order of ``ids``."""
        if len(ids) < MIN_BATCH_LOOKUPS:
            return {node_id: row for node_id in ids if (row := self.node(node_id)) is not None}
        base, delta = self.base, self.delta
        numbers = {number: node_id for node_id in ids if (number := delta.number(node_id)) >= 0}
        own = [number for number in numbers if number < base.nodes and number not in delta.nodes]
        flags = base.flags_of_nodes[own].tolist()
        rows = dict(zip(own, map(decode_node_row_from_json, base.some_node_texts(own), flags), strict=True))
        found = ((node_id, rows.get(number) or self.node_row(number)) for number, node_id in numbers.items())
        return {node_id: row for node_id, row in found if row is not None}

    def node_row(self, number: int) -> NodeRow | None:
        """Return the row of a numbered node; None if it was deleted."""
        version = self._node_version(number)
        if version is not None:
            return cast("NodeRow | None", version.row)
        if number >= self.base.nodes:
            return None
        return decode_node_row_from_json(self.base.node(number), int(self.base.flags_of_nodes[number]))

    def node_texts(self, numbers: NumberArray, now: int) -> list[bytes]:
        """Return the open JSON of existing nodes; ``now`` in microseconds decides on staleness."""
        base, count = self.base, self.base.nodes
        if len(numbers) <= MAX_SINGLE_READS:
            some = numbers.tolist()
            if base.fresh or not self.delta.nodes.keys().isdisjoint(some):
                return [self._node_text(number, now) for number in some]
            return base.some_node_texts(some)
        own = np.minimum(numbers, count - 1) if count else np.zeros_like(numbers)
        other = numbers >= count
        if self.delta.nodes and count:
            other = other | self.delta.touched_nodes[own]
        if count and not other.all():
            texts = base.node_texts(own)
            for at in np.flatnonzero((base.flags_of_nodes[own] & FRESH).astype(np.bool_) & ~other).tolist():
                texts[at] = set_stale_flag_in_node_json(texts[at], now)
        else:
            texts = [b""] * len(numbers)
        for at in np.flatnonzero(other).tolist():
            texts[at] = self._node_text(int(numbers[at]), now)
        return texts

    def node_bytes(self, numbers: Sequence[int]) -> int:
        """Return the size of some nodes as JSON, approximately."""
        sizes, count, changed = self.base.node_sizes, self.base.nodes, self.delta.nodes
        own = sum([sizes[number] for number in numbers if number < count])
        if changed.keys().isdisjoint(numbers):
            return own
        rows = [cast("NodeRow", version.row) for number in numbers if (version := self._node_version(number))]
        return own + sum(len(row.content) + len(row.attributes) for row in rows)

    def node_text(self, number: int, now: int) -> bytes:
        """Return the JSON of an existing node; ``now`` in microseconds decides on staleness."""
        return self._node_text(number, now) + b"}"

    def valid_nodes_mask(self, numbers: NumberArray, moment: int) -> NumberArray:
        """Return which nodes are valid at a valid time, in microseconds."""
        count = self.base.nodes
        changed = numbers >= count
        if self.delta.nodes and count:
            changed = changed | self.delta.touched_nodes[np.minimum(numbers, count - 1)]
        held = np.ones(len(numbers), np.bool_)
        own = ~changed
        held[own] = self.base.valid_nodes_mask(numbers[own], moment)
        for at in np.flatnonzero(changed).tolist():
            row = self.node_row(int(numbers[at]))
            held[at] = row is not None and row.is_valid_at(moment)
        return held

    def is_node_valid_at(self, number: int, moment: int) -> bool:
        """Return True if an existing node is valid at a valid time, in microseconds."""
        version = self._node_version(number)
        if version is not None:
            return cast("NodeRow", version.row).is_valid_at(moment)
        return self.base.is_node_valid_at(number, moment)

    def filter_valid_nodes(self, numbers: set[int], moment: int) -> set[int]:
        """Return those of a few nodes that are valid at a valid time, in microseconds."""
        asked = numbers if self.base.has_validity_bounds else self.delta.nodes.keys() & numbers
        return numbers - {number for number in asked if not self.is_node_valid_at(number, moment)}

    def in_order(self, numbers: NumberArray) -> NumberArray:
        """Return nodes ordered by id."""
        count = self.base.nodes
        own = np.sort(numbers)
        if not len(own) or own[-1] < count:
            return own
        own, new = np.split(own, [np.searchsorted(own, count)])
        placed = sorted((self.delta.id(number).encode(), number) for number in new.tolist())
        positions = [self.base.position(key.decode()) for key, _ in placed]
        return np.insert(own, np.searchsorted(own, positions), [number for _, number in placed])

    def some_in_order(self, numbers: Collection[int]) -> list[int]:
        """Return a few nodes ordered by id."""
        if max(numbers, default=0) < self.base.nodes:
            return sorted(numbers)
        return sorted(numbers, key=lambda number: self.delta.id(number).encode())

    def _node_version(self, number: int) -> RowVersion | None:
        changed = self.delta.nodes.get(number)
        return None if changed is None else changed.at(self.at)

    def _node_text(self, number: int, now: int) -> bytes:
        version = self._node_version(number)
        if version is None:
            data, flags = self.base.node(number), int(self.base.flags_of_nodes[number])
        else:
            data, flags = encode_node_version(version), compute_node_extras_flags(cast("NodeRow", version.row).extras)
        return set_stale_flag_in_node_json(data, now) if flags & FRESH else data

    # Edges

    def edge(self, key: EdgeKey) -> EdgeRow | None:
        """Return an edge, or None."""
        number = self.delta.edge_number(key)
        return None if number < 0 else self.edge_row(number)

    def edges(self, keys: Sequence[EdgeKey]) -> dict[EdgeKey, EdgeRow]:
        """Return the existing edges among keys, by key and in the order of ``keys``."""
        return self.numbered_edges(self.edge_numbers(keys))

    def edge_numbers(self, keys: Sequence[EdgeKey]) -> dict[EdgeKey, int]:
        """Return the numbers of edges that exist or existed, in the order of ``keys``."""
        base, delta = self.base, self.delta
        if len(keys) < MIN_BATCH_LOOKUPS or len(keys) * MAX_EDGES_PER_LOOKUP < base.edges or not base.edges:
            found: Iterable[int] = map(delta.edge_number, keys)
        else:
            found = base.edge_numbers(keys)
            if new := delta.edge_numbers:
                found = (number if number >= 0 else new.get(key, -1) for key, number in zip(keys, found, strict=True))
        return {key: number for key, number in zip(keys, found, strict=True) if number >= 0}

    def numbered_edges(self, numbers: Mapping[EdgeKey, int]) -> dict[EdgeKey, EdgeRow]:
        """Return the existing rows of edges whose numbers are known."""
        base, changed = self.base, self.delta.edges
        if len(numbers) < MIN_BATCH_LOOKUPS:
            return {key: row for key, number in numbers.items() if (row := self.edge_row(number)) is not None}
        own = [number for number in numbers.values() if number < base.edges and number not in changed]
        flags = base.flags_of_edges[own].tolist()
        rows = dict(zip(own, map(decode_edge_row_from_json, base.some_edge_texts(own), flags), strict=True)).get
        return {key: row for key, number in numbers.items() if (row := rows(number) or self.edge_row(number))}

    def unchanged_weights(self, own: Mapping[EdgeKey, int]) -> dict[EdgeKey, float]:
        """Return the weights of those edges that are unchanged since the base, without reading their rows."""
        base, changed = self.base, self.delta.edges
        if changed:
            own = {key: number for key, number in own.items() if number < base.edges and number not in changed}
        return dict(zip(own, base.weight[[*own.values()]].tolist(), strict=True))

    def edge_row(self, number: int) -> EdgeRow | None:
        """Return the row of a numbered edge; None if it was deleted."""
        changed = self.delta.edges.get(number)
        version = changed and changed.at(self.at)
        if version is not None:
            return cast("EdgeRow | None", version.row)
        if number >= self.base.edges:
            return None
        return decode_edge_row_from_json(self.base.edge(number), int(self.base.flags_of_edges[number]))

    def edge_texts(self, found: BaseAndDeltaEdges) -> list[bytes]:
        """Return the JSON of edges."""
        few = len(found.base) <= MAX_SINGLE_READS
        texts = self.base.some_edge_texts(found.base.tolist()) if few else self.base.edge_texts(found.base)
        texts += [encode_edge_version(version) for _, version in found.changed]
        return texts

    def edges_around(self, numbers: NumberArray, *, outgoing: bool) -> BaseAndDeltaEdges:
        """Return the outgoing or incoming edges of nodes."""
        base, delta = self.base, self.delta
        own = numbers if not len(delta.node_ids) else numbers[numbers < base.nodes]
        if not delta.edges:
            return BaseAndDeltaEdges(base.edges_around(own, outgoing=outgoing), [])
        # Read the mask before the lists: an edge added concurrently is then seen in at least one of them.
        edges = base.edges_around(own, outgoing=outgoing) if len(own) else np.empty(0, np.int64)
        edges = edges[~delta.touched_edges[edges]]
        lists = delta.out if outgoing else delta.into
        changed: list[tuple[int, RowVersion]] = []
        hidden: list[int] = []
        for node in numbers.tolist():
            for number in lists.get(node, ())[:]:
                version = delta.edges[number].at(self.at)
                if version is None:
                    hidden.append(number)
                elif version.row is not None:
                    changed.append((number, version))
        if hidden:
            edges = self._with_unchanged(edges, hidden)
        return BaseAndDeltaEdges(edges, changed)

    def edges_of(self, node: int, *, outgoing: bool) -> AdjacentEdges:
        """Return the edges of one node as single numbers."""
        base, delta = self.base, self.delta
        numbers, ends = base.edges_of(node, outgoing=outgoing) if node < base.nodes else ((), ())
        noted = (delta.out if outgoing else delta.into).get(node)
        if noted is None:
            return AdjacentEdges(numbers, ends, ())
        versions = {number: version for number in noted[:] if (version := delta.edges[number].at(self.at)) is not None}
        own = [(number, end) for number, end in zip(numbers, ends, strict=True) if number not in versions]
        changed = [
            (number, delta.edge_endpoints(number)[outgoing], version)
            for number, version in versions.items()
            if version.row is not None
        ]
        return AdjacentEdges([number for number, _ in own], [end for _, end in own], changed)

    def unchanged_degree(self, node: int, *, outgoing: bool) -> int | None:
        """Return the number of edges of one node; None if any of them has changed since the base was written."""
        changed = node in (self.delta.out if outgoing else self.delta.into)
        return None if changed else self.base.degree(node, outgoing=outgoing)

    def max_degree(self, node: int, *, outgoing: bool) -> int:
        """Return a number that the edges of one node do not exceed, without reading them."""
        noted = (self.delta.out if outgoing else self.delta.into).get(node, ())
        return self.base.degree(node, outgoing=outgoing) + len(noted)

    def outgoing(self, node_id: str) -> Iterator[EdgeRow]:
        """Yield the edges that start at a node."""
        return self._edges_of(node_id, outgoing=True)

    def incoming(self, node_id: str) -> Iterator[EdgeRow]:
        """Yield the edges that end at a node."""
        return self._edges_of(node_id, outgoing=False)

    def rows_of(self, found: BaseAndDeltaEdges) -> Iterator[EdgeRow]:
        """Yield the rows of edges, decoding them in batches."""
        base = self.base
        for start in range(0, len(found.base), MAX_BASE_READ_BATCH_ROWS):
            numbers = found.base[start : start + MAX_BASE_READ_BATCH_ROWS]
            yield from map(decode_edge_row_from_json, base.edge_texts(numbers), base.flags_of_edges[numbers].tolist())
        for _, version in found.changed:
            yield cast("EdgeRow", version.row)

    def filter_valid_edges(self, found: BaseAndDeltaEdges, moment: int) -> BaseAndDeltaEdges:
        """Return the edges that are valid at a valid time, regardless of their nodes."""
        base = (
            found.base[self.base.valid_edges_mask(found.base, moment)] if self.base.has_validity_bounds else found.base
        )
        return BaseAndDeltaEdges(
            base, [each for each in found.changed if cast("EdgeRow", each[1].row).is_valid_at(moment)]
        )

    def filter_valid(self, found: BaseAndDeltaEdges, moment: int) -> BaseAndDeltaEdges:
        """Return the edges that are valid at a valid time, between nodes that are."""
        own = self.filter_valid_edges(found, moment)
        base, changed, ends = own.base, own.changed, self.edge_endpoints(own)
        held = self.valid_nodes_mask(ends[0], moment) & self.valid_nodes_mask(ends[1], moment)
        return BaseAndDeltaEdges(
            base[held[: len(base)]], [each for each, holds in zip(changed, held[len(base) :], strict=True) if holds]
        )

    def edge_endpoints(self, found: BaseAndDeltaEdges) -> tuple[NumberArray, NumberArray]:
        """Return sources and targets: first of the edges in the base, then of the changed ones."""
        source, target = self.base.edge_ends(found.base)
        if not found.changed:
            return source, target
        ends = np.array([self.delta.edge_endpoints(number) for number, _ in found.changed], np.int64)
        return np.concatenate((source, ends[:, 0])), np.concatenate((target, ends[:, 1]))

    def weights(self, found: BaseAndDeltaEdges) -> list[float]:
        """Return the weights of edges."""
        return self.base.weight[found.base].tolist() + [cast("EdgeRow", each.row).weight for _, each in found.changed]

    def _edges_of(self, node_id: str, *, outgoing: bool) -> Iterator[EdgeRow]:
        number = self.number(node_id)
        return self.rows_of(self.edges_around(np.array([number]), outgoing=outgoing)) if number >= 0 else iter(())

    def _with_unchanged(self, edges: NumberArray, hidden: list[int]) -> NumberArray:
        """Add edges of the base that only a later commit has changed, unless they are included already."""
        own = np.array([number for number in hidden if number < self.base.edges], np.int64)
        missing = own[~np.isin(own, edges)]
        return np.concatenate((edges, missing)) if len(missing) else edges

    # Scans and lists

    def ids_after(self, after: str) -> Iterator[str]:
        """Yield the ids of all nodes after an id, ordered by code point."""
        return (node_id for node_id, _ in self.numbered_ids_after(after))

    def numbered_ids_after(self, after: str) -> Iterator[tuple[str, int]]:
        """Yield the ids of all nodes after an id with their numbers, ordered by code point."""
        new = self.delta.new_ids()
        at, own = bisect_right(new, after), self.base.position_after(after)
        count = self.base.nodes
        while own < count or at < len(new):
            mine = self.base.id(own) if own < count else None
            if mine is None or (at < len(new) and new[at] < mine):
                node_id, at = new[at], at + 1
                number = self.delta.node_numbers[node_id]
            else:
                node_id, number, own = mine, own, own + 1
            if self.has_node_number(number):
                yield node_id, number

    def node_slices(self) -> Iterator[NumberArray]:
        """Yield all nodes in batches of some thousands: first those of the base, ordered by id."""
        count = self.base.nodes
        for start, end in split_into_size_bounded_ranges(self.base.sizes("node")):
            touched = np.flatnonzero(self.delta.touched_nodes[start:end]).tolist()
            yield np.delete(np.arange(start, end), [at for at in touched if not self.has_node_number(start + at)])
        there: list[int] = []
        size = 0
        for number in range(count, count + len(self.delta.node_ids)):
            row = self.node_row(number)
            if row is not None:
                there.append(number)
                size += len(row.content) + len(row.attributes)
            if len(there) >= MAX_BASE_READ_BATCH_ROWS or size >= BASE_READ_BATCH_BYTES:
                yield np.array(there, np.int64)
                there, size = [], 0
        yield np.array(there, np.int64)

    def edge_slices(self) -> Iterator[BaseAndDeltaEdges]:
        """Yield all edges in batches of some thousands: first those of the base, ordered by key."""
        count, edges = self.base.edges, self.delta.edges
        for start, stop in split_into_size_bounded_ranges(self.base.sizes("edge")):
            numbers = np.arange(start, stop)
            touched = np.flatnonzero(self.delta.touched_edges[start:stop]).tolist()
            versions = {at: version for at in touched if (version := edges[start + at].at(self.at)) is not None}
            changed = [(start + at, version) for at, version in versions.items() if version.row is not None]
            yield BaseAndDeltaEdges(np.delete(numbers, list(versions)), changed)
        end = count + len(self.delta.sources)
        for start in range(count, end, MAX_BASE_READ_BATCH_ROWS):
            found = ((number, edges.get(number)) for number in range(start, min(start + MAX_BASE_READ_BATCH_ROWS, end)))
            versions = [(number, version.at(self.at)) for number, version in found if version is not None]
            yield BaseAndDeltaEdges(
                _NO_EDGES, [(n, version) for n, version in versions if version and version.row is not None]
            )

    def node_rows(self) -> Iterator[list[NodeRow]]:
        """Return an iterator over batches of all nodes' rows."""
        return map(self.rows_of_nodes, self.node_slices())

    def memory_and_named_nodes(self) -> Iterator[NumberArray]:
        """Yield batches of the nodes that are memories or have a name."""
        own = np.flatnonzero(self.base.flags_of_nodes & MEMORY)
        changed = (number for number, each in self.delta.nodes.copy().items() if _is_memory_or_named(each.at(self.at)))
        numbers = np.union1d(own, np.fromiter(changed, np.int64))
        for start in range(0, len(numbers), MAX_BASE_READ_BATCH_ROWS):
            yield numbers[start : start + MAX_BASE_READ_BATCH_ROWS]

    def rows_of_nodes(self, numbers: NumberArray) -> list[NodeRow]:
        """Return the rows of existing nodes; ``numbers`` must be sorted."""
        base, some = self.base, numbers.tolist()
        if some and some[-1] < base.nodes and self.delta.nodes.keys().isdisjoint(some):
            return [*map(decode_node_row_from_json, base.node_texts(numbers), base.flags_of_nodes[numbers].tolist())]
        return [row for number in some if (row := self.node_row(number)) is not None]

    def edge_rows(self) -> Iterator[list[EdgeRow]]:
        """Return an iterator over batches of all edges' rows."""
        return (list(self.rows_of(found)) for found in self.edge_slices())

    def all_nodes(self) -> Iterator[NodeRow]:
        """Return an iterator over the rows of all nodes."""
        return chain.from_iterable(self.node_rows())

    def all_edges(self) -> Iterator[EdgeRow]:
        """Return an iterator over the rows of all edges."""
        return chain.from_iterable(self.edge_rows())

    def relation_counts(self) -> dict[str, int]:
        """Return the number of edges of every relation type."""
        base, counts = self.base, Counter[str]()
        for found in self.edge_slices():
            numbers = np.bincount(base.relation[found.base], minlength=len(base.names)).tolist()
            counts.update(dict(zip(base.names, numbers, strict=True)))
            counts.update(cast("EdgeRow", version.row).relation_type for _, version in found.changed)
        return +counts


def _is_memory_or_named(version: RowVersion | None) -> bool:
    return (
        version is not None
        and version.row is not None
        and get_column_set_for_extras(version.row.extras) is NodeEdgeColumnSet.MEMORY
    )


_NO_EDGES = np.empty(0, np.int64)
