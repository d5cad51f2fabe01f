"""Tool arguments that are derived from requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import pytest

from kgserve.errors import InvalidInput
from kgserve.server.mcp.shared_tool_arguments import (
    StoreToolArguments,
    add_request_fields_to_arguments,
    convert_arguments_to_request,
)
from kgserve.server.mcp.tool_argument_decoder import decode_tool_arguments
from kgserve.server.mcp.tool_input_schema import build_tool_input_schema
from kgserve.server.mcp.toolsets import TOOLS


class Request(msgspec.Struct, kw_only=True):
    """Request."""

    id: str
    as_of: int | None = None
    weight: Annotated[float, msgspec.Meta(ge=0, description="How much")] | None = None
    source: str = msgspec.field(default="", name="from")
    names: list[str] = []
    hidden: bool = True


@add_request_fields_to_arguments(Request, "hidden")
class ExampleArguments(StoreToolArguments, kw_only=True):
    """Arguments."""

    id: Annotated[str, msgspec.Meta(description="In words for agents")]
    limit: int = 5


def test_fields_without_override_are_those_of_the_request() -> None:
    made = build_tool_input_schema(ExampleArguments)
    assert (made["type"], made["required"]) == ("object", ["id"])
    assert list(made["properties"]) == ["index", "id", "limit", "as_of", "weight", "from", "names"]
    assert made["properties"]["id"]["description"] == "In words for agents"
    assert made["properties"]["as_of"]["type"] == "string"
    assert made["properties"]["weight"] == {"type": "number", "description": "How much"}
    assert made["properties"]["from"] == {"type": "string"}


KEYWORDS = {
    *("type", "description", "enum", "default", "required", "maximum", "items", "properties"),
    "additionalProperties",
}


@pytest.mark.parametrize("tool", TOOLS)
def test_input_schema_uses_supported_keywords_only(tool: str) -> None:
    made = build_tool_input_schema(TOOLS[tool].arguments)
    for part in parts(made):
        assert part.keys() <= KEYWORDS
        assert part["type"] != "object" or "properties" in part or part["additionalProperties"]
        assert isinstance(part["type"], str)
        assert part.get("required", ["one"])
        assert ("items" in part) == (part["type"] == "array")
    assert made["type"] == "object"


def parts(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a schema and all nested schemas."""
    yield schema
    inner = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]
    for each in inner:
        yield from parts(each)


def test_request_is_built_from_arguments() -> None:
    given = decode_tool_arguments(
        {"index": "s", "id": "a", "as_of": "", "weight": 0, "from": "b", "limit": 7}, ExampleArguments, []
    )
    assert convert_arguments_to_request(Request, given) == Request(id="a", weight=0, source="b")
    with pytest.raises(InvalidInput, match="hidden: unknown field"):
        decode_tool_arguments({"id": "a", "hidden": False}, ExampleArguments, [])
