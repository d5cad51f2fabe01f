"""The columns that CSV and Parquet share: one for each field of the exchange format, in its order."""

from __future__ import annotations

from typing import Any

import msgspec

from kgserve.decoding import json_decoder
from kgserve.errors import FieldError, InvalidInput
from kgserve.formats.records import Record, Wrong, edge, node
from kgserve.model.fields import EDGE, NODE

NODES = "nodes"
EDGES = "edges"

NODE_COLUMNS = tuple(field.wire for field in NODE.exchanged)
EDGE_COLUMNS = tuple(field.wire for field in EDGE.exchanged)

_decode = json_decoder(Any).decode
_encode = msgspec.json.Encoder().encode


class BadCell(ValueError):
    """A cell that cannot be what its column says."""


def kind_of(name: str, columns: list[str]) -> str:
    """Whether a file with these columns holds nodes or edges. Raises InvalidInput naming the column that is amiss."""
    for kind, known, needed in ((NODES, NODE_COLUMNS, ("id",)), (EDGES, EDGE_COLUMNS, EDGE_COLUMNS[:3])):
        if all(column in columns for column in needed):
            _check(name, columns, known)
            return kind
    raise InvalidInput(
        f"{name}: these columns are neither those of nodes (id, type, …) nor those of edges (from, to, relation_type, "
        "…); CSV of other columns is imported with --mapping"
    )


def record(kind: str, number: int, values: dict[str, Any]) -> Record:
    """A row whose values are what JSON has; ``attributes`` and ``tags`` may still be JSON text."""
    try:
        for name, wanted in (("attributes", dict), ("tags", list)):
            if isinstance(values.get(name), str):
                values[name] = parsed(name, values[name], wanted)
    except BadCell as error:
        return Wrong(number, str(error))
    return node(number, values) if kind == NODES else edge(number, values)


def parsed(name: str, text: str, wanted: type[dict[str, Any] | list[Any]]) -> Any:
    """The JSON in a cell. Raises BadCell."""
    try:
        value = _decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise BadCell(f"{name} is not JSON: {error}") from None
    if not isinstance(value, wanted):
        raise BadCell(f"{name} is JSON, but no {'object' if wanted is dict else 'array'}")
    return value


def _check(name: str, columns: list[str], known: tuple[str, ...]) -> None:
    for column in columns:
        if column not in known:
            fault = FieldError(f"{name}: {column}", "is no column of the exchange format")
            ours = ", ".join(known)
            raise InvalidInput(f"{name}: column {column!r} is not one of {ours}; a --mapping takes others", (fault,))
        if columns.count(column) > 1:
            raise InvalidInput(f"{name}: column {column!r} is there twice")


def tags_text(tags: list[str] | None) -> str:
    """Tags in one cell: a JSON array; nothing when there are none."""
    return _encode(tags).decode() if tags else ""
