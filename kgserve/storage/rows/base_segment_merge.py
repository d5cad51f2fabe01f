"""Build a base segment by merging changes into another one, without reading unchanged rows.

Columns of unchanged rows are copied, with new values inserted. Their texts stay in place, and new texts are appended to
the same file. When less than half of that file is in use, the rest is copied to a new file. Rows get new numbers in the
same order, so sorted columns stay sorted. Building takes 150 bytes of memory per unchanged row.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash

from kgserve.platform.durable_files import fsync_folder, sync_descriptor
from kgserve.storage.model.change_set import NetChange, StoreState
from kgserve.storage.model.node_edge_rows import EdgeKey, EdgeRow, NodeRow
from kgserve.storage.rows.base_segment import MappedRowBaseSegment
from kgserve.storage.rows.base_segment_file_format import (
    COLUMN_TYPES,
    NO_ROW_NUMBER,
    OFFSET_COLUMNS,
    TEXT_COLUMNS,
    BaseSegmentColumnsWriter,
    BaseSegmentRowJsonWriter,
    NumberArray,
)
from kgserve.storage.rows.base_segment_merge_columns import (
    EdgeColumnsForSegmentMerge,
    EdgeRowForBaseSegment,
    NodeRowForBaseSegment,
    RowChangesForBaseSegment,
    RowColumnsToMerge,
    convert_row_changes_to_merge_columns,
)
from kgserve.storage.rows.suffix_dictionary import RemovedRowTextSuffixes, RowSuffixDictionary

TEXTS_SUFFIX = ".texts"
MAX_TEXTS_GROWTH_FACTOR = 2
"""Size of a text file, as a multiple of its used bytes, beyond which it is replaced."""
TEXT_COPY_CHUNK_BYTES = 16 << 20
MAX_NODES_PER_POSITION = 16
"""Base nodes per new node up to which all ids are read to find the places of the new ones."""


def add_net_change_to_base_changes(
    base: MappedRowBaseSegment, changes: RowChangesForBaseSegment, net: NetChange
) -> RowChangesForBaseSegment:
    """Add the net change of later commits to the changes still to be merged into a base segment."""

    def edge_number(key: EdgeKey) -> int:
        source, target = base.number(key[0]), base.number(key[1])
        return base.edge_number(source, target, key[2]) if source >= 0 and target >= 0 else -1

    # A created row is in the base only if the changes have deleted it.
    nodes = {put.row.id: put for put in changes.nodes}
    gone = bool(changes.nodes_gone)
    nodes |= {
        key: NodeRowForBaseSegment(row, base.number(key) if gone else -1) for key, row in net.nodes_created.items()
    }
    nodes |= {key: NodeRowForBaseSegment(row, base.number(key)) for key, row in net.nodes_updated.items()}
    edges = {put.row.key: put for put in changes.edges}
    gone = bool(changes.edges_gone)
    edges |= {
        key: EdgeRowForBaseSegment(row, edge_number(key) if gone else -1) for key, row in net.edges_created.items()
    }
    edges |= {key: EdgeRowForBaseSegment(row, edge_number(key)) for key, row in net.edges_updated.items()}
    for node_id in net.nodes_deleted:
        nodes.pop(node_id, None)
    for key in net.edges_deleted:
        edges.pop(key, None)
    nodes_gone = {*changes.nodes_gone, *map(base.number, net.nodes_deleted)} - {put.number for put in nodes.values()}
    edges_gone = {*changes.edges_gone, *map(edge_number, net.edges_deleted)} - {put.number for put in edges.values()}
    linked = changes.linked or net.linked
    return RowChangesForBaseSegment(
        [*nodes.values()], [*edges.values()], [*nodes_gone - {-1}], [*edges_gone - {-1}], linked
    )


def write_merged_row_base_segment(
    base: MappedRowBaseSegment,
    changes: RowChangesForBaseSegment | RowColumnsToMerge,
    state: StoreState,
    path: Path,
    *,
    durable: bool = True,
    copying: bool = False,
) -> None:
    """Write a new base segment with changes merged in, atomically. Raises OSError.

    durable: sync the files; otherwise a power loss may tear them.

    copying: write a new text file without unused texts.
    """
    aside = path.with_name(path.name + ".new")
    kept = 0 if copying or not _is_worth_adding_to(base) else base.texts_size
    texts = path.parent / (base.texts if kept else f"{state.sequence}-{time.time_ns()}{TEXTS_SUFFIX}")
    try:
        with aside.open("wb", buffering=0) as file, texts.open("r+b" if kept else "wb", buffering=0) as rows:
            rows.seek(kept)
            columns = (
                convert_row_changes_to_merge_columns(base, changes)
                if isinstance(changes, RowChangesForBaseSegment)
                else changes
            )
            made = _BaseMerge(
                base, columns, BaseSegmentColumnsWriter(file), BaseSegmentRowJsonWriter(rows), copying=not kept
            )
            made.run(state, texts.name)
            if durable:
                sync_descriptor(rows.fileno())
                sync_descriptor(file.fileno())
        aside.rename(path)
        if durable:
            fsync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
            if kept:
                os.truncate(texts, kept)
            else:
                texts.unlink(missing_ok=True)
            # The rename may have succeeded before syncing the folder failed.
            path.unlink(missing_ok=True)
        raise


def _is_worth_adding_to(base: MappedRowBaseSegment) -> bool:
    """Return True if enough of the base's text file is in use."""
    used = base.texts_size - base.unused_text_bytes
    return base.texts_size <= MAX_TEXTS_GROWTH_FACTOR * used


class _ColumnSplice:
    """Merge of kept old items with new items, in order."""

    def __init__(self, kept: NumberArray, cuts: NumberArray) -> None:
        """Take the old numbers of the kept items, and the number of kept items before each new item."""
        self.kept = kept
        self._cuts = cuts
        self.kept_at = np.arange(len(kept)) + np.cumsum(np.bincount(cuts, minlength=len(kept)))[: len(kept)]
        self.new_at = np.arange(len(cuts)) + cuts
        self.count = len(kept) + len(cuts)

    def column(self, name: str, old: NumberArray, new: Sequence[int | float] | NumberArray) -> NumberArray:
        """Return a column of all items; ``old`` are the values of the kept items."""
        found = np.empty(self.count, COLUMN_TYPES[name])
        found[self.kept_at] = old
        found[self.new_at] = np.asarray(new, COLUMN_TYPES[name])
        return found

    def offsets(self, old_at: NumberArray, new: Sequence[bytes]) -> NumberArray:
        """Return the start of each text, followed by the end of the last."""
        found = np.zeros(self.count + 1, "<u8")
        lengths = found[1:]
        lengths[self.kept_at] = (old_at[1:] - old_at[:-1])[self.kept]
        lengths[self.new_at] = [len(text) for text in new]
        np.cumsum(found, out=found)
        return found

    def pieces(self, old_at: NumberArray, old: memoryview, new: Sequence[bytes]) -> Iterator[bytes | memoryview]:
        """Yield all texts in order; consecutive old texts come as one piece."""
        breaks = np.flatnonzero(np.diff(self.kept) != 1) + 1
        edges = np.unique(np.concatenate((breaks, self._cuts, [0, len(self.kept)]))).tolist()
        cuts, next_ = self._cuts.tolist(), 0
        for start, end in zip(edges, (*edges[1:], None), strict=True):
            if (following := bisect_right(cuts, start, next_)) > next_:
                yield b"".join(new[next_:following])
                next_ = following
            if end is not None and end > start:
                first, last = int(self.kept[start]), int(self.kept[end - 1])
                yield old[int(old_at[first]) : int(old_at[last + 1])]


class _EdgeKeys(NamedTuple):
    """Sorted columns of edge keys as numbers: source, target and relation type."""

    source: NumberArray
    target: NumberArray
    relation: NumberArray

    def places(self, others: _EdgeKeys) -> NumberArray:
        """Return how many of these keys precede each of ``others``."""
        own, asked = self._pairs(), others._pairs()
        found = np.searchsorted(own, asked, "left")
        # Few pairs of nodes have several edges.
        for at in np.flatnonzero(np.searchsorted(own, asked, "right") > found).tolist():
            end = np.searchsorted(own, asked[at], "right")
            found[at] += np.searchsorted(self.relation[found[at] : end], others.relation[at])
        return found

    def _pairs(self) -> NumberArray:
        return (self.source.astype(np.uint64) << np.uint64(32)) | self.target.astype(np.uint64)


class _BaseMerge:
    """One merge: nodes first, because edges refer to the new numbers of their endpoints."""

    def __init__(
        self,
        base: MappedRowBaseSegment,
        columns: RowColumnsToMerge,
        writer: BaseSegmentColumnsWriter,
        texts: BaseSegmentRowJsonWriter,
        *,
        copying: bool,
    ) -> None:
        """Prepare the merge; with ``copying``, unchanged texts are also written to ``texts``."""
        self._base = base
        self._columns = columns
        self._writer = writer
        self._texts = texts
        self._copying = copying
        nodes, edges = columns.nodes, columns.edges
        kept = _unchanged_numbers(base.nodes, nodes.numbers, columns.nodes_gone)
        self._splice = _ColumnSplice(kept, np.searchsorted(kept, self._positions()))
        self._kept_number = np.full(base.nodes, NO_ROW_NUMBER, "<u4")
        self._kept_number[self._splice.kept] = self._splice.kept_at
        self._new_number = self._kept_number.copy()
        is_replaced = nodes.numbers >= 0
        self._new_number[nodes.numbers[is_replaced]] = self._splice.new_at[is_replaced]
        self._kept_edges = _unchanged_numbers(base.edges, edges.numbers, columns.edges_gone)
        used = (base.array("node_ending")[kept], base.array("edge_ending")[self._kept_edges])
        self._endings = RowSuffixDictionary(base.endings, np.flatnonzero(sum(map(self._count_endings, used))).tolist())

    def _positions(self) -> list[int]:
        """Return the position of each node among those of the base."""
        base, (ids, numbers, *_) = self._base, self._columns.nodes
        if len(ids) * MAX_NODES_PER_POSITION > base.nodes:
            own = base.encoded_ids()
            return [bisect_left(own, key) for key in ids]
        at, found = 0, list[int]()
        for key, number in zip(ids, numbers.tolist(), strict=True):
            at = number if number >= 0 else base.position_from(key, at)
            found.append(at)
        return found

    def run(self, state: StoreState, texts: str) -> None:
        """Write both files; ``texts`` is the name of the text file."""
        self._write_nodes()
        edges = self._write_edges()
        self._texts.finish()
        sums = np.array(self._texts.sums, "<u8")
        if not self._copying:
            sums = np.concatenate((self._base.array("text_sums"), sums))
        self._writer.column("text_sums", sums)
        self._writer.texts("endings", "ending_at", self._endings.texts)
        state = StoreState(state.sequence, state.time, state.digest, self._splice.count, edges)
        linked = self._base.linked or self._columns.linked
        self._writer.finish(state, texts, self._texts.offset, linked=linked)

    def _write_nodes(self) -> None:
        base, splice, nodes, writer = self._base, self._splice, self._columns.nodes, self._writer
        writer.column("node_flags", splice.column("node_flags", base.flags_of_nodes[splice.kept], nodes.flags))
        writer.column("id_at", splice.offsets(base.id_at, nodes.ids))
        with writer.text("ids"):
            for piece in splice.pieces(base.id_at, base.ids_text(), nodes.ids):
                writer.write(piece)
        self._write_texts("node", splice, nodes.texts, nodes.suffixes)
        self._write_hashes()
        self._write_dated("node", nodes.bounds, splice.new_at, self._kept_number)

    def _write_hashes(self) -> None:
        there = self._kept_number[self._base.hashed]
        stays = there != NO_ROW_NUMBER
        hashes = np.concatenate((self._base.hashes[stays], _hashes_of(self._columns.nodes.ids)))
        numbers = np.concatenate((there[stays], self._splice.new_at.astype("<u4")))
        order = np.argsort(hashes, kind="stable")
        self._writer.column("hashes", hashes[order])
        self._writer.column("hashed", numbers[order])

    def _write_edges(self) -> int:
        base, writer = self._base, self._writer
        kept = self._kept_edges
        names, codes = self._relation_names(kept)
        edges = self._columns.edges
        order, keys = self._sort_edges(edges, codes)
        texts = [edges.texts[at] for at in order.tolist()]
        suffixes = None if edges.suffixes is None else edges.suffixes.reordered(order)
        recoded = np.array([codes.get(name, 0) for name in base.names], "<u4")
        old = _EdgeKeys(
            self._new_number[base.source[kept]],
            self._new_number[base.target[kept]],
            recoded[base.relation[kept]] if len(kept) else kept,
        )
        splice = _ColumnSplice(kept, old.places(keys))
        source, target, relation = (
            splice.column(name, *each) for name, *each in zip(("source", "target", "relation"), old, keys, strict=True)
        )
        writer.column("source", source)
        writer.column("target", target)
        writer.column("relation", relation)
        writer.column("weight", splice.column("weight", base.weight[kept], edges.weight[order]))
        writer.column("created", splice.column("created", base.created[kept], edges.created[order]))
        writer.column("edge_flags", splice.column("edge_flags", base.flags_of_edges[kept], edges.flags[order]))
        self._write_adjacency(source, target)
        self._write_texts("edge", splice, texts, suffixes)
        writer.texts("names", "name_at", [name.encode() for name in names])
        number = np.full(base.edges, NO_ROW_NUMBER, "<u4")
        number[kept] = splice.kept_at
        new_at = np.empty_like(splice.new_at)
        new_at[order] = splice.new_at
        self._write_dated("edge", edges.bounds, new_at, number)
        self._write_sparse_columns(["ordered_edges", "ordinals"], edges.ordinals, new_at, number)
        return splice.count

    def _renumbered(self, places: NumberArray) -> NumberArray:
        """Return the new numbers of nodes, given as `EdgeColumnsForSegmentMerge` refers to them."""
        found = np.empty(len(places), np.uint64)
        is_new = places < 0
        found[is_new] = self._splice.new_at[~places[is_new]]
        found[~is_new] = self._new_number[places[~is_new]]
        return found

    def _sort_edges(self, edges: EdgeColumnsForSegmentMerge, codes: dict[str, int]) -> tuple[NumberArray, _EdgeKeys]:
        """Return the sort order of edges, and their sorted keys."""
        found = _EdgeKeys(
            self._renumbered(edges.source),
            self._renumbered(edges.target),
            np.array([codes[name] for name in edges.names], np.uint64)[edges.relation],
        )
        order = np.lexsort((found.relation, found.target, found.source))
        return order, _EdgeKeys(*(each[order] for each in found))

    def _relation_names(self, kept: NumberArray) -> tuple[list[str], dict[str, int]]:
        """Return the relation types in use, sorted, and their codes."""
        base = self._base
        used = np.flatnonzero(np.bincount(base.relation[kept], minlength=len(base.names))) if len(kept) else ()
        names = sorted({base.names[code] for code in used} | {*self._columns.edges.names})
        return names, {name: code for code, name in enumerate(names)}

    def _write_adjacency(self, source: NumberArray, target: NumberArray) -> None:
        count = self._splice.count
        self._writer.column("out_at", _list_starts(source, count))
        self._writer.column("in_at", _list_starts(target, count))
        self._writer.column("in_edge", np.argsort(target, kind="stable"))

    def _count_endings(self, endings: NumberArray) -> NumberArray:
        return np.bincount(endings, minlength=len(self._base.endings))

    def _write_texts(
        self, kind: str, splice: _ColumnSplice, new: list[bytes], suffixes: RemovedRowTextSuffixes | None
    ) -> None:
        """Write the texts of new rows, without common suffixes, and the columns that locate all texts."""
        base, kept = self._base, splice.kept
        if suffixes is None:
            numbers: Sequence[int] | NumberArray = self._endings.split_suffixes(kind, new)
        else:
            numbers = self._endings.add_removed(new, suffixes)
        was = self._endings.renumbered[base.array(f"{kind}_ending")[kept]]
        self._writer.column(f"{kind}_ending", splice.column(f"{kind}_ending", was, numbers))
        places, sizes = base.array(f"{kind}_at")[kept], base.array(f"{kind}_size")[kept]
        if self._copying:
            places = self._copy_texts(places, sizes)
        added = self._texts.add(new)
        self._writer.column(f"{kind}_at", splice.column(f"{kind}_at", places, added))
        self._writer.column(f"{kind}_size", splice.column(f"{kind}_size", sizes, [len(text) for text in new]))

    def _copy_texts(self, places: NumberArray, sizes: NumberArray) -> NumberArray:
        """Copy texts, adjacent ones in one piece; return their new offsets."""
        ends = places.astype(np.uint64) + sizes
        found = self._texts.offset + np.cumsum(sizes, dtype=np.uint64) - sizes
        runs = np.flatnonzero(places[1:] != ends[:-1]) + 1
        for first, last in pairwise([0, *runs.tolist(), len(places)] if len(places) else []):
            for start in range(int(places[first]), int(ends[last - 1]), TEXT_COPY_CHUNK_BYTES):
                self._texts.write(self._base.text(start, min(start + TEXT_COPY_CHUNK_BYTES, int(ends[last - 1]))))
        return found

    def _write_dated(self, kind: str, new: Sequence[tuple[int, ...]], new_at: NumberArray, number: NumberArray) -> None:
        """Write the validity bounds of rows that have any, ordered by number."""
        columns = [f"dated_{kind}s", f"dated_{kind}_from", f"dated_{kind}_to"]
        self._write_sparse_columns(columns, new, new_at, number)

    def _write_sparse_columns(
        self, columns: list[str], new: Sequence[tuple[int, ...]], new_at: NumberArray, number: NumberArray
    ) -> None:
        """Write columns of few rows: their numbers, and one or two values of each."""
        there = number[self._base.array(columns[0])]
        stays = there != NO_ROW_NUMBER
        old = [there[stays], *(self._base.array(name)[stays] for name in columns[1:])]
        added = list(zip(*((int(new_at[at]), *values) for at, *values in new), strict=True)) or [()] * len(columns)
        joined = [
            np.concatenate((values, np.array(more, COLUMN_TYPES[name])))
            for name, values, more in zip(columns, old, added, strict=True)
        ]
        order = np.argsort(joined[0], kind="stable")
        for name, values in zip(columns, joined, strict=True):
            self._writer.column(name, values[order])


def _unchanged_numbers(count: int, replaced: NumberArray, gone: Sequence[int]) -> NumberArray:
    """Return the numbers of unchanged rows."""
    stays = np.ones(count, np.bool_)
    stays[replaced[replaced >= 0]] = False
    stays[np.asarray(gone, np.int64)] = False
    return np.flatnonzero(stays)


def _hashes_of(ids: list[bytes]) -> NumberArray:
    return np.fromiter(map(xxhash.xxh3_64_intdigest, ids), "<u8", len(ids))


def _list_starts(values: NumberArray, count: int) -> NumberArray:
    """Return where the entries of each number up to ``count`` would begin if ``values`` were sorted."""
    return np.concatenate(([0], np.cumsum(np.bincount(values, minlength=count))))


BASE_BUILD_BATCH_ROWS = 500_000
"""Rows merged at a time when a base is built from all rows."""
BASE_BUILD_BATCH_BYTES = 256 << 20
"""Bytes of texts merged at a time when a base is built from all rows."""


def write_empty_base_segment(path: Path) -> None:
    """Write a base segment without rows, as before the first commit. Raises OSError."""
    with path.open("wb", buffering=0) as file:
        writer = BaseSegmentColumnsWriter(file)
        for name in COLUMN_TYPES:
            writer.column(name, np.zeros(int(name in OFFSET_COLUMNS)))
        for name in TEXT_COLUMNS:
            with writer.text(name):
                pass
        writer.finish(StoreState())


def build_base_segment_from_rows(
    folder: Path, nodes: Iterable[NodeRow], edges: Iterable[EdgeRow], state: StoreState, *, linked: bool = False
) -> MappedRowBaseSegment:
    """Build a base segment from unsorted rows, batch by batch, in a folder of its own. Raises OSError."""
    path = folder / "empty"
    write_empty_base_segment(path)
    base = MappedRowBaseSegment(path)
    for number, rows in enumerate(chain(_slices(nodes), _slices(edges))):
        change = RowChangesForBaseSegment([], [], [], [], linked)
        change.nodes = [NodeRowForBaseSegment(row) for row in rows if isinstance(row, NodeRow)]
        change.edges = [EdgeRowForBaseSegment(row) for row in rows if isinstance(row, EdgeRow)]
        path = folder / str(number)
        write_merged_row_base_segment(base, change, state, path)
        base.path.unlink()
        base = MappedRowBaseSegment(path)
    if base.state.sequence != state.sequence:
        write_merged_row_base_segment(base, RowChangesForBaseSegment([], [], [], [], linked), state, folder / "none")
        base = MappedRowBaseSegment(folder / "none")
    return base


def _slices(rows: Iterable[NodeRow] | Iterable[EdgeRow]) -> Iterator[list[NodeRow | EdgeRow]]:
    found: list[NodeRow | EdgeRow] = []
    size = 0
    for row in rows:
        found.append(row)
        size += len(row.attributes) + (len(row.content) if isinstance(row, NodeRow) else 0)
        if len(found) >= BASE_BUILD_BATCH_ROWS or size >= BASE_BUILD_BATCH_BYTES:
            yield found
            found, size = [], 0
    if found:
        yield found
