"""Values of an Arrow table as Python's, with times as text whatever their year.

The engine's own way to Python values ends the process at a date before the year 1 or after 9999.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kgserve.arrow import pa
from kgserve.worker.binding import INTERNAL

_INTERNAL: dict[str, str] = dict(zip(("_ID", "_LABEL", "_SRC", "_DST", "_NODES", "_RELS"), INTERNAL, strict=True))


def rows(table: pa.Table) -> list[list[Any]]:
    """All rows; nodes, relations and paths have the keys that the engine's own values have."""
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
    """RFC 3339 where the year allows it; moments with microseconds at least, days without a time."""
    numbers = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    precise = unit if unit in {"datetime64[D]", "datetime64[ns]"} else "datetime64[us]"
    texts = np.datetime_as_string(numbers.astype(unit).astype(precise))
    there = array.is_valid().to_pylist()
    return [f"{_signed(text)}{zone}" if valid else None for text, valid in zip(texts, there, strict=True)]


def _signed(text: str) -> str:
    """Years before 0 with four digits, as all others."""
    if not text.startswith("-"):
        return text
    year, _, rest = text[1:].partition("-")
    return f"-{year.zfill(4)}-{rest}"


def _duration(microseconds: int) -> str:
    """ISO 8601, in seconds."""
    return f"PT{microseconds / 1_000_000:.6f}S"


def _lists(array: pa.Array) -> list[list[Any] | None]:
    lengths = array.value_lengths().to_pylist() if pa.types.is_list(array.type) else [array.type.list_size] * len(array)
    return _cut(_values(array.flatten()), lengths, array.is_valid().to_pylist())


def _maps(array: pa.Array) -> list[dict[str, Any] | None]:
    entries = pa.ListArray.from_arrays(array.offsets, array.keys), pa.ListArray.from_arrays(array.offsets, array.items)
    keys, items = (_lists(part) for part in entries)
    pairs = zip(keys, items, array.is_valid().to_pylist(), strict=True)
    return [dict(zip(map(str, k or ()), i or (), strict=True)) if there else None for k, i, there in pairs]


def _structs(array: pa.Array) -> list[dict[str, Any] | None]:
    names = [_INTERNAL.get(str(field.name), str(field.name)) for field in array.type]
    there = array.is_valid().to_pylist()
    # Not flatten(): it takes the parts of a Kùzu's struct to be where the struct is.
    columns = [_spread(_values(array.field(number)), there) for number in range(array.type.num_fields)]
    return [
        {name: column[place] for name, column in zip(names, columns, strict=True)} if there[place] else None
        for place in range(len(array))
    ]


def _spread(values: list[Any], there: list[bool]) -> list[Any]:
    """Kùzu leaves out the parts of structs that are null, so that those of the next stand in their place."""
    if len(values) == len(there):
        return values
    left = iter(values)
    return [next(left) if is_there else None for is_there in there]


def _cut(values: list[Any], lengths: list[int | None], there: list[bool]) -> list[list[Any] | None]:
    found: list[list[Any] | None] = []
    position = 0
    for length, is_there in zip(lengths, there, strict=True):
        taken = (length or 0) if is_there else 0
        found.append(values[position : position + taken] if is_there else None)
        position += taken
    return found
