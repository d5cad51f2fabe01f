"""Rows of tables and elements of graphs as lines of an import."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import numpy as np

from kgserve.errors import FieldError, InvalidInput
from kgserve.graph.request_bodies import EdgeNdjsonLine, NodeNdjsonLine
from kgserve.platform.codecs import convert_plain_value_to_type, locate_validation_error

MAX_LISTED_ROW_FAULTS = 100
"""Faults listed in an error."""
TRAVERSAL_NODE_FIELDS = frozenset(
    {"depth", "sequence", "store", "missing", "stale", "conflicts", "superseded_by", "is_current"}
)
"""Fields of nodes in answers that an import does not take."""
TRAVERSAL_EDGE_FIELDS = frozenset({"id", "sequence", "store"})
"""Fields of edges in answers that an import does not take."""

_NODE_FIELDS, _EDGE_FIELDS = (
    frozenset(field.encode_name for field in msgspec.structs.fields(kind)) for kind in (NodeNdjsonLine, EdgeNdjsonLine)
)
_INT64_LIMIT = 1 << 63
_ID_FIELDS = ("id", "from", "to")


class ImportRowPlace(NamedTuple):
    """Place of a row: a path such as ``nodes[3]``, words such as ``nodes row 3``, and what its fields are called."""

    path: str
    words: str
    field_noun: str

    def fault(self, field: str, message: str) -> FieldError:
        """Return a fault of a field."""
        return FieldError(f"{self.path}.{field}", f"{self.words}, {self.field_noun} {field!r}: {message}")


class ImportRowConverter:
    """Converter of rows to lines of an import; it collects the faults of all rows.

    Fields of the exchange format keep their meaning, all others become attributes. Empty values are left out.
    """

    def __init__(self) -> None:
        self._lines: list[NodeNdjsonLine | EdgeNdjsonLine] = []
        self._faults: list[FieldError] = []

    def add_node(self, place: ImportRowPlace, values: Mapping[str, Any]) -> None:
        """Add a node, or its faults."""
        self._add(place, values, _NODE_FIELDS, NodeNdjsonLine)

    def add_edge(self, place: ImportRowPlace, values: Mapping[str, Any]) -> None:
        """Add an edge, or its faults."""
        self._add(place, values, _EDGE_FIELDS, EdgeNdjsonLine)

    def finish(self) -> list[NodeNdjsonLine | EdgeNdjsonLine]:
        """Return the lines. Raises InvalidInput, whose `errors` list the faults, if there are any."""
        if self._faults:
            others = len(self._faults) - 1
            more = f" ({others:,} more in `errors`)" if others else ""
            raise InvalidInput(f"{self._faults[0].message}{more}", tuple(self._faults[:MAX_LISTED_ROW_FAULTS]))
        return self._lines

    def _add(
        self,
        place: ImportRowPlace,
        values: Mapping[str, Any],
        known: frozenset[str],
        kind: type[NodeNdjsonLine | EdgeNdjsonLine],
    ) -> None:
        faults: list[FieldError] = []
        plain = _convert_fields(place, values, faults)
        attributes = _parse_attributes(place, plain.pop("attributes", None), faults)
        fields = {name: value for name, value in plain.items() if name in known}
        for name, value in plain.items():
            if name in attributes and name not in known:
                faults.append(place.fault(name, "is also in `attributes`; rename or drop one of them"))
            elif name not in known:
                attributes[name] = value
        for name in _ID_FIELDS:
            if isinstance(fields.get(name), int) and not isinstance(fields[name], bool):
                fields[name] = str(fields[name])
        try:
            line = convert_plain_value_to_type(fields | ({"attributes": attributes} if attributes else {}), kind)
        except msgspec.ValidationError as error:
            found = locate_validation_error(error, kind)
            faults.append(place.fault(found.path, found.message))
        else:
            self._lines.append(line)
        self._faults += faults


def _convert_fields(place: ImportRowPlace, values: Mapping[str, Any], faults: list[FieldError]) -> dict[str, Any]:
    """Return the fields that are not empty as plain values."""
    plain: dict[str, Any] = {}
    for name, value in values.items():
        try:
            found = to_plain_json_value(value)
        except (TypeError, ValueError) as error:
            faults.append(place.fault(name, str(error)))
        else:
            if found is not None:
                plain[name] = found
    return plain


def _parse_attributes(place: ImportRowPlace, value: Any, faults: list[FieldError]) -> dict[str, Any]:
    """Return attributes, which may be JSON text as in Arrow tables of answers."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        faults.append(place.fault("attributes", f"is not JSON: {error}"))
        return {}
    if found is None or isinstance(found, dict):
        return found or {}
    faults.append(place.fault("attributes", f"must be a mapping or a JSON object, not {type(found).__name__}"))
    return {}


def to_plain_json_value(value: Any) -> Any:
    """Return a value of Python, numpy or pandas as JSON has it; None for missing ones. Times are in UTC.

    Raises ValueError or TypeError for what JSON cannot represent.
    """
    if isinstance(value, np.generic):  # some of them are texts and numbers of Python, too
        value = value.item()
    if isinstance(value, Mapping):
        return {_require_text_key(key): to_plain_json_value(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset | np.ndarray):
        return [to_plain_json_value(each) for each in value]
    return _convert_scalar(value)


def _convert_scalar(value: Any) -> Any:
    match value:
        case int() if not -_INT64_LIMIT <= value < _INT64_LIMIT:
            raise ValueError(f"is {value}, which does not fit into 64 bits; make it text")
        case None | bool() | int() | str():
            return value
        case float() | Decimal():
            if not math.isfinite(value):
                raise ValueError(f"is {value}, which is not a finite number")
            if isinstance(value, Decimal) and Decimal(repr(float(value))) != value:
                raise ValueError(f"is {value}, which has too many digits for a number; make it text")
            return float(value)
        case datetime():
            return _format_time(value)
        case date() | time():
            return value.isoformat()
        case UUID():
            return str(value)
        case _:
            raise ValueError(f"is of type {type(value).__name__}, which JSON cannot represent")


def _format_time(value: datetime) -> str | None:
    """Return a time as RFC 3339; without a zone it is taken as UTC. None for pandas' missing time."""
    if value != value:  # noqa: PLR0124 - NaT differs from itself
        return None
    moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    # Nanoseconds of pandas are cut off.
    return moment.isoformat(timespec="microseconds" if moment.microsecond else "seconds").replace("+00:00", "Z")


def _require_text_key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"has the key {key!r}, which is not text")
    return key
