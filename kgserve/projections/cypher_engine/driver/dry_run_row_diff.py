"""Comparison of an engine file's rows before and after a statement of a dry run.

A read-only transaction opened before the statement sees the previous rows. For each row the comparison reads its table
offset (stable for life), its version, and each column that may differ: 64-bit hashes of texts and lists, plain values
of other types.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, LiteralString, TypeAlias

import msgspec
import numpy as np

from kgserve.cypher.write_analysis import StatementWriteBounds
from kgserve.platform.lazy_pyarrow import pa, pc
from kgserve.projections.cypher_engine.driver import bulk_copy
from kgserve.projections.cypher_engine.driver.prepared_statement_session import PreparedStatementSession
from kgserve.projections.cypher_engine.driver.row_to_engine_conversion import (
    QueryVariantsByColumnSet,
    build_edge_queries_by_column_set,
    build_node_queries_by_column_set,
)
from kgserve.projections.cypher_engine.engine.protocol import (
    ChangedRow,
    CompareDryRunRowsRequest,
    DryRunChangesReply,
    ScratchCopyUnreliable,
    StatementRowChanges,
)
from kgserve.storage.journal import snapshot
from kgserve.storage.model.node_edge_fields import (
    EDGE,
    EDGE_ENDPOINTS,
    INTEGER_LIST_TYPE,
    NODE,
    STRING_LIST_TYPE,
    STRING_TYPE,
    RowField,
    get_row_field_names,
)
from kgserve.storage.model.node_edge_rows import EdgeKey


class RowDiffQueries(msgspec.Struct, frozen=True):
    """Cypher queries to diff one table in a dry run: fingerprints, rows by offset, rows without a version."""

    look: LiteralString
    columns: Mapping[str, LiteralString]
    at: QueryVariantsByColumnSet
    new: QueryVariantsByColumnSet


def _columns(row: LiteralString, fields: tuple[RowField, ...]) -> dict[str, LiteralString]:
    return {
        field.name: _fingerprint_expression(f"{row}.{field.name}", field) for field in fields if field.name != "version"
    }


def _fingerprint_expression(value: LiteralString, field: RowField) -> LiteralString:
    if field.type in {STRING_LIST_TYPE, INTEGER_LIST_TYPE}:
        # An empty list hashes like null.
        return f"hash({value}), size({value})"
    return f"hash({value})" if field.type is STRING_TYPE else value


NODE_LOOKUP = RowDiffQueries(
    "MATCH (e:Entity) RETURN offset(id(e)), e.version",
    _columns("e", NODE.whole[1:]),
    build_node_queries_by_column_set("MATCH (e:Entity) WHERE offset(id(e)) IN $offsets RETURN"),
    build_node_queries_by_column_set("MATCH (e:Entity) WHERE e.version IS NULL RETURN"),
)
EDGE_LOOKUP = RowDiffQueries(
    "MATCH (x:Entity)-[k:RELATES_TO]->(y:Entity) RETURN offset(id(k)), k.version",
    _columns("k", EDGE.whole[EDGE_ENDPOINTS:]),
    build_edge_queries_by_column_set(
        "MATCH (x:Entity)-[k:RELATES_TO]->(y:Entity) WHERE offset(id(k)) IN $offsets RETURN x.id, y.id,"
    ),
    build_edge_queries_by_column_set(
        "MATCH (x:Entity)-[k:RELATES_TO]->(y:Entity) WHERE k.version IS NULL RETURN x.id, y.id,"
    ),
)
_MATCH_TRIAL_NODE_COUNT = "MATCH (e:Entity) RETURN count(*)"
_MATCH_EDGES_BACKWARDS = "MATCH (x:Entity)<-[k:RELATES_TO]-(y:Entity) RETURN offset(id(k))"


class RowFingerprints(msgspec.Struct, frozen=True):
    """Fingerprints of all rows, in the order of their table offsets."""

    places: np.ndarray[Any, Any]
    table: pa.Table

    @property
    def has_no_duplicates(self) -> bool:
        """True if the engine returned no row twice."""
        return bool((self.places[1:] > self.places[:-1]).all())


class ChangedRowOffsets(msgspec.Struct, frozen=True):
    """Table offsets of changed or deleted rows (``before``) and of changed or new rows (``now``)."""

    before: list[int]
    now: list[int]


def read_row_fingerprints(
    session: PreparedStatementSession, kind: RowDiffQueries, columns: Collection[str]
) -> RowFingerprints:
    """Return the versions and the fingerprints of the given columns of all rows."""
    wanted: list[LiteralString] = [kind.look, *(text for name, text in kind.columns.items() if name in columns)]
    query: LiteralString = ", ".join(wanted)
    table = session.arrow(query)
    places = table.column(0).to_numpy()
    order = np.argsort(places, kind="stable")
    return RowFingerprints(places[order], table.take(pa.array(order)).remove_column(0))


def find_changed_row_offsets(before: RowFingerprints, now: RowFingerprints) -> ChangedRowOffsets:
    """Return the table offsets at which two fingerprints of the same columns differ."""
    stays, stayed = np.isin(before.places, now.places), np.isin(now.places, before.places)
    was, is_now = before.table.filter(pa.array(stays)), now.table.filter(pa.array(stayed))
    other = np.zeros(was.num_rows, np.bool_)
    for one, two in zip(was.columns, is_now.columns, strict=True):
        other |= mark_column_differences(one, two).to_numpy().astype(np.bool_)
    changed = before.places[stays][other]
    return ChangedRowOffsets(
        np.concatenate((before.places[~stays], changed)).tolist(),
        np.concatenate((now.places[~stayed], changed)).tolist(),
    )


def mark_column_differences(one: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return where two columns differ; null equals null, and NaN differs from itself."""
    one_missing = pc.xor(pc.is_null(one), pc.is_null(other))
    return pc.or_(one_missing, pc.fill_null(pc.not_equal(one, other), fill_value=False))


def count_nodes_in_session(session: PreparedStatementSession) -> int:
    """Return the number of nodes."""
    return session.rows(_MATCH_TRIAL_NODE_COUNT)[0][0]


def read_rows_at_table_offsets(
    session: PreparedStatementSession, kind: RowDiffQueries, places: Sequence[int]
) -> pa.Table:
    """Return the rows at the given table offsets, at least one, with all columns. Time grows with their number."""
    return session.arrow(kind.at.text(session), {"offsets": places})


def read_rows_created_by_statement(session: PreparedStatementSession, kind: RowDiffQueries) -> pa.Table:
    """Return the rows that the dry-run statement created: those that have no version yet."""
    return session.arrow(kind.new.text(session))


def are_edges_equal_in_both_directions(session: PreparedStatementSession, edges: RowFingerprints) -> bool:
    """Return whether edges scanned backward, from targets, equal those scanned forward, from sources.

    A DETACH may leave some behind.
    """
    backwards = np.sort(session.arrow(_MATCH_EDGES_BACKWARDS).column(0).to_numpy())
    return np.array_equal(backwards, edges.places)


MAX_FETCHED_ROWS = 10_000
MAX_COMPARED_PAIRS = 100_000_000
"""Above these limits (offsets fetched, and rows times offsets scanned) all rows are read instead."""
_NODE_KEY = ("id",)
_EDGE_KEY = ("source", "target", "relation_type")
_BEFORE = "_before"
_NODE_COLUMN_NAMES = get_row_field_names(NODE.whole)
_EDGE_COLUMN_NAMES = get_row_field_names(EDGE.whole)


class DryRunRowComparison:
    """Comparison of a session's uncommitted rows with an earlier read transaction."""

    def __init__(
        self, session: PreparedStatementSession, before: PreparedStatementSession, asked: CompareDryRunRowsRequest
    ) -> None:
        self._session = session
        self._before = before
        self._asked = asked
        self._is_sound = True

    def find_row_changes(self) -> DryRunChangesReply:
        """Return the changes. Raises ScratchCopyUnreliable if the file is unreliable, which a new file never is."""
        reach = self._asked.reach
        nodes, nodes_gone = _compare(*self._tables(NODE_LOOKUP, reach, self._asked.nodes), _NODE_KEY)
        before, now = self._tables(EDGE_LOOKUP, reach, self._asked.edges)
        edges, edges_gone = _compare(before, now, _EDGE_KEY)
        found = StatementRowChanges(
            nodes=nodes,
            edges=edges,
            nodes_gone=[key[0] for key in nodes_gone],
            edges_gone=[(key[0], key[1], key[2]) for key in edges_gone],
            doubled=_duplicate_edge_keys(now),
        )
        return DryRunChangesReply(found, self._is_sound)

    def _tables(self, kind: RowDiffQueries, reach: StatementWriteBounds, count: int) -> _Tables:
        """Return rows before and after the statement, including at least all that differ."""
        names_version = reach.may_name("version")
        if kind is EDGE_LOOKUP and not reach.relations:
            return _empty_tables(kind)
        if reach.creates and names_version:
            if not self._agrees(kind, reach, read_row_fingerprints(self._session, kind, ())):
                self._mark_unsound()
            return self._full_tables(kind)
        columns = {name for name in kind.columns if reach.may_set(name)}
        if columns or (reach.sets and names_version):
            return self._changed_tables(kind, columns, reach, count)
        if reach.deletes:
            # Without new nodes, the node count shows whether any was deleted. The edge count may include one left
            # behind.
            is_same = kind is NODE_LOOKUP and not reach.creates and count_nodes_in_session(self._session) == count
            return _empty_tables(kind) if is_same else self._changed_tables(kind, columns, reach, count)
        if reach.creates:
            new = _comparable(read_rows_created_by_statement(self._session, kind), kind)
            return new.slice(0, 0), new
        return _empty_tables(kind)

    def _changed_tables(
        self, kind: RowDiffQueries, columns: set[str], reach: StatementWriteBounds, count: int
    ) -> _Tables:
        before, now = (
            read_row_fingerprints(self._before, kind, columns),
            read_row_fingerprints(self._session, kind, columns),
        )
        if not (
            before.has_no_duplicates
            and now.has_no_duplicates
            and len(before.places) == count
            and self._agrees(kind, reach, now)
        ):
            self._mark_unsound()
            return self._full_tables(kind)
        found = find_changed_row_offsets(before, now)
        most = max(len(found.before), len(found.now))
        if most > MAX_FETCHED_ROWS or most * count > MAX_COMPARED_PAIRS:
            return self._full_tables(kind)
        return self._fetch(kind, found) if most else _empty_tables(kind)

    def _agrees(self, kind: RowDiffQueries, reach: StatementWriteBounds, now: RowFingerprints) -> bool:
        return kind is NODE_LOOKUP or not reach.deletes or are_edges_equal_in_both_directions(self._session, now)

    def _mark_unsound(self) -> None:
        if not self._asked.new:
            raise ScratchCopyUnreliable
        self._is_sound = False

    def _fetch(self, kind: RowDiffQueries, found: ChangedRowOffsets) -> _Tables:
        if not found.before:
            new = _comparable(read_rows_at_table_offsets(self._session, kind, found.now), kind)
            return new.slice(0, 0), new
        before = _comparable(read_rows_at_table_offsets(self._before, kind, found.before), kind)
        now = (
            _comparable(read_rows_at_table_offsets(self._session, kind, found.now), kind)
            if found.now
            else before.slice(0, 0)
        )
        return before, now

    def _full_tables(self, kind: RowDiffQueries) -> _Tables:
        write = bulk_copy.export_nodes_to_parquet if kind is NODE_LOOKUP else bulk_copy.export_engine_edges_to_parquet
        name = snapshot.NODES_FILE if kind is NODE_LOOKUP else snapshot.EDGES_FILE
        tables: list[pa.Table] = []
        for session in (self._before, self._session):
            folder = _empty_folder(Path(self._asked.folder) / "rows")
            write(session, folder)
            tables.append(_comparable(snapshot.read_snapshot_table(folder / name), kind))
            shutil.rmtree(folder)
        return tables[0], tables[1]


_Tables: TypeAlias = "tuple[pa.Table, pa.Table]"


def _empty_folder(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _fields(kind: RowDiffQueries) -> tuple[str, ...]:
    return _NODE_COLUMN_NAMES if kind is NODE_LOOKUP else _EDGE_COLUMN_NAMES


def _comparable(rows: pa.Table, kind: RowDiffQueries) -> pa.Table:
    """Convert times to integers, because some have no Python value, and lists to JSON, which joins require."""
    table = rows.rename_columns(_fields(kind))
    for place, column in enumerate(table.columns):
        if pa.types.is_timestamp(column.type):
            table = table.set_column(place, table.field(place).name, column.cast(pa.int64()))
        elif pa.types.is_list(column.type):
            table = table.set_column(place, table.field(place).name, pa.chunked_array([_as_json(column)]))
    return table


def _as_json(column: pa.ChunkedArray) -> pa.Array:
    if column.null_count == len(column):
        return pa.nulls(len(column), pa.string())
    texts = (None if value is None else msgspec.json.encode(value).decode() for value in column.to_pylist())
    return pa.array(texts, pa.string())


def _compare(before: pa.Table, now: pa.Table, key: tuple[str, ...]) -> tuple[list[ChangedRow], list[list[str]]]:
    """Return rows of ``now`` that are new or changed, and keys of ``before`` that are missing from ``now``."""
    joined = now.join(
        before, keys=list(key), join_type="full outer", right_suffix=_BEFORE, right_keys=list(key), coalesce_keys=False
    )
    new = pc.is_null(joined[key[0] + _BEFORE])
    gone = pc.is_null(joined[key[0]])
    other = new
    for name in now.column_names:
        if name not in key:
            other = pc.or_(other, mark_column_differences(joined[name], joined[name + _BEFORE]))
    changed = joined.filter(pc.and_(other, pc.invert(gone))).to_pylist()
    lost = joined.filter(gone).select([name + _BEFORE for name in key]).to_pylist()
    return [_changed(row, now.column_names, key) for row in changed], [list(row.values()) for row in lost]


def _changed(row: dict[str, Any], fields: list[str], key: tuple[str, ...]) -> ChangedRow:
    now = {name: row[name] for name in fields}
    was_there = row[key[0] + _BEFORE] is not None
    return ChangedRow(now, {name: row[name + _BEFORE] for name in fields} if was_there else None)


def _empty_tables(kind: RowDiffQueries) -> _Tables:
    none = pa.table({name: pa.array([], pa.string()) for name in _fields(kind)})
    return none, none


def _duplicate_edge_keys(edges: pa.Table) -> list[EdgeKey]:
    counted = edges.group_by(list(_EDGE_KEY)).aggregate([([], "count_all")])
    many = counted.filter(pc.greater(counted["count_all"], 1))
    return [(row["source"], row["target"], row["relation_type"]) for row in many.to_pylist()]
