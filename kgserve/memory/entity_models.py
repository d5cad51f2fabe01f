"""Requests and answers for named entities, relations between them, and analytics.

A named entity is a node with a name; its description is the node's content, its metadata the attributes, of which
``aliases`` are other names. A relation is an edge between two; its strength is the edge's weight, 0 to 1 here.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from kgserve.memory.memory_models import (
    MAX_BATCH_ITEMS,
    MAX_PAGE_MEMORIES,
    MAX_PAGE_OFFSET,
    LabelText,
    Memory,
    MetadataObject,
    UnitFloat,
)

DEFAULT_STRENGTH = 0.5
MAX_GRAPH_DEPTH = 10
MAX_GRAPH_NODES = 1_000
MAX_MEMORIES_PER_NODE = 100

_METADATA_HELP = "Any JSON object, at most 256 KiB and 64 levels"
_ENTITY_HELP = "An entity: its name, an alias, or its id"
_ALIASES_HELP = "Other names, at most 100"
_Aliases = Annotated[list[LabelText], Meta(max_length=100)]
_DRY_RUN_DELETE_HELP = "Report the deletions without writing"
_CASCADE_HELP = "Also delete the memories about it"


class EntityInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An entity to create, or to update if one of this name and type exists; an untyped one gets the type."""

    name: Annotated[LabelText, Meta(description="Its name")]
    entity_type: Annotated[
        LabelText, Meta(description="person, organization, project, concept, location, technology, event, or other")
    ]
    description: Annotated[str, Meta(description="Description, at most 1 MiB; default: unchanged")] | None = None
    metadata: Annotated[MetadataObject, Meta(description=f"{_METADATA_HELP}; default: unchanged")] | None = None
    aliases: Annotated[_Aliases, Meta(description=f"{_ALIASES_HELP}; default: unchanged")] | None = None


class CreateEntitiesRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Entities to create in one commit."""

    entities: Annotated[list[EntityInput], Meta(min_length=1, max_length=MAX_BATCH_ITEMS, description="At most 1,000")]


class EntityIdRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The id or name of an entity."""

    entity_id: str = field(name="id")


class EntityUpdateFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Changes to an entity. Absent or null fields do not change. A rename keeps the id."""

    name: Annotated[LabelText, Meta(description="New name")] | None = None
    entity_type: Annotated[LabelText, Meta(description="New type")] | None = None
    description: Annotated[str, Meta(description="At most 1 MiB; empty clears it")] | None = None
    metadata: Annotated[MetadataObject, Meta(description="Replaces all of it")] | None = None
    aliases: Annotated[_Aliases, Meta(description="Replaces all of them")] | None = None


class UpdateEntityRequest(EntityUpdateFields, kw_only=True):
    """An entity and the changes to it."""

    entity_id: str = field(name="id")


class DeleteEntityOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Options of deleting entities."""

    cascade_memories: Annotated[bool, Meta(description=_CASCADE_HELP)] = False
    dry_run: Annotated[bool, Meta(description=_DRY_RUN_DELETE_HELP)] = False


class DeleteEntityRequest(DeleteEntityOptions, kw_only=True):
    """An entity to delete."""

    entity_id: str = field(name="id")


class DeleteEntitiesRequest(DeleteEntityOptions, kw_only=True):
    """Entities to delete, by name."""

    entity_names: Annotated[
        list[LabelText], Meta(min_length=1, max_length=MAX_BATCH_ITEMS, description="Names, aliases, or ids")
    ]


class EntityListQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query string of a list of entities."""

    type: Annotated[
        list[LabelText], Meta(max_length=100, description="Only these types; repeat or separate by commas")
    ] = []
    name: Annotated[str, Meta(max_length=512, description="Only names with this prefix, ignoring case")] = ""
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_MEMORIES, description="Maximum number of entities")] = 100
    cursor: Annotated[str, Meta(description="`next_cursor` of the previous page")] | None = None


class EntityMemoriesQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query string of the memories about an entity, newest first. It does not count as a use."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_MEMORIES, description="Maximum number of memories")] = 20
    offset: Annotated[int, Meta(ge=0, le=MAX_PAGE_OFFSET, description="Memories to skip; first page only")] = 0
    cursor: Annotated[str, Meta(description="`next_cursor` of the previous page")] | None = None


class EntityMemoriesRequest(EntityMemoriesQuery, kw_only=True):
    """The memories about one entity."""

    entity_id: str = field(name="id")


class EntityGraphQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query parameters that bound the graph around an entity."""

    depth: Annotated[
        int, Meta(ge=1, le=MAX_GRAPH_DEPTH, description="Maximum distance in relations, in either direction")
    ] = 1
    min_strength: Annotated[UnitFloat, Meta(description="Only relations at least this strong")] = 0.0
    include_memories: Annotated[bool, Meta(description="Include the memories about each entity")] = True
    max_nodes: Annotated[
        int, Meta(ge=1, le=MAX_GRAPH_NODES, description="Maximum number of entities, nearest first")
    ] = 100
    max_memories: Annotated[
        int,
        Meta(ge=1, le=MAX_MEMORIES_PER_NODE, description="Maximum number of memories per entity, most confident first"),
    ] = 10
    touch: Annotated[bool, Meta(description="Count the memories as used, which raises their confidence")] = True


class EntityGraphRequest(EntityGraphQuery, kw_only=True):
    """An entity and the extent of the graph around it."""

    entity_id: str = field(name="id")


class RelationInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A relation to create or confirm, by names; missing ends are created."""

    source: Annotated[LabelText, Meta(description=_ENTITY_HELP)]
    target: Annotated[LabelText, Meta(description=_ENTITY_HELP)]
    relation_type: Annotated[LabelText, Meta(description="In the active voice, such as works_at or depends_on")]
    strength: (
        Annotated[UnitFloat, Meta(description="Strength, 0 to 1; default: unchanged, 0.5 for a new one")] | None
    ) = None
    confidence: (
        Annotated[UnitFloat, Meta(description="Confidence, 0 to 1, decaying; default: unchanged, 1.0 for a new one")]
        | None
    ) = None
    context: Annotated[str, Meta(description="Surrounding context, at most 64 KiB")] | None = None
    metadata: Annotated[MetadataObject, Meta(description=f"{_METADATA_HELP}; default: unchanged")] | None = None


class CreateRelationsRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Relations to create in one commit."""

    relations: Annotated[
        list[RelationInput], Meta(min_length=1, max_length=MAX_BATCH_ITEMS, description="At most 1,000")
    ]


class RelationKey(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A relation, identified by the names of its ends."""

    source: Annotated[LabelText, Meta(description=_ENTITY_HELP)]
    target: Annotated[LabelText, Meta(description=_ENTITY_HELP)]
    relation_type: LabelText


class DeleteRelationsRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Relations to delete in one commit."""

    relations: Annotated[list[RelationKey], Meta(min_length=1, max_length=MAX_BATCH_ITEMS, description="At most 1,000")]


class RelationIdRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The id of a relation."""

    relation_id: str = field(name="id")


class RelationListQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query string of a list of relations between named entities."""

    source: Annotated[LabelText, Meta(description=f"Only from there. {_ENTITY_HELP}")] | None = None
    target: Annotated[LabelText, Meta(description=f"Only to there. {_ENTITY_HELP}")] | None = None
    type: Annotated[
        list[LabelText], Meta(max_length=100, description="Only these types; repeat or separate by commas")
    ] = []
    min_strength: Annotated[UnitFloat, Meta(description="Only those at least this strong")] = 0.0
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_MEMORIES, description="Maximum number of relations")] = 100
    cursor: Annotated[str, Meta(description="`next_cursor` of the previous page")] | None = None


class NamedEntity(msgspec.Struct, kw_only=True):
    """A named entity; its type is `unknown` until a request sets it."""

    id: str
    name: str
    entity_type: str
    description: str
    metadata: MetadataObject
    aliases: list[str]
    created_at: str
    updated_at: str
    version: int


WriteOutcome = Literal["created", "restored", "updated", "existing"]
"""`restored`: it was retired, and is true again from now on."""


class CreatedOrUpdatedEntity(NamedEntity, kw_only=True):
    """A new or existing entity; `updated` if the request added to it, `restored` if it was retired."""

    outcome: WriteOutcome
    sequence: Annotated[int, Meta(description="The store's commit number after this write")]


class UpdatedEntity(NamedEntity, kw_only=True):
    """An entity after an update."""

    sequence: Annotated[int, Meta(description="The store's commit number after this write")]


class CreateEntitiesAnswer(msgspec.Struct, kw_only=True):
    """Results of the entities, in the order of the request."""

    entities: list[CreatedOrUpdatedEntity]
    created: int
    sequence: int


class EntityRelation(msgspec.Struct, kw_only=True):
    """A relation between two entities, given by ids. Its confidence decays from ``updated_at`` on."""

    id: str
    source: str
    source_name: str
    target: str
    target_name: str
    relation_type: str
    strength: float
    confidence: float
    effective_confidence: float
    context: str | None
    metadata: MetadataObject
    created_at: str
    updated_at: str


class CreatedRelation(EntityRelation, kw_only=True):
    """A new or confirmed relation; `restored` if it was retired."""

    outcome: WriteOutcome
    sequence: Annotated[int, Meta(description="The store's commit number after this write")]


class CreateRelationsAnswer(msgspec.Struct, kw_only=True):
    """Results of the relations, in order; ``entities_created`` are the ids of ends that were created or restored."""

    relations: list[CreatedRelation]
    created: int
    entities_created: list[str]
    sequence: int


class EntityWithRelations(NamedEntity, kw_only=True):
    """An entity with its relations, at most 1,000, and the number of memories about it."""

    relations: list[EntityRelation]
    relations_truncated: bool
    memories: int


class EntityPage(msgspec.Struct, kw_only=True):
    """One page of entities by name; ``next_cursor`` is null on the last one."""

    entities: list[NamedEntity]
    next_cursor: str | None


class RelationPage(msgspec.Struct, kw_only=True):
    """One page of relations; ``next_cursor`` is null on the last one."""

    relations: list[EntityRelation]
    next_cursor: str | None


class EntityWithMemories(NamedEntity, kw_only=True):
    """An entity of a graph; ``memories`` are the most confident of the ``memory_count`` about it."""

    depth: int
    memory_count: int | UnsetType = UNSET
    memories: list[Memory] | UnsetType = UNSET


class EntityNeighborhoodAnswer(msgspec.Struct, kw_only=True):
    """Entities, nearest first, and the relations between them."""

    nodes: list[EntityWithMemories]
    edges: list[EntityRelation]
    truncated: Annotated[bool, Meta(description="More entities or relations are within the distance")]
    sequence: int


class DeleteEntitiesAnswer(msgspec.Struct, kw_only=True):
    """Result of deleting entities, or its forecast with ``dry_run``, in one commit."""

    ok: Literal[True] = True
    dry_run: bool
    count: int
    ids: Annotated[list[str], Meta(description="The first 100 of them")]
    missing: Annotated[list[str], Meta(description="Names that match no entity")]
    relations_deleted: int
    memories_deleted: int
    memories_shared: Annotated[int, Meta(description="Deleted memories that are also about other entities")]
    sequence: int
    memories_kept: Annotated[int, Meta(description="Memories about the entities, which stay")] = 0
    memory_ids: Annotated[
        list[str], Meta(description="The first 100 memories that stay; `forget` withdraws them by `ids`")
    ] = []


class DeleteRelationsAnswer(msgspec.Struct, kw_only=True):
    """Result of deleting relations."""

    ok: Literal[True] = True
    deleted: int
    missing: Annotated[list[RelationKey], Meta(description="Relations that do not exist")]
    sequence: int


class StoredMemoryStatistics(msgspec.Struct, kw_only=True):
    """Totals of a store's memories. Averages and counts cover the current, active memories.

    ``low_confidence_count``: below the store's ``min_confidence``. ``ended``: withdrawn ones, by reason. Inject, Cypher
    and import can add conflicting parents: ``second_parents`` counts those older than the effective one, ``cycles``
    those ignored because they form a cycle.
    """

    total_memories: int
    total_entities: int
    total_relations: int
    memories_by_type: Annotated[dict[str, int], Meta(description="The 100 most frequent")]
    average_confidence: float | None
    oldest_memory: str | None
    newest_memory: str | None
    low_confidence_count: int
    ended: dict[str, int]
    second_parents: int
    cycles: int
    sequence: int


class MemoryGrowthQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query string of the growth statistics."""

    by: Annotated[Literal["day", "week", "month"], Meta(description="Weeks begin on Monday; UTC")] = "day"
    limit: Annotated[
        int, Meta(ge=1, le=MAX_PAGE_MEMORIES, description="Maximum number of periods, the latest ones")
    ] = 100


class MemoryGrowthPeriod(msgspec.Struct, kw_only=True):
    """Memories created in a period, and the total at its end."""

    period: Annotated[str, Meta(description="Its first day, such as 2025-07-15")]
    created: int
    total: int


class MemoryGrowth(msgspec.Struct, kw_only=True):
    """Memories by creation time, oldest period first; empty periods are omitted."""

    by: Literal["day", "week", "month"]
    periods: list[MemoryGrowthPeriod]


class MemoryCountsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query string of counts."""

    limit: Annotated[
        int, Meta(ge=1, le=MAX_PAGE_MEMORIES, description="Maximum number of entries, the most frequent ones")
    ] = 100


class MemoryTypeCount(msgspec.Struct, kw_only=True):
    """Number of memories of a type, and its share of all memories."""

    memory_type: str
    count: int
    share: float


class MemoryTypeCounts(msgspec.Struct, kw_only=True):
    """Memory counts by type, the most frequent first."""

    types: list[MemoryTypeCount]
    total: int


class MemoryTagCount(msgspec.Struct, kw_only=True):
    """Number of memories with a tag."""

    tag: str
    count: int


class MemoryTagCounts(msgspec.Struct, kw_only=True):
    """Memory counts by tag, the most frequent first."""

    tags: list[MemoryTagCount]


class ConfidenceHistogramQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query string of the confidence histogram."""

    buckets: Annotated[int, Meta(ge=1, le=100, description="Number of equal intervals of 0 to 1")] = 10


class ConfidenceBucket(msgspec.Struct, kw_only=True):
    """Memories whose effective confidence is in [``least``, ``most``); the last bucket includes 1."""

    least: float = field(name="from")
    most: float = field(name="to")
    count: int


class ConfidenceHistogram(msgspec.Struct, kw_only=True):
    """Histogram of the memories' effective confidence."""

    buckets: list[ConfidenceBucket]
    average: float | None
    total: int
