"""New rows without optional fields, as columns, encoded for the journal and for a base."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import repeat
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np

from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.storage.model.node_edge_rows import EMPTY_ATTRIBUTES_JSON, compute_edge_ids, encode_edge_attributes
from kgserve.storage.rows.base_segment_file_format import NumberArray
from kgserve.storage.rows.base_segment_merge_columns import EdgeColumnsForSegmentMerge, NodeColumnsToMerge
from kgserve.storage.rows.suffix_dictionary import (
    MAX_SUFFIX_BYTES,
    MAX_SUFFIXES,
    MIN_SUFFIX_ROWS,
    RemovedRowTextSuffixes,
)


class CommitStamp(NamedTuple):
    """Sequence of the commit that creates rows, and its time in microseconds."""

    sequence: int
    time: int


class NewNodeColumns(NamedTuple):
    """Nodes to create, as columns; ``attributes`` are canonical JSON."""

    ids: Sequence[str]
    types: Sequence[str]
    contents: Sequence[str]
    attributes: Sequence[str]


class NewEdgeColumns(NamedTuple):
    """Edges to create, as columns."""

    sources: Sequence[str]
    targets: Sequence[str]
    relation_types: Sequence[str]
    weights: Sequence[float]


class _NodeHead(msgspec.Struct, gc=False):
    id: str
    type: str
    content: str


class _NodeHeadWithAttributes(_NodeHead, gc=False):
    attributes: msgspec.Raw


class _EdgeHead(msgspec.Struct, gc=False):
    id: str
    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")


class _WeightedEdgeHead(_EdgeHead, gc=False):
    relation_type: str
    weight: float


_pack = msgspec.msgpack.Encoder().encode
_encode = msgspec.json.Encoder().encode
_encode_lines = msgspec.json.Encoder().encode_lines
_FIRST_VERSION = 1
_Value = TypeVar("_Value", bound=Hashable)


def encode_new_nodes_as_messagepack(nodes: NewNodeColumns, stamp: CommitStamp) -> list[bytes]:
    """Return each new node as MessagePack, as in a change set and as hashed for the digest."""
    version, sequence, time = map(repeat, (_FIRST_VERSION, *stamp))
    return [*map(_pack, zip(*nodes, version, sequence, time, time, strict=False))]


def encode_new_edges_as_messagepack(edges: NewEdgeColumns, stamp: CommitStamp) -> list[bytes]:
    """Return each new edge as MessagePack, as in a change set and as hashed for the digest."""
    rest = map(repeat, (_edge_attributes(stamp), _FIRST_VERSION, stamp.sequence))
    return [*map(_pack, zip(*edges, *rest, strict=False))]


def build_new_node_columns(nodes: NewNodeColumns, order: Sequence[int], stamp: CommitStamp) -> NodeColumnsToMerge:
    """Return new nodes as columns to merge into a base segment; ``order`` sorts them by id."""
    ids, types, contents, attributes = ([column[at] for at in order] for column in nodes)
    time = format_rfc3339_timestamp(stamp.time)
    tail = (
        f',"version":{_FIRST_VERSION},"sequence":{stamp.sequence},"created_at":"{time}","updated_at":"{time}"'
    ).encode()
    common = {each: b',"attributes":' + each.encode() + tail for each in _common_values(attributes)}
    common = {each: suffix for each, suffix in common.items() if len(suffix) <= MAX_SUFFIX_BYTES}
    if len(common) == len(set(attributes)):
        heads: Sequence[msgspec.Struct] = [*map(_NodeHead, ids, types, contents)]
    else:
        heads = [
            _NodeHead(node_id, kind, content)
            if own in common
            else _NodeHeadWithAttributes(node_id, kind, content, msgspec.Raw(own))
            for node_id, kind, content, own in zip(ids, types, contents, attributes, strict=True)
        ]
    return NodeColumnsToMerge(
        [node_id.encode() for node_id in ids],
        np.full(len(ids), -1, np.int64),
        _open_objects(heads),
        np.zeros(len(ids), np.uint8),
        _removed_suffixes(common, attributes, tail),
    )


def build_new_edge_columns(
    edges: NewEdgeColumns, sources: NumberArray, targets: NumberArray, stamp: CommitStamp
) -> EdgeColumnsForSegmentMerge:
    """Return new edges as columns to merge into a base segment; ``sources`` and ``targets`` are numbers of nodes."""
    weights = set(edges.weights)
    # Most imports have one weight only.
    kinds = edges.relation_types if len(weights) == 1 else [*zip(edges.relation_types, edges.weights, strict=True)]
    attributes = f',"attributes":{_edge_attributes(stamp)},"version":{_FIRST_VERSION},"sequence":{stamp.sequence}}}'
    tail = attributes.encode()
    common: dict[str | tuple[str, float], bytes] = {}
    for kind in _common_values(kinds):
        name, weight = (kind, *weights) if isinstance(kind, str) else kind
        common[kind] = b',"relation_type":' + _encode(name) + b',"weight":' + _encode(weight) + tail
    common = {each: suffix for each, suffix in common.items() if len(suffix) <= MAX_SUFFIX_BYTES}
    names = compute_edge_ids(edges.sources, edges.targets, edges.relation_types)
    if len(common) == len(set(kinds)):
        heads: Sequence[msgspec.Struct] = [*map(_EdgeHead, names, edges.sources, edges.targets)]
    else:
        heads = [
            _EdgeHead(edge_id, source, target)
            if kind in common
            else _WeightedEdgeHead(edge_id, source, target, name, weight)
            for edge_id, kind, source, target, name, weight in zip(names, kinds, *edges, strict=True)
        ]
    relations = list(dict.fromkeys(edges.relation_types))
    codes = dict(zip(relations, range(len(relations)), strict=True))
    return EdgeColumnsForSegmentMerge(
        np.full(len(names), -1, np.int64),
        sources,
        targets,
        np.fromiter(map(codes.__getitem__, edges.relation_types), np.int64, len(names)),
        relations,
        np.array(edges.weights, np.float64),
        np.full(len(names), stamp.time, np.int64),
        _open_objects(heads),
        np.zeros(len(names), np.uint8),
        _removed_suffixes(common, kinds, tail),
    )


def _edge_attributes(stamp: CommitStamp) -> str:
    time = format_rfc3339_timestamp(stamp.time)
    return encode_edge_attributes(time, time, EMPTY_ATTRIBUTES_JSON)


def _common_values(values: Sequence[_Value]) -> list[_Value]:
    """Return the most frequent values, of which suffixes are made."""
    counts = Counter(values).most_common(MAX_SUFFIXES // 2)
    return [value for value, count in counts if count >= MIN_SUFFIX_ROWS]


def _open_objects(heads: Sequence[msgspec.Struct]) -> list[bytes]:
    """Return the JSON of each Struct, without its closing brace."""
    # JSON texts contain no line feed.
    texts = _encode_lines(heads).split(b"}\n")
    texts.pop()
    return texts


def _removed_suffixes(common: dict[_Value, bytes], values: Sequence[_Value], rest: bytes) -> RemovedRowTextSuffixes:
    """Return the suffixes of rows: that of a common value, or ``rest``."""
    numbers = dict(zip(common, range(1, len(common) + 1), strict=True))
    indexes = np.fromiter(map(numbers.get, values, repeat(0)), np.int64, len(values))
    return RemovedRowTextSuffixes([rest, *common.values()], indexes)
