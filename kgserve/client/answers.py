"""Answers with more to them than their fields: turned into graphs and tables, and shown well in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from kgserve.model.answers import CypherAnswer, TraverseAnswer

if TYPE_CHECKING:
    import networkx as nx
    import pyarrow as pa

_SHOWN_ROWS = 20
_SHOWN_TEXT = 200


class Traversal(TraverseAnswer, kw_only=True):
    """The nodes reached, nearest first, and all edges between them. ``count`` is the number of nodes."""

    def to_networkx(self) -> nx.MultiDiGraph[str]:
        """The graph: nodes by id, edges with their relation type as key, every other field as data of its own name.

        Raises ImportError when networkx is not installed.
        """
        try:
            from kgserve.client.graphs import graph_of  # noqa: PLC0415 - for those who ask for it
        except ModuleNotFoundError as error:
            if error.name != "networkx":
                raise
            raise ImportError(
                "to_networkx() needs networkx, which is not installed: pip install 'kgserve[networkx]'",
                name="networkx",
            ) from error
        return graph_of(self)

    def to_arrow(self) -> tuple[pa.Table, pa.Table]:
        """Two tables, nodes and edges. Attributes are JSON text; times of nodes are timestamps in UTC."""
        from kgserve.client.tables import edges_table, nodes_table  # noqa: PLC0415 - pyarrow takes its time

        return nodes_table(self.nodes), edges_table(self.edges)

    def __repr__(self) -> str:
        more = ", truncated" if self.truncated else ""
        return f"<Traversal: {len(self.nodes)} nodes, {len(self.edges)} edges, sequence {self.sequence}{more}>"

    def _repr_html_(self) -> str:
        nodes = [(node.depth, node.id, node.type, node.content) for node in self.nodes[:_SHOWN_ROWS]]
        edges = [(edge.source, edge.relation_type, edge.target, edge.weight) for edge in self.edges[:_SHOWN_ROWS]]
        return (
            f"<p>{escape(repr(self))}</p>"
            + _html(("depth", "id", "type", "content"), nodes, len(self.nodes))
            + _html(("from", "relation_type", "to", "weight"), edges, len(self.edges))
        )


class CypherResult(CypherAnswer, kw_only=True):
    """The rows of a statement."""

    def to_arrow(self) -> pa.Table:
        """One table. Columns whose values have no common type of Arrow's are JSON text."""
        from kgserve.client.tables import rows_table  # noqa: PLC0415 - pyarrow takes its time

        return rows_table(self.columns, self.types, self.rows)

    def records(self) -> list[dict[str, Any]]:
        """The rows as dictionaries by column; of two columns with the same name the last one counts."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def __repr__(self) -> str:
        more = ", truncated" if self.truncated else ""
        wrote = f", sequence {self.changes.sequence}" if self.changes else ""
        return f"<CypherResult: {self.row_count} rows of {', '.join(self.columns)}{wrote}{more}>"

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self))}</p>" + _html(self.columns, self.rows[:_SHOWN_ROWS], len(self.rows))


def _html(columns: Sequence[str], rows: Iterable[Sequence[Any]], count: int) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    more = f"<p>… and {count - _SHOWN_ROWS:,} more</p>" if count > _SHOWN_ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cell(value: Any) -> str:
    text = str(value)
    return f"<td>{escape(text if len(text) <= _SHOWN_TEXT else text[:_SHOWN_TEXT] + '…')}</td>"
