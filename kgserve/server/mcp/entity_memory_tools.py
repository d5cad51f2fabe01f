"""The ten tools of the entity-memory interface: memories with decaying confidence, entities and relations.

Arguments have the names and defaults of the original interface; the settings of a store can change the defaults.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from kgserve.graph.request_bodies import SearchMode
from kgserve.memory import analytics, memory_crud, multi_store_recall
from kgserve.memory import entity_operations as named
from kgserve.memory.consolidation import consolidate_undo_prune
from kgserve.memory.entity_models import (
    CreateEntitiesAnswer,
    CreateEntitiesRequest,
    CreateRelationsAnswer,
    CreateRelationsRequest,
    DeleteEntitiesAnswer,
    DeleteEntitiesRequest,
    DeleteRelationsAnswer,
    DeleteRelationsRequest,
    EntityGraphRequest,
    EntityInput,
    EntityNeighborhoodAnswer,
    EntityRelation,
    NamedEntity,
    RelationInput,
    RelationKey,
    StoredMemoryStatistics,
)
from kgserve.memory.memory_models import (
    ConsolidateRequest,
    ConsolidationReport,
    DeleteMemoriesAnswer,
    DeleteMemoriesRequest,
    LabelText,
    Memory,
    MetadataObject,
    NodeIdText,
    RecallAnswer,
    RecallRequest,
    ShortText,
    SimilarMemory,
    StoreMemoryAnswer,
    StoreMemoryRequest,
    TimestampText,
    UnitFloat,
)
from kgserve.server.mcp.memory_tools import (
    build_compact_memory_fields,
    build_recall_reply,
    describe_degraded_search,
    describe_withheld_memories,
    rename_error_fields_to_tool_arguments,
    truncate_reply_lines,
)
from kgserve.server.mcp.shared_tool_arguments import UNLISTED_FIELD, StoreToolArguments
from kgserve.server.mcp.tool_definition import McpTool
from kgserve.server.mcp.tool_replies import ToolReply, build_tool_reply, format_count
from kgserve.server.mcp.tool_structured_content import (
    MAX_DETAIL_CHARS,
    MAX_EXCERPT_CHARS,
    MAX_RESULT_CHARS,
    convert_to_builtins_without_defaults,
    take_items_within_json_size,
    take_lines_within_length,
    truncate_text,
)

_MEMORIES_PER_NODE = 5


def _by_default(default: float, **bounds: Any) -> Meta:
    """Return schema metadata with a default that the settings of a store may override."""
    return Meta(extra_json_schema={"default": default}, **bounds)


_MinConfidence = Annotated[UnitFloat | UnsetType, _by_default(0.1, description="Exclude less certain ones")]
_Limit = Annotated[Annotated[int, Meta(ge=1, le=100)] | UnsetType, _by_default(20, description="Maximum memories")]
_Threshold = Annotated[UnitFloat | UnsetType, _by_default(0.85, description="Minimum cosine similarity")]
_Strength = Annotated[UnitFloat | UnsetType, _by_default(0.5, description="0 to 1")]
_Confidence = Annotated[UnitFloat | UnsetType, _by_default(1.0, description="0 to 1")]
_Labels = Annotated[list[LabelText], Meta(max_length=100)]


class EntityMemoryToolsetBaseArguments(StoreToolArguments, kw_only=True):
    """Base arguments of the entity-memory tools; `index` is accepted but not listed."""

    every_default: ClassVar[bool] = True
    """Makes the schemas list all defaults, as the original interface does."""

    index: Annotated[str | UnsetType, UNLISTED_FIELD] = UNSET


class StoreMemoryArguments(EntityMemoryToolsetBaseArguments, kw_only=True):
    """Memory to store."""

    content: Annotated[str, Meta(min_length=1, description="One thing to remember, as a sentence")]
    memory_type: Annotated[
        LabelText, Meta(description="observation, decision, learning, error, pattern, preference, fact or procedure")
    ] = "observation"
    tags: Annotated[_Labels, Meta(description="For filtering")] = field(default_factory=list)
    confidence: Annotated[UnitFloat, Meta(description="Certainty, 0 to 1")] = 1.0
    source: Annotated[ShortText, Meta(description="Origin")] | UnsetType = UNSET
    context: Annotated[str, Meta(description="Surrounding text")] | UnsetType = UNSET
    metadata: MetadataObject = field(default_factory=dict)
    entity_names: Annotated[_Labels, Meta(description="Subjects; created if needed")] = field(default_factory=list)


class RecallMemoriesArguments(EntityMemoryToolsetBaseArguments, kw_only=True):
    """Query and filters of a recall."""

    query: Annotated[str, Meta(min_length=1, max_length=10_000, description="In plain words")]
    search_mode: Annotated[SearchMode, Meta(description="By words, meaning, both, or along relations")] = "hybrid"
    memory_types: Annotated[_Labels, Meta(description="Any of these")] | UnsetType = UNSET
    tags: Annotated[_Labels, Meta(description="All of these")] | UnsetType = UNSET
    min_confidence: _MinConfidence = UNSET
    limit: _Limit = UNSET
    entity_name: (
        Annotated[LabelText, Meta(description="Only about this entity; in graph mode, its start")] | UnsetType
    ) = UNSET


class NewEntityArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Entity to create, as an item of a tool's arguments."""

    name: LabelText
    entity_type: Annotated[
        LabelText, Meta(description="person, organization, project, concept, location, technology, event")
    ]
    description: str | UnsetType = UNSET
    metadata: MetadataObject | UnsetType = UNSET


class CreateEntitiesArguments(EntityMemoryToolsetBaseArguments, kw_only=True):
    """Entities to create."""

    entities: Annotated[list[NewEntityArguments], Meta(min_length=1, max_length=1_000)]


class NewRelationArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Relation to create, as an item of a tool's arguments."""

    source: Annotated[LabelText, Meta(description="Name of an entity")]
    target: Annotated[LabelText, Meta(description="Name of an entity")]
    relation_type: Annotated[LabelText, Meta(description="In active voice, such as works_at")]
    strength: _Strength = UNSET
    confidence: _Confidence = UNSET
    context: str | UnsetType = UNSET


class CreateRelationsArguments(EntityMemoryToolsetBaseArguments, kw_only=True):
    """Relations to create."""

    relations: Annotated[list[NewRelationArguments], Meta(min_length=1, max_length=1_000)]


class DeleteMemoriesArguments(EntityMemoryToolsetBaseArguments, kw_only=True):
    """Filters for memories to delete; all must match."""

    memory_ids: Annotated[list[NodeIdText], Meta(max_length=1_000)] | UnsetType = UNSET
    before_date: Annotated[TimestampText, Meta(description="Created before then, RFC 3339")] | UnsetType = UNSET
    min_confidence_below: Annotated[UnitFloat, Meta(description="With a lower confidence")] | UnsetType = UNSET
    memory_types: Annotated[_Labels, Meta(description="Any of these types")] | UnsetType = UNSET


class DeleteEntitiesArguments(EntityMemoryToolsetBaseArguments, kw_only=True):
    """Entities to delete."""

    entity_names: Annotated[list[LabelText], Meta(min_length=1, max_length=1_000)]
    cascade_memories: Annotated[bool, Meta(description="Also delete the memories about them")] = False


class DeleteRelationsArguments(EntityMemoryToolsetBaseArguments, kw_only=True):
    """Relations to delete."""

    relations: Annotated[list[RelationKey], Meta(min_length=1, max_length=1_000)]


class GetEntityGraphArguments(EntityMemoryToolsetBaseArguments, kw_only=True):
    """Start, depth and filters of a traversal."""

    entity_name: LabelText
    depth: Annotated[int, Meta(ge=1, le=10, description="Hops")] = 1
    min_strength: Annotated[UnitFloat, Meta(description="Only relations at least this strong")] = 0.0
    include_memories: bool = True


class ConsolidateMemoriesArguments(EntityMemoryToolsetBaseArguments, kw_only=True):
    """Options of a consolidation."""

    similarity_threshold: _Threshold = UNSET
    guard: Annotated[
        bool | UnsetType,
        _by_default(default=True, description="Do not merge if numbers, names or negations differ"),
    ] = UNSET
    dry_run: Annotated[bool, Meta(description="Only list what would be merged")] = False


class GetMemoryStatsArguments(EntityMemoryToolsetBaseArguments, kw_only=True):
    """No arguments."""


def _sent(given: msgspec.Struct, **others: str) -> dict[str, Any]:
    """Return the given arguments under the names of a request; ``others`` maps those that differ."""
    values = {others.get(name, name): value for name, value in msgspec.structs.asdict(given).items()}
    return {name: value for name, value in values.items() if value is not UNSET and name != "index"}


def _recalled(graph: Any, given: RecallMemoriesArguments) -> RecallAnswer:
    names = {"search_mode": "mode", "memory_types": "types", "entity_name": "entity"}
    with rename_error_fields_to_tool_arguments({field: argument for argument, field in names.items()}):
        return multi_store_recall.recall_best_memories(graph, RecallRequest(**_sent(given, **names)))


def _entities(graph: Any, given: CreateEntitiesArguments) -> Any:
    return named.create_entities(
        graph, CreateEntitiesRequest(entities=[EntityInput(**_sent(each)) for each in given.entities])
    )


def _relations(graph: Any, given: CreateRelationsArguments) -> Any:
    return named.create_relations(
        graph, CreateRelationsRequest(relations=[RelationInput(**_sent(each)) for each in given.relations])
    )


def _graph_of(graph: Any, given: GetEntityGraphArguments) -> EntityNeighborhoodAnswer:
    asked = EntityGraphRequest(max_memories=_MEMORIES_PER_NODE, **_sent(given, entity_name="entity_id"))
    return named.get_entity_neighbourhood(graph, asked)


@build_tool_reply.register
def _stored(found: StoreMemoryAnswer, _given: StoreMemoryArguments, _store: str) -> ToolReply:
    outcome_text = {
        "created": f"Stored [{found.id}].",
        "duplicate": f"Exists already as [{found.id}]; counted as used.",
        "merged": f"Merged into [{found.id}], which has the same meaning.",
    }[found.outcome]
    lines = [outcome_text, _line(found), *map(_similar_line, found.similar)]
    kept_apart = "similar memories were kept separate: if one is no longer true, delete it with delete_memories"
    hint = kept_apart if found.similar else ""
    if not found.near_checked:
        hint = "no vector was available for comparison, so a memory with the same meaning may exist"
    similar = [convert_to_builtins_without_defaults(each) for each in found.similar]
    values = {**_values(found), "outcome": found.outcome, "similar": similar, "sequence": found.sequence}
    return ToolReply("\n".join(lines), values, hint=hint)


@build_tool_reply.register
def _found(found: RecallAnswer, given: RecallMemoriesArguments, _store: str) -> ToolReply:
    hints = [f"{each}; a lower min_confidence includes faded memories" for each in describe_withheld_memories(found)]
    entries = [(_values(each), _line(each)) for each in found.hits]
    return build_recall_reply(found, given.query, entries, hints + describe_degraded_search(found, given.search_mode))


@build_tool_reply.register
def _entities_made(found: CreateEntitiesAnswer, _given: CreateEntitiesArguments, _store: str) -> ToolReply:
    lines = [f"{each.outcome}: {each.name} ({each.entity_type}) [{each.id}]" for each in found.entities]
    shown = take_items_within_json_size(
        ({**_entity(each), "outcome": each.outcome} for each in found.entities), MAX_RESULT_CHARS
    )
    return _listing(f"Entities: {found.created} created.", lines, {"entities": shown, "sequence": found.sequence})


@build_tool_reply.register
def _relations_made(found: CreateRelationsAnswer, _given: CreateRelationsArguments, _store: str) -> ToolReply:
    lines = [f"{each.outcome}: {_arrow(each)}" for each in found.relations]
    shown = take_items_within_json_size(
        ({**_relation(each), "outcome": each.outcome} for each in found.relations), MAX_RESULT_CHARS
    )
    made = [truncate_text(each, MAX_EXCERPT_CHARS) for each in found.entities_created]
    hint = ""
    if made:
        hint = f"created with the type unknown: {', '.join(made[:20])}; set their types with create_entities"
    values = {
        "relations": shown,
        "entities_created": take_items_within_json_size(made, MAX_DETAIL_CHARS),
        "sequence": found.sequence,
    }
    return _listing(f"Relations: {found.created} created.", lines, values)._replace(hint=hint)


@build_tool_reply.register
def _memories_deleted(found: DeleteMemoriesAnswer, _given: DeleteMemoriesArguments, _store: str) -> ToolReply:
    more = "more memories match than one call deletes: repeat the call" if found.more else ""
    missing = f" Not found: {', '.join(found.missing[:20])}." if found.missing else ""
    values = {
        "deleted": found.count,
        "ids": found.ids,
        "missing": take_items_within_json_size(found.missing, MAX_DETAIL_CHARS),
    }
    return ToolReply(f"Deleted {format_count(found.count, 'memory', 'memories')}.{missing}", values, more)


@build_tool_reply.register
def _entities_deleted(found: DeleteEntitiesAnswer, _given: DeleteEntitiesArguments, _store: str) -> ToolReply:
    missing = f" Not found: {', '.join(found.missing[:20])}." if found.missing else ""
    text = (
        f"Deleted {format_count(found.count, 'entity', 'entities')} "
        f"with {format_count(found.relations_deleted, 'relation')} and "
        f"{format_count(found.memories_deleted, 'memory', 'memories')}.{missing}"
    )
    hint = ""
    if found.memories_kept:
        kept = format_count(found.memories_kept, "memory mentions", "memories mention")
        text += f" {kept} deleted entities and remain: {', '.join(f'[{each}]' for each in found.memory_ids)}."
        hint = "delete_memories with these memory_ids deletes them"
    values = {
        "memories_kept": found.memories_kept,
        "memory_ids": found.memory_ids,
        "deleted": found.count,
        "relations_deleted": found.relations_deleted,
        "memories_deleted": found.memories_deleted,
        "missing": take_items_within_json_size(found.missing, MAX_DETAIL_CHARS),
    }
    return ToolReply(text, values, hint=hint)


@build_tool_reply.register
def _relations_deleted(found: DeleteRelationsAnswer, _given: DeleteRelationsArguments, _store: str) -> ToolReply:
    missing = [f"{each.source} -[{each.relation_type}]-> {each.target}" for each in found.missing]
    suffix = f" Not found: {', '.join(missing[:20])}." if missing else ""
    values = {"deleted": found.deleted, "missing": take_items_within_json_size(missing, MAX_DETAIL_CHARS)}
    return ToolReply(f"Deleted {format_count(found.deleted, 'relation')}.{suffix}", values)


@build_tool_reply.register
def _graph_found(found: EntityNeighborhoodAnswer, given: GetEntityGraphArguments, _store: str) -> ToolReply:
    nodes = take_items_within_json_size(map(_node, found.nodes), MAX_RESULT_CHARS * 2 // 3)
    edges = take_items_within_json_size(map(_relation, found.edges), MAX_RESULT_CHARS // 3)
    lines = [f"{each.name} ({each.entity_type}){_about(each.memories or ())}" for each in found.nodes[: len(nodes)]]
    lines = take_lines_within_length([*lines, *map(_arrow, found.edges[: len(edges)])], MAX_RESULT_CHARS)
    cut = found.truncated or (len(nodes), len(edges)) < (len(found.nodes), len(found.edges))
    more = "not all of it is shown: use a smaller depth, or a higher min_strength" if cut else ""
    counts = f"{format_count(len(found.nodes), 'entity', 'entities')}, {format_count(len(found.edges), 'relation')}"
    head = f"{given.entity_name}: {counts}"
    return ToolReply("\n".join([head, *lines]), {"nodes": nodes, "edges": edges}, more)


@build_tool_reply.register
def _consolidated(found: ConsolidationReport, _given: ConsolidateMemoriesArguments, _store: str) -> ToolReply:
    would = "would be " if found.dry_run else ""
    head = (
        f"{format_count(found.clusters_found, 'cluster')}: "
        f"{format_count(found.memories_deleted, 'memory', 'memories')} "
        f"{would}merged into {found.clusters_found}."
    )
    lines = [f"[{each.primary}] ← {', '.join(f'[{one}]' for one in each.absorbed)}" for each in found.clusters]
    lines += [f"kept separate ({each.differs}): {', '.join(each.ids)}" for each in found.kept_apart]
    values = {
        "dry_run": found.dry_run,
        "clusters_found": found.clusters_found,
        "memories_merged": found.memories_merged,
        "memories_deleted": found.memories_deleted,
        "near_checked": found.near_checked,
        "clusters": take_items_within_json_size(map(msgspec.to_builtins, found.clusters), MAX_RESULT_CHARS // 2),
        "kept_apart": take_items_within_json_size(map(msgspec.to_builtins, found.kept_apart), MAX_RESULT_CHARS // 4),
    }
    hints = [f"the run {found.run} can be undone"] if found.run else []
    hints += [] if found.near_checked else ["only words were compared, not meaning: no embedding model is available"]
    return _listing(head, lines, values | ({"run": found.run} if found.run else {}))._replace(hint="; ".join(hints))


@build_tool_reply.register
def _stats(found: StoredMemoryStatistics, _given: GetMemoryStatsArguments, _store: str) -> ToolReply:
    values = msgspec.to_builtins(found)
    return ToolReply("\n".join(f"{name}: {value}" for name, value in values.items() if value not in (None, {})), values)


def _listing(head: str, lines: Sequence[str], values: dict[str, Any]) -> ToolReply:
    text, more = truncate_reply_lines(lines)
    return ToolReply("\n".join(filter(None, (head, text))), values, more)


_MEMORY_RESULT_FIELDS = (
    *("id", "content", "memory_type", "tags", "confidence", "source", "context", "metadata", "entities"),
    *("created_at", "score"),
)
"""Fields of a memory in the values of these tools, unless they are empty."""


def _values(memory: Memory) -> dict[str, Any]:
    values = build_compact_memory_fields(memory)
    return {name: values[name] for name in _MEMORY_RESULT_FIELDS if name in values}


def _line(memory: Memory) -> str:
    names = f" — about {', '.join(each.name for each in memory.entities)}" if memory.entities else ""
    facts = f"{memory.memory_type}, confidence {memory.effective_confidence:.2f}"
    return f"[{memory.id}] ({facts}) {truncate_text(memory.content, MAX_EXCERPT_CHARS)}{names}"


def _similar_line(similar: SimilarMemory) -> str:
    return f"similar, {similar.similarity:.2f}, differs in {similar.differs}: [{similar.id}] {similar.content}"


def _entity(entity: NamedEntity) -> dict[str, Any]:
    values = {
        "id": entity.id,
        "name": entity.name,
        "entity_type": entity.entity_type,
        "description": truncate_text(entity.description, MAX_EXCERPT_CHARS),
    }
    return {name: value for name, value in values.items() if value}


def _node(entity: Any) -> dict[str, Any]:
    own = [_values(each) for each in entity.memories or ()]
    count = {"memory_count": entity.memory_count} if entity.memory_count else {}
    return {**_entity(entity), "depth": entity.depth, **count, **({"memories": own} if own else {})}


def _about(found: Sequence[Memory]) -> str:
    return "".join(f"\n  {_line(each)}" for each in found)


def _relation(relation: EntityRelation) -> dict[str, Any]:
    return {
        "source": relation.source_name,
        "target": relation.target_name,
        "relation_type": relation.relation_type,
        "strength": relation.strength,
        "confidence": round(relation.effective_confidence, 3),
    }


def _arrow(relation: EntityRelation) -> str:
    return (
        f"{relation.source_name} -[{relation.relation_type}]-> {relation.target_name} (strength {relation.strength:g})"
    )


_STORE_MEMORY_TOOL = "store_memory"
_EMPTY_STATS_RESULT: dict[str, Any] = {
    **dict.fromkeys(("total_memories", "total_entities", "total_relations", "low_confidence_count"), 0),
    **dict.fromkeys(("average_confidence", "oldest_memory", "newest_memory")),
    "memories_by_type": {},
}

ENTITY_MEMORY_TOOLS: tuple[McpTool[Any], ...] = (
    McpTool(
        "store_memory",
        "Store a memory",
        "When something will matter later, store it: one thing at a time, with the entities that it is about. "
        "Repeating it creates no second memory; the answer lists similar ones.",
        StoreMemoryArguments,
        "storing",
        lambda graph, given: memory_crud.store_memory(graph, StoreMemoryRequest(**_sent(given))),
        "writes",
        retry_hint="recall_memories with its words shows whether it was stored; storing it again keeps one",
    ),
    McpTool(
        "recall_memories",
        "Recall memories",
        "Before answering about the user, the project or earlier decisions, recall: memories that match a question, "
        "most relevant and certain first. A recall restarts their decay.",
        RecallMemoriesArguments,
        "recalling",
        _recalled,
        nothing={"memories": []},
        maker=_STORE_MEMORY_TOOL,
    ),
    McpTool(
        "create_entities",
        "Create entities",
        "Create people, projects and things for memories to refer to. An existing one of the same name and type is "
        "kept.",
        CreateEntitiesArguments,
        "creating entities",
        _entities,
        "writes",
    ),
    McpTool(
        "create_relations",
        "Create relations",
        "Relate entities by name, in active voice. Missing ends are created; repeating a relation updates it.",
        CreateRelationsArguments,
        "creating relations",
        _relations,
        "writes",
    ),
    McpTool(
        "delete_memories",
        "Delete memories",
        "Delete the memories that match all given filters; at least one is required. Entities stay.",
        DeleteMemoriesArguments,
        "deleting memories",
        lambda graph, given: memory_crud.delete_matching_memories(graph, DeleteMemoriesRequest(**_sent(given))),
        "deletes",
    ),
    McpTool(
        "delete_entities",
        "Delete entities",
        "Delete entities and their relations; with cascade_memories also the memories about them.",
        DeleteEntitiesArguments,
        "deleting entities",
        lambda graph, given: named.delete_entities(graph, DeleteEntitiesRequest(**_sent(given))),
        "deletes",
    ),
    McpTool(
        "delete_relations",
        "Delete relations",
        "Delete relations between entities.",
        DeleteRelationsArguments,
        "deleting relations",
        lambda graph, given: named.delete_relations(graph, DeleteRelationsRequest(**_sent(given))),
        "deletes",
    ),
    McpTool(
        "get_entity_graph",
        "Look around an entity",
        "The entities up to `depth` relations away from an entity, in either direction, and the memories about each.",
        GetEntityGraphArguments,
        "looking around",
        _graph_of,
        nothing={"nodes": [], "edges": []},
        maker=_STORE_MEMORY_TOOL,
    ),
    McpTool(
        "consolidate_memories",
        "Consolidate memories",
        "Merge memories with the same meaning. Those that differ in numbers, names or negations are kept separate and "
        "listed. dry_run only lists what would be merged.",
        ConsolidateMemoriesArguments,
        "consolidating",
        lambda graph, given: consolidate_undo_prune.consolidate_memories(graph, ConsolidateRequest(**_sent(given))),
        "overwrites",
        is_long=True,
    ),
    McpTool(
        "get_memory_stats",
        "Count memories",
        "The numbers of memories, entities and relations, by type, and their average confidence.",
        GetMemoryStatsArguments,
        "counting",
        lambda graph, _given: analytics.compute_stored_memory_statistics(graph),
        nothing=_EMPTY_STATS_RESULT,
        maker=_STORE_MEMORY_TOOL,
    ),
)
"""Tools in the order of the original interface."""
