"""The schemas of all tools pass the converters of other model vendors, in their own packages."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from mcp import types

from kgserve.server.mcp.tool_input_schema import build_tool_input_schema
from kgserve.server.mcp.toolsets import TOOLS


def listed(tool: str) -> types.Tool:
    """Return the tool as clients get it."""
    return types.Tool(
        name=tool,
        description=TOOLS[tool].description,
        input_schema=deepcopy(build_tool_input_schema(TOOLS[tool].arguments)),
    )


def taken(made: Any) -> dict[str, str]:
    """Return the fields of one of Gemini's schemas."""
    return dict(fields(made.model_dump(mode="json", exclude_none=True)))


def fields(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Return every field that a schema describes, by path, with its type."""
    for name, field in (schema.get("properties") or {}).items():
        yield f"{path}/{name}", str(field["type"]).lower()
        yield from fields(field, f"{path}/{name}")
    if schema.get("items"):
        yield from fields(schema["items"], f"{path}[]")


def test_google_genai_accepts_every_tool() -> None:
    """Convert from JSON Schema, which fails for unsupported keywords, and use the schema as Gemini's own parameters."""
    genai = pytest.importorskip("google.genai.types", reason="google-genai is not installed")
    for tool in map(listed, TOOLS):
        schema = genai.JSONSchema(**tool.input_schema)
        made = genai.Schema.from_json_schema(json_schema=schema, raise_error_on_unsupported_field=True)
        assert taken(made) == dict(fields(tool.input_schema)), tool.name
        raw = genai.FunctionDeclaration(name=tool.name, description=tool.description, parameters=tool.input_schema)
        assert taken(raw.parameters) == dict(fields(tool.input_schema)), tool.name


@pytest.mark.filterwarnings("ignore:Accessing .Tool.inputSchema. is deprecated")
def test_google_genai_accepts_every_tool_of_a_session() -> None:
    converter = pytest.importorskip("google.genai._mcp_utils", reason="google-genai is not installed")
    for tool in map(listed, TOOLS):
        [declared] = converter.mcp_to_gemini_tool(tool).function_declarations
        assert taken(declared.parameters) == dict(fields(tool.input_schema)), tool.name


def test_openai_strict_mode_accepts_every_tool_with_closed_objects() -> None:
    """The converter refuses objects with arbitrary keys; the SDK then offers the tool without strict mode.

    Strict mode would close such an object, so that a model could send no attributes.
    """
    strict = pytest.importorskip("agents.strict_schema", reason="openai-agents is not installed")
    refused = pytest.importorskip("agents.exceptions").UserError
    for tool in map(listed, TOOLS):
        if "additionalProperties" in str(tool.input_schema):
            with pytest.raises(refused):
                strict.ensure_strict_json_schema(deepcopy(tool.input_schema))
            continue
        made = strict.ensure_strict_json_schema(deepcopy(tool.input_schema))
        assert dict(fields(made)) == dict(fields(tool.input_schema)), tool.name
        assert made["required"] == list(tool.input_schema["properties"]), tool.name


def test_openai_agents_offer_every_tool_with_open_objects() -> None:
    util = pytest.importorskip("agents.mcp.util", reason="openai-agents is not installed")
    server = pytest.importorskip("agents.mcp").MCPServerStreamableHttp({"url": "http://localhost/mcp"})
    for tool in map(listed, TOOLS):
        made = util.MCPUtil.to_function_tool(tool, server, convert_schemas_to_strict=True)
        assert dict(fields(made.params_json_schema)) == dict(fields(tool.input_schema)), tool.name
        assert not (made.strict_json_schema and "additionalProperties" in str(tool.input_schema)), tool.name
