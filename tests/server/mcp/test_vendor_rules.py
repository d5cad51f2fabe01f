"""The listed tools of every set obey the rules of function calling of OpenAI, Gemini and Anthropic.

Sources: OpenAI, "Function calling" and "Structured outputs, supported schemas"; Google, "Gemini API" with
FunctionDeclaration and Schema; Anthropic, "Tool use, how to define tools". Where they differ, the strictest counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from mcp import types

from kgserve.server.mcp.toolsets import TOOLSET_ALL, TOOLSETS, build_list_tools_result

OPENAI_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
GEMINI_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}")
ANTHROPIC_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
ANTHROPIC_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
CLIENT_PREFIX = "mcp__kgserve__"
"""Prefix that Claude Code gives to names; 64 characters remain the limit."""

OPENAI_KEYWORDS = {
    *("type", "description", "enum", "default", "items", "properties", "required", "additionalProperties"),
    *("maximum", "minimum", "pattern", "format", "multipleOf", "minItems", "maxItems", "anyOf", "const"),
}
GEMINI_KEYWORDS = {
    *("type", "format", "title", "description", "nullable", "enum", "maxItems", "minItems", "properties", "required"),
    *("minProperties", "maxProperties", "minLength", "maxLength", "pattern", "example", "anyOf", "default", "items"),
    *("minimum", "maximum", "propertyOrdering", "additionalProperties"),
}
ANTHROPIC_FORBIDDEN_AT_TOP = {"oneOf", "anyOf", "allOf"}
TYPES = {"string", "number", "integer", "boolean", "array", "object"}

MAX_DESCRIPTION_CHARS = 1_024
MAX_OPENAI_TOOLS = 128
MAX_OPENAI_DEPTH = 10
MAX_OPENAI_PROPERTIES = 5_000
MAX_OPENAI_ENUM_VALUES = 1_000
MAX_OPENAI_STRING_CHARS = 120_000
MAX_LISTED_BYTES = {"memory": 4_300, "default": 8_500}
"""Bounds of the sets that most agents load, about 1,000 and 2,200 tokens of cl100k."""


def tools_of(toolset: str) -> list[types.Tool]:
    return [*build_list_tools_result(toolset).tools]


def parts(schema: dict[str, Any], depth: int = 1) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield a schema and all nested ones, each with its depth."""
    yield schema, depth
    for each in schema.get("properties", {}).values():
        yield from parts(each, depth + 1)
    if "items" in schema:
        yield from parts(schema["items"], depth + 1)


def declared(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for part, _ in parts(schema):
        yield from part.get("properties", {}).items()


@pytest.mark.parametrize("toolset", TOOLSETS)
def test_names_and_descriptions(toolset: str) -> None:
    tools = tools_of(toolset)
    assert len({tool.name for tool in tools}) == len(tools) <= MAX_OPENAI_TOOLS
    for tool in tools:
        for pattern in (OPENAI_NAME, GEMINI_NAME, ANTHROPIC_NAME):
            assert pattern.fullmatch(tool.name), tool.name
        assert OPENAI_NAME.fullmatch(CLIENT_PREFIX + tool.name), tool.name
        assert 10 <= len(tool.description or "") <= MAX_DESCRIPTION_CHARS, tool.name
        for name, field in declared(tool.input_schema):
            assert ANTHROPIC_PROPERTY.fullmatch(name), (tool.name, name)
            assert len(field.get("description", "")) <= MAX_DESCRIPTION_CHARS, (tool.name, name)


@pytest.mark.parametrize("toolset", TOOLSETS)
def test_keywords_and_types(toolset: str) -> None:
    for tool in tools_of(toolset):
        schema = tool.input_schema
        assert schema["type"] == "object", tool.name
        assert not ANTHROPIC_FORBIDDEN_AT_TOP & schema.keys(), tool.name
        for part, _ in parts(schema):
            assert part.keys() <= OPENAI_KEYWORDS & GEMINI_KEYWORDS, (tool.name, part.keys())
            assert part["type"] in TYPES, (tool.name, part)
            assert ("items" in part) == (part["type"] == "array"), (tool.name, part)
            assert {*part.get("required", ())} <= part.get("properties", {}).keys(), (tool.name, part)
            # Gemini has texts only as choices, and refuses an empty one.
            assert all(value and isinstance(value, str) for value in part.get("enum", ())), (tool.name, part)
            assert "enum" not in part or part["type"] == "string", (tool.name, part)
            assert "default" not in part or "enum" not in part or part["default"] in part["enum"], (tool.name, part)


@pytest.mark.parametrize("toolset", TOOLSETS)
def test_sizes(toolset: str) -> None:
    tools = tools_of(toolset)
    for tool in tools:
        found = [*parts(tool.input_schema)]
        assert max(depth for _, depth in found) <= MAX_OPENAI_DEPTH, tool.name
        names = [name for name, _ in declared(tool.input_schema)]
        choices = [value for part, _ in found for value in part.get("enum", ())]
        assert len(names) <= MAX_OPENAI_PROPERTIES
        assert len(choices) <= MAX_OPENAI_ENUM_VALUES
        assert sum(map(len, (*names, *choices))) <= MAX_OPENAI_STRING_CHARS
    shown = [{"name": tool.name, "description": tool.description, "parameters": tool.input_schema} for tool in tools]
    assert len(msgspec.json.encode(shown)) <= MAX_LISTED_BYTES.get(toolset, 60_000)


def test_shared_names_are_those_of_the_set_asked_for() -> None:
    """A model that loads one set never gets the arguments of another set's tool of the same name."""
    for toolset, field in (
        ("memory-server", "entityType"),
        ("entity-memory", "entity_type"),
        (TOOLSET_ALL, "entity_type"),
    ):
        [tool] = [each for each in tools_of(toolset) if each.name == "create_entities"]
        assert field in dict(declared(tool.input_schema)), toolset


@pytest.mark.parametrize(("toolset", "count"), [("entity-memory", 10), ("memory-server", 9), ("memory-engine", 3)])
def test_sets_of_specifications_are_complete(toolset: str, count: int) -> None:
    assert len(tools_of(toolset)) == count
