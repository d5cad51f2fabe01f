"""The JSON Schemas of tools' arguments, in words that every family of models understands."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

Schema = Mapping[str, Any]
UNLISTED = "unlisted"
"""Marks what is taken and not shown: other names of a field, and what hardly anybody needs."""
_DEFS_REFERENCE_PREFIX = "#/$defs/"
_SCHEMA_KEYWORDS = ("type", "description", "enum", "default", "required")
_MAX_STATED_MAXIMUM = 100_000
"""A maximum above it is no word to a model."""
_ANY_VALUE_SCHEMA = {"description": "Any"}
"""What an object with names of the caller's own may hold. Some models send an empty object where a schema does not say.

As a schema and not as `true`: the converter of google-genai fails at `true`.
"""
_ITEM_FIELD_DESCRIPTIONS: dict[str, str] = {
    **dict.fromkeys(("id", "type", "content", "attributes", "metadata", "tags", "relation_type", "weight"), ""),
    "summary": "Short form of the content",
    "freshness_at": "Stale from then on, RFC 3339",
    "created_by": "Who writes this",
    "to_graph": "Store that `to` is in, if another",
    "valid_from": "True from then on, RFC 3339",
    "valid_to": "True until then, RFC 3339",
}
"""Words for fields of items, whose Structs are the REST interface's and say more there."""


@cache
def input_schema(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """What a tool takes, in few and plain words: one type for each field, every Struct where it stands.

    These every family of models understands: converters to the schemas of models drop or refuse references,
    alternatives, exclusive bounds and closed objects. All limits hold nevertheless: arguments are read into
    the Structs. Defaults that are empty, nothing or false are left out, unless the Struct has ``every_default``.
    """
    root, definitions = _parts(struct)
    made = _plain(root, definitions)
    if getattr(struct, "every_default", False):
        for name, field in made.get("properties", {}).items():
            field.update({key: value for key, value in root["properties"][name].items() if key == "default"})
    # The root's own description would say what the tool's says.
    return {key: value for key, value in made.items() if key != "description"}


def _parts(struct: type[msgspec.Struct]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of ``struct`` itself, and those of others that it refers to, by name."""
    [root], made = msgspec.json.schema_components([struct], ref_template=f"{_DEFS_REFERENCE_PREFIX}{{name}}")
    definitions = _typed(made)
    return definitions.pop(_name(root)), definitions


def _name(part: Schema) -> str:
    return part["$ref"].removeprefix(_DEFS_REFERENCE_PREFIX)


def _plain(part: Schema, definitions: Schema) -> dict[str, Any]:
    """The part without anything that some family of models does not take."""
    found = _one(part, definitions)
    made = {key: found[key] for key in _SCHEMA_KEYWORDS if found.get(key)}
    if found.get("maximum", _MAX_STATED_MAXIMUM) < _MAX_STATED_MAXIMUM:
        made["maximum"] = found["maximum"]
    if "items" in found:
        made["items"] = _item(_plain(found["items"], definitions))
    if "properties" in found:
        shown = {name: field for name, field in found["properties"].items() if UNLISTED not in field}
        made["properties"] = {name: _plain(field, definitions) for name, field in shown.items()}
    elif made.get("type") == "object":
        made["additionalProperties"] = dict(_ANY_VALUE_SCHEMA)
    return made


def _one(part: Schema, definitions: Schema) -> Schema:
    """The part itself in the place of a reference; of alternatives the one that is a text, or else the first."""
    if "$ref" in part:
        return {**definitions[_name(part)], **part}
    if "anyOf" not in part:
        return part
    choices = [_one(choice, definitions) for choice in part["anyOf"] if choice.get("type") != "null"]
    return {**min(choices, key=lambda choice: choice.get("type") != "string"), **part}


def _item(part: dict[str, Any]) -> dict[str, Any]:
    """An item of a list, whose fields are described in the words for those; it has none itself if it is plain."""
    if "properties" not in part:
        return {key: value for key, value in part.items() if key != "description"}
    for name in part["properties"].keys() & _ITEM_FIELD_DESCRIPTIONS.keys():
        field = part["properties"][name]
        field.pop("description", None)
        if words := _ITEM_FIELD_DESCRIPTIONS[name]:
            field["description"] = words
    return part


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
