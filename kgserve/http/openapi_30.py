"""The API description in OpenAPI 3.0, for generators that know no other, made from that in 3.1 by rules.

3.0 has schemas of its own: null is no type but a property of others, a type is one, an exclusive bound is a truth
beside the bound, and nothing stands beside a reference. What it has no word for (names of properties) is left out, so
that a schema may let through what the operation refuses, but never the other way round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Json = dict[str, Any]

VERSION = "3.0.3"
_UNKNOWN = frozenset({"propertyNames", "patternProperties", "unevaluatedProperties", "$comment"})
_NONE_REQUIRED = ("required", [])
"""There it may not be empty."""
_BOUNDS = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}
_TYPES: dict[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}
_LITERAL = frozenset({"example", "examples", "default"})


def as_openapi_30(document: Json) -> Json:
    """A document of 3.1 as one of 3.0. What is given stays as it is."""
    made = _with_schemas(document)
    schemas = {name: _schema(each) for name, each in document["components"]["schemas"].items()}
    return made | {"openapi": VERSION, "components": made["components"] | {"schemas": schemas}}


def _with_schemas(part: Any) -> Any:
    """A part of a document with every schema in it as 3.0 has them; examples are no part of it."""
    if isinstance(part, list):
        return [_with_schemas(each) for each in part]
    if not isinstance(part, dict):
        return part
    return {
        name: _schema(value) if name == "schema" else value if name in _LITERAL else _with_schemas(value)
        for name, value in part.items()
    }


def _schema(schema: Json) -> Json:
    """A schema of JSON Schema as 3.0 has it."""
    found = dict(_words(schema))
    if schema.get("anyOf") or isinstance(schema.get("type"), list):
        found |= _alternatives(found)
    if "enum" in found:
        found |= _choices(found["enum"])
    if "$ref" in found and len(found) > 1:
        found["allOf"] = [{"$ref": found.pop("$ref")}]
    return found


def _words(schema: Json) -> Iterator[tuple[str, Any]]:
    """The words of a schema, those in schemas below it included."""
    for name, value in schema.items():
        match name:
            case "properties":
                yield name, {field: _schema(each) for field, each in value.items()}
            case "anyOf" | "oneOf" | "allOf":
                yield name, [each if _is_null(each) else _schema(each) for each in value]
            case "items" | "additionalProperties" if isinstance(value, dict):
                yield name, _schema(value)
            case "const":
                yield "enum", [value]
            case "examples":
                yield "example", value[0]
            case "exclusiveMinimum" | "exclusiveMaximum":
                yield from ((_BOUNDS[name], value), (name, True))
            case _ if name not in _UNKNOWN and (name, value) != _NONE_REQUIRED:
                yield name, value
            case _:
                pass
    if schema.get("type") == "array" and "items" not in schema:
        yield "items", {}


def _alternatives(schema: Json) -> Json:
    """What takes the place of alternatives, or of several types, of which null may be one."""
    several = schema.pop("type", None)
    choices: list[Json] = schema.pop("anyOf", None) or [{"type": each} for each in several]
    kept = [each for each in choices if not _is_null(each)]
    nullable = {"nullable": True} if len(kept) < len(choices) else {}
    if len(kept) > 1:
        # Beside a type alone it says that null is taken, too; an empty schema takes it anyway.
        return {"anyOf": [each | nullable if "type" in each else each for each in kept]}
    [one] = kept
    if "$ref" in one:
        return {"allOf": [one], **nullable}
    return {**one, **schema, **nullable}


def _is_null(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "null"


def _choices(values: list[Any]) -> Json:
    """The type of some values, if all have one: 3.0's generators look for it."""
    types = {_TYPES.get(type(each)) for each in values if each is not None}
    found: Json = {"type": types.pop()} if len(types) == 1 and None not in types else {}
    return found | ({"nullable": True} if None in values else {})
