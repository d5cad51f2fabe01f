"""JSON Schemas of tool arguments, reduced to keywords that all model vendors support."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

Schema = Mapping[str, Any]
UNLISTED_SCHEMA_KEY = "unlisted"
"""Marks fields that are accepted but not listed: aliases, and rarely used fields."""
_DEFS_REFERENCE_PREFIX = "#/$defs/"
_SCHEMA_KEYWORDS = ("type", "description", "enum", "default", "required")
_MAX_STATED_MAXIMUM = 100_000
"""Larger maxima are omitted from schemas."""
_ANY_VALUE_SCHEMA = {"description": "Any"}
"""Schema of the values of an object with arbitrary keys. Without it some models send an empty object.

Not `true`, because the converter of google-genai fails at it.
"""
_ITEM_FIELD_DESCRIPTIONS: dict[str, str] = {
    **dict.fromkeys(("id", "type", "content", "attributes", "metadata", "tags", "relation_type", "weight"), ""),
    "summary": "Short form of the content",
    "freshness_at": "Stale from then on, RFC 3339",
    "created_by": "Author",
    "to_graph": "Store that `to` is in, if another",
    "valid_from": "True from then on, RFC 3339",
    "valid_to": "True until then, RFC 3339",
}
"""Short descriptions for fields of list items, whose Structs belong to the REST interface."""


@cache
def build_tool_input_schema(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the input schema of a tool: one type per field, nested Structs inlined.

    Converters to the schemas of model vendors drop or refuse references, alternatives, exclusive bounds and closed
    objects. All limits still apply, because arguments are decoded into the Structs. Empty, null and false defaults are
    omitted, unless the Struct has ``every_default``.
    """
    root, definitions = _parts(struct)
    made = _plain(root, definitions)
    if getattr(struct, "every_default", False):
        for name, field in made.get("properties", {}).items():
            field.update({key: value for key, value in root["properties"][name].items() if key == "default"})
    # The root's description would repeat that of the tool.
    return {key: value for key, value in made.items() if key != "description"}


def _parts(struct: type[msgspec.Struct]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schema of ``struct``, and by name those that it refers to."""
    [root], made = msgspec.json.schema_components([struct], ref_template=f"{_DEFS_REFERENCE_PREFIX}{{name}}")
    definitions = _typed(made)
    return definitions.pop(_name(root)), definitions


def _name(part: Schema) -> str:
    return part["$ref"].removeprefix(_DEFS_REFERENCE_PREFIX)


def _plain(part: Schema, definitions: Schema) -> dict[str, Any]:
    """Return the part reduced to supported keywords."""
    found = _one(part, definitions)
    made = {key: found[key] for key in _SCHEMA_KEYWORDS if found.get(key)}
    if found.get("maximum", _MAX_STATED_MAXIMUM) < _MAX_STATED_MAXIMUM:
        made["maximum"] = found["maximum"]
    if "items" in found:
        made["items"] = _item(_plain(found["items"], definitions))
    if "properties" in found:
        shown = {name: field for name, field in found["properties"].items() if UNLISTED_SCHEMA_KEY not in field}
        made["properties"] = {name: _plain(field, definitions) for name, field in shown.items()}
    elif made.get("type") == "object":
        made["additionalProperties"] = dict(_ANY_VALUE_SCHEMA)
    return made


def _one(part: Schema, definitions: Schema) -> Schema:
    """Resolve a reference; of alternatives choose the text, or else the first."""
    if "$ref" in part:
        return {**definitions[_name(part)], **part}
    if "anyOf" not in part:
        return part
    choices = [_one(choice, definitions) for choice in part["anyOf"] if choice.get("type") != "null"]
    return {**min(choices, key=lambda choice: choice.get("type") != "string"), **part}


def _item(part: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a list item with short descriptions; a scalar item gets no description."""
    if "properties" not in part:
        return {key: value for key, value in part.items() if key != "description"}
    for name in part["properties"].keys() & _ITEM_FIELD_DESCRIPTIONS.keys():
        field = part["properties"][name]
        field.pop("description", None)
        if words := _ITEM_FIELD_DESCRIPTIONS[name]:
            field["description"] = words
    return part


def _typed(part: Any) -> Any:
    """Return the part with a type for every enumeration of texts; clients that build forms need it."""
    if isinstance(part, list):
        return [_typed(item) for item in part]
    if not isinstance(part, dict):
        return part
    found = {key: _typed(value) for key, value in part.items()}
    values = found.get("enum")
    if isinstance(values, list) and "type" not in found and all(isinstance(value, str) for value in values):
        found["type"] = "string"
    return found
