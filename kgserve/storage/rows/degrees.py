"""How many edges nodes have, which nodes have most, and the types of nodes, in columns."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import numpy as np

from kgserve.platform.codecs import json_decoder
from kgserve.storage.rows.base import SLICE_ROWS
from kgserve.storage.rows.delta import Delta, Version
from kgserve.storage.rows.format import Numbers
from kgserve.storage.rows.snapshot import Rows


class _Typed(msgspec.Struct):
    """Of a node's JSON its type."""

    type: str


_type_of = json_decoder(_Typed).decode


def types_of(rows: Rows, numbers: Numbers) -> list[str]:
    """The types of nodes."""
    return [
        _type_of(text + b"}").type
        for start in range(0, len(numbers), SLICE_ROWS)
        for text in rows.node_texts(numbers[start : start + SLICE_ROWS], 0)
    ]


def count_within(rows: Rows, level: Numbers, left: int, *, outgoing: bool) -> int:
    """How many of some nodes to look at so that no more than the last one goes beyond so many edges."""
    count = rows.base.nodes
    if not count:
        return len(level)
    starts = rows.base.out_at if outgoing else rows.base.in_at
    own = np.minimum(level, count - 1)
    sizes = np.where(level < count, starts[own + 1].astype(np.int64) - starts[own], 0)
    return int(np.searchsorted(np.cumsum(sizes), left)) + 1


def degrees(rows: Rows, numbers: Numbers) -> list[int]:
    """How many edges start and end at nodes, whatever they are and whenever they are true; a loop counts twice."""
    found = _base_degrees(rows, numbers).tolist()
    delta = rows.delta
    if delta.edges:
        for place, number in enumerate(numbers.tolist()):
            for lists in (delta.out, delta.into):
                noted = lists.get(number)
                if noted is not None:
                    found[place] += sum(_change(rows, edge, delta.edges[edge]) for edge in noted[:])
    return found


def _base_degrees(rows: Rows, numbers: Numbers) -> Numbers:
    base = rows.base
    found = np.zeros(len(numbers), np.int64)
    own = numbers < base.nodes
    at = numbers[own]
    found[own] = base.out_at[at + 1].astype(np.int64) - base.out_at[at] + base.in_at[at + 1] - base.in_at[at]
    return found


def _change(rows: Rows, edge: int, newest: Version) -> int:
    version = newest.at(rows.at)
    return 0 if version is None else (version.row is not None) - (edge < rows.base.edges)


def most_connected(rows: Rows, count: int, types: Collection[str] | None) -> list[int]:
    """The nodes with most edges, then by id: of those with most in the base and of those whose edges have changed.

    Should these all have gone, others are found with the next base.
    """
    numbers = np.union1d(rows.base.best_connected, _changed_most(rows, 8 * count + 100)).astype(np.int64)
    numbers = np.array([number for number in numbers.tolist() if rows.is_there(number)], np.int64)
    if types is not None and len(numbers):
        numbers = numbers[[each in types for each in types_of(rows, numbers)]]
    ordered = rows.in_order(numbers)
    by_degree = np.array(degrees(rows, ordered), np.int64)
    best = np.argsort(-by_degree, kind="stable")[:count]
    return ordered[best[by_degree[best] > 0]].tolist()


def _changed_most(rows: Rows, count: int) -> Numbers:
    """Of the nodes whose edges have changed since the base those that may have most by now."""
    delta: Delta = rows.delta
    parts: list[tuple[Numbers, Numbers]] = []
    for lists in (delta.out.copy(), delta.into.copy()):
        numbers = np.fromiter(lists, np.int64, len(lists))
        parts.append((numbers, np.fromiter(map(len, lists.values()), np.int64, len(lists))))
    numbers, places = np.unique(np.concatenate([part[0] for part in parts]), return_inverse=True)
    most = _base_degrees(rows, numbers) + np.bincount(places, np.concatenate([part[1] for part in parts]), len(numbers))
    return numbers[np.argsort(-most, kind="stable")[:count]]
