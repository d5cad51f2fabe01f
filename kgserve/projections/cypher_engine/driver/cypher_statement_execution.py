"""Execution of callers' statements: rows as plain JSON values, errors in the caller's terms.

The text has already passed `kgserve.cypher.guard`. Read statements still run in a read-only transaction.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any, LiteralString
from uuid import UUID

import numpy as np

from kgserve.cypher.analysis_context import ASSUMES_FEW_RELATIONS, ASSUMES_NO_SELF_LOOPS
from kgserve.cypher.column_assumptions import ASSUMES_LABELS, find_assumed_missing_attributes
from kgserve.cypher.guard import GuardedCypherStatement
from kgserve.cypher.interpreter.graph_view_interface import NO_LABEL
from kgserve.errors import FieldError, InvalidInput
from kgserve.platform.json_values import name_non_finite_float
from kgserve.platform.lazy_pyarrow import pa
from kgserve.platform.timestamps import format_rfc3339_timestamp
from kgserve.projections.cypher_engine.driver.error_translation import STATEMENT_ERRORS, translate_statement_error
from kgserve.projections.cypher_engine.driver.prepared_statement_session import (
    EngineFileFacts,
    PreparedStatementSession,
)
from kgserve.projections.cypher_engine.driver.row_to_engine_conversion import naive_utc_to_microseconds
from kgserve.projections.cypher_engine.driver.selected_engine_classes import INTERNAL, QueryResult
from kgserve.storage.model.node_edge_fields import NodeEdgeColumnSet
from kgserve.storage.model.node_edge_rows import NodeRow

_INTERNAL: dict[str, str] = dict(zip(("_ID", "_LABEL", "_SRC", "_DST", "_NODES", "_RELS"), INTERNAL, strict=True))


def _arrow_rows(table: pa.Table) -> list[list[Any]]:
    """Return all rows; nodes, relations and paths have the same keys as the engine's own values."""
    columns = [[value for chunk in column.chunks for value in _values(chunk)] for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def _values(array: pa.Array) -> list[Any]:
    kind = array.type
    if pa.types.is_timestamp(kind):
        return _moments(array, f"datetime64[{kind.unit}]", "Z")
    if pa.types.is_date32(kind):
        return _moments(array.cast(pa.int32()).cast(pa.int64()), "datetime64[D]", "")
    if pa.types.is_duration(kind):
        return [None if value is None else _duration(value) for value in array.cast(pa.int64()).to_pylist()]
    if pa.types.is_map(kind):
        return _maps(array)
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        return _lists(array)
    return _structs(array) if pa.types.is_struct(kind) else array.to_pylist()


def _moments(array: pa.Array, unit: str, zone: str) -> list[str | None]:
    """Return RFC 3339 texts where the year allows it: times with at least microseconds, dates without a time."""
    numbers = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    precise = unit if unit in {"datetime64[D]", "datetime64[ns]"} else "datetime64[us]"
    texts = np.datetime_as_string(numbers.astype(unit).astype(precise))
    valid = array.is_valid().to_pylist()
    return [f"{_signed(text)}{zone}" if is_valid else None for text, is_valid in zip(texts, valid, strict=True)]


def _signed(text: str) -> str:
    """Pad negative years to four digits, as NumPy does for all others."""
    if not text.startswith("-"):
        return text
    year, _, rest = text[1:].partition("-")
    return f"-{year.zfill(4)}-{rest}"


def _duration(microseconds: int) -> str:
    """Return an ISO 8601 duration in seconds."""
    return f"PT{microseconds / 1_000_000:.6f}S"


def _lists(array: pa.Array) -> list[list[Any] | None]:
    lengths = array.value_lengths().to_pylist() if pa.types.is_list(array.type) else [array.type.list_size] * len(array)
    return _split_lists(_values(array.flatten()), lengths, array.is_valid().to_pylist())


def _maps(array: pa.Array) -> list[dict[str, Any] | None]:
    entries = pa.ListArray.from_arrays(array.offsets, array.keys), pa.ListArray.from_arrays(array.offsets, array.items)
    keys, items = (_lists(part) for part in entries)
    pairs = zip(keys, items, array.is_valid().to_pylist(), strict=True)
    return [dict(zip(map(str, k or ()), i or (), strict=True)) if valid else None for k, i, valid in pairs]


def _structs(array: pa.Array) -> list[dict[str, Any] | None]:
    names = [_INTERNAL.get(str(field.name), str(field.name)) for field in array.type]
    valid = array.is_valid().to_pylist()
    # flatten() fails here: it assumes that a struct's fields are null exactly where the struct is.
    columns = [_realign(_values(array.field(number)), valid) for number in range(array.type.num_fields)]
    return [
        {name: column[place] for name, column in zip(names, columns, strict=True)} if valid[place] else None
        for place in range(len(array))
    ]


def _realign(values: list[Any], valid: list[bool]) -> list[Any]:
    """Realign struct fields with their rows: Kùzu omits the fields of null structs."""
    if len(values) == len(valid):
        return values
    left = iter(values)
    return [next(left) if is_valid else None for is_valid in valid]


def _split_lists(values: list[Any], lengths: list[int | None], valid: list[bool]) -> list[list[Any] | None]:
    found: list[list[Any] | None] = []
    position = 0
    for length, is_valid in zip(lengths, valid, strict=True):
        taken = (length or 0) if is_valid else 0
        found.append(values[position : position + taken] if is_valid else None)
        position += taken
    return found


_ID, _LABEL, _SOURCE, _TARGET, _NODES, _RELATIONS = INTERNAL
_ARROW_BATCH_ROWS = 10_000
_LINK_LABEL = "LINKS_TO"
_ENGINE_INT64_RANGE = range(-(1 << 63), 1 << 63)
_MATCH_NODE_IDS = "MATCH (e:Entity) WHERE offset(id(e)) IN $offsets RETURN offset(id(e)), e.id"
_MATCH_ALL_NODE_IDS = "MATCH (e:Entity) RETURN offset(id(e)), e.id"
_MATCH_LINK_TARGETS = "MATCH (e:Elsewhere) WHERE offset(id(e)) IN $offsets RETURN offset(id(e)), e.store, e.id"
_MATCH_NODE_COUNT = "MATCH (e:Entity) RETURN count(*)"

# Each lookup scans all nodes. Beyond this number of endpoints all ids are read at once, if they fit into memory.
MAX_NODE_ID_LOOKUPS = 3_000
MAX_CACHED_NODE_IDS = 500_000
MAX_TIMED_ROWS = 1_000_000
_TIME_TYPES = ("DATE", "TIMESTAMP", "INTERVAL")
# Type whose values need further lookups in the same transaction; that of paths contains its name.
_RELATION_TYPE = "REL"


class EngineStatementResult:
    """Open result of a statement; ``total`` is its number of rows."""

    def __init__(
        self,
        session: PreparedStatementSession,
        statement: GuardedCypherStatement,
        result: QueryResult,
        *,
        through_arrow: bool = False,
    ) -> None:
        """Wrap a result; set ``through_arrow`` if nodes may hold times outside Python's range, as after a write."""
        self._session = session
        self._statement = statement
        self._result = result
        self.columns: list[str] = result.get_column_names()
        self.types: list[str] = [str(name) for name in result.get_column_data_types()]
        self.total: int = result.get_num_tuples()
        self._names: dict[int, str] = {}
        self._link_targets: dict[int, tuple[str, str]] = {}
        self._looked_up = 0
        timed = through_arrow or any(time in kind for kind in self.types for time in _TIME_TYPES)
        self._rows = self._through_arrow() if timed else self._directly()

    def take(self, count: int) -> list[list[Any]]:
        """Return up to ``count`` further rows as JSON values; an empty list at the end.

        Raises InvalidInput for more than a million rows with times, which can only be fetched all at once.
        """
        try:
            rows = list(islice(self._rows, count))
        except STATEMENT_ERRORS as error:
            raise translate_statement_error(error, self._statement) from error
        self._load_endpoint_ids(rows)
        return [[self._plain(value) for value in row] for row in rows]

    def _directly(self) -> Iterator[list[Any]]:
        while self._result.has_next():
            yield list(self._result.get_next())

    def _through_arrow(self) -> Iterator[list[Any]]:
        if self.total > MAX_TIMED_ROWS:
            message = f"the result has {self.total} rows with times; add a LIMIT of at most {MAX_TIMED_ROWS}"
            raise InvalidInput(f"query: {message}", (FieldError("query", message),))
        if self.total:
            for batch in self._result.get_as_arrow(_ARROW_BATCH_ROWS).to_batches(_ARROW_BATCH_ROWS):
                yield from _arrow_rows(pa.Table.from_batches([batch]))

    def _load_endpoint_ids(self, rows: Iterable[list[Any]]) -> None:
        """Load the ids of the endpoints of relations; the engine returns only their table offsets."""
        offsets: set[int] = set()
        elsewhere: set[int] = set()
        for row in rows:
            for value in row:
                _collect(value, self._names, offsets, elsewhere)
        # A map built by the caller may look like a link in a file without link tables.
        if (elsewhere := elsewhere - self._link_targets.keys()) and self._session.width is NodeEdgeColumnSet.LINKS:
            found = self._session.rows(_MATCH_LINK_TARGETS, {"offsets": sorted(elsewhere)})
            self._link_targets.update((offset, (store, node_id)) for offset, store, node_id in found)
        unknown = sorted(offsets - self._names.keys())
        if not unknown:
            return
        self._looked_up += len(unknown)
        if self._looked_up > MAX_NODE_ID_LOOKUPS and self._session.rows(_MATCH_NODE_COUNT)[0][0] <= MAX_CACHED_NODE_IDS:
            found = self._session.arrow(_MATCH_ALL_NODE_IDS)
            self._names = dict(zip(found.column(0).to_pylist(), found.column(1).to_pylist(), strict=True))
        else:
            self._names.update(
                (offset, name) for offset, name in self._session.rows(_MATCH_NODE_IDS, {"offsets": unknown})
            )

    def _plain(self, value: Any) -> Any:
        match value:
            case None | bool() | int() | str():
                return value
            case float():
                return value if math.isfinite(value) else name_non_finite_float(value)
            case list() | tuple():
                return [self._plain(part) for part in value]
            case dict():
                return self._object(value)
            case Decimal():
                return _number(value)
            case _:
                return _text(value)

    def _object(self, value: dict[str, Any]) -> dict[str, Any]:
        if _is_path(value):
            return {
                "nodes": [self._plain(node) for node in value[_NODES]],
                "relations": [self._plain(relation) for relation in value[_RELATIONS]],
            }
        if _is_relation(value):
            return {"_label": value[_LABEL], **self._ends(value), **self._properties(value)}
        if _is_node(value):
            properties = self._properties(value)
            if value[_LABEL] == "Entity":
                # For patterns without labels the engine returns every node with the columns of all tables.
                properties = {name: properties[name] for name in NodeRow.__struct_fields__ if name in properties}
            elif value[_LABEL] == "Elsewhere":
                properties = {name: properties[name] for name in ("store", "id") if name in properties}
            return {"_label": value[_LABEL], **properties}
        return {str(name): self._plain(part) for name, part in value.items()}

    def _ends(self, value: dict[str, Any]) -> dict[str, Any]:
        source, target = _offset(value[_SOURCE]), _offset(value[_TARGET])
        if value[_LABEL] == _LINK_LABEL:
            store, node_id = self._link_targets.get(target, (None, None))
            return {"_from": self._names.get(source), "_to": node_id, "_to_graph": store}
        return {"_from": self._names.get(source), "_to": self._names.get(target)}

    def _properties(self, value: dict[str, Any]) -> dict[str, Any]:
        return {name: self._plain(part) for name, part in value.items() if name not in INTERNAL}


_INTERNAL_ID = {"offset", "table"}


_MATCH_SELF_LOOP_COUNT = "MATCH (a:Entity)-[r:RELATES_TO]->(a) RETURN count(*)"
_MATCH_LABEL_COUNT = "MATCH (n:Entity) WHERE n.type = $text RETURN count(*)"
_MATCH_ATTRIBUTE_COUNTS: tuple[tuple[bool, LiteralString], ...] = (
    (True, "MATCH (n:Entity) WHERE contains(n.attributes, $text) RETURN count(*)"),
    (False, "MATCH (:Entity)-[r:RELATES_TO]->(:Entity) WHERE contains(r.attributes, $text) RETURN count(*)"),
)
"""Counts of nodes, and of edges, whose attributes may contain a name."""
_MATCH_EDGE_COUNT = "MATCH (:Entity)-[r:RELATES_TO]->(:Entity) RETURN count(*)"
MAX_UNBOUNDED_PATH_HOPS = 30
"""Maximum number of relationships in a path without an upper bound, in both engines."""


def _check_assumptions(
    session: PreparedStatementSession, statement: GuardedCypherStatement, facts: EngineFileFacts
) -> None:
    """Raise InvalidInput if the store's data would make the engine answer the statement incorrectly."""
    message = _find_hidden_property(session, statement, facts)
    if ASSUMES_NO_SELF_LOOPS in statement.assumptions and facts.count(session, _MATCH_SELF_LOOP_COUNT):
        message = (
            "this store has relationships from a node to itself, which the engine matches twice if a pattern has"
            " no direction or may have length 0; add a direction, as in -[]->, and use *1.. instead of *0..; or exclude"
            " them with WHERE a.id <> b.id"
        )
    elif (
        ASSUMES_FEW_RELATIONS in statement.assumptions
        and facts.count(session, _MATCH_EDGE_COUNT) > MAX_UNBOUNDED_PATH_HOPS
    ):
        message = (
            f"the engine follows at most {MAX_UNBOUNDED_PATH_HOPS} relationships in a path, "
            "which may be too few here; add an upper"
            f" bound, such as -[*1..5]->"
        )
    if message:
        raise InvalidInput(f"query: {message}", (FieldError("query", message),))


def _find_hidden_property(
    session: PreparedStatementSession, statement: GuardedCypherStatement, facts: EngineFileFacts
) -> str:
    """Return what columns of the engine do not show of properties that a statement reads; empty if nothing."""
    if ASSUMES_LABELS in statement.assumptions and facts.count(session, _MATCH_LABEL_COUNT, NO_LABEL):
        return f"the engine shows the type {NO_LABEL!r} of nodes without label"
    for of_nodes, query in _MATCH_ATTRIBUTE_COUNTS:
        for name in find_assumed_missing_attributes(statement.assumptions, of_nodes=of_nodes):
            if facts.count(session, query, f'"{name}":'):
                return f"the engine does not show attributes named {name}"
    return ""


@contextmanager
def open_read_statement_result(
    session: PreparedStatementSession, statement: GuardedCypherStatement
) -> Generator[EngineStatementResult]:
    """Yield the result of a read statement. Raises errors from `kgserve.errors` in the caller's terms.

    A read-only transaction costs as much as a point query, so statements that have run in one are cached as read-only.
    """
    if statement.assumptions:
        _check_assumptions(session, statement, session.facts or EngineFileFacts())
    known = session.rerun_cached_statement(statement)
    if known is not None:
        with known:
            yield EngineStatementResult(session, statement, known)
        return
    session.run("BEGIN TRANSACTION READ ONLY")
    with session.run_guarded(statement) as result:
        cursor = EngineStatementResult(session, statement, result)
        yield cursor
    session.run("COMMIT")
    if not any(_RELATION_TYPE in kind for kind in cursor.types):
        session.cache_statement(statement)


@contextmanager
def open_write_statement_result(
    session: PreparedStatementSession, statement: GuardedCypherStatement
) -> Generator[EngineStatementResult]:
    """Yield the result of a statement that may change the session's file, which must be a scratch copy."""
    if statement.assumptions:
        _check_assumptions(session, statement, EngineFileFacts())
    with session.run_guarded(statement) as result:
        yield EngineStatementResult(session, statement, result, through_arrow=True)


def _collect(value: Any, names: dict[int, str], offsets: set[int], elsewhere: set[int]) -> None:
    if isinstance(value, list):
        for part in value:
            _collect(part, names, offsets, elsewhere)
    elif isinstance(value, dict):
        if _is_relation(value):
            offsets.add(_offset(value[_SOURCE]))
            (elsewhere if value[_LABEL] == _LINK_LABEL else offsets).add(_offset(value[_TARGET]))
        elif _is_node(value):
            if value[_LABEL] == "Entity" and isinstance(value.get("id"), str):
                names[_offset(value[_ID])] = value["id"]
        else:
            for part in value.values():
                _collect(part, names, offsets, elsewhere)


# A map built by the caller may have the same keys: `{_nodes: 1}` is an ordinary map.


def _is_path(value: dict[str, Any]) -> bool:
    parts = value.get(_NODES), value.get(_RELATIONS)
    return value.keys() == {_NODES, _RELATIONS} and all(
        isinstance(part, list) and all(isinstance(each, dict) and _is_element(each) for each in part) for part in parts
    )


def _is_relation(value: dict[str, Any]) -> bool:
    return _is_element(value) and _is_id(value.get(_SOURCE)) and _is_id(value.get(_TARGET))


def _is_node(value: dict[str, Any]) -> bool:
    return _is_element(value) and _SOURCE not in value


def _is_element(value: dict[str, Any]) -> bool:
    return isinstance(value.get(_LABEL), str) and _is_id(value.get(_ID))


def _is_id(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == _INTERNAL_ID and isinstance(value["offset"], int)


def _offset(internal_id: dict[str, int]) -> int:
    return internal_id["offset"]


def _number(value: Decimal) -> int | str:
    """Return whole decimals within 64 bits as int, all others as exact text; the engine returns sums as decimals."""
    whole = value.is_finite() and value.as_tuple().exponent == 0
    return int(value) if whole and int(value) in _ENGINE_INT64_RANGE else str(value)


def _text(value: Any) -> str:
    match value:
        case datetime():
            return format_rfc3339_timestamp(naive_utc_to_microseconds(value.replace(tzinfo=None)))
        case date():
            return value.isoformat()
        case timedelta():
            return str(value)
        case bytes():
            return value.hex()
        case UUID():
            return str(value)
        case _:
            return str(value)
