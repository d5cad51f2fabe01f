"""The nine tools of the official MCP memory server, with its names, arguments and answers.

An entity is a node, and its observations are the lines of the content, which the other tools read and write as well. In
contrast to the official server, `read_graph` returns pages, and ``more`` says what was omitted.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from kgserve.graph.compat import memory_server_tools as entities
from kgserve.graph.compat.memory_server_api import (
    CreatedEntities,
    CreatedRelations,
    DeletionConfirmation,
    KnowledgeGraph,
    ObservationAddition,
    ObservationDeletion,
    ObservationsAddedAnswer,
    ObservedEntity,
    ServerRelation,
)
from kgserve.server.mcp.argument_fields import UNLISTED_FIELD, Arguments
from kgserve.server.mcp.replies import ToolReply, present_answer
from kgserve.server.mcp.reply_values import encode_to_text
from kgserve.server.mcp.tool_definition import McpTool


class MemoryServerArguments(Arguments, kw_only=True):
    """Arguments of the official server; `index` is accepted but not listed, because the official server has none."""

    index: Annotated[str | UnsetType, UNLISTED_FIELD] = UNSET


class CreateServerEntitiesArguments(MemoryServerArguments, kw_only=True):
    """Entities to create."""

    entities: list[ObservedEntity]


class CreateServerRelationsArguments(MemoryServerArguments, kw_only=True):
    """Relations to create."""

    relations: list[ServerRelation]


class AddObservationsArguments(MemoryServerArguments, kw_only=True):
    """Observations to add, by entity."""

    observations: list[ObservationAddition]


class DeleteServerEntitiesArguments(MemoryServerArguments, kw_only=True):
    """Entities to delete."""

    names: list[str] = field(name="entityNames")


class DeleteObservationsArguments(MemoryServerArguments, kw_only=True):
    """Observations to delete, by entity."""

    deletions: list[ObservationDeletion]


class DeleteServerRelationsArguments(MemoryServerArguments, kw_only=True):
    """Relations to delete."""

    relations: list[ServerRelation]


class ReadGraphArguments(MemoryServerArguments, kw_only=True):
    """Page of the graph."""

    not_times: ClassVar[frozenset[str]] = frozenset({"after"})
    after: Annotated[str, Meta(description="Name to continue after")] = ""


class SearchNodesArguments(MemoryServerArguments, kw_only=True):
    """Search query."""

    query: Annotated[str, Meta(max_length=10_000)]


class OpenNodesArguments(MemoryServerArguments, kw_only=True):
    """Entities to read."""

    names: list[str]


@present_answer.register
def _official_reply(
    found: CreatedEntities | CreatedRelations | ObservationsAddedAnswer | DeletionConfirmation | KnowledgeGraph,
    _given: Any,
    _store: str,
) -> ToolReply:
    """Return the answer of the official server without additions."""
    match found:
        case CreatedEntities():
            text = encode_to_text(found.entities)
        case CreatedRelations():
            text = encode_to_text(found.relations)
        case ObservationsAddedAnswer():
            text = encode_to_text(found.results)
        case DeletionConfirmation():
            text = found.message
        case KnowledgeGraph():
            text = encode_to_text(found)
    return ToolReply(text, msgspec.to_builtins(found), alone=True)


MEMORY_SERVER_TOOLS: tuple[McpTool[Any], ...] = (
    McpTool(
        "create_entities",
        "Create entities",
        "Create entities with observations, one fact each. Existing entities stay unchanged.",
        CreateServerEntitiesArguments,
        "creating entities",
        lambda graph, given: entities.create_entities(graph, given.entities),
        "writes",
    ),
    McpTool(
        "create_relations",
        "Create relations",
        "Relate entities by name, in active voice.",
        CreateServerRelationsArguments,
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
        DeleteServerEntitiesArguments,
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
        DeleteServerRelationsArguments,
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
        lambda graph, given: entities.read_graph(graph, given.after),
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
        lambda graph, given: entities.open_nodes(graph, given.names),
    ),
)
"""Tools in the order of the official server."""
