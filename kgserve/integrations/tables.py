"""pandas and Arrow: tables of nodes and edges as lines of an import."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kgserve.client.import_rows import (
    TRAVERSAL_EDGE_FIELDS,
    TRAVERSAL_NODE_FIELDS,
    ImportRowConverter,
    ImportRowPlace,
)
from kgserve.errors import InvalidInput
from kgserve.graph.request_bodies import EdgeNdjsonLine, NodeNdjsonLine

if TYPE_CHECKING:
    import pandas as pd

_ARROW_BATCH_ROWS = 10_000
_EDGE_COLUMN_SYNONYMS = {"source": "from", "target": "to"}
_TRAVERSAL_NODE_COLUMNS = {"depth", "version", "sequence", "store", "missing"}
_SCORE_COLUMNS = (
    frozenset({"score", "keyword_score", "semantic_score", "hops"}),
    frozenset({"score", "queries_matched"}),
)
_TRAVERSAL_EDGE_COLUMNS = {"version", "sequence", "store", "to_graph"}


def from_arrow(
    nodes: pa.Table | pa.RecordBatchReader | None = None, edges: pa.Table | pa.RecordBatchReader | None = None
) -> list[NodeNdjsonLine | EdgeNdjsonLine]:
    """Return the rows of Arrow tables or readers of batches as lines for `Store.import_`, nodes first.

    Columns are fields of the exchange format: `id`, `type`, `content`, `attributes` (maps or JSON text) and so on for
    nodes; `from` and `to` (or `source` and `target`), `relation_type`, `weight` and so on for edges. All other columns
    become attributes. Null and NaN are empty cells. What `to_arrow` of a traversal or a
    search returns can be written again.

    Raises InvalidInput, whose message and `errors` name rows, counted from 0, and columns.
    """
    return _convert_tables(
        None if nodes is None else (nodes.schema.names, _arrow_rows("nodes", nodes)),
        None if edges is None else (edges.schema.names, _arrow_rows("edges", edges)),
    )


def from_pandas(
    nodes: pd.DataFrame | None = None, edges: pd.DataFrame | None = None
) -> list[NodeNdjsonLine | EdgeNdjsonLine]:
    """Return the rows of DataFrames as lines for `Store.import_`, nodes first.

    Columns are as for `from_arrow`; the index is not written. NaN, NaT and NA are empty cells. What `to_df` of a
    traversal or a search returns can be written again.

    Raises InvalidInput, whose message and `errors` name rows, counted from 0 as by `iloc`, and columns.
    """
    return _convert_tables(
        None if nodes is None else (list(nodes.columns), _pandas_rows(nodes)),
        None if edges is None else (list(edges.columns), _pandas_rows(edges)),
    )


_Table = tuple[Sequence[Any], Iterable[Sequence[Any]]]


def _convert_tables(nodes: _Table | None, edges: _Table | None) -> list[NodeNdjsonLine | EdgeNdjsonLine]:
    converter = ImportRowConverter()
    if nodes is not None:
        columns, rows = nodes
        _check_columns("nodes", columns, ("id",))
        _add_rows("nodes", columns, rows, _answer_columns(set(columns)), converter)
    if edges is not None:
        names, rows = edges
        columns: Sequence[Any] = [_EDGE_COLUMN_SYNONYMS.get(name, name) for name in names]
        _check_columns("edges", columns, ("from", "to", "relation_type"))
        dropped = TRAVERSAL_EDGE_FIELDS if set(columns) >= _TRAVERSAL_EDGE_COLUMNS else frozenset[str]()
        _add_rows("edges", columns, rows, dropped, converter)
    return converter.finish()


def _answer_columns(columns: set[Any]) -> frozenset[str]:
    """Return the columns of a walk's or a search's table that no import takes; none for other tables."""
    if columns >= _TRAVERSAL_NODE_COLUMNS:
        return TRAVERSAL_NODE_FIELDS
    return next((scores for scores in _SCORE_COLUMNS if columns >= scores), frozenset())


def _add_rows(
    table: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    dropped: frozenset[str],
    converter: ImportRowConverter,
) -> None:
    add = converter.add_node if table == "nodes" else converter.add_edge
    stores: set[str] = set()
    for number, row in enumerate(rows):
        cells = dict(zip(columns, row, strict=True))
        if "store" in dropped and isinstance(store := cells["store"], str):
            stores.add(store)
        place = ImportRowPlace(f"{table}[{number}]", f"{table} row {number}", "column")
        add(place, {name: cell for name, cell in cells.items() if name not in dropped})
    if len(stores) > 1:
        raise InvalidInput(
            f"{table} are of several stores ({', '.join(sorted(stores))}); import those of one at a time"
        )


def _check_columns(table: str, columns: Sequence[Any], needed: tuple[str, ...]) -> None:
    for column in columns:
        if not isinstance(column, str):
            raise InvalidInput(f"{table}: column {column!r} is not text; rename it")
        if columns.count(column) > 1:
            raise InvalidInput(f"{table}: column {column!r} occurs twice; rename or drop one of them")
    if missing := [name for name in needed if name not in columns]:
        raise InvalidInput(f"{table}: the columns {', '.join(missing)} are missing; there are {', '.join(columns)}")


def _pandas_rows(frame: pd.DataFrame) -> Iterable[Sequence[Any]]:
    return frame.astype(object).where(frame.notna(), None).itertuples(index=False, name=None)


def _arrow_rows(table: str, source: pa.Table | pa.RecordBatchReader) -> Iterator[Sequence[Any]]:
    content = source.read_all() if isinstance(source, pa.RecordBatchReader) else source
    # Python's times have no nanoseconds.
    columns = [
        column.cast(pa.timestamp("us", tz=column.type.tz), safe=False) if pa.types.is_timestamp(column.type) else column
        for column in content.columns
    ]
    names, begun = content.column_names, 0
    for batch in pa.Table.from_arrays(columns, names=names).to_batches(_ARROW_BATCH_ROWS):
        cells = (_arrow_cells(*given, table, begun) for given in zip(names, batch.columns, strict=True))
        yield from zip(*cells, strict=True)
        begun += batch.num_rows


def _arrow_cells(name: str, column: pa.Array, table: str, begun: int) -> list[Any]:
    """Return the values of a column. ``begun`` is the number of its first row."""
    try:
        cells = column.to_pylist(maps_as_pydicts="strict")
    except KeyError:
        row = begun + next(number for number, cell in enumerate(column) if _repeats_key(cell))
        fault = ImportRowPlace(f"{table}[{row}]", f"{table} row {row}", "column").fault(name, "a map has a key twice")
        raise InvalidInput(fault.message, (fault,)) from None
    return [None if cell != cell else cell for cell in cells] if pa.types.is_floating(column.type) else cells  # noqa: PLR0124 - NaN


def _repeats_key(cell: pa.Scalar) -> bool:
    try:
        cell.as_py(maps_as_pydicts="strict")
    except KeyError:
        return True
    return False
