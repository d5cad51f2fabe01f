"""The nine tools of the official MCP memory server, with its names, arguments and answers.

An entity is a node, and its observations are the lines of the content, which the other tools read and write as well. In
contrast to the official server, `read_graph` returns pages, and ``more`` says what was omitted.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from kgserve.graph.compat import memory_server as entities
from kgserve.graph.compat.entities_api import (
    Added,
    Created,
    Deleted,
    Entity,
    KnowledgeGraph,
    NewObservations,
    OldObservations,
    Related,
    ServerRelation,
)
from kgserve.server.mcp.argument_fields import UNLISTED_FIELD, Arguments
from kgserve.server.mcp.replies import ToolReply, present
from kgserve.server.mcp.tool import Tool
from kgserve.server.mcp.values import as_json


class ServerArguments(Arguments, kw_only=True):
    """Arguments of the official server; `index` is accepted but not listed, because the official server has none."""

    index: Annotated[str | UnsetType, UNLISTED_FIELD] = UNSET


class CreateServerEntities(ServerArguments, kw_only=True):
    """Entities to create."""

    entities: list[Entity]


class CreateServerRelations(ServerArguments, kw_only=True):
    """Relations to create."""

    relations: list[ServerRelation]


class AddObservations(ServerArguments, kw_only=True):
    """Observations to add, by entity."""

    observations: list[NewObservations]


class DeleteServerEntities(ServerArguments, kw_only=True):
    """Entities to delete."""

    names: list[str] = field(name="entityNames")


class DeleteObservations(ServerArguments, kw_only=True):
    """Observations to delete, by entity."""

    deletions: list[OldObservations]


class DeleteServerRelations(ServerArguments, kw_only=True):
    """Relations to delete."""

    relations: list[ServerRelation]


class ReadGraph(ServerArguments, kw_only=True):
    """Page of the graph."""

    not_times: ClassVar[frozenset[str]] = frozenset({"after"})
    after: Annotated[str, Meta(description="Name to continue after")] = ""


class SearchNodes(ServerArguments, kw_only=True):
    """Search query."""

    query: Annotated[str, Meta(max_length=10_000)]


class OpenNodes(ServerArguments, kw_only=True):
    """Entities to read."""

    names: list[str]


@present.register
def _official_reply(found: Created | Related | Added | Deleted | KnowledgeGraph, _given: Any, _store: str) -> ToolReply:
    """Return the answer of the official server without additions."""
    match found:
        case Created():
            text = as_json(found.entities)
        case Related():
            text = as_json(found.relations)
        case Added():
            text = as_json(found.results)
        case Deleted():
            text = found.message
        case KnowledgeGraph():
            text = as_json(found)
    return ToolReply(text, msgspec.to_builtins(found), alone=True)


MEMORY_SERVER_TOOLS: tuple[Tool[Any], ...] = (
    Tool(
        "create_entities",
        "Create entities",
        "Create entities with observations, one fact each. Existing entities stay unchanged.",
        CreateServerEntities,
        "creating entities",
        lambda graph, given: entities.create_entities(graph, given.entities),
        "writes",
    ),
    Tool(
        "create_relations",
        "Create relations",
        "Relate entities by name, in active voice.",
        CreateServerRelations,
        "creating relations",
        lambda graph, given: entities.create_relations(graph, given.relations),
        "writes",
    ),
    Tool(
        "add_observations",
        "Add observations",
        "Add facts to entities that exist.",
        AddObservations,
        "adding observations",
        lambda graph, given: entities.add_observations(graph, given.observations),
        "writes",
    ),
    Tool(
        "delete_entities",
        "Delete entities",
        "Delete entities and their relations.",
        DeleteServerEntities,
        "deleting entities",
        lambda graph, given: entities.delete_entities(graph, given.names),
        "deletes",
    ),
    Tool(
        "delete_observations",
        "Delete observations",
        "Delete facts, by their exact text.",
        DeleteObservations,
        "deleting observations",
        lambda graph, given: entities.delete_observations(graph, given.deletions),
        "deletes",
    ),
    Tool(
        "delete_relations",
        "Delete relations",
        "Delete relations.",
        DeleteServerRelations,
        "deleting relations",
        lambda graph, given: entities.delete_relations(graph, given.relations),
        "deletes",
    ),
    Tool(
        "read_graph",
        "Read the graph",
        "Read the whole graph, a large one in pages.",
        ReadGraph,
        "reading the graph",
        lambda graph, given: entities.read_graph(graph, given.after),
    ),
    Tool(
        "search_nodes",
        "Search entities",
        "Find entities by name, type, words or meaning, with their relations.",
        SearchNodes,
        "searching",
        lambda graph, given: entities.search_nodes(graph, given.query),
    ),
    Tool(
        "open_nodes",
        "Open entities",
        "Read entities by name, with their relations.",
        OpenNodes,
        "reading entities",
        lambda graph, given: entities.open_nodes(graph, given.names),
    ),
)
"""Tools in the order of the official server."""
