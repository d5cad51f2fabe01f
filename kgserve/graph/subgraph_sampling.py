"""Sampling of a graph around some nodes: the strongest neighbours of each, level by level.

Each level is processed in columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from kgserve.graph.graph_reader import GraphReader
from kgserve.storage.model.breadth_first_traversal import TraversalRequest
from kgserve.storage.rows.base_segment_file_format import NumberArray
from kgserve.storage.rows.graph_drawing_samples import IncidentEdges


class SubgraphSampleLimits(NamedTuple):
    """Bounds of a sample: hops, neighbours per node, and nodes in total."""

    depth: int
    per_node: int
    max_nodes: int


class SubgraphSampleFilter(NamedTuple):
    """The edges to follow, and the types of the nodes to add; None: all types."""

    walk: TraversalRequest
    types: frozenset[str] | None


class SubgraphSample(NamedTuple):
    """The sampled nodes, level by level; neighbours left out per node; and whether a limit was reached."""

    nodes: NumberArray
    left_out: list[tuple[int, int]]
    truncated: bool


def sample_subgraph(
    reader: GraphReader, wanted: SubgraphSampleFilter, starts: Sequence[int], limits: SubgraphSampleLimits
) -> SubgraphSample:
    """Sample outwards from some numbered nodes, each counted once."""
    found = level = np.array(starts[: limits.max_nodes], np.int64)
    truncated, left = len(starts) > limits.max_nodes, reader.max_incident_edges(wanted.types)
    levels: list[tuple[NumberArray, NumberArray]] = []
    for _ in range(limits.depth):
        if not len(level):
            break
        incident = reader.incident_edges(level, wanted.walk, left)
        left -= len(incident.owner)
        truncated = truncated or incident.cut
        owner, end = _neighbours(reader, wanted, level, incident)
        levels.append((level[owner], end))
        level = _select_new(owner, end, found, limits.per_node)
        room = limits.max_nodes - len(found)
        truncated = truncated or len(level) > room
        level = level[:room]
        found = np.concatenate((found, level))
    return SubgraphSample(found, _count_left_out(levels, found), truncated)


def _neighbours(
    reader: GraphReader, wanted: SubgraphSampleFilter, level: NumberArray, incident: IncidentEdges
) -> tuple[NumberArray, NumberArray]:
    """Return the neighbours of each node of a level, without duplicates and loops, the strongest first, then by id."""
    owner, end, weight, _ = incident
    distinct = np.unique(end)
    ordered = reader.sort_by_id(distinct[reader.have_types(distinct, wanted.types)]) if len(distinct) else distinct
    if not len(ordered):
        return np.empty(0, np.int64), ordered
    by_number = np.argsort(ordered)
    rank = by_number[np.minimum(np.searchsorted(ordered, end, sorter=by_number), len(ordered) - 1)]
    kept = (ordered[rank] == end) & (end != level[owner])
    owner, rank, weight = owner[kept], rank[kept], weight[kept]
    strongest = np.lexsort((-weight, rank, owner))
    owner, rank, weight = owner[strongest], rank[strongest], weight[strongest]
    first = np.ones(len(owner), np.bool_)
    first[1:] = (np.diff(owner) != 0) | (np.diff(rank) != 0)
    owner, rank, weight = owner[first], rank[first], weight[first]
    order = np.lexsort((rank, -weight, owner))
    return owner[order], ordered[rank[order]]


def _select_new(owner: NumberArray, end: NumberArray, found: NumberArray, per_node: int) -> NumberArray:
    """Return the first neighbours of each node that are not sampled yet."""
    places = np.arange(len(owner)) - np.searchsorted(owner, owner)
    new = end[places < per_node]
    new = new[~np.isin(new, found)]
    return new[np.sort(np.unique(new, return_index=True)[1])]


def _count_left_out(levels: Iterable[tuple[NumberArray, NumberArray]], found: NumberArray) -> list[tuple[int, int]]:
    counts: Counter[int] = Counter()
    for owner, end in levels:
        counts.update(owner[~np.isin(end, found)].tolist())
    return [*counts.items()]
