"""The nine tools of the official MCP memory server, with its names, arguments and answers.

An entity is a node, and its observations are the lines of the content, which the other tools read and write as well. In
contrast to the official server, `read_graph` returns pages, and ``more`` says what was omitted.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from kgserve.graph.compat import mcp_memory_server_operations as entities
from kgserve.graph.compat.mcp_memory_server_api import (
    CreatedEntities,
    CreatedRelations,
    DeletionDoneAnswer,
    EntitiesWithRelations,
    EntityNameRelation,
    EntityWithObservations,
    ObservationAddition,
    ObservationDeletion,
    ObservationsAddedAnswer,
)
from kgserve.server.mcp.shared_tool_arguments import UNLISTED_FIELD, StoreToolArguments
from kgserve.server.mcp.tool_definition import McpTool
from kgserve.server.mcp.tool_replies import ToolReply, build_tool_reply
from kgserve.server.mcp.tool_structured_content import encode_json_text


class MemoryServerToolArguments(StoreToolArguments, kw_only=True):
    """Arguments of the official server; `index` is accepted but not listed, because the official server has none."""

    index: Annotated[str | UnsetType, UNLISTED_FIELD] = UNSET


class OfficialCreateEntitiesArguments(MemoryServerToolArguments, kw_only=True):
    """Entities to create."""

    entities: list[EntityWithObservations]


class OfficialCreateRelationsArguments(MemoryServerToolArguments, kw_only=True):
    """Relations to create."""

    relations: list[EntityNameRelation]


class AddObservationsArguments(MemoryServerToolArguments, kw_only=True):
    """Observations to add, by entity."""

    observations: list[ObservationAddition]


class OfficialDeleteEntitiesArguments(MemoryServerToolArguments, kw_only=True):
    """Entities to delete."""

    names: list[str] = field(name="entityNames")


class DeleteObservationsArguments(MemoryServerToolArguments, kw_only=True):
    """Observations to delete, by entity."""

    deletions: list[ObservationDeletion]


class OfficialDeleteRelationsArguments(MemoryServerToolArguments, kw_only=True):
    """Relations to delete."""

    relations: list[EntityNameRelation]


class ReadGraphArguments(MemoryServerToolArguments, kw_only=True):
    """Page of the graph."""

    not_times: ClassVar[frozenset[str]] = frozenset({"after"})
    after: Annotated[str, Meta(description="Name to continue after")] = ""


class SearchNodesArguments(MemoryServerToolArguments, kw_only=True):
    """Search query."""

    query: Annotated[str, Meta(max_length=10_000)]


class OpenNodesArguments(MemoryServerToolArguments, kw_only=True):
    """Entities to read."""

    names: list[str]


@build_tool_reply.register
def _official_reply(
    found: CreatedEntities | CreatedRelations | ObservationsAddedAnswer | DeletionDoneAnswer | EntitiesWithRelations,
    _given: Any,
    _store: str,
) -> ToolReply:
    """Return the answer of the official server without additions."""
    match found:
        case CreatedEntities():
            text = encode_json_text(found.entities)
        case CreatedRelations():
            text = encode_json_text(found.relations)
        case ObservationsAddedAnswer():
            text = encode_json_text(found.results)
        case DeletionDoneAnswer():
            text = found.message
        case EntitiesWithRelations():
            text = encode_json_text(found)
    return ToolReply(text, msgspec.to_builtins(found), alone=True)


MEMORY_SERVER_TOOLS: tuple[McpTool[Any], ...] = (
    McpTool(
        "create_entities",
        "Create entities",
        "Create entities with observations, one fact each. Existing entities stay unchanged.",
        OfficialCreateEntitiesArguments,
        "creating entities",
        lambda graph, given: entities.create_entities(graph, given.entities),
        "writes",
    ),
    McpTool(
        "create_relations",
        "Create relations",
        "Relate entities by name, in active voice.",
        OfficialCreateRelationsArguments,
        "creating relations",
        lambda graph, given: entities.create_relations(graph, given.relations),
        "writes",
    ),
    McpTool(
        "add_observations",
        "Add observations",
        "Add facts to entities that exist.",
        AddObservationsArguments,
        "adding observations",
        lambda graph, given: entities.add_observations(graph, given.observations),
        "writes",
    ),
    McpTool(
        "delete_entities",
        "Delete entities",
        "Delete entities and their relations.",
        OfficialDeleteEntitiesArguments,
        "deleting entities",
        lambda graph, given: entities.delete_entities(graph, given.names),
        "deletes",
    ),
    McpTool(
        "delete_observations",
        "Delete observations",
        "Delete facts, by their exact text.",
        DeleteObservationsArguments,
        "deleting observations",
        lambda graph, given: entities.delete_observations(graph, given.deletions),
        "deletes",
    ),
    McpTool(
        "delete_relations",
        "Delete relations",
        "Delete relations.",
        OfficialDeleteRelationsArguments,
        "deleting relations",
        lambda graph, given: entities.delete_relations(graph, given.relations),
        "deletes",
    ),
    McpTool(
        "read_graph",
        "Read the graph",
        "Read the whole graph, a large one in pages.",
        ReadGraphArguments,
        "reading the graph",
        lambda graph, given: entities.list_entities_with_relations(graph, given.after),
    ),
    McpTool(
        "search_nodes",
        "Search entities",
        "Find entities by name, type, words or meaning, with their relations.",
        SearchNodesArguments,
        "searching",
        lambda graph, given: entities.search_nodes(graph, given.query),
    ),
    McpTool(
        "open_nodes",
        "Open entities",
        "Read entities by name, with their relations.",
        OpenNodesArguments,
        "reading entities",
        lambda graph, given: entities.get_entities_by_name(graph, given.names),
    ),
)
"""Tools in the order of the official server."""
