"""All rows of a snapshot of the current rows as tuples, decoded a batch at a time.

Most edges share what follows their endpoints with others: it is the suffix of their text. Such edges are read from the
columns of the base, and each suffix is decoded once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import msgspec
import numpy as np
from msgspec.structs import astuple

from kgserve.platform.codecs import json_decoder
from kgserve.storage.model.node_edge_rows import EdgeRow, RowTuple
from kgserve.storage.rows.base_segment import MappedRowBaseSegment
from kgserve.storage.rows.base_segment_file_format import NumberArray
from kgserve.storage.rows.row_json_encoder import decode_edge_tuples_from_json, decode_node_tuples_from_json
from kgserve.storage.rows.rows_snapshot import RowsSnapshot
from kgserve.storage.rows.suffix_dictionary import SUFFIX_MARKERS


class _EdgeSuffix(msgspec.Struct, frozen=True):
    relation_type: str
    weight: float
    attributes: msgspec.Raw
    version: int
    sequence: int


_decode_suffix = json_decoder(_EdgeSuffix).decode
_WHOLE_EDGE_SUFFIX_START = SUFFIX_MARKERS["edge"][0]


def iterate_node_tuples(rows: RowsSnapshot) -> Iterator[list[RowTuple]]:
    """Yield batches of all nodes: the fields in order, with extras only if there are any. Raises RowsDamaged."""
    base, changed = rows.base, rows.delta.nodes
    for numbers in rows.node_slices():
        some = numbers.tolist()
        if some and some[-1] < base.nodes and changed.keys().isdisjoint(some):
            yield decode_node_tuples_from_json(base.node_texts(numbers), base.flags_of_nodes[numbers].tolist())
        else:
            yield [*map(astuple, rows.rows_of_nodes(numbers))]


def iterate_edge_tuples(rows: RowsSnapshot) -> Iterator[list[RowTuple]]:
    """Yield batches of all edges: the fields in order, with extras only if there are any. Raises RowsDamaged."""
    base, suffixes = rows.base, _EdgeSuffixDecoder(rows.base)
    for found in rows.edge_slices():
        edges = suffixes.edge_tuples(found.base)
        if edges is None:
            flags = base.flags_of_edges[found.base].tolist()
            edges = decode_edge_tuples_from_json(base.edge_texts(found.base), flags)
        yield edges + [astuple(cast("EdgeRow", version.row)) for _, version in found.changed]


class _EdgeSuffixDecoder:
    """Edges of a base from its columns and the decoded suffixes of their texts."""

    def __init__(self, base: MappedRowBaseSegment) -> None:
        self._base = base
        self._numbers = base.array("edge_ending")
        self._decoded: dict[int, RowTuple | None] = {}

    def edge_tuples(self, numbers: NumberArray) -> list[RowTuple] | None:
        """Return edges; None if one has extras, or a suffix that is not all that follows the endpoints."""
        base = self._base
        if base.flags_of_edges[numbers].any():
            return None
        own = self._numbers[numbers]
        tails = {number: self._tail(number) for number in np.unique(own).tolist()}
        if None in tails.values():
            return None
        rest = map(cast("dict[int, RowTuple]", tails).__getitem__, own.tolist())
        ends = zip(self._ids(base.source[numbers]), self._ids(base.target[numbers]), rest, strict=True)
        return [(source, target, *tail) for source, target, tail in ends]

    def _ids(self, numbers: NumberArray) -> list[str]:
        unique, places = np.unique(numbers, return_inverse=True)
        return [*map(self._base.ids(unique.tolist()).__getitem__, places.tolist())]

    def _tail(self, number: int) -> RowTuple | None:
        """Return the fields after the endpoints that a suffix has; None if it begins elsewhere."""
        if number not in self._decoded:
            self._decoded[number] = _decode_edge_suffix(self._base.endings[number])
        return self._decoded[number]


def _decode_edge_suffix(suffix: bytes) -> RowTuple | None:
    if not suffix.startswith(_WHOLE_EDGE_SUFFIX_START):
        return None
    found = _decode_suffix(b"{" + suffix[1:])
    return found.relation_type, found.weight, str(found.attributes, "utf-8"), found.version, found.sequence
