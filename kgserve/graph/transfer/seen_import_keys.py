"""Keys of the nodes and edges imported so far, used to report lines that repeat an earlier key."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from kgserve.storage.model.write_batch import CrossStoreLinkUpsert, EdgeUpsert, NodeUpsert

_Numbers = NDArray[np.int64]


class SeenImportKeys:
    """Keys of an import with the line of each, as sorted 64-bit hashes: 16 bytes per row.

    Among ten million keys, a hash collision has a probability of one in 400,000; its line is reported as merged by
    mistake.
    """

    def __init__(self) -> None:
        self._runs: list[tuple[_Numbers, _Numbers]] = []

    def add(self, keys: Sequence[Hashable], lines: Sequence[int]) -> dict[int, int]:
        """Add rows; return the earliest line of each row whose key occurred before, by its position in ``keys``."""
        hashes = np.fromiter(map(hash, keys), np.int64, len(keys))
        numbers = np.asarray(lines, np.int64)
        order = np.argsort(hashes, kind="stable")
        ordered = hashes[order]
        is_first = np.ones(len(ordered), bool)
        is_first[1:] = ordered[1:] != ordered[:-1]
        earlier = np.zeros(len(ordered), np.int64)
        firsts = numbers[order[is_first]]
        earlier[order] = np.where(is_first, 0, firsts[np.cumsum(is_first) - 1])
        for known, known_lines in reversed(self._runs):
            places = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
            earlier = np.where(known[places] == hashes, known_lines[places], earlier)
        if len(ordered):
            self._keep(ordered[is_first], firsts)
        return {int(place): int(earlier[place]) for place in np.flatnonzero(earlier)}

    def add_if_new(self, hashes: _Numbers, lines: _Numbers) -> bool:
        """Add rows by the hashes of their keys, unless a key occurred before. Return whether they were added."""
        order = np.argsort(hashes, kind="stable")
        ordered = hashes[order]
        if (ordered[1:] == ordered[:-1]).any():
            return False
        for known, _ in self._runs:
            if (known[np.minimum(np.searchsorted(known, ordered), len(known) - 1)] == ordered).any():
                return False
        self._keep(ordered, lines[order])
        return True

    def _keep(self, hashes: _Numbers, lines: _Numbers) -> None:
        self._runs.append((hashes, lines))
        while len(self._runs) > 1 and len(self._runs[-2][0]) <= 2 * len(self._runs[-1][0]):
            newer, older = self._runs.pop(), self._runs.pop()
            self._runs.append(_merge(older, newer))


def _merge(older: tuple[_Numbers, _Numbers], newer: tuple[_Numbers, _Numbers]) -> tuple[_Numbers, _Numbers]:
    hashes, lines = np.concatenate((older[0], newer[0])), np.concatenate((older[1], newer[1]))
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    kept = np.ones(len(ordered), bool)
    kept[1:] = ordered[1:] != ordered[:-1]
    return ordered[kept], lines[order][kept]


RowKey = str | tuple[Hashable, ...]
"""Key of an imported row: a node's id; or a tuple of two to four items for a version, an edge or a link."""


def get_key_of_imported_row(put: NodeUpsert | EdgeUpsert | CrossStoreLinkUpsert) -> RowKey:
    """Return the key of a node, version, edge or link."""
    if isinstance(put, NodeUpsert):
        return (put.id, put.version) if put.is_head else put.id
    return (*put.edge.key, put.store) if isinstance(put, CrossStoreLinkUpsert) else put.key


def format_duplicate_row_message(key: RowKey, *, is_entity: bool) -> str:
    """Return the message for a row whose key occurs on an earlier line."""
    if is_entity:
        return f'entity "{key}": the observations of both are kept, and the type of the later one'
    return f"{_name(key)}: where both lines set a field, the later one wins"


def _name(key: RowKey) -> str:
    match key:
        case str():
            return f'node "{key}"'
        case (node_id, version):
            return f'version {version} of node "{node_id}"'
        case (source, target, relation_type, *store):
            return f'edge "{source}" "{relation_type}" "{target}"' + (f' in store "{store[0]}"' if store else "")
        case _:
            raise AssertionError(key)
