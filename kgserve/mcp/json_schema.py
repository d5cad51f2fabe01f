"""The JSON Schemas of what tools take and answer, made of their Structs."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec


@cache
def schema(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """The schema of ``struct``, made once; not to be changed by callers."""
    [root], definitions = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    name = root["$ref"].removeprefix("#/$defs/")
    typed = {key: _typed(definition) for key, definition in definitions.items()}
    inlined = typed.pop(name)
    return {**inlined, "$defs": typed} if typed else inlined


@cache
def input_schema(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """As `schema`, with one plain type for each field that may be left out, although null is taken there, too."""
    return _plain(schema(struct))


def _plain(part: Any) -> Any:
    if isinstance(part, list):
        return [_plain(item) for item in part]
    if not isinstance(part, dict):
        return part
    found = {key: _plain(value) for key, value in part.items()}
    match found:
        case {"anyOf": [dict() as one, {"type": "null"}], "default": None}:
            return one | {key: value for key, value in found.items() if key not in {"anyOf", "default"}}
        case _:
            return found


def _typed(part: Any) -> Any:
    """The part with a type beside every enumeration of texts, which clients that build forms look for."""
    if isinstance(part, list):
        return [_typed(item) for item in part]
    if not isinstance(part, dict):
        return part
    found = {key: _typed(value) for key, value in part.items()}
    values = found.get("enum")
    if isinstance(values, list) and "type" not in found and all(isinstance(value, str) for value in values):
        found["type"] = "string"
    return found
