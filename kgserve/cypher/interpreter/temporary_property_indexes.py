"""Temporary indexes of nodes by properties and expressions that no index of the graph covers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Any, TypeAlias

from kgserve.cypher.interpreter.graph_view_interface import CompiledExpression, NodeReference, StatementGraphView
from kgserve.cypher.interpreter.value_comparison import value_equivalence_key

_MIN_LOOKUPS = 2
"""Lookups of a property from which on an index pays."""

PropertyTable: TypeAlias = dict[Hashable, list[str]]


class TemporaryPropertyIndexes:
    """Indexes of node properties, built for one statement over a graph that does not change meanwhile."""

    def __init__(self, graph: StatementGraphView, hold: Callable[[int], None] | None = None) -> None:
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
        return table.get(value_equivalence_key(value), ())

    def _build_table(self, label: str | None, name: str) -> PropertyTable:
        graph = self._graph
        table: PropertyTable = {}
        count = 0
        for node_id in graph.node_ids() if label is None else graph.node_ids_by_label(label):
            value = graph.node_property(node_id, name)
            if value is not None:
                table.setdefault(value_equivalence_key(value), []).append(node_id)
                count += 1
        if self._hold is not None:
            self._hold(count)
        return table


class NodeExpressionIndex:
    """Index of nodes by an expression over one variable, built again when the graph has changed."""

    def __init__(
        self,
        graph: StatementGraphView,
        hold: Callable[[int], None],
        variable: str,
        key: CompiledExpression,
        scan: Callable[[], Iterable[str]],
    ) -> None:
        """Index the nodes of a scan by ``key``, and count them by ``hold``."""
        self._graph = graph
        self._hold = hold
        self._variable = variable
        self._key = key
        self._scan = scan
        self._requests = 0
        self._version = -1
        self._table: PropertyTable = {}

    def find(self, value: Any) -> Collection[str] | None:
        """Return the nodes for which the expression has an equivalent value; None if a scan is cheaper so far."""
        if self._version != self._graph.version:
            self._requests += 1
            if self._requests < _MIN_LOOKUPS:
                return None
            self._build_table()
        return self._table.get(value_equivalence_key(value), ())

    def _build_table(self) -> None:
        self._hold(-sum(map(len, self._table.values())))
        self._table, self._version, self._requests = {}, self._graph.version, 0
        count = 0
        for node_id in self._scan():
            value = self._key({self._variable: NodeReference(self._graph, node_id)})
            if value is not None:
                self._table.setdefault(value_equivalence_key(value), []).append(node_id)
                count += 1
        self._hold(count)
