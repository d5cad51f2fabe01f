"""Requests and answers for memories; those for entities are in `memory.entity_models`.

A memory is a node with a confidence, presented flat: ``memory_type`` is the node's type, ``metadata`` its attributes.
Times are RFC 3339 in UTC with microseconds; confidence, importance and relevance are 0 to 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from kgserve.graph.answers import Notice
from kgserve.graph.request_bodies import VALID_AT_HELP, AdditionalStores, AsOfText, AsOfValue, SearchMode
from kgserve.platform.settings import DedupMode, PruningMode
from kgserve.storage.model.attribute_filters import (
    AttributeConditionsInput,
    AttributeConditionsText,
)
from kgserve.storage.model.entity_names import UNKNOWN_TYPE
from kgserve.storage.model.node_edge_fields import MAX_ID_BYTES, MAX_TAGS

MAX_BATCH_ITEMS = 1_000
MAX_PAGE_MEMORIES = 1_000
MAX_RECALL_LIMIT = 100
MAX_PAGE_OFFSET = 10_000
MAX_MEMORY_ENTITIES = 100
"""Maximum number of entities in one request to store a memory."""
MAX_SIMILAR_MEMORIES = 5
MIN_REPORTED_SIMILARITY = 0.8
"""Minimum cosine at which a memory that was not merged is reported, at most `MAX_SIMILAR_MEMORIES` of them."""

DOMAIN_LAYER = 0
CONCEPT_LAYER = 1
FACT_LAYER = 2
EPISODE_LAYER = 3
"""Layer of events; equal texts remain separate memories."""
LAYER_TYPES = ("domain", "concept", "fact", "episode")
"""Default memory types by layer."""
DEFAULT_IMPORTANCE = 0.5
PINNED_IMPORTANCE = 1.0
RESERVED_IDS = frozenset({"batch", "consolidate", "consolidations", "delete", "prune", "search"})
"""Path segments of the API, which cannot be ids of memories or entities."""

EndReason = Literal["superseded", "merged", "forgotten", "pruned"]
StoreOutcome = Literal["created", "duplicate", "merged"]
DifferenceKind = Literal["", "not", "numbers", "names", "words"]
"""Difference between two texts; empty if they say the same but layer, type or policy kept them apart."""

UnitFloat = Annotated[float, Meta(ge=0, le=1)]
NodeIdText = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES)]
LabelText = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES)]
ShortText = Annotated[str, Meta(max_length=MAX_ID_BYTES)]
TimestampText = Annotated[str, Meta(max_length=64)]
VersionNumber = Annotated[int, Meta(ge=1, lt=1 << 53)]
MetadataObject = dict[str, Any]
_Tags = Annotated[list[LabelText], Meta(max_length=MAX_TAGS)]
_Labels = Annotated[list[LabelText], Meta(max_length=100)]
_CONTENT_HELP = "Text to remember, 1 byte to 1 MiB"
_MEMORY_TYPE_HELP = (
    "Kind of memory: observation, decision, learning, error, pattern, preference, fact, procedure, or your "
    "own word; default: observation, or with a layer domain, concept, fact or episode"
)
_CONFIDENCE_HELP = "Confidence, 0 to 1; decays from created_at on and rises with each use"
_IMPORTANCE_HELP = "0 to 1; 1 pins it: never pruned or absorbed"
_LAYER_HELP = "0 domain, 1 concept, 2 fact, 3 episode (never merged)"
_PARENT_HELP = "Id of the parent memory, of the same or a more general layer"
_DRY_RUN_HELP = "Report the effect without writing"


# Only in the schema: its text would be no message for people.
EXPIRES_IN_SCHEMA = Meta(extra_json_schema={"pattern": "^[1-9][0-9]{0,5}[smhdw]$"})
"""A number of seconds, minutes, hours, days or weeks."""
_EXPIRES_IN_HELP = "Sets valid_to relative to now, such as 30m, 12h, 7d or 2w; not with valid_to"
ExpiresInField = Annotated[str, EXPIRES_IN_SCHEMA, Meta(description=_EXPIRES_IN_HELP)] | None
DedupField = Annotated[DedupMode, Meta(description="Deduplication policy; default: the store's setting")] | None


class MemoryEntityInput(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An entity that a memory is about, by name; created if missing."""

    name: Annotated[LabelText, Meta(description="Its name, an alias, or its id")]
    entity_type: Annotated[LabelText, Meta(description="Its type; unknown: any entity of that name")] = UNKNOWN_TYPE
    relevance: Annotated[UnitFloat, Meta(description="Relevance of the entity for the memory, 0 to 1")] = 1.0


class StoreMemoryRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A memory to store."""

    content: Annotated[str, Meta(min_length=1, description=_CONTENT_HELP)]
    memory_type: Annotated[LabelText, Meta(description=_MEMORY_TYPE_HELP)] | None = None
    tags: Annotated[_Tags, Meta(description="At most 100 of 1 to 512 bytes")] = []
    confidence: Annotated[UnitFloat, Meta(description=_CONFIDENCE_HELP)] = 1.0
    source: Annotated[ShortText, Meta(description="Origin, such as a conversation")] | None = None
    context: Annotated[str, Meta(description="Surrounding context, at most 64 KiB")] | None = None
    metadata: Annotated[MetadataObject, Meta(description="Any JSON object, at most 256 KiB and 64 levels")] = {}
    entity_names: Annotated[
        list[LabelText],
        Meta(max_length=MAX_MEMORY_ENTITIES, description="Entities that it is about; created if missing"),
    ] = []
    entities: Annotated[
        list[MemoryEntityInput], Meta(max_length=MAX_MEMORY_ENTITIES, description="The same, with types and relevance")
    ] = []
    memory_id: (
        Annotated[
            NodeIdText, Meta(description="Its id; default: a new one. An existing node with this id becomes a memory")
        ]
        | None
    ) = field(default=None, name="id")
    importance: Annotated[UnitFloat, Meta(description=_IMPORTANCE_HELP)] = DEFAULT_IMPORTANCE
    layer: Annotated[int, Meta(ge=0, le=3, description=_LAYER_HELP)] | None = None
    parent_id: Annotated[ShortText, Meta(description=_PARENT_HELP)] | None = None
    valid_from: Annotated[TimestampText, Meta(description="Valid from then on (RFC 3339)")] | None = None
    valid_to: Annotated[TimestampText, Meta(description="Valid until then, exclusive (RFC 3339)")] | None = None
    expires_in: ExpiresInField = None
    created_at: (
        Annotated[TimestampText, Meta(description="Creation time (RFC 3339), not in the future; default: now")] | None
    ) = None
    dedup: DedupField = None
    dedup_threshold: (
        Annotated[
            UnitFloat,
            Meta(description="Cosine above which `similarity` merges; default: the store's setting"),
        ]
        | None
    ) = None


class StoreMemoriesRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Memories to store in one commit, each after the ones before it."""

    memories: Annotated[
        list[StoreMemoryRequest], Meta(min_length=1, max_length=MAX_BATCH_ITEMS, description="At most 1,000")
    ]


class ReadMemoryQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Options for reading one memory."""

    touch: Annotated[bool, Meta(description="Count it as a use, which raises its confidence")] = True


class ReadMemoryRequest(ReadMemoryQuery, kw_only=True):
    """A memory to read."""

    memory_id: str = field(name="id")


class MemoryIdRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The id of a memory."""

    memory_id: str = field(name="id")


class MemoryChanges(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Changes to a memory. Absent or null fields do not change; an empty text, list or object clears the field."""

    content: Annotated[str, Meta(min_length=1, description=_CONTENT_HELP)] | None = None
    memory_type: Annotated[LabelText, Meta(description="Another kind of memory")] | None = None
    tags: Annotated[_Tags, Meta(description="Replaces all of them")] | None = None
    confidence: Annotated[UnitFloat, Meta(description="Confidence, 0 to 1; decays from now on")] | None = None
    source: Annotated[ShortText, Meta(description="Origin")] | None = None
    context: Annotated[str, Meta(description="Surrounding context, at most 64 KiB")] | None = None
    metadata: Annotated[MetadataObject, Meta(description="Replaces all of it")] | None = None
    entity_names: (
        Annotated[
            list[LabelText],
            Meta(max_length=MAX_MEMORY_ENTITIES, description="Entities that it is about; replaces all of them"),
        ]
        | None
    ) = None
    importance: Annotated[UnitFloat, Meta(description=_IMPORTANCE_HELP)] | None = None
    layer: Annotated[int, Meta(ge=0, le=3, description=_LAYER_HELP)] | None = None
    parent_id: Annotated[ShortText, Meta(description=f"{_PARENT_HELP}; empty: none")] | None = None
    valid_from: Annotated[TimestampText, Meta(description="RFC 3339; empty: none")] | None = None
    valid_to: Annotated[TimestampText, Meta(description="RFC 3339; empty: none")] | None = None
    based_on_version: (
        Annotated[VersionNumber, Meta(description="Expected current version; otherwise a conflict")] | None
    ) = None


class UpdateMemoryRequest(MemoryChanges, kw_only=True):
    """A memory and the changes to it."""

    memory_id: str = field(name="id")


class DeleteMemoriesRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Filters of a deletion: a memory must match all; at least one non-empty filter is required."""

    memory_ids: Annotated[list[NodeIdText], Meta(max_length=MAX_BATCH_ITEMS, description="Only these")] | None = None
    before_date: (
        Annotated[TimestampText, Meta(description="Only those created before this RFC 3339 time or day, in UTC")] | None
    ) = None
    min_confidence_below: (
        Annotated[UnitFloat, Meta(description="Only those whose effective confidence is below this")] | None
    ) = None
    memory_types: Annotated[_Labels, Meta(description="Only these types")] | None = None
    dry_run: Annotated[bool, Meta(description=_DRY_RUN_HELP)] = False


class MemoryFilterFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Filters on memories; a memory must match all.

    ``field_aliases`` are the names that the entity memory's specification gives to filters; REST accepts either.
    """

    field_aliases: ClassVar[Mapping[str, str]] = {
        "memory_types": "types",
        "entity_id": "entity",
        "entity_name": "entity",
    }

    types: Annotated[_Labels, Meta(description="Any of these types; also `memory_types`")] | None = None
    tags: Annotated[_Labels, Meta(description="All of these tags")] | None = None
    min_confidence: Annotated[UnitFloat, Meta(description="Minimum effective confidence")] | None = None
    after_date: (
        Annotated[TimestampText, Meta(description="Created at or after this RFC 3339 time or day, in UTC")] | None
    ) = None
    before_date: (
        Annotated[TimestampText, Meta(description="Created before this RFC 3339 time or day, in UTC")] | None
    ) = None
    entity: (
        Annotated[
            LabelText, Meta(description="About this entity: its id, name or alias; also `entity_id`, `entity_name`")
        ]
        | None
    ) = None
    source: Annotated[LabelText, Meta(description="From this source")] | None = None
    layer: Annotated[int, Meta(ge=0, le=3, description="Only this layer")] | None = None
    under: Annotated[NodeIdText, Meta(description="Id of an ancestor, at any depth")] | None = None


MemorySortOrder = Literal["created", "updated", "confidence", "accessed"]


class MemoryListQuery(MemoryFilterFields, kw_only=True):
    """Query string of a list of memories. Lists do not count as uses."""

    metadata: AttributeConditionsText | None = None
    orphans: Annotated[
        bool, Meta(description="Only memories without a parent, except domains and concepts (layers 0 and 1)")
    ] = False
    ended: (
        Annotated[
            Literal["superseded", "merged", "forgotten", "pruned", "any"],
            Meta(description="Only memories withdrawn in this way; any: all, withdrawn or not; default: active ones"),
        ]
        | None
    ) = None
    sort: Annotated[MemorySortOrder, Meta(description="Sort order, newest or highest first")] = "created"
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_MEMORIES, description="Maximum number of memories")] = 20
    offset: Annotated[int, Meta(ge=0, le=MAX_PAGE_OFFSET, description="Memories to skip; first page only")] = 0
    cursor: Annotated[str, Meta(description="`next_cursor` of the previous page")] | None = None
    valid_at: Annotated[str, Meta(max_length=64, description=VALID_AT_HELP)] | None = None


MAX_QUESTION_CHARS = 10_000
_Query = Annotated[
    str, Meta(min_length=1, max_length=MAX_QUESTION_CHARS, description="Question or keywords, in plain language")
]


ExpandField = Annotated[
    bool,
    Meta(
        description="Also neighbours of the ten best hits: parent, children, siblings, related memories and those "
        "about the same entities; equal statements are shown once"
    ),
]
MAX_RECALL_BUDGET_TOKENS = 1_000_000


class RecallOptions(MemoryFilterFields, kw_only=True):
    """Options of recall without the query."""

    mode: Annotated[SearchMode, Meta(description="Search by keywords, vectors, both, or along entities")] = "hybrid"
    limit: (
        Annotated[
            int,
            Meta(ge=1, le=MAX_RECALL_LIMIT, description="Maximum number of hits; default: 20, or the store's setting"),
        ]
        | None
    ) = None
    offset: Annotated[int, Meta(ge=0, le=MAX_PAGE_OFFSET, description="Hits to skip")] = 0
    min_confidence: (
        Annotated[UnitFloat, Meta(description="Minimum effective confidence; default: 0.1, or the store's setting")]
        | None
    ) = None
    min_similarity: (
        Annotated[
            float,
            Meta(
                ge=-1,
                le=1,
                description="Minimum cosine with the query; in hybrid mode not applied to memories that share a word "
                "with it; default: 0.3 in hybrid and 0.5 in semantic mode, or the store's setting",
            ),
        ]
        | None
    ) = None
    alpha: Annotated[
        UnitFloat, Meta(description="Weight of keywords against vectors; default: 0.4, or the store's setting")
    ] | (None) = None
    entity: (
        Annotated[LabelText, Meta(description="About this entity, by id, name or alias; in graph mode, from there")]
        | None
    ) = None
    depth: Annotated[int, Meta(ge=1, le=10, description="Hops between entities, in graph mode")] = 2
    touch: Annotated[bool, Meta(description="Count the hits as used, which raises their confidence")] = True
    at_least: (
        Annotated[int, Meta(ge=0, description="Wait until the indexes reach this sequence, up to 10 s")] | None
    ) = None
    explain: Annotated[bool, Meta(description="Explain each hit")] = False
    valid_at: Annotated[str, Meta(max_length=64, description=VALID_AT_HELP)] | None = None
    expand: ExpandField = False
    past: Annotated[
        Literal["hide", "show"],
        Meta(description="show: include superseded memories, at 0.7 of their score"),
    ] = "hide"
    budget: (
        Annotated[int, Meta(ge=1, le=MAX_RECALL_BUDGET_TOKENS, description="Maximum estimated tokens of all contents")]
        | None
    ) = None
    also: AdditionalStores = None


class RecallRequest(RecallOptions, kw_only=True):
    """Request to recall the memories that best match a query."""

    query: _Query
    metadata: AttributeConditionsInput | None = None
    as_of: AsOfValue | None = None


class RecallOptionsQuery(RecallOptions, kw_only=True):
    """Options of recall as a query string."""

    metadata: AttributeConditionsText | None = None
    as_of: AsOfText | None = None


class RecallQuery(RecallOptionsQuery, kw_only=True):
    """A recall request as a query string. Lists repeat the parameter."""

    field_aliases: ClassVar[Mapping[str, str]] = {
        **MemoryFilterFields.field_aliases,
        "query": "q",
        "search_mode": "mode",
    }

    query: _Query = field(name="q")


class DryRunPlanReference(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Reference to the plan of a dry run."""

    plan: Annotated[int, Meta(ge=0, lt=1 << 53, description="`plan` of the dry run")]


class ConsolidateRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Options of a consolidation."""

    similarity_threshold: (
        Annotated[UnitFloat, Meta(description="Minimum cosine within a cluster; default: 0.85, or the store's setting")]
        | None
    ) = None
    dry_run: Annotated[bool, Meta(description="Report the merges without writing")] = False
    guard: (
        Annotated[
            bool,
            Meta(
                description="Keep memories apart that differ in numbers, names, negations, opposites or things; "
                "default: the store's setting `consolidation_guard`, initially true"
            ),
        ]
        | None
    ) = None
    types: Annotated[_Labels, Meta(description="Only memories of these types")] | None = None
    apply: (
        Annotated[
            DryRunPlanReference,
            Meta(description="Apply the plan of a dry run with the same options; a conflict if it no longer applies"),
        ]
        | None
    ) = None


class UndoConsolidationOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Options of undoing a consolidation."""

    force: Annotated[bool, Meta(description="Also undo memories that were changed since")] = False


class UndoConsolidationRequest(UndoConsolidationOptions, kw_only=True):
    """A consolidation run to undo."""

    run_id: str = field(name="id")


class ConsolidationRunListQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query string of the list of consolidation runs."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_MEMORIES, description="Maximum number of runs, newest first")] = 20


class PruneMemoriesRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Options of pruning."""

    dry_run: Annotated[bool, Meta(description=_DRY_RUN_HELP)] = False


class EntityWithRelevance(msgspec.Struct, kw_only=True):
    """An entity that a memory is about, with its relevance, 0 to 1."""

    id: str
    name: str
    entity_type: str
    relevance: float


class Memory(msgspec.Struct, kw_only=True):
    """A memory of an agent: a text with type, confidence, tags and times.

    ``confidence`` is the value at ``last_accessed_at``, or at the last write; ``effective_confidence`` is the value
    after decay at the time of this answer. Both change with the next read if this one counts as a use.

    Fields after ``version`` are absent if they do not apply: the parent, and for withdrawn memories the reason
    (``ended``) and the memory that they ``belongs_to``.
    """

    id: str
    content: str
    memory_type: str
    tags: list[str]
    confidence: float
    effective_confidence: float
    importance: float
    source: str | None
    context: str | None
    metadata: MetadataObject
    entities: list[EntityWithRelevance]
    access_count: int
    last_accessed_at: str | None
    created_at: str
    updated_at: str
    version: int
    layer: int | UnsetType = UNSET
    parent_id: str | UnsetType = UNSET
    valid_from: str | UnsetType = UNSET
    valid_to: str | UnsetType = UNSET
    ended: EndReason | UnsetType = UNSET
    belongs_to: str | UnsetType = UNSET


class SimilarMemory(msgspec.Struct, kw_only=True):
    """A memory near a new one that was not merged with it, with their difference and cosine."""

    id: str
    similarity: Annotated[float, Meta(description="Cosine")]
    differs: DifferenceKind
    content: Annotated[str, Meta(description="Its first 200 characters")]


class StoreMemoryAnswer(Memory, kw_only=True):
    """Answer to storing a memory: the memory that holds the text, a new or an existing one.

    ``outcome`` is `created`; `duplicate` for an equal statement; `merged` for another wording.
    """

    outcome: StoreOutcome
    similar: Annotated[list[SimilarMemory], Meta(description="At most five from a cosine of 0.8 on, nearest first")]
    near_checked: Annotated[bool, Meta(description="False if no vector was available for comparison")]
    sequence: Annotated[int, Meta(description="The store's commit number after this write")]


class UpdatedMemory(Memory, kw_only=True):
    """A memory after an update."""

    sequence: Annotated[int, Meta(description="The store's commit number after this write")]


class StoreMemoryBatchItemResult(msgspec.Struct, kw_only=True):
    """Result of one memory of a batch; ``id`` is the memory that holds the text."""

    id: str
    outcome: StoreOutcome
    similar: list[SimilarMemory]


class StoreMemoriesAnswer(msgspec.Struct, kw_only=True):
    """Results of storing several memories, in the order of the request."""

    results: list[StoreMemoryBatchItemResult]
    created: int
    duplicates: int
    merged: int
    near_checked: bool
    sequence: int


class DeleteMemoryAnswer(msgspec.Struct, kw_only=True):
    """Result of deleting one memory. Its entities stay."""

    ok: Literal[True] = True
    deleted_id: str
    existed: bool
    sequence: int


class DeleteMemoriesAnswer(msgspec.Struct, kw_only=True):
    """Result of a deletion, or its forecast with ``dry_run``, in one commit. Entities stay."""

    ok: Literal[True] = True
    dry_run: bool
    count: Annotated[int, Meta(description="Memories deleted, or to be deleted")]
    ids: Annotated[list[str], Meta(description="The first 100 of them")]
    missing: Annotated[list[str], Meta(description="Ids of the request that match no memory")]
    more: Annotated[bool, Meta(description="More memories match; repeat the request")]
    sequence: int


class StillReferencedDeletedEntity(msgspec.Struct, frozen=True, kw_only=True):
    """A deleted entity that memories still refer to."""

    id: str
    name: str
    entity_type: str
    deleted_at: str
    sequence: Annotated[int, Meta(description="The commit that deleted it")]


DeletedEntityField = Annotated[
    StillReferencedDeletedEntity, Meta(description="The requested entity, if it was deleted")
]


class MemoryPage(msgspec.Struct, kw_only=True):
    """One page of memories; ``next_cursor`` is null on the last one."""

    memories: list[Memory]
    next_cursor: str | None
    deleted_entity: DeletedEntityField | UnsetType = UNSET


class RecalledMemory(Memory, kw_only=True):
    """A recalled memory. Scores are absent if that index did not find it; ``hops`` is for graph mode.

    ``via`` is the memory, ``hops`` away, that raised its score: a nearby turn of a conversation, or with ``expand`` any
    related memory. ``relation`` is the relation of this hit to it.
    """

    score: Annotated[float, Meta(description="Sort key, effective confidence included")]
    keyword_score: float | UnsetType = UNSET
    semantic_score: float | UnsetType = UNSET
    hops: int | UnsetType = UNSET
    via: Annotated[str, Meta(description="The hit that raised its score")] | UnsetType = UNSET
    relation: (
        Annotated[
            str,
            Meta(
                description="With `via`, relation of this hit to that one: parent, child, sibling, entity (both are "
                "about the same), or the type of the relationship"
            ),
        ]
        | UnsetType
    ) = UNSET
    said: Annotated[int, Meta(description="Number of hits that say the same, if more than one")] | UnsetType = UNSET
    why: str | UnsetType = UNSET
    store: Annotated[str, Meta(description="With `also`, the store of the memory")] | UnsetType = UNSET


class RecallAnswer(msgspec.Struct, kw_only=True):
    """Recalled memories, best first. ``degraded``: the vectors come from words and letters only, not a model."""

    hits: list[RecalledMemory]
    withheld: Annotated[
        dict[str, int],
        Meta(
            description="Matching memories that were left out, counted by reason: below_confidence, superseded, "
            "merged, forgotten, pruned, not_valid, over_budget"
        ),
    ]
    degraded: bool
    index_sequence: Annotated[int, Meta(description="Last commit in the indexes")]
    took_ms: float
    notice: Notice = None
    deleted_entity: DeletedEntityField | UnsetType = UNSET


class MemoryMergeCluster(msgspec.Struct, kw_only=True):
    """Memories to merge: ``absorbed`` merge into ``primary``, which then has the ``content``."""

    primary: str
    absorbed: list[str]
    similarity: Annotated[float, Meta(description="Smallest cosine of two members; 1 for equal wording")]
    content: str
    tags: list[str]
    reason: Annotated[str, Meta(description="Reason why it was not merged; empty if it was")] = ""


class MemoryMergeSuggestion(msgspec.Struct, frozen=True):
    """Similar memories left for review by a person."""

    ids: list[str]
    similarity: float


class UnmergedMemoryPair(msgspec.Struct, kw_only=True):
    """Two memories near in meaning that were not merged, and the difference that kept them apart."""

    ids: list[str]
    similarity: float
    differs: str


class ConsolidationReport(msgspec.Struct, kw_only=True):
    """Result of a consolidation, or its forecast.

    ``plan`` of a dry run can be applied later. ``run`` can be undone; it is null if nothing was merged. Without vectors
    (``near_checked``), only equal wording is found.
    """

    dry_run: bool
    run: str | None
    plan: Annotated[int, Meta(description="Commit that it was computed from")]
    threshold: float
    clusters_found: int
    memories_merged: Annotated[int, Meta(description="Memories that were merged into others")]
    memories_deleted: Annotated[int, Meta(description="Absorbed memories: withdrawn, not erased")]
    clusters: Annotated[list[MemoryMergeCluster], Meta(description="The first 100")]
    kept_apart: Annotated[
        list[UnmergedMemoryPair], Meta(description="Near pairs that the guard kept apart, nearest first; the first 100")
    ]
    kept_apart_count: int
    left: Annotated[list[MemoryMergeCluster], Meta(description="Clusters not merged, with the reason; the first 100")]
    near_checked: bool
    sequence: int
    took_ms: float


class ConsolidationRun(msgspec.Struct, kw_only=True):
    """A consolidation run and its ``state``."""

    id: str
    started_at: str
    trigger: Literal["manual", "automatic"]
    state: Literal["running", "done", "interrupted", "undone"]
    threshold: float
    guard: bool
    clusters: int
    merged: int
    deleted: int
    suggestions: Annotated[list[MemoryMergeSuggestion], Meta(description="Similar memories left for review")]


class ConsolidationRuns(msgspec.Struct, kw_only=True):
    """Runs of consolidation, newest first."""

    runs: list[ConsolidationRun]


class UndoConsolidationAnswer(msgspec.Struct, kw_only=True):
    """Result of undoing a run; ``skipped`` memories were changed or deleted since and did not change."""

    run: str
    restored: Annotated[list[str], Meta(description="Restored memories, the first 100")]
    restored_count: int
    skipped: list[str]
    sequence: int


class MemoryPruneReport(msgspec.Struct, kw_only=True):
    """Pruned memories, or those to prune with ``dry_run``. ``kept`` counts memories below the threshold that stay."""

    dry_run: bool
    mode: PruningMode
    threshold: float
    count: int
    ids: Annotated[list[str], Meta(description="The first 100")]
    kept: Annotated[dict[str, int], Meta(description="By reason: pinned, layer, parent, recent")]
    sequence: int
