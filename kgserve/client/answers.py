"""Answers with more to them than their fields: gone through, turned into graphs and tables, and shown to people."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from html import escape
from itertools import starmap
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

import msgspec
from typing_extensions import override

from kgserve.graph import answers

if TYPE_CHECKING:
    import networkx as nx
    import pyarrow as pa

H = TypeVar("H", answers.SearchHit, answers.BatchHit)

_MAX_DISPLAYED_ROWS = 20
_MAX_HTML_CELL_CHARS = 200
_MAX_TEXT_CELL_CHARS = 60


class Table(NamedTuple):
    """Columns and rows, of which the first are shown."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def lines(self) -> Iterator[str]:
        """The head and the first rows, one line each, in columns that are as wide as they must be."""
        cells = [[_one_line(cell) for cell in row] for row in (self.columns, *self.rows[:_MAX_DISPLAYED_ROWS])]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for row in cells:
            yield "  " + "  ".join(starmap(str.ljust, zip(row, widths, strict=True))).rstrip()
        if self._more:
            yield f"  … and {self._more:,} more"

    def html(self) -> str:
        """The same for a notebook, with longer texts."""
        head = "".join(f"<th>{escape(column)}</th>" for column in self.columns)
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in self.rows[:_MAX_DISPLAYED_ROWS])
        more = f"<p>… and {self._more:,} more</p>" if self._more else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"

    @property
    def _more(self) -> int:
        return max(len(self.rows) - _MAX_DISPLAYED_ROWS, 0)


class Displayed:
    """An answer that is shown as a line about it and tables."""

    __slots__ = ()

    @abstractmethod
    def _about(self) -> str:
        """What it is, in a few words."""

    @abstractmethod
    def _tables(self) -> Sequence[Table]:
        """What is in it."""

    @override
    def __repr__(self) -> str:
        lines = (line for table in self._tables() if table.rows for line in table.lines())
        return "\n".join([self._head(), *lines])

    def _repr_html_(self) -> str:
        return f"<p>{escape(self._head())}</p>" + "".join(table.html() for table in self._tables() if table.rows)

    def _head(self) -> str:
        return f"<{type(self).__name__}: {self._about()}>"


class Tabular(Displayed):
    """An answer that is one table."""

    __slots__ = ()

    @abstractmethod
    def to_arrow(self) -> pa.Table:
        """The table."""

    def to_df(self) -> Any:
        """The same as a DataFrame of pandas. Raises ImportError when pandas is not installed."""
        return _frame(self.to_arrow())


class HitList(Tabular, Generic[H]):
    """Hits, best first. Its length is their number, and going through it gives them."""

    __slots__ = ()
    hits: list[H]

    def __len__(self) -> int:
        return len(self.hits)

    def __iter__(self) -> Iterator[H]:
        return iter(self.hits)

    @override
    def _tables(self) -> tuple[Table]:
        rows = [(hit.score, hit.node.id, hit.node.type, hit.node.content) for hit in self.hits]
        return (Table(("score", "id", "type", "content"), rows),)


def counted(number: int, what: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _one_line(value: Any) -> str:
    """A cell of a terminal: without line ends and what moves the cursor."""
    text = _text(value)
    text = " ".join((text[: 4 * _MAX_TEXT_CELL_CHARS] if len(text) > 4 * _MAX_TEXT_CELL_CHARS else text).split())
    printable = "".join(sign if sign.isprintable() else "·" for sign in text)
    return printable if len(printable) <= _MAX_TEXT_CELL_CHARS else printable[: _MAX_TEXT_CELL_CHARS - 1] + "…"


def _cell(value: Any) -> str:
    text = _text(value)
    return f"<td>{escape(text if len(text) <= _MAX_HTML_CELL_CHARS else text[:_MAX_HTML_CELL_CHARS] + '…')}</td>"


def _text(value: Any) -> str:
    """A value; nothing for what is not there, and of a score the digits that tell hits apart."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class Traversal(Displayed, answers.TraverseAnswer, kw_only=True):
    """The nodes reached, nearest first, and all edges between them. ``count`` is the number of nodes.

    Its length is that number, and going through it gives the nodes.
    """

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[answers.ReachedNode]:
        return iter(self.nodes)

    def to_networkx(self) -> nx.MultiDiGraph[str | tuple[str, str]]:
        """The graph: nodes by id, edges with their relation type as key, every other field as data of its own name.

        With `follow_symlinks` nodes are pairs of store and id. What is missing has `missing`, and nothing else.

        Raises ImportError when networkx is not installed.
        """
        try:
            import networkx as nx  # noqa: PLC0415 - for those who ask for it
        except ModuleNotFoundError as error:
            if error.name != "networkx":
                raise
            raise ImportError(
                "to_networkx() needs networkx, which is not installed: pip install 'kgserve[networkx]'",
                name="networkx",
            ) from error
        graph: nx.MultiDiGraph[str | tuple[str, str]]
        graph = nx.MultiDiGraph(sequence=self.sequence, truncated=self.truncated)
        for node in self.nodes:
            data = msgspec.structs.asdict(node)
            graph.add_node(_place(node.store, data.pop("id")), **data)
        for edge in self.edges:
            data = msgspec.structs.asdict(edge)
            ends = _place(edge.store, data.pop("source")), _place(edge.to_graph or edge.store, data.pop("target"))
            graph.add_edge(*ends, key=edge.relation_type, **data)
        return graph

    def to_arrow(self) -> tuple[pa.Table, pa.Table]:
        """Two tables, nodes and edges. Attributes are JSON text; times of nodes are timestamps in UTC."""
        from kgserve.client.tables import edges_table, nodes_table  # noqa: PLC0415 - pyarrow takes its time

        return nodes_table(self.nodes), edges_table(self.edges)

    def to_df(self, rows: Literal["nodes", "edges"] = "nodes") -> Any:
        """The nodes, or the edges, as a DataFrame of pandas. Raises ImportError when pandas is not installed."""
        nodes, edges = self.to_arrow()
        return _frame(edges if rows == "edges" else nodes)

    @override
    def _about(self) -> str:
        more = ", truncated" if self.truncated else ""
        return f"{counted(len(self.nodes), 'node')}, {counted(len(self.edges), 'edge')}, sequence {self.sequence}{more}"

    @override
    def _tables(self) -> tuple[Table, Table]:
        if any(node.store for node in self.nodes):
            return self._through_stores()
        nodes = [(node.depth, node.id, node.type, node.content) for node in self.nodes]
        edges = [(edge.source, edge.relation_type, edge.target, edge.weight) for edge in self.edges]
        columns = ("from", "relation_type", "to", "weight")
        return Table(("depth", "id", "type", "content"), nodes), Table(columns, edges)

    def _through_stores(self) -> tuple[Table, Table]:
        nodes = [
            (node.depth, node.store, node.id, node.type, "(missing)" if node.missing else node.content)
            for node in self.nodes
        ]
        edges = [
            (edge.store, edge.source, edge.relation_type, edge.to_graph or None, edge.target, edge.weight)
            for edge in self.edges
        ]
        columns = ("store", "from", "relation_type", "to_graph", "to", "weight")
        return Table(("depth", "store", "id", "type", "content"), nodes), Table(columns, edges)


class Hits(HitList[answers.SearchHit], answers.SearchAnswer, kw_only=True):
    """What a search found, best first. Its length is the number of hits, and going through it gives them."""

    @override
    def to_arrow(self) -> pa.Table:
        """One table with a row for each hit. Attributes are JSON text."""
        from kgserve.client.tables import hits_table  # noqa: PLC0415 - pyarrow takes its time

        return hits_table(self.hits)

    @override
    def _about(self) -> str:
        return f"{counted(len(self.hits), 'hit')}, index at sequence {self.index_sequence}{_degraded(self.degraded)}"


class BatchHits(HitList[answers.BatchHit], answers.BatchSearchAnswer, kw_only=True):
    """What several searches found together, best first. Its length is the number of hits, as for `Hits`."""

    @override
    def to_arrow(self) -> pa.Table:
        """One table with a row for each hit. Attributes are JSON text."""
        from kgserve.client.tables import batch_table  # noqa: PLC0415 - pyarrow takes its time

        return batch_table(self.hits)

    @override
    def _about(self) -> str:
        return f"{counted(len(self.hits), 'hit')} of {self.query_count} queries{_degraded(self.degraded)}"


class CypherResult(Tabular, answers.CypherAnswer, kw_only=True):
    """The rows of a statement. Its length is their number, and going through it gives them, as lists."""

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[list[Any]]:
        return iter(self.rows)

    @override
    def to_arrow(self) -> pa.Table:
        """One table. Columns whose values have no common type of Arrow's are JSON text."""
        from kgserve.client.tables import rows_table  # noqa: PLC0415 - pyarrow takes its time

        return rows_table(self.columns, self.types, self.rows)

    def records(self) -> list[dict[str, Any]]:
        """The rows as dictionaries by column; of two columns with the same name the last one counts."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    @override
    def _about(self) -> str:
        more = ", truncated" if self.truncated else ""
        wrote = f", sequence {self.changes.sequence}" if self.changes else ""
        return f"{counted(self.row_count, 'row')} of {', '.join(self.columns)}{wrote}{more}"

    @override
    def _tables(self) -> tuple[Table]:
        return (Table(self.columns, self.rows),)


def _place(store: str | msgspec.UnsetType, node_id: str) -> str | tuple[str, str]:
    """A node of a graph; where edges into other stores were followed, with its store."""
    return (store, node_id) if store else node_id


def _degraded(degraded: bool) -> str:
    return ", degraded: by words alone" if degraded else ""


def _frame(table: pa.Table) -> Any:
    try:
        return table.to_pandas()
    except ModuleNotFoundError as error:
        if error.name != "pandas":
            raise
        raise ImportError(
            "to_df() needs pandas, which is not installed: pip install pandas; to_arrow() does without", name="pandas"
        ) from None
