"""Lookups of nodes by properties that no index of the graph has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Any, TypeAlias

from kgserve.cypher.interpreter.graph_view import GraphView
from kgserve.cypher.interpreter.values import equivalence_key

_MIN_LOOKUPS = 2
"""Lookups of a property from which on an index pays."""

PropertyTable: TypeAlias = dict[Hashable, list[str]]


class PropertyIndexCache:
    """Indexes of node properties, built for one statement over a graph that does not change meanwhile."""

    def __init__(self, graph: GraphView, hold: Callable[[int], None] | None = None) -> None:
        """Count the indexed nodes by ``hold``."""
        self._graph = graph
        self._hold = hold
        self._requests: dict[tuple[str | None, str], int] = {}
        self._tables: dict[tuple[str | None, str], PropertyTable] = {}

    def find(self, label: str | None, name: str, value: Any) -> Collection[str] | None:
        """Return the nodes with a label and an equivalent property; None if a scan is cheaper so far."""
        place = (label, name)
        table = self._tables.get(place)
        if table is None:
            self._requests[place] = self._requests.get(place, 0) + 1
            if self._requests[place] < _MIN_LOOKUPS:
                return None
            table = self._tables[place] = self._build_table(label, name)
        return table.get(equivalence_key(value), ())

    def _build_table(self, label: str | None, name: str) -> PropertyTable:
        graph = self._graph
        table: PropertyTable = {}
        count = 0
        for node_id in graph.node_ids() if label is None else graph.node_ids_by_label(label):
            value = graph.node_property(node_id, name)
            if value is not None:
                table.setdefault(equivalence_key(value), []).append(node_id)
                count += 1
        if self._hold is not None:
            self._hold(count)
        return table
