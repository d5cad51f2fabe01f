"""Named entities and the relations between them: what callers send, and what they are answered; and analytics.

A named entity is a node with a name; its description is the node's content, its metadata the attributes, of which
``aliases`` are other names. A relation is an edge between two; its strength is the edge's weight, 0 to 1 here.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from kgserve.memory.api import MAX_BATCH_ITEMS, MAX_PAGE_MEMORIES, MAX_PAGE_OFFSET, Label, Memory, Metadata, Share

DEFAULT_STRENGTH = 0.5
MAX_GRAPH_DEPTH = 10
MAX_GRAPH_NODES = 1_000
MAX_MEMORIES_PER_NODE = 100

_METADATA_HELP = "Any JSON object, at most 256 KiB and 64 levels"
_ENTITY_HELP = "An entity: its name, an alias, or its id"
_ALIASES_HELP = "Other names that it is found by, at most 100"
_Aliases = Annotated[list[Label], Meta(max_length=100)]
_DRY_RUN_DELETE_HELP = "Say what would be deleted, and delete nothing"
_CASCADE_HELP = "Also delete the memories about it"


class EntityInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An entity to create. One of the same name and type, in any spelling, is met; one of no type yet gets the type."""

    name: Annotated[Label, Meta(description="What it is called")]
    entity_type: Annotated[
        Label, Meta(description="person, organization, project, concept, location, technology, event, or other")
    ]
    description: Annotated[str, Meta(description="What it is, at most 1 MiB; left out: kept")] | None = None
    metadata: Annotated[Metadata, Meta(description=f"{_METADATA_HELP}; left out: kept")] | None = None
    aliases: Annotated[_Aliases, Meta(description=f"{_ALIASES_HELP}; left out: kept")] | None = None


class CreateEntitiesRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Entities to create, in one commit."""

    entities: Annotated[list[EntityInput], Meta(min_length=1, max_length=MAX_BATCH_ITEMS, description="At most 1,000")]


class EntityId(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Names one entity: its id, or its name."""

    entity_id: str = field(name="id")


class UpdateEntity(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What to change in an entity. What is left out, or null, stays. Its id stays when it is renamed."""

    name: Annotated[Label, Meta(description="Another name")] | None = None
    entity_type: Annotated[Label, Meta(description="Another type")] | None = None
    description: Annotated[str, Meta(description="At most 1 MiB; empty: cleared")] | None = None
    metadata: Annotated[Metadata, Meta(description="Replaces all of it")] | None = None
    aliases: Annotated[_Aliases, Meta(description="Replaces all of them")] | None = None


class UpdateEntityRequest(UpdateEntity, kw_only=True):
    """An entity, and what to change in it."""

    entity_id: str = field(name="id")


class DeleteEntity(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How to delete an entity."""

    cascade_memories: Annotated[bool, Meta(description=_CASCADE_HELP)] = False
    dry_run: Annotated[bool, Meta(description=_DRY_RUN_DELETE_HELP)] = False


class DeleteEntityRequest(DeleteEntity, kw_only=True):
    """An entity to delete."""

    entity_id: str = field(name="id")


class DeleteEntitiesRequest(DeleteEntity, kw_only=True):
    """Entities to delete, by name."""

    entity_names: Annotated[
        list[Label], Meta(min_length=1, max_length=MAX_BATCH_ITEMS, description="Names, aliases, or ids")
    ]


class EntitiesQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of a list of entities."""

    type: Annotated[
        list[Label], Meta(max_length=100, description="Only this type; repeated or separated by commas: any of these")
    ] = []
    name: Annotated[str, Meta(max_length=512, description="Only names that start so, in any case")] = ""
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_MEMORIES, description="Most entities on the page")] = 100
    cursor: Annotated[str, Meta(description="`next_cursor` of the page before")] | None = None


class EntityMemoriesQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of the memories about an entity, newest first. It does not count as a use."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_MEMORIES, description="Most memories on the page")] = 20
    offset: Annotated[
        int, Meta(ge=0, le=MAX_PAGE_OFFSET, description="Memories to pass over; with the first page only")
    ] = 0
    cursor: Annotated[str, Meta(description="`next_cursor` of the page before")] | None = None


class EntityMemoriesRequest(EntityMemoriesQuery, kw_only=True):
    """The memories about one entity."""

    entity_id: str = field(name="id")


class EntityGraphQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What of an entity's surroundings to get."""

    depth: Annotated[int, Meta(ge=1, le=MAX_GRAPH_DEPTH, description="Relations away, in either direction")] = 1
    min_strength: Annotated[Share, Meta(description="Only relations at least this strong")] = 0.0
    include_memories: Annotated[bool, Meta(description="With the memories about each entity")] = True
    max_nodes: Annotated[int, Meta(ge=1, le=MAX_GRAPH_NODES, description="Most entities, nearest first")] = 100
    max_memories: Annotated[
        int, Meta(ge=1, le=MAX_MEMORIES_PER_NODE, description="Most memories of each, surest first")
    ] = 10
    touch: Annotated[bool, Meta(description="Count the memories as used, which raises their confidence")] = True


class EntityGraphRequest(EntityGraphQuery, kw_only=True):
    """An entity whose surroundings to get."""

    entity_id: str = field(name="id")


class RelationInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A relation to create or to state again, by names; an end that is not there is made."""

    source: Annotated[Label, Meta(description=_ENTITY_HELP)]
    target: Annotated[Label, Meta(description=_ENTITY_HELP)]
    relation_type: Annotated[Label, Meta(description="In active voice, such as works_at or depends_on")]
    strength: (
        Annotated[Share, Meta(description="How strong it is, 0 to 1; left out: kept, or 0.5 on a new one")] | None
    ) = None
    confidence: (
        Annotated[Share, Meta(description="How sure it is, 0 to 1, fading; left out: kept, or 1.0 on a new one")] | None
    ) = None
    context: Annotated[str, Meta(description="What it was met in, at most 64 KiB")] | None = None
    metadata: Annotated[Metadata, Meta(description=f"{_METADATA_HELP}; left out: kept")] | None = None


class CreateRelationsRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Relations to create, in one commit."""

    relations: Annotated[
        list[RelationInput], Meta(min_length=1, max_length=MAX_BATCH_ITEMS, description="At most 1,000")
    ]


class RelationKey(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Names one relation by the names of its ends."""

    source: Annotated[Label, Meta(description=_ENTITY_HELP)]
    target: Annotated[Label, Meta(description=_ENTITY_HELP)]
    relation_type: Label


class DeleteRelationsRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Relations to delete, in one commit."""

    relations: Annotated[list[RelationKey], Meta(min_length=1, max_length=MAX_BATCH_ITEMS, description="At most 1,000")]


class RelationId(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Names one relation by its id."""

    relation_id: str = field(name="id")


class RelationsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of a list of relations between named entities."""

    source: Annotated[Label, Meta(description=f"Only from there. {_ENTITY_HELP}")] | None = None
    target: Annotated[Label, Meta(description=f"Only to there. {_ENTITY_HELP}")] | None = None
    type: Annotated[
        list[Label], Meta(max_length=100, description="Only this type; repeated or separated by commas: any of these")
    ] = []
    min_strength: Annotated[Share, Meta(description="Only those at least this strong")] = 0.0
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_MEMORIES, description="Most relations on the page")] = 100
    cursor: Annotated[str, Meta(description="`next_cursor` of the page before")] | None = None


class NamedEntity(msgspec.Struct, kw_only=True):
    """A named entity; its type is `unknown` until somebody says it."""

    id: str
    name: str
    entity_type: str
    description: str
    metadata: Metadata
    aliases: list[str]
    created_at: str
    updated_at: str
    version: int


class CreatedEntity(NamedEntity, kw_only=True):
    """An entity that is new, or was met: `updated` when something was added to it."""

    outcome: Literal["created", "updated", "existing"]
    sequence: Annotated[int, Meta(description="The store's commit number once this write is in it")]


class UpdatedEntity(NamedEntity, kw_only=True):
    """The entity as it is after a change."""

    sequence: Annotated[int, Meta(description="The store's commit number once this write is in it")]


class EntitiesCreated(msgspec.Struct, kw_only=True):
    """What became of each entity, in the order in which they were sent."""

    entities: list[CreatedEntity]
    created: int
    sequence: int


class Relation(msgspec.Struct, kw_only=True):
    """A relation; ``source`` and ``target`` are ids. Its confidence fades from ``updated_at`` on."""

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
    metadata: Metadata
    created_at: str
    updated_at: str


class CreatedRelation(Relation, kw_only=True):
    """A relation that is new, or was stated again."""

    outcome: Literal["created", "updated", "existing"]
    sequence: Annotated[int, Meta(description="The store's commit number once this write is in it")]


class RelationsCreated(msgspec.Struct, kw_only=True):
    """What became of each relation, in order; ``entities_created`` are the ids of ends that had to be made."""

    relations: list[CreatedRelation]
    created: int
    entities_created: list[str]
    sequence: int


class EntityAnswer(NamedEntity, kw_only=True):
    """An entity with its relations, at most 1,000, and how many memories are about it."""

    relations: list[Relation]
    relations_truncated: bool
    memories: int


class EntityPage(msgspec.Struct, kw_only=True):
    """One page of entities by name; ``next_cursor`` is null on the last one."""

    entities: list[NamedEntity]
    next_cursor: str | None


class RelationPage(msgspec.Struct, kw_only=True):
    """One page of relations; ``next_cursor`` is null on the last one."""

    relations: list[Relation]
    next_cursor: str | None


class GraphEntity(NamedEntity, kw_only=True):
    """An entity of a graph, so many relations away; ``memories`` are the surest of the ``memory_count`` about it."""

    depth: int
    memory_count: int | UnsetType = UNSET
    memories: list[Memory] | UnsetType = UNSET


class EntityGraph(msgspec.Struct, kw_only=True):
    """Entities, nearest first, and the relations between them."""

    nodes: list[GraphEntity]
    edges: list[Relation]
    truncated: Annotated[bool, Meta(description="More entities or relations were in reach")]
    sequence: int


class EntitiesDeleted(msgspec.Struct, kw_only=True):
    """What deleting entities did, or with ``dry_run`` would do, in one commit."""

    ok: Literal[True] = True
    dry_run: bool
    count: int
    ids: Annotated[list[str], Meta(description="The first 100 of them")]
    missing: Annotated[list[str], Meta(description="Names of which there is none")]
    relations_deleted: int
    memories_deleted: int
    memories_shared: Annotated[int, Meta(description="Of those, how many are about other entities, too")]
    sequence: int
    memories_kept: Annotated[int, Meta(description="Memories about the entities that stay")] = 0
    memory_ids: Annotated[
        list[str], Meta(description="The first 100 of the memories that stay; `forget` withdraws them by `ids`")
    ] = []


class RelationsDeleted(msgspec.Struct, kw_only=True):
    """What deleting relations did."""

    ok: Literal[True] = True
    deleted: int
    missing: Annotated[list[RelationKey], Meta(description="Those that are not there")]
    sequence: int


class MemoryStats(msgspec.Struct, kw_only=True):
    """What a store remembers. Averages and counts are of memories that are not withdrawn, as of now.

    ``low_confidence_count``: below the store's ``min_confidence``. ``ended``: withdrawn ones, by why. Of parents that
    came by inject, Cypher or import, ``second_parents`` do not count beside a newer one, ``cycles`` for the circle.
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


class GrowthQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of growth."""

    by: Annotated[Literal["day", "week", "month"], Meta(description="Weeks begin on Monday; UTC")] = "day"
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_MEMORIES, description="Most periods, the latest")] = 100


class GrowthPeriod(msgspec.Struct, kw_only=True):
    """Memories created in a period that begins with that day, and all up to its end."""

    period: Annotated[str, Meta(description="Its first day, as 2025-07-15")]
    created: int
    total: int


class Growth(msgspec.Struct, kw_only=True):
    """Memories by when they were created, oldest period first; periods without any are left out."""

    by: Literal["day", "week", "month"]
    periods: list[GrowthPeriod]


class CountsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of counts."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_MEMORIES, description="Most of them, the most frequent")] = 100


class TypeCount(msgspec.Struct, kw_only=True):
    """How many memories have a type, and what share of all that is."""

    memory_type: str
    count: int
    share: float


class MemoryTypes(msgspec.Struct, kw_only=True):
    """Memories by type, the most frequent first."""

    types: list[TypeCount]
    total: int


class MemoryTagCount(msgspec.Struct, kw_only=True):
    """How many memories have a tag."""

    tag: str
    count: int


class MemoryTags(msgspec.Struct, kw_only=True):
    """Memories by tag, the most frequent first."""

    tags: list[MemoryTagCount]


class ConfidenceQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The query of the histogram of confidence."""

    buckets: Annotated[int, Meta(ge=1, le=100, description="Equal parts of 0 to 1")] = 10


class ConfidenceBucket(msgspec.Struct, kw_only=True):
    """Memories whose effective confidence is from ``least`` to below ``most``; in the last one, 1 too."""

    least: float = field(name="from")
    most: float = field(name="to")
    count: int


class ConfidenceHistogram(msgspec.Struct, kw_only=True):
    """Memories by what is left of their confidence."""

    buckets: list[ConfidenceBucket]
    average: float | None
    total: int
