"""The base: all rows of a store at one commit, in one file that is mapped into memory and never changed.

Nodes are numbered in the order of their ids, edges in the order of source, target and relation type. Columns are plain
arrays in little-endian order, so that a walk is arithmetic on them; the rows themselves are JSON, one after the other.

    magic · columns, each at a multiple of 64 bytes · sums, one of 64 bits for each 256 KiB before them · directory
    (JSON) · its length and its sum

Columns are checked against their sums when the file is opened, texts when they are first read.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from kgserve.decoding import decode_json
from kgserve.model.change import StoreState
from kgserve.model.digest import from_text
from kgserve.model.rows import EdgeKey
from kgserve.rows.encoding import DATED, ORDINAL, RowsDamaged

MAGIC = b"KGROWS01"
ALIGNMENT = 64
BLOCK_BITS = 18
BLOCK = 1 << BLOCK_BITS
FOOTER = 24
NOWHERE = 0xFFFFFFFF
"""The number of a node or an edge that is none."""

Numbers = NDArray[Any]

COLUMNS = {
    "id_at": "<u8",
    "node_at": "<u8",
    "node_flags": "u1",
    "hashes": "<u8",
    "hashed": "<u4",
    "out_at": "<u4",
    "in_at": "<u4",
    "source": "<u4",
    "target": "<u4",
    "relation": "<u4",
    "weight": "<f8",
    "created": "<i8",
    "edge_flags": "u1",
    "edge_at": "<u8",
    "in_edge": "<u4",
    "name_at": "<u8",
    "dated_nodes": "<u4",
    "dated_node_from": "<i8",
    "dated_node_to": "<i8",
    "dated_edges": "<u4",
    "dated_edge_from": "<i8",
    "dated_edge_to": "<i8",
    "ordered_edges": "<u4",
    "ordinals": "<i8",
}
"""Names and types of the columns. ``*_at`` are the offsets of texts or lists, one more than there are of them;
``hashed`` the nodes in the order of the ``hashes`` of their ids; ``in_edge`` edges in the order of their targets."""
TEXTS = ("ids", "nodes", "edges", "names")
FIRST, LAST = -(1 << 63), (1 << 63) - 1
"""The bounds of what has been true for ever, and always will be."""


class Section(msgspec.Struct, frozen=True):
    """Where a column or a text is in the file, in bytes."""

    offset: int
    size: int


class Directory(msgspec.Struct, frozen=True):
    """The end of the file: the state that its rows are of, and where everything is."""

    sequence: int
    time: int
    digest: str
    nodes: int
    edges: int
    sections: dict[str, Section]

    @property
    def state(self) -> StoreState:
        """The state of the store at this commit."""
        return StoreState(self.sequence, self.time, from_text(self.digest), self.nodes, self.edges)


class Base:
    """An open base. Numbers of nodes and edges are only good for this file. Safe for any number of threads."""

    def __init__(self, path: Path) -> None:
        """Map a file. Raises RowsDamaged, and FileNotFoundError."""
        self.path = path
        self._map = _mapped(path)
        self._directory, self._sums = _directory(self._map, path.name)
        self._checked = bytearray(len(self._sums))
        self.state = self._directory.state
        self.nodes, self.edges = self._directory.nodes, self._directory.edges
        self._arrays = {name: self._column(name) for name in COLUMNS}
        column = self._arrays.__getitem__
        self.flags_of_nodes, self.flags_of_edges = column("node_flags"), column("edge_flags")
        self.source, self.target, self.relation = column("source"), column("target"), column("relation")
        self.weight, self.created, self.in_edge = column("weight"), column("created"), column("in_edge")
        self.out_at, self.in_at = column("out_at"), column("in_at")
        self.node_at, self.edge_at = column("node_at"), column("edge_at")
        self.id_at, self.hashes, self.hashed = column("id_at"), column("hashes"), column("hashed")
        self.dated = bool(len(column("dated_nodes")) or len(column("dated_edges")))
        self._ids, self._nodes, self._edges = (self._directory.sections[name].offset for name in TEXTS[:3])
        # Single numbers are read through these: an element of an array costs three times as much.
        self._hashes, self._hashed = self.hashes.data, self.hashed.data
        self._id_at, self._node_at, self._edge_at = self.id_at.data, self.node_at.data, self.edge_at.data
        self.out_starts, self.in_starts = self.out_at.data, self.in_at.data
        self._sources, self._targets, self._relations = self.source.data, self.target.data, self.relation.data
        self._in_edges = self.in_edge.data
        self._node_flags, self._edge_flags = self.flags_of_nodes.data, self.flags_of_edges.data
        self.names = self._names()
        self._codes = {name: code for code, name in enumerate(self.names)}
        # The mean distance of a hash from where it would be if all were evenly spread, four times.
        self._spread = 4 * int(self.nodes**0.5) + 8

    def array(self, name: str) -> Numbers:
        """A column by its name."""
        return self._arrays[name]

    def section(self, name: str) -> Section:
        """Where a column or a text is in the file."""
        return self._directory.sections[name]

    def blob(self, name: str) -> memoryview:
        """All texts of a kind, one after the other. Raises RowsDamaged."""
        section = self._directory.sections[name]
        self._check_range(section.offset, section.offset + max(section.size, 1))
        return memoryview(self._map)[section.offset : section.offset + section.size]

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self._map)

    # Nodes

    def number(self, node_id: str) -> int:
        """The number of a node; -1 when there is none."""
        key = node_id.encode()
        hashed = xxhash.xxh3_64_intdigest(key)
        hashes, count = self._hashes, self.nodes
        guess = (hashed * count) >> 64
        low, high = max(guess - self._spread, 0), min(guess + self._spread, count)
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
        """How many nodes have smaller ids."""
        return bisect_left(range(self.nodes), node_id.encode(), key=self._id)

    def position_behind(self, node_id: str) -> int:
        """How many nodes have ids up to this one."""
        return bisect_right(range(self.nodes), node_id.encode(), key=self._id)

    def id(self, number: int) -> str:
        """The id of a node."""
        return self._id(number).decode()

    def node(self, number: int) -> bytes:
        """The open JSON of a node. Raises RowsDamaged."""
        return self._text(self._nodes + self._node_at[number], self._nodes + self._node_at[number + 1])

    def node_texts(self, numbers: Numbers) -> list[bytes]:
        """The open JSON of nodes. Raises RowsDamaged."""
        return self._texts(self._nodes, self.node_at, numbers)

    # Edges

    def edge_number(self, source: int, target: int, relation: str) -> int:
        """The number of an edge between two nodes; -1 when there is none."""
        code = self._codes.get(relation)
        if code is None:
            return -1
        high = self.out_starts[source + 1]
        at = bisect_left(self._targets, target, self.out_starts[source], high)
        while at < high and self._targets[at] == target:
            if self._relations[at] == code:
                return at
            at += 1
        return -1

    def edge_position(self, source: int, target: int, relation: str, *, is_target: bool) -> int:
        """Where an edge from a node would be among all; ``target`` is a node if ``is_target``, else a position."""
        high = self.out_starts[source + 1]
        at = bisect_left(self._targets, target, self.out_starts[source], high)
        while is_target and at < high and self._targets[at] == target and self.names[self._relations[at]] < relation:
            at += 1
        return at

    def place(self, key: EdgeKey) -> int:
        """Where an edge that is not there would be among all."""
        source, target = self.number(key[0]), self.number(key[1])
        if source < 0:
            return self.out_starts[self.position(key[0])]
        is_target = target >= 0
        return self.edge_position(source, target if is_target else self.position(key[1]), key[2], is_target=is_target)

    def code(self, relation: str) -> int:
        """The code of a relation type; -1 when no edge has it."""
        return self._codes.get(relation, -1)

    def edge(self, number: int) -> bytes:
        """The JSON of an edge. Raises RowsDamaged."""
        return self._text(self._edges + self._edge_at[number], self._edges + self._edge_at[number + 1])

    def edge_texts(self, numbers: Numbers) -> list[bytes]:
        """The JSON of edges. Raises RowsDamaged."""
        return self._texts(self._edges, self.edge_at, numbers)

    def around(self, numbers: Numbers, *, outgoing: bool) -> Numbers:
        """The edges that start, or end, at any of some nodes, those of one node in order."""
        starts = self.out_at if outgoing else self.in_at
        places = ranges(starts[numbers], starts[numbers + 1])
        return places if outgoing else self.in_edge[places].astype(np.int64)

    def edges_of(self, node: int, *, outgoing: bool) -> tuple[Sequence[int], Sequence[int]]:
        """The edges that start, or end, at a node: their numbers and their other ends."""
        if outgoing:
            start, end = self.out_starts[node], self.out_starts[node + 1]
            return range(start, end), self._targets[start:end]
        numbers = self._in_edges[self.in_starts[node] : self.in_starts[node + 1]]
        return numbers, [self._sources[number] for number in numbers]

    def edge_ends(self, numbers: Numbers) -> tuple[Numbers, Numbers]:
        """Sources and targets of edges."""
        return self.source[numbers].astype(np.int64), self.target[numbers].astype(np.int64)

    # Time in the world

    def nodes_hold(self, numbers: Numbers, moment: int) -> NDArray[np.bool_]:
        """Which of some nodes were true at a moment, in microseconds."""
        return self._hold("node", self.flags_of_nodes, numbers, moment)

    def node_holds(self, number: int, moment: int) -> bool:
        """As `nodes_hold`, of one node; most say nothing of time, and cost next to nothing."""
        return not self._node_flags[number] & DATED or bool(self.nodes_hold(np.array([number]), moment)[0])

    def edge_holds(self, number: int, moment: int) -> bool:
        """As `node_holds`, of one edge."""
        return not self._edge_flags[number] & DATED or bool(self.edges_hold(np.array([number]), moment)[0])

    def edges_hold(self, numbers: Numbers, moment: int) -> NDArray[np.bool_]:
        """Which of some edges were true at a moment, in microseconds."""
        return self._hold("edge", self.flags_of_edges, numbers, moment)

    def ordinals(self, numbers: Numbers) -> Numbers:
        """The ordinals of edges; the largest number there is for those that have none."""
        found = np.full(len(numbers), LAST, np.int64)
        having = np.flatnonzero(self.flags_of_edges[numbers] & ORDINAL)
        if len(having):
            places = _places_of(numbers[having], self._arrays["ordered_edges"])
            found[having] = self._arrays["ordinals"][places]
        return found

    def check(self) -> None:
        """Compare every block with its sum. Raises RowsDamaged. Takes a second for some gigabytes."""
        for block in range(len(self._sums)):
            self._check_block(block)

    def _hold(self, kind: str, flags: Numbers, numbers: Numbers, moment: int) -> NDArray[np.bool_]:
        held = np.ones(len(numbers), np.bool_)
        dated = np.flatnonzero(flags[numbers] & DATED)
        if len(dated):
            places = _places_of(numbers[dated], self._arrays[f"dated_{kind}s"])
            begun = self._arrays[f"dated_{kind}_from"][places] <= moment
            held[dated] = begun & (moment < self._arrays[f"dated_{kind}_to"][places])
        return held

    def _id(self, number: int) -> bytes:
        at = self._ids
        return self._map[at + self._id_at[number] : at + self._id_at[number + 1]]

    def _names(self) -> list[str]:
        at, places = self._directory.sections["names"].offset, self._arrays["name_at"].tolist()
        return [self._map[at + a : at + b].decode() for a, b in pairwise(places)]

    def _text(self, start: int, end: int) -> bytes:
        self._check_range(start, end)
        return self._map[start:end]

    def _check_range(self, start: int, end: int) -> None:
        for block in range(start >> BLOCK_BITS, ((end - 1) >> BLOCK_BITS) + 1):
            if not self._checked[block]:
                self._check_block(block)

    def _texts(self, offset: int, places: Numbers, numbers: Numbers) -> list[bytes]:
        starts, ends = places[numbers] + np.uint64(offset), places[numbers + 1] + np.uint64(offset)
        self._check_blocks(starts, ends)
        data = self._map
        return [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    def _check_blocks(self, starts: Numbers, ends: Numbers) -> None:
        bits, one = np.uint64(BLOCK_BITS), np.uint64(1)
        first, last = (starts >> bits).astype(np.int64), ((ends - one) >> bits).astype(np.int64)
        checked = np.frombuffer(self._checked, np.uint8)
        if checked[first].all() and checked[last].all() and int((last - first).max(initial=0)) <= 1:
            return
        for start, end in {*zip(first.tolist(), last.tolist(), strict=True)}:
            self._check_range(start << BLOCK_BITS, (end + 1) << BLOCK_BITS)

    def _check_block(self, block: int) -> None:
        start = block << BLOCK_BITS
        end = min(start + BLOCK, self._directory.sections["sums"].offset)
        if xxhash.xxh3_64_intdigest(memoryview(self._map)[start:end]) != self._sums[block]:
            raise RowsDamaged(f"{self.path.name} does not fit its checksums at offset {start}")
        self._checked[block] = 1

    def _column(self, name: str) -> Numbers:
        section = self._directory.sections[name]
        kind = np.dtype(COLUMNS[name])
        if section.size:
            self._check_range(section.offset, section.offset + section.size)
        return np.frombuffer(self._map, kind, section.size // kind.itemsize, section.offset)


def ranges(starts: Numbers, ends: Numbers) -> Numbers:
    """All numbers from each start up to its end, one range after the other."""
    lengths = ends.astype(np.int64) - starts
    total = int(lengths.sum())
    if len(lengths) == 1:
        return np.arange(int(starts[0]), int(ends[0]), dtype=np.int64)
    skipped = np.repeat(starts.astype(np.int64) - (np.cumsum(lengths) - lengths), lengths)
    return skipped + np.arange(total, dtype=np.int64)


def _places_of(numbers: Numbers, among: Numbers) -> Numbers | slice:
    """Where some numbers are among others in order, which hold them all. Those of one node are often side by side."""
    first = int(np.searchsorted(among, numbers[0]))
    beside = slice(first, first + len(numbers))
    return beside if np.array_equal(among[beside], numbers) else np.searchsorted(among, numbers)


def read_directory(path: Path) -> Directory:
    """What a file says at its end, with nothing else looked at. Raises RowsDamaged, and FileNotFoundError."""
    with _mapped(path) as data:
        return _directory(data, path.name)[0]


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        try:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise RowsDamaged(f"{path.name} is empty") from None


def _directory(data: mmap.mmap, name: str) -> tuple[Directory, Sequence[int]]:
    end = len(data)
    if end < FOOTER + len(MAGIC) or data[: len(MAGIC)] != MAGIC or data[end - 8 :] != MAGIC:
        raise RowsDamaged(f"{name} is no file of rows")
    length, expected = (int.from_bytes(data[end - at : end - at + 8], "little") for at in (24, 16))
    text = data[max(end - FOOTER - length, 0) : end - FOOTER]
    if xxhash.xxh3_64_intdigest(text) != expected:
        raise RowsDamaged(f"{name} has a directory that does not fit its checksum")
    try:
        directory = decode_json(text, Directory)
        sums = directory.sections["sums"]
    except (msgspec.MsgspecError, KeyError) as error:
        raise RowsDamaged(f"{name} has no directory of ours: {error}") from error
    if set(directory.sections) != {*COLUMNS, *TEXTS, "sums"}:
        raise RowsDamaged(f"{name} is of another format")
    return directory, np.frombuffer(data[sums.offset : sums.offset + sums.size], "<u8").tolist()
