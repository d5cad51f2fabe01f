"""Sets of nodes, each with a weight from 0 to 1. Ids of large sets are looked up only for the nodes returned."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kgserve.storage.rows.base_segment_file_format import NumberArray
from kgserve.storage.rows.rows_snapshot import RowsSnapshot


class WeightedNodes(ABC):
    """Nodes with weights from 0 to 1."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of nodes."""

    @abstractmethod
    def weights_of(self, ids: Iterable[str]) -> dict[str, float]:
        """Return the weights of those of `ids` that are in the set."""

    @abstractmethod
    def first(self, count: int) -> dict[str, float]:
        """Return at most `count` nodes with their weights: the greatest first, newer nodes before older ones."""

    def slices(self, count: int) -> Iterator[dict[str, float]]:
        """Yield all nodes in the order of `first`, at most `count` at a time."""
        found = [*self.first(len(self)).items()]
        return (dict(found[first : first + count]) for first in range(0, len(found), count))


class WeightsByNodeId(WeightedNodes):
    """Weighted nodes given as a mapping from node id to weight."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights

    @override
    def __len__(self) -> int:
        return len(self._weights)

    @override
    def weights_of(self, ids: Iterable[str]) -> dict[str, float]:
        return {node_id: self._weights[node_id] for node_id in ids if node_id in self._weights}

    @override
    def first(self, count: int) -> dict[str, float]:
        best = sorted(self._weights.items(), key=lambda each: -each[1])
        return dict(best[:count])


class WeightsByRowNumber(WeightedNodes):
    """Weights by row number; ids are looked up only for the nodes that are returned."""

    def __init__(self, rows: RowsSnapshot, numbers: NumberArray, weights: NDArray[np.float64]) -> None:
        order = np.argsort(numbers, kind="stable")
        self._rows = rows
        self._numbers, self._weights = numbers[order], weights[order]

    @override
    def __len__(self) -> int:
        return len(self._numbers)

    @override
    def weights_of(self, ids: Iterable[str]) -> dict[str, float]:
        known = list(ids)
        numbers = np.array([self._rows.number(node_id) for node_id in known], np.int64)
        places = np.searchsorted(self._numbers, numbers)
        return {
            node_id: float(self._weights[place])
            for node_id, number, place in zip(known, numbers.tolist(), places.tolist(), strict=True)
            if place < len(self._numbers) and self._numbers[place] == number
        }

    @override
    def first(self, count: int) -> dict[str, float]:
        return next(self.slices(count), {})

    @override
    def slices(self, count: int) -> Iterator[dict[str, float]]:
        order = np.lexsort((-self._numbers, -self._weights))
        for first in range(0, len(order), count):
            best = order[first : first + count]
            names = self._rows.delta.ids(self._numbers[best].tolist())
            yield dict(zip(names, self._weights[best].tolist(), strict=True))


class WeightedNodesIntersection(WeightedNodes):
    """Nodes that are in both sets, with their weights in the first one."""

    def __init__(self, one: WeightedNodes, other: WeightedNodes) -> None:
        self._one = one
        self._other = other

    @override
    def __len__(self) -> int:
        return min(len(self._one), len(self._other))

    @override
    def weights_of(self, ids: Iterable[str]) -> dict[str, float]:
        return self._one.weights_of(self._other.weights_of(ids))

    @override
    def first(self, count: int) -> dict[str, float]:
        return self._one.weights_of(self._other.first(count))
