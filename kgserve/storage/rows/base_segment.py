"""Base segment: all rows of a store at one commit, in two memory-mapped files that never change.

Nodes are numbered by id, edges by source, target and relation type. Columns are checked against their checksums when
the file is opened, texts when they are first read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

from kgserve.storage.model.node_edge_rows import EdgeKey
from kgserve.storage.rows.base_segment_file_format import (
    BLOCK_BITS,
    COLUMN_TYPES,
    MAX_INT64,
    MIN_INT64,
    ChecksummedBlocks,
    NumberArray,
    memory_map_base_segment_texts,
    memory_map_file,
    parse_base_segment_footer,
)
from kgserve.storage.rows.row_json_encoder import DATED, FRESH, ORDINAL, decode_column_set_from_flags

MAX_BASE_READ_BATCH_ROWS = 4096
"""Rows read at a time in a full scan."""
BASE_READ_BATCH_BYTES = 8 << 20
"""Approximate bytes of texts read at a time in a full scan."""
MAX_CACHED_IDS = 1 << 17
"""Maximum cached look-ups of ids."""
MIN_BATCH_LOOKUP_IDS = 200
MAX_BEST_CONNECTED = 1_000
"""Number of nodes with the highest degrees that a base lists."""


class MappedRowBaseSegment:
    """Memory-mapped base segment: all rows of a store at one commit. Row numbers are valid for this file only."""

    def __init__(self, path: Path) -> None:
        """Map a file into memory. Raises RowsDamaged and FileNotFoundError."""
        self.path = path
        self._map = memory_map_file(path)
        self._directory, sums = parse_base_segment_footer(self._map, path.name)
        self._blocks = ChecksummedBlocks(self._map, sums, self._directory.sections["sums"].offset, path.name)
        self.state = self._directory.state
        self.nodes, self.edges = self._directory.nodes, self._directory.edges
        self._arrays = {name: self._column(name) for name in COLUMN_TYPES}
        column = self._arrays.__getitem__
        self.flags_of_nodes, self.flags_of_edges = column("node_flags"), column("edge_flags")
        self.source, self.target, self.relation = column("source"), column("target"), column("relation")
        self.weight, self.created, self.in_edge = column("weight"), column("created"), column("in_edge")
        self.out_at, self.in_at = column("out_at"), column("in_at")
        self.node_at, self.edge_at = column("node_at"), column("edge_at")
        self.node_size, self.edge_size = column("node_size"), column("edge_size")
        self.id_at, self.hashes, self.hashed = column("id_at"), column("hashes"), column("hashed")
        self.has_validity_bounds = bool(len(column("dated_nodes")) or len(column("dated_edges")))
        self.linked = self._directory.linked
        self.fresh = bool((self.flags_of_nodes & FRESH).any())
        flags = np.bitwise_or.reduce(self.flags_of_nodes) | np.bitwise_or.reduce(self.flags_of_edges)
        self.width = decode_column_set_from_flags(int(flags))
        self._ids = self._directory.sections["ids"].offset
        directory = self._directory
        self._texts = ChecksummedBlocks(
            memory_map_base_segment_texts(path, directory),
            column("text_sums").data,
            directory.texts_size,
            directory.texts,
        )
        # Single numbers are read through memoryviews; indexing an array takes three times as long.
        self._hashes, self._hashed = self.hashes.data, self.hashed.data
        self._id_at, self._node_at, self._edge_at = self.id_at.data, self.node_at.data, self.edge_at.data
        self.node_sizes, self._edge_sizes = self.node_size.data, self.edge_size.data
        self.out_starts, self.in_starts = self.out_at.data, self.in_at.data
        self.sources, self.targets = self.source.data, self.target.data
        self.relations, self.weights = self.relation.data, self.weight.data
        self._in_edges = self.in_edge.data
        self._bounds = {
            kind: (column(f"dated_{kind}s").data, column(f"dated_{kind}_from").data, column(f"dated_{kind}_to").data)
            for kind in ("node", "edge")
        }
        self._node_flags, self._edge_flags = self.flags_of_nodes.data, self.flags_of_edges.data
        self._node_endings, self._edge_endings = column("node_ending").data, column("edge_ending").data
        self.names = [name.decode() for name in self._read_short_texts("names", "name_at")]
        self.endings = self._read_short_texts("endings", "ending_at")
        self._codes = {name: code for code, name in enumerate(self.names)}
        # A write looks up the same nodes about ten times, from planning to folding.
        self._cached_numbers: dict[str, int] = {}
        # Four standard deviations of a hash's rank from its expected rank.
        self._search_radius = 4 * int(self.nodes**0.5) + 8

    def array(self, name: str) -> NumberArray:
        """Return a column by its name."""
        return self._arrays[name]

    @property
    def texts(self) -> str:
        """Name of the companion file with the texts of rows; "" for a base without rows."""
        return self._directory.texts

    @property
    def texts_size(self) -> int:
        """Bytes of the text file that belong to this base."""
        return self._directory.texts_size

    def ids_text(self) -> memoryview:
        """Return all ids, concatenated. Raises RowsDamaged."""
        section = self._directory.sections["ids"]
        self._blocks.check_range(section.offset, section.offset + section.size)
        return memoryview(self._map)[section.offset : section.offset + section.size]

    def encoded_ids(self) -> list[bytes]:
        """Return all ids in order, as UTF-8. Raises RowsDamaged."""
        text = self.ids_text().tobytes()
        return [text[start:end] for start, end in pairwise(self.id_at.tolist())]

    def sizes(self, kind: Literal["node", "edge"]) -> NumberArray:
        """Return the JSON size in bytes of each node or edge."""
        endings = np.fromiter(map(len, self.endings), np.int64)
        return self._arrays[f"{kind}_size"] + endings[self._arrays[f"{kind}_ending"]]

    def text(self, start: int, end: int) -> memoryview:
        """Return a part of the texts. Raises RowsDamaged."""
        self._texts.check_range(start, end)
        return memoryview(self._texts.data)[start:end]

    @cached_property
    def unused_text_bytes(self) -> int:
        """Bytes of the text file that belong to no row: those of replaced and deleted rows."""
        return self.texts_size - int(self.node_size.sum(dtype=np.int64) + self.edge_size.sum(dtype=np.int64))

    @property
    def size(self) -> int:
        """Bytes of the base's files."""
        return len(self._map) + self.texts_size

    # Nodes

    def number(self, node_id: str) -> int:
        """Return the number of a node; -1 if it does not exist."""
        found = self._cached_numbers.get(node_id)
        if found is None:
            found = self._number(node_id)
            if len(self._cached_numbers) >= MAX_CACHED_IDS:
                self._cached_numbers.clear()
            self._cached_numbers[node_id] = found
        return found

    def cache_numbers(self, ids: Collection[str]) -> None:
        """Cache the numbers of many nodes at once, so that `number` is cheap for each of them."""
        if not self.nodes or len(ids) < MIN_BATCH_LOOKUP_IDS:
            return
        known = self._cached_numbers
        new = [node_id for node_id in ids if node_id not in known]
        if len(known) + len(new) > MAX_CACHED_IDS:
            known.clear()
            new = [*ids]
        keys = [node_id.encode() for node_id in new]
        hashed = np.array([xxhash.xxh3_64_intdigest(key) for key in keys], "<u8")
        places = np.minimum(np.searchsorted(self.hashes, hashed), self.nodes - 1)
        numbers = np.where(self.hashes[places] == hashed, self.hashed[places].astype(np.int64), -1).tolist()
        # If two ids have the same hash, the second one is left to a single look-up.
        own = zip(new, keys, numbers, strict=True)
        known.update({each: number for each, key, number in own if number < 0 or self._id(number) == key})

    def find_numbers(self, ids: Sequence[str]) -> NumberArray:
        """Return the numbers of many nodes, -1 for missing ones."""
        if not self.nodes:
            return np.full(len(ids), -1, np.int64)
        keys = [node_id.encode() for node_id in ids]
        hashed = np.fromiter(map(xxhash.xxh3_64_intdigest, keys), "<u8", len(keys))
        places = np.minimum(np.searchsorted(self.hashes, hashed), self.nodes - 1)
        numbers = np.where(self.hashes[places] == hashed, self.hashed[places].astype(np.int64), -1)
        found = np.flatnonzero(numbers >= 0)
        # Two ids may have the same hash.
        known = self.ids(numbers[found].tolist())
        for at, node_id in zip(found.tolist(), known, strict=True):
            if ids[at] != node_id:
                numbers[at] = self._number(ids[at])
        return numbers

    def forget(self) -> None:
        """Clear the cache of looked-up ids."""
        self._cached_numbers.clear()

    def _number(self, node_id: str) -> int:
        key = node_id.encode()
        hashed = xxhash.xxh3_64_intdigest(key)
        hashes, count = self._hashes, self.nodes
        guess = (hashed * count) >> 64
        low, high = max(guess - self._search_radius, 0), min(guess + self._search_radius, count)
        if (low and hashes[low - 1] >= hashed) or (high < count and hashes[high] < hashed):
            low, high = 0, count
        at = bisect_left(hashes, hashed, low, high)
        while at < count and hashes[at] == hashed:
            number = self._hashed[at]
            if self._id(number) == key:
                return number
            at += 1
        return -1

    def position(self, node_id: str) -> int:
        """Return the number of nodes with smaller ids."""
        return bisect_left(range(self.nodes), node_id.encode(), key=self._id)

    def position_from(self, key: bytes, start: int) -> int:
        """Return the number of nodes with ids below ``key`` (UTF-8); fast if it is little more than ``start``."""
        low, step = start, 1
        while low + step <= self.nodes and self._id(low + step - 1) < key:
            low, step = low + step, 2 * step
        return bisect_left(range(self.nodes), key, low, min(low + step, self.nodes), key=self._id)

    def position_after(self, node_id: str) -> int:
        """Return the number of nodes with ids up to and including this one."""
        return bisect_right(range(self.nodes), node_id.encode(), key=self._id)

    def id(self, number: int) -> str:
        """Return the id of a node."""
        return self._id(number).decode()

    def ids(self, numbers: Iterable[int]) -> list[str]:
        """Return the ids of nodes."""
        data, starts, at = self._map, self._id_at, self._ids
        return [data[at + starts[number] : at + starts[number + 1]].decode() for number in numbers]

    def node(self, number: int) -> bytes:
        """Return the open JSON of a node. Raises RowsDamaged."""
        text = self._text(self._node_at[number], self.node_sizes[number])
        return text + self.endings[self._node_endings[number]]

    def node_texts(self, numbers: NumberArray) -> list[bytes]:
        """Return the open JSON of nodes. Raises RowsDamaged."""
        return self._read_texts("node", numbers)

    def some_node_texts(self, numbers: Iterable[int]) -> list[bytes]:
        """Return the open JSON of nodes, faster than `node_texts` for a few. Raises RowsDamaged."""
        return self._read_few_texts(self._node_at, self.node_sizes, self._node_endings, numbers)

    # Edges

    def edge_number(self, source: int, target: int, relation: str) -> int:
        """Return the number of an edge between two nodes; -1 if it does not exist."""
        code = self._codes.get(relation)
        if code is None:
            return -1
        high = self.out_starts[source + 1]
        at = bisect_left(self.targets, target, self.out_starts[source], high)
        while at < high and self.targets[at] == target:
            if self.relations[at] == code:
                return at
            at += 1
        return -1

    def edge_numbers(self, keys: Sequence[EdgeKey]) -> list[int]:
        """Return the numbers of edges, -1 for missing ones. Scans the endpoints of all edges."""
        sources, targets = [key[0] for key in keys], [key[1] for key in keys]
        ends = {*sources, *targets}
        numbers, codes = dict(zip(ends, map(self.number, ends), strict=True)), self._codes
        source = np.fromiter(map(numbers.__getitem__, sources), np.int64, len(keys))
        target = np.fromiter(map(numbers.__getitem__, targets), np.int64, len(keys))
        relation = np.fromiter((codes.get(key[2], -1) for key in keys), np.int64, len(keys))
        asked = np.where((source < 0) | (target < 0), -1, (source << 32) | target)
        own = (self.source.astype(np.int64) << 32) | self.target
        places = np.minimum(np.searchsorted(own, asked), len(own) - 1)
        joined = own[places] == asked
        found = np.where(joined & (self.relation[places] == relation), places, -1).tolist()
        # Two nodes may have several edges in the same direction.
        for at in np.flatnonzero(joined & (self.relation[places] != relation)).tolist():
            found[at] = self.edge_number(int(source[at]), int(target[at]), keys[at][2])
        return found

    def edge_position(self, source: int, target: int, relation: str, *, is_target: bool) -> int:
        """Return where an edge from a node sorts; ``target`` is a node number if ``is_target``, else a position."""
        high = self.out_starts[source + 1]
        at = bisect_left(self.targets, target, self.out_starts[source], high)
        while is_target and at < high and self.targets[at] == target and self.names[self.relations[at]] < relation:
            at += 1
        return at

    def place(self, key: EdgeKey) -> int:
        """Return where a missing edge sorts among all edges."""
        source, target = self.number(key[0]), self.number(key[1])
        if source < 0:
            return self.out_starts[self.position(key[0])]
        is_target = target >= 0
        return self.edge_position(source, target if is_target else self.position(key[1]), key[2], is_target=is_target)

    def code(self, relation: str) -> int:
        """Return the code of a relation type; -1 if no edge has it."""
        return self._codes.get(relation, -1)

    def edge(self, number: int) -> bytes:
        """Return the JSON of an edge. Raises RowsDamaged."""
        text = self._text(self._edge_at[number], self._edge_sizes[number])
        return text + self.endings[self._edge_endings[number]]

    def edge_texts(self, numbers: NumberArray) -> list[bytes]:
        """Return the JSON of edges. Raises RowsDamaged."""
        return self._read_texts("edge", numbers)

    def some_edge_texts(self, numbers: Iterable[int]) -> list[bytes]:
        """Return the JSON of edges, faster than `edge_texts` for a few. Raises RowsDamaged."""
        return self._read_few_texts(self._edge_at, self._edge_sizes, self._edge_endings, numbers)

    def edges_around(self, numbers: NumberArray, *, outgoing: bool) -> NumberArray:
        """Return the outgoing or incoming edges of nodes, grouped by node."""
        starts = self.out_at if outgoing else self.in_at
        places = concatenate_ranges(starts[numbers], starts[numbers + 1])
        return places if outgoing else self.in_edge[places].astype(np.int64)

    def degree(self, node: int, *, outgoing: bool) -> int:
        """Return the number of outgoing or incoming edges of a node; 0 for a node that the base lacks."""
        starts = self.out_starts if outgoing else self.in_starts
        return starts[node + 1] - starts[node] if node < self.nodes else 0

    def edges_of(self, node: int, *, outgoing: bool) -> tuple[Sequence[int], Sequence[int]]:
        """Return the outgoing or incoming edges of a node: their numbers and their other ends."""
        if outgoing:
            start, end = self.out_starts[node], self.out_starts[node + 1]
            return range(start, end), self.targets[start:end]
        numbers = self._in_edges[self.in_starts[node] : self.in_starts[node + 1]]
        return numbers, [self.sources[number] for number in numbers]

    def weighted_ends(self, node: int, most: int) -> Sequence[tuple[int, float]]:
        """Return at most ``most`` other ends of the edges of a node, with their weights; outgoing edges come first."""
        start = self.out_starts[node]
        end = min(self.out_starts[node + 1], start + most)
        found = [*zip(self.targets[start:end], self.weights[start:end], strict=True)]
        start = self.in_starts[node]
        numbers = self._in_edges[start : min(self.in_starts[node + 1], start + most - len(found))]
        sources, weights = self.sources, self.weights
        return found + [(sources[number], weights[number]) for number in numbers]

    def edge_ends(self, numbers: NumberArray) -> tuple[NumberArray, NumberArray]:
        """Return sources and targets of edges."""
        return self.source[numbers].astype(np.int64), self.target[numbers].astype(np.int64)

    # Valid time

    def valid_nodes_mask(self, numbers: NumberArray, moment: int) -> NDArray[np.bool_]:
        """Return which of some nodes are valid at a valid time, in microseconds."""
        return self._valid_mask("node", self.flags_of_nodes, numbers, moment)

    def is_node_valid_at(self, number: int, moment: int) -> bool:
        """Return True if a node is valid at a valid time; cheap for the many nodes without bounds."""
        return not self._node_flags[number] & DATED or self._is_valid("node", number, moment)

    def is_edge_valid_at(self, number: int, moment: int) -> bool:
        """Return True if an edge is valid at a valid time; cheap for the many edges without bounds."""
        return not self._edge_flags[number] & DATED or self._is_valid("edge", number, moment)

    def valid_edges_mask(self, numbers: NumberArray, moment: int) -> NDArray[np.bool_]:
        """Return which of some edges are valid at a valid time, in microseconds."""
        return self._valid_mask("edge", self.flags_of_edges, numbers, moment)

    def edge_bounds(self, numbers: NumberArray) -> tuple[NumberArray, NumberArray]:
        """Return validity bounds of edges in microseconds; `MIN_INT64` and `MAX_INT64` if unbounded."""
        begun, ended = np.full(len(numbers), MIN_INT64, np.int64), np.full(len(numbers), MAX_INT64, np.int64)
        dated = np.flatnonzero(self.flags_of_edges[numbers] & DATED)
        if len(dated):
            places = _indexes_of(numbers[dated], self._arrays["dated_edges"])
            begun[dated] = self._arrays["dated_edge_from"][places]
            ended[dated] = self._arrays["dated_edge_to"][places]
        return begun, ended

    @cached_property
    def best_connected(self) -> NumberArray:
        """Up to 1,000 nodes with the highest degrees, unordered. Computed once, in milliseconds for a million nodes."""
        ends = np.diff(self.out_at.astype(np.int64)) + np.diff(self.in_at.astype(np.int64))
        if len(ends) <= MAX_BEST_CONNECTED:
            return np.arange(len(ends))
        least = np.partition(ends, len(ends) - MAX_BEST_CONNECTED)[-MAX_BEST_CONNECTED]
        more = np.flatnonzero(ends > least)
        return np.concatenate((more, np.flatnonzero(ends == least)[: MAX_BEST_CONNECTED - len(more)]))

    def ordinals(self, numbers: NumberArray) -> NumberArray:
        """Return the ordinals of edges; `MAX_INT64` for edges without one."""
        found = np.full(len(numbers), MAX_INT64, np.int64)
        having = np.flatnonzero(self.flags_of_edges[numbers] & ORDINAL)
        if len(having):
            places = _indexes_of(numbers[having], self._arrays["ordered_edges"])
            found[having] = self._arrays["ordinals"][places]
        return found

    def check(self) -> None:
        """Compare every block with its checksum. Raises RowsDamaged. Takes a second for some gigabytes."""
        self._blocks.check_all()
        self._texts.check_all()

    def _valid_mask(self, kind: str, flags: NumberArray, numbers: NumberArray, moment: int) -> NDArray[np.bool_]:
        held = np.ones(len(numbers), np.bool_)
        dated = np.flatnonzero(flags[numbers] & DATED)
        if len(dated):
            places = _indexes_of(numbers[dated], self._arrays[f"dated_{kind}s"])
            begun = self._arrays[f"dated_{kind}_from"][places] <= moment
            held[dated] = begun & (moment < self._arrays[f"dated_{kind}_to"][places])
        return held

    def _is_valid(self, kind: str, number: int, moment: int) -> bool:
        numbers, begun, ended = self._bounds[kind]
        place = bisect_left(numbers, number)
        return begun[place] <= moment < ended[place]

    def _id(self, number: int) -> bytes:
        at = self._ids
        return self._map[at + self._id_at[number] : at + self._id_at[number + 1]]

    def _read_short_texts(self, name: str, column: str) -> list[bytes]:
        """Return the texts of a short section."""
        section, places = self._directory.sections[name], self._arrays[column].tolist()
        self._blocks.check_range(section.offset, section.offset + section.size)
        return [self._map[section.offset + a : section.offset + b] for a, b in pairwise(places)]

    def _text(self, start: int, size: int) -> bytes:
        self._texts.check_range(start, start + size)
        return self._texts.data[start : start + size]

    def _read_few_texts(
        self, places: Sequence[int], sizes: Sequence[int], ending: Sequence[int], numbers: Iterable[int]
    ) -> list[bytes]:
        texts, endings = self._texts, self.endings
        data, checked = texts.data, texts.checked
        found: list[bytes] = []
        for number in numbers:
            start = places[number]
            end = start + sizes[number]
            block = start >> BLOCK_BITS
            if block != (end - 1) >> BLOCK_BITS or not checked[block]:
                texts.check_range(start, end)
            found.append(data[start:end] + endings[ending[number]])
        return found

    def _read_texts(self, kind: str, numbers: NumberArray) -> list[bytes]:
        starts = self._arrays[f"{kind}_at"][numbers].astype(np.uint64)
        ends = starts + self._arrays[f"{kind}_size"][numbers]
        self._texts.check_ranges(starts, ends)
        data, endings = self._texts.data, self.endings
        ending = self._arrays[f"{kind}_ending"][numbers].tolist()
        parts = zip(starts.tolist(), ends.tolist(), ending, strict=True)
        return [data[start:end] + endings[number] for start, end, number in parts]

    def _column(self, name: str) -> NumberArray:
        section = self._directory.sections[name]
        kind = np.dtype(section.type)
        if section.size:
            self._blocks.check_range(section.offset, section.offset + section.size)
        found = np.frombuffer(self._map, kind, section.size // kind.itemsize, section.offset)
        return np.broadcast_to(found, section.repeated) if section.repeated else found


def concatenate_ranges(starts: NumberArray, ends: NumberArray) -> NumberArray:
    """Return all integers of the half-open ranges, concatenated."""
    lengths = ends.astype(np.int64) - starts
    total = int(lengths.sum())
    if len(lengths) == 1:
        return np.arange(int(starts[0]), int(ends[0]), dtype=np.int64)
    skipped = np.repeat(starts.astype(np.int64) - (np.cumsum(lengths) - lengths), lengths)
    return skipped + np.arange(total, dtype=np.int64)


def _indexes_of(numbers: NumberArray, among: NumberArray) -> NumberArray | slice:
    """Return the indexes of ``numbers`` in the sorted array ``among``, which contains them all."""
    # Another dtype would make numpy copy the whole array.
    own = numbers.astype(among.dtype)
    first = int(np.searchsorted(among, own[0]))
    adjacent = slice(first, first + len(own))
    return adjacent if np.array_equal(among[adjacent], own) else np.searchsorted(among, own)


def split_into_size_bounded_ranges(sizes: NumberArray) -> Iterator[tuple[int, int]]:
    """Split items of given byte sizes into ranges bounded in count and bytes; yield start and end of each."""
    start, count = 0, len(sizes)
    while start < count:
        before = np.cumsum(sizes[start : start + MAX_BASE_READ_BATCH_ROWS], dtype=np.int64)
        end = start + max(int(np.searchsorted(before, BASE_READ_BATCH_BYTES)), 1)
        yield start, end
        start = end
