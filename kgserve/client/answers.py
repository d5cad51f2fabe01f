"""Answers with extra methods: iteration, conversion to graphs and tables, and display."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from html import escape
from itertools import starmap
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

import msgspec
from typing_extensions import override

from kgserve.client.cypher_values import collect_drawn_graph, format_cypher_value
from kgserve.client.graph_svg import DrawnEdge, DrawnNode, draw_graph_svg
from kgserve.graph import answers

if TYPE_CHECKING:
    import networkx as nx
    import pyarrow as pa

H = TypeVar("H", answers.SearchHit, answers.BatchSearchHit)

_MAX_DISPLAYED_ROWS = 20
_MAX_HTML_CELL_CHARS = 200
_MAX_TEXT_CELL_CHARS = 60


class DisplayTable(NamedTuple):
    """Table for display: columns and rows, of which only the first rows are shown."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def lines(self) -> Iterator[str]:
        """Yield the header and the first rows as aligned lines."""
        cells = [[_one_line(cell) for cell in row] for row in (self.columns, *self.rows[:_MAX_DISPLAYED_ROWS])]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for row in cells:
            yield "  " + "  ".join(starmap(str.ljust, zip(row, widths, strict=True))).rstrip()
        if self._more:
            yield f"  … and {self._more:,} more"

    def html(self) -> str:
        """Return the header and the first rows as HTML for a notebook."""
        head = "".join(f"<th>{escape(column)}</th>" for column in self.columns)
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in self.rows[:_MAX_DISPLAYED_ROWS])
        more = f"<p>… and {self._more:,} more</p>" if self._more else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"

    @property
    def _more(self) -> int:
        return max(len(self.rows) - _MAX_DISPLAYED_ROWS, 0)


class DisplayableAnswer:
    """Base of answers that are displayed as a summary line and tables, in a notebook with a drawing."""

    __slots__ = ()

    @abstractmethod
    def _about(self) -> str:
        """Return a short summary."""

    @abstractmethod
    def _tables(self) -> Sequence[DisplayTable]:
        """Return the tables to display."""

    @override
    def __repr__(self) -> str:
        lines = (line for table in self._tables() if table.rows for line in table.lines())
        return "\n".join([self._head(), *lines])

    def _repr_html_(self) -> str:
        tables = "".join(table.html() for table in self._tables() if table.rows)
        return f"<p>{escape(self._head())}</p>{self._drawing()}{tables}"

    def _drawing(self) -> str:
        """Return a graph as SVG, if the answer is one."""
        return ""

    def _head(self) -> str:
        return f"<{type(self).__name__}: {self._about()}>"


class TabularAnswer(DisplayableAnswer):
    """Base of answers that consist of one table."""

    __slots__ = ()

    @abstractmethod
    def to_arrow(self) -> pa.Table:
        """Return the answer as a pyarrow table."""

    def to_df(self) -> Any:
        """Return the answer as a pandas DataFrame. Raises ImportError when pandas is not installed."""
        return _frame(self.to_arrow())


class HitList(TabularAnswer, Generic[H]):
    """Hits, best first. Supports `len` and iteration."""

    __slots__ = ()
    hits: list[H]

    def __len__(self) -> int:
        return len(self.hits)

    def __iter__(self) -> Iterator[H]:
        return iter(self.hits)

    @override
    def _tables(self) -> tuple[DisplayTable]:
        rows = [(hit.score, hit.node.id, hit.node.type, hit.node.content) for hit in self.hits]
        return (DisplayTable(("score", "id", "type", "content"), rows),)


def count_noun(number: int, what: str) -> str:
    """Return a number with its noun: ``1 node``, ``2 nodes``."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _one_line(value: Any) -> str:
    """Return a cell's text on one line, without control characters."""
    text = _text(value)
    text = " ".join((text[: 4 * _MAX_TEXT_CELL_CHARS] if len(text) > 4 * _MAX_TEXT_CELL_CHARS else text).split())
    printable = "".join(sign if sign.isprintable() else "·" for sign in text)
    return printable if len(printable) <= _MAX_TEXT_CELL_CHARS else printable[: _MAX_TEXT_CELL_CHARS - 1] + "…"


def _cell(value: Any) -> str:
    text = _text(value)
    return f"<td>{escape(text if len(text) <= _MAX_HTML_CELL_CHARS else text[:_MAX_HTML_CELL_CHARS] + '…')}</td>"


def _text(value: Any) -> str:
    """Return a value as text: empty for None, four significant digits for a float."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class Traversal(DisplayableAnswer, answers.TraverseAnswer, kw_only=True):
    """Result of a traversal: reached nodes, nearest first, and all edges between them. ``count``: number of nodes.

    Supports `len` and iteration over the nodes.
    """

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[answers.ReachedNode]:
        return iter(self.nodes)

    def to_networkx(self) -> nx.MultiDiGraph[str | tuple[str, str]]:
        """Return the graph as a networkx MultiDiGraph.

        Nodes are keyed by id, edges by relation type; all other fields that are set are data of the same name. With
        `follow_symlinks`, node keys are pairs of store and id. Missing nodes have `missing` and no other data.
        """
        try:
            import networkx as nx  # noqa: PLC0415 - optional dependency
        except ModuleNotFoundError as error:
            if error.name != "networkx":
                raise
            raise ImportError(
                "to_networkx() requires networkx: pip install 'kgserve[networkx]'",
                name="networkx",
            ) from error
        graph: nx.MultiDiGraph[str | tuple[str, str]]
        graph = nx.MultiDiGraph(sequence=self.sequence, truncated=self.truncated)
        for node in self.nodes:
            data = _set_fields(node)
            graph.add_node(_node_key(node.store, data.pop("id")), **data)
        for edge in self.edges:
            data = _set_fields(edge)
            del data["source"], data["target"]
            graph.add_edge(*_edge_ends(edge), key=edge.relation_type, **data)
        return graph

    def to_arrow(self) -> tuple[pa.Table, pa.Table]:
        """Return the nodes and the edges as two tables. Attributes are JSON text; times are timestamps in UTC."""
        from kgserve.client.tables import build_edges_arrow_table, build_nodes_arrow_table  # noqa: PLC0415 - importing pyarrow is slow

        return build_nodes_arrow_table(self.nodes), build_edges_arrow_table(self.edges)

    def to_df(self, rows: Literal["nodes", "edges"] = "nodes") -> Any:
        """Return the nodes or the edges as a pandas DataFrame. Raises ImportError when pandas is not installed."""
        nodes, edges = self.to_arrow()
        return _frame(edges if rows == "edges" else nodes)

    @override
    def _about(self) -> str:
        more = ", truncated" if self.truncated else ""
        nodes, edges = count_noun(len(self.nodes), "node"), count_noun(len(self.edges), "edge")
        return f"{nodes}, {edges}, sequence {self.sequence}{more}"

    @override
    def _tables(self) -> tuple[DisplayTable, DisplayTable]:
        if any(node.store for node in self.nodes):
            return self._through_stores()
        nodes = [(node.depth, node.id, node.type, node.content) for node in self.nodes]
        edges = [(edge.source, edge.relation_type, edge.target, edge.weight) for edge in self.edges]
        columns = ("from", "relation_type", "to", "weight")
        return DisplayTable(("depth", "id", "type", "content"), nodes), DisplayTable(columns, edges)

    @override
    def _drawing(self) -> str:
        nodes = [
            DrawnNode(_node_key(node.store, node.id), node.id, node.type, node.content, node.depth)
            for node in self.nodes
        ]
        return draw_graph_svg(nodes, [DrawnEdge(*_edge_ends(edge), edge.relation_type) for edge in self.edges])

    def _through_stores(self) -> tuple[DisplayTable, DisplayTable]:
        nodes = [
            (node.depth, node.store, node.id, node.type, "(missing)" if node.missing else node.content)
            for node in self.nodes
        ]
        edges = [
            (edge.store, edge.source, edge.relation_type, edge.to_graph or None, edge.target, edge.weight)
            for edge in self.edges
        ]
        columns = ("store", "from", "relation_type", "to_graph", "to", "weight")
        return DisplayTable(("depth", "store", "id", "type", "content"), nodes), DisplayTable(columns, edges)


class Hits(HitList[answers.SearchHit], answers.SearchAnswer, kw_only=True):
    """Hits of a search, best first. Supports `len` and iteration."""

    @override
    def to_arrow(self) -> pa.Table:
        from kgserve.client.tables import build_hits_arrow_table  # noqa: PLC0415 - importing pyarrow is slow

        return build_hits_arrow_table(self.hits)

    @override
    def _about(self) -> str:
        hits = f"{count_noun(len(self.hits), 'hit')}, index at sequence {self.index_sequence}"
        return f"{hits}{_degraded(self.degraded)}{_noticed(self.notice)}"


class BatchHits(HitList[answers.BatchSearchHit], answers.BatchSearchAnswer, kw_only=True):
    """Merged hits of several searches, best first. Supports `len` and iteration."""

    @override
    def to_arrow(self) -> pa.Table:
        from kgserve.client.tables import build_batch_hits_arrow_table  # noqa: PLC0415 - importing pyarrow is slow

        return build_batch_hits_arrow_table(self.hits)

    @override
    def _about(self) -> str:
        hits = f"{count_noun(len(self.hits), 'hit')} of {self.query_count} queries"
        return f"{hits}{_degraded(self.degraded)}{_noticed(self.notice)}"


class CypherResult(TabularAnswer, answers.CypherAnswer, kw_only=True):
    """Rows of a Cypher statement. Supports `len` and iteration; each row is a list."""

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[list[Any]]:
        return iter(self.rows)

    @override
    def to_arrow(self) -> pa.Table:
        from kgserve.client.tables import build_cypher_rows_arrow_table  # noqa: PLC0415 - importing pyarrow is slow

        return build_cypher_rows_arrow_table(self.columns, self.types, self.rows)

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as dictionaries by column name. For repeated names, the last column wins."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    @override
    def _about(self) -> str:
        more = ", truncated" if self.truncated else ""
        wrote = f", sequence {self.changes.sequence}" if self.changes else ""
        return f"{count_noun(self.row_count, 'row')} of {', '.join(self.columns)}{wrote}{more}"

    @override
    def _tables(self) -> tuple[DisplayTable]:
        return (DisplayTable(self.columns, [list(map(format_cypher_value, row)) for row in self.rows]),)

    @override
    def _drawing(self) -> str:
        return draw_graph_svg(*collect_drawn_graph(self.rows))


def _edge_ends(edge: answers.Edge) -> tuple[str | tuple[str, str], str | tuple[str, str]]:
    """Return the keys of an edge's nodes in a graph."""
    return _node_key(edge.store, edge.source), _node_key(edge.to_graph or edge.store, edge.target)


def _set_fields(answer: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of a node or an edge that are set."""
    return {name: value for name, value in msgspec.structs.asdict(answer).items() if value is not msgspec.UNSET}


def _node_key(store: str | msgspec.UnsetType, node_id: str) -> str | tuple[str, str]:
    """Return a node's key in a graph; with its store if edges into other stores were followed."""
    return (store, node_id) if store else node_id


def _degraded(degraded: bool) -> str:
    return ", degraded: keywords only" if degraded else ""


def _noticed(notice: str | None) -> str:
    return f"; {notice}" if notice else ""


def _frame(table: pa.Table) -> Any:
    try:
        from kgserve.client.tables import convert_arrow_table_to_frame  # noqa: PLC0415 - importing pyarrow is slow

        return convert_arrow_table_to_frame(table)
    except ModuleNotFoundError as error:
        if error.name != "pandas":
            raise
        raise ImportError(
            "to_df() requires pandas: pip install 'kgserve[pandas]'. Use to_arrow() without it", name="pandas"
        ) from None
